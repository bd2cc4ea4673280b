from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.data import read_csv, read_npz
from tests.damage import DAMAGES

SEEDS = 150
VISITS = "patient,age,ill,pulse\nann,61,0,70\nbob,50,1,90\nann,62,1,75.5\n\neve,33,0,60\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text)
    return path


def test_a_column_of_a_table_says_which_rows_belong_together(tmp_path: Path) -> None:
    visits = read_csv(written(tmp_path, VISITS), label="ill", group="patient")
    assert visits.features.tolist() == [[61, 70], [50, 90], [62, 75.5], [33, 60]]
    assert visits.labels.tolist() == [0, 1, 1, 0]
    assert visits.groups is not None
    assert visits.groups.tolist() == [0, 1, 0, 2]
    assert visits.units == 3


def test_who_they_are_does_not_matter(tmp_path: Path) -> None:
    one = read_csv(written(tmp_path, VISITS), "ill", "patient")
    renamed = VISITS.replace("ann", "zoe").replace("bob", "7")
    other = read_csv(written(tmp_path, renamed), "ill", "patient")
    assert one.groups is not None
    assert other.groups is not None
    assert one.groups.tolist() == other.groups.tolist()


def test_rows_of_a_table_stand_alone_if_no_column_is_named(tmp_path: Path) -> None:
    rows = read_csv(written(tmp_path, "a,label\n1,0\n2,3\n"), label="label")
    assert rows.groups is None
    assert (rows.features.tolist(), rows.labels.tolist()) == ([[1], [2]], [0, 3])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 columns called 'ill'; allowed is one, of which it has none"),
        ("patient,age\nann,1\n", "has 0 columns called 'ill'; allowed is one, of patient, age"),
        ("patient,ill,ill\nann,1,1\n", "has 2 columns called 'ill'"),
        ("patient,ill,age,age\nann,1,1,1\n", "allowed are different names"),
        ("patient,ill\nann,1\n", "at least one feature"),
        ("patient,ill,age\nann,1\n", "row 1 has 2 fields; allowed are 3"),
        ("patient,ill,age\nann,1,1\nbob,1,secret\n", "row 2: age is no finite number"),
        ("patient,ill,age\nann,1,inf\n", "row 1: age is no finite number"),
        ("patient,ill,age\nann,0.5,1\n", "a label is no class; allowed are whole numbers from 0"),
        ("patient,ill,age\nann,-1,1\n", "a label is no class; allowed are whole numbers from 0"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_without_its_contents(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        read_csv(written(tmp_path, text), label="ill", group="patient")
    assert "secret" not in str(refused.value)


def test_arrays_may_have_groups(tmp_path: Path) -> None:
    features, labels = np.arange(12.0).reshape(3, 1, 2, 2), np.array([0, 1, 0], np.uint8)
    np.savez(tmp_path / "a.npz", features=features, labels=labels, groups=np.array(["b", "a", "b"]))
    np.savez(tmp_path / "b.npz", features=features, labels=labels)
    together, alone = read_npz(tmp_path / "a.npz"), read_npz(tmp_path / "b.npz")
    assert together.groups is not None
    assert together.groups.tolist() == [0, 1, 0]
    assert alone.groups is None
    for rows in (together, alone):
        assert np.array_equal(rows.features, features.astype(np.float32))
        assert rows.labels.tolist() == [0, 1, 0]


def test_arrays_that_are_missing_or_no_numbers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="has no array 'labels'; allowed are features and labels"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", features=np.zeros((2, 1)), labels=np.array([0.5, 1]))
    with pytest.raises(ValueError, match="labels are float64; allowed are whole numbers"):
        read_npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", features=np.zeros((2, 1)), labels=np.arange(2), groups=[1])
    with pytest.raises(ValueError, match="groups has 1 entries and labels 2"):
        read_npz(tmp_path / "c.npz")


def rewritten(path: Path, member: bytes) -> None:
    """A whole archive, of which one member is something else."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", member)
        archive.writestr("labels.npy", member)


def poked(path: Path, mark: bytes, place: int, value: bytes) -> None:
    """Bytes behind each mark of an archive's directories are others."""
    data = bytearray(path.read_bytes())
    found = -1
    while (found := data.find(mark, found + 1)) >= 0:
        data[found + place : found + place + len(value)] = value
    path.write_bytes(data)


HEADER = b"\x93NUMPY\x01\x00v\x00"
DIRECTORY, END = b"PK\x01\x02", b"PK\x05\x06"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"secret"),
        lambda path: path.write_bytes(path.read_bytes()[:-80]),
        lambda path: poked(path, b"NUMPY", 0, b"secret"),
        lambda path: poked(path, DIRECTORY, 10, b"\x63\x00"),
        lambda path: poked(path, DIRECTORY, 8, b"\x01"),
        lambda path: poked(path, DIRECTORY, 42, b"\xff\xff\xff\x7f"),
        lambda path: poked(path, END, 16, b"\xff\xff\xff\x7f"),
        lambda path: rewritten(path, b"secret"),
        lambda path: rewritten(path, HEADER + b"(secret".ljust(0x76)),
        lambda path: rewritten(path, HEADER + b"{'descr': '<f8', 'shape': (secret,".ljust(0x76)),
        lambda path: rewritten(
            path,
            HEADER + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}\n",
        ),
        lambda path: path.write_bytes(HEADER + bytes(200)),
    ],
    ids=[
        *("empty", "text", "cut off", "not the checksum's", "unknown compression", "encrypted"),
        *("begins beyond the end", "directory beyond the end", "no array", "half a bracket"),
        *("half a header", "more than there is memory", "an array alone"),
    ],
)
def test_damaged_arrays_are_refused_by_name_and_without_their_contents(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, features=np.zeros((2, 1)), labels=np.array([0, 1]))
    damage(path)
    with pytest.raises(ValueError, match=re.escape(f"{path} cannot be read as a file of")) as told:
        read_npz(path)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "content",
    [
        b"ill,age\n\xff1,secret\n",
        b'ill,age\n1,"' + b"secret" * 30_000,
        "ill,a\n1,2".encode("utf-16"),
    ],
    ids=["no text", "a field without end", "another encoding"],
)
def test_a_damaged_table_is_refused_by_name_and_without_its_contents(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path} cannot be read as a CSV file")) as told:
        read_csv(path, label="ill")
    assert "secret" not in str(told.value)


def refusal(path: Path) -> str:
    """What is said about a file that cannot be read, if anything."""
    try:
        read_csv(path, "ill", "patient") if path.suffix == ".csv" else read_npz(path)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["rows.csv", "rows.npz"])
def test_whatever_happens_to_a_file_it_is_read_or_refused_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    written(tmp_path, VISITS)
    np.savez(
        tmp_path / "rows.npz",
        features=np.zeros((3, 2)),
        labels=np.array([0, 1, 1]),
        groups=np.array(["a", "b", "b"]),
    )
    path, refused = tmp_path / name, 0
    whole = path.read_bytes()
    for seed in range(SEEDS):
        dice = random.Random(seed)
        path.write_bytes(dice.choice(DAMAGES)(whole, dice))
        told = refusal(path)
        refused += bool(told)
        assert not told or str(path) in told, seed
    assert refused > SEEDS / 2


def test_a_missing_file_is_no_damaged_one(tmp_path: Path) -> None:
    for read in (read_npz, lambda path: read_csv(path, "ill")):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")


def test_features_that_are_no_numbers_are_refused_without_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.array([["secret"]]), labels=np.array([0]))
    with pytest.raises(ValueError, match=r"a\.npz: features are <U6; allowed are numbers"):
        read_npz(tmp_path / "a.npz")
