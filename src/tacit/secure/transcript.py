"""What was signed during a masked sum: whoever has it and the roster can compute the sum again.

It holds what the server saw and what the survivors' sum opens anyway, so it tells no more than the
sum does: signed keys, sealed vectors with their signatures, the survivors' signatures over their
list, the seeds of the survivors' own masks with what was signed about them before, and the mask
keys of drop-outs, which fit the keys they had advertised. Of whoever misbehaved it holds the
evidence. Of a sum that stayed closed nothing but the evidence is kept, without a vector or a seed.

*No two sums.* Who is in the sum, their vectors and what they dealt are fixed by the survivors'
signatures, before anything opens. What was dealt fixes the seed, in one of two ways. A seed that is
named by itself must have the hash that its dealer signed, and lie on the polynomial of the shares.
Of a dealer whose hash is of something else, the shares themselves are shown (as evidence against
it), and so many that no others give another seed. By :mod:`tacit.secure.shamir` no dealing has two
seeds, neither both of one way nor one of each, however much its dealer tried; a dealer could
otherwise choose between two sums once it knows one of them. A drop-out's key is the only one that
fits its public key (:func:`tacit.secure.crypto.belongs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final as Constant
from typing import Self

import msgspec
import numpy as np
from msgspec import Struct

from tacit.privacy.skellam import IntArray
from tacit.secure import crypto, shamir
from tacit.secure.evidence import Case, Evidence, FalseSecret
from tacit.secure.protocol import Fault, Refused, Round, Total
from tacit.secure.roster import Roster
from tacit.secure.setup import (
    SELF_SEED,
    Dealt,
    Members,
    checked_members,
    final_digest,
    own_mask,
    pair_key,
    pair_mask,
    publics,
    sealed_text,
    secret_context,
    signed_dealing,
    sum_digest,
    survivors_text,
    vector_digest,
)

VERSION: Constant = 3


class Seal(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sealed vector, and the sender's signature over it."""

    vector: bytes
    signature: bytes


class Seed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The seed of a survivor's own mask, and what shows that it is the one that was dealt."""

    seed: bytes
    salt: bytes
    holders: bytes
    at_zero: bytes
    everything: bytes
    """These three are signed together with the seed's hash (:class:`tacit.secure.setup.Dealt`)."""
    signature: bytes


class _Heading(Struct, frozen=True, array_like=True):
    """What every version begins with."""

    version: int


class _Signed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What every sum begins with."""

    version: int
    adverts: bytes
    members: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """As MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What was written, or a ValueError."""
        try:
            version = msgspec.msgpack.decode(data, type=_Heading).version
            if version != VERSION:
                raise ValueError(
                    f"the transcript has version {version}; this version of Tacit reads {VERSION}"
                )
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the transcript cannot be read: {error}") from None

    def case(self, around: Round, roster: Roster) -> Case:
        """What everybody had agreed on, if the members signed their keys; or a ValueError."""
        try:
            members = checked_members(self.adverts, around, roster)
        except Refused as reason:
            raise ValueError(str(reason)) from None
        return Case(members, roster, final_digest(members.digest, self.members))


class Closed(_Signed, frozen=True):
    """A sum that stayed closed, and the evidence against those who misbehaved in it.

    There are no members if it was given up before they were settled. Evidence rests on what the one
    it names had signed itself, so the survivors' signatures are not needed to judge it.
    """

    evidence: list[Evidence]

    def judged(self, around: Round, roster: Roster) -> tuple[Fault, ...]:
        """Who misbehaved; a ValueError if some of the evidence shows nothing, or there is none."""
        case = self.case(around, roster)
        if not self.evidence:
            raise ValueError("the sum stayed closed, and there is no evidence against anybody")
        return faults_in(self.evidence, case)


class Transcript(_Signed, frozen=True):
    """One sum."""

    seals: dict[int, Seal]
    confirmations: dict[int, bytes]
    seeds: dict[int, Seed]
    keys: dict[int, bytes]
    evidence: list[Evidence]

    def recompute(self, around: Round, roster: Roster) -> Total:
        """The sum, its survivors and who misbehaved, all from signatures; or a ValueError."""
        case = self.case(around, roster)
        members, final = case.members, case.final
        survivors = tuple(sorted(self.seals))
        if not set(survivors) <= set(self.members) <= set(members.adverts):
            raise ValueError("the survivors are no members")
        for client, seal in self.seals.items():
            if len(seal.vector) != around.vector_bytes:
                raise ValueError(
                    f"the vector of client {client} has {len(seal.vector)} bytes; allowed is "
                    f"{around.vector_bytes}"
                )
            if not roster.confirms(
                client, sealed_text(final, client, vector_digest(seal.vector)), seal.signature
            ):
                raise ValueError(f"client {client} did not sign its sealed vector")
        faults = faults_in(self.evidence, case)
        dealt = {client: self._dealt(case, client) for client in survivors}
        vectors = {client: seal.vector for client, seal in self.seals.items()}
        contents = sum_digest(vectors, {client: text for client, (_, text) in dealt.items()})
        text = survivors_text(final, survivors, contents)
        signed = {c for c, one in self.confirmations.items() if roster.confirms(c, text, one)}
        if len(signed & set(survivors)) < around.threshold:
            raise ValueError(
                f"{len(signed)} clients signed these survivors and vectors; needed are "
                f"{around.threshold}"
            )
        missing = set(self.members) - set(survivors)
        if self.keys.keys() != missing or any(
            not crypto.belongs(key, members.adverts[client].mask_key)
            for client, key in self.keys.items()
        ):
            raise ValueError("a drop-out's mask key does not fit the one it advertised")
        seeds = {client: seed for client, (seed, _) in dealt.items()}
        value = opened_sum(around, members, self.members, vectors, seeds, self.keys)
        return Total(value, survivors, faults, self.to_bytes())

    def _dealt(self, case: Case, client: int) -> tuple[bytes, bytes]:
        """The seed of a survivor's own mask, if it is the one that was dealt; what it signed."""
        setup = case.members.digest
        for one in self.evidence:  # of a dealer that published another hash, from its shares
            if isinstance(one, FalseSecret) and (one.dealer, one.place) == (client, 0):
                shares = case.dealing(client, one.shares)
                public = publics(setup, client, shares)[0]
                if not public.tells(one.pieces):
                    raise ValueError(
                        f"client {client} published the hash of another seed than it shared, and "
                        f"{len(one.pieces)} shares do not say for sure which one that is"
                    )
                return public.recover(one.pieces), signed_dealing(setup, client, shares)
        found = self.seeds.get(client)
        if found is None or len(found.seed) != shamir.SECRET_BYTES:
            raise ValueError(f"the seed of client {client} is missing")
        pair = shamir.as_bytes(int.from_bytes(found.seed, "big")) + found.salt
        context = secret_context(setup, client, SELF_SEED)
        seed_hash = shamir.share_hash(context, shamir.SECRET, pair)
        if not _is_shared(context, seed_hash, found, pair):
            raise ValueError(f"the seed of client {client} is not the one it shared")
        dealt = Dealt(seed_hash, found.holders, found.at_zero, found.everything)
        text = dealt.text(setup, client)
        if not case.confirms(client, text, found.signature):
            raise ValueError(f"the seed of client {client} is not the one it dealt")
        return found.seed, text


def faults_in(evidence: Sequence[Evidence], case: Case) -> tuple[Fault, ...]:
    """Who misbehaved; a ValueError if some of the evidence shows nothing."""
    return tuple(dict.fromkeys(one.fault(case) for one in evidence))


def _is_shared(context: bytes, seed_hash: bytes, dealt: Seed, pair: bytes) -> bool:
    """Whether a seed lies on the polynomial that its dealer's shares lie on."""
    challenge = shamir.challenge_of(context, seed_hash, dealt.holders)
    return shamir.fits(challenge, dealt.at_zero, pair)


def opened_sum(
    around: Round,
    members: Members,
    final: Sequence[int],
    vectors: Mapping[int, bytes],
    seeds: Mapping[int, bytes],
    keys: Mapping[int, bytes],
) -> IntArray:
    """Sealed vectors without the survivors' own masks and the masks that drop-outs left."""
    digest = final_digest(members.digest, final)
    value = np.zeros(around.length, around.word)
    for client, vector in vectors.items():
        value = value + np.frombuffer(vector, around.word)
        value = value - own_mask(around, digest, client, seeds[client])
    for client, secret in keys.items():
        own = members.adverts[client]
        others = [members.adverts[other] for other in members.near(client) if other in vectors]
        agreed = crypto.agree(secret, *(other.mask_key for other in others))
        for other, one in zip(others, agreed, strict=True):
            mask = pair_mask(around, digest, pair_key(members.digest, own, other, one))
            value = value - mask if other.client < client else value + mask
    return around.integers(value.tobytes())
