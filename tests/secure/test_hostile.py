"""Hostile clients are left out or stop the round; they never crash it or open a wrong sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from tacit.secure import crypto, shamir
from tacit.secure.messages import (
    Advert,
    Advertised,
    Again,
    Confirmation,
    Opened,
    Reveal,
    Sealed,
    Shared,
    Shares,
    pack,
    unpack_reply,
)
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import SpoiledSum, TooFewClients
from tacit.secure.setup import advert_text
from tests.secure.driver import Rehearsal, identity, round_of
from tests.secure.rounds import (
    EARLY,
    STAGES,
    check,
    nested,
    new_key,
    quick,
)


def hostile(
    stage: str, make: Callable[[bytes], bytes], client: int = 2, **options: Any
) -> Rehearsal:
    """A round of seven, of which five must be there, with one reply of one client replaced."""
    around = options.pop("around", round_of(7, dropout=0.3))

    def tamper(now: str, who: int, reply: bytes) -> bytes:
        return make(reply) if (now, who) == (stage, client) else reply

    return Rehearsal(around, tamper_reply=tamper, **options)


def check_without(rehearsal: Rehearsal, stage: str, client: int = 2) -> None:
    """The hostile client counts as a drop-out at that stage."""
    total = rehearsal.total()
    clients = range(len(rehearsal.participants))
    assert total.survivors == tuple(c for c in clients if c != client or stage not in EARLY)
    assert total.value.tolist() == rehearsal.sum_of(total.survivors)
    assert not rehearsal.refusals, "no honest client suffers"


@settings(deadline=None, max_examples=60)
@given(stage=st.sampled_from(STAGES), junk=st.binary(max_size=100))
def test_junk_counts_as_a_drop_out(stage: str, junk: bytes) -> None:
    check_without(hostile(stage, lambda _reply: junk, with_roster=True), stage)


def remade(kind: type[Any], **fields: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """A reply with some fields computed anew from the whole reply."""

    def make(reply: bytes) -> bytes:
        message = msgspec.msgpack.decode(reply, type=kind)
        return pack(altered(message, **{name: field(message) for name, field in fields.items()}))

    return make


INVALID: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "advert in another's name": ("advertise", remade(Advert, client=lambda _: 3)),
    "advert of nobody": ("advertise", remade(Advert, client=lambda _: -1)),
    "unsigned advert": ("advertise", remade(Advert, signature=lambda _: b"")),
    "advert with a key not signed": ("advertise", remade(Advert, mask_key=lambda _: new_key())),
    "a box too few": ("share", remade(Shares, boxes=lambda m: dict(list(m.boxes.items())[1:]))),
    "a box for itself": ("share", remade(Shares, boxes=lambda m: {**m.boxes, 2: b"box"})),
    "no boxes": ("share", remade(Shares, boxes=lambda _: {})),
    "a vector too short": ("seal", remade(Sealed, vector=lambda m: m.vector[:-1])),
    "a vector too long": ("seal", remade(Sealed, vector=lambda m: m.vector + bytes(4))),
    "no vector": ("seal", remade(Sealed, vector=lambda _: b"")),
    "any signature": ("confirm", remade(Confirmation, signature=lambda _: identity(2).sign(b""))),
    "no signature": ("confirm", remade(Confirmation, signature=lambda _: b"")),
    "no shares": ("open", remade(Opened, self_shares=lambda _: {}, key_shares=lambda _: {})),
    "another message": ("seal", lambda _: pack(Reveal(b""))),
    "a message to clients": ("share", lambda _: pack(Again(1))),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_reply_counts_as_a_drop_out(name: str) -> None:
    stage, make = INVALID[name]
    check_without(hostile(stage, make, with_roster=True), stage)
    if "sign" not in name:
        check_without(hostile(stage, make), stage)


def test_wrong_randomness_counts_as_a_drop_out() -> None:
    """A commitment that is none is noticed at once, without drawing the graph again."""
    around = round_of(70)
    wrong = hostile("reveal", lambda _: pack(Reveal(bytes(32))), around=around)
    none = hostile("advertise", remade(Advert, commitment=lambda _: b""), around=around)
    for rehearsal, attempts in ((wrong, 1), (none, 0)):
        check_without(rehearsal, "reveal")
        assert rehearsal.kept(Advertised, "advertise", 0).attempt == attempts


@pytest.mark.parametrize("with_roster", [False, True])
def test_replies_of_clients_that_were_not_asked_count_for_nothing(with_roster: bool) -> None:
    rehearsal = Rehearsal(
        round_of(7, dropout=0.3), with_roster=with_roster, dropouts={2: "share", 5: "seal"}
    )
    first = rehearsal.ask("advertise", dict.fromkeys(range(7), b""))

    def ask(stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        replies = rehearsal.ask(stage, requests)
        intruders = {client: replies[0] for client in (-1, 2, 5, 99) if client not in requests}
        return {**replies, **intruders}

    total = MaskedSum(rehearsal.roster).total(rehearsal.around, first, ask)
    check(rehearsal, total)


def test_an_advert_of_a_client_beyond_the_round_counts_for_nothing() -> None:
    """Without a roster: every client refuses a list with a number that the round does not have."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), dropouts={7: "share"})
    first = rehearsal.ask("advertise", dict.fromkeys(range(7), b""))
    first[7] = pack(Advert(7, new_key(), new_key(), b"", b""))
    check(rehearsal, MaskedSum().total(rehearsal.around, first, rehearsal.ask))


@pytest.mark.parametrize("with_roster", [False, True])
@pytest.mark.parametrize("kind", ["small order", "wrong size", "twice the same", "another's"])
def test_an_advert_with_useless_keys_counts_as_a_drop_out(kind: str, with_roster: bool) -> None:
    """Every other client refuses such a list of adverts, so one client stops the whole round."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster)

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("advertise", 2):
            return reply
        own, others = new_key(), rehearsal.answered(Advert, "advertise", 1).mask_key
        useless = {"small order": bytes(32), "wrong size": bytes(31), "twice the same": own}
        keys = own, useless.get(kind, others)
        text = advert_text(rehearsal.around, 0, 2, *keys, b"")
        return pack(Advert(2, *keys, b"", identity(2).sign(text) if with_roster else b""))

    rehearsal.tamper_reply = tamper
    check_without(rehearsal, "advertise")


def test_a_client_that_seals_junk_to_its_neighbours_stops_the_round_but_opens_nothing() -> None:
    """The server cannot look into boxes, so whoever got junk refuses; the round fails closed."""
    junk = remade(Shares, boxes=lambda message: dict.fromkeys(message.boxes, bytes(94)))
    rehearsal = hostile("share", junk)
    with pytest.raises(TooFewClients, match="only 1 clients answered at the stage 'seal'; 5"):
        rehearsal.total()
    assert not rehearsal.opened()


FALSE_SHARES = remade(Opened, self_shares=lambda m: dict.fromkeys(m.self_shares, bytes(33)))


@pytest.mark.parametrize("holder", [0, 1, 3, 4, 6])
def test_altered_shares_are_noticed(holder: int) -> None:
    """Seven opened and four suffice; no share of these holders goes unused."""
    rehearsal = hostile("open", FALSE_SHARES, client=holder)
    with pytest.raises(SpoiledSum, match="does not fit together"):
        rehearsal.total()


@quick
@given(holder=st.integers(0, 6), data=st.data())
def test_altered_shares_never_open_a_wrong_sum_while_there_are_spares(
    holder: int, data: st.DataObject
) -> None:
    """Seven of which four suffice; one returns other shares, too long, too short, or for others."""

    def make(reply: bytes) -> bytes:
        opened = unpack_reply(Opened, reply)
        assert opened is not None
        shares = {"self_shares": dict(opened.self_shares), "key_shares": dict(opened.key_shares)}
        for _ in range(data.draw(st.integers(1, 3))):
            kind = data.draw(st.sampled_from(sorted(shares)))
            shares[kind][data.draw(st.integers(-1, 8))] = data.draw(st.binary(max_size=40))
        return pack(Opened(**shares))

    rehearsal = hostile("open", make, client=holder, dropouts={(holder + 1) % 7: "seal"})
    with suppress(SpoiledSum):
        check(rehearsal, rehearsal.total())


def test_altered_shares_open_no_wrong_sum_whoever_is_left() -> None:
    """Of ten, 0 and 7 are silent at the end; six suffice and eight are there, one of them false."""
    around, dropouts = round_of(10, dropout=0.2), {0: "open", 7: "open"}
    rehearsal = hostile("open", FALSE_SHARES, client=3, around=around, dropouts=dropouts)
    with suppress(SpoiledSum):
        check(rehearsal, rehearsal.total())


def test_a_drop_out_that_shared_a_false_key_is_noticed() -> None:
    """The shares fit together, but what they recover is not the secret of the advertised key."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), dropouts={2: "seal"})

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("share", 2):
            return reply
        false = shamir.split(bytes(32), range(7), 4)
        keys = msgspec.msgpack.decode(rehearsal.states[2], type=Shared).box_keys
        context = rehearsal.around.describe() + b" 2 %d"
        boxes = {c: crypto.seal(key, 2 * false[c], context % c) for c, key in keys.items()}
        return pack(Shares(boxes))

    rehearsal.tamper_reply = tamper
    with pytest.raises(SpoiledSum):
        rehearsal.total()


def test_deeply_nested_replies_count_as_a_drop_out() -> None:
    check_without(hostile("seal", nested), "seal")
