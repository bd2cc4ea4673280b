"""How often to run before the best is released: a random number, and what that costs.

Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy" (2022): if the number
of runs is drawn from a truncated negative binomial or a Poisson distribution, and nothing but the
best run is released, the whole costs little more than a single run, however many there were. Liu
and Talwar, "Private Selection from Private Candidates" (2019), stop after each run with the same
chance, which is the geometric case; their own bound is :func:`liu_talwar`.

The number drawn is a secret: who learns it, from a log or by the clock, learns more than was paid
for.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tacit.privacy.accounting import RDP_ORDERS, Budget, calibrate, ideal_epsilon, spent
from tacit.privacy.events import Event, SampledGaussian, Selected
from tacit.privacy.random_stopping import stopping_gamma

SHAPES = {"logarithmic": 0.0, "square-root": 0.5, "geometric": 1.0, "poisson": math.inf}
"""Names of shapes; Liu and Talwar's random stopping is the geometric one."""
_MOST_RUNS = 10_000_000


@dataclass(frozen=True)
class Runs:
    """The distribution of the number of runs.

    >>> Runs(mean=10.0, shape=1.0).gamma
    0.1
    >>> round(sum(Runs(3.0, 0.5).chance(k) for k in range(1, 400)), 9)
    1.0
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not (1 < self.mean <= 1e5) or math.isnan(self.shape) or self.shape < 0:
            raise ValueError(
                f"mean is {self.mean!r} and shape {self.shape!r}; allowed is a mean above 1, up to "
                "100000, and a shape of 0 (logarithmic) and above, inf for Poisson"
            )

    @cached_property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial that has this mean."""
        return stopping_gamma(self.mean, self.shape)

    def chance(self, runs: int) -> float:
        """The probability of this number."""
        for number, chance in self._chances():
            if number == runs:
                return round(chance, 15)
        return 0.0

    def draw(self) -> int:
        """A number from the operating system's randomness; of a Poisson one it may be 0.

        Sums of rounded probabilities err by less than 2^-40, which every selection is charged with.
        """
        point, total = secrets.randbits(64) / 2.0**64, 0.0
        number = 0
        for number, chance in self._chances():
            total += chance
            if total > point or (number > self.mean and chance < 1e-30):
                break
        return number

    def quantile(self, probability: float) -> int:
        """The least number that is exceeded with at most the remaining probability."""
        total = 0.0
        for number, chance in self._chances():
            total += chance
            if total >= probability:
                return number
        return _MOST_RUNS

    def _chances(self) -> Iterator[tuple[int, float]]:
        if math.isinf(self.shape):
            chance = math.exp(-self.mean)
            for number in range(_MOST_RUNS):
                yield number, chance
                chance *= self.mean / (number + 1)
            return
        gamma, shape = self.gamma, self.shape
        chance = (1 - gamma) / -math.log(gamma)
        if shape:
            chance = shape * (1 - gamma) / math.expm1(-shape * math.log(gamma))
        for number in range(1, _MOST_RUNS):
            yield number, chance
            chance *= (1 - gamma) * (number + shape) / (number + 1)


@dataclass(frozen=True)
class SelectionPlan:
    """What a selection will cost, before anything is run."""

    runs: Runs
    noise: float
    """Of every run, in clipping norms."""
    score_noise: float
    """Standard deviation of what is added to a run's count of right answers."""
    epsilon: float
    single: float
    """What one run costs alone."""
    watched: float
    """What as many runs as are expected cost whoever watches them."""
    liu_talwar: float
    """Liu and Talwar's own bound, for runs that stop with the same chance after each."""
    undecided_noise: float
    """What the noise could be, were there one run only."""


def selection_plan(runs: Runs, rate: float, steps: int, budget: Budget) -> SelectionPlan:
    """The least noise with which the best of some runs of DP-SGD costs no more than the budget."""
    noise = math.sqrt(calibrate(lambda v: selected(runs, rate, steps, math.sqrt(v)), budget))
    event = selected(runs, rate, steps, noise)
    single = SampledGaussian(rate, noise, steps)
    alone = calibrate(lambda v: SampledGaussian(rate, math.sqrt(v), steps), budget)
    delta = budget.delta
    return SelectionPlan(
        runs,
        noise,
        event.score_noise,
        spent(event, delta).epsilon,
        spent(single, delta).epsilon,
        spent(SampledGaussian(rate, noise, steps * math.ceil(runs.mean)), delta).epsilon,
        liu_talwar(single, 1 / runs.mean, delta),
        math.sqrt(alone),
    )


def selected(runs: Runs, rate: float, steps: int, noise: float) -> Selected:
    """The best of some runs, as an event."""
    score = score_noise(rate, steps, noise)
    return Selected(rate, noise, steps, score, runs.mean, runs.shape)


def score_noise(rate: float, steps: int, noise: float) -> float:
    """The least noise of a score that costs a validation record no more than a training record.

    A score moves by one when a record is replaced, so its divergence is ``order / (2 noise^2)``.

    >>> round(score_noise(rate=0.01, steps=1000, noise=2.0), 3)
    3.151
    """
    curve = SampledGaussian(rate, noise, steps).rdp(RDP_ORDERS)
    return math.sqrt(max(order / (2 * cost) for order, cost in zip(RDP_ORDERS, curve, strict=True)))


def liu_talwar(single: Event, gamma: float, delta: float) -> float:
    """Theorem 3.4 of Liu and Talwar for runs that are (epsilon, delta)-private, not purely so.

    The total is ``3 e + 3 sqrt(2 d)`` at ``3 sqrt(2 d) T + d'``, where ``T = log(1 / d') / gamma``
    runs are held at most; we halve delta between its two parts.
    """
    most = math.log(2 / delta) / gamma
    root = delta / 2 / (3 * most)
    return 3 * ideal_epsilon(single, root**2 / 2) + 3 * root
