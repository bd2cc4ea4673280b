"""The symmetric Skellam distribution: its probabilities, and exact integer draws.

A Skellam variable of variance ``v`` is the difference of two independent Poisson variables of mean
``v/2``; its probability at ``x`` is ``exp(-v) I_|x|(v)`` with ``I`` the modified Bessel function of
the first kind. Sums of independent Skellams are Skellam again, so a total splits into shares among
any number of clients without changing its distribution: the reason it is Tacit's noise (Agarwal,
Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning", 2021).

Sampling is written by hand because no maintained library draws Skellam variables from the operating
system's randomness (OpenDP 0.16 has none, NumPy's and SciPy's are seeded and floating point).
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]

LARGEST_VARIANCE = 2.0**28
"""Of one client's share: above this the sampling table would no longer be small."""

LARGEST_TOTAL_VARIANCE = 2.0**33
"""Of a sum: above this its probabilities would no longer fit a small table."""

_LARGE_VARIANCE = 2.0**14
_NO_MASS = math.log(1e-22)
_DRAW_BITS = 128
_START_BITS = 256
_TABLE_LOG_TAIL = -192 * math.log(2)


def log_tail(variance: float, distance: int) -> float:
    """Chernoff's bound on ``log P(X >= distance)``, tight to a factor of about the deviation.

    ``E exp(tX) = exp(v (cosh t - 1))`` is least for ``sinh t = distance / v``.
    """
    slope = distance / variance
    root_minus_one = slope * slope / (1 + math.sqrt(1 + slope * slope))
    return variance * root_minus_one - distance * math.asinh(slope)


def reach(variance: float, log_mass: float) -> int:
    """The least distance beyond which either tail weighs at most ``exp(log_mass)``.

    >>> reach(139.0, math.log(1e-20))
    117
    """
    low, high = 0, 1
    while log_tail(variance, high) > log_mass:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if log_tail(variance, middle) > log_mass:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=64)
def log_pmf(variance: float, furthest: int) -> FloatArray:
    """``log P(X = x)`` for ``x = 0 .. furthest``, within some units of double precision."""
    if not variance <= LARGEST_TOTAL_VARIANCE:
        raise ValueError(
            f"the noise of the sum has variance {variance:.3g}; exact accounting serves up to "
            f"{LARGEST_TOTAL_VARIANCE:.3g}: use a larger epsilon, fewer votes or a coarser "
            "quantisation"
        )
    by = _log_pmf_by_ratios if variance < _LARGE_VARIANCE else _log_pmf_by_expansion
    result = by(variance, furthest)
    result.flags.writeable = False
    return result


def _log_pmf_by_ratios(variance: float, furthest: int) -> FloatArray:
    """From the ratios ``I_{k-1}(v) / I_k(v) = 2k/v + I_{k+1}(v) / I_k(v)``, run downwards.

    Each step shrinks the error of the one before: full relative precision however deep in the tail,
    where the function itself would underflow. All probabilities together are 1, which gives the
    first one.
    """
    all_mass = max(furthest, reach(variance, _NO_MASS))
    ratio = 1.0
    ratios = np.empty(all_mass)
    for order in range(all_mass + 40 + 4 * math.isqrt(math.ceil(variance)), 0, -1):
        ratio = 2 * order / variance + 1 / ratio
        if order <= all_mass:
            ratios[order - 1] = ratio
    relative = np.concatenate(([0.0], -np.cumsum(np.log(ratios))))
    total = 2 * float(np.sum(np.exp(relative))) - 1
    return relative[: furthest + 1] - math.log(total)


def _log_pmf_by_expansion(variance: float, furthest: int) -> FloatArray:
    """From Debye's expansion of ``I_k(v)``, which is uniform in ``k`` (DLMF 10.41.3).

    With ``w = sqrt(k^2 + v^2)`` and ``p = k / w`` the relative error after three corrections is at
    most ``2 exp(2 V_1 / k) V_4 / k^4``, where ``V_n`` is the variation of ``U_n`` from 0 to ``p``.
    ``U_n`` has no power of ``p`` below ``p^n``, so ``V_n / k^n`` is at most the sum of its absolute
    coefficients over ``w^n``: 1/3 and 27.2. As ``w >= v >= 2^14``, the error is below 1e-15.
    """
    order = np.arange(furthest + 1, dtype=np.float64)
    slope = order / variance
    root = np.hypot(1.0, slope)
    exponent = variance * slope * slope / (1 + root) - order * np.arcsinh(slope)
    inverse, squared = 1 / (variance * root), (slope / root) ** 2
    first = (3 - 5 * squared) / 24
    second = (81 + squared * (-462 + squared * 385)) / 1152
    third = (30375 + squared * (-369603 + squared * (765765 - squared * 425425))) / 414720
    corrections = inverse * (first + inverse * (second + inverse * third))
    scale = np.log(2 * math.pi * variance * root) / 2
    return np.asarray(exponent - scale + np.log1p(corrections), dtype=np.float64)


@dataclass(frozen=True)
class SamplingTable:
    """Cumulative probabilities as 128-bit integers, and how far they are from the truth.

    ``boundaries[j]`` is the largest 128-bit draw that yields ``lowest + j``. The draw is uniform on
    ``[0, 2^128)`` and every boundary is the true one rounded down, so one draw lies within
    ``error`` of Skellam in total variation.
    """

    lowest: int
    boundaries: tuple[int, ...]
    high_words: WordArray
    error: Fraction

    def draw(self, count: int) -> IntArray:
        """Independent draws by inversion, from the operating system's randomness only."""
        words = np.frombuffer(secrets.token_bytes(16 * count), dtype="<u8").reshape(count, 2)
        high = np.ascontiguousarray(words[:, 0], dtype=np.uint64)
        index = np.searchsorted(self.high_words, high, side="left")
        # A draw that shares its upper 64 bits with a boundary is settled by its lower 64.
        for tied in np.flatnonzero(self.high_words[index] == high):
            whole = int(words[tied, 0]) << 64 | int(words[tied, 1])
            index[tied] = bisect_left(self.boundaries, whole)
        return index.astype(np.int64) + self.lowest


@lru_cache(maxsize=16)
def sampling_table(variance: float) -> SamplingTable:
    """The table for one variance, in integer arithmetic throughout.

    Miller's algorithm: ``f_{k-1} = f_{k+1} + (2k/v) f_k`` from ``f_{K+1} = 0`` downwards gives
    numbers proportional to ``I_k(v)``; all terms are positive, so nothing cancels. With
    ``P(|X| >= K) <= 2^-191``, ``f_K = 2^256`` and one rounding below 1 a step, the normalised
    numbers are within ``2^-180`` of the truth, and rounding the boundaries to 128 bits costs at
    most one unit of ``2^-128`` an entry. Time and memory grow with the standard deviation, a draw
    with its logarithm.
    """
    exact = Fraction(variance)
    furthest = reach(variance, _TABLE_LOG_TAIL)
    above, here = 0, 1 << _START_BITS
    terms = [here]
    for order in range(furthest, 0, -1):
        above, here = here, above + 2 * order * exact.denominator * here // exact.numerator
        terms.append(here)
    pmf = terms + terms[-2::-1]
    total = sum(pmf)
    cumulative = [(part << _DRAW_BITS) // total for part in accumulate(pmf)]
    first = bisect_left(cumulative, 1)  # entries too rare for any 128-bit draw
    last = bisect_left(cumulative, 1 << _DRAW_BITS)
    boundaries = tuple(upper - 1 for upper in cumulative[first : last + 1])
    high_words = np.array([boundary >> 64 for boundary in boundaries], dtype=np.uint64)
    return SamplingTable(
        lowest=first - furthest,
        boundaries=boundaries,
        high_words=high_words,
        error=Fraction(len(pmf) + 1, 1 << _DRAW_BITS),
    )


def check_variance(variance: float) -> None:
    """Refuse a variance the table cannot serve."""
    if not 0 < variance <= LARGEST_VARIANCE:
        raise ValueError(
            f"the variance of a noise share is {variance!r}; allowed is a number above 0 and at "
            f"most {LARGEST_VARIANCE:.0f}; use a coarser quantisation or more clients"
        )
