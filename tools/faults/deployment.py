"""The trials of a real deployment (``tools.deployment_trials``), as rows of the same table."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NAME = "deployment"
_TRIALS = "tools.deployment_trials"


def unavailable() -> str:
    """Why no deployment can be tried out here, or nothing."""
    if importlib.util.find_spec("flwr") is None:
        return "Flower is not installed"
    if importlib.util.find_spec(_TRIALS) is None:
        return f"{_TRIALS} is not there"
    return ""


def rows(trials: int, seed: int, scratch: Path) -> list[dict[str, Any]]:
    """A row for every kind of trial; one that says why, if they cannot be carried out."""
    out = scratch / "deployment.json"
    command = [sys.executable, "-m", _TRIALS, "--trials", str(trials), "--seed", str(seed)]
    done = subprocess.run([*command, "--out", str(out)], check=False, stdout=sys.stderr)
    if not out.exists():
        return [_row(NAME, 0, 1, f"the trials ended with {done.returncode} and no table")]
    table = json.loads(out.read_bytes())
    problems = [f"seed {one['seed']}: {one['problem']}" for one in table["trials"]]
    return [
        {
            **_row(f"{NAME}: {row['campaign']}", row["trials"], row["failures"], row["what"]),
            "first_seed": seed,
            "found": [one for one in problems if not one.endswith(": ")][:20],
            "counts": {"results": row["results"]},
            "seconds": row["seconds"],
        }
        for row in table["campaigns"]
    ]


def _row(name: str, trials: int, failures: int, what: str) -> dict[str, Any]:
    return {"campaign": name, "what": what, "trials": trials, "failures": failures}
