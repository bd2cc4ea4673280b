"""The data sets: one function each, and all of them by the name the command line uses.

Images are float32 of shape (channels, height, width) with pixels in 0..1. The test split is the
published one, where there is one. What standardises a data set is public and written down with it;
``digits`` needs nothing, and keeps centre 0 and spread 1.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tacit.data.examples import Dataset, Examples
from tacit.data.fetching import Progress, fetch_files
from tacit.data.folders import Source
from tacit.data.images import CIFAR10, EMNIST, FASHION_MNIST, MNIST, SVHN
from tacit.data.tabular import ADULT, FRAUD

_TEST_SHARE = 0.2


def digits(seed: int = 0) -> Dataset:
    """Scikit-learn's embedded digits: 1797 images of 8 x 8 pixels, scaled to 0..1.

    A fifth, stratified by label, is the public test split. It is the same for everybody: the seed
    of a run does not belong here.

    >>> data = digits()
    >>> len(data.train), len(data.test), data.train.shape, len(data.classes)
    (1437, 360, (1, 8, 8), 10)
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    examples = Examples(images, labels.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(examples)), test_size=_TEST_SHARE, stratify=labels, random_state=seed
    )
    return Dataset(
        "digits",
        examples.take(np.sort(train)),
        examples.take(np.sort(test)),
        classes=tuple(string.digits),
        bounds=(0.0, 1.0),
    )


def mnist(folder: Path | None = None) -> Dataset:
    """Handwritten digits: 60,000 + 10,000 images of 1 x 28 x 28."""
    return MNIST.load(folder)


def fashion_mnist(folder: Path | None = None) -> Dataset:
    """Pictures of clothes in MNIST's format: 60,000 + 10,000 images of 1 x 28 x 28."""
    return FASHION_MNIST.load(folder)


def cifar10(folder: Path | None = None) -> Dataset:
    """Small photographs: 50,000 + 10,000 images of 3 x 32 x 32."""
    return CIFAR10.load(folder)


def adult(folder: Path | None = None) -> Dataset:
    """Census rows of 1994 and whether the income was above 50K: 32,561 + 16,281 rows of 105.

    Six numbers and 99 categories. The categories are those of the published description, and the
    constants that standardise the numbers are those of the published train file: neither depends on
    who holds which rows. In a real federation they must be public or agreed on beforehand. An
    unknown value (``?``) has 0 in all of its column's categories.
    """
    return ADULT.load(folder)


def fraud(folder: Path | None = None) -> Dataset:
    """Card transactions and whether they were fraudulent: V1 to V28 and Amount, 29 numbers.

    Either the published ``creditcard.csv`` or a subset of it. There is no published split: rows are
    dropped that differ from another one in their time only, then 30 % of either class are for
    testing. The constants are those of the published file, whichever rows there are; in a real
    federation they must be public or agreed on beforehand.
    """
    return FRAUD.load(folder)


def emnist(folder: Path | None = None) -> Dataset:
    """Handwritten digits and letters, by class: 697,932 + 116,323 images of 1 x 28 x 28.

    The published images lie on their side, rows and columns exchanged; here they are upright. All
    of them take 2.6 GB. This was tested on files of the same format, not on the data itself.
    """
    return EMNIST.load(folder)


def svhn(folder: Path | None = None) -> Dataset:
    """Cropped house numbers: 73,257 + 26,032 images of 3 x 32 x 32.

    This was tested on files of the same format, not on the data itself.
    """
    return SVHN.load(folder)


DIGITS = Source(
    name="digits",
    title="Optical recognition of handwritten digits, the test part, as in scikit-learn",
    citation="E. Alpaydin and C. Kaynak, 1998, doi:10.24432/C50P49",
    licence="CC BY 4.0",
    files=(),
    by_hand="it comes with scikit-learn",
    read=lambda _: digits(),
)

DATASETS: Mapping[str, Source] = {
    source.name: source
    for source in (DIGITS, MNIST, FASHION_MNIST, CIFAR10, ADULT, FRAUD, EMNIST, SVHN)
}
"""Every data set by the name that the command line and plans use."""


def load(name: str, folder: Path | None = None) -> Dataset:
    """The data set of this name, from files in ``folder`` or in one of the usual places.

    >>> load("digits").train.shape
    (1, 8, 8)
    >>> load("imagenet")
    Traceback (most recent call last):
        ...
    ValueError: no data set is called 'imagenet'; allowed are digits, mnist, fashion-mnist, \
cifar-10, adult, fraud, emnist, svhn
    """
    return _source(name).load(folder)


def fetch(name: str, progress: Progress, folder: Path | None = None) -> Path:
    """Download the files of a data set into the cache, or into ``folder``; where they are now.

    >>> fetch("digits", print)
    Traceback (most recent call last):
        ...
    tacit.data.fetching.FetchFailed: digits has no files to fetch: it comes with scikit-learn
    """
    return fetch_files(_source(name), progress, folder)


def _source(name: str) -> Source:
    if name not in DATASETS:
        raise ValueError(f"no data set is called {name!r}; allowed are {', '.join(DATASETS)}")
    return DATASETS[name]
