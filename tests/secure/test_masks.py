"""The masked sum: right sums, nothing below the threshold, no step for a hostile party."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered
from scipy.stats import chi2

from tacit.privacy.bounds import Box, TopVotes
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.secure import crypto, shamir
from tacit.secure.masks import MaskedParticipant, MaskedSum
from tacit.secure.messages import (
    Advert,
    Advertised,
    Adverts,
    Again,
    Confirmation,
    Delivery,
    Done,
    Masked,
    Opened,
    Opening,
    Request,
    Reveal,
    Revealed,
    Sealed,
    Setup,
    Shared,
    Shares,
    Survivors,
    pack,
    unpack_adverts,
    unpack_reply,
    unpack_state,
)
from tacit.secure.protocol import Refused, Round, SpoiledSum, TooFewClients, Total
from tacit.secure.setup import advert_text, own_mask, sharers_text, survivors_text
from tests.randomness import FALSE_ALARM
from tests.secure.driver import Rehearsal, identity, roster_of, round_of, vectors_of

STAGES = ("advertise", "share", "seal", "confirm", "open")
EARLY = ("advertise", "reveal", "share", "seal")
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
    """Seventy clients on a graph of degree 16; client 5 drops out before it seals."""
    rehearsal = Rehearsal(round_of(70, length=16), with_roster=True, dropouts={5: "seal"})
    rehearsal.total()
    return rehearsal


def check(rehearsal: Rehearsal, total: Total) -> None:
    """The survivors are who should be left, and the total is theirs."""
    clients = range(len(rehearsal.participants))
    assert total.survivors == tuple(c for c in clients if rehearsal.dropouts.get(c) not in EARLY)
    assert total.value.tolist() == rehearsal.sum_of(total.survivors)


# --- sums ----------------------------------------------------------------------------------------


@st.composite
def rounds_that_open(draw: st.DrawFn) -> Rehearsal:
    """Two to twelve clients with as many drop-outs, at any stage, as the threshold allows."""
    clients = draw(st.integers(2, 12))
    colluding = draw(st.sampled_from([0.0, 0.0, 0.2]))
    around = round_of(clients, draw(st.sampled_from([0.0, 0.1, 0.3, 0.5])), colluding)
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
    sharers = {e.client for e in rehearsal.exchanges if e.stage == "share"}
    opened = rehearsal.opened().values()
    given_self = {client for reply in opened for client in reply.self_shares}
    given_keys = {client for reply in opened for client in reply.key_shares}
    assert given_self == set(total.survivors), "nobody's key, and everybody's own mask"
    assert given_keys == sharers - set(total.survivors)


@pytest.mark.parametrize("with_roster", [False, True])
def test_sums_on_a_graph_survive_drop_outs_at_every_stage(with_roster: bool) -> None:
    stages = ("advertise", "reveal", "share", "seal", "open")
    dropouts = dict(zip((7, 69, 0, 35, 12), stages, strict=True))
    rehearsal = Rehearsal(
        round_of(70),
        with_roster=with_roster,
        dropouts={**dropouts, 50: "seal", **({51: "confirm"} if with_roster else {})},
    )
    check(rehearsal, rehearsal.total())
    assert rehearsal.kept(Advertised, "advertise", 1).attempt == 1, "who did not reveal is left out"


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


# --- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_exactly_the_threshold_opens(stage: str) -> None:
    """Of 10 clients with drop-out 0.3 there must be 7."""
    rehearsal = Rehearsal(
        round_of(10, dropout=0.3), with_roster=True, dropouts=dict.fromkeys((0, 4, 9), stage)
    )
    check(rehearsal, rehearsal.total())


@pytest.mark.parametrize(
    ("stage", "with_roster"),
    [*((stage, roster) for stage in STAGES[:3] for roster in (False, True)), ("confirm", True)],
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
    assert len(released) == {"advertise": 0, "share": 0, "seal": 6, "confirm": 10}[stage]


def test_drop_outs_of_all_stages_count_together() -> None:
    stages = {0: "advertise", 3: "share", 6: "seal", 9: "confirm"}
    rehearsal = Rehearsal(round_of(10, dropout=0.3), with_roster=True, dropouts=stages)
    with pytest.raises(TooFewClients, match="only 6 clients answered at the stage 'confirm'; 7"):
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
            boxes = complete.asked(Delivery, "seal", 0).boxes
            request = Delivery(few, {other: boxes[other] for other in few[1:]})
            refuses(complete, "seal", request, f"there are {needed - 1} sharers; below {needed} ")


class Withholding:
    """Attempt by attempt one more client reveals what it never committed to."""

    def __init__(self, attempts: int) -> None:
        self.attempts, self.seen = attempts, 0

    def __call__(self, stage: str, client: int, reply: bytes) -> bytes:
        if stage != "reveal":
            return reply
        self.seen += client == 0
        withholds = client == 60 + self.seen and self.seen <= self.attempts
        return pack(Reveal(bytes(32))) if withholds else reply


def test_a_graph_is_drawn_four_times_at_most() -> None:
    three = Rehearsal(round_of(70), tamper_reply=Withholding(3))
    total = three.total()
    assert total.survivors == tuple(c for c in range(70) if c not in (61, 62, 63))
    assert total.value.tolist() == three.sum_of(total.survivors)
    four = Rehearsal(round_of(70), tamper_reply=Withholding(4))
    with pytest.raises(TooFewClients, match="only 66 clients answered at the stage 'reveal'; 67"):
        four.total()
    assert {e.stage for e in four.exchanges} == {"advertise", "reveal"}


# --- masks ---------------------------------------------------------------------------------------


def key_stream(secret: bytes, purpose: bytes, around: Round) -> npt.NDArray[Any]:
    """A mask written down once more, from the definition alone."""
    key = HKDF(SHA256(), 32, salt=around.session, info=b"tacit 1 " + purpose).derive(secret)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(around.vector_bytes)), around.word)


def graph_neighbours(setup: Setup, degree: int, me: int) -> set[int]:
    """Who stands near in the ring, from the definition alone."""
    parts = (len(part).to_bytes(8, "big") + part for part in setup.reveals)
    seed = hashlib.sha256(b"tacit 1 graph" + b"".join(parts)).digest()
    members = [advert.client for advert in unpack_adverts(setup.adverts)]
    members.sort(key=lambda m: hashlib.sha256(seed + m.to_bytes(8, "big")).digest())
    place = members.index(me)
    steps = [*range(-(degree // 2), 0), *range(1, degree // 2 + 1)]
    return {members[(place + step) % len(members)] for step in steps}


def test_every_pair_of_neighbours_shares_a_mask() -> None:
    """Every sealed vector is vector + own mask + all masks agreed with neighbours, none left out.

    Leaving a mask out on both sides would leave the sum right and somebody unprotected.
    """
    complete = Rehearsal(
        round_of(6, dropout=0.4, length=3, bits=64), dropouts={4: "share", 1: "seal"}
    )
    sparse = Rehearsal(round_of(70), dropouts={11: "share", 12: "seal"})
    for rehearsal in (complete, sparse):
        total = rehearsal.total()
        around = rehearsal.around
        clients = set(range(around.participation.clients))
        sharers = {e.client for e in rehearsal.exchanges if e.stage == "share"}
        for me in total.survivors:
            setup = rehearsal.asked(Setup, "share", me)
            keys = {advert.client: advert.mask_key for advert in unpack_adverts(setup.adverts)}
            secret = X25519PrivateKey.from_private_bytes(
                rehearsal.kept(Advertised, "advertise", me).mask_secret
            )
            assert secret.public_key().public_bytes_raw() == keys[me]
            near = graph_neighbours(setup, 16, me) if around.draws_graph else clients - {me}
            expected = rehearsal.vectors[me].astype(around.word)
            expected += key_stream(
                rehearsal.kept(Shared, "share", me).self_seed, b"own mask", around
            )
            for other in near & sharers:
                agreed = secret.exchange(X25519PublicKey.from_public_bytes(keys[other]))
                mask = key_stream(agreed, b"mask", around)
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
        lambda seed: own_mask(round_of(2, length=4), seed).tobytes(),
    ]
    for function in functions:
        seed = int.from_bytes(secrets.token_bytes(32), "big")
        seeds = [seed, *(seed ^ (1 << bit) for bit in range(256))]
        assert len({function(value.to_bytes(32, "big")) for value in seeds}) == 257
    count = 2**17
    keys = {crypto.derive(secrets.token_bytes(32), b"mask", b"session") for _ in range(count)}
    assert len(keys) == count
    assert len({crypto.expand(key, 16) for key in keys}) == count


def test_masks_differ_by_session_and_purpose() -> None:
    seed = bytes(32)
    keys = {
        crypto.derive(seed, purpose, session)
        for purpose in (b"mask", b"own mask", b"box")
        for session in (b"", b"a", b"b")
    }
    assert len(keys) == 9


def test_no_nonce_is_used_twice() -> None:
    """Twelve clients seal 132 boxes; two random nonces of 96 bits agree with a chance of 2^-83."""
    rehearsal = Rehearsal(round_of(12, dropout=0.0))
    rehearsal.total()
    boxes = [
        box
        for client in range(12)
        for box in rehearsal.answered(Shares, "share", client).boxes.values()
    ]
    assert len(boxes) == 132
    assert len({box[:12] for box in boxes}) == len(boxes)
    assert crypto.seal(bytes(32), b"text", b"")[:12] != crypto.seal(bytes(32), b"text", b"")[:12]


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
    for rehearsal in (small(False), small(True), wide()):
        for me in (0, 3):
            keys = rehearsal.kept(Advertised, "advertise", me)
            shared = rehearsal.kept(Shared, "share", me)
            long_term = {keys.cipher_secret, keys.mask_secret}
            later = {shared.self_seed, *shared.mask_keys.values(), *shared.box_keys.values()}
            later |= {keys.vector, keys.vector[:16], keys.vector[-16:]}
            states = [e for e in rehearsal.exchanges if e.client == me]
            after = {exchange.stage: exchange.after for exchange in states}
            assert all(secret in after["share"] for secret in later), "as a control"
            assert not any(secret in after["share"] for secret in long_term)
            for stage in after.keys() - {"advertise", "reveal", "share"}:
                assert not any(secret in after[stage] for secret in later | long_term)
            assert after["open"] == pack(Done())


def test_only_the_sealed_vector_releases_and_only_once() -> None:
    for rehearsal in (small(False), small(True), wide()):
        released = Counter(e.client for e in rehearsal.exchanges if e.releases)
        sealers = [e.client for e in rehearsal.exchanges if e.stage == "seal"]
        assert released == Counter(sealers)
        assert {e.stage for e in rehearsal.exchanges if e.releases} == {"seal"}


def test_a_vector_of_another_shape_is_refused() -> None:
    participant = MaskedParticipant(round_of(3), 0)
    for shape in ((4,), (6,), (1, 5), ()):
        with pytest.raises(ValueError, match="the vector has shape"):
            participant.begin(np.zeros(shape, np.int64))


# --- clients refuse ------------------------------------------------------------------------------


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


def offering(rehearsal: Rehearsal, adverts: Iterable[Advert]) -> Setup:
    """The set-up of a round, with other adverts."""
    return altered(rehearsal.asked(Setup, "share", 0), adverts=pack(tuple(adverts)))


def swapping(rehearsal: Rehearsal, advert: Advert) -> Setup:
    """The set-up of a round, with another advert of one client."""
    adverts = adverts_of(rehearsal)
    return offering(rehearsal, (advert if a.client == advert.client else a for a in adverts))


def new_key() -> bytes:
    return crypto.public_key(crypto.fresh())


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


def nested(message: bytes) -> bytes:
    """A message with one surplus field, a list in a list in a list."""
    return bytes([message[0] + 1]) + message[1:] + b"\x91" * 100_000 + b"\x90"


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


def naming(with_roster: bool, survivors: tuple[int, ...]) -> tuple[str, Request]:
    """The stage and the request at which a client first hears who survived."""
    return (
        ("confirm", Survivors(survivors, {})) if with_roster else ("open", Opening(survivors, {}))
    )


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


# --- the server stands hostile clients ------------------------------------------------------------


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
