from __future__ import annotations

import numpy as np
import pytest

from tacit.audits.records import LABEL, Halves, gaussian_losses, holes, sampled_losses


@pytest.mark.parametrize("chosen", [1.0, 1 - 1e-5])
def test_holes_are_found_in_float_noise_and_not_in_noise_on_a_grid(chosen: float) -> None:
    """On a grid both worlds can come to every sum: what single precision makes of it tells less."""
    rng = np.random.default_rng(5)
    gradient = np.float32(chosen)
    noise = rng.normal(0, 1.5, 100_000)
    floats = {
        way: (np.float32(way) * gradient + noise.astype(np.float32)).astype(np.float64)
        for way in (-1, 1)
    }
    assert (holes(floats[-1], float(gradient)) >= 0).all()
    assert (holes(floats[1], float(gradient)) <= 0).all()
    assert (holes(floats[-1], float(gradient)) == 1).mean() > 0.05
    assert (holes(floats[1], float(gradient)) == -1).mean() > 0.05
    grid = 2.0**-30
    exact = (grid * np.rint((way * float(gradient) + noise) / grid) for way in (-1, 1))
    for_a, for_b = (
        (holes(sums.astype(np.float32).astype(np.float64), float(gradient)) == 1).sum()
        for sums in exact
    )
    assert 1000 < for_b < for_a < 3 * for_b, "a difference of means, and no more"


def test_a_record_moves_the_training_part_by_itself_alone() -> None:
    halves = Halves.dealt(40)
    assert abs(halves.up("A") - halves.up("B")) == 2
    for part in (halves.train, halves.validation):
        assert len(part["A"]) == len(part["B"])
    assert LABEL == {"A": 1, "B": 0}


def test_sampled_losses_are_those_of_the_mixture() -> None:
    sums = np.array([-2.0, 0.0, 0.3])
    whole = sampled_losses(sums, 1.0, 1.5, 4)
    assert np.allclose(whole, gaussian_losses(sums, -4.0, 4.0, 4 * 1.5**2))
    away, in_a, in_b = (np.exp(-((sums - mean) ** 2) / (2 * 0.49)) for mean in (0.0, -1.0, 1.0))
    half = sampled_losses(sums, 0.5, 0.7, 1)
    assert np.allclose(half, np.log((away + in_a) / (away + in_b)))
