from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.examples import Dataset, Examples, cross_validation, split_validation


def numbered(count: int) -> Examples:
    """Examples that carry their own number as their feature and label."""
    numbers = np.arange(count)
    return Examples(numbers.astype(np.float32).reshape(-1, 1), numbers)


@given(
    count=st.integers(2, 60),
    fraction=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 2**32),
)
def test_validation_split_deals_every_example_once(count: int, fraction: float, seed: int) -> None:
    examples = numbered(count)
    train, validation = split_validation(examples, fraction, np.random.default_rng(seed))
    assert len(train) >= 1
    assert len(validation) >= 1
    assert abs(len(validation) - fraction * count) <= 1
    assert sorted([*train.labels, *validation.labels]) == list(range(count))
    for part in (train, validation):
        assert np.array_equal(part.features[:, 0], part.labels), "rows keep their labels"


def test_validation_split_is_random_and_seeded() -> None:
    splits = [
        split_validation(numbered(100), 0.2, np.random.default_rng(seed))[1].labels.tolist()
        for seed in (0, 0, 1)
    ]
    assert splits[0] == splits[1]
    assert splits[0] != splits[2]


@given(
    count=st.integers(2, 40),
    fraction=st.floats(0.05, 0.9),
    folds=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_folds_hold_every_example_out_equally_often(
    count: int, fraction: float, folds: int, seed: int
) -> None:
    own = split_validation(numbered(count), fraction, np.random.default_rng(seed))
    found = [*cross_validation(*own, folds, seed)]
    assert len(found) == folds
    assert found[0] == own
    for train, validation in found:
        assert len(validation) == len(own[1])
        assert sorted([*train.labels, *validation.labels]) == list(range(count))
        for part in (train, validation):
            assert np.array_equal(part.features[:, 0], part.labels), "rows keep their labels"
    held_out = np.bincount(np.concatenate([b.labels for _, b in found]), minlength=count)
    assert held_out.max() - held_out.min() <= 1


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_examples_cannot_be_split(count: int) -> None:
    with pytest.raises(ValueError, match=f"has {count} examples; it needs at least 2"):
        split_validation(numbered(count), 0.2, np.random.default_rng(0))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"fraction is .*; allowed is above 0 and below 1"):
        split_validation(numbered(10), fraction, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (np.zeros((3, 2), np.float32), np.zeros(2, np.int64), r"\(3, 2\) and labels \(2,\)"),
        (np.zeros(3, np.float32), np.zeros(3, np.int64), r"\(3,\) and labels \(3,\)"),
        (np.zeros((3, 2)), np.zeros(3, np.int64), "float64 and labels of int64.*float32"),
        (np.zeros((3, 2), np.float32), np.zeros(3, np.int32), "labels of int32.*int64"),
        (np.zeros((1, 2), np.float32), np.array([-1]), "a label is -1; allowed is 0"),
    ],
    ids=["counts", "no rows", "float64", "int32", "negative"],
)
def test_malformed_examples_are_refused(
    features: np.ndarray, labels: np.ndarray, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Examples(features, labels)


def test_flat_rows_keep_their_order_and_labels() -> None:
    images = Examples(np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2), np.array([1, 0]))
    assert images.shape == (3, 2, 2)
    assert np.array_equal(images.flat().features, np.arange(24).reshape(2, 12))
    assert images.flat().labels.tolist() == [1, 0]


def test_standardising_uses_the_constants_of_each_channel() -> None:
    images = Examples(np.ones((5, 2, 4, 4), np.float32), np.zeros(5, np.int64))
    centre, spread = (np.array(pair, np.float32).reshape(2, 1, 1) for pair in ([1, 0], [2, 0.5]))
    data = Dataset("two channels", images, images, ("only",), centre, spread)
    standardised = data.standardise(images).features
    assert standardised.dtype == np.float32
    assert (standardised[:, 0] == 0).all()
    assert (standardised[:, 1] == 2).all()


def test_a_part_of_the_data_is_always_the_same() -> None:
    data = Dataset("numbers", numbered(50), numbered(20), ("only",))
    one, again = (data.some(30, 5) for _ in range(2))
    assert (len(one.train), len(one.test)) == (30, 5)
    assert one.train.labels.tolist() == again.train.labels.tolist()
    assert len(set(one.train.labels.tolist())) == 30
    assert data.some(0).train is data.train
    assert data.some(30, 5).train.labels.tolist() == data.some(30).train.labels.tolist()


def test_more_than_there_is_is_refused() -> None:
    data = Dataset("numbers", numbered(50), numbered(20), ("only",))
    with pytest.raises(ValueError, match="found 20 examples where 21 are asked for; allowed is"):
        data.some(50, 21)
