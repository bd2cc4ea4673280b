"""What both halves of the masked sum derive from the same messages: members, texts, keys, masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.secure import crypto, shamir
from tacit.secure.graph import Wiring, neighbours, ring, wiring
from tacit.secure.messages import Advert, Parcel, Shares, pack, unpack_adverts
from tacit.secure.protocol import Refused, Round
from tacit.secure.roster import Roster

Words = npt.NDArray[Any]
"""Residues modulo 2^32 or 2^64."""

SELF_SEED, MASK_KEY = b"self seed", b"mask key"
SECRETS = (SELF_SEED, MASK_KEY)
"""A client's two secrets, in the order in which messages hold what belongs to them."""


@dataclass(frozen=True)
class Members:
    """Who takes part in a set-up, by their adverts, and who is whose neighbour."""

    adverts: Mapping[int, Advert]
    digest: bytes
    """What everybody must have seen alike before anything opens."""
    order: tuple[int, ...]
    wired: Wiring

    @classmethod
    def of(cls, around: Round, packed: bytes, adverts: Mapping[int, Advert]) -> Members:
        digest = crypto.digest(b"setup", around.describe(), packed)
        clients = tuple(sorted(adverts))
        wired = wiring(around.participation, len(clients))
        return cls(adverts, digest, ring(digest, clients) if wired.reach else clients, wired)

    def near(self, me: int) -> tuple[int, ...]:
        """Whom a client shares masks and secrets with."""
        return neighbours(self.order, self.wired.degree, me)


@lru_cache(maxsize=8)
def checked_members(packed: bytes, around: Round, roster: Roster | None) -> Members:
    """The members of a set-up, or a refusal: a pure check that simulated clients share."""
    adverts = unpack_adverts(packed)
    clients = [advert.client for advert in adverts]
    if clients != sorted(set(clients)) or not set(clients) <= set(
        range(around.participation.clients)
    ):
        raise Refused("the adverts are not a sorted list of different clients")
    if len(clients) < around.threshold:
        raise Refused(f"{len(clients)} clients advertised keys; needed are {around.threshold}")
    keys = [key for advert in adverts for key in (advert.box_key, advert.mask_key)]
    if not all(map(crypto.is_public_key, keys)):
        raise Refused("a client's public key is not a valid X25519 key in its one spelling")
    if len(set(keys)) != len(keys):
        raise Refused("two adverts share a key")
    if roster and not all(is_signed(around, advert, roster) for advert in adverts):
        raise Refused("an advert is not signed by the client that the roster names")
    return Members.of(around, packed, {advert.client: advert for advert in adverts})


def usable(adverts: Mapping[int, Advert]) -> dict[int, Advert]:
    """The adverts that nobody would refuse: with keys that work and that no other client has."""
    seen: set[bytes] = set()
    found = {}
    for client, advert in sorted(adverts.items()):
        keys = {advert.box_key, advert.mask_key}
        if len(keys) == 2 and not keys & seen and all(map(crypto.is_public_key, keys)):
            found[client] = advert
            seen |= keys
    return found


def packed(adverts: Mapping[int, Advert]) -> bytes:
    """Adverts as bytes, in the order of clients."""
    return pack(tuple(adverts[client] for client in sorted(adverts)))


def check_enough(
    around: Round, wired: Wiring, order: Sequence[int], name: str, clients: Collection[int]
) -> None:
    """Refuse lists so short, or so thin somewhere on the ring, that too little would be opened."""
    if len(clients) < around.threshold:
        raise Refused(
            f"there are {len(clients)} {name}; below {around.threshold} the noise or the "
            "majority would not suffice, so nothing opens"
        )
    if wired.thin(order, clients):
        raise Refused(
            f"some {wired.reach} places in a row hold {wired.hidden} {name} or fewer, who might "
            "all collude, so that a part of the ring could be opened by itself"
        )


def is_signed(around: Round, advert: Advert, roster: Roster) -> bool:
    """Whether an advert is signed by the client that the roster names."""
    text = advert_text(around, advert.client, advert.box_key, advert.mask_key)
    return roster.confirms(advert.client, text, advert.signature)


def advert_text(around: Round, client: int, box_key: bytes, mask_key: bytes) -> bytes:
    """What a client signs about its keys."""
    return crypto.digest(b"advert", around.describe(), _number(client), box_key, mask_key)


@dataclass(frozen=True)
class Dealt:
    """What a dealer signs, in the parts that somebody needs who checks its self seed.

    The seed's pair has this hash and lies on the polynomial of the shares: with both digests its
    challenge can be made, and so nobody can put another seed in its place (:mod:`shamir`).
    """

    seed_hash: bytes
    holders: bytes
    """Digest of the hashes of all holders' shares of the self seed."""
    at_zero: bytes
    """The value at 0 of the polynomial that proves those shares."""
    everything: bytes
    """Digest of everything that was dealt."""

    @classmethod
    def of(cls, shares: Shares) -> Dealt:
        seed = publics(b"", 0, shares)[0]
        return cls(
            seed.hashes.get(shamir.SECRET, b""), seed.holders, seed.at_zero, dealing_digest(shares)
        )

    def text(self, setup: bytes, dealer: int) -> bytes:
        """What is signed."""
        parts = self.seed_hash, self.holders, self.at_zero, self.everything
        return crypto.digest(b"dealing", setup, _number(dealer), *parts)


def signed_dealing(setup: bytes, dealer: int, shares: Shares) -> bytes:
    """What a dealer signs about its shares."""
    return Dealt.of(shares).text(setup, dealer)


def dealing_digest(shares: Shares) -> bytes:
    """Of everything that was dealt."""
    hashes = (part for holder in sorted(shares.hashes) for part in _listed(shares.hashes, holder))
    boxes = (part for holder in sorted(shares.boxes) for part in _boxed(shares.boxes, holder))
    return crypto.digest(
        b"dealt", *shares.proofs, crypto.digest(b"hashes", *hashes), crypto.digest(b"boxes", *boxes)
    )


def _listed(hashes: Mapping[int, tuple[bytes, bytes]], holder: int) -> tuple[bytes, ...]:
    return (_number(holder), *hashes[holder])


def _boxed(boxes: Mapping[int, bytes], holder: int) -> tuple[bytes, ...]:
    return _number(holder), boxes[holder]


def secret_context(setup: bytes, dealer: int, secret: bytes) -> bytes:
    """What hashes of shares of one secret of one dealer are bound to."""
    return crypto.digest(b"secret", setup, _number(dealer), secret)


def publics(setup: bytes, dealer: int, shares: Shares) -> list[shamir.Public]:
    """What a dealer published about its two secrets."""
    return [
        shamir.Public(
            secret_context(setup, dealer, secret),
            {holder: pair[place] for holder, pair in shares.hashes.items()},
            shares.proofs[place],
        )
        for place, secret in enumerate(SECRETS)
    ]


def parcel_for(
    publics: Sequence[shamir.Public], holder: int, box: bytes, expected: tuple[bytes, bytes]
) -> Parcel:
    """What a holder gets of a dealer."""
    seed, key = publics
    challenges = shamir.as_bytes(seed.challenge), shamir.as_bytes(key.challenge)
    return Parcel(box, (seed.hashes[holder], key.hashes[holder]), challenges, expected)


def shares_in(
    text: bytes, parcel: Parcel, setup: bytes, dealer: int, holder: int
) -> tuple[bytes, bytes] | None:
    """The two shares in an opened box, if they are what the parcel says."""
    pair = text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :]
    rest = zip(SECRETS, pair, parcel.hashes, parcel.challenges, parcel.expected, strict=True)
    right = all(
        shamir.share_hash(secret_context(setup, dealer, secret), holder, share) == expected_hash
        and shamir.fits(int.from_bytes(challenge, "big"), expected, share)
        for secret, share, expected_hash, challenge, expected in rest
    )
    return pair if right else None


def box_context(setup: bytes, sender: int, receiver: int) -> bytes:
    """What a box is bound to: the set-up, and so the session and the question, and both numbers."""
    return crypto.digest(b"box for", setup, _number(sender), _number(receiver))


def parcel_digest(parcel: Parcel) -> bytes:
    """What a complaint is about."""
    return crypto.digest(b"parcel", pack(parcel))


def complaint_text(setup: bytes, dealer: int, holder: int, parcel: bytes) -> bytes:
    """What a holder signs about a parcel that is not in order."""
    return crypto.digest(b"complaint", setup, _number(dealer), _number(holder), parcel)


def received_text(setup: bytes, holder: int, parcels: Mapping[int, bytes]) -> bytes:
    """What a holder signs about all parcels that it got: their digests, by dealer."""
    return crypto.digest(b"received", setup, _number(holder), _mapped(parcels))


def explained_text(setup: bytes, dealer: int, secrets: Mapping[int, bytes]) -> bytes:
    """What a dealer signs about the secrets of boxes that it gives away."""
    return crypto.digest(b"explained", setup, _number(dealer), _mapped(secrets))


def final_digest(setup: bytes, members: Sequence[int]) -> bytes:
    """Of the final list, which all masks are bound to.

    There is no number of an attempt in it, since a session has one attempt: a client seals once,
    for one list, and whoever tries again begins another session, with other keys.
    """
    return crypto.digest(b"final", setup, _clients(members))


def sealed_text(final: bytes, client: int, vector_digest: bytes) -> bytes:
    """What a client signs with its vector: who is in the sum, and which vector it is."""
    return crypto.digest(b"sealed", final, _number(client), vector_digest)


def vector_digest(vector: bytes) -> bytes:
    """Of a sealed vector."""
    return crypto.digest(b"vector", vector)


def sum_digest(vectors: Mapping[int, bytes], dealings: Mapping[int, bytes]) -> bytes:
    """Of all that goes into a sum: every survivor's vector, and the text it signed as a dealer.

    A vector and the seed of its mask are fixed by it, so nobody can name others once a sum is open.
    """
    parts = (
        part
        for client in sorted(vectors)
        for part in (_number(client), vector_digest(vectors[client]), dealings[client])
    )
    return crypto.digest(b"sum", *parts)


def survivors_text(final: bytes, survivors: Sequence[int], contents: bytes) -> bytes:
    """What a client signs about the survivors, and the digest of what goes into their sum."""
    return crypto.digest(b"survivors", final, _clients(survivors), contents)


def opened_text(
    final: bytes, holder: int, self_shares: Mapping[int, bytes], key_shares: Mapping[int, bytes]
) -> bytes:
    """What a holder signs about the shares it gives back."""
    return crypto.digest(
        b"opened", final, _number(holder), _mapped(self_shares), _mapped(key_shares)
    )


def pair_key(setup: bytes, one: Advert, other: Advert, agreed: bytes) -> bytes:
    """What two clients make their mask from, bound to both numbers and both public keys.

    With both keys in it, a client that advertises another's key in another form, or a key with the
    same secrets, shares no mask with anybody that the other one shares.
    """
    low, high = sorted((one, other), key=lambda advert: advert.client)
    context = crypto.digest(
        b"pair", setup, _number(low.client), low.mask_key, _number(high.client), high.mask_key
    )
    return crypto.derive(agreed, b"pair", context)


def pair_mask(around: Round, final: bytes, key: bytes) -> Words:
    """The mask of two clients in a sum of exactly the final list."""
    return _expanded(around, crypto.derive(key, b"mask", final))


def own_mask(around: Round, final: bytes, client: int, self_seed: bytes) -> Words:
    """A client's own mask in a sum of exactly the final list."""
    context = crypto.digest(b"own mask", final, _number(client))
    return _expanded(around, crypto.derive(self_seed, b"own mask", context))


def _expanded(around: Round, key: bytes) -> Words:
    return np.frombuffer(crypto.expand(key, around.vector_bytes), around.word)


def _number(client: int) -> bytes:
    return str(client).encode()


def _clients(clients: Iterable[int]) -> bytes:
    return " ".join(map(str, clients)).encode()


def _mapped(parts: Mapping[int, bytes]) -> bytes:
    listed = (one for client in sorted(parts) for one in (_number(client), parts[client]))
    return crypto.digest(b"mapped", *listed)
