"""The few cryptographic steps of the masked sum, each one call into `cryptography`."""

from __future__ import annotations

import hashlib
from secrets import token_bytes

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
DIGEST_BYTES = 32
BOX_OVERHEAD = KEY_BYTES + 16
_FIELD = 2**255 - 19
_TWICE = 2**254 + 8 * 27742317777372353535851937790883648493
"""Up to here a scalar and eight times the order of the base point less that scalar have one key."""
_COUNTER_START = bytes(16)
_NONCE = bytes(12)
_ANYBODY = X25519PrivateKey.from_private_bytes(b"any".ljust(KEY_BYTES))


def fresh() -> bytes:
    """A secret of 256 bits from the operating system."""
    return token_bytes(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, *others: bytes) -> list[bytes]:
    """The X25519 secrets with some public keys; keys of small order are refused: ValueError."""
    own = X25519PrivateKey.from_private_bytes(secret)
    return [own.exchange(X25519PublicKey.from_public_bytes(other)) for other in others]


def is_public_key(key: bytes) -> bool:
    """Whether these bytes are the one spelling of an X25519 key that one can agree with.

    X25519 ignores the topmost bit and reduces modulo 2^255 - 19, so a key has other spellings;
    those are refused, and so are points of small order, with which everybody agrees on zero. The
    sum of a key and a point of small order cannot be told from a key: it is another key with the
    same secrets. Hence nothing may be derived from an agreed secret without both public keys.
    """
    if len(key) != KEY_BYTES or int.from_bytes(key, "little") >= _FIELD:
        return False
    try:
        _ANYBODY.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def belongs(secret: bytes, key: bytes) -> bool:
    """Whether a secret is the only one of a public key.

    X25519 takes multiples of 8 from 2^254 to 2^255 for scalars (RFC 7748), and the base point has
    the order l = 2^252 + c. So two scalars have one key if they add up to 8 l, which needs both to
    be at most 2^254 + 8 c: whoever draws one has a chance of 2^-126. They agree on different
    secrets with keys on the curve's twist, which have other orders. Somebody who has both could say
    which one it had meant when it sees what comes out.
    """
    scalar = int.from_bytes(secret, "little") & (2**254 - 8) | 2**254
    return public_key(secret) == key and scalar > _TWICE


def derive(secret: bytes, purpose: bytes, context: bytes) -> bytes:
    """A key for one purpose in one context (HKDF-SHA256)."""
    return HKDF(SHA256(), KEY_BYTES, salt=context, info=b"tacit 2 " + purpose).derive(secret)


def expand(key: bytes, size: int) -> bytes:
    """The AES-256-CTR key stream; a key is expanded once only, so the counter starts at 0."""
    return Cipher(algorithms.AES(key), modes.CTR(_COUNTER_START)).encryptor().update(bytes(size))


def seal(once: bytes, receiver: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypt to a public key under a secret that is used once, and authenticate the context.

    The box is the public half of that secret, then ChaCha20-Poly1305. Its key is fresh, since the
    secret is, so the nonce may stand still. Whoever sealed it can show what it holds to anybody, by
    giving away the secret (:func:`reopen`).
    """
    key, own = _shared_key(once, receiver, context)
    return own + ChaCha20Poly1305(key).encrypt(_NONCE, text, context)


def reopen(once: bytes, receiver: bytes, box: bytes, context: bytes) -> bytes:
    """What was sealed to a public key, from the secret that sealed it; a ValueError if not."""
    key, own = _shared_key(once, receiver, context)
    if box[:KEY_BYTES] != own:
        raise ValueError("a sealed box was made with another secret")
    return _decrypted(key, box, context)


class Receiver:
    """Opens boxes that were sealed to the public key of a secret."""

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self._public = self._key.public_key().public_bytes_raw()

    def unseal(self, box: bytes, context: bytes) -> bytes:
        """What was sealed; a ValueError if the box, its key or its context is another one."""
        sender = box[:KEY_BYTES]
        agreed = self._key.exchange(X25519PublicKey.from_public_bytes(sender))
        return _decrypted(_box_key(agreed, sender, self._public, context), box, context)


def _shared_key(once: bytes, receiver: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The key of a box, and the public half of the secret that sealed it."""
    key = X25519PrivateKey.from_private_bytes(once)
    own = key.public_key().public_bytes_raw()
    agreed = key.exchange(X25519PublicKey.from_public_bytes(receiver))
    return _box_key(agreed, own, receiver, context), own


def _decrypted(key: bytes, box: bytes, context: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box[KEY_BYTES:], context)
    except InvalidTag:
        raise ValueError("a sealed box does not open with this key in this context") from None


def _box_key(agreed: bytes, sender: bytes, receiver: bytes, context: bytes) -> bytes:
    return derive(agreed, b"box", digest(b"box", sender, receiver, context))


def digest(purpose: bytes, *parts: bytes) -> bytes:
    """SHA-256 of parts with their lengths, so that no two lists of parts look alike."""
    state = hashlib.sha256(b"tacit 2 " + purpose)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()
