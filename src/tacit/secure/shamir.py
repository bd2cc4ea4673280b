"""Shamir's secret sharing of 32-byte secrets (Shamir, "How to share a secret", 1979).

The secret is the value at 0 of a random polynomial of degree ``threshold - 1`` over the integers
modulo a prime; holder ``i`` keeps its value at ``i + 1``. Fewer than ``threshold`` shares are
jointly uniform whatever the secret, because for every secret exactly one polynomial passes through
them. Written by hand because the maintained libraries share 128-bit or byte-wise secrets only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from secrets import randbelow

PRIME = 2**256 + 297
"""The smallest prime that leaves room for every 32-byte secret."""

SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """One share for every holder; any ``threshold`` of them recover the secret.

    >>> shares = split(bytes(range(32)), holders=[0, 3, 7], threshold=2)
    >>> recover({holder: shares[holder] for holder in (3, 7)}, threshold=2) == bytes(range(32))
    True
    """
    places = list(holders)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes; allowed is {SECRET_BYTES}")
    if not 1 <= threshold <= len(places):
        raise ValueError(f"threshold is {threshold}; allowed is 1 to {len(places)}, the holders")
    if len(set(places)) != len(places) or min(places) < 0:
        raise ValueError("holders must be different numbers from 0 on")
    coefficients = [randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    return {place: _value(coefficients, place + 1).to_bytes(SHARE_BYTES, "big") for place in places}


def recover(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, or a ValueError when there are too few shares or they do not fit together.

    Spare shares are a check. A word of values lies on a polynomial of degree below t exactly when
    it is orthogonal to all words ``weight_i r(x_i)`` with r of degree below m - t; a random r, here
    a hash of the shares, finds a wrong word except with a chance of 1 / prime (Cascudo and David,
    "SCRAPE", 2017).
    """
    if len(shares) < threshold:
        raise ValueError(f"found {len(shares)} shares; {threshold} are needed")
    holders = tuple(sorted(shares))
    values = [int.from_bytes(shares[holder], "big") for holder in holders]
    spare = _challenge(shares, len(holders) - threshold)
    products = (
        weight * _value(spare, holder + 1) * value
        for weight, holder, value in zip(_dual(holders), holders, values, strict=True)
    )
    weights = _lagrange(holders[:threshold])
    secret = sum(w * v for w, v in zip(weights, values, strict=False)) % PRIME
    if (spare and sum(products) % PRIME) or secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong to one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def _challenge(shares: Mapping[int, bytes], count: int) -> list[int]:
    state = hashlib.shake_256()
    for holder in sorted(shares):
        state.update(holder.to_bytes(8, "big") + hashlib.sha256(shares[holder]).digest())
    drawn = state.digest(2 * SECRET_BYTES * count)
    return [
        int.from_bytes(drawn[start : start + 2 * SECRET_BYTES], "big") % PRIME
        for start in range(0, len(drawn), 2 * SECRET_BYTES)
    ]


def _value(coefficients: list[int], point: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


@lru_cache(maxsize=4096)
def _lagrange(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Weights that give a polynomial's value at 0 from its values at the holders' points."""
    points = [holder + 1 for holder in holders]
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


@lru_cache(maxsize=4096)
def _dual(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Weights that make every polynomial of degree below ``len(holders) - 1`` sum to zero."""
    weights = []
    for holder in holders:
        product = 1
        for other in holders:
            if other != holder:
                product = product * (holder - other) % PRIME
        weights.append(pow(product, -1, PRIME))
    return tuple(weights)
