from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import beta, binom

from tacit.privacy.audit import (
    DELTAS,
    Hits,
    best_cuts,
    bounds,
    error_of_each,
    highest,
    lower_bound,
    lowest,
)


@pytest.mark.parametrize(("hits", "runs"), [(0, 10), (1, 10), (7, 10), (10, 10), (3, 100_000)])
@pytest.mark.parametrize("error", [0.05, 1e-9])
def test_intervals_are_those_of_clopper_and_pearson(hits: int, runs: int, error: float) -> None:
    low = 0.0 if hits == 0 else beta.ppf(error, hits, runs - hits + 1)
    high = 1.0 if hits == runs else beta.isf(error, hits + 1, runs - hits)
    assert math.isclose(lowest(hits, runs, error), low, rel_tol=1e-6)
    assert math.isclose(highest(hits, runs, error), high, rel_tol=1e-6)


@pytest.mark.parametrize("chance", [0.001, 0.1, 0.5, 0.97])
def test_intervals_miss_no_more_often_than_they_may(chance: float) -> None:
    runs, error = 60, 0.01
    weights = [float(binom.pmf(hits, runs, chance)) for hits in range(runs + 1)]
    below = sum(w for hits, w in enumerate(weights) if lowest(hits, runs, error) > chance)
    above = sum(w for hits, w in enumerate(weights) if highest(hits, runs, error) < chance)
    assert max(below, above) <= error


def test_a_true_epsilon_is_never_exceeded_more_often_than_the_error() -> None:
    """Randomised response, by all pairs of counts: exactly private, so bounds may not exceed it."""
    epsilon, runs, error = 1.0, 40, 0.02
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    in_a, in_b = (
        [float(binom.pmf(hits, runs, chance)) for hits in range(runs + 1)] for chance in (p, 1 - p)
    )
    exceeded = sum(
        in_a[named] * in_b[other]
        for named, other in product(range(runs + 1), repeat=2)
        if lower_bound(named, other, runs, 0.0, error / 2) > epsilon
    )
    assert 0 < exceeded <= error


def test_delta_is_taken_off() -> None:
    without = lower_bound(500, 10, 1000, 0.0, 1e-3)
    assert lower_bound(500, 10, 1000, 0.1, 1e-3) < without
    assert lower_bound(50, 0, 1000, 0.1, 1e-3) == 0.0


def test_hits_add_up_and_both_directions_count() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(1, 1, 400), rng.normal(-1, 1, 400)
    halves = [Hits.of([0.5, 2.0], a[i:j], b[i:j]) for i, j in ((0, 100), (100, 400))]
    whole = Hits.of([0.5, 2.0], a, b)
    assert ((halves[0] + halves[1]).counts == whole.counts).all()
    only_b = Hits(np.array([[[0, 400]], [[300, 1]]]))
    assert bounds(only_b, 400, [1e-5], 1e-3)[0] > 3


def test_no_cuts_and_no_runs_show_nothing() -> None:
    assert bounds(Hits.of([], np.zeros(3), np.zeros(3)), 3, DELTAS, 0.1) == [0.0] * len(DELTAS)
    assert lower_bound(0, 0, 0, 1e-5, 0.1) == 0.0


def test_cuts_are_nearly_the_best_there_are() -> None:
    """Of a Gaussian of mu 1, against a search over all cuts with exact probabilities."""
    from scipy.special import ndtr

    runs, error = 100_000, error_of_each(1e-6, 5)
    losses = np.random.default_rng(4).normal(0.5, 1.0, 200_000)
    cuts = best_cuts(losses, runs, error)

    def expected(cut: float, delta: float) -> float:
        named, other = (round(runs * ndtr(mean - cut)) for mean in (0.5, -0.5))
        return lower_bound(named, other, runs, delta, error)

    for delta in DELTAS:
        best = max(expected(cut, delta) for cut in np.linspace(-2, 5, 701))
        assert max(expected(cut, delta) for cut in cuts) > 0.97 * best
