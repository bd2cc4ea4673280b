"""A client's own rows from its own file: a table as CSV, or arrays as npz.

Both can say which rows belong together, such as the visits of one patient. Identifiers become
numbers in the order in which they first appear, and what they were is forgotten. The order of rows
in the file is therefore what "position" means wherever Tacit speaks of it: it must not depend on
contents, as that of a table sorted by name or by diagnosis does.

Errors name rows and columns but no values, since logs may be seen by others.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.data.examples import Examples, group_numbers
from tacit.data.formats import naming

_ARRAYS, _GROUPS = ("features", "labels"), "groups"


def read_csv(path: Path | str, label: str, group: str | None = None) -> Examples:
    """Rows of a CSV file whose first line names the columns.

    Every column but ``label`` and ``group`` is a feature, in the order of the file.

    Args:
        path: the file.
        label: the column with the class of every row, a whole number from 0 on.
        group: the column by which rows belong together, numbers or words; none: every row stands
            alone.
    """
    with (
        Path(path).open(newline="", encoding="utf-8-sig") as stream,
        naming(Path(path), "a CSV file in UTF-8"),
    ):
        header, *rows = [row for row in csv.reader(stream) if row] or [[]]
    special = [label] if group is None else [label, group]
    for name in special:
        if header.count(name) != 1:
            raise ValueError(
                f"{path} has {header.count(name)} columns called {name!r}; allowed is one, of "
                f"{', '.join(header) or 'which it has none'}"
            )
    if len(set(header)) != len(header) or len(header) == len(special):
        raise ValueError(
            f"{path} has the columns {', '.join(header)}; allowed are different names, and at "
            "least one feature"
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(
                f"{path}: row {number} has {len(row)} fields; allowed are {len(header)}, one a "
                "column"
            )
    columns = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    labels = _numbers(path, label, columns.pop(label))
    if ((labels < 0) | (labels % 1 != 0)).any():
        raise ValueError(f"{path}: a label is no class; allowed are whole numbers from 0 on")
    identifiers = None if group is None else np.array(columns.pop(group), dtype=np.str_)
    features = [_numbers(path, name, column) for name, column in columns.items()]
    return Examples(
        np.stack(features, axis=1).astype(np.float32),
        labels.astype(np.int64),
        None if identifiers is None else group_numbers(identifiers),
    )


def read_npz(path: Path | str) -> Examples:
    """The arrays ``features`` and ``labels`` of a file of NumPy's, and ``groups`` if there is one.

    ``groups`` has an identifier a row, a number or a word. Nothing is unpickled.
    """
    arrays = _arrays(Path(path))
    for name in _ARRAYS:
        if name not in arrays:
            raise ValueError(
                f"{path} has no array {name!r}; allowed are features and labels, and groups "
                "where rows belong together"
            )
    features, labels, groups = arrays["features"], arrays["labels"], arrays.get(_GROUPS)
    if features.dtype.kind not in "biuf":
        raise ValueError(f"{path}: features are {features.dtype}; allowed are numbers")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: labels are {labels.dtype}; allowed are whole numbers")
    return Examples(
        features.astype(np.float32),
        labels.astype(np.int64),
        None if groups is None else group_numbers(groups),
    )


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Those arrays of a file that are asked for, as far as it has them."""
    with path.open("rb") as stream, naming(path, "a file of NumPy's arrays (npz)"):
        if not zipfile.is_zipfile(stream):  # NumPy would propose to unpickle it
            raise ValueError
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as content:
            found = {name: content[name] for name in (*_ARRAYS, _GROUPS) if name in content}
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError  # NumPy hands out the bytes of a member that is no array
        return found


def _numbers(path: Path | str, name: str, column: Sequence[str]) -> npt.NDArray[np.float64]:
    """A column of finite numbers."""
    found = np.empty(len(column))
    for place, field in enumerate(column):
        try:
            found[place] = float(field)
        except ValueError:
            found[place] = np.nan
    strange = np.flatnonzero(~np.isfinite(found))
    if strange.size:
        raise ValueError(
            f"{path}: row {strange[0] + 1}: {name} is no finite number; allowed are numbers in "
            "every column but that of the group"
        )
    return found
