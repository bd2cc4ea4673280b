from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.cells import Cells, chosen
from tacit.optima import (
    BoolArray,
)
from tacit.space import Choice, Float, FloatArray, Int, Space
from tests.points import LINE, SQUARE, on_a_line, points_of

patient = settings(deadline=None, max_examples=50)


def brute_force_components(cells: Cells, dense: BoolArray) -> set[frozenset[int]]:
    """Merge groups that touch until none do; two cells touch if one step of one number apart."""
    numeric = [not isinstance(axis, Choice) for axis in cells.space.dimensions.values()]
    places = list(product(*map(range, cells.shape)))

    def touch(one: int, other: int) -> bool:
        steps = [abs(a - b) for a, b in zip(places[one], places[other], strict=True)]
        return sum(steps) == 1 and numeric[steps.index(1)]

    groups = [frozenset([int(cell)]) for cell in np.flatnonzero(dense)]
    for _ in range(len(groups)):
        for group in groups:
            near = [g for g in groups if g == group or any(touch(a, b) for a in g for b in group)]
            if len(near) > 1:
                groups = [g for g in groups if g not in near] + [frozenset().union(*near)]
                break
    return set(groups)


def corners(cells: Cells, cell: int) -> tuple[FloatArray, FloatArray]:
    place, shape = np.array(np.unravel_index(cell, cells.shape)), np.array(cells.shape)
    options = [isinstance(axis, Choice) for axis in cells.space.dimensions.values()]
    option = place / np.maximum(shape - 1, 1)
    last = np.minimum((place + 1) * cells.size, 1.0)
    return np.where(options, option, place * cells.size), np.where(
        options, option, np.where(shape == 1, 1.0, last)
    )


SMALL = [
    Cells(SQUARE, 0.3),
    Cells(SQUARE, 0.15),
    Cells(Space({**SQUARE.dimensions, "optimizer": Choice(["sgd", "adam", "adagrad"])}), 0.4),
    Cells(Space({**SQUARE.dimensions, "layers": Int(1, 9), "fixed": Int(3, 3)}), 0.4),
    Cells(Space({"optimizer": Choice(["sgd", "adam"])})),
]
some_cells = pytest.mark.parametrize("cells", SMALL)


@some_cells
@patient
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.2, 0.4, 0.6, 1.0]))
def test_clusters_are_the_connected_components(cells: Cells, seed: int, share: float) -> None:
    dense = np.random.default_rng(seed).random(cells.count) < share
    labels = cells.clusters(dense)
    found = [frozenset(np.flatnonzero(labels == i).tolist()) for i in range(labels.max() + 1)]
    assert set(found) == brute_force_components(cells, dense)
    assert [min(group) for group in found] == sorted(min(group) for group in found)
    assert ((labels >= 0) == dense).all()


@some_cells
@patient
@given(seed=st.integers(0, 10_000))
def test_assignment_is_that_of_the_paper(cells: Cells, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.random(cells.count) < 0.4
    points = points_of(cells.space, 20, seed)
    for point, found in zip(points, cells.assign(points, dense), strict=True):
        own = int(cells.of(point[None])[0])
        gaps = {
            near: sum((point - np.clip(point, *corners(cells, near))) ** 2)
            for near in cells.neighbours(own)
        }
        closest = min(gaps, key=lambda near: round(math.sqrt(gaps[near]), 12), default=-1)
        assert cells.closest(point) == closest
        moved = closest if closest >= 0 and dense[closest] else -1
        assert found == (own if dense[own] else moved)


@some_cells
def test_a_centre_lies_in_its_cell_and_neighbours_are_mutual(cells: Cells) -> None:
    every = range(cells.count)
    assert cells.of(np.array([cells.centre(cell) for cell in every])).tolist() == list(every)
    assert all(cell in cells.neighbours(near) for cell in every for near in cells.neighbours(cell))


def test_the_square_has_seven_times_seven_cells_the_last_ones_cut_short() -> None:
    cells = Cells(SQUARE)
    assert cells.count == 49
    assert cells.centre(48).tolist() == pytest.approx([0.95, 0.95])
    borders = on_a_line(0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
    assert Cells(LINE).of(borders).tolist() == [0, 1, 2, 3, 4, 5, 6, 6]
    assert Cells(LINE, 0.1).of(on_a_line(0.3, 0.6, 0.7)).tolist() == [3, 6, 7]
    assert sorted(cells.neighbours(8)) == [1, 7, 9, 15]
    assert sorted(cells.neighbours(0)) == [1, 7]
    assert cells.of(np.empty((0, 2))).tolist() == []


def test_the_closest_cell_by_hand() -> None:
    cells = Cells(SQUARE)
    assert cells.closest(np.array([0.16, 0.22])) == 1
    assert cells.closest(np.array([0.22, 0.29])) == 9
    assert cells.closest(np.array([0.0, 0.0])) == 7  # a tie: the first axis
    assert cells.closest(np.array([1.0, 0.95])) == 47
    assert Cells(Space({"optimizer": Choice(["sgd", "adam"])})).closest(np.array([1.0])) == -1


def test_a_point_is_dropped_if_its_closest_cell_is_sparse_though_another_is_dense() -> None:
    dense = np.zeros(7, dtype=bool)
    dense[0] = True
    points = on_a_line(0.05, 0.16, 0.29, 0.5)
    assert Cells(LINE).assign(points, dense).tolist() == [0, 0, -1, -1]


def test_a_number_with_a_single_member_has_a_single_cell() -> None:
    cells = Cells(Space({"rate": Float(0.1, 0.1), "layers": Int(1, 9)}))
    assert cells.shape == (1, 7)
    assert cells.neighbours(0) == [1]


def test_neighbours_in_three_dimensions_are_six() -> None:
    cells = Cells(Space({name: Float(0.0, 1.0) for name in "abc"}))
    assert len(cells.neighbours(171)) == 6
    assert np.abs(cells.centre(171) - cells.centre(171 + 49)).tolist() == pytest.approx(
        [0.15, 0, 0]
    )


def test_the_best_cluster_by_hand() -> None:
    cells = Cells(LINE)
    labels = np.array([0, 0, -1, 1, -1, 2, -1])
    totals = np.array([1.0, 3.0, 9.0, 2.0, 0.0, 1.0, 0.0])
    sums = np.array([0.1, 0.6, 9.0, 1.0, 0.0, 0.8, 0.0])[:, None]
    accuracy_sums = np.array([0.5, 1.5, 9.0, 1.8, 0.0, 0.9, 0.0])
    found = chosen(labels, sums, accuracy_sums, totals)
    assert found is not None
    assert (found.cell, found.point.tolist(), found.accuracy) == (3, [0.5], 0.9)
    assert cells.config(found) == {"rate": 0.5}
    rest = chosen(labels, sums, np.where(labels == 0, 4.0, accuracy_sums), totals)
    assert rest is not None
    assert rest.point.tolist() == pytest.approx([0.7 / 4])


def test_clusters_without_a_positive_total_are_passed_over() -> None:
    labels, sums = np.array([0, 1, -1]), np.array([[0.1], [0.2], [0.3]])
    found = chosen(labels, sums, np.array([-5.0, 0.5, 9.0]), np.array([-2.0, 1.0, 3.0]))
    assert found is not None
    assert found.cell == 1
    assert chosen(labels, sums, sums[:, 0], np.array([0.0, -1.0, 3.0])) is None
    assert chosen(np.full(3, -1), sums, sums[:, 0], np.ones(3)) is None


def test_noisy_sums_change_no_option_and_leave_no_space() -> None:
    space = Space({"rate": Float(0.0, 1.0), "optimizer": Choice(["sgd", "adam", "adagrad"])})
    cells = Cells(space)
    own = space.encode({"rate": 0.9, "optimizer": "adam"})
    labels = cells.clusters(np.arange(cells.count) == cells.of(own[None])[0])
    found = chosen(labels, np.full((cells.count, 2), 7.0), np.ones(21), np.ones(21))
    assert found is not None
    assert cells.config(found) == {"rate": 1.0, "optimizer": "adam"}


def test_algorithm_3_from_points_to_a_configuration() -> None:
    good = [[0.31, 0.62], [0.33, 0.64], [0.44, 0.7], [0.46, 0.7]]
    points = np.array([*good, [0.29, 0.68], [0.95, 0.05]])
    accuracies = np.array([0.9, 0.9, 0.8, 0.8, 0.7, 0.99])
    cells = Cells(SQUARE)
    dense = np.bincount(cells.of(points), minlength=cells.count) >= 3
    assigned = cells.assign(points, dense)
    assert assigned.tolist() == [18, 18, 18, 18, 18, -1]
    kept = assigned >= 0
    sums = np.zeros((cells.count, 2))
    np.add.at(sums, assigned[kept], points[kept])
    totals = np.bincount(assigned[kept], minlength=cells.count).astype(float)
    accuracy_sums = np.zeros(cells.count)
    np.add.at(accuracy_sums, assigned[kept], accuracies[kept])
    found = chosen(cells.clusters(dense), sums, accuracy_sums, totals)
    assert found is not None
    assert found.point.tolist() == pytest.approx(points[:5].mean(axis=0).tolist())
    assert found.accuracy == pytest.approx(0.82)


# Refusals


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: Cells(LINE, 0.0), "size is 0.0; allowed is above 0, up to 1"),
        (lambda: Cells(LINE, 1e-5), "100000 cells of size 1e-05; allowed are up to 10000"),
        (lambda: Cells(LINE).centre(7), "cell is 7; allowed is 0 to 6"),
        (lambda: Cells(LINE).clusters(np.ones(8, dtype=bool)), "shape (8,); allowed is (7,)"),
        (lambda: chosen(np.zeros(2, int), np.ones(2), np.ones(2), np.ones(2)), "shapes are [(2,),"),
    ],
)
def test_refusals_say_what_was_found_and_allowed(
    refused: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        refused()
