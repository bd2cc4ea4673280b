"""What a client may answer, and how far two allowed answers can lie apart.

A bound is a set of integer vectors. It recognises its members, knows the worst pair among them, and
can draw the answer of a client that has nothing to say. Noise is only ever added to a member
(:mod:`tacit.privacy.mechanisms` checks), so the worst pair is a fact, not a hope.

Fractions are counted in steps, as integers. ``unit`` says how many steps of a bound the noise takes
for one: a bound of unit u gets noise of standard deviation u times that of a bound of unit 1. Two
sums of one run can so share one noise level, and each have its part of the price.

Abstentions: a client that cannot answer must still be indistinguishable, so its answer is drawn
from the same set, independently of its data. A mixture of allowed answers is never worse than the
worst allowed one, because hockey-stick divergences are jointly convex. Where abstentions are to be
counted (:class:`WithAbstentions`), they are one more allowed answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from secrets import SystemRandom
from typing import ClassVar, Protocol

import numpy as np

from tacit.privacy.events import Shifts, SkellamNormRelease, SkellamRelease
from tacit.privacy.skellam import IntArray

_MOST_CANDIDATES = 1_000_000


@dataclass(frozen=True)
class SumRange:
    """What sums of valid answers can be before noise, all ends included.

    Attributes:
        lowest: the least value of each entry.
        highest: the largest value of each entry.
        total: the least and the largest value of all entries together.
        norm: the largest Euclidean length, where that says more than the entries do.
    """

    lowest: IntArray
    highest: IntArray
    total: tuple[int, int]
    norm: int | None = None


class Bound(Protocol):
    """A set of allowed answers."""

    @property
    def length(self) -> int:
        """How many integers an answer has."""

    @property
    def largest(self) -> int:
        """The largest absolute value of any of them."""

    @property
    def unit(self) -> int:
        """How many steps the noise takes for one."""

    def admits(self, answer: IntArray) -> bool:
        """Whether an answer belongs to the set."""

    def abstention(self) -> IntArray:
        """A member drawn without looking at any data."""

    def release(self, variance: float) -> SkellamRelease | SkellamNormRelease:
        """The event of releasing one sum under Skellam noise of this variance, in squared units."""

    def sums(self, members: int) -> SumRange:
        """What the answers of so many members can add up to, before noise."""


@dataclass(frozen=True)
class TopVotes:
    """Ballots of DP-HYPE: exactly ``votes`` ones among ``candidates``, zeros elsewhere.

    *Worst pair* (DP-HYPE, Lemma IV.1, sharpened for many votes): two ballots differ where exactly
    one of them has a one, by 1 each; the ones of a ballot can move to at most
    ``min(votes, candidates - votes)`` new places and leave as many, so at most
    ``2 min(votes, candidates - votes)`` coordinates differ, and disjoint (or jointly covering)
    ballots attain it. A zero ballot is not allowed: with many votes it would be a worse pair.

    >>> TopVotes(candidates=100, votes=5).shifts
    ((1, 10),)
    >>> TopVotes(candidates=100, votes=100)
    Traceback (most recent call last):
        ...
    ValueError: votes is 100 of 100 candidates; allowed is 1 to 99: with a vote for every \
candidate all ballots are equal and the tally carries nothing
    """

    candidates: int
    votes: int
    unit: int = 1

    def __post_init__(self) -> None:
        _check_candidates(self.candidates)
        _check_at_least_one(unit=self.unit)
        if not 1 <= self.votes < self.candidates:
            reason = (
                ": with a vote for every candidate all ballots are equal and the tally carries "
                "nothing"
            )
            raise ValueError(
                f"votes is {self.votes} of {self.candidates} candidates; allowed is 1 to "
                f"{self.candidates - 1}{reason if self.votes == self.candidates else ''}"
            )

    @property
    def length(self) -> int:
        return self.candidates

    @property
    def largest(self) -> int:
        return 1

    @property
    def shifts(self) -> Shifts:
        return ((1, 2 * min(self.votes, self.candidates - self.votes)),)

    def admits(self, answer: IntArray) -> bool:
        return _is_vector(answer, self.length) and bool(
            np.isin(answer, (0, 1)).all() and answer.sum() == self.votes
        )

    def abstention(self) -> IntArray:
        return self.ballot(SystemRandom().sample(range(self.candidates), self.votes))

    def ballot(self, chosen: list[int]) -> IntArray:
        """The ballot that votes for these candidates."""
        answer = np.zeros(self.candidates, dtype=np.int64)
        answer[chosen] = 1
        return answer

    def release(self, variance: float) -> SkellamRelease:
        return SkellamRelease(self.shifts, variance * self.unit**2)

    def sums(self, members: int) -> SumRange:
        """Everybody casts exactly ``votes``, so the total is known."""
        total = members * self.votes
        return SumRange(*_alike(self.length, 0, members), (total, total))


@dataclass(frozen=True)
class BordaVotes:
    """Ranked ballots: weights ``ranked, ranked - 1, .., 1`` for the best, zeros elsewhere.

    *Worst pair*: ballots with disjoint supports, every weight once on either side. Where supports
    overlap, a candidate with weight a in one ballot and b in the other contributes one shift of
    ``|a - b| <= max(a, b)`` instead of two shifts a and b; a smaller shift and one coordinate fewer
    never reveal more (see :class:`~tacit.privacy.events.SkellamRelease`). Disjoint supports need
    ``2 ranked <= candidates``; beyond that the bound would not be attained and is refused.

    >>> BordaVotes(candidates=10, ranked=3).shifts
    ((1, 2), (2, 2), (3, 2))
    """

    candidates: int
    ranked: int
    unit: int = 1

    def __post_init__(self) -> None:
        _check_candidates(self.candidates)
        _check_at_least_one(unit=self.unit)
        if not 1 <= self.ranked <= self.candidates // 2:
            raise ValueError(
                f"ranked is {self.ranked} of {self.candidates} candidates; allowed is 1 to "
                f"{self.candidates // 2}: two ballots that rank more than half of the candidates "
                "must overlap, and the worst pair of disjoint ballots no longer exists"
            )

    @property
    def length(self) -> int:
        return self.candidates

    @property
    def largest(self) -> int:
        return self.ranked

    @property
    def shifts(self) -> Shifts:
        return tuple((weight, 2) for weight in range(1, self.ranked + 1))

    def admits(self, answer: IntArray) -> bool:
        if not _is_vector(answer, self.length):
            return False
        weights = np.sort(answer[answer != 0])
        return np.array_equal(weights, np.arange(1, self.ranked + 1))

    def abstention(self) -> IntArray:
        return self.ballot(SystemRandom().sample(range(self.candidates), self.ranked))

    def ballot(self, best_first: list[int]) -> IntArray:
        """The ballot that ranks these candidates, the best first."""
        answer = np.zeros(self.candidates, dtype=np.int64)
        answer[best_first] = np.arange(self.ranked, 0, -1)
        return answer

    def release(self, variance: float) -> SkellamRelease:
        return SkellamRelease(self.shifts, variance * self.unit**2)

    def sums(self, members: int) -> SumRange:
        """Everybody gives every weight once, so the total is known."""
        total = members * self.ranked * (self.ranked + 1) // 2
        return SumRange(*_alike(self.length, 0, members * self.ranked), (total, total))


@dataclass(frozen=True)
class WithAbstentions:
    """Ballots that can also say "I abstain", as a vote for extra candidates that stand for it.

    A ballot over p candidates that gives the weights ``marks`` (k ones, or b, .., 1) becomes an
    answer of ``p + len(marks)`` entries. Whoever votes has its ballot in the first p and zeros in
    the others; whoever abstains has zeros in the first p and ``marks`` in the others. The sum of
    the others counts abstentions, with noise (:mod:`tacit.abstentions`).

    *Worst pair.* Every answer gives each of the weights once, so two answers are at most as far
    apart as two ballots with disjoint supports, which have every weight twice; the argument of
    :class:`TopVotes` and :class:`BordaVotes` does not ask which of the entries are candidates. An
    abstention and a ballot are disjoint, so they attain it. Two disjoint ballots are the worst pair
    without the extra entries too, as long as there are any: ``2 len(marks) <= p``. *So counting
    abstentions costs no epsilon and no noise*, only as many more integers in a message. Where
    ballots must overlap, counting would cost something, and is refused.

    An answer of zeros only, or a ballot whose client forgot the other entries, is not admitted:
    whether somebody abstains is always said, and it is as hidden as a vote.

    >>> bound = WithAbstentions(TopVotes(candidates=100, votes=5))
    >>> bound.length, bound.shifts == bound.ballots.shifts
    (105, True)
    >>> WithAbstentions(BordaVotes(candidates=4, ranked=2)).abstention().tolist()
    [0, 0, 0, 0, 2, 1]
    """

    ballots: TopVotes | BordaVotes

    def __post_init__(self) -> None:
        candidates, named = self.ballots.candidates, len(self.marks)
        if 2 * named > candidates:
            raise ValueError(
                f"a ballot names {named} of {candidates} candidates; allowed where abstentions are "
                f"counted is 1 to {candidates // 2}: an abstention would lie further from a ballot "
                "than two ballots from each other, so counting would not be free"
            )

    @property
    def marks(self) -> tuple[int, ...]:
        """What a client that abstains has in the extra entries: a whole ballot."""
        if isinstance(self.ballots, BordaVotes):
            return tuple(range(self.ballots.ranked, 0, -1))
        return (1,) * self.ballots.votes

    @property
    def length(self) -> int:
        return self.ballots.length + len(self.marks)

    @property
    def largest(self) -> int:
        return self.ballots.largest

    @property
    def unit(self) -> int:
        return self.ballots.unit

    @property
    def shifts(self) -> Shifts:
        return self.ballots.shifts

    def admits(self, answer: IntArray) -> bool:
        if not _is_vector(answer, self.length):
            return False
        votes, marks = self.parted(answer)
        if marks.any():
            return not votes.any() and np.array_equal(marks, self.marks)
        return self.ballots.admits(votes)

    def abstention(self) -> IntArray:
        votes = np.zeros(self.ballots.length, dtype=np.int64)
        return np.concatenate([votes, np.array(self.marks, dtype=np.int64)])

    def ballot(self, chosen: list[int]) -> IntArray:
        """The answer of a client that votes: its ballot, and no mark."""
        marks = np.zeros(len(self.marks), dtype=np.int64)
        return np.concatenate([self.ballots.ballot(chosen), marks])

    def parted(self, answer: IntArray) -> tuple[IntArray, IntArray]:
        """The entries of the candidates, and those of abstentions; also of a sum."""
        return answer[: self.ballots.length], answer[self.ballots.length :]

    def release(self, variance: float) -> SkellamRelease:
        return SkellamRelease(self.shifts, variance * self.unit**2)

    def sums(self, members: int) -> SumRange:
        """Everybody gives every weight once, to candidates or to abstaining."""
        votes = self.ballots.sums(members)
        marks = np.array(self.marks, dtype=np.int64)
        lowest = np.concatenate([votes.lowest, 0 * marks])
        return SumRange(lowest, np.concatenate([votes.highest, members * marks]), votes.total)


@dataclass(frozen=True)
class Marks:
    """Zeros and at most ``most`` ones: a client marks some of ``length`` places.

    *Worst pair*: two answers differ, by 1, where exactly one of them has a one; each has at most
    ``most``, so at most ``min(2 most, length)`` coordinates differ, and disjoint answers (or, where
    there is not enough room, such that cover everything) attain it.

    >>> Marks(length=49, most=10).shifts
    ((1, 20),)
    """

    length: int
    most: int
    unit: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_at_least_one(length=self.length, most=self.most)

    @property
    def largest(self) -> int:
        return 1

    @property
    def shifts(self) -> Shifts:
        return ((1, min(2 * self.most, self.length)),)

    def admits(self, answer: IntArray) -> bool:
        return _is_vector(answer, self.length) and bool(
            np.isin(answer, (0, 1)).all() and answer.sum() <= self.most
        )

    def abstention(self) -> IntArray:
        return np.zeros(self.length, dtype=np.int64)

    def release(self, variance: float) -> SkellamRelease:
        return SkellamRelease(self.shifts, variance)

    def sums(self, members: int) -> SumRange:
        most = min(self.most, self.length)
        return SumRange(*_alike(self.length, 0, members), (0, members * most))


@dataclass(frozen=True)
class OnePoint:
    """One point, in steps: numbers from ``-steps`` to ``steps``, a choice for each of some groups.

    An answer holds the numbers, for each group ``steps`` at the option chosen and zeros elsewhere,
    and last ``steps`` for being there; or zeros only. *Worst pair*: a number shifts by at most
    ``2 steps``, two options of a group and the last entry by ``steps`` each. No pair attains all of
    that at once (who shifts the last entry has zeros elsewhere), so the bound is a little cautious.

    >>> OnePoint(numbers=2, options=(3,), steps=100).shifts
    ((100, 3), (200, 2))
    """

    numbers: int
    options: tuple[int, ...]
    steps: int

    def __post_init__(self) -> None:
        _check_at_least_one(
            steps=self.steps, **{f"options of group {i}": k for i, k in enumerate(self.options)}
        )
        if self.numbers < 0 or self.numbers + len(self.options) < 1:
            raise ValueError(
                f"numbers is {self.numbers} with {len(self.options)} groups; allowed is at least "
                "one of either"
            )

    @property
    def length(self) -> int:
        return self.numbers + sum(self.options) + 1

    @property
    def largest(self) -> int:
        return self.steps

    @property
    def unit(self) -> int:
        return self.steps

    @property
    def shifts(self) -> Shifts:
        present = (self.steps, 2 * len(self.options) + 1)
        return (present, (2 * self.steps, self.numbers)) if self.numbers else (present,)

    def groups(self, answer: IntArray) -> list[IntArray]:
        """The part of an answer, or of a sum, that belongs to each group."""
        ends = self.numbers + np.cumsum((0, *self.options))
        return [answer[begin:end] for begin, end in pairwise(ends)]

    def admits(self, answer: IntArray) -> bool:
        if not _is_vector(answer, self.length):
            return False
        if not answer.any():
            return True
        numbers = answer[: self.numbers]
        return bool(
            answer[-1] == self.steps
            and ((numbers >= -self.steps) & (numbers <= self.steps)).all()
            and all(
                np.isin(group, (0, self.steps)).all() and group.sum() == self.steps
                for group in self.groups(answer)
            )
        )

    def abstention(self) -> IntArray:
        return np.zeros(self.length, dtype=np.int64)

    def release(self, variance: float) -> SkellamRelease:
        return SkellamRelease(self.shifts, variance * self.unit**2)

    def sums(self, members: int) -> SumRange:
        """Only numbers can be negative; who is there has ``steps`` in each group and at the end."""
        lowest, highest = _alike(self.length, 0, members * self.steps)
        lowest[: self.numbers] = -members * self.steps
        there = len(self.options) + 1
        least = min(there - self.numbers, 0) * self.steps
        most = (there + self.numbers) * self.steps
        return SumRange(lowest, highest, (members * least, members * most))


@dataclass(frozen=True)
class Box:
    """Integers between ``-radius`` and ``radius``; opposite corners are the worst pair."""

    length: int
    radius: int
    unit: int = 1

    def __post_init__(self) -> None:
        _check_at_least_one(length=self.length, radius=self.radius, unit=self.unit)

    @property
    def largest(self) -> int:
        return self.radius

    @property
    def shifts(self) -> Shifts:
        return ((2 * self.radius, self.length),)

    def admits(self, answer: IntArray) -> bool:
        return _is_vector(answer, self.length) and bool(
            ((answer >= -self.radius) & (answer <= self.radius)).all()
        )

    def abstention(self) -> IntArray:
        return np.zeros(self.length, dtype=np.int64)

    def release(self, variance: float) -> SkellamRelease:
        return SkellamRelease(self.shifts, variance * self.unit**2)

    def sums(self, members: int) -> SumRange:
        furthest = members * self.radius
        total = furthest * self.length
        return SumRange(*_alike(self.length, -furthest, furthest), (-total, total))


@dataclass(frozen=True)
class NormBall:
    """Integer vectors with bounded L1 and L2 norm; their differences have at most twice those."""

    length: int
    l1: int
    l2: int
    unit: int = 1

    def __post_init__(self) -> None:
        _check_at_least_one(length=self.length, l1=self.l1, l2=self.l2, unit=self.unit)

    @property
    def largest(self) -> int:
        return min(self.l1, self.l2)

    def admits(self, answer: IntArray) -> bool:
        if not _is_vector(answer, self.length):
            return False
        if answer.min() < -self.largest or answer.max() > self.largest:
            return False
        whole = answer.astype(object)  # Python's integers cannot overflow
        if self.length * self.largest**2 < 2**63:
            whole = answer
        return bool(np.abs(whole).sum() <= self.l1 and (whole * whole).sum() <= self.l2**2)

    def abstention(self) -> IntArray:
        return np.zeros(self.length, dtype=np.int64)

    def release(self, variance: float) -> SkellamNormRelease:
        return SkellamNormRelease(2.0 * self.l1, 2.0 * self.l2, variance * self.unit**2)

    def sums(self, members: int) -> SumRange:
        """A sum's norm is at most the sum of norms.

        Entries add up to at most the L1 norm, and, by Cauchy and Schwarz, to at most
        ``sqrt(length)`` times the L2 norm.
        """
        furthest = members * self.largest
        total = members * min(self.l1, math.isqrt(self.length * self.l2**2))
        entries = _alike(self.length, -furthest, furthest)
        return SumRange(*entries, (-total, total), members * self.l2)


def _alike(length: int, lowest: int, highest: int) -> tuple[IntArray, IntArray]:
    """The same range for every entry."""
    return np.full(length, lowest, dtype=np.int64), np.full(length, highest, dtype=np.int64)


def _is_vector(answer: IntArray, length: int) -> bool:
    return answer.shape == (length,) and answer.dtype == np.int64


def _check_candidates(candidates: int) -> None:
    if not 2 <= candidates <= _MOST_CANDIDATES:
        raise ValueError(f"candidates is {candidates}; allowed is 2 to {_MOST_CANDIDATES}")


def _check_at_least_one(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1 or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
