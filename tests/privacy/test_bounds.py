from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from tacit.privacy.accounting import privacy_loss
from tacit.privacy.bounds import (
    BordaVotes,
    Bound,
    Box,
    Marks,
    NormBall,
    OnePoint,
    TopVotes,
    WithAbstentions,
)
from tacit.privacy.events import SkellamRelease
from tacit.privacy.skellam import IntArray
from tests.brute_force import hockey_stick, noisy, skellam_pmf
from tests.randomness import FALSE_ALARM

EPSILONS = (0.0, 0.5, 1.5, 3.0)
VARIANCE = 1.5


def all_members(bound: Bound, values: range) -> list[IntArray]:
    everything = itertools.product(values, repeat=bound.length)
    vectors = (np.array(vector, dtype=np.int64) for vector in everything)
    return [vector for vector in vectors if bound.admits(vector)]


@pytest.mark.parametrize(
    ("bound", "values"),
    [
        (TopVotes(4, 1), range(2)),
        (TopVotes(4, 2), range(2)),
        (TopVotes(4, 3), range(2)),
        (TopVotes(3, 2), range(2)),
        (BordaVotes(4, 2), range(3)),
        (BordaVotes(4, 1), range(2)),
        (Box(3, 1), range(-1, 2)),
        (Box(2, 2), range(-2, 3)),
        (Marks(4, 1), range(2)),
        (Marks(3, 2), range(2)),
        (Marks(2, 2), range(2)),
        (WithAbstentions(TopVotes(2, 1)), range(2)),
        (WithAbstentions(TopVotes(3, 1)), range(2)),
        (WithAbstentions(BordaVotes(2, 1)), range(2)),
    ],
    ids=repr,
)
def test_no_pair_of_answers_is_worse_than_the_declared_one(bound: Bound, values: range) -> None:
    """Every pair, and every answer against an abstention, by enumeration of all outcomes."""
    members = all_members(bound, values)
    release = bound.release(VARIANCE)
    assert isinstance(release, SkellamRelease)
    declared = privacy_loss({release: 1}, 1e-5)
    pmf = skellam_pmf(VARIANCE, furthest=12)
    margin = max(abs(value) for value in values)
    views = [noisy(member.tolist(), pmf, margin) for member in members]
    abstention = np.mean(views, axis=0)
    for epsilon in EPSILONS:
        worst = max(hockey_stick(p, q, epsilon) for p in views for q in views)
        with_abstention = max(
            max(hockey_stick(view, abstention, epsilon), hockey_stick(abstention, view, epsilon))
            for view in views
        )
        allowed = declared.get_delta_for_epsilon(epsilon)
        assert worst <= allowed + 1e-9
        assert with_abstention <= allowed + 1e-9
        assert worst >= allowed * 0.999 - 1e-6, "the declared pair is attained, not just a bound"


@pytest.mark.parametrize(
    ("ballots", "values"),
    [
        (TopVotes(4, 1), range(3)),
        (TopVotes(4, 2), range(3)),
        (BordaVotes(4, 2), range(3)),
        (BordaVotes(5, 2), range(3)),
    ],
    ids=repr,
)
def test_counted_abstentions_lie_no_further_apart_than_ballots(
    ballots: TopVotes | BordaVotes, values: range
) -> None:
    """Coordinate by coordinate, in any order: a smaller shift, or one fewer, never reveals more."""
    bound = WithAbstentions(ballots)
    assert bound.release(VARIANCE) == ballots.release(VARIANCE), "so it costs nothing"
    allowed = sorted((d for d, count in ballots.shifts for _ in range(count)), reverse=True)
    members = all_members(bound, values)
    voting = all_members(ballots, values)
    assert len(members) == len(voting) + 1
    assert sum(not member[: ballots.length].any() for member in members) == 1
    attained = False
    for one, other in itertools.product([*members, bound.abstention()], repeat=2):
        found = sorted(np.abs(one - other).tolist(), reverse=True)
        found = [shift for shift in found if shift]
        assert len(found) <= len(allowed)
        assert all(shift <= most for shift, most in zip(found, allowed, strict=False))
        attained = attained or found == allowed
    assert attained


@pytest.mark.parametrize(
    ("bound", "values"),
    [(OnePoint(1, (2,), 1), range(-1, 2)), (OnePoint(2, (), 1), range(-1, 2))],
    ids=repr,
)
def test_no_two_points_are_further_apart_than_declared(bound: OnePoint, values: range) -> None:
    """Coordinate by coordinate, in any order: a smaller shift never reveals more."""
    allowed = sorted((d for d, count in bound.shifts for _ in range(count)), reverse=True)
    members = all_members(bound, values)
    assert any(not member.any() for member in members)
    for one, other in itertools.product(members, repeat=2):
        found = sorted(np.abs(one - other).tolist(), reverse=True)
        assert all(shift <= most for shift, most in zip(found, [*allowed, *[0] * 9], strict=False))


def test_a_finer_unit_is_noised_and_priced_the_same() -> None:
    assert OnePoint(2, (), 7).release(3.0).variance == 3.0 * 49
    coarse, fine = NormBall(4, 8, 4), NormBall(4, 80, 40, unit=10)
    assert fine.release(50.0) == NormBall(4, 80, 40).release(5000.0)
    assert fine.release(50.0).squared_distance == coarse.release(50.0).squared_distance


def test_a_zero_ballot_would_be_a_worse_pair_and_is_not_admitted() -> None:
    bound = TopVotes(4, 3)
    zero = np.zeros(4, dtype=np.int64)
    pmf = skellam_pmf(VARIANCE, furthest=12)
    against_zero = hockey_stick(
        noisy(bound.abstention().tolist(), pmf, 1), noisy(zero.tolist(), pmf, 1), 0.5
    )
    declared = privacy_loss({bound.release(VARIANCE): 1}, 1e-5)
    assert against_zero > declared.get_delta_for_epsilon(0.5)
    assert not bound.admits(zero)


@pytest.mark.parametrize("bound", [TopVotes(5, 2), BordaVotes(5, 2)], ids=repr)
def test_abstentions_are_uniform_over_all_valid_ballots(bound: Bound) -> None:
    """False-alarm rate 1e-6."""
    ballots = [tuple(member.tolist()) for member in all_members(bound, range(3))]
    draws = 20_000
    found = Counter(tuple(bound.abstention().tolist()) for _ in range(draws))
    assert set(found) <= set(ballots)
    expected = draws / len(ballots)
    statistic = sum((found[ballot] - expected) ** 2 / expected for ballot in ballots)
    assert chi2.sf(statistic, len(ballots) - 1) > FALSE_ALARM


@pytest.mark.parametrize("ballots", [TopVotes(5, 2), BordaVotes(5, 2)], ids=repr)
def test_an_abstention_that_is_counted_is_one_answer_and_no_vote(
    ballots: TopVotes | BordaVotes,
) -> None:
    bound = WithAbstentions(ballots)
    votes, marks = bound.parted(bound.abstention())
    assert not votes.any()
    assert tuple(marks.tolist()) == bound.marks
    assert bound.admits(bound.abstention())
    voted = bound.ballot([3, 1])
    assert bound.admits(voted)
    assert np.array_equal(voted[:5], ballots.ballot([3, 1]))
    for wrong in (
        np.zeros(7, dtype=np.int64),
        voted + bound.abstention(),
        ballots.ballot([3, 1]),
        np.concatenate([voted[:5], [0, 1]]),
        np.concatenate([votes, marks - 1]),
    ):
        assert not bound.admits(wrong.astype(np.int64))


@pytest.mark.parametrize(
    "bound", [Box(4, 3), NormBall(4, 3, 2), Marks(4, 2), OnePoint(2, (3,), 5)], ids=repr
)
def test_clients_with_nothing_to_say_answer_zero(bound: Bound) -> None:
    assert bound.admits(bound.abstention())
    assert not bound.abstention().any()


@given(st.lists(st.integers(-3, 4), min_size=0, max_size=8))
def test_admits_exactly_the_members(values: list[int]) -> None:
    answer = np.array(values, dtype=np.int64)
    sized = len(values) == 6
    assert TopVotes(6, 2).admits(answer) == (sized and sorted(values) == [0, 0, 0, 0, 1, 1])
    assert BordaVotes(6, 3).admits(answer) == (sized and sorted(values) == [0, 0, 0, 1, 2, 3])
    assert Marks(6, 2).admits(answer) == (sized and set(values) <= {0, 1} and sum(values) <= 2)
    assert Box(6, 2).admits(answer) == (sized and all(-2 <= v <= 2 for v in values))
    assert NormBall(6, 5, 3).admits(answer) == (
        sized and sum(map(abs, values)) <= 5 and sum(v * v for v in values) <= 9
    )


def test_norms_cannot_overflow_into_the_ball() -> None:
    huge = np.array([2**62, 2**62, 2**62, 2**62], dtype=np.int64)
    assert not NormBall(4, 100, 100).admits(huge)


@pytest.mark.parametrize(
    "bound",
    [
        TopVotes(3, 1),
        BordaVotes(4, 1),
        Box(3, 1),
        NormBall(3, 1, 1),
        Marks(3, 1),
        OnePoint(1, (2,), 4),
        WithAbstentions(TopVotes(3, 1)),
    ],
)
def test_other_types_and_shapes_are_not_members(bound: Bound) -> None:
    member = bound.abstention()
    assert bound.admits(member)
    assert not bound.admits(member.astype(np.float64))
    assert not bound.admits(member.reshape(1, -1))
    assert not bound.admits(member[:-1])


def test_a_point_has_one_option_a_group_and_says_that_it_is_there() -> None:
    bound = OnePoint(1, (2, 3), 10)
    good = [7, 0, 10, 10, 0, 0, 10]
    assert bound.admits(np.array(good))
    for place, value in ((0, 11), (0, -11), (1, 10), (2, 0), (3, 5), (6, 0), (6, 9)):
        bad = [*good]
        bad[place] = value
        assert not bound.admits(np.array(bad))
    assert [group.tolist() for group in bound.groups(np.array(good))] == [[0, 10], [10, 0, 0]]


def test_ranked_ballot_gives_the_most_to_the_best() -> None:
    assert BordaVotes(6, 3).ballot([4, 0, 2]).tolist() == [2, 0, 1, 0, 3, 0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: TopVotes(10, 10), "votes is 10 of 10.*allowed is 1 to 9.*carries nothing"),
        (lambda: TopVotes(10, 0), "votes is 0 of 10.*allowed is 1 to 9"),
        (lambda: TopVotes(1, 1), "candidates is 1; allowed is 2 to"),
        (lambda: BordaVotes(9, 5), "ranked is 5 of 9.*allowed is 1 to 4.*must overlap"),
        (lambda: WithAbstentions(TopVotes(5, 3)), "names 3 of 5 candidates; allowed .* 1 to 2"),
        (lambda: Box(0, 1), "length is 0"),
        (lambda: NormBall(3, 0, 1), "l1 is 0"),
        (lambda: NormBall(3, 1, 1, unit=0), "unit is 0"),
        (lambda: Marks(3, 0), "most is 0"),
        (lambda: OnePoint(0, (), 4), "numbers is 0 with 0 groups; allowed is at least one"),
        (lambda: OnePoint(1, (0,), 4), "options of group 0 is 0"),
    ],
)
def test_impossible_bounds_are_refused_with_the_reason(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=reason):
        make()
