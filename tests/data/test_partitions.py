from __future__ import annotations

import numpy as np
import pytest

from tacit.data.examples import Dataset, Examples, FloatArray, IntArray, group_numbers
from tacit.data.partitions import PARTITIONS, deal, feature_noise, partition
from tacit.data.skews import (
    ADADP_PAIRS,
    ClassPairs,
    Dirichlet,
    DominantLabel,
    FeatureSkew,
    Iid,
    Partition,
    QuantitySkew,
)
from tacit.data.sources import digits


def dataset(
    features: FloatArray,
    bounds: tuple[float, float] | None = None,
    centre: float = 0.0,
    spread: float = 1.0,
) -> Dataset:
    examples = Examples(features, np.arange(len(features)) % 2)
    return Dataset(
        "toy",
        examples,
        examples,
        ("no", "yes"),
        np.full(1, centre, np.float32),
        np.full(1, spread, np.float32),
        bounds,
    )


@pytest.mark.parametrize("name", PARTITIONS)
def test_each_name_gives_its_partition(name: str) -> None:
    assert type(partition(name)) is PARTITIONS[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("iid", Iid(3)),
        ("dirichlet", Dirichlet(2.0, 3)),
        ("dominant-label", DominantLabel(70.0, 3)),
        ("class-pairs", ClassPairs(0.3, ADADP_PAIRS, 3)),
        ("feature-skew", FeatureSkew(0.2, 3)),
        ("quantity-skew", QuantitySkew(2.0, 3)),
    ],
)
def test_a_partition_takes_the_parameters_that_it_has(name: str, expected: Partition) -> None:
    made = partition(
        name, alpha=2.0, percent=70.0, similarity=0.3, noise=0.2, pairs=ADADP_PAIRS, smallest=3
    )
    assert made == expected


def test_parameters_of_other_partitions_are_not_even_checked() -> None:
    assert partition("iid", alpha=-1, percent=-1, similarity=-1, noise=-1) == Iid(10)


def test_what_is_not_allowed_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^alpha is -1; allowed is above 0"):
        partition("quantity-skew", alpha=-1)
    with pytest.raises(ValueError, match=r"^partition is 'dirichlett'; allowed are iid, dirichlet"):
        partition("dirichlett")


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "feature-skew"])
def test_clients_get_their_rows_standardised_and_nothing_else(name: str) -> None:
    rows = np.arange(800, dtype=np.float32).reshape(200, 4)
    data = dataset(rows, bounds=(0, 800), centre=100, spread=50)
    parts = deal(data, partition(name), 2, np.random.default_rng(3))
    places = partition(name).deal(data.train.labels, 2, np.random.default_rng(3))
    for part, place in zip(parts, places, strict=True):
        assert np.array_equal(part.features, (rows[place] - 100) / 50)
        assert np.array_equal(part.labels, data.train.labels[place])


@pytest.mark.parametrize("name", PARTITIONS)
def test_no_group_is_dealt_to_two_clients(name: str) -> None:
    groups = group_numbers(np.random.default_rng(0).integers(90, size=400))
    rows = Examples(np.arange(400, dtype=np.float32)[:, None], groups % 2, groups)
    data = Dataset("visits", rows, rows, ("no", "yes"))
    parts = deal(data, partition(name, noise=0.0, smallest=3), 4, np.random.default_rng(1))
    held = [{int(groups[int(row)]) for row in part.features[:, 0]} for part in parts]
    assert sum(map(len, held)) == rows.units
    assert sorted(row for part in parts for row in part.features[:, 0].tolist()) == [*range(400)]
    for part, own in zip(parts, held, strict=True):
        assert part.units == len(own) >= 3


def test_a_group_is_dealt_by_the_label_of_its_first_row() -> None:
    labels, groups = np.array([0, 1, 1, 0, 0, 1]), np.array([0, 1, 0, 1, 2, 3])
    rows = Examples(np.zeros((6, 1), np.float32), labels, groups)
    data = Dataset("visits", rows, rows, ("no", "yes"))
    seen = []

    class Watched(Iid):
        def deal(self, labels: IntArray, clients: int, rng: np.random.Generator) -> list[IntArray]:
            seen.append(labels.tolist())
            return super().deal(labels, clients, rng)

    deal(data, Watched(), 2, np.random.default_rng(0))
    assert seen == [[0, 1, 0, 1]]


def test_images_keep_their_shape() -> None:
    data = digits()
    parts = deal(data, FeatureSkew(0.1), 5, np.random.default_rng(0))
    assert sum(map(len, parts)) == len(data.train)
    assert {part.shape for part in parts} == {data.train.shape}
    assert {part.features.dtype.name for part in parts} == {"float32"}


def test_noise_grows_with_the_client_s_number_and_comes_before_standardising() -> None:
    """A deviation measured on 20,000 numbers is off by 0.5 %, so 3 % is six standard errors."""
    data = dataset(np.zeros((8000, 10), dtype=np.float32), centre=2, spread=5)
    parts = deal(data, FeatureSkew(0.2), 4, np.random.default_rng(0))
    for client, part in enumerate(parts, start=1):
        assert part.features.std() == pytest.approx(0.2 * client / 4 / 5, rel=0.03)
        assert part.features.mean() == pytest.approx(-2 / 5, abs=0.002)


def test_noise_is_clipped_to_the_bounds_of_the_data_set() -> None:
    rows = np.full((400, 5), 0.5, dtype=np.float32)
    first, last = deal(
        dataset(rows, bounds=(0.0, 1.0)), FeatureSkew(2.0), 2, np.random.default_rng(0)
    )
    assert last.features.min() == 0
    assert last.features.max() == 1
    assert 0.4 < np.isin(first.features, [0, 1]).mean() < np.isin(last.features, [0, 1]).mean()
    free = deal(dataset(rows), FeatureSkew(2.0), 2, np.random.default_rng(0))[1]
    assert free.features.min() < -1
    assert free.features.max() > 2


def test_a_feature_skew_of_zero_is_iid() -> None:
    data = digits()
    plain, zero = (
        deal(data, rule, 5, np.random.default_rng(1)) for rule in (Iid(), FeatureSkew(0.0))
    )
    for a, b in zip(plain, zero, strict=True):
        assert np.array_equal(a.features, b.features)
        assert np.array_equal(a.labels, b.labels)


def test_noise_depends_on_the_seed_only() -> None:
    data = digits()
    first, again, other = (
        deal(data, FeatureSkew(0.1), 3, np.random.default_rng(seed))[2].features
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_only_a_feature_skew_has_noise() -> None:
    noise = feature_noise(FeatureSkew(0.1), 4)
    assert noise is not None
    assert noise.tolist() == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert feature_noise(Iid(), 4) is None
