"""How the clients' local optima become one configuration.

Mitic, Pyrgelis and Sav, "How to Privately Tune Hyperparameters in Federated Learning?" (PrivTuna,
2024), section IV-A: mean, median, trimmed mean, mean or median of everybody's best 5 %, and DBSCAN
(appendix A); :mod:`tacit.cells` clusters the cells of a public grid instead. These are pure
functions: who sends what, and at which price, is decided elsewhere.

A point is what :meth:`Space.encode` gives, so numbers are combined on the space's own scale: the
mean on a logarithmic axis is a geometric mean. PrivTuna averages the values themselves; for that,
combine :func:`linear_points` in the :func:`linear` space. On either scale whole numbers are rounded
last, and options are never averaged: the most frequent one wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tacit.space import Choice, Config, FloatArray, Space

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LocalOptima:
    """A client's candidates and how accurate each is there, best first; equals keep their order.

    >>> LocalOptima(np.array([[0.0], [0.5], [1.0]]), np.array([0.7, 0.9, 0.7])).points.tolist()
    [[0.5], [0.0], [1.0]]
    """

    points: FloatArray
    """(candidates, axes): in the unit cube of a space."""
    accuracies: FloatArray
    """(candidates,)"""

    def __post_init__(self) -> None:
        points, accuracies = np.asarray(self.points), np.asarray(self.accuracies)
        if points.ndim != 2 or accuracies.shape != points.shape[:1]:
            found = f"{points.shape} and {accuracies.shape}"
            raise ValueError(
                f"points and accuracies have shapes {found}; allowed are (m, axes) and (m,)"
            )
        if not np.isfinite(accuracies).all():
            raise ValueError(f"accuracies is {accuracies.tolist()}; allowed are finite numbers")
        order = np.argsort(-accuracies, kind="stable")
        object.__setattr__(self, "points", points[order])
        object.__setattr__(self, "accuracies", accuracies[order])

    def __len__(self) -> int:
        return len(self.accuracies)

    def first(self, count: int) -> LocalOptima:
        """The best few."""
        return LocalOptima(self.points[:count], self.accuracies[:count])


def best_share(points: FloatArray, accuracies: FloatArray, share: float = 0.05) -> LocalOptima:
    """The best 5 % of a client's candidates, rounded down but at least one; ties by order."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; allowed is above 0, up to 1")
    optima = LocalOptima(points, accuracies)
    if not len(optima):
        raise ValueError("a client has no candidates; at least 1 is needed")
    return optima.first(max(1, _part(share, len(optima))))


def mean(space: Space, points: FloatArray) -> Config:
    """The mean of every numeric axis, the most frequent option of every other.

    >>> from tacit.space import Float
    >>> space = Space({"rate": Float(1e-4, 1.0, log=True), "optimizer": Choice(["sgd", "adam"])})
    >>> mean(space, np.array([[0.25, 0.0], [0.75, 1.0], [0.5, 1.0]]))
    {'rate': 0.01, 'optimizer': 'adam'}
    """
    return space.decode(centre(space, points, np.mean))


def median(space: Space, points: FloatArray) -> Config:
    """The coordinate-wise median; the middle of the two middle values of an even number."""
    return space.decode(centre(space, points, np.median))


def trimmed_mean(space: Space, points: FloatArray, share: float = 0.1) -> Config:
    """The mean without the largest and the smallest 10 %, rounded down, of each numeric axis."""
    if not 0 <= share < 0.5:
        raise ValueError(f"share is {share}; allowed is from 0 to below 0.5, cut on either side")
    cut = _part(share, len(points))
    return space.decode(
        centre(space, points, lambda column: np.mean(np.sort(column)[cut : len(column) - cut]))
    )


def linear(space: Space) -> Space:
    """The same members with every number on a linear scale, on which PrivTuna averages."""
    return Space(
        {
            name: axis if isinstance(axis, Choice) else replace(axis, log=False)
            for name, axis in space.dimensions.items()
        }
    )


def linear_points(space: Space, configs: Iterable[Config]) -> FloatArray:
    """Configurations as points whose numbers are scaled by the bounds, also on logarithmic axes.

    The published behaviour; Tacit's default is the space's own scale, ``space.encode``.

    >>> from tacit.space import Float
    >>> space = Space({"rate": Float(0.01, 1.0, log=True)})
    >>> mean(linear(space), linear_points(space, [{"rate": 0.01}, {"rate": 0.51}]))
    {'rate': 0.26}
    """
    points = [linear(space).encode(config) for config in configs]
    return np.array(points).reshape(-1, len(space.dimensions))


def decode_linear(space: Space, point: npt.ArrayLike) -> Config:
    """The configuration nearest to a point of :func:`linear_points`."""
    return linear(space).decode(point)


@dataclass(frozen=True, eq=False)
class Clusters:
    """What DBSCAN found among the clients' promising points."""

    points: FloatArray
    """(m, axes): client after client, each best first."""
    labels: IntArray
    """(m,): the cluster of each point, or -1 where it is sparse."""
    centroids: FloatArray
    """(clusters, axes): mean of the numbers, most frequent option."""
    accuracies: FloatArray
    """(clusters,): the mean over the points."""
    kept: BoolArray
    """(clusters,): which of them are near enough to the most accurate."""
    config: Config

    @property
    def fell_back(self) -> bool:
        """Whether there was no cluster, so that ``config`` is the mean of the clients' winners."""
        return not len(self.accuracies)


def promising(
    client: LocalOptima, within: float = 0.85, most: int = 10, least_best: float = 0.4
) -> LocalOptima:
    """The best few candidates of at least ``within`` times the best accuracy; possibly none.

    Two kinds of clients are left out, as in PrivTuna's code: those whose best accuracy is below
    ``least_best``, and those who find every candidate good enough and so prefer none.
    """
    best = client.accuracies.max(initial=0.0)
    enough = client.accuracies >= within * best
    left_out = best < least_best or enough.all()
    return client.first(0 if left_out else min(most, int(enough.sum())))


def dbscan(
    space: Space,
    clients: Sequence[LocalOptima],
    eps: float = 0.3,
    min_samples: int | None = None,
    tolerance: float = 0.05,
) -> Clusters:
    """Cluster the clients' :func:`promising` points, and combine the most accurate clusters.

    Clusters whose mean accuracy is within ``tolerance`` of the best cluster's are kept. All points
    of all kept clusters are combined together by :func:`mean`, so that a large cluster counts more
    than a small one. If there is no cluster (nobody is promising, or all points are sparse), the
    result is the mean of the best point of every client, those left out included, and ``fell_back``
    says so.

    Two things the paper leaves open: numbers are scaled by the public bounds of the space, and two
    different options of an axis are 1 apart, so that a cluster has only one if ``eps`` is below 1.

    Args:
        space: whose unit cube the points are in; give the :func:`linear` one for PrivTuna's scale.
        clients: everybody's candidates.
        eps: how near neighbours are.
        min_samples: how many neighbours, itself included, make a point dense; default is twice
            the number of axes. PrivTuna takes 2 under quantity skew.
        tolerance: how much less accurate a kept cluster may be.
    """
    if not any(map(len, clients)):
        raise ValueError(f"found {len(clients)} clients without candidates; at least 1 is needed")
    candidates = [promising(client) for client in clients]
    points = np.concatenate([checked(space, client.points, 0) for client in candidates])
    accuracies = np.concatenate([client.accuracies for client in candidates])
    if min_samples is None:
        min_samples = 2 * len(space.dimensions)
    labels = _dbscan_labels(space, points, eps, min_samples)
    members = [labels == label for label in range(labels.max(initial=-1) + 1)]
    found = np.array([accuracies[rows].mean() for rows in members])
    kept = found >= found.max(initial=0.0) - tolerance
    winners = np.array([client.points[0] for client in clients if len(client)])
    among_kept = np.isin(labels, np.flatnonzero(kept))
    centroids = [centre(space, points[rows], np.mean) for rows in members]
    return Clusters(
        points,
        labels,
        np.array(centroids).reshape(-1, len(space.dimensions)),
        found,
        kept,
        mean(space, points[among_kept] if among_kept.any() else winners),
    )


def centre(
    space: Space, points: FloatArray, middle: Callable[[FloatArray], np.floating] = np.mean
) -> FloatArray:
    """One point for many: ``middle`` of numbers, the most frequent option, first among equals."""
    points = checked(space, points, 1)
    axes = space.dimensions.values()
    return np.array(
        [
            _mode(axis, column) if isinstance(axis, Choice) else middle(column)
            for axis, column in zip(axes, points.T, strict=True)
        ],
        dtype=np.float64,
    )


def _mode(axis: Choice, column: FloatArray) -> float:
    return axis.encode(axis.options[int(np.bincount(options_of(axis, column)).argmax())])


def options_of(axis: Choice, column: FloatArray) -> IntArray:
    """Which option each coordinate stands for."""
    return np.rint(column * (len(axis.options) - 1)).astype(np.int64)


def _part(share: float, count: int) -> int:
    return math.floor(round(share * count, 9))


def _dbscan_labels(space: Space, points: FloatArray, eps: float, min_samples: int) -> IntArray:
    if not len(points):
        return np.empty(0, dtype=np.int64)
    from sklearn.cluster import DBSCAN

    spread = _options_apart(space, points)
    return np.asarray(DBSCAN(eps=eps, min_samples=min_samples).fit(spread).labels_, np.int64)


def _options_apart(space: Space, points: FloatArray) -> FloatArray:
    """Points among which two different options of an axis are 1 apart."""
    columns = [
        np.eye(len(axis.options))[options_of(axis, column)] / math.sqrt(2)
        if isinstance(axis, Choice)
        else column[:, None]
        for axis, column in zip(space.dimensions.values(), points.T, strict=True)
    ]
    return np.hstack(columns)


def checked(space: Space, points: FloatArray, least: int) -> FloatArray:
    """Points of a space's unit cube, at least so many, or a ValueError."""
    points, axes = np.asarray(points, dtype=np.float64), len(space.dimensions)
    if points.ndim != 2 or points.shape[1] != axes or len(points) < least:
        allowed = f"(m, {axes}) with m at least {least}, for {', '.join(space.dimensions)}"
        raise ValueError(f"points has shape {points.shape}; allowed is {allowed}")
    if not ((points >= 0) & (points <= 1)).all():
        found = f"{points.min()} to {points.max()}"
        raise ValueError(f"points has coordinates from {found}; allowed is 0 to 1")
    return points
