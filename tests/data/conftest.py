from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.data.folders import MissingData, locate
from tacit.data.sources import DATASETS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the data sets themselves, for whoever has it."""
    folder = Path(os.environ.get("TACIT_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: {folder} is no folder, and TACIT_DATA names none")
    return folder


@pytest.fixture
def real_files(real_data: Path) -> Callable[[str], dict[str, Path]]:
    """Where the files of a data set are, by their published names."""

    def files(name: str) -> dict[str, Path]:
        try:
            return locate(DATASETS[name], real_data)
        except MissingData as error:
            pytest.skip(f"the real data is not here: {error}")

    return files


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test finds or leaves files in the places that a person uses."""
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "tacit" / "data"
