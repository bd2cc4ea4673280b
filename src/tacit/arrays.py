"""Arrays on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct


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
        return np.frombuffer(self.data, _kind(self.kind)).reshape(self.shape)


Arrays = tuple[Array, ...]


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


def _kind(name: str) -> str:
    if name not in ("<f4", "<f8", "<i8"):
        raise ValueError(f"array of kind {name!r}; allowed are '<f4', '<f8' and '<i8'")
    return name
