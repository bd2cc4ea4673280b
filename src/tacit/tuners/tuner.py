"""What every tuner is: settings that say what they will spend, and then choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tacit.abstentions import Abstentions, prevailing
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import (
    ABOUT_RECORDS,
    CLIENT,
    RECORD,
    UNITS,
    Event,
    Unprotected,
    releases,
)
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
    abstentions: tuple[Abstentions, ...] = ()
    """How many abstained from each vote, where that was counted."""

    @property
    def warning(self) -> str:
        """Why the choice means nothing, if so: nothing may be trained with it then."""
        return prevailing(self.abstentions)


class Tuner(Protocol):
    """A method of choosing a configuration."""

    @property
    def name(self) -> str:
        """How plans and reports call it."""

    @property
    def unit(self) -> str:
        """Whom its guarantee is about: ``"client"`` or ``"record"`` (see :func:`unit_of`)."""

    def event(self, space: Space, variance: float) -> Event:
        """All that :meth:`tune` will spend when every release has noise of this variance."""

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        """Choose, by asking what is charged. ``rng`` draws candidates; it never touches noise."""


@runtime_checkable
class NeedsSums(Protocol):
    """A tuner that works with some secure sums only."""

    def check_sums(self, secure: str) -> None:
        """Refuse the secure sum of this name with a ValueError, if it is none of those."""


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


def unit_of(method: Tuner, space: Space) -> str:
    """Whom the method's guarantee is about, as it declares, and as its releases can be.

    A client's epsilon and a record's say different things, so nothing is read from what a method
    happens to be called: the declaration decides which answers may leave clients at which price.
    """
    unit = getattr(method, "unit", None)
    allowed = " or ".join(map(repr, UNITS))
    if unit is None:
        raise ValueError(
            f"the method {method.name!r} declares no unit; allowed is {allowed}: whom its epsilon "
            "is about"
        )
    if unit not in UNITS:
        raise ValueError(f"the method {method.name!r} has the unit {unit!r}; allowed is {allowed}")
    for release in releases(method.event(space, 1.0)):
        if unit == CLIENT and isinstance(release, ABOUT_RECORDS):
            raise ValueError(
                f"the method {method.name!r} has the unit {CLIENT!r} and would release a "
                f"{type(release).__name__}, which protects single records; allowed with it is the "
                f"unit {RECORD!r}"
            )
    return str(unit)


def noise_for(method: Tuner, space: Space, budget: Budget) -> float:
    """The least variance with which the method fits the budget; 0 if none of its sums needs noise.

    That is also so if all its noise is the method's own (steps of DP-SGD, say): what it releases is
    the same under any variance. An infinite budget asks for none; only encrypted sums, and answers
    in clear, go without.

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
    if asked == releases(method.event(space, 2.0)):
        return 0.0
    return calibrate(lambda variance: method.event(space, variance), budget)
