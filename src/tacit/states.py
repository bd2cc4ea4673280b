"""What a client keeps between the messages of a sum: one state for each session.

Several sums may be under way at once, of one run or of several. A state is written under the name
of its session, which every message names, and holds that session too: a message finds the state of
its own session or none. Each session has a lock, so two messages of one session are never answered
from one state; messages of different sessions are answered side by side.

*Bounds.* At most 32 sums are under way; a question beyond that is refused. A state that no message
used for a day is removed. A finished sum holds no secret, only its last reply, in case that was
lost on the way: it is kept for an hour, the newest eight. All this is looked after at each message.

*A removed state lets nothing happen twice.* Let a session's state be removed, and let its question
come again. Three cases:

1. The vector had left. The client's ledger was charged under the name of the session before, in one
   transaction that only one message can win (it holds the session's lock), and a ledger forgets no
   line. So the question is refused, and so is any seal of that session: it is sealed once, whatever
   becomes of states.
2. The vector had not left. Then this client opened nothing either, since what it opens are the
   shares that it holds when it has sealed. The session is noted as ended *before* its state is
   removed (:class:`tacit.sessions.Sessions`), on disk, and is refused.
3. As 2, but the note is gone: 1024 sums were ended since, or the list of sessions was damaged. Then
   the client begins anew: other keys, other secrets, other noise. What it kept of the first life is
   deleted. What others kept of it is bound to the first life's keys by the digest of the set-up, so
   it fits nothing of the second, in which other shares are dealt. Boxes of the first life open with
   a secret that is deleted. And this client opens shares only of the set-up in which it sealed, of
   which by 1 there is one, and there one kind of share of each client, for one list. The second
   life is a new sum to everybody but for its name, and counts as one of the 32 of its day.

A finished state is removed without a note: it is case 1. A message that crashed before its state
was written has sent nothing, and may come again. A power cut may bring a removed state back, but
only the last one of its session, which is where the session was; what was begun anew since replaced
it. All of this is about states that are removed. A ledger that is put back from a backup forgets
what left, and a state from after the seal that is put back could sign a second list of survivors:
restore neither. A state from before the seal does no harm, by 1.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from tacit.keeping import (
    Tell,
    Unreadable,
    in_order,
    locked,
    private_folder,
    set_aside,
    tell_log,
    write_durably,
)
from tacit.secure.crypto import DIGEST_BYTES, digest
from tacit.secure.protocol import Refused
from tacit.sessions import DAY, Sessions

FORMAT = 1
"""Of everything that a state holds; raised when any of it changes."""
MOST_UNDER_WAY = 32
MOST_FINISHED = 8
HOUR = 3_600.0
BUSY = "this client is answering another message"
_MAGIC = b"tacit state"
_HEAD_BYTES = len(_MAGIC) + 2 + DIGEST_BYTES
_SESSION = re.compile("[0-9a-f]{64}")


class Waiting(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A sum between two stages.

    The last request and its reply are kept, so that a request whose reply was lost on the way can
    come again: it is answered with the same bytes, which tell nobody more than once.
    """

    session: bytes
    asked: bytes
    """The question, as it came."""
    sum_state: bytes
    request: bytes
    """A digest of it."""
    reply: bytes


class Finished(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A sum that this client has done its last step of: the last request and its reply."""

    session: bytes
    request: bytes
    reply: bytes


Kept = Waiting | Finished
_kept: msgspec.msgpack.Decoder[Kept] = msgspec.msgpack.Decoder(Kept)


def to_bytes(kept: Kept) -> bytes:
    """A state with a head that says its format, whether it is finished, and a digest of it all."""
    head, body = _MAGIC + bytes([FORMAT, isinstance(kept, Finished)]), msgspec.msgpack.encode(kept)
    return head + digest(b"state", head, body) + body


def from_bytes(data: bytes) -> Kept:
    """The state that was written, whole and of this format, or :class:`Unreadable`."""
    is_finished(data)
    head, found, body = (
        data[: len(_MAGIC) + 2],
        data[len(_MAGIC) + 2 : _HEAD_BYTES],
        data[_HEAD_BYTES:],
    )
    if found != digest(b"state", head, body):
        raise Unreadable("is cut short or altered")
    try:
        return _kept.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise Unreadable("is not a state that this version of Tacit reads") from None


def is_finished(head: bytes) -> bool:
    """What the head of a state says, or :class:`Unreadable`."""
    if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
        raise Unreadable("is cut short, or no state of a sum")
    if head[len(_MAGIC)] != FORMAT:
        raise Unreadable(
            f"is a state of format {head[len(_MAGIC)]}; this version of Tacit reads {FORMAT}"
        )
    return bool(head[len(_MAGIC) + 1])


@dataclass(frozen=True)
class Heading:
    """What a message says of itself before it is answered."""

    session: str
    """In hex."""
    begins: bool
    """Whether it is a question, with which a sum begins."""


class State(Protocol):
    """The state of one session, for one message."""

    def read(self) -> bytes:
        """The state, empty if there is none."""

    def write(self, state: bytes) -> None:
        """Replace it; it is kept when this returns."""


class States(Protocol):
    """Where a client keeps its states."""

    def open(self, heading: Heading) -> AbstractContextManager[State]:
        """The state of a message's session, until it is answered; or :class:`Refused`."""


@dataclass
class StatesInMemory:
    """For simulated clients, which end with their process or run: what is too much is dropped.

    Nobody is locked out, and nothing is aged: of sums under way and of finished ones, the newest
    are kept. The oldest state comes first.
    """

    kept: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def open(self, heading: Heading) -> Iterator[State]:
        """One session's state."""
        yield _InMemory(self, heading.session)

    def write(self, session: str, state: bytes) -> None:
        """Replace a session's state, which is then the newest."""
        self.kept.pop(session, None)
        self.kept[session] = state
        for finished, most in ((True, MOST_FINISHED), (False, MOST_UNDER_WAY)):
            alike = [one for one, found in self.kept.items() if is_finished(found) == finished]
            for old in alike[:-most]:
                del self.kept[old]


@dataclass(frozen=True)
class _InMemory:
    states: StatesInMemory
    session: str

    def read(self) -> bytes:
        return self.states.kept.get(self.session, b"")

    def write(self, state: bytes) -> None:
        self.states.write(self.session, state)


@dataclass(frozen=True)
class StateFile:
    """A state that is on disk before anything that relies on it leaves."""

    path: Path
    on_unreadable: Callable[[str], None]
    """Called with the rest of a sentence about this file, which then counts as none."""

    def read(self) -> bytes:
        """The state, empty if there is none that can be read."""
        try:
            with in_order(self.path):
                try:
                    state = self.path.read_bytes()
                except FileNotFoundError:
                    return b""
                except IsADirectoryError:
                    raise Unreadable("is a folder and no file") from None
            if from_bytes(state).session.hex() != self.path.name:
                raise Unreadable("is the state of another session")
        except Unreadable as why:
            self.on_unreadable(str(why))
            return b""
        return state

    def write(self, state: bytes) -> None:
        """Replace it durably; only the owner may read it."""
        write_durably(self.path, state)


@dataclass(frozen=True)
class StatesInFolder:
    """The states of a member: a file a session, with a lock beside it while it is in use."""

    path: Path
    sessions: Sessions
    clock: Callable[[], float] = time.time
    tell: Tell = tell_log

    @contextmanager
    def open(self, heading: Heading) -> Iterator[StateFile]:
        """One session's state, for one message at a time."""
        private_folder(self.path)
        with self._locked(heading.session) as held:
            if not held:
                raise Refused(BUSY)
            under_way = self._tidy(heading.session)
            state = self._file(heading.session)
            if heading.begins and under_way >= MOST_UNDER_WAY and not state.path.exists():
                raise Refused(
                    f"{under_way} sums are under way on this client; that is the most: finish "
                    "one, or wait until one has been idle for a day"
                )
            yield state

    def _file(self, session: str) -> StateFile:
        return StateFile(self.path / session, partial(self._set_aside, session))

    @contextmanager
    def _locked(self, session: str) -> Iterator[bool]:
        """Hold a session; nothing is left of the lock if there is no state in the end."""
        lock = self.path / f"{session}.lock"
        with locked(lock, wait=False) as held:
            try:
                yield held
            finally:
                if held and not (self.path / session).exists():
                    lock.unlink(missing_ok=True)

    def _tidy(self, besides: str) -> int:
        """Remove what has had its time, of other sessions; how many of those are under way."""
        finished: list[tuple[float, str]] = []
        under_way = 0
        for name, age in self._aged():
            session = name.removeprefix(".").removesuffix(".lock")
            if session == besides or not _SESSION.fullmatch(session):
                continue
            if name != session:
                self._sweep(name, session, age)
                continue
            try:
                done = is_finished(self._head(session))
            except Unreadable as why:
                self._alone(session, partial(self._set_aside, session, str(why)))
                continue
            except OSError:  # removed meanwhile, or its own message will say what is wrong
                continue
            if done:
                finished.append((age, session))
            elif age > DAY:
                self._alone(session, partial(self._end, session))
            else:
                under_way += 1
        for place, (age, session) in enumerate(sorted(finished)):
            if place >= MOST_FINISHED or age > HOUR:
                self._alone(session, partial(self._remove, session))
        return under_way

    def _aged(self) -> list[tuple[str, float]]:
        """Names, and how long ago each was written; a time that lies ahead is as far away."""
        now, found = self.clock(), []
        with in_order(self.path), os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append((entry.name, abs(now - entry.stat().st_mtime)))
        return found

    def _head(self, session: str) -> bytes:
        with (self.path / session).open("rb") as file:
            return file.read(_HEAD_BYTES)

    def _sweep(self, name: str, session: str, age: float) -> None:
        """Remove what a kill left: a draft, or a lock without a state."""
        if name.startswith(".") and age > DAY:
            self._alone(session, partial(self._remove, name))
        elif name.endswith(".lock") and age > HOUR and not (self.path / session).exists():
            self._alone(session, lambda: None)

    def _alone(self, session: str, act: Callable[[], None]) -> None:
        """Do something about a session, unless a message of it is being answered."""
        with self._locked(session) as held:
            if held:
                act()

    def _end(self, session: str) -> None:
        self.sessions.end(session)  # first: without a state, only this keeps it from beginning
        self._remove(session)

    def _set_aside(self, session: str, why: str) -> None:
        self.sessions.end(session)
        set_aside(self.path / session, why, self.tell)

    def _remove(self, name: str) -> None:
        with in_order(self.path / name):
            (self.path / name).unlink(missing_ok=True)
