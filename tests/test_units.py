"""Whom a guarantee is about is declared by the method; no attribute that looks like it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget
from tacit.privacy.events import Composed, Event, SampledGaussian, Scored, Selected
from tacit.privacy.ledger import BudgetExceeded
from tacit.query import LocalTraining
from tacit.rules import RecordSteps
from tacit.space import Float, Space
from tacit.task import Client
from tacit.tuners.tuner import Outcome
from tests.test_contracts import TASK, learner

SPACE = Space({"learning_rate": Float(1e-3, 1.0, log=True)})
BUDGET = Budget(3.0, 1e-5)
RULE = RecordSteps(rate=0.25, steps=2).with_noise(8.0)
STEPS = SampledGaussian(0.25, 8.0, 2)


NOTHING = Composed(())


@dataclass(frozen=True)
class Averaging:
    """One round of weights in the clear, trained by DP-SGD."""

    declared: Event = STEPS
    name = "averaging"

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return self.declared

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        candidates = space.candidates(2, "random", rng)
        weights = tuple(map(Array.of, TASK.initial(1)))
        questions.average(LocalTraining(candidates[:1], weights, 1, 1, RULE), "training")
        return Outcome(candidates[0], candidates)


@dataclass(frozen=True)
class NamedRecord(Averaging):
    """It declares nothing beforehand, and has a mode that happens to be called ``record``."""

    declared: Event = NOTHING
    mode: str = "record"
    unit = "client"


class AboutRecords(Averaging):
    unit = "record"


class AboutClients(Averaging):
    unit = "client"


class AboutPatients(Averaging):
    unit = "patient"


@dataclass(frozen=True)
class Holder(Averaging):
    """It holds data of its own, and charges for a training on them."""

    declared: Event = NOTHING
    charged: Event = STEPS
    unit = "client"

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        questions.charge(self.charged, "own")
        candidates = space.candidates(2, "random", rng)
        return Outcome(candidates[0], candidates)


def members() -> list[Client]:
    return [learner(number) for number in range(4)]


def tuned(method: Any) -> tacit.Result:
    return tacit.tune(members(), SPACE, method, BUDGET, seed=1)


def test_a_mode_called_record_does_not_make_a_method_about_records() -> None:
    with pytest.raises(BudgetExceeded, match=r"inf"):
        tuned(NamedRecord())


def test_a_method_that_declares_records_needs_no_mode() -> None:
    result = tuned(AboutRecords())
    assert result.privacy.guarantee.unit == "record"
    assert 0 < result.privacy.epsilon <= BUDGET.epsilon
    assert len(result.ledger["lines"]) == 1


def test_a_method_that_declares_no_unit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'averaging' declares no unit.*'client' or 'record'"):
        tuned(Averaging())


def test_a_unit_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unit 'patient'; allowed is 'client' or 'record'"):
        tuned(AboutPatients())


def test_a_method_about_clients_may_not_declare_events_about_records() -> None:
    with pytest.raises(ValueError, match=r"unit 'client' and would release a SampledGaussian"):
        tuned(AboutClients())


@pytest.mark.parametrize(
    "event",
    [STEPS, Scored(0.25, 8.0, 2, 9.0), Composed((Selected(0.25, 8.0, 2, 9.0, 2.0, 1.0),))],
    ids=lambda event: type(event).__name__,
)
def test_a_method_about_clients_may_not_charge_events_about_records(event: Event) -> None:
    with pytest.raises(ValueError, match=r"protects single records; allowed .* unit 'client'"):
        tuned(Holder(charged=event))
