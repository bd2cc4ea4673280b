"""How many clients abstained from a vote, as far as a noisy count tells.

Whoever cannot answer must not be noticed, so a vote whose deadline everybody missed looks like any
other. A ballot with further entries for abstaining (:class:`~tacit.privacy.bounds.WithAbstentions`)
makes their number part of the same noisy sum, at no further price. Here the sum is read; that is
post-processing of what was released, with public numbers.

*The estimate.* With ``m`` abstentions, entry i of the count is ``m w_i`` plus Skellam noise of the
same known variance each, where ``w`` is what an abstaining client has there. Weighting by ``w`` is
best for equal variances: ``T = sum_i w_i t_i = m D + S`` with ``D = sum_i w_i^2`` and the noise
``S = sum_i w_i x_i``, so ``T / D`` estimates m.

*The interval.* Let q be the least integer with ``P(S >= q) <= FALSE_ALARM``; S is symmetric. With a
chance of at least ``1 - FALSE_ALARM`` the noise is at most ``q - 1``, and then ``m`` is at least
``(T - q + 1) / D``: each end of the interval is wrong in at most that share of all votes, whatever
m is. *"Most abstained" is said where the lower end is above half of the answers*, so it is said
wrongly at most as often: where half or fewer abstained, it takes a lower end above m.

How many abstained is as protected as who voted for what: it is counted under the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.privacy.bounds import BordaVotes, TopVotes, WithAbstentions
from tacit.privacy.skellam import IntArray, reach

FALSE_ALARM = 1e-3
"""How often at most each end of the interval is wrong."""
_EXACT = 1 << 20
_WRAPPED = 1e-12


@dataclass(frozen=True)
class Abstentions:
    """How many of a vote's answers were abstentions.

    >>> bound = WithAbstentions(TopVotes(100, 5))
    >>> found = Abstentions.counted("vote", np.array([44, 38, 52, 29, 41]), bound, 50, 139.0)
    >>> found
    Abstentions(vote='vote', answered=50, estimate=41, least=25, most=50)
    >>> found.prevail
    False
    """

    vote: str
    """The label of its question."""
    answered: int
    """How many answers are in the sum, abstentions included."""
    estimate: int
    least: int
    most: int
    """The ends of the interval, both included."""

    @classmethod
    def counted(
        cls, vote: str, count: IntArray, bound: WithAbstentions, answered: int, variance: float
    ) -> Abstentions:
        """From the entries of a sum that count, and the variance of the noise in each of them."""
        weights = bound.marks
        total = sum(weight * int(entry) for weight, entry in zip(weights, count, strict=True))
        one, noise = _squares(weights), noise_reach(weights, variance, FALSE_ALARM) - 1

        def possible(number: int) -> int:
            return min(max(number, 0), answered)

        return cls(
            vote,
            answered,
            estimate=possible(round(total / one)),
            least=possible(-((noise - total) // one)),
            most=possible((total + noise) // one),
        )

    @property
    def prevail(self) -> bool:
        """Whether it is certain enough that more than half of the answers were abstentions."""
        return 2 * self.least > self.answered

    @property
    def words(self) -> str:
        """How many, in a few words."""
        return f"about {self.estimate} of {self.answered} (between {self.least} and {self.most})"

    @property
    def warning(self) -> str:
        """What to say first of a vote from which most abstained; nothing of any other."""
        if not self.prevail:
            return ""
        return (
            f"Most clients had no score in time: {self.words} abstained from the {self.vote}. The "
            "choice means nothing, and nothing was trained with it; raise federation.deadline or "
            "look at the clients, and begin a new run. What was charged stays charged."
        )


def prevailing(votes: Sequence[Abstentions]) -> str:
    """The warning of the first of a run's votes from which most abstained; nothing without any."""
    return next((vote.warning for vote in votes if vote.prevail), "")


@dataclass(frozen=True)
class Counting:
    """What counting the abstentions of a vote can tell, before anybody is asked.

    >>> Counting.of(TopVotes(100, 5), clients=50, variance=157.0)
    Counting(clients=50, off_by=18, said_from=43)
    """

    clients: int
    off_by: int
    """How far noise alone moves the count, in either direction, in all but one of 1000 votes."""
    said_from: int
    """How many must abstain until it is said in half of all votes that most did."""

    @classmethod
    def of(cls, ballots: TopVotes | BordaVotes, clients: int, variance: float) -> Counting | None:
        """With all clients present, and this noise in each entry; None where it is not possible."""
        try:
            bound = WithAbstentions(ballots)
        except ValueError:
            return None
        moved = (noise_reach(bound.marks, variance, FALSE_ALARM) - 1) / _squares(bound.marks)
        return cls(clients, math.ceil(moved), math.floor(moved) + clients // 2 + 1)

    @property
    def tells(self) -> bool:
        """Whether it can be said at all that most clients abstained."""
        return self.said_from <= self.clients

    @property
    def words(self) -> str:
        """What to expect of the count, in one sentence."""
        counted = f"can be counted at no cost, to within {self.off_by}"
        if self.tells:
            return f"{counted}; {self.said_from} of {self.clients} show that most did"
        return f"{counted} of {self.clients}: too noisy to say that most did"


def _squares(weights: tuple[int, ...]) -> int:
    return sum(weight * weight for weight in weights)


@lru_cache(maxsize=64)
def noise_reach(weights: tuple[int, ...], variance: float, chance: float) -> int:
    """The least q that the weighted sum of independent Skellams reaches with at most this chance.

    The characteristic function of ``S = sum_i w_i x_i`` is ``exp(v sum_i (cos(w_i t) - 1))``. Its
    values at N equal steps of the circle give, by one Fourier transform, the distribution of S
    modulo N exactly; N is so large that what wraps around weighs below 1e-12. *Where N would be
    huge, Chernoff's bound is taken*, which is never too small: since ``(cosh x - 1) / x^2`` grows,
    S over the largest weight W has a moment-generating function of at most that of a Skellam of
    variance ``v sum_i w_i^2 / W^2``.

    >>> noise_reach((1,) * 5, 139.0, 1e-3), noise_reach((1,), 0.0, 1e-3)
    (82, 1)
    """
    if not variance:
        return 1
    largest = max(weights)
    common = variance * _squares(weights) / largest**2

    def bound(mass: float) -> int:
        return largest * reach(common, math.log(mass))

    half = bound(_WRAPPED)
    if half > _EXACT:
        return bound(chance)
    size = 1 << (2 * half).bit_length()
    steps = 2 * math.pi / size * np.arange(size // 2 + 1)
    log = sum(variance * (np.cos(weight * steps) - 1) for weight in weights)
    masses = np.fft.irfft(np.exp(log), size)[: size // 2]
    tails = np.cumsum(masses[::-1])[::-1]  # of S = 0, 1, ..
    return int(np.searchsorted(-tails, -chance))
