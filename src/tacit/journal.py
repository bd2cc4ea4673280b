"""Work in pieces that survives a kill, and notes of the machine and memory it took."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Any, TypeVar

Piece = int | str
P = TypeVar("P", int, str)


class Journal:
    """Finished pieces of work, one line of JSON each, kept under the recipe that made them.

    A killed benchmark goes on where it was; a line cut short by the kill is done again. Another
    recipe is another file, so results of different settings never mix.
    """

    def __init__(self, folder: Path, recipe: dict[str, Any]) -> None:
        text = json.dumps(recipe, sort_keys=True)
        self.path = folder / f"journal-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
        self.pieces: dict[Piece, Any] = {}
        if self.path.exists():
            self.pieces, whole = read_journal(self.path)
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
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    def add(self, piece: Piece, result: Any) -> None:
        """Record one finished piece durably."""
        self.pieces[piece] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps([piece, result]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_journal(path: Path) -> tuple[dict[Piece, Any], int]:
    """The finished pieces in a file, and how many of its bytes hold them; nothing is changed."""
    pieces: dict[Piece, Any] = {}
    whole = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break  # cut short by a kill, or being written now
        try:
            piece, result = json.loads(line)
            pieces[piece] = result
        except (TypeError, ValueError):
            raise ValueError(
                f"{path}, line {number} cannot be read: a journal has one finished piece a line, "
                "and something else has written to this one; take the file from a copy, or begin "
                "anew in another folder"
            ) from None
        whole += len(line)
    return pieces, whole


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
