"""Files that a kill or a power cut leaves whole, and JSON that every parser reads.

A file is written as a draft beside its place, brought to disk, and renamed; then the folder is
brought to disk too. So whoever looks, at any time and after any accident, finds the old file or the
new one, whole. A writer locks its draft: what a killed one left can be told from what a living one
still writes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, TypeVar

import msgspec

from tacit.locks import is_open_file, try_lock

_DRAFT = ".draft"
_POSIX = os.name == "posix"
"""Elsewhere an open file cannot be renamed, and a folder cannot be opened."""
MOST_JSON = 256 * 2**20
"""Bytes that a file of JSON may have; what Tacit writes is far smaller."""
Document = TypeVar("Document")


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once: a kill leaves the old one or the new one, never half of one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """The same for bytes."""
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """The same for what is written in parts: the file has its name when the block is left.

    An error in the block, as from a full disk, leaves the old file and no draft.
    """
    draft = path
    try:
        draft, handle = _locked_draft(path)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                _sync(file.fileno())
                if _POSIX:
                    draft.replace(path)  # still locked, so that nobody takes it for abandoned
            if not _POSIX:
                draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        if error.filename not in (None, str(draft)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # drafts tell nobody much


def remove_abandoned_drafts(folder: Path) -> None:
    """Delete drafts of killed writers in a folder and in those directly below it.

    A draft that a living process writes is locked by it, and stays.
    """
    for draft in [*folder.glob(f".*{_DRAFT}"), *folder.glob(f"*/.*{_DRAFT}")]:
        try:
            handle = os.open(draft, os.O_RDWR)
        except OSError:
            continue  # finished meanwhile, or not ours to delete
        try:
            if not _is_being_written(handle):
                draft.unlink(missing_ok=True)
        finally:
            os.close(handle)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk: a power cut must not bring an old file back."""
    if not _POSIX:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def _sync(handle: int) -> None:
    os.fsync(handle)


def _is_being_written(handle: int) -> bool:
    """Whether a living process has a draft locked."""
    return not try_lock(handle)


def _locked_draft(path: Path) -> tuple[Path, int]:
    """A new draft for a file, open and locked."""
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}.{token_hex(4)}{_DRAFT}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if not _POSIX or (try_lock(handle) and is_open_file(handle, draft)):
            return draft, handle
        os.close(handle)  # somebody cleared it away between the two


def read_json(path: Path, what: str, kind: type[Document]) -> Document:
    """A file of JSON as what it has to be, or a ValueError that names the file.

    Args:
        path: the file.
        what: what the file should be, for the sentence: "the result of a run".
        kind: types, as :func:`msgspec.convert` knows them.
    """
    try:
        size = path.stat().st_size
        if size > MOST_JSON:
            raise ValueError(f"it has {size} bytes; allowed are {MOST_JSON}")
        return decoded(path.read_bytes(), kind)
    except OSError as error:
        raise ValueError(f"{path} cannot be read as {what}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from None


def decoded(text: str | bytes, kind: type[Document]) -> Document:
    """JSON as what it has to be, or a ValueError: no number without value, nothing too deep.

    >>> decoded('{"epsilon": 1}', dict[str, float])
    {'epsilon': 1.0}
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
