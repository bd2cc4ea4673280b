from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.packed_arrays import read_array


def packed(path: Path, header: dict[str, Any], data: bytes) -> Path:
    """An npz file with one array of the name x, whatever its header says."""
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(entry, header)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", entry.getvalue() + data)
    return path


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f8", "<U5", "u1"])
def test_arrays_are_those_that_numpy_wrote(kind: str, order: Any, tmp_path: Path) -> None:
    wanted = np.asarray(np.arange(6).reshape(2, 3).astype(kind), order=order)
    np.savez_compressed(tmp_path / "a.npz", x=wanted)
    found = read_array(tmp_path / "a.npz", "x", 1000)
    assert found.dtype == wanted.dtype
    assert (found == wanted).all()
    with pytest.raises(ValueError, match="y is missing"):
        read_array(tmp_path / "a.npz", "y", 1000)


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    many = 2**28
    told = {"descr": "|u1", "fortran_order": False, "shape": (2**50,)}
    liar = packed(tmp_path / "liar.npz", told, b"123")
    bomb = packed(tmp_path / "bomb.npz", {**told, "shape": (many,)}, bytes(many))
    assert bomb.stat().st_size < many / 500
    tracemalloc.start()
    with pytest.raises(ValueError, match="its header says otherwise"):
        read_array(liar, "x", 2**60)
    with pytest.raises(ValueError, match=f"x has {many} bytes; allowed are 1000"):
        read_array(bomb, "x", 1000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < many / 100


def test_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="x holds objects"):
        read_array(tmp_path / "o.npz", "x", 1000)
