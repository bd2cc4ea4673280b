"""What a private vote over Flower costs beside Flower itself, by stage.

The same nodes first answer empty messages, then take part in one vote whose scores cost nothing,
with a roster, ledgers in files and receipts. In a simulation, whose processes stay, loading is in
neither (a first round lets them load what Flower and Tacit need); a deployed node starts a process
for every message, so loading is in both. A stage is one message to every node and back, so what
it takes beyond a round of empty messages is ours. Simulated clients run on Flower's simulation, one
core each; deployed ones on a deployment made by ``examples/deploy/up.sh``, whose vote is charged to
that deployment's ledgers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tacit.journal import Count, Journal, Number, Row, each, machine
from tacit.locks import real

SIZES = (10, 50, 100, 250)
QUICK_SIZES = (10,)
ROUNDS = 5
_APP = {
    "server": "tacit.bench.flower_app:server_app",
    "client": "tacit.bench.flower_app:client_app",
}


class _Stage(Row):
    exchanges: Count
    seconds: Number
    up: Count
    down: Count
    messages: Count


class _Point(Row):
    """What a vote took on some nodes."""

    kind: str
    nodes: Count
    empty_seconds: list[Number]
    stages: dict[str, _Stage]
    flower_seconds: Number
    our_seconds: Number
    messages: Count
    bytes_up_a_node: Number
    bytes_down_a_node: Number


def run(
    sizes: tuple[int, ...],
    deployment: Path | None,
    folder: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Measure every size, and a deployment if one is given; goes on after a kill."""
    import tacit.flower  # noqa: F401  # says how to get Flower where it is missing

    folder = real(folder)
    journal = Journal(folder, {"bench": "flower", "rounds": ROUNDS}, each(_Point))
    work: dict[int, Callable[[Path], dict[str, Any]]] = {
        size: partial(_simulated, size) for size in sizes
    }
    if deployment:
        _check(deployment)
        work[0] = partial(_deployed, real(deployment))
    for done, (piece, measure) in enumerate(work.items()):
        progress(done, len(work))
        if piece not in journal.pieces:
            place = folder / "unfinished"
            shutil.rmtree(place, ignore_errors=True)
            journal.add(piece, measure(place))
            shutil.rmtree(place)
    progress(len(work), len(work))
    return {
        "bench": "flower",
        "points": [journal.pieces[piece] for piece in work],
        "machine": machine(),
    }


def _simulated(clients: int, place: Path) -> dict[str, Any]:
    from tacit.flower.processes import run_app, simulated_nodes, simulating_superlink, write_app
    from tacit.flower.simulation import make_members, member_name
    from tacit.membership import ROSTER
    from tacit.privacy.accounting import Budget
    from tacit.privacy.mechanisms import Participation

    participation, budget = Participation(clients), Budget(1.0, 1e-5)
    make_members(place / "members", "bench", participation, budget)
    roster = place / "members" / member_name(0) / ROSTER
    app = write_app(place / "app", **_APP, **_settings(place, roster))
    with simulating_superlink(place / "home", TACIT_HOME=str(place / "server")):
        run_app(app, place / "home", options=simulated_nodes(clients))
    return _point("simulation", place)


def _deployed(deployment: Path, place: Path) -> dict[str, Any]:
    from tacit.flower.processes import run_app, write_app

    app = write_app(place / "app", **_APP, **_settings(place, deployment / "roster.toml"))
    run_app(app, deployment / "flower")
    return _point("deployment", place)


def _check(deployment: Path) -> None:
    """Refuse what is no deployment before anything is measured."""
    if not all((deployment / name).exists() for name in ("flower/config.toml", "roster.toml")):
        raise ValueError(
            f"{deployment} is no deployment; make one with examples/deploy/up.sh {deployment}"
        )


def _settings(place: Path, roster: Path) -> dict[str, Any]:
    return {
        "folder": str(place),
        "rounds": ROUNDS,
        "tacit": {"federation": {"roster_file": str(roster), "deadline": 5.0}},
    }


def _point(kind: str, place: Path) -> dict[str, Any]:
    measured = json.loads((place / "measured.json").read_text())
    stages = measured["stages"]
    empty = median(measured["empty_seconds"])
    # A deployed node answers the first stage at its deadline, which is a choice and no cost.
    waited = 5.0 if kind == "deployment" else 0.0
    total = sum(stage["seconds"] for stage in stages.values()) - waited
    flower = empty * len(stages)
    return {
        "kind": kind,
        "nodes": measured["nodes"],
        "empty_seconds": measured["empty_seconds"],
        "stages": stages,
        "flower_seconds": flower,
        "our_seconds": total - flower,
        "messages": sum(stage["messages"] for stage in stages.values()),
        "bytes_up_a_node": sum(stage["up"] for stage in stages.values()) / measured["nodes"],
        "bytes_down_a_node": sum(stage["down"] for stage in stages.values()) / measured["nodes"],
    }
