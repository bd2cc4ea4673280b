"""Polynomials modulo primes, lent from Microsoft SEAL, and the random ones that encryption needs.

A *residue array* has the shape (polynomials, primes, coefficients) and holds one polynomial of
Z[X]/(X^n + 1) modulo every prime, in NTT form or as coefficients. SEAL does every transform and
every product: arrays travel into it and back through its serialized form, uncompressed, whose
layout is checked when a ring is built. This module adds residues and draws randomness.

Secrets, errors and flooding come from the operating system (``os.urandom``) and nothing else; the
common reference polynomials come from a public seed through SHAKE-256, so everybody has the same.
Encryption under a public key is SEAL's own, with its generator, which the system seeds.
Errors follow SEAL's own distribution: centred binomial, 21 + 21 coins, standard deviation 3.24.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, starmap
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Residues = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

WORD = np.dtype("<u8")
ERROR_BOUND = 21
"""No error is larger, for it is the difference of two sums of this many coins."""

SEAL_HEADER = b"\x5e\xa1\x10\x04"
"""SEAL's magic number, the length of its header and its major version, as every object begins."""

MOST_PRIME_BITS = 60
CIPHERTEXT_START, PLAINTEXT_START = 113, 88
REFERENCE_LABEL = b"tacit 1 reference polynomial"


def import_seal() -> ModuleType:
    """SEAL, or an error that says how to get it."""
    try:
        import seal
    except ImportError as missing:
        raise ImportError(
            "multiparty encryption needs SEAL: pip install 'tacit[encrypted]'"
        ) from missing
    return seal  # type: ignore[no-any-return, unused-ignore]


def error(count: int, degree: int) -> Integers:
    """Fresh polynomials of centred binomial noise, the errors that hide secrets.

    >>> bool(abs(error(2, 8)).max() <= ERROR_BOUND)
    True
    """
    words = np.frombuffer(os.urandom(8 * count * degree), WORD).reshape(count, degree)
    heads: Integers = np.bitwise_count(words & WORD.type((1 << ERROR_BOUND) - 1)).astype(np.int64)
    tails: Integers = np.bitwise_count(words >> WORD.type(64 - ERROR_BOUND)).astype(np.int64)
    return heads - tails


def ternary(degree: int) -> Integers:
    """A fresh polynomial uniform in {-1, 0, 1}; a byte of 255 is rejected, so that 3 divides."""
    drawn = np.empty(0, np.uint8)
    while drawn.size < degree:
        fresh = np.frombuffer(os.urandom(degree + 256), np.uint8)
        drawn = np.concatenate([drawn, fresh[fresh < 255]])
    return (drawn[:degree] % 3).astype(np.int64) - 1


def uniform(prime: int, count: int, stream: Callable[[int], bytes] | None = None) -> Residues:
    """Numbers uniform in 0 .. prime - 1, by rejection.

    The stream maps a number of bytes to that many bytes, a longer answer beginning with a shorter
    one where it is to be repeatable; without one the operating system is asked.
    """
    mask, size = WORD.type((1 << prime.bit_length()) - 1), count + count // 8 + 64
    while True:
        words = np.frombuffer((stream or os.urandom)(8 * size), WORD) & mask
        accepted = words[words < prime]
        if accepted.size >= count:
            return accepted[:count].copy()
        size *= 2


def flooding(degree: int, bits: int, primes: Sequence[int]) -> Residues:
    """A fresh polynomial uniform in -2^bits .. 2^bits - 1, modulo every prime.

    Four bits at a time, so that a residue below 2^60 never leaves 64 bits.
    """
    _check_prime_bits(primes)
    digits = -(-(bits + 1) // 4)
    drawn = np.frombuffer(os.urandom(digits * degree), np.uint8).reshape(digits, degree) & 15
    drawn[0] &= (1 << (bits + 1 - 4 * (digits - 1))) - 1
    total = np.zeros((len(primes), degree), WORD)
    column = _column(primes)
    for digit in drawn:
        total = ((total << WORD.type(4)) + digit) % column
    lowest = np.array([-(1 << bits) % prime for prime in primes], WORD)[:, None]
    return add(primes, total, np.broadcast_to(lowest, total.shape))


@lru_cache(maxsize=8)
def reference_polynomials(
    seed: bytes, count: int, primes: tuple[int, ...], degree: int
) -> Residues:
    """The common reference string: uniform polynomials that everybody derives from the seed."""

    def one(place: int, prime: int) -> Residues:
        label = REFERENCE_LABEL + seed + struct.pack("<IQ", place, prime)
        return uniform(prime, degree, hashlib.shake_256(label).digest)

    drawn = np.array([[one(place, prime) for prime in primes] for place in range(count)], WORD)
    drawn.flags.writeable = False
    return drawn


def add(primes: Sequence[int], *terms: Residues) -> Residues:
    """The sum of residue arrays, reduced.

    >>> add([5, 7], np.array([[4], [6]], WORD), np.array([[3], [1]], WORD)).tolist()
    [[2], [0]]
    """
    column = _column(primes)
    total, lowered = terms[0].copy(), np.empty(terms[0].shape, WORD)
    for term in terms[1:]:
        np.add(total, term, out=total)
        # Below the prime the difference wraps around to a huge number.
        np.minimum(total, np.subtract(total, column, out=lowered), out=total)
    return total


def negate(primes: Sequence[int], residues: Residues) -> Residues:
    """What adds to zero with these residues."""
    return np.where(residues == 0, residues, _column(primes) - residues)


def residues_of(primes: Sequence[int], integers: Integers) -> Residues:
    """Signed integers, smaller than every prime, as residues: one axis more, before the last.

    >>> residues_of([5, 7], np.array([-1, 2])).tolist()
    [[4, 2], [6, 2]]
    """
    wrapped = integers.astype(WORD)[..., None, :]
    residues: Residues = np.minimum(wrapped, wrapped + _column(primes))
    return residues


def checked(
    name: str, residues: npt.NDArray[Any], shape: tuple[int, ...], primes: Sequence[int]
) -> Residues:
    """The array, if it has this shape and every residue is below its prime."""
    if residues.dtype != WORD:
        raise ValueError(f"{name} has numbers of type {residues.dtype}; allowed is uint64")
    if residues.shape != shape:
        raise ValueError(f"{name} has shape {residues.shape}; allowed is {shape}")
    if (residues.max(axis=-1, initial=0) >= _column(primes)[:, 0]).any():
        place = tuple(np.argwhere(residues >= _column(primes))[0])
        raise ValueError(
            f"{name} holds the residue {residues[place]}; allowed is less than its prime "
            f"{primes[int(place[-2])]}"
        )
    return residues


def _column(primes: Iterable[int]) -> Residues:
    return np.array(list(primes), WORD)[:, None]


def _check_prime_bits(primes: Sequence[int]) -> None:
    if max(primes).bit_length() > MOST_PRIME_BITS:
        raise ValueError(
            f"the largest prime has {max(primes).bit_length()} bits; allowed are {MOST_PRIME_BITS}"
        )


class SealForm:
    """SEAL's serialized form, without compression: a header of 16 bytes, then the members."""

    def __init__(self, sample: bytes) -> None:
        self.header = sample[:8]
        if sample[:4] != SEAL_HEADER or any(sample[5:8]):
            raise ValueError(
                f"SEAL writes the header {sample[:8].hex()}; allowed is {SEAL_HEADER.hex()}, any "
                "minor version, and three zero bytes (no compression): use seal-python 4"
            )

    def ciphertext(self, polynomials: Residues, parms_id: Sequence[int], *, ntt: bool) -> bytes:
        count, primes, degree = polynomials.shape
        members = struct.pack("<4QB3QdQ", *parms_id, ntt, count, degree, primes, 1.0, 1)
        return self._with_array(members, polynomials)

    def plaintext(self, polynomial: Residues, parms_id: Sequence[int]) -> bytes:
        members = struct.pack("<4QQd", *parms_id, polynomial.size, 1.0)
        return self._with_array(members, polynomial)

    def switching_keys(self, pairs: Iterable[Residues], parms_id: Sequence[int]) -> bytes:
        keys = [self.ciphertext(pair, parms_id, ntt=True) for pair in pairs]
        return self._wrap(struct.pack("<4QQQ", *parms_id, 1, len(keys)), *keys)

    def polynomials(self, ciphertext: bytes) -> Residues:
        """The coefficients of a ciphertext, a view that cannot be written to."""
        count, degree, primes = struct.unpack_from("<3Q", ciphertext, 49)
        expected = CIPHERTEXT_START + 8 * count * degree * primes
        if ciphertext[:8] != self.header or len(ciphertext) != expected:
            raise ValueError(
                f"SEAL wrote a ciphertext of {len(ciphertext)} bytes; allowed is {expected}, with "
                f"the header {self.header.hex()}"
            )
        return np.frombuffer(ciphertext, WORD, offset=CIPHERTEXT_START).reshape(
            count, primes, degree
        )

    def _wrap(self, members: bytes, *parts: bytes) -> bytes:
        return b"".join((*self._start(members, sum(map(len, parts))), *parts))

    def _with_array(self, members: bytes, array: Residues) -> bytes:
        count = struct.pack("<Q", array.size)
        inner = self._start(count, array.nbytes)
        data = np.ascontiguousarray(array, WORD).data
        return b"".join((*self._start(members, sum(map(len, inner)) + array.nbytes), *inner, data))

    def _start(self, members: bytes, rest: int) -> tuple[bytes, bytes, bytes]:
        return self.header, struct.pack("<Q", 16 + len(members) + rest), members


class Level:
    """Polynomial arithmetic modulo the primes of one level of SEAL."""

    def __init__(
        self, form: SealForm, context: Any, parms_id: Any, primes: tuple[int, ...], degree: int
    ) -> None:
        self.form, self.context, self.parms_id = form, context, parms_id
        self.primes, self.degree = primes, degree
        self.evaluator = import_seal().Evaluator(context)

    def load(self, polynomials: Residues, *, ntt: bool) -> Any:
        """The array as SEAL's ciphertext; SEAL refuses what is no residue of this level."""
        ciphertext = import_seal().Ciphertext()
        ciphertext.load_bytes(
            self.context, self.form.ciphertext(polynomials, self.parms_id, ntt=ntt)
        )
        return ciphertext

    def save(self, ciphertext: Any) -> Residues:
        """The ciphertext's polynomials."""
        return self.form.polynomials(ciphertext.to_string())

    def to_ntt(self, integers: Integers) -> Residues:
        """One polynomial with coefficients far smaller than the plain modulus, in NTT form."""
        modulus = self.context.first_context_data().parms().plain_modulus().value()
        plain = import_seal().Plaintext()
        lowered = residues_of([modulus], integers)[0]
        plain.load_bytes(self.context, self.form.plaintext(lowered, (0, 0, 0, 0)))
        self.evaluator.transform_to_ntt_inplace(plain, self.parms_id)
        words = np.frombuffer(plain.to_bytes(), WORD, offset=PLAINTEXT_START)
        return words.reshape(len(self.primes), self.degree)

    def from_ntt(self, polynomials: Residues) -> Residues:
        """The coefficients of polynomials in NTT form."""
        return self._apply(polynomials, self.evaluator.transform_from_ntt_inplace, ntt=True)

    def times(self, polynomials: Residues, factor: Residues) -> Residues:
        """Every polynomial times the factor, all in NTT form."""
        plain = self._plain(factor)
        return self._apply(
            polynomials, lambda c: self.evaluator.multiply_plain_inplace(c, plain), ntt=True
        )

    def coefficients_times(self, polynomials: Residues, factor: Residues) -> Residues:
        """Every polynomial, given by coefficients, times a factor in NTT form."""
        plain = self._plain(factor)

        def multiply(ciphertext: Any) -> None:
            self.evaluator.transform_to_ntt_inplace(ciphertext)
            self.evaluator.multiply_plain_inplace(ciphertext, plain)
            self.evaluator.transform_from_ntt_inplace(ciphertext)

        return self._apply(polynomials, multiply, ntt=False)

    def samples(
        self, *products: tuple[Residues, Residues], out: Residues | None = None
    ) -> Residues:
        """Ring-LWE samples in NTT form: points times a secret, plus a fresh error for each.

        Several products, each of points and a secret, are added up with all their errors.
        """
        factors = [self._plain(secret) for _, secret in products]
        answer = np.empty(products[0][0].shape, WORD) if out is None else out
        for part in _parts(len(answer)):
            total = self._hiding(len(answer[part]), len(products))
            for (points, _), factor in zip(products, factors, strict=True):
                product = self._lend(points[part], ntt=True)
                self.evaluator.multiply_plain_inplace(product, factor)
                self.evaluator.add_inplace(total, product)
            answer[part] = self.save(total)[: len(answer[part])]
        return answer

    def _hiding(self, count: int, terms: int) -> Any:
        """Sums of so many errors each, in NTT form."""
        errors = sum(
            (error(count, self.degree) for _ in range(1, terms)), error(count, self.degree)
        )
        noise = self._lend(residues_of(self.primes, errors), ntt=False)
        self.evaluator.transform_to_ntt_inplace(noise)
        return noise

    def _plain(self, factor: Residues) -> Any:
        plain = import_seal().Plaintext()
        plain.load_bytes(self.context, self.form.plaintext(factor, self.parms_id))
        return plain

    def _apply(
        self, polynomials: Residues, operation: Callable[[Any], None], *, ntt: bool
    ) -> Residues:
        answer = np.empty(polynomials.shape, WORD)
        for part in _parts(len(answer)):
            ciphertext = self._lend(polynomials[part], ntt=ntt)
            operation(ciphertext)
            answer[part] = self.save(ciphertext)[: len(answer[part])]
        return answer

    def _lend(self, polynomials: Residues, *, ntt: bool) -> Any:
        """SEAL knows no ciphertext of a single polynomial, so that one is lent twice."""
        if len(polynomials) == 1:
            polynomials = np.repeat(polynomials, 2, 0)
        return self.load(polynomials, ntt=ntt)


def _parts(count: int) -> Iterable[slice]:
    """Two or three polynomials at a time, because more would not fit into a cache."""
    return starmap(slice, pairwise([*range(0, max(count - 1, 1), 2), count]))


class Ring:
    """One ring in SEAL, at the levels that multiparty encryption computes at.

    ``key`` has every prime, the last being special to key switching; ``data`` all but that one;
    ``opening`` the first few. SEAL computes nothing at the level of keys, so a second context with
    one more prime, in which that level is an ordinary one, does it. SEAL's table for 128 bits of
    security decides whether a ring may be built.
    """

    def __init__(
        self, degree_bits: int, prime_bits: tuple[int, ...], plain_bits: int, opening_primes: int
    ) -> None:
        seal = import_seal()
        self.degree = degree = 1 << degree_bits
        chain = seal.CoeffModulus.Create(degree, [*prime_bits, MOST_PRIME_BITS])
        plain = seal.PlainModulus.Batching(degree, plain_bits)
        self.primes = tuple(prime.value() for prime in chain[:-1])
        self.plain_modulus: int = plain.value()
        _check_near_powers((*self.primes, self.plain_modulus), (*prime_bits, plain_bits))
        security = seal.sec_level_type
        self.context = _context(degree, chain[:-1], plain, security.tc128)
        roomier = _context(degree, chain, plain, security.none)
        self.evaluator = seal.Evaluator(self.context)
        self.encoder = seal.BatchEncoder(self.context)
        self._any_key = seal.KeyGenerator(self.context).secret_key()
        self.form = SealForm(self._any_key.to_string())
        key_id = self.context.key_context_data().parms_id()
        if list(key_id) != list(roomier.first_parms_id()):
            raise ValueError("SEAL names the level of keys differently: use seal-python 4")
        self.key = Level(self.form, roomier, key_id, self.primes, degree)
        self._levels = dict(self._data_levels())
        self.data, self.opening = self._levels[len(prime_bits) - 1], self._levels[opening_primes]

    def _data_levels(self) -> Iterable[tuple[int, Level]]:
        data = self.context.first_context_data()
        while data is not None:
            primes = self.primes[: len(data.parms().coeff_modulus())]
            yield len(primes), Level(self.form, self.context, data.parms_id(), primes, self.degree)
            data = data.next_context_data()

    def level(self, primes: int) -> Level:
        """The level with this many primes."""
        return self._levels[primes]

    def encode(self, values: Residues) -> Any:
        """Numbers modulo the plain modulus, one a slot, as SEAL's plaintext."""
        return self.encoder.encode(values)

    def constant(self, number: int) -> Any:
        """A plaintext with the same number, modulo the plain modulus, in every slot."""
        return import_seal().Plaintext(f"{number % self.plain_modulus:X}")

    def decode(self, noisy: Residues) -> Residues:
        """The slots of a noisy plaintext at the opening level: a ciphertext without second part."""
        bare = self.opening.load(np.stack([noisy, np.zeros_like(noisy)]), ntt=False)
        plain = import_seal().Decryptor(self.context, self._any_key).decrypt(bare)
        return np.asarray(self.encoder.decode_uint64(plain), WORD)

    def encryptor(self, public_key: Residues) -> Any:
        """SEAL's encryption under this key; its own generator is seeded by the system."""
        key = self.context.from_public_str(
            self.form.ciphertext(public_key, self.key.parms_id, ntt=True)
        )
        return import_seal().Encryptor(self.context, key)

    def relinearisation_keys(self, pairs: Iterable[Residues]) -> Any:
        """SEAL's relinearisation keys from one pair of polynomials for every data prime."""
        return self.context.from_relin_str(self.form.switching_keys(pairs, self.key.parms_id))


def _context(degree: int, primes: Any, plain: Any, security: Any) -> Any:
    seal = import_seal()
    parameters = seal.EncryptionParameters(seal.scheme_type.bfv)
    parameters.set_poly_modulus_degree(degree)
    parameters.set_coeff_modulus(primes)
    parameters.set_plain_modulus(plain)
    context = seal.SEALContext(parameters, True, security)
    if not context.parameters_set():
        raise ValueError(f"SEAL refuses this ring: {context.parameter_error_message()}")
    return context


def _check_near_powers(primes: Sequence[int], bits: Sequence[int]) -> None:
    """Noise is bounded with powers of two in place of primes, so they have to be close."""
    for prime, power in zip(primes, bits, strict=True):
        if not 0 < 2**power - prime < 2.0 ** (power - 12):
            raise ValueError(f"a prime is {prime}; allowed is just below 2^{power}")
