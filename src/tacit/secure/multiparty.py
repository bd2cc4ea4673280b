"""Encryption under a key that nobody holds: all parties together open what they agreed to open.

Mouchet, Troncoso-Pastoriza, Bossuat and Hubaux, "Multiparty Homomorphic Encryption from
Ring-Learning-with-Errors" (PETS 2021), for the scheme BFV, N of N, over Microsoft SEAL
(:mod:`tacit.secure.ring`). The server adds and multiplies ciphertexts and holds no secret. With
the secret s = s_1 + .. + s_N, errors e, and polynomials a, a_j drawn from a public seed:

================  ==================================================================
public key        b_i = -a s_i + e_i;  b = sum of b_i;  the key is (b, a)
relinearisation   party i, round 1, for every prime j:  h0 = -a_j u_i + w_j s_i + e,
                  h1 = a_j s_i + e',  summed by the server to H0, H1
                  round 2:  s_i H0 + (u_i - s_i) H1 + e'' + e''';  u_i is erased
opening           of c0 + c1 s, from c1:  c1 s_i + f_i,  f_i uniform up to 2^flooding_bits
dense test        mask * product of (x - j) over the sparse numbers j
================  ==================================================================

(w_j is the special prime modulo prime j, zero modulo the others.) The dense test opens to 0 exactly
where the sum x is one of the sparse numbers, and elsewhere to a number uniform modulo the prime t,
because the mask is a sum of one uniform mask of every party: a bit for every slot, not a count. A
uniform number is 0 with a chance of 1/t, about 2^-40.

*Known.* Shares and ciphertexts are ring-LWE samples with ternary secrets, at 128 bits by the
table that SEAL enforces; N - 1 parties together with the server lack one ternary secret and learn
nothing beyond what is opened (Mouchet et al., in the model of a common reference string).
*Argued.* The flooding of one honest party hides the noise of the opened ciphertext, which depends
on secrets: with the bound E of :class:`Noise` two views differ by n E / 2^(flooding_bits + 1) an
opening, and :meth:`Parameters.check` keeps the total of a session at 2^-40 or refuses. A share may
be made only once, because errors of shares of the same point average out; so a second is refused.
*Assumed.* Everybody follows the protocol (honest but curious). A server that asks to open something
else, say one client's ciphertext, would get it: parties see only c1, so whoever does not trust the
server must let parties recompute what they open. One absent party blocks every opening. What is
opened is exact and carries no noise for privacy.

*How we differ from the paper* (and from PrivTuna, which builds on it): BFV instead of CKKS, so an
exact test takes the place of an approximate comparison; flooding is sized and refused if short;
only the sum of a party's second relinearisation shares leaves it.

*Wire form*, the same for every message: 4 bytes ``TMHE``, version and kind (2 bytes each), 16 bytes
of the parameters' digest, the shape (polynomials, primes, coefficients; 8 bytes each), then the
residues, 8 bytes each; all little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from enum import Flag
from functools import lru_cache, reduce
from math import isqrt, log2, sqrt
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from tacit.secure.ring import (
    MOST_PRIME_BITS,
    WORD,
    Integers,
    Residues,
    Ring,
    add,
    checked,
    flooding,
    negate,
    reference_polynomials,
    residues_of,
    ternary,
    uniform,
)

MAGIC = b"TMHE"
VERSION = 1
HEADER = struct.Struct("<4sHH16s3Q")
SEED_BYTES = 32

ERROR_DEVIATION = sqrt(21 / 2)
TAIL = 11.0
"""A subgaussian number exceeds 11 deviations with a chance of 2 exp(-11^2 / 2), below 2^-86."""

MOST_DISTANCE = 2.0**-40
"""How much all openings of a session may differ from openings that depend on the result only."""

MOST_FACTORS = 320
MOST_TREE_PAIRS = 4


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

    def opening_noise(self, parties: int, factors: int = 0) -> float:
        """A bound E on the noise of what is opened: a sum, or a dense test of that many numbers."""
        circuit = Circuit(Noise(self, parties))
        result = circuit.fresh(parties)
        if factors:
            result = circuit.dense_test(result, result, range(factors))
        return TAIL * circuit.switched(result, self.opening_primes).noise

    def flooding_distance(self, noise: float, openings: int = 1) -> float:
        """How far flooding leaves openings of this noise from openings without any.

        A uniform number of 2^(bits + 1) values, moved by at most E, keeps all but
        E / 2^(bits + 1) of its mass; every coefficient of every opening counts.
        """
        return openings * self.degree * noise / 2.0 ** (self.flooding_bits + 1)

    def check(self, parties: int, openings: int = 1, factors: int = 0) -> None:
        """Refuse a session whose openings might be wrong or would not be hidden."""
        self.check_noise(parties, openings, self.opening_noise(parties, factors))

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


@lru_cache(maxsize=64)
def for_dense_test(factors: int, parties: int, openings: int = 1) -> Parameters:
    """The smallest parameters for dense tests of this many sparse numbers.

    >>> for_dense_test(factors=4, parties=10).prime_bits
    (60, 60, 60, 60, 60, 60)
    """
    if not 1 <= factors <= MOST_FACTORS:
        raise ValueError(f"factors is {factors}; allowed is 1 to {MOST_FACTORS}")
    sizes = ((14, 6), (14, 7), *((15, primes) for primes in range(8, 15)))
    refusal = ValueError()
    for degree_bits, primes in sizes:
        parameters = Parameters(degree_bits, (MOST_PRIME_BITS,) * primes)
        try:
            parameters.check(parties, openings, factors)
        except ValueError as refused:
            refusal = refused
        else:
            return parameters
    raise ValueError(f"no ring is large enough for {factors} factors: {refusal}") from refusal


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
        if not checked(name, self.residues, shape, primes).any(axis=-1).all():
            raise ValueError(f"{name} holds a polynomial that is zero; an honest one is uniform")

    @classmethod
    def shape(cls, parameters: Parameters) -> tuple[int, int, int]:
        """Polynomials, primes and coefficients; most messages are one at the level of keys."""
        return 1, len(parameters.prime_bits), parameters.degree

    def to_bytes(self) -> bytes:
        """The wire form; the module's docstring has the layout."""
        data = np.ascontiguousarray(self.residues, WORD).data
        return b"".join((_header(self.kind, self.parameters, self.residues.shape), data))

    @classmethod
    def from_bytes(cls, parameters: Parameters, data: bytes) -> Self:
        """The message, or a ValueError that says what is wrong with it."""
        shape = cls.shape(parameters)
        size = HEADER.size + 8 * shape[0] * shape[1] * shape[2]
        _check_header(cls.__name__, data, size, cls.kind, parameters)
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


PARTY_KIND = 100


def _header(kind: int, parameters: Parameters, shape: tuple[int, ...]) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, parameters.digest, *shape)


def _check_header(name: str, data: bytes, size: int, kind: int, parameters: Parameters) -> None:
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


class Step(Flag):
    """What a party has done, because none of it may be done twice."""

    NOTHING = 0
    PUBLIC = 1
    FIRST = 2
    SECOND = 4


class Party:
    """One party's half of the protocol; it alone holds its secret.

    Every share carries fresh errors. The public share and both relinearisation shares are made
    once: keep the message, not the party, to send it again. Save a party *before* its message
    leaves, so that a restart cannot make a share of the same point twice.
    """

    def __init__(
        self,
        parameters: Parameters,
        seed: bytes,
        secret: Integers,
        ephemeral: Integers | None = None,
        done: Step = Step.NOTHING,
    ) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed has {len(seed)} bytes; allowed is {SEED_BYTES}")
        self.parameters, self.seed = parameters, seed
        self._secret, self._ephemeral, self._done = secret, ephemeral, done
        self._secret_ntt = parameters.ring.key.to_ntt(secret)

    def __repr__(self) -> str:
        return f"Party({self.parameters}, its secret stays with it)"

    @classmethod
    def new(cls, parameters: Parameters, seed: bytes) -> Party:
        """A party with a fresh secret; the seed is public and the same for everybody."""
        return cls(parameters, seed, ternary(parameters.degree))

    def public_share(self) -> PublicShare:
        """b_i = -a s_i + e_i."""
        self._once(Step.PUBLIC)
        ring = self.parameters.ring
        negated = negate(ring.primes, self._secret_ntt)
        return PublicShare(self.parameters, ring.key.samples((self._points(0, 1), negated)))

    def relinearisation_first(self) -> FirstShare:
        """h0 = -a_j u_i + w_j s_i + e and h1 = a_j s_i + e' for every data prime j."""
        self._check_products()
        self._once(Step.FIRST)
        self._ephemeral = ternary(self.parameters.degree)
        ring, count = self.parameters.ring, self.parameters.data_primes
        points = self._points(1, count + 1)
        shares = np.empty(FirstShare.shape(self.parameters), WORD)
        heads, tails = np.split(shares, 2)
        ring.key.samples((points, ring.key.to_ntt(-self._ephemeral)), out=heads)
        ring.key.samples((points, self._secret_ntt), out=tails)
        special = self._special_secret()
        for j, prime in enumerate(ring.primes[:count]):
            heads[j, j : j + 1] = add([prime], heads[j, j : j + 1], special[j : j + 1])
        return FirstShare(self.parameters, shares)

    def relinearisation_second(self, total: FirstTotal) -> SecondShare:
        """s_i H0 + (u_i - s_i) H1 with two errors; u_i is erased."""
        if self._ephemeral is None:
            raise ValueError("the second share follows the first one, and is made only once")
        given = self._given(total)
        self._once(Step.SECOND)
        ring, count = self.parameters.ring, self.parameters.data_primes
        difference, self._ephemeral = self._ephemeral - self._secret, None
        samples = ring.key.samples(
            (given[:count], self._secret_ntt),
            (given[count:], ring.key.to_ntt(difference)),
        )
        return SecondShare(self.parameters, samples)

    def encrypt(self, public_key: PublicKey, values: npt.ArrayLike) -> Ciphertext:
        """Integers between -t/2 and t/2, one a slot; slots that are left hold zero."""
        return self._encrypt(public_key, _slots(self.parameters, values))

    def encrypt_mask(self, public_key: PublicKey) -> Ciphertext:
        """Fresh numbers uniform modulo t, which nobody ever sees, in every slot."""
        slots = uniform(self.parameters.ring.plain_modulus, self.parameters.degree)
        return self._encrypt(public_key, slots)

    def opening_share(self, request: OpeningRequest) -> OpeningShare:
        """c1 s_i + f_i with fresh flooding f_i."""
        level = self.parameters.ring.opening
        product = level.coefficients_times(
            self._given(request), self._secret_ntt[: len(level.primes)]
        )
        noise = flooding(level.degree, self.parameters.flooding_bits, level.primes)
        return OpeningShare(self.parameters, add(level.primes, product, noise[None]))

    def to_bytes(self) -> bytes:
        """Everything, the secret included: for the holder's own disk only."""
        kept = [self._secret] if self._ephemeral is None else [self._secret, self._ephemeral]
        shape = (len(kept), self._done.value, self.parameters.degree)
        coefficients = np.stack(kept).astype(np.int8).tobytes()
        return _header(PARTY_KIND, self.parameters, shape) + self.seed + coefficients

    @classmethod
    def from_bytes(cls, parameters: Parameters, data: bytes) -> Party:
        """The party that wrote these bytes."""
        kept = 1 + (len(data) > HEADER.size + SEED_BYTES + parameters.degree)
        size = HEADER.size + SEED_BYTES + kept * parameters.degree
        _check_header(cls.__name__, data, size, PARTY_KIND, parameters)
        *_, polynomials, done, degree = HEADER.unpack_from(data)
        waits = Step.FIRST.value <= done & ~Step.PUBLIC.value < Step.SECOND.value
        if (polynomials, degree) != (kept, parameters.degree) or done > 7 or waits != (kept == 2):
            raise ValueError(f"Party names a state ({polynomials}, {done}, {degree}) that is none")
        seed = data[HEADER.size : HEADER.size + SEED_BYTES]
        coefficients = np.frombuffer(data, np.int8, offset=HEADER.size + SEED_BYTES)
        if abs(coefficients.astype(np.int64)).max() > 1:
            raise ValueError("Party holds a secret outside of -1, 0, 1")
        secret, *ephemeral = coefficients.astype(np.int64).reshape(kept, degree)
        return cls(parameters, seed, secret, ephemeral[0] if ephemeral else None, Step(done))

    def _once(self, step: Step) -> None:
        if self._done & step:
            raise ValueError(f"the share {step.name} was made already; send that message again")
        self._done |= step

    def _check_products(self) -> None:
        if self.parameters.data_primes <= self.parameters.opening_primes:
            raise ValueError(f"{self.parameters} is for sums, which need no relinearisation")

    def _points(self, start: int, end: int) -> Residues:
        ring = self.parameters.ring
        count = self.parameters.data_primes + 1 if end > 1 else 1
        return reference_polynomials(self.seed, count, ring.primes, ring.degree)[start:end]

    def _special_secret(self) -> Residues:
        """The special prime times s_i, modulo every prime."""
        ring = self.parameters.ring
        special = np.array([ring.primes[-1] % prime for prime in ring.primes], WORD)[:, None]
        spread = np.broadcast_to(special, self._secret_ntt.shape)
        product: Residues = ring.key.times(self._secret_ntt[None], spread)[0]
        return product

    def _encrypt(self, public_key: PublicKey, slots: Residues) -> Ciphertext:
        ring = self.parameters.ring
        pair = np.concatenate([self._given(public_key), self._points(0, 1)])
        sealed = ring.encryptor(pair).encrypt(ring.encode(slots))
        return Ciphertext(self.parameters, ring.data.save(sealed))

    def _given(self, message: Message) -> Residues:
        return _residues(self.parameters, message)


def _residues(parameters: Parameters, message: Message) -> Residues:
    if message.parameters != parameters:
        raise ValueError(
            f"{type(message).__name__} was made with {message.parameters}; allowed is {parameters}"
        )
    return message.residues


def _slots(parameters: Parameters, values: npt.ArrayLike) -> Residues:
    integers = np.asarray(values)
    if integers.ndim != 1 or integers.dtype.kind not in "iu" or not integers.size:
        raise ValueError(
            f"values have shape {integers.shape} and type {integers.dtype}; allowed is a list of "
            "integers"
        )
    if integers.size > parameters.degree:
        raise ValueError(f"there are {integers.size} values; allowed are {parameters.degree}")
    most = parameters.ring.plain_modulus // 2
    if integers.max() > most or integers.min() < -most:
        raise ValueError(
            f"values lie in {integers.min()} .. {integers.max()}; allowed is {-most} .. {most}"
        )
    padded = np.zeros(parameters.degree, np.int64)
    padded[: integers.size] = integers
    slots: Residues = residues_of([parameters.ring.plain_modulus], padded)[0]
    return slots


@dataclass(frozen=True)
class Noise:
    """Bounds on the noise of ciphertexts, under a joint secret of so many parties.

    The noise of (c0, c1) modulo q is e in c0 + c1 s = (q/t) m + e. Every number here is a bound
    on its root mean square over the n coefficients; at the end :data:`TAIL` times that bounds
    every coefficient. Bounds hold except with a chance below 2^-60, under the usual heuristic
    that the c1 of a ciphertext is uniform and independent of its noise. Each s_i is ternary,
    of variance 2/3; so s has

        length  |s|        <=  sqrt(1.25 * 2nN/3)  (n >= 2^13: the excess of 1/4 is 16 deviations),
        peak    |s(zeta)|  <=  TAIL sqrt(2nN/3)    at every root zeta of X^n + 1,

    and likewise the sums of N ternary u_i. A product with s multiplies root mean squares by the
    peak at most, a product with a uniform fraction of [-1/2, 1/2) by 2 sqrt(n/12), twice what is
    expected.

    *Rounding* c0 and c1 leaves d0 + d1 s with d uniform in +-1/2: sqrt((1 + |s|^2) / 12).

    *Fresh.* SEAL encrypts with one prime more, the special p, and divides by it: each of N
    ciphertexts brings a rounding, half a unit for (q/t) m, and (e_pk u + e0 + e1 s) / p.

    *Product.* With c0 + c1 s = (q/t) m + e + q k, scaling the product by t/q leaves

        e'' = t K' e + t K e' + (t/q) e e' + rounding,    K = (c0 + c1 s) / q,

    where K multiplies by at most 2 sqrt(n/12) sqrt(1 + peak^2), and SEAL's rounding in three parts
    is off by at most (primes + 2)(1 + peak + peak^2).

    *Relinearisation* adds for every prime j a digit below q_j times the key's noise
    s e0 + u e1 + e2 + e3, divided by p, and a rounding.

    *Numbers.* Adding one costs half a unit, multiplying by one at most t/2.
    """

    parameters: Parameters
    parties: int

    def __post_init__(self) -> None:
        if self.parties < 1:
            raise ValueError(f"parties is {self.parties}; allowed is at least 1")

    @property
    def peak(self) -> float:
        """A bound on the secret's value at every root."""
        return TAIL * sqrt(2 * self.parameters.degree * self.parties / 3)

    @property
    def rounding(self) -> float:
        """Rounding a ciphertext's two parts."""
        return sqrt((1 + 1.25 * 2 * self.parameters.degree * self.parties / 3) / 12)

    def modulus(self, primes: int) -> float:
        """The product of this many primes."""
        return 2.0 ** sum(self.parameters.prime_bits[:primes])

    def fresh(self, count: int) -> float:
        """The sum of this many fresh ciphertexts."""
        errors = ERROR_DEVIATION * (self.peak * (sqrt(self.parties) + 1) + 1)
        return sqrt(count) * self.rounding + count * (0.5 + errors / self._power(-1))

    def switched(self, noise: float, primes: int) -> float:
        """After the last of these primes is divided away."""
        return noise / self._power(primes - 1) + self.rounding

    def number_times(self, noise: float) -> float:
        """After a product with any number."""
        return noise * 2.0 ** (self.parameters.plain_bits - 1)

    def product(self, one: float, other: float, primes: int) -> float:
        """A relinearised product of two ciphertexts with these primes."""
        n, t = self.parameters.degree, 2.0**self.parameters.plain_bits
        stretch = t * 2 * sqrt(n / 12) * sqrt(1 + self.peak**2)
        both = t * (one / self.modulus(primes)) * other * n
        rounding = (primes + 2) * (1 + self.peak + self.peak**2)
        return stretch * (one + other) + both + rounding + self._relinearisation(primes)

    def _relinearisation(self, primes: int) -> float:
        digits = sqrt(primes * self.parameters.degree / 3)
        largest = 2.0 ** max(self.parameters.prime_bits) / self._power(-1)
        key = ERROR_DEVIATION * sqrt(self.parties) * (2 * self.peak + 2)
        return digits * largest * key + self.rounding

    def _power(self, place: int) -> float:
        return 2.0 ** self.parameters.prime_bits[place]


@dataclass(frozen=True)
class Encrypted:
    """A ciphertext in the server's hands, with a bound on its noise and its number of primes."""

    ciphertext: Any
    noise: float
    primes: int


class Circuit:
    """Arithmetic on ciphertexts that bounds their noise and drops primes no longer needed.

    Without a ring only noise is counted: parameters are chosen by running the same circuit.
    """

    def __init__(self, noise: Noise, ring: Ring | None = None, relinearisation: Any = None) -> None:
        self.noise, self.ring, self.relinearisation = noise, ring, relinearisation

    def fresh(self, count: int, ciphertext: Any = None) -> Encrypted:
        """The sum of this many fresh ciphertexts."""
        return Encrypted(ciphertext, self.noise.fresh(count), self.noise.parameters.data_primes)

    def switched(self, one: Encrypted, primes: int) -> Encrypted:
        """The same value with fewer primes."""
        if primes == one.primes:
            return one
        noise = one.noise
        for left in range(one.primes, primes, -1):
            noise = self.noise.switched(noise, left)
        ciphertext = self._seal(
            lambda ring: ring.evaluator.mod_switch_to(one.ciphertext, ring.level(primes).parms_id)
        )
        return Encrypted(ciphertext, noise, primes)

    def plus(self, one: Encrypted, other: Encrypted) -> Encrypted:
        """The sum of two."""
        one, other = self._levelled(one, other)
        ciphertext = self._seal(lambda ring: ring.evaluator.add(one.ciphertext, other.ciphertext))
        return Encrypted(ciphertext, one.noise + other.noise, one.primes)

    def plus_number(self, one: Encrypted, number: int) -> Encrypted:
        """A number added in every slot."""
        ciphertext = self._seal(
            lambda ring: ring.evaluator.add_plain(one.ciphertext, ring.constant(number))
        )
        return Encrypted(ciphertext, one.noise + 0.5, one.primes)

    def times_number(self, one: Encrypted, number: int) -> Encrypted:
        """A product with a number that is not zero, which SEAL would refuse."""
        if number == 1:
            return one
        ciphertext = self._seal(
            lambda ring: ring.evaluator.multiply_plain(one.ciphertext, ring.constant(number))
        )
        return Encrypted(ciphertext, self.noise.number_times(one.noise), one.primes)

    def times(self, one: Encrypted, other: Encrypted) -> Encrypted:
        """The relinearised product of two, without the primes that its noise has used up."""
        one, other = self._levelled(one, other)

        def multiply(ring: Ring) -> Any:
            if one is other:
                product = ring.evaluator.square(one.ciphertext)
            else:
                product = ring.evaluator.multiply(one.ciphertext, other.ciphertext)
            ring.evaluator.relinearize_inplace(product, self.relinearisation)
            return product

        noise = self.noise.product(one.noise, other.noise, one.primes)
        return self._lightened(Encrypted(self._seal(multiply), noise, one.primes))

    def product(self, factors: Sequence[Encrypted]) -> Encrypted:
        """The two with least noise first, as in Huffman's tree: the fewest products in a row."""
        left = list(factors)
        while len(left) > 1:
            left.sort(key=lambda one: one.noise / self.noise.modulus(one.primes))
            left = [*left[2:], self.times(left[0], left[1])]
        return left[0]

    def dense_test(self, count: Encrypted, mask: Encrypted, sparse: range) -> Encrypted:
        """The mask times the product of (count - j) over the sparse numbers j.

        Numbers are paired around the middle of the range first .. last: with
        z = (x - first)(x - last), the factors first + i and last - i make z + i (last - first - i).
        """
        first, last, pairs = sparse[0], sparse[-1], len(sparse) // 2
        if len(sparse) % 2:
            mask = self.times(mask, self.plus_number(count, -(first + pairs)))
        if not pairs:
            return mask
        square = self.times(self.plus_number(count, -first), self.plus_number(count, -last))
        offsets = [i * (last - first - i) for i in range(pairs)]
        if pairs <= MOST_TREE_PAIRS:
            return self.product([mask, *(self.plus_number(square, offset) for offset in offsets)])
        return self.times(mask, self._polynomial(square, self._expanded(offsets)))

    def _expanded(self, offsets: Sequence[int]) -> list[int]:
        """Coefficients, lowest first, of the product of (z + offset)."""
        if self.ring is None:  # no coefficient is spared where only noise is counted
            return [2] * len(offsets) + [1]
        modulus = self.ring.plain_modulus

        def times(polynomial: list[int], offset: int) -> list[int]:
            lower, higher = [*polynomial, 0], [0, *polynomial]
            return [(offset * a + b) % modulus for a, b in zip(lower, higher, strict=True)]

        return reduce(times, offsets, [1])

    def _polynomial(self, variable: Encrypted, coefficients: list[int]) -> Encrypted:
        """Paterson and Stockmeyer (1973): about 2 sqrt(degree) products, log2(degree) in a row.

        The powers below ``size`` are combined with numbers; ``giants`` holds the powers size,
        2 size, 4 size .. by which a polynomial is split in two.
        """
        degree = len(coefficients) - 1
        size = 1 << (isqrt(degree) - 1).bit_length()
        powers = [variable]
        for exponent in range(2, size + 1):
            half = exponent // 2
            powers.append(self.times(powers[half - 1], powers[exponent - half - 1]))
        giants = [powers.pop()]
        while size << len(giants) <= degree:
            giants.append(self.times(giants[-1], giants[-1]))
        babies = self._levelled(*powers)

        def value(part: list[int]) -> Encrypted | int:
            part = _trimmed(part)
            if len(part) <= size:
                return self._combination(part, babies)
            place = ((len(part) - 1) // size).bit_length() - 1
            split = size << place
            high, low = value(part[split:]), value(part[:split])
            giant = giants[place]
            return self._sum(
                self.times_number(giant, high)
                if isinstance(high, int)
                else self.times(giant, high),
                low,
            )

        result = value(coefficients)
        if isinstance(result, int):
            raise ValueError("the polynomial is a constant; a product of factors is none")
        return result

    def _combination(self, part: list[int], babies: Sequence[Encrypted]) -> Encrypted | int:
        terms = [
            self.times_number(baby, number)
            for baby, number in zip(babies, part[1:], strict=False)
            if number
        ]
        number = part[0] if part else 0
        return self._sum(reduce(self.plus, terms), number) if terms else number

    def _sum(self, one: Encrypted, other: Encrypted | int) -> Encrypted:
        if isinstance(other, Encrypted):
            return self.plus(one, other)
        return self.plus_number(one, other) if other else one

    def _levelled(self, *several: Encrypted) -> list[Encrypted]:
        primes = min(one.primes for one in several)
        known: dict[int, Encrypted] = {}
        for one in several:
            known.setdefault(id(one), self.switched(one, primes))
        return [known[id(one)] for one in several]

    def _lightened(self, one: Encrypted) -> Encrypted:
        """Drop a prime as long as rounding adds less noise than is left."""
        parameters, noise, primes = self.noise.parameters, one.noise, one.primes
        while primes > parameters.opening_primes:
            noise /= 2.0 ** parameters.prime_bits[primes - 1]
            if noise < self.noise.rounding:
                break
            primes -= 1
        return self.switched(one, primes)

    def _seal(self, operation: Callable[[Ring], Any]) -> Any:
        return operation(self.ring) if self.ring else None


def _trimmed(coefficients: list[int]) -> list[int]:
    """Without zeros at the highest powers."""
    end = max((i + 1 for i, number in enumerate(coefficients) if number), default=0)
    return coefficients[:end]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is about to be opened: the request goes to every party, the rest stays."""

    request: OpeningRequest
    constant: Residues


class Server:
    """The half of the protocol that holds no secret."""

    def __init__(self, parameters: Parameters, parties: int) -> None:
        self.parameters, self.parties = parameters, parties
        self._noise = Noise(parameters, parties)
        self._circuit = Circuit(self._noise, parameters.ring)

    def public_key(self, shares: Sequence[PublicShare]) -> PublicKey:
        """The key under which everybody encrypts."""
        return PublicKey(self.parameters, self._total(shares, self.parameters.ring.primes))

    def relinearisation_total(self, shares: Sequence[FirstShare]) -> FirstTotal:
        """H0 and H1, which every party gets for its second share."""
        return FirstTotal(self.parameters, self._total(shares, self.parameters.ring.primes))

    def relinearisation_key(
        self, total: FirstTotal, shares: Sequence[SecondShare]
    ) -> RelinearisationKey:
        """The key that makes products possible; :meth:`use` it."""
        heads = self._total(shares, self.parameters.ring.primes)
        tails = _residues(self.parameters, total)[self.parameters.data_primes :]
        return RelinearisationKey(self.parameters, np.concatenate([heads, tails]))

    def use(self, key: RelinearisationKey) -> None:
        """Multiply with this key from now on."""
        heads, tails = np.split(_residues(self.parameters, key), 2)
        ring = self.parameters.ring
        keys = ring.relinearisation_keys(np.stack(pair) for pair in zip(heads, tails, strict=True))
        self._circuit = Circuit(self._noise, ring, keys)

    def sum(self, ciphertexts: Sequence[Ciphertext]) -> Encrypted:
        """The encrypted sum; values are modulo t, so it must stay between -t/2 and t/2."""
        if not ciphertexts:
            raise ValueError("there is no ciphertext to sum; needed is at least one")
        level = self.parameters.ring.data
        total = add(level.primes, *(_residues(self.parameters, one) for one in ciphertexts))
        return self._circuit.fresh(len(ciphertexts), level.load(total, ntt=False))

    def dense_test(self, count: Encrypted, mask: Encrypted, sparse: range) -> Encrypted:
        """Opens to 0 where the count is one of the sparse numbers, to a uniform number elsewhere.

        The mask is the sum of one :meth:`Party.encrypt_mask` of every party.
        """
        if self._circuit.relinearisation is None:
            raise ValueError("there is no relinearisation key; a dense test needs one in use")
        if sparse.step != 1 or not 1 <= len(sparse) <= MOST_FACTORS:
            raise ValueError(
                f"sparse is {sparse}; allowed are 1 to {MOST_FACTORS} numbers in a row"
            )
        if max(-sparse[0], sparse[-1]) > self.parameters.ring.plain_modulus // 4:
            raise ValueError(f"sparse is {sparse}; allowed are numbers far below the modulus t")
        return self._circuit.dense_test(count, mask, sparse)

    def prepare(self, encrypted: Encrypted, openings: int = 1) -> Prepared:
        """Switch to the opening level, or refuse what so many openings would not hide."""
        low = self._circuit.switched(encrypted, self.parameters.opening_primes)
        self.parameters.check_noise(self.parties, openings, TAIL * low.noise)
        constant, linear = self.parameters.ring.opening.save(low.ciphertext)
        return Prepared(OpeningRequest(self.parameters, linear[None]), constant)

    def open(self, prepared: Prepared, shares: Sequence[OpeningShare]) -> Integers:
        """The value of every slot, between -t/2 and t/2."""
        ring = self.parameters.ring
        total = self._total(shares, ring.opening.primes)[0]
        slots = ring.decode(add(ring.opening.primes, prepared.constant, total)).astype(np.int64)
        return np.where(slots > ring.plain_modulus // 2, slots - ring.plain_modulus, slots)

    def _total(self, shares: Sequence[Message], primes: Sequence[int]) -> Residues:
        if len(shares) != self.parties:
            raise ValueError(
                f"there are {len(shares)} shares; needed is one of each of {self.parties} parties"
            )
        return add(primes, *(_residues(self.parameters, share) for share in shares))
