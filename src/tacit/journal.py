"""Work in pieces that survives a kill, and notes of the machine and memory it took."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import weakref
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

import tacit
from tacit import locks
from tacit.files import sync_folder

Piece = int | str
P = TypeVar("P", int, str)
KindOf = Callable[[Piece], Any]
"""Which type the result of a piece has, as :func:`msgspec.convert` knows types."""
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
Positive = Annotated[float, Meta(gt=1e-18, le=1e18)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Some = Annotated[int, Meta(ge=1, le=2**53)]


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A result of a piece with these fields and no others: a base of types, never instantiated."""


def each(kind: Any) -> KindOf:
    """All pieces of a journal are of one kind."""
    return lambda _piece: kind


def array(kind: Any, *sizes: int) -> Any:
    """Lists in lists that make an array of this shape.

    >>> msgspec.convert([[1, 2], [3, 4]], array(int, 2, 2))
    [[1, 2], [3, 4]]
    """
    for size in reversed(sizes):
        kind = Annotated[list[kind], Meta(min_length=size, max_length=size)]
    return kind


class Journal:
    """Finished pieces of work, one line of JSON each, kept under the recipe that made them.

    A killed benchmark goes on where it was; a line cut short by the kill is done again. Another
    recipe is another file, so results of different settings never mix. One process writes a
    journal: the file is locked from the first line that is read or written.

    *What is believed later was written.* A line is on disk before its piece is known, and a line
    that could not be written, as on a full disk, is cut off again. Every line ends with the release
    that wrote it and a checksum, so nothing that was damaged or means something else is believed.
    A checksum proves nothing about who computed it: the result of every piece that is read has to
    be of the kind that ``kind_of`` says, so whoever uses it need not look again.
    """

    def __init__(self, folder: Path, recipe: dict[str, Any], kind_of: KindOf) -> None:
        self.path = journal_path(folder, recipe)
        self.kind_of = kind_of
        self.pieces: dict[Piece, Any] = {}
        self._locked = self._named = self._unknown_end = False
        if self.path.exists():
            self._lock()
            self.pieces, whole = read_journal(self.path, kind_of, own_release=True)
            os.truncate(self.path, whole)

    def complete(
        self, pool: Executor, work: Mapping[P, Callable[[], Any]], done: Callable[[P], None]
    ) -> None:
        """Do the pieces that are missing, and record each as it is finished.

        ``done`` hears of every finished piece, those of earlier runs first.
        """
        for piece in work:
            if piece in self.pieces:
                done(piece)
        waiting = {pool.submit(work[piece]): piece for piece in work if piece not in self.pieces}
        try:
            for future in as_completed(waiting):
                self.add(waiting[future], future.result())
                done(waiting[future])
        except BaseException:  # Ctrl-C must not wait for everything that is still queued
            # The pool stays its owner's: shut down here without waiting, it could not be waited for
            # afterwards, and Python would print a traceback of its thread at exit.
            for future in waiting:
                future.cancel()
            raise

    def add(self, piece: Piece, result: Any) -> None:
        """Record one finished piece durably."""
        line = _line(piece, result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock()
        if self._unknown_end:
            raise ValueError(
                f"{self.path} could not be written before, nor mended; nothing more is recorded in "
                "it by this process: free some space and go on with a new one"
            )
        try:
            with self.path.open("ab") as file:
                whole = file.tell()
                try:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                except BaseException:
                    self._cut(whole)
                    raise
            if not self._named:
                sync_folder(self.path.parent)
                self._named = True
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.pieces[piece] = result

    def _cut(self, whole: int) -> None:
        """Take back a line that may be there in part."""
        try:
            os.truncate(self.path, whole)
        except OSError:
            self._unknown_end = True

    def _lock(self) -> None:
        """Be the only process that writes this journal, as long as this object is used."""
        if self._locked:
            return
        lock = locks.take(self.path)
        if lock is None:
            raise ValueError(
                f"{self.path} is being written by another process; allowed is one at a time: wait "
                "for its end, or begin anew in another folder"
            )
        self._locked = True
        weakref.finalize(self, lock.release)


def journal_path(folder: Path, recipe: dict[str, Any]) -> Path:
    """Where a journal with this recipe lies."""
    text = json.dumps(recipe, sort_keys=True)
    return folder / f"journal-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"


def read_journal(
    path: Path, kind_of: KindOf, *, own_release: bool = False
) -> tuple[dict[Piece, Any], int]:
    """The finished pieces in a file, and how many of its bytes hold them; nothing is changed.

    Args:
        path: the journal.
        kind_of: of which kind each piece has to be.
        own_release: whether pieces of another release of Tacit are refused, as by whoever goes on.
    """
    pieces: dict[Piece, Any] = {}
    whole = 0
    *lines, _cut_short_or_being_written_now = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            piece, result, release = _read(line)
            pieces[piece] = result
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                f"{path}, line {number} cannot be read: a journal has one finished piece a line, "
                "and it was damaged, or another release or another program has written this one; "
                "take the file from a copy, or begin anew in another folder"
            ) from None
        if own_release and release != tacit.__version__:
            raise ValueError(
                f"{path}, line {number} was written by Tacit {release}, and this is "
                f"{tacit.__version__}; go on with that release, or begin anew in another folder"
            )
        check_piece(path, piece, result, kind_of(piece))
        whole += len(line) + 1
    return pieces, whole


def check_piece(path: Path, piece: Piece, result: Any, kind: Any) -> None:
    """Refuse a result that is not of its kind."""
    try:
        msgspec.convert(result, kind)
    except ValueError as error:
        raise unusable(path, piece, str(error)) from None


def unusable(path: Path, piece: Piece, why: str) -> ValueError:
    """What is said of a piece that has a fitting checksum and is no result of its kind."""
    return ValueError(
        f"{path}, piece {piece!r} is no result of this work ({why}): it was altered, or another "
        "release or another program has written it; take the file from a copy, or begin anew in "
        "another folder"
    )


def _line(piece: Piece, result: Any) -> bytes:
    """One line: the piece, its result, and who wrote it with a checksum of all before."""
    begin = json.dumps([piece, result, tacit.__version__])[:-1].encode()
    return begin + _seal(begin) + b"\n"


def _seal(begin: bytes) -> bytes:
    return b', "%08x"]' % zlib.crc32(begin)


def _read(line: bytes) -> tuple[Piece, Any, str]:
    """What a line says, or a ValueError."""
    size = len(_seal(b""))
    begin, seal = line[:-size], line[-size:]
    if seal != _seal(begin):
        raise ValueError("the checksum is another one")
    piece, result, release = json.loads(begin + b"]", parse_int=_whole_number)
    if type(piece) not in (int, str) or type(release) is not str:
        raise ValueError("a piece has a number or a name, and a release a text")
    if b"\\ud" in begin:  # half a character cannot be printed, nor written to a file
        json.dumps([piece, result], ensure_ascii=False).encode()
    return piece, result, release


def _whole_number(digits: str) -> int:
    """Of 64 bits: NumPy makes objects of larger ones, which no function of it knows."""
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError("a whole number has more than 64 bits")
    return number


def resident_megabytes(field: str = "VmHWM") -> float:
    """Memory of this process at its peak (VmHWM) or now (VmRSS); elsewhere than Linux the peak.

    ``getrusage`` would not do on Linux: a child inherits its parent's peak.

    >>> 0 < resident_megabytes("VmRSS") <= resident_megabytes()
    True
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    import resource  # Windows has none

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def machine() -> dict[str, Any]:
    """The machine a measurement was made on, for its record."""
    import numpy as np

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
