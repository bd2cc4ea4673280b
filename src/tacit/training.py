"""Federated averaging: in clear, of one model or of many candidates at once; or privately, of one.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017),
with equal weights: weighting by the number of examples would send that number in clear. All models
train in the same rounds, stacked along a candidate axis, each under its own configuration. The
server takes the average as it is or, with a ``server_learning_rate`` and ``server_momentum``, moves
towards it as by gradient descent (FedAvgM: Hsu, Qi and Brown, "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification", 2019).

In clear nothing is private, and the epsilon of a choice does not cover the training that follows.
:class:`PrivateAveraging` sends clipped updates through noisy secure sums (:mod:`tacit.updates`);
every round is charged to the same ledger as the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.arrays import Array, Arrays, mean_of_models
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.events import Event, Repeated
from tacit.privacy.mechanisms import Participation
from tacit.query import InClear, LocalTraining
from tacit.rules import Rule
from tacit.sgd import SERVER_HYPERPARAMETERS, Weights
from tacit.space import Config
from tacit.updates import PrivateUpdate, enough_steps, flat, shaped

Collect = Callable[[InClear], Iterable[Arrays]]
"""Ask everybody one question in clear."""


def federated_average(
    collect: Collect,
    configs: Sequence[Config],
    start: Weights,
    rounds: int,
    epochs: int,
    trained: int | None = None,
    rule: Rule | None = None,
) -> Weights:
    """Each round everybody trains from the common weights, and the server moves to the average.

    A candidate that diverged on at least half of the clients has diverged: its average is not
    finite. Only the first ``trained`` arrays have a learning rate and momentum; running statistics
    are averages. None: all of them.
    """
    weights = start
    server = _Server(configs, start[:trained])
    for number in range(rounds):
        sent = tuple(map(Array.of, weights))
        answers = collect(LocalTraining(tuple(configs), sent, epochs, number, rule))
        average = mean_of_models(answers)
        weights = (*server.step(weights, average), *average[len(server.velocities) :])
    return weights


class _Server:
    """``v <- m v + (average - w)`` and ``w <- w + rate v``: at rate 1 and momentum 0, the average.

    Candidates at those values take the average itself, without the rounding of a detour.
    """

    def __init__(self, configs: Sequence[Config], start: Weights) -> None:
        default = SERVER_HYPERPARAMETERS
        self.rate, self.momentum = (
            np.array([float(config.get(name, default[name])) for config in configs])
            for name in default
        )
        self.plain = (self.rate == 1) & (self.momentum == 0)
        self.velocities = [np.zeros(array.shape) for array in start]

    def step(self, weights: Weights, average: Weights) -> list[npt.NDArray[np.float32]]:
        if self.plain.all():
            return list(average[: len(self.velocities)])
        moved = []
        with np.errstate(over="ignore", invalid="ignore"):  # a candidate may diverge
            for velocity, old, new in zip(self.velocities, weights, average, strict=False):
                rate, momentum, plain = (
                    knob.reshape(-1, *[1] * (old.ndim - 1))
                    for knob in (self.rate, self.momentum, self.plain)
                )
                velocity *= momentum
                velocity += new.astype(np.float64) - old
                moved.append(np.where(plain, new, (old + rate * velocity).astype(np.float32)))
        return moved


@dataclass(frozen=True)
class PrivateAveraging:
    """Federated averaging of one model under client-level differential privacy.

    *Proof.* A round releases one sum of vectors in a ball (:mod:`tacit.updates`) under Skellam
    noise: the event that :meth:`event` repeats. What a client answers depends on its data and on
    what was released before; the server's steps are post-processing; rounds and noise are fixed
    beforehand. So the rounds compose, with each other and with the choice before them. Running
    statistics are refused: they have no clipping norm of their own.

    >>> model = (np.zeros((1, 10, 64), np.float32), np.zeros((1, 10), np.float32))
    >>> averaging = PrivateAveraging(rounds=5, epochs=2, clip=0.5)
    >>> averaging.unit(model), averaging.event(model, unit=40, variance=50.0).times
    (128, 5)

    Args:
        rounds: how often everybody trains.
        epochs: how long, each time.
        clip: the L2 norm to which a client's update is clipped.
        steps: in how many steps that norm is counted; 0: as many as its length needs.
        cap: from how many examples on a client has full weight; 0: equal weights.
        rule: how clients train; default: gradient descent.
    """

    rounds: int
    epochs: int
    clip: float = 1.0
    steps: int = 0
    cap: int = 0
    rule: Rule | None = None

    def event(self, start: Weights, unit: int, variance: float) -> Event:
        """All rounds, with noise of ``variance`` squared units."""
        return Repeated(self._query({}, start, 0, unit).bound.release(variance), self.rounds)

    def unit(self, start: Weights) -> int:
        """One clipping norm."""
        return self._steps(start)

    def noise(
        self, start: Weights, unit: int, variance: float, participation: Participation
    ) -> float:
        """The noise of a mean update in every direction, in clipping norms, with all present.

        A standard deviation: that of any coordinate, and of the direction in which updates agree.
        """
        delivered = variance * participation.clients / participation.guaranteed
        return unit * math.sqrt(delivered) / (self._steps(start) * participation.clients)

    def train(
        self, questions: ChargedQuestions, config: Config, start: Weights, unit: int
    ) -> Weights:
        """The weights after all rounds; ``start`` has one model."""
        weights, server = start, _Server([config], start)
        with questions.while_affordable():
            for number in range(1, self.rounds + 1):
                moved = self.moved(questions, config, weights, number, unit)
                weights = tuple(server.step(weights, moved))
                questions.tell("training", config)
        return weights

    def moved(
        self, questions: ChargedQuestions, config: Config, weights: Weights, number: int, unit: int
    ) -> Weights:
        """The noisy average of what clients make of these weights."""
        query = self._query(config, weights, number, unit)
        opened = questions.sum(query, f"training round {number}")
        return shaped(flat(weights) + query.mean(opened.value, opened.answered), weights)

    def _query(self, config: Config, weights: Weights, number: int, unit: int) -> PrivateUpdate:
        return PrivateUpdate(
            config,
            tuple(map(Array.of, weights)),
            self.epochs,
            number,
            self.clip,
            self._steps(weights),
            unit,
            self.cap,
            self.rule,
        )

    def _steps(self, weights: Weights) -> int:
        return self.steps or enough_steps(sum(array.size for array in weights))
