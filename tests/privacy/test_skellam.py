from __future__ import annotations

import itertools
import math
import secrets
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from tacit.privacy.skellam import (
    LARGEST_TOTAL_VARIANCE,
    _log_pmf_by_ratios,
    log_pmf,
    log_tail,
    reach,
    sampling_table,
)
from tests.randomness import fits_skellam, tail_is_plausible

VARIANCES = (0.01, 0.4, 2.475, 139.0, 15_000.0)
LARGE_VARIANCES = (2.0**14, 20_000.5)
"""From which another formula computes the probabilities."""


@pytest.mark.parametrize("variance", [*VARIANCES, *LARGE_VARIANCES])
def test_log_probabilities_agree_with_mpmath_deep_into_the_tail(variance: float) -> None:
    furthest = 2 * reach(variance, math.log(1e-22))
    found = log_pmf(variance, furthest)
    with mpmath.workdps(50):
        for x in range(0, furthest + 1, max(1, furthest // 20)):
            exact = mpmath.log(mpmath.besseli(x, variance, maxterms=10**6)) - variance
            assert found[x] == pytest.approx(float(exact), abs=1e-11, rel=1e-13)


@pytest.mark.parametrize("variance", [1e6, 1e8])
def test_both_formulas_agree_where_mpmath_is_too_slow(variance: float) -> None:
    furthest = 2 * math.isqrt(int(variance))
    ratios = _log_pmf_by_ratios(variance, furthest)
    assert np.abs(log_pmf(variance, furthest) - ratios).max() < 1e-10


def test_probabilities_of_the_largest_sums_are_gaussian_to_first_order() -> None:
    variance = LARGEST_TOTAL_VARIANCE
    furthest = 4 * math.isqrt(int(variance))
    x = np.arange(furthest + 1)
    gaussian = -(x**2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance)
    assert np.abs(log_pmf(variance, furthest) - gaussian).max() < 1e-7
    with pytest.raises(
        ValueError, match=r"variance 1e\+10; exact accounting serves up to 8.59e\+09"
    ):
        log_pmf(1e10, 10)


@pytest.mark.parametrize("variance", VARIANCES)
def test_chernoff_bound_holds_and_is_not_wasteful(variance: float) -> None:
    furthest = 3 * reach(variance, math.log(1e-22))
    tail = np.cumsum(np.exp(log_pmf(variance, furthest))[::-1])[::-1]
    for distance in range(1, furthest // 3):
        bound = log_tail(variance, distance)
        assert math.log(tail[distance]) <= bound
        assert bound - math.log(tail[distance]) < 6 + math.log(1 + variance)


@pytest.mark.parametrize(
    "variance", [0.01, 0.4, 2.475, 139.0, pytest.param(15_000.0, marks=pytest.mark.slow)]
)
def test_table_is_within_its_stated_error_in_total_variation(variance: float) -> None:
    table = sampling_table(variance)
    upper = [0, *(boundary + 1 for boundary in table.boundaries)]
    found = {
        table.lowest + j: Fraction(b - a, 1 << 128)
        for j, (a, b) in enumerate(itertools.pairwise(upper))
    }
    assert sum(found.values()) == 1
    with mpmath.workdps(60):
        listed = mpmath.mpf(0)
        distance = mpmath.mpf(0)
        half = {x: mpmath.exp(-variance) * mpmath.besseli(x, variance) for x in found if x >= 0}
        for x, chance in found.items():
            exact = half[abs(x)] if abs(x) in half else mpmath.mpf(0)
            listed += exact
            distance += abs(mpmath.mpf(chance.numerator) / chance.denominator - exact)
        distance += 1 - listed
        assert distance / 2 <= mpmath.mpf(table.error.numerator) / table.error.denominator


def test_draws_at_the_edges_of_a_cell_fall_on_the_right_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = sampling_table(2.475)
    edges = [*table.boundaries[:-1], *(boundary + 1 for boundary in table.boundaries[:-1]), 0]
    edges.append((1 << 128) - 1)
    stream = b"".join(
        (edge >> 64).to_bytes(8, "little") + (edge & (2**64 - 1)).to_bytes(8, "little")
        for edge in edges
    )
    monkeypatch.setattr(secrets, "token_bytes", lambda _: stream)
    expected = [
        next(j for j, boundary in enumerate(table.boundaries) if draw <= boundary) for draw in edges
    ]
    assert table.draw(len(edges)).tolist() == [j + table.lowest for j in expected]


@pytest.mark.parametrize("variance", VARIANCES)
def test_draws_are_skellam(variance: float) -> None:
    """False-alarm rate 1e-6 each for the chi-square and the two tail tests."""
    draws = sampling_table(variance).draw(200_000)
    assert fits_skellam(draws, variance)
    assert tail_is_plausible(draws, variance, 3)
    assert tail_is_plausible(draws, variance, 4.5)


def test_shares_of_many_clients_add_up_to_skellam() -> None:
    """False-alarm rate 1e-6."""
    shares = sampling_table(139 / 50).draw(50 * 40_000).reshape(50, 40_000)
    assert fits_skellam(shares.sum(axis=0), 139.0)


def test_draws_use_16_bytes_each_of_the_operating_system_and_no_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    real = secrets.token_bytes

    def watched(count: int) -> bytes:
        asked.append(count)
        return real(count)

    monkeypatch.setattr(secrets, "token_bytes", watched)
    table = sampling_table(100.0)
    np.random.seed(7)
    first = table.draw(50)
    np.random.seed(7)
    second = table.draw(50)
    assert asked == [800, 800]
    assert not np.array_equal(first, second)


def test_cost_grows_with_the_deviation_not_the_variance() -> None:
    small, large = (len(sampling_table(v).boundaries) for v in (150.0, 15_000.0))
    assert large < 12 * small
