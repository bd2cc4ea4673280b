"""Pieces of work on all cores, one process a core, each recorded as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from tacit.cores import cores
from tacit.journal import Journal
from tacit.table_maker import one_core


def carried_out(
    journal: Journal, work: Mapping[str, Callable[[], Any]], progress: Callable[[int, int], None]
) -> None:
    """Do the pieces that the journal lacks; ``progress`` hears how many are done, of how many."""
    finished = [0]

    def done(_piece: str) -> None:
        finished[0] += 1
        progress(finished[0], len(work))

    progress(0, len(work))
    context = get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=context, initializer=one_core) as pool:
        journal.complete(pool, work, done)
