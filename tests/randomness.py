"""Tests of randomness with a stated false-alarm rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, chi2, skellam

FALSE_ALARM = 1e-6
"""How often a correct sampler fails one of these tests."""


def fits_skellam(draws: npt.NDArray[np.int64], variance: float) -> bool:
    """Pearson's chi-square over the middle and both tails, cells of at least 10 expected draws."""
    count = len(draws)
    furthest = int(np.ceil(6 * np.sqrt(variance) + 6))
    values = np.arange(-furthest, furthest + 1)
    expected = skellam.pmf(values, variance / 2, variance / 2) * count
    inner = values[expected >= 10]
    low, high = int(inner.min()), int(inner.max())
    middle = expected[(values >= low) & (values <= high)]
    tail = skellam.cdf(low - 1, variance / 2, variance / 2) * count
    expected_cells = np.concatenate([[tail], middle, [tail]])
    found = np.bincount(np.clip(draws, low - 1, high + 1) - (low - 1), minlength=len(middle) + 2)
    statistic = float(((found - expected_cells) ** 2 / expected_cells).sum())
    return float(chi2.sf(statistic, len(expected_cells) - 1)) > FALSE_ALARM


def tail_is_plausible(draws: npt.NDArray[np.int64], variance: float, deviations: float) -> bool:
    """Exact two-sided binomial test of how many draws lie beyond so many deviations."""
    edge = int(np.ceil(deviations * np.sqrt(variance)))
    chance = 2 * float(skellam.sf(edge - 1, variance / 2, variance / 2))
    found = int((np.abs(draws) >= edge).sum())
    above = float(binom.sf(found - 1, len(draws), chance))
    below = float(binom.cdf(found, len(draws), chance))
    return min(above, below) > FALSE_ALARM / 2
