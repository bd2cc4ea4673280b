"""The published file formats of the image data sets: IDX, CIFAR-10's batches, SVHN's MATLAB files.

A file may be a subset of the published one, so nothing here compares checksums; shapes, counts and
labels must fit each other, and a file that is cut off or another one altogether is refused with one
sentence that names it. Nothing is ever unpacked to disk, and no pickle runs code.
"""

from __future__ import annotations

import csv
import errno
import gzip
import math
import pickle
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from tacit.data.examples import Examples

Bytes = npt.NDArray[np.uint8]
_Batch = tuple[Bytes, npt.NDArray[Any]]

_GZIP = b"\x1f\x8b"
_CIFAR_FOLDER = "cifar-10-batches-py"
_CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR_TEST = "test_batch"
_CIFAR_BATCHES = (*_CIFAR_TRAIN, _CIFAR_TEST)
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_CLASSES = 10


_DAMAGE = (
    EOFError,
    MemoryError,  # a damaged size is any size
    NotImplementedError,
    OSError,
    RuntimeError,  # zip archives: a damaged flag says that a member is encrypted
    ValueError,
    csv.Error,
    tarfile.TarError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What libraries raise at files that are damaged; of the OSErrors, those of :func:`_of_content`."""


@contextmanager
def naming(path: Path, rows: str = "") -> Iterator[None]:
    """Whatever a library finds wrong with a file becomes one sentence that names the file.

    Args:
        path: the file.
        rows: what a file of somebody's own rows has to be, such as "a CSV file". What the library
            says may quote such rows, so it is left out.
    """
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and not _of_content(error):
            raise
        if rows:
            raise ValueError(
                f"{path} cannot be read as {rows}; it is damaged or another file: put it back from "
                "a copy, or name another one"
            ) from None
        raise ValueError(
            f"{path}: {error}; the file is damaged or another one: get it again, or name another "
            "folder with --data-dir or TACIT_DATA"
        ) from None


def _of_content(error: OSError) -> bool:
    """Whether it is about what a file holds: an archive may name a place before its begin."""
    return isinstance(error, gzip.BadGzipFile) or error.errno == errno.EINVAL


@contextmanager
def opened(path: Path, member: str = "") -> Iterator[IO[bytes]]:
    """A file, or a member of a zip archive, unzipped if it is gzipped, whatever its name says."""
    with naming(path):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, _member(archive, member) as stream:
                yield _gunzipped(stream)
        else:
            with path.open("rb") as stream:
                yield _gunzipped(stream)


def read_idx(path: Path, dimensions: int, member: str = "") -> Bytes:
    """An array of bytes in the IDX format of MNIST, plain, gzipped or in a zip archive.

    Four bytes say 0, 0, 8 for unsigned bytes and how many dimensions; then come the dimensions,
    each of four bytes, the highest first, and the values.
    """
    with opened(path, member) as stream:
        begin, allowed = stream.read(4), bytes([0, 0, 8, dimensions])
        if begin != allowed:
            raise ValueError(
                f"it begins with {begin.hex(' ') or 'nothing'}; an IDX file of {dimensions} "
                f"dimensions begins with {allowed.hex(' ')}"
            )
        header = stream.read(4 * dimensions)
        if len(header) < 4 * dimensions:
            raise ValueError("it ends within its header")
        shape = tuple(np.frombuffer(header, ">u4").tolist())
        values = np.frombuffer(stream.read(), np.uint8)
        if values.size != math.prod(shape):
            raise ValueError(
                f"its header promises the shape {shape}, but {values.size} bytes follow"
            )
        return values.reshape(shape)


def image_examples(pixels: Bytes, labels: npt.NDArray[Any], classes: int) -> Examples:
    """Images of shape (n, channels, height, width), with pixels brought to 0..1."""
    check_images(pixels, labels, classes)
    scaled = np.divide(pixels, np.float32(255), dtype=np.float32, order="C")
    return Examples(scaled, labels.reshape(-1).astype(np.int64))


def check_images(pixels: Bytes, labels: npt.NDArray[Any], classes: int) -> None:
    """Refuse images without labels, labels without images, and labels of no class."""
    if len(pixels) != labels.size:
        raise ValueError(f"there are {len(pixels)} images and {labels.size} labels")
    if not labels.size:
        raise ValueError("there are no images")
    check_labels(labels, 0, classes - 1)


def check_labels(labels: npt.NDArray[Any], lowest: int, highest: int) -> None:
    """Refuse labels that stand for no class."""
    strange = labels[(labels < lowest) | (labels > highest) | (labels % 1 != 0)]
    if strange.size:
        raise ValueError(
            f"a label is {strange.flat[0]}; allowed are whole numbers from {lowest} to {highest}"
        )


def read_cifar(path: Path) -> tuple[Examples, Examples]:
    """CIFAR-10's train and test images: its folder of batches, its archive, or an npz file.

    An npz file holds ``x_train``, ``y_train``, ``x_test`` and ``y_test``, with images of shape
    (32, 32, 3).
    """
    if path.suffix == ".npz":
        return _cifar_npz(path)
    batches = _batches_of_folder(path) if path.is_dir() else _batches_of_archive(path)
    with naming(path):
        for name in _CIFAR_BATCHES:
            if name not in batches:
                raise ValueError(f"it holds no {name}")
        train = [batches[name] for name in _CIFAR_TRAIN]
        pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
        test = image_examples(*batches[_CIFAR_TEST], _CIFAR_CLASSES)
        return image_examples(pixels, labels, _CIFAR_CLASSES), test


def read_svhn(path: Path) -> Examples:
    """One of SVHN's files of cropped digits: ``X`` of shape (32, 32, 3, n), ``y`` from 1 to 10.

    The label 10 stands for the digit 0.
    """
    from scipy.io import loadmat

    with naming(path):
        try:
            found = loadmat(path, appendmat=False, variable_names=("X", "y"))
            pixels, labels = found["X"], found["y"]
        except Exception as error:  # SciPy raises whatever its parser trips over
            raise ValueError(f"no MATLAB file with X and y ({error})") from None
        if pixels.shape[:3] != (32, 32, 3) or pixels.ndim != 4 or pixels.dtype != np.uint8:
            raise ValueError(
                f"X has the shape {pixels.shape} of {pixels.dtype}; allowed is (32, 32, 3, n) of "
                "uint8"
            )
        if labels.dtype.kind not in "iuf":
            raise ValueError(f"y is of type {labels.dtype}; allowed are numbers")
        check_labels(labels, 1, 10)
        return image_examples(pixels.transpose(3, 2, 0, 1), labels % 10, 10)


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A member by its own name, in whichever folder of the archive, gzipped or not."""
    for inside in archive.namelist():
        if PurePosixPath(inside).name in (name, f"{name}.gz"):
            return archive.open(inside)
    raise ValueError(f"it holds no {name}")


def _gunzipped(stream: IO[bytes]) -> IO[bytes]:
    peeked: bytes = stream.peek(len(_GZIP))  # type: ignore[attr-defined]
    return cast(IO[bytes], gzip.open(stream)) if peeked.startswith(_GZIP) else stream


def _batches_of_folder(folder: Path) -> Mapping[str, _Batch]:
    batches = {}
    for path in (folder / name for name in _CIFAR_BATCHES):
        if path.exists():
            with path.open("rb") as stream, naming(path):
                batches[path.name] = _batch(stream)
    return batches


def _batches_of_archive(path: Path) -> Mapping[str, _Batch]:
    """The batches of the published archive, read in passing.

    Nothing is unpacked, so a member that points elsewhere could do no harm; but the published
    archive has none, and whoever unpacks such a file by hand should know.
    """
    batches = {}
    with (
        path.open("rb") as stream,
        naming(path),
        tarfile.open(fileobj=stream, mode="r:gz") as archive,
    ):
        for member in archive:
            inside = PurePosixPath(member.name)
            if inside.is_absolute() or ".." in inside.parts:
                raise ValueError(f"it holds {member.name!r}, which points out of its folder")
            content = archive.extractfile(member) if member.isfile() else None
            if content and inside.parent.name == _CIFAR_FOLDER and inside.name in _CIFAR_BATCHES:
                batches[inside.name] = _batch(content)
    return batches


def _batch(stream: IO[bytes]) -> _Batch:
    content = _ArraysOnly(stream, encoding="bytes").read()
    pixels, labels = content.get(b"data"), np.asarray(content.get(b"labels"))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        raise ValueError("b'data' is missing or no table of bytes")
    if pixels.shape[1] != math.prod(_CIFAR_SHAPE):
        raise ValueError(
            f"an image has {pixels.shape[1]} bytes; allowed is {math.prod(_CIFAR_SHAPE)}"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError("b'labels' is missing or no list of whole numbers")
    check_images(pixels, labels, _CIFAR_CLASSES)
    return pixels.reshape(-1, *_CIFAR_SHAPE), labels


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]


class _ArraysOnly(pickle.Unpickler):
    """Reads pickles of plain values and NumPy arrays; a pickle that asks for more is refused.

    A pickle may name any function to be called, so reading a stranger's means running a stranger's
    code. The batches name three, given here; ``numpy.core`` is what NumPy 1 called the module.
    """

    _ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; allowed are NumPy's arrays")
        return self._ALLOWED[module, name]

    def read(self) -> dict[Any, Any]:
        try:
            content = self.load()
        except Exception as error:  # a damaged pickle may raise anything
            raise ValueError(f"no batch of CIFAR-10 ({error})") from None
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}; a batch of CIFAR-10 is a dict")
        return content


def _cifar_npz(path: Path) -> tuple[Examples, Examples]:
    with path.open("rb") as stream, naming(path):
        if not zipfile.is_zipfile(stream):  # NumPy would propose to unpickle it
            raise ValueError("it is no npz file")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as content:
            return _npz_part(content, "train"), _npz_part(content, "test")


def _npz_part(content: Mapping[str, npt.NDArray[Any]], part: str) -> Examples:
    for name in (f"x_{part}", f"y_{part}"):
        if name not in content:
            raise ValueError(f"it holds no {name}")
    pixels, labels = content[f"x_{part}"], content[f"y_{part}"]
    if pixels.shape[1:] != (32, 32, 3) or pixels.dtype != np.uint8:
        raise ValueError(
            f"x_{part} has the shape {pixels.shape} of {pixels.dtype}; allowed is (n, 32, 32, 3) "
            "of uint8"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"y_{part} is no list of whole numbers")
    return image_examples(pixels.transpose(0, 3, 1, 2), labels, _CIFAR_CLASSES)
