"""Settings of private training at random."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.domains import ADULT, MNIST, Domain, any_data
from tacit.oracles import fixed_epsilon
from tacit.space import Choice, Float, Int, Space


@pytest.mark.parametrize("domain", [ADULT, MNIST, any_data(1437)], ids=["adult", "mnist", "any"])
def test_what_is_drawn_is_in_the_space(domain: Domain) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        config = domain.draw(rng)
        domain.space.encode(config)
        for name, axis in domain.space.dimensions.items():
            assert not isinstance(axis, Choice)
            assert axis.low <= float(config[name]) <= axis.high
            assert isinstance(config[name], int) == isinstance(axis, Int)


def test_adult_is_drawn_as_in_table_4() -> None:
    """Means of 4000 draws, within five standard errors of what truncation leaves."""
    rng = np.random.default_rng(1)
    drawn = [ADULT.draw(rng) for _ in range(4000)]
    assert np.mean([int(c["epochs"]) for c in drawn]) == pytest.approx(32.5, abs=5 * 18.5 / 63)
    lots = [int(c["lot"]) for c in drawn]
    assert np.mean(lots) == pytest.approx(132.5, abs=5 * 60 / 63)
    assert np.mean(np.array([float(c["clip"]) for c in drawn]) < 2.05) == pytest.approx(
        0.55, abs=0.04
    )


def test_small_data_have_private_settings() -> None:
    """With the paper's domain for MNIST nearly nothing on digits costs less than 10."""
    rng = np.random.default_rng(0)

    def costs(domain: Domain) -> list[float]:
        drawn = [domain.within(1437).draw(rng) for _ in range(10)]
        return [
            fixed_epsilon(
                1437,
                int(c["lot"]),
                float(c["noise_variance"]) ** 0.5,
                int(c["epochs"]) * (1437 // int(c["lot"])),
                1e-6,
            )
            for c in drawn
        ]

    assert np.mean(np.array(costs(any_data(1437))) < 10) > 0.4
    assert np.mean(np.array(costs(MNIST)) < 10) < 0.1


def test_no_lot_is_larger_than_the_data() -> None:
    lots = MNIST.within(100).space.dimensions["lot"]
    assert isinstance(lots, Int)
    assert (lots.low, lots.high) == (16, 100)
    assert MNIST.within(10**6) is MNIST


def test_a_range_that_its_distribution_never_reaches_is_refused() -> None:
    far = ADULT.having(learning_rate=Float(50.0, 60.0))
    with pytest.raises(ValueError, match=r"learning_rate is from 50 to 60, .* allowed is a range"):
        far.draw(np.random.default_rng(0))


def test_a_space_of_ones_own_is_drawn_uniformly() -> None:
    own = Domain(Space({"lot": Int(8, 16), "learning_rate": Float(50.0, 60.0)}))
    rng = np.random.default_rng(0)
    rates = [float(own.draw(rng)["learning_rate"]) for _ in range(500)]
    assert np.mean(rates) == pytest.approx(55.0, abs=5 * 2.9 / 22)
