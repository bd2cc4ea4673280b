from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN

from tacit.optima import (
    LocalOptima,
    best_share,
    dbscan,
    decode_linear,
    linear,
    linear_points,
    mean,
    median,
    promising,
    trimmed_mean,
)
from tacit.space import Choice, Config, Float, FloatArray, Int, Space
from tests.points import LINE, SPACE, SQUARE, encoded, on_a_line, points_of

COMBINATIONS: list[Callable[[Space, FloatArray], Config]] = [mean, median, trimmed_mean]

patient = settings(deadline=None, max_examples=50)
bounds = st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)).map(sorted)
whole_bounds = st.tuples(st.integers(1, 1000), st.integers(1, 1000)).map(sorted)
floats = st.builds(lambda ends, log: Float(ends[0], ends[1], log), bounds, st.booleans())
ints = st.builds(lambda ends, log: Int(ends[0], ends[1], log), whole_bounds, st.booleans())
choices = st.integers(1, 5).map(lambda count: Choice([f"option {i}" for i in range(count)]))
spaces = st.lists(floats | ints | choices, min_size=1, max_size=4).map(
    lambda axes: Space({f"axis {i}": axis for i, axis in enumerate(axes)})
)


def rate(config: Config) -> float:
    assert isinstance(config["rate"], float)
    return config["rate"]


# Combinations


def test_optima_are_best_first_and_equals_keep_their_order() -> None:
    optima = LocalOptima(on_a_line(0.1, 0.2, 0.3, 0.4), np.array([0.5, 0.9, 0.5, 0.9]))
    assert optima.points.ravel().tolist() == [0.2, 0.4, 0.1, 0.3]
    assert optima.accuracies.tolist() == [0.9, 0.9, 0.5, 0.5]


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (19, 1), (24, 1), (49, 2), (100, 5)])
def test_the_best_share_is_rounded_down_but_never_empty(count: int, kept: int) -> None:
    accuracies = np.linspace(0.0, 1.0, count)
    found = best_share(on_a_line(*np.linspace(0.0, 1.0, count)), accuracies)
    assert found.accuracies.tolist() == accuracies[::-1][:kept].tolist()


def test_the_best_share_takes_the_first_of_equals() -> None:
    found = best_share(on_a_line(0.3, 0.1, 0.2), np.array([0.5, 0.5, 0.5]), share=0.7)
    assert found.points.ravel().tolist() == [0.3, 0.1]


def test_mean_by_hand_on_every_kind_of_axis() -> None:
    points = encoded(
        {"rate": 1e-4, "layers": 1, "optimizer": "sgd"},
        {"rate": 1e-2, "layers": 2, "optimizer": "adagrad"},
        {"rate": 1e-3, "layers": 5, "optimizer": "adagrad"},
    )
    found = mean(SPACE, points)
    assert rate(found) == pytest.approx(1e-3)
    assert (found["layers"], found["optimizer"]) == (3, "adagrad")


def test_median_by_hand_ignores_an_outlier_and_halves_an_even_number() -> None:
    points = encoded(
        {"rate": 1e-4, "layers": 1, "optimizer": "sgd"},
        {"rate": 1e-3, "layers": 2, "optimizer": "adam"},
        {"rate": 1e-2, "layers": 4, "optimizer": "adam"},
        {"rate": 1.0, "layers": 5, "optimizer": "sgd"},
    )
    assert rate(median(SPACE, points)) == pytest.approx(10**-2.5)
    assert median(SPACE, points)["layers"] == 3
    assert median(SPACE, points[:3])["layers"] == 2


@pytest.mark.parametrize(("count", "cut"), [(9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_trimmed_mean_cuts_a_tenth_on_either_side(count: int, cut: int) -> None:
    column = np.random.default_rng(count).random(count) ** 3
    kept = sorted(column)[cut : count - cut]
    assert rate(trimmed_mean(LINE, column[:, None])) == pytest.approx(sum(kept) / len(kept))


def test_trimmed_mean_trims_each_axis_by_its_own_order_and_no_options() -> None:
    space = Space({**SQUARE.dimensions, "optimizer": Choice(["sgd", "adam"])})
    column = np.array([1.0] + [0.5] * 8 + [0.0])
    points = np.column_stack([column, [0.4, 0.3, 1.0] + [0.5] * 7, [1.0] * 6 + [0.0] * 4])
    found = trimmed_mean(space, points)
    assert found == {"rate": 0.5, "momentum": pytest.approx(0.4875), "optimizer": "adam"}


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_options_are_never_averaged_and_a_tie_goes_to_the_first(
    combine: Callable[[Space, FloatArray], Config],
) -> None:
    either = [{"rate": 0.1, "layers": 1, "optimizer": name} for name in ("adagrad", "sgd")]
    assert combine(SPACE, encoded(*either))["optimizer"] == "sgd"
    assert combine(SPACE, encoded(*either, either[0]))["optimizer"] == "adagrad"


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_one_client_alone_gets_its_own_point(
    combine: Callable[[Space, FloatArray], Config],
) -> None:
    config: Config = {"rate": 0.01, "layers": 4, "optimizer": "adam"}
    found = combine(SPACE, encoded(config))
    assert {**found, "rate": pytest.approx(rate(found))} == config


@patient
@given(space=spaces, count=st.integers(1, 30), seed=st.integers(0, 1000))
def test_every_combination_is_a_member_of_the_space(space: Space, count: int, seed: int) -> None:
    points = points_of(space, count, seed)
    clients = [LocalOptima(points, np.random.default_rng(seed).random(count))]
    linearly = linear_points(space, map(space.decode, points))
    for combine in COMBINATIONS:
        space.encode(combine(space, points))
        space.encode(combine(linear(space), linearly))
    space.encode(dbscan(space, clients, min_samples=2).config)


def test_the_linear_scale_is_that_of_the_values() -> None:
    configs: list[Config] = [
        {"rate": 1e-4, "layers": 1, "optimizer": "sgd"},
        {"rate": 0.5, "layers": 2, "optimizer": "sgd"},
    ]
    points = linear_points(SPACE, configs)
    assert points[:, 0].tolist() == pytest.approx([0.0, (0.5 - 1e-4) / (1 - 1e-4)])
    assert rate(mean(linear(SPACE), points)) == pytest.approx((0.5 + 1e-4) / 2)
    for config, point in zip(configs, points, strict=True):
        again = decode_linear(SPACE, point)
        assert {**again, "rate": pytest.approx(rate(again))} == config
    assert linear_points(SPACE, []).shape == (0, 3)


# DBSCAN


def test_promising_by_hand() -> None:
    points = on_a_line(0.0, 0.2, 0.4, 0.6)
    assert len(promising(LocalOptima(points, np.array([1.0, 0.85, 0.84, 0.1])))) == 2
    assert len(promising(LocalOptima(points, np.array([0.39, 0.1, 0.1, 0.1])))) == 0
    assert len(promising(LocalOptima(points, np.array([0.9, 0.89, 0.88, 0.87])))) == 0
    assert len(promising(LocalOptima(points[:0], np.array([])))) == 0
    many = LocalOptima(on_a_line(*np.linspace(0, 1, 30)), np.r_[np.full(29, 0.9), 0.1])
    assert promising(many).points.tolist() == many.points[:10].tolist()


@patient
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 8), neighbours=st.integers(1, 5))
def test_labels_are_those_of_scikit_learn(seed: int, clients: int, neighbours: int) -> None:
    rng = np.random.default_rng(seed)
    optima = [LocalOptima(rng.random((12, 2)), rng.random(12)) for _ in range(clients)]
    found = dbscan(SQUARE, optima, min_samples=neighbours)
    kept = []
    for client in optima:
        best = client.accuracies[0]
        rows = [i for i, accuracy in enumerate(client.accuracies) if accuracy >= 0.85 * best]
        kept += list(client.points[rows[:10]]) if best >= 0.4 and len(rows) < 12 else []
    labels = DBSCAN(eps=0.3, min_samples=neighbours).fit_predict(np.array(kept)) if kept else []
    assert found.points.tolist() == np.array(kept).reshape(-1, 2).tolist()
    assert found.labels.tolist() == list(labels)


def two_groups(right: float) -> list[LocalOptima]:
    """Three clients good at the left, two at the right, and a candidate that all find bad."""
    lefts = [LocalOptima(on_a_line(x, 0.5), np.array([0.9, 0.1])) for x in (0.0, 0.1, 0.2)]
    rights = [LocalOptima(on_a_line(x, 0.5), np.array([right, 0.1])) for x in (0.9, 1.0)]
    return lefts + rights


def test_only_the_most_accurate_cluster_is_kept() -> None:
    found = dbscan(LINE, two_groups(right=0.8))
    assert found.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.centroids.ravel().tolist() == pytest.approx([0.1, 0.95])
    assert found.accuracies.tolist() == pytest.approx([0.9, 0.8])
    assert found.kept.tolist() == [True, False]
    assert rate(found.config) == pytest.approx(0.1)
    assert not found.fell_back


def test_the_points_of_all_kept_clusters_are_combined_together() -> None:
    found = dbscan(LINE, two_groups(right=0.86))
    assert found.kept.all()
    assert rate(found.config) == pytest.approx((0.0 + 0.1 + 0.2 + 0.9 + 1.0) / 5)


def test_without_a_cluster_the_clients_winners_are_averaged_and_flagged() -> None:
    apart = [LocalOptima(on_a_line(x, 0.5), np.array([0.9, 0.1])) for x in (0.0, 0.4, 1.0)]
    weak = LocalOptima(on_a_line(0.6, 0.5), np.array([0.2, 0.1]))
    sparse = dbscan(LINE, [*apart, weak])
    assert sparse.fell_back
    assert sparse.labels.tolist() == [-1, -1, -1]
    assert rate(sparse.config) == pytest.approx((0.0 + 0.4 + 1.0 + 0.6) / 4)
    nobody = dbscan(LINE, [weak])
    assert nobody.fell_back
    assert (nobody.points.shape, nobody.centroids.shape, len(nobody.kept)) == ((0, 1), (0, 1), 0)
    assert rate(nobody.config) == 0.6


def test_the_default_density_is_twice_the_number_of_axes() -> None:
    same = [LocalOptima(np.array([[0.5, 0.5], [0, 0]]), np.array([0.9, 0.1]))] * 4
    assert not dbscan(SQUARE, same).fell_back
    assert dbscan(SQUARE, same[:3]).fell_back
    assert not dbscan(SQUARE, same[:3], min_samples=2).fell_back


def test_different_options_are_never_in_one_cluster() -> None:
    space = Space({"optimizer": Choice([f"option {i}" for i in range(11)])})
    clients = [LocalOptima(on_a_line(x, 1.0), np.array([0.9, 0.1])) for x in (0.2, 0.2, 0.3, 0.3)]
    found = dbscan(space, clients)
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.config == {"optimizer": "option 2"}
    assert dbscan(space, clients, eps=1.01).labels.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: mean(SQUARE, np.empty((0, 2))), "shape (0, 2); allowed is (m, 2) with m at least"),
        (lambda: median(SQUARE, np.zeros((3, 1))), "shape (3, 1); allowed is (m, 2)"),
        (lambda: mean(LINE, on_a_line(0.5, 1.5)), "from 0.5 to 1.5; allowed is 0 to 1"),
        (lambda: mean(LINE, on_a_line(math.nan)), "from nan to nan; allowed is 0 to 1"),
        (lambda: trimmed_mean(LINE, on_a_line(0.5), 0.5), "share is 0.5; allowed is from 0 to"),
        (lambda: best_share(on_a_line(0.5), np.ones(1), 0.0), "share is 0.0; allowed is above 0"),
        (lambda: best_share(np.empty((0, 1)), np.empty(0)), "no candidates; at least 1"),
        (lambda: LocalOptima(on_a_line(0.5), np.ones(2)), "shapes (1, 1) and (2,); allowed are"),
        (lambda: LocalOptima(on_a_line(0.5), np.array([math.nan])), "is [nan]; allowed are finite"),
        (lambda: dbscan(LINE, []), "found 0 clients without candidates; at least 1"),
    ],
)
def test_refusals_say_what_was_found_and_allowed(
    refused: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        refused()
