"""All campaigns after each other: what is missing is played, what was played is remembered."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.files import write_whole
from tacit.journal import Count, Journal, Number, Piece, machine
from tacit.one_writer import writing
from tools.faults import deployment
from tools.faults.campaign import Campaign, Outcome, played, prepared
from tools.faults.corruptions import CORRUPTIONS
from tools.faults.every_write import KILL_AT_EVERY_WRITE
from tools.faults.federations import FEDERATIONS
from tools.faults.fuzz import FUZZ
from tools.faults.killed import KILL_RANDOM

CAMPAIGNS = {
    one.name: one for one in (CORRUPTIONS, FUZZ, FEDERATIONS, KILL_AT_EVERY_WRITE, KILL_RANDOM)
}
NAMES = (*CAMPAIGNS, deployment.NAME)
QUICK_SECONDS, FULL_SECONDS = 110.0, 3 * 3600.0
MOST_FOUND = 20
"""How many failures of a campaign the table quotes."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Wanted:
    """What is to be played."""

    names: Sequence[str]
    trials: int | None
    quick: bool
    seed: int
    out: Path
    processes: int
    seconds: float


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Campaigns, with commas between them.")] = "",
    trials: Annotated[int | None, typer.Option(min=1, help="How many of each.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer: less than two minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Of the first trial; the others follow.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="The most that all may take.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="How many at once.")] = None,
    out: Annotated[Path, typer.Option(help="A folder for journal and table.")] = Path(
        "tacit-runs/faults"
    ),
    page: Annotated[
        Path | None, typer.Option(exists=True, help="A page whose table is written anew.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try what kills, damage, strange messages and lost members do. Exit 1: something failed.

    A campaign that was killed itself goes on where it was, if folder and seed are the same. The
    table also has what other campaigns have recorded in the folder with this seed.
    """
    names = [name.strip() for name in only.split(",")] if only else list(NAMES)
    for name in names:
        if name not in NAMES:
            typer.echo(f"--only names {name!r}; allowed are {', '.join(NAMES)}", err=True)
            raise typer.Exit(2)
    if page and _TABLE not in page.read_text():
        typer.echo(f"--page {page} has no table that begins with {_TABLE[:34]}", err=True)
        raise typer.Exit(2)
    allowed = QUICK_SECONDS if quick else FULL_SECONDS
    wanted = Wanted(
        [name for name in NAMES if name in names],
        trials,
        quick,
        seed,
        out,
        processes or os.cpu_count() or 1,
        allowed if minutes is None else 60 * minutes,
    )
    signal.signal(signal.SIGTERM, _interrupted)  # what was begun must be ended then too
    table = carried_out(wanted)
    if page:
        write_whole(page, paged(page.read_text(), table))
    if as_json:
        typer.echo(json.dumps(table, indent=1))
    else:
        for line in as_text(table):
            typer.echo(line)
    if any(row["failures"] for row in table["campaigns"]):
        raise typer.Exit(1)


def _interrupted(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def carried_out(wanted: Wanted) -> dict[str, Any]:
    """Play what is missing, write ``faults.json``, and return it."""
    with writing(wanted.out), _scratch(wanted.out) as scratch:
        journal = Journal(wanted.out, {"faults": 1, "seed": wanted.seed}, _kind_of_piece)
        until = time.monotonic() + wanted.seconds
        rows: list[dict[str, Any]] = []
        for name in NAMES:
            if name not in wanted.names:
                rows += _recorded(name, wanted, journal)
                continue
            left = max(until - time.monotonic(), 0.0)
            later = wanted.names[wanted.names.index(name) + 1 :]
            share = left / (1 + len([one for one in later if one in CAMPAIGNS]))
            # who needs less than its share leaves it to the others
            new = _rows(name, wanted, journal, scratch, time.monotonic() + share)
            for row in new:
                _tell(f"{row['campaign']}: {_result(row)}")
            rows += new
        table = {
            "faults": 1,
            "seed": wanted.seed,
            "campaigns": rows,
            "machine": {**machine(), "system": f"{platform.system()} {platform.release()}"},
        }
        write_whole(wanted.out / "faults.json", json.dumps(table, indent=1) + "\n")
    return table


def _kind_of_piece(piece: Piece) -> Any:
    """How many trials there are, or what came of some: failures, counts and seconds."""
    name = str(piece)
    if name.endswith((": planned", ": most")):
        return Count if name.endswith(": planned") else Count | None
    return tuple[list[str], dict[str, Count], Number]


def _rows(
    name: str, wanted: Wanted, journal: Journal, scratch: Path, until: float
) -> list[dict[str, Any]]:
    if name == deployment.NAME:
        return _deployed(wanted, journal, scratch, until)
    campaign = CAMPAIGNS[name]
    why = campaign.unavailable()
    if why:
        return [_not_run(name, campaign.what, why)]
    trials = wanted.trials or (campaign.quick if wanted.quick else campaign.full)
    _tell(f"{name}: {trials} trials, seeds from {wanted.seed}")
    return [_row(campaign, trials, wanted, journal, scratch, until)]


def _deployed(
    wanted: Wanted, journal: Journal, scratch: Path, until: float
) -> list[dict[str, Any]]:
    why = deployment.unavailable() or ("it takes minutes" if wanted.quick else "")
    if why:
        return [_not_run(deployment.NAME, deployment.WHAT, why)]
    trials = wanted.trials or deployment.FULL
    table = wanted.out / deployment.TABLE
    _tell(f"{deployment.NAME}: {trials} trials of each kind, seeds from {wanted.seed}")
    _plan(deployment.NAME, trials, journal)
    place = Path(tempfile.gettempdir()) / f"{scratch.name}-{deployment.NAME}"
    problem = deployment.play(trials, wanted.seed, table, place, until)
    rows = deployment.rows(table, trials, wanted.seed)
    if problem:
        failed = {"trials": 0, "failures": 1, "found": [problem]}
        rows.append({"campaign": deployment.NAME, "what": deployment.WHAT, **failed})
    return rows


def _plan(name: str, trials: int, journal: Journal) -> None:
    """Note how many trials a campaign has, for a table that is written when others are played."""
    if journal.pieces.get(f"{name}: planned", 0) < trials:
        journal.add(f"{name}: planned", trials)


def _recorded(name: str, wanted: Wanted, journal: Journal) -> list[dict[str, Any]]:
    """The rows of a campaign that is not wanted now, if it was before."""
    planned = journal.pieces.get(f"{name}: planned")
    if planned is None:
        return []
    if name != deployment.NAME:
        return [_told(CAMPAIGNS[name], planned, wanted.seed, journal)]
    why = deployment.unavailable()
    if why:
        return [_not_run(name, deployment.WHAT, why)]
    return deployment.rows(wanted.out / deployment.TABLE, planned, wanted.seed)


def _row(
    campaign: Campaign,
    trials: int,
    wanted: Wanted,
    journal: Journal,
    scratch: Path,
    until: float,
) -> dict[str, Any]:
    most = f"{campaign.name}: most"
    whole = min(trials, journal.pieces.get(most) or trials)
    if most not in journal.pieces or _missing(campaign, whole, journal):
        seeds = [wanted.seed + piece for piece in _missing(campaign, whole, journal)]
        with prepared(campaign, scratch, seeds) as ready:
            if most not in journal.pieces:
                journal.add(most, ready.most)
            whole = min(trials, ready.most or trials)
            _plan(campaign.name, whole, journal)
            missing = _missing(campaign, whole, journal)
            begun = time.monotonic()
            for piece, outcome in played(
                campaign, ready.play, missing, wanted.seed, scratch, wanted.processes, until
            ):
                seconds = time.monotonic() - begun
                begun += seconds
                journal.add(
                    f"{campaign.name} {piece}", [outcome.failures, dict(outcome.counts), seconds]
                )
                for failure in outcome.failures:
                    _tell(f"{campaign.name}: FAILED: {failure}")
    return _told(campaign, whole, wanted.seed, journal)


def _told(campaign: Campaign, trials: int, seed: int, journal: Journal) -> dict[str, Any]:
    """A campaign's row, of what is recorded."""
    pieces = campaign.pieces(trials)
    outcomes, seconds = _known(campaign, pieces, journal)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    return {
        "campaign": campaign.name,
        "what": campaign.what,
        "trials": len(outcomes) * campaign.batch,
        "planned": len(pieces) * campaign.batch,
        "failures": len(failures),
        "first_seed": seed,
        "last_seed": seed + len(pieces) - 1,
        "counts": dict(sorted(counts.items())),
        "found": failures[:MOST_FOUND],
        "seconds": round(seconds, 1),
    }


def _missing(campaign: Campaign, trials: int, journal: Journal) -> list[int]:
    pieces = campaign.pieces(trials)
    return [piece for piece in pieces if f"{campaign.name} {piece}" not in journal.pieces]


def _known(campaign: Campaign, pieces: range, journal: Journal) -> tuple[list[Outcome], float]:
    told = [journal.pieces.get(f"{campaign.name} {piece}") for piece in pieces]
    done = [one for one in told if one is not None]
    return [Outcome(one[0], Counter(one[1])) for one in done], sum(one[2] for one in done)


def _not_run(name: str, what: str, why: str) -> dict[str, Any]:
    return {"campaign": name, "what": what, "trials": 0, "failures": 0, "not_run": why}


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: trials bring many small files to disk.

    There is one for each folder of results, so whoever goes on removes what a kill left.
    """
    memory = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    named = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    folder = (memory if usable else Path(tempfile.gettempdir())) / f"tacit-faults-{named}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    home = os.environ.get("TACIT_HOME")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop("TACIT_HOME", None)
        if home is not None:
            os.environ["TACIT_HOME"] = home


def as_text(table: dict[str, Any]) -> list[str]:
    """The table for people."""
    rows = [(row["campaign"], _result(row)) for row in table["campaigns"]]
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {result}" for name, result in rows]


_TABLE = "| campaign | trials | failures |\n|---|---|---|\n"


def paged(page: str, table: dict[str, Any]) -> str:
    """A page of Markdown with this table instead of the one it has."""
    before, header, after = page.partition(_TABLE)
    while after.startswith("|"):
        after = after.partition("\n")[2]
    rows = (
        f"| `{row['campaign']}` | {row['trials']:,} | {row['failures']} |\n"
        for row in table["campaigns"]
        if "not_run" not in row
    )
    return "".join([before, header, *rows, after])


def _result(row: dict[str, Any]) -> str:
    if "not_run" in row:
        return f"not run: {row['not_run']}"
    planned = row.get("planned", row["trials"])
    of = f" of {planned}" if planned != row["trials"] else ""
    seeds = f", seeds {row['first_seed']} to {row['last_seed']}" if "last_seed" in row else ""
    return f"{row['trials']}{of} trials, {row['failures']} failures{seeds}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
