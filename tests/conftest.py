"""Tests run side by side, so that one thread each is fastest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the data sets themselves, for whoever has it."""
    folder = Path(os.environ.get("TACIT_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: {folder} is no folder, and TACIT_DATA names none")
    return folder
