"""The number of runs, and what a selection costs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from tacit.privacy.accounting import RDP_ORDERS, Budget, spent
from tacit.privacy.events import (
    Repeated,
    SampledGaussian,
    Scored,
    Selected,
    from_json,
    to_json,
)
from tacit.privacy.random_stopping import best_of_runs
from tacit.privacy.selection import (
    SHAPES,
    Runs,
    liu_talwar,
    score_noise,
    selected,
    selection_plan,
)

BASE = SampledGaussian(0.01, 2.4, 1000)
PUBLISHED = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5132)), 1000)
"""Epsilon 1 at delta 1e-5, for adding or removing a record."""


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("mean", [1.2, 3.0, 40.0])
def test_probabilities_add_up_and_have_the_mean(shape: float, mean: float) -> None:
    runs = Runs(mean, shape)
    every = _all(runs)
    assert all(0 <= chance <= 1 for _, chance in every)
    assert sum(chance for _, chance in every) == pytest.approx(1, abs=1e-9)
    assert sum(number * chance for number, chance in every) == pytest.approx(mean, rel=1e-6)


def _all(runs: Runs) -> list[tuple[int, float]]:
    found = []
    for number, chance in runs._chances():
        found.append((number, chance))
        if number > runs.mean and chance < 1e-15:
            return found
    raise AssertionError("the tail never ends")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_draws_follow_the_probabilities(shape: float) -> None:
    """Eight counts within five standard deviations each: a false alarm in a million runs."""
    runs, draws = Runs(4.0, shape), 8000
    counts = Counter(runs.draw() for _ in range(draws))
    for number in range(8):
        chance = runs.chance(number)
        spread = math.sqrt(draws * chance * (1 - chance))
        assert abs(counts[number] - draws * chance) <= 5 * spread + 1e-9


def test_quantiles_bound_what_may_happen() -> None:
    runs = Runs(10.0, 1.0)
    assert runs.quantile(0.5) == 7
    assert 1 - 0.9 ** runs.quantile(0.95) >= 0.95 > 1 - 0.9 ** (runs.quantile(0.95) - 1)


@pytest.mark.parametrize(("shape", "total"), [(0.0, 1.76), (0.5, 1.94), (1.0, 2.11)])
def test_ten_runs_of_epsilon_one_cost_what_is_published(shape: float, total: float) -> None:
    accountant = RdpAccountant(list(RDP_ORDERS)).compose(PUBLISHED)
    assert accountant.get_epsilon(1e-5) == pytest.approx(1, abs=1e-3)
    curve = best_of_runs(np.asarray(accountant.rdp), RDP_ORDERS, 10.0, shape)
    epsilon, _ = compute_epsilon(list(RDP_ORDERS), curve.tolist(), 1e-5)
    assert epsilon == pytest.approx(total, abs=0.006)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_best_of_ten_costs_less_than_ten_runs_that_are_watched(shape: float) -> None:
    found = spent(selected(Runs(10.0, shape), BASE.rate, BASE.steps, BASE.noise), 1e-5)
    assert (found.unit, found.relation) == ("record", "replace-one")
    one, ten = (spent(Repeated(BASE, n), 1e-5).epsilon for n in (1, 10))
    assert one < found.epsilon < ten


def test_composing_ten_runs_costs_more_and_so_does_the_older_bound() -> None:
    accountant = RdpAccountant(list(RDP_ORDERS)).compose(PUBLISHED, 10)
    assert accountant.get_epsilon(1e-5) == pytest.approx(3.42, abs=0.01)
    assert 1.5 * spent(Repeated(BASE, 10), 1e-5).epsilon < liu_talwar(BASE, 0.1, 1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_never_cheaper_than_dp_accounting_says(shape: float) -> None:
    """For a training and for a validation record, by hand."""
    event = Selected(0.02, 1.1, 300, 2.0, 6.0, shape)
    step = PoissonSampledDpEvent(0.02, GaussianDpEvent(1.1))
    for run in (SelfComposedDpEvent(step, 300), GaussianDpEvent(2.0)):
        accountant = RdpAccountant(list(RDP_ORDERS))
        accountant.compose(RepeatAndSelectDpEvent(run, 6.0, shape))
        assert spent(event, 1e-5).epsilon >= accountant.get_epsilon(1e-5)


def test_repeating_a_selection_costs_as_often() -> None:
    event = Selected(0.02, 1.1, 300, 4.0, 6.0, 0.0)
    one, three = (spent(Repeated(event, n), 1e-5).epsilon for n in (1, 3))
    assert one < three <= 3 * one
    curve = event.rdp((2, 8, 32))
    assert (curve >= Scored(0.02, 1.1, 300, 4.0).rdp((2, 8, 32))).all()


def test_scores_cost_validation_records_no_more_than_training_records_pay() -> None:
    for rate, steps, noise in ((0.01, 1000, 1.2), (0.1, 200, 2.0), (1.0, 1, 3.0)):
        model = SampledGaussian(rate, noise, steps)
        of_model, of_score = Scored(rate, noise, steps, score_noise(rate, steps, noise)).curves(
            RDP_ORDERS
        )
        assert (of_score <= of_model * (1 + 1e-9)).all()
        assert (of_score / of_model).max() == pytest.approx(1)
        assert of_model == pytest.approx(model.rdp(RDP_ORDERS))


def test_events_survive_the_ledger() -> None:
    for event in (Selected(0.02, 1.1, 300, 4.0, 6.0, math.inf), Scored(0.02, 1.1, 300, 4.0)):
        assert from_json(to_json(event)) == event


def test_a_plan_fits_its_budget_and_says_what_else_it_would_cost() -> None:
    plan = selection_plan(Runs(10.0, 0.0), 0.05, 200, Budget(2.0, 1e-5))
    assert 1.999 < plan.epsilon <= 2.0
    assert plan.single < plan.epsilon < plan.watched < plan.liu_talwar
    assert plan.undecided_noise < plan.noise


@pytest.mark.parametrize(("mean", "shape"), [(1.0, 0.0), (math.nan, 0.0), (3.0, -0.5), (1e6, 1.0)])
def test_impossible_runs_are_refused(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match="allowed is a mean above 1"):
        Runs(mean, shape)


@pytest.mark.parametrize(
    ("rate", "steps"), [(1e-10, 10**9), (1e-9, 10**9 + 1), (0.0, 1), (1.1, 1), (0.5, 0)]
)
def test_steps_that_would_be_priced_as_nothing_are_refused(rate: float, steps: int) -> None:
    """A tiny rate and very many steps were rounded to an epsilon of 0."""
    with pytest.raises(ValueError, match="allowed is a rate from 1e-09 to 1, and 1 to 1000000000"):
        SampledGaussian(rate, 1.0, steps)


def test_the_most_steps_at_the_least_rate_cost_what_a_gaussian_would() -> None:
    """rate² steps / noise² is 10^-9 at both ends; no number of it is lost to rounding.

    The variance of the likelihood ratio is ``4 rate² sinh(1 / noise²)``.
    """
    many = SampledGaussian(1e-9, 1.0, 10**9)
    cheap = many.rdp([2, 8])
    assert (cheap > 0).all()
    assert cheap == pytest.approx([2 * 2e-9 * math.sinh(1), 8 * 2e-9 * math.sinh(1)], rel=0.01)
