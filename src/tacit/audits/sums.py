"""Audits of methods that ask for noisy sums: votes, averaging, rewards, FedEx and DBSCAN's cells.

Three clients: one that is replaced, one that stays, and a curious one. The curious client knows its
own noise and can take it off the sum, which is the same as adding none; it is what
:class:`~tacit.privacy.mechanisms.Participation` counts as known. So every sum holds exactly the
noise that is guaranteed, and no more.

A first run of the method in a whole federation (masked sums, signatures, ledgers) leaves what its
clients were asked and what the ledgers were charged with. Most runs then repeat the clients' part
of that: the real question answers, the real mechanism checks the bound and draws the noise, and
shares are added. Asking the same questions again is a strategy that a server has, so what it shows
is a true bound. Other runs go through the whole federation again. Answers here do not depend on
chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from tacit.audits.worlds import (
    DELTA,
    LOSS,
    PART,
    VICTIM,
    Listening,
    Material,
    Numbers,
    Sizes,
    World,
    charged_to,
)
from tacit.charged_questions import ChargedQuestions
from tacit.endpoint import AskSum, Endpoint
from tacit.federation import EVALUATE, LocalChannel, local_federation
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import CLIENT
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import (
    Mechanism,
    NoiseShare,
    Participation,
    SkellamMechanism,
    mechanism_of,
)
from tacit.privacy.skellam import FloatArray, IntArray, log_pmf, reach
from tacit.secure.protocol import Ask, Round, SecureSum, Total
from tacit.sgd import Weights
from tacit.space import Choice, Config, Float, Space
from tacit.training import PrivateAveraging
from tacit.tuners.bandit import Bandit, Stage
from tacit.tuners.combine import Combine
from tacit.tuners.fedex import FedEx
from tacit.tuners.tuner import Tuner, noise_for
from tacit.tuners.voting import RunOff, Vote

PARTICIPATION = Participation(clients=3, dropout=0, colluding=0)
CURIOUS = 2
_LOG_RARE = -80.0
_MOVE = 2.0
"""How far training moves the model: beyond every clip."""


@dataclass(frozen=True)
class Leaning:
    """A client whose data pull everything one way, or, with -1, the opposite way."""

    way: int = 1

    def score(self, config: Config) -> float:
        """Between 0 and 1: three good candidates of seven at one end, the others bad."""
        place = float(config["x"]) if self.way > 0 else 1 - float(config["x"])
        return 0.01 * place if place < 0.45 else 0.5 + 0.4 * place

    def train_many(
        self, configs: Sequence[Mapping[str, Any]], weights: Weights, epochs: int, round_number: int
    ) -> Weights:
        """The first weight moves far, the others stay."""
        del configs, epochs, round_number
        moved = tuple(array.copy() for array in weights)
        moved[0][:, 0] += self.way * _MOVE
        return moved

    def train_by(
        self,
        rule: object,
        configs: Sequence[Config],
        weights: Weights,
        epochs: int,
        round_number: int,
    ) -> Weights:
        """The same, whatever the rule."""
        del rule
        return self.train_many(configs, weights, epochs, round_number)

    def losses_many(self, configs: Sequence[Config], weights: Weights) -> FloatArray:
        """Falls with the first weight."""
        del configs
        return -weights[0][:, 0].astype(np.float64)

    def validate_many(self, weights: Weights) -> FloatArray:
        """Nobody asks."""
        return np.zeros(len(weights[0]))


REPLACED: Mapping[World, Leaning] = {"A": Leaning(1), "B": Leaning(-1)}
OTHERS = (Leaning(1), Leaning(1))


class Curious(Endpoint):
    """A participant that knows its noise: what it sends has none left in it."""

    def _drawn(self, mechanism: Mechanism) -> NoiseShare:
        return NoiseShare(mechanism.bound, np.zeros(mechanism.bound.length, np.int64))


@dataclass
class Watching:
    """A secure sum that keeps what it opened."""

    inner: SecureSum
    totals: list[IntArray]

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
        opened = self.inner.total(around, first, ask)
        self.totals.append(opened.value)
        return opened


@dataclass(frozen=True)
class Exchange:
    """What one whole run showed: questions, opened sums, and the ledgers' events."""

    questions: list[bytes]
    totals: list[IntArray]
    material: Material


@dataclass(frozen=True)
class Sum:
    """One question as the attacker sees it: both answers of the victim, and the claimed noise."""

    mechanism: SkellamMechanism
    answers: Mapping[World, IntArray]
    others: tuple[IntArray, ...]

    @classmethod
    def of(cls, question: bytes) -> Sum:
        """Answers by the real question, noise as the endpoint takes it from the message."""
        asked = msgspec.msgpack.decode(question, type=AskSum)
        said = Participation(asked.clients, asked.dropout, asked.colluding)
        mechanism = mechanism_of(asked.query.bound, said, asked.variance)
        if not isinstance(mechanism, SkellamMechanism):
            raise ValueError("the sum has no noise; allowed in an audit is a finite epsilon")
        return cls(
            mechanism,
            {world: asked.query.answer(client) for world, client in REPLACED.items()},
            tuple(asked.query.answer(client) for client in OTHERS),
        )

    @property
    def variance(self) -> float:
        """What is claimed: the noise that is guaranteed."""
        return self.mechanism.required_variance

    def residuals(self, world: World, count: int) -> IntArray:
        """The victim's noisy answers, with the noise of the client that stays."""
        stays = self.others[0]
        noise = self.mechanism.repeated(stays, count) - stays
        return self.mechanism.repeated(self.answers[world], count) + noise

    def losses(self, residuals: IntArray) -> FloatArray:
        """Log likelihood of A over that of B for every row, by the claimed noise."""
        differs = self.answers["A"] != self.answers["B"]
        table = _log_probabilities(self.variance)
        in_a, in_b = (
            table[np.minimum(np.abs(residuals - self.answers[world])[:, differs], len(table) - 1)]
            for world in REPLACED
        )
        return np.asarray((in_a - in_b).sum(axis=1))

    def ranks(self, total: IntArray, world: World) -> FloatArray:
        """Where the noise of an opened sum stands in the claimed distribution, ties by lot."""
        table = _log_probabilities(self.variance)
        chances = np.exp(np.concatenate([table[:0:-1], table]))
        below = np.concatenate([[0.0], np.cumsum(chances)])
        noise = total - sum(self.others) - self.answers[world]
        place = np.clip(noise + len(table) - 1, 0, len(chances) - 1)
        lot = np.random.default_rng().random(len(noise))
        return np.asarray(below[place] + lot * chances[place])


@lru_cache(maxsize=16)
def _log_probabilities(variance: float) -> FloatArray:
    return log_pmf(variance, reach(variance, _LOG_RARE))


@dataclass(frozen=True)
class SumAudit:
    """One method on three clients.

    Attributes:
        noise: the variance with which the method fits a budget.
        carry_out: asks all that the method asks.
    """

    name: str
    worlds: str
    sizes: Mapping[str, Sizes]
    noise: Callable[[Budget], float]
    carry_out: Callable[[ChargedQuestions], object]
    unit = CLIENT
    path = PART
    block = 200_000
    holes = False

    def material(self, epsilon: float) -> Material:
        return self.exchange(epsilon, "A").material

    def exchange(self, epsilon: float, world: World) -> Exchange:
        """One run in a whole federation: masked sums, signatures, a ledger on every side."""
        budget = Budget(epsilon, DELTA)
        clients = [REPLACED[world], *OTHERS]
        federation = local_federation(
            clients,
            PARTICIPATION,
            Ledger.in_memory("audit", budget),
            "audit",
            _noise(self.name, budget),
        )
        channel = federation.channel
        if not isinstance(channel, LocalChannel):
            raise TypeError("a local federation has a local channel")
        endpoints = list(channel.endpoints)
        known = endpoints[CURIOUS]
        endpoints[CURIOUS] = Curious(**{f.name: getattr(known, f.name) for f in fields(known)})
        questions: list[bytes] = []
        totals: list[IntArray] = []
        federation.channel = Listening(LocalChannel(endpoints), EVALUATE, questions)
        federation.secure = Watching(federation.secure, totals)
        self.carry_out(ChargedQuestions(federation))
        charged = charged_to(federation.ledger, endpoints[VICTIM].ledger)
        return Exchange(questions, totals, Material(charged, tuple(questions)))

    def claimed_losses(self, material: Material, epsilon: float, count: int) -> FloatArray:
        del epsilon
        rng = np.random.default_rng(1)
        losses = np.zeros(count)
        for question in material.questions:
            asked = Sum.of(question)
            rate, shape = asked.variance / 2, (count, asked.mechanism.bound.length)
            noise = rng.poisson(rate, shape) - rng.poisson(rate, shape)
            losses += asked.losses(asked.answers["A"] + noise)
        return losses

    def runs(self, material: Material, epsilon: float, world: World, count: int) -> Numbers:
        del epsilon
        losses = np.zeros(count)
        for question in material.questions:
            asked = Sum.of(question)
            losses += asked.losses(asked.residuals(world, count))
        return {LOSS: losses}

    def whole_runs(self, epsilon: float, world: World, count: int) -> tuple[Numbers, FloatArray]:
        """Runs through the whole federation.

        Beside their numbers, the ranks of all noise in them: uniform between 0 and 1, if the noise
        is what was claimed.
        """
        losses, ranks = np.zeros(count), []
        for run in range(count):
            seen = self.exchange(epsilon, world)
            for question, total in zip(seen.questions, seen.totals, strict=True):
                asked = Sum.of(question)
                losses[run] += float(asked.losses((total - sum(asked.others))[None])[0])
                ranks.append(asked.ranks(total, world))
        return {LOSS: losses}, np.concatenate(ranks)


@lru_cache(maxsize=32)
def _noise(name: str, budget: Budget) -> float:
    """Calibrated once a process: it takes a second."""
    return SUM_AUDITS[name].noise(budget)


def _start(models: int) -> Weights:
    return (np.zeros((models, 2), np.float32),)


def _tuned(name: str, method: Tuner, space: Space, worlds: str, runs: Sizes) -> SumAudit:
    return SumAudit(
        name,
        worlds,
        {"full": runs, "quick": _QUICK},
        lambda budget: noise_for(method, space, budget),
        lambda questions: method.tune(questions, space, np.random.default_rng(1)),
    )


def _axis(count: int) -> Space:
    return Space({"x": Choice([place / (count - 1) for place in range(count)])})


_QUICK = Sizes(200_000, 150)
_USUAL = Sizes(10_000_000, 300)
_AVERAGING = PrivateAveraging(rounds=1, epochs=1)
SUM_AUDITS: Mapping[str, SumAudit] = {
    audit.name: audit
    for audit in (
        _tuned(
            "vote",
            Vote(2, 4, "grid"),
            _axis(4),
            "one of three clients votes for the first two of four candidates, or for the last two",
            Sizes(40_000_000, 400),
        ),
        _tuned(
            "auto",
            Vote(3, 8, "grid", ballot="borda", smooth=True, run_off=RunOff(4, 0.2)),
            _axis(8),
            "one of three clients ranks eight candidates, and the finalists, in the opposite order",
            Sizes(60_000_000, 300),
        ),
        SumAudit(
            "averaging",
            "one of three clients' updates is as long as the clip, or the opposite of that",
            {"full": _USUAL, "quick": _QUICK},
            lambda budget: calibrate(
                lambda variance: _AVERAGING.event(_start(1), _AVERAGING.unit(_start(1)), variance),
                budget,
            ),
            lambda questions: _AVERAGING.train(
                questions, {}, _start(1), _AVERAGING.unit(_start(1))
            ),
        ),
        _tuned(
            "rewards",
            Bandit(_start, Stage(1, 2, most_rounds=1, train_rounds=0), candidates=2),
            _axis(2),
            "one of three clients' rewards all count as the clip, or all as its opposite",
            _USUAL,
        ),
        _tuned(
            "fedex",
            FedEx(_start, rounds=1, candidates=1),
            Space({"x": Choice([0.0])}),
            "one of three clients' updates and losses are as large as the clips, or the opposite",
            _USUAL,
        ),
        _tuned(
            "cells",
            Combine("dbscan", "dp", candidates=7, points=3),
            Space({"x": Float(0.0, 1.0)}),
            "one of three clients marks the first three cells of seven, or the last three",
            _USUAL,
        ),
    )
}
