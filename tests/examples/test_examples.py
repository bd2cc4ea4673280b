"""The examples run, in small."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tacit.data.folders import MissingData, locate
from tacit.data.sources import DATASETS
from tests.command_line import document, tacit
from tests.forked import forked
from tests.pages import ROOT

EXAMPLES = ROOT / "examples"


def test_every_example_is_explained_and_run_here() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == {
        "deploy",  # by tests/flower/test_deployment.py
        "flower-torch",  # by tests/flower/test_example.py
        "fraud",
        "notebook.ipynb",
        "scikit-learn",
    }


def _tune(arguments: Sequence[str]) -> None:
    sys.argv = ["tune.py", *arguments]
    runpy.run_path(str(EXAMPLES / "scikit-learn" / "tune.py"), run_name="__main__")


def test_scikit_learn_clients_share_settings() -> None:
    few = ["--clients", "8", "--candidates", "6", "--epsilon", "8"]
    done = forked(_tune, few, None, os.environ)
    assert done.returncode == 0, done.stderr
    price = re.search(r"price: epsilon ([\d.]+) ", done.stdout)
    assert price
    assert 7.9 < float(price[1]) <= 8
    assert len(re.findall(r"accuracy with .*: 0\.\d+", done.stdout)) == 2


def test_the_notebook_is_stored_without_outputs_and_runs(tmp_path: Path) -> None:
    stored = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    cells = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    script = (
        "import sys, nbformat, nbclient\n"
        "book = nbformat.read(sys.argv[1], 4)\n"
        "nbclient.NotebookClient(book, timeout=300).execute()\n"
        "nbformat.write(book, sys.argv[2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, EXAMPLES / "notebook.ipynb", tmp_path / "run.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = "".join(
        "".join(output.get("text", ""))
        for cell in json.loads((tmp_path / "run.ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
    )
    assert "100 clients, 100 candidates" in said
    assert len(re.findall(r"epsilon [\d.]+ +accuracy 0\.\d+", said)) == 4


@pytest.fixture
def fraud_data(real_data: Path) -> Path:
    try:
        locate(DATASETS["fraud"], real_data)
    except MissingData as error:
        pytest.skip(f"the real data is not here: {error}")
    return real_data


def test_the_plan_of_the_banks_runs(fraud_data: Path, tmp_path: Path) -> None:
    few = ('federation.engine="local"', "federation.clients=3", "search.candidates=4")
    changes = [part for change in few for part in ("--set", change)]
    plan = EXAMPLES / "fraud" / "plan.toml"
    done = tacit(
        *("tune", plan, *changes, "--data-dir", fraud_data, "--out", tmp_path / "run", "--json"),
        TACIT_HOME=str(tmp_path / "home"),
    )
    found = document(done)
    assert found["privacy"]["epsilon"] <= 3
    assert (tmp_path / "home" / "ledgers" / "banks.sqlite").is_file()


def test_the_story_of_the_banks(fraud_data: Path, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [EXAMPLES / "fraud" / "story.sh", tmp_path / "banks"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "TACIT_DATA": str(fraud_data),
            "CLIENTS": "3",
            "CANDIDATES": "4",
            "EPSILON": "8",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "All is well." in done.stdout
    assert re.search(r"line 2: 3 client\(s\) signed for it", done.stdout)
    assert "receipt(s) checked: all agree." in done.stdout
    assert "transcript(s) checked: all agree." in done.stdout
    assert "above the budget of 8" in done.stderr
    assert (tmp_path / "banks" / "run" / "report.html").is_file()
