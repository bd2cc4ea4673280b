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
NONCE_BYTES = 12
DIGEST_BYTES = 32
BOX_OVERHEAD = NONCE_BYTES + 16
_COUNTER_START = bytes(16)
_ANY_SECRET = b"any".ljust(KEY_BYTES)


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
    """Whether these bytes are an X25519 key that one can agree with."""
    try:
        agree(_ANY_SECRET, key)
    except ValueError:
        return False
    return True


def derive(secret: bytes, purpose: bytes, session: bytes) -> bytes:
    """A key for one purpose in one session (HKDF-SHA256)."""
    return HKDF(SHA256(), KEY_BYTES, salt=session, info=b"tacit 1 " + purpose).derive(secret)


def expand(key: bytes, size: int) -> bytes:
    """The AES-256-CTR key stream; a key is expanded once only, so the counter starts at 0."""
    return Cipher(algorithms.AES(key), modes.CTR(_COUNTER_START)).encryptor().update(bytes(size))


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate (ChaCha20-Poly1305) under a fresh random nonce."""
    nonce = token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, context)


def unseal(key: bytes, box: bytes, context: bytes) -> bytes:
    """What was sealed; a ValueError if the box, its key or its context is another one."""
    try:
        return ChaCha20Poly1305(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], context)
    except InvalidTag:
        raise ValueError("a sealed box does not open with this key in this context") from None


def digest(purpose: bytes, *parts: bytes) -> bytes:
    """SHA-256 of parts with their lengths, so that no two lists of parts look alike."""
    state = hashlib.sha256(b"tacit 1 " + purpose)
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()
