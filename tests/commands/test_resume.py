from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.command_line import document, tacit

SMALL = (
    *("--set", "federation.clients=12", "--set", "search.candidates=6", "--set", "search.votes=2"),
    *(
        "--set",
        "task.score_epochs=1",
        "--set",
        "task.train_rounds=6",
        "--set",
        "task.train_epochs=1",
    ),
    *("--set", "training.private=true", "--set", "privacy.epsilon=8", "--set", "task.hidden=[]"),
)


def opened(folder: Path) -> int:
    """How many sums a run has written to its journal, after its name and its members' keys."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("journal-*.jsonl")) - 2


def test_a_killed_run_goes_on_and_pays_for_no_round_twice(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = "from tacit.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, "tune", *SMALL, "--out", str(folder)])
    limit = time.monotonic() + 120
    while opened(folder) < 3 and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    known = opened(folder)
    found = document(tacit("tune", "--resume", folder, "--json"))
    assert found["accuracy"] is not None
    ledger = json.loads((folder / "ledger.json").read_text())
    labels = [line["label"] for line in ledger["lines"]]
    assert known >= 3
    assert len(labels) == 1 + 6
    # A round that was cut off is paid for twice; then the last one is not held.
    cut_off = len(labels) - len(set(labels))
    rounds = 6 - cut_off
    assert [note["number"] for note in found["rounds"]] == list(range(1, rounds + 1))
    assert set(labels) == {"vote", *(f"training round {n}" for n in range(1, rounds + 1))}
    assert ("ended early" in found["note"]) == bool(cut_off)
    assert ledger["lifetime"]["epsilon"] <= 8
    again = document(tacit("tune", "--resume", folder, "--json"))
    assert again["privacy"]["epsilon"] == found["privacy"]["epsilon"]
    assert again["config"] == found["config"]


def test_a_kill_while_clients_evaluate_costs_nothing(tmp_path: Path) -> None:
    """The default plan's budget pays for one question; before, that was gone."""
    folder = tmp_path / "run"
    script = tmp_path / "dying.py"
    script.write_text(
        "import os\nfrom tacit import cli, federation\n"
        "real = federation.LocalChannel.ask\n"
        "def ask(self, stage, requests):\n"
        "    return os._exit(9) if stage == 'evaluate' else real(self, stage, requests)\n"
        "federation.LocalChannel.ask = ask\ncli.main()\n"
    )
    once = ("--set", "search.ballot=published", "--set", "training.private=false")
    tight = ("--set", "privacy.epsilon=1", "--out", str(folder))
    died = subprocess.run([sys.executable, script, "tune", *SMALL, *once, *tight], check=False)
    assert died.returncode == 9
    shown = document(tacit("runs", "show", folder, "--json"))
    assert (shown["state"], shown["opened"]) == ("unfinished", 0)
    found = document(tacit("runs", "resume", folder, "--json"))
    assert found["privacy"]["epsilon"] <= 1
    lines = document(tacit("ledger", "show", folder / "ledger.sqlite", "--json"))["charges"]
    assert [line["state"] for line in lines] == ["closed", "sealed"]


def test_resuming_needs_a_run_and_nothing_else(tmp_path: Path) -> None:
    missing = tacit("tune", "--resume", tmp_path)
    assert missing.returncode == 2
    assert "holds no run (plan.toml is missing)" in missing.stderr
    both = tacit("tune", "--resume", tmp_path, "--seed", "3")
    assert both.returncode == 2
    assert "allowed is --resume alone" in both.stderr
