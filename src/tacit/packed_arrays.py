"""Arrays out of an npz file that somebody else may have written or damaged.

``numpy.load`` takes as much memory as a header asks for, before it looks at what follows. Here
every size is compared with what the caller expects and with what the file holds, before any of it
is read.
"""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_DAMAGE = (
    EOFError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What libraries raise for a damaged archive, beside ValueError."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_array(path: Path, name: str, most: int) -> Array:
    """One array of an npz file.

    Args:
        path: the file.
        name: of the array.
        most: bytes that it may have.

    Raises:
        ValueError: it is damaged, missing, larger, or holds something else than numbers or text.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
            size = archive.getinfo(f"{name}.npy").file_size
            version = np.lib.format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"{name} has version {version} of the format")
            shape, by_columns, dtype = _HEADERS[version](stream)
            needed = math.prod(shape) * dtype.itemsize
            if dtype.hasobject:
                raise ValueError(f"{name} holds objects")
            if needed != size - stream.tell():
                raise ValueError(f"{name} has {size} bytes, and its header says otherwise")
            if needed > most:
                raise ValueError(f"{name} has {needed} bytes; allowed are {most}")
            found = np.frombuffer(stream.read(needed), dtype).reshape(
                shape, order="F" if by_columns else "C"
            )
            if stream.read(1):
                raise ValueError(f"{name} is longer than it says")
            return found.copy()
    except KeyError:
        raise ValueError(f"{name} is missing") from None
    except _DAMAGE as error:
        raise ValueError(f"{name} is damaged: {error or type(error).__name__}") from None
