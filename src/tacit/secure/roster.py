"""Who is who: long-lived Ed25519 keys, and the list of them that every client holds.

A roster reaches the clients outside of the protocol. With it nobody, the server included, can pass
off its own keys as a client's; without it the server is trusted to forward keys unchanged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64


@dataclass(frozen=True)
class Identity:
    """A client's signing key; its representation never shows the secret."""

    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Identity:
        """A fresh key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def public_key(self) -> bytes:
        """What the roster lists."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """A signature over the message."""
        return self._key.sign(message)

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


@dataclass(frozen=True)
class Roster:
    """The public keys of all clients of a federation, by client number.

    >>> anna, ben = Identity.new(), Identity.new()
    >>> roster = Roster((anna.public_key, ben.public_key))
    >>> roster.confirms(1, b"hello", ben.sign(b"hello"))
    True
    >>> roster.confirms(1, b"hello", anna.sign(b"hello"))
    False
    """

    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(set(self.keys)) != len(self.keys) or any(len(key) != 32 for key in self.keys):
            raise ValueError("a roster lists different Ed25519 public keys of 32 bytes each")

    def confirms(self, client: int, message: bytes, signature: bytes) -> bool:
        """Whether this client signed this message."""
        return 0 <= client < len(self.keys) and _signed(self.keys[client], message, signature)

    @property
    def digest(self) -> bytes:
        """What everybody can compare over the telephone."""
        return hashlib.sha256(b"".join(self.keys)).digest()


@lru_cache(maxsize=4096)
def _signed(key: bytes, message: bytes, signature: bytes) -> bool:
    """A fact about three strings, remembered: simulated clients all check the same ones."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
