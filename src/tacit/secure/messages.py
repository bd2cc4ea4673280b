"""The masked sum's messages and client states, as MessagePack arrays with a leading tag.

Decoding checks every type and never runs code; what a field may hold is checked by the step that
uses it. A client's state holds exactly what its next steps need.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from tacit.secure.protocol import Refused


class _Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array of exactly the fields of its kind."""


class Advert(_Message, frozen=True, tag=1):
    """A client's keys for one session; the commitment is empty where no graph is drawn."""

    client: int
    cipher_key: bytes
    mask_key: bytes
    commitment: bytes
    signature: bytes


class Again(_Message, frozen=True, tag=2):
    """Somebody did not reveal: begin the set-up anew with fresh keys."""

    attempt: int


class Adverts(_Message, frozen=True, tag=3):
    """Everybody's adverts, packed."""

    adverts: bytes


class Reveal(_Message, frozen=True, tag=4):
    """The randomness a client had committed to."""

    randomness: bytes


class Setup(_Message, frozen=True, tag=5):
    """Everybody's adverts, packed, and in the same order everybody's randomness, if any."""

    adverts: bytes
    reveals: tuple[bytes, ...]


class Shares(_Message, frozen=True, tag=6):
    """Shares of a client's secrets, sealed for each neighbour."""

    boxes: dict[int, bytes]


class Delivery(_Message, frozen=True, tag=7):
    """Everybody who shared, and what the neighbours among them sealed for this client."""

    sharers: tuple[int, ...]
    boxes: dict[int, bytes]


class Sealed(_Message, frozen=True, tag=8):
    """A masked vector, and a signature over who shared (empty without a roster)."""

    vector: bytes
    signature: bytes


class Survivors(_Message, frozen=True, tag=9):
    """Whose sealed vectors arrived, and the neighbours' signatures over who shared."""

    clients: tuple[int, ...]
    signatures: dict[int, bytes]


class Confirmation(_Message, frozen=True, tag=10):
    """A signature over survivors and set-up."""

    signature: bytes


class Opening(_Message, frozen=True, tag=11):
    """The survivors, and signatures of theirs over that list (none without a roster)."""

    clients: tuple[int, ...]
    signatures: dict[int, bytes]


class Opened(_Message, frozen=True, tag=12):
    """Shares of survivors' own masks, and of drop-outs' mask keys."""

    self_shares: dict[int, bytes]
    key_shares: dict[int, bytes]


Request = Again | Adverts | Setup | Delivery | Survivors | Opening
Reply = Advert | Reveal | Shares | Sealed | Confirmation | Opened


class Advertised(_Message, frozen=True, tag=1):
    """Keys are out; the vector is fixed and waits."""

    attempt: int
    cipher_secret: bytes
    mask_secret: bytes
    randomness: bytes
    advert: Advert
    vector: bytes


class Revealed(_Message, frozen=True, tag=2):
    """The randomness is out too, for exactly these adverts."""

    advertised: Advertised
    adverts_digest: bytes


class Shared(_Message, frozen=True, tag=3):
    """Shares are out; each neighbour has a key to seal with and one to mask with."""

    setup_digest: bytes
    members: tuple[int, ...]
    share_threshold: int
    self_seed: bytes
    box_keys: dict[int, bytes]
    mask_keys: dict[int, bytes]
    own_shares: tuple[bytes, bytes]
    vector: bytes


class Masked(_Message, frozen=True, tag=4):
    """The sealed vector is out. Kept are shares only: others' and one of each own secret."""

    setup_digest: bytes
    sharers: tuple[int, ...]
    held: dict[int, tuple[bytes, bytes]]


class Confirmed(_Message, frozen=True, tag=5):
    """One list of survivors is signed; no other will be."""

    masked: Masked
    survivors: tuple[int, ...]


class Done(_Message, frozen=True, tag=6):
    """Nothing is kept."""


State = Advertised | Revealed | Shared | Masked | Confirmed | Done

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_states: msgspec.msgpack.Decoder[State] = msgspec.msgpack.Decoder(State)
_adverts: msgspec.msgpack.Decoder[tuple[Advert, ...]] = msgspec.msgpack.Decoder(tuple[Advert, ...])


def pack(message: Request | Reply | State | tuple[Advert, ...]) -> bytes:
    """A message or a state as bytes."""
    return _encoder.encode(message)


def unpack_request(data: bytes) -> Request:
    """What the server asked, or a refusal."""
    return _unpack(_requests, data)


def unpack_adverts(data: bytes) -> tuple[Advert, ...]:
    """A packed list of adverts, or a refusal."""
    return _unpack(_adverts, data)


def unpack_state(data: bytes) -> State:
    """A client's own state."""
    return _unpack(_states, data)


def unpack_reply(kind: type[T], data: bytes) -> T | None:
    """A client's reply of the expected kind; None for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _unpack(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"the message cannot be read: {error}") from None
