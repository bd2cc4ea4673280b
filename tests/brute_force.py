"""Slow, obvious computations that the fast ones are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import mpmath
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def skellam_pmf(variance: float, furthest: int) -> Array:
    """P(X = x) for x = -furthest .. furthest, from mpmath at 40 digits."""
    with mpmath.workdps(40):
        half = [
            float(mpmath.exp(-variance) * mpmath.besseli(x, variance)) for x in range(furthest + 1)
        ]
    return np.array(half[:0:-1] + half)


def noisy(answer: Sequence[int], pmf: Array, margin: int) -> Array:
    """The joint distribution of answer + noise on the box [-margin - f, margin + f]^d."""
    rows = []
    for value in answer:
        row = np.zeros(len(pmf) + 2 * margin)
        row[margin + value : margin + value + len(pmf)] = pmf
        rows.append(row)
    return reduce(np.multiply.outer, rows)


def hockey_stick(p: Array, q: Array, epsilon: float) -> float:
    """sup_S P(S) - exp(epsilon) Q(S), outcome by outcome."""
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum())
