"""Sums that no valid answers give: what one client can and cannot add to them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from tacit import plausible
from tacit.charged_questions import ChargedQuestions
from tacit.combining import CellCounts, Kept
from tacit.endpoint import AskSum, Endpoint
from tacit.federation import Federation
from tacit.local_search import LocalSearch
from tacit.plausible import FALSE_ALARM, ImplausibleSum, check_reached, check_sum
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import (
    BordaVotes,
    Bound,
    Marks,
    NormBall,
    OnePoint,
    TopVotes,
    WithAbstentions,
)
from tacit.privacy.mechanisms import Mechanism, Participation, SkellamMechanism
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.secure.protocol import Participant, SpoiledSum, Step
from tacit.space import Float, Space
from tacit.tuners.voting import Vote
from tests import randomness
from tests.command_line import document, tacit
from tests.federations import SPACE, channel, federation, likes
from tests.forked import forked
from tests.test_contracts import BOUNDS

CLIENTS, CANDIDATES, VOTES = 50, 100, 5
HOSTILE = 17
"""The number of the client that does not keep to its ballot."""
FAVOURITE = 73
"""A candidate that nobody else likes."""


@dataclass(frozen=True)
class Stuffing:
    """A participant whose vector is not the one its endpoint checked."""

    honest: Participant
    stuff: Callable[[IntArray], IntArray]

    def begin(self, vector: IntArray) -> Step:
        return self.honest.begin(self.stuff(vector))

    def step(self, state: bytes, request: bytes) -> Step:
        return self.honest.step(state, request)


def corrupt(
    built: Federation, stuff: Callable[[IntArray], IntArray], number: int = HOSTILE
) -> None:
    """Let one endpoint of a local federation send what it likes; its own checks do not bind it."""

    class Hostile(Endpoint):
        def _participant(self, asked: AskSum, question: bytes, mechanism: Mechanism) -> Participant:
            return Stuffing(super()._participant(asked, question, mechanism), stuff)

    local = channel(built)
    endpoints = list(local.endpoints)
    endpoints[number] = Hostile(**vars(endpoints[number]))
    local.endpoints = endpoints


def adding(amount: int, candidate: int = FAVOURITE) -> Callable[[IntArray], IntArray]:
    def stuff(vector: IntArray) -> IntArray:
        stuffed = vector.copy()
        stuffed[candidate] += amount
        return stuffed

    return stuff


def sixty_votes(vector: IntArray) -> IntArray:
    """Its own five, with their noise, and 55 more."""
    stuffed = vector.copy()
    stuffed[40:95] += 1
    return stuffed


def fifty(budget: Budget, **more: Any) -> Federation:
    """Real keys and real masks; everybody likes the first candidates."""
    variance = SkellamMechanism.calibrated(
        TopVotes(CANDIDATES, VOTES), Participation(CLIENTS), budget
    ).variance
    return federation([likes(0.0) for _ in range(CLIENTS)], variance, budget=budget, **more)


ATTACKS: dict[str, tuple[Callable[[IntArray], IntArray], float]] = {
    "a million for one": (adding(1_000_000), 1.0),
    "three hundred for one": (adding(300), 1.0),
    "three hundred less for one": (adding(-300), 1.0),
    "sixty votes": (sixty_votes, 20.0),
}
"""What one client sends, and an epsilon at which its noise does not hide it."""


@pytest.mark.parametrize("name", ATTACKS)
def test_what_no_valid_ballots_give_is_reported_and_chooses_nothing(name: str) -> None:
    stuff, epsilon = ATTACKS[name]
    budget = Budget(epsilon, 1e-5)
    built = fifty(budget)
    corrupt(built, stuff)
    with pytest.raises(SpoiledSum, match="no valid answers"):
        Vote(VOTES, CANDIDATES).tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    assert len(built.ledger) == 1, "what was charged stays charged"
    assert not built.turnouts


def test_without_noise_a_single_vote_too_many_is_seen() -> None:
    """Exact sums are encrypted ones; their total is known to the vote."""
    built = federation(
        [likes(0.0)] * 4, 0.0, budget=Budget(math.inf, 1e-5), dropout=0.0, secure="encrypted"
    )
    ballot = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
    assert built.sum(ballot, "vote").value.tolist() == [4, 4, *[0] * 8]
    corrupt(built, lambda vector: vector + np.eye(10, dtype=np.int64)[7], number=2)
    with pytest.raises(ImplausibleSum, match=r"add up to 9, .*\(from 8 to 8 together\)"):
        built.sum(ballot, "vote")


def passing(stuffed: Callable[[int], IntArray]) -> int:
    """The most that one client can add, by 1 at a time, to the noiseless tally of fifty."""
    bound = TopVotes(CANDIDATES, VOTES)
    terms = Participation(CLIENTS), Budget(1.0, 1e-5)
    share = SkellamMechanism.calibrated(bound, *terms).share_variance
    honest = np.where(np.arange(CANDIDATES) < VOTES, CLIENTS, 0).astype(np.int64)
    for amount in range(10_000):
        try:
            check_sum(honest + stuffed(amount), bound, CLIENTS, share)
        except ImplausibleSum:
            return amount - 1
    raise AssertionError("everything passes")


def balanced(amount: int) -> IntArray:
    """So much for the favourite, taken from all others alike, so that the total stays."""
    stuffed = np.zeros(CANDIDATES, dtype=np.int64)
    others = np.delete(np.arange(CANDIDATES), FAVOURITE)
    np.subtract.at(stuffed, np.resize(others, amount), 1)
    stuffed[FAVOURITE] = amount
    return stuffed


def spread(amount: int) -> IntArray:
    """So many votes too many, among all candidates."""
    stuffed = np.zeros(CANDIDATES, dtype=np.int64)
    np.add.at(stuffed, np.arange(amount) % CANDIDATES, 1)
    return stuffed


def test_the_page_says_what_one_client_can_still_do() -> None:
    """Below what fifty voters and their noise can give, nothing tells a hostile client."""
    page = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
    told = " ".join(page.split())
    assert f"can add {passing(balanced)} to a candidate" in told
    assert f"cast {passing(spread)} votes too many" in told


def of_bound(draw: st.DrawFn, bound: Bound) -> IntArray:
    """Any valid answer."""
    match bound:
        case TopVotes():
            chosen = draw(st.permutations(range(bound.candidates)))
            return bound.ballot(chosen[: bound.votes])
        case BordaVotes():
            chosen = draw(st.permutations(range(bound.candidates)))
            return bound.ballot(chosen[: bound.ranked])
        case WithAbstentions():
            if draw(st.booleans()):
                return bound.abstention()
            votes = of_bound(draw, bound.ballots)
            return np.concatenate([votes, np.zeros(len(bound.marks), dtype=np.int64)])
        case Marks():
            places = st.integers(0, bound.length - 1)
            marked = draw(st.sets(places, max_size=min(bound.most, bound.length)))
            return np.isin(np.arange(bound.length), list(marked)).astype(np.int64)
        case OnePoint():
            if draw(st.booleans()):
                return bound.abstention()
            steps = st.integers(-bound.steps, bound.steps)
            numbers = draw(st.lists(steps, min_size=bound.numbers, max_size=bound.numbers))
            groups = [np.eye(k)[draw(st.integers(0, k - 1))] for k in bound.options]
            there = bound.steps * np.concatenate([*groups, [1]])
            return np.concatenate([numbers, there]).astype(np.int64)
        case _:
            some = st.integers(-bound.largest, bound.largest)
            entries = draw(st.lists(some, min_size=bound.length, max_size=bound.length))
            answer = np.array(entries, dtype=np.int64)
            while not bound.admits(answer):
                answer = np.trunc(answer * 0.9).astype(np.int64)
            return answer


@st.composite
def valid_sums(draw: st.DrawFn, bound: Bound) -> tuple[int, IntArray]:
    """How many members, and what they add up to; often many of them agree."""
    answers = [of_bound(draw, bound) for _ in range(draw(st.integers(1, 4)))]
    times = [draw(st.sampled_from([1, 1, 50])) for _ in answers]
    assert all(bound.admits(answer) for answer in answers)
    total = np.sum([n * answer for n, answer in zip(times, answers, strict=True)], axis=0)
    return sum(times), total


@pytest.mark.parametrize("bound", BOUNDS, ids=repr)
@given(data=st.data())
def test_every_sum_of_valid_answers_passes_exactly(bound: Bound, data: st.DataObject) -> None:
    members, total = data.draw(valid_sums(bound))
    check_sum(total, bound, members, 0.0)


@pytest.mark.parametrize("bound", BOUNDS, ids=repr)
def test_nothing_beyond_an_entry_the_total_or_the_length_passes(bound: Bound) -> None:
    allowed = bound.sums(3)
    for index in range(bound.length):
        for entry in (allowed.highest[index] + 1, allowed.lowest[index] - 1):
            outside = np.zeros(bound.length, dtype=np.int64)
            outside[index] = entry
            with pytest.raises(
                ImplausibleSum, match=f"an entry of the sum of 3 clients is {entry}"
            ):
                check_sum(outside, bound, 3, 0.0)
    if allowed.total != (allowed.lowest.sum(), allowed.highest.sum()):
        with pytest.raises(ImplausibleSum, match="the entries of the sum of 3 clients add up to"):
            check_sum(allowed.highest, bound, 3, 0.0)
    if isinstance(bound, NormBall):
        long = np.zeros(bound.length, dtype=np.int64)
        long[:2] = allowed.highest[0], -allowed.highest[0]
        with pytest.raises(ImplausibleSum, match=r"the sum of 3 clients has length 16\.9"):
            check_sum(long, bound, 3, 0.0)


@pytest.mark.parametrize("index", [0, 5])
@pytest.mark.parametrize("amount", [2**63 - 1, -(2**63)])
def test_no_number_is_too_large_to_be_checked(index: int, amount: int) -> None:
    value = np.full(6, amount, dtype=np.int64)
    value[index] = 0
    with pytest.raises(ImplausibleSum, match=str(amount)):
        check_sum(value, NormBall(6, 9, 4), 3, 1.5)


RATE, DRAWN = 0.02, 3000


@pytest.mark.parametrize("bound", [*BOUNDS, NormBall(500, 900, 40)], ids=repr)
def test_honest_sums_are_refused_no_more_often_than_stated(bound: Bound) -> None:
    """At a rate that can be counted, on sums at the edge of what is valid; the seed is fixed."""
    rng = np.random.default_rng(7)
    share, members = 2.5, 9
    edge = members * bound.abstention()
    if isinstance(bound, NormBall):
        edge[0] = members * bound.largest
    noise = rng.poisson(share * members / 2, (2, DRAWN, bound.length))
    alarms = 0
    for drawn in noise[0] - noise[1]:
        try:
            check_sum(edge + drawn, bound, members, share, RATE)
        except ImplausibleSum:
            alarms += 1
    assert binom.sf(alarms - 1, DRAWN, 3 * RATE) > randomness.FALSE_ALARM
    assert FALSE_ALARM <= 1e-6


@pytest.mark.parametrize("length", [1, 30, 3000])
@pytest.mark.parametrize("variance", [0.4, 50.0])
def test_the_length_of_noise_stays_within_its_reach(length: int, variance: float) -> None:
    rng = np.random.default_rng(length)
    noise = rng.poisson(variance / 2, (2, 1000, length))
    squared = ((noise[0] - noise[1]) ** 2).sum(axis=1)
    reached = plausible._squared_reach(variance, length, RATE)
    beyond = int((squared > reached).sum())
    assert binom.sf(beyond - 1, 1000, RATE) > randomness.FALSE_ALARM
    assert reached < 3 * squared.max(), "a bound that nothing comes near would notice nothing"


def hostile_tacit(arguments: Sequence[str]) -> None:
    """The command line, where one of the simulated clients adds a million to its ballot."""
    from tacit.cli import main

    real = Endpoint._participant

    def one_is_hostile(self: Endpoint, *terms: Any) -> Participant:
        honest = real(self, *terms)
        return Stuffing(honest, adding(1_000_000, 2)) if self.number == 3 else honest

    setattr(Endpoint, "_participant", one_is_hostile)  # noqa: B010
    sys.argv = ["tacit", *arguments]
    main()


def test_a_spoiled_run_ends_with_a_sentence_and_can_go_on(tmp_path: Path) -> None:
    settings = ("federation.clients=8", "search.candidates=6", "search.ballot=published")
    small = ("search.votes=2", "task.score_epochs=1", "task.train_rounds=0", "task.hidden=[]")
    changes = [word for key in (*settings, *small) for word in ("--set", key)]
    out = tmp_path / "run"
    done = forked(hostile_tacit, ["tune", "--out", str(out), *changes], None, os.environ)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "no valid answers with their noise give that" in done.stderr
    assert not (out / "result.json").exists()
    shown = document(tacit("runs", "show", out, "--json"))
    assert (shown["state"], shown["opened"], shown["config"]) == ("spoiled", 0, None)
    assert shown["why"] in " ".join(done.stderr.split())
    told = tacit("runs", "show", out).stdout
    assert "Spoiled: an entry of the sum of 8 clients is" in told
    amended = ("--epsilon", 3, "--delta", "1e-5", "--reason", "a hostile client was found")
    assert tacit("ledger", "amend", out / "ledger.sqlite", *amended).returncode == 0
    assert document(tacit("tune", "--resume", out, "--json"))["config"]
    assert document(tacit("runs", "show", out, "--json"))["state"] == "finished"


@pytest.mark.parametrize(("marks", "spoiled"), [(0, False), (1, True), (100, True)])
def test_more_marks_than_valid_answers_have_spoil_what_reaches_a_threshold(
    marks: int, spoiled: bool
) -> None:
    """One client of four marks every cell; only the cells with two marks or more are opened."""
    pytest.importorskip("seal")
    search = LocalSearch(Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}).to_json())
    counts = CellCounts(search, Kept(points=1, cell=0.25))
    built = federation(
        [likes(0.3)] * 4, 0.0, budget=Budget(math.inf, 1e-5), dropout=0, secure="encrypted"
    )
    for number in (2, 3):
        corrupt(built, lambda vector: vector + marks, number=number)
    if spoiled:
        with pytest.raises(SpoiledSum, match="entries of the sum of 4 clients reach 2"):
            built.reached(counts, 2, "cells")
    else:
        assert built.reached(counts, 2, "cells").sum() <= 2


@given(st.integers(1, 12), st.integers(1, 6), st.data())
def test_what_valid_marks_reach_is_never_called_spoiled(
    members: int, at_least: int, data: st.DataObject
) -> None:
    bound = Marks(8, 2)
    cells = st.lists(st.sampled_from(range(8)), max_size=2, unique=True)
    counts = np.zeros(8, np.int64)
    for _ in range(members):
        counts[data.draw(cells)] += 1
    check_reached(int((counts >= at_least).sum()), at_least, bound, members, 0.0)
