"""Tests run side by side, so that one thread each is fastest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def journals_can_be_read_again() -> Iterator[None]:
    """Every piece that any test writes is of the kind that is asked for when it is read."""
    from tacit.journal import Journal, Piece, check_piece

    add = Journal.add

    def checked(self: Journal, piece: Piece, result: Any) -> None:
        check_piece(self.path, piece, json.loads(json.dumps(result)), self.kind_of(piece))
        add(self, piece, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", checked)
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the data sets themselves, for whoever has it."""
    folder = Path(os.environ.get("TACIT_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: {folder} is no folder, and TACIT_DATA names none")
    return folder
