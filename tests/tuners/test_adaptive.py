from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples
from tacit.federation import Federation
from tacit.networks import dense
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import SampledGaussian
from tacit.rules import Adaptive, RecordSteps
from tacit.space import Float, Space
from tacit.torch_task import TorchClient, TorchTask
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.tuner import noise_for
from tests.federations import federation

SPACE = Space({"learning_rate": Float(1e-4, 1.0, log=True)})
TASK = TorchTask(lambda: dense((2,), 2, hidden=(4,)), classes=2, batch=4)
INFINITE = Budget(math.inf, 1e-5)


def client(number: int) -> TorchClient:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(32, 2)).astype(np.float32)
    examples = Examples(features, (features.sum(axis=1) > 0).astype(np.int64))
    return TASK.client(examples.take(np.arange(24)), examples.take(np.arange(24, 32)), seed=number)


def built(method: AdaptiveRate, budget: Budget, **more: Any) -> Federation:
    return federation(
        [client(number) for number in range(4)],
        noise_for(method, SPACE, budget),
        budget=budget,
        dropout=0.0,
        secure="plain",
        roster=False,
        **more,
    )


def accuracy(method: AdaptiveRate) -> tuple[float, float]:
    run = built(method, INFINITE)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    assert outcome.weights is not None
    test = client(99).train_examples
    return float(TASK.accuracies(outcome.weights, test)[0]), float(
        run.rounds[-1].config["learning_rate"]
    )


def test_from_a_tiny_rate_it_learns_all_the_same() -> None:
    method = AdaptiveRate(TASK.initial, rounds=40, mode="clear", rule=Adaptive(tolerance=0.1))
    found = [accuracy(replace(method, first_rate=rate)) for rate in (1e-5, 1e-2, 1.0)]
    assert all(right > 0.85 for right, _ in found)
    rates = [rate for _, rate in found]
    assert max(rates) / min(rates) < 3  # they end in the same place


def test_the_rate_travels_from_round_to_round() -> None:
    method = AdaptiveRate(TASK.initial, rounds=3, mode="clear", first_rate=1e-5)
    run = built(method, INFINITE)
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    rates = [float(note.config["learning_rate"]) for note in run.rounds]
    steps = 24 // 4 // 2
    np.testing.assert_allclose(rates, [1e-5 * 1.1 ** (steps * r) for r in (1, 2, 3)], rtol=1e-3)


def test_the_choice_lies_in_the_space() -> None:
    method = AdaptiveRate(TASK.initial, rounds=1, mode="clear", first_rate=1e-9)
    outcome = method.tune(
        ChargedQuestions(built(method, INFINITE)), SPACE, np.random.default_rng(0)
    )
    assert outcome.config["learning_rate"] == pytest.approx(1e-4)


@pytest.mark.parametrize(("mode", "unit"), [("dp", "client"), ("record", "record")])
def test_private_modes_spend_what_they_said(mode: str, unit: str) -> None:
    budget = Budget(3.0, 1e-5)
    method = AdaptiveRate(TASK.initial, rounds=4, mode=mode, records=RecordSteps(rate=0.2, steps=6))
    run = built(method, budget, record_level=mode == "record")
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    total = run.ledger.total()
    assert 2.9 < total.epsilon <= 3.0
    assert total.unit == unit


def test_record_level_pays_for_both_half_steps() -> None:
    """Six gradients a round, three steps: what the ledger holds is six, for each of four rounds."""
    method = AdaptiveRate(TASK.initial, rounds=4, mode="record", records=RecordSteps(0.2, 6))
    budget = Budget(3.0, 1e-5)
    run = built(method, budget, record_level=True)
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    noise = math.sqrt(run.variance)
    assert [charge.event for charge in run.ledger.charges()] == [SampledGaussian(0.2, noise, 6)] * 4
    whole = spent(SampledGaussian(0.2, noise, 24), 1e-5).epsilon
    assert run.ledger.total().epsilon == pytest.approx(whole, rel=1e-6)


def test_refusals_name_what_is_allowed() -> None:
    with pytest.raises(ValueError, match="allowed are dp, record, clear"):
        AdaptiveRate(TASK.initial, mode="encrypted")
    other = Space({"momentum": Float(0.0, 0.9)})
    with pytest.raises(ValueError, match="has no 'learning_rate'; give it one, or a first_rate"):
        AdaptiveRate(TASK.initial).event(other, 1.0)
