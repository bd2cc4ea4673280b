"""A client's own code in a process of its own, which is over when its time is.

When a reply leaves must not depend on the data. A thread cannot be ended, and code that holds the
interpreter's lock (a long call of C, one large multiplication) stops every other thread too, so
the reply would come late and tell. A process can be ended at any moment, whatever it does.

*Why it is forked.* The client is a closure of the user over the user's data: it cannot be pickled
for a new interpreter. Nothing is lost with the process: on Flower every message is answered by a
fresh one anyway. What comes back is an answer, or the name of the exception's type.

*Why the forked process starts a thread.* GNU OpenMP (torch, scikit-learn) keeps its threads with
the thread that used them first. They do not survive a fork, and the surviving thread would wait for
them for ever; a thread that is new after the fork makes new ones. Locks that other threads held at
the fork stay locked in the new process. Code that needs one of those comes too late and abstains.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from tacit.privacy.skellam import IntArray

_SIZE = struct.Struct("<Q")
_ANSWER, _FAILURE = b"+", b"-"
_LONGEST_NAME = 100
_END_WITH_PARENT = 1
"""Linux: ``PR_SET_PDEATHSIG``."""


class Unanswered(Exception):
    """Why there is no answer: nothing but the name of an exception's type, or a fixed sentence."""


def evaluated(evaluate: Callable[[], IntArray], until: float, length: int) -> IntArray:
    """The answer of some code, computed in a child process.

    *This returns, or raises, at* ``until`` *at the latest*, but for the moment that a kill takes:
    this process only ever waits for the pipe, with that time as the limit. It reads no more than
    an answer of ``length`` integers has, and trusts nothing of it; whoever adds noise checks the
    answer against its bound. The child and whatever it started in its process group are killed
    then, answer or not, and a thread collects the child's exit, which may take longer (memory is
    freed first). The child exits without running handlers of this process. It cannot touch what
    noise is drawn from, which is the operating system's.

    Args:
        evaluate: the code; it runs outside the main thread.
        until: when the time is up, on :func:`time.monotonic`'s clock.
        length: how many integers an answer has.

    Raises:
        TimeoutError: when the time was up before there was an answer.
        Unanswered: when the code raised, or its process ended or sent something else.

    >>> evaluated(lambda: np.array([1, 2]), time.monotonic() + 60, length=2).tolist()
    [1, 2]
    """
    if time.monotonic() >= until:
        raise TimeoutError("the time for the evaluation was up before it began")
    _flush()  # else the child would print again what waits to be printed here
    reading, writing = os.pipe()
    try:
        child = _fork(evaluate, writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        return _read(reading, until, length)
    finally:
        os.close(reading)
        _end(child)


def _fork(evaluate: Callable[[], IntArray], writing: int) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 and later warn if there are threads; the module's docstring says why not here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _work(evaluate, writing, parent)
    with suppress(OSError):  # both sides set it: whichever comes first
        os.setpgid(child, child)
    return child


def _work(evaluate: Callable[[], IntArray], writing: int, parent: int) -> NoReturn:
    """The child: it never returns into the code of its parent, and runs no handler of it."""
    try:
        _set_apart(parent)
        outcome: list[bytes] = []
        worker = threading.Thread(target=lambda: outcome.append(_outcome(evaluate)))
        worker.start()
        worker.join()
        _flush()
        message = memoryview(_SIZE.pack(len(outcome[0])) + outcome[0])
        while message:
            message = message[os.write(writing, message) :]
    finally:
        os._exit(0)


def _set_apart(parent: int) -> None:
    """A process group of its own; ended with its parent, and before it when memory runs out."""
    with suppress(OSError):
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):  # no handler of the parent's runs here
        signal.signal(number, signal.SIG_DFL)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _outcome(evaluate: Callable[[], IntArray]) -> bytes:
    try:
        answer = evaluate()
        if not isinstance(answer, np.ndarray) or answer.ndim != 1 or answer.dtype != np.int64:
            raise TypeError
        return _ANSWER + answer.tobytes()
    except BaseException as error:  # its text may tell something about the data: only its kind
        return _FAILURE + type(error).__name__.encode(errors="replace")[:_LONGEST_NAME]


def _read(reading: int, until: float, length: int) -> IntArray:
    (size,) = _SIZE.unpack(_receive(reading, until, _SIZE.size))
    if size <= 1 + max(8 * length, _LONGEST_NAME):
        message = _receive(reading, until, size)
        kind, body = bytes(message[:1]), message[1:]
        if kind == _FAILURE:
            raise Unanswered(body.decode(errors="replace"))
        if kind == _ANSWER and len(body) == 8 * length:
            return np.frombuffer(body, np.int64)
    raise Unanswered("the process of the evaluation sent something else than an answer")


def _receive(reading: int, until: float, size: int) -> bytearray:
    received = bytearray()
    ready = select.poll()
    ready.register(reading, select.POLLIN)
    while len(received) < size:
        left = until - time.monotonic()
        if left <= 0 or not ready.poll(1000 * left):
            raise TimeoutError("the evaluation took longer than its time")
        piece = os.read(reading, size - len(received))
        if not piece:
            raise Unanswered("the process of the evaluation ended without an answer")
        received += piece
    return received


def _end(child: int) -> None:
    """Kill it and its group, and let a thread see it off: it keeps its number until then."""
    for kill in (os.killpg, os.kill):  # it may have left its group, and others may be in there
        with suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    threading.Thread(target=_collect, args=(child,), daemon=True).start()


def _collect(child: int) -> None:
    with suppress(ChildProcessError):  # the program collects all of its children itself
        os.waitpid(child, 0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
