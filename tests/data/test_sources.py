from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tacit.data import sources
from tacit.data.examples import Dataset, Examples
from tacit.data.sources import DATASETS, digits, load
from tests.data.writers import idx, write

NAMES = ("digits", "mnist", "fashion-mnist", "cifar-10", "adult", "fraud", "emnist", "svhn")
Real = Callable[[str], Dataset]
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


_loaded = cache(load)


@pytest.fixture
def real(real_data: Path, real_files: Callable[[str], dict[str, Path]]) -> Real:
    def loaded(name: str) -> Dataset:
        real_files(name)
        return _loaded(name, real_data)

    return loaded


def accuracy(data: Dataset, rows: int, iterations: int) -> float:
    """Test accuracy of logistic regression on the first train rows."""
    from sklearn.linear_model import LogisticRegression

    part = Examples(data.train.features[:rows], data.train.labels[:rows])
    train, test = (data.standardise(examples).flat() for examples in (part, data.test))
    model = LogisticRegression(max_iter=iterations, C=0.01).fit(train.features, train.labels)
    return float(model.score(test.features, test.labels))


def test_digits_are_scaled_and_complete() -> None:
    from sklearn.datasets import load_digits

    data = digits()
    pixels = np.concatenate([data.train.features, data.test.features]).reshape(-1, 64)
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
    assert len(data.classes) == len(everything) == 10
    assert np.abs(held_out - everything / 5).max() < 1


def test_the_public_split_is_the_same_for_everybody_unless_asked() -> None:
    first, again, other = digits(), digits(), digits(seed=1)
    assert np.array_equal(first.test.features, again.test.features)
    assert not np.array_equal(first.test.features, other.test.features)


def test_importing_loads_nothing_heavy() -> None:
    script = "import sys, tacit.data.sources; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "tacit.data.sources" in found.stdout, found.stderr
    assert not {"sklearn", "scipy", "torch"} & set(found.stdout.split())


def test_every_data_set_is_there_by_name_with_its_terms() -> None:
    assert tuple(DATASETS) == NAMES
    for name, source in DATASETS.items():
        assert source.name == name
        assert all((source.title, source.citation, source.licence, source.by_hand))
        assert hasattr(sources, name.replace("-1", "1").replace("-", "_"))


def test_emnist_is_put_upright_and_has_letters_of_either_case(tmp_path: Path) -> None:
    upright = np.zeros((2, 28, 28), np.uint8)
    upright[0, 3, 9] = 255
    for part in ("train", "test"):
        name = f"emnist-byclass-{part}-{{}}-ubyte.gz"
        write(tmp_path / "emnist" / name.format("images-idx3"), idx(upright.transpose(0, 2, 1)))
        write(tmp_path / "emnist" / name.format("labels-idx1"), idx(np.array([10, 61])))
    data = load("emnist", tmp_path)
    assert np.array_equal(data.train.features[:, 0], upright / 255)
    assert data.train.features.flags.c_contiguous
    assert [data.classes[label] for label in data.train.labels] == ["A", "z"]
    assert len(data.classes) == 62


@pytest.mark.parametrize("label", [62, 255])
def test_a_label_of_no_class_is_refused(tmp_path: Path, label: int) -> None:
    images = np.zeros((1, 28, 28))
    for part in ("train", "test"):
        name = f"emnist-byclass-{part}-{{}}-ubyte"
        write(tmp_path / "emnist" / name.format("images-idx3"), idx(images))
        write(tmp_path / "emnist" / name.format("labels-idx1"), idx(np.array([label])))
    with pytest.raises(ValueError, match=f"labels-idx1-ubyte: a label is {label}; .* 0 to 61"):
        load("emnist", tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        ((3, 27, 28), 3, r"train-images-idx3-ubyte: its images have the shape \(27, 28\)"),
        ((3, 28, 28), 2, "train-labels-idx1-ubyte: there are 3 images and 2 labels"),
        ((0, 28, 28), 0, "train-labels-idx1-ubyte: there are no images"),
    ],
    ids=["shape", "count", "empty"],
)
def test_images_that_do_not_fit_are_refused(
    tmp_path: Path, images: tuple[int, ...], labels: int, reason: str
) -> None:
    for part in ("train", "t10k"):
        write(tmp_path / "mnist" / f"{part}-images-idx3-ubyte", idx(np.zeros(images)))
        write(tmp_path / "mnist" / f"{part}-labels-idx1-ubyte", idx(np.zeros(labels)))
    with pytest.raises(ValueError, match=reason):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("mnist", 60_000, 10_000), ("cifar-10", 10_000, 2_000), ("adult", 32_561, 16_281)],
)
def test_real_data_is_complete(real: Real, name: str, train: int, test: int) -> None:
    data = real(name)
    assert (len(data.train), len(data.test)) in ((train, test), (50_000, 10_000))
    assert np.array_equal(np.unique(data.train.labels), np.arange(len(data.classes)))
    assert np.array_equal(np.unique(data.test.labels), np.arange(len(data.classes)))


@pytest.mark.parametrize("name", ["mnist", "cifar-10"])
def test_real_pixels_are_in_0_to_1_and_standardise(real: Real, name: str) -> None:
    """The constants have four digits; a tenth of CIFAR-10 adds sampling error."""
    data = real(name)
    pixels, channels = data.train.features, (0, 2, 3)
    assert data.bounds == (0.0, 1.0)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert data.centre.shape == data.spread.shape == (pixels.shape[1], 1, 1)
    allowed = 1e-4 if len(data.train) == 60_000 else 5e-3
    means = pixels.mean(axis=channels, dtype=float)
    assert np.abs(means - data.centre.reshape(-1)).max() < allowed
    deviations = pixels.std(axis=channels, dtype=float)
    assert np.abs(deviations - data.spread.reshape(-1)).max() < allowed


def test_real_adult_has_the_published_positives_and_standardises(real: Real) -> None:
    data = real("adult")
    assert data.classes == ("<=50K", ">50K")
    assert (data.train.labels.sum(), data.test.labels.sum()) == (7841, 3846)
    numbers = data.standardise(data.train).features[:, :6].astype(float)
    assert np.abs(numbers.mean(axis=0)).max() < 1e-5
    assert np.abs(numbers.std(axis=0) - 1).max() < 1e-5
    categories = data.standardise(data.test).features[:, 6:]
    assert np.array_equal(np.unique(categories), [0, 1])


def test_real_frauds_are_on_one_side_of_the_split_each(real: Real) -> None:
    data = real("fraud")
    assert data.classes == ("genuine", "fraud")
    assert data.train.labels.sum() + data.test.labels.sum() == 473
    everything = len(data.train) + len(data.test)
    assert abs(len(data.test) / everything - 0.3) < 1e-4
    assert abs(data.test.labels.sum() / 473 - 0.3) < 1 / 473
    seen = {row.tobytes() for row in data.train.features}
    assert len(seen) == len(data.train)
    assert not seen & {row.tobytes() for row in data.test.features}


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
@pytest.mark.parametrize(
    ("name", "rows", "iterations", "lowest", "highest"),
    [
        ("mnist", 3000, 30, 0.87, 0.92),
        ("cifar-10", 2000, 20, 0.28, 0.42),
        ("adult", 8000, 100, 0.84, 0.86),
        ("fraud", 8000, 100, 0.99, 1.0),
    ],
)
def test_a_linear_model_learns_real_data_as_well_as_known(
    real: Real, name: str, rows: int, iterations: int, lowest: float, highest: float
) -> None:
    """All rows are known to give 0.91, 0.39, 0.853 and 0.996; exchanged labels give far less."""
    assert lowest < accuracy(real(name), rows, iterations) < highest


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
def test_fashion_mnist_of_debian_is_read() -> None:
    if not DEBIAN.exists():
        pytest.skip(f"{DEBIAN} is not here: Debian's package dataset-fashion-mnist installs it")
    data = load("fashion-mnist")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert abs(data.train.features.mean(dtype=float) - 0.2860) < 1e-4
    assert abs(data.train.features.std(dtype=float) - 0.3530) < 1e-4
    assert 0.77 < accuracy(data, 3000, 30) < 0.86
