"""Parameters of the encryption scheme BFV, and the bytes of everything that travels under it.

*Wire form*, the same for every message: 4 bytes ``TMHE``, version and kind (2 bytes each), 16 bytes
of the parameters' digest, the shape (polynomials, primes, coefficients; 8 bytes each), then the
residues, 8 bytes each; all little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import log2
from typing import Any, ClassVar, Self

import numpy as np

from tacit.secure.ring import MOST_PRIME_BITS, WORD, Residues, Ring, checked

MAGIC = b"TMHE"
VERSION = 1
HEADER = struct.Struct("<4sHH16s3Q")

_NEVER_ALL_ZERO = 64
"""So many coefficients of a uniform polynomial are all zero with a chance below 2^-2500."""

MOST_DISTANCE = 2.0**-40
"""How much all openings of a session may differ from openings that depend on the result only."""


@dataclass(frozen=True)
class Parameters:
    """What all parties of a session agree on.

    Args:
        degree_bits: The ring has degree 2^degree_bits, which is also the number of slots.
        prime_bits: Sizes of the primes; the last one is special to key switching.
        plain_bits: Values are integers modulo a prime t just below 2^plain_bits.
        opening_primes: How many primes are left in a ciphertext that is opened.
        flooding_bits: Every opening share carries noise uniform in +-2^flooding_bits.
    """

    degree_bits: int
    prime_bits: tuple[int, ...]
    plain_bits: int = 40
    opening_primes: int = 2
    flooding_bits: int = 71

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("degree_bits", self.degree_bits, 13, 15),
            ("the number of primes", len(self.prime_bits), 2, 16),
            ("the smallest of prime_bits", min(self.prime_bits, default=0), 40, MOST_PRIME_BITS),
            ("the largest of prime_bits", max(self.prime_bits, default=0), 40, MOST_PRIME_BITS),
            ("plain_bits", self.plain_bits, 20, 50),
            ("opening_primes", self.opening_primes, 1, len(self.prime_bits) - 1),
            ("flooding_bits", self.flooding_bits, 1, 200),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; allowed is {least} to {most}")

    @property
    def degree(self) -> int:
        """Coefficients of a polynomial, and slots of a plaintext."""
        return 1 << self.degree_bits

    @property
    def data_primes(self) -> int:
        """Primes of a fresh ciphertext."""
        return len(self.prime_bits) - 1

    @property
    def digest(self) -> bytes:
        """Names these parameters in every message."""
        return hashlib.sha256(f"tacit 1 multiparty {astuple(self)}".encode()).digest()[:16]

    @property
    def ring(self) -> Ring:
        """SEAL's ring; a ValueError if it has fewer than 128 bits of security."""
        return _ring(self.degree_bits, self.prime_bits, self.plain_bits, self.opening_primes)

    def flooding_distance(self, noise: float, openings: int = 1) -> float:
        """How far flooding leaves openings of this noise from openings without any.

        A uniform number of 2^(bits + 1) values, moved by at most E, keeps all but
        E / 2^(bits + 1) of its mass; every coefficient of every opening counts.
        """
        return openings * self.degree * noise / 2.0 ** (self.flooding_bits + 1)

    def check_noise(self, parties: int, openings: int, noise: float) -> None:
        """Refuse openings of this noise."""
        distance = self.flooding_distance(noise, openings)
        if not distance <= MOST_DISTANCE:
            raise ValueError(
                f"flooding of {self.flooding_bits} bits leaves a distance of 2^{log2(distance):.1f}"
                f" over {openings} openings by {parties} parties; allowed is at most 2^-40: raise "
                "flooding_bits or take more primes"
            )
        largest = parties * 2.0**self.flooding_bits + noise
        room = 0.99 * 2.0 ** (sum(self.prime_bits[: self.opening_primes]) - self.plain_bits - 1)
        if not largest < room:
            raise ValueError(
                f"flooding by {parties} parties reaches 2^{log2(largest):.1f}; allowed is less "
                f"than 2^{log2(room):.1f}, or openings could be wrong: lower flooding_bits"
            )


SUMS = Parameters(13, (60, 60, 60))
"""Additions only: the smallest messages."""


@lru_cache(maxsize=8)
def _ring(*sizes: Any) -> Ring:
    return Ring(*sizes)


@dataclass(frozen=True, eq=False)
class Message:
    """Polynomials that travel, checked whenever they are made."""

    kind: ClassVar[int]
    parameters: Parameters
    residues: Residues

    def __post_init__(self) -> None:
        shape = self.shape(self.parameters)
        primes = self.parameters.ring.primes[: shape[1]]
        name = type(self).__name__
        if not checked(name, self.residues, shape, primes)[..., :_NEVER_ALL_ZERO].any(-1).all():
            raise ValueError(f"{name} holds a polynomial that is zero; an honest one is uniform")

    @classmethod
    def shape(cls, parameters: Parameters) -> tuple[int, int, int]:
        """Polynomials, primes and coefficients; most messages are one at the level of keys."""
        return 1, len(parameters.prime_bits), parameters.degree

    def to_bytes(self) -> bytes:
        """The wire form; the module's docstring has the layout."""
        data = np.ascontiguousarray(self.residues, WORD).data
        return b"".join((header(self.kind, self.parameters, self.residues.shape), data))

    @classmethod
    def from_bytes(cls, parameters: Parameters, data: bytes | memoryview) -> Self:
        """The message, or a ValueError that says what is wrong with it."""
        shape = cls.shape(parameters)
        size = HEADER.size + 8 * shape[0] * shape[1] * shape[2]
        check_header(cls.__name__, data, size, cls.kind, parameters)
        if HEADER.unpack_from(data)[4:] != shape:
            raise ValueError(
                f"{cls.__name__} names the shape {HEADER.unpack_from(data)[4:]}; allowed is {shape}"
            )
        return cls(parameters, np.frombuffer(data, WORD, offset=HEADER.size).reshape(shape))


class PublicShare(Message):
    """b_i, a party's part of the public key."""

    kind = 1


class PublicKey(Message):
    """b; the other half is drawn from the seed."""

    kind = 2


class FirstShare(Message):
    """h0 for every data prime, then h1."""

    kind = 3

    @classmethod
    def shape(cls, parameters: Parameters) -> tuple[int, int, int]:
        return 2 * parameters.data_primes, len(parameters.prime_bits), parameters.degree


class FirstTotal(FirstShare):
    """H0 for every data prime, then H1."""

    kind = 4


class SecondShare(Message):
    """s_i H0 + (u_i - s_i) H1 for every data prime, with errors."""

    kind = 5

    @classmethod
    def shape(cls, parameters: Parameters) -> tuple[int, int, int]:
        return parameters.data_primes, len(parameters.prime_bits), parameters.degree


class RelinearisationKey(FirstShare):
    """The sum of second shares for every data prime, then H1."""

    kind = 6


class Ciphertext(Message):
    """A fresh ciphertext, c0 and c1, and nothing else."""

    kind = 7

    @classmethod
    def shape(cls, parameters: Parameters) -> tuple[int, int, int]:
        return 2, parameters.data_primes, parameters.degree


class OpeningRequest(Message):
    """c1 of what is to be opened."""

    kind = 8

    @classmethod
    def shape(cls, parameters: Parameters) -> tuple[int, int, int]:
        return 1, parameters.opening_primes, parameters.degree


class OpeningShare(OpeningRequest):
    """c1 s_i, flooded."""

    kind = 9


def header(kind: int, parameters: Parameters, shape: tuple[int, ...]) -> bytes:
    """What stands before the residues."""
    return HEADER.pack(MAGIC, VERSION, kind, parameters.digest, *shape)


def check_header(
    name: str, data: bytes | memoryview, size: int, kind: int, parameters: Parameters
) -> None:
    """Refuse what is not of this size, kind, version and parameters."""
    if len(data) < HEADER.size or data[:4] != MAGIC:
        raise ValueError(f"{name} is not one: {len(data)} bytes that begin with {data[:4].hex()!r}")
    _, version, found, digest, *_ = HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"{name} has version {version}; allowed is {VERSION}")
    if found != kind:
        raise ValueError(f"{name} is of kind {found}; allowed is {kind}")
    if digest != parameters.digest:
        raise ValueError(f"{name} was made with other parameters than {parameters}")
    if len(data) != size:
        raise ValueError(f"{name} has {len(data)} bytes; allowed is {size}")
