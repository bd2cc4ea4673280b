"""The trials of a real deployment (``tools.deployment_trials``), as rows of the same table.

They are played by a program of its own, which writes down every trial as it ends and plays only
those that are missing there. Told to end, it stops the deployment first, so it gets the time for
that; whatever still runs after it, or was left by a kill of both, is found by the temporary folder
in its environment.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "deployment"
WHAT = "A real deployment is killed and stopped."
TABLE = "deployment.json"
FULL = 5
"""Trials of each kind."""
_TRIALS = "tools.deployment_trials"
_END_SECONDS = 240.0
"""What stopping a deployment may take: its script has three minutes."""


def unavailable() -> str:
    """Why no deployment can be tried out here, or nothing."""
    if importlib.util.find_spec("flwr") is None:
        return "Flower is not installed"
    if importlib.util.find_spec(_TRIALS) is None:
        return f"{_TRIALS} is not there"
    return ""


def play(trials: int, seed: int, table: Path, place: Path, until: float) -> str:
    """Play the trials that a table lacks, until a moment; what kept them from being played.

    Trials that the time does not suffice for are missing, and nothing is said about them.

    Args:
        trials: how many of each kind.
        seed: of the first.
        table: the file that holds those that have ended.
        place: a folder that only these deployments use; it is removed.
        until: the moment, by ``time.monotonic``.
    """
    _clear(place)
    place.mkdir()
    try:
        child = subprocess.Popen(
            _command(trials, seed, table),
            stdout=sys.stderr,
            env={**os.environ, "TMPDIR": str(place)},
            start_new_session=True,  # Ctrl-C reaches us only, and it is told to end once
        )
        try:
            code = child.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return ""
        finally:
            _end(child)
    finally:
        _clear(place)
    return "" if code in (0, 1) else f"the trials ended with {code}"


def _command(trials: int, seed: int, table: Path) -> Sequence[str]:
    counted = ["--trials", str(trials), "--seed", str(seed)]
    return [sys.executable, "-m", _TRIALS, *counted, "--out", str(table)]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Tell it to end, and let it stop what it began."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _clear(place: Path) -> None:
    """End whatever runs with this temporary folder, and remove it."""
    mark = f"TMPDIR={place}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        process = int(environment.parent.name)
        with suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            if process != os.getpid() and mark in environment.read_bytes().split(b"\0"):
                os.kill(process, signal.SIGKILL)
    shutil.rmtree(place, ignore_errors=True)


def rows(table: Path, trials: int, seed: int) -> list[dict[str, Any]]:
    """A row for every kind of trial, of what has ended so far."""
    from tools.deployment_trials.__main__ import recorded, table_of
    from tools.deployment_trials.campaigns import CAMPAIGNS

    ended = [one for one in recorded(table) if seed <= one.seed < seed + trials]
    told = {row["campaign"]: row for row in table_of(ended)["campaigns"]}
    return [
        {
            "campaign": f"{NAME}: {kind}",
            "what": campaign.name,
            "trials": told.get(kind, {}).get("trials", 0),
            "planned": trials,
            "failures": told.get(kind, {}).get("failures", 0),
            "first_seed": seed,
            "last_seed": seed + trials - 1,
            "counts": {"results": told.get(kind, {}).get("results", 0)},
            "found": [
                f"seed {one.seed}: {one.failure}"
                for one in ended
                if one.campaign == kind and one.failure
            ],
            "seconds": told.get(kind, {}).get("seconds", 0.0),
        }
        for kind, campaign in CAMPAIGNS.items()
    ]
