"""Federated averaging, in clear, of one model or of many candidates at once.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017),
with equal weights: weighting by the number of examples would send that number in clear. All models
train in the same rounds, stacked along a candidate axis, each under its own configuration. Nothing
here is private; the epsilon of a choice does not cover the training that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tacit.privacy.skellam import FloatArray
from tacit.query import Array, Arrays, InClear, LocalTraining
from tacit.sgd import Weights
from tacit.space import Config

Collect = Callable[[InClear], Iterable[Arrays]]
"""Ask everybody one question in clear."""


def federated_average(
    collect: Collect,
    configs: Sequence[Config],
    start: Weights,
    rounds: int,
    epochs: int,
) -> Weights:
    """Each round everybody trains from the common weights, and the average becomes the next.

    A candidate that diverged on one client has diverged: its average is not finite.
    """
    weights = start
    for number in range(rounds):
        sent = tuple(map(Array.of, weights))
        answers = collect(LocalTraining(tuple(configs), sent, epochs, number))
        weights = _mean(answers)
    return weights


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
