"""Messages that are fuzzed: to clients, to the server, around both, and states between them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tacit.closing import closed, not_closed
from tacit.endpoint import AskInClear, AskSum, Close, Continue, Endpoint, encode
from tacit.federation import _read as read_in_clear
from tacit.privacy.ledger import Ledger
from tacit.secure.messages import Sealed, unpack_reply
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Refused, SpoiledSum, TooFewClients
from tacit.secure.roster import Identity, Roster
from tacit.sessions import Sessions
from tacit.states import StatesInMemory
from tools.faults.mutations import bytewise, in_msgpack
from tools.faults.recorded import BUDGET, IN_CLEAR, Conversation
from tools.faults.target import Target


def message_targets(talk: Conversation) -> list[Target]:
    """Every kind of message."""
    return [
        _requests(talk),
        _states(talk),
        _replies(talk),
        _in_clear(),
        _closings(),
        *_envelopes(talk),
    ]


def _requests(talk: Conversation) -> Target:
    exchanges = talk.requests()
    client = WatchedClient(talk.endpoint)

    def attempt(base: int, data: bytes, _folder: Path) -> str:
        return client.asked(exchanges[base].before, data)

    return Target(
        "requests",
        [one.request for one in exchanges],
        (bytewise, in_msgpack, in_msgpack, in_msgpack),
        attempt,
        (Refused,),
        300,
    )


class WatchedClient:
    """A client whose ledger is looked at after every message."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._renew()

    def _renew(self) -> None:
        self._endpoint = replace(
            self._endpoint, ledger=Ledger.in_memory("client-0", BUDGET), sessions=Sessions()
        )
        self._lines = 1

    def asked(self, before: Mapping[str, bytes], request: bytes) -> str:
        """What is wrong with how a message was answered; raises what the endpoint raises."""
        states = StatesInMemory(dict(before))
        try:
            reply = self._endpoint.answer(states, request)
        except Exception as error:
            return self._unchanged(error)
        new = self._new_lines()
        if not new:
            if unpack_reply(Sealed, reply) and states.kept != before:
                return "a vector left, and the ledger has no line of it"
            return ""
        self._renew()
        message = msgspec.msgpack.decode(request, type=AskSum | Continue | AskInClear | Close)
        session = message.session.hex()
        match message:
            case Continue():
                kind, key = "charge", "run"
            case Close():
                kind, key = "barred", "session"
            case _:
                kind, key = "", ""
        if [(one[0], one[1].get(key)) for one in new] != [(kind, session)]:
            return f"a message of kind {type(message).__name__} led to the lines {new}"
        if kind == "charge" and unpack_reply(Sealed, reply) is None:
            return "the ledger was charged, and no vector left"
        return ""

    def _unchanged(self, error: Exception) -> str:
        new = self._new_lines()
        if new:
            self._renew()
            return f"it was refused ({error}), and the ledger has new lines: {new}"
        raise error

    def _new_lines(self) -> list[tuple[str, dict[str, Any]]]:
        connection = self._endpoint.ledger._file.connection
        rows = connection.execute(
            "SELECT kind, body FROM line WHERE number > ?", (self._lines,)
        ).fetchall()
        return [(kind, json.loads(body)) for kind, body in rows]


def _states(talk: Conversation) -> Target:
    """A client's own states, damaged or of another moment, with a message of their session."""
    exchanges = [one for one in talk.requests() if one.before]
    sessions = [_session_of(one.request) for one in exchanges]
    usable = [
        (exchange, session)
        for exchange, session in zip(exchanges, sessions, strict=True)
        if session in exchange.before
    ]
    client = WatchedClient(talk.endpoint)
    kept = [exchange.before[session] for exchange, session in usable]

    def another(_data: bytes, chance: random.Random) -> bytes:
        return chance.choice(kept)

    def attempt(base: int, data: bytes, _folder: Path) -> str:
        exchange, session = usable[base]
        return client.asked({session: data} if data else {}, exchange.request)

    return Target(
        "states",
        kept,
        (bytewise, another),
        attempt,
        (Refused,),
        150,
    )


def _session_of(request: bytes) -> str:
    _, _, session, *_ = msgspec.msgpack.decode(request)
    return session.hex() if isinstance(session, bytes) else ""


def _replies(talk: Conversation) -> Target:
    """What comes back to the server: a whole sum of which one reply is altered."""
    around, first = talk.secure.rounds[0]
    recorded: dict[tuple[str, int], bytes] = {}
    session = around.session.hex()
    for one in talk.recorder.exchanges:
        if _session_of(one.request) == session:
            recorded.setdefault((one.stage, one.client), one.reply)
    places = list(recorded)
    server = MaskedSum(talk.federation.roster)
    value = talk.secure.opened[0][1].value.tolist()

    def attempt(base: int, data: bytes, _folder: Path) -> str:
        replies = {**recorded, places[base]: data}

        def ask(stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
            return {
                client: replies[stage, client] for client in requests if (stage, client) in replies
            }

        begun = {client: replies["evaluate", client] for client in first}
        total = server.total(around, begun, ask)
        return "" if total.value.tolist() == value else "another sum was opened"

    return Target(
        "replies",
        [recorded[place] for place in places],
        (bytewise, in_msgpack),
        attempt,
        (TooFewClients, SpoiledSum),
        4,
    )


def _in_clear() -> Target:
    """Answers in clear, as the server reads them."""
    from tacit.arrays import Array

    answer = encode(
        tuple(Array(one, (2, 3), bytes(size)) for one, size in (("<f4", 24), ("<f8", 48)))
    )

    def attempt(base: int, data: bytes, _folder: Path) -> str:
        read_in_clear(IN_CLEAR[base], data)
        return ""

    return Target(
        "answers in clear", [answer] * len(IN_CLEAR), (bytewise, in_msgpack), attempt, (), 60
    )


def _closings() -> Target:
    """Signatures that close a session."""
    members = [Identity.new() for _ in range(3)]
    roster = Roster(tuple(one.public_key for one in members))
    signed = [closed(one, roster, client, bytes(32)) for client, one in enumerate(members)]

    def attempt(base: int, data: bytes, _folder: Path) -> str:
        signatures = {client: signed[client] for client in range(3)} | {base: data}
        expected = [] if data == signed[base] else [base]
        return "" if not_closed(roster, bytes(32), signatures) == expected else "it was believed"

    return Target("signatures", signed, (bytewise,), attempt, (), 40)


def _envelopes(talk: Conversation) -> list[Target]:
    """Flower's messages, where Flower is installed."""
    try:
        from flwr.app import ConfigRecord, RecordDict
    except ImportError:
        return []
    from tacit.flower.wire import RECORD, WIRE, read

    reply = talk.recorder.exchanges[0].reply
    bases = [
        {"wire": WIRE, "client": 1, "body": reply[:100]},
        {"wire": WIRE, "client": 1, "body": reply[:100], "signature": bytes(64)},
        {"wire": WIRE, "no": "nothing to say"},
    ]

    def attempt(_base: int, data: bytes, _folder: Path) -> str:
        try:
            record = RecordDict({RECORD: ConfigRecord(msgspec.msgpack.decode(data))})
        except (TypeError, ValueError, AttributeError, msgspec.MsgspecError):
            raise Refused("Flower does not carry it") from None
        read(record)
        return ""

    encoded = [msgspec.msgpack.encode(base) for base in bases]
    return [Target("envelopes", encoded, (in_msgpack,), attempt, (Refused,), 150)]
