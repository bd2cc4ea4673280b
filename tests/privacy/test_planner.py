from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import skellam

from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import SkellamRelease
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import (
    chance_bound,
    chance_of_good,
    exact_gaussian_sigma,
    plan,
    published_sigma,
    recommend_votes,
    unanimous_votes,
)

DELTA = 1e-5
EPSILONS = (0.1, 0.25, 0.5, 1.0, 3.0)


def test_published_and_exact_gaussians_are_the_known_ones() -> None:
    budgets = [Budget(epsilon, DELTA) for epsilon in EPSILONS]
    published = [round(published_sigma(5, budget), 2) for budget in budgets]
    exact = [round(exact_gaussian_sigma(TopVotes(100, 5), budget), 2) for budget in budgets]
    assert published == [107.46, 46.06, 24.25, 12.79, 4.72]
    assert exact == [97.24, 42.01, 22.24, 11.8, 4.4]


@pytest.mark.parametrize(
    ("clients", "expected"), [(50, (0.14, 0.37, 0.83, 0.999)), (100, (0.30, 0.86, 1.0, 1.0))]
)
def test_ceiling_of_unanimous_votes_under_published_noise(
    clients: int, expected: tuple[float, ...]
) -> None:
    good, bad = unanimous_votes(clients, candidates=100, votes=5, good=5)
    for epsilon, chance in zip(EPSILONS, expected, strict=False):
        sigma = published_sigma(5, Budget(epsilon, DELTA))
        assert chance_of_good([good], [bad], sigma) == pytest.approx(chance, abs=0.005)


def test_a_gap_of_2_62_deviations_suffices_where_the_bound_asks_4_66() -> None:
    good, bad = (2.62, 5), (0.0, 95)
    assert chance_of_good([good], [bad], 1.0) == pytest.approx(0.95, abs=0.003)
    assert chance_bound([(4.66, 5)], [bad], 1.0) == pytest.approx(0.95, abs=0.003)


def test_integral_matches_an_exact_count_over_integer_noise() -> None:
    """The integral is for continuous noise; Skellam with ties broken evenly differs little."""
    variance, good, bad, clients = 150.0, 5, 95, 40
    values = np.arange(-200, 260)
    good_cdf = skellam.cdf(values - clients, variance / 2, variance / 2) ** good
    bad_cdf = skellam.cdf(values, variance / 2, variance / 2) ** bad
    good_max, bad_max = np.diff(good_cdf, prepend=0), np.diff(bad_cdf, prepend=0)
    wins = float(good_max[1:] @ bad_cdf[:-1])
    ties = float(good_max @ bad_max)
    integral = chance_of_good([(clients, good)], [(0.0, bad)], math.sqrt(variance))
    assert wins - 1e-3 <= integral <= wins + ties + 1e-3
    assert integral == pytest.approx(wins + ties / 2, abs=2e-3)


def test_integral_matches_simulation_with_uneven_votes() -> None:
    """Standard error 0.0016; 6 of them are allowed: false-alarm rate 2e-9."""
    rng = np.random.default_rng(3)
    good, bad = [(30.0, 2), (22.0, 3)], [(18.0, 4), (0.0, 40)]
    votes = np.array([v for v, count in (*good, *bad) for _ in range(count)])
    noisy = votes + 10 * rng.standard_normal((100_000, len(votes)))
    simulated = float((noisy.argmax(axis=1) < 5).mean())
    assert chance_of_good(good, bad, 10.0) == pytest.approx(simulated, abs=0.0096)


@pytest.mark.parametrize("clients", [20, 50, 100, 1000])
@pytest.mark.parametrize("votes", [1, 5, 60])
def test_theorem_v1_never_exceeds_the_truth(clients: int, votes: int) -> None:
    good, bad = unanimous_votes(clients, 100, votes, 5)
    for sigma in (1.0, 5.0, 20.0, 80.0):
        assert chance_bound([good], [bad], sigma) <= chance_of_good([good], [bad], sigma) + 1e-9


def test_plan_reports_noise_that_fits_its_budget() -> None:
    planned = plan(Participation(50), 100, 5, Budget(1.0, DELTA))
    noise = planned.noise
    assert noise.required_variance == pytest.approx(139.0, rel=5e-3)
    assert noise.share_variance == pytest.approx(noise.required_variance / 44)
    assert noise.delivered_variance == pytest.approx(50 * noise.share_variance)
    assert noise.sigma == pytest.approx(math.sqrt(noise.delivered_variance))
    event = SkellamRelease(((1, 10),), noise.required_variance)
    assert spent(event, DELTA).epsilon <= 1.0
    assert planned.threshold == 45
    assert planned.success > 0.99
    assert 0 < planned.success_bound < planned.success


def test_colluders_cost_noise_and_raise_the_threshold() -> None:
    honest = plan(Participation(100, 0.1, 0.0), 100, 5, Budget(1.0, DELTA))
    betrayed = plan(Participation(100, 0.1, 0.3), 100, 5, Budget(1.0, DELTA))
    assert betrayed.noise.share_variance == pytest.approx(honest.noise.required_variance / 60)
    assert betrayed.success <= honest.success
    assert Participation(100, 0.6, 0.3).threshold == 66


def test_recommendation_follows_the_number_of_good_candidates() -> None:
    federation, budget = Participation(100), Budget(1.0, DELTA)
    for good in (1, 3, 12, 25):
        assert recommend_votes(federation, 100, budget, good) == good
    unknown = recommend_votes(federation, 100, budget)
    assert 1 < unknown < 12
    assert recommend_votes(Participation(8), 2, budget) == 1


def test_the_plan_knows_the_secure_sum() -> None:
    small, middle, large = (
        plan(Participation(n), 100, 5, Budget(1.0, 1e-5)) for n in (50, 250, 1000)
    )
    assert (small.degree, small.share_threshold) == (49, 26)
    assert (middle.degree, middle.share_threshold) == (249, 126)
    assert (large.degree, large.share_threshold) == (158, 105)
    assert small.bytes_per_client < large.bytes_per_client < middle.bytes_per_client


@pytest.mark.parametrize("good", [0, 100, -3])
def test_impossible_number_of_good_candidates_is_refused(good: int) -> None:
    with pytest.raises(ValueError, match=f"good is {good} of 100 candidates; allowed is 1 to 99"):
        plan(Participation(50), 100, 5, Budget(1.0, DELTA), good)
