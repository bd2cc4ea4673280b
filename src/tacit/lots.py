"""Lots of DP-SGD: which units take part in a step, and which rows belong to them.

A unit of privacy is a row, or a group of rows such as the visits of one patient
(:attr:`tacit.data.examples.Examples.groups`). Lots are made of units, so that a group is in with
all of its rows or not at all, and every row of a group of ``k`` has the weight ``1 / k``: together
they move a sum of clipped gradients by no more than a single row would.

*Why rows are scattered.* What a row adds to a sum must not depend on who else is in the lot. But a
matrix product rounds a row differently at another place or in a larger matrix, and where a gradient
jumps (a rectifier, a hinge), a last bit can move it by its whole length. So the rows of a lot whose
size is a matter of chance get random places in an array of a fixed size (:func:`scattered`), and
rows of weight zero fill the others. *Proof.* The places of the other rows of a lot have the same
distribution whether or not a unit is in it, so the two lots can be compared at equal places: the
arrays then have the same shape and differ in the unit's own rows only, and all that is computed for
another row is equal to the last bit. The size depends on public numbers (units, rows, the largest
group and the rate); a lot that does not fit, once in 2^64, gets a larger array.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tacit.data.examples import Examples

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def poisson_sample(count: int, rate: float) -> IntArray:
    """Each of ``count`` numbers with probability ``rate``, independently; never with more.

    >>> len(poisson_sample(1000, 1.0)), len(poisson_sample(1000, 0.0))
    (1000, 0)
    """
    words = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8")
    return np.flatnonzero(words < np.uint64(min(int(rate * 2.0**64), 2**64 - 1))).astype(np.int64)


class Units:
    """The rows of every unit, and every row's weight.

    >>> rows = Examples(np.zeros((4, 1), np.float32), np.zeros(4, int), np.array([0, 1, 0, 2]))
    >>> units = Units(rows)
    >>> len(units), units.rows(np.array([0, 2])).tolist(), units.weights.tolist()
    (3, [0, 2, 3], [0.5, 1.0, 0.5, 1.0])
    """

    def __init__(self, examples: Examples) -> None:
        self.grouped = examples.groups is not None
        groups = np.arange(len(examples)) if examples.groups is None else examples.groups
        self._groups: IntArray = groups
        self._sizes = np.bincount(groups).astype(np.int64)
        self._begin = np.cumsum(self._sizes) - self._sizes
        self._order = np.argsort(groups, kind="stable")
        self.weights: FloatArray = 1.0 / self._sizes[groups]

    def __len__(self) -> int:
        return len(self._sizes)

    def places(self, rate: float) -> int:
        """As many rows as a lot has at most, but for a chance of 2^-64 (Bernstein's inequality).

        The number of rows has the mean ``rate * rows`` and at most the variance of that times the
        largest group, also where lots have a fixed number of units (Hoeffding 1963, section 6).
        """
        largest, mean = int(self._sizes.max(initial=0)), rate * len(self.weights)
        rare = 64 * math.log(2)
        beyond = largest * rare / 3
        most = mean + beyond + math.sqrt(beyond**2 + 2 * rare * largest * mean)
        return min(math.ceil(most), len(self.weights))

    def rows(self, units: IntArray) -> IntArray:
        """All rows of these units."""
        if not self.grouped:
            return units
        sizes = self._sizes[units]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.asarray(self._order[np.repeat(self._begin[units], sizes) + within])

    def shares(self, chosen: npt.NDArray[np.bool_], steps: int) -> IntArray:
        """Which part of every unit's rows was chosen, in whole steps, rounded down.

        >>> rows = Examples(np.zeros((3, 1), np.float32), np.zeros(3, int), np.array([0, 0, 1]))
        >>> Units(rows).shares(np.array([True, False, True]), 8).tolist()
        [4, 8]
        """
        counted = np.bincount(self._groups[chosen], minlength=len(self))
        return np.asarray(steps * counted // self._sizes, dtype=np.int64)


def scattered(units: Units, lots: Sequence[IntArray], rate: float) -> tuple[IntArray, FloatArray]:
    """The rows of some lots at random places of an array of a fixed size, and their weights."""
    members = [units.rows(lot) for lot in lots]
    shape = len(lots), max(units.places(rate), *map(len, members))
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype="<u8")
    order = np.argsort(words.reshape(shape), axis=1)
    places = [order[lot, : len(own)] for lot, own in enumerate(members)]
    return _placed(units, members, places, shape)


def packed(units: Units, lots: Sequence[IntArray]) -> tuple[IntArray, FloatArray]:
    """The rows of some lots side by side, and their weights: where no model is released."""
    members = [units.rows(lot) for lot in lots]
    shape = len(lots), max(1, *map(len, members))
    return _placed(units, members, [slice(len(own)) for own in members], shape)


def _placed(
    units: Units,
    members: Sequence[IntArray],
    places: Sequence[IntArray | slice],
    shape: tuple[int, int],
) -> tuple[IntArray, FloatArray]:
    rows, weights = np.zeros(shape, np.int64), np.zeros(shape)
    for lot, (own, place) in enumerate(zip(members, places, strict=True)):
        rows[lot, place], weights[lot, place] = own, units.weights[own]
    return rows, weights
