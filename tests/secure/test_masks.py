"""The masked sum: right sums, nothing below the threshold, masks that hide."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered
from scipy.stats import chi2

from tacit.privacy.bounds import Box, TopVotes
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.secure import crypto
from tacit.secure.graph import Wiring, wiring
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import (
    Advert,
    Advertised,
    Complaints,
    Confirmed,
    Delivered,
    Delivery,
    Done,
    Final,
    Masked,
    Sealed,
    Setup,
    Shared,
    Shares,
    pack,
    unpack_adverts,
    unpack_reply,
)
from tacit.secure.protocol import Round, TooFewClients
from tacit.secure.setup import Members, final_digest, own_mask, packed, pair_key, pair_mask
from tests.randomness import FALSE_ALARM
from tests.secure.driver import Rehearsal, round_of, vectors_of
from tests.secure.rounds import (
    STAGES,
    check,
    disputed,
    forty,
    naming,
    new_key,
    quick,
    quick_rings,
    refuses,
    ring_with_gaps,
    small,
    wide,
)


@pytest.fixture
def rings() -> Iterator[None]:
    with quick_rings():
        yield


@st.composite
def rounds_that_open(draw: st.DrawFn) -> Rehearsal:
    """Two to twelve clients with as many drop-outs, at any stage, as the threshold allows."""
    clients = draw(st.integers(2, 12))
    colluding = draw(st.sampled_from([0.0, 0.0, 0.2]))
    around = round_of(clients, draw(st.sampled_from([0.0, 0.1, 0.3, 0.49])), colluding)
    around = replace(around, bits=draw(st.sampled_from([32, 64])), length=draw(st.integers(1, 9)))
    spare = clients - around.participation.threshold
    gone = draw(st.lists(st.integers(0, clients - 1), max_size=spare, unique=True))
    with_roster = draw(st.booleans())
    stages = [stage for stage in STAGES if with_roster or stage != "confirm"]
    return Rehearsal(
        around,
        vectors_of(around, draw(st.integers(0, 2**32))),
        with_roster=with_roster,
        dropouts={client: draw(st.sampled_from(stages)) for client in gone},
    )


@quick
@given(rehearsal=rounds_that_open())
def test_survivors_are_summed_whoever_drops_out_when(rehearsal: Rehearsal) -> None:
    check(rehearsal, rehearsal.total())


@quick
@given(rehearsal=rounds_that_open())
def test_no_client_gives_both_kinds_of_share_of_one_client(rehearsal: Rehearsal) -> None:
    total = rehearsal.total()
    members = {e.client for e in rehearsal.exchanges if e.stage == "deliver"}
    opened = rehearsal.opened().values()
    given_self = {client for reply in opened for client in reply.self_shares}
    given_keys = {client for reply in opened for client in reply.key_shares}
    assert given_self == set(total.survivors), "nobody's key, and everybody's own mask"
    assert given_keys == members - set(total.survivors)


@pytest.mark.usefixtures("rings")
@pytest.mark.parametrize("with_roster", [False, True])
def test_sums_on_a_ring_survive_drop_outs_at_every_stage(with_roster: bool) -> None:
    """Of sixty clients six may be missing; a window of twelve hides six colluders."""
    assert wiring(Participation(60), 59) == Wiring(24, 13, 12, 6)
    stages = [stage for stage in STAGES if with_roster or stage != "confirm"]
    dropouts = dict(zip((7, 59, 0, 35, 12, 50), stages, strict=False))
    rehearsal = Rehearsal(round_of(60), with_roster=with_roster, dropouts=dropouts)
    check(rehearsal, rehearsal.total())
    assert not rehearsal.refusals
    assert len(rehearsal.answered(Shares, "share", 1).boxes) == 24


def test_a_ring_of_the_real_size_opens() -> None:
    """The ring of the other tests begins at 257 clients; client 5 is missing."""
    rehearsal = wide()
    assert not rehearsal.refusals
    assert len(rehearsal.opened()) == 259
    assert wiring(rehearsal.around.participation, 260).reach
    boxes = rehearsal.answered(Shares, "share", 0).boxes
    assert len(boxes) == wiring(rehearsal.around.participation, 260).degree < 259


@pytest.mark.parametrize("bits", [32, 64])
def test_sums_reach_the_edges_of_the_modulus(bits: int) -> None:
    """Single numbers may wrap, sums inside the range never do."""
    edge = 2 ** (bits - 1)
    columns = [
        (edge - 1, 0, 0),
        (-edge, 0, 0),
        (edge - 1, edge - 1, -(edge - 1)),
        (-edge, -edge, edge - 1),
        (edge - 1, -edge, 0),
        (-1, -1, -1),
    ]
    vectors = np.array(columns, np.int64).T.copy()
    for with_roster in (False, True):
        around = round_of(3, dropout=0.0, length=len(columns), bits=bits)
        total = Rehearsal(around, vectors, with_roster=with_roster).total()
        wrapped = [(sum(column) + edge) % (2 * edge) - edge for column in columns]
        assert total.value.tolist() == wrapped
        assert wrapped[:3] == [edge - 1, -edge, edge - 1]


def test_a_round_is_as_wide_as_its_sum_needs() -> None:
    def bits(radius: int, clients: int = 10) -> int:
        mechanism = SkellamMechanism(Box(3, radius), Participation(clients), 100.0)
        return Round.of(b"", mechanism).bits

    votes = SkellamMechanism(TopVotes(100, 5), Participation(50), 139.0)
    assert Round.of(b"s", votes) == Round(b"s", Participation(50), 100, 32)
    assert [bits(2**27), bits(2**28), bits(2**59)] == [32, 64, 64]
    assert [bits((2**31 - 2000) // 10), bits((2**31 + 9) // 10)] == [32, 64]
    with pytest.raises(ValueError, match="beyond 64 bits"):
        bits(2**60)


@pytest.mark.parametrize("stage", STAGES)
def test_exactly_the_threshold_opens(stage: str) -> None:
    """Of 10 clients with drop-out 0.3 there must be 7."""
    rehearsal = Rehearsal(
        round_of(10, dropout=0.3), with_roster=True, dropouts=dict.fromkeys((0, 4, 9), stage)
    )
    check(rehearsal, rehearsal.total())


@pytest.mark.parametrize(
    ("stage", "with_roster"),
    [*((stage, roster) for stage in STAGES[:4] for roster in (False, True)), ("confirm", True)],
)
def test_below_the_threshold_nothing_opens_at_any_stage(stage: str, with_roster: bool) -> None:
    rehearsal = Rehearsal(
        round_of(10, dropout=0.3),
        with_roster=with_roster,
        dropouts=dict.fromkeys((0, 1, 4, 9), stage),
    )
    with pytest.raises(TooFewClients, match=f"only 6 clients answered at the stage '{stage}'; 7"):
        rehearsal.total()
    assert not rehearsal.opened()
    released = {e.client for e in rehearsal.exchanges if e.releases}
    assert len(released) == {"seal": 6, "confirm": 10}.get(stage, 0)


def test_drop_outs_of_all_stages_count_together() -> None:
    stages = {0: "advertise", 3: "share", 4: "deliver", 6: "seal", 9: "confirm"}
    rehearsal = Rehearsal(round_of(10, dropout=0.4), with_roster=True, dropouts=stages)
    with pytest.raises(TooFewClients, match="only 5 clients answered at the stage 'confirm'; 6"):
        rehearsal.total()
    assert not rehearsal.opened()


def test_openings_of_a_minority_open_nothing() -> None:
    """Six of ten shares recover a secret; five that arrived do not."""
    around = round_of(10, dropout=0.1)
    five = Rehearsal(around, dropouts=dict.fromkeys((0, 2, 4, 6, 8), "open"))
    with pytest.raises(TooFewClients, match="only 5 clients answered at the stage 'open'; 6"):
        five.total()
    six = Rehearsal(around, dropouts=dict.fromkeys((0, 2, 4, 6), "open"))
    check(six, six.total())


def test_one_survivor_below_the_threshold_opens_nothing() -> None:
    """By hand: 9 of 10 with drop-out 0.1; 7 of 10 with drop-out 0.4 and 0.3 colluding."""
    for around, needed in ((round_of(10, 0.1), 9), (round_of(10, 0.4, 0.3), 7)):
        for with_roster in (False, True):
            lost = dict.fromkeys(range(needed - 1, 10), "seal")
            rehearsal = Rehearsal(around, with_roster=with_roster, dropouts=lost)
            with pytest.raises(TooFewClients):
                rehearsal.total()
            assert not rehearsal.opened()

            complete = Rehearsal(around, with_roster=with_roster)
            check(complete, complete.total())
            few = tuple(range(needed - 1))
            because = f"there are {needed - 1} survivors; below {needed} "
            refuses(complete, *naming(with_roster, few), because)
            because = f"there are {needed - 1} members; below {needed} "
            refuses(complete, "seal", Final(few), because)
            parcels = complete.asked(Delivery, "deliver", 0).parcels
            request = Delivery(few, {other: parcels[other] for other in few[1:]})
            because = f"there are {needed - 1} sharers; below {needed} "
            refuses(complete, "deliver", request, because)


@pytest.mark.usefixtures("rings")
@pytest.mark.parametrize("stage", STAGES[1:5])
def test_a_thin_stretch_of_the_ring_opens_nothing(stage: str) -> None:
    """A part of the ring between two such stretches could be opened by itself."""
    assert wiring(Participation(60, 12), 60) == Wiring(36, 13, reach=18, hidden=6)
    rehearsal, total = ring_with_gaps(stage, in_a_row=True)
    with pytest.raises(TooFewClients, match=f"at the stage '{stage}'"):
        total()
    assert not rehearsal.opened()
    rehearsal, total = ring_with_gaps(stage, in_a_row=False)
    check(rehearsal, total())


def hashed(purpose: bytes, *parts: bytes) -> bytes:
    """A digest written down once more, from the definition alone."""
    lengths = (len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(b"tacit 2 " + purpose + b"".join(lengths)).digest()


def derived(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=context, info=b"tacit 2 " + purpose).derive(secret)


def key_stream(key: bytes, around: Round) -> npt.NDArray[Any]:
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(around.vector_bytes)), around.word)


def listed(clients: Iterable[int]) -> bytes:
    return b" ".join(b"%d" % client for client in sorted(clients))


def ring_neighbours(setup: bytes, clients: Iterable[int], degree: int, me: int) -> set[int]:
    """Who stands near in the ring, from the definition alone."""
    order = sorted(clients, key=lambda c: hashlib.sha256(setup + c.to_bytes(8, "big")).digest())
    place = order.index(me)
    steps = [*range(-(degree // 2), 0), *range(1, degree // 2 + 1)]
    return {order[(place + step) % len(order)] for step in steps}


@pytest.mark.usefixtures("rings")
def test_every_pair_of_neighbours_shares_a_mask() -> None:
    """Every sealed vector is vector + own mask + all masks agreed with neighbours, none left out.

    Leaving a mask out on both sides would leave the sum right and somebody unprotected.
    """
    question = b"what was asked"
    complete = Rehearsal(
        replace(round_of(7, dropout=3, length=3, bits=64), question=question),
        dropouts={4: "share", 1: "seal", 6: "deliver"},
    )
    ring = Rehearsal(
        replace(round_of(40, dropout=4), question=question),
        with_roster=True,
        dropouts={11: "share", 12: "seal", 13: "deliver", 14: "open"},
    )
    cases = (complete, b"7 3 0 3 64", None), (ring, b"40 4 0 5 32", 18)
    for rehearsal, numbers, degree in cases:
        total = rehearsal.total()
        around = rehearsal.around
        members = {e.client for e in rehearsal.exchanges if e.stage == "deliver"}
        described = hashed(b"round", numbers, around.session, question)
        for me in total.survivors:
            packed_adverts = rehearsal.asked(Setup, "share", me).adverts
            setup = hashed(b"setup", described, packed_adverts)
            final = hashed(b"final", setup, listed(members))
            keys = {advert.client: advert.mask_key for advert in unpack_adverts(packed_adverts)}
            secret = X25519PrivateKey.from_private_bytes(
                rehearsal.kept(Advertised, "advertise", me).mask_secret
            )
            assert secret.public_key().public_bytes_raw() == keys[me]
            near = ring_neighbours(setup, keys, degree, me) if degree else keys.keys() - {me}
            own = derived(
                rehearsal.kept(Shared, "share", me).self_seed,
                b"own mask",
                hashed(b"own mask", final, b"%d" % me),
            )
            expected = rehearsal.vectors[me].astype(around.word) + key_stream(own, around)
            for other in near & members:
                low, high = sorted((me, other))
                context = hashed(b"pair", setup, b"%d" % low, keys[low], b"%d" % high, keys[high])
                agreed = secret.exchange(X25519PublicKey.from_public_bytes(keys[other]))
                pair = derived(agreed, b"pair", context)
                mask = key_stream(derived(pair, b"mask", final), around)
                expected = expected + mask if me < other else expected - mask
            assert rehearsal.answered(Sealed, "seal", me).vector == expected.tobytes()


def test_masks_depend_on_every_bit_of_their_seed() -> None:
    """Bit by bit, and by birthdays among 2^17 seeds.

    Were a seed cut to 28 bits, 2^17 of them would make 32 equal pairs on average, and none at all
    with a chance of e^-32. With 256 bits some pair is equal with a chance of 2^-223, and with 128
    bits of key stream with one of 2^-95: the false-alarm rate.
    """
    functions: list[Callable[[bytes], bytes]] = [
        lambda seed: crypto.derive(seed, b"mask", b"session"),
        lambda key: crypto.expand(key, 16),
        lambda seed: own_mask(round_of(2, length=4), b"final", 0, seed).tobytes(),
        lambda key: pair_mask(round_of(2, length=4), b"final", key).tobytes(),
    ]
    for function in functions:
        seed = int.from_bytes(secrets.token_bytes(32), "big")
        seeds = [seed, *(seed ^ (1 << bit) for bit in range(256))]
        assert len({function(value.to_bytes(32, "big")) for value in seeds}) == 257
    count = 2**17
    keys = {crypto.derive(secrets.token_bytes(32), b"mask", b"session") for _ in range(count)}
    assert len(keys) == count
    assert len({crypto.expand(key, 16) for key in keys}) == count


def test_keys_differ_by_context_and_purpose() -> None:
    seed = bytes(32)
    keys = {
        crypto.derive(seed, purpose, context)
        for purpose in (b"mask", b"own mask", b"pair", b"box", b"once")
        for context in (b"", b"a", b"b")
    }
    assert len(keys) == 15


def test_masks_change_with_every_single_thing_they_are_bound_to() -> None:
    """Were one of these left out, masks of two sums, or of a copied key, could cancel."""
    around = round_of(4, length=8)
    adverts = {client: Advert(client, new_key(), new_key(), b"") for client in range(3)}
    other_key = {**adverts, 2: altered(adverts[2], mask_key=new_key())}
    agreed, seed = secrets.token_bytes(32), secrets.token_bytes(32)

    def setup(around: Round, adverts: dict[int, Advert]) -> bytes:
        return Members.of(around, packed(adverts), adverts).digest

    here, zero, one = setup(around, adverts), adverts[0], adverts[1]
    elsewhere = {
        "session": setup(replace(around, session=b"another session"), adverts),
        "question": setup(replace(around, question=b"another question"), adverts),
        "clients": setup(replace(around, participation=Participation(5)), adverts),
        "dropout": setup(replace(around, participation=Participation(4, 1)), adverts),
        "colluding": setup(replace(around, participation=Participation(4, 0, 2)), adverts),
        "length": setup(replace(around, length=9), adverts),
        "bits": setup(replace(around, bits=64), adverts),
        "bounds": setup(replace(around, sparse=(0, 1)), adverts),
        "somebody's key": setup(around, other_key),
    }
    members = (0, 1, 2)
    final = final_digest(here, members)
    lists = {
        "fewer members": final_digest(here, (0, 1)),
        "other members": final_digest(here, (0, 1, 3)),
        "one for two": final_digest(here, (0, 12)),
        **{name: final_digest(other, members) for name, other in elsewhere.items()},
    }
    pairs = {
        "as it is": pair_key(here, zero, one, agreed),
        "the lower number": pair_key(here, altered(one, client=2), zero, agreed),
        "the higher number": pair_key(here, altered(zero, client=3), one, agreed),
        "one's key": pair_key(here, altered(zero, mask_key=new_key()), one, agreed),
        "the other's key": pair_key(here, zero, altered(one, mask_key=new_key()), agreed),
        "the secret": pair_key(here, zero, one, secrets.token_bytes(32)),
        **{name: pair_key(other, zero, one, agreed) for name, other in elsewhere.items()},
    }
    swapped = altered(zero, mask_key=one.mask_key), altered(one, mask_key=zero.mask_key)
    assert pair_key(here, *swapped, agreed) not in pairs.values()
    assert pair_key(here, one, zero, agreed) == pairs["as it is"], "both find the same"
    streams = {
        *(pair_mask(around, final, key).tobytes() for key in pairs.values()),
        *(pair_mask(around, other, pairs["as it is"]).tobytes() for other in lists.values()),
    }
    assert len(streams) == len(pairs) + len(lists)
    own = {
        own_mask(around, final, 0, seed).tobytes(),
        own_mask(around, final, 1, seed).tobytes(),
        own_mask(around, final, 0, bytes(32)).tobytes(),
        *(own_mask(around, other, 0, seed).tobytes() for other in lists.values()),
    }
    assert len(own) == 3 + len(lists)
    assert not own & streams


def test_no_box_key_is_used_twice() -> None:
    """Twelve clients seal 132 boxes, each under a secret of its own, and others when asked again.

    The nonce of a box stands still, so two boxes under one key would tell the difference of their
    texts. Two random keys of 256 bits agree with a chance of 2^-240.
    """
    rehearsal = Rehearsal(round_of(12, dropout=0.0))
    rehearsal.total()
    boxes = [
        box
        for client in range(12)
        for box in rehearsal.answered(Shares, "share", client).boxes.values()
    ]
    exchange = rehearsal.exchange("share", 0)
    for _ in range(2):
        again = rehearsal.participants[0].step(exchange.before, exchange.request)
        shares = unpack_reply(Shares, again.reply)
        assert shares is not None
        boxes += shares.boxes.values()
    assert len(boxes) == 132 + 22
    assert len({box[: crypto.KEY_BYTES] for box in boxes}) == len(boxes)
    receiver = new_key()
    sealed = {crypto.seal(crypto.fresh(), receiver, b"text", b"")[32:] for _ in range(2)}
    assert len(sealed) == 2


def test_a_box_key_depends_on_secret_receiver_and_context() -> None:
    """The key stream of a box is its ciphertext where the text is zeros."""
    one, two, secret, other = new_key(), new_key(), crypto.fresh(), crypto.fresh()
    streams = {
        crypto.seal(once, receiver, bytes(32), context)[32:64]
        for once in (secret, other)
        for receiver in (one, two)
        for context in (b"here", b"there")
    }
    assert len(streams) == 8


def test_a_sealed_vector_looks_uniform() -> None:
    """The same vectors over and over: chi-square of the sealed bytes. False-alarm rate 1e-6."""
    around = round_of(2, dropout=0.0, length=64)
    vectors = np.zeros((2, 64), np.int64)
    sealed = b""
    for _ in range(150):
        rehearsal = Rehearsal(around, vectors)
        rehearsal.total()
        sealed += rehearsal.answered(Sealed, "seal", 0).vector
    counts = np.bincount(np.frombuffer(sealed, np.uint8), minlength=256)
    expected = len(sealed) / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert chi2.sf(statistic, 255) > FALSE_ALARM


def test_secrets_are_erased_as_soon_as_they_are_used() -> None:
    for rehearsal in (small(False), small(True), forty(), disputed(True)):
        for me in (0, 3, 5):
            states = [e for e in rehearsal.exchanges if e.client == me]
            if "open" not in {exchange.stage for exchange in states}:
                continue
            keys = rehearsal.kept(Advertised, "advertise", me)
            shared = rehearsal.kept(Shared, "share", me)
            vector = {keys.vector, keys.vector[:16], keys.vector[-16:]}
            to_seal = {shared.self_seed, *shared.pair_keys.values(), *vector}
            keeps = {
                "advertise": {keys.box_secret, keys.mask_secret, *vector},
                "share": {keys.box_secret, shared.box_seed, *to_seal},
                "deliver": {shared.box_seed, *to_seal},
                "explain": to_seal,
            }
            everything = set().union(*keeps.values())
            after = {exchange.stage: exchange.after for exchange in states}
            for stage, state in after.items():
                kept = {secret for secret in everything if secret in state}
                assert kept == keeps.get(stage, set()), stage
            assert after["open"] == pack(Done())
    assert "explain" in {e.stage for e in disputed(True).exchanges if e.client == 5}


def test_after_sealing_a_client_keeps_shares_of_members_only() -> None:
    """Client 2 complained and was left out; nobody keeps what could open anything of it."""
    rehearsal = disputed(True)
    delivered = rehearsal.kept(Delivered, "deliver", 0)
    masked = rehearsal.kept(Masked, "seal", 0)
    assert delivered.held.keys() == set(range(7))
    assert masked.members == (0, 1, 3, 4, 5, 6)
    assert masked.held == {c: pair for c, pair in delivered.held.items() if c != 2}
    confirmed = rehearsal.kept(Confirmed, "confirm", 0)
    assert confirmed == Confirmed(masked, masked.members, confirmed.contents)


def test_a_box_that_was_explained_is_not_explained_again() -> None:
    state = disputed(True).exchange("explain", 5).after
    held = disputed(True).kept(Delivered, "explain", 5)
    assert held.explained
    assert (held.shared.box_seed, held.shared.parcels) == (b"", {})
    complaints = disputed(True).asked(Complaints, "explain", 5)
    with pytest.raises(Exception, match="'Complaints' does not follow 'Delivered'"):
        disputed(True).participants[5].step(state, pack(complaints))


def test_only_the_sealed_vector_releases_and_only_once() -> None:
    for rehearsal in (small(False), small(True), forty(), disputed(True)):
        released = Counter(e.client for e in rehearsal.exchanges if e.releases)
        sealers = [e.client for e in rehearsal.exchanges if e.stage == "seal"]
        assert released == Counter(sealers)
        assert {e.stage for e in rehearsal.exchanges if e.releases} == {"seal"}


@pytest.mark.parametrize("with_roster", [False, True])
def test_only_opened_shares_finish_and_only_sealing_names_members(with_roster: bool) -> None:
    rehearsal = small(with_roster)
    for exchange in rehearsal.exchanges:
        if exchange.stage == "advertise":
            step = rehearsal.participants[exchange.client].begin(rehearsal.vectors[exchange.client])
        else:
            participant = rehearsal.participants[exchange.client]
            step = participant.step(exchange.before, exchange.request)
        assert step.finishes == (exchange.stage == "open")
        assert step.members == (tuple(range(10)) if exchange.stage == "seal" else ())


def test_a_vector_of_another_shape_is_refused() -> None:
    participant = MaskedParticipant(round_of(3), 0)
    for shape in ((4,), (6,), (1, 5), ()):
        with pytest.raises(ValueError, match="the vector has shape"):
            participant.begin(np.zeros(shape, np.int64))
