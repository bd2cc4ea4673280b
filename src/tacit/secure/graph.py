"""Who shares masks and secrets with whom.

Up to 64 clients everyone is everyone's neighbour (Bonawitz et al., "Practical Secure Aggregation
for Privacy-Preserving Machine Learning", 2017). Beyond, clients stand in a ring in random order and
each is linked to the ``degree / 2`` next ones on both sides (Bell et al., "Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead", 2020), so that work grows as n log n. We differ in who
draws the order: all clients together, by commit and reveal, not the server.

*Why degree and share threshold suffice.* Seen from one client, the random order makes its
neighbours a uniformly random subset, so how many of them collude or drop out is hypergeometric as
long as colluders and drop-outs do not depend on the order. Privacy fails when as many neighbours as
recover a secret collude, or when two runs of ``degree / 2`` consecutive clients are all lost, which
would cut the ring of honest survivors in two; the sum of these chances over all clients and pairs
of runs stays below 2^-40. Opening fails, and releases nothing, when fewer neighbours than the share
threshold survive; that chance stays below 2^-20. Only additions, multiplications and divisions are
used, so every party finds the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor

from tacit.privacy.mechanisms import Participation

COMPLETE_UP_TO = 64
PRIVACY_FAILURE = 2.0**-40
OPENING_FAILURE = 2.0**-20
LEAST_COLLUDING = 0.1
"""A graph is sized for at least this fraction of colluders, and as many as drop-outs."""


@dataclass(frozen=True)
class Wiring:
    """How many neighbours a client has, and how many shares recover a secret.

    >>> wiring(Participation(250, dropout=0.1), members=250)
    Wiring(degree=36, share_threshold=20)
    >>> wiring(Participation(50, dropout=0.1), members=50)
    Wiring(degree=49, share_threshold=26)
    """

    degree: int
    share_threshold: int


@lru_cache(maxsize=256)
def wiring(participation: Participation, members: int) -> Wiring:
    """The wiring of a round in which ``members`` of the clients made it into the key exchange."""
    complete = Wiring(members - 1, _majority_with_colluders(participation))
    if members <= COMPLETE_UP_TO:
        return complete
    least = floor(Fraction(str(LEAST_COLLUDING)) * participation.clients)
    colluding = min(max(participation.colluding, participation.dropout, least), members - 2)
    dropped = max(members - participation.threshold, 0)
    others = members - 1
    for degree in range(4, others, 2):
        cut = _all_lost(members, min(colluding + dropped, members), degree)
        may_collude = PRIVACY_FAILURE / members - cut * members
        threshold = _least_threshold(others, colluding, degree, may_collude)
        if threshold is None:
            continue
        too_few = _tail(others, dropped, degree, degree - threshold + 1)
        if members * too_few < OPENING_FAILURE:
            return Wiring(degree, threshold)
    return complete


@lru_cache(maxsize=8)
def ring(seed: bytes, members: tuple[int, ...]) -> tuple[int, ...]:
    """The clients in the random order that the seed gives: everyone derives the same."""
    return tuple(
        sorted(members, key=lambda member: hashlib.sha256(seed + member.to_bytes(8)).digest())
    )


def neighbours(order: Sequence[int], degree: int, me: int) -> tuple[int, ...]:
    """Whom ``me`` shares with: the next ``degree / 2`` on both sides of the ring, or everyone.

    >>> neighbours(order=[4, 0, 3, 1, 2], degree=2, me=0)
    (3, 4)
    """
    if degree >= len(order) - 1:
        return tuple(sorted(member for member in order if member != me))
    place = order.index(me)
    steps = (step for step in range(-(degree // 2), degree // 2 + 1) if step)
    return tuple(sorted(order[(place + step) % len(order)] for step in steps))


def _majority_with_colluders(participation: Participation) -> int:
    """Two sets of this many holders share an honest one."""
    return (participation.clients + participation.colluding) // 2 + 1


def _least_threshold(others: int, colluding: int, degree: int, allowed: float) -> int | None:
    for threshold in range(degree // 2 + 1, degree + 1):
        if _tail(others, colluding, degree, threshold) < allowed:
            return threshold
    return None


def _all_lost(members: int, lost: int, degree: int) -> float:
    """A bound on the chance that two given runs of ``degree / 2`` clients are lost entirely."""
    chance = 1.0
    for i in range(degree):
        chance *= max(lost - i, 0) / (members - i)
    return chance


@lru_cache(maxsize=4096)
def _tail(others: int, marked: int, drawn: int, least: int) -> float:
    """Hypergeometric: the chance that at least ``least`` of ``drawn`` others are marked."""
    first, last = max(0, drawn - (others - marked)), min(drawn, marked)
    if least > last:
        return 0.0
    weights = [1.0]
    for found in range(first, last):
        odds = (marked - found) * (drawn - found)
        odds_against = (found + 1) * (others - marked - drawn + found + 1)
        weights.append(weights[-1] * odds / odds_against)
        if weights[-1] > 1e200:  # what was negligible may vanish, nothing may overflow
            weights = [weight / 1e200 for weight in weights]
    return _added(weights[max(least - first, 0) :]) / _added(weights)


def _added(numbers: Sequence[float]) -> float:
    """One after the other: how `sum` rounds depends on the version of Python."""
    total = 0.0
    for number in numbers:
        total += number
    return total
