"""Rounds that the tests of the masked sum look at again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest
from hypothesis import settings

from tacit.secure import crypto, graph
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import (
    Advert,
    Opening,
    Parcel,
    Request,
    Setup,
    Survivors,
    pack,
    unpack_adverts,
    unpack_state,
)
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Refused, Total
from tacit.secure.setup import Members, checked_members, packed
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


@contextmanager
def quick_rings() -> Iterator[None]:
    """Rings from 21 clients on, not from 257, so that tests of rings are quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "COMPLETE_UP_TO", 20)
        for remembered in (graph.wiring, checked_members):
            remembered.cache_clear()
        yield
    for remembered in (graph.wiring, checked_members):
        remembered.cache_clear()


@lru_cache(maxsize=1)
def forty() -> Rehearsal:
    """Forty clients on a small ring whose links reach 9 places; client 5 drops out at the seal."""
    with quick_rings():
        rehearsal = Rehearsal(round_of(40, length=16), with_roster=True, dropouts={5: "seal"})
        rehearsal.total()
    return rehearsal


@lru_cache(maxsize=1)
def sixty() -> Rehearsal:
    """Sixty clients on a small ring, of which twelve might be missing; nobody is."""
    with quick_rings():
        rehearsal = Rehearsal(round_of(60, dropout=12), with_roster=True)
        rehearsal.total()
    return rehearsal


def ring_with_gaps(stage: str, *, in_a_row: bool) -> tuple[Rehearsal, Callable[[], Total]]:
    """Sixty clients on a small ring, and how to sum them; twelve are missing from a stage on.

    So many may be missing, but in a row they leave a window of 18 with only as many as may collude.
    """
    rehearsal = Rehearsal(round_of(60, dropout=12), with_roster=True)
    first = rehearsal.ask("advertise", dict.fromkeys(range(60), b""))
    adverts = {c: rehearsal.answered(Advert, "advertise", c) for c in first}
    order = Members.of(rehearsal.around, packed(adverts), adverts).order
    rehearsal.dropouts = dict.fromkeys(order[:12] if in_a_row else order[::5], stage)
    return rehearsal, lambda: MaskedSum(rehearsal.roster).total(
        rehearsal.around, first, rehearsal.ask
    )


class Accuser(MaskedParticipant):
    """Complains about client 5's parcel, which is in order."""

    def _shares_of(
        self, receiver: crypto.Receiver, setup: bytes, dealer: int, parcel: Parcel
    ) -> tuple[bytes, bytes] | None:
        return None if dealer == 5 else super()._shares_of(receiver, setup, dealer, parcel)


@lru_cache(maxsize=2)
def disputed(with_roster: bool) -> Rehearsal:
    """Seven clients of which five must be there; client 2 complains about 5 without cause."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3, length=16), with_roster=with_roster)
    honest = rehearsal.participants[2]
    rehearsal.participants[2] = Accuser(honest.around, 2, honest.identity, honest.roster)
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
        ("confirm", Survivors(survivors, {}, b""))
        if with_roster
        else ("open", Opening(survivors, {}))
    )
