"""The masked sum: right sums, nothing below the threshold, masks that hide."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
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
from scipy.stats import chi2

from tacit.privacy.bounds import Box, TopVotes
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.secure import crypto
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import (
    Advertised,
    Delivery,
    Done,
    Reveal,
    Sealed,
    Setup,
    Shared,
    Shares,
    pack,
    unpack_adverts,
)
from tacit.secure.protocol import Round, TooFewClients
from tacit.secure.setup import own_mask
from tests.randomness import FALSE_ALARM
from tests.secure.driver import Rehearsal, round_of, vectors_of
from tests.secure.rounds import (
    STAGES,
    check,
    naming,
    quick,
    refuses,
    small,
    wide,
)


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
