"""Labelled examples, data sets made of them, and a client's own validation split.

The test examples of a :class:`Dataset` are public and held by no client, and every client keeps a
validation part of its own, so that what trains, what votes and what is reported are three sets
(DP-HYPE's code scores on the split that it reports).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples: one row of ``features`` and one of ``labels`` each.

    A row is a list of numbers, or an image of shape (channels, height, width).

    >>> three = Examples(np.eye(3, dtype=np.float32), np.array([0, 1, 1]))
    >>> len(three), three.take(np.array([2, 0])).labels.tolist()
    (3, [1, 0])
    >>> Examples(np.eye(3, dtype=np.float32), np.array([0, 1]))
    Traceback (most recent call last):
        ...
    ValueError: features has shape (3, 3) and labels (2,); allowed are (n, ..) and (n,)
    """

    features: FloatArray
    labels: IntArray
    groups: IntArray | None = None
    """Which rows belong together, such as the visits of one patient: rows with the same number do.
    Groups are numbered in the order in which they first appear (see :func:`group_numbers`). None:
    every row stands alone."""

    def __post_init__(self) -> None:
        shapes = self.features.shape, self.labels.shape
        if self.features.ndim < 2 or shapes[1] != shapes[0][:1]:
            raise ValueError(
                f"features has shape {shapes[0]} and labels {shapes[1]}; allowed are (n, ..) and "
                "(n,)"
            )
        if self.features.dtype.name != "float32" or self.labels.dtype.name != "int64":
            raise ValueError(
                f"features is of type {self.features.dtype} and labels of {self.labels.dtype}; "
                "allowed are float32 and int64"
            )
        if self.labels.size and self.labels.min() < 0:
            raise ValueError(f"a label is {self.labels.min()}; allowed is 0 and above")
        if self.groups is not None and not np.array_equal(self.groups, group_numbers(self.groups)):
            raise ValueError(
                "groups are not numbered in the order in which they appear; use group_numbers"
            )
        if self.groups is not None and len(self.groups) != len(self.labels):
            raise ValueError(
                f"groups has {len(self.groups)} entries and labels {len(self.labels)}; allowed is "
                "one a row"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def units(self) -> int:
        """How many groups there are, or rows, where every row stands alone."""
        if self.groups is None:
            return len(self)
        return int(self.groups.max(initial=-1)) + 1

    @property
    def first_rows(self) -> IntArray:
        """Where each unit has its first row."""
        if self.groups is None:
            return np.arange(len(self))
        return np.unique(self.groups, return_index=True)[1]

    @property
    def unit_name(self) -> str:
        """What errors call the units: ``examples``, or ``groups`` where rows belong together."""
        return "examples" if self.groups is None else "groups"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.features.shape[1:]

    def take(self, indices: IntArray) -> Examples:
        """The examples at these places, in this order."""
        groups = None if self.groups is None else group_numbers(self.groups[indices])
        return Examples(self.features[indices], self.labels[indices], groups)

    def take_units(self, positions: IntArray) -> Examples:
        """The units at these positions, in this order: whole groups, or rows that stand alone.

        >>> rows = Examples(np.eye(4, dtype=np.float32), np.arange(4), np.array([0, 1, 0, 2]))
        >>> rows.take_units(np.array([2, 0])).labels.tolist()
        [3, 0, 2]
        """
        if self.groups is None:
            return self.take(positions)
        rank = np.full(self.units, len(positions))
        rank[positions] = np.arange(len(positions))
        order = np.argsort(rank[self.groups], kind="stable")
        return self.take(order[: int((rank[self.groups] < len(positions)).sum())])

    def flat(self) -> Examples:
        """The same examples with every row as a plain list of numbers."""
        width = math.prod(self.shape)
        return Examples(self.features.reshape(len(self), width), self.labels, self.groups)


def group_numbers(identifiers: npt.NDArray[Any]) -> IntArray:
    """Identifiers of rows as numbers, in the order in which they first appear.

    So a group's number says where it stands and nothing about who it is.

    >>> group_numbers(np.array(["ann", "bob", "ann", "eve"])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(identifiers, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification task: ``train`` is dealt out to clients, ``test`` is public.

    Features are as published, pixels in 0..1. ``centre`` and ``spread`` are public numbers that
    bring them to mean 0 and variance 1; whoever models the data standardises last, after any noise
    of a feature skew. ``bounds`` is the range that features cannot leave, if there is one.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    centre: FloatArray = field(default_factory=lambda: np.zeros(1, dtype=np.float32))
    spread: FloatArray = field(default_factory=lambda: np.ones(1, dtype=np.float32))
    bounds: tuple[float, float] | None = None

    def standardise(self, examples: Examples) -> Examples:
        """Examples of this data set, with features of about mean 0 and variance 1."""
        features = (examples.features - self.centre) / self.spread
        return Examples(features, examples.labels, examples.groups)

    def some(self, examples: int, test_examples: int = 0) -> Dataset:
        """Part of it: the first so many in a fixed random order; 0: all.

        Where rows belong together, whole groups are counted and taken.
        """
        rng = np.random.default_rng(0)
        parts = []
        for part, count in ((self.train, examples), (self.test, test_examples)):
            if count > part.units:
                raise ValueError(
                    f"found {part.units} {part.unit_name} where {count} are asked for; allowed is "
                    "up to that, or 0 for all"
                )
            order = rng.permutation(part.units)[:count]
            parts.append(part.take_units(order) if count else part)
        return replace(self, train=parts[0], test=parts[1])


def split_validation(
    examples: Examples, fraction: float, key: int | bytes
) -> tuple[Examples, Examples]:
    """A client's training and validation examples: a ``fraction`` of its units is for validation.

    A unit is a row, or a whole group where rows belong together. Every position gets a coin from
    the key, and the units with the smallest coins are for validation, so many that the fraction is
    met as closely as whole units can; both parts get at least one.

    *Proof* that replacing one unit moves no other. Which positions are for validation is computed
    from the key, the fraction and the number of units. All three are public and the same for two
    neighbours, which differ in what stands at one position. So the replacement is where the
    replaced unit was, and every other unit stays where it is; contents, identifiers and the number
    of rows in a group decide nothing. A seeded permutation has this property too, but it deals all
    units anew when there is one more; here at most one other unit changes sides then, since each
    position keeps its coin.

    Coins are ranked rather than compared with a threshold so that the sizes of both parts are
    exact. They set the sampling rate of DP-SGD, which must be known before the split, and a small
    client might otherwise have nothing to train or to validate with.

    >>> client = Examples(np.zeros((10, 4), dtype=np.float32), np.zeros(10, dtype=np.int64))
    >>> train, validation = split_validation(client, 0.2, key=7)
    >>> len(train), len(validation)
    (8, 2)

    Args:
        examples: all that the client has.
        fraction: above 0 and below 1.
        key: any number or bytes, fixed without looking at the data; it need not be secret. Clients
            of one federation take keys of their own (see :func:`client_key`).
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}; allowed is above 0 and below 1")
    count = examples.units
    if count < 2:
        raise ValueError(
            f"a client has {count} {examples.unit_name}; it needs at least 2, one to train and one "
            "to validate"
        )
    held_out = min(max(round(fraction * count), 1), count - 1)
    order = _by_coin(count, "validation", key)
    train, validation = np.sort(order[held_out:]), np.sort(order[:held_out])
    return examples.take_units(train), examples.take_units(validation)


def client_key(seed: int, number: int) -> bytes:
    """The key of a client's split, from two public numbers: a run's seed and the client's number.

    >>> client_key(1, 23)
    b'1 23'
    """
    return f"{seed} {number}".encode()


def cross_validation(
    train: Examples, validation: Examples, folds: int, seed: int
) -> Iterator[tuple[Examples, Examples]]:
    """A client's two parts as they are, then with other units in the place of the validation's.

    A unit is a row, or a whole group where rows belong together. Units stand in a circle, those of
    the validation part first and the others in an order drawn by position with the seed; every fold
    holds out the next so many. With a fifth for validation, five folds hold every unit out once;
    more go around again. Positions, the seed and the two numbers of units alone decide, so that
    replacing one unit moves no other in any fold.

    >>> one, other = (Examples(np.eye(k, dtype=np.float32)[:, :2], np.arange(k)) for k in (6, 2))
    >>> [(len(a), len(b)) for a, b in cross_validation(one, other, 3, seed=1)]
    [(6, 2), (6, 2), (6, 2)]
    """
    if folds < 1:
        raise ValueError(f"folds is {folds}; allowed is 1 and above")
    yield train, validation
    if folds == 1:
        return
    both, held_out = _together(validation, train), validation.units
    circle = np.concatenate(
        [np.arange(held_out), held_out + _by_coin(train.units, "cross-validation", seed)]
    )
    for number in range(1, folds):
        turned = np.roll(circle, -number * held_out)
        rest, held = np.sort(turned[held_out:]), np.sort(turned[:held_out])
        yield both.take_units(rest), both.take_units(held)


def _by_coin(count: int, purpose: str, key: int | bytes) -> IntArray:
    """Positions from 0 on, those with the smallest coins first.

    SHAKE-128 stretches purpose and key into 64 bits for every position. A longer output begins with
    the shorter one, so the coin of a position does not depend on how many there are.
    """
    words = key if isinstance(key, bytes) else str(int(key)).encode()
    stream = hashlib.shake_128(purpose.encode() + b": " + words).digest(8 * count)
    return np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")


def _together(first: Examples, second: Examples) -> Examples:
    """The rows of both, one after the other; no group of the first goes on in the second."""
    if (first.groups is None) != (second.groups is None):
        raise ValueError(
            "one of the two parts says which rows belong together and the other does not; allowed "
            "are groups in both or in neither"
        )
    groups = None
    if first.groups is not None and second.groups is not None:
        groups = np.concatenate([first.groups, first.units + second.groups])
    return Examples(
        np.concatenate([first.features, second.features]),
        np.concatenate([first.labels, second.labels]),
        groups,
    )
