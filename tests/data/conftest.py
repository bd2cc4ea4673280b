from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.data.folders import MissingData, locate
from tacit.data.sources import DATASETS


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
