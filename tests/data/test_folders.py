from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.data.examples import Dataset
from tacit.data.folders import MissingData, cache_folder, locate
from tacit.data.sources import DATASETS, load
from tests.data.writers import (
    ADULT_ROW,
    FRAUD_HEADER,
    fraud_line,
    idx,
    pixels,
    write,
    write_batches,
    write_tar,
)

IMAGES = pixels(5, 28, 28)
IDX = {
    "train-images-idx3-ubyte": idx(IMAGES[:3]),
    "train-labels-idx1-ubyte": idx(np.array([7, 0, 9])),
    "t10k-images-idx3-ubyte": idx(IMAGES[3:]),
    "t10k-labels-idx1-ubyte": idx(np.array([1, 2])),
}
EMNIST = {
    f"emnist-byclass-{name.replace('t10k', 'test')}": content for name, content in IDX.items()
}
COLOURED = pixels(12, 3, 32, 32)
FRAUD = "\n".join(
    [FRAUD_HEADER, *(fraud_line(time=n, value=n, label=n % 2) for n in range(20))]
).encode()
ADULT = {
    "adult.data": f"{ADULT_ROW}\n{ADULT_ROW}\n{ADULT_ROW}\n".encode(),
    "adult.test": f"|1x3 Cross validator\n{ADULT_ROW}.\n{ADULT_ROW}.\n".encode(),
}

Layout = Callable[[Path], object]


def files(pattern: str, contents: Mapping[str, bytes]) -> Layout:
    """Files named after a pattern in which * stands for the published name."""

    def lay(folder: Path) -> None:
        for name, content in contents.items():
            write(folder / pattern.replace("*", name), content)

    return lay


def zipped(path: str) -> Layout:
    def lay(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / path, "w") as archive:
            for name, content in EMNIST.items():
                archive.writestr(f"gzip/{name}", content)

    return lay


def batches(path: str) -> Layout:
    return lambda folder: write_batches(folder / path, COLOURED, [0, 1, 2, 3, 4, 5] * 2)


def archive(path: str) -> Layout:
    def lay(folder: Path) -> None:
        write_tar(folder / path, write_batches(folder / "made", COLOURED, [0, 1, 2, 3, 4, 5] * 2))
        shutil.rmtree(folder / "made")

    return lay


def npz(folder: Path) -> None:
    upright, labels = COLOURED.transpose(0, 2, 3, 1), np.array([0, 1, 2, 3, 4, 5] * 2)
    np.savez(
        folder / "cifar10_train10000_test2000.npz",
        x_train=upright[:10],
        y_train=labels[:10],
        x_test=upright[10:],
        y_test=labels[10:],
    )


def mat(path: str) -> Layout:
    def lay(folder: Path) -> None:
        from scipy.io import savemat

        for part, some in (("train", slice(0, 7)), ("test", slice(7, 12))):
            target = folder / path.replace("*", part)
            target.parent.mkdir(parents=True, exist_ok=True)
            images = COLOURED[some].transpose(2, 3, 1, 0)
            savemat(target, {"X": images, "y": np.full((images.shape[3], 1), 10, np.uint8)})

    return lay


LAYOUTS: Mapping[str, Mapping[str, Layout]] = {
    "mnist": {path: files(path, IDX) for path in ("mnist/*.gz", "mnist/*", "MNIST/raw/*.gz")}
    | {"MNIST/raw/*": files("MNIST/raw/*", IDX)},
    "fashion-mnist": {
        path: files(path, IDX)
        for path in ("fashion-mnist/*.gz", "fashion-mnist/*", "FashionMNIST/raw/*.gz")
    }
    | {"FashionMNIST/raw/*": files("FashionMNIST/raw/*", IDX)},
    "emnist": {
        path: files(path, EMNIST)
        for path in ("EMNIST/raw/*", "EMNIST/raw/*.gz", "emnist/*", "emnist/*.gz")
    }
    | {"emnist/gzip.zip": zipped("emnist/gzip.zip")},
    "cifar-10": {
        "cifar-10-batches-py": batches("cifar-10-batches-py"),
        "cifar-10-python.tar.gz": archive("cifar-10-python.tar.gz"),
        "cifar-10/cifar-10-python.tar.gz": archive("cifar-10/cifar-10-python.tar.gz"),
        "npz": npz,
    },
    "svhn": {path: mat(path) for path in ("*_32x32.mat", "svhn/*_32x32.mat")},
    "adult": {path: files(path, ADULT) for path in ("*", "*.gz", "adult/*", "adult/*.gz")},
    "fraud": {
        path: files(path, {"": FRAUD})
        for path in ("creditcard.csv", "creditcard.csv.gz", "creditcard_fraud_subset.csv.gz")
    },
}
CASES = [
    pytest.param(name, lay, id=f"{name} {path}")
    for name, layouts in LAYOUTS.items()
    for path, lay in layouts.items()
]
SIZES = {
    "mnist": (3, 2, (1, 28, 28)),
    "fashion-mnist": (3, 2, (1, 28, 28)),
    "emnist": (3, 2, (1, 28, 28)),
    "cifar-10": (10, 2, (3, 32, 32)),
    "svhn": (7, 5, (3, 32, 32)),
    "adult": (3, 2, (105,)),
    "fraud": (14, 6, (29,)),
}


def check(data: Dataset, name: str) -> None:
    assert data.name == name
    assert (len(data.train), len(data.test), data.train.shape) == SIZES[name]


@pytest.mark.parametrize(("name", "lay"), CASES)
def test_every_layout_is_found_in_a_named_folder(tmp_path: Path, name: str, lay: Layout) -> None:
    lay(tmp_path)
    check(load(name, tmp_path), name)


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_are_found_in_the_folder_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    next(iter(LAYOUTS[name].values()))(tmp_path)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    check(load(name), name)


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_are_found_in_the_cache(empty_cache: Path, name: str) -> None:
    empty_cache.mkdir(parents=True)
    next(iter(LAYOUTS[name].values()))(empty_cache)
    check(load(name), name)


def test_files_are_found_where_a_package_put_them(tmp_path: Path) -> None:
    files("fashion-mnist/*.gz", IDX)(tmp_path / "share")
    installed = replace(DATASETS["fashion-mnist"], installed=(tmp_path / "share",))
    check(installed.load(), "fashion-mnist")
    assert DATASETS["fashion-mnist"].installed == (Path("/usr/share/datasets"),)


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("mnist/*", "mnist"), ("MNIST/raw/*", "MNIST"), ("MNIST/raw/*", "MNIST/raw")],
)
def test_the_data_sets_own_folder_may_be_named(tmp_path: Path, pattern: str, folder: str) -> None:
    files(pattern, IDX)(tmp_path)
    check(load("mnist", tmp_path / folder), "mnist")


def test_the_folder_of_batches_itself_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches("cifar-10-batches-py")(tmp_path)
    check(load("cifar-10", tmp_path / "cifar-10-batches-py"), "cifar-10")
    monkeypatch.chdir(tmp_path / "cifar-10-batches-py")
    check(load("cifar-10", Path()), "cifar-10")


@pytest.mark.parametrize("folder", ["", "fashion-mnist", "somewhere"])
def test_clothes_are_never_taken_for_digits(tmp_path: Path, folder: str) -> None:
    """Both have files of the same names, so the folder's name is what tells them apart."""
    files(f"{folder}/*" if folder else "*", IDX)(tmp_path)
    with pytest.raises(MissingData):
        load("mnist", tmp_path / folder)


def test_a_named_folder_comes_first_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    named, environment = tmp_path / "named", tmp_path / "environment"
    for folder in (named, environment, empty_cache):
        files("adult/*", ADULT)(folder)
    monkeypatch.setenv("TACIT_DATA", str(environment))
    adult = DATASETS["adult"]
    assert locate(adult, named)["adult.data"] == named / "adult" / "adult.data"
    assert locate(adult)["adult.data"] == environment / "adult" / "adult.data"
    shutil.rmtree(environment / "adult")
    assert locate(adult)["adult.data"] == empty_cache / "adult" / "adult.data"
    shutil.rmtree(named / "adult")
    files("adult/*", ADULT)(environment)
    assert locate(adult, named)["adult.data"] == empty_cache / "adult" / "adult.data"


def test_files_of_two_folders_are_never_mixed(tmp_path: Path, empty_cache: Path) -> None:
    files("adult/*", ADULT)(empty_cache)
    files("*", {"adult.data": ADULT["adult.data"]})(tmp_path)
    found = locate(DATASETS["adult"], tmp_path)
    assert {path.parent for path in found.values()} == {empty_cache / "adult"}
    (empty_cache / "adult" / "adult.data").unlink()
    with pytest.raises(MissingData, match=r"adult lacks adult.test, though there is .*adult.data"):
        load("adult", tmp_path)


def test_what_is_missing_is_said_with_where_it_was_looked_for_and_how_to_get_it(
    tmp_path: Path, empty_cache: Path
) -> None:
    with pytest.raises(MissingData) as caught:
        load("mnist", tmp_path)
    message = str(caught.value)
    assert message.startswith("mnist lacks train-images-idx3-ubyte and 3 more of its files. ")
    assert f"Looked in {tmp_path} (--data-dir), {empty_cache} (the cache), for mnist/" in message
    assert "run `tacit data fetch mnist`, or put the four .gz files of https://" in message
    assert message.endswith("name the folder with --data-dir or TACIT_DATA")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fashion-mnist", "Debian's package dataset-fashion-mnist"),
        ("fashion-mnist", r"/usr/share/datasets \(installed by a package\)"),
        ("fraud", "download creditcard.csv from https://www.kaggle.com/datasets/mlg-ulb/"),
        ("cifar-10", "tacit data fetch cifar-10"),
        ("emnist", "tacit data fetch emnist"),
        ("svhn", "tacit data fetch svhn"),
        ("adult", "tacit data fetch adult"),
    ],
)
def test_every_data_set_says_how_to_get_it(name: str, hint: str) -> None:
    if name == "fashion-mnist" and Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("Debian's package is installed, so nothing is missing")
    with pytest.raises(MissingData, match=hint):
        load(name)


def test_only_what_can_be_fetched_is_said_to_be() -> None:
    with pytest.raises(MissingData) as caught:
        load("fraud")
    assert "tacit data fetch" not in str(caught.value)


def test_a_named_folder_that_is_not_there_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    files("adult/*", ADULT)(empty_cache)
    with pytest.raises(MissingData, match=r"typo \(--data-dir\) is no folder; allowed is"):
        load("adult", tmp_path / "typo")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "typo"))
    with pytest.raises(MissingData, match=r"typo \(TACIT_DATA\) is no folder; allowed is"):
        load("adult")


def test_embedded_data_needs_no_folder(tmp_path: Path) -> None:
    assert len(load("digits", tmp_path / "nowhere").train) == 1437


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_the_cache_is_in_the_home_folder_unless_an_absolute_one_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_folder() == Path.home() / ".cache" / "tacit" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "tacit" / "data"
