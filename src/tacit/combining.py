"""What clients say about their own optima: in clear, or as integers that only their sum opens.

PrivTuna's and FLoRA's questions (:mod:`tacit.tuners.combine`, :mod:`tacit.tuners.flora`). Scaling,
cells, steps and the number of points that a client may contribute are fields of the question, thus
public, and each bound is a fact about the answer:

* :class:`LocalBest`: one point of the cube, in steps.
* :class:`CellCounts`: marks on at most ``points`` cells. PrivTuna counts points; here a client
  counts once a cell, however many of its points lie there, so that what it can change is small.
* :class:`ClusterSums`: a client's points share one weight of 1, so an answer is a weighted mean (of
  total weight at most 1) of vectors whose s entries lie within 1: by convexity its L2 norm is at
  most ``sqrt(s)`` and its L1 norm at most ``s``. Rounding to steps moves at most ``points s``
  entries by at most 1/2. PrivTuna adds up points; here clients with many do not count for more.
* :class:`LossSums`, :class:`SurfaceSums`: a vector of losses, less its mean (which no choice among
  candidates depends on), shrunk to an L2 norm of ``clip`` if it is longer; rounding moves each of
  m entries by at most 1/2, and the L1 norm is at most ``sqrt(m)`` times the L2 norm.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from tacit.arrays import NOT_FINITE, OUTSIDE, Array, Arrays, is_finite, unlike
from tacit.cells import Cells
from tacit.local_search import Findings, LocalSearch
from tacit.optima import LocalOptima, best_share, centre, promising
from tacit.privacy.bounds import Marks, NormBall, OnePoint
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.space import Choice, Config, Space
from tacit.surfaces import local_models
from tacit.task import Client, NothingToSay, scores

STEPS, EXACT_STEPS = 32, 4096
"""How many steps make one: under noise, where more would only make it longer, and without."""
_ROUNDING = 1e-9
"""By which a point of the unit cube may miss it."""


class LocalFindings(Struct, frozen=True, forbid_unknown_fields=True, tag="findings"):
    """Everything a client found, in clear: points of the unit cube and their scores."""

    search: LocalSearch

    def answer(self, client: Client) -> Arrays:
        found = self.search.findings(client)
        return Array.of(found.points), Array.of(found.scores)

    def unfit(self, answer: Arrays) -> str:
        """Why an answer cannot be used; nothing if it can: some points of the cube, and scores."""
        tried = answer[-1].shape[0] if answer and answer[-1].shape else 0
        why = unlike(answer, [(tried, len(self.search.where.dimensions)), (tried,)])
        if why or not all(map(is_finite, answer)):
            return why or NOT_FINITE
        points = answer[0].numpy()
        within = (points >= -_ROUNDING).all() and (points <= 1 + _ROUNDING).all()
        return "" if within and 1 <= tried <= self.search.most else OUTSIDE


class LocalBest(Struct, frozen=True, forbid_unknown_fields=True, tag="best"):
    """A client's best point, or the mean of its best ``share``."""

    search: LocalSearch
    share: float = 0.0
    steps: int = STEPS

    @property
    def bound(self) -> OnePoint:
        axes = self.search.where.dimensions.values()
        options = tuple(len(axis.options) for axis in axes if isinstance(axis, Choice))
        return OnePoint(len(axes) - len(options), options, self.steps)

    def answer(self, client: Client) -> IntArray:
        space, found = self.search.where, optima(self.search.findings(client))
        some = best_share(found.points, found.accuracies, self.share) if self.share else found
        middle = centre(space, some.points if self.share else some.points[:1])
        answer = np.zeros(self.bound.length, dtype=np.int64)
        answer[: self.bound.numbers] = np.rint(self.steps * (2 * middle[numeric(space)] - 1))
        choices = [
            round(x * (len(axis.options) - 1))
            for axis, x in zip(space.dimensions.values(), middle, strict=True)
            if isinstance(axis, Choice)
        ]
        for group, chosen in zip(self.bound.groups(answer), choices, strict=True):
            group[chosen] = self.steps
        answer[-1] = self.steps
        return answer

    def combined(self, total: IntArray) -> Config:
        """The mean of numbers and the most frequent options, from a sum that may carry noise."""
        space, bound = self.search.where, self.bound
        there = max(int(total[-1]), self.steps)
        numbers = iter((total[: bound.numbers] / there + 1) / 2)
        groups = iter(bound.groups(total))
        point = [
            int(np.argmax(next(groups))) / max(len(axis.options) - 1, 1)
            if isinstance(axis, Choice)
            else float(next(numbers))
            for axis in space.dimensions.values()
        ]
        return space.decode(point)


class Kept(Struct, frozen=True, forbid_unknown_fields=True):
    """Which of its points a client keeps (:func:`tacit.optima.promising`), and the public cells."""

    within: float = 0.85
    points: int = 10
    least_best: float = 0.4
    cell: float = 0.15

    def __post_init__(self) -> None:
        if self.points < 1:
            raise ValueError(f"points is {self.points}; allowed is 1 and above")

    def cells(self, search: LocalSearch) -> Cells:
        """The grid of cells over the space of a search."""
        return Cells(search.where, self.cell)

    def of(self, found: Findings) -> LocalOptima:
        """What is kept, possibly nothing: then the client's answer is zero, under its noise."""
        return promising(optima(found), self.within, self.points, self.least_best)


class CellCounts(Struct, frozen=True, forbid_unknown_fields=True, tag="cells"):
    """In which cells a client has promising points."""

    search: LocalSearch
    kept: Kept

    @property
    def bound(self) -> Marks:
        return Marks(self.kept.cells(self.search).count, self.kept.points)

    def answer(self, client: Client) -> IntArray:
        marks = np.zeros(self.bound.length, dtype=np.int64)
        points = self.kept.of(self.search.findings(client)).points
        marks[self.kept.cells(self.search).of(points)] = 1
        return marks


class ClusterSums(Struct, frozen=True, forbid_unknown_fields=True, tag="clusters"):
    """Sums over a client's points in each cluster of dense cells: numbers, accuracy, weight.

    The unit is such that this sum and that of :class:`CellCounts` cost about the same.
    """

    search: LocalSearch
    kept: Kept
    dense: tuple[int, ...]
    steps: int = STEPS

    @property
    def bound(self) -> NormBall:
        entries, points = len(numeric(self.search.where)) + 2, self.kept.points
        l2 = math.ceil(self.steps * math.sqrt(entries) + math.sqrt(points * entries) / 2)
        l1 = self.steps * entries + points * entries
        unit = max(1, round(l2 * math.sqrt(2 / points)))
        return NormBall(max(self.clusters, 1) * entries, l1, l2, unit)

    @property
    def clusters(self) -> int:
        """How many clusters the dense cells form."""
        return int(self.labels.max(initial=-1)) + 1

    @property
    def labels(self) -> IntArray:
        """The cluster of every cell, or -1."""
        return self._cells.clusters(self._mask)

    def answer(self, client: Client) -> IntArray:
        kept = self.kept.of(self.search.findings(client))
        cells = self._cells.assign(kept.points, self._mask)
        numbers = 2 * kept.points[:, numeric(self.search.where)] - 1
        rows = np.column_stack([numbers, 2 * kept.accuracies - 1, np.ones(len(kept))])
        sums = np.zeros((self.clusters, rows.shape[1]))
        there = cells >= 0
        np.add.at(sums, self.labels[cells[there]], rows[there])
        return np.rint(sums.ravel() * self.steps / max(len(kept), 1)).astype(np.int64)

    def averages(self, total: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Sums of numbers (from 0 to 1), of accuracies, and of weights, for each cluster."""
        rows = total.reshape(self.clusters, -1) / self.steps
        counts = rows[:, -1]
        return (rows[:, :-2] + counts[:, None]) / 2, (rows[:, -2] + counts) / 2, counts

    @property
    def _cells(self) -> Cells:
        return self.kept.cells(self.search)

    @property
    def _mask(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mask = np.zeros(self._cells.count, dtype=np.bool_)
        if self.dense and not 0 <= min(self.dense) <= max(self.dense) < len(mask):
            raise ValueError(f"a dense cell is none of the {len(mask)} cells")
        mask[list(self.dense)] = True
        return mask


class LossSums(Struct, frozen=True, forbid_unknown_fields=True, tag="losses"):
    """How bad every common candidate is, compared with the client's own mean."""

    search: LocalSearch
    clip: float = 1.0
    steps: int = STEPS

    @property
    def bound(self) -> NormBall:
        return losses_bound(self.search.count, self.clip, self.steps)

    def answer(self, client: Client) -> IntArray:
        return clipped(scores(client, self.search.candidates), self.clip, self.steps)


class SurfaceSums(Struct, frozen=True, forbid_unknown_fields=True, tag="surface"):
    """A client's own model of its losses, at every point of a public grid."""

    search: LocalSearch
    grid: tuple[Config, ...]
    clip: float = 1.0
    steps: int = STEPS

    @property
    def bound(self) -> NormBall:
        return losses_bound(len(self.grid), self.clip, self.steps)

    def answer(self, client: Client) -> IntArray:
        found = self.search.findings(client)
        points = encoded(self.search.where, self.grid)
        (predicted,) = local_models([(found.points, found.scores)], points, seed=self.search.seed)
        return clipped(predicted, self.clip, self.steps)


def losses_bound(length: int, clip: float, steps: int = STEPS) -> NormBall:
    """What :func:`clipped` keeps to."""
    if not 0 < clip < math.inf:
        raise ValueError(f"clip is {clip!r}; allowed is a finite number above 0")
    l2 = math.ceil(steps * clip + math.sqrt(length) / 2)
    return NormBall(length, math.ceil(l2 * math.sqrt(length)), l2, unit=l2)


def clipped(losses: FloatArray, clip: float, steps: int = STEPS) -> IntArray:
    """Losses less their mean, at most ``clip`` long, in steps; what is not finite loses most.

    >>> clipped(np.array([0.0, 1.0, np.inf]), clip=1.0).tolist()
    [-21, 11, 11]
    """
    finite = np.isfinite(losses)
    if not finite.any():
        raise NothingToSay
    bounded = np.where(finite, losses, losses[finite].max())
    centred = bounded - bounded.mean()
    length = float(np.linalg.norm(centred))
    shrunk: FloatArray = centred * min(1.0, clip / length) if length > 0 else centred
    return np.rint(shrunk * steps).astype(np.int64)


def optima(found: Findings) -> LocalOptima:
    """A client's findings with accuracies in place of scores."""
    return LocalOptima(found.points, found.accuracies)


def encoded(space: Space, configs: tuple[Config, ...]) -> FloatArray:
    """Configurations as points of the unit cube."""
    return np.array([space.encode(config) for config in configs])


def numeric(space: Space) -> list[int]:
    """The axes that are numbers."""
    axes = space.dimensions.values()
    return [place for place, axis in enumerate(axes) if not isinstance(axis, Choice)]
