"""Requests as Flower messages: whoever is slow, silent or gone is missing from the replies."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from tacit.federation import EVALUATE
from tacit.flower.wire import MESSAGE_TYPE, Envelope, read
from tacit.secure.protocol import Refused

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_PATIENCE = 0.05
"""Of the time waited so far, the share to wait before looking again: who answers is soon seen."""
_LOOK_SECONDS = 5.0

Report = Callable[[str, int, int, float], None]
"""Called when something changes: the stage, nodes answered, nodes asked, seconds elapsed."""


@dataclass
class FlowerChannel:
    """A :class:`tacit.federation.Channel` over a Grid.

    Flower knows nodes by ids, a secure sum knows clients by numbers. The first stage of a sum goes
    to all nodes with the same question; whoever answers says by which number it goes (with a
    roster its own, otherwise the one the request gave it), and the later stages go to those. Two
    nodes that claim one number are both left out.
    """

    grid: Grid
    nodes: Sequence[int]
    planned: int
    deadline: float = math.inf
    timeout: float = 600.0
    report: Report = lambda _stage, _answered, _asked, _seconds: None
    message_type: str = MESSAGE_TYPE
    signed: bool = False
    """Whether members go by the numbers of a roster; who is not on it gets a number of nobody."""
    refusals: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    """How many messages went out and came back at each stage."""

    def __post_init__(self) -> None:
        self._numbers = dict(enumerate(self.nodes))

    @property
    def clients(self) -> Sequence[int]:
        return range(self.planned)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if stage == EVALUATE:
            (body,) = set(requests.values())
            first = self.planned if self.signed else 0
            asked = {node: Envelope(place, body) for place, node in enumerate(self.nodes, first)}
            found = self._exchange(stage, asked)
            if not self.signed:
                found = {n: reply for n, reply in found.items() if reply.client == asked[n].client}
            numbered = {reply.client: node for node, reply in found.items()}
            claims = Counter(reply.client for reply in found.values())
            self._numbers = {c: node for c, node in numbered.items() if claims[c] == 1}
            return {client: found[node].body for client, node in sorted(self._numbers.items())}
        known = {c: self._numbers[c] for c in requests if c in self._numbers}
        replies = self._exchange(
            stage, {node: Envelope(client, requests[client]) for client, node in known.items()}
        )
        return {client: replies[node].body for client, node in known.items() if node in replies}

    def _exchange(self, stage: str, requests: Mapping[int, Envelope]) -> dict[int, Envelope]:
        """One message each; replies that are refusals or cannot be read count as none."""
        limit = self.timeout + (self.deadline if stage == EVALUATE else 0.0)
        begun = looked = time.monotonic()
        waiting = self._push(stage, requests, None if math.isinf(limit) else limit)
        replies: dict[int, Envelope] = {}
        self.report(stage, 0, len(requests), 0.0)
        while waiting and time.monotonic() - begun < limit:
            arrived = list(self.grid.pull_messages(list(waiting)))
            for message in arrived:
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                self.messages[stage] += 1
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
        return replies

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
