"""The processor's cores: one piece of work on each, never more threads than cores.

Torch brings its own threads, which share every single operation; Python's threads take one piece of
work each (torch releases the interpreter's lock while it computes). Which of the two is faster
depends on the size of the operations, and both at once are slower than either: so whoever spreads
work says how many there are of each.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

_inside = threading.local()
_one_at_a_time = threading.RLock()


def cores() -> int:
    """How many cores this piece of work may use; ``TACIT_CORES`` lowers the number.

    A piece that was spread has one.

    >>> cores() >= 1
    True
    """
    if getattr(_inside, "spread", False):
        return 1
    try:
        available = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux knows which cores belong to a process
        available = os.cpu_count() or 1
    available = min(available, getattr(_inside, "most", sys.maxsize))
    text = os.environ.get("TACIT_CORES", "")
    if not text:
        return available
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"TACIT_CORES is {text!r}; allowed is a whole number of at least 1")
    return min(int(text), available)


@contextmanager
def at_most(number: int) -> Iterator[None]:
    """What this thread does inside uses no more than so many cores.

    >>> with at_most(1):
    ...     cores()
    1
    """
    before = getattr(_inside, "most", sys.maxsize)
    _inside.most = number
    try:
        yield
    finally:
        _inside.most = before


def spread(
    function: Callable[[Item], Found], items: Sequence[Item], workers: int, threads: int = 1
) -> list[Found]:
    """The function of every item, in order, in ``workers`` Python threads of torch ``threads``.

    Inside a piece of such work everything runs where it is: pools do not nest.

    >>> spread(lambda number: number * number, [1, 2, 3], workers=2)
    [1, 4, 9]
    """
    if getattr(_inside, "spread", False):
        return [function(item) for item in items]
    with _one_at_a_time, _torch_threads(threads):
        if min(workers, len(items)) < 2:
            return [function(item) for item in items]

        def begin() -> None:  # OpenMP's number of threads belongs to the thread that sets it
            _inside.spread = True
            import_torch().set_num_threads(threads)

        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            return list(pool.map(function, items))


def import_torch() -> ModuleType:
    """Torch, or an error that says how to get it."""
    try:
        import torch
    except ImportError as missing:
        raise ImportError("neural networks need torch: pip install 'tacit[torch]'") from missing
    return torch


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    torch = import_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
