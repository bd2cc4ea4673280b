"""Files that a kill leaves whole, and JSON that every parser reads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once: a kill leaves the old one or the new one, never half of one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """The same for bytes."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


def json_text(document: Any, indent: int | None = 1) -> str:
    """JSON in the strict sense: numbers that JSON does not know become strings.

    >>> print(json_text({"epsilon": math.inf}))
    {
     "epsilon": "inf"
    }
    """
    return json.dumps(_plain(document), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
