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
on secrets: with the bound E of :class:`tacit.secure.circuit.Noise` two views differ by
n E / 2^(flooding_bits + 1) an opening, and :func:`tacit.secure.circuit.check` keeps the total of a
session at 2^-40 or refuses. A share may be made only once, because errors of shares of the same
point average out; so a second is refused.
*Assumed.* Everybody follows the protocol (honest but curious). A server that asks to open something
else, say one client's ciphertext, would get it: parties see only c1, so whoever does not trust the
server must let parties recompute what they open. One absent party blocks every opening. What is
opened is exact and carries no noise for privacy.

*How we differ from the paper* (and from PrivTuna, which builds on it): BFV instead of CKKS, so an
exact test takes the place of an approximate comparison; flooding is sized and refused if short;
only the sum of a party's second relinearisation shares leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag

import numpy as np
import numpy.typing as npt

from tacit.secure.bfv import (
    HEADER,
    Ciphertext,
    FirstShare,
    FirstTotal,
    Message,
    OpeningRequest,
    OpeningShare,
    Parameters,
    PublicKey,
    PublicShare,
    RelinearisationKey,
    SecondShare,
    check_header,
    header,
)
from tacit.secure.circuit import MOST_FACTORS, TAIL, Circuit, Encrypted, Noise
from tacit.secure.ring import (
    WORD,
    Integers,
    Residues,
    add,
    flooding,
    negate,
    reference_polynomials,
    residues_of,
    ternary,
    uniform,
)

SEED_BYTES = 32
PARTY_KIND = 100


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
        return header(PARTY_KIND, self.parameters, shape) + self.seed + coefficients

    @classmethod
    def from_bytes(cls, parameters: Parameters, data: bytes) -> Party:
        """The party that wrote these bytes."""
        kept = 1 + (len(data) > HEADER.size + SEED_BYTES + parameters.degree)
        size = HEADER.size + SEED_BYTES + kept * parameters.degree
        check_header(cls.__name__, data, size, PARTY_KIND, parameters)
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
