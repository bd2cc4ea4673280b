"""Two runs at once on the same members, message by message in an order that a seed draws."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from tacit.endpoint import AskSum, Continue, Endpoint, heading_of
from tacit.federation import CLOSE, EVALUATE, Federation, Sum
from tacit.membership import LEDGER, ROSTER, Member, Membership
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.secure.messages import Advertised, unpack_state
from tacit.secure.opening import MaskedSum
from tacit.states import Waiting, from_bytes
from tests.federations import likes

BALLOT = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
AMPLE = Budget(30.0, 1e-5)
STAGES = ("evaluate", "share", "deliver", "seal", "confirm", "open")


def endpoint_of(folder: Path) -> tuple[Endpoint, Member]:
    """The endpoint as a fresh process would build it."""
    member = Member.load(folder)
    assert member.membership
    assert member.number is not None
    endpoint = Endpoint(
        number=member.number,
        client=likes(0.5),
        participation=member.membership.participation,
        ledger=member.ledger,
        identity=member.identity,
        roster=member.membership.roster,
        least_noise=member.membership.least_noise,
        sessions=member.sessions,
        on_release=member.keep,
    )
    return endpoint, member


def state_file(folder: Path, request: bytes) -> Path:
    """Where a member keeps the state of a request's session."""
    return folder / "states" / heading_of(request).session


def advertised(state: bytes) -> IntArray:
    """The noisy vector in a state of a sum that was just begun."""
    waiting = from_bytes(state)
    assert isinstance(waiting, Waiting)
    begun = unpack_state(waiting.sum_state)
    assert isinstance(begun, Advertised)
    return np.frombuffer(begun.vector, "<i4").astype(np.int64)


class Turns:
    """Lets one of several threads go on at a time, drawn from a seed when all of them wait."""

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self._changed = threading.Condition()
        self._live, self._waiting = set(names), set[str]()
        self._chosen = ""
        self._rng = random.Random(seed)

    def take(self, name: str) -> None:
        with self._changed:
            self._waiting.add(name)
            self._choose()
            if not self._changed.wait_for(lambda: self._chosen == name, timeout=300.0):
                raise TimeoutError(f"it was never the turn of {name!r}")
            self._chosen = ""
            self._waiting.remove(name)

    def leave(self, name: str) -> None:
        with self._changed:
            self._live.remove(name)
            self._choose()

    def _choose(self) -> None:
        if self._live and self._waiting == self._live and not self._chosen:
            self._chosen = self._rng.choice(sorted(self._waiting))
            self._changed.notify_all()


@dataclass
class InFolders:
    """A channel whose clients hold nothing but their folders; keeps what member 0 was asked."""

    folders: list[Path]
    name: str = "run"
    turns: Turns | None = None
    until: str = ""
    """The stage that is not carried out any more; empty for none."""
    requests: dict[str, bytes] = field(default_factory=dict)
    replies: dict[str, bytes] = field(default_factory=dict)
    before: dict[str, bytes] = field(default_factory=dict)
    """Member 0's state when it was asked, by stage."""
    vectors: dict[int, IntArray] = field(default_factory=dict)

    @property
    def clients(self) -> range:
        return range(len(self.folders))

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if stage == self.until:
            self.requests[stage] = requests[0]
            file = state_file(self.folders[0], requests[0])
            self.before[stage] = file.read_bytes() if file.exists() else b""
            return {}
        if self.until and stage == CLOSE:
            return {}
        return {client: self.handle(client, stage, body) for client, body in requests.items()}

    def handle(self, client: int, stage: str, request: bytes) -> bytes:
        if self.turns:
            self.turns.take(self.name)
        file = state_file(self.folders[client], request)
        if client == 0:
            self.requests[stage] = request
            self.before[stage] = file.read_bytes() if file.exists() else b""
        reply = answered(self.folders[client], request)
        if client == 0:
            self.replies[stage] = reply
        if stage == EVALUATE:
            self.vectors[client] = advertised(file.read_bytes())
        return reply


def answered(folder: Path, request: bytes) -> bytes:
    """A member's reply, as a fresh process gives it."""
    endpoint, member = endpoint_of(folder)
    return endpoint.answer(member.states, request)


def federation(channel: InFolders, ledger: Path) -> Federation:
    """A server of these members; its ledger is opened in the thread that uses it."""
    membership = Membership.load(channel.folders[0] / ROSTER)
    charged = Ledger(ledger) if ledger.exists() else Ledger.create(ledger, "clinics", AMPLE)
    return Federation(
        channel,
        MaskedSum(membership.roster),
        charged,
        membership.participation,
        channel.name,
        139.0,
        roster=membership.roster,
    )


def two_sums(folders: list[Path], base: Path, seed: int) -> dict[str, tuple[Sum, InFolders]]:
    """What two servers open that ask the same members at once."""
    names = ("one", "two")
    turns = Turns(names, seed)
    opened: dict[str, tuple[Sum, InFolders]] = {}

    def run(name: str) -> None:
        try:
            channel = InFolders(folders, name, turns)
            opened[name] = federation(channel, base / f"{name}.sqlite").sum(BALLOT, "vote"), channel
        finally:
            turns.leave(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return opened


def in_session(request: bytes, other: bytes) -> bytes:
    """The body of a later request, in the session of another one."""
    told = msgspec.msgpack.decode(request, type=AskSum | Continue)
    session = msgspec.msgpack.decode(other, type=AskSum | Continue).session
    return msgspec.msgpack.encode(msgspec.structs.replace(told, session=session))


def spent(folder: Path) -> list[str]:
    """The sessions that a member's own ledger was charged for."""
    return [charge.run for charge in Ledger(folder / LEDGER).charges()]
