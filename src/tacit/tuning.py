"""One call from clients and a space to a choice and its price, in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.federation import Federation, Progress, in_words, local_federation, lone_holder
from tacit.page import versions
from tacit.privacy.accounting import Budget, Guarantee, spent
from tacit.privacy.events import (
    RECORD,
    Release,
    SampledGaussian,
    Scored,
    Selected,
    SkellamNormRelease,
    SkellamRelease,
    compose,
    releases,
)
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SomeClients
from tacit.result import (
    ANY_SERVER,
    COVERS,
    COVERS_NO_OUTPUT,
    COVERS_NOTHING,
    COVERS_TRAINING,
    CURIOUS_SERVER,
    ENCRYPTED_SERVER,
    EVERY_RUN,
    OPEN_SERVER,
    RESULT_ONLY,
    SIGNED_SERVER,
    MostAbstained,
    Privacy,
    Result,
    Turnout,
)
from tacit.secure.protocol import ENCRYPTED, MASKS, PLAIN
from tacit.space import Config, Dimension, Space, as_space
from tacit.strategy import choose
from tacit.task import Client, as_client
from tacit.tuners.selection import Selection
from tacit.tuners.tuner import Counts, Outcome, Tuner, noise_for, unit_of

SKELLAM, SAMPLED = "skellam", "sampled gaussian"
MECHANISMS = {
    SkellamRelease: SKELLAM,
    SkellamNormRelease: SKELLAM,
    SampledGaussian: SAMPLED,
    Scored: SAMPLED,
    Selected: SAMPLED,
}
SHORTENED = "it was cut off before, and ended early to pay for what had been asked then"


def tune(
    clients: Sequence[Client | Callable[[Config], float]],
    space: Space | Mapping[str, Dimension],
    method: Tuner | None = None,
    budget: Budget | None = None,
    *,
    dropout: SomeClients = 0.1,
    colluding: SomeClients = 0,
    secure: str = MASKS,
    seed: int | None = None,
    federation: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Let clients agree on a configuration; the server sees a noisy sum and nothing else.

    All clients live in this process, with real keys, masks and noise; the network comes with an
    engine. Without a ``federation`` name the spending is remembered for this call only, which is
    right for simulations on public data; with one, the federation's lifetime ledger is charged
    (see :func:`tacit.privacy.ledger.ledger_path`), and a call beyond its budget is refused.

    >>> from tacit.space import Float
    >>> tastes = np.linspace(0.4, 0.6, 80)
    >>> clients = [lambda config, taste=taste: (config["x"] - taste) ** 2 for taste in tastes]
    >>> result = tune(clients, {"x": Float(0.0, 1.0)}, seed=1)
    >>> bool(0.2 < result.config["x"] < 0.8), result.privacy.epsilon <= 1.0
    (True, True)

    Args:
        clients: objects with ``score(config)``, lower is better, or plain functions; none for a
            :class:`~tacit.tuners.selection.Selection`.
        space: what to tune, as a :class:`Space` or a mapping of names to Float, Int and Choice.
        method: how to choose; default: the vote that :func:`tacit.strategy.choose` picks.
        budget: the most this call may spend; default: epsilon 1, delta 1e-5.
        dropout: clients that may drop out, as a count (``2``) or a fraction (``0.1``, ``"1/3"``).
        colluding: clients that may tell others their noise, likewise.
        secure: ``"masks"``, or ``"encrypted"`` for methods in that mode, where nobody may drop out.
        seed: for drawing candidates; noise never has a seed.
        federation: whose lifetime ledger to charge.
        progress: called with a stage, clients done and clients in all.

    Raises:
        MostAbstained: the method counts abstentions, and most clients abstained.
    """
    wanted = as_space(space)
    allowed = Budget(1.0, 1e-5) if budget is None else budget
    members = [as_client(client) for client in clients]
    chosen = method
    if chosen is None:
        participation = Participation(len(members), dropout, colluding)
        chosen = choose(wanted, participation, allowed).vote
    alone = isinstance(chosen, Selection)
    if alone and members:
        raise ValueError(
            f"found {len(members)} clients; allowed for a selection are none: one holder of data "
            "trains, on the examples that the method has"
        )
    ledger = Ledger.of(federation, allowed) if federation else None
    terms: dict[str, Any] = {
        "ledger": Ledger.in_memory("this-call", allowed) if ledger is None else ledger,
        "run": run_name(chosen.name),
        "variance": noise_for(chosen, wanted, allowed),
    }
    built = (
        lone_holder(**terms)
        if alone
        else local_federation(
            members,
            Participation(len(members), dropout, colluding),
            secure=secure,
            record_level=unit_of(chosen, wanted) == RECORD,
            progress=progress,
            **terms,
        )
    )
    outcome = chosen.tune(ChargedQuestions(built), wanted, np.random.default_rng(seed))
    result = conclude(chosen, outcome, built, allowed)
    if result.warning:
        raise MostAbstained(result)
    return result


def run_name(method: str) -> str:
    """A name for a run's lines in the ledger, never used before."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{method}-{token_hex(4)}"


def conclude(method: Tuner, outcome: Outcome, federation: Federation, budget: Budget) -> Result:
    """The result of a run: what was chosen, and what the ledger says it cost."""
    counting = federation.ledger.counting()
    charges = [charge for charge in counting if charge.run == federation.run]
    guarantee = spent(compose(charge.event for charge in charges), budget.delta)
    kinds = {type(one) for charge in charges for one in releases(charge.event)}
    mechanisms = sorted({MECHANISMS[kind] for kind in kinds if kind in MECHANISMS})
    noisy = SKELLAM in mechanisms
    asked, answered = min(federation.turnouts, key=lambda turnout: turnout[1], default=(0, 0))
    guaranteed, required = federation.participation.guaranteed, federation.variance
    if outcome.tally is not None:  # told in votes, whatever units its noise was counted in
        required = outcome.tally.variance * guaranteed / answered
    privacy = Privacy(
        guarantee,
        mechanism=" and ".join(mechanisms) or "none",
        participation=federation.participation,
        server=_server(federation, kinds),
        setting=federation.setting,
        covers=_covers(guarantee, federation, trained=outcome.weights is not None),
        required_variance=required if noisy else None,
        delivered_variance=required / guaranteed * answered if noisy else None,
    )
    return Result(
        method=method.name,
        config=outcome.config,
        candidates=outcome.candidates,
        tally=None if outcome.tally is None else tuple(map(int, outcome.tally.votes)),
        run_off=None if outcome.run_off is None else _told(outcome.run_off),
        note="; ".join(filter(None, (outcome.note, *_remarks(federation)))),
        architecture=outcome.architecture,
        rounds=tuple(asdict(note) for note in federation.rounds),
        weights=outcome.weights,
        clients=Turnout(asked, answered),
        privacy=privacy,
        seconds={stage: cost.seconds for stage, cost in federation.costs.items()},
        bytes={
            stage: {"up": cost.up, "down": cost.down} for stage, cost in federation.costs.items()
        },
        exchanges=sum(cost.exchanges for cost in federation.costs.values()),
        faults=tuple(map(str, federation.faults)),
        abstentions=outcome.abstentions,
        versions=versions(),
        ledger=federation.ledger.extract(federation.run),
    )


def _remarks(federation: Federation) -> list[str]:
    """What a reader should know of how the run went."""
    remarks = [SHORTENED] if federation.shortened else []
    if federation.unusable:
        remarks.append(
            f"{federation.unusable.total()} answer(s) in clear could not be used and were left out "
            f"({in_words(federation.unusable)})"
        )
    return remarks


def _told(counts: Counts) -> dict[str, Any]:
    """A second vote as plain data."""
    return {
        "candidates": list(counts.candidates),
        "tally": counts.votes.tolist(),
        "variance": counts.variance,
    }


def _covers(guarantee: Guarantee, federation: Federation, *, trained: bool) -> str:
    covered = COVERS_TRAINING if trained else COVERS
    if math.isinf(guarantee.epsilon):
        covered = COVERS_NO_OUTPUT if "sums" in guarantee.accounting else COVERS_NOTHING
    return covered if trained else f"{covered} {federation.follows}".rstrip()


def _server(federation: Federation, kinds: set[type[Release]]) -> str:
    if Selected in kinds:
        return RESULT_ONLY
    if Scored in kinds:
        return EVERY_RUN
    if kinds == {SampledGaussian}:
        return ANY_SERVER
    if federation.secure.name == PLAIN:
        return OPEN_SERVER
    if federation.secure.name == ENCRYPTED:
        return ENCRYPTED_SERVER
    return SIGNED_SERVER if federation.roster else CURIOUS_SERVER
