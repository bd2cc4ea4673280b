from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon

from tacit.privacy.accounting import RDP_ORDERS, Budget, rdp, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import (
    Composed,
    Event,
    Repeated,
    SampledGaussian,
    Selected,
    SkellamRelease,
    Unprotected,
)
from tacit.privacy.filters import (
    announced_step,
    check_ladder,
    covered,
    filter_epsilon,
    filter_level,
    filter_order,
    ladder_delta,
    ladder_step,
    split_ladder,
)
from tests.brute_force import Array, skellam_pmf

VOTE = TopVotes(100, 5).release(variance=200.0)
FIRST = SkellamRelease(((1, 1),), 3.0)
LITTLE_NOISE = SkellamRelease(((1, 1),), 0.21)
MORE_NOISE = SkellamRelease(((4, 1),), 12.0)
"""What an adversary may choose after FIRST: the same price, with losses of different shapes."""
LOOSE = Budget(4.0, 1e-3)
Sequel = tuple[SkellamRelease, ...]


@cache
def losses(release: SkellamRelease) -> tuple[Array, Array]:
    """Probability and privacy loss of every outcome of a release with one shifted coordinate."""
    ((distance, coordinates),) = release.shifts
    assert coordinates == 1
    pmf = skellam_pmf(release.variance, int(8 * math.sqrt(release.variance)) + 15 + distance)
    p, q = pmf[distance:], pmf[:-distance]
    likely = p > 1e-10
    return p[likely], np.log(p[likely] / q[likely])


def beyond(epsilon: float, loss: Array) -> Array:
    """What an outcome of this loss adds to delta, per probability."""
    return np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss, 0.0)))


def worst_delta(
    menu: Sequence[SkellamRelease],
    allowed: Callable[[Sequel], bool],
    quoted: Callable[[Sequel], float],
    most: int,
    asked: Sequel = (),
    loss: Array | None = None,
) -> Array:
    """The least delta for the quoted epsilon, over all adversaries, by enumeration of all outcomes.

    An adversary stops, or picks the next release, after looking at everything released before.
    Returned for each loss so far; outcomes below 1e-10 are left out, which helps the adversary less
    than 1e-8.
    """
    loss = np.zeros(1) if loss is None else loss
    worst = beyond(quoted(asked), loss)
    for release in menu if len(asked) < most else ():
        sequel = (*asked, release)
        if not allowed(sequel):
            continue
        p, more = losses(release)
        reached = np.add.outer(loss, more)
        later = worst_delta(menu, allowed, quoted, most, sequel, reached.ravel())
        worst = np.maximum(worst, later.reshape(reached.shape) @ p)
    return worst


def test_noise_chosen_by_looking_breaks_the_price_by_distributions() -> None:
    """Every path costs at most epsilon 4 at delta 1e-3; the adversary has a delta of 1.2e-3."""
    for second in (LITTLE_NOISE, MORE_NOISE):
        assert spent(Composed((FIRST, second)), LOOSE.delta).epsilon <= LOOSE.epsilon
    paths = {(), (FIRST,), (FIRST, LITTLE_NOISE), (FIRST, MORE_NOISE)}
    menu = (FIRST, LITTLE_NOISE, MORE_NOISE)
    (delta,) = worst_delta(menu, paths.__contains__, lambda _: LOOSE.epsilon, most=2)
    assert delta > 1.2 * LOOSE.delta
    for second in (LITTLE_NOISE, MORE_NOISE):
        fixed = {(FIRST,), (FIRST, second)}
        (delta,) = worst_delta(menu, fixed.__contains__, lambda _: LOOSE.epsilon, most=2)
        assert delta <= LOOSE.delta


def test_the_filter_refuses_what_breaks_the_price_by_distributions() -> None:
    assert covered([FIRST, LITTLE_NOISE], LOOSE) == 1
    assert covered([FIRST, MORE_NOISE], LOOSE) == 1


@pytest.mark.parametrize("budget", [LOOSE, Budget(2.0, 1e-2), Budget(6.0, 1e-4)])
def test_no_adversary_within_the_filter_exceeds_its_budget(budget: Budget) -> None:
    menu = (FIRST, SkellamRelease(((1, 1),), 0.6), SkellamRelease(((4, 1),), 20.0))

    def allowed(sequel: Sequel) -> bool:
        return covered(sequel, budget) == len(sequel)

    assert any(allowed((release, FIRST)) for release in menu), "there is something to choose"
    (delta,) = worst_delta(menu, allowed, lambda _: budget.epsilon, most=4)
    assert budget.delta / 1000 < delta <= budget.delta


def test_no_adversary_on_a_ladder_exceeds_the_step_it_ends_at() -> None:
    """Delta is that of ``P(S) <= sum of exp(epsilon_i) Q(S and K = i) + delta``, as proved."""
    menu = (FIRST, SkellamRelease(((1, 1),), 0.6), SkellamRelease(((4, 1),), 20.0))
    ladder = split_ladder([2.0, 4.0, 7.0], 3e-3)

    def step(sequel: Sequel) -> int | None:
        return ladder_step(sequel, ladder)

    def quoted(sequel: Sequel) -> float:
        found = step(sequel)
        assert found is not None
        return ladder[found - 1].epsilon

    assert {step((release,) * times) for release in menu for times in (1, 2, 4)} > {1, 2, 3}
    (delta,) = worst_delta(menu, lambda sequel: step(sequel) is not None, quoted, most=4)
    assert 1e-6 < delta <= ladder_delta(ladder)


def test_earlier_charges_fill_the_filter_too() -> None:
    budget = Budget(2.0, 1e-5)
    order = filter_order(budget)
    within = int(filter_level(budget) / rdp(VOTE)[order])
    assert within >= 2
    assert covered([VOTE] * 9, budget) == within
    assert filter_epsilon([VOTE] * within, budget) <= budget.epsilon
    assert filter_epsilon([VOTE] * (within + 1), budget) > budget.epsilon
    together = filter_epsilon([Repeated(VOTE, within)], budget)
    assert filter_epsilon([VOTE] * within, budget) == pytest.approx(together, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_the_level_is_the_conversion_of_dp_accounting_at_one_order(
    epsilon: float, delta: float
) -> None:
    budget = Budget(epsilon, delta)
    order, level = filter_order(budget), filter_level(budget)
    assert order in RDP_ORDERS
    if level > delta**2:  # below it dp-accounting has a bound of its own
        found, _ = compute_epsilon([order], [level], 0.99 * delta)
        assert found == pytest.approx(epsilon, rel=1e-4)
        assert compute_epsilon([order], [level], delta)[0] < epsilon


def test_a_filter_costs_more_than_a_plan_fixed_beforehand() -> None:
    for times in (1, 2, 5):
        for budget in (Budget(1.0, 1e-5), Budget(4.0, 1e-6)):
            fixed = spent(Repeated(VOTE, times), budget.delta).epsilon
            assert filter_epsilon([VOTE] * times, budget) > fixed


@pytest.mark.parametrize(
    ("event", "budget"),
    [
        (Unprotected("answers"), Budget(30.0, 1e-5)),
        (Composed((VOTE, Unprotected("answers"))), Budget(30.0, 1e-5)),
        (VOTE, Budget(0.001, 1e-10)),
    ],
)
def test_nothing_is_covered_that_no_order_bounds(event: Event, budget: Budget) -> None:
    assert covered([event], budget) == 0
    assert filter_epsilon([event], budget) > budget.epsilon
    assert filter_epsilon([], budget) == 0


def test_the_error_of_sampled_noise_has_its_share_of_delta() -> None:
    nearly_free = SkellamRelease(((1, 1),), 1e9)
    budget = Budget(30.0, 1e-5)
    assert covered([Repeated(nearly_free, 1000)], budget) == 1
    assert covered([Repeated(nearly_free, 100_000)], budget) == 0
    chosen = Selected(0.01, 30.0, 10, 30.0, 2.0, 1.0)
    assert filter_epsilon([chosen], budget) == math.inf, "2^-40 times exp(30) is more than delta"
    assert filter_epsilon([SampledGaussian(0.01, 30.0, 10)], budget) < budget.epsilon


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_the_steps_of_a_ladder_share_one_delta(steps: int) -> None:
    ladder = split_ladder(range(1, steps + 1), 1e-5)
    assert ladder_delta(ladder) == 1e-5
    check_ladder(ladder, Budget(1.0, 1e-5))
    assert [announced_step(Budget(float(n), 1e-5), ladder) for n in range(1, steps + 1)] == list(
        range(1, steps + 1)
    )


def test_a_step_of_a_ladder_holds_less_than_the_same_budget_alone() -> None:
    ladder = split_ladder([1.0, 2.0], 1e-5)
    assert filter_level(ladder[0]) < filter_level(Budget(1.0, 1e-5))
    assert ladder_step([], ladder) == 1
    assert ladder_step([VOTE], ladder) == 1
    assert ladder_step([VOTE] * 2, ladder) == 2
    assert ladder_step([VOTE] * 9, ladder) is None


def test_only_announced_budgets_are_steps() -> None:
    ladder = split_ladder([1.0, 2.0], 1e-5)
    assert announced_step(Budget(2.0, 1e-6), ladder) == 2
    assert announced_step(Budget(2.0, 2e-5), ladder) is None, "a larger delta was not announced"
    assert announced_step(Budget(1.5, 1e-5), ladder) is None
    assert announced_step(Budget(1.0, 1e-5), ()) is None


@pytest.mark.parametrize(
    ("epsilons", "delta", "found"),
    [
        ([], 1e-5, "0 step"),
        ([1.0], 1e-5, "1 step"),
        ([float(n) for n in range(1, 200)], 1e-5, "199 step"),
        ([2.0, 1.0], 1e-5, "2, 1; each must be larger"),
        ([1.0, 1.0], 1e-5, "1, 1; each must be larger"),
        ([1.0, math.nan], 1e-5, "1, nan; each must be larger"),
        ([1.0, math.inf], 1e-5, "announce finite ones"),
        ([1.0, 31.0], 1e-5, "epsilon is 31.0; allowed is"),
        ([1.0, 2.0], 1e-10, "announce fewer steps"),
        ([1.0, 2.0], 0.5, "delta is 0.25; allowed is"),
    ],
)
def test_what_is_no_ladder_is_refused(epsilons: list[float], delta: float, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        split_ladder(epsilons, delta)


def test_a_ladder_begins_with_the_budget_and_has_no_more_than_its_delta() -> None:
    with pytest.raises(ValueError, match="begins with epsilon 2 and the budget is 1"):
        check_ladder(split_ladder([2.0, 3.0], 1e-5), Budget(1.0, 1e-5))
    with pytest.raises(ValueError, match="2e-05 together and the budget's delta is 1e-05"):
        check_ladder((Budget(1.0, 1e-5), Budget(2.0, 1e-5)), Budget(1.0, 1e-5))
