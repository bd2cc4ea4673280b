"""Ways to deal the examples of a data set out to clients: the skews of four papers, and none.

- DP-HYPE, Appendix B, and PrivTuna (section IV-B): label skew, :class:`Dirichlet`.
- PrivTuna, after Li et al. (ICDE 2022): :class:`QuantitySkew` and :class:`FeatureSkew`.
- FEATHERS, Appendix B.2: :class:`DominantLabel`.
- ADADP, supplement 3.2.2: :class:`ClassPairs`.

How we differ: with every partition each example goes to exactly one client (FEATHERS' code loses
some where clients do not divide labels), no client is left with less than it needs, and all of it
depends on one random generator. Each class says where its rule departs from its paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Protocol

import numpy as np

from tacit.data.examples import FloatArray, IntArray

Pairs = tuple[tuple[int, ...], ...]

ADADP_PAIRS: Pairs = ((1, 9), (0, 8), (3, 5), (2, 6), (4, 7))
"""CIFAR-10: cars and trucks, planes and ships, cats and dogs, birds and frogs, deer and horses."""

_LARGEST_ALPHA = 1e100  # far beyond it a draw overflows and every share is 0
_LARGEST_NOISE = 1e6  # far beyond it features overflow
_SMALLEST = 10


class Partition(Protocol):
    """A rule that deals labelled examples to clients."""

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        """One sorted array of places in ``labels`` a client; every place is dealt exactly once.

        Equal seeds give equal parts.
        """
        ...


@dataclass(frozen=True)
class Iid:
    """Shuffle and cut into parts whose sizes differ by at most one.

    >>> parts = Iid().deal(np.zeros(11, dtype=np.int64), 3, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [4, 4, 3]
    """

    smallest: int = 1

    def __post_init__(self) -> None:
        _check_range("smallest", self.smallest, 0)

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        _check_sizes(labels, clients, self.smallest)
        return _sorted(np.array_split(rng.permutation(len(labels)), clients))


@dataclass(frozen=True)
class Dirichlet:
    """Label and size skew: each label's examples are shared out in Dirichlet(alpha) proportions.

    DP-HYPE, Appendix B, with alpha 30, 5 and 0.5 (and, in its code, at least 10 examples a client);
    PrivTuna with 0.1, 1 and 5: for each label one draw over the clients (Yurochkin et al. 2019).
    Hsu et al. 2019 draw the other way round, for each client one over the labels. The smaller
    alpha, the more skew.

    How we differ: others redraw until every client has ``smallest`` examples, which with a small
    alpha may never happen. We draw once; then single examples, chosen at random from whoever is the
    largest client at that moment, move to the clients below the minimum. All of it depends on
    ``rng`` only, and nothing moves where the draw already keeps the minimum.

    >>> labels = np.repeat([0, 1], 50)
    >>> parts = Dirichlet(alpha=0.5).deal(labels, 4, np.random.default_rng(0))
    >>> [np.bincount(labels[part], minlength=2).tolist() for part in parts]
    [[18, 21], [21, 8], [8, 4], [3, 17]]
    >>> Dirichlet(alpha=0.5).deal(labels, 20, np.random.default_rng(0))
    Traceback (most recent call last):
        ...
    ValueError: clients is 20 with at least 10 examples each; allowed is 1 to 10 with 100 examples
    """

    alpha: float
    smallest: int = _SMALLEST

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        _check_range("smallest", self.smallest, 0)

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        _check_sizes(labels, clients, self.smallest)
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            _share_out(members, parts, self.alpha, rng)
        _fill_up(parts, self.smallest, rng)
        return _sorted(parts)


@dataclass(frozen=True)
class QuantitySkew:
    """Size skew: one Dirichlet(alpha) draw gives the sizes, and labels fall at random.

    PrivTuna with alpha 0.1, 0.4, 1 and 2. The draw is rounded to whole examples, and clients below
    the minimum are filled up from the largest, as in :class:`Dirichlet`.

    >>> parts = QuantitySkew(alpha=0.4).deal(np.arange(100) % 2, 4, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [10, 40, 40, 10]
    """

    alpha: float
    smallest: int = _SMALLEST

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        _check_range("smallest", self.smallest, 0)

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        _check_sizes(labels, clients, self.smallest)
        parts: list[list[int]] = [[] for _ in range(clients)]
        _share_out(rng.permutation(len(labels)), parts, self.alpha, rng)
        _fill_up(parts, self.smallest, rng)
        return _sorted(parts)


@dataclass(frozen=True)
class DominantLabel:
    """Label skew: one client holds ``percent`` of a label, the others share the rest evenly.

    FEATHERS, Appendix B.2, with 66 %. The holder of the l-th label that occurs (from 0) is client
    l mod n: with more labels than clients a client holds several, with more clients than labels
    some hold none and live on rests. The holder's count is rounded to the nearest whole number
    (halves to the even one). What is left over when a rest is divided goes to single clients in
    turn, and the next label goes on where the turn stopped. A single client holds everything.

    How we differ: the paper can be read as skewing one label only; like its code we skew all of
    them. Its code gives the holder a share of the rest as well, so that it ends with more than
    ``percent``, and splits a label among several holders where there are more clients than labels;
    we follow the text. Counts are exact, so nothing moves to small clients: a client below
    ``smallest`` is an error.

    >>> labels = np.repeat([0, 1], 50)
    >>> parts = DominantLabel(percent=66.0).deal(labels, 3, np.random.default_rng(0))
    >>> [np.bincount(labels[part], minlength=2).tolist() for part in parts]
    [[33, 8], [9, 33], [8, 9]]
    """

    percent: float = 66.0
    smallest: int = _SMALLEST

    def __post_init__(self) -> None:
        _check_range("percent", self.percent, 0, 100)
        _check_range("smallest", self.smallest, 0)

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        _check_sizes(labels, clients, self.smallest)
        parts: list[list[int]] = [[] for _ in range(clients)]
        turn = 0
        for number, label in enumerate(np.unique(labels)):
            members = rng.permutation(np.flatnonzero(labels == label)).tolist()
            holder = number % clients
            others = [c for c in (*range(turn, clients), *range(turn)) if c != holder]
            held = round(self.percent * len(members) / 100) if others else len(members)
            rest = members[held:]
            parts[holder].extend(members[:held])
            for place, client in enumerate(others):
                parts[client].extend(rest[place :: len(others)])
            turn = others[len(rest) % len(others)] if others else 0
        _check_smallest(parts, self.smallest, f"percent {self.percent:g}")
        return _sorted(parts)


@dataclass(frozen=True)
class ClassPairs:
    """Label skew: each client holds two classes only, interpolated with random data.

    ADADP, supplement 3.2.2: five clients with two of CIFAR-10's ten classes each
    (:data:`ADADP_PAIRS`), and a share of the data chosen at random. Here ``similarity`` of each
    label (rounded, halves to the even number; which ones is drawn) is dealt as in :class:`Iid`, and
    the rest by pairs: at 0 nothing is random, at 1 everything.

    ``pairs`` names the groups of labels, of any size; without it they are the labels that occur,
    two by two in ascending order (the last group may be of one). With as many clients as pairs
    client i holds pair i; with more, pair j is dealt evenly to the clients i = j mod (number of
    pairs); with fewer, client j mod n holds pair j. As in :class:`DominantLabel` a client below
    ``smallest`` is an error.

    >>> labels = np.repeat([0, 1, 2, 3], 20)
    >>> def counts(similarity):
    ...     parts = ClassPairs(similarity).deal(labels, 2, np.random.default_rng(0))
    ...     return [np.bincount(labels[part], minlength=4).tolist() for part in parts]
    >>> counts(0.0), counts(0.5)
    ([[20, 20, 0, 0], [0, 0, 20, 20]], [[16, 15, 4, 5], [4, 5, 16, 15]])
    """

    similarity: float = 0.0
    pairs: Pairs = ()
    smallest: int = _SMALLEST

    def __post_init__(self) -> None:
        _check_range("similarity", self.similarity, 0, 1)
        _check_range("smallest", self.smallest, 0)
        named = sorted(label for pair in self.pairs for label in pair)
        repeated = {a for a, b in pairwise(named) if a == b}
        if repeated:
            raise ValueError(f"pairs name the label {min(repeated)} twice; allowed is once")

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        _check_sizes(labels, clients, self.smallest)
        present: list[int] = np.unique(labels).tolist()
        pairs = self.pairs or tuple(
            tuple(present[first : first + 2]) for first in range(0, len(present), 2)
        )
        forgotten = set(present).difference(*pairs)
        if forgotten:
            raise ValueError(f"pairs lack the label {min(forgotten)}; allowed is to name every one")
        parts: list[list[int]] = [[] for _ in range(clients)]
        mixed: list[int] = []
        for number, pair in enumerate(pairs):
            own: list[int] = []
            for label in pair:
                members = rng.permutation(np.flatnonzero(labels == label)).tolist()
                shared = round(self.similarity * len(members))
                mixed.extend(members[:shared])
                own.extend(members[shared:])
            holders = range(number, clients, len(pairs)) or (number % clients,)
            for place, client in enumerate(holders):
                parts[client].extend(own[place :: len(holders)])
        order = rng.permutation(np.array(mixed, dtype=np.int64))
        for part, given in zip(parts, np.array_split(order, clients), strict=True):
            part.extend(given.tolist())
        _check_smallest(parts, self.smallest, f"{len(pairs)} pairs")
        return _sorted(parts)


@dataclass(frozen=True)
class FeatureSkew:
    """Feature skew: dealt as in :class:`Iid`, and client i of n (from 1) sees noisier features.

    PrivTuna with ``noise`` 0.02 and 0.1: Gaussian noise on each number, clipped to the data set's
    bounds if it has any. The paper writes N(0, noise i / n), which may be read as a variance; we
    take noise i / n as the standard deviation, as does the code of Li et al. 2022, whose rule it is
    (with i - 1 and n - 1 in place of i and n). Dealing leaves features alone; whoever takes the
    examples adds the noise, as :func:`tacit.data.partitions.deal` does.

    >>> FeatureSkew(noise=0.1).deviations(clients=4)
    array([0.025, 0.05 , 0.075, 0.1  ], dtype=float32)
    """

    noise: float
    smallest: int = 1

    def __post_init__(self) -> None:
        _check_range("noise", self.noise, 0, _LARGEST_NOISE)
        _check_range("smallest", self.smallest, 0)

    def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
        return Iid(self.smallest).deal(labels, clients, rng)

    def deviations(self, clients: int) -> FloatArray:
        """The standard deviation of the noise on each client's features."""
        return (self.noise * np.arange(1, clients + 1) / clients).astype(np.float32)


def _share_out(
    members: IntArray, parts: Sequence[list[int]], alpha: float, rng: np.random.Generator
) -> None:
    """Cut the members in Dirichlet proportions, one piece a part."""
    shares = rng.dirichlet(np.full(len(parts), alpha))
    # rounding, because cutting off would favour the last client with every label
    cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    for part, given in zip(parts, np.split(members, cuts), strict=True):
        part.extend(given.tolist())


def _fill_up(parts: Sequence[list[int]], smallest: int, rng: np.random.Generator) -> None:
    """Move examples from the largest parts; whoever gives still has ``smallest`` afterwards.

    While one part is below the minimum, the largest is above it, as the mean is not below it; who
    receives never comes above the minimum, so that its outdated size in the heap is never asked.
    """
    largest = [(-len(part), number) for number, part in enumerate(parts)]
    heapify(largest)
    for part in parts:
        while len(part) < smallest:
            number = largest[0][1]
            part.append(parts[number].pop(int(rng.integers(len(parts[number])))))
            heapreplace(largest, (-len(parts[number]), number))


def _sorted(parts: Iterable[Sequence[int] | IntArray]) -> list[IntArray]:
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _check_sizes(labels: IntArray, clients: int, smallest: int) -> None:
    if labels.ndim != 1:
        raise ValueError(f"labels has shape {labels.shape}; allowed is (n,)")
    if clients < 1:
        raise ValueError(f"clients is {clients}; allowed is 1 and above")
    if clients * smallest > len(labels):
        raise ValueError(
            f"clients is {clients} with at least {smallest} examples each; allowed is 1 to "
            f"{len(labels) // smallest} with {len(labels)} examples"
        )


def _check_smallest(parts: Sequence[list[int]], smallest: int, rule: str) -> None:
    fewest = min(map(len, parts))
    if fewest < smallest:
        raise ValueError(
            f"smallest is {smallest}; allowed is 0 to {fewest}, which is what the smallest of "
            f"{len(parts)} clients holds with {rule}: lower it, or have fewer clients"
        )


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= _LARGEST_ALPHA:
        raise ValueError(f"alpha is {alpha}; allowed is above 0 and at most {_LARGEST_ALPHA:g}")


def _check_range(name: str, value: float, least: float, most: float = np.inf) -> None:
    if not least <= value <= most:
        limit = f"{least:g} and above" if most == np.inf else f"{least:g} to {most:g}"
        raise ValueError(f"{name} is {value}; allowed is {limit}")
