"""The grid of DP-SGD's sums, and that no record moves a snapped sum by more than is charged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tacit import dp_training
from tacit.data.examples import Examples
from tacit.dp_training import Recipe, Run, Seeded, train
from tacit.privacy.clipped_sum import (
    MARGIN,
    MOST_PARAMETERS,
    MOST_ROWS,
    charged_sensitivity,
    check_sum,
    grid_step,
    snapped,
)

RNG = np.random.default_rng(5)
OUTLIERS = [0.0, 1e-45, 1e-38, 1e-20, 1.0, 1e5, 1e18, 1e19, 3e38, np.inf, np.nan]


@pytest.mark.parametrize("parameters", [1, 2, 106, 10**5])
@pytest.mark.parametrize("clip", [1e-6, 0.1, 1.0, 2.0**14, 1e6])
def test_the_grid_is_a_power_of_two_and_costs_little(clip: float, parameters: int) -> None:
    step = float(grid_step(clip, parameters))
    assert math.frexp(step)[0] == 0.5
    assert step * math.sqrt(parameters) <= clip / 2**14 < 2 * step * math.sqrt(parameters)
    charged = float(charged_sensitivity(clip, parameters))
    assert clip * (1 + MARGIN) < charged < clip * 1.001


@pytest.mark.parametrize("hidden", [(), (7, 4)])
@pytest.mark.parametrize("clip", [1e-3, 0.5, 50.0])
@pytest.mark.parametrize("outlier", OUTLIERS)
def test_no_record_moves_a_snapped_sum_by_more_than_is_charged(
    hidden: tuple[int, ...], clip: float, outlier: float
) -> None:
    """Whatever the record is: with it and without it, and in the place of another."""
    features = RNG.normal(size=(400, 5)).astype(np.float32)
    labels = RNG.integers(0, 3, 400)
    start = train(
        Recipe(hidden, lot=40, steps=5),
        [Run(0.5, 1.0, 1.0)],
        Examples(features, labels),
        3,
        Seeded(1),
    )
    features[-1] = outlier
    parameters = sum(layer[0].size for layer in start.layers)
    charged = float(charged_sensitivity(clip, parameters))
    step = grid_step(clip, parameters)

    def sum_of(rows: Any) -> Any:
        own = dp_training._with_one(features[rows])[None, None]
        squares = dp_training._squares(own.astype(np.float64))
        lots = dp_training._Lots(own, labels[rows][None, None], squares, None)
        with np.errstate(all="ignore"):
            sums = dp_training._clipped_sums(
                Recipe(hidden), start.layers, lots, np.full((1, 1, 1), clip)
            )
        return np.concatenate([snapped(part, step).ravel() for part in sums]) * step

    without, with_it, replaced = (
        sum_of(rows) for rows in (np.arange(399), np.arange(400), np.r_[1:400])
    )
    assert np.linalg.norm(with_it - without) <= charged
    assert np.linalg.norm(replaced - without) <= 2 * charged


@pytest.mark.parametrize(
    ("clip", "units", "parameters", "match"),
    [
        (0.0, 10, 10, r"allowed is a number from 2\^-60 to 2\^60"),
        (math.nan, 10, 10, r"allowed is a number from 2\^-60 to 2\^60"),
        (math.inf, 10, 10, r"allowed is a number from 2\^-60 to 2\^60"),
        (1.0, MOST_ROWS + 1, 10, "allowed is up to 1048576"),
        (1.0, 10, MOST_PARAMETERS + 1, "use a smaller model"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(
    clip: float, units: int, parameters: int, match: str
) -> None:
    check_sum(1.0, MOST_ROWS, MOST_PARAMETERS)
    with pytest.raises(ValueError, match=match):
        check_sum(clip, units, parameters)
