"""Labelled examples, the data sets they come from, and a client's own validation split.

A data set is one function that returns a :class:`Dataset`; its test examples are public and held by
no client, so that what is reported was never voted with (DP-HYPE's code scores on the split that it
reports).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples: one row of ``features`` and one of ``labels`` each.

    >>> three = Examples(np.eye(3, dtype=np.float32), np.array([0, 1, 1]))
    >>> len(three), three.take(np.array([2, 0])).labels.tolist()
    (3, [1, 0])
    >>> Examples(np.eye(3, dtype=np.float32), np.array([0, 1]))
    Traceback (most recent call last):
        ...
    ValueError: features has shape (3, 3) and labels (2,); allowed are (n, d) and (n,)
    """

    features: FloatArray
    labels: IntArray

    def __post_init__(self) -> None:
        shapes = self.features.shape, self.labels.shape
        if self.features.ndim != 2 or shapes[1] != shapes[0][:1]:
            raise ValueError(
                f"features has shape {shapes[0]} and labels {shapes[1]}; allowed are (n, d) and "
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

    def take(self, indices: IntArray) -> Examples:
        """The examples at these places, in this order."""
        return Examples(self.features[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification task: ``train`` is dealt out to clients, ``test`` is public."""

    name: str
    train: Examples
    test: Examples
    classes: int


def digits(seed: int = 0) -> Dataset:
    """Scikit-learn's embedded digits: 1797 images of 8 x 8 pixels, scaled to 0..1.

    A fifth, stratified by label, is the public test split. It is the same for everybody: the seed
    of a run does not belong here.

    >>> data = digits()
    >>> len(data.train), len(data.test), data.train.features.shape[1], data.classes
    (1437, 360, 64, 10)
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as missing:
        raise ImportError(
            "the digits data set needs scikit-learn: pip install scikit-learn"
        ) from missing
    pixels, labels = load_digits(return_X_y=True)
    examples = Examples((pixels / 16).astype(np.float32), labels.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(examples)), test_size=_TEST_SHARE, stratify=labels, random_state=seed
    )
    return Dataset("digits", examples.take(np.sort(train)), examples.take(np.sort(test)), 10)


def split_validation(
    examples: Examples, fraction: float, rng: np.random.Generator
) -> tuple[Examples, Examples]:
    """A client's training and validation examples: a random ``fraction`` is for validation.

    Both get at least one example, however small the fraction or the client.

    >>> client = digits().train.take(np.arange(10))
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
