"""Single runs of FEATHERS' measurements: on images, each rival; on the fraud data, each epsilon."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Dataset, client_key, split_validation
from tacit.data.partitions import deal, partition
from tacit.data.sources import load
from tacit.federation import Federation, local_federation
from tacit.journal import Number, Row
from tacit.privacy.accounting import Budget, ideal_noise
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.rules import ARCHITECTURE, Bilevel
from tacit.sgd import Weights
from tacit.space import Config, Float, Space
from tacit.torch_task import TorchTask
from tacit.training import federated_average
from tacit.tuners.bandit import Stage
from tacit.tuners.fedex import FedEx
from tacit.tuners.nas import DARTS, Feathers

EPSILONS = (1.25, 2.0, 3.5, 25.0, 250.0, 400.0, math.inf)
HAND_MADE = "sep3@0 sep3@1 | sep3@1 sep3@2 ; max3@0 max3@1 | max3@1 max3@2"
SPACE = Space(
    {
        "learning_rate": Float(1e-4, 1.0, log=True),
        "momentum": Float(0.5, 0.99),
        "weight_decay": Float(1e-5, 0.1, log=True),
        "dropout": Float(0.0, 0.5),
        "architecture_learning_rate": Float(1e-5, 0.1, log=True),
        "architecture_weight_decay": Float(1e-5, 0.1, log=True),
    }
)
"""Appendix B.3, both stages in one."""


SEARCH = Stage(phases=2, drawn=2, most_rounds=1, train_rounds=2, rule=Bilevel())
EVALUATION = Stage(phases=3, drawn=3, most_rounds=2, train_rounds=9)
FRAUD_SEARCH = Stage(phases=1, drawn=3, most_rounds=2, train_rounds=4, rule=Bilevel())
FRAUD_EVALUATION = Stage(phases=1, drawn=3, most_rounds=2, train_rounds=10)


@dataclass(frozen=True)
class Setup:
    """What is run."""

    examples: int = 1000
    test_examples: int = 1000
    clients: tuple[int, ...] = (5, 20)
    batch: int = 64
    channels: int = 8
    cells: int = 3
    nodes: int = 2
    stem_stride: int = 4
    arms: int = 120
    search: Stage = SEARCH
    evaluation: Stage = EVALUATION
    fraud_clients: int = 100
    fraud_examples: int = 8000
    fraud_search: Stage = FRAUD_SEARCH
    fraud_evaluation: Stage = FRAUD_EVALUATION
    epsilons: tuple[float, ...] = EPSILONS


FULL = Setup(
    examples=0,
    test_examples=0,
    clients=(5, 20, 100),
    channels=16,
    cells=8,
    nodes=4,
    stem_stride=1,
    search=Stage(phases=6, drawn=5, most_rounds=19, train_rounds=15, epochs=5, rule=Bilevel()),
    evaluation=Stage(phases=15, drawn=5, most_rounds=19, train_rounds=15, epochs=5),
    fraud_examples=0,
)
QUICK = Setup(
    examples=120,
    test_examples=100,
    clients=(4,),
    channels=4,
    cells=1,
    arms=6,
    search=Stage(phases=1, drawn=2, most_rounds=1, train_rounds=1, rule=Bilevel()),
    evaluation=Stage(phases=1, drawn=2, most_rounds=1, train_rounds=2),
    fraud_clients=10,
    fraud_examples=600,
    fraud_search=Stage(phases=1, drawn=2, most_rounds=1, train_rounds=1, rule=Bilevel()),
    fraud_evaluation=Stage(phases=1, drawn=2, most_rounds=1, train_rounds=2),
    epsilons=(3.5, math.inf),
)


_Settings = dict[str, bool | int | float | str]


class _Round(Row):
    what: str
    config: _Settings
    reward: float | None


class ImageRow(Row):
    """One method on images."""

    method: str
    accuracy: Number
    architecture: str
    seconds: Number
    history: list[_Round] | UnsetType = UNSET


class FraudRow(Row):
    """One training on the fraud data."""

    f1: Number
    accuracy: Number
    ledger_epsilon: Number | None
    architecture: str
    config: _Settings
    seconds: Number


# Images


def one_image(
    setup: Setup, data_dir: Path | None, seed: int, clients: int, skew: bool, method: str
) -> list[dict[str, Any]]:
    """One method, and whatever comes from the same search: one row each."""
    data = load("fashion-mnist", data_dir).some(setup.examples, setup.test_examples)
    task = image_task(setup, data, seed)
    federation = federated(
        task, data, "dominant-label" if skew else "iid", clients, seed, Budget(math.inf, 1e-5), 0.0
    )
    if method == "feathers":
        return _feathers(setup, task, data, federation, seed)
    if method == "darts":
        return _darts(setup, task, data, federation, seed)
    fixed: Config = {ARCHITECTURE: HAND_MADE}
    begin = time.process_time()
    rounds = epochs_of(setup.search) + epochs_of(setup.evaluation)
    weights = averaged(task, federation, fixed, {}, rounds)
    return [row("fedavg", task, data, weights, HAND_MADE, time.process_time() - begin)]


def _feathers(
    setup: Setup, task: TorchTask, data: Dataset, federation: Federation, seed: int
) -> list[dict[str, Any]]:
    """The whole method; and its network once more, trained without the bandit."""
    begin = time.process_time()
    outcome = searcher(setup, task, None).tune(
        ChargedQuestions(federation), SPACE, np.random.default_rng(seed)
    )
    seconds = time.process_time() - begin
    history = [{"what": n.what, "config": n.config, "reward": n.reward} for n in federation.rounds]
    begin = time.process_time()
    fixed: Config = {ARCHITECTURE: outcome.architecture}
    plain = averaged(task, federation, fixed, _own(DARTS), epochs_of(setup.evaluation))
    ablation = time.process_time() - begin
    return [
        {
            **row("feathers", task, data, outcome.weights, outcome.architecture, seconds),
            "history": history,
        },
        row("feathers without the bandit", task, data, plain, outcome.architecture, ablation),
    ]


def _darts(
    setup: Setup, task: TorchTask, data: Dataset, federation: Federation, seed: int
) -> list[dict[str, Any]]:
    """Federated DARTS; and FedEx on the network that it found."""
    begin = time.process_time()
    method = searcher(setup, task, DARTS)
    outcome = method.tune(ChargedQuestions(federation), SPACE, np.random.default_rng(seed))
    seconds = time.process_time() - begin
    begin = time.process_time()
    fixed: Config = {ARCHITECTURE: outcome.architecture}
    own = Space({name: axis for name, axis in SPACE.dimensions.items() if name in _own(DARTS)})
    fedex = FedEx(
        lambda models: task.initial(models, fixed),
        epochs_of(setup.evaluation),
        candidates=27,
        mode="clear",
        fixed=fixed,
    )
    tuned = fedex.tune(ChargedQuestions(federation), own, np.random.default_rng(seed))
    return [
        row("darts", task, data, outcome.weights, outcome.architecture, seconds),
        row("fedex", task, data, tuned.weights, outcome.architecture, time.process_time() - begin),
    ]


def searcher(setup: Setup, task: TorchTask, fixed: Config | None) -> Feathers:
    """FEATHERS, or federated DARTS with as many client epochs in either stage."""
    names = task.architecture({}).module.names()
    stages = setup.search, setup.evaluation
    if fixed is not None:
        search, evaluation = (
            replace(stage, phases=1, train_rounds=epochs_of(stage)) for stage in stages
        )
        stages = replace(search, rule=Bilevel(adam=True)), evaluation
    return Feathers(
        lambda config: task.initial(1, config),
        partial(_found, names),
        *stages,
        candidates=setup.arms,
        fixed=fixed,
        mode="clear",
    )


def _found(names: Sequence[str], weights: Weights) -> str:
    from tacit.supernet import discretised

    return discretised(names, weights)


def epochs_of(stage: Stage) -> int:
    """Client epochs of a stage, rewards included."""
    return stage.phases * (stage.most_rounds * stage.drawn + stage.train_rounds)


def averaged(
    task: TorchTask, federation: Federation, fixed: Config, config: Config, rounds: int
) -> Weights:
    """Federated averaging under one configuration."""
    return federated_average(
        lambda query: federation.collect(query, "train"),
        [{**config, **fixed}],
        task.initial(1, fixed),
        rounds,
        1,
    )


def row(
    method: str,
    task: TorchTask,
    data: Dataset,
    weights: Weights | None,
    architecture: str,
    seconds: float,
) -> dict[str, Any]:
    """What came of a method."""
    if weights is None:
        raise RuntimeError("the method trains, so there are weights")
    test = data.standardise(data.test)
    accuracy = float(task.accuracies(weights, test, {ARCHITECTURE: architecture})[0])
    return {
        "method": method,
        "accuracy": accuracy,
        "architecture": architecture,
        "seconds": seconds,
    }


def _own(config: Config) -> Config:
    return {name: value for name, value in config.items() if not name.startswith(ARCHITECTURE)}


def image_task(setup: Setup, data: Dataset, seed: int) -> TorchTask:
    """Networks of cells for the images."""
    from tacit.supernet import image_cells

    build = partial(
        image_cells,
        data.train.shape,
        len(data.classes),
        channels=setup.channels,
        cells=setup.cells,
        nodes=setup.nodes,
        stem_stride=setup.stem_stride,
    )
    return TorchTask(build, len(data.classes), batch=setup.batch, start_seed=seed)


def federated(
    task: TorchTask,
    data: Dataset,
    skew: str,
    clients: int,
    seed: int,
    budget: Budget,
    variance: float,
) -> Federation:
    """Simulated clients of these data; sums are plain, since nobody's privacy is at stake."""
    rng = np.random.default_rng(seed)
    parts = deal(data, partition(skew, percent=66.0, smallest=4), clients, rng)
    members = [
        task.client(
            *split_validation(part, 0.25, client_key(seed, number)), seed=1000 * seed + number
        )
        for number, part in enumerate(parts)
    ]
    return local_federation(
        members,
        Participation(clients, 0.0),
        Ledger.in_memory("bench", budget),
        run="bench",
        variance=variance,
        secure="plain",
        roster=False,
        trains=True,
    )


# Fraud


def one_fraud(setup: Setup, data_dir: Path | None, seed: int, epsilon: float) -> dict[str, Any]:
    """FEATHERS on the fraud data under one epsilon: F1 of the rarer class on test data.

    Above 30 the noise is what that epsilon asks of ideal noise; the ledger would book infinity,
    since our sampler's own error is not certified so far.
    """
    begin = time.process_time()
    data = load("fraud", data_dir).some(setup.fraud_examples)
    task = fraud_task(data, seed)
    method = replace(
        searcher(setup, task, None),
        search=setup.fraud_search,
        evaluation=setup.fraud_evaluation,
        candidates=30,
        mode="clear" if math.isinf(epsilon) else "dp",
    )
    variance = 0.0
    if math.isfinite(epsilon):
        variance = ideal_noise(lambda v: method.event(SPACE, v), epsilon, 1e-5)
    budget = Budget(math.inf, 1e-5)
    federation = federated(task, data, "iid", setup.fraud_clients, seed, budget, variance)
    outcome = method.tune(ChargedQuestions(federation), SPACE, np.random.default_rng(seed))
    if outcome.weights is None:
        raise RuntimeError("the method trains, so there are weights")
    test = data.standardise(data.test)
    found = task.predictions(outcome.weights, test, {ARCHITECTURE: outcome.architecture})[0]
    total = federation.ledger.total().epsilon
    return {
        "f1": f1(found, test.labels),
        "accuracy": float(np.mean(found == test.labels)),
        "ledger_epsilon": total if math.isfinite(total) else None,
        "architecture": outcome.architecture,
        "config": outcome.config,
        "seconds": time.process_time() - begin,
    }


def fraud_task(data: Dataset, seed: int) -> TorchTask:
    """Small networks of cells for the rows."""
    from tacit.supernet import table_cells

    build = partial(table_cells, data.train.shape, len(data.classes), width=8, cells=1, nodes=2)
    return TorchTask(build, len(data.classes), batch=32, start_seed=seed)


def f1(found: Any, labels: Any) -> float:
    """Of class 1; 0 if nothing of it was found.

    >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]))
    0.5
    """
    right = int(((found == 1) & (labels == 1)).sum())
    return 2 * right / max(int((found == 1).sum()) + int((labels == 1).sum()), 1)
