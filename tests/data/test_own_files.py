from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.data import read_csv, read_npz

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
