"""Lots of DP-SGD: which units take part in a step, and which rows belong to them.

A unit of privacy is a row, or a group of rows such as the visits of one patient
(:attr:`tacit.data.examples.Examples.groups`). Lots are made of units, so that a group is in with
all of its rows or not at all, and every row of a group of ``k`` has the weight ``1 / k``: together
they move a sum of clipped gradients by no more than a single row would.

*What a row adds must not depend on who else is in the lot.* But a matrix product rounds a row
differently at another place or in a larger matrix, and where a gradient jumps (a rectifier, a
hinge), a last bit can move it by its whole length. What is computed for a row is equal to the last
bit if the matrix has the same shape and the row the same place in it, whatever the other rows are.
So shapes and places must not tell of others. There are two ways to that (:func:`scattered`); rows
of weight zero fill the places that are left.

* *Where every row stands alone*, the number of rows in a lot is a matter of chance, and the rows
  get random places in one array. Its size is computed from the number of units and the rate, which
  are public; a lot that does not fit, once in 2^64, gets a larger array. *Proof.* The places of the
  other rows have the same distribution whether or not a unit is in the lot, so the two lots can be
  compared at equal places, where they differ in that unit's row only.
* *Where rows belong together*, how many rows a group has is not public, so no array may have a size
  computed from it. Rows are computed in blocks of :data:`PLACES` places. Row ``i`` of unit ``u``
  stands at place ``(u + i) mod PLACES``, in the first block where that is free; where none is,
  there is another block. *Proof.* All blocks have the same shape, each is multiplied by itself, and
  a row's place is computed from the position of its unit and its own index there. So what a group
  adds is a function of its position and its own rows, whoever else is in the lot and however many
  rows they have. In which block a row is, and how many blocks there are, may depend on others; what
  is computed for the row does not depend on either.

At most ``MOST_ROWS / units`` rows of a group are used, the first ones, so that the number of rows
in a sum never exceeds what its proof allows (:mod:`tacit.privacy.clipped_sum`): that limit too is
computed from the number of units alone, and whether data are refused tells nothing of groups.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tacit.data.examples import Examples
from tacit.privacy.clipped_sum import MOST_ROWS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PLACES = 32
"""How many rows are computed together where rows belong together. More make fuller use of the
processor and leave more places empty."""


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
        self._used = np.minimum(self._sizes, max(1, MOST_ROWS // max(1, len(self._sizes))))
        self.weights: FloatArray = 1.0 / self._used[groups]
        index = np.empty(len(groups), np.int64)
        index[self._order] = np.arange(len(groups)) - np.repeat(self._begin, self._sizes)
        self._places: IntArray = (groups + index) % PLACES

    def __len__(self) -> int:
        return len(self._sizes)

    def places(self, rate: float) -> int:
        """As many units as a lot has at most, but once in 2^64 (Bernstein's inequality)."""
        mean, rare = rate * len(self), 64 * math.log(2)
        beyond = rare / 3
        most = mean + beyond + math.sqrt(beyond**2 + 2 * rare * mean)
        return min(math.ceil(most), len(self))

    def rows(self, units: IntArray) -> IntArray:
        """The rows of these units, in the order of the units."""
        if not self.grouped:
            return units
        used = self._used[units]
        within = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
        return np.asarray(self._order[np.repeat(self._begin[units], used) + within])

    def in_blocks(self, rows: IntArray) -> IntArray:
        """Where these rows stand in blocks of :data:`PLACES` places that lie one after the other.

        >>> rows = Examples(np.zeros((3, 1), np.float32), np.zeros(3, int), np.array([0, 1, 0]))
        >>> Units(rows).in_blocks(np.array([0, 1, 2])).tolist()
        [0, 1, 33]
        """
        places = self._places[rows]
        taken = np.bincount(places, minlength=PLACES)
        blocks = np.empty(len(rows), np.int64)
        blocks[np.argsort(places, kind="stable")] = np.arange(len(rows)) - np.repeat(
            np.cumsum(taken) - taken, taken
        )
        return np.asarray(PLACES * blocks + places)

    def every_row(self, at_once: int) -> Iterator[IntArray]:
        """All rows, some blocks at a time, as (blocks, places); -1 where there is none.

        For scores of a model, where what is computed for a row must not depend on other groups
        either. Where every row stands alone, a block is as many rows as are taken at once.
        """
        rows = np.arange(len(self._groups))
        if not self.grouped:
            for begin in range(0, len(rows), at_once):
                yield rows[None, begin : begin + at_once]
            return
        places = self.in_blocks(rows)
        table = np.full((int(places.max(initial=-1)) // PLACES + 1) * PLACES, -1)
        table[places] = rows
        blocks, some = table.reshape(-1, PLACES), max(1, at_once // PLACES)
        for begin in range(0, len(blocks), some):
            yield blocks[begin : begin + some]

    def shares(self, chosen: npt.NDArray[np.bool_], steps: int) -> IntArray:
        """Which part of every unit's rows was chosen, in whole steps, rounded down.

        >>> rows = Examples(np.zeros((3, 1), np.float32), np.zeros(3, int), np.array([0, 0, 1]))
        >>> Units(rows).shares(np.array([True, False, True]), 8).tolist()
        [4, 8]
        """
        counted = np.bincount(self._groups[chosen], minlength=len(self))
        return np.asarray(steps * counted // self._sizes, dtype=np.int64)


def scattered(units: Units, lots: Sequence[IntArray], rate: float) -> tuple[IntArray, FloatArray]:
    """The rows of some lots and their weights, as (lots, blocks, places).

    At places that tell nothing of other units, as the module's docstring says: where models are
    released.
    """
    members = [units.rows(lot) for lot in lots]
    if units.grouped:
        places = [units.in_blocks(own) for own in members]
        most = max(0, *(int(own.max(initial=0)) for own in places))
        return _placed(units, members, places, (len(lots), most // PLACES + 1, PLACES))
    shape = len(lots), 1, max(units.places(rate), *map(len, members))
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype="<u8")
    order = np.argsort(words.reshape(len(lots), -1), axis=1)
    drawn = [places[: len(own)] for places, own in zip(order, members, strict=True)]
    return _placed(units, members, drawn, shape)


def packed(units: Units, lots: Sequence[IntArray]) -> tuple[IntArray, FloatArray]:
    """The same side by side in one block: where no model is released."""
    members = [units.rows(lot) for lot in lots]
    shape = len(lots), 1, max(1, *map(len, members))
    return _placed(units, members, [slice(len(own)) for own in members], shape)


def _placed(
    units: Units,
    members: Sequence[IntArray],
    places: Sequence[IntArray | slice],
    shape: tuple[int, int, int],
) -> tuple[IntArray, FloatArray]:
    flat = shape[0], shape[1] * shape[2]
    rows, weights = np.zeros(flat, np.int64), np.zeros(flat)
    for lot, (own, place) in enumerate(zip(members, places, strict=True)):
        rows[lot, place], weights[lot, place] = own, units.weights[own]
    return rows.reshape(shape), weights.reshape(shape)
