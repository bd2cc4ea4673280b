"""``examples/flower-torch``: a project that was there before Tacit, over a grid in this process."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.config import flatten_dict

from tacit.flower.processes import run_app, simulated_nodes, simulating_superlink
from tacit.plan import read_plan
from tacit.privacy.ledger import Ledger, ledger_path
from tests.flower.grids import RUN, InProcessGrid, Node
from tests.pages import ROOT

EXAMPLE = ROOT / "examples" / "flower-torch"
NODES = 6


@dataclass
class TrainingGrid(InProcessGrid):
    """A grid over which a strategy of Flower trains too."""

    def send_and_receive(  # type: ignore[override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLE)
    return importlib.import_module("nuclei")


def settings() -> dict[str, Any]:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    return dict(project["tool"]["flwr"]["app"]["config"])


def test_its_settings_are_a_plan() -> None:
    told = settings()["tacit"]
    told.pop("run")
    assert read_plan(told).privacy.epsilon == 3


@pytest.mark.usefixtures("at_once")
def test_clinics_agree_and_then_train_as_before(
    project: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = {
        side: importlib.import_module(f"{project.__name__}.{side}_app")
        for side in ("client", "server")
    }
    nodes = {
        100 + number: Node(
            apps["client"].app,
            Context(
                RUN,
                100 + number,
                {"partition-id": number, "num-partitions": NODES},
                RecordDict(),
                {},
            ),
        )
        for number in range(NODES)
    }
    config = {
        **flatten_dict(settings()),
        "rounds": 2,
        "tacit.search.candidates": 4,
        "tacit.search.ballot": "published",
        "tacit.search.votes": 1,
        "tacit.privacy.dropout": 0.0,
        "tacit.federation.wait": 0.0,
        "tacit.run.out": str(tmp_path / "runs"),
    }
    trained: list[float] = []
    evaluate = apps["server"].evaluate

    def watched(number: int, arrays: ArrayRecord) -> MetricRecord:
        found: MetricRecord = evaluate(number, arrays)
        trained.append(float(str(found["accuracy"])))
        return found

    monkeypatch.setattr(apps["server"], "evaluate", watched)
    apps["server"].app(TrainingGrid(nodes), Context(RUN, 1, {}, RecordDict(), config))
    assert len(trained) == 3, "before the first round and after each"
    spent = Ledger(ledger_path("nuclei"))
    assert len(spent) == 1
    assert spent.total().epsilon <= 3


@pytest.mark.slow
def test_it_runs_on_flowers_own_simulation(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("__pycache__")
    project = Path(shutil.copytree(EXAMPLE, tmp_path / "flower-torch", ignore=left_out))
    said: list[str] = []
    home = tmp_path / "home"
    with simulating_superlink(home, TACIT_HOME=str(tmp_path / "tacit")):
        run_app(project, home, options=simulated_nodes(4), line=said.append)
    (result,) = (tmp_path / "tacit" / "runs").glob("*/result.json")
    found = json.loads(result.read_text())
    assert found["clients"]["answered"] == 4
    assert set(found["config"]) == {"lr", "weight_decay"}
    assert "accuracy" in "\n".join(said)


def test_what_was_added_is_few_lines() -> None:
    marked = [
        line
        for name in ("client_app.py", "server_app.py")
        for line in (EXAMPLE / "nuclei" / name).read_text().splitlines()
        if line.endswith("# tacit")
    ]
    assert len(marked) == 7
    assert not re.search(r"\btacit\b", (EXAMPLE / "nuclei" / "task.py").read_text())
