"""Arrays on the wire."""

from __future__ import annotations

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


def _kind(name: str) -> str:
    if name not in ("<f4", "<f8", "<i8"):
        raise ValueError(f"array of kind {name!r}; allowed are '<f4', '<f8' and '<i8'")
    return name
