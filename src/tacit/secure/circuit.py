"""What the server computes on ciphertexts, with a bound on the noise that this leaves.

The same circuit runs without ciphertexts to find the smallest parameters under which its result
can be opened: :func:`for_dense_test`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import isqrt, sqrt
from typing import Any

from tacit.secure.bfv import Parameters
from tacit.secure.ring import MOST_PRIME_BITS, Ring

ERROR_DEVIATION = sqrt(21 / 2)
TAIL = 11.0
"""A subgaussian number exceeds 11 deviations with a chance of 2 exp(-11^2 / 2), below 2^-86."""

MOST_FACTORS = 320
MOST_TREE_PAIRS = 4


def opening_noise(parameters: Parameters, parties: int, factors: int = 0) -> float:
    """A bound E on the noise of what is opened: a sum, or a dense test of that many numbers."""
    circuit = Circuit(Noise(parameters, parties))
    result = circuit.fresh(parties)
    if factors:
        result = circuit.dense_test(result, result, range(factors))
    return TAIL * circuit.switched(result, parameters.opening_primes).noise


def check(parameters: Parameters, parties: int, openings: int = 1, factors: int = 0) -> None:
    """Refuse a session whose openings might be wrong or would not be hidden."""
    parameters.check_noise(parties, openings, opening_noise(parameters, parties, factors))


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
            check(parameters, parties, openings, factors)
        except ValueError as refused:
            refusal = refused
        else:
            return parameters
    raise ValueError(f"no ring is large enough for {factors} factors: {refusal}") from refusal


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
