"""Arrays on the wire, and whether an answer made of them is one that was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

_BYTES = {"<f4": 4, "<f8": 8, "<i8": 8}
FLOATS = ("<f4", "<f8")

UNREADABLE = "it cannot be read"
OTHER_NUMBER = "another number of arrays"
OTHER_KIND = "an array of another kind"
OTHER_SHAPE = "an array of another shape"
OTHER_SIZE = "bytes that do not fit the shape"
NOT_FINITE = "numbers that are not finite"
OUTSIDE = "numbers outside of what was asked for"


class Array(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array on the wire: little-endian numbers of a few allowed kinds, never a pickle."""

    kind: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> Array:
        """An array as bytes."""
        kind = _kind(array.dtype.newbyteorder("<").str)
        return cls(kind, array.shape, np.ascontiguousarray(array, dtype=kind).tobytes())

    def numpy(self) -> npt.NDArray[Any]:
        """The array again."""
        kind = _kind(self.kind)
        if not self.fits:  # NumPy would take a negative size for one that it may choose
            raise ValueError(f"{len(self.data)} bytes are no array {kind} of shape {self.shape}")
        return np.frombuffer(self.data, kind).reshape(self.shape)

    @property
    def fits(self) -> bool:
        """Whether there are as many bytes as the shape says; Python's integers do not overflow."""
        sizes = math.prod(self.shape) * _BYTES[self.kind]
        return min(self.shape, default=0) >= 0 and sizes == len(self.data)


Arrays = tuple[Array, ...]


def unlike(answer: Arrays, shapes: Sequence[tuple[int, ...]]) -> str:
    """Why an answer is not one of floating-point arrays of these shapes; nothing if it is.

    The reasons are public: they tell what kind of thing came, and nothing of its numbers. No memory
    is taken before shapes and sizes are known to be right.

    >>> unlike((Array.of(np.zeros(3)),), [(2,)])
    'an array of another shape'
    """
    if len(answer) != len(shapes):
        return OTHER_NUMBER
    for array, shape in zip(answer, shapes, strict=True):
        if array.kind not in FLOATS:
            return OTHER_KIND
        if array.shape != shape:
            return OTHER_SHAPE
        if not array.fits:
            return OTHER_SIZE
    return ""


def is_finite(array: Array) -> bool:
    """Whether every number is finite, also in single precision, in which means are kept."""
    return bool(_finite(array.numpy()).all())


def finite_models(answer: Arrays) -> npt.NDArray[np.bool_]:
    """Which of the models that are stacked in some arrays have only finite numbers."""
    arrays = [array.numpy() for array in answer]
    each = [_finite(array).reshape(len(array), -1).all(axis=1) for array in arrays]
    models: npt.NDArray[np.bool_] = np.logical_and.reduce(each)
    return models


def mean_of(answers: Iterable[Arrays]) -> tuple[npt.NDArray[np.float32], ...]:
    """The mean, one answer at a time: only the running sum and one answer are in memory."""
    sums: list[npt.NDArray[np.float64]] = []
    count = 0
    for count, arrays in enumerate(answers, start=1):
        found = [array.numpy() for array in arrays]
        if count == 1:
            sums = [array.astype(np.float64) for array in found]
        else:
            for total, array in zip(sums, found, strict=True):
                total += array
    return tuple((total / count).astype(np.float32) for total in sums)


def mean_of_models(answers: Iterable[Arrays]) -> tuple[npt.NDArray[np.float32], ...]:
    """The mean of each of some stacked models over the answers in which it is finite.

    A model diverges on some clients where it is bad for their data, and then has no numbers there.
    One client can therefore not rule a model out by sending none; a model that is not finite in at
    least half of the answers has diverged, and so has its mean.
    """
    sums: list[npt.NDArray[np.float64]] = []
    count, finite = 0, np.zeros(0)
    for count, arrays in enumerate(answers, start=1):
        found = [array.numpy() for array in arrays]
        models = finite_models(arrays)
        if count == 1:
            sums = [np.zeros(array.shape) for array in found]
            finite = np.zeros(len(models))
        finite += models
        for total, array in zip(sums, found, strict=True):
            total[models] += array[models]
    parts = np.where(2 * finite > count, finite, math.nan)
    return tuple(
        (total / parts.reshape(-1, *[1] * (total.ndim - 1))).astype(np.float32) for total in sums
    )


def _finite(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        return np.isfinite(array.astype(np.float32))


def _kind(name: str) -> str:
    if name not in _BYTES:
        raise ValueError(f"array of kind {name!r}; allowed are '<f4', '<f8' and '<i8'")
    return name
