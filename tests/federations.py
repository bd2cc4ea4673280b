"""Small federations whose clients' tastes are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tacit.federation import Federation, LocalChannel, local_federation
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SomeClients
from tacit.space import Config, Float, Space
from tacit.task import Client, FunctionClient

BUDGET = Budget(1.0, 1e-5)
SPACE = Space({"x": Float(0.0, 1.0)})


@dataclass(frozen=True)
class Careful(FunctionClient):
    """A client that notes in how many folds it is asked to cross-validate."""

    asked: list[int] = field(default_factory=list)

    def cross_validate(self, configs: Sequence[Config], folds: int) -> list[float]:
        self.asked.append(folds)
        return [self.score(config) for config in configs]


def likes(best: float) -> Client:
    """A client that prefers values of x near its best."""

    def loss(config: Config) -> float:
        return abs(float(config["x"]) - best)

    return FunctionClient(loss)


def federation(
    clients: Sequence[Client],
    variance: float = 139.0,
    *,
    budget: Budget = BUDGET,
    dropout: SomeClients = 0.1,
    colluding: SomeClients = 0,
    secure: str = "masks",
    roster: bool = True,
    deadline: float = math.inf,
    trains: bool = False,
    record_level: bool = False,
    drops: Mapping[int, str] | None = None,
) -> Federation:
    return local_federation(
        clients,
        Participation(len(clients), dropout, colluding),
        Ledger.in_memory("test", budget),
        run="run",
        variance=variance,
        secure=secure,
        roster=roster,
        deadline=deadline,
        trains=trains,
        record_level=record_level,
        drops=drops,
    )


def channel(built: Federation) -> LocalChannel:
    assert isinstance(built.channel, LocalChannel)
    return built.channel


class Unreachable:
    """A channel that nobody may ask."""

    def __init__(self, clients: int) -> None:
        self.clients = range(clients)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        raise AssertionError(f"{len(requests)} clients were asked at {stage}")
