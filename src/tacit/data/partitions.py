"""Ways to deal the examples of a data set out to clients.

A partition takes the labels and returns one sorted array of indices a client; every example goes
to exactly one client, and the same seed gives the same parts.
"""

from __future__ import annotations

import numpy as np

from tacit.data.sources import IntArray

_LARGEST_ALPHA = 1e100  # far beyond it a draw overflows and every share is 0
_SMALLEST = 10


def iid(labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
    """Shuffle and cut into parts whose sizes differ by at most one.

    >>> [len(part) for part in iid(np.zeros(11, dtype=np.int64), 3, np.random.default_rng(0))]
    [4, 4, 3]
    """
    _check_sizes(labels, clients, smallest=1)
    parts = np.array_split(rng.permutation(len(labels)), clients)
    return [np.sort(part) for part in parts]


def dirichlet(
    labels: IntArray,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    smallest: int = _SMALLEST,
) -> list[IntArray]:
    """Label and size skew: each label's examples are shared out in Dirichlet(alpha) proportions.

    DP-HYPE, Appendix B, with alpha 30, 5 and 0.5 (and, in its code, at least 10 examples a client):
    for each label one draw over the clients (Yurochkin et al. 2019). Hsu et al. 2019 draw the other
    way round, for each client one over the labels. The smaller alpha, the more skew.

    How we differ: others redraw until every client has ``smallest`` examples, which with a small
    alpha may never happen. We draw once; then single examples, chosen at random from whoever is the
    largest client at that moment, move to the clients below the minimum. All of it depends on
    ``rng`` only, and nothing moves where the draw already keeps the minimum.

    >>> labels = np.repeat([0, 1], 50)
    >>> parts = dirichlet(labels, 4, 0.5, np.random.default_rng(0))
    >>> [np.bincount(labels[part], minlength=2).tolist() for part in parts]
    [[18, 21], [21, 8], [8, 4], [3, 17]]
    >>> dirichlet(labels, 20, 0.5, np.random.default_rng(0))
    Traceback (most recent call last):
        ...
    ValueError: clients is 20 with at least 10 examples each; allowed is 1 to 10 with 100 examples
    """
    _check_sizes(labels, clients, smallest)
    if not 0 < alpha <= _LARGEST_ALPHA:
        raise ValueError(f"alpha is {alpha}; allowed is above 0 and at most {_LARGEST_ALPHA:g}")
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        # rounding, because cutting off would favour the last client with every label
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, given in zip(parts, np.split(members, cuts), strict=True):
            part.extend(given.tolist())
    _fill_up(parts, smallest, rng)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def _fill_up(parts: list[list[int]], smallest: int, rng: np.random.Generator) -> None:
    """Move examples from the largest parts; whoever gives still has ``smallest`` afterwards.

    While one part is below the minimum, the largest is above it, as the mean is not below it.
    """
    for part in parts:
        while len(part) < smallest:
            largest = max(parts, key=len)
            part.append(largest.pop(int(rng.integers(len(largest)))))


def _check_sizes(labels: IntArray, clients: int, smallest: int) -> None:
    if labels.ndim != 1:
        raise ValueError(f"labels has shape {labels.shape}; allowed is (n,)")
    if smallest < 0:
        raise ValueError(f"smallest is {smallest}; allowed is 0 and above")
    if clients < 1:
        raise ValueError(f"clients is {clients}; allowed is 1 and above")
    if clients * smallest > len(labels):
        raise ValueError(
            f"clients is {clients} with at least {smallest} examples each; allowed is 1 to "
            f"{len(labels) // smallest} with {len(labels)} examples"
        )
