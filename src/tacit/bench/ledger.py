"""What a ledger's length costs: a charge, a look and a verification, and how long rivals wait.

A ledger of some lines is filled, with releases that are all alike or all different, or near its
budget: with different releases that leave so little of it that every later line is priced exactly.
Then a fresh process opens it and charges, charges again, and verifies it. Last, several processes
charge one ledger at once, each as often as planned, with much of the budget left or little; noted
is the longest that any of them waited for a charge, the first of each process apart, in which
libraries are loaded.

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
from tacit.privacy.accounting import LARGEST_EPSILON, Budget, spent
from tacit.privacy.events import SkellamRelease, compose
from tacit.privacy.ledger import Ledger

SIZES, QUICK_SIZES = (10, 100, 1_000, 10_000), (10, 100)
RIVALS, CHARGES, QUICK_CHARGES = 8, 1_000, 20
ALIKE, DISTINCT, NEAR = KINDS = ("alike", "distinct", "near the budget")
"""Of ledgers, by what is charged to them."""
DEAR, CHEAP = 320, 160
"""Near the budget: how many different releases take most of it, and how many come after those."""
_DELTA = 1e-5
_VARIANCE = 1e7
"""So little is spent by one line that the longest ledger stays within its budget."""
_DEAR_VARIANCE = 1e4
_LEFT = 1.02
"""Near the budget, it is so many times what is spent; the price by a bound is higher than that."""
_NEXT = 20
_SCRIPT = """
import json, sys, time
from pathlib import Path
begin = time.perf_counter()
from tacit.bench.ledger import release, _NEXT
from tacit.privacy.ledger import Ledger
imported = time.perf_counter()
ledger, kind = Ledger(Path(sys.argv[1])), sys.argv[2]
ledger.charge(release(0, kind), "vote", "first")
first = time.perf_counter()
for number in range(_NEXT):
    ledger.charge(release(number, kind), "vote", "next")
following = time.perf_counter()
problems = ledger.verify()
print(json.dumps({
    "import_seconds": imported - begin,
    "first_seconds": first - imported,
    "next_seconds": (following - first) / _NEXT,
    "verify_seconds": time.perf_counter() - following,
    "problems": len(problems),
}))
"""


def release(number: int, kind: str) -> SkellamRelease:
    """One of the votes after the first ones, by which little is spent."""
    if kind == NEAR:
        number %= CHEAP
    return SkellamRelease(((1, 10),), _VARIANCE * (1 + number * (kind != ALIKE) / 1e6))


def releases(lines: int, kind: str) -> list[SkellamRelease]:
    """All votes of a ledger of so many lines."""
    dear = min(DEAR, lines // 2) if kind == NEAR else 0
    first = [SkellamRelease(((1, 10),), _DEAR_VARIANCE * (1 + n / 1e4)) for n in range(dear)]
    return first + [release(number, kind) for number in range(lines - dear)]


def budget_of(lines: int, kind: str) -> Budget:
    """What is enough for so many lines, and near the budget for little more."""
    if kind != NEAR:
        return Budget(LARGEST_EPSILON, _DELTA)
    return Budget(_LEFT * spent(compose(releases(lines, kind)), _DELTA).epsilon, _DELTA)


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
    releases: str
    charges_each: Count
    recorded: Count
    longest_wait_seconds: Number
    longest_first_seconds: Number
    seconds: Number


def _kind_of_piece(piece: Piece) -> Any:
    return _Rivals if str(piece).startswith("rivals ") else _Measured


def run(quick: bool, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Measure every ledger, those of earlier runs excepted; JSON."""
    begin = time.perf_counter()
    sizes = QUICK_SIZES if quick else SIZES
    charges = QUICK_CHARGES if quick else CHARGES
    rows: dict[str, Callable[[], dict[str, Any]]] = {
        f"{lines} {kind}": partial(measured, lines, kind) for lines in sizes for kind in KINDS
    }
    contests: dict[str, Callable[[], dict[str, Any]]] = {
        f"rivals {kind}": partial(rivals, RIVALS, charges, kind) for kind in (ALIKE, NEAR)
    }
    work = {**rows, **contests}
    recipe = {"bench": "ledger", "sizes": list(sizes), "charges": charges, "kinds": list(KINDS)}
    journal = Journal(folder, recipe, _kind_of_piece)
    for done, (piece, measure) in enumerate(work.items()):
        progress(done, len(work))
        if piece not in journal.pieces:
            journal.add(piece, measure())
    progress(len(work), len(work))
    return {
        "bench": "ledger",
        "quick": quick,
        "rows": [journal.pieces[piece] for piece in rows],
        "rivals": [journal.pieces[piece] for piece in contests],
        "seconds": time.perf_counter() - begin,
        "machine": machine(),
    }


def measured(lines: int, kind: str) -> dict[str, Any]:
    """One row: what a fresh process does with a ledger of so many charges."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = Ledger.create(path, "bench", budget_of(lines + _NEXT + 1, kind))
        begin = time.perf_counter()
        for number, vote in enumerate(releases(lines, kind)):
            ledger.charge(vote, "vote", f"run-{number}")
        filled = time.perf_counter() - begin
        command = [sys.executable, "-c", _SCRIPT, str(path), kind]
        done = subprocess.run(  # noqa: S603  # ours
            command, capture_output=True, text=True, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    if found.pop("problems"):
        raise ValueError("a ledger of this benchmark does not verify; look for what altered it")
    return {
        "lines": lines,
        "releases": kind,
        "fill_seconds": filled,
        **found,
    }


def rivals(processes: int, charges: int, kind: str) -> dict[str, Any]:
    """Several processes that charge one ledger at once: is every charge on it, and who waited?"""
    first = releases(2 * DEAR, kind)[:DEAR] if kind == NEAR else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        budget = budget_of(2 * DEAR + processes * charges, kind)
        ledger = Ledger.create(path, "bench", budget)
        ledger.charge_all([("vote", vote) for vote in first], "first")
        begin = time.perf_counter()
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waits = list(
                pool.map(
                    _charging,
                    [path] * processes,
                    range(processes),
                    [charges] * processes,
                    [kind] * processes,
                )
            )
        seconds = time.perf_counter() - begin
        ledger = Ledger(path)
        recorded, total = len(ledger) - len(first), ledger.total().epsilon
    if recorded != processes * charges or total > budget.epsilon:
        raise ValueError(f"{recorded} charges are recorded of {processes * charges} reported")
    return {
        "processes": processes,
        "releases": kind,
        "charges_each": charges,
        "recorded": recorded,
        "longest_wait_seconds": max(max(wait[1:]) for wait in waits),
        "longest_first_seconds": max(wait[0] for wait in waits),
        "seconds": seconds,
    }


def _charging(path: Path, process: int, charges: int, kind: str) -> list[float]:
    """How long each charge took."""
    ledger, waits = Ledger(path), []
    for number in range(process * charges, (process + 1) * charges):
        begin = time.perf_counter()
        ledger.charge(release(number, kind), "vote", f"process-{process}")
        waits.append(time.perf_counter() - begin)
    return waits
