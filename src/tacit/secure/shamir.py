"""Secret sharing that can be checked: Shamir's shares, each with a proof that it fits the others.

The secret is the value at 0 of a random polynomial f of degree ``threshold - 1`` over the integers
modulo a prime; holder ``i`` keeps its value at ``i + 1`` (Shamir, "How to share a secret", 1979).
Fewer than ``threshold`` shares are jointly uniform whatever the secret, because for every secret
exactly one polynomial passes through them.

A dealer could hand out values of no polynomial, and a holder could return another value than it
got. So a share is a pair ``f(x), g(x)`` with a second random polynomial g; the dealer publishes a
hash of every pair, the pair at 0 among them, and the polynomial ``F = g + e f``, where the
challenge e is a hash of all those hashes (Atapoor, Baghery, Cozzo and Pedersen, "VSS from
Distributed ZK Proofs and Applications", 2023). A pair is *right* if it has its hash and fits:
``F(x) = g(x) + e f(x)``. The challenge is made from the hash at 0 and one digest of all others, so
that the pair at 0 can be checked by whoever has that digest and F(0), without the other hashes.

*Why right shares belong together.* The pairs are fixed by their hashes before e is known. If the
first values of some pairs lie on no polynomial of degree below ``threshold``, then for at most one
e of about 2^256 is there an F of that degree that fits them all; a dealer that tries 2^80 inputs of
the hash finds one with a chance of 2^-176. *Why nothing is told.* g is uniform, so F is uniform
whatever f is; and the hashes are of values with 256 bits that nobody can guess (the model of a
random oracle). *Who is at fault:* with a right hash the dealer, otherwise the holder.

*Which shares say it alone.* That is about pairs that are named before e is known, as those of
honest holders are. Somebody who deals every pair and afterwards picks which of them to show has
many sets to try, each with an e of its own. :func:`telling` says how many right shares must be
shown so that all those sets together spoil at most 2^136 challenges: trying 2^80 inputs of the hash
then finds one with a chance of 2^-40. Let h be the holders, t the threshold, m the shares shown,
whose first values lie on one polynomial. (1) With m = t a bad e makes t + 1 of the h + 1 pairs fit
that lie on no polynomial; a set of t + 1 has one such e, so there are at most C(h + 1, t + 1).
(2) Whichever m: t of the pairs shown determine both polynomials, and two such pairs of polynomials
share no set of t places; each takes up C(m, t) of the C(h, t) sets, so there are at most
L = C(h, t) / C(m, t). A bad e makes two of them give the same F, or one of them and the pair at 0:
at most L (L + 1).

Written by hand because the maintained libraries share 128-bit or byte-wise secrets only, and prove
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import shake_256
from itertools import pairwise
from math import comb, prod
from secrets import randbelow

from tacit.secure.crypto import DIGEST_BYTES, digest

PRIME = 2**256 + 297
"""The smallest prime that leaves room for every 32-byte secret."""

SECRET_BYTES = 32
NUMBER_BYTES = 33
SHARE_BYTES = 2 * NUMBER_BYTES
SECRET = -1
"""Where the hash of the secret itself stands among those of the holders."""

_BAD_CHALLENGES = 2**136
"""What a dealer may hope for at most: 2^80 tries of 2^256 then succeed with a chance of 2^-40."""

_STEPS = 8
"""How many steps of a polynomial's evaluation pass between two reductions."""


@dataclass(frozen=True)
class Public:
    """What a dealer publishes about one secret."""

    context: bytes
    """Of one dealer, one secret, one session: part of every hash."""
    hashes: Mapping[int, bytes]
    """Of every holder's pair, and at :data:`SECRET` of the pair at 0."""
    proof: bytes
    """The coefficients of F, the highest first."""
    _known: dict[int, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def threshold(self) -> int:
        """How many right shares recover the secret."""
        return len(self.proof) // NUMBER_BYTES

    @cached_property
    def challenge(self) -> int:
        """The number e."""
        return _challenge(self.context, self.hashes)

    @cached_property
    def _coefficients(self) -> list[int]:
        return _numbers(self.proof)

    def fits(self, threshold: int, holders: Iterable[int]) -> bool:
        """Whether this is a dealing to these holders, of which so many recover the secret."""
        return (
            len(self.proof) == threshold * NUMBER_BYTES
            and self.hashes.keys() == {SECRET, *holders}
            and all(len(one) == DIGEST_BYTES for one in self.hashes.values())
        )

    def expected(self, holder: int) -> bytes:
        """The value of F that a holder's pair must fit."""
        if holder not in self._known:
            self._known[holder] = as_bytes(_value(self._coefficients, holder + 1))
        return self._known[holder]

    def has_hash(self, holder: int, share: bytes) -> bool:
        """Whether a share is the one whose hash the dealer published."""
        return self.hashes.get(holder) == share_hash(self.context, holder, share)

    def recover(self, shares: Mapping[int, bytes]) -> bytes:
        """The secret, from right shares; a ValueError when there are too few.

        A dealer that shared a larger number gets what its last 32 bytes say, so that the number
        has no other effect than a false secret has.
        """
        if len(shares) < self.threshold:
            raise ValueError(f"found {len(shares)} shares; {self.threshold} are needed")
        holders = tuple(sorted(shares))[: self.threshold]
        values = (int.from_bytes(shares[holder][:NUMBER_BYTES], "big") for holder in holders)
        secret = sum(w * v for w, v in zip(_lagrange(holders), values, strict=True)) % PRIME
        return as_bytes(secret)[-SECRET_BYTES:]

    @property
    def at_zero(self) -> bytes:
        """The value of F that the pair at 0 must fit."""
        return self.proof[-NUMBER_BYTES:]

    @property
    def holders(self) -> bytes:
        """The digest of the hashes of all holders' pairs, without the one at 0."""
        return holders_digest(self.hashes)

    def tells(self, shares: Mapping[int, bytes]) -> bool:
        """Whether right shares say what the secret is, whichever others their dealer might show."""
        enough = telling(len(self.hashes) - 1, self.threshold)
        return len(shares) >= enough and _degree_is_below(self.threshold, shares)

    def salt(self, secret: bytes) -> bytes:
        """The value g(0) that belongs to a secret, with which its hash can be checked."""
        first = int.from_bytes(secret, "big")
        return as_bytes((self._coefficients[-1] - self.challenge * first) % PRIME)


@dataclass(frozen=True)
class Dealing:
    """A secret in shares, one for every holder, and what is published about them.

    >>> dealt = Dealing.of(bytes(range(32)), holders=[0, 3, 7], threshold=2, context=b"doctest")
    >>> two = {holder: dealt.shares[holder] for holder in (3, 7)}
    >>> all(is_right(dealt.public, holder, share) for holder, share in two.items())
    True
    >>> dealt.public.recover(two) == bytes(range(32))
    True
    """

    shares: Mapping[int, bytes]
    public: Public

    @classmethod
    def of(cls, secret: bytes, holders: Sequence[int], threshold: int, context: bytes) -> Dealing:
        """Any ``threshold`` of the holders recover the secret; fewer learn nothing."""
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret has {len(secret)} bytes; allowed is {SECRET_BYTES}")
        if not 1 <= threshold <= len(holders):
            raise ValueError(
                f"threshold is {threshold}; allowed is 1 to {len(holders)}, the holders"
            )
        if len(set(holders)) != len(holders) or min(holders) < 0:
            raise ValueError("holders must be different numbers from 0 on")
        hidden = [*(randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "big")]
        blinding = [randbelow(PRIME) for _ in range(threshold)]
        pairs = {
            holder: as_bytes(_value(hidden, holder + 1)) + as_bytes(_value(blinding, holder + 1))
            for holder in (SECRET, *holders)
        }
        hashes = {holder: share_hash(context, holder, pair) for holder, pair in pairs.items()}
        e = _challenge(context, hashes)
        proof = b"".join(
            as_bytes((g + e * f) % PRIME) for f, g in zip(hidden, blinding, strict=True)
        )
        del pairs[SECRET]
        return cls(pairs, Public(context, hashes, proof))


def share_hash(context: bytes, holder: int, share: bytes) -> bytes:
    """The hash of a pair; the second number is its salt."""
    return digest(b"share", context, str(holder).encode(), share)


def is_right(public: Public, holder: int, share: bytes) -> bool:
    """Whether a share is the one that was dealt, and belongs together with all right ones."""
    return public.has_hash(holder, share) and fits(public.challenge, public.expected(holder), share)


def fits(challenge: int, expected: bytes, share: bytes) -> bool:
    """Whether ``F(x) = g(x) + e f(x)``, given e and F(x)."""
    if len(share) != SHARE_BYTES or max(_numbers(share)) >= PRIME:
        return False
    return fitting(challenge, share) == expected


def fitting(challenge: int, share: bytes) -> bytes:
    """The value of F that a pair fits."""
    f, g = _numbers(share)
    return as_bytes((g + challenge * f) % PRIME)


@lru_cache(maxsize=256)
def telling(holders: int, threshold: int) -> int:
    """How many right shares must be shown that nobody chose in advance; proved above.

    >>> telling(50, 26), telling(100, 51), telling(250, 126)
    (26, 51, 195)
    """
    if comb(holders + 1, threshold + 1) <= _BAD_CHALLENGES:
        return threshold
    return next(
        shown
        for shown in range(threshold + 1, holders + 1)
        if (lists := comb(holders, threshold) // comb(shown, threshold)) * (lists + 1)
        <= _BAD_CHALLENGES
    )


def _degree_is_below(threshold: int, shares: Mapping[int, bytes]) -> bool:
    """Whether first values lie on a polynomial: its higher divided differences are 0."""
    points = sorted(shares)
    row = [int.from_bytes(shares[point][:NUMBER_BYTES], "big") for point in points]
    for step in range(1, len(points)):
        row = [
            (right - left) * _inverse(points[place + step] - points[place]) % PRIME
            for place, (left, right) in enumerate(pairwise(row))
        ]
        if step == threshold:
            return not any(row)
    return True


@lru_cache(maxsize=4096)
def _inverse(number: int) -> int:
    return pow(number, -1, PRIME)


def holders_digest(hashes: Mapping[int, bytes]) -> bytes:
    """Of the hashes of all holders' pairs."""
    holders = sorted(hashes.keys() - {SECRET})
    listed = (part for holder in holders for part in (str(holder).encode(), hashes[holder]))
    return digest(b"hashes of pairs", *listed)


def challenge_of(context: bytes, at_zero: bytes, holders: bytes) -> int:
    """The number e, from the hash of the pair at 0 and a digest of the hashes of all others."""
    drawn = shake_256(digest(b"challenge", context, at_zero, holders)).digest(2 * SECRET_BYTES)
    return int.from_bytes(drawn, "big") % PRIME


def _challenge(context: bytes, hashes: Mapping[int, bytes]) -> int:
    return challenge_of(context, hashes.get(SECRET, b""), holders_digest(hashes))


def _numbers(data: bytes) -> list[int]:
    return [
        int.from_bytes(data[start : start + NUMBER_BYTES], "big")
        for start in range(0, len(data), NUMBER_BYTES)
    ]


def as_bytes(number: int) -> bytes:
    """A number of the field."""
    return number.to_bytes(NUMBER_BYTES, "big")


def _value(coefficients: Sequence[int], point: int) -> int:
    """Horner's rule; points are small, so that it pays to reduce every few steps only."""
    value = 0
    for start in range(0, len(coefficients), _STEPS):
        for coefficient in coefficients[start : start + _STEPS]:
            value = value * point + coefficient
        value %= PRIME
    return value


@lru_cache(maxsize=4096)
def _lagrange(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Weights that give a polynomial's value at 0 from its values at the holders' points."""
    points = [holder + 1 for holder in holders]
    product = prod(points)
    weights = []
    for point in points:
        below = prod(other - point for other in points if other != point)
        weights.append(product // point * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
