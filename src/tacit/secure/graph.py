"""Who shares masks and secrets with whom.

Up to 256 clients everyone is everyone's neighbour (Bonawitz et al., "Practical Secure Aggregation
for Privacy-Preserving Machine Learning", 2017). Beyond, clients stand in a ring in random order and
each is linked to the ``reach`` next ones on both sides (Bell et al., "Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead", 2020), so that work grows as n log n. We differ in two
ways. The order is a hash of everybody's keys, so nobody draws it and no client can be missed for
it. And clients check the ring themselves, so that a server may choose who drops out.

*Why the honest survivors stay connected.* Call any ``reach`` consecutive places of the ring a
window. Every client refuses lists in which some window has ``hidden`` members or fewer. If no
window has more than ``hidden`` colluders, every window of the survivors holds an honest one. So
from each honest survivor the next one on the ring is at most ``reach`` places away, hence its
neighbour, and the honest survivors are connected all around the ring, whoever else is made to
vanish, and whenever. *Why no secret is recovered.* A client's neighbours are two windows, so at
most ``2 hidden`` of them collude, and ``2 hidden + 1`` shares are needed.

*Why no window has more colluders.* They are fixed before the keys are, and the order is a fresh
uniform one for every list of keys (the model of a random oracle). So the number of colluders in
one window is hypergeometric, and the chance that any window has more than ``hidden`` stays below
2^-120. Server and colluders may try lists of keys until they like the order: with 2^80 tries their
chance is 2^-40. Colluders that are won over *after* the order is known are not covered.
*Why it opens.* If those that drop out do not depend on the order, a window of the survivors is too
thin with a chance below 2^-20 in a whole ring. Only additions, multiplications and divisions are
used, so every party finds the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.privacy.mechanisms import Participation

COMPLETE_UP_TO = 256
PRIVACY_FAILURE = 2.0**-120
OPENING_FAILURE = 2.0**-20
LEAST_COLLUDING = 10
"""A ring is sized for at least one colluder among so many clients."""


@dataclass(frozen=True)
class Wiring:
    """How far links reach around the ring (0: to everybody), and how many colluders a window hides.

    >>> wiring(Participation(1000, dropout=0.1), members=1000)
    Wiring(degree=158, share_threshold=105, reach=79, hidden=52)
    >>> wiring(Participation(50, dropout=0.1), members=50)
    Wiring(degree=49, share_threshold=26, reach=0, hidden=0)
    """

    degree: int
    share_threshold: int
    reach: int = 0
    hidden: int = 0

    def thin(self, order: Sequence[int], present: Collection[int]) -> bool:
        """Whether some window of the ring has too few of the clients that are present."""
        if not self.reach:
            return False
        among = set(present)
        here = np.fromiter((client in among for client in order), np.int64, len(order))
        around = np.concatenate([here, here[: self.reach - 1]])
        windows = np.convolve(around, np.ones(self.reach, np.int64), "valid")
        return bool(windows.min() <= self.hidden)


@lru_cache(maxsize=256)
def wiring(participation: Participation, members: int) -> Wiring:
    """The wiring of a round in which ``members`` of the clients made it into the key exchange."""
    complete = Wiring(members - 1, (participation.clients + participation.colluding) // 2 + 1)
    if members <= COMPLETE_UP_TO:
        return complete
    least = -(-participation.clients // LEAST_COLLUDING)
    colluding = min(max(participation.colluding, least), members)
    missing = max(members - participation.threshold, 0)
    for reach in range(2, (members - 1) // 2):
        hidden = _most_colluders(members, colluding, reach)
        if members * _tail(members, missing, reach, reach - hidden) < OPENING_FAILURE:
            return Wiring(2 * reach, 2 * hidden + 1, reach, hidden)
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


def _most_colluders(members: int, colluding: int, reach: int) -> int:
    """The least number that some window exceeds with a negligible chance only."""
    for hidden in range(reach):
        if members * _tail(members, colluding, reach, hidden + 1) < PRIVACY_FAILURE:
            return hidden
    return reach


@lru_cache(maxsize=4096)
def _tail(members: int, marked: int, drawn: int, least: int) -> float:
    """Hypergeometric: the chance that at least ``least`` of ``drawn`` members are marked."""
    first, last = max(0, drawn - (members - marked)), min(drawn, marked)
    if least > last:
        return 0.0
    weights = [1.0]
    for found in range(first, last):
        odds = (marked - found) * (drawn - found)
        odds_against = (found + 1) * (members - marked - drawn + found + 1)
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
