"""The masked sum in memory: states as bytes, drop-outs by stage, everything said on record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np

from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import IntArray
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import Opened, State, unpack_reply, unpack_request, unpack_state
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Refused, Round, Total
from tacit.secure.roster import Identity, Roster

Kind = TypeVar("Kind")
Tamper = Callable[[str, int, bytes], bytes]
"""Stage, client and message; what it returns is carried instead."""

SESSION = b"a session of the tests, 32 bytes"


def round_of(
    clients: int,
    dropout: float = 0.1,
    colluding: float = 0.0,
    length: int = 5,
    bits: int = 32,
    session: bytes = SESSION,
) -> Round:
    return Round(session, Participation(clients, dropout, colluding), length, bits)


def vectors_of(around: Round, seed: int = 0) -> IntArray:
    """One vector a client, negative numbers among them."""
    shape = around.participation.clients, around.length
    return np.random.default_rng(seed).integers(-(10**6), 10**6, shape)


@lru_cache(maxsize=1024)
def identity(client: int) -> Identity:
    """A client's signing key, the same in every test."""
    return Identity(hashlib.sha256(b"identity %d" % client).digest())


@lru_cache(maxsize=32)
def roster_of(clients: int) -> Roster:
    return Roster(tuple(identity(client).public_key for client in range(clients)))


@dataclass(frozen=True)
class Exchange:
    """One request that a client answered, and what it kept before and after."""

    stage: str
    client: int
    request: bytes
    reply: bytes
    before: bytes
    after: bytes
    releases: bool


@dataclass
class Rehearsal:
    """One round among clients in memory.

    A client in ``dropouts`` is silent from that stage on. Tampering alters what is carried; clients
    see altered requests, the server altered replies, and the record holds what was carried.

    >>> rehearsal = Rehearsal(round_of(4, dropout=0.25), dropouts={2: "seal"})
    >>> rehearsal.total().survivors
    (0, 1, 3)
    """

    around: Round
    vectors: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    with_roster: bool = False
    dropouts: Mapping[int, str] = field(default_factory=dict)
    tamper_request: Tamper = lambda _stage, _client, request: request
    tamper_reply: Tamper = lambda _stage, _client, reply: reply
    speaking: Callable[[int | None], None] = lambda _client: None
    """Told who computes next: a client, or None for the server."""

    exchanges: list[Exchange] = field(default_factory=list)
    refusals: dict[int, str] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        clients = self.around.participation.clients
        if not self.vectors.size:
            self.vectors = vectors_of(self.around)
        self.roster = roster_of(clients) if self.with_roster else None
        self.participants = [
            MaskedParticipant(
                self.around, me, identity(me) if self.with_roster else None, self.roster
            )
            for me in range(clients)
        ]

    def total(self) -> Total:
        first = self.ask("advertise", dict.fromkeys(range(len(self.participants)), b""))
        return MaskedSum(self.roster).total(self.around, first, self.ask)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Carry requests and replies; a client that refuses is as good as silent."""
        replies = {}
        self.silent |= {client for client in requests if self.dropouts.get(client) == stage}
        for client in sorted(requests.keys() - self.silent):
            request = self.tamper_request(stage, client, requests[client])
            before = self.states.get(client, b"")
            participant = self.participants[client]
            self.speaking(client)
            try:
                if before:
                    step = participant.step(before, request)
                else:
                    step = participant.begin(self.vectors[client])
            except Refused as refusal:
                self.refusals[client] = f"{stage}: {refusal}"
                continue
            finally:
                self.speaking(None)
            self.states[client] = step.state
            reply = replies[client] = self.tamper_reply(stage, client, step.reply)
            self.exchanges.append(
                Exchange(stage, client, request, reply, before, step.state, step.releases)
            )
        return replies

    def exchange(self, stage: str, client: int) -> Exchange:
        """A client's latest exchange at a stage."""
        return [e for e in self.exchanges if e.stage == stage and e.client == client][-1]

    def asked(self, kind: type[Kind], stage: str, client: int) -> Kind:
        request = unpack_request(self.exchange(stage, client).request)
        assert isinstance(request, kind)
        return request

    def answered(self, kind: type[Kind], stage: str, client: int) -> Kind:
        reply = unpack_reply(kind, self.exchange(stage, client).reply)
        assert reply is not None
        return reply

    def kept(self, kind: type[Kind], stage: str, client: int) -> Kind:
        """A client's state after a stage."""
        state: State = unpack_state(self.exchange(stage, client).after)
        assert isinstance(state, kind)
        return state

    def opened(self) -> dict[int, Opened]:
        """Every opening reply that left a client."""
        clients = [e.client for e in self.exchanges if e.stage == "open"]
        return {client: self.answered(Opened, "open", client) for client in clients}

    def sum_of(self, survivors: tuple[int, ...]) -> list[int]:
        """What the vectors of these clients add up to, in Python's integers."""
        columns = self.vectors[list(survivors)].T.tolist()
        return [sum(column) for column in columns]
