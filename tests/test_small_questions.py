"""Small questions that would be large work: refused before that, or priced with little."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.arrays import Array
from tacit.combining import CellCounts, ClusterSums, Kept, LocalBest, LossSums, SurfaceSums
from tacit.endpoint import SESSION_BYTES, VERSION, AskInClear, AskSum, Endpoint, encode
from tacit.local_search import LocalSearch
from tacit.privacy import events, losses, sampled_gaussian
from tacit.privacy.accounting import Budget, _spent, calibrate, ideal_epsilon, spent
from tacit.privacy.bounds import BordaVotes
from tacit.privacy.events import Composed, SampledGaussian, SkellamRelease
from tacit.privacy.ledger import Ledger
from tacit.privacy.losses import TooLargeToPrice
from tacit.privacy.noise_lattice import FEW
from tacit.query import Ballot, LocalTraining, Sums
from tacit.rewards import Rewards, SampledLoss, SampledUpdate
from tacit.rules import DpSgd
from tacit.secure.protocol import Refused
from tacit.space import Choice, Config, Float, Int, Space
from tacit.updates import PrivateUpdate
from tests.federations import BUDGET, likes

LARGE = 2**62
SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
SEARCH = LocalSearch(SPACE.to_json())
WEIGHTS = (Array.of(np.zeros(2, np.float32)),)


def nothing(count: int) -> tuple[Config, ...]:
    """Candidates of one byte each."""
    return tuple({} for _ in range(count))


def search(**axes: Float | Int | Choice) -> LocalSearch:
    return LocalSearch(Space(axes).to_json(), trials=1_000_000)


def rewards(steps: int, count: int = 1) -> Rewards:
    return Rewards(nothing(count), WEIGHTS, 1, 0, 1.0, steps=steps)


QUESTIONS: dict[str, tuple[Sums, float]] = {
    "many ranks, much noise": (Ballot(nothing(400), 200, "borda"), 1e9),
    "many ranks, most noise": (Ballot(nothing(400), 200, "borda", unit=3), 1e8),
    "more ranks": (Ballot(nothing(4_000), 2_000, "borda"), 1e6),
    "most ranks": (Ballot(nothing(400_000), 200_000, "borda"), 1e8),
    "many ranks, next to no noise": (Ballot(nothing(400), 200, "borda"), 1e-9),
    "a huge unit": (Ballot(nothing(2), 1, unit=LARGE), 1e-30),
    "as much noise as there may be": (Ballot(nothing(2), 1), 1e9),
    "the least noise": (Ballot(nothing(2), 1), 5e-324),
    "hardly any noise": (Ballot(nothing(2), 1), 1e-300),
    "little noise, many places": (Ballot(nothing(100_000), 50_000), 1.0),
    "some noise, many places": (Ballot(nothing(100_000), 50_000), 5_700.0),
    "large steps": (rewards(10**8), 1e-9),
    "larger steps": (rewards(10**10), 1e-13),
    "huge steps": (rewards(LARGE), 1e-30),
    "large steps, many places": (rewards(10**6, 5_000), 1e-6),
    "steps of a point": (LocalBest(SEARCH, steps=10**8), 1e-9),
    "huge steps of a point": (LocalBest(SEARCH, steps=LARGE), 1e-30),
    "a million losses": (LossSums(search(x=Float(0.0, 1.0))), 100.0),
    "a million losses, many axes": (
        LossSums(search(**{f"x{number}": Float(0.0, 1.0) for number in range(50)})),
        100.0,
    ),
    "losses of many integers": (LossSums(search(x=Int(0, 2**40))), 100.0),
    "a huge clip": (LossSums(SEARCH, clip=1e300), 100.0),
    "a clip beyond numbers": (LossSums(SEARCH, clip=1e308, steps=LARGE), 100.0),
    "a surface with a huge clip": (SurfaceSums(SEARCH, nothing(3), clip=1e308), 100.0),
    "endless cells": (CellCounts(SEARCH, Kept(cell=5e-324)), 100.0),
    "too many cells": (CellCounts(SEARCH, Kept(cell=1e-4)), 100.0),
    "many cells, endless points": (CellCounts(SEARCH, Kept(points=LARGE, cell=0.01)), 100.0),
    "clusters of every second cell": (
        ClusterSums(SEARCH, Kept(cell=0.01), dense=tuple(range(0, 10_000, 2))),
        100.0,
    ),
    "clusters, huge steps": (ClusterSums(SEARCH, Kept(), dense=(0,), steps=LARGE), 1e-20),
    "an update in huge steps": (PrivateUpdate({}, WEIGHTS, 1, 0, 1.0, LARGE, LARGE), 1e-30),
    "an update in one unit": (PrivateUpdate({}, WEIGHTS, 1, 0, 1.0, LARGE, 1), 1e-30),
    "a sampled loss": (
        SampledLoss(nothing(2), (0.5, 0.5), WEIGHTS, 1, 0, 1.0, 0.0, steps=LARGE),
        1e-30,
    ),
    "a sampled update": (
        SampledUpdate(nothing(2), (0.5, 0.5), WEIGHTS, 1, 0, 1.0, 1.0, 0.0, LARGE, 1),
        1e-30,
    ),
}


TRAININGS = {
    "rare": (0.001, 1.0, 100),
    "rare and large": (0.001, 0.5, 1),
    "rare, many steps": (0.001, 0.7, 1000),
    "rarer": (1e-4, 0.5, 10),
    "rarer, little noise": (1e-5, 0.4, 1),
    "rarest": (1e-9, 0.2, 1),
    "rarest, much noise, many steps": (1e-9, 50.0, 10**6),
    "rarest, most steps": (1e-9, 1.0, 10**9),
    "most steps": (1.0, 1.0, 10**9),
    "next to no noise": (0.5, 1e-9, 1),
    "next to no information": (1e-9, 1e9, 1),
}
"""Rate, noise and steps of DP-SGD."""

MOST = 100
"""Ballots like the reference: the work that pricing one question may take."""


class TooMuchWork(BaseException):
    """Not an error that anybody catches."""


class Meter:
    """Entries of tables, grids and convolutions; beyond ``most`` nothing more is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: float) -> None:
        self.done, self.most = 0.0, most
        self._count(monkeypatch, events, "log_pmf", lambda _variance, furthest: furthest)
        events._coordinate.cache_clear()
        self._count(monkeypatch, events, "_shift_losses", lambda table, *_: 2 * len(table))
        sampled_gaussian.replaced_pld.cache_clear()
        self._count(monkeypatch, sampled_gaussian, "_between", lambda x, *_: 10 * len(x))
        self._count(monkeypatch, losses, "_moments", len)
        self._count(monkeypatch, losses, "_power", lambda transformed, _: 2 * len(transformed))

    def _count(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        entries: Callable[..., float],
    ) -> None:
        real = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.done += entries(*arguments, **named)
            if self.done > self.most:
                raise TooMuchWork(f"{self.done:.3g} entries; the reference is {self.most:.3g}")
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)


@pytest.fixture(scope="module")
def reference() -> float:
    """The work of pricing one ballot that ranks ten candidates."""
    vote = BordaVotes(100, 10)
    noise = calibrate(vote.release, BUDGET)
    _spent.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        meter = Meter(patch, math.inf)
        Ledger.in_memory("reference", BUDGET).check(vote.release(noise), "vote")
    return meter.done


def asked(query: Sums, variance: float, session: bytes = b"s") -> AskSum:
    return AskSum(
        version=VERSION,
        session=session * SESSION_BYTES,
        secure="masks",
        clients=10,
        dropout=1,
        colluding=0,
        variance=variance,
        deadline=60.0,
        line=bytes(32),
        at_least=None,
        query=query,
    )


def endpoint() -> Endpoint:
    return Endpoint(0, likes(0.5), None, Ledger.in_memory("node", Budget(30.0, 1e-5)))


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_refused_or_priced_with_little_work(
    name: str, reference: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took minutes, or gigabytes, before the deadline had any say in it."""
    query, variance = QUESTIONS[name]
    request = encode(asked(query, variance))
    assert len(request) < 500_000
    Meter(monkeypatch, MOST * reference)
    with contextlib.suppress(Refused):
        mechanism = endpoint()._accepted(msgspec.msgpack.decode(request, type=AskSum))
        assert mechanism.bound.length <= max(100_000, len(request))


def training(rate: float, noise: float, steps: int) -> LocalTraining:
    return LocalTraining(({},), WEIGHTS, 1, 0, DpSgd(rate, steps, 1.0, noise, batch=8))


@pytest.mark.parametrize("name", TRAININGS)
def test_a_question_in_clear_is_refused_or_priced_with_little_work(
    name: str, reference: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took up to a minute, was then refused for the budget, and could be asked again."""
    _spent.cache_clear()
    Meter(monkeypatch, MOST * reference)
    ledger = Ledger.in_memory("node", Budget(1e-3, 1e-10))
    member = replace(endpoint(), ledger=ledger, record_level=True)
    question = AskInClear(VERSION, SESSION_BYTES * b"s", training(*TRAININGS[name]))
    with contextlib.suppress(Refused, TypeError):  # this client scores, and trains nothing
        member.handle(b"", encode(question))


def test_what_cannot_be_priced_is_refused_in_clear_too() -> None:
    member = replace(endpoint(), record_level=True)
    for rate, noise in ((0.5, 1e-200), (1e-30, 1.0)):
        question = AskInClear(VERSION, SESSION_BYTES * b"s", training(rate, noise, 1))
        with pytest.raises(Refused, match="the question cannot be priced"):
            member.handle(b"", encode(question))
    assert not member.ledger.charges()


@pytest.mark.parametrize("noise", [0.5, 0.7, 1.0, 2.0, 20.0])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("steps", [1, 100, 10_000])
def test_usual_trainings_are_priced_by_distributions(rate: float, noise: float, steps: int) -> None:
    """On however coarse a grid: little work is no reason to refuse them, or to charge more."""
    guarantee = spent(SampledGaussian(rate, noise, steps), 1e-5)
    assert guarantee.accounting.startswith("exact")
    bound = ideal_epsilon(SampledGaussian(rate, noise, steps), 1e-5)
    assert guarantee.epsilon <= bound or bound > 600, "which counts as infinite"


@pytest.mark.parametrize(
    ("name", "found", "advice"),
    [
        ("many ranks, much noise", "of 200 distances up to 200", "rank fewer candidates"),
        ("most ranks", "by 200000 different distances; allowed are up to 1000", "rank fewer"),
        ("huge steps", "would take 9.22e.18 entries of tables", "count in coarser steps"),
        ("the least noise", "variance 4.94e-324 is too little", "add more"),
        ("a clip beyond numbers", "the question cannot be priced", ""),
        ("a million losses", "trials is 1000000; allowed is 1 to 100000", ""),
    ],
)
def test_a_refusal_says_what_was_found_and_what_to_do(name: str, found: str, advice: str) -> None:
    with pytest.raises(Refused, match=f"{found}.*{advice}"):
        endpoint().handle(b"", encode(asked(*QUESTIONS[name])))


def test_a_ledger_that_would_take_too_long_is_not_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks another kind of question every time makes every next price dearer."""
    Meter(monkeypatch, 0)
    votes = tuple(
        BordaVotes(200, ranked).release(5_000.0 + number)
        for ranked in range(2, 90)
        for number in range(10)
    )
    with pytest.raises(TooLargeToPrice, match="of 4004 distances up to 89 under noise of variance"):
        spent(Composed(votes), 1e-5)
    trainings = tuple(SampledGaussian(0.01, 1 + number / 1000, 10) for number in range(1001))
    with pytest.raises(TooLargeToPrice, match=r"1001 different releases .* up to 1000: ask"):
        spent(Composed(trainings), 1e-5)


def test_a_little_more_noise_every_time_makes_no_price_much_dearer(
    monkeypatch: pytest.MonkeyPatch, reference: float
) -> None:
    votes = tuple(BordaVotes(100, 10).release(variance) for variance in range(5_000, 5_900))
    meter = Meter(monkeypatch, FEW * reference)
    assert spent(Composed(votes), 1e-5).accounting.endswith("noise rounded down")
    assert meter.done > reference


@pytest.mark.parametrize("variance", [1e-6, 0.3, 20.0, 139.0, 1e4, 1e7])
@pytest.mark.parametrize("shifts", [((1, 10),), ((1, 2), (2, 2), (3, 2)), ((64, 30),), ((1, 1),)])
def test_the_estimated_work_is_not_less_than_the_work(
    shifts: tuple[tuple[int, int], ...], variance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of making tables and grids, each of which the meter sees twice."""
    release = SkellamRelease(shifts, variance)
    interval = 1e-3 * math.sqrt(release.squared_distance)
    meter = Meter(monkeypatch, 2 * release.entries(interval) + 100)
    for _ in release.plds(1, interval):
        pass
    assert meter.done > 0
