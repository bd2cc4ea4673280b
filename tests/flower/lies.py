"""How a lying server alters its own messages on their way to some nodes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flwr.app import Message
from msgspec.structs import replace

from tacit.endpoint import AskSum, Continue, encode
from tacit.federation import Federation
from tacit.flower.channel import FlowerChannel
from tacit.flower.server import Settings
from tacit.flower.wire import Envelope, read
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import ledger_path
from tacit.query import Ballot
from tacit.secure.messages import Delivery, Final, Survivors, pack, unpack_request
from tacit.secure.protocol import Refused
from tests.flower.clinics import AMPLE, Clinics
from tests.flower.grids import InProcessGrid, Node, server_context, stage_of

BALLOT = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
VARIANCE = 6.91
"""What two votes among ten need for epsilon 3, rounded up."""
Tell = Callable[[InProcessGrid], None]
EVERYBODY = range(10_000)


def six_clinics(base: Path, budget: Budget = AMPLE) -> Clinics:
    """Six members of which five must be there; they take no less noise than the plan needs."""
    return Clinics.found(base, 6, dropout=1, colluding=1, least_noise=0.431, budget=budget)


def federation(clinics: Clinics, grid: InProcessGrid) -> Federation:
    """The server's side as `tune` builds it; its own ledger is ample."""
    context = server_context(
        federation__roster_file=str(clinics.roster_file),
        federation__deadline=30.0,
        federation__wait=0.0,
    )
    folder = ledger_path("any").parent.parent / "runs" / "run"
    built = Settings.of(context.run_config).federation(grid, AMPLE, "run", folder)
    built.variance = VARIANCE
    return built


def refusals(built: Federation) -> Counter[str]:
    """Why nodes refused, with the stage in front."""
    assert isinstance(built.channel, FlowerChannel)
    return built.channel.refusals


def carrying(
    stage: str, change: Callable[[Message], Message], nodes: Container[int] = EVERYBODY
) -> Tell:
    """Alter the messages of a stage to some nodes, after whatever else is altered."""

    def tell(grid: InProcessGrid) -> None:
        before = grid.alter

        def alter(message: Message) -> Message | None:
            carried = before(message)
            if carried and stage_of(message) == stage and message.metadata.dst_node_id in nodes:
                return change(carried)
            return carried

        grid.alter = alter

    return tell


def asking(change: Callable[[AskSum], Any], nodes: Container[int] = EVERYBODY) -> Tell:
    """Alter the question to some nodes."""
    return carrying("evaluate", lambda message: altered(message, change), nodes)


def telling(stage: str, change: Callable[[Any], Any], nodes: Container[int] = EVERYBODY) -> Tell:
    """Alter what some nodes are told at a later stage of the secure sum."""
    return carrying(stage, lambda message: altered(message, change), nodes)


def altered(message: Message, change: Callable[[Any], Any]) -> Message:
    """A message with another question, or with another request of the secure sum, in it."""
    envelope = read(message.content)
    request = msgspec.msgpack.decode(envelope.body, type=AskSum | Continue)
    if isinstance(request, Continue):
        told = replace(request, body=pack(change(unpack_request(request.body))))
    else:
        told = change(request)
    lie = copy.deepcopy(message)
    lie.content = Envelope(envelope.client, encode(told)).record()
    return lie


def reason_of(node: Node, message: Message) -> str:
    """Why a node refuses a message."""
    with pytest.raises(Refused) as refused:
        read(node.handle(message).content)
    return str(refused.value)


def leave_out_5(delivery: Delivery) -> Delivery:
    """As if client 5 had never shared."""
    parcels = {other: parcel for other, parcel in delivery.parcels.items() if other != 5}
    return Delivery(tuple(c for c in delivery.sharers if c != 5), parcels)


def without_5(final: Final) -> Final:
    """As if client 5 had been left out."""
    return Final(tuple(c for c in final.members if c != 5))


def bury_5(survivors: Survivors) -> Survivors:
    """As if client 5 had dropped out."""
    told = {other: seal for other, seal in survivors.seals.items() if other != 5}
    clients = tuple(c for c in survivors.clients if c != 5)
    return Survivors(clients, told, survivors.contents)
