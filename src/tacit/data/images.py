"""The image data sets: where they are published, on which terms, and how their files are read.

``centre`` and ``spread`` are the mean and standard deviation per channel of the published train
images, as they are commonly quoted: public constants, not computed from whatever files are there.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from tacit.data.examples import Dataset, Examples, FloatArray
from tacit.data.folders import DataFile, Source
from tacit.data.formats import image_examples, naming, read_cifar, read_idx, read_svhn

_SIDE = 28
_PIXELS = (0.0, 1.0)
_Part = tuple[str, str]
"""The names of a file of images and of the one with their labels."""

_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_EMNIST_TRAIN = ("emnist-byclass-train-images-idx3-ubyte", "emnist-byclass-train-labels-idx1-ubyte")
_EMNIST_TEST = ("emnist-byclass-test-images-idx3-ubyte", "emnist-byclass-test-labels-idx1-ubyte")


def _mnist(paths: Mapping[str, Path]) -> Dataset:
    read = partial(_read_part, paths, classes=10)
    centre, spread = _channels(0.1307), _channels(0.3081)
    return Dataset(
        "mnist", read(_TRAIN), read(_TEST), tuple(string.digits), centre, spread, _PIXELS
    )


def _fashion_mnist(paths: Mapping[str, Path]) -> Dataset:
    read = partial(_read_part, paths, classes=10)
    return Dataset(
        "fashion-mnist",
        read(_TRAIN),
        read(_TEST),
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        centre=_channels(0.2860),
        spread=_channels(0.3530),
        bounds=_PIXELS,
    )


def _emnist(paths: Mapping[str, Path]) -> Dataset:
    classes = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
    read = partial(_read_part, paths, classes=len(classes), sideways=True)
    centre, spread = _channels(0.1736), _channels(0.3317)
    return Dataset(
        "emnist", read(_EMNIST_TRAIN), read(_EMNIST_TEST), classes, centre, spread, _PIXELS
    )


def _cifar10(paths: Mapping[str, Path]) -> Dataset:
    train, test = read_cifar(paths["cifar-10-python.tar.gz"])
    return Dataset(
        "cifar-10",
        train,
        test,
        classes=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
        centre=_channels(0.4914, 0.4822, 0.4465),
        spread=_channels(0.2470, 0.2435, 0.2616),
        bounds=_PIXELS,
    )


def _svhn(paths: Mapping[str, Path]) -> Dataset:
    return Dataset(
        "svhn",
        read_svhn(paths["train_32x32.mat"]),
        read_svhn(paths["test_32x32.mat"]),
        classes=tuple(string.digits),
        centre=_channels(0.4377, 0.4438, 0.4728),
        spread=_channels(0.1980, 0.2010, 0.1970),
        bounds=_PIXELS,
    )


def _channels(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float32).reshape(-1, 1, 1)


def _read_part(
    paths: Mapping[str, Path], part: _Part, *, classes: int, sideways: bool = False
) -> Examples:
    images, labels = part
    pixels = read_idx(paths[images], 3, images)
    numbers = read_idx(paths[labels], 1, labels)
    with naming(paths[images]):
        if pixels.shape[1:] != (_SIDE, _SIDE):
            raise ValueError(f"its images have the shape {pixels.shape[1:]}; allowed is (28, 28)")
    with naming(paths[labels]):
        upright = pixels.transpose(0, 2, 1) if sideways else pixels
        return image_examples(upright[:, np.newaxis], numbers, classes)


def _idx_files(
    folders: tuple[str, ...], url: str, checksums: Mapping[str, str]
) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(name, _gzipped_or_not(folders, name), f"{url}{name}.gz", checksum)
        for name, checksum in checksums.items()
    )


def _gzipped_or_not(folders: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}{end}" for folder in folders for end in (".gz", ""))


_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_URL = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
)
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_EMNIST_URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
_SVHN_URL = "https://ufldl.stanford.edu/housenumbers/"

MNIST = Source(
    name="mnist",
    title="MNIST handwritten digits",
    citation="Y. LeCun, C. Cortes and C. J. C. Burges: The MNIST database of handwritten digits",
    licence="usually stated as CC BY-SA 3.0",
    files=_idx_files(
        ("mnist", "MNIST/raw"),
        _MNIST_URL,
        {
            _TRAIN[0]: "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            _TRAIN[1]: "d53e105ee54ea40749a09fcbcd1e9432",
            _TEST[0]: "9fb629c4189551a2d022fa330f9573f3",
            _TEST[1]: "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    by_hand=f"put the four .gz files of {_MNIST_URL} into a folder called mnist",
    read=_mnist,
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    citation="H. Xiao, K. Rasul and R. Vollgraf, 2017, arXiv:1708.07747",
    licence="MIT",
    files=_idx_files(
        ("fashion-mnist", "FashionMNIST/raw"),
        _FASHION_URL,
        {
            _TRAIN[0]: "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            _TRAIN[1]: "25c81989df183df01b3e8a0aad5dffbe",
            _TEST[0]: "bef4ecab320f06d8554ea6380940ec79",
            _TEST[1]: "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    by_hand="install Debian's package dataset-fashion-mnist, or put the four .gz files of "
    "https://github.com/zalandoresearch/fashion-mnist into a folder called fashion-mnist",
    read=_fashion_mnist,
    installed=(Path("/usr/share/datasets"),),
)

CIFAR10 = Source(
    name="cifar-10",
    title="CIFAR-10",
    citation="A. Krizhevsky: Learning multiple layers of features from tiny images, 2009",
    licence="none stated by its author",
    files=(
        DataFile(
            "cifar-10-python.tar.gz",
            (
                *("cifar-10-batches-py", "cifar-10/cifar-10-batches-py"),
                *("cifar-10/cifar-10-python.tar.gz", "cifar-10-python.tar.gz"),
                "cifar10_train10000_test2000.npz",
            ),
            _CIFAR_URL,
            "c58f30108f718f92721af3b95e74349a",
        ),
    ),
    by_hand=f"download {_CIFAR_URL}",
    read=_cifar10,
)

EMNIST = Source(
    name="emnist",
    title="EMNIST, by class",
    citation="G. Cohen, S. Afshar, J. Tapson and A. van Schaik, 2017, arXiv:1702.05373",
    licence="none stated; made from NIST Special Database 19",
    files=tuple(
        DataFile(
            name,
            (
                *_gzipped_or_not(("emnist", "EMNIST/raw"), name),
                *("emnist/gzip.zip", "EMNIST/raw/gzip.zip"),
            ),
            _EMNIST_URL,
            "58c8d27c78d21e728a6bc7b3cc06412e",
        )
        for name in (*_EMNIST_TRAIN, *_EMNIST_TEST)
    ),
    by_hand=f"put {_EMNIST_URL} into a folder called emnist",
    read=_emnist,
)

SVHN = Source(
    name="svhn",
    title="Street View House Numbers, cropped digits",
    citation="Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu and A. Y. Ng: Reading digits in "
    "natural images with unsupervised feature learning, 2011",
    licence="for non-commercial use only",
    files=tuple(
        DataFile(name, (f"svhn/{name}", f"SVHN/{name}", name), _SVHN_URL + name, checksum)
        for name, checksum in (
            ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        )
    ),
    by_hand=f"download train_32x32.mat and test_32x32.mat from {_SVHN_URL}",
    read=_svhn,
)
