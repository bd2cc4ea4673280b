"""What was signed during a sum: anybody computes it again, and nobody can be framed with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
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
    NO_CAUSE,
    OTHER_KEY,
    OTHER_SEED,
    OTHER_SHARE,
    BadParcel,
    Case,
    Evidence,
    FalseSecret,
    FalseShare,
)
from tacit.secure.messages import (
    Advert,
    Advertised,
    Confirmed,
    Delivery,
    Explained,
    Opened,
    Parcel,
    Received,
    Sealed,
    Shared,
    Shares,
    pack,
    unpack_adverts,
    unpack_reply,
)
from tacit.secure.protocol import Fault, Round, SpoiledSum, Total
from tacit.secure.roster import Roster
from tacit.secure.setup import (
    SECRETS,
    SELF_SEED,
    Dealt,
    Members,
    advert_text,
    box_context,
    explained_text,
    final_digest,
    packed,
    parcel_digest,
    parcel_for,
    sealed_text,
    secret_context,
    survivors_text,
    vector_digest,
)
from tacit.secure.transcript import VERSION, Closed, Seal, Seed, Transcript
from tests.secure.driver import Rehearsal, identity, roster_of, round_of
from tests.secure.rounds import STAGES, Accuser, adverts_of, check, new_key, quick_rings, small
from tests.secure.test_hostile import (
    box_of_nothing_for_four,
    dealt_again,
    dealt_with,
    false_hash_of_the_seed,
    false_shares,
    honest_about_it,
    with_dealing,
    zeros,
)
from tools.faults.recorded import TwoKeys


@dataclass(frozen=True)
class Played:
    """A sum that opened, and what was signed on the way."""

    rehearsal: Rehearsal
    total: Total

    @classmethod
    def of(cls, rehearsal: Rehearsal) -> Played:
        return cls(rehearsal, rehearsal.total())

    @property
    def around(self) -> Round:
        return self.rehearsal.around

    @property
    def roster(self) -> Roster:
        return roster_of(self.around.participation.clients)

    @property
    def transcript(self) -> Transcript:
        return Transcript.from_bytes(self.total.transcript)

    @property
    def case(self) -> Case:
        adverts = {one.client: one for one in unpack_adverts(self.transcript.adverts)}
        members = Members.of(self.around, self.transcript.adverts, adverts)
        return Case(members, self.roster, final_digest(members.digest, self.transcript.members))

    def recomputed(self, transcript: Transcript | None = None) -> Total:
        """As somebody does who has the bytes and the roster."""
        data = (transcript or self.transcript).to_bytes()
        return Transcript.from_bytes(data).recompute(self.around, self.roster)

    def is_found(self, transcript: Transcript, because: str) -> None:
        with pytest.raises(ValueError, match=because):
            self.recomputed(transcript)

    def all_said(self, kind: type[Any], stage: str) -> dict[int, Any]:
        clients = [e.client for e in self.rehearsal.exchanges if e.stage == stage]
        return {client: self.rehearsal.answered(kind, stage, client) for client in clients}


@lru_cache(maxsize=1)
def whole() -> Played:
    """Fourteen clients of which six may be missing, one from each stage on."""
    dropouts = dict(zip((1, 2, 5, 7, 10, 11), STAGES, strict=True))
    around = replace(round_of(14, dropout=6), question=b"what was asked")
    return Played.of(Rehearsal(around, with_roster=True, dropouts=dropouts))


GUILTY = {
    "a liar": Fault(3, OTHER_SHARE),
    "an accuser": Fault(2, NO_CAUSE),
    "a dealer of junk": Fault(2, BAD_PARCEL),
    "a false hash": Fault(2, OTHER_SEED),
}


@lru_cache(maxsize=8)
def hostile(kind: str, session: bytes = b"one session") -> Played:
    """Seven clients of which five must be there, and one of them misbehaves."""
    around = round_of(7, dropout=2, session=session)
    rehearsal = Rehearsal(around, with_roster=True, dropouts={6: "seal"})
    if kind == "a liar":
        false_shares(rehearsal, {3: zeros})
    elif kind == "an accuser":
        rehearsal.participants[2] = Accuser(around, 2, identity(2), rehearsal.roster)
    elif kind == "a dealer of junk":
        honest_about_it(rehearsal, 2, dealt_again(rehearsal, 2, box_of_nothing_for_four))
    else:
        rehearsal.tamper_reply = dealt_again(rehearsal, 2, false_hash_of_the_seed)
    return Played.of(rehearsal)


# Computing the sum again.


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dropouts", [{}, {3: "seal", 5: "open"}, dict.fromkeys((0, 6), "deliver")])
def test_anybody_computes_the_opened_sum_again(dropouts: Mapping[int, str], bits: int) -> None:
    around = round_of(7, dropout=2, bits=bits)
    played = Played.of(Rehearsal(around, with_roster=True, dropouts=dropouts))
    check(played.rehearsal, played.recomputed())


def test_a_sum_with_drop_outs_at_every_stage_is_computed_again() -> None:
    check(whole().rehearsal, whole().total)
    again = whole().recomputed()
    check(whole().rehearsal, again)
    assert again.faults == ()
    assert again.transcript == whole().total.transcript


def test_a_sum_on_a_ring_is_computed_again() -> None:
    with quick_rings():
        rehearsal = Rehearsal(round_of(40), with_roster=True, dropouts={3: "seal", 9: "deliver"})
        check(rehearsal, Played.of(rehearsal).recomputed())


def test_without_a_roster_nothing_was_signed_and_nothing_is_kept() -> None:
    assert Rehearsal(round_of(4, dropout=1)).total().transcript == b""


def test_a_transcript_holds_nothing_but_what_the_sum_opens() -> None:
    """No mask key of a survivor, no seed of a drop-out, no vector of anybody."""
    rehearsal, survivors = whole().rehearsal, whole().total.survivors
    assert rehearsal.kept(Shared, "share", survivors[0]).self_seed in whole().total.transcript
    for exchange in rehearsal.exchanges:
        if exchange.stage == "advertise":
            keys = rehearsal.kept(Advertised, "advertise", exchange.client)
            assert keys.vector not in whole().total.transcript
            assert keys.box_secret not in whole().total.transcript
            opened = whole().transcript.keys.get(exchange.client)
            assert (keys.mask_secret in whole().total.transcript) == (opened is not None)
        if exchange.stage == "share":
            shared = rehearsal.kept(Shared, "share", exchange.client)
            is_open = exchange.client in survivors
            assert (shared.self_seed in whole().total.transcript) == is_open


@settings(deadline=None, max_examples=300)
@given(kind=st.sampled_from(["nobody", *GUILTY]), data=st.data())
def test_altered_bytes_are_found_or_change_nothing_that_counts(
    kind: str, data: st.DataObject
) -> None:
    played = whole() if kind == "nobody" else hostile(kind)
    found = bytearray(played.total.transcript)
    for _ in range(data.draw(st.integers(1, 2))):
        found[data.draw(st.integers(0, len(found) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        again = Transcript.from_bytes(bytes(found)).recompute(played.around, played.roster)
    except ValueError:
        return
    assert again.value.tolist() == played.total.value.tolist()
    assert again.survivors == played.total.survivors
    assert again.faults == played.total.faults


def test_another_vector_is_found() -> None:
    transcript = whole().transcript
    one, two, *_ = sorted(transcript.seals)
    seals = transcript.seals
    flipped = bytes([seals[one].vector[0] ^ 1]) + seals[one].vector[1:]
    for wrong in (
        {one: seals[two], two: seals[one]},
        {one: altered(seals[one], vector=seals[two].vector)},
        {one: altered(seals[one], vector=flipped)},
        {one: altered(seals[one], vector=bytes(len(flipped)))},
        {one: altered(seals[one], signature=b"")},
    ):
        because = "client [0-9]+ did not sign its sealed vector"
        whole().is_found(altered(transcript, seals={**seals, **wrong}), because)


def test_a_vector_of_another_length_is_found_even_if_it_was_signed() -> None:
    """One number would be added everywhere, and several to a sum of one number would lengthen it.

    A server and the client that signs such a vector could record a sum of another shape.
    """
    around = round_of(4, dropout=1, length=1)
    played = Played.of(Rehearsal(around, with_roster=True))
    case, transcript = played.case, played.transcript
    for vector in (b"", bytes(3), bytes(8), bytes(40)):
        signature = identity(2).sign(sealed_text(case.final, 2, vector_digest(vector)))
        wrong = altered(transcript, seals={**transcript.seals, 2: Seal(vector, signature)})
        played.is_found(wrong, f"the vector of client 2 has {len(vector)} bytes; allowed is 4")


def test_another_seed_is_found() -> None:
    transcript = whole().transcript
    one, two, *_ = sorted(transcript.seeds)
    seed = transcript.seeds[one]
    for wrong in (
        transcript.seeds[two],
        altered(seed, seed=transcript.seeds[two].seed),
        altered(seed, seed=bytes(32)),
        altered(seed, salt=transcript.seeds[two].salt),
        altered(seed, salt=b""),
        altered(seed, holders=bytes(32)),
        altered(seed, at_zero=bytes(33)),
        altered(seed, at_zero=b""),
    ):
        because = f"the seed of client {one} is not the one it shared"
        whole().is_found(altered(transcript, seeds={**transcript.seeds, one: wrong}), because)
    for wrong in (
        altered(seed, everything=bytes(32)),
        altered(seed, signature=transcript.seeds[two].signature),
    ):
        because = f"the seed of client {one} is not the one it dealt"
        whole().is_found(altered(transcript, seeds={**transcript.seeds, one: wrong}), because)
    without = {client: one for client, one in transcript.seeds.items() if client != two}
    for seeds in (without, {**without, two: altered(transcript.seeds[two], seed=b"")}):
        because = f"the seed of client {two} is missing"
        whole().is_found(altered(transcript, seeds=seeds), because)


def test_another_key_of_a_drop_out_is_found() -> None:
    transcript = whole().transcript
    assert transcript.keys.keys() == {7}
    survivor = whole().rehearsal.kept(Advertised, "advertise", 0).mask_secret
    for keys in ({}, {7: crypto.fresh()}, {**transcript.keys, 0: survivor}, {0: survivor}):
        because = "a drop-out's mask key does not fit the one it advertised"
        whole().is_found(altered(transcript, keys=keys), because)
    with pytest.raises(ValueError, match="32 bytes"):
        whole().recomputed(altered(transcript, keys={7: b""}))


def test_swapped_keys_are_found() -> None:
    transcript = whole().transcript
    adverts = list(unpack_adverts(transcript.adverts))
    fresh = crypto.public_key(crypto.fresh())
    for wrong in (
        altered(adverts[0], mask_key=fresh),
        altered(adverts[0], box_key=fresh),
        altered(adverts[0], signature=b""),
    ):
        changed = altered(transcript, adverts=pack((wrong, *adverts[1:])))
        whole().is_found(changed, "not signed by the client that the roster names")
    whole().is_found(altered(transcript, adverts=b"junk"), "cannot be read")
    whole().is_found(altered(transcript, adverts=pack(tuple(adverts[::-1]))), "not a sorted list")


def test_lists_and_signatures_over_them_belong_together() -> None:
    """Ten survived and eight must have signed; nine did."""
    transcript, survivors = whole().transcript, whole().total.survivors
    confirmations = transcript.confirmations
    assert (len(survivors), len(confirmations)) == (10, 9)
    seven = dict(list(confirmations.items())[:7])
    eight = dict(list(confirmations.items())[:8])
    assert whole().recomputed(altered(transcript, confirmations=eight)).survivors == survivors
    forged = {**seven, 0: confirmations[survivors[1]]}
    contents = whole().rehearsal.kept(Confirmed, "confirm", survivors[0]).contents
    text = survivors_text(whole().case.final, survivors, contents)
    dropped = {**seven, 7: identity(7).sign(text), 5: identity(5).sign(text)}
    for few in (seven, {}, forged, dropped):
        changed = altered(transcript, confirmations=few)
        whole().is_found(changed, "clients signed these survivors and vectors; needed are 8")
    fewer = {client: seal for client, seal in transcript.seals.items() if client != survivors[0]}
    whole().is_found(altered(transcript, seals=fewer), "0 clients signed these survivors")
    members = transcript.members
    for other in (members[:-1], members[::-1], (*members, members[-1])):
        changed = altered(transcript, members=other)
        whole().is_found(changed, "did not sign its sealed vector|survivors are no members")
    whole().is_found(altered(transcript, members=(*members, 99)), "the survivors are no members")


def test_an_accomplice_cannot_sign_another_vector_once_the_sum_is_open() -> None:
    """The attack: the sum that the server wishes for comes out of signatures that are all genuine.

    It fails because the survivors signed a digest of all vectors before anything opened.
    """
    played, accomplice = whole(), 0
    seal = played.transcript.seals[accomplice]
    wish = np.array([777, 0, -5, 123456, 1])
    vector = np.frombuffer(seal.vector, played.around.word)
    vector = (vector + (wish - played.total.value).astype(played.around.word)).tobytes()
    text = sealed_text(played.case.final, accomplice, vector_digest(vector))
    forged = Seal(vector, identity(accomplice).sign(text))
    altered_seals = {**played.transcript.seals, accomplice: forged}
    played.is_found(
        altered(played.transcript, seals=altered_seals),
        "0 clients signed these survivors and vectors; needed are 8",
    )


def test_an_accomplice_cannot_sign_another_dealing_once_the_sum_is_open() -> None:
    """Another seed of its own mask would change the sum just as another vector does."""
    played, accomplice = whole(), 0
    setup, other = played.case.members.digest, bytes(32)
    dealt = shamir.Dealing.of(other, range(14), 8, secret_context(setup, accomplice, SELF_SEED))
    public, anything = dealt.public, bytes(32)
    parts = public.holders, public.at_zero, anything
    text = Dealt(public.hashes[shamir.SECRET], *parts).text(setup, accomplice)
    forged = Seed(other, public.salt(other), *parts, identity(accomplice).sign(text))
    altered_seeds = {**played.transcript.seeds, accomplice: forged}
    played.is_found(
        altered(played.transcript, seeds=altered_seeds),
        "0 clients signed these survivors and vectors; needed are 8",
    )


def test_another_roster_or_round_is_found() -> None:
    around, transcript = whole().around, whole().transcript
    others = Roster(tuple(identity(100 + client).public_key for client in range(14)))
    swapped = Roster((*whole().roster.keys[1::-1], *whole().roster.keys[2:]))
    for roster in (others, swapped):
        with pytest.raises(ValueError, match="not signed by the client that the roster names"):
            transcript.recompute(around, roster)
    for elsewhere in (
        replace(around, session=b"another session"),
        replace(around, question=b"another question"),
        replace(around, length=4),
        replace(around, bits=64),
        replace(around, sparse=(0, 1)),
        replace(around, participation=round_of(14, dropout=5).participation),
        replace(around, participation=round_of(15, dropout=6).participation),
        replace(around, participation=round_of(14, dropout=6, colluding=2).participation),
    ):
        with pytest.raises(ValueError, match="not signed by the client that the roster names"):
            transcript.recompute(elsewhere, whole().roster)


def test_what_is_no_transcript_of_this_version_is_refused_with_a_sentence() -> None:
    _, adverts, members, seals, confirmations, seeds, keys, evidence = msgspec.msgpack.decode(
        whole().total.transcript
    )
    fewer = {client: seed[:4] for client, seed in seeds.items()}
    older = [2, adverts, members, seals, confirmations, fewer, keys, evidence]
    with pytest.raises(ValueError, match="the transcript has version 2; this version of Tacit rea"):
        Transcript.from_bytes(msgspec.msgpack.encode(older))
    newer = altered(whole().transcript, version=VERSION + 1).to_bytes()
    with pytest.raises(ValueError, match="the transcript has version 4; this version of Tacit rea"):
        Transcript.from_bytes(newer)
    data = whole().total.transcript
    for junk in (b"", b"junk", data[:-1], data + b"\0", b"\x91" * 10**5):
        with pytest.raises(ValueError, match="the transcript cannot be read"):
            Transcript.from_bytes(junk)


# Who misbehaved.


@pytest.mark.parametrize("kind", GUILTY)
def test_evidence_names_whom_the_server_named(kind: str) -> None:
    played, fault = hostile(kind), GUILTY[kind]
    assert played.total.faults == (fault,)
    again = played.recomputed()
    assert again.faults == (fault,)
    assert again.value.tolist() == played.rehearsal.sum_of(played.total.survivors)
    (evidence,) = played.transcript.evidence
    assert evidence.fault(played.case) == fault


def test_evidence_that_is_needed_cannot_be_left_out() -> None:
    """The seed of a dealer that published another hash counts only as what its shares recover."""
    played = hostile("a false hash")
    played.is_found(altered(played.transcript, evidence=[]), "the seed of client 2 is not the one")
    liar = hostile("a liar")
    without = liar.recomputed(altered(liar.transcript, evidence=[]))
    assert without.value.tolist() == liar.total.value.tolist()
    assert not without.faults, "what no sum needs can be"


@dataclass
class TwoSeeds:
    """A dealer that shares one seed and publishes the hash of another one, which it knows too.

    Its vector has the mask of the shared one. An honest server finds out, and names the dealer. But
    a server that helps it has two seeds to choose from once the sum is open.
    """

    dealer: int = 2
    other: bytes = b"another seed of 32 bytes exactly"
    salt: bytes = b"a number below the prime".rjust(shamir.NUMBER_BYTES, b"\0")

    def __call__(self, shares: Shares, state: Shared, rehearsal: Rehearsal) -> Shares:
        context = secret_context(state.setup_digest, self.dealer, SELF_SEED)
        known = shamir.share_hash(context, shamir.SECRET, self.pair)
        dealt = dealt_with(state.self_seed, context, {shamir.SECRET: known})
        return with_dealing(rehearsal, state, shares, SELF_SEED, dealt.shares, dealt)

    @property
    def pair(self) -> bytes:
        return shamir.as_bytes(int.from_bytes(self.other, "big")) + self.salt

    def played(self) -> Played:
        rehearsal = Rehearsal(round_of(7, dropout=2), with_roster=True)
        rehearsal.tamper_reply = dealt_again(rehearsal, self.dealer, self)
        return Played.of(rehearsal)

    def told(self, transcript: Transcript, **changes: bytes) -> Transcript:
        """The transcript without evidence, and with the seed that was not shared."""
        seed = altered(transcript.seeds[self.dealer], seed=self.other, salt=self.salt, **changes)
        seeds = {**transcript.seeds, self.dealer: seed}
        return altered(transcript, seeds=seeds, evidence=[])


def test_an_accomplice_with_two_seeds_cannot_choose_between_two_sums() -> None:
    """The attack: both the seed that it shared and the one that it published a hash of are told.

    It fails because a seed has to lie on the polynomial of the shares, whose challenge depends on
    the seed's hash.
    """
    attack = TwoSeeds()
    played = attack.played()
    check(played.rehearsal, played.total)
    assert played.total.faults == (Fault(2, OTHER_SEED),)
    assert (played.recomputed().value == played.total.value).all()
    transcript, case = played.transcript, played.case
    told = attack.told(transcript)
    played.is_found(told, "the seed of client 2 is not the one it shared")

    # Signed anew it lies on some polynomial, but not on the one that the survivors signed.
    setup, seed = case.members.digest, told.seeds[2]
    context = secret_context(setup, 2, SELF_SEED)
    known = shamir.share_hash(context, shamir.SECRET, attack.pair)
    challenge = shamir.challenge_of(context, known, seed.holders)
    at_zero = shamir.fitting(challenge, attack.pair)
    text = Dealt(known, seed.holders, at_zero, seed.everything).text(setup, 2)
    forged = attack.told(transcript, at_zero=at_zero, signature=identity(2).sign(text))
    played.is_found(forged, "0 clients signed these survivors and vectors; needed are 5")


def test_a_seed_that_shares_do_not_tell_for_sure_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many holders it takes more shares than recover a secret; the dealer is named anyhow."""
    played = hostile("a false hash")
    (evidence,) = played.transcript.evidence
    assert isinstance(evidence, FalseSecret)
    assert len(evidence.pieces) == 6, "all that came back, of which 4 recover the secret"
    four = altered(evidence, pieces=dict(list(evidence.pieces.items())[:4]))
    assert played.recomputed(altered(played.transcript, evidence=[four])).faults
    monkeypatch.setattr(shamir, "_BAD_CHALLENGES", 30)
    shamir.telling.cache_clear()
    assert shamir.telling(7, 4) == 6
    assert played.recomputed().value.tolist() == played.total.value.tolist()
    played.is_found(
        altered(played.transcript, evidence=[four]), "4 shares do not say for sure which one"
    )
    monkeypatch.undo()
    shamir.telling.cache_clear()


# The base point has the order 2^252 + c. Two secrets that add up to eight times as much have one
# public key, and agree on different secrets with a key on the twist.

ORDER = 2**252 + 27742317777372353535851937790883648493
TWIN = 2**254 + 8 * 12345
TWINS = [number.to_bytes(32, "little") for number in (TWIN, 8 * ORDER - TWIN)]
ON_THE_TWIST = (2).to_bytes(32, "little")


def test_a_drop_out_with_two_keys_cannot_choose_between_two_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack: a drop-out's two secrets fit its one public key, and an accomplice's key is on
    the twist, where they make other masks."""
    assert len({crypto.public_key(twin) for twin in TWINS}) == 1
    assert crypto.is_public_key(ON_THE_TWIST)
    honest = new_key()
    assert len({crypto.agree(twin, honest)[0] for twin in TWINS}) == 1
    assert len({crypto.agree(twin, ON_THE_TWIST)[0] for twin in TWINS}) == 2

    def transcripts() -> list[Total | str]:
        rehearsal = Rehearsal(round_of(7, dropout=2), with_roster=True, dropouts={6: "seal"})
        rehearsal.tamper_reply = with_mask_keys(
            rehearsal, {6: (TWINS[0], crypto.public_key(TWINS[0])), 2: (None, ON_THE_TWIST)}
        )
        played = Played.of(rehearsal)
        found: list[Total | str] = []
        for twin in TWINS:
            try:
                found.append(played.recomputed(altered(played.transcript, keys={6: twin})))
            except ValueError as error:
                found.append(str(error))
        return found

    with pytest.raises(SpoiledSum, match="client 6 shared another key than it advertised"):
        transcripts()
    with monkeypatch.context() as patch:  # as it was, and as a server that helps would do it
        patch.setattr(crypto, "belongs", lambda secret, key: crypto.public_key(secret) == key)
        one, other = transcripts()
        assert isinstance(one, Total)
        assert isinstance(other, Total)
        assert (one.value != other.value).any()
    with monkeypatch.context() as patch:
        patch.setattr("tacit.secure.opening.is_secret", lambda *_: True)
        because = "a drop-out's mask key does not fit the one it advertised"
        assert transcripts() == [because, because]


def with_mask_keys(
    rehearsal: Rehearsal, keys: Mapping[int, tuple[bytes | None, bytes]]
) -> Callable[[str, int, bytes], bytes]:
    """Some clients advertise other mask keys, and share the secrets given."""

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if stage != "advertise" or client not in keys:
            return reply
        secret, key = keys[client]
        state = msgspec.msgpack.decode(rehearsal.states[client], type=Advertised)
        text = advert_text(rehearsal.around, client, state.advert.box_key, key)
        advert = Advert(client, state.advert.box_key, key, identity(client).sign(text))
        kept = altered(state, advert=advert, mask_secret=secret or state.mask_secret)
        rehearsal.states[client] = pack(kept)
        return pack(advert)

    return tamper


def test_an_honest_key_is_the_only_one_of_its_public_key() -> None:
    for _ in range(50):
        secret = crypto.fresh()
        key = crypto.public_key(secret)
        assert crypto.belongs(secret, key)
        same = bytes([secret[0] ^ 7, *secret[1:31], secret[31] ^ 128])
        assert crypto.belongs(same, key), "these bits are ignored, so it agrees on the same secrets"
        assert not crypto.belongs(bytes([secret[0] ^ 8, *secret[1:]]), key)
    assert not any(crypto.belongs(twin, crypto.public_key(twin)) for twin in TWINS)
    least = 8 * ORDER - 2**254 + 8
    for number, is_alone in ((least - 8, False), (least, True)):
        edge = number.to_bytes(32, "little")
        assert crypto.belongs(edge, crypto.public_key(edge)) == is_alone


def names_an_innocent(evidence: Evidence, played: Played, guilty: Fault | None) -> bool:
    try:
        found = evidence.fault(played.case)
    except ValueError:
        return False
    return guilty is None or found.client != guilty.client


@pytest.mark.parametrize("kind", GUILTY)
def test_no_altered_evidence_names_an_innocent(kind: str) -> None:
    """Other numbers, evidence of another session, of another kind, and every part of it altered."""
    played, elsewhere, guilty = hostile(kind), hostile(kind, b"another session"), GUILTY[kind]
    (evidence,), (other,) = played.transcript.evidence, elsewhere.transcript.evidence
    assert names_an_innocent(evidence, played, None), "as a control"
    with pytest.raises(ValueError, match="signed no such"):
        other.fault(played.case)
    for dealer in range(-2, 9):
        for holder in range(-2, 9):
            for one in (evidence, other):
                swapped = altered(one, dealer=dealer, holder=holder)
                assert not names_an_innocent(swapped, played, guilty)
    for name in evidence.__struct_fields__:
        here, there = getattr(evidence, name), getattr(other, name)
        kinds: dict[type, list[Any]] = {
            int: [-2, -1, 0, 1, 2, 3, 99],
            bytes: [b"", b"junk", bytes(64)],
            dict: [{}, {-1: bytes(66)}, dict(list(there.items())[:2]) if name == "pieces" else {}],
        }
        for wrong in (there, *kinds[type(here)]):
            assert not names_an_innocent(altered(evidence, **{name: wrong}), played, guilty)


def test_a_dealer_cannot_be_framed_with_another_secret_of_its_box() -> None:
    """Client 2 complained without cause; with a secret that opens nothing, 5 would seem at fault.

    Only what client 5 signed counts as its answer.
    """
    played = hostile("an accuser")
    (evidence,) = played.transcript.evidence
    assert isinstance(evidence, BadParcel)
    explained = played.rehearsal.answered(Explained, "explain", 5)
    setup, other = played.case.members.digest, crypto.fresh()
    for secrets in ({2: other}, {2: b""}, {}, {2: explained.secrets[2], 3: other}):
        for signer in (None, 2, 4):
            signature = explained.signature
            if signer is not None:
                signature = identity(signer).sign(explained_text(setup, 5, secrets))
            forged = altered(evidence, explained=pack(Explained(secrets, signature)))
            with pytest.raises(ValueError, match="client 5 signed no such explanation"):
                forged.fault(played.case)


def test_a_dealer_that_signs_an_explanation_of_other_boxes_only_is_not_named_for_it() -> None:
    """Whoever leaves a complaint unanswered is named by nobody."""
    played = hostile("a dealer of junk")
    (evidence,) = played.transcript.evidence
    assert isinstance(evidence, BadParcel)
    text = explained_text(played.case.members.digest, 2, {})
    nothing = Explained({}, identity(2).sign(text))
    with pytest.raises(ValueError, match="client 2 explained no box of client 4"):
        altered(evidence, explained=pack(nothing)).fault(played.case)


def test_a_dealer_cannot_be_framed_with_too_few_shares_of_its_secret() -> None:
    """Fewer shares than recover a secret tell nothing, so they do not tell that it is false."""
    case, rehearsal = whole().case, whole().rehearsal
    opened = {client: one.self_shares for client, one in rehearsal.opened().items()}
    dealing = pack(rehearsal.answered(Shares, "share", 0))
    right = {holder: shares[0] for holder, shares in opened.items() if 0 in shares}
    threshold = case.members.wired.share_threshold
    assert len(right) == threshold == 8
    for count in range(threshold):
        for place in (0, 1):
            few = FalseSecret(0, 0, dealing, place, dict(list(right.items())[:count]))
            with pytest.raises(ValueError, match="a secret takes 8 right shares"):
                few.fault(case)
    with pytest.raises(ValueError, match="the secret is what its dealer said"):
        FalseSecret(0, 0, dealing, 0, right).fault(case)


def test_a_dealer_cannot_be_framed_by_taking_its_seed_for_its_key() -> None:
    """Number -2 is the seed in Python's lists, and was checked like a key."""
    case, rehearsal = whole().case, whole().rehearsal
    opened = {client: one.self_shares for client, one in rehearsal.opened().items()}
    dealing = pack(rehearsal.answered(Shares, "share", 0))
    right = {holder: shares[0] for holder, shares in opened.items() if 0 in shares}
    for place in (-2, -1, 2, 3):
        with pytest.raises(ValueError, match=f"a client has no secret number {place}"):
            FalseSecret(0, 0, dealing, place, right).fault(case)


def test_evidence_with_the_secret_itself_among_its_shares_is_refused() -> None:
    """Once a sum is open its server knows them; they stand at a point where nothing is weighed."""
    case, seed = whole().case, whole().transcript.seeds[0]
    opened = {client: one.self_shares for client, one in whole().rehearsal.opened().items()}
    dealing = pack(whole().rehearsal.answered(Shares, "share", 0))
    right = {holder: shares[0] for holder, shares in opened.items() if 0 in shares}
    pair = shamir.as_bytes(int.from_bytes(seed.seed, "big")) + seed.salt
    with pytest.raises(ValueError, match="a secret takes 8 right shares"):
        FalseSecret(0, 0, dealing, 0, {**right, shamir.SECRET: pair}).fault(case)


def forged_parcel(me: int, dealer: int) -> Parcel:
    """What a server deals to a client in another one's name: everything in it fits."""
    rehearsal = small(True)
    setup = rehearsal.kept(Shared, "share", me).setup_digest
    contexts = [secret_context(setup, dealer, secret) for secret in SECRETS]
    dealt = [shamir.Dealing.of(bytes(32), range(10), 6, context) for context in contexts]
    seed, key = (dealing.public for dealing in dealt)
    box = crypto.seal(
        crypto.fresh(),
        rehearsal.answered(Advert, "advertise", me).box_key,
        b"".join(dealing.shares[me] for dealing in dealt),
        box_context(setup, dealer, me),
    )
    return parcel_for((seed, key), me, box, (seed.expected(me), key.expected(me)))


def test_a_holder_cannot_be_framed_by_a_server_that_deals_in_anothers_name() -> None:
    """Client 0 cannot know that client 3 did not make its parcel, and returns what it got.

    But it signed at once what it got, and the dealing that client 3 signed is another one.
    """
    rehearsal, me = small(True), small(True).participants[0]
    delivery = rehearsal.asked(Delivery, "deliver", 0)
    told = altered(delivery, parcels={**delivery.parcels, 3: forged_parcel(0, 3)})
    step = me.step(rehearsal.exchange("deliver", 0).before, pack(told))
    received = unpack_reply(Received, step.reply)
    assert received is not None
    assert received.complaints == {}
    for stage in ("seal", "confirm", "open"):
        step = me.step(step.state, rehearsal.exchange(stage, 0).request)
    dealing = pack(rehearsal.answered(Shares, "share", 3))
    parcels = {dealer: parcel_digest(parcel) for dealer, parcel in delivery.parcels.items()}
    forged = {dealer: parcel_digest(parcel) for dealer, parcel in told.parcels.items()}
    adverts = {advert.client: advert for advert in adverts_of(rehearsal)}
    members = Members.of(rehearsal.around, packed(adverts), adverts)
    case = Case(members, roster_of(10), final_digest(members.digest, range(10)))
    for digests in (parcels, forged, {}, {3: parcels[3]}):
        for signature in (received.signature, b""):
            one = FalseShare(3, 0, dealing, step.reply, digests, signature)
            with pytest.raises(ValueError, match="client 0 signed no receipt of these shares"):
                one.fault(case)


@dataclass(frozen=True)
class Known:
    """Everything a server knows after a sum, in two sessions of the same clients."""

    dealings: list[bytes]
    opened: list[bytes]
    receipts: list[bytes]
    digests: list[dict[int, bytes]]
    complaints: list[bytes]
    explained: list[bytes]
    pieces: list[tuple[int, int, bytes]]
    """Holder, place and share."""

    @classmethod
    def of(cls, *runs: Played) -> Known:
        known = cls([], [], [], [], [], [], [])
        for played in runs:
            known.add(played)
        return known

    def add(self, played: Played) -> None:
        for one in played.all_said(Shares, "share").values():
            self.dealings.append(pack(one))
        for holder, received in played.all_said(Received, "deliver").items():
            self.receipts.append(received.signature)
            self.complaints.extend(received.complaints.values())
            delivery = played.rehearsal.asked(Delivery, "deliver", holder)
            self.digests.append({d: parcel_digest(p) for d, p in delivery.parcels.items()})
        for one in played.all_said(Explained, "explain").values():
            self.explained.append(pack(one))
        for holder, one in played.all_said(Opened, "open").items():
            self.opened.append(pack(one))
            for place, shares in enumerate((one.self_shares, one.key_shares)):
                self.pieces.extend((holder, place, share) for share in shares.values())

    def evidence(self) -> st.SearchStrategy[Evidence]:
        number, dealing = st.integers(-1, 7), st.sampled_from(self.dealings)
        signature = st.sampled_from([*self.receipts, *self.complaints, b""])
        secrets = st.dictionaries(number, st.binary(min_size=32, max_size=32), max_size=3)
        made_up = st.builds(lambda s, word: pack(Explained(s, word)), secrets, signature)
        pieces = st.lists(st.sampled_from(self.pieces), max_size=8)
        return st.one_of(
            st.builds(
                BadParcel,
                number,
                number,
                dealing,
                signature,
                st.sampled_from(self.explained or [b""]) | made_up,
            ),
            st.builds(
                FalseShare,
                number,
                number,
                dealing,
                st.sampled_from(self.opened),
                st.sampled_from(self.digests),
                signature,
            ),
            st.builds(
                lambda dealer, dealing, place, pieces: FalseSecret(
                    dealer, dealer, dealing, place, {holder: share for holder, _, share in pieces}
                ),
                number,
                dealing,
                st.integers(-3, 3),
                pieces,
            ),
        )


@pytest.mark.parametrize("kind", GUILTY)
def test_no_mix_of_what_a_server_knows_names_an_innocent(kind: str) -> None:
    played, guilty = hostile(kind), GUILTY[kind]
    known = Known.of(played, hostile(kind, b"another session"))

    @settings(deadline=None, max_examples=150)
    @given(evidence=known.evidence())
    def mixed(evidence: Evidence) -> None:
        assert not names_an_innocent(evidence, played, guilty)

    mixed()


def matched(played: Played) -> Iterator[Evidence]:
    """For every dealer and holder what belongs to both, as if somebody had misbehaved."""
    rehearsal, opened = played.rehearsal, played.all_said(Opened, "open")
    explained = {c: pack(one) for c, one in played.all_said(Explained, "explain").items()}
    received = played.all_said(Received, "deliver")
    for dealer, shares in played.all_said(Shares, "share").items():
        dealing = pack(shares)
        for holder in received:
            delivery = rehearsal.asked(Delivery, "deliver", holder)
            digests = {d: parcel_digest(p) for d, p in delivery.parcels.items()}
            for reply in opened.values():
                receipt = received[holder].signature
                yield FalseShare(dealer, holder, dealing, pack(reply), digests, receipt)
            for complaint in (b"", *received[holder].complaints.values()):
                for word in (b"", *explained.values()):
                    yield BadParcel(dealer, holder, dealing, complaint, word)
        for place, kind in enumerate(("self_shares", "key_shares")):
            given = {c: getattr(reply, kind).get(dealer) for c, reply in opened.items()}
            pieces = {holder: share for holder, share in given.items() if share}
            for count in (len(pieces), 4, 3, 1, 0):
                yield FalseSecret(
                    dealer, dealer, dealing, place, dict(list(pieces.items())[:count])
                )


# Evidence about a sum that stayed closed.


@lru_cache(maxsize=4)
def stays_closed(session: bytes = b"one session") -> tuple[Rehearsal, Closed]:
    """Client 2 shared another mask key than it advertised and vanished; client 3 returned zeros."""
    around = round_of(7, dropout=2, session=session)
    rehearsal = Rehearsal(around, with_roster=True, dropouts={2: "seal"})
    false_shares(rehearsal, {3: zeros})
    rehearsal.participants[2] = TwoKeys(around, 2, identity(2), rehearsal.roster)
    with pytest.raises(SpoiledSum) as no:
        rehearsal.total()
    assert no.value.faults == BOTH
    return rehearsal, Closed.from_bytes(no.value.evidence)


BOTH = Fault(3, OTHER_SHARE), Fault(2, OTHER_KEY)


def test_anybody_sees_who_spoiled_a_sum_that_stayed_closed() -> None:
    rehearsal, closed = stays_closed()
    assert closed.members == tuple(range(7))
    assert closed.judged(rehearsal.around, roster_of(7)) == BOTH


def test_evidence_of_a_closed_sum_holds_no_vector_and_no_secret_of_an_honest_client() -> None:
    rehearsal, closed = stays_closed()
    for client in (0, 1, 4, 5, 6):
        shared = rehearsal.kept(Shared, "share", client)
        keys = rehearsal.kept(Advertised, "advertise", client)
        sealed = rehearsal.answered(Sealed, "seal", client).vector
        for secret in (shared.self_seed, shared.box_seed, keys.mask_secret, keys.vector, sealed):
            assert secret not in closed.to_bytes()


def test_no_evidence_about_honest_clients_stands_up_in_a_closed_sum() -> None:
    """Nobody signs a list of survivors there, and whoever writes the file may choose everything."""
    rehearsal, closed = stays_closed()
    found = set()
    for evidence in matched(Played(rehearsal, Total(np.zeros(0, np.int64), ()))):
        for members in (closed.members, ()):
            forged = altered(closed, members=members, evidence=[evidence])
            with suppress(ValueError):
                found |= set(forged.judged(rehearsal.around, roster_of(7)))
    assert found == set(BOTH)


def test_forged_evidence_of_a_closed_sum_is_refused() -> None:
    rehearsal, closed = stays_closed()
    _, other = stays_closed(b"another session")
    share, secret = closed.evidence
    assert isinstance(secret, FalseSecret)
    few = dict(list(secret.pieces.items())[:3])
    for forged, because in (
        (altered(closed, evidence=[]), "no evidence against anybody"),
        (altered(closed, evidence=other.evidence), "signed no such"),
        (altered(closed, evidence=[share, *other.evidence]), "signed no such"),
        (altered(closed, evidence=[altered(secret, dealer=4)]), "client 4 signed no such dealing"),
        (altered(closed, evidence=[altered(share, holder=4)]), "client 4 signed no such shares"),
        (altered(closed, evidence=[altered(secret, pieces=few)]), "takes 4 right shares"),
        (altered(closed, members=closed.members[1:]), "client 3 signed no such shares"),
        (altered(closed, adverts=other.adverts), "not signed by the client that the roster names"),
        (altered(closed, adverts=b"junk"), "cannot be read"),
    ):
        with pytest.raises(ValueError, match=because):
            forged.judged(rehearsal.around, roster_of(7))
    swapped = Roster(roster_of(7).keys[::-1])
    for around, roster in ((rehearsal.around, swapped), (round_of(7, dropout=1), roster_of(7))):
        with pytest.raises(ValueError, match="not signed by the client that the roster names"):
            closed.judged(around, roster)
    with pytest.raises(ValueError, match=f"version {VERSION + 1}; this version of Tacit reads"):
        Closed.from_bytes(altered(closed, version=VERSION + 1).to_bytes())


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_altered_bytes_of_evidence_are_found_or_accuse_the_same(data: st.DataObject) -> None:
    rehearsal, closed = stays_closed()
    found = bytearray(closed.to_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        found[data.draw(st.integers(0, len(found) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        faults = Closed.from_bytes(bytes(found)).judged(rehearsal.around, roster_of(7))
    except ValueError:
        return
    assert faults == BOTH


@pytest.mark.parametrize("kind", ["nobody", *GUILTY])
def test_no_evidence_about_honest_clients_stands_up(kind: str) -> None:
    played, guilty = (whole(), None) if kind == "nobody" else (hostile(kind), GUILTY[kind])
    found = set()
    for evidence in matched(played):
        try:
            found.add(evidence.fault(played.case))
        except ValueError:
            continue
    assert found == ({guilty} if guilty else set())


RECEIPTS: list[Callable[[Received], bytes]] = [
    lambda _: b"",
    lambda _: identity(2).sign(b""),
    lambda received: received.signature[:-1] + b"?",
]


@pytest.mark.parametrize("make", RECEIPTS)
def test_a_client_that_signs_no_receipt_of_its_parcels_is_left_out(
    make: Callable[[Received], bytes],
) -> None:
    """It could say later that it had got something else."""

    def tamper(stage: str, client: int, reply: bytes) -> bytes:
        if (stage, client) != ("deliver", 2):
            return reply
        received = msgspec.msgpack.decode(reply, type=Received)
        return pack(altered(received, signature=make(received)))

    rehearsal = Rehearsal(round_of(7, dropout=2), with_roster=True, tamper_reply=tamper)
    assert rehearsal.total().survivors == (0, 1, 3, 4, 5, 6)
