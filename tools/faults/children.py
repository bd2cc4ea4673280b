"""Work in a child process that is killed at some moment, or carried through."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.faults.campaign import forked

REFUSED = "above the budget"
"""Part of the sentence with which a run is refused that cannot be paid."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    killed: bool
    code: int
    said: str

    @property
    def refused(self) -> bool:
        """Whether a sentence says that the budget is spent."""
        return self.code == 2 and REFUSED in " ".join(self.said.split())

    @property
    def wrong(self) -> str:
        """What must not be; a child ends by a kill, well, or with a sentence about its budget."""
        if self.killed or self.code == 0 or (self.refused and "Traceback" not in self.said):
            return ""
        return f"it ended with {self.code}: {' '.join(self.said.split())[-700:]}"


class Child:
    """Work that goes on in a child process from now on.

    Args:
        work: returns an exit code, or raises SystemExit like a command.
        output: the file that takes what it prints.
        before: called in the child first.
    """

    def __init__(
        self, work: Callable[[], int], output: Path, before: Callable[[], None] = lambda: None
    ) -> None:
        self._output = output
        self._process = forked()
        if self._process == 0:
            code = 70
            try:
                _print_to(output)
                before()
                code = _code(work)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def killed_after(self, seconds: float) -> Ended:
        """Kill it when so many seconds are over, unless it ended before."""
        watched = os.pidfd_open(self._process)
        try:
            if not select.select([watched], [], [], seconds)[0]:
                os.kill(self._process, signal.SIGKILL)
        finally:
            os.close(watched)
        return self.ended()

    def ended(self) -> Ended:
        """Wait for its end."""
        _, status = os.waitpid(self._process, 0)
        killed = os.WIFSIGNALED(status)
        return Ended(
            killed,
            -os.WTERMSIG(status) if killed else os.WEXITSTATUS(status),
            self._output.read_text(errors="replace") if self._output.exists() else "",
        )


def _print_to(output: Path) -> None:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # until the child ends
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _code(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
