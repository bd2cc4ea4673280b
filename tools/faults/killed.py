"""Runs that are killed: what they are, how they begin and go on, and what they leave."""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.runs import is_run
from tools.faults.campaign import Campaign, Outcome, Ready
from tools.faults.children import Child, Ended
from tools.faults.history import Evidence, breaches, given_up_for_nothing, lines_by_kind
from tools.faults.members import AMPLE, evidence, make_members, votes

FEDERATION = "clinics"
TIGHT = Budget(4.0, 1e-5)
"""Enough for a run of every kind and a part of another."""
MOST_KILLS = 5
_SMALL = (
    "federation.clients=6",
    f'federation.name="{FEDERATION}"',
    "privacy.epsilon=3.0",
    "privacy.dropout=1",
    "search.candidates=6",
    "search.votes=2",
    "search.ballot=published",
    "task.score_epochs=1",
    "task.train_epochs=1",
    "task.train_rounds=0",
    "task.hidden=[]",
)
_PLANS: dict[str, tuple[str, ...]] = {
    "vote, trained in the clear": ("task.train_rounds=1",),
    "auto": ("search.ballot=auto", "search.votes=0", "search.candidates=20"),
    "run-off": ("search.ballot=borda", "search.finalists=2"),
    "combine": ("search.method=combine", "search.strategy=mean"),
    "bandit, prepaid": (
        "search.method=bandit",
        "task.train_rounds=1",
        "rounds.phases=1",
        "rounds.rewards=2",
    ),
    "private training": ("training.private=true", "task.train_rounds=2"),
}


@dataclass(frozen=True)
class Killable:
    """A run that can be begun in a folder, or gone on with."""

    name: str
    make: Callable[[Path, Budget], None]
    """What it needs."""
    go_on: Callable[[Path, str], int]
    """Begin it under the name of a folder, or go on with it; an exit code."""
    evidence: Callable[[Path], Evidence]
    shares_ledger: bool = False
    """Whether several may run at once, and pay from one ledger."""


def planned(name: str, changes: Sequence[str]) -> Killable:
    """``tacit tune`` on a small plan, and ``tacit runs resume``."""

    def go_on(place: Path, run: str) -> int:
        os.environ["TACIT_HOME"] = str(place / "home")
        if is_run(place / run):
            return _command("runs", "resume", place / run, "--json")
        sets = [word for change in (*_SMALL, *changes) for word in ("--set", change)]
        return _command("tune", *sets, "--out", place / run, "--json")

    return Killable(name, _make_home, go_on, _evidence, shares_ledger=True)


def among_members(name: str, *, prepaid: bool) -> Killable:
    """Votes among members with folders, which are killed too and come back with the server."""
    return Killable(
        name,
        lambda place, budget: make_members(place, 3, 0, budget),
        lambda place, _run: votes(place, 2, prepaid=prepaid),
        evidence,
    )


def killed_at_random(prepared: Path, seeds: Sequence[int]) -> Ready:
    """Trials of every kind of run in turn, with an ample or a tight budget."""
    drawn = {KILLABLE[seed % len(KILLABLE)] for seed in seeds}
    templates = {
        (kind.name, budget): _template(kind, budget, prepared)
        for kind in drawn
        for budget in (AMPLE, TIGHT)
    }
    seconds = {kind.name: _seconds(kind, templates[kind.name, AMPLE]) for kind in drawn}

    def play(seed: int, folder: Path) -> Outcome:
        chance = random.Random(f"kill-random {seed}")
        kind = KILLABLE[seed % len(KILLABLE)]
        budget = chance.choice((AMPLE, TIGHT))
        place = folder / "place"
        shutil.copytree(templates[kind.name, budget], place)
        runs = ["run", "other"] if kind.shares_ledger and chance.random() < 0.25 else ["run"]
        outcome = Outcome()
        outcome.counts["two at once"] += len(runs) - 1
        kills = {run: chance.randrange(1, MOST_KILLS + 1) for run in runs}
        going = list(runs)
        while going:
            children = {
                run: Child(lambda run=run: kind.go_on(place, run), folder / f"{run}.txt")  # type: ignore[misc]
                for run in going
            }
            for run, child in children.items():
                after = chance.uniform(0.0, 1.1 * seconds[kind.name])
                ended = child.killed_after(after) if kills[run] else child.ended()
                kills[run] -= ended.killed
                _note(outcome, kind, ended)
                if not ended.killed:
                    going.remove(run)
            outcome.failures += [f"{kind.name}: {what}" for what in breaches(kind.evidence(place))]
        lost = given_up_for_nothing(kind.evidence(place))
        outcome.failures += [f"{kind.name}: {what}" for what in lost]
        outcome.counts += lines_by_kind(kind.evidence(place))
        return outcome

    return Ready(play)


def _note(outcome: Outcome, kind: Killable, ended: Ended) -> None:
    outcome.counts["kills"] += ended.killed
    outcome.counts["refused for the budget"] += ended.refused
    outcome.counts["finished"] += not ended.killed and ended.code == 0
    if ended.wrong:
        outcome.failures.append(f"{kind.name}: {ended.wrong}")


def _template(kind: Killable, budget: Budget, prepared: Path) -> Path:
    """A place in which such a run can begin."""
    place = prepared / f"{kind.name} {budget.epsilon:g}"
    place.mkdir()
    kind.make(place, budget)
    return place


def _seconds(kind: Killable, template: Path) -> float:
    """How long such a run takes; it is done here first, so that whoever is forked is warm."""
    for place in (template.with_name("warm"), template.with_name("timed")):
        shutil.copytree(template, place)
        begun = time.monotonic()
        if place.name == "warm":
            quietly(lambda place=place: kind.go_on(place, "run"))  # type: ignore[misc]
        else:
            Child(lambda place=place: kind.go_on(place, "run"), place / "said.txt").ended()  # type: ignore[misc]
        seconds = time.monotonic() - begun
        shutil.rmtree(place)
    return seconds


def quietly(work: Callable[[], int]) -> None:
    """Do work as a command does, without its words and its exit."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
        work()


def _make_home(place: Path, budget: Budget) -> None:
    os.environ["TACIT_HOME"] = str(place / "home")
    Ledger.create(ledger_path(FEDERATION), FEDERATION, budget)


def _evidence(place: Path) -> Evidence:
    return Evidence(
        servers=[place / "home" / "ledgers" / f"{FEDERATION}.sqlite"],
        runs=[place / "run", place / "other"],
    )


def _command(*words: object) -> int:
    from tacit.cli import main

    sys.argv = ["tacit", *map(str, words)]
    main()
    return 0


KILLABLE = (
    *(planned(name, changes) for name, changes in _PLANS.items()),
    among_members("members", prepaid=False),
    among_members("members, prepaid", prepaid=True),
)

KILL_RANDOM = Campaign(
    "kill-random",
    "A run is killed at random moments and resumed until it ends.",
    full=200,
    quick=16,
    prepare=killed_at_random,
    longest=300.0,
)
