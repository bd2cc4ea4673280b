"""Federated averaging, in clear, of one model or of many candidates at once.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017),
with equal weights: weighting by the number of examples would send that number in clear. All models
train in the same rounds, stacked along a candidate axis, each under its own configuration. The
server takes the average as it is or, with a ``server_learning_rate`` and ``server_momentum``, moves
towards it as by gradient descent (FedAvgM: Hsu, Qi and Brown, "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification", 2019). Nothing here is
private; the epsilon of a choice does not cover the training that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tacit.arrays import Array, Arrays
from tacit.privacy.skellam import FloatArray
from tacit.query import InClear, LocalTraining
from tacit.sgd import SERVER_HYPERPARAMETERS, Weights
from tacit.space import Config

Collect = Callable[[InClear], Iterable[Arrays]]
"""Ask everybody one question in clear."""


def federated_average(
    collect: Collect,
    configs: Sequence[Config],
    start: Weights,
    rounds: int,
    epochs: int,
    trained: int | None = None,
) -> Weights:
    """Each round everybody trains from the common weights, and the server moves to the average.

    A candidate that diverged on one client has diverged: its average is not finite. Only the first
    ``trained`` arrays have a learning rate and momentum; running statistics are averages. None:
    all of them.
    """
    weights = start
    server = _Server(configs, start[:trained])
    for number in range(rounds):
        sent = tuple(map(Array.of, weights))
        answers = collect(LocalTraining(tuple(configs), sent, epochs, number))
        average = _mean(answers)
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


def _mean(answers: Iterable[Arrays]) -> Weights:
    """The mean, one answer at a time: only the running sum and one answer are in memory."""
    sums: list[FloatArray] = []
    count = 0
    for count, arrays in enumerate(answers, start=1):
        weights = [array.numpy() for array in arrays]
        if count == 1:
            sums = [array.astype(np.float64) for array in weights]
        else:
            for total, array in zip(sums, weights, strict=True):
                total += array
    return tuple((total / count).astype(np.float32) for total in sums)
