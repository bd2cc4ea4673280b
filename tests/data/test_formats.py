from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.data.formats import image_examples, read_cifar, read_idx, read_svhn
from tests.data.writers import (
    batch,
    batch_of_python_2,
    idx,
    pixels,
    write,
    write_batches,
    write_tar,
)

IMAGES = pixels(12, 3, 32, 32)
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx_is_read_plain_and_gzipped(tmp_path: Path, name: str) -> None:
    images = pixels(4, 3, 2)
    assert np.array_equal(read_idx(write(tmp_path / name, idx(images)), 3), images)


def test_idx_is_read_whatever_its_name_says(tmp_path: Path) -> None:
    images = pixels(4, 3, 2)
    (tmp_path / "unpacked.gz").write_bytes(idx(images))
    (tmp_path / "packed").write_bytes(gzip.compress(idx(images)))
    for name in ("unpacked.gz", "packed"):
        assert np.array_equal(read_idx(tmp_path / name, 3), images)


@pytest.mark.parametrize("member", ["gzip/labels.gz", "labels"])
def test_idx_is_read_from_a_zip_archive(tmp_path: Path, member: str) -> None:
    content = idx(np.arange(5))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("gzip/other-labels.gz", b"not this one")
        archive.writestr(member, gzip.compress(content) if member.endswith(".gz") else content)
    assert read_idx(tmp_path / "all.zip", 1, "labels").tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"all.zip: it holds no images; .*get it again"):
        read_idx(tmp_path / "all.zip", 3, "images")


def test_a_damaged_zip_archive_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("labels", idx(np.arange(500)))
    whole = (tmp_path / "all.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:200])
    (tmp_path / "bad.zip").write_bytes(whole.replace(bytes(range(100, 120)), bytes(20)))
    with pytest.raises(ValueError, match=r"cut.zip: File is not a zip file; the file is damaged"):
        read_idx(tmp_path / "cut.zip", 1, "labels")
    with pytest.raises(ValueError, match=r"bad.zip: Bad CRC-32 .*; the file is damaged"):
        read_idx(tmp_path / "bad.zip", 1, "labels")


@pytest.mark.parametrize(
    ("mark", "place", "value"),
    [
        pytest.param(b"PK\1\2", 42, b"\xf0\xff\xff\xff", id="a member beyond the end"),
        pytest.param(b"PK\5\6", 12, b"\xf0\0\0\0", id="a directory before the begin"),
        pytest.param(b"PK\5\6", 16, b"\xf0\0\0\0", id="a member before the begin"),
        pytest.param(b"PK\1\2", 10, b"\x63", id="an unknown compression"),
        pytest.param(b"PK\1\2", 8, b"\1", id="a member said to be encrypted"),
    ],
)
def test_a_zip_archive_with_a_damaged_directory_is_named(
    tmp_path: Path, mark: bytes, place: int, value: bytes
) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("labels", idx(np.arange(5)))
    data = bytearray((tmp_path / "all.zip").read_bytes())
    begin = data.index(mark) + place
    data[begin : begin + len(value)] = value
    (tmp_path / "all.zip").write_bytes(data)
    with pytest.raises(ValueError, match=r"all\.zip: .*; the file is damaged or another one"):
        read_idx(tmp_path / "all.zip", 1, "labels")


WHOLE = idx(pixels(5, 4, 4))
PACKED = gzip.compress(WHOLE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(PACKED[:-20], "ended before the end-of-stream marker", id="gzip cut off"),
        pytest.param(
            PACKED[:30] + bytes(9) + PACKED[39:], "invalid|Error -3|CRC", id="gzip damaged"
        ),
        pytest.param(WHOLE[:-1], r"promises the shape \(5, 4, 4\), but 79 bytes", id="cut off"),
        pytest.param(WHOLE + b"x", r"promises the shape \(5, 4, 4\), but 81 bytes", id="too long"),
        pytest.param(WHOLE[:9], "it ends within its header", id="header cut off"),
        pytest.param(
            b"", "begins with nothing; .* 3 dimensions begins with 00 00 08 03", id="empty"
        ),
        pytest.param(idx(np.arange(5)), "begins with 00 00 08 01; .*08 03", id="labels"),
        pytest.param(b"<!DOCTYPE html>", "begins with 3c 21 44 4f", id="web page"),
        pytest.param(
            bytes([0, 0, 8, 3]) + b"\xff" * 12, "but 0 bytes follow", id="impossible size"
        ),
    ],
)
def test_a_file_that_is_no_idx_is_named_with_the_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte: .*({reason})") as caught:
        read_idx(path, 3)
    assert str(caught.value).count(str(path)) == 1
    assert caught.value.__suppress_context__, "no traceback of another library"


def test_pixels_are_scaled_to_0_to_1_in_single_precision() -> None:
    images = np.array([0, 51, 255], np.uint8).reshape(3, 1, 1, 1)
    examples = image_examples(images, np.array([0, 1, 0], np.uint8), 2)
    assert examples.features.reshape(-1).tolist() == [0, np.float32(0.2), 1]


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (2, [0, 1, 1], "there are 2 images and 3 labels"),
        (0, [], "there are no images"),
        (3, [0, 7, 1], "a label is 7; allowed are whole numbers from 0 to 1"),
    ],
    ids=["counts", "empty", "label"],
)
def test_images_and_labels_must_fit(images: int, labels: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        image_examples(pixels(images, 1, 2, 2), np.array(labels, np.uint8), 2)


def check_cifar(path: Path) -> None:
    train, test = read_cifar(path)
    assert train.labels.tolist() == LABELS[:10]
    assert test.labels.tolist() == LABELS[10:]
    both = np.concatenate([train.features, test.features])
    assert np.array_equal(np.rint(both * 255), IMAGES)
    assert train.features.flags.c_contiguous


def test_cifar_is_read_from_its_batches(tmp_path: Path) -> None:
    check_cifar(write_batches(tmp_path / "cifar-10-batches-py", IMAGES, LABELS))


def test_cifar_is_read_from_its_archive_and_nothing_is_unpacked(tmp_path: Path) -> None:
    folder = write_batches(tmp_path / "made", IMAGES, LABELS)
    (folder / "readme.html").write_text("not a batch")
    path = write_tar(tmp_path / "kept" / "cifar-10-python.tar.gz", folder)
    check_cifar(path)
    assert list(path.parent.iterdir()) == [path]


def test_cifar_is_read_from_an_npz_file(tmp_path: Path) -> None:
    upright = IMAGES.transpose(0, 2, 3, 1)
    np.savez(
        tmp_path / "c.npz",
        x_train=upright[:10],
        y_train=np.array(LABELS[:10]),
        x_test=upright[10:],
        y_test=np.array(LABELS[10:]),
    )
    check_cifar(tmp_path / "c.npz")


def test_a_batch_of_python_2_and_one_of_python_3_are_the_same(tmp_path: Path) -> None:
    folder = write_batches(tmp_path / "cifar-10-batches-py", IMAGES, LABELS)
    write(folder / "data_batch_1", batch(IMAGES[:2].reshape(2, -1), LABELS[:2]))
    check_cifar(folder)


FLAT = IMAGES[:2].reshape(2, -1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(batch(FLAT, [1, 10]), "a label is 10; allowed .* 0 to 9", id="label"),
        pytest.param(batch(FLAT, [1, -1]), "a label is -1; allowed .* 0 to 9", id="negative"),
        pytest.param(batch(FLAT, [1]), "there are 2 images and 1 labels", id="count"),
        pytest.param(batch(FLAT, ["cat", "dog"]), "b'labels' is missing or no list", id="text"),
        pytest.param(batch(FLAT, None), "b'labels' is missing or no list", id="no labels"),
        pytest.param(
            batch(FLAT[:, :9], [1, 2]), "an image has 9 bytes; allowed is 3072", id="size"
        ),
        pytest.param(batch(FLAT / 255, [1, 2]), "b'data' is missing or no table", id="floats"),
        pytest.param(batch([1, 2], [1, 2]), "b'data' is missing or no table", id="list"),
        pytest.param(
            pickle.dumps([1, 2]), "holds a list; a batch of CIFAR-10 is a dict", id="none"
        ),
        pytest.param(batch_of_python_2(FLAT, [1, 2])[:-9], "no batch of CIFAR-10", id="cut off"),
        pytest.param(b"", r"no batch of CIFAR-10 \(Ran out of input\)", id="empty"),
    ],
)
def test_a_damaged_batch_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    folder = write_batches(tmp_path / "cifar-10-batches-py", IMAGES, LABELS)
    write(folder / "data_batch_4", content)
    with pytest.raises(ValueError, match=f"data_batch_4: .*{reason}"):
        read_cifar(folder)


class Hostile:
    """A pickle of this calls a function when it is read."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    hostile = pickle.dumps(Hostile(Path.touch, victim), protocol)
    folder = write_batches(tmp_path / "cifar-10-batches-py", IMAGES, LABELS)
    write(folder / "test_batch", hostile)
    with pytest.raises(ValueError, match=r"test_batch: .*it asks for .*; allowed are NumPy"):
        read_cifar(folder)
    assert not victim.exists()
    pickle.loads(hostile)
    assert victim.exists(), "this pickle does harm where it is let"


@pytest.mark.parametrize(
    "function", [eval, getattr, np.load, np.frombuffer, io.open_code], ids=lambda f: f.__name__
)
def test_a_pickle_gets_no_function_but_those_of_arrays(
    tmp_path: Path, function: Callable[..., object]
) -> None:
    folder = write_batches(tmp_path / "cifar-10-batches-py", IMAGES, LABELS)
    write(folder / "data_batch_1", pickle.dumps({b"data": Hostile(function, "1")}))
    with pytest.raises(ValueError, match=r"data_batch_1: .*it asks for .*; allowed are NumPy"):
        read_cifar(folder)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    folder = write_batches(tmp_path / "cifar-10-batches-py", IMAGES, LABELS)
    (folder / "data_batch_3").unlink()
    archive = write_tar(tmp_path / "cifar-10-python.tar.gz", folder)
    for path in (folder, archive):
        with pytest.raises(ValueError, match=f"{path.name}: it holds no data_batch_3"):
            read_cifar(path)


@pytest.mark.parametrize("name", ["../victim", "/victim", "cifar-10-batches-py/../../victim"])
def test_an_archive_that_points_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep" / "cifar-10-python.tar.gz"
    write_tar(path, write_batches(tmp_path / "made", IMAGES, LABELS))
    with tarfile.open(tmp_path / "made.tar", "w") as archive:
        archive.add(tmp_path / "made", "cifar-10-batches-py")
        archive.addfile(tarfile.TarInfo(name))
    path.write_bytes(gzip.compress((tmp_path / "made.tar").read_bytes()))
    with pytest.raises(ValueError, match=r"tar.gz: it holds '.*victim', which points out of"):
        read_cifar(path)
    assert not list(tmp_path.rglob("victim"))


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    folder = write_batches(tmp_path / "made", IMAGES, LABELS)
    (folder / "data_batch_2").rename(tmp_path / "elsewhere")
    (folder / "data_batch_2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="it holds no data_batch_2"):
        read_cifar(write_tar(tmp_path / "cifar-10-python.tar.gz", folder))


@pytest.mark.parametrize("keep", [0, 10, 3000, -4000])
def test_an_archive_cut_off_is_named(tmp_path: Path, keep: int) -> None:
    path = write_tar(
        tmp_path / "cifar-10-python.tar.gz", write_batches(tmp_path / "made", IMAGES, LABELS)
    )
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz: .*; the file is damaged"):
        read_cifar(path)


GOOD_NPZ = {
    "x_train": pixels(2, 32, 32, 3),
    "y_train": np.array([0, 1]),
    "x_test": pixels(1, 32, 32, 3),
    "y_test": np.array([9]),
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"y_test": np.array([10])}, "a label is 10; allowed"),
        ({"y_train": np.array([1])}, "there are 2 images and 1 labels"),
        ({"y_train": np.array([0.0, 1.0])}, "y_train is no list of whole numbers"),
        ({"x_test": pixels(1, 3, 32, 32)}, r"x_test has the shape \(1, 3, 32, 32\) of uint8"),
        ({"x_test": np.zeros((1, 32, 32, 3))}, r"x_test has the shape .* of float64"),
        ({"x_test": np.array([{"an": "object"}])}, "Object arrays cannot be loaded"),
    ],
    ids=["label", "count", "floats", "order", "type", "object"],
)
def test_an_npz_file_that_does_not_fit_is_named(
    tmp_path: Path, changed: dict[str, np.ndarray], reason: str
) -> None:
    np.savez(tmp_path / "c.npz", **{**GOOD_NPZ, **changed})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"c.npz: .*{reason}"):
        read_cifar(tmp_path / "c.npz")


def test_an_npz_file_without_its_arrays_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x_train=GOOD_NPZ["x_train"])
    with pytest.raises(ValueError, match=r"c.npz: it holds no y_train"):
        read_cifar(tmp_path / "c.npz")


@pytest.mark.parametrize("kind", ["cut off", "one array", "pickle"])
def test_a_file_that_is_no_npz_is_named(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "whole.npz", x_train=GOOD_NPZ["x_train"])
    np.save(tmp_path / "one.npy", np.zeros(3))
    contents = {
        "cut off": (tmp_path / "whole.npz").read_bytes()[:500],
        "one array": (tmp_path / "one.npy").read_bytes(),
        "pickle": pickle.dumps({"x_train": 1}),
    }
    (tmp_path / "c.npz").write_bytes(contents[kind])
    with pytest.raises(ValueError, match=r"c.npz: it is no npz file; the file is damaged"):
        read_cifar(tmp_path / "c.npz")


def write_mat(path: Path, **arrays: np.ndarray) -> Path:
    from scipy.io import savemat

    savemat(path, arrays, do_compression=True)
    return path


def test_svhn_is_turned_and_its_label_10_is_the_digit_0(tmp_path: Path) -> None:
    images = pixels(4, 32, 32, 3)
    labels = np.array([[10], [1], [9], [5]], np.uint8)
    path = write_mat(tmp_path / "train_32x32.mat", X=images.transpose(1, 2, 3, 0), y=labels)
    examples = read_svhn(path)
    assert examples.labels.tolist() == [0, 1, 9, 5]
    assert np.array_equal(np.rint(examples.features * 255), images.transpose(0, 3, 1, 2))
    assert examples.features.flags.c_contiguous


SQUARE = pixels(32, 32, 3, 2)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"X": SQUARE, "y": np.array([[1], [11]])}, "a label is 11; allowed .* 1 to 10"),
        ({"X": SQUARE, "y": np.array([[0], [1]])}, "a label is 0; allowed .* 1 to 10"),
        ({"X": SQUARE, "y": np.array([[1.5], [1]])}, "a label is 1.5; allowed are whole"),
        ({"X": SQUARE, "y": np.array([[1]])}, "there are 2 images and 1 labels"),
        ({"X": SQUARE, "y": np.array(["a", "b"])}, "y is of type <U1; allowed are numbers"),
        ({"X": SQUARE}, r"no MATLAB file with X and y \('y'\)"),
        ({"X": SQUARE[..., 0], "y": np.array([[1]])}, r"X has the shape \(32, 32, 3\)"),
        ({"X": SQUARE / 255, "y": np.array([[1], [2]])}, "X has the shape .* of float64"),
    ],
    ids=["label", "zero", "fraction", "count", "text", "no labels", "one image", "floats"],
)
def test_a_matlab_file_that_does_not_fit_is_named(
    tmp_path: Path, arrays: dict[str, np.ndarray], reason: str
) -> None:
    path = write_mat(tmp_path / "test_32x32.mat", **arrays)
    with pytest.raises(ValueError, match=f"test_32x32.mat: .*{reason}"):
        read_svhn(path)


@pytest.mark.parametrize("keep", [0, 50, 200, 1000])
def test_a_matlab_file_cut_off_is_named(tmp_path: Path, keep: int) -> None:
    path = write_mat(tmp_path / "train_32x32.mat", X=SQUARE, y=np.array([[1], [2]]))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"train_32x32.mat: no MATLAB file with X and y"):
        read_svhn(path)
