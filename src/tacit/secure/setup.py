"""What both halves of the masked sum derive from the same messages: members, texts, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.secure import crypto
from tacit.secure.messages import Advert, pack, unpack_adverts
from tacit.secure.protocol import Refused, Round
from tacit.secure.roster import Roster

Words = npt.NDArray[Any]
"""Residues modulo 2^32 or 2^64."""


@dataclass(frozen=True)
class Members:
    """Who takes part in a set-up, by their adverts."""

    clients: tuple[int, ...]
    adverts: Mapping[int, Advert]
    digest: bytes

    @classmethod
    def of(cls, packed: bytes, adverts: Mapping[int, Advert]) -> Members:
        return cls(tuple(sorted(adverts)), adverts, crypto.digest(b"adverts", packed))


@lru_cache(maxsize=8)
def checked_members(packed: bytes, around: Round, attempt: int, roster: Roster | None) -> Members:
    """The members of a set-up, or a refusal: a pure check that simulated clients share."""
    adverts = unpack_adverts(packed)
    clients = [advert.client for advert in adverts]
    if clients != sorted(set(clients)) or not set(clients) <= set(
        range(around.participation.clients)
    ):
        raise Refused("the adverts are not a sorted list of different clients")
    if len(clients) < around.threshold:
        raise Refused(f"{len(clients)} clients advertised keys; needed are {around.threshold}")
    keys = [key for advert in adverts for key in (advert.cipher_key, advert.mask_key)]
    if len(set(keys)) != len(keys):
        raise Refused("two adverts share a key")
    if roster and not all(is_signed(around, attempt, advert, roster) for advert in adverts):
        raise Refused("an advert is not signed by the client that the roster names")
    return Members.of(packed, {advert.client: advert for advert in adverts})


def usable(adverts: Mapping[int, Advert], around: Round) -> dict[int, Advert]:
    """The adverts that nobody would refuse: with keys that work and that no other client has."""
    seen: set[bytes] = set()
    found = {}
    for client, advert in sorted(adverts.items()):
        keys = {advert.cipher_key, advert.mask_key}
        fits = len(advert.commitment) == (crypto.DIGEST_BYTES if around.draws_graph else 0)
        if fits and len(keys) == 2 and not keys & seen and all(map(crypto.is_public_key, keys)):
            found[client] = advert
            seen |= keys
    return found


def is_signed(around: Round, attempt: int, advert: Advert, roster: Roster) -> bool:
    """Whether an advert is signed by the client that the roster names."""
    keys = advert.cipher_key, advert.mask_key
    text = advert_text(around, attempt, advert.client, *keys, advert.commitment)
    return roster.confirms(advert.client, text, advert.signature)


def advert_text(
    around: Round,
    attempt: int,
    client: int,
    cipher_key: bytes,
    mask_key: bytes,
    commitment: bytes,
) -> bytes:
    """What a client signs about its keys."""
    numbers = f"{attempt} {client}".encode()
    return crypto.digest(b"advert", around.describe(), numbers, cipher_key, mask_key, commitment)


def setup_digest(members: Members, seed: bytes) -> bytes:
    """What everybody must have seen alike before anything opens."""
    return crypto.digest(b"setup", members.digest, seed)


def sharers_text(around: Round, setup: bytes, sharers: Sequence[int]) -> bytes:
    """What a client signs with its vector: whom it shares masks with."""
    return crypto.digest(b"sharers", around.describe(), setup, _listed(sharers))


def survivors_text(
    around: Round, setup: bytes, sharers: Sequence[int], survivors: Sequence[int]
) -> bytes:
    """What a client signs about the survivors: with the same set-up and the same sharers."""
    return crypto.digest(
        b"survivors", around.describe(), setup, _listed(sharers), _listed(survivors)
    )


def _listed(clients: Sequence[int]) -> bytes:
    return " ".join(map(str, clients)).encode()


def packed(adverts: Mapping[int, Advert]) -> bytes:
    """Adverts as bytes, in the order of clients."""
    return pack(tuple(adverts[client] for client in sorted(adverts)))


def commit(randomness: bytes) -> bytes:
    """The commitment to a client's part of the joint randomness."""
    return crypto.digest(b"commitment", randomness)


def joint_seed(members: Members, reveals: tuple[bytes, ...], *, draws_graph: bool) -> bytes:
    """The hash of everybody's randomness, fixed by the commitments before anyone revealed."""
    if not draws_graph:
        return b""
    return _seed(tuple(members.adverts[client].commitment for client in members.clients), reveals)


@lru_cache(maxsize=8)
def _seed(commitments: tuple[bytes, ...], reveals: tuple[bytes, ...]) -> bytes:
    """Another pure check that simulated clients share."""
    if tuple(map(commit, reveals)) != commitments:
        raise Refused("the revealed randomness is not what was committed to")
    return crypto.digest(b"graph", *reveals)


def own_mask(around: Round, self_seed: bytes) -> Words:
    """A client's own mask."""
    return expanded(around, crypto.derive(self_seed, b"own mask", around.session))


def expanded(around: Round, key: bytes) -> Words:
    """A mask from its key."""
    return np.frombuffer(crypto.expand(key, around.vector_bytes), around.word)
