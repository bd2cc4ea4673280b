"""Hostile clients are left out, by name; they never crash a round or open a wrong sum."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from tacit.secure import crypto, shamir
from tacit.secure.evidence import (
    BAD_PARCEL,
    BAD_SHARE,
    NO_CAUSE,
    OTHER_KEY,
    OTHER_SEED,
    OTHER_SHARE,
)
from tacit.secure.messages import (
    Advert,
    Advertised,
    Complaints,
    Confirmation,
    Delivered,
    Delivery,
    Explained,
    Opened,
    Received,
    Sealed,
    Shared,
    Shares,
    pack,
    unpack_request,
    unpack_state,
)
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Fault, SpoiledSum, TooFewClients
from tacit.secure.setup import (
    MASK_KEY,
    SECRETS,
    SELF_SEED,
    advert_text,
    box_context,
    complaint_text,
    explained_text,
    final_digest,
    opened_text,
    own_mask,
    parcel_digest,
    secret_context,
    signed_dealing,
)
from tacit.secure.transcript import Closed, Transcript
from tests.secure.driver import Rehearsal, identity, round_of
from tests.secure.rounds import (
    EARLY,
    STAGES,
    Accuser,
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
    "unsigned shares": ("share", remade(Shares, signature=lambda _: b"")),
    "a proof too short": (
        "share",
        remade(Shares, proofs=lambda m: (m.proofs[0][:-33], m.proofs[1])),
    ),
    "a hash too few": (
        "share",
        remade(Shares, hashes=lambda m: {h: p for h, p in m.hashes.items() if h != 4}),
    ),
    "an unsigned complaint": ("deliver", remade(Received, complaints=lambda _: {1: b"sign"})),
    "a complaint about nobody": ("deliver", remade(Received, complaints=lambda _: {99: b""})),
    "a vector not signed": (
        "seal",
        remade(Sealed, vector=lambda m: bytes([m.vector[0] ^ 1]) + m.vector[1:]),
    ),
    "shares not signed": ("open", remade(Opened, signature=lambda _: b"")),
    "advert with a key not signed": ("advertise", remade(Advert, mask_key=lambda _: new_key())),
    "a box too few": ("share", remade(Shares, boxes=lambda m: dict(list(m.boxes.items())[1:]))),
    "a box for itself": ("share", remade(Shares, boxes=lambda m: {**m.boxes, 2: b"box"})),
    "no boxes": ("share", remade(Shares, boxes=lambda _: {})),
    "a vector too short": ("seal", remade(Sealed, vector=lambda m: m.vector[:-1])),
    "a vector too long": ("seal", remade(Sealed, vector=lambda m: m.vector + bytes(4))),
    "no vector": ("seal", remade(Sealed, vector=lambda _: b"")),
    "any signature": ("confirm", remade(Confirmation, signature=lambda _: identity(2).sign(b""))),
    "no signature": ("confirm", remade(Confirmation, signature=lambda _: b"")),
    "another message": ("seal", lambda _: pack(Received({}, b""))),
    "a message to clients": ("share", lambda _: pack(Complaints({}))),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_reply_counts_as_a_drop_out(name: str) -> None:
    stage, make = INVALID[name]
    check_without(hostile(stage, make, with_roster=True), stage)
    if "sign" not in name:
        check_without(hostile(stage, make), stage)


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
    first[7] = pack(Advert(7, new_key(), new_key(), b""))
    check(rehearsal, MaskedSum().total(rehearsal.around, first, rehearsal.ask))


@pytest.mark.parametrize("with_roster", [False, True])
@pytest.mark.parametrize(
    "kind", ["small order", "wrong size", "twice the same", "another's", "another's, bit 255"]
)
def test_an_advert_with_useless_keys_counts_as_a_drop_out(kind: str, with_roster: bool) -> None:
    """Every other client refuses such a list of adverts, so one client stops the whole round."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster)

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("advertise", 2):
            return reply
        own, others = new_key(), rehearsal.answered(Advert, "advertise", 1).mask_key
        useless = {"small order": bytes(32), "wrong size": bytes(31), "twice the same": own}
        useless["another's, bit 255"] = another_spelling(others)
        keys = own, useless.get(kind, others)
        text = advert_text(rehearsal.around, 2, *keys)
        return pack(Advert(2, *keys, identity(2).sign(text) if with_roster else b""))

    rehearsal.tamper_reply = tamper
    check_without(rehearsal, "advertise")


def another_spelling(key: bytes) -> bytes:
    """X25519 ignores the topmost bit."""
    return key[:31] + bytes([key[31] | 128])


def plus_a_point_of_order_two(key: bytes) -> bytes:
    """On a Montgomery curve adding (0, 0) inverts u; clamped secrets agree alike with both."""
    prime = 2**255 - 19
    return pow(int.from_bytes(key, "little"), -1, prime).to_bytes(32, "little")


class Cloner:
    """The last client advertises client 0's mask key in another form, and otherwise plays along."""

    def __init__(self, rehearsal: Rehearsal, form: Callable[[bytes], bytes]) -> None:
        self.rehearsal, self.form = rehearsal, form
        self.me = len(rehearsal.participants) - 1

    def __call__(self, stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("advertise", self.me):
            return reply
        rehearsal = self.rehearsal
        cloned = self.form(rehearsal.answered(Advert, "advertise", 0).mask_key)
        state = msgspec.msgpack.decode(rehearsal.states[client], type=Advertised)
        text = advert_text(rehearsal.around, client, state.advert.box_key, cloned)
        advert = Advert(client, state.advert.box_key, cloned, identity(client).sign(text))
        rehearsal.states[client] = pack(altered(state, advert=advert))
        return pack(advert)


@pytest.mark.parametrize("form", [another_spelling, plus_a_point_of_order_two])
@pytest.mark.parametrize(("clients", "colluding"), [(3, 1), (5, 2), (5, 1)])
def test_a_copied_key_takes_no_mask_off_anybody(
    form: Callable[[bytes], bytes], clients: int, colluding: int
) -> None:
    """Were masks made of agreed secrets alone, client 1's with the original and with the copy would
    cancel: with three clients its vector would be the server's as soon as its own mask opens."""
    rehearsal = Rehearsal(round_of(clients, 0, colluding), with_roster=True)
    rehearsal.tamper_reply = Cloner(rehearsal, form)
    with suppress(TooFewClients, SpoiledSum):
        rehearsal.total()
    sealers = [e.client for e in rehearsal.exchanges if e.stage == "seal"]
    assert (1 in sealers) == (form is plus_a_point_of_order_two), "other spellings are refused"
    if 1 not in sealers:
        return
    shared = rehearsal.kept(Shared, "share", 1)
    assert len(set(shared.pair_keys.values())) == clients - 1, "no two masks are alike"
    members = rehearsal.kept(Delivered, "deliver", 1).sharers
    final = final_digest(shared.setup_digest, members)
    sealed = np.frombuffer(rehearsal.answered(Sealed, "seal", 1).vector, rehearsal.around.word)
    without = sealed - own_mask(rehearsal.around, final, 1, shared.self_seed)
    found = rehearsal.around.integers(without.tobytes())
    assert found.tolist() != rehearsal.vectors[1].tolist()


def test_one_flipped_bit_of_a_sealed_vector_is_noticed() -> None:
    """Whose signature does not fit its vector counts as a drop-out, and the sum is the others'."""
    flip = remade(Sealed, vector=lambda m: m.vector[:2] + bytes([m.vector[2] ^ 1]) + m.vector[3:])
    check_without(hostile("seal", flip, with_roster=True), "seal")


# A dealer whose boxes hold anything else than what it published.


def dealt_again(
    rehearsal: Rehearsal, dealer: int, change: Callable[[Shares, Shared, Any], Shares]
) -> Callable[[str, int, bytes], bytes]:
    """A dealer's shares, changed and signed again."""

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("share", dealer):
            return reply
        shares = msgspec.msgpack.decode(reply, type=Shares)
        state = msgspec.msgpack.decode(rehearsal.states[dealer], type=Shared)
        return pack(signed_again(change(shares, state, rehearsal), state, dealer, rehearsal))

    return tamper


def signed_again(shares: Shares, state: Shared, dealer: int, rehearsal: Rehearsal) -> Shares:
    if not rehearsal.with_roster:
        return shares
    text = signed_dealing(state.setup_digest, dealer, shares)
    return altered(shares, signature=identity(dealer).sign(text))


def junk_boxes(shares: Shares, _state: Shared, _rehearsal: Rehearsal) -> Shares:
    return altered(shares, boxes=dict.fromkeys(shares.boxes, bytes(180)))


def box_of_nothing_for_four(shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
    """Only client 4 gets a box with other shares in it, so that it looks like the one at fault."""
    receiver = rehearsal.answered(Advert, "advertise", 4).box_key
    context = box_context(state.setup_digest, 2, 4)
    box = crypto.seal(
        rehearsal.participants[2]._once(state.box_seed, 4), receiver, bytes(132), context
    )
    return altered(shares, boxes={**shares.boxes, 4: box})


def off_the_polynomial(shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
    """Client 4 gets another share of the seed, with its right hash; all others fit together."""
    context = secret_context(state.setup_digest, 2, SELF_SEED)
    wrong = shamir.share_hash(context, 4, bytes(66))
    dealt = dealt_with(state.self_seed, context, {4: wrong})
    return with_dealing(rehearsal, state, shares, SELF_SEED, {**dealt.shares, 4: bytes(66)}, dealt)


def dealt_with(
    secret: bytes, context: bytes, hashes: Mapping[int, bytes] | None = None
) -> shamir.Dealing:
    """A proper dealing to seven, but for some hashes."""
    real, false = shamir.share_hash, hashes or {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shamir, "share_hash", lambda c, h, s: false.get(h) or real(c, h, s))
        return shamir.Dealing.of(secret, range(7), 4, context)


def with_dealing(
    rehearsal: Rehearsal,
    state: Shared,
    shares: Shares,
    which: bytes,
    sent: Mapping[int, bytes],
    dealt: shamir.Dealing,
) -> Shares:
    """Client 2's shares with one of its secrets dealt in another way; it keeps its own share."""
    place = SECRETS.index(which)

    def changed(pair: tuple[bytes, bytes], new: bytes) -> tuple[bytes, bytes]:
        return (new, pair[1]) if place == 0 else (pair[0], new)

    boxes = {}
    for holder, box in shares.boxes.items():
        receiver = rehearsal.answered(Advert, "advertise", holder).box_key
        once = rehearsal.participants[2]._once(state.box_seed, holder)
        context = box_context(state.setup_digest, 2, holder)
        text = crypto.reopen(once, receiver, box, context)
        both = changed((text[:66], text[66:]), sent[holder])
        boxes[holder] = crypto.seal(once, receiver, b"".join(both), context)
    own = changed(state.own_shares, dealt.shares[2])
    rehearsal.states[2] = pack(altered(state, own_shares=own))
    hashes = {h: changed(pair, dealt.public.hashes[h]) for h, pair in shares.hashes.items()}
    proofs = changed(shares.proofs, dealt.public.proof)
    return altered(shares, boxes=boxes, hashes=hashes, proofs=proofs)


def honest_about_it(rehearsal: Rehearsal, dealer: int, tamper: Any) -> Any:
    """A dealer that made these shares also explains them: its state knows what it sent."""

    def request(stage: str, client: int, message: bytes) -> bytes:
        if (stage, client) == ("explain", dealer):
            complaints = unpack_request(message)
            assert isinstance(complaints, Complaints)
            state = msgspec.msgpack.decode(rehearsal.states[dealer], type=Delivered)
            found = {holder: parcel for holder, (parcel, _) in complaints.complaints.items()}
            shared = altered(state.shared, parcels={**state.shared.parcels, **found})
            rehearsal.states[dealer] = pack(altered(state, shared=shared))
        return message

    rehearsal.tamper_reply, rehearsal.tamper_request = tamper, request


BAD_DEALERS: dict[str, Callable[[Shares, Shared, Any], Shares]] = {
    "junk for everybody": junk_boxes,
    "other shares for one": box_of_nothing_for_four,
    "a share off the polynomial for one": off_the_polynomial,
}


@pytest.mark.parametrize("with_roster", [False, True])
@pytest.mark.parametrize("explains", [True, False])
@pytest.mark.parametrize("kind", BAD_DEALERS)
def test_a_bad_dealer_is_named_and_left_out_before_anybody_is_charged(
    kind: str, explains: bool, with_roster: bool
) -> None:
    """All others seal once, in the same session, and only they are in the sum.

    A dealer that does not answer is left out as well, unnamed: its answer may have been lost.
    """
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster)
    tamper = dealt_again(rehearsal, 2, BAD_DEALERS[kind])
    if explains:
        honest_about_it(rehearsal, 2, tamper)
    else:
        rehearsal.tamper_reply = tamper
    total = rehearsal.total()
    assert total.survivors == (0, 1, 3, 4, 5, 6)
    assert total.value.tolist() == rehearsal.sum_of(total.survivors)
    assert total.faults == ((Fault(2, BAD_PARCEL),) if explains else ())
    released = [e.client for e in rehearsal.exchanges if e.releases]
    assert sorted(released) == [0, 1, 3, 4, 5, 6]
    if with_roster and explains:
        assert rehearsal.roster is not None
        kept = Transcript.from_bytes(total.transcript)
        again = kept.recompute(rehearsal.around, rehearsal.roster)
        assert again.faults == total.faults, "anybody can see it"


@pytest.mark.parametrize("with_roster", [False, True])
def test_whoever_complains_without_cause_is_left_out_instead_of_its_victim(
    with_roster: bool,
) -> None:
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster)

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("deliver", 2):
            return reply
        delivery = rehearsal_request(rehearsal)
        shared = rehearsal.kept(Shared, "share", 2)
        text = complaint_text(shared.setup_digest, 5, 2, parcel_digest(delivery.parcels[5]))
        complaints = {5: identity(2).sign(text) if with_roster else b""}
        return pack(altered(msgspec.msgpack.decode(reply, type=Received), complaints=complaints))

    seen: dict[int, bytes] = {}

    def note(stage: str, client: int, request: bytes) -> bytes:
        if stage == "deliver":
            seen[client] = request
        return request

    def rehearsal_request(_rehearsal: Rehearsal) -> Delivery:
        delivery = unpack_request(seen[2])
        assert isinstance(delivery, Delivery)
        return delivery

    rehearsal.tamper_reply, rehearsal.tamper_request = tamper, note
    total = rehearsal.total()
    assert total.survivors == (0, 1, 3, 4, 5, 6)
    assert total.faults == (Fault(2, NO_CAUSE),)
    explained = rehearsal.answered(Explained, "explain", 5)
    assert explained.secrets.keys() == {2}, "nothing but the box that was complained about"
    secrets = {rehearsal.kept(Advertised, "advertise", 5).mask_secret}
    secrets |= {rehearsal.kept(Shared, "share", 5).self_seed}
    assert not secrets & set(explained.secrets.values())


@pytest.mark.parametrize("with_roster", [False, True])
@pytest.mark.parametrize("answer", ["lost", "late", "of nobody"])
def test_an_honest_dealer_is_not_named_if_its_answer_to_a_false_complaint_is_lost(
    answer: str, with_roster: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can tell which of the two is at fault, so neither is named; the log has both."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster)
    honest = rehearsal.participants[2]
    rehearsal.participants[2] = Accuser(honest.around, 2, honest.identity, honest.roster)
    instead = {"late": b"", "of nobody": pack(Explained({}, b""))}
    if answer == "lost":
        rehearsal.dropouts = {5: "explain"}
    else:
        rehearsal.tamper_reply = lambda stage, _client, reply: (
            instead[answer] if stage == "explain" else reply
        )
    total = rehearsal.total()
    assert total.faults == ()
    assert total.survivors == (0, 1, 2, 3, 4, 6)
    assert total.value.tolist() == rehearsal.sum_of(total.survivors)
    assert "client 5 answered no complaint about its shares by client 2: nobody can" in caplog.text


def test_a_server_cannot_collect_shares_by_having_honest_clients_complain_about_forgeries() -> None:
    """It hands out boxes of its own in client 5's name; 5 explains only what it made itself."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)

    def forge(stage: str, client: int, request: bytes) -> bytes:
        if stage != "deliver" or client == 5:
            return request
        delivery = unpack_request(request)
        assert isinstance(delivery, Delivery)
        forged = altered(delivery.parcels[5], box=bytes(180))
        return pack(altered(delivery, parcels={**delivery.parcels, 5: forged}))

    rehearsal.tamper_request = forge
    with pytest.raises(TooFewClients):
        rehearsal.total()
    received = rehearsal.answered(Received, "deliver", 0)
    assert received.complaints.keys() == {5}
    state, participant = rehearsal.states[5], rehearsal.participants[5]
    delivered = unpack_state(state)
    assert isinstance(delivered, Delivered)
    found = unpack_request(rehearsal.exchange("deliver", 0).request)
    assert isinstance(found, Delivery)
    complaint = parcel_digest(found.parcels[5]), received.complaints[5]
    with pytest.raises(Exception, match="a parcel that this client did not make"):
        participant.step(state, pack(Complaints({0: complaint})))


# Shares that come back wrong.


def false_shares(rehearsal: Rehearsal, holders: Mapping[int, Callable[[Opened], Opened]]) -> None:
    """Some holders return other shares, signed."""

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if stage != "open" or client not in holders:
            return reply
        opened = holders[client](msgspec.msgpack.decode(reply, type=Opened))
        return pack(opened_again(rehearsal, client, opened))

    rehearsal.tamper_reply = tamper


def opened_again(rehearsal: Rehearsal, client: int, opened: Opened) -> Opened:
    if not rehearsal.with_roster:
        return opened
    state = unpack_state(rehearsal.exchange("seal", client).after)
    final = final_digest(state.setup_digest, state.members)  # type: ignore[union-attr]
    text = opened_text(final, client, opened.self_shares, opened.key_shares)
    return altered(opened, signature=identity(client).sign(text))


def zeros(opened: Opened) -> Opened:
    return altered(opened, self_shares=dict.fromkeys(opened.self_shares, bytes(66)))


@pytest.mark.parametrize("with_roster", [False, True])
@pytest.mark.parametrize("liars", [(0,), (3,), (1, 6), (0, 2, 5)])
def test_holders_that_return_other_shares_are_named_and_the_sum_opens(
    liars: tuple[int, ...], with_roster: bool
) -> None:
    """Seven of which four suffice: three may lie."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster)
    false_shares(rehearsal, dict.fromkeys(liars, zeros))
    total = rehearsal.total()
    check(rehearsal, total)
    assert set(total.faults) == {Fault(liar, OTHER_SHARE) for liar in liars}
    if with_roster:
        assert rehearsal.roster is not None
        kept = Transcript.from_bytes(total.transcript)
        again = kept.recompute(rehearsal.around, rehearsal.roster)
        assert set(again.faults) == set(total.faults)


def test_the_threshold_is_never_lowered_and_liars_are_named_even_if_nothing_opens() -> None:
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    false_shares(rehearsal, dict.fromkeys((0, 1, 2, 3), zeros))
    with pytest.raises(TooFewClients, match="only 3 clients answered at the stage 'open'; 4") as no:
        rehearsal.total()
    assert {fault.client for fault in no.value.faults} == {0, 1, 2, 3}
    assert "client 2 returned other shares than it was dealt" in str(no.value)
    assert judged(rehearsal, no.value) == no.value.faults, "anybody can see it"


def test_a_dealer_that_gives_an_accomplice_a_wrong_share_is_named_itself() -> None:
    """Client 4 takes a share off the polynomial without complaint, and returns it as it is."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    deal = dealt_again(rehearsal, 2, off_the_polynomial)

    def accomplice(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) == ("deliver", 4):
            state = msgspec.msgpack.decode(rehearsal.states[4], type=Delivered)
            shares = msgspec.msgpack.decode(rehearsal.exchange("share", 2).reply, type=Shares)
            key_share = key_share_of_four(rehearsal, shares)
            held = {**state.held, 2: (bytes(66), key_share)}
            rehearsal.states[4] = pack(altered(state, held=held))
            return remade(Received, complaints=lambda _: {})(reply)
        return deal(stage, client, reply)

    rehearsal.tamper_reply = accomplice
    total = rehearsal.total()
    check(rehearsal, total)
    assert total.faults == (Fault(2, BAD_SHARE),)


def key_share_of_four(rehearsal: Rehearsal, shares: Shares) -> bytes:
    """What client 2 dealt client 4 of its mask key."""
    shared = rehearsal.kept(Shared, "share", 2)
    once = rehearsal.participants[2]._once(shared.box_seed, 4)
    receiver = rehearsal.answered(Advert, "advertise", 4).box_key
    context = box_context(shared.setup_digest, 2, 4)
    return crypto.reopen(once, receiver, shares.boxes[4], context)[66:]


def test_a_dealer_cannot_frame_a_holder() -> None:
    """Whatever it seals for client 4, client 4 looks at it before anything is sealed."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    honest_about_it(rehearsal, 2, dealt_again(rehearsal, 2, box_of_nothing_for_four))
    total = rehearsal.total()
    assert {fault.client for fault in total.faults} == {2}


@pytest.mark.parametrize("with_roster", [False, True])
def test_a_drop_out_that_shared_another_key_is_named(with_roster: bool) -> None:
    """The shares fit together, but what they recover is not the secret of the advertised key.

    No share tells that before the key is recovered, so the sum stays closed.
    """
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=with_roster, dropouts={2: "seal"})
    rehearsal.tamper_reply = dealt_again(rehearsal, 2, another_key)
    with pytest.raises(SpoiledSum, match="client 2 shared another key than it advertised") as no:
        rehearsal.total()
    assert no.value.faults == (Fault(2, OTHER_KEY),)
    if with_roster:
        assert judged(rehearsal, no.value) == no.value.faults, "anybody can see it"
    else:
        assert no.value.evidence == b"", "nobody signed anything"


def judged(rehearsal: Rehearsal, error: SpoiledSum | TooFewClients) -> tuple[Fault, ...]:
    """Who misbehaved in a sum that stayed closed, as somebody sees who has the roster."""
    assert rehearsal.roster is not None
    return Closed.from_bytes(error.evidence).judged(rehearsal.around, rehearsal.roster)


@pytest.mark.parametrize("stage", ["deliver", "seal", "confirm"])
def test_the_evidence_is_kept_wherever_a_sum_is_given_up(stage: str) -> None:
    """Two of seven may be missing, and are; client 2 complains without cause and is left out."""
    around = round_of(7, dropout=2)
    missing = dict.fromkeys((0, 1), stage)
    rehearsal = Rehearsal(around, with_roster=True, dropouts=missing)
    rehearsal.participants[2] = Accuser(around, 2, identity(2), rehearsal.roster)
    with pytest.raises(TooFewClients, match=f"at the stage '{stage}'") as no:
        rehearsal.total()
    assert judged(rehearsal, no.value) == no.value.faults == (Fault(2, NO_CAUSE),)


def test_of_honest_clients_too_few_of_whom_are_left_there_is_no_evidence() -> None:
    missing = dict.fromkeys((0, 1, 3), "seal")
    rehearsal = Rehearsal(round_of(7, dropout=2), with_roster=True, dropouts=missing)
    with pytest.raises(TooFewClients) as no:
        rehearsal.total()
    assert (no.value.faults, no.value.evidence) == ((), b"")


def another_key(shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
    """A dealer that deals zeros instead of its mask key, properly."""
    dealt = dealt_with(bytes(32), secret_context(state.setup_digest, 2, MASK_KEY))
    return with_dealing(rehearsal, state, shares, MASK_KEY, dealt.shares, dealt)


def false_hash_of_the_seed(shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
    """The seed dealt properly, but for the hash of the seed itself."""
    context = secret_context(state.setup_digest, 2, SELF_SEED)
    dealt = dealt_with(state.self_seed, context, {shamir.SECRET: b"?" * 32})
    return with_dealing(rehearsal, state, shares, SELF_SEED, dealt.shares, dealt)


def test_a_dealer_whose_hash_of_its_seed_is_false_is_named_and_the_sum_opens() -> None:
    """A hash of something else where the seed's should stand; the challenge is made from it."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    rehearsal.tamper_reply = dealt_again(rehearsal, 2, false_hash_of_the_seed)
    total = rehearsal.total()
    check(rehearsal, total)
    assert total.faults == (Fault(2, OTHER_SEED),)
    assert rehearsal.roster is not None
    again = Transcript.from_bytes(total.transcript).recompute(rehearsal.around, rehearsal.roster)
    assert (again.value == total.value).all()
    assert again.faults == total.faults


def number_beyond_32_bytes(shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
    """A self seed that no 32 bytes hold, dealt so that every share fits."""
    context, holders = secret_context(state.setup_digest, 2, SELF_SEED), range(7)
    first = [*(secrets.randbelow(shamir.PRIME) for _ in range(3)), 2**256 + 5]
    second = [secrets.randbelow(shamir.PRIME) for _ in range(4)]
    pairs = {
        holder: b"".join(shamir.as_bytes(shamir._value(of, holder + 1)) for of in (first, second))
        for holder in (shamir.SECRET, *holders)
    }
    hashes = {holder: shamir.share_hash(context, holder, pair) for holder, pair in pairs.items()}
    challenge = shamir._challenge(context, hashes)
    proof = b"".join(
        shamir.as_bytes((g + challenge * f) % shamir.PRIME)
        for f, g in zip(first, second, strict=True)
    )
    public = shamir.Public(context, hashes, proof)
    dealt = shamir.Dealing({holder: pairs[holder] for holder in holders}, public)
    return with_dealing(rehearsal, state, shares, SELF_SEED, dealt.shares, dealt)


def test_a_dealer_of_a_number_beyond_32_bytes_is_named_and_the_sum_opens() -> None:
    """Every share fits, so nobody can complain; before, the sum was spoiled after the charge."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    rehearsal.tamper_reply = dealt_again(rehearsal, 2, number_beyond_32_bytes)
    total = rehearsal.total()
    assert total.survivors == tuple(range(7))
    assert total.faults == (Fault(2, OTHER_SEED),)


HUGE = bytes(2**20)
"""More than any honest part. A node reads 256 MiB: one that is sent more answers nothing."""


def huge_box(shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
    """For client 4 a box that opens, and that is larger than a node reads."""
    rival = rehearsal.answered(Advert, "advertise", 4).box_key
    box = crypto.seal(crypto.fresh(), rival, HUGE, box_context(state.setup_digest, 2, 4))
    return altered(shares, boxes={**shares.boxes, 4: box})


@pytest.mark.parametrize(
    ("stage", "huge"),
    [
        ("advertise", remade(Advert, signature=lambda _: HUGE)),
        ("share", remade(Shares, signature=lambda _: HUGE)),
        ("deliver", remade(Received, complaints=lambda _: {5: HUGE})),
        ("open", remade(Opened, self_shares=lambda m: {**m.self_shares, 0: HUGE})),
    ],
)
def test_a_member_without_a_roster_sends_nobody_more_than_is_read(
    stage: str, huge: Callable[[bytes], bytes]
) -> None:
    """What nobody checks is carried to others; a dealer that could not read it was named."""
    rehearsal = hostile(stage, huge)
    check_without(rehearsal, stage)
    assert max(len(exchange.request) for exchange in rehearsal.exchanges) < len(HUGE)


def test_a_dealer_cannot_shut_a_rival_out_with_a_box_larger_than_is_read() -> None:
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    rehearsal.tamper_reply = dealt_again(rehearsal, 2, huge_box)
    check_without(rehearsal, "share")


def test_a_liar_cannot_make_the_transcript_too_large_to_keep() -> None:
    """What it returns and what it explains goes into the evidence, and so into the transcript."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    false_shares(rehearsal, {3: lambda o: altered(o, self_shares={**o.self_shares, 0: HUGE})})
    total = rehearsal.total()
    check(rehearsal, total)
    assert len(total.transcript) < len(HUGE)

    rehearsal = Rehearsal(round_of(7, dropout=0.3), with_roster=True)
    rehearsal.tamper_reply = dealt_again(rehearsal, 2, box_of_nothing_for_four)
    honest = rehearsal.tamper_reply

    def explain(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("explain", 2):
            return honest(stage, client, reply)
        setup = rehearsal.kept(Shared, "share", 2).setup_digest
        given = {4: HUGE}
        return pack(Explained(given, identity(2).sign(explained_text(setup, 2, given))))

    rehearsal.tamper_reply = explain
    total = rehearsal.total()
    assert total.faults == ()
    assert total.value.tolist() == rehearsal.sum_of((0, 1, 3, 4, 5, 6))
    assert len(total.transcript) < len(HUGE)


@quick
@given(holder=st.integers(0, 6), data=st.data())
def test_altered_shares_never_open_a_wrong_sum(holder: int, data: st.DataObject) -> None:
    """Seven of which four suffice; one returns other shares, too long, too short, or for others."""
    rehearsal = Rehearsal(round_of(7, dropout=0.3), dropouts={(holder + 1) % 7: "seal"})

    def change(opened: Opened) -> Opened:
        shares = {"self_shares": dict(opened.self_shares), "key_shares": dict(opened.key_shares)}
        for _ in range(data.draw(st.integers(1, 3))):
            kind = data.draw(st.sampled_from(sorted(shares)))
            shares[kind][data.draw(st.integers(-1, 8))] = data.draw(st.binary(max_size=80))
        return altered(opened, **shares)

    false_shares(rehearsal, {holder: change})
    total = rehearsal.total()
    check(rehearsal, total)
    assert {fault.client for fault in total.faults} <= {holder}


def test_deeply_nested_replies_count_as_a_drop_out() -> None:
    check_without(hostile("seal", nested), "seal")
