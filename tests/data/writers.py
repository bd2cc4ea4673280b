"""Small files in the published formats, written without the code that reads them."""

from __future__ import annotations

import gzip
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)
FRAUD_HEADER = ",".join(["Time", *(f"V{number}" for number in range(1, 29)), "Amount", "Class"])


def write(path: Path, content: bytes) -> Path:
    """The content, gzipped if the name ends so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def idx(values: Array) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return header + values.astype(np.uint8).tobytes()


def pixels(*shape: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def batch(data: Any, labels: Any) -> bytes:
    return pickle.dumps({b"data": data, b"labels": labels, b"batch_label": b"a batch"})


def batch_of_python_2(data: npt.NDArray[np.uint8], labels: list[int]) -> bytes:
    """As cPickle of Python 2 with NumPy 1 wrote it, which is how CIFAR-10 was published.

    Text is of the opcodes T and U, which Python 3 does not write any more.
    """

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN" + number(-1) * 2 + b"K\x00tb"
    shape = b"(" + b"".join(map(number, data.shape)) + b"t"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR" + (
        b"(K\x01" + shape + dtype + b"\x89" + text(data.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def write_batches(folder: Path, images: Array, labels: list[int]) -> Path:
    """Two images in each batch."""
    for place, name in enumerate(CIFAR_BATCHES):
        two = slice(2 * place, 2 * place + 2)
        write(folder / name, batch_of_python_2(images[two].reshape(2, -1), labels[two]))
    return folder


def write_tar(path: Path, folder: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "cifar-10-batches-py")
    return path


def fraud_line(*, time: int, value: float, label: int) -> str:
    return ",".join([str(time), *[str(value)] * 28, "9.99", f'"{label}"'])
