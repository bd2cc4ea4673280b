"""Lots of units: whole groups, in arrays that tell nothing of who else is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from tacit import dp_training
from tacit.data.examples import Examples
from tacit.dp_training import Recipe, Run, Secret, Seeded, train
from tacit.lots import Units, packed, poisson_sample, scattered

RNG = np.random.default_rng(2)


def units_of(count: int, groups: Any = None) -> Units:
    return Units(Examples(np.zeros((count, 1), np.float32), np.zeros(count, np.int64), groups))


@pytest.mark.parametrize(("rows", "rate"), [(4000, 0.016), (4000, 0.064), (300, 0.5), (20, 0.1)])
def test_lots_fit_their_places_but_once_in_2_to_the_64(rows: int, rate: float) -> None:
    places = units_of(rows).places(rate)
    assert binom.sf(places, rows, rate) <= 2.0**-64
    assert places <= rows


def test_lots_of_groups_fit_their_places() -> None:
    """One group of four and many of one: places allow for every lot of ten thousand."""
    groups = np.concatenate([np.zeros(4, np.int64), np.arange(1, 2001)])
    units = units_of(2004, groups)
    most = max(len(units.rows(poisson_sample(len(units), 0.05))) for _ in range(10_000))
    assert most < units.places(0.05) < 500


def test_arrays_have_the_same_shape_whoever_is_in() -> None:
    units = units_of(2000)
    shapes = {
        Secret().placed(units, [np.arange(size)] * 2, 0.05)[0].shape for size in (0, 1, 99, 200)
    }
    assert shapes == {(2, units.places(0.05))}
    assert packed(units, [np.arange(3), np.arange(5)])[0].shape == (2, 5)


def test_places_are_random_and_nobody_is_lost() -> None:
    """The first row of a lot is at any of 60 places, each as often within 6.5 deviations."""
    units = units_of(60)
    found = np.zeros(60)
    for _ in range(3000):
        rows, weights = scattered(units, [np.arange(5, 25)], 1.0)
        assert sorted(rows[weights > 0].tolist()) == list(range(5, 25))
        found[(rows[0] == 5) & (weights[0] > 0)] += 1
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
    rows = dp_training._with_one(features)[None]
    before, _ = dp_training._forward(models.layers, rows)
    for place in (0, 17, 154):
        other = rows.copy()
        other[0, place] = 1e3
        after, _ = dp_training._forward(models.layers, other)
        assert (after[0, place] != before[0, place]).any()
        after[0, place] = before[0, place]
        np.testing.assert_array_equal(after, before)
