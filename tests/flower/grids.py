"""A Flower grid in this process: real ClientApps, real messages that are copied on the way."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run

import tacit.flower
from tacit.endpoint import AskSum, heading_of
from tacit.federation import EVALUATE
from tacit.flower import client
from tacit.flower.client import MEMBER, MakeClient
from tacit.flower.wire import RECORD, read
from tacit.membership import STATES
from tacit.privacy.skellam import IntArray
from tacit.result import Result
from tacit.secure.messages import Advertised, unpack_state
from tacit.secure.protocol import Refused
from tacit.states import Waiting, from_bytes
from tests.federations import SPACE, likes

RUN = 7
STAGES = ("evaluate", "share", "deliver", "seal", "confirm", "open")
EARLY = ("evaluate", "share", "deliver", "seal")
"""Who fails here is not in the sum."""


@dataclass
class Node:
    """A node: its app, its own configuration and what it keeps between messages."""

    app: ClientApp
    context: Context
    online: bool = True

    def handle(self, message: Message) -> Message:
        """As a SuperNode does it: what the app raises becomes an error that quotes it."""
        try:
            return self.app(message, self.context)
        except Exception as error:
            raised = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>")
            return Message(raised, reply_to=message)

    def restart(self) -> None:
        """Another process, which knows nothing but the node's own configuration."""
        old = self.context
        self.context = Context(old.run_id, old.node_id, old.node_config, RecordDict(), {})

    @property
    def folder(self) -> Path | None:
        """The folder that it was given."""
        found = self.context.node_config.get(MEMBER)
        return None if found is None else Path(str(found))

    def state(self, session: bytes) -> bytes:
        """What it keeps of a session, in its folder or in Flower's context."""
        if not client.simulated():
            folder = self.folder or client.own_member(self.context.node_config).folder
            file = folder / STATES / session.hex()
            return file.read_bytes() if file.exists() else b""
        record = self.context.state.config_records.get(RECORD) or ConfigRecord()
        sessions, states = record.get("sessions", []), record.get("states", [])
        assert isinstance(sessions, list)
        assert isinstance(states, list)
        state = dict(zip(sessions, states, strict=True)).get(session.hex(), b"")
        assert isinstance(state, bytes)
        return state


@dataclass
class InProcessGrid(Grid):
    """Nodes answer when they are asked. ``silent`` lists who does not answer from a stage on."""

    nodes: dict[int, Node]
    silent: Mapping[int, str] = field(default_factory=dict)
    alter: Callable[[Message], Message | None] = lambda message: message
    """What the network, or the server, makes of a request; None loses it."""
    alter_reply: Callable[[Message, Message], Message | None] = lambda _request, reply: reply
    """What the network, or the node, makes of its reply to a request."""
    seen: list[Message] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    vectors: dict[int, IntArray] = field(default_factory=dict)
    """With their noise, as the nodes fixed them when they were asked."""
    replies: dict[str, Message] = field(default_factory=dict)

    def set_run(self, *_args: object) -> None:
        raise AssertionError("not used by Tacit")

    @property
    def run(self) -> Run:
        raise AssertionError("not used by Tacit")

    def create_message(self, *_args: object, **_more: object) -> Message:
        raise AssertionError("not used by Tacit")

    def get_node_ids(self) -> Iterable[int]:
        return [number for number, node in self.nodes.items() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = str(uuid4())
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            self._deliver(copy.deepcopy(message))
        return numbers

    def _deliver(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        if self.silent.get(node) == stage_of(message):
            self.nodes[node].online = False
        altered = self.alter(message)
        if altered is None or not self.nodes[node].online:
            return
        self.seen.append(copy.deepcopy(altered))
        said = copy.deepcopy(self.nodes[node].handle(altered))
        self.said.append(copy.deepcopy(said))
        if stage_of(message) == EVALUATE and node not in self.vectors:
            self.vectors[node] = vector_of(self.nodes[node], self.seen[-1])
        reply = self.alter_reply(self.seen[-1], said)
        if reply is not None:
            self.replies[message.metadata.message_id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]

    def send_and_receive(self, *_args: object, **_more: object) -> Iterable[Message]:
        raise AssertionError("not used by Tacit")

    def sum_of(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """What the noisy vectors of these nodes add up to."""
        return tuple(map(int, np.sum([self.vectors[node] for node in nodes], axis=0)))

    def asked(self, stage: str, node: int) -> Message:
        """The last request of a stage that reached a node."""
        found = [m for m in self.seen if is_for(m, stage, node)]
        return copy.deepcopy(found[-1])


def stage_of(message: Message) -> str:
    return message.metadata.group_id


def is_for(message: Message, stage: str, node: int) -> bool:
    return (stage_of(message), message.metadata.dst_node_id) == (stage, node)


def session_of(message: Message) -> bytes:
    """The session that a request is of."""
    return bytes.fromhex(heading_of(read(message.content).body).session)


def vector_of(node: Node, question: Message) -> IntArray:
    """The vector that a node fixed for a masked sum, from its state; empty if it refused."""
    try:
        state = node.state(session_of(question))
    except Refused:
        return np.empty(0, np.int64)
    waiting = from_bytes(state) if state else None
    if not isinstance(waiting, Waiting):
        return np.empty(0, np.int64)
    if msgspec.msgpack.decode(waiting.asked, type=AskSum).secure != "masks":
        return np.empty(0, np.int64)
    advertised = unpack_state(waiting.sum_state)
    assert isinstance(advertised, Advertised)
    return np.frombuffer(advertised.vector, "<i4").astype(np.int64)


def node(
    make: MakeClient, number: int, folder: Path | None = None, *, record_level: bool = False
) -> Node:
    """A node whose app answers Tacit, with or without a member's folder."""
    app = ClientApp()
    tacit.flower.answer(app, make, record_level=record_level)
    own = {MEMBER: str(folder)} if folder else {}
    config = {"partition-id": number, **own}
    return Node(app, Context(RUN, 100 + number, config, RecordDict(), {}))  # type: ignore[arg-type]


def voters(count: int) -> list[MakeClient]:
    """Clients whose tastes lie between 0.4 and 0.6."""
    return [lambda _context, i=i: likes(0.4 + 0.2 * i / count) for i in range(count)]  # type: ignore[misc]


def grid_of(makes: Iterable[MakeClient], folders: Iterable[Path | None] = ()) -> InProcessGrid:
    """Nodes 100, 101, ... in this order."""
    pairs = itertools.zip_longest(makes, folders)
    return InProcessGrid(
        {100 + number: node(make, number, folder) for number, (make, folder) in enumerate(pairs)}
    )


def generous(grid: InProcessGrid) -> InProcessGrid:
    """Nodes that were given no folder, and a large budget for the one that they make."""
    for one in grid.nodes.values():
        one.context.node_config[client.EPSILON] = 30.0
    return grid


def server_context(**settings: object) -> Context:
    """A ServerApp's context; ``a__b=1`` stands for the setting ``tacit.a.b``."""
    config = {"tacit." + key.replace("__", "."): value for key, value in settings.items()}
    return Context(RUN, 1, {}, RecordDict(), config)  # type: ignore[arg-type]


def vote(grid: InProcessGrid, **settings: object) -> Result:
    """A vote of two among ten candidates, of nodes that would wait half a minute to be heard."""
    terms = {
        "search__ballot": "published",
        "search__votes": 2,
        "search__candidates": 10,
        "privacy__epsilon": 3.0,
        "federation__deadline": 30.0,
        "federation__wait": 0.0,
        **settings,
    }
    return tacit.flower.tune(grid, server_context(**terms), space=SPACE)
