from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.sources import Examples, digits, split_validation


def numbered(count: int) -> Examples:
    """Examples that carry their own number as their feature and label."""
    numbers = np.arange(count)
    return Examples(numbers.astype(np.float32).reshape(-1, 1), numbers)


def test_digits_are_scaled_and_complete() -> None:
    from sklearn.datasets import load_digits

    data = digits()
    pixels = np.concatenate([data.train.features, data.test.features])
    assert (pixels.min(), pixels.max()) == (0, 1)
    original = load_digits().data / 16
    assert np.array_equal(np.unique(pixels, axis=0), np.unique(original, axis=0))


def test_no_client_can_hold_a_test_example() -> None:
    data = digits()
    train = {row.tobytes() for row in data.train.features}
    test = {row.tobytes() for row in data.test.features}
    assert (len(train), len(test)) == (1437, 360), "all digits are different images"
    assert not train & test


def test_the_test_split_holds_a_fifth_of_every_label() -> None:
    data = digits()
    held_out = np.bincount(data.test.labels)
    everything = held_out + np.bincount(data.train.labels)
    assert data.classes == len(everything) == 10
    assert np.abs(held_out - everything / 5).max() < 1


def test_the_public_split_is_the_same_for_everybody_unless_asked() -> None:
    first, again, other = digits(), digits(), digits(seed=1)
    assert np.array_equal(first.test.features, again.test.features)
    assert not np.array_equal(first.test.features, other.test.features)


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
)
def test_malformed_examples_are_refused(
    features: np.ndarray, labels: np.ndarray, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Examples(features, labels)


def test_importing_loads_no_scikit_learn() -> None:
    script = "import sys, tacit.data.sources; print('sklearn' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr


def test_missing_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        digits()
