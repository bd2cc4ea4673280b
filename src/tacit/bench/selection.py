"""Private selection: accuracy and its spread against the mean number of runs.

Koskela and Honkela (2018), supplement, Table 1: DP training with a learning rate drawn at random,
the best of a random number of runs, everything at the same epsilon and delta, and one run of the
adaptive method beside it. The more runs, the better the best of them, and the more noise each.

How we differ: digits and a subset of CIFAR-10 on small networks; the runs of a setting are trained
once, as a pool larger than any mean, and selections draw from it; scores have noise, and the
validation records pay; beside random stopping (Liu and Talwar's, by Papernot and Steinke's tighter
bound) the logarithmic and the Poisson distribution, which may draw no run, and is right by chance
then. The adaptive method's both half steps are paid for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.bench.pieces import Workplace
from tacit.data.examples import Examples, split_validation
from tacit.data.sources import load
from tacit.dp_training import Recipe, Run, Seeded, train
from tacit.journal import Number, Piece, Row
from tacit.networks import dense
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import SampledGaussian
from tacit.privacy.selection import SHAPES, Runs, selection_plan
from tacit.rules import Adaptive, DpSgd, train_by

PUBLISHED = (
    (601.04, 0.6386, 0.0011),
    (224.30, 0.6368, 0.0113),
    (131.76, 0.6317, 0.0399),
    (49.77, 0.6266, 0.0516),
    (32.25, 0.6215, 0.0552),
    (14.79, 0.6053, 0.0662),
    (6.72, 0.5576, 0.1280),
    (3.42, 0.5467, 0.1278),
    (2.04, 0.4728, 0.1688),
)
"""Mean runs, mean and deviation of accuracy; one adaptive run has .6349 and .0033."""


@dataclass(frozen=True)
class Part:
    """What is trained on one data set: so many runs at the noise of each mean number of them."""

    data: str
    means: tuple[float, ...]
    pool: int
    hidden: tuple[int, ...] = ()
    lot: int = 64
    adaptive_runs: int = 10


@dataclass(frozen=True)
class Setup:
    """What is run."""

    parts: tuple[Part, ...] = (
        Part("digits", (2.04, 3.42, 6.72, 14.79, 32.25, 49.77, 131.76), pool=512),
        Part("cifar-10", (2.04, 6.72, 32.25), 96, (32,), lot=256, adaptive_runs=5),
    )
    epsilon: float = 2.0
    delta: float = 1e-5
    selections: int = 2000
    steps: int = 200


QUICK = Setup(
    parts=(Part("digits", (2.04, 14.79), pool=24, adaptive_runs=2),), selections=200, steps=40
)
SELECTIONS = ("geometric", "logarithmic", "poisson")


class _Adaptive(Row):
    """Single runs of the adaptive method."""

    accuracy: Number
    deviation: Number
    noise: Number
    seconds: Number


class _Selected(_Adaptive):
    """Selections from a pool of runs."""

    single_epsilon: float
    watched_epsilon: float
    epsilon: float


def _kind_of_piece(piece: Piece) -> Any:
    return _Adaptive if str(piece).endswith(" adaptive") else _Selected


def run(setup: Setup, place: Workplace) -> dict[str, Any]:
    """Train what is missing; JSON."""
    data_dir = place.data_dir
    settings = [
        (part, shape, mean) for part in setup.parts for shape in SELECTIONS for mean in part.means
    ]
    work: dict[str, Callable[[], Any]] = {
        f"{part.data} {shape} {mean:g}": partial(one, setup, data_dir, part, shape, mean)
        for part, shape, mean in settings
    }
    work |= {
        f"{part.data} adaptive": partial(adaptive, setup, data_dir, part) for part in setup.parts
    }
    names = [part.data for part in setup.parts]
    pieces, about = place.carried_out("selection", setup, names, work, _kind_of_piece)
    rows = [
        {"data": part.data, "shape": shape, "mean_runs": mean}
        | pieces[f"{part.data} {shape} {mean:g}"]
        for part, shape, mean in settings
    ]
    single = [{"data": name} | pieces[f"{name} adaptive"] for name in names]
    return about | {
        "rows": rows,
        "adaptive": single,
        "published": [list(row) for row in PUBLISHED],
    }


def examples_of(data_dir: Path | None, name: str) -> tuple[Examples, Examples, Examples]:
    """Training, validation and test examples."""
    data = load(name, data_dir)
    own = data.standardise(data.train)
    return (*split_validation(own, 0.25, key=0), data.standardise(data.test))


def rates(count: int) -> list[float]:
    """Learning rates as they are drawn: over five decades."""
    return [float(10**power) for power in np.random.default_rng(1).uniform(-4, 1, count)]


def one(setup: Setup, data_dir: Path | None, part: Part, shape: str, mean: float) -> dict[str, Any]:
    """A pool of runs at the noise of this many, and selections from it."""
    begin = time.process_time()
    examples, validation, test = examples_of(data_dir, part.data)
    runs = Runs(mean, SHAPES[shape])
    rate = part.lot / len(examples)
    plan = selection_plan(runs, rate, setup.steps, Budget(setup.epsilon, setup.delta))
    recipe = Recipe(part.hidden, lot=part.lot, steps=setup.steps)
    right, accuracy = [], []
    drawn = rates(part.pool)
    for begin_at in range(0, len(drawn), 12):
        some = [Run(value, plan.noise, 1.0) for value in drawn[begin_at : begin_at + 12]]
        models = train(recipe, some, examples, 10, Seeded(begin_at))
        right += (len(validation) - models.wrong(validation)).tolist()
        accuracy += (1 - models.wrong(test) / len(test)).tolist()
    rng = np.random.default_rng(2)
    found = []
    for _ in range(setup.selections):
        members = rng.integers(len(drawn), size=runs.draw())
        if not len(members):  # nothing was trained: a guess
            found.append(0.1)
            continue
        scores = np.array(right)[members] + plan.score_noise * rng.normal(size=len(members))
        found.append(accuracy[int(members[int(np.argmax(scores))])])
    return {
        "accuracy": float(np.mean(found)),
        "deviation": float(np.std(found)),
        "noise": plan.noise,
        "single_epsilon": plan.single,
        "watched_epsilon": plan.watched,
        "epsilon": plan.epsilon,
        "seconds": time.process_time() - begin,
    }


def adaptive(setup: Setup, data_dir: Path | None, part: Part) -> dict[str, Any]:
    """Single runs of the adaptive method, from a first rate of a thousandth."""
    begin = time.process_time()
    examples, validation, test = examples_of(data_dir, part.data)
    rate = part.lot / len(examples)
    budget = Budget(setup.epsilon, setup.delta)
    noise = math.sqrt(calibrate(lambda v: SampledGaussian(rate, math.sqrt(v), setup.steps), budget))
    private = DpSgd(rate, setup.steps, 1.0, noise, part.lot)
    found = []
    for seed in range(part.adaptive_runs):
        network, start = _network(examples, part.hidden, seed)
        log_rate = np.full((1, 1), math.log(1e-3), np.float32)
        weights = train_by(
            Adaptive(private=private),
            network,
            (*start, log_rate),
            {},
            examples,
            validation,
            1,
            part.lot,
            (seed,),
        )
        found.append(_accuracy(network, weights[:-1], test))
    return {
        "accuracy": float(np.mean(found)),
        "deviation": float(np.std(found)),
        "noise": noise,
        "seconds": time.process_time() - begin,
    }


def _network(examples: Examples, hidden: tuple[int, ...], seed: int) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(seed)
    network = dense(examples.shape, 10, hidden=hidden)
    return network, tuple(p.detach().numpy()[None].copy() for p in network.parameters())


def _accuracy(network: Any, weights: Any, test: Examples) -> float:
    import torch

    with torch.no_grad():
        for parameter, array in zip(network.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(array[0]))
        guess = network(torch.from_numpy(test.features)).argmax(1).numpy()
    return float(np.mean(guess == test.labels))
