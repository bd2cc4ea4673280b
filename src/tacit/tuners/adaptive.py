"""Learning rates that clients adapt by themselves while a model trains.

Koskela and Honkela, "Learning Rate Adaptation for Federated and Differentially Private Learning"
(2018), supplement, Algorithm 1, as client update in federated averaging: one full step against two
half steps, their difference scaled by max(1, |theta|); a step whose error exceeds the tolerance is
discarded, and the rate changes by tolerance over error (as printed) or its square root (the
authors' code), kept within bounds. See :class:`tacit.rules.Adaptive`.

How we differ: clients keep nothing between rounds, so the rate that each ended with is averaged,
as a logarithm, like one more weight, and is where all begin in the next round. Modes: ``clear`` as
in the supplement; ``dp``, where updates (and the rate with them) enter noisy secure sums at
the level of clients; ``record``, where both gradients of a step are those of DP-SGD, and both are
paid for: the epsilon is about single records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.events import Event, SampledGaussian, Unprotected
from tacit.privacy.mechanisms import Participation
from tacit.query import LocalTraining
from tacit.rules import Adaptive, RecordSteps
from tacit.sgd import Weights
from tacit.space import Config, Space
from tacit.training import PrivateAveraging
from tacit.tuners.modes import CLEAR, PRIVATE, RECORD, check_training_mode, unit_in
from tacit.tuners.tuner import Outcome

MODES = (PRIVATE, RECORD, CLEAR)
RATE = "learning_rate"
_LARGEST_LOG_RATE = 88.0
"""About the largest number of single precision."""


@dataclass(frozen=True)
class AdaptiveRate:
    """One model, trained with rates that adapt.

    >>> from tacit.space import Float
    >>> def start(models):  # one small matrix a model
    ...     return (np.zeros((models, 2, 3), np.float32),)
    >>> method = AdaptiveRate(start, rounds=3)
    >>> method.event(Space({"learning_rate": Float(1e-3, 1.0, log=True)}), variance=50.0).times
    3

    Args:
        start: common initial weights for so many models.
        rounds: how often everybody trains.
        epochs: how long, each time.
        rule: tolerance, bounds and which of the two factors.
        first_rate: where rates begin; None: in the middle of the space's.
        clip: the norm of a client's update, where it is private.
        mode: ``dp``, ``record`` or ``clear``.
        records: how clients protect single records in a round, where they do.
    """

    start: Callable[[int], Weights] = field(repr=False)
    rounds: int = 20
    epochs: int = 1
    rule: Adaptive = field(default_factory=Adaptive)
    first_rate: float | None = None
    clip: float = 1.0
    mode: str = "dp"
    records: RecordSteps = field(default_factory=RecordSteps)
    name = "adaptive"

    def __post_init__(self) -> None:
        check_training_mode(self.mode, MODES)

    @property
    def unit(self) -> str:
        """Whom the guarantee is about, by the mode."""
        return unit_in(self.mode)

    def event(self, space: Space, variance: float) -> Event:
        if self.mode == CLEAR:
            return Unprotected(LocalTraining.__name__)
        if self.mode == RECORD:
            steps = self.records.steps * self.rounds
            return SampledGaussian(self.records.rate, math.sqrt(variance), steps)
        start = self._start(space)
        return self._averaging.event(start, self._averaging.unit(start), variance)

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in clipping norms; 0 if there is none."""
        if self.mode != PRIVATE:
            return 0.0
        start = self._start(space)
        return self._averaging.noise(start, self._averaging.unit(start), variance, participation)

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        del rng
        weights, first = self._start(space), self._config(space)
        questions.check(self.event(space, questions.variance))
        with questions.while_affordable():
            for number in range(1, self.rounds + 1):
                weights = _bounded(self._moved(questions, first, weights, number))
                questions.tell("training", {**first, RATE: _rate(weights)})
        ended = {**first, RATE: self._within(space, _rate(weights))}
        return Outcome(ended, (first,), weights=weights[:-1])

    @property
    def _averaging(self) -> PrivateAveraging:
        return PrivateAveraging(self.rounds, self.epochs, self.clip, rule=self.rule)

    def _moved(
        self, questions: ChargedQuestions, config: Config, weights: Weights, number: int
    ) -> Weights:
        if self.mode == PRIVATE:
            unit = self._averaging.unit(weights)
            return self._averaging.moved(questions, config, weights, number, unit)
        sent = tuple(map(Array.of, weights))
        rule = self.rule
        if self.mode == RECORD:
            noise = math.sqrt(questions.variance)
            rule = structs.replace(rule, private=self.records.with_noise(noise))
        query = LocalTraining((config,), sent, self.epochs, number, rule)
        return questions.average(query, f"training {number}")

    def _start(self, space: Space) -> Weights:
        rate = float(self._config(space)[RATE])
        return (*self.start(1), np.full((1, 1), math.log(rate), np.float32))

    def _config(self, space: Space) -> Config:
        """The middle of the space, with the first rate."""
        middle = space.decode(np.full(len(space.dimensions), 0.5))
        if RATE not in middle and self.first_rate is None:
            raise ValueError(f"the space has no {RATE!r}; give it one, or a first_rate")
        return middle if self.first_rate is None else {**middle, RATE: self.first_rate}

    @staticmethod
    def _within(space: Space, rate: float) -> float:
        axis = space.dimensions.get(RATE)
        low, high = getattr(axis, "low", rate), getattr(axis, "high", rate)
        return float(min(max(rate, low), high))


def _rate(weights: Weights) -> float:
    return math.exp(float(weights[-1].item()))


def _bounded(weights: Weights) -> Weights:
    """Weights with a rate that is a number: in clear, one client's lie can move the mean far."""
    log_rate = np.clip(weights[-1], -_LARGEST_LOG_RATE, _LARGEST_LOG_RATE)
    return (*weights[:-1], log_rate)
