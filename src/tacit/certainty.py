"""How sure a noisy tally is about its leader.

The released counts are ``t_j = s_j + noise``, where the noise has a known variance ``v`` and the
``s_j`` are the true sums of the ballots. Who asks "does the leader of the tally lead the true
sums?" has to say what true sums look like. Taking every value for equally likely would overstate
the answer: the largest of many noisy counts is so partly because its noise is (winner's curse). So
the true sums are taken for draws of one normal distribution, whose mean is the tally's and whose
variance is the tally's less ``v`` (Efron and Morris, "Stein's Estimation Rule and Its Competitors",
1973). Then ``s_j`` given the tally is normal, drawn towards the mean, and

    P(s_j is the largest) = integral of density_j(x) * product over i != j of P(s_i <= x) dx.

*What this assumes*: that normal distribution; noise close to normal (it is Skellam's); and nothing
about the candidates, so that neighbours in the space do not support each other. A tally that varies
no more than its noise leaves all candidates equally likely. Few candidates hardly tell their own
spread: the answer then errs on the side of doubt, and it never exceeds what equally likely values
would give (gaps shrink by ``k = spread / (spread + v)``, deviations by its root only). It is about
the ballots that were cast, not about which candidate is the best on data that nobody voted with.

*Privacy.* All of it is post-processing of released values with public numbers, which costs nothing:
no client is asked, and whoever holds the tally can compute it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_STEPS, _REACH = 801, 8.0
_MOST = 0.95


@dataclass(frozen=True, eq=False)
class Certainty:
    """What a noisy tally says about who leads.

    >>> found = Certainty.of([61, 34, 3, -10], variance=12.4**2)
    >>> found.margin, round(found.deviations, 2)
    (27, 1.54)
    >>> found.chances.round(2).tolist(), found.group
    ([0.92, 0.08, 0.0, 0.0], 2)
    """

    leader: int
    """The place of the largest count; among equals the first."""
    margin: int
    """Between the two largest counts."""
    deviations: float
    """The margin in standard deviations of a difference of two counts, ``sqrt(2 v)``."""
    chances: FloatArray
    """Of every candidate: to have the largest true sum, see the module for what that assumes."""
    group: int
    """How many of the likeliest candidates hold the true leader with a chance of 95 %."""

    @classmethod
    def of(cls, tally: Sequence[int], variance: float) -> Certainty:
        """From a tally of at least two candidates, and the variance of the noise in each count."""
        counts = np.asarray(tally, dtype=np.float64)
        second, first = np.sort(counts)[-2:]
        margin = int(first - second)
        chances = _chances(counts, variance)
        sums = np.cumsum(np.sort(chances)[::-1])
        return cls(
            int(np.argmax(counts)),
            margin,
            margin / math.sqrt(2 * variance) if variance else math.inf if margin else 0.0,
            chances,
            min(int(np.searchsorted(sums, _MOST)) + 1, len(counts)),
        )


def _chances(counts: FloatArray, variance: float) -> FloatArray:
    if not variance:
        leads = (counts == counts.max()).astype(np.float64)
        return np.asarray(leads / leads.sum())
    spread = float(np.var(counts, ddof=1)) - variance
    if spread <= 0:
        return np.full(len(counts), 1 / len(counts))
    from scipy.special import log_ndtr

    kept = spread / (spread + variance)
    deviation = math.sqrt(kept * variance)
    means = kept * counts  # the common mean shifts all alike
    least, most = means.max() - 2 * _REACH * deviation, means.max() + _REACH * deviation
    levels = np.linspace(least, most, _STEPS)
    apart = (levels - means[:, None]) / deviation
    below = log_ndtr(apart)
    found = np.exp(below.sum(axis=0) - below - apart**2 / 2).sum(axis=1)
    return np.asarray(found / found.sum())
