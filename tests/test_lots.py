"""Lots of units: whole groups, in arrays that tell nothing of who else is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from tacit import dp_training
from tacit.data.examples import Examples
from tacit.dp_training import Recipe, Run, Secret, Seeded, train
from tacit.lots import PLACES, Units, packed, scattered
from tacit.privacy.clipped_sum import MOST_ROWS

RNG = np.random.default_rng(2)


def units_of(count: int, groups: Any = None) -> Units:
    return Units(Examples(np.zeros((count, 1), np.float32), np.zeros(count, np.int64), groups))


@pytest.mark.parametrize(("rows", "rate"), [(4000, 0.016), (4000, 0.064), (300, 0.5), (20, 0.1)])
def test_lots_fit_their_places_but_once_in_2_to_the_64(rows: int, rate: float) -> None:
    places = units_of(rows).places(rate)
    assert binom.sf(places, rows, rate) <= 2.0**-64
    assert places <= rows


def test_arrays_have_the_same_shape_whoever_is_in() -> None:
    units = units_of(2000)
    shapes = {
        Secret().placed(units, [np.arange(size)] * 2, 0.05)[0].shape for size in (0, 1, 99, 200)
    }
    assert shapes == {(2, 1, units.places(0.05))}
    assert packed(units, [np.arange(3), np.arange(5)])[0].shape == (2, 1, 5)


def test_places_are_random_and_nobody_is_lost() -> None:
    """The first row of a lot is at any of 60 places, each as often within 6.5 deviations."""
    units = units_of(60)
    found = np.zeros(60)
    for _ in range(3000):
        rows, weights = scattered(units, [np.arange(5, 25)], 1.0)
        assert sorted(rows[weights > 0].tolist()) == list(range(5, 25))
        found[(rows[0, 0] == 5) & (weights[0, 0] > 0)] += 1
    assert found.sum() == 3000
    assert np.abs(found - 50).max() < 6.5 * np.sqrt(50)


@pytest.mark.parametrize("hidden", [(), (64, 64)])
def test_at_equal_places_nothing_that_a_row_adds_depends_on_another(
    hidden: tuple[int, ...],
) -> None:
    """One row in the place of another: all scores of the others are equal to the last bit."""
    features = RNG.normal(size=(155, 105)).astype(np.float32)
    examples = Examples(features, RNG.integers(0, 3, 155))
    models = train(Recipe(hidden, lot=20, steps=3), [Run(0.5, 1.0, 1.0)], examples, 3, Seeded(0))
    rows = dp_training._with_one(features)[None, None]
    before, _ = dp_training._forward(models.layers, rows)
    for place in (0, 17, 154):
        other = rows.copy()
        other[0, 0, place] = 1e3
        after, _ = dp_training._forward(models.layers, other)
        assert (after[0, 0, place] != before[0, 0, place]).any()
        after[0, 0, place] = before[0, 0, place]
        np.testing.assert_array_equal(after, before)


# Rows that belong together

SIZES = [1, 2, 40, 3, 1, 7, 1, 1, 5, 2] * 6


def patients(sizes: list[int], victim: int) -> Examples:
    """Groups whose rows are known by the group's position and their own index.

    All rows of the victim are other rows in every world.
    """
    rows = [
        np.random.default_rng((unit, index, unit == victim and size)).normal(size=105)
        for unit, size in enumerate(sizes)
        for index in range(size)
    ]
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return Examples(np.array(rows, np.float32), groups % 3, groups)


def of_others(examples: Examples, victim: int, rows: Any, values: Any) -> dict[Any, bytes]:
    """The bytes of what was computed for each row that is not the victim's."""
    groups = np.asarray(examples.groups)
    begin = np.searchsorted(groups, groups)
    return {
        (groups[row], row - begin[row]): value.tobytes()
        for row, value in zip(rows, values, strict=True)
        if groups[row] != victim
    }


def worlds(victim: int) -> list[Examples]:
    """The same but for one group, which has another number of rows in each."""
    return [
        patients([*SIZES[:victim], rows, *SIZES[victim + 1 :]], victim) for rows in (1, 2, 5, 90)
    ]


@pytest.mark.parametrize("victim", [0, 2, 33, 59])
@pytest.mark.parametrize("hidden", [(), (64, 64)])
def test_a_group_with_more_rows_changes_no_bit_of_what_others_add(
    hidden: tuple[int, ...], victim: int
) -> None:
    """Replaced by groups of one, two, five and ninety rows, and not in the lot at all."""
    lot = np.unique(np.append(np.arange(0, len(SIZES), 3), victim))
    found: list[Any] = []
    for examples in worlds(victim):
        start = train(Recipe(hidden, lot=20, steps=3), [Run(0.5, 1.0, 1.0)], TEN, 3, Seeded(0))
        for own in (lot, lot[lot != victim]):
            rows, weights = Secret().placed(Units(examples), [own], 0.3)
            scores, into = dp_training._forward(
                start.layers, dp_training._with_one(examples.features[rows])
            )
            back = dp_training._slope("logistic", scores, examples.labels[rows])
            there = weights > 0
            computed = np.concatenate([*into, scores, back], axis=-1).astype(np.float64)
            squares = dp_training._squares(computed)
            values = np.concatenate([computed, squares[..., None], weights[..., None]], axis=-1)
            found.append(of_others(examples, victim, rows[there], values[there]))
    assert all(other == found[0] for other in found[1:])
    assert len(found[0]) == sum(SIZES[unit] for unit in lot if unit != victim)


TEN = Examples(RNG.normal(size=(40, 105)).astype(np.float32), RNG.integers(0, 3, 40))


@pytest.mark.parametrize("victim", [0, 33])
def test_a_group_with_more_rows_changes_no_answer_about_others(victim: int) -> None:
    """Rows on a kink of the model, where a last bit decides whether an answer is right."""
    models = train(Recipe((8,), lot=20, steps=1), [Run(0.5, 1.0, 1.0)], TEN, 3, Seeded(0))
    first, last = models.layers
    found = []
    for examples in worlds(victim):
        others = examples.groups != victim
        row = examples.features[others][0]
        examples.features[others] = row
        first[:], last[:] = first[:, :1], 0
        first[..., -1] = -(first[..., :-1].astype(np.float64) @ row)
        last[:, 1, :-1] = 1
        found.append(models.right(examples, chunk=100)[0, others])
    assert all(np.array_equal(other, found[0]) for other in found[1:])


def test_every_row_is_in_a_block_once() -> None:
    examples = patients(SIZES, 0)
    units = Units(examples)
    for at_once in (1, 100, 10_000):
        blocks = np.concatenate(list(units.every_row(at_once)))
        assert blocks.shape[1] == PLACES
        assert sorted(blocks[blocks >= 0].tolist()) == list(range(len(examples)))
    alone = np.concatenate([part[0] for part in units_of(70).every_row(32)])
    assert alone.tolist() == list(range(70))


def test_whether_data_are_refused_does_not_depend_on_the_rows_of_a_group() -> None:
    """Of 2^18 groups each adds its first four rows at most, so that a sum has 2^20."""
    many = 2**18
    groups: npt.NDArray[np.int64] = np.concatenate([np.arange(many), np.zeros(9, np.int64)])
    units = units_of(len(groups), groups)
    rows = units.rows(np.array([0, 1]))
    assert rows.tolist() == [0, many, many + 1, many + 2, 1]
    assert units.weights[rows].tolist() == [0.25] * 4 + [1.0]
    assert len(units.rows(np.arange(many))) <= MOST_ROWS
