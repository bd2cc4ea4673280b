"""Rounds that the tests of the masked sum look at again and again."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import settings

from tacit.secure import crypto
from tacit.secure.messages import (
    Advert,
    Opening,
    Request,
    Setup,
    Survivors,
    pack,
    unpack_adverts,
    unpack_state,
)
from tacit.secure.protocol import Refused, Total
from tests.secure.driver import Rehearsal, round_of

STAGES = ("advertise", "share", "deliver", "seal", "confirm", "open")


EARLY = ("advertise", "share", "deliver", "seal")
"""Who drops out here is not in the sum."""


quick = settings(deadline=None, max_examples=40)


@lru_cache(maxsize=2)
def small(with_roster: bool) -> Rehearsal:
    """Ten clients of which eight must be there; the last one drops out before it seals."""
    rehearsal = Rehearsal(
        round_of(10, dropout=0.2, length=16), with_roster=with_roster, dropouts={9: "seal"}
    )
    rehearsal.total()
    return rehearsal


@lru_cache(maxsize=1)
def wide() -> Rehearsal:
    """260 clients on a ring whose links reach 43 places; client 5 drops out before it seals."""
    rehearsal = Rehearsal(round_of(260, length=16), with_roster=True, dropouts={5: "seal"})
    rehearsal.total()
    return rehearsal


def check(rehearsal: Rehearsal, total: Total) -> None:
    """The survivors are who should be left, and the total is theirs."""
    clients = range(len(rehearsal.participants))
    assert total.survivors == tuple(c for c in clients if rehearsal.dropouts.get(c) not in EARLY)
    assert total.value.tolist() == rehearsal.sum_of(total.survivors)


def refuses(
    rehearsal: Rehearsal, stage: str, request: Request | bytes, because: str, client: int = 0
) -> None:
    """A client refuses for this reason, and from the same state still takes the honest request."""
    exchange = rehearsal.exchange(stage, client)
    participant = rehearsal.participants[client]
    with pytest.raises(Refused, match=because):
        participant.step(exchange.before, request if isinstance(request, bytes) else pack(request))
    honest = participant.step(exchange.before, exchange.request)
    assert type(unpack_state(honest.state)) is type(unpack_state(exchange.after))


def adverts_of(rehearsal: Rehearsal) -> list[Advert]:
    return list(unpack_adverts(rehearsal.asked(Setup, "share", 0).adverts))


def new_key() -> bytes:
    return crypto.public_key(crypto.fresh())


def nested(message: bytes) -> bytes:
    """A message with one surplus field, a list in a list in a list."""
    return bytes([message[0] + 1]) + message[1:] + b"\x91" * 100_000 + b"\x90"


def naming(with_roster: bool, survivors: tuple[int, ...]) -> tuple[str, Request]:
    """The stage and the request at which a client first hears who survived."""
    return (
        ("confirm", Survivors(survivors, {})) if with_roster else ("open", Opening(survivors, {}))
    )
