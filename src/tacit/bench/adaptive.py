"""Adaptive learning rates in federated averaging, against constant ones and Adam.

Koskela and Honkela, "Learning Rate Adaptation for Federated and Differentially Private Learning"
(2018), supplement, section 3: CIFAR-10 on five clients that hold two classes each (cars and trucks,
planes and ships, cats and dogs, birds and frogs, deer and horses), interpolated with a share of
data dealt at random; accuracy against that share, and against the first learning rate.

How we differ: a subset, a network a tenth as wide and fewer rounds, since theirs take days here
(``full`` takes theirs); 3 seeds; constant rates and Adam's are those of a grid of half decades, all
shown; beside the authors' tolerance of 1 a tighter one, since the tolerance is about the norm of
all parameters' errors, which is shorter in a smaller network. In the adaptive method clients start
a round where their mean rate ended the one before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.bench.claims import claim
from tacit.bench.pieces import Workplace
from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Dataset, Examples
from tacit.data.partitions import deal
from tacit.data.skews import ADADP_PAIRS, ClassPairs
from tacit.data.sources import load
from tacit.federation import Federation, local_federation
from tacit.journal import Number, Row, each
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.rules import Adam, Adaptive
from tacit.sgd import Weights
from tacit.space import Float, Space
from tacit.torch_task import TorchTask
from tacit.training import federated_average
from tacit.tuners.adaptive import AdaptiveRate

if TYPE_CHECKING:
    from torch import nn

METHODS = ("adaptive", "adaptive-printed", "adaptive-tight", "constant", "adam")
SEEDS = 3
SPAN, LOSS = 0.05, 0.20
"""What the adaptive curve may span, and the constant one lose, for the claim to hold."""


@dataclass(frozen=True)
class Setup:
    """What is run."""

    examples: int = 2000
    test_examples: int = 1000
    channels: int = 8
    hidden: int = 50
    rounds: int = 20
    batch: int = 10
    tight: float = 0.1
    """A tolerance beside the authors' 1: the error is a norm, and shorter for a smaller network."""
    randomness: tuple[float, ...] = (0.0, 0.33, 0.66, 1.0)
    rates: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    more_rates: tuple[float, ...] = (10**-2.5, 10**-1.5, 10**-0.5)
    """Between those: what a constant rate is tuned over beside them."""


FULL = Setup(examples=10_000, test_examples=2000, channels=64, hidden=500, rounds=200)
QUICK = Setup(
    examples=200,
    test_examples=200,
    channels=4,
    hidden=16,
    rounds=3,
    randomness=(0.0, 1.0),
    rates=(1e-3, 1e-1),
    more_rates=(),
)


class _Trained(Row):
    """One training."""

    accuracy: Number
    last_rate: float
    seconds: Number


def run(setup: Setup, seeds: int, place: Workplace) -> dict[str, Any]:
    """Train what is missing, and judge the supplement's claims; JSON."""
    settings = [
        (seed, share, method, rate)
        for seed in range(seeds)
        for share in setup.randomness
        for method in METHODS
        for rate in rates_of(setup, method, share)
    ]
    work = {
        f"{method} rate {rate:.3g} random {share:g} seed {seed}": partial(
            one, setup, place.data_dir, seed, share, method, rate
        )
        for seed, share, method, rate in settings
    }
    pieces, about = place.carried_out("adaptive", setup, ["cifar-10"], work, each(_Trained))
    rows = [
        {"seed": seed, "random": share, "method": method, "rate": rate, **pieces[piece]}
        for piece, (seed, share, method, rate) in zip(work, settings, strict=True)
    ]
    told = {"seeds": seeds, "rows": rows, "table": table(rows), "claims": claims(rows)}
    return about | told


def rates_of(setup: Setup, method: str, share: float) -> Sequence[float]:
    """First rates of a method; all of them where the second figure is drawn, at no randomness."""
    if method in ("constant", "adam"):
        tenth = 0.1 if method == "adam" else 1.0  # Adam's good rates are smaller
        return [tenth * rate for rate in sorted((*setup.rates, *setup.more_rates))]
    return setup.rates if share in (setup.randomness[0], setup.randomness[-1]) else setup.rates[1:2]


def one(
    setup: Setup, data_dir: Path | None, seed: int, share: float, method: str, rate: float
) -> dict[str, Any]:
    """One federated training, and its model's test accuracy."""
    begin = time.process_time()
    data = load("cifar-10", data_dir)
    task = TorchTask(
        partial(network, setup.channels, setup.hidden), 10, batch=setup.batch, start_seed=seed
    )
    clients = [
        task.client(part, part.take(np.arange(1)), seed=100 * seed + number)
        for number, part in enumerate(dealt(data, setup.examples, share, seed))
    ]
    budget = Budget(math.inf, 1e-5)
    federation = local_federation(
        clients,
        Participation(len(clients), 0.0),
        Ledger.in_memory("bench", budget),
        run="bench",
        variance=0.0,
        secure="plain",
        roster=False,
        trains=True,
    )
    test = data.standardise(data.test)
    some = test.take(np.random.default_rng(0).permutation(len(test))[: setup.test_examples])
    weights, last = trained(task, federation, setup.rounds, method, rate, setup.tight)
    return {
        "accuracy": float(task.accuracies(weights, some)[0]),
        "last_rate": last,
        "seconds": time.process_time() - begin,
    }


def trained(
    task: TorchTask, federation: Federation, rounds: int, method: str, rate: float, tight: float
) -> tuple[Weights, float]:
    """The model, and the learning rate in the end."""
    if method.startswith("adaptive"):
        tolerance = tight if method == "adaptive-tight" else 1.0
        rule = Adaptive(tolerance, printed=method == "adaptive-printed")
        tuner = AdaptiveRate(task.initial, rounds, 1, rule, rate, mode="clear")
        space = Space({"learning_rate": Float(1e-9, 1e9, log=True)})
        outcome = tuner.tune(ChargedQuestions(federation), space, np.random.default_rng(0))
        if outcome.weights is None:
            raise RuntimeError("the method trains, so there are weights")
        return outcome.weights, float(outcome.config["learning_rate"])
    weights = federated_average(
        lambda query: federation.collect(query, "train"),
        [{"learning_rate": rate}],
        task.initial(1),
        rounds,
        1,
        rule=Adam() if method == "adam" else None,
    )
    return weights, rate


def dealt(data: Dataset, examples: int, share: float, seed: int) -> list[Examples]:
    """Two classes a client, but for a share of all examples that is dealt at random."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(data.train))[:examples]
    some = replace(data, train=data.train.take(rows))
    return deal(some, ClassPairs(share, ADADP_PAIRS), len(ADADP_PAIRS), rng)


def network(channels: int, hidden: int) -> nn.Module:
    """The supplement's: two convolutions with pooling, three dense layers."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, channels, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36 * channels, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds: the accuracy of the best rate, and its distance to that of the worst."""
    seeds = sorted({row["seed"] for row in rows})
    found = []
    for share, method in dict.fromkeys((row["random"], row["method"]) for row in rows):
        own = [_accuracies(rows, seed, share, method) for seed in seeds]
        entry = {"random": share, "method": method, "best": float(np.mean([max(o) for o in own]))}
        found.append({**entry, "span": float(np.mean(list(map(_span, own)))), "rates": len(own[0])})
    return found


def claims(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The supplement's claims: one number a seed each."""
    shares = sorted({row["random"] for row in rows})
    ends = (shares[0], "pathological"), (shares[-1], "random")
    ours = ("adaptive", "adaptive-tight")
    return [
        *(_steady(rows, share, data, method) for share, data in ends for method in ours),
        *(_fragile(rows, share, data) for share, data in ends),
        *(_beaten(rows, shares[0], method, rival) for method in ours for rival in METHODS[-2:]),
        *(_robust(rows, shares[0], shares[-1], method) for method in ours),
    ]


def _steady(
    rows: Sequence[Mapping[str, Any]], share: float, data: str, method: str
) -> dict[str, Any]:
    return claim(
        f"{data} data: over first rates of four decades the accuracy of {method} spans less than "
        f"{SPAN:g}",
        _seeds(rows),
        lambda row: SPAN - _span(_accuracies(rows, row["seed"], share, method)),
        "accuracy to spare",
    )


def _fragile(rows: Sequence[Mapping[str, Any]], share: float, data: str) -> dict[str, Any]:
    return claim(
        f"{data} data: where a constant rate loses more than {LOSS:g}",
        _seeds(rows),
        lambda row: _span(_accuracies(rows, row["seed"], share, "constant")) - LOSS,
        "accuracy lost beyond that",
    )


def _beaten(
    rows: Sequence[Mapping[str, Any]], share: float, method: str, rival: str
) -> dict[str, Any]:
    return claim(
        f"pathological data: {method} beats the best of {rival}",
        _seeds(rows),
        lambda row: (
            max(_accuracies(rows, row["seed"], share, method))
            - max(_accuracies(rows, row["seed"], share, rival))
        ),
        "test accuracy gained",
    )


def _robust(
    rows: Sequence[Mapping[str, Any]], worst: float, even: float, method: str
) -> dict[str, Any]:
    def lost(seed: int, name: str) -> float:
        best, least = (max(_accuracies(rows, seed, share, name)) for share in (even, worst))
        return best - least

    return claim(
        f"from random to pathological data {method} loses less than the best constant rate",
        _seeds(rows),
        lambda row: lost(row["seed"], "constant") - lost(row["seed"], method),
        "test accuracy saved",
    )


def _seeds(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"seed": seed} for seed in sorted({row["seed"] for row in rows})]


def _span(accuracies: Sequence[float]) -> float:
    return max(accuracies) - min(accuracies)


def _accuracies(
    rows: Sequence[Mapping[str, Any]], seed: int, share: float, method: str
) -> list[float]:
    return [
        row["accuracy"]
        for row in rows
        if (row["seed"], row["random"], row["method"]) == (seed, share, method)
    ]
