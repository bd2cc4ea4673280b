"""A row whose label is no class of the task ends no training.

An error where such a row is drawn into a lot would tell that it is there: a client would be missing
from a round. To refuse it beforehand would tell as much.
"""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples
from tacit.dp_training import Recipe, Run, Secret, train
from tacit.federation import local_federation
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.rules import RecordSteps
from tacit.space import Float, Space
from tacit.torch_task import TorchClient, TorchTask
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.tuner import noise_for

SPACE = Space({"learning_rate": Float(1e-3, 1.0, log=True)})
TASK = TorchTask(lambda: nn.Linear(2, 2), classes=2, epochs=1, batch=8)


def client(label: int) -> TorchClient:
    labels = np.zeros(40, np.int64)
    labels[3] = label
    rows = Examples(np.zeros((40, 2), np.float32), labels)
    return TASK.client(rows, rows.take(np.arange(10, 20)), seed=0)


def turnouts(label: int) -> list[tuple[int, int]]:
    """How many of three clients were asked and answered, round by round."""
    method = AdaptiveRate(
        TASK.initial, rounds=3, mode="record", records=RecordSteps(0.9, 4, 1.0, 8)
    )
    budget = Budget(1.0, 1e-5)
    built = local_federation(
        [client(label), client(0), client(1)],
        Participation(3, 1),
        Ledger.in_memory("labels", budget),
        "labels",
        noise_for(method, SPACE, budget),
        record_level=True,
    )
    method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    return built.turnouts


@pytest.mark.parametrize("label", [1, 5])
def test_a_replaced_record_stops_nobody(label: int) -> None:
    assert turnouts(label) == [(3, 3)] * 3


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_a_row_of_no_class_ends_no_training_of_a_selection(loss: str) -> None:
    labels = np.arange(40) % 3
    labels[3] = 7
    rows = Examples(np.ones((40, 2), np.float32), labels)
    train(Recipe((4,), loss, lot=20, steps=20), [Run(0.1, 5.0, 1.0)], rows, 3, Secret())
