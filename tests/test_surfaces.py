from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from tacit.space import FloatArray
from tacit.surfaces import Party, aplm, local_models, mplm, sgm, sgm_of_means, sgm_u, sgm_u_of_means

GRID = np.array([[rate, momentum] for rate in np.linspace(0, 1, 5) for momentum in (0.0, 0.5, 1.0)])
ONE = (np.array([[0.5]]), np.array([0.1]))


def bowl(points: FloatArray) -> FloatArray:
    return np.asarray((points[:, 0] - 0.5) ** 2 + 0.3 * (points[:, 1] - 0.5) ** 2)


def parties_on_the_grid(count: int, noise: float = 0.1, seed: int = 0) -> list[Party]:
    rng = np.random.default_rng(seed)
    return [(GRID, bowl(GRID) + noise * rng.standard_normal(len(GRID))) for _ in range(count)]


def parties_elsewhere(count: int) -> list[Party]:
    rng = np.random.default_rng(1)
    return [(points, bowl(points)) for points in rng.random((count, 12, 2))]


def mean_losses(parties: list[Party]) -> FloatArray:
    return np.asarray(np.mean([losses for _, losses in parties], axis=0))


def exact_process(
    points: FloatArray, losses: FloatArray, constant: float, length: float, noise: float
) -> tuple[FloatArray, float]:
    """The textbook posterior plus 0.1 deviations on the grid, and the log marginal likelihood."""

    def kernel(a: FloatArray, b: FloatArray) -> FloatArray:
        squares = ((a[:, None] - b[None]) ** 2).sum(axis=2)
        return np.asarray(constant * np.exp(-squares / (2 * length**2)))

    covariance = kernel(points, points) + noise * np.eye(len(points))
    cross = kernel(GRID, points)
    weights = np.linalg.solve(covariance, losses)
    variance = constant - np.einsum("ij,ji->i", cross, np.linalg.solve(covariance, cross.T))
    likelihood = -0.5 * (losses @ weights + np.linalg.slogdet(2 * np.pi * covariance)[1])
    return cross @ weights + 0.1 * np.sqrt(variance), float(likelihood)


@pytest.mark.parametrize("parties", [parties_on_the_grid(3), parties_elsewhere(3)])
def test_sgm_is_one_forest_on_all_pairs(parties: list[Party]) -> None:
    points, losses = np.vstack([p for p, _ in parties]), np.hstack([y for _, y in parties])
    direct = RandomForestRegressor(n_estimators=100, random_state=7).fit(points, losses)
    assert sgm(parties, GRID, seed=7).tolist() == pytest.approx(direct.predict(GRID).tolist())


def test_mplm_and_aplm_are_the_maximum_and_the_average_of_one_forest_per_party() -> None:
    parties, stream = parties_elsewhere(3), np.random.RandomState(7)
    forests = [RandomForestRegressor(random_state=stream).fit(*party) for party in parties]
    predictions = np.array([forest.predict(GRID) for forest in forests])
    assert np.array_equal(local_models(parties, GRID, seed=7), predictions)
    assert np.array_equal(mplm(parties, GRID, seed=7), predictions.max(axis=0))
    assert np.array_equal(aplm(parties, GRID, seed=7), predictions.mean(axis=0))


def test_with_one_party_three_surfaces_are_the_same() -> None:
    party = parties_elsewhere(1)
    assert np.array_equal(sgm(party, GRID, seed=3), mplm(party, GRID, seed=3))
    assert np.array_equal(sgm(party, GRID, seed=3), aplm(party, GRID, seed=3))


def test_the_seed_decides() -> None:
    parties = parties_elsewhere(2)
    assert np.array_equal(aplm(parties, GRID, seed=3), aplm(parties, GRID, seed=3))
    assert not np.array_equal(aplm(parties, GRID, seed=3), aplm(parties, GRID, seed=4))


def test_sgm_u_is_scikit_learns_process_on_all_pairs() -> None:
    parties = parties_elsewhere(2)
    points, losses = np.vstack([p for p, _ in parties]), np.hstack([y for _, y in parties])
    model = GaussianProcessRegressor(ConstantKernel() * RBF(10), alpha=1e-3).fit(points, losses)
    predicted, deviation = model.predict(GRID, return_std=True)
    found = sgm_u(parties, GRID, noise=1e-3)
    assert found.tolist() == pytest.approx((predicted + 0.1 * deviation).tolist(), abs=1e-4)
    bold = sgm_u(parties, GRID, noise=1e-3, caution=0.0)
    assert bold.tolist() == pytest.approx(predicted.tolist(), abs=1e-4)


def test_a_process_of_repeated_losses_is_that_of_their_means_for_every_kernel() -> None:
    parties, noise = parties_on_the_grid(6), 0.01
    points, losses = np.vstack([p for p, _ in parties]), np.hstack([y for _, y in parties])
    apart = []
    for constant, length in [(1.0, 10.0), (0.5, 0.4), (2.0, 0.1)]:
        merged, one = exact_process(points, losses, constant, length, noise)
        means, other = exact_process(GRID, mean_losses(parties), constant, length, noise / 6)
        assert means.tolist() == pytest.approx(merged.tolist(), abs=1e-9)
        apart.append(one - other)
    assert apart == pytest.approx([apart[0]] * 3)  # so the best kernel is the same


def test_fitted_to_repeated_losses_or_to_their_means_the_surface_is_the_same() -> None:
    parties = parties_on_the_grid(6)
    points, losses = np.vstack([p for p, _ in parties]), np.hstack([y for _, y in parties])
    model = GaussianProcessRegressor(ConstantKernel() * RBF(10), alpha=0.01).fit(points, losses)
    predicted, deviation = model.predict(GRID, return_std=True)
    direct = (predicted + 0.1 * deviation).tolist()
    found = sgm_u_of_means(GRID, mean_losses(parties), GRID, parties=6, noise=0.01)
    assert found.tolist() == pytest.approx(direct, abs=1e-4)
    assert sgm_u(parties, GRID, noise=0.01).tolist() == pytest.approx(found.tolist(), abs=1e-6)


def test_points_that_fewer_parties_have_seen_count_less() -> None:
    (points, losses), extra = parties_on_the_grid(1)[0], (GRID[:4], np.full(4, 0.3))
    means = np.r_[(losses[:4] + 0.3) / 2, losses[4:]]
    counts = [2] * 4 + [1] * (len(GRID) - 4)
    found = sgm_u_of_means(GRID, means, GRID, parties=counts, noise=0.01)
    merged = sgm_u([(points, losses), extra], GRID, noise=0.01)
    assert merged.tolist() == pytest.approx(found.tolist(), abs=1e-6)


def test_with_the_published_noise_the_choice_is_the_smallest_mean() -> None:
    parties = parties_on_the_grid(20)
    found = sgm_u(parties, GRID)
    assert found.tolist() == pytest.approx(mean_losses(parties).tolist(), abs=1e-4)
    assert found.argmin() == mean_losses(parties).argmin()


def test_sgm_of_means_is_a_forest_on_the_means() -> None:
    means = mean_losses(parties_on_the_grid(5))
    direct = RandomForestRegressor(random_state=2).fit(GRID, means).predict(GRID)
    assert np.array_equal(sgm_of_means(GRID, means, GRID, seed=2), direct)


def test_without_bootstrap_forests_on_means_and_on_all_pairs_agree_and_with_it_they_do_not() -> (
    None
):
    parties = parties_on_the_grid(5)
    points, losses = np.vstack([p for p, _ in parties]), np.hstack([y for _, y in parties])
    coarse = {"bootstrap": False, "random_state": 0, "max_leaf_nodes": 4}
    merged = RandomForestRegressor(**coarse).fit(points, losses).predict(GRID)
    means = RandomForestRegressor(**coarse).fit(GRID, mean_losses(parties)).predict(GRID)
    assert means.tolist() == pytest.approx(merged.tolist())
    smoother = sgm_of_means(GRID, mean_losses(parties), GRID, seed=0)
    assert np.std(smoother) < np.std(sgm(parties, GRID, seed=0))


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: sgm([], GRID, seed=0), "there are 0 parties; at least 1"),
        (lambda: mplm([], GRID, seed=0), "there are 0 parties; at least 1"),
        (
            lambda: aplm([(GRID[:0], np.empty(0))], GRID, seed=0),
            "shapes (0, 2) and (0,); allowed are (m, axes) and (m,) with m at least 1",
        ),
        (lambda: sgm_u([(GRID, np.ones(3))], GRID), "shapes (15, 2) and (3,); allowed"),
        (lambda: sgm([(GRID, np.ones(15)), ONE], GRID, seed=0), "points of [1, 2] axes; allowed"),
        (
            lambda: sgm([(ONE[0], np.array([math.inf]))], GRID, seed=0),
            "losses has 1 of 1 that are not finite; allowed are numbers: leave diverged ones out",
        ),
        (lambda: sgm_u([ONE], GRID, noise=0.0), "noise is 0.0 of "),
        (
            lambda: sgm_u_of_means(*ONE, ONE[0], parties=0.0, noise=0.1),
            "noise is 0.1 of 0.0 parties; allowed are numbers above 0",
        ),
        (
            lambda: sgm_u_of_means(GRID, bowl(GRID), GRID, parties=1, noise=1e-300),
            "variance of a mean is 1e-300; allowed is more",
        ),
    ],
)
def test_refusals_say_what_was_found_and_allowed(
    refused: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        refused()
