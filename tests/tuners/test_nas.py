from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples
from tacit.federation import Federation
from tacit.privacy.accounting import Budget, spent
from tacit.rules import Bilevel, RecordSteps
from tacit.sgd import Weights
from tacit.space import Config, Float, Space
from tacit.supernet import discretised, table_cells
from tacit.torch_task import TorchClient, TorchTask
from tacit.tuners.bandit import Stage
from tacit.tuners.nas import DARTS, Feathers
from tacit.tuners.tuner import noise_for
from tests.federations import federation

SPACE = Space(
    {
        "learning_rate": Float(1e-2, 1.0, log=True),
        "architecture_learning_rate": Float(1e-3, 0.1, log=True),
    }
)
CALM = Space({**SPACE.dimensions, "learning_rate": Float(1e-4, 1e-3, log=True)})
"""Noise of four clients is large: one training in thirty diverges at larger rates."""
TASK = TorchTask(partial(table_cells, (3,), 2, width=4, cells=1, nodes=2), classes=2, batch=8)
NAMES = TASK.architecture({}).module.names()
INFINITE = Budget(math.inf, 1e-5)
SEARCH = Stage(phases=1, drawn=2, most_rounds=1, train_rounds=2, rule=Bilevel())
EVALUATION = Stage(phases=1, drawn=2, most_rounds=1, train_rounds=3)


def start(config: Config) -> Weights:
    return TASK.initial(1, config)


def found(weights: Weights) -> str:
    return discretised(NAMES, weights)


FEATHERS = Feathers(start, found, SEARCH, EVALUATION, candidates=4, mode="clear")


def client(number: int) -> TorchClient:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(32, 3)).astype(np.float32)
    examples = Examples(features, (features[:, 0] * features[:, 1] > 0).astype(np.int64))
    return TASK.client(examples.take(np.arange(24)), examples.take(np.arange(24, 32)), seed=number)


def built(method: Feathers, budget: Budget, space: Space = SPACE, **more: Any) -> Federation:
    return federation(
        [client(number) for number in range(4)],
        noise_for(method, space, budget),
        budget=budget,
        dropout=0.0,
        secure="plain",
        roster=False,
        **more,
    )


def test_search_then_evaluation_of_what_was_found() -> None:
    run = built(FEATHERS, INFINITE)
    outcome = FEATHERS.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    assert [note.what for note in run.rounds] == [
        *("rewards", "training", "training"),
        *("rewards", "training", "training", "training"),
    ]
    SPACE.encode(outcome.config)
    expected = TASK.initial(1, {"architecture": outcome.architecture})
    assert outcome.weights is not None
    assert [a.shape for a in outcome.weights] == [a.shape for a in expected]
    assert "architecture_learning_rate" in run.rounds[0].config
    assert "architecture_learning_rate" not in run.rounds[-1].config


def test_with_one_configuration_it_is_federated_darts() -> None:
    method = replace(FEATHERS, fixed=DARTS)
    run = built(method, INFINITE)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    assert (method.name, FEATHERS.name) == ("darts", "feathers")
    assert [note.what for note in run.rounds] == ["training"] * 5
    assert outcome.config == DARTS


@pytest.mark.parametrize(("mode", "unit"), [("dp", "client"), ("record", "record")])
def test_both_stages_are_paid_from_one_budget(mode: str, unit: str) -> None:
    records = RecordSteps(rate=0.3, steps=2)
    method = replace(
        FEATHERS,
        mode=mode,
        search=replace(SEARCH, records=records),
        evaluation=replace(EVALUATION, records=records),
    )
    budget = Budget(6.0, 1e-5)
    run = built(method, budget, CALM, record_level=mode == "record")
    method.tune(ChargedQuestions(run), CALM, np.random.default_rng(0))
    total = run.ledger.total()
    declared = spent(method.event(CALM, run.variance), 1e-5).epsilon
    assert 5.0 < total.epsilon <= declared <= 6.0
    assert total.unit == unit


def test_a_network_larger_than_the_one_declared_for_is_refused() -> None:
    def larger(config: Config) -> Weights:
        return TASK.initial(9, config) if config else TASK.initial(1)

    method = replace(FEATHERS, start=larger)
    with pytest.raises(ValueError, match="for which the noise was declared"):
        method.tune(ChargedQuestions(built(method, INFINITE)), SPACE, np.random.default_rng(0))
