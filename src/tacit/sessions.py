"""Sums that a client began and that never opened: counted, and limited to so many a day.

A server that begins sums and gives them up learns nothing from it, but it makes clients work and
tries its luck: each set of keys is another draw of the graph. Ordinary failures are few.

Also noted is which sums were *ended*: their state was removed before they opened, by its age or
because it could not be read (:mod:`tacit.states`). Those are not begun again.

Everything is one small file that is replaced whole, under a lock, so that a kill leaves the old one
or the new one: sums that opened leave it, sums of more than a day ago no longer count, and of those
that were ended it has the newest 1024. Since 32 a day can be begun at most, that is a month or more
(why it need not be longer: :mod:`tacit.states`). A file that cannot be read is set aside; a server
then gets 32 attempts more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from tacit.keeping import (
    Tell,
    Unreadable,
    in_order,
    locked,
    set_aside,
    tell_log,
    write_durably,
)
from tacit.secure.crypto import DIGEST_BYTES, digest
from tacit.secure.protocol import Refused

MOST_UNOPENED = 32
MOST_ENDED = 1024
DAY = 86_400.0
_HEAD = b"tacit sessions 1\n"
ASKED_BEFORE = "this session was asked before"


class _Noted(Struct):
    """When unopened sums were begun, and which sums were ended, oldest first."""

    unopened: dict[str, float] = {}
    ended: list[str] = []

    def to_bytes(self) -> bytes:
        body = msgspec.json.encode(self)
        return _HEAD + digest(b"sessions", body).hex().encode() + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes) -> _Noted:
        rest = data.removeprefix(_HEAD)
        if rest == data:
            raise Unreadable("is not a list of sessions that this version of Tacit reads")
        found, _, body = rest.partition(b"\n")
        if len(found) != 2 * DIGEST_BYTES or found != digest(b"sessions", body).hex().encode():
            raise Unreadable("is cut short or altered")
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.DecodeError, RecursionError):
            raise Unreadable("is not a list of sessions that this version of Tacit reads") from None


@dataclass
class Sessions:
    """What was begun, what opened and what was ended; in a file if there is one, else in memory.

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
    tell: Tell = tell_log
    _memory: _Noted = field(default_factory=_Noted)

    def begin(self, session: str) -> None:
        """Note that a sum begins, on disk before anything of it leaves; or :class:`Refused`."""
        with self._noted() as noted:
            if session in noted.ended:
                raise Refused(ASKED_BEFORE)
            self._check_room(noted)
            noted.unopened[session] = self.clock()

    def count(self, session: str) -> None:
        """Let a session that was never begun count as unopened too; or :class:`Refused`."""
        with self._noted() as noted:
            if session in noted.unopened or session in noted.ended:
                return
            self._check_room(noted)
            noted.unopened[session] = self.clock()

    def finish(self, session: str) -> None:
        """Note that a sum was opened."""
        with self._noted() as noted:
            noted.unopened.pop(session, None)

    def end(self, session: str) -> None:
        """Note that a sum will not be gone on with, nor begun again; it counts as unopened."""
        with self._noted() as noted:
            if session not in noted.ended:
                noted.ended = [*noted.ended, session][-MOST_ENDED:]

    @staticmethod
    def _check_room(noted: _Noted) -> None:
        if len(noted.unopened) >= MOST_UNOPENED:
            raise Refused(
                f"{len(noted.unopened)} sums were begun and not opened within a day; that is "
                "the most"
            )

    @contextmanager
    def _noted(self) -> Iterator[_Noted]:
        """What is known now; what is altered in it is kept, unless that was refused."""
        if self.path is None:
            self._forget(self._memory)
            yield self._memory
            return
        with locked(self.path.with_name(f"{self.path.name}.lock"), wait=True):
            noted = self._read(self.path)
            before = msgspec.json.encode(noted)
            self._forget(noted)
            yield noted
            if msgspec.json.encode(noted) != before:
                write_durably(self.path, noted.to_bytes())

    def _read(self, path: Path) -> _Noted:
        try:
            with in_order(path):
                try:
                    return _Noted.from_bytes(path.read_bytes())
                except FileNotFoundError:
                    return _Noted()
                except IsADirectoryError:
                    raise Unreadable("is a folder and no file") from None
        except Unreadable as why:
            set_aside(path, str(why), self.tell)
            return _Noted()

    def _forget(self, noted: _Noted) -> None:
        """Sums of more than a day ago; a time that lies ahead, as of a wrong clock, becomes now."""
        now = self.clock()
        recent = {one: min(begun, now) for one, begun in noted.unopened.items()}
        noted.unopened = {one: begun for one, begun in recent.items() if begun > now - DAY}
