"""A public grid of cells over the unit cube, whose dense ones form clusters.

Mitic, Pyrgelis and Sav, "How to Privately Tune Hyperparameters in Federated Learning?" (PrivTuna,
2024), Algorithm 3: density-based clustering by counts of cells, which can be summed, in place of
distances between points, which cannot. Pure functions of public values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacit.optima import BoolArray, IntArray, checked, options_of
from tacit.space import Choice, Config, Dimension, FloatArray, Space

_MOST_CELLS = 10_000


@dataclass(frozen=True)
class Cells:
    """A public grid over the unit cube: numbers in steps of ``size``, one cell per option.

    PrivTuna, Algorithm 3. The last cell of a numeric axis is cut short at 1, and a number with a
    single member has a single cell. Two cells are neighbours if they differ by one step of one
    numeric axis (top, bottom, left and right in two dimensions), so that a cluster of neighbours
    has one option of each kind.

    >>> from tacit.space import Float
    >>> cells = Cells(Space({"rate": Float(0.0, 1.0), "momentum": Float(0.0, 1.0)}))
    >>> cells.shape, cells.of(np.array([[0.0, 0.0], [0.2, 1.0]])).tolist(), cells.neighbours(13)
    ((7, 7), [0, 13], [6, 20, 12])
    """

    space: Space
    size: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.size <= 1:
            raise ValueError(f"size is {self.size}; allowed is above 0, up to 1")
        if self.count > _MOST_CELLS:
            raise ValueError(
                f"there are {self.count} cells of size {self.size}; allowed are up to "
                f"{_MOST_CELLS}: make cells larger, or tune fewer hyperparameters"
            )

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """How many cells each axis has."""
        steps = math.ceil(round(1 / self.size, 9))
        return tuple(
            len(axis.options) if isinstance(axis, Choice) else 1 if axis.low == axis.high else steps
            for axis in self.space.dimensions.values()
        )

    @property
    def count(self) -> int:
        """How many cells there are."""
        return math.prod(self.shape)

    def of(self, points: FloatArray) -> IntArray:
        """The cell each point lies in; a border belongs to the upper cell, 1 to the last."""
        points = checked(self.space, points, 0)
        places = [
            options_of(axis, column)
            if isinstance(axis, Choice)
            else _steps(column, self.size, most)
            for axis, column, most in zip(self._axes, points.T, self.shape, strict=True)
        ]
        return np.ravel_multi_index(tuple(places), self.shape).astype(np.int64)

    def neighbours(self, cell: int) -> list[int]:
        """The cells one step away: axis after axis, below before above."""
        place = self._place(cell)
        numeric = [i for i, axis in enumerate(self._axes) if not isinstance(axis, Choice)]
        return [
            cell + step * math.prod(self.shape[axis + 1 :])
            for axis in numeric
            for step in (-1, 1)
            if 0 <= place[axis] + step < self.shape[axis]
        ]

    def centre(self, cell: int) -> FloatArray:
        """The point in the middle of a cell."""
        low, high = self._box(cell)
        return np.asarray((low + high) / 2)

    def clusters(self, dense: BoolArray) -> IntArray:
        """Connected dense cells share a label, counted from 0 in the order of cells; others: -1."""
        dense = self._mask(dense)
        labels = np.full(self.count, -1, dtype=np.int64)
        for start in np.flatnonzero(dense).tolist():
            if labels[start] >= 0:
                continue
            labels[start] = labels.max() + 1
            reached = [start]
            while reached:
                here = reached.pop()
                fresh = [n for n in self.neighbours(here) if dense[n] and labels[n] < 0]
                labels[fresh] = labels[start]
                reached += fresh
        return labels

    def closest(self, point: FloatArray) -> int:
        """The neighbour of its cell that a point is nearest to, or -1 if its cell has none.

        "The shortest Euclidean distance between the point and its neighboring cells" is measured to
        the nearest corner, side or inner point of a cell. Among cells of full size the nearest
        centre is the same cell. Ties go to the first of :meth:`neighbours`.
        """
        cell = int(self.of(np.array([point]))[0])
        return min(self.neighbours(cell), key=lambda near: self._distance(point, near), default=-1)

    def assign(self, points: FloatArray, dense: BoolArray) -> IntArray:
        """The dense cell each point counts for: its own, else its closest neighbour; -1: dropped.

        The closest cell is found first and tested then, as in section V-B: a point whose closest
        neighbour is sparse is dropped, also if another neighbour is dense.
        """
        dense = self._mask(dense)
        own = self.of(points)
        pairs = zip(own.tolist(), points, strict=True)
        moved = [cell if dense[cell] else self.closest(point) for cell, point in pairs]
        return np.array([cell if cell >= 0 and dense[cell] else -1 for cell in moved], np.int64)

    def config(self, centroid: Centroid) -> Config:
        """The configuration of a cluster: numbers of its centroid, options of its cells."""
        options = [isinstance(axis, Choice) for axis in self._axes]
        return self.space.decode(np.where(options, self.centre(centroid.cell), centroid.point))

    @cached_property
    def _axes(self) -> tuple[Dimension, ...]:
        return tuple(self.space.dimensions.values())

    def _place(self, cell: int) -> list[int]:
        if not 0 <= cell < self.count:
            raise ValueError(f"cell is {cell}; allowed is 0 to {self.count - 1}")
        return [int(step) for step in np.unravel_index(cell, self.shape)]

    def _box(self, cell: int) -> FloatArray:
        """The lowest and the highest corner; an option has no extent."""
        sides = zip(self._axes, self._place(cell), self.shape, strict=True)
        return np.array([self._interval(axis, step, most) for axis, step, most in sides]).T

    def _interval(self, axis: Dimension, step: int, most: int) -> tuple[float, float]:
        if isinstance(axis, Choice):
            return (option := axis.encode(axis.options[step])), option
        return step * self.size, 1.0 if step == most - 1 else (step + 1) * self.size

    def _distance(self, point: FloatArray, cell: int) -> float:
        low, high = self._box(cell)
        outside = np.maximum(np.maximum(low - point, point - high), 0.0)
        return round(float(np.linalg.norm(outside)), 12)  # equal distances stay equal

    def _mask(self, dense: BoolArray) -> BoolArray:
        if np.shape(dense) != (self.count,):
            found = f"dense has shape {np.shape(dense)}"
            raise ValueError(f"{found}; allowed is ({self.count},), a truth per cell")
        return np.asarray(dense, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Centroid:
    """The averages of one cluster of cells."""

    cell: int
    """The first cell of the cluster."""
    point: FloatArray
    accuracy: float


def chosen(
    labels: IntArray, sums: FloatArray, accuracy_sums: FloatArray, totals: FloatArray
) -> Centroid | None:
    """The cluster of highest average accuracy (PrivTuna, Algorithm 3, lines 22 to 28).

    Sums may carry noise: a cluster whose total is not positive has no average and is passed over.
    None means that no cluster is left, and the caller decides what then. Ties go to the first.

    Args:
        labels: (cells,) from :meth:`Cells.clusters`.
        sums: (cells, axes): the points assigned to each cell, added up.
        accuracy_sums: (cells,): their accuracies, added up.
        totals: (cells,): how many they are.
    """
    shapes = [np.shape(array) for array in (labels, sums, accuracy_sums, totals)]
    if len(shapes[1]) != 2 or {shape[:1] for shape in shapes} != {(len(labels),)}:
        raise ValueError(
            f"shapes are {shapes}; allowed are (cells,), (cells, axes), twice (cells,)"
        )
    best = None
    for label in range(labels.max(initial=-1) + 1):
        rows = labels == label
        if (total := float(totals[rows].sum())) <= 0:
            continue
        accuracy = float(accuracy_sums[rows].sum()) / total
        if best is None or accuracy > best.accuracy:
            best = Centroid(int(np.argmax(rows)), sums[rows].sum(axis=0) / total, accuracy)
    return best


def _steps(column: FloatArray, size: float, most: int) -> IntArray:
    """How many steps fit below; what is a whole number of them but for rounding counts as one."""
    return np.minimum(np.floor(np.round(column / size, 9)), most - 1).astype(np.int64)
