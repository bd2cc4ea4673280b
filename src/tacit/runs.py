"""Runs as they lie on disk: find them, read them, compare them, say what is still to be paid.

A run is a folder with the plan as run (``plan.toml``), a journal of the sums that were opened and,
from the moment of the choice on, ``result.json`` and ``ledger.json``. Nothing is changed by reading
it, also while the run goes on. What a run tells is public: noisy sums and what was made of them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.federation import MEMBERS
from tacit.job import REFUSED, RUN, SPOILED, Parts, kind_of_piece
from tacit.journal import Piece, read_journal
from tacit.one_writer import Writer, writer_of
from tacit.plan import ENGINES, PLAN, Plan, load_plan
from tacit.privacy.accounting import Guarantee, spent
from tacit.privacy.events import compose, releases
from tacit.privacy.ledger import LedgerError
from tacit.result import Result
from tacit.result_files import RESULT, read_result
from tacit.settings import read_table

RUNS = Path("tacit-runs")
"""Where commands put what they make, unless told otherwise."""
FINISHED, UNFINISHED = "finished", "unfinished"
_TIME = "%Y%m%dT%H%M%S"


@dataclass(frozen=True)
class Run:
    """What the folder of a run holds."""

    folder: Path
    state: str
    plan: Plan | None
    """None where a Flower project of somebody's own made the run."""
    result: Result | None
    pieces: Mapping[Piece, Any]
    name: str
    begun: datetime
    why: str = ""
    """Why it ended without a choice, if it was refused or what it opened is spoiled."""
    writer: Writer | None = None
    """Who writes in the folder now: the run goes on while it is looked at."""

    @property
    def method(self) -> str:
        """How it chooses."""
        if self.result is not None:
            return self.result.method
        return "?" if self.plan is None else self.plan.search.method

    @property
    def opened(self) -> int:
        """How many sums it opened so far."""
        return sum(isinstance(piece, int) for piece in self.pieces)

    def summary(self) -> dict[str, Any]:
        """One row of a list."""
        plan, result = self.plan, self.result
        clients = None if plan is None else plan.federation.clients
        return {
            "folder": str(self.folder),
            "run": self.name,
            "state": self.state,
            "writer": None if self.writer is None else vars(self.writer),
            "method": self.method,
            "data": None if plan is None else plan.task.data,
            "clients": clients if result is None else result.privacy.participation.clients,
            "config": None if result is None else result.config,
            "accuracy": None if result is None else result.accuracy,
            "epsilon": None if result is None else result.privacy.epsilon,
            "delta": None if result is None else result.privacy.delta,
            "begun": self.begun.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True)
class Unreadable:
    """A folder that looks like a run, and why it cannot be read."""

    folder: Path
    why: str


@dataclass(frozen=True)
class Outstanding:
    """What a run that goes on has still to pay."""

    questions: int
    """How many will be asked at most."""
    charged: Guarantee
    """What the run has cost so far."""
    total: Guarantee
    """What it will have cost in the end, at most."""
    ledger: Path
    affordable: bool
    """Whether the ledger has so much left."""

    @property
    def free(self) -> bool:
        """Whether nothing more is charged."""
        return not self.questions


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run of ``tacit tune`` or of Flower; others have plans of theirs."""
    if (folder / RESULT).is_file():
        return True
    if not (folder / PLAN).is_file():
        return False
    try:
        return "front" not in read_table(folder / PLAN)
    except ValueError:
        return True  # reading it will say what is wrong


def find_runs(folder: Path) -> tuple[list[Run], list[Unreadable]]:
    """All runs in a folder and below it, the newest first, and what cannot be read."""
    runs: list[Run] = []
    unreadable: list[Unreadable] = []
    for place, below, _ in os.walk(folder):
        if not is_run(Path(place)):
            continue
        below.clear()  # a run's own folders hold no other
        try:
            runs.append(read_run(Path(place)))
        except ValueError as error:
            unreadable.append(Unreadable(Path(place), str(error)))
    runs.sort(key=lambda run: run.begun, reverse=True)
    return runs, sorted(unreadable, key=lambda one: one.folder)


def named_run(text: str, base: Path = RUNS) -> Run:
    """A run by its folder, or by the name of its folder below ``base``."""
    given = Path(text)
    for folder in (given, base / given):
        if folder.is_dir():
            return run_in(folder)
    names = [str(run.folder.relative_to(base)) for run in find_runs(base)[0]]
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.4) or names[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "there is none yet: `tacit tune`"
    raise ValueError(
        f"no run {text!r}; allowed is the folder of a run, or its name in {base}: {hint}"
    )


def run_in(folder: Path) -> Run:
    """The run in a folder, or a ValueError that says what is missing."""
    if not is_run(folder):
        raise ValueError(
            f"{folder} holds no run ({PLAN} is missing); allowed is the folder of a run that was "
            "begun with `tacit tune`: `tacit runs list` shows them"
        )
    return read_run(folder)


def read_run(folder: Path) -> Run:
    """The run in a folder; a ValueError where it cannot be read."""
    writer, plan = writer_of(folder), _plan_in(folder)
    journals = sorted(folder.glob("journal-*.jsonl"))
    pieces: dict[Piece, Any] = {}
    for path in journals:
        pieces |= read_journal(path, kind_of_piece)[0]
    result = _result_in(folder)
    name = str(pieces.get(RUN) or (result.ledger.get("run") if result else None) or folder.name)
    state, why = UNFINISHED, ""
    if result is None:
        endings = [(ending, pieces[ending]) for ending in (REFUSED, SPOILED) if pieces.get(ending)]
        state, why = endings[0] if endings else (state, why)
    elif result.warning:
        state, why = SPOILED, result.warning
    elif not _lacks_training(plan, result, pieces):
        state = FINISHED
    return Run(folder, state, plan, result, pieces, name, _begun(name, folder), why, writer)


def outstanding(run: Run) -> Outstanding:
    """What a run would still be charged if it went on now: nothing for what its journal holds."""
    if run.plan is None:
        raise ValueError(
            f"{run.folder} has no {PLAN}: a Flower project made it; it goes on from there, with "
            f'tacit.run.resume = "{run.name}" (docs/flower.md)'
        )
    parts = Parts.of(run.plan, run.folder)
    try:
        ledger = parts.ledger()
        counting = ledger.counting()
    except LedgerError as error:
        raise ValueError(f"what {run.folder} has spent cannot be read: {error}") from None
    opened = {told["line"] for number, told in run.pieces.items() if isinstance(number, int)}
    # Simulated clients sign off what a kill left unanswered, so that will count no longer.
    terms = run.plan.federation
    signed_off = terms.engine == ENGINES[0] and terms.roster and MEMBERS in run.pieces
    remaining = [
        charge
        for charge in counting
        if not (signed_off and charge.run == run.name and charge.state == "asked")
    ]
    own = [charge for charge in remaining if charge.run == run.name]
    missing = releases(parts.method.event(parts.plan.space, parts.variance))
    if run.result is None:
        usable = (c.event for c in own if c.digest in opened or c.state == "charged")
        missing -= releases(compose(usable))
    else:
        missing.clear()  # all that was to be paid for is known
    coming, delta = list(missing.elements()), parts.budget.delta
    spending = [charge.event for charge in own]
    everything = compose([*(charge.event for charge in remaining), *coming])
    return Outstanding(
        len(coming),
        spent(compose(spending), delta),
        spent(compose([*spending, *coming]), delta),
        ledger.path,
        affordable=spent(everything, ledger.budget.delta).epsilon <= ledger.budget.epsilon,
    )


def differences(first: Run, second: Run) -> dict[str, Any]:
    """Two runs side by side: every key of their plans that differs, and what came of it."""
    plans = [_flat(run.plan.to_json()) if run.plan else {} for run in (first, second)]
    configs = [run.result.config if run.result else {} for run in (first, second)]
    return {
        "runs": [first.summary(), second.summary()],
        "plan": _different(*plans),
        "config": _different(*configs),
        "accuracy": [run.result.accuracy if run.result else None for run in (first, second)],
        "epsilon": [run.result.privacy.epsilon if run.result else None for run in (first, second)],
        "bytes": [_bytes(run.result) for run in (first, second)],
        "exchanges": [run.result.exchanges if run.result else None for run in (first, second)],
        "seconds": [
            sum(run.result.seconds.values()) if run.result else None for run in (first, second)
        ],
    }


def _plan_in(folder: Path) -> Plan | None:
    path = folder / PLAN
    try:
        return load_plan(path, ()) if path.exists() else None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a plan: {error}") from None


def _result_in(folder: Path) -> Result | None:
    if not (folder / RESULT).exists():
        return None
    try:
        return read_result(folder)
    except ValueError as error:
        raise ValueError(
            f"{error}; if the journal is there, delete {RESULT} and go on: tacit runs resume "
            f"{folder}"
        ) from None


def _lacks_training(plan: Plan | None, result: Result, pieces: Mapping[Piece, Any]) -> bool:
    """Whether a training was planned that is not there yet; Flower's projects do their own."""
    if plan is None or RUN not in pieces or plan.search.method == "selection":
        return False
    return result.accuracy is None and plan.task.train_rounds > 0


def _begun(name: str, folder: Path) -> datetime:
    """From the name of the run, or else from its oldest file."""
    try:
        return datetime.strptime(name.split("-")[0], _TIME).replace(tzinfo=UTC)
    except ValueError:
        oldest = min(path.stat().st_mtime for path in folder.iterdir())
        return datetime.fromtimestamp(oldest, UTC)


def _bytes(result: Result | None) -> int | None:
    if result is None:
        return None
    return sum(cost["up"] + cost["down"] for cost in result.bytes.values())


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Sections and keys as one level; an axis of the space is one key."""
    return {f"{name}.{key}": value for name, keys in table.items() for key, value in keys.items()}


def _different(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = [*first, *(name for name in second if name not in first)]
    pairs = {name: [first.get(name), second.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
