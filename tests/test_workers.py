from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest

from tacit.journal import Journal, each
from tacit.workers import worker_processes


def interrupted(_folder: Path) -> None:
    with worker_processes(2) as pool:
        for _ in range(8):
            pool.submit(time.sleep, 3600)
        raise KeyboardInterrupt


def interrupted_while_a_journal_is_completed(folder: Path) -> None:
    def interrupt(_piece: int) -> None:
        raise KeyboardInterrupt

    work = {piece: partial(time.sleep, 3600 * piece) for piece in range(8)}
    with worker_processes(2) as pool:
        Journal(folder, {"bench": "interrupted"}, each(None)).complete(pool, work, interrupt)


@pytest.mark.parametrize("work", [interrupted, interrupted_while_a_journal_is_completed])
def test_whoever_is_interrupted_leaves_neither_a_process_nor_a_thread_behind(
    work: Callable[[Path], None], tmp_path: Path
) -> None:
    """At exit, Python wakes the threads of pools; one that is ending then prints a traceback."""
    before = set(threading.enumerate())
    processes = set(active_children())
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path)
    assert set(threading.enumerate()) <= before
    assert set(active_children()) <= processes
    assert time.monotonic() - begun < 600
