"""Rounded normal noise against mpmath: every draw, and the distribution of many."""

from __future__ import annotations

import math
import secrets
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binomtest, chisquare, norm

from tacit.privacy import rounded_normal as module
from tacit.privacy.rounded_normal import LARGEST_DEVIATION, rounded_normal

DEVIATIONS = [0.3, 1.0, 7.7, 1e6]
ALL = 1.0
"""An allowed error with which every draw is settled in arbitrary precision."""


def words(count: int) -> Any:
    return np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8")


def upper_tail(point: float, deviation: float) -> Any:
    """The chance that a normal number of this deviation is above a point."""
    return mpmath.ncdf(-mpmath.mpf(point) / mpmath.mpf(deviation))


def likely(drawn: Any, deviation: float) -> bool:
    """A chi-squared test on at most 24 cells, with a false-alarm rate of 1e-7."""
    width = max(1, round(deviation / 4))
    cells = np.clip((drawn + width // 2) // width, -12, 12)
    inner = [width * cell - width // 2 - 0.5 for cell in range(-11, 13)]
    with mpmath.workprec(128):
        above = [mpmath.mpf(1), *(upper_tail(edge, deviation) for edge in inner), mpmath.mpf(0)]
        chances = np.array([float(a - b) for a, b in pairwise(above)])
    counted = np.array([(cells == cell).sum() for cell in range(-12, 13)])
    common = chances * len(drawn) > 5
    rest = chances[~common].sum(), counted[~common].sum()
    expected = np.append(chances[common], rest[0]) * len(drawn)
    seen = np.append(counted[common], rest[1])
    kept = expected > 1e-3
    assert seen[~kept].sum() == 0
    return (
        float(chisquare(seen[kept], expected[kept] * seen.sum() / expected[kept].sum()).pvalue)
        > 1e-7
    )


def check_exactly(drawn: Any, begun: Any, deviation: float) -> None:
    """The magnitude's interval lies inside the cell of the integer that was drawn."""
    with mpmath.workprec(200):
        for integer, word in zip(np.abs(drawn).tolist(), begun.tolist(), strict=True):
            digits = word >> 1
            assert upper_tail(integer + 0.5, deviation) * 2**64 < digits + 1
            assert upper_tail(integer - 0.5, deviation) * 2**64 > digits


def test_scipys_quantiles_are_as_exact_as_the_proof_says() -> None:
    """All over the range, and around the places where the formula changes."""
    rng = np.random.default_rng(0)
    branches = np.array([math.exp(-2), 1 - math.exp(-2), math.exp(-32), 0.5, 2.0**-64])
    near = branches[:, None] * (1 + np.arange(-50, 51) * 2.0**-52)
    spread = np.concatenate([2.0 ** -rng.uniform(1, 64, 3000), rng.uniform(0, 0.5, 3000)])
    uniform = np.concatenate([near.ravel(), spread])
    uniform = uniform[(uniform > 0) & (uniform <= 0.5)]
    with mpmath.workprec(200):
        for u, z in zip(uniform.tolist(), ndtri(uniform).tolist(), strict=True):
            off = (mpmath.ncdf(z) - mpmath.mpf(u)) / mpmath.npdf(z)
            assert abs(off) < module._ALLOWED_ERROR / 32 * (1 + abs(z))


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_the_distribution_is_that_of_a_rounded_normal(deviation: float) -> None:
    assert likely(rounded_normal(deviation, 200_000), deviation)


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_the_distribution_is_the_same_in_arbitrary_precision(deviation: float) -> None:
    begun = words(2000)
    drawn = module._from_words(begun, np.full(2000, deviation), ALL)
    assert likely(drawn, deviation)
    check_exactly(drawn, begun, deviation)


@pytest.mark.parametrize("deviation", [*DEVIATIONS, 2.0**30, LARGEST_DEVIATION])
def test_every_draw_is_in_the_cell_that_its_digits_say(deviation: float) -> None:
    begun = words(1000)
    drawn = module._from_words(begun, np.full(1000, deviation), module._ALLOWED_ERROR)
    check_exactly(drawn, begun, deviation)


def test_the_chi_squared_test_sees_noise_of_another_size() -> None:
    assert not likely(np.rint(np.random.default_rng(0).normal(0, 1.02e6, 200_000)), 1e6)


@pytest.mark.parametrize("deviation", [1.0, 1e6])
def test_digits_that_decide_nothing_are_followed_by_more(deviation: float) -> None:
    """A half lies inside the interval of the first digits; the rest falls on either side of it."""
    integer = round(0.7 * deviation)
    with mpmath.workprec(200):
        edge = upper_tail(integer + 0.5, deviation) * 2**64
        inside = float(edge - mpmath.floor(edge))
        begun = np.full(2000, int(mpmath.floor(edge)) << 1, dtype=np.uint64)
    drawn = module._from_words(begun, np.full(2000, deviation), module._ALLOWED_ERROR)
    assert set(drawn.tolist()) == {integer, integer + 1}
    assert binomtest(int((drawn == integer + 1).sum()), 2000, inside).pvalue > 1e-7


def test_the_ends_of_the_range() -> None:
    """No digit but zeros is far out, by more than 9.08 deviations; ones only are next to zero."""
    ends = np.array([0, 1, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    far, near = 9.08e3, 0
    drawn = module._from_words(ends, np.full(4, 1e3), module._ALLOWED_ERROR)
    assert far < drawn[0] < 2 * far
    assert -2 * far < drawn[1] < -far
    assert drawn[2:].tolist() == [near, near]


def test_places_may_have_deviations_of_their_own() -> None:
    drawn = rounded_normal(np.array([1e-3, 10.0, 1e9])[:, None], (3, 50_000))
    assert not drawn[0].any()
    for row, deviation in zip(drawn[1:], (10.0, 1e9), strict=True):
        assert row.std() == pytest.approx(deviation, rel=5.4 / math.sqrt(2 * 50_000))
    assert norm.sf(5.4) * 4 < 1e-6


def test_draws_are_fresh() -> None:
    assert rounded_normal(1e6, 20).tolist() != rounded_normal(1e6, 20).tolist()


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 2.0**46])
def test_what_cannot_be_drawn_exactly_is_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match=r"allowed is a number above 0 and at most 2\^45"):
        rounded_normal(deviation, 3)
