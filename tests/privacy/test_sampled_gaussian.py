from __future__ import annotations

import math
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant

from tacit.privacy import accounting
from tacit.privacy.accounting import RDP_ORDERS, ideal_epsilon, privacy_loss, spent
from tacit.privacy.events import Exact, SampledGaussian
from tacit.privacy.losses import _window, composed
from tacit.privacy.random_stopping import best_of_runs
from tacit.privacy.sampled_gaussian import replaced_pld, replaced_rdp
from tacit.privacy.skellam import FloatArray

DELTA = 1e-5


def exact_divergence(rate: float, noise: float, order: int) -> float:
    """By mpmath, from the definition."""
    context = mpmath.mp.clone()
    context.dps = 50
    q, s = context.mpf(rate), context.mpf(noise)

    def density(x: Any, mean: int) -> Any:
        return context.exp(-((x - mean) ** 2) / (2 * s * s)) / (s * context.sqrt(2 * context.pi))

    def integrand(x: Any) -> Any:
        away = (1 - q) * density(x, 0)
        return (away + q * density(x, 1)) ** order * (away + q * density(x, -1)) ** (1 - order)

    places = {-40 * s - 1, -10 * s - 1, -3 * s, -1, 0, 1, 3 * s, 10 * s + 1}
    places |= {order / context.mpf(2), order, order + 1, order + 10 * s, order + 40 * s}
    return float(context.log(context.quad(integrand, sorted(places))) / (order - 1))


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.01, 1.0), (0.5, 0.7), (1e-9, 1.0), (1e-4, 0.3), (0.9, 0.25), (0.3, 50.0)]
)
@pytest.mark.parametrize("order", [2, 3, 17, 64])
def test_divergences_are_those_of_the_definition_and_never_below(
    rate: float, noise: float, order: int
) -> None:
    exact = exact_divergence(rate, noise, order)
    (found,) = replaced_rdp(rate, noise, (order,))
    assert exact <= found <= exact * (1 + 1e-8)


def test_a_record_that_is_always_in_is_a_gaussian_of_distance_two() -> None:
    assert replaced_rdp(1.0, 3.0, (2, 5)) == pytest.approx([4 / 9, 10 / 9])
    assert replaced_rdp(0.5, 0.01, (2,)) == pytest.approx([4 / 0.0001]), "too little noise"


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 0.8), (0.9, 2.0)])
def test_no_pair_of_gradients_is_worse_than_opposite_ones(rate: float, noise: float) -> None:
    """In the plane of two gradients of norm at most one, on a fine grid, at several orders."""
    axis = np.arange(-8 * noise, 8 * noise, noise / 12)
    x, y = np.meshgrid(axis, axis)
    cell = float(axis[1] - axis[0]) ** 2

    def density(gradient: tuple[float, float]) -> FloatArray:
        def normal(a: float, b: float) -> FloatArray:
            squares = (x - a) ** 2 + (y - b) ** 2
            return np.asarray(np.exp(-squares / (2 * noise**2)) / (2 * math.pi * noise**2))

        return (1 - rate) * normal(0, 0) + rate * normal(*gradient)

    def divergences(one: tuple[float, float], other: tuple[float, float]) -> FloatArray:
        p, q = density(one), density(other)
        return np.array([np.maximum(p - g * q, 0).sum() * cell for g in (0.7, 1.0, 1.3, 3.0)])

    worst = divergences((1.0, 0.0), (-1.0, 0.0))
    rng = np.random.default_rng(7)
    for _ in range(60):
        lengths, angles = np.sqrt(rng.random(2)), 2 * math.pi * rng.random(2)
        lengths[rng.random(2) < 0.4] = 1.0
        one, other = (
            (float(r * math.cos(t)), float(r * math.sin(t)))
            for r, t in zip(lengths, angles, strict=True)
        )
        assert (divergences(one, other) <= worst + 1e-6).all()


def test_replacing_costs_more_than_adding_or_removing() -> None:
    """The numbers of two independent accountants: 2.84 for a replaced record, 1.83 for one more."""
    event = SampledGaussian(0.01, 1.0, 1000)
    assert spent(event, DELTA).epsilon == pytest.approx(2.843, abs=0.002)
    assert (spent(event, DELTA).unit, spent(event, DELTA).relation) == ("record", "replace-one")
    added = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=1e-3
    )
    assert added.self_compose(1000).get_epsilon_for_delta(DELTA) == pytest.approx(1.83, abs=0.01)


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.01, 1.0, 1000), (0.5, 1.2, 4), (1, 1.5, 1)]
)
def test_distributions_price_less_than_renyi_divergences(
    rate: float, noise: float, steps: int
) -> None:
    event = SampledGaussian(rate, noise, steps)
    exact, bound = spent(event, DELTA).epsilon, ideal_epsilon(event, DELTA)
    assert 0.8 * bound < exact < 0.95 * bound


def test_too_many_steps_for_a_distribution_are_priced_by_renyi_divergences() -> None:
    guarantee = spent(SampledGaussian(1e-9, 1.0, 10**9), DELTA)
    assert guarantee.accounting == "Rényi divergences"
    assert 0 < guarantee.epsilon < math.inf


def test_more_steps_cost_as_much_as_their_sum() -> None:
    one, four = (privacy_loss({SampledGaussian(0.1, 1.0, n): 4 // n}, DELTA) for n in (1, 4))
    for epsilon in (0.5, 1.0, 2.0):
        delta = one.get_delta_for_epsilon(epsilon)
        assert four.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_distribution_is_that_of_the_pair(epsilon: float) -> None:
    """The hockey-stick divergence, by a sum over a fine grid."""
    rate, noise = 0.2, 0.9
    x = np.arange(-12, 12, 1e-4)
    away, up, down = (np.exp(-((x - m) ** 2) / (2 * noise**2)) for m in (0, 1, -1))
    p, q = ((1 - rate) * away + rate * one for one in (up, down))
    excess = np.maximum(p - math.exp(epsilon) * q, 0).sum() * 1e-4
    delta = excess / (noise * math.sqrt(2 * math.pi))
    found = replaced_pld(rate, noise, 1e-4).get_delta_for_epsilon(epsilon)
    assert delta - 1e-9 <= found <= delta * 1.001


@pytest.mark.parametrize(
    ("rate", "noise", "interval"),
    [
        (0.001, 1.0, 1e-4),
        (0.01, 0.5, 1e-3),
        (1.0, 2.0, 1e-3),
        (0.5, 0.1, 1e-2),
        (0.9, 20.0, 1e-5),
        (1e-4, 0.3, 1e-3),
    ],
)
def test_the_distribution_is_that_of_dp_accounting(
    rate: float, noise: float, interval: float
) -> None:
    ours = replaced_pld(rate, noise, interval)
    theirs = from_gaussian_mechanism(
        noise,
        sensitivity=1.0,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    assert ours.masses.sum() + ours.infinite == pytest.approx(1.0, abs=1e-12)
    largest = len(ours.masses) // 2 * interval
    for epsilon in largest * np.array([0.0, 0.003, 0.03, 0.1, 0.3, 0.6]):
        expected = theirs.get_delta_for_epsilon(epsilon)
        found = ours.get_delta_for_epsilon(epsilon)
        assert expected * (1 - 1e-12) <= found <= expected * (1 + 1e-6) + 1e-20


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.001, 0.5, 1), (1e-4, 1.0, 100), (1e-4, 0.3, 1)]
)
def test_less_work_never_makes_a_price_smaller(
    rate: float, noise: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coarser grid costs a little more, in the third digit at most.

    A finer one has more places where floating point is allowed for, in the seventh digit.
    """
    event: dict[Exact, int] = {SampledGaussian(rate, noise, steps): 1}
    found = []
    for work in (3e8, 3e7, 3e6):
        monkeypatch.setattr(accounting, "MOST_WORK", work)
        found.append(privacy_loss(event, DELTA))
    assert found[0].interval < found[-1].interval
    exact, *coarser = (losses.get_epsilon_for_delta(DELTA) for losses in found)
    for epsilon in coarser:
        assert exact * (1 - 1e-6) <= epsilon <= exact * 1.005


def test_rare_large_losses_take_no_long_transforms() -> None:
    """Chernoff's bound at the orders of a Gaussian says nothing of them."""
    step = replaced_pld(0.001, 1.0, 1e-4)
    least, most = _window([(step, 100)])
    assert most - least < 2 * len(step.masses)
    whole = composed([(step, 100)])
    assert whole.masses.sum() + whole.infinite == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize(
    ("mean", "shape"), list(product((1.5, 10.0, 600.0), (0.0, 0.5, 1.0, 3.0, math.inf)))
)
def test_the_best_of_some_runs_costs_what_dp_accounting_says(mean: float, shape: float) -> None:
    accountant = RdpAccountant(list(RDP_ORDERS))
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(4.0), mean, shape))
    run = np.array([order / (2 * 4.0**2) for order in RDP_ORDERS])
    found = best_of_runs(run, RDP_ORDERS, mean, shape)
    published = np.asarray(accountant.rdp)
    if math.isinf(shape):  # there dp-accounting does not use that divergences grow
        assert (found <= published * (1 + 1e-9)).all()
        published = np.minimum.accumulate(published[::-1])[::-1]
    assert found == pytest.approx(published, rel=1e-7)
