"""What counted runs say about an epsilon: a lower bound that holds with a stated confidence.

Two neighbouring worlds, A and B, are run many times. Every run gives a number, the larger the more
it looks like A. Epsilon and delta promise ``P_A(S) <= exp(epsilon) P_B(S) + delta`` for every set S
of outcomes, and the same with A and B exchanged. So for a set ``S = {number >= cut}`` that was
fixed beforehand, ``epsilon >= log((P_A(S) - delta) / P_B(S))``, and Clopper and Pearson (1934) turn
counts into bounds on both probabilities (Jagielski, Ullman and Oprea, "Auditing Differentially
Private Machine Learning", 2020).

*Proof of the confidence.* An interval of error ``e`` misses its probability with chance at most
``e``. Every cut and direction has two intervals, which serve all deltas at once. If all intervals
together have error ``E`` (:func:`error_of_each`), then with probability ``1 - E`` none misses, and
every bound that is printed is below the true epsilon. Cuts are computed from the noise that
is meant to be there, with random numbers of their own, before the first run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.privacy.skellam import FloatArray, IntArray

DELTAS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Of the curve. Few runs say little at the first of them, and a lot at the last."""
_CANDIDATES = 400
_BELOW = 1e-8
"""Cuts lie this much below the number that they are to include, however that was rounded."""


@dataclass(frozen=True)
class Hits:
    """How often each world fell into the sets of one kind of number.

    ``counts[direction][cut]`` has two entries: runs of the world that the set speaks for, and of
    the other one. The first direction speaks for A (``number >= cut``), the second for B
    (``number <= -cut``).

    >>> Hits.of([1.0], np.array([0.5, 2.0, 3.0]), np.array([-1.0, 1.5])).counts.tolist()
    [[[2, 1]], [[1, 0]]]
    """

    counts: IntArray

    @classmethod
    def of(cls, cuts: Sequence[float], world_a: FloatArray, world_b: FloatArray) -> Hits:
        """Count the runs of both worlds."""
        counts = [
            [[np.count_nonzero(sign * world >= cut) for world in worlds] for cut in cuts]
            for sign, worlds in ((1, (world_a, world_b)), (-1, (world_b, world_a)))
        ]
        return cls(np.array(counts, dtype=np.int64).reshape(2, len(cuts), 2))

    def __add__(self, other: Hits) -> Hits:
        return Hits(self.counts + other.counts)


def lowest(hits: int, runs: int, error: float) -> float:
    """The least probability with which so many hits are not too surprising.

    >>> round(lowest(hits=50, runs=100, error=0.025), 4)
    0.3983
    """
    from scipy.special import betaincinv

    return 0.0 if hits == 0 else float(betaincinv(hits, runs - hits + 1, error))


def highest(hits: int, runs: int, error: float) -> float:
    """The largest probability with which so few hits are not too surprising.

    >>> round(highest(hits=50, runs=100, error=0.025), 4)
    0.6017
    """
    from scipy.special import betainccinv

    return 1.0 if hits == runs else float(betainccinv(hits + 1, runs - hits, error))


def lower_bound(named: int, other: int, runs: int, delta: float, error: float) -> float:
    """The epsilon at this delta that the counts of one set exclude everything below.

    ``named`` of ``runs`` were hits in the world that the set speaks for, ``other`` of as many in
    the other one.

    >>> round(lower_bound(named=5000, other=500, runs=10_000, delta=1e-5, error=1e-6), 2)
    2.05
    """
    above = lowest(named, runs, error) - delta
    return 0.0 if above <= 0 else max(0.0, math.log(above / highest(other, runs, error)))


def bounds(hits: Hits, runs: int, deltas: Sequence[float], error: float) -> list[float]:
    """The best lower bound at every delta, over all cuts and both directions."""
    pairs = hits.counts.reshape(-1, 2).tolist()
    return [
        max((lower_bound(named, other, runs, delta, error) for named, other in pairs), default=0.0)
        for delta in deltas
    ]


def error_of_each(error: float, cuts: int) -> float:
    """The error of one interval, if all intervals of so many cuts are to have this one together."""
    return error / (4 * cuts)


def best_cuts(
    losses: FloatArray, runs: int, error: float, deltas: Sequence[float] = DELTAS
) -> list[float]:
    """The cuts of which so many runs a world are expected to show most, one for each delta.

    ``losses`` are log likelihood ratios of A to B, drawn from A under the noise that is meant to
    be there; a probability in B is then a mean over A, weighted by ``exp(-loss)``. What that noise
    is decides how good the cuts are, not whether the bound holds.
    """
    values, counts = np.unique(np.round(losses, 9), return_counts=True)  # sets hold whole ties
    values, share = values[::-1], counts[::-1] / len(losses)
    in_a = np.cumsum(share)
    in_b = np.minimum(np.cumsum(share * np.exp(-values)), 1.0)
    places = np.unique(np.geomspace(1, len(values), _CANDIDATES).astype(np.int64) - 1)
    found: dict[float, None] = {}
    for delta in deltas:
        expected = [
            (
                lower_bound(round(p * runs), round(q * runs), runs, delta, error),
                p - q,  # where so few runs show nothing
            )
            for p, q in zip(in_a[places], in_b[places], strict=True)
        ]
        found[float(values[places[expected.index(max(expected))]]) - _BELOW] = None
    return list(found)
