from __future__ import annotations

from itertools import product

import pytest

from tacit.grids import GRIDS, grid
from tacit.sgd import check_config

RATES = {
    "dp-hype-table": [0.5, 0.1, 0.05, 0.001, 0.005, 0.00001, 0.000001, 0.000005, 5e-7, 1e-7],
    "dp-hype-code": [0.5, 0.1, 0.05, 0.0005, 0.0001, 0.000001, 5e-7, 1e-7, 5e-8, 1e-8],
}
"""DP-HYPE's Table III prints the first list; the authors' code runs the second."""
DECAYS = [0.0, 0.1, 0.25, 0.99, 1.0]
MOMENTA = [0.0, 0.9]

names = pytest.mark.parametrize("name", RATES)


@names
def test_a_grid_holds_every_combination_once(name: str) -> None:
    found = [(c["learning_rate"], c["decay"], c["momentum"]) for c in grid(name)]
    assert found == list(product(RATES[name], DECAYS, MOMENTA))
    assert len(set(found)) == 100
    assert all(set(config) == {"learning_rate", "decay", "momentum"} for config in grid(name))


@names
def test_a_grid_is_the_same_every_time_and_gradient_descent_takes_it(name: str) -> None:
    assert grid(name) == grid(name)
    for config in grid(name):
        check_config(config)


def test_privtunas_grids_are_those_of_its_table() -> None:
    """Table I: 49 and 24 combinations; the clients' own values are fixed."""
    for name, count, rate in (
        ("privtuna-iid", 49, 0.01),
        ("privtuna-skew", 24, 0.01),
        ("privtuna-iid-subset", 49, 0.1),
        ("privtuna-skew-subset", 24, 0.1),
    ):
        configs = grid(name)
        assert len(configs) == count
        assert {(c["learning_rate"], c["momentum"]) for c in configs} == {(rate, 0.01)}
        assert max(float(c["server_learning_rate"]) for c in configs) == 0.5
        for config in configs:
            check_config(config)


def test_there_are_no_other_grids_and_an_unknown_name_is_refused() -> None:
    privtuna = [f"privtuna-{kind}{size}" for size in ("", "-subset") for kind in ("iid", "skew")]
    assert list(GRIDS) == [*RATES, *privtuna]
    with pytest.raises(
        ValueError, match="no grid is called 'dp-hype'; allowed are dp-hype-table, "
    ):
        grid("dp-hype")
