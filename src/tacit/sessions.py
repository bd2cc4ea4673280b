"""Sums that a client began and that never opened: counted, and limited to so many a day.

A server that begins sums and gives them up learns nothing from it, but it makes clients work and
tries its luck: each set of keys is another draw of the graph. Ordinary failures are few.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tacit.secure.protocol import Refused

MOST_UNOPENED = 32
DAY = 86_400.0


@dataclass
class Sessions:
    """What was begun and what was finished; in a file if there is one, else in memory.

    >>> sessions = Sessions(clock=lambda: 0.0)
    >>> for number in range(MOST_UNOPENED):
    ...     sessions.begin(f"session {number}")
    >>> sessions.begin("one more")
    Traceback (most recent call last):
        ...
    tacit.secure.protocol.Refused: 32 sums were begun and not opened within a day; that is the most
    >>> sessions.finish("session 0")
    >>> sessions.begin("one more")
    """

    path: Path | None = None
    clock: Callable[[], float] = time.time
    _open: dict[str, float] = field(default_factory=dict)

    def begin(self, session: str) -> None:
        """Note that a sum begins, on disk before anything of it leaves; or :class:`Refused`."""
        now = self.clock()
        unopened = self._unopened()
        recent = {one: begun for one, begun in unopened.items() if begun > now - DAY}
        if len(recent) >= MOST_UNOPENED:
            raise Refused(
                f"{len(recent)} sums were begun and not opened within a day; that is the most"
            )
        self._note(session, now)

    def finish(self, session: str) -> None:
        """Note that a sum was opened."""
        self._note(session, None)

    def _unopened(self) -> dict[str, float]:
        if self.path is None:
            return self._open
        found: dict[str, float] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                session, begun = json.loads(line)
            except ValueError:  # a line that a kill cut off; its session was not begun
                continue
            if begun is None:
                found.pop(session, None)
            else:
                found[session] = float(begun)
        return found

    def _note(self, session: str, begun: float | None) -> None:
        if self.path is None:
            if begun is None:
                self._open.pop(session, None)
            else:
                self._open[session] = begun
            return
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write("\n" + json.dumps([session, begun]) + "\n")
            file.flush()
            os.fsync(file.fileno())
