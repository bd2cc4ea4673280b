"""No step for a hostile server: what clients refuse, keeping their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from tacit.secure import crypto
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import (
    Advert,
    Advertised,
    Adverts,
    Again,
    Delivery,
    Done,
    Masked,
    Opening,
    Revealed,
    Setup,
    Shared,
    Shares,
    Survivors,
    pack,
    unpack_reply,
    unpack_state,
)
from tacit.secure.protocol import Refused, Round
from tacit.secure.setup import sharers_text, survivors_text
from tests.secure.driver import Rehearsal, identity, roster_of, round_of
from tests.secure.rounds import (
    STAGES,
    adverts_of,
    naming,
    nested,
    new_key,
    refuses,
    small,
    wide,
)


def offering(rehearsal: Rehearsal, adverts: Iterable[Advert]) -> Setup:
    """The set-up of a round, with other adverts."""
    return altered(rehearsal.asked(Setup, "share", 0), adverts=pack(tuple(adverts)))


def swapping(rehearsal: Rehearsal, advert: Advert) -> Setup:
    """The set-up of a round, with another advert of one client."""
    adverts = adverts_of(rehearsal)
    return offering(rehearsal, (advert if a.client == advert.client else a for a in adverts))


@pytest.mark.parametrize("rehearse", [partial(small, False), partial(small, True), wide])
def test_messages_come_once_and_in_order(rehearse: Callable[[], Rehearsal]) -> None:
    """Every state against every message of the round: replays, leaps, steps back, afterthoughts."""
    rehearsal = rehearse()
    exchanges = [e for e in rehearsal.exchanges if e.client == 0]
    kinds = [type(unpack_state(exchange.after)) for exchange in exchanges]
    assert len(set(kinds)) == len(kinds) >= 4
    for place, exchange in enumerate(exchanges):
        for later, other in enumerate(exchanges):
            if later != place + 1:
                with pytest.raises(Refused):
                    rehearsal.participants[0].step(exchange.after, other.request)


ANYTHING = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.integers(0, 9), part),
    max_leaves=6,
)


MESSAGE_LIKE = st.builds(
    lambda tag, fields: msgspec.msgpack.encode([tag, *fields]),
    st.integers(0, 13),
    st.lists(ANYTHING, max_size=3),
)


@settings(deadline=None, max_examples=200)
@given(stage=st.sampled_from(STAGES[1:]), request=st.binary(max_size=200) | MESSAGE_LIKE)
def test_bytes_that_are_no_message_are_refused(stage: str, request: bytes) -> None:
    with pytest.raises(Refused):
        small(True).participants[0].step(small(True).exchange(stage, 0).before, request)


@settings(deadline=None, max_examples=200)
@given(stage=st.sampled_from(["share", "seal"]), data=st.data())
def test_with_a_roster_no_byte_on_the_way_to_sealing_can_be_altered(
    stage: str, data: st.DataObject
) -> None:
    exchange = small(True).exchange(stage, 0)
    request = bytearray(exchange.request)
    request[data.draw(st.integers(0, len(request) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Refused):
        small(True).participants[0].step(exchange.before, bytes(request))


@pytest.mark.parametrize("state", [b"", b"junk", pack(Again(1)), pack(Done())])
def test_a_lost_or_foreign_state_answers_nothing(state: bytes) -> None:
    for stage in STAGES[1:]:
        with pytest.raises(Refused):
            small(True).participants[0].step(state, small(True).exchange(stage, 0).request)


def test_deeply_nested_requests_are_refused() -> None:
    refuses(small(False), "share", nested(pack(Again(1))), "cannot be read")


def test_a_swapped_key_is_refused() -> None:
    """The server passes off keys of its own as client 3's; only the roster can tell."""
    real = adverts_of(small(True))[3]
    for swapped in (
        altered(real, cipher_key=new_key()),
        altered(real, mask_key=new_key()),
        altered(real, cipher_key=real.mask_key, mask_key=real.cipher_key),
        altered(real, signature=b""),
        altered(adverts_of(small(True))[9], client=3, mask_key=new_key(), cipher_key=new_key()),
    ):
        request = swapping(small(True), swapped)
        refuses(small(True), "share", request, "not signed by the client that the roster names")


@pytest.mark.parametrize(
    "elsewhere",
    [
        round_of(10, dropout=0.2, length=16, session=b"another session"),
        round_of(10, dropout=0.2, length=17),
        round_of(10, dropout=0.2, length=16, bits=64),
        round_of(10, dropout=0.1, length=16),
        round_of(10, dropout=0.2, colluding=0.1, length=16),
        round_of(11, dropout=0.2, length=16),
        replace(round_of(10, dropout=0.2, length=16), question=b"another question"),
    ],
    ids=["session", "length", "bits", "dropout", "colluding", "clients", "question"],
)
def test_adverts_and_signatures_of_another_round_are_refused(elsewhere: Round) -> None:
    other = MaskedParticipant(elsewhere, 3, identity(3), roster_of(10))
    advert = unpack_reply(Advert, other.begin(np.zeros(elsewhere.length, np.int64)).reply)
    assert advert is not None
    refuses(small(True), "share", swapping(small(True), advert), "not signed by the client")

    opening = small(True).asked(Opening, "open", 0)
    masked = small(True).kept(Masked, "seal", 0)
    text = survivors_text(elsewhere, masked.setup_digest, masked.sharers, opening.clients)
    request = altered(opening, signatures={**opening.signatures, 3: identity(3).sign(text)})
    refuses(small(True), "open", request, "does not belong to the roster's key")


def test_ones_own_advert_comes_back_unaltered_or_not_at_all() -> None:
    own, *others = adverts_of(small(False))
    for wrong in (
        altered(own, cipher_key=new_key()),
        altered(own, mask_key=new_key()),
        altered(own, commitment=b"x"),
        altered(own, signature=b"x"),
    ):
        refuses(small(False), "share", swapping(small(False), wrong), "own keys were altered")
    refuses(small(False), "share", offering(small(False), others), "altered or left out")


def test_adverts_are_a_sorted_list_of_enough_different_clients() -> None:
    """Ten clients, of which eight must be there."""
    adverts = adverts_of(small(False))
    stranger = Advert(10, new_key(), new_key(), b"", b"")
    for wrong in (
        adverts[::-1],
        [*adverts, altered(stranger, client=9)],
        [*adverts, stranger],
        [altered(stranger, client=-1), *adverts],
    ):
        request = offering(small(False), wrong)
        refuses(small(False), "share", request, "not a sorted list of different clients")
    refuses(small(False), "share", offering(small(False), adverts[:7]), "7 clients advertised keys")
    refuses(small(False), "share", Setup(b"junk", ()), "cannot be read")


def test_keys_that_are_used_twice_are_refused() -> None:
    me, one, two, *_ = adverts_of(small(False))
    for wrong in (
        altered(two, cipher_key=one.cipher_key),
        altered(two, mask_key=one.mask_key),
        altered(two, mask_key=one.cipher_key),
        altered(two, mask_key=two.cipher_key),
        altered(two, mask_key=me.mask_key),
    ):
        refuses(small(False), "share", swapping(small(False), wrong), "two adverts share a key")


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"", bytes(31), bytes(33)])
def test_keys_of_small_order_and_of_other_sizes_are_refused(key: bytes) -> None:
    """With a key of small order the agreed secret would be the same for everybody."""
    real = adverts_of(small(False))[3]
    for weak in (altered(real, cipher_key=key), altered(real, mask_key=key)):
        refuses(small(False), "share", swapping(small(False), weak), "not a valid X25519 key")


def test_withheld_or_invented_boxes_are_refused() -> None:
    """Masks left out would open smaller sums; on the graph neighbours only are looked after."""
    for rehearsal in (small(False), wide()):
        delivery = rehearsal.asked(Delivery, "seal", 0)
        boxes, first = delivery.boxes, min(delivery.boxes)
        without = {other: box for other, box in boxes.items() if other != first}
        far = next(client for client in range(1, 70) if client not in boxes)
        for wrong in (
            altered(delivery, boxes=without),
            altered(delivery, boxes={}),
            altered(delivery, boxes={**boxes, far: boxes[first]}),
            altered(delivery, boxes={**boxes, 0: boxes[first]}),
            altered(delivery, boxes={**without, far: boxes[first]}),
            altered(delivery, sharers=tuple(c for c in delivery.sharers if c != first)),
        ):
            refuses(rehearsal, "seal", wrong, "withheld, or came from no neighbour")


def test_sharers_are_a_sorted_list_of_different_members_with_me() -> None:
    delivery = small(False).asked(Delivery, "seal", 0)
    sharers = delivery.sharers
    for wrong in (sharers[::-1], (*sharers, 9), (*sharers, 10), (-1, *sharers)):
        request = altered(delivery, sharers=wrong)
        refuses(small(False), "seal", request, "sharers are not a sorted list of different")
    request = altered(delivery, sharers=sharers[1:])
    refuses(small(False), "seal", request, "sharers lack this client")


def test_boxes_open_unaltered_and_in_their_place_only() -> None:
    rehearsal = small(False)
    delivery = rehearsal.asked(Delivery, "seal", 0)
    key, box = rehearsal.kept(Shared, "share", 0).box_keys[3], delivery.boxes[3]
    here, elsewhere = rehearsal.around.describe(), round_of(10, session=b"elsewhere").describe()
    text = crypto.unseal(key, box, here + b" 3 0")
    asked = replace(rehearsal.around, question=b"another question").describe()
    for wrong in (
        bytes([box[0] ^ 1]) + box[1:],
        box[:20] + bytes([box[20] ^ 1]) + box[21:],
        box[:-1] + bytes([box[-1] ^ 128]),
        box[:-1],
        box + b"\0",
        box[:12],
        box[:5],
        b"",
        delivery.boxes[4],
        rehearsal.asked(Delivery, "seal", 1).boxes[3],
        rehearsal.answered(Shares, "share", 0).boxes[3],
        crypto.seal(key, text, here + b" 0 3"),
        crypto.seal(key, text, elsewhere + b" 3 0"),
        crypto.seal(key, text, asked + b" 3 0"),
        crypto.seal(bytes(32), text, here + b" 3 0"),
    ):
        request = altered(delivery, boxes={**delivery.boxes, 3: wrong})
        refuses(rehearsal, "seal", request, "does not open with this key in this context|[Nn]once")
    for size in (0, 65, 67):
        wrong = crypto.seal(key, bytes(size), here + b" 3 0")
        request = altered(delivery, boxes={**delivery.boxes, 3: wrong})
        refuses(rehearsal, "seal", request, "does not hold two shares")


@pytest.mark.parametrize("with_roster", [False, True])
def test_survivors_are_a_sorted_list_of_enough_sharers_with_me(with_roster: bool) -> None:
    """Nine shared and eight are needed."""
    everyone = tuple(range(9))
    refusals = {
        "survivors are not a sorted list of different": (
            everyone[::-1],
            (0, *everyone),
            (*everyone, 8),
            (*everyone, 10),
            (*everyone, 2**63),
            (-1, *everyone),
            (1, 0, *everyone[2:]),
        ),
        "survivors lack this client": (everyone[1:], ()),
        "survivors; below 8 ": (everyone[:7], (0,)),
    }
    for because, lists in refusals.items():
        for survivors in lists:
            refuses(small(with_roster), *naming(with_roster, survivors), because)


def test_neighbours_that_signed_other_sharers_are_not_confirmed() -> None:
    """Ten shared; client 3 signs as if it had been told of nine."""
    rehearsal = small(True)
    survivors, masked = rehearsal.asked(Survivors, "confirm", 0), rehearsal.kept(Masked, "seal", 0)
    others = sharers_text(rehearsal.around, masked.setup_digest, masked.sharers[:-1])
    forged = sharers_text(rehearsal.around, masked.setup_digest, masked.sharers)
    missing = {c: sig for c, sig in survivors.signatures.items() if c != 3}
    for signatures in (
        {},
        missing,
        {**survivors.signatures, 3: identity(3).sign(others)},
        {**survivors.signatures, 3: identity(4).sign(forged)},
        {**survivors.signatures, 9: identity(9).sign(forged)},
    ):
        request = altered(survivors, signatures=signatures)
        refuses(rehearsal, "confirm", request, "did not sign the same sharers")


def test_no_second_list_of_survivors_is_confirmed_or_opened() -> None:
    everyone, fewer = tuple(range(9)), tuple(range(8))
    unsigned, signed = small(False), small(True)
    for request in (Opening(fewer, {}), Opening(everyone, {})):
        with pytest.raises(Refused, match="does not follow 'Done'"):
            unsigned.participants[0].step(unsigned.exchange("open", 0).after, pack(request))
    refuses(signed, "open", Survivors(fewer, {}), "does not follow 'Confirmed'")
    masked = signed.kept(Masked, "seal", 0)
    text = survivors_text(signed.around, masked.setup_digest, masked.sharers, fewer)
    opening = Opening(fewer, {client: identity(client).sign(text) for client in fewer})
    refuses(signed, "open", opening, "not those that this client confirmed")
    refuses(signed, "confirm", opening, "does not follow 'Masked'")


def test_a_roster_is_not_asked_for_unsigned_openings() -> None:
    """A client without a roster, conversely, signs nothing."""
    everyone = tuple(range(9))
    refuses(small(True), "confirm", Opening(everyone, {}), "does not follow 'Masked'")
    refuses(small(False), "open", Survivors(everyone, {}), "does not follow 'Masked'")


def test_openings_need_enough_genuine_signatures_of_survivors() -> None:
    """Nine survived and eight must sign."""
    opening = small(True).asked(Opening, "open", 0)
    masked = small(True).kept(Masked, "seal", 0)
    setup, sharers, survivors = masked.setup_digest, masked.sharers, opening.clients
    text = partial(survivors_text, small(True).around)
    genuine = opening.signatures
    assert len(genuine) == 9
    seven = {client: genuine[client] for client in range(1, 8)}
    for few in (seven, {}):
        request = altered(opening, signatures=few)
        refuses(
            small(True), "open", request, f"{len(few)} clients signed the survivors; needed are 8"
        )
    eight = pack(altered(opening, signatures={**seven, 8: genuine[8]}))
    state = small(True).exchange("open", 0).before
    assert small(True).participants[0].step(state, eight).state == pack(Done())

    for forged in (
        b"",
        bytes(64),
        genuine[4],
        identity(4).sign(text(setup, sharers, survivors)),
        identity(3).sign(text(setup, sharers, survivors[:-1])),
        identity(3).sign(text(setup, survivors, survivors)),
        identity(3).sign(text(bytes(32), sharers, survivors)),
    ):
        request = altered(opening, signatures={**genuine, 3: forged})
        refuses(small(True), "open", request, "does not belong to the roster's key")
    dropped = {**seven, 9: identity(9).sign(text(setup, sharers, survivors))}
    request = altered(opening, signatures=dropped)
    refuses(small(True), "open", request, "from a client that did not survive")


def test_a_client_with_a_roster_but_no_key_confirms_nothing() -> None:
    keyless = MaskedParticipant(small(True).around, 0, None, small(True).roster)
    exchange = small(True).exchange("confirm", 0)
    with pytest.raises(Refused, match="no key to sign with"):
        keyless.step(exchange.before, exchange.request)


def test_randomness_is_revealed_for_one_set_of_adverts_only() -> None:
    setup = wide().asked(Setup, "share", 0)
    fewer = pack(tuple(adverts_of(wide())[:-1]))
    refuses(wide(), "share", Setup(fewer, setup.reveals[:-1]), "not those for which")
    refuses(wide(), "share", Adverts(fewer), "does not follow 'Revealed'")
    refuses(wide(), "reveal", setup, "not those for which")
    swapped = (setup.reveals[1], setup.reveals[0], *setup.reveals[2:])
    for reveals in (swapped, setup.reveals[1:], (), (*setup.reveals[:-1], bytes(32))):
        refuses(wide(), "share", altered(setup, reveals=reveals), "not what was committed to")


def test_attempts_only_move_on_and_end() -> None:
    """Before and after revealing a client starts anew, with fresh keys, at attempts 1 to 3."""
    for stage in ("reveal", "share"):
        for attempt in (-1, 0, 4, 5, 2**40):
            refuses(wide(), stage, Again(attempt), f"attempt {attempt} of the set-up")
    for stage in STAGES[1:]:
        refuses(small(True), stage, Again(1), "attempt 1 of the set-up|does not follow")
    for stage in STAGES[2:]:
        refuses(wide(), stage, Again(1), "does not follow")

    state = wide().exchange("share", 0).before
    seen = [wide().kept(Revealed, "reveal", 0).advertised]
    for attempt in (1, 2, 3):
        state = wide().participants[0].step(state, pack(Again(attempt))).state
        again = unpack_state(state)
        assert isinstance(again, Advertised)
        seen.append(again)
        for stale in range(attempt + 1):
            with pytest.raises(Refused, match=f"attempt {stale} of the set-up"):
                wide().participants[0].step(state, pack(Again(stale)))
    assert len({s for a in seen for s in (a.cipher_secret, a.mask_secret, a.randomness)}) == 12
    assert {advertised.vector for advertised in seen} == {seen[0].vector}

    later = pack((seen[1].advert, *adverts_of(wide())[1:]))
    refuses(wide(), "reveal", Adverts(later), "not signed by the client", client=1)


def test_a_client_seals_nothing_without_enough_neighbours() -> None:
    """From 400 clients on (drop-out 0.1, degree 38, 40 may be missing) a server can name sharers
    to one client that include none of its neighbours. Sealed under its own mask alone, which its
    neighbours, told other sharers, would open, that client's vector would be the server's.
    """
    around = round_of(400)
    participants = [MaskedParticipant(around, me) for me in range(400)]
    steps = [participant.begin(np.zeros(5, np.int64)) for participant in participants]
    advertised = [msgspec.msgpack.decode(step.state, type=Advertised) for step in steps]
    adverts = pack(tuple(state.advert for state in advertised))
    revealed = participants[0].step(steps[0].state, pack(Adverts(adverts)))
    setup = Setup(adverts, tuple(state.randomness for state in advertised))
    shared = participants[0].step(revealed.state, pack(setup))
    near = sorted(msgspec.msgpack.decode(shared.reply, type=Shares).boxes)
    assert len(near) == 38
    boxes = {}
    for other in near[:22]:
        state = participants[other].step(steps[other].state, pack(Adverts(adverts))).state
        reply = participants[other].step(state, pack(setup)).reply
        boxes[other] = msgspec.msgpack.decode(reply, type=Shares).boxes[0]

    def delivery(count: int) -> bytes:
        left = near[:count]
        sharers = tuple(c for c in range(400) if c not in near or c in left)
        return pack(Delivery(sharers, {other: boxes[other] for other in left}))

    for count in (0, 1, 21):
        with pytest.raises(Refused, match=f"only {count} neighbours shared; with fewer than 22"):
            participants[0].step(shared.state, delivery(count))
    assert participants[0].step(shared.state, delivery(22)).releases
