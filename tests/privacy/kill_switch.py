"""SIGKILL at any write that SQLite makes, through SQLite's own hook for testing system calls.

``sqlite3_vfs.xSetSystemCall`` replaces single system calls of the library that Python's ``sqlite3``
module is linked to; no compiler or tracer is needed. Every call that changes a file is a boundary:
the process dies just before it, in the middle of it (half of the bytes written), or just after it.
"""

from __future__ import annotations

import _sqlite3
import ctypes as c
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any, Literal

Moment = Literal["before", "half", "after"]

_SET = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_void_p)
_GET = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)


class _Vfs(c.Structure):
    _fields_ = (
        ("iVersion", c.c_int),
        ("szOsFile", c.c_int),
        ("mxPathname", c.c_int),
        ("pNext", c.c_void_p),
        ("zName", c.c_char_p),
        ("pAppData", c.c_void_p),
        ("xOpen_to_xCurrentTimeInt64", c.c_void_p * 13),
        ("xSetSystemCall", _SET),
        ("xGetSystemCall", _GET),
    )


_WRITES = {
    b"open": c.CFUNCTYPE(c.c_int, c.c_char_p, c.c_int, c.c_int),
    b"write": c.CFUNCTYPE(c.c_ssize_t, c.c_int, c.c_void_p, c.c_size_t),
    b"pwrite": c.CFUNCTYPE(c.c_ssize_t, c.c_int, c.c_void_p, c.c_size_t, c.c_int64),
    b"pwrite64": c.CFUNCTYPE(c.c_ssize_t, c.c_int, c.c_void_p, c.c_size_t, c.c_int64),
    b"ftruncate": c.CFUNCTYPE(c.c_int, c.c_int, c.c_int64),
    b"unlink": c.CFUNCTYPE(c.c_int, c.c_char_p),
}


def unavailable() -> str:
    """Why SQLite's hook cannot be reached from this Python, or nothing."""
    try:
        c.CDLL(_sqlite3.__file__).sqlite3_vfs_find  # noqa: B018
    except (AttributeError, OSError) as error:
        return f"this Python's SQLite does not export its test hook: {error}"
    return ""


class KillSwitch:
    """Counts boundaries, and ends the process at the chosen one (0: never)."""

    def __init__(self, boundary: int, moment: Moment) -> None:
        self.boundary, self.moment, self.passed = boundary, moment, 0
        library = c.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = c.POINTER(_Vfs)
        vfs = library.sqlite3_vfs_find(None)
        self._alive: list[Any] = []  # ctypes forgets callbacks that nobody holds
        for name, signature in _WRITES.items():
            address = vfs.contents.xGetSystemCall(vfs, name)
            if address:
                replacement = signature(self._watched(name, signature(address)))
                self._alive.append(replacement)
                vfs.contents.xSetSystemCall(vfs, name, c.cast(replacement, c.c_void_p))

    def _watched(self, name: bytes, real: Any) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == b"open" and not arguments[1] & os.O_CREAT:
                return int(real(*arguments))
            self.passed += 1
            here = self.passed == self.boundary
            if here and self.moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if here and self.moment == "half" and b"write" in name:
                file, data, size, *rest = arguments
                real(file, data, size // 2, *rest)
                os.kill(os.getpid(), signal.SIGKILL)
            result = int(real(*arguments))
            if here:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def run_until_killed(
    work: Callable[[Callable[[], None]], None], boundary: int, moment: Moment
) -> tuple[bool, int, int]:
    """Do the work in a child; returns (was killed, acknowledgements, boundaries passed).

    ``work`` receives a function that acknowledges one finished step through a pipe.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():  # newer Pythons warn of threads; ours are idle pools
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            switch = KillSwitch(boundary, moment)

            def acknowledge() -> None:
                os.write(writer, b"+")

            work(acknowledge)
            os.write(writer, b"=" + str(switch.passed).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, "the child failed by itself"
    acknowledged, _, passed = said.partition(b"=")
    return killed, len(acknowledged), int(passed or 0)
