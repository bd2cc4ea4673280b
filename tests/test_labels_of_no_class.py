"""A label that is no class of the task is refused before anything is drawn.

A training that ended when such a row is drawn into a lot would tell that it is there, in the mode
``record`` by a client that is missing from a round.
"""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples
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


def rows(label: int) -> Examples:
    labels = np.zeros(40, np.int64)
    labels[3] = label
    return Examples(np.zeros((40, 2), np.float32), labels)


def client(label: int) -> TorchClient:
    return TASK.client(rows(label), rows(0).take(np.arange(10)), seed=0)


def turnouts(label: int) -> list[tuple[int, int]]:
    """How many of three clients were asked and answered, round by round."""
    method = AdaptiveRate(
        TASK.initial, rounds=3, mode="record", records=RecordSteps(0.3, 4, 1.0, 8)
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


def test_a_replaced_record_stops_nobody() -> None:
    assert turnouts(1) == [(3, 3)] * 3
    with pytest.raises(ValueError, match="a label is no class of the task; allowed are whole num"):
        turnouts(5)
