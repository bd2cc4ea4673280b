from __future__ import annotations

import threading
import time
from multiprocessing import active_children

import pytest

from tacit.workers import worker_processes


def interrupted() -> None:
    with worker_processes(2) as pool:
        for _ in range(8):
            pool.submit(time.sleep, 3600)
        raise KeyboardInterrupt


def test_whoever_is_interrupted_leaves_neither_a_process_nor_a_thread_behind() -> None:
    """At exit, Python wakes the threads of pools; one that is ending then prints a traceback."""
    before = set(threading.enumerate())
    processes = set(active_children())
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(threading.enumerate()) <= before
    assert set(active_children()) <= processes
    assert time.monotonic() - begun < 600
