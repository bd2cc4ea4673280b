"""Processes for pieces of work, which end with the process that began them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait

from tacit.cores import cores


@contextmanager
def worker_processes(
    count: int | None = None, prepare: Callable[[], None] | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Processes for pieces of work; whoever is interrupted does not wait for what they are doing.

    Args:
        count: how many; by default one for every core.
        prepare: what each does first; by default :func:`one_core`.
    """
    others = set(active_children())
    context = get_context("spawn")
    pool = ProcessPoolExecutor(
        count or cores(), mp_context=context, initializer=prepare or one_core
    )
    try:
        yield pool
    except BaseException:
        for worker in set(active_children()) - others:
            worker.kill()
        raise
    finally:
        # Waits for the pool's own thread: at exit, Python would wake it while it closes its pipe.
        pool.shutdown(cancel_futures=True)


def one_core() -> None:
    """One core for each process, and none of them survives a parent that was killed.

    Libraries that were loaded before are told to have one thread, those to come find it in their
    environment: threads beyond the cores spend their time waiting for each other.
    """
    from threadpoolctl import threadpool_limits

    os.environ["TACIT_CORES"] = os.environ["OMP_NUM_THREADS"] = "1"
    threadpool_limits(1)
    end_with_parent()


def end_with_parent() -> None:
    """No worker survives a parent that was killed; Ctrl-C, which reaches all, is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def leave(sentinel: int) -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=leave, args=(parent.sentinel,), daemon=True).start()
