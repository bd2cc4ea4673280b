"""For all tests of this folder: Flower, an identity to send messages with, and ledgers apart."""

from __future__ import annotations

import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest


class Skipped(pytest.File):
    """A file of tests that cannot run here, and says so."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip("needs Flower: pip install tacit[flower]")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    found = yield
    if find_spec("flwr") or not found:
        return found
    return [Skipped.from_parent(parent, path=file_path)]


@pytest.fixture(autouse=True)
def task_identity() -> None:
    """Messages can be made outside of a run."""
    from flwr.supercore.task_identity import TaskIdentity

    from tests.flower.grids import RUN

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1


@pytest.fixture(autouse=True)
def tacit_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where federations' ledgers and runs go."""
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a deadline, nor for nodes that are gone."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: None)
    monkeypatch.setattr("tacit.endpoint.time", clock)
    monkeypatch.setattr("tacit.flower.channel._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("tacit.flower.server._WAIT_SECONDS", 0.001)
