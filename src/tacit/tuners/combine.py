"""PrivTuna: each client tunes on its own data, and the federation combines what they found.

Mitic, Pyrgelis and Sav, "How to Privately Tune Hyperparameters in Federated Learning?" (2024),
Algorithms 2 and 3. Strategies and modes:

============  =====  ===  =========  =========================================================
strategy      clear  dp   encrypted  what the clients are asked for, unless in clear
============  =====  ===  =========  =========================================================
mean          yes    yes  yes        the sum of their best points (PF-Mean)
best-mean     yes    yes  yes        the sum of the means of their best 5 %
dbscan        yes    yes  yes        counts of cells, then sums over clusters (PF-DBSCAN)
median        yes    no   no         not a function of sums
trimmed-mean  yes    no   no         not a function of sums
best-median   yes    no   no         not a function of sums
============  =====  ===  =========  =========================================================

``clear`` is as published, for research: everything a client found leaves it, at an infinite
epsilon. In ``dp`` the server sees noisy sums and clusters them itself. In ``encrypted`` it sees
noisy sums and, of the counts, only which cells are dense; without noise (an infinite budget) those
outputs are exact and unprotected.

How we differ: numbers are combined on the space's own scale (a geometric mean on a logarithmic
axis) and options by their frequency; under ``dp`` and ``encrypted`` DBSCAN is Algorithm 3's, on
public cells, a client counts once a cell, and its points share one weight, so that what it can
change is bounded; the threshold is raised by what noise alone would reach; where no cell is
dense, all of them are taken as dense, and the outcome says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tacit.cells import chosen
from tacit.charged_questions import ChargedQuestions
from tacit.combining import (
    STEPS,
    CellCounts,
    ClusterSums,
    Kept,
    LocalBest,
    LocalFindings,
    numeric,
    optima,
)
from tacit.federation import noise_margin
from tacit.local_search import LocalSearch, check_sampler
from tacit.optima import LocalOptima, best_share, dbscan, mean, median, trimmed_mean
from tacit.privacy.events import CLIENT, Composed, Event, Unprotected
from tacit.privacy.mechanisms import Participation, mechanism_of
from tacit.privacy.skellam import FloatArray
from tacit.space import SAMPLINGS, Config, Space
from tacit.tuners.modes import check_mode, check_sums, gathered
from tacit.tuners.tuner import Outcome

BEST = 0.05
"""The share of its candidates that a client calls its best."""
_NOT_A_SUM = {
    "median": "a median is not a function of sums",
    "trimmed-mean": "which values are extreme is not a function of sums",
    "best-median": "a median is not a function of sums",
}
STRATEGIES = ("mean", "median", "trimmed-mean", "best-mean", "best-median", "dbscan")
SUMMABLE = tuple(strategy for strategy in STRATEGIES if strategy not in _NOT_A_SUM)

NO_DENSE_CELL = "no cell was dense, so all of them were taken as dense"
NO_CLUSTER = "there was no cluster, so the mean of the clients' best points was taken"
NO_POINTS = "no cluster's sum stood out from the noise, so the middle of the largest was taken"


@dataclass(frozen=True)
class Combine:
    """One strategy in one mode.

    >>> Combine("median", mode="dp")
    Traceback (most recent call last):
        ...
    ValueError: the strategy 'median' cannot be 'dp': a median is not a function of sums; allowed \
is the mode 'clear', or instead of it mean, best-mean, dbscan

    Args:
        strategy: how local optima become one configuration.
        mode: what leaves the clients.
        candidates: how many configurations a client tries.
        sampling: how it searches: ``grid``, ``sobol``, ``random``, or a sampler of Optuna.
        points: the most points that a client contributes to DBSCAN.
        min_points: from how many clients (or points, in clear) on a cell is dense; default is
            PrivTuna's, twice the number of hyperparameters. It takes 2 under quantity skew.
    """

    strategy: str = "dbscan"
    mode: str = "dp"
    candidates: int = 100
    sampling: str = "grid"
    points: int = 10
    min_points: int | None = None
    name = "combine"
    unit = CLIENT

    def __post_init__(self) -> None:
        check_mode("strategy", self.strategy, STRATEGIES, self.mode, _NOT_A_SUM)
        check_sampler(self.sampling)

    def event(self, space: Space, variance: float) -> Event:
        if self.mode == "clear":
            return Unprotected(LocalFindings.__name__)
        search = self._search(space)
        if self.strategy != "dbscan":
            return self._best(search, STEPS).bound.release(variance)
        counts, sums = CellCounts(search, self._kept), ClusterSums(search, self._kept, ())
        return Composed((counts.bound.release(variance), sums.bound.release(variance)))

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        self.check_sums(questions.secure)
        search = self._search(space, int(rng.integers(2**31)), questions.run)
        tried = search.candidates if self.sampling in SAMPLINGS else ()
        if self.mode == "clear":
            config, note = self._in_clear(questions, search)
        elif self.strategy == "dbscan":
            config, note = self._clusters(questions, search)
        else:
            query = self._best(search, questions.steps)
            config, note = query.combined(questions.sum(query, "local optima").value), ""
        return Outcome(config, tried, note=note)

    def check_sums(self, secure: str) -> None:
        """Refuse a secure sum that is not the mode's."""
        check_sums(self.mode, secure)

    def dense_from(self, space: Space, participation: Participation, variance: float) -> int:
        """How many clients must mark a cell for it to be dense under noise of this variance."""
        counts = CellCounts(self._search(space), self._kept)
        return self._least(space) + noise_margin(counts.bound, participation, variance)

    def mean_error(self, space: Space, participation: Participation, variance: float) -> float:
        """How far noise moves a number of the mean: standard deviation, in widths of its axis."""
        query = self._best(self._search(space), STEPS)
        delivered = mechanism_of(query.bound, participation, variance).delivered_variance
        return math.sqrt(delivered) / (2 * query.steps * participation.clients)

    def _least(self, space: Space) -> int:
        return self.min_points or 2 * len(space.dimensions)

    def _in_clear(self, questions: ChargedQuestions, search: LocalSearch) -> tuple[Config, str]:
        clients = gathered(questions, search)
        if self.strategy != "dbscan":
            return _COMBINED[self.strategy](search.where, [optima(one) for one in clients]), ""
        found = dbscan(search.where, list(map(optima, clients)), min_samples=self.min_points)
        return found.config, NO_CLUSTER if found.fell_back else ""

    def _clusters(self, questions: ChargedQuestions, search: LocalSearch) -> tuple[Config, str]:
        """Algorithm 3: dense cells, clusters of neighbours, and the best cluster's centroid."""
        space, note = search.where, ""
        least = self._least(space)
        counts, sums = CellCounts(search, self._kept), ClusterSums(search, self._kept, ())
        questions.check_sums(counts.bound, sums.bound)
        dense = questions.reached(counts, least, "cells")
        if not dense.any():
            dense, note = np.ones_like(dense), NO_DENSE_CELL
        cells = tuple(map(int, np.flatnonzero(dense)))
        query = ClusterSums(search, self._kept, cells, questions.steps)
        opened = questions.sum(query, "clusters")
        points, accuracies, totals = query.averages(opened.value)
        by_chance = 2 * math.sqrt(opened.variance) / query.steps
        totals = np.where(totals < max(by_chance, least / 2), 0, totals)
        best = chosen(np.arange(len(totals)), points, accuracies, totals)
        if best is None:
            largest = int(np.bincount(query.labels[query.labels >= 0]).argmax())
            return _config(query, largest, None), NO_POINTS
        return _config(query, best.cell, best.point), note

    def _search(self, space: Space, seed: int = 0, run: str = "") -> LocalSearch:
        return LocalSearch(space.to_json(), self.sampling, self.candidates, seed, run)

    def _best(self, search: LocalSearch, steps: int) -> LocalBest:
        return LocalBest(search, BEST if self.strategy == "best-mean" else 0.0, steps)

    @property
    def _kept(self) -> Kept:
        return Kept(points=self.points)


def _config(query: ClusterSums, cluster: int, numbers: FloatArray | None) -> Config:
    """A cluster's centroid: numbers from the sums, if they tell any, options from its cells."""
    space, cells = query.search.where, query.kept.cells(query.search)
    members = np.flatnonzero(query.labels == cluster)
    point = np.mean([cells.centre(int(cell)) for cell in members], axis=0)
    if numbers is not None:
        point[numeric(space)] = numbers
    return space.decode(point)


def _winners(clients: list[LocalOptima]) -> FloatArray:
    return np.array([client.points[0] for client in clients])


def _best_of(clients: list[LocalOptima]) -> FloatArray:
    return np.concatenate([best_share(c.points, c.accuracies, BEST).points for c in clients])


_COMBINED: Mapping[str, Callable[[Space, list[LocalOptima]], Config]] = {
    "mean": lambda space, clients: mean(space, _winners(clients)),
    "median": lambda space, clients: median(space, _winners(clients)),
    "trimmed-mean": lambda space, clients: trimmed_mean(space, _winners(clients)),
    "best-mean": lambda space, clients: mean(space, _best_of(clients)),
    "best-median": lambda space, clients: median(space, _best_of(clients)),
}
