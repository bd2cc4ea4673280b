"""What a ledger's length costs: a charge, a look and a verification, and how long rivals wait.

A ledger of some lines is filled, with releases that are all alike or all different. Then a fresh
process opens it and charges, charges again, and verifies it. Last, several processes charge one
ledger at once, each as often as planned; noted is the longest that any of them waited for a charge,
the first of each process apart, in which libraries are loaded.

A killed run goes on with the rows that are missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tacit.journal import Count, Journal, Number, Piece, Row, machine
from tacit.privacy.accounting import LARGEST_EPSILON, Budget
from tacit.privacy.events import SkellamRelease
from tacit.privacy.ledger import Ledger

SIZES, QUICK_SIZES = (10, 100, 1_000, 10_000), (10, 100)
RIVALS, CHARGES, QUICK_CHARGES = 8, 1_000, 20
_BUDGET = Budget(LARGEST_EPSILON, 1e-5)
_VARIANCE = 1e7
"""So little is spent by one line that the longest ledger stays within its budget."""
_SCRIPT = """
import json, sys, time
from pathlib import Path
begin = time.perf_counter()
from tacit.bench.ledger import release
from tacit.privacy.ledger import Ledger
imported = time.perf_counter()
ledger, numbers = Ledger(Path(sys.argv[1])), []
ledger.charge(release(0, distinct=False), "vote", "first")
first = time.perf_counter()
for number in range(20):
    ledger.charge(release(0, distinct=False), "vote", "next")
following = time.perf_counter()
problems = ledger.verify()
print(json.dumps({
    "import_seconds": imported - begin,
    "first_seconds": first - imported,
    "next_seconds": (following - first) / 20,
    "verify_seconds": time.perf_counter() - following,
    "problems": len(problems),
}))
"""


def release(number: int, *, distinct: bool) -> SkellamRelease:
    """One vote's release; with another variance for each number, if they are to be distinct."""
    return SkellamRelease(((1, 10),), _VARIANCE * (1 + number * distinct / 1e6))


class _Measured(Row):
    """A ledger of some charges."""

    lines: Count
    releases: str
    fill_seconds: Number
    import_seconds: Number
    first_seconds: Number
    next_seconds: Number
    verify_seconds: Number


class _Rivals(Row):
    """Several processes with one ledger."""

    processes: Count
    charges_each: Count
    recorded: Count
    longest_wait_seconds: Number
    longest_first_seconds: Number
    seconds: Number


def _kind_of_piece(piece: Piece) -> Any:
    return _Rivals if piece == "rivals" else _Measured


def run(quick: bool, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Measure every ledger, those of earlier runs excepted; JSON."""
    begin = time.perf_counter()
    sizes = QUICK_SIZES if quick else SIZES
    charges = QUICK_CHARGES if quick else CHARGES
    work: dict[str, Callable[[], dict[str, Any]]] = {
        f"{lines} {kind}": partial(measured, lines, distinct=kind == "distinct")
        for lines in sizes
        for kind in ("alike", "distinct")
    }
    work["rivals"] = partial(rivals, RIVALS, charges)
    recipe = {"bench": "ledger", "sizes": list(sizes), "charges": charges}
    journal = Journal(folder, recipe, _kind_of_piece)
    for done, (piece, measure) in enumerate(work.items()):
        progress(done, len(work))
        if piece not in journal.pieces:
            journal.add(piece, measure())
    progress(len(work), len(work))
    return {
        "bench": "ledger",
        "quick": quick,
        "rows": [journal.pieces[piece] for piece in work if piece != "rivals"],
        "rivals": journal.pieces["rivals"],
        "seconds": time.perf_counter() - begin,
        "machine": machine(),
    }


def measured(lines: int, *, distinct: bool) -> dict[str, Any]:
    """One row: what a fresh process does with a ledger of so many charges."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger, begin = Ledger.create(path, "bench", _BUDGET), time.perf_counter()
        for number in range(lines):
            ledger.charge(release(number, distinct=distinct), "vote", f"run-{number}")
        filled = time.perf_counter() - begin
        command = [sys.executable, "-c", _SCRIPT, str(path)]
        done = subprocess.run(  # noqa: S603  # ours
            command, capture_output=True, text=True, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    if found.pop("problems"):
        raise ValueError("a ledger of this benchmark does not verify; look for what altered it")
    return {
        "lines": lines,
        "releases": "distinct" if distinct else "alike",
        "fill_seconds": filled,
        **found,
    }


def rivals(processes: int, charges: int) -> dict[str, Any]:
    """Several processes that charge one ledger at once: is every charge on it, and who waited?"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        Ledger.create(path, "bench", _BUDGET)
        begin = time.perf_counter()
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waits = list(
                pool.map(_charging, [path] * processes, range(processes), [charges] * processes)
            )
        seconds = time.perf_counter() - begin
        ledger = Ledger(path)
        recorded, spent = len(ledger), ledger.total().epsilon
    if recorded != processes * charges or spent > _BUDGET.epsilon:
        raise ValueError(f"{recorded} charges are recorded of {processes * charges} reported")
    return {
        "processes": processes,
        "charges_each": charges,
        "recorded": recorded,
        "longest_wait_seconds": max(max(wait[1:]) for wait in waits),
        "longest_first_seconds": max(wait[0] for wait in waits),
        "seconds": seconds,
    }


def _charging(path: Path, process: int, charges: int) -> list[float]:
    """How long each charge took."""
    ledger, waits = Ledger(path), []
    for number in range(charges):
        begin = time.perf_counter()
        ledger.charge(release(number, distinct=False), "vote", f"process-{process}")
        waits.append(time.perf_counter() - begin)
    return waits
