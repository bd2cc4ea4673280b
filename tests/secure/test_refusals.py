"""No step for a hostile server: what clients refuse, keeping their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from tacit.secure import crypto
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import (
    Advert,
    Complaints,
    Confirmation,
    Confirmed,
    Delivered,
    Delivery,
    Done,
    Explained,
    Final,
    Masked,
    Opened,
    Opening,
    Received,
    Sealed,
    Setup,
    Shared,
    Shares,
    Survivors,
    pack,
    unpack_reply,
    unpack_request,
    unpack_state,
)
from tacit.secure.protocol import Refused, Round
from tacit.secure.setup import (
    Members,
    box_context,
    complaint_text,
    final_digest,
    packed,
    parcel_digest,
    sealed_text,
    survivors_text,
    vector_digest,
)
from tests.secure.driver import Rehearsal, identity, roster_of, round_of
from tests.secure.rounds import (
    STAGES,
    adverts_of,
    disputed,
    forty,
    naming,
    nested,
    new_key,
    quick_rings,
    refuses,
    sixty,
    small,
)


@pytest.fixture
def rings() -> Iterator[None]:
    with quick_rings():
        yield


def offering(adverts: Iterable[Advert]) -> Setup:
    return Setup(pack(tuple(adverts)))


def swapping(rehearsal: Rehearsal, advert: Advert) -> Setup:
    """The set-up of a round, with another advert of one client."""
    adverts = adverts_of(rehearsal)
    return offering(advert if a.client == advert.client else a for a in adverts)


@pytest.mark.usefixtures("rings")
@pytest.mark.parametrize("client", [0, 6])
@pytest.mark.parametrize(
    "rehearse",
    [partial(small, False), partial(small, True), forty, partial(disputed, True)],
    ids=["without a roster", "roster", "ring", "complaints"],
)
def test_messages_come_once_and_in_order(rehearse: Callable[[], Rehearsal], client: int) -> None:
    """Every state against every message of the round: replays, leaps, steps back, afterthoughts."""
    rehearsal = rehearse()
    client = 5 if rehearsal is disputed(True) and client else client
    exchanges = [e for e in rehearsal.exchanges if e.client == client]
    assert len({exchange.after for exchange in exchanges}) == len(exchanges) >= 5
    for place, exchange in enumerate(exchanges):
        for later, other in enumerate(exchanges):
            if later == place + 1 or (exchange.stage, other.stage) == ("deliver", "seal"):
                continue  # complaints need not be asked about
            with pytest.raises(Refused):
                rehearsal.participants[client].step(exchange.after, other.request)


ANYTHING = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.integers(0, 9), part),
    max_leaves=6,
)


MESSAGE_LIKE = st.builds(
    lambda tag, fields: msgspec.msgpack.encode([tag, *fields]),
    st.integers(0, 50),
    st.lists(ANYTHING, max_size=3),
)


@settings(deadline=None, max_examples=200)
@given(stage=st.sampled_from(STAGES[1:]), request=st.binary(max_size=200) | MESSAGE_LIKE)
def test_bytes_that_are_no_message_are_refused(stage: str, request: bytes) -> None:
    assume(request != pack(Complaints({})))  # that nobody complains is a message
    with pytest.raises(Refused):
        small(True).participants[0].step(small(True).exchange(stage, 0).before, request)


def old_messages() -> list[Any]:
    """Messages of the first protocol, by their tags 1 to 12; where there can be, with our parts."""
    key, signature = new_key(), identity(3).sign(b"")
    adverts = msgspec.msgpack.encode([[1, client, key, key, b"", signature] for client in range(9)])
    clients, boxes = list(range(9)), {client: bytes(160) for client in range(1, 9)}
    return [
        [1, 3, key, key, b"", signature],
        [2, 1],
        [3, adverts],
        [4, bytes(32)],
        [5, adverts, []],
        [6, boxes],
        [7, clients, boxes],
        [8, bytes(64), signature],
        [9, clients, dict.fromkeys(clients, signature)],
        [10, signature],
        [11, clients, dict.fromkeys(clients, signature)],
        [12, boxes, {}],
        [5, small(True).asked(Setup, "share", 0).adverts, []],
        [7, list(small(True).asked(Delivery, "deliver", 0).sharers), {}],
        [11, clients, small(True).asked(Opening, "open", 0).signatures],
    ]


def test_messages_of_the_first_protocol_are_never_misread() -> None:
    """Neither by a client, whatever it waits for, nor by a server."""
    replies = Advert, Shares, Received, Explained, Sealed, Confirmation, Opened
    for message in map(msgspec.msgpack.encode, old_messages()):
        for stage in STAGES[1:]:
            refuses(small(True), stage, message, "cannot be read")
            with pytest.raises(Refused, match="cannot be read"):
                small(True).participants[0].step(message, small(True).exchange(stage, 0).request)
        assert [unpack_reply(kind, message) for kind in replies] == [None] * len(replies)
    new = [msgspec.msgpack.decode(e.reply)[0] for e in small(True).exchanges]
    new += [msgspec.msgpack.decode(e.request)[0] for e in small(True).exchanges if e.request]
    new += [msgspec.msgpack.decode(e.after)[0] for e in small(True).exchanges]
    assert min(new) > 12


def flipped(message: bytes, data: st.DataObject) -> bytes:
    found = bytearray(message)
    found[data.draw(st.integers(0, len(found) - 1))] ^= data.draw(st.integers(1, 255))
    return bytes(found)


@settings(deadline=None, max_examples=200)
@given(stage=st.sampled_from(["share", "seal", "confirm"]), data=st.data())
def test_with_a_roster_no_byte_of_a_set_up_or_a_list_can_be_altered(
    stage: str, data: st.DataObject
) -> None:
    """The digest of all vectors is nothing that a client can check: it opens under no other one."""
    exchange, me = small(True).exchange(stage, 0), small(True).participants[0]
    request = flipped(exchange.request, data)
    try:
        following = me.step(exchange.before, request).state
    except Refused:
        return
    told, sent = unpack_request(request), unpack_request(exchange.request)
    assert isinstance(told, Survivors)
    assert isinstance(sent, Survivors)
    assert altered(told, contents=sent.contents) == sent
    with pytest.raises(Refused, match="signature over the survivors does not belong"):
        me.step(following, small(True).exchange("open", 0).request)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_with_a_roster_no_byte_of_a_parcel_can_be_altered_without_a_complaint(
    data: st.DataObject,
) -> None:
    """Whoever gets an altered parcel signs what it got, and does not seal with that dealer."""
    rehearsal, me = small(True), small(True).participants[0]
    exchange = rehearsal.exchange("deliver", 0)
    request = flipped(exchange.request, data)
    try:
        step = me.step(exchange.before, request)
    except Refused:
        return
    honest = rehearsal.asked(Delivery, "deliver", 0)
    delivery, received = unpack_request(request), unpack_reply(Received, step.reply)
    assert isinstance(delivery, Delivery)
    assert received is not None
    wrong = {c for c, parcel in delivery.parcels.items() if parcel != honest.parcels[c]}
    assert delivery.sharers == honest.sharers
    assert received.complaints.keys() == wrong != set()
    setup = rehearsal.kept(Shared, "share", 0).setup_digest
    for dealer in wrong:
        text = complaint_text(setup, dealer, 0, parcel_digest(delivery.parcels[dealer]))
        assert roster_of(10).confirms(0, text, received.complaints[dealer])
    with pytest.raises(Refused, match="shares were not in order"):
        me.step(step.state, rehearsal.exchange("seal", 0).request)
    left = tuple(client for client in range(10) if client not in wrong)
    assert me.step(step.state, pack(Final(left))).members == left


@pytest.mark.parametrize("state", [b"", b"junk", pack(Complaints({})), pack(Done())])
def test_a_lost_or_foreign_state_answers_nothing(state: bytes) -> None:
    for stage in STAGES[1:]:
        with pytest.raises(Refused):
            small(True).participants[0].step(state, small(True).exchange(stage, 0).request)


def test_deeply_nested_requests_are_refused() -> None:
    refuses(small(False), "share", nested(pack(Complaints({}))), "cannot be read")


def test_a_swapped_key_is_refused() -> None:
    """The server passes off keys of its own as client 3's; only the roster can tell."""
    real = adverts_of(small(True))[3]
    for swapped in (
        altered(real, box_key=new_key()),
        altered(real, mask_key=new_key()),
        altered(real, box_key=real.mask_key, mask_key=real.box_key),
        altered(real, signature=b""),
        altered(adverts_of(small(True))[9], client=3, mask_key=new_key(), box_key=new_key()),
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
        replace(round_of(10, dropout=0.2, length=16), sparse=(-9, 3)),
    ],
    ids=["session", "length", "bits", "dropout", "colluding", "clients", "question", "bounds"],
)
def test_adverts_and_signatures_of_another_round_are_refused(elsewhere: Round) -> None:
    other = MaskedParticipant(elsewhere, 3, identity(3), roster_of(10))
    advert = unpack_reply(Advert, other.begin(np.zeros(elsewhere.length, np.int64)).reply)
    assert advert is not None
    refuses(small(True), "share", swapping(small(True), advert), "not signed by the client")

    adverts = {advert.client: advert for advert in adverts_of(small(True))}
    final = final_digest(
        Members.of(elsewhere, packed(adverts), adverts).digest,
        small(True).kept(Masked, "seal", 0).members,
    )
    opening = small(True).asked(Opening, "open", 0)
    contents = small(True).kept(Confirmed, "confirm", 0).contents
    signature = identity(3).sign(survivors_text(final, opening.clients, contents))
    request: Opening | Survivors = altered(opening, signatures={**opening.signatures, 3: signature})
    refuses(small(True), "open", request, "does not belong to the roster's key")
    survivors = small(True).asked(Survivors, "confirm", 0)
    vector, _ = survivors.seals[3]
    seal = vector, identity(3).sign(sealed_text(final, 3, vector))
    request = altered(survivors, seals={**survivors.seals, 3: seal})
    refuses(small(True), "confirm", request, "for the same members")


def test_ones_own_advert_comes_back_unaltered_or_not_at_all() -> None:
    own, *others = adverts_of(small(False))
    for wrong in (
        altered(own, box_key=new_key()),
        altered(own, mask_key=new_key()),
        altered(own, signature=b"x"),
    ):
        refuses(small(False), "share", swapping(small(False), wrong), "own keys were altered")
    refuses(small(False), "share", offering(others), "altered or left out")


def test_adverts_are_a_sorted_list_of_enough_different_clients() -> None:
    """Ten clients, of which eight must be there."""
    adverts = adverts_of(small(False))
    stranger = Advert(10, new_key(), new_key(), b"")
    for wrong in (
        adverts[::-1],
        [*adverts, altered(stranger, client=9)],
        [*adverts, stranger],
        [altered(stranger, client=-1), *adverts],
    ):
        refuses(small(False), "share", offering(wrong), "not a sorted list of different clients")
    refuses(small(False), "share", offering(adverts[:7]), "7 clients advertised keys")
    refuses(small(False), "share", Setup(b"junk"), "cannot be read")


def test_keys_that_are_used_twice_are_refused() -> None:
    me, one, two, *_ = adverts_of(small(False))
    for wrong in (
        altered(two, box_key=one.box_key),
        altered(two, mask_key=one.mask_key),
        altered(two, mask_key=one.box_key),
        altered(two, mask_key=two.box_key),
        altered(two, mask_key=me.mask_key),
    ):
        refuses(small(False), "share", swapping(small(False), wrong), "two adverts share a key")


FIELD = 2**255 - 19
SMALL_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    FIELD - 1,
    FIELD,
    FIELD + 1,
]
"""All points of order 1, 2, 4 and 8 on the curve and its twist, with their other spellings."""


def as_key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def refuses_key(key: bytes) -> None:
    real = adverts_of(small(False))[3]
    for weak in (altered(real, box_key=key), altered(real, mask_key=key)):
        refuses(small(False), "share", swapping(small(False), weak), "not a valid X25519 key")


@pytest.mark.parametrize("top_bit", [0, 2**255])
@pytest.mark.parametrize("number", SMALL_ORDER)
def test_keys_of_small_order_are_refused(number: int, top_bit: int) -> None:
    """With a key of small order the agreed secret would be the same for everybody."""
    key = as_key(number | top_bit)
    with pytest.raises(ValueError, match="shared key"):
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    refuses_key(key)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), b"\x09" + bytes(32)])
def test_keys_of_other_sizes_are_refused(key: bytes) -> None:
    refuses_key(key)


def test_keys_in_another_spelling_are_refused() -> None:
    """Everybody agrees with them on the same secrets as with the key they were copied from."""
    other = adverts_of(small(False))[4]
    spellings = [(number, number + FIELD) for number in range(2, 19)]
    spellings += [(number, number | 2**255) for number in (9, FIELD - 2)]
    copied = int.from_bytes(other.mask_key, "little")
    for plain, spelled in [*spellings, (copied, copied | 2**255)]:
        secret = crypto.fresh()
        assert crypto.agree(secret, as_key(plain)) == crypto.agree(secret, as_key(spelled))
        refuses_key(as_key(spelled))
    assert crypto.is_public_key(as_key(9)), "as a control"
    assert crypto.is_public_key(as_key(FIELD - 2))


@pytest.mark.usefixtures("rings")
@pytest.mark.parametrize("rehearse", [partial(small, False), forty])
def test_withheld_or_invented_parcels_are_refused(rehearse: Callable[[], Rehearsal]) -> None:
    """Masks left out would open smaller sums; on a ring neighbours only are looked after."""
    rehearsal = rehearse()
    delivery = rehearsal.asked(Delivery, "deliver", 0)
    parcels, first = delivery.parcels, min(delivery.parcels)
    without = {other: parcel for other, parcel in parcels.items() if other != first}
    far = next(client for client in range(1, 40) if client not in parcels)
    for wrong in (
        altered(delivery, parcels=without),
        altered(delivery, parcels={}),
        altered(delivery, parcels={**parcels, far: parcels[first]}),
        altered(delivery, parcels={**parcels, 0: parcels[first]}),
        altered(delivery, parcels={**without, far: parcels[first]}),
        altered(delivery, sharers=tuple(c for c in delivery.sharers if c != first)),
    ):
        refuses(rehearsal, "deliver", wrong, "withheld, or came from no neighbour")


@pytest.mark.parametrize(("stage", "name"), [("deliver", "sharers"), ("seal", "members")])
def test_sharers_and_members_are_sorted_lists_of_different_clients_with_me(
    stage: str, name: str
) -> None:
    request = unpack_request(small(False).exchange(stage, 0).request)
    clients = tuple(range(10))
    assert getattr(request, name) == clients
    for wrong in (
        clients[::-1],
        (*clients, 9),
        (*clients, 10),
        (-1, *clients),
        (0, *clients),
        (*clients, 2**63),
        (1, 0, *clients[2:]),
    ):
        lists: Any = altered(request, **{name: wrong})
        refuses(small(False), stage, lists, f"{name} are not a sorted list of different")
    lists = altered(request, **{name: clients[1:]})
    refuses(small(False), stage, lists, f"{name} lack this client")


def test_members_are_sharers() -> None:
    """Nine shared; whoever did not has no mask with anybody."""
    rehearsal = Rehearsal(round_of(10, dropout=0.2), dropouts={9: "share"})
    rehearsal.total()
    assert rehearsal.asked(Delivery, "deliver", 0).sharers == tuple(range(9))
    refuses(rehearsal, "seal", Final(tuple(range(10))), "members are not a sorted list")
    assert 9 in rehearsal.kept(Shared, "share", 0).pair_keys, "as a control"


@pytest.mark.usefixtures("rings")
def test_lists_that_leave_a_part_of_the_ring_thin_are_refused() -> None:
    """Twelve may be missing, but not twelve of eighteen in a row, where six might collude."""
    rehearsal = sixty()
    order = rehearsal.kept(Shared, "share", 0).order
    place = order.index(0)
    ring = order[place:] + order[:place]

    def listed(gone: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(set(range(60)) - set(gone)))

    delivery = rehearsal.asked(Delivery, "deliver", 0)

    def delivered(sharers: tuple[int, ...]) -> Delivery:
        return Delivery(sharers, {c: p for c, p in delivery.parcels.items() if c in sharers})

    for start in (1, 20, 48):
        thin = listed(ring[start : start + 12])
        because = "some 18 places in a row hold 6 {} or fewer"
        refuses(rehearsal, "deliver", delivered(thin), because.format("sharers"))
        refuses(rehearsal, "seal", Final(thin), because.format("members"))
        refuses(rehearsal, "confirm", Survivors(thin, {}, b""), because.format("survivors"))
    me = rehearsal.participants[0]
    for gone in (ring[1:12], ring[2::5]):
        enough = listed(gone)
        me.step(rehearsal.exchange("deliver", 0).before, pack(delivered(enough)))
        me.step(rehearsal.exchange("seal", 0).before, pack(Final(enough)))


def test_boxes_open_unaltered_and_in_their_place_only() -> None:
    """What is in a box that was made for another place, round or question is complained about."""
    rehearsal = small(True)
    delivery, shared = rehearsal.asked(Delivery, "deliver", 0), rehearsal.kept(Shared, "share", 0)
    parcel, setup = delivery.parcels[3], shared.setup_digest
    receiver = rehearsal.answered(Advert, "advertise", 0).box_key
    text = crypto.Receiver(shared.box_secret).unseal(parcel.box, box_context(setup, 3, 0))
    adverts = {advert.client: advert for advert in adverts_of(rehearsal)}
    asked = replace(rehearsal.around, question=b"another question")
    elsewhere = Members.of(asked, packed(adverts), adverts).digest

    def sealed(text: bytes, context: bytes, to: bytes = receiver) -> bytes:
        return crypto.seal(crypto.fresh(), to, text, context)

    def complains(box: bytes) -> bool:
        wrong = altered(parcel, box=box)
        request = altered(delivery, parcels={**delivery.parcels, 3: wrong})
        step = rehearsal.participants[0].step(
            rehearsal.exchange("deliver", 0).before, pack(request)
        )
        received, state = unpack_reply(Received, step.reply), unpack_state(step.state)
        assert received is not None
        assert isinstance(state, Delivered)
        assert (3 in state.held) == (not received.complaints)
        return received.complaints.keys() == {3}

    assert not complains(parcel.box), "as a control"
    assert not complains(sealed(text, box_context(setup, 3, 0))), "as a control"
    box, here = parcel.box, box_context(setup, 3, 0)
    for wrong in (
        bytes([box[0] ^ 1]) + box[1:],
        box[:40] + bytes([box[40] ^ 1]) + box[41:],
        box[:-1] + bytes([box[-1] ^ 128]),
        box[:-1],
        box + b"\0",
        box[:47],
        box[:32],
        box[:5],
        b"",
        bytes(len(box)),
        delivery.parcels[4].box,
        rehearsal.asked(Delivery, "deliver", 1).parcels[3].box,
        rehearsal.answered(Shares, "share", 0).boxes[3],
        sealed(text, box_context(setup, 0, 3)),
        sealed(text, box_context(setup, 4, 0)),
        sealed(text, box_context(elsewhere, 3, 0)),
        sealed(text, here, to=new_key()),
        *(sealed(bytes(size), here) for size in (0, 65, 131, 132, 133)),
        sealed(text[66:] + text[:66], here),
        sealed(text + b"\0", here),
        sealed(text[:-1], here),
    ):
        assert complains(wrong)


def complaint(
    dealer: int, holder: int, found: bytes | None = None, signer: int | None = None
) -> tuple[bytes, bytes]:
    """What client ``holder`` says in a disputed round about the parcel of a dealer."""
    shared = disputed(True).kept(Shared, "share", dealer)
    digest = shared.parcels[holder] if found is None else found
    text = complaint_text(shared.setup_digest, dealer, holder, digest)
    return digest, identity(holder if signer is None else signer).sign(text)


def test_a_dealer_explains_what_it_made_and_nothing_else() -> None:
    """Complaints about forgeries would have honest clients help to collect a dealer's shares."""
    rehearsal = disputed(True)
    honest = rehearsal.asked(Complaints, "explain", 5).complaints
    assert honest == {2: complaint(5, 2)}, "as a control"
    digest, signature = honest[2]
    for wrong in (
        {2: complaint(5, 2, found=bytes(32))},
        {2: complaint(5, 2, found=b"")},
        {2: complaint(5, 2, found=rehearsal.kept(Shared, "share", 5).parcels[3])},
        {3: (digest, signature)},
        {5: complaint(5, 5, found=digest)},
        {99: (digest, signature)},
        {-1: (digest, signature)},
        {**honest, 3: complaint(5, 3, found=bytes(32))},
    ):
        refuses(rehearsal, "explain", Complaints(wrong), "that this client did not make", client=5)


@pytest.mark.usefixtures("rings")
def test_a_dealer_explains_nothing_to_clients_that_are_no_neighbours() -> None:
    shared = forty().kept(Shared, "share", 0)
    far = next(client for client in range(1, 40) if client not in shared.parcels)
    for found in (b"", *shared.parcels.values()):
        text = complaint_text(shared.setup_digest, 0, far, found)
        request = Complaints({far: (found, identity(far).sign(text))})
        refuses(forty(), "seal", request, "that this client did not make")


def test_a_dealer_explains_complaints_of_the_roster_only() -> None:
    rehearsal = disputed(True)
    digest, genuine = complaint(5, 2)
    for forged in (
        b"",
        bytes(64),
        complaint(5, 2, signer=3)[1],
        complaint(5, 3)[1],
        complaint(4, 2, found=digest)[1],
        complaint(5, 2, found=bytes(32))[1],
        genuine[:-1] + bytes([genuine[-1] ^ 1]),
    ):
        request = Complaints({2: (digest, forged)})
        refuses(rehearsal, "explain", request, "complaint is not signed by the client", client=5)


def test_a_dealer_explains_fewer_boxes_than_recover_its_secrets() -> None:
    """Of seven clients any four recover a secret."""
    rehearsal, state = disputed(True), disputed(True).exchange("explain", 5).before
    for holders in ((0, 1, 2, 3), (0, 1, 2, 3, 4, 6)):
        request = Complaints({holder: complaint(5, holder) for holder in holders})
        because = f"{len(holders)} clients complain; with 4 shares"
        refuses(rehearsal, "explain", request, because, client=5)
    three = Complaints({holder: complaint(5, holder) for holder in (0, 1, 2)})
    step = rehearsal.participants[5].step(state, pack(three))
    with pytest.raises(Refused, match="'Complaints' does not follow 'Delivered'"):
        rehearsal.participants[5].step(step.state, pack(Complaints({6: complaint(5, 6)})))
    explained = unpack_reply(Explained, step.reply)
    assert explained is not None
    assert explained.secrets.keys() == {0, 1, 2}


def test_nothing_is_explained_before_or_after_its_time() -> None:
    request = Complaints({2: complaint(5, 2)})
    for stage in ("share", "deliver", "confirm", "open"):
        refuses(disputed(True), stage, request, "'Complaints' does not follow", client=5)


def test_whoever_complained_does_not_seal_with_that_dealer() -> None:
    """Client 2 has no share of client 5, so it could not help to open its mask."""
    rehearsal, me = disputed(True), disputed(True).participants[2]
    state = rehearsal.exchange("deliver", 2).after
    with pytest.raises(Refused, match="a member's shares were not in order"):
        me.step(state, pack(Final(tuple(range(7)))))
    others = (0, 1, 2, 3, 4, 6)
    assert me.step(state, pack(Final(others))).members == others


@pytest.mark.parametrize("with_roster", [False, True])
def test_survivors_are_a_sorted_list_of_enough_members_with_me(with_roster: bool) -> None:
    """Ten are members, nine sealed and eight are needed."""
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


def test_survivors_are_members() -> None:
    """Client 2 was left out, so nobody gives shares of it away."""
    for with_roster in (False, True):
        lists = naming(with_roster, tuple(range(7)))
        refuses(disputed(with_roster), *lists, "survivors are not a sorted list of different")


def test_neighbours_that_sealed_for_other_members_or_another_vector_are_not_confirmed() -> None:
    """Ten are members; client 3 signs as if it had been told of nine, or another vector."""
    rehearsal = small(True)
    survivors, masked = rehearsal.asked(Survivors, "confirm", 0), rehearsal.kept(Masked, "seal", 0)
    seals, (vector, signature) = survivors.seals, survivors.seals[3]
    assert vector == vector_digest(rehearsal.answered(Sealed, "seal", 3).vector)
    setup = masked.setup_digest
    final, fewer = final_digest(setup, masked.members), final_digest(setup, masked.members[:-1])

    def signed(by: int, final: bytes, client: int = 3, vector: bytes = vector) -> bytes:
        return identity(by).sign(sealed_text(final, client, vector))

    assert signed(3, final) == signature, "as a control"
    for wrong in (
        {},
        {client: seal for client, seal in seals.items() if client != 3},
        {**seals, 3: (vector, signed(3, fewer))},
        {**seals, 3: (vector, signed(4, final))},
        {**seals, 3: (vector, signed(3, final, client=4))},
        {**seals, 3: (vector, signed(3, final_digest(bytes(32), masked.members)))},
        {**seals, 3: (bytes(32), signature)},
        {**seals, 3: (seals[4][0], signature)},
        {**seals, 3: seals[4]},
        {**seals, 3: (vector, b"")},
        {**seals, 0: seals[3]},
        {**seals, 9: (vector, signed(9, final, client=9))},
    ):
        request = altered(survivors, seals=wrong)
        refuses(rehearsal, "confirm", request, "did not seal its vector for the same members")


def test_no_second_list_of_survivors_is_confirmed_or_opened() -> None:
    everyone, fewer = tuple(range(9)), tuple(range(8))
    unsigned, signed = small(False), small(True)
    for request in (Opening(fewer, {}), Opening(everyone, {})):
        with pytest.raises(Refused, match="does not follow 'Done'"):
            unsigned.participants[0].step(unsigned.exchange("open", 0).after, pack(request))
    refuses(signed, "open", Survivors(fewer, {}, b""), "does not follow 'Confirmed'")
    masked = signed.kept(Masked, "seal", 0)
    contents = signed.kept(Confirmed, "confirm", 0).contents
    text = survivors_text(final_digest(masked.setup_digest, masked.members), fewer, contents)
    opening = Opening(fewer, {client: identity(client).sign(text) for client in fewer})
    refuses(signed, "open", opening, "not those that this client confirmed")
    refuses(signed, "confirm", opening, "does not follow 'Masked'")


def test_no_second_list_of_members_is_sealed_for() -> None:
    """With two sealed vectors of one client their difference would show what masks differ by."""
    for with_roster in (False, True):
        rehearsal = small(with_roster)
        stage = "confirm" if with_roster else "open"
        for members in (tuple(range(10)), tuple(range(9))):
            refuses(rehearsal, stage, Final(members), "'Final' does not follow 'Masked'")


def test_a_roster_is_not_asked_for_unsigned_openings() -> None:
    """A client without a roster, conversely, signs nothing."""
    everyone = tuple(range(9))
    refuses(small(True), "confirm", Opening(everyone, {}), "does not follow 'Masked'")
    refuses(small(False), "open", Survivors(everyone, {}, b""), "does not follow 'Masked'")


def test_openings_need_enough_genuine_signatures_of_survivors() -> None:
    """Nine survived and eight must sign."""
    opening = small(True).asked(Opening, "open", 0)
    masked = small(True).kept(Masked, "seal", 0)
    contents = small(True).kept(Confirmed, "confirm", 0).contents
    setup, members, survivors = masked.setup_digest, masked.members, opening.clients

    def text(setup: bytes, members: tuple[int, ...], survivors: tuple[int, ...]) -> bytes:
        return survivors_text(final_digest(setup, members), survivors, contents)

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
        identity(4).sign(text(setup, members, survivors)),
        identity(3).sign(text(setup, members, survivors[:-1])),
        identity(3).sign(text(setup, survivors, survivors)),
        identity(3).sign(text(bytes(32), members, survivors)),
    ):
        request = altered(opening, signatures={**genuine, 3: forged})
        refuses(small(True), "open", request, "does not belong to the roster's key")
    dropped = {**seven, 9: identity(9).sign(text(setup, members, survivors))}
    request = altered(opening, signatures=dropped)
    refuses(small(True), "open", request, "from a client that did not survive")


def test_a_client_with_a_roster_but_no_key_confirms_nothing() -> None:
    keyless = MaskedParticipant(small(True).around, 0, None, small(True).roster)
    exchange = small(True).exchange("confirm", 0)
    with pytest.raises(Refused, match="no key to sign with"):
        keyless.step(exchange.before, exchange.request)
