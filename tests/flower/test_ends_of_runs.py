"""A run that failed is noticed although `flwr run` ends with 0, as it does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tacit.federation import EngineFailed
from tacit.flower import processes
from tests.flower.deployment import SCRIPTS

REASON = "ServerApp failed with exception: the budget is spent"


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called flwr, whose runs end as the file ``runs`` says."""
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\ncd {tmp_path}\n"
        'if [ "$1" != ls ]; then cat said; exit; fi\n'
        "cat runs\nif [ -f next ]; then mv next runs; fi\n"
    )
    program.chmod(0o755)
    (tmp_path / "settings").touch()
    (tmp_path / "said").write_text("Successfully started run 7\n")
    path = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    monkeypatch.setattr(processes, "environment", lambda _home: {**os.environ, **path})
    monkeypatch.setenv("PATH", path["PATH"])
    return tmp_path


def ends(folder: Path, status: str, details: str = "N/A") -> None:
    runs = [{"run-id": "7", "status": status, "status-details": details}]
    (folder / "runs").write_text(json.dumps({"success": True, "runs": runs}))


def script(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "run.sh", folder], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_run_that_completed_is_fine(flower: Path) -> None:
    ends(flower, "finished:completed")
    processes.run_app(flower, flower)
    done = script(flower)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Run 7 completed.\n")


@pytest.mark.parametrize("status", ["finished:failed", "finished:stopped"])
def test_a_run_that_failed_ends_with_its_reason(flower: Path, status: str) -> None:
    ends(flower, status, REASON)
    with pytest.raises(EngineFailed, match=f"the run ended as {status}: {REASON}"):
        processes.run_app(flower, flower)
    done = script(flower)
    assert done.returncode == 1
    assert done.stderr == f"Run 7 did not complete ({status}): {REASON}\n"


def test_a_run_that_was_not_started_ends_with_what_flower_said(flower: Path) -> None:
    (flower / "said").write_text("no SuperLink there\n")
    with pytest.raises(EngineFailed, match="started no run: no SuperLink there"):
        processes.run_app(flower, flower)
    done = script(flower)
    assert done.returncode == 1
    assert done.stderr == "The run was not started: no SuperLink there\n"


def test_a_run_that_has_not_ended_is_waited_for(flower: Path) -> None:
    for run in (processes.run_app, lambda _app, _home: script(flower).check_returncode()):
        ends(flower, "finished:completed")
        (flower / "runs").rename(flower / "next")
        ends(flower, "running")
        run(flower, flower)
        assert not (flower / "next").exists(), "it was asked twice"
