"""Locks of files that end with the process that holds them.

A lock is ``flock`` on an open file, which the kernel takes back from a process that ends, however
it ends: no lock is ever left behind. Within one process a lock is shared, since a run that goes on
in the same process is the same writer.

A lock belongs to the open file, and a fork shares open files. So a forked child closes those of
locks, and one that outlives a killed parent keeps nobody out.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TRIES, _PAUSE = 10, 0.02
"""A reader holds a lock for an instant to see whether it is free; a writer tries again then."""


class OpenFile:
    """A file that was opened to be locked; forked children close it."""

    def __init__(self, path: Path, mode: int) -> None:
        with _MUTEX:  # so that no fork comes between opening the file and noting that it is open
            self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
            _OPEN.add(self)

    @property
    def ours(self) -> bool:
        """Whether this process opened it and did not close it yet."""
        return self in _OPEN

    def close(self) -> None:
        """Close it, and give its lock back; nothing happens in a forked child."""
        with _MUTEX:
            if self.ours:
                _OPEN.remove(self)
                with suppress(ImportError):
                    import fcntl

                    # A program that is being started at this moment has the open file too.
                    fcntl.flock(self.handle, fcntl.LOCK_UN)
                os.close(self.handle)


@dataclass(eq=False)
class Lock:
    """The lock of one file, held by this process until it is released as often as it was taken."""

    path: Path
    file: OpenFile
    count: int = 1

    @property
    def handle(self) -> int:
        """The open file."""
        return self.file.handle

    def release(self, *, remove: bool = False) -> None:
        """Give the lock back; ``remove`` deletes the file first, while nobody else can hold it."""
        with _MUTEX:
            if not self.file.ours:
                return  # inherited by a fork, or released before
            self.count -= 1
            if self.count:
                return
            if _HELD.get(self.path) is self:
                del _HELD[self.path]
            if remove and is_open_file(self.handle, self.path):
                self.path.unlink()
            self.file.close()


_OPEN: set[OpenFile] = set()
_HELD: dict[Path, Lock] = {}
_MUTEX = threading.RLock()


def take(path: Path) -> Lock | None:
    """Lock a file, made empty if it is missing; None while another process holds it."""
    path = real(path.parent) / path.name
    with _MUTEX:
        known = _HELD.get(path)
        if known and is_open_file(known.handle, path):
            known.count += 1
            return known
        file = _opened_and_locked(path)
        if file is None:
            return None
        _HELD[path] = Lock(path, file)
        return _HELD[path]


def real(path: Path) -> Path:
    """A path without links; as it is from a link on that leads back to itself.

    ``Path.resolve`` raises a RuntimeError for such a link up to Python 3.12. Whoever opens it gets
    an OSError, which says what is wrong.
    """
    return Path(os.path.realpath(path))  # noqa: PTH


def release_others(last: Lock) -> None:
    """Before the last lock in a folder is given back: give back all others, however often taken."""
    with _MUTEX:
        for path, lock in list(_HELD.items()):
            if path.parent == last.path.parent and lock is not last:
                lock.count = min(lock.count, 1)
                lock.release()


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False if another process holds it."""
    try:
        import fcntl
    except ImportError:
        raise ImportError(
            "this system has no file locks (fcntl), which keep two processes from writing the same "
            "files; run this on Linux or macOS, or in the Windows Subsystem for Linux"
        ) from None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_open_file(handle: int, path: Path) -> bool:
    """Whether a path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _opened_and_locked(path: Path) -> OpenFile | None:
    """The file, open and locked; None if it stays locked by another process."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        file, locked = OpenFile(path, 0o644), False
        try:
            # Who held it before may have deleted it: then this is the lock of a file without name.
            locked = try_lock(file.handle) and is_open_file(file.handle, path)
            if locked:
                return file
        finally:
            if not locked:
                file.close()
    return None


def _close_in_child() -> None:
    for file in _OPEN:
        os.close(file.handle)
    _OPEN.clear()
    _HELD.clear()
    _MUTEX.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_MUTEX.acquire, after_in_parent=_MUTEX.release, after_in_child=_close_in_child
    )
