"""Pieces of work on all cores, one process a core, each recorded as it is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tacit.data.sources import load
from tacit.journal import Journal, KindOf, machine
from tacit.workers import worker_processes


@dataclass(frozen=True)
class Workplace:
    """Where a benchmark finds its data, keeps what is done, and tells how far it is."""

    data_dir: Path | None
    folder: Path
    progress: Callable[[int, int], None]

    def carried_out(
        self,
        bench: str,
        setup: Any,
        data: Iterable[str],
        work: Mapping[str, Callable[[], Any]],
        kind_of: KindOf,
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """What every piece came to, doing those that are missing; and what any result tells.

        Data that are not there are refused before anything is written. Every piece is a row with
        its ``seconds``, or some of them, as ``kind_of`` says.
        """
        begin, finished = time.perf_counter(), [0]
        for name in data:
            load(name, self.data_dir)
        journal = Journal(self.folder, {"bench": bench, "setup": repr(setup)}, kind_of)

        def done(_piece: str) -> None:
            finished[0] += 1
            self.progress(finished[0], len(work))

        self.progress(0, len(work))
        with worker_processes() as pool:
            journal.complete(pool, work, done)
        found = {piece: journal.pieces[piece] for piece in work}
        about = {
            "bench": bench,
            "setup": msgspec.to_builtins(setup),
            "core_seconds": sum(map(_seconds, found.values())),
            "seconds": time.perf_counter() - begin,
            "machine": machine(),
        }
        return found, about


def _seconds(piece: Any) -> float:
    """Processor time of a piece, which is a row or some."""
    rows = piece if isinstance(piece, list) else [piece]
    return float(sum(row["seconds"] for row in rows))
