"""FedEx: every client trains by a configuration it drew, and good ones become more likely.

Khodak et al., "Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to
Weight-Sharing" (2021), Algorithm 2. Weights are shared: the server averages what clients made of
the common model, each under its own draw from theta, and theta follows by exponentiated gradient,
with the validation loss of each client's own model, less a baseline (the discounted mean of past
losses), over the chance of its draw. The step is ``sqrt(2 ln k)`` over the root of the sum of
squared largest gradients so far (the paper's adaptive choice).

How we differ: clients count the same, whatever the size of their validation data.

*What is private*, by mode (:mod:`tacit.tuners.modes`). ``dp``: a client's update and its clipped
loss, at the place of its draw, enter one noisy sum (:class:`~tacit.rewards.SampledUpdate`), so
nobody learns who drew what. ``record``: a round has two questions. Losses first: each client draws,
trains and forgets, and its clipped loss enters a noisy sum, whose noise covers all that a client
holds, its validation records too. Then weights, trained by DP-SGD under another draw, come in
clear; they cost a training record its steps, and the draw, which depends on no data, nothing. A
record takes part in both questions of every round at most, and those are what
:meth:`FedEx.event` composes. ``rewards-only`` is the same with plain training, so only the losses
have an epsilon. That is twice the training of the paper's single pass, which would have to tell
the loss of the very weights that are sent in clear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tacit.arrays import Array, Arrays
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import Composed, Event, Repeated, SampledGaussian, Unprotected
from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import FloatArray
from tacit.query import LocalTraining
from tacit.rewards import LocalSampled, SampledLoss, SampledUpdate
from tacit.rules import DpSgd, RecordSteps
from tacit.sgd import Weights
from tacit.space import Config, Space
from tacit.tuners.modes import (
    CLEAR,
    PRIVATE,
    RECORD,
    REWARDS_ONLY,
    REWARDS_ONLY_NOTE,
    check_training_mode,
    unit_in,
)
from tacit.tuners.tuner import Outcome
from tacit.updates import enough_steps, flat, shaped


class Exponentiated:
    """Chances of configurations, moved by exponentiated gradient.

    >>> known = Exponentiated(2, discount=0.9)
    >>> known.update(np.array([0.0, 1.0]))
    >>> bool(known.chances[0] > known.chances[1])
    True
    """

    def __init__(self, arms: int, discount: float) -> None:
        self.chances: FloatArray = np.full(arms, 1 / arms)
        self.discount = discount
        self.baseline = 0.0
        self._weight = 0.0
        self._squares = 0.0

    @property
    def best(self) -> int:
        """The likeliest configuration; among equals the first."""
        return int(np.argmax(np.round(self.chances, 12)))

    def update(self, losses: FloatArray) -> None:
        """One step against each configuration's part of the mean loss beyond the baseline."""
        gradient = losses / self.chances
        largest = float(np.abs(gradient).max())
        if not largest:
            return
        self._squares += largest**2
        step = math.sqrt(2 * math.log(len(gradient)) / self._squares)
        logits = np.log(self.chances) - step * gradient
        odds = np.maximum(np.exp(logits - logits.max()), 1e-9)
        self.chances = odds / odds.sum()

    def remember(self, loss: float) -> None:
        """The baseline follows the mean loss of a round."""
        self._weight = self.discount * self._weight + 1
        self.baseline += (loss - self.baseline) / self._weight


@dataclass(frozen=True)
class FedEx:
    """Weight sharing over sampled configurations.

    >>> from tacit.space import Float
    >>> def start(models):  # one small matrix a model
    ...     return (np.zeros((models, 2, 3), np.float32),)
    >>> method = FedEx(start, rounds=3, candidates=4)
    >>> method.event(Space({"learning_rate": Float(1e-3, 1.0, log=True)}), variance=50.0).times
    3

    Args:
        start: common initial weights for so many models, of the network that ``fixed`` names.
        rounds: how often everybody trains.
        epochs: how long, each time.
        candidates: how many configurations there are to draw from.
        sampling: how those are drawn.
        discount: of past losses in the baseline.
        clip: the norm of a client's update.
        loss_clip: losses further from the baseline count as this far.
        mode: of :data:`~tacit.tuners.modes.WHILE_TRAINING`.
        fixed: what every configuration holds beside the drawn, such as a network found before.
        records: how clients protect single records in a round, where they do.
        reward_share: of the budget, for losses, in the mode ``record``.
        reward_epsilon: of the losses, in the mode ``rewards-only``.
    """

    start: Callable[[int], Weights] = field(repr=False)
    rounds: int = 30
    epochs: int = 1
    candidates: int = 27
    sampling: str = "random"
    discount: float = 0.9
    clip: float = 1.0
    loss_clip: float = 1.0
    mode: str = "dp"
    fixed: Config = field(default_factory=dict)
    records: RecordSteps = field(default_factory=RecordSteps)
    reward_share: float = 0.2
    reward_epsilon: float = 1.0
    name = "fedex"

    def __post_init__(self) -> None:
        check_training_mode(self.mode)

    @property
    def unit(self) -> str:
        """Whom the guarantee is about, by the mode."""
        return unit_in(self.mode)

    def event(self, space: Space, variance: float) -> Event:
        if self.mode == RECORD:
            private = self._record_rule(variance)
            steps = SampledGaussian(private.rate, private.noise, private.steps * self.rounds)
            return Composed((self._loss_event(variance), steps))
        if self.mode != PRIVATE:
            return Unprotected(LocalSampled.__name__)
        count = space.count(self.candidates, self.sampling)
        turn = _Turn(({},) * count, (1 / count,) * count, self.start(1), 0, 0.0)
        return Repeated(self._query(turn).bound.release(variance), self.rounds)

    def own_noise(self, budget: Budget) -> float:
        """In the mode ``rewards-only``, the noise with which the losses keep their epsilon."""
        if self.mode != REWARDS_ONLY:
            return 0.0
        return calibrate(self._loss_event, Budget(self.reward_epsilon, budget.delta))

    def _loss_event(self, variance: float) -> Event:
        """All losses that are released where weights come in clear, whatever their number."""
        query = SampledLoss(({},), (1.0,), (), 0, 0, self.loss_clip, 0.0)
        return Repeated(query.bound.release(variance), self.rounds)

    def _record_rule(self, variance: float) -> DpSgd:
        return self.records.beside(self.rounds, self.rounds, self.reward_share, variance)

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in clipping norms; 0 if there is none."""
        if self.mode != PRIVATE:
            return 0.0
        del space
        delivered = variance * participation.clients / participation.guaranteed
        return math.sqrt(delivered) / participation.clients

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        arms = space.candidates(self.candidates, self.sampling, rng)
        configs = tuple({**arm, **self.fixed} for arm in arms)
        known, weights = Exponentiated(len(arms), self.discount), self.start(1)
        questions.check(self.event(space, questions.variance))
        ways = {PRIVATE: self._private, CLEAR: self._clear}
        asked = ways.get(self.mode, self._apart)
        with questions.while_affordable():
            for number in range(1, self.rounds + 1):
                chances = tuple(map(float, known.chances))
                turn = _Turn(configs, chances, weights, number, known.baseline)
                weights, beyond = asked(questions, turn)
                mean = known.baseline + float(beyond.sum())
                if number > 1:  # the first round has no baseline to compare with
                    known.update(beyond)
                known.remember(mean)
                questions.tell("training", arms[known.best], -mean)
        note = REWARDS_ONLY_NOTE if self.mode == REWARDS_ONLY else ""
        return Outcome(arms[known.best], arms, note=note, weights=weights)

    def _private(self, questions: ChargedQuestions, turn: _Turn) -> tuple[Weights, FloatArray]:
        query = self._query(turn)
        opened = questions.sum(query, f"training round {turn.number}")
        update, beyond = query.means(opened.value, opened.answered)
        return shaped(flat(turn.weights) + update, turn.weights), beyond

    def _clear(self, questions: ChargedQuestions, turn: _Turn) -> tuple[Weights, FloatArray]:
        query = LocalSampled(turn.configs, turn.chances, turn.sent, self.epochs, turn.number)
        losses, counts, *moved = questions.average(query, f"training {turn.number}")
        beyond = losses.astype(np.float64) - turn.baseline * counts.astype(np.float64)
        return tuple(moved), beyond

    def _apart(self, questions: ChargedQuestions, turn: _Turn) -> tuple[Weights, FloatArray]:
        """Losses in a noisy sum, and weights in clear, private for single records or not at all."""
        rule = self._record_rule(questions.variance) if self.mode == RECORD else None
        common = turn.configs, turn.chances, turn.sent, self.epochs, turn.number
        asked = SampledLoss(*common, self.loss_clip, turn.baseline, rule)
        opened = questions.sum(asked, f"losses {turn.number}")
        training = LocalTraining(
            turn.configs, turn.sent, self.epochs, turn.number, rule, turn.chances
        )
        moved = questions.average(training, f"training {turn.number}")
        return moved, asked.means(opened.value, opened.answered)

    def _query(self, turn: _Turn) -> SampledUpdate:
        size = sum(array.size for array in turn.weights) + len(turn.configs)
        steps = enough_steps(size)
        return SampledUpdate(
            turn.configs,
            turn.chances,
            turn.sent,
            self.epochs,
            turn.number,
            self.clip,
            self.loss_clip,
            turn.baseline,
            steps,
            steps,
        )


@dataclass(frozen=True)
class _Turn:
    """What everybody is told in a round."""

    configs: tuple[Config, ...]
    chances: tuple[float, ...]
    weights: Weights
    number: int
    baseline: float

    @property
    def sent(self) -> Arrays:
        return tuple(map(Array.of, self.weights))
