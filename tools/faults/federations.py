"""Federations of every size in which messages are lost, members vanish, and some are hostile.

Whatever happens, a sum opens with exactly the survivors' answers and their noise, or not at all,
and it is given up only when more members are missing than was planned.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from tacit.bench.secure_sum import JunkDealer, LossyChannel
from tacit.endpoint import Endpoint
from tacit.federation import Federation, LocalChannel, kind_of_piece, local_federation
from tacit.journal import Journal
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.receipts import Receipt
from tacit.secure.protocol import (
    ENCRYPTED,
    MASKS,
    PLAIN,
    Ask,
    Round,
    SecureSum,
    SpoiledSum,
    ThinRing,
    TooFewClients,
    Total,
)
from tools.faults.campaign import Campaign, Outcome, Ready
from tools.faults.history import Evidence, breaches
from tools.faults.members import BALLOT, VARIANCE, likes

LARGEST_LOSS = 0.05
FURTHEST = 9.0
"""Standard deviations of noise; an opened sum beyond, with a chance below 1e-18, is wrong."""
_STAGES = ("evaluate", "share", "deliver", "seal", "confirm", "open")
_BUDGET = Budget(30.0, 1e-5)


@dataclass
class Rough(LossyChannel):
    """Loses messages in both directions, and garbles replies of some members at some stage."""

    garbled: Mapping[int, str] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    """Who at some stage was asked and did not answer so that it counted."""

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        replies = dict(super().ask(stage, requests))
        for client in replies:
            if self.garbled.get(client) == stage:
                replies[client] = self.fate.randbytes(self.fate.randrange(200))
                self.missing.add(client)
        if stage != "explain":  # only who is accused is asked then
            self.missing |= requests.keys() - replies.keys()
        return replies


@dataclass
class Watched:
    """A secure sum that remembers what it opened."""

    inner: SecureSum
    opened: list[tuple[str, Total]] = field(default_factory=list)
    """The session of each sum that was opened, and the sum."""

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def sealing(self) -> str:
        return self.inner.sealing

    @property
    def opens_thresholds(self) -> bool:
        return self.inner.opens_thresholds

    def check(self, around: Round) -> None:
        self.inner.check(around)

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        total = self.inner.total(around, first, ask)
        self.opened.append((around.session.hex(), total))
        return total


@dataclass(frozen=True)
class _Plan:
    """What chance decides about one federation."""

    participation: Participation
    secure: str
    roster: bool
    loss: float
    drops: Mapping[int, str]
    garbled: Mapping[int, str]
    dealers: Sequence[int]
    """Members whose boxes hold nothing."""
    bests: Sequence[float]

    @classmethod
    def drawn(cls, chance: random.Random) -> _Plan:
        secure = chance.choices((MASKS, PLAIN, ENCRYPTED), (90, 8, 2))[0]
        clients = 3 if secure == ENCRYPTED else chance.choice((3, 4, 5, 7, 9, 12, 20, 30, 40))
        dropout = 0 if secure == ENCRYPTED else chance.randrange(clients // 3 + 1)
        colluding = 0 if secure == ENCRYPTED else chance.randrange(max(clients // 4, 1))
        everybody = list(range(clients))
        chance.shuffle(everybody)
        silent = [everybody.pop() for _ in range(chance.choice((0, 0, 0, 1, dropout, dropout + 1)))]
        hostile = [everybody.pop() for _ in range(chance.choice((0, 0, 0, 1, 2))) if everybody]
        if secure != MASKS:
            hostile = []
        roster = chance.random() < 0.8
        dealers = [one for one in hostile if roster and chance.random() < 0.5]
        return cls(
            Participation(clients, dropout, colluding),
            secure,
            roster,
            0.0 if secure == ENCRYPTED else chance.choice((0.0, 0.0, 0.02, LARGEST_LOSS)),
            {one: chance.choice(_STAGES) for one in silent if secure != ENCRYPTED},
            {one: chance.choice(_STAGES) for one in hostile if one not in dealers},
            dealers,
            [chance.random() for _ in range(clients)],
        )


def federated(_prepared: Path, _seeds: Sequence[int]) -> Ready:
    """Each trial is another federation, of which one or two sums are asked."""
    return Ready(_play)


def _play(seed: int, folder: Path) -> Outcome:
    chance = random.Random(f"federations {seed}")
    plan = _Plan.drawn(chance)
    federation, channel, watched = _built(plan, chance, folder)
    outcome = Outcome()
    outcome.counts[plan.secure] += 1
    for number in range(chance.choice((1, 1, 2))):
        channel.missing.clear()
        opened = len(watched.opened)
        try:
            with federation.held():
                answered = federation.sum(BALLOT, f"vote {number}").answered
        except TooFewClients as error:
            outcome.counts["given up"] += 1
            outcome.failures += _given_up(plan, channel, error)
        except SpoiledSum as error:
            outcome.counts["spoiled"] += 1
            if not (plan.dealers or plan.garbled):
                outcome.failures.append(f"spoiled although nobody is hostile: {error}")
        else:
            outcome.counts["opened"] += 1
            session, total = watched.opened[opened]
            outcome.failures += _opened(plan, channel, federation, session, total, answered)
    outcome.failures += breaches(_evidence(channel, folder))
    outcome.failures = [f"{plan.participation}, {plan.secure}: {one}" for one in outcome.failures]
    return outcome


def _built(plan: _Plan, chance: random.Random, folder: Path) -> tuple[Federation, Rough, Watched]:
    built = local_federation(
        [likes(best) for best in plan.bests],
        plan.participation,
        Ledger.create(folder / "server.sqlite", "clinics", _BUDGET),
        run="votes",
        variance=VARIANCE,
        secure=plan.secure,
        roster=plan.roster,
        journal=Journal(folder / "run", {"journal": "run"}, kind_of_piece),
    )
    if not isinstance(built.channel, LocalChannel):
        raise TypeError("a local federation has a local channel")
    keep = partial(_keep, folder / "receipts")
    endpoints = [replace(endpoint, on_release=keep) for endpoint in built.channel.endpoints]
    for dealer in plan.dealers:
        own = {one.name: getattr(endpoints[dealer], one.name) for one in fields(Endpoint)}
        endpoints[dealer] = JunkDealer(**own)
    channel = Rough(endpoints, dict(plan.drops), loss=plan.loss, fate=chance, garbled=plan.garbled)
    watched = Watched(built.secure)
    return replace(built, channel=channel, secure=watched), channel, watched


def _keep(folder: Path, receipt: Receipt) -> None:
    receipt.keep(folder)


def _given_up(plan: _Plan, channel: Rough, error: TooFewClients) -> list[str]:
    """It is right only if more are missing, or left out, than may be."""
    missing = len(channel.missing | set(plan.dealers) | set(plan.garbled))
    allowed = plan.participation.clients - plan.participation.threshold
    if isinstance(error, ThinRing) or missing > allowed:
        return []
    return [f"given up with {missing} missing, of which {allowed} may be: {error}"]


def _opened(
    plan: _Plan,
    channel: Rough,
    federation: Federation,
    session: str,
    total: Total,
    answered: int,
) -> list[str]:
    """What is wrong with an opened sum."""
    found = []
    if answered != len(total.survivors):
        found.append(f"{answered} answers are said to be in a sum of {len(total.survivors)}")
    if len(total.survivors) < plan.participation.threshold:
        found.append(f"a sum of {len(total.survivors)} was opened, which are too few")
    answers = [BALLOT.answer(likes(plan.bests[client])) for client in total.survivors]
    share = BALLOT.bound.length and _share(federation, plan)
    noise = total.value - np.sum(answers, axis=0)
    furthest = float(np.abs(noise).max()) / math.sqrt(share * len(answers))
    if furthest > FURTHEST:
        found.append(f"an entry is {furthest:.1f} standard deviations off the survivors' answers")
    for client in total.survivors:
        charges = channel.endpoints[client].ledger.charges()
        if sum(charge.run == session for charge in charges) != 1:
            found.append(f"client {client} is in the sum, and its ledger has no line of it")
    return found


def _share(federation: Federation, plan: _Plan) -> float:
    """The variance of one client's noise."""
    from tacit.privacy.mechanisms import mechanism_of

    return mechanism_of(BALLOT.bound, plan.participation, federation.variance).share_variance


def _evidence(channel: Rough, folder: Path) -> Evidence:
    """Members' ledgers, which are in memory, are copied into files."""
    members = []
    for number, endpoint in enumerate(channel.endpoints):
        path = folder / f"member-{number}.sqlite"
        copy = sqlite3.connect(path)
        endpoint.ledger._file.connection.backup(copy)
        copy.close()
        members.append(path)
    return Evidence(
        servers=[folder / "server.sqlite"],
        members=members,
        runs=[folder / "run"],
        receipts=[folder / "receipts"],
    )


FEDERATIONS = Campaign(
    "federations",
    "A federation of 3 to 40 members loses messages and members, and some are hostile.",
    full=500,
    quick=40,
    prepare=federated,
)
