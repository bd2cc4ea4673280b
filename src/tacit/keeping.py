"""Files that a node keeps between messages: written durably, and set aside when they are damaged.

A file that is cut short, altered or of another release must not keep a node from answering, and
must not be mistaken for an empty one without a word. So it is renamed to ``<name>.unreadable``, for
people to look at, and the node's own log says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNREADABLE = ".unreadable"
MOST_UNREADABLE = 8
"""How many files that were set aside a folder keeps: the newest."""

Tell = Callable[[str], None]
"""Write a sentence to the node's own log."""
tell_log: Tell = logging.getLogger("tacit").warning


class FolderError(Exception):
    """A node's own folder cannot be used; the sentence says what to do, and is for its log only."""


class Unreadable(ValueError):
    """Why the content of a file cannot be used, as the rest of a sentence about that file."""


@contextmanager
def in_order(path: Path) -> Iterator[None]:
    """Name the file that the operating system would not read or write."""
    try:
        yield
    except OSError as error:
        raise FolderError(
            f"{path} cannot be used ({error.strerror or type(error).__name__}); let it belong to "
            "the user who runs the node, and look whether the disk is full"
        ) from None


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file at once and for good; only its owner may read it.

    It is on disk under its name when this returns: the content is synced before it gets the name,
    and the folder after, since a power cut must not bring the old file back.
    """
    draft = path.with_name(f".{path.name}")
    with in_order(path):
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # a draft that a kill left may have any mode
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter, unless it is there."""
    with in_order(folder):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise FolderError(
                    f"{folder} is not a folder; move it elsewhere, and a new one is made"
                ) from None
        else:
            sync_folder(folder.parent)


def set_aside(path: Path, why: str, tell: Tell) -> None:
    """Rename a file that cannot be used, and say so; the oldest such files make room."""
    aside = path.with_name(path.name + UNREADABLE)
    with in_order(path):
        if path.is_dir() and aside.is_file():
            aside.unlink()
        path.replace(aside)
        found = [one for one in path.parent.iterdir() if one.name.endswith(UNREADABLE)]
        newest = sorted((one for one in found if one.is_file()), key=_written, reverse=True)
        for old in newest[MOST_UNREADABLE:]:
            old.unlink(missing_ok=True)
    tell(f"tacit: {path} {why}; it is kept as {aside.name}, and the node goes on without it")


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # somebody else removed it
        return 0.0


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock file, or say that somebody else does. ``path`` may be removed while it is held.

    A lock counts only on the file that has the name now: one that was removed by whoever held it
    meanwhile is let go, and the new one is taken.
    """
    try:
        import fcntl
    except ImportError:
        raise FolderError(
            f"{path} cannot be locked on this system; a node with a folder needs Linux or macOS"
        ) from None
    flags = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        with in_order(path):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                with in_order(path):
                    fcntl.flock(handle, flags)
            except FolderError:
                if wait:
                    raise
                yield False
                return
            if not _is_named(handle, path):
                continue
            try:
                yield True
                return
            finally:
                # Closing is not enough: a process that was forked meanwhile holds the file too.
                fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


def _is_named(handle: int, path: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
