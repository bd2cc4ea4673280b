"""What every tuner is: settings that say what they will spend, and then choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tacit.federation import Federation
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import Event, Unprotected, releases
from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import IntArray
from tacit.sgd import Weights
from tacit.space import Config, Space


@dataclass(frozen=True, eq=False)
class Counts:
    """A released tally: what is counted, how often, and the variance of the noise in each count."""

    candidates: tuple[Config, ...]
    votes: IntArray
    variance: float


@dataclass(frozen=True)
class Outcome:
    """What a tuner chose, from which candidates, and the sums it saw (if it saw any)."""

    config: Config
    candidates: tuple[Config, ...]
    tally: Counts | None = None
    run_off: Counts | None = None
    """Of a second vote among few, if one was held."""
    note: str = ""
    """What whoever reads the choice should know about how it came about."""
    weights: Weights | None = None
    """The model, if the method trained one."""
    architecture: str = ""
    """The network that the method found, if it looked for one."""


class Tuner(Protocol):
    """A method of choosing a configuration."""

    @property
    def name(self) -> str:
        """How plans and reports call it."""

    def event(self, space: Space, variance: float) -> Event:
        """All that :meth:`tune` will spend when every release has noise of this variance."""

    def tune(self, federation: Federation, space: Space, rng: np.random.Generator) -> Outcome:
        """Choose. ``rng`` draws candidates; it never touches noise."""


@runtime_checkable
class TrainsPrivately(Protocol):
    """A tuner that may train by noisy sums of updates."""

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in clipping norms; 0 if there is none."""


@runtime_checkable
class ProtectsPart(Protocol):
    """A tuner that may protect a part of what it asks although the whole costs infinity."""

    def own_noise(self, budget: Budget) -> float:
        """The variance that this part asks for; 0 if there is none."""


def noise_for(method: Tuner, space: Space, budget: Budget) -> float:
    """The least variance with which the method fits the budget; 0 if it adds no noise.

    An infinite budget asks for none; only encrypted sums, and answers in clear, go without.

    >>> from tacit.space import Float
    >>> from tacit.tuners.voting import Vote
    >>> round(noise_for(Vote(), Space({"x": Float(0.0, 1.0)}), Budget(1.0, 1e-5)), 1)
    138.9
    """
    asked = releases(method.event(space, 1.0))
    if asked and math.isinf(budget.epsilon) and isinstance(method, ProtectsPart):
        return method.own_noise(budget)
    if not asked or math.isinf(budget.epsilon):
        return 0.0
    if any(isinstance(release, Unprotected) for release in asked):
        raise ValueError(
            f"the method {method.name!r} sends answers in clear, so its epsilon is infinite, and "
            f"the budget's is {budget.epsilon:g}; allowed is an infinite budget (privacy.epsilon = "
            "inf), if the clients agree to that"
        )
    return calibrate(lambda variance: method.event(space, variance), budget)
