"""Who holds what, in numbers: a partition client by client, and in summary.

Two numbers make partitions comparable: the share of a client's most frequent label, and the
total-variation distance between a client's labels and everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.data.examples import Examples, FloatArray, IntArray


@dataclass(frozen=True)
class Holding:
    """What one client holds: ``labels`` has the count of each class, ``noise`` a deviation."""

    client: int
    size: int
    labels: tuple[int, ...]
    noise: float | None


@dataclass(frozen=True)
class Summary:
    """A partition in a few numbers; clients without examples count for sizes only.

    Attributes:
        clients: how many there are.
        examples: how many all of them hold together.
        smallest: the size of the smallest client.
        median: the median size.
        largest: the size of the largest client.
        largest_share: the share of a client's examples with its most frequent label, on average.
        distance: the total-variation distance between a client's label distribution and that of
            all examples, on average: 0 if they are the same; a client that holds all it could of
            its labels is 1 minus their share of the whole away.
    """

    clients: int
    examples: int
    smallest: int
    median: float
    largest: int
    largest_share: float
    distance: float


@dataclass(frozen=True)
class Table:
    """A partition's numbers, client by client; ``dataclasses.asdict`` makes them JSON."""

    classes: tuple[str, ...]
    clients: tuple[Holding, ...]
    summary: Summary


def label_counts(parts: Sequence[Examples], classes: int) -> IntArray:
    """How often each client (row) has each class (column).

    >>> rows = np.zeros((3, 1), dtype=np.float32)
    >>> label_counts([Examples(rows, np.array([0, 2, 2]))], classes=4).tolist()
    [[1, 0, 2, 0]]
    """
    return np.stack([np.bincount(part.labels, minlength=classes) for part in parts])


def table(classes: Sequence[str], counts: IntArray, noise: FloatArray | None = None) -> Table:
    """The numbers of a partition.

    Args:
        classes: the names of the classes.
        counts: how often each client (row) has each class (column).
        noise: the standard deviation of the noise on each client's features, if there is any.

    >>> numbers = table(("no", "yes"), np.array([[30, 10], [0, 40]]))
    >>> numbers.clients[0]
    Holding(client=1, size=40, labels=(30, 10), noise=None)
    >>> numbers.summary.largest_share, numbers.summary.distance
    (0.875, 0.375)
    """
    _check(classes, counts, noise)
    sizes = counts.sum(axis=1)
    holdings = (
        Holding(
            client=number,
            size=int(sizes[number - 1]),
            labels=tuple(row),
            noise=None if noise is None else float(noise[number - 1]),
        )
        for number, row in enumerate(counts.tolist(), start=1)
    )
    summary = Summary(
        clients=len(counts),
        examples=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        largest_share=float(np.nanmean(shares(counts).max(axis=1))),
        distance=float(np.nanmean(distances(counts))),
    )
    return Table(tuple(classes), tuple(holdings), summary)


def shares(counts: IntArray) -> npt.NDArray[np.float64]:
    """Each client's label distribution; not a number where it holds nothing."""
    sizes = counts.sum(axis=1, keepdims=True)
    held = np.full(counts.shape, np.nan)
    np.divide(counts, sizes, out=held, where=sizes > 0)
    return held


def distances(counts: IntArray) -> npt.NDArray[np.float64]:
    """The total-variation distance between each client's label distribution and everybody's.

    >>> distances(np.array([[5, 5, 0, 0], [0, 0, 5, 5]])).tolist()
    [0.5, 0.5]
    """
    whole = counts.sum(axis=0) / counts.sum()
    apart: npt.NDArray[np.float64] = np.abs(shares(counts) - whole).sum(axis=1)
    return apart / 2


def _check(classes: Sequence[str], counts: IntArray, noise: FloatArray | None) -> None:
    if counts.ndim != 2 or counts.shape[1] != len(classes) or len(counts) == 0:
        raise ValueError(
            f"counts has shape {counts.shape}; allowed is (clients, {len(classes)}), with at least "
            "one client"
        )
    if counts.min() < 0 or counts.sum() == 0:
        raise ValueError(
            f"counts range from {counts.min()} to {counts.max()}; allowed is 0 and above, with at "
            "least one example"
        )
    if noise is not None and noise.shape != (len(counts),):
        raise ValueError(f"noise has shape {noise.shape}; allowed is ({len(counts)},)")
