"""Requests as Flower messages: whoever is slow, silent or gone is missing from the replies."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from tacit.federation import EVALUATE
from tacit.flower.wire import MESSAGE_TYPE, Envelope, read
from tacit.secure.protocol import Refused
from tacit.secure.roster import Roster

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_PATIENCE = 0.05
"""Of the time waited so far, the share to wait before looking again: who answers is soon seen."""
_LOOK_SECONDS = 5.0
_LOST = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Errors that Flower makes up when a message or its reply expired, or a node was away."""

Report = Callable[[str, int, int, float], None]
"""Called when something changes: the stage, nodes answered, nodes asked, seconds elapsed."""


@dataclass
class FlowerChannel:
    """A :class:`tacit.federation.Channel` over a Grid.

    Flower knows nodes by ids, a secure sum knows clients by numbers. Without a roster a client's
    number is its place among the nodes. With one, nobody knows beforehand which node is which
    member: a question goes to all nodes whose member is not known yet, and whoever signs the reply
    as the member of a number is that member, also at the later stages of the sum. Signatures are
    looked at first. An outsider that names a member's number is therefore left out alone. One that
    repeats a member's signed reply, byte for byte, adds nothing to it: both nodes are asked at the
    later stages, where only the member can sign. Two nodes that sign different replies as one
    member hold copies of its folder, and both are left out, because nobody can tell which is the
    member.
    """

    grid: Grid
    nodes: Sequence[int]
    planned: int
    deadline: float = math.inf
    timeout: float = 600.0
    report: Report = lambda _stage, _answered, _asked, _seconds: None
    message_type: str = MESSAGE_TYPE
    roster: Roster | None = None
    """Whose replies count; a node is given a number of nobody, and says its own."""
    refusals: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    """How many messages went out and came back at each stage."""

    def __post_init__(self) -> None:
        self._members: dict[int, list[int]] = {}

    @property
    def clients(self) -> Sequence[int]:
        return range(self.planned)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if self.roster is None:
            numbered = dict(enumerate(self.nodes))
            asked = {
                numbered[c]: Envelope(c, body) for c, body in requests.items() if c in numbered
            }
            replies = self._exchange(stage, asked)
            kept = {n: reply for n, reply in replies.items() if reply.client == asked[n].client}
        else:
            if stage == EVALUATE:  # a new sum: members may have moved to other nodes
                self._members.clear()
            asked = {**self._strangers(requests), **self._addressed(requests)}
            kept = self._of_members(stage, asked, self._exchange(stage, asked), self.roster)
            found: dict[int, list[int]] = {}
            for node, reply in kept.items():
                found.setdefault(reply.client, []).append(node)
            self._members |= found
        bodies = {reply.client: reply.body for reply in kept.values()}
        return {client: bodies[client] for client in sorted(requests) if client in bodies}

    def _addressed(self, requests: Mapping[int, bytes]) -> dict[int, Envelope]:
        """Requests to all nodes that answered as their client before."""
        return {
            node: Envelope(client, body)
            for client, body in requests.items()
            for node in self._members.get(client, ())
        }

    def _strangers(self, requests: Mapping[int, bytes]) -> dict[int, Envelope]:
        """Nodes that may be members whose node is not known yet, who are all asked the same."""
        missing = [client for client in requests if client not in self._members]
        if not missing:
            return {}
        body = requests[missing[0]]
        known = {node for nodes in self._members.values() for node in nodes}
        numbered = enumerate(self.nodes, self.planned)
        return {node: Envelope(number, body) for number, node in numbered if node not in known}

    def _of_members(
        self,
        stage: str,
        asked: Mapping[int, Envelope],
        replies: Mapping[int, Envelope],
        roster: Roster,
    ) -> dict[int, Envelope]:
        """The replies that a member signed, unless it signed another one for another node."""
        signed = {n: reply for n, reply in replies.items() if reply.is_signed(roster, asked[n])}
        claims = Counter(client for client, _body in {(r.client, r.body) for r in signed.values()})
        alone = {n: reply for n, reply in signed.items() if claims[reply.client] == 1}
        for reason, left_out in (
            ("the reply is not signed by the member that it names", len(replies) - len(signed)),
            (
                "several nodes answer as one member, so all of them are left out: a member's "
                "folder belongs on one node",
                len(signed) - len(alone),
            ),
        ):
            if left_out:
                self.refusals[f"{stage}: {reason}"] += left_out
        return alone

    def _exchange(self, stage: str, requests: Mapping[int, Envelope]) -> dict[int, Envelope]:
        """One message each, and one more to who is connected and silent: either may be lost."""
        replies, silent = self._sent(stage, requests)
        again = {node: requests[node] for node in silent & set(self.grid.get_node_ids())}
        if again:
            replies |= self._sent(stage, again)[0]
        return replies

    def _sent(
        self, stage: str, requests: Mapping[int, Envelope]
    ) -> tuple[dict[int, Envelope], set[int]]:
        """Replies, and whose message or reply got lost; what is refused is neither."""
        limit = self.timeout + (self.deadline if stage == EVALUATE else 0.0)
        begun = looked = time.monotonic()
        waiting = self._push(stage, requests, None if math.isinf(limit) else limit)
        replies: dict[int, Envelope] = {}
        lost: set[int] = set()
        self.report(stage, 0, len(requests), 0.0)
        while waiting and time.monotonic() - begun < limit:
            arrived = list(self.grid.pull_messages(list(waiting)))
            for message in arrived:
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                self.messages[stage] += 1
                if message.has_error() and message.error.code in _LOST:
                    lost.add(node)
                try:
                    replies[node] = _content(message)
                except Refused as reason:
                    self.refusals[f"{stage}: {reason}"] += 1
            if arrived:
                self.report(stage, len(replies), len(requests), time.monotonic() - begun)
            elif time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                online = set(self.grid.get_node_ids())
                if not set(waiting.values()) & online:
                    break  # nobody is left who could still answer
            if waiting:
                waited = time.monotonic() - begun
                time.sleep(min(max(_PATIENCE * waited, _FIRST_PAUSE), _LONGEST_PAUSE))
        return replies, lost | set(waiting.values())

    def _push(
        self, stage: str, requests: Mapping[int, Envelope], seconds: float | None
    ) -> dict[str, int]:
        """Send, and say which message went to which node."""
        messages = [
            Message(request.record(), node, self.message_type, group_id=stage, ttl=seconds)
            for node, request in requests.items()
        ]
        pushed = set(self.grid.push_messages(messages))
        sent = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        waiting = {number: node for number, node in sent.items() if number in pushed}
        self.messages[stage] += len(waiting)
        return waiting


def _content(message: Message) -> Envelope:
    if message.has_error():
        raise Refused(f"Flower reports error {message.error.code}")
    return read(message.content)
