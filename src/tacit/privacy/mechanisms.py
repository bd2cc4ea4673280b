"""Noise born on the clients: one share each, together enough whoever drops out.

DP-HYPE (Algorithm 1, line 9) lets each of n clients add noise of variance ``sigma^2 / n``, and its
Appendix A divides by ``(1 - xi) n`` instead to survive drop-outs. We differ in three ways: the
noise is integer (Skellam), the variance is the least the exact worst pair needs, and colluding
clients, who can tell the server their own noise, count as dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from functools import cached_property

from tacit.privacy.accounting import SAMPLING_ERROR, Budget, calibrate
from tacit.privacy.bounds import Bound, TopVotes
from tacit.privacy.events import EXACT_SUM, Event, Repeated, Unprotected
from tacit.privacy.skellam import IntArray, check_variance, sampling_table

_SHARE_STEPS = 1 << 32
_MOST_CLIENTS = 10_000_000


class OutOfBounds(ValueError):
    """An answer outside its bound was about to receive noise sized for the bound."""


@dataclass(frozen=True)
class Participation:
    """How many clients take part and how many of them may fail or betray.

    ``dropout`` and ``colluding`` are fractions. ``guaranteed`` is the number of honest clients
    whose noise is certain to be in the sum: at most ``floor(dropout n)`` are missing and at most
    ``floor(colluding n)`` have told their noise, so ``ceil((1 - dropout - colluding) n)`` remain;
    and never more than ``n - 1``, since whoever looks at the result may be one of them.
    (With ``colluding = 0`` and the full ``dropout`` happening, the guarantee is against the server
    and outsiders; ``colluding >= 1/n`` covers a curious participant in that case too.)

    >>> Participation(clients=50, dropout=0.1).guaranteed
    45
    >>> Participation(clients=10, dropout=0.1, colluding=0.2).guaranteed
    7
    >>> Participation(clients=10, dropout=0.0).guaranteed
    9
    """

    clients: int
    dropout: float = 0.1
    colluding: float = 0.0

    def __post_init__(self) -> None:
        if not 2 <= self.clients <= _MOST_CLIENTS:
            raise ValueError(f"clients is {self.clients}; allowed is 2 to {_MOST_CLIENTS}")
        for name, value in (("dropout", self.dropout), ("colluding", self.colluding)):
            if not 0 <= value < 1:
                raise ValueError(
                    f"{name} is {value!r}; allowed is a fraction from 0 up to, not including, 1"
                )
        if self._lost >= 1:
            raise ValueError(
                f"dropout {self.dropout!r} and colluding {self.colluding!r} add up to "
                f"{float(self._lost):g}; together they must stay below 1, so that some honest "
                "client's noise remains"
            )

    @property
    def _lost(self) -> Fraction:
        # As the decimals that were written: 0.1 + 0.2 is 3/10, not a little more.
        return Fraction(str(self.dropout)) + Fraction(str(self.colluding))

    @property
    def guaranteed(self) -> int:
        """Honest clients whose noise is certain to be in the sum."""
        return min(math.ceil((1 - self._lost) * self.clients), self.clients - 1)

    @property
    def threshold(self) -> int:
        """The fewest answers that may be opened.

        The noise floor ``ceil((1 - dropout) n)``, a majority ``floor(n/2) + 1``, and with a
        colluding server ``floor((1 + colluding) n / 2) + 1``: two sets of that size share an honest
        client, so no two different sums can be opened from one round.
        """
        present = math.ceil((1 - Fraction(str(self.dropout))) * self.clients)
        united = math.floor((1 + Fraction(str(self.colluding))) * self.clients / 2) + 1
        return max(present, united)


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

    def perturb(self, answer: IntArray) -> IntArray:
        """One client's answer with its share of noise, or a refusal that tells nothing of it."""
        _check(answer, self.bound)
        return answer + sampling_table(self.share_variance).draw(self.bound.length)


@dataclass(frozen=True)
class NoNoise:
    """Bounded answers without noise: a sum that opens exactly, at an infinite epsilon."""

    bound: Bound
    participation: Participation
    share_variance = delivered_variance = share_noise = 0.0

    @property
    def event(self) -> Event:
        return Unprotected(EXACT_SUM)

    def perturb(self, answer: IntArray) -> IntArray:
        _check(answer, self.bound)
        return answer


Mechanism = SkellamMechanism | NoNoise


def least_noise(participation: Participation, budget: Budget) -> float:
    """One client's share of noise if a single vote spends the whole budget, over the distance.

    Ballots with more votes, answers on a finer scale and several questions under one budget need
    as much or more for each answer (integer noise protects a single step best). With four digits,
    rounded down: other versions of NumPy or SciPy may differ in the last ones, and a server that
    calibrates with those is not to be refused.

    >>> [least_noise(Participation(50), Budget(epsilon, 1e-5)) for epsilon in (1.0, math.inf)]
    [0.292, 0.0]
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


def _check(answer: IntArray, bound: Bound) -> None:
    if not bound.admits(answer):
        raise OutOfBounds(
            f"the answer lies outside {bound!r}; noise for that bound would not protect it, so "
            "nothing was sent: clip the answer or abstain"
        )
