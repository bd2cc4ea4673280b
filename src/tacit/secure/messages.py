"""The masked sum's messages and client states, as MessagePack arrays with a leading tag.

Decoding checks every type and never runs code; what a field may hold is checked by the step that
uses it. A client's state holds exactly what its next steps need. Tags are of this version of the
protocol, the second: a message of the first has none of them, and is refused.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from tacit.secure.protocol import Refused


class _Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array of exactly the fields of its kind."""


class Advert(_Message, frozen=True, tag=21):
    """A client's keys for one session: to seal boxes for it, and to agree on masks with it."""

    client: int
    box_key: bytes
    mask_key: bytes
    signature: bytes


class Setup(_Message, frozen=True, tag=22):
    """Everybody's adverts, packed."""

    adverts: bytes


class Shares(_Message, frozen=True, tag=23):
    """A client's two secrets, dealt to its neighbours and itself.

    Boxes are for neighbours; hashes (of the self seed and of the mask key, in this order) are of
    every holder's shares and of the secrets; the proofs are one polynomial each. The signature is
    over all of it.
    """

    boxes: dict[int, bytes]
    hashes: dict[int, tuple[bytes, bytes]]
    proofs: tuple[bytes, bytes]
    signature: bytes


class Parcel(_Message, frozen=True, tag=24):
    """What one dealer has for one holder: a box, and what its two shares must fit."""

    box: bytes
    hashes: tuple[bytes, bytes]
    challenges: tuple[bytes, bytes]
    expected: tuple[bytes, bytes]


class Delivery(_Message, frozen=True, tag=25):
    """Everybody who shared, and the parcels of the neighbours among them."""

    sharers: tuple[int, ...]
    parcels: dict[int, Parcel]


class Received(_Message, frozen=True, tag=26):
    """Parcels that are not in order, by dealer: a signature over what was found in its name.

    The signature of the whole is over the digests of all parcels that came, so that nobody can say
    later that other ones did.
    """

    complaints: dict[int, bytes]
    signature: bytes


class Complaints(_Message, frozen=True, tag=27):
    """Who complains about a dealer's parcel: a digest of that parcel, and a signature over it."""

    complaints: dict[int, tuple[bytes, bytes]]


class Explained(_Message, frozen=True, tag=28):
    """The secrets that sealed the boxes complained about, so that anybody can look into them.

    Signed, so that nobody can pass off other secrets as the dealer's.
    """

    secrets: dict[int, bytes]
    signature: bytes


class Final(_Message, frozen=True, tag=29):
    """Who is in the sum: every mask is bound to exactly this list."""

    members: tuple[int, ...]


class Sealed(_Message, frozen=True, tag=30):
    """A masked vector, and a signature over its digest and the final list."""

    vector: bytes
    signature: bytes


class Survivors(_Message, frozen=True, tag=31):
    """Whose sealed vectors arrived; of the neighbours among them the vector's digest, signed.

    ``contents`` is a digest of all that goes into the sum, so that whoever confirms the survivors
    also says which vectors are in it, before anybody knows the sum.
    """

    clients: tuple[int, ...]
    seals: dict[int, tuple[bytes, bytes]]
    contents: bytes


class Confirmation(_Message, frozen=True, tag=32):
    """A signature over survivors, what is in their sum, final list and set-up."""

    signature: bytes


class Opening(_Message, frozen=True, tag=33):
    """The survivors, and signatures of theirs over that list (none without a roster)."""

    clients: tuple[int, ...]
    signatures: dict[int, bytes]


class Opened(_Message, frozen=True, tag=34):
    """Shares of survivors' own masks, and of drop-outs' mask keys, signed."""

    self_shares: dict[int, bytes]
    key_shares: dict[int, bytes]
    signature: bytes


Request = Setup | Delivery | Complaints | Final | Survivors | Opening
Reply = Advert | Shares | Received | Explained | Sealed | Confirmation | Opened


class Advertised(_Message, frozen=True, tag=41):
    """Keys are out; the vector is fixed and waits."""

    box_secret: bytes
    mask_secret: bytes
    advert: Advert
    vector: bytes


class Shared(_Message, frozen=True, tag=42):
    """Shares are out. Pair keys make masks once the final list is known."""

    setup_digest: bytes
    order: tuple[int, ...]
    box_secret: bytes
    box_seed: bytes
    parcels: dict[int, bytes]
    """The digest of the parcel that this client made for each neighbour."""
    self_seed: bytes
    pair_keys: dict[int, bytes]
    own_shares: tuple[bytes, bytes]
    vector: bytes


class Delivered(_Message, frozen=True, tag=43):
    """Parcels of these sharers were looked at, and complaints are out; shares are kept."""

    shared: Shared
    sharers: tuple[int, ...]
    held: dict[int, tuple[bytes, bytes]]
    explained: bool


class Masked(_Message, frozen=True, tag=44):
    """The sealed vector is out. Kept are shares only: others' and one of each own secret."""

    setup_digest: bytes
    order: tuple[int, ...]
    members: tuple[int, ...]
    held: dict[int, tuple[bytes, bytes]]


class Confirmed(_Message, frozen=True, tag=45):
    """One list of survivors is signed; no other will be."""

    masked: Masked
    survivors: tuple[int, ...]
    contents: bytes


class Done(_Message, frozen=True, tag=46):
    """Nothing is kept."""


State = Advertised | Shared | Delivered | Masked | Confirmed | Done

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_states: msgspec.msgpack.Decoder[State] = msgspec.msgpack.Decoder(State)
_adverts: msgspec.msgpack.Decoder[tuple[Advert, ...]] = msgspec.msgpack.Decoder(tuple[Advert, ...])


def pack(message: Request | Reply | State | Parcel | tuple[Advert, ...]) -> bytes:
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
