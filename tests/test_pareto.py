from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import pareto
from tacit.pareto import (
    ANTI_IDEAL,
    Front,
    Point,
    area,
    evaluate,
    front,
    gains,
    grid,
    hypervolume,
    poi,
    stairs,
    suggest,
)
from tacit.space import Choice, Config, Float, Int, Space


@dataclass(frozen=True)
class Known:
    """Epsilon falls with noise, the error grows with it; ``waste`` only harms, ``good`` helps."""

    delta = 1e-6
    name = "known"
    protects = "per record, replace-one"
    space = Space(
        {
            "noise": Float(0.1, 100.0, log=True),
            "waste": Int(0, 10),
            "kind": Choice(["bad", "good"]),
        }
    )

    def epsilon(self, config: Config) -> float:
        return 10 / float(config["noise"]) * (1 + 0.2 * float(config["waste"]))

    def errors(self, config: Config, seed: int) -> Any:
        middle = 0.05 + 0.4 * math.tanh(float(config["noise"]) / 10)
        middle += 0.02 * float(config["waste"]) + 0.1 * (config["kind"] == "bad")
        return middle + 0.005 * np.random.default_rng(seed).normal(size=8)

    def draw(self, rng: np.random.Generator) -> Config:
        return self.space.decode(rng.random(3))


def point(epsilon: float, error: float) -> Point:
    return Point({"e": epsilon, "u": error}, epsilon, (error,))


def searched(acquisition: str, count: int, batch: int = 1, seed: int = 0) -> Front:
    search = Front(Known(), acquisition, first=8, seed=seed)
    while len(search.points) < count:
        for config in search.propose(batch):
            search.tell(config, len(search.points))
    return search


def true_area() -> float:
    best = [(10 / noise, 0.05 + 0.4 * math.tanh(noise / 10)) for noise in np.logspace(-1, 2, 2000)]
    return area(best, ANTI_IDEAL)


@cache
def finished() -> Front:
    """A search that several tests read."""
    return searched("nehvi", 32)


# Fronts and volumes

PAIRS = st.lists(st.tuples(st.floats(0.01, 12.0), st.floats(0.0, 1.0)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=100)
@given(PAIRS)
def test_a_front_is_what_nobody_dominates(pairs: list[tuple[float, float]]) -> None:
    points = [point(*pair) for pair in pairs]
    kept = front(points)
    for one in kept:
        assert not any(
            other.epsilon <= one.epsilon
            and other.error <= one.error
            and (other.epsilon, other.error) != (one.epsilon, one.error)
            for other in points
        )
    assert hypervolume(kept) == pytest.approx(hypervolume(points))


@settings(deadline=None, max_examples=60)
@given(PAIRS)
def test_the_area_is_the_share_of_points_dominated(pairs: list[tuple[float, float]]) -> None:
    """Against a fine grid of squares."""
    epsilon, error = np.meshgrid((np.arange(400) + 0.5) / 40, (np.arange(200) + 0.5) / 200)
    covered = np.zeros(epsilon.shape, dtype=bool)
    for e, u in pairs:
        covered |= (epsilon >= e) & (error >= u)
    assert area(pairs, ANTI_IDEAL) == pytest.approx(10 * covered.mean(), abs=0.15)


@settings(deadline=None, max_examples=60)
@given(PAIRS, st.tuples(st.floats(0.01, 12.0), st.floats(0.01, 0.99)))
def test_gains_are_differences_of_areas(
    pairs: list[tuple[float, float]], new: tuple[float, float]
) -> None:
    mean = np.array([[math.log(new[0]), math.log(new[1] / (1 - new[1]))]])
    expected = area([*pairs, new], ANTI_IDEAL) - area(pairs, ANTI_IDEAL)
    assert gains(pairs, mean)[0] == pytest.approx(expected, abs=1e-9)


def test_the_probability_of_improvement_is_that_of_samples() -> None:
    pairs = [(0.5, 0.4), (2.0, 0.2), (6.0, 0.1), (30.0, 0.05)]
    means, deviations = np.array([[1.3, -1.0]]), np.array([[0.8, 0.6]])
    rng = np.random.default_rng(0)
    drawn = means + deviations * rng.normal(size=(200_000, 2))
    epsilon, error = np.exp(drawn[:, 0]), 1 / (1 + np.exp(-drawn[:, 1]))
    dominated = epsilon >= ANTI_IDEAL[0]
    for e, u in stairs(pairs):
        dominated |= (epsilon >= e) & (error >= u)
    assert poi(pairs, means, deviations)[0] == pytest.approx(1 - dominated.mean(), abs=0.005)


# Search


@pytest.mark.parametrize(("acquisition", "batch"), [("hvpoi", 1), ("nehvi", 1), ("nehvi", 3)])
def test_it_finds_more_of_the_front_than_chance(acquisition: str, batch: int) -> None:
    found = hypervolume(searched(acquisition, 32, batch).points)
    by_chance = [hypervolume(searched("random", 32, seed=s).points) for s in range(8)]
    assert found > max(by_chance)
    assert found > 0.97 * true_area()


def test_proposals_are_new_members_of_the_space() -> None:
    search = searched("hvpoi", 12)
    proposed = search.propose(6)
    for config in proposed:
        encoded = search.space.encode(config)  # refuses what is no member
        np.testing.assert_allclose(search.space.nearest([encoded])[0], encoded, atol=1e-12)
        assert all(config != known.config for known in search.points)
    assert len({str(config) for config in proposed}) == 6


@dataclass(frozen=True)
class Small(Known):
    """Six members in all."""

    space = Space({"noise": Choice([1.0, 10.0, 90.0]), "kind": Choice(["bad", "good"])})

    def epsilon(self, config: Config) -> float:
        return super().epsilon({**config, "waste": 0})

    def errors(self, config: Config, seed: int) -> Any:
        return super().errors({**config, "waste": 0}, seed)

    def draw(self, rng: np.random.Generator) -> Config:
        return self.space.decode(rng.random(2))


@pytest.mark.parametrize("acquisition", ["hvpoi", "nehvi"])
def test_a_space_that_is_used_up_is_measured_again(acquisition: str) -> None:
    search = Front(Small(), acquisition, first=4, seed=1)
    while len(search.points) < 12:
        for config in search.propose(2):
            search.tell(config, len(search.points))
    assert len({str(point.config) for point in search.points}) == 6
    assert hypervolume(search.points) > 0


def test_the_same_seed_proposes_the_same() -> None:
    one, other = (searched("nehvi", 12, seed=4) for _ in range(2))
    assert one.propose(2) == other.propose(2)


def test_a_third_objective_is_modelled_too() -> None:
    search = Front(Known(), "nehvi", first=8, third=lambda p: 1 + float(p.config["waste"]))
    while len(search.points) < 14:
        for config in search.propose(2):
            search.tell(config, len(search.points))
    means, deviations = search.model().predict(np.full((1, 3), 0.5))
    assert means.shape == deviations.shape == (1, 3)


def test_kernels_are_fitted_again_only_with_a_fifth_more_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits: list[bool] = []
    real = pareto._process

    def counted(inputs: Any, targets: Any, variances: Any, before: Any) -> Any:
        fits.append(before is None)
        return real(inputs, targets, variances, before)

    monkeypatch.setattr(pareto, "_process", counted)
    searched("hvpoi", 30)
    assert 6 <= sum(fits) < len(fits) / 2


def test_a_grid_crosses_everything() -> None:
    assert len(grid(Known(), 243)) <= 243
    assert {str(config["kind"]) for config in grid(Known(), 20)} == {"bad", "good"}


# Reading the front


@pytest.mark.parametrize("wished", [0.5, 2.0, 8.0])
def test_a_wished_epsilon_is_kept_and_its_error_predicted(wished: float) -> None:
    found = suggest(finished(), epsilon=wished)
    assert found.epsilon <= wished
    assert found.epsilon == Known().epsilon(found.config)
    truth = float(np.mean(Known().errors(found.config, 99)))
    assert found.low - 0.02 < truth < found.high + 0.02
    assert truth < 0.05 + 0.4 * math.tanh(10 / wished / 10) + 0.05, "near the true front"


def test_what_was_evaluated_answers_where_the_model_is_wrong_about_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that takes everything for cheap: all it likes best is dearer than the wish."""
    search = searched("hvpoi", 12)
    real = search.model()

    class Blind:
        def predict(self, encoded: Any) -> Any:
            means, deviations = real.predict(encoded)
            means[:, 0] = -9.0
            return means, deviations

    monkeypatch.setattr(search, "model", Blind)
    least = min(point.epsilon for point in search.points)
    assert suggest(search, epsilon=1.01 * least).epsilon == pytest.approx(least)
    with pytest.raises(ValueError, match="nothing is known"):
        suggest(search, epsilon=0.99 * least)


def test_a_wished_error_is_reached_cheaply() -> None:
    found = suggest(finished(), error=0.3)
    assert float(np.mean(Known().errors(found.config, 99))) < 0.32
    cheapest = 10 / (10 * math.atanh((0.3 - 0.05) / 0.4))
    assert found.epsilon < 1.5 * cheapest


def test_wishes_that_cannot_be_met_are_refused() -> None:
    search = searched("hvpoi", 12)
    with pytest.raises(ValueError, match=r"nothing is known that reaches epsilon 0\.001"):
        suggest(search, epsilon=0.001)
    with pytest.raises(ValueError, match=r"nothing is known that reaches error 0\.001"):
        suggest(search, error=0.001)
    with pytest.raises(ValueError, match="allowed is one of them"):
        suggest(search)
    with pytest.raises(ValueError, match="allowed are hvpoi, nehvi, random, grid"):
        Front(Known(), "ucb")


def test_points_survive_a_file() -> None:
    found = evaluate(Known(), {"noise": 1.0, "waste": 3, "kind": "bad"}, 0)
    assert Point.from_json(found.to_json()) == found
