"""FedEx: every client trains by a configuration it drew, and good ones become more likely.

Khodak et al., "Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to
Weight-Sharing" (2021), Algorithm 2. Weights are shared: the server averages what clients made of
the common model, each under its own draw from theta, and theta follows by exponentiated gradient,
with the validation loss of each client's own model, less a baseline (the discounted mean of past
losses), over the chance of its draw. The step is ``sqrt(2 ln k)`` over the root of the sum of
squared largest gradients so far (the paper's adaptive choice).

How we differ: clients count the same, whatever the size of their validation data. Where the run is
private, a client's update and its clipped loss, at the place of its draw, enter one noisy sum
(:class:`~tacit.rewards.SampledUpdate`), so nobody learns who drew what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tacit.arrays import Array
from tacit.federation import Federation
from tacit.privacy.events import Event, Repeated, Unprotected
from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import FloatArray
from tacit.rewards import LocalSampled, SampledUpdate
from tacit.sgd import Weights
from tacit.space import Config, Space
from tacit.tuners.tuner import Outcome
from tacit.updates import enough_steps, flat, shaped

MODES = ("dp", "clear")


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

    Args:
        start: common initial weights for so many models, of the network that ``fixed`` names.
        rounds: how often everybody trains.
        epochs: how long, each time.
        candidates: how many configurations there are to draw from.
        sampling: how those are drawn.
        discount: of past losses in the baseline.
        clip: the norm of a client's update.
        loss_clip: losses further from the baseline count as this far.
        mode: ``dp`` or ``clear``.
        fixed: what every configuration holds beside the drawn, such as a network found before.
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
    name = "fedex"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; allowed are {', '.join(MODES)}")

    def event(self, space: Space, variance: float) -> Event:
        if self.mode == "clear":
            return Unprotected(LocalSampled.__name__)
        arms: tuple[Config, ...] = ({},) * space.count(self.candidates, self.sampling)
        return Repeated(
            self._query(arms, np.ones(len(arms)), self.start(1), 0, 0.0).bound.release(variance),
            self.rounds,
        )

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in clipping norms; 0 if there is none."""
        if self.mode == "clear":
            return 0.0
        del space
        delivered = variance * participation.clients / participation.guaranteed
        return math.sqrt(delivered) / participation.clients

    def tune(self, federation: Federation, space: Space, rng: np.random.Generator) -> Outcome:
        arms = space.candidates(self.candidates, self.sampling, rng)
        configs = tuple({**arm, **self.fixed} for arm in arms)
        known, weights = Exponentiated(len(arms), self.discount), self.start(1)
        federation.check(self.event(space, federation.variance))
        asked = self._private if self.mode == "dp" else self._clear
        with federation.while_affordable():
            for number in range(1, self.rounds + 1):
                weights, beyond = asked(federation, configs, known, weights, number)
                mean = known.baseline + float(beyond.sum())
                if number > 1:  # the first round has no baseline to compare with
                    known.update(beyond)
                known.remember(mean)
                federation.tell("training", arms[known.best], -mean)
        return Outcome(arms[known.best], arms, weights=weights)

    def _private(
        self,
        federation: Federation,
        configs: tuple[Config, ...],
        known: Exponentiated,
        weights: Weights,
        number: int,
    ) -> tuple[Weights, FloatArray]:
        query = self._query(configs, known.chances, weights, number, known.baseline)
        opened = federation.sum(query, f"training round {number}")
        update, beyond = query.means(opened.value, opened.answered)
        return shaped(flat(weights) + update, weights), beyond

    def _clear(
        self,
        federation: Federation,
        configs: tuple[Config, ...],
        known: Exponentiated,
        weights: Weights,
        number: int,
    ) -> tuple[Weights, FloatArray]:
        sent = tuple(map(Array.of, weights))
        chances = tuple(map(float, known.chances))
        query = LocalSampled(configs, chances, sent, self.epochs, number)
        losses, counts, *moved = federation.average(query, f"training {number}")
        beyond = losses.astype(np.float64) - known.baseline * counts.astype(np.float64)
        return tuple(moved), beyond

    def _query(
        self,
        configs: tuple[Config, ...],
        chances: FloatArray,
        weights: Weights,
        number: int,
        baseline: float,
    ) -> SampledUpdate:
        size = sum(array.size for array in weights) + len(configs)
        steps = enough_steps(size)
        return SampledUpdate(
            configs,
            tuple(map(float, chances)),
            tuple(map(Array.of, weights)),
            self.epochs,
            number,
            self.clip,
            self.loss_clip,
            baseline,
            steps,
            steps,
        )
