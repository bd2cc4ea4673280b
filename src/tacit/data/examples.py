"""Labelled examples, data sets made of them, and a client's own validation split.

The test examples of a :class:`Dataset` are public and held by no client, and every client keeps a
validation part of its own, so that what trains, what votes and what is reported are three sets
(DP-HYPE's code scores on the split that it reports).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

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

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.features.shape[1:]

    def take(self, indices: IntArray) -> Examples:
        """The examples at these places, in this order."""
        return Examples(self.features[indices], self.labels[indices])

    def flat(self) -> Examples:
        """The same examples with every row as a plain list of numbers."""
        width = math.prod(self.shape)
        return Examples(self.features.reshape(len(self), width), self.labels)


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
        return Examples((examples.features - self.centre) / self.spread, examples.labels)

    def some(self, examples: int, test_examples: int = 0) -> Dataset:
        """Part of it: the first so many in a fixed random order; 0: all."""
        rng = np.random.default_rng(0)
        parts = []
        for part, count in ((self.train, examples), (self.test, test_examples)):
            if count > len(part):
                raise ValueError(
                    f"found {len(part)} examples where {count} are asked for; allowed is up to "
                    "that, or 0 for all"
                )
            order = rng.permutation(len(part))[:count]
            parts.append(part.take(order) if count else part)
        return replace(self, train=parts[0], test=parts[1])


def split_validation(
    examples: Examples, fraction: float, rng: np.random.Generator
) -> tuple[Examples, Examples]:
    """A client's training and validation examples: a random ``fraction`` is for validation.

    Both get at least one example, however small the fraction or the client.

    >>> client = Examples(np.zeros((10, 4), dtype=np.float32), np.zeros(10, dtype=np.int64))
    >>> train, validation = split_validation(client, 0.2, np.random.default_rng(0))
    >>> len(train), len(validation)
    (8, 2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}; allowed is above 0 and below 1")
    count = len(examples)
    if count < 2:
        raise ValueError(
            f"a client has {count} examples; it needs at least 2, one to train and one to validate"
        )
    held_out = min(max(round(fraction * count), 1), count - 1)
    order = rng.permutation(count)
    return examples.take(np.sort(order[held_out:])), examples.take(np.sort(order[:held_out]))


def cross_validation(
    train: Examples, validation: Examples, folds: int, seed: int
) -> Iterator[tuple[Examples, Examples]]:
    """A client's two parts as they are, then with other examples in the place of the validation's.

    The examples stand in a circle, those of the validation part first and the others in an order
    drawn with the seed; every fold holds out the next so many. With a fifth for validation, five
    folds hold every example out once; more go around again.

    >>> one, other = (Examples(np.eye(k, dtype=np.float32)[:, :2], np.arange(k)) for k in (6, 2))
    >>> [(len(a), len(b)) for a, b in cross_validation(one, other, 3, seed=1)]
    [(6, 2), (6, 2), (6, 2)]
    """
    if folds < 1:
        raise ValueError(f"folds is {folds}; allowed is 1 and above")
    yield train, validation
    if folds == 1:
        return
    both = Examples(
        np.concatenate([validation.features, train.features]),
        np.concatenate([validation.labels, train.labels]),
    )
    held_out = len(validation)
    shuffled = np.random.default_rng(seed).permutation(len(train))
    circle = np.concatenate([np.arange(held_out), held_out + shuffled])
    for number in range(1, folds):
        turned = np.roll(circle, -number * held_out)
        yield both.take(np.sort(turned[held_out:])), both.take(np.sort(turned[:held_out]))
