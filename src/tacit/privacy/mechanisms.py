"""Noise born on the clients: one share each, together enough whoever drops out.

DP-HYPE (Algorithm 1, line 9) lets each of n clients add noise of variance ``sigma^2 / n``, and its
Appendix A divides by ``(1 - xi) n`` instead to survive drop-outs. We differ in three ways: the
noise is integer (Skellam), the variance is the least the exact worst pair needs, and colluding
clients, who can tell the server their own noise, count as dropped; one does at least, since a
curious client can take its own noise off the result.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from functools import cached_property

import numpy as np

from tacit.privacy.accounting import SAMPLING_ERROR, Budget, calibrate
from tacit.privacy.bounds import Bound, TopVotes
from tacit.privacy.events import EXACT_SUM, Event, Repeated, Unprotected
from tacit.privacy.skellam import IntArray, check_variance, sampling_table

_SHARE_STEPS = 1 << 32
_MOST_CLIENTS = 10_000_000


class OutOfBounds(ValueError):
    """An answer outside its bound was about to receive noise sized for the bound."""


SomeClients = int | float | Fraction | str
"""Some of the clients: how many (``2``, ``"2"``), or a fraction of them (``0.1``, ``"1/3"``)."""
SOME_CLIENTS = (
    "a count of clients such as 2, or a fraction of them from 0 up to, not including, 1, such as "
    "0.1 or '1/3'"
)


@dataclass(frozen=True, init=False)
class Participation:
    """How many clients take part and how many of them may fail or betray.

    ``dropout`` and ``colluding`` are counts, whichever way they were given: as counts, or as
    fractions of the clients, of which whole clients are counted.

    *Guarantee.* ``guaranteed`` honest shares of noise are in every opened sum, and nobody who looks
    at it knows any of them. At most ``dropout`` clients are missing. Whoever looks knows the noise
    of the clients it is in league with: at most ``colluding``, itself included if it takes part. A
    participant in league with nobody knows its own noise and can take it off, hence at least one
    client is counted as known. ``n - dropout - max(colluding, 1)`` shares remain.

    >>> Participation(clients=50, dropout=0.1).guaranteed
    44
    >>> Participation(clients=10, dropout=0.1, colluding=0.2).guaranteed
    7
    >>> Participation(clients=6, colluding="1/3")
    Participation(clients=6, dropout=0, colluding=2)
    """

    clients: int
    dropout: int
    colluding: int

    def __init__(
        self, clients: int, dropout: SomeClients = 0.1, colluding: SomeClients = 0
    ) -> None:
        if not 2 <= clients <= _MOST_CLIENTS:
            raise ValueError(f"clients is {clients}; allowed is 2 to {_MOST_CLIENTS}")
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "dropout", _counted("dropout", dropout, clients))
        object.__setattr__(self, "colluding", _counted("colluding", colluding, clients))
        if self.guaranteed < 1:
            raise ValueError(
                f"dropout is {dropout!r} and colluding {colluding!r}: of {clients} clients "
                f"{self.dropout} may be missing and {max(self.colluding, 1)} may know their own "
                "noise; together they must be fewer than the clients, so that some honest "
                "client's noise remains: lower them, or have more clients"
            )

    @property
    def guaranteed(self) -> int:
        """Honest clients whose noise is certain to be in the sum, unknown to whoever looks."""
        return self.clients - self.dropout - max(self.colluding, 1)

    @property
    def threshold(self) -> int:
        """The fewest answers that may be opened.

        The noise floor ``n - dropout``, and with a colluding server
        ``floor((n + colluding) / 2) + 1``, which is a majority if nobody colludes: two sets of that
        size share an honest client, so no two different sums can be opened from one round.
        """
        return max(self.clients - self.dropout, (self.clients + self.colluding) // 2 + 1)


def some_clients(name: str, value: SomeClients) -> int | Fraction:
    """A count as it is; a fraction of the clients exactly as it was written.

    >>> [some_clients("dropout", value) for value in ("2", "1/3", 0.1)]
    [2, Fraction(1, 3), Fraction(1, 10)]
    """
    found: object = value
    with suppress(ValueError, ZeroDivisionError):
        if isinstance(value, str) and value.strip().isdecimal():
            found = int(value)
        elif isinstance(value, str | float):
            found = Fraction(str(value))
    if type(found) is int and found >= 0:
        return found
    if isinstance(found, Fraction) and 0 <= found < 1:
        return found
    raise ValueError(f"{name} is {value!r}; allowed is {SOME_CLIENTS}")


def _counted(name: str, value: SomeClients, clients: int) -> int:
    """How many of the clients that is."""
    found = some_clients(name, value)
    if isinstance(found, int):
        return found
    # k / n as a float may be a hair below k / n. Rounding that down would count a client too few as
    # lost, and one honest client too many. It is below 1e-15 off, so below 1e-8 of a client.
    return math.floor(found * clients + Fraction(1, 10**6))


class NoiseShare:
    """Noise that was drawn for one answer within a bound, and is added to one at most.

    Two answers under the same noise would tell their difference.

    >>> share = NoiseShare(TopVotes(3, 1), np.array([5, -2, 0]))
    >>> share.added_to(np.array([0, 1, 0])).tolist()
    [5, -1, 0]
    >>> share.added_to(np.array([1, 0, 0]))
    Traceback (most recent call last):
        ...
    RuntimeError: this noise was added to an answer before; draw new noise for every answer
    """

    def __init__(self, bound: Bound, noise: IntArray) -> None:
        self._bound = bound
        self._noise: IntArray | None = noise

    def added_to(self, answer: IntArray) -> IntArray:
        """The answer under this noise, or a refusal that tells nothing of it."""
        check(answer, self._bound)
        noise, self._noise = self._noise, None
        if noise is None:
            raise RuntimeError(
                "this noise was added to an answer before; draw new noise for every answer"
            )
        return answer + noise


@dataclass(frozen=True)
class SkellamMechanism:
    """Skellam noise for the sum of bounded answers, as shares and as the event they make.

    *Guarantee.* The sum of at least ``guaranteed`` honest shares is Skellam of variance at least
    ``required_variance`` a coordinate; further shares are independent, thus post-processing. Each
    answer is checked against ``bound`` in the same call that adds its share, so two neighbouring
    sums differ by at most the bound's worst pair, and the release costs what ``event`` says.
    """

    bound: Bound
    participation: Participation
    variance: float
    """Of the noise of a whole sum, in squared units of the bound."""

    def __post_init__(self) -> None:
        if not 0 < self.variance < math.inf:
            raise ValueError(
                f"the required variance is {self.variance!r}; allowed is a finite number above 0"
            )
        check_variance(self.share_variance)
        if self.sampling_error > Fraction(SAMPLING_ERROR):
            raise ValueError(
                f"{self.participation.clients} clients with {self.bound.length} integers each draw "
                f"noise {float(self.sampling_error):.1e} away from Skellam in total variation; "
                f"allowed is {SAMPLING_ERROR:.1e} a release: ask for fewer integers at once"
            )

    @classmethod
    def calibrated(
        cls, bound: Bound, participation: Participation, budget: Budget, rounds: int = 1
    ) -> SkellamMechanism:
        """The least noise with which ``rounds`` releases fit the budget."""
        required = calibrate(lambda variance: Repeated(bound.release(variance), rounds), budget)
        return cls(bound, participation, required)

    @property
    def required_variance(self) -> float:
        """Of the noise of a whole sum, in squared steps."""
        return self.variance * self.bound.unit**2

    @cached_property
    def share_variance(self) -> float:
        """Variance of one client's share, rounded up to a multiple of 2^-32."""
        exact = Fraction(self.required_variance) / self.participation.guaranteed
        return math.ceil(exact * _SHARE_STEPS) / _SHARE_STEPS

    @property
    def share_noise(self) -> float:
        """One client's share over the squared distance of the worst pair of answers.

        How much noise that is, whatever is asked: the scale of the answers does not matter.
        """
        distance = self.bound.release(self.variance).squared_distance * self.required_variance
        return self.share_variance / distance

    @property
    def delivered_variance(self) -> float:
        """Variance of the sum when every client is present."""
        return self.share_variance * self.participation.clients

    @property
    def sampling_error(self) -> Fraction:
        """Total-variation distance of one release's noise from true Skellam."""
        draws = self.participation.clients * self.bound.length
        return draws * sampling_table(self.share_variance).error

    @property
    def event(self) -> Event:
        """What one release costs, counting the guaranteed noise only."""
        return self.bound.release(self.variance)

    def draw(self) -> NoiseShare:
        """One client's share of noise, for an answer that need not be known yet."""
        return NoiseShare(self.bound, self._noise(1)[0])

    def _noise(self, times: int) -> IntArray:
        """So many independent shares: the only place where noise is drawn, for audits too."""
        drawn = sampling_table(self.share_variance).draw(times * self.bound.length)
        return drawn.reshape(times, self.bound.length)

    def perturb(self, answer: IntArray) -> IntArray:
        """One client's answer with its share of noise, or a refusal that tells nothing of it."""
        return self.draw().added_to(answer)

    def repeated(self, answer: IntArray, times: int) -> IntArray:
        """One answer under so many independent shares of noise: for audits, which run many times.

        A client sends one row of a question's answer at most. Every further row would tell more
        than the event says.
        """
        check(answer, self.bound)
        return answer + self._noise(times)


@dataclass(frozen=True)
class NoNoise:
    """Bounded answers without noise: a sum that opens exactly, at an infinite epsilon."""

    bound: Bound
    participation: Participation
    share_variance = delivered_variance = share_noise = 0.0

    @property
    def event(self) -> Event:
        return Unprotected(EXACT_SUM)

    def draw(self) -> NoiseShare:
        return NoiseShare(self.bound, np.zeros(self.bound.length, np.int64))

    def perturb(self, answer: IntArray) -> IntArray:
        return self.draw().added_to(answer)


Mechanism = SkellamMechanism | NoNoise


def least_noise(participation: Participation, budget: Budget) -> float:
    """One client's share of noise if a single vote spends the whole budget, over the distance.

    Ballots with more votes, answers on a finer scale and several questions under one budget need
    as much or more for each answer (integer noise protects a single step best). With four digits,
    rounded down: other versions of NumPy or SciPy may differ in the last ones, and a server that
    calibrates with those is not to be refused.

    >>> [least_noise(Participation(50), Budget(epsilon, 1e-5)) for epsilon in (1.0, math.inf)]
    [0.2987, 0.0]
    """
    if math.isinf(budget.epsilon):
        return 0.0
    needed = SkellamMechanism.calibrated(TopVotes(2, 1), participation, budget).share_noise
    return float(Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(needed))


def mechanism_of(bound: Bound, participation: Participation, variance: float) -> Mechanism:
    """Noise of this variance, in squared units; none at 0."""
    if variance == 0:
        return NoNoise(bound, participation)
    return SkellamMechanism(bound, participation, variance)


def check(answer: IntArray, bound: Bound) -> None:
    """Refuse an answer outside its bound, and tell nothing else of it."""
    if not bound.admits(answer):
        raise OutOfBounds(
            f"the answer lies outside {bound!r}; noise for that bound would not protect it, so "
            "nothing was sent: clip the answer or abstain"
        )
