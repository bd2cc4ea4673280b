from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.halving import Floats, Indices, rungs, successive_halving

steadily = settings(derandomize=True, deadline=None, max_examples=150)


@dataclass
class Race:
    """Candidates whose scores at every effort are known; ``ends`` is when each has learnt all."""

    table: Floats
    ends: Indices
    asked: list[tuple[int, list[int]]] = field(default_factory=list)

    def run(self, examples: int | None = None) -> Floats:
        candidates, efforts = self.table.shape
        return successive_halving(candidates, efforts - 1, self.advance, self.remaining, examples)

    def advance(self, some: Indices, until: int) -> Floats:
        self.asked.append((until, some.tolist()))
        return np.asarray(self.table[some, until])

    def remaining(self, until: int) -> Floats:
        return np.where(until >= self.ends, 0.0, 1.0)

    def last(self) -> dict[int, int]:
        """The effort at which each candidate was asked for last."""
        return {candidate: until for until, some in self.asked for candidate in some}

    def given_up(self) -> dict[int, tuple[int, list[int]]]:
        """Who was given up: after which effort, and who went on from there."""
        found = {}
        for (until, some), (_, next_ones) in zip(self.asked, self.asked[1:], strict=False):
            for candidate in set(some) - set(next_ones):
                if self.ends[candidate] > until:
                    found[candidate] = until, next_ones
        return found


@st.composite
def races(draw: st.DrawFn) -> Race:
    candidates, effort = draw(st.integers(1, 60)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    table = rng.integers(0, draw(st.sampled_from([3, 1000])), (candidates, effort + 1)) / 7
    table[rng.random(table.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = np.inf
    never = rng.random(candidates) < draw(st.sampled_from([0.0, 0.7, 1.0]))
    return Race(table, np.where(never, effort, rng.integers(1, effort + 1, candidates)))


@pytest.mark.parametrize(
    ("candidates", "effort", "expected"),
    [
        (100, 5, [(1, 28), (2, 24), (3, 18), (4, 14), (5, 0)]),
        (100, 10, [(2, 28), (4, 24), (6, 18), (8, 14), (10, 0)]),
        (100, 3, [(1, 24), (2, 14), (3, 0)]),
        (100, 2, [(1, 18), (2, 0)]),
        (100, 1, [(1, 0)]),
        (40, 5, [(1, 11), (2, 10), (5, 0)]),
        (10, 5, [(5, 0)]),
    ],
)
def test_rungs_by_hand(candidates: int, effort: int, expected: list[tuple[int, int]]) -> None:
    assert rungs(candidates, effort) == expected


@given(st.integers(1, 1000), st.integers(1, 200))
@settings(derandomize=True)
def test_rungs_grow_and_ever_fewer_go_on(candidates: int, effort: int) -> None:
    found = rungs(candidates, effort)
    assert [until for until, _ in found] == sorted({until for until, _ in found})
    assert [kept for _, kept in found] == sorted((kept for _, kept in found), reverse=True)
    assert found[-1] == (effort, 0)
    assert all(kept >= 10 and 0 < until < effort for until, kept in found[:-1])


@given(races())
@steadily
def test_ever_fewer_candidates_are_asked_for(race: Race) -> None:
    race.run()
    assert race.asked[0][1] == list(range(len(race.table)))
    kept = dict(rungs(len(race.table), race.table.shape[1] - 1))
    for (until, some), (later, fewer) in zip(race.asked, race.asked[1:], strict=False):
        assert until < later
        assert fewer == sorted(fewer)
        assert set(fewer) <= set(some)
        if np.isfinite(race.table[some, until]).any():
            assert 0 < len(fewer) <= kept[until]
        else:
            assert fewer == some


@given(races())
@steadily
def test_who_goes_on_is_among_the_best_of_those_who_still_learn(race: Race) -> None:
    race.run()
    for candidate, (until, went_on) in race.given_up().items():
        assert race.table[went_on, until].max() <= race.table[candidate, until]


@given(races())
@steadily
def test_nobody_given_up_ranks_before_who_went_on(race: Race) -> None:
    scores = race.run()
    for candidate, (until, went_on) in race.given_up().items():
        finite = scores[went_on][np.isfinite(scores[went_on])]
        assert (finite < scores[candidate]).all()
        assert scores[candidate] >= race.table[candidate, until]


@given(races())
@steadily
def test_who_was_not_given_up_keeps_the_last_score(race: Race) -> None:
    scores, given_up = race.run(), race.given_up()
    for candidate, until in race.last().items():
        if candidate not in given_up:
            assert scores[candidate] == race.table[candidate, until]
            finished = until >= race.ends[candidate]
            assert finished or until == race.table.shape[1] - 1


@given(races())
@steadily
def test_where_scores_do_not_change_the_best_candidate_wins(race: Race) -> None:
    race.table[:] = race.table[:, :1]
    scores = race.run()
    assert race.table[scores.argmin(), 0] == race.table[:, 0].min()


def test_a_slow_starter_that_is_given_up_ranks_behind_one_that_got_worse() -> None:
    """30 candidates: 10 go on at every rung; number 0 becomes the worst of those who went on."""
    table = np.tile(np.arange(30.0)[:, None], (1, 6))
    table[0, 2:] = 25
    scores = Race(table, np.full(30, 5)).run()
    assert scores[0] == 25
    assert scores[1:10].tolist() == list(range(1, 10))
    assert (scores[10:] > 25).all()
    assert scores[26:].tolist() == [26, 27, 28, 29]


def test_who_went_on_and_then_finished_ranks_before_who_was_given_up() -> None:
    table = np.tile(np.arange(30.0)[:, None], (1, 6))
    table[0, 2:] = 25
    scores = Race(table, np.where(np.arange(30) < 10, 2, 5)).run()
    assert scores[0] == 25
    assert (scores[10:] > 25).all()


def test_a_rung_where_everything_is_infinite_keeps_everybody() -> None:
    table = np.full((100, 6), np.inf)
    table[:, 2:] = np.arange(100)[::-1, None]
    race = Race(table, np.full(100, 5))
    scores = race.run()
    assert [(until, len(some)) for until, some in race.asked] == [
        (1, 100),
        (2, 100),
        (3, 24),
        (4, 18),
        (5, 14),
    ]
    assert scores.argmin() == 99
    assert np.isinf(Race(np.full((30, 6), np.inf), np.full(30, 5)).run()).all()


def test_candidates_without_a_score_go_last_and_stay_without() -> None:
    table = np.tile(np.arange(30.0)[:, None], (1, 6))
    table[:15] = np.nan
    race = Race(table, np.full(30, 5))
    scores = race.run()
    assert np.isnan(scores[:15]).all()
    assert race.asked[-1][1] == list(range(15, 25))
    assert scores[15:25].tolist() == list(range(15, 25))


def test_finished_candidates_leave_their_place_to_others() -> None:
    """12 of 30 have learnt everything after the first rung: 10 of the other 18 go on."""
    table = np.tile(np.arange(30.0)[:, None], (1, 6))
    race = Race(table, np.where(np.arange(30) < 12, 1, 5))
    assert race.run()[:22].tolist() == list(range(22))
    assert [some for _, some in race.asked[1:]] == [list(range(12, 22))]


def test_when_all_are_finished_nobody_is_asked_again() -> None:
    race = Race(np.tile(np.arange(30.0)[:, None], (1, 6)), np.ones(30, np.intp))
    assert race.run().tolist() == list(range(30))
    assert [until for until, _ in race.asked] == [1]


def test_who_lies_far_behind_is_given_up_although_there_is_room() -> None:
    """The tenth has 9 errors in 100: 4 standard errors of a difference are 16 more."""
    errors = np.concatenate([np.arange(10), [25, 26], np.full(38, 90)]) / 100
    race = Race(np.tile(errors[:, None], (1, 6)), np.full(50, 5))
    scores = race.run(examples=100)
    assert [len(some) for _, some in race.asked] == [50, 11, 11, 10]
    assert race.asked[1][1] == list(range(11))
    assert scores.argsort(kind="stable")[:12].tolist() == list(range(12))
    patient = Race(race.table, race.ends)
    patient.run()
    assert len(patient.asked[1][1]) == 14, "28 % of 50, wherever they lie"


def test_fewer_than_ten_scores_say_nothing_about_who_lies_far_behind() -> None:
    errors = np.concatenate([np.zeros(9), np.full(21, np.inf)])
    race = Race(np.tile(errors[:, None], (1, 6)), np.full(30, 5))
    race.run(examples=1000)
    assert len(race.asked[1][1]) == 10
