"""The folder of a run has one writer at a time.

*Why two never write.* A writer holds the lock (:mod:`tacit.locks`) of the file ``.writer`` in the
folder from before it reads what is there until after its last file has its name. The lock is the
kernel's: it is taken at once or not at all, and ends with the process. The file says who holds it,
for the sentence that refuses others; what it says decides nothing. It is deleted under the lock,
and a lock counts only while its file still has its name, so no two processes hold locks of two
files of the same name.

Reading needs no lock: what is read was written whole.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tacit import locks
from tacit.files import remove_abandoned_drafts

WRITER = ".writer"
"""The file whose lock a writer holds."""
_MOST = 4096


class FolderInUse(ValueError):
    """Another process writes in the folder."""


@dataclass(frozen=True)
class Writer:
    """Who writes in a folder now; as far as the file tells."""

    process: int | None = None
    host: str = ""
    since: str = ""

    def __str__(self) -> str:
        """For a sentence."""
        number = "another process" if self.process is None else f"process {self.process}"
        host = f" on {self.host}" if self.host else ""
        since = f" since {self.since}" if self.since else ""
        return f"{number}{host}{since}"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only process that writes in a folder; it is made if it is missing.

    What killed writers left half-written is cleared away. A folder that was made for this and holds
    nothing in the end is removed.

    Raises:
        FolderInUse: another process writes there.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; allowed is a folder")
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    lock = None
    try:
        while lock is None:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = locks.take(folder / WRITER)
            except FileNotFoundError:
                continue  # another writer has just removed the folder that it had made
            if lock is None:
                raise FolderInUse(
                    f"{folder} is being written by {writer_of(folder) or Writer()}; allowed is one "
                    "process at a time: wait for its end, or choose another folder"
                )
        _sign(lock.handle)
        remove_abandoned_drafts(folder)
        yield
    finally:
        if lock is not None:
            if lock.count == 1:  # the outermost block: journals too may be written by others then
                locks.release_others(lock)
            lock.release(remove=True)
        _remove_empty(made)


def writer_of(folder: Path) -> Writer | None:
    """Who writes in a folder now, or None; nothing is changed."""
    try:
        handle = os.open(folder / WRITER, os.O_RDONLY)
    except OSError:
        return None
    try:
        if locks.try_lock(handle, shared=True):
            return None
        return _signed(os.read(handle, _MOST))
    finally:
        os.close(handle)


def _sign(handle: int) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    told = {"process": os.getpid(), "host": platform.node(), "since": now}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(told).encode(), 0)


def _signed(text: bytes) -> Writer:
    try:
        told = json.loads(text)
        return Writer(int(told["process"]), str(told["host"]), str(told["since"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return Writer()


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return  # it holds something, or is gone
