"""Every command, on everything that is shipped for it: it ends as it should, with no traceback.

Benchmarks are not measured again: what was recorded goes through what each shows and writes.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import click
import pytest
import typer

from tacit.bench.pages import revived
from tacit.bench.terminal import PRINTED
from tacit.cli import app
from tacit.commands import bench
from tacit.data.folders import MissingData, locate
from tacit.data.sources import DATASETS
from tacit.job import run as carry_out
from tacit.pareto_job import run as search
from tacit.pareto_plan import load_pareto_plan
from tacit.plan import load_plan
from tacit.tables import ScoreTable, shipped
from tests.command_line import in_process
from tests.commands.test_command_tree import COMMANDS
from tests.commands.test_runs import TINY
from tests.test_membership import members

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks"
PLANS = sorted(path for path in (ROOT / "examples").rglob("plan.toml"))
SMALL = " ".join(f"--set {change}" for change in TINY)
FRONT = ("oracle.kind=sparse-vector", "oracle.replications=4", "front.first=4", "front.points=2")
QUICK_FRONT = " ".join(f"--set {change}" for change in (*FRONT, "front.batch=1"))
BUDGET = "--epsilon 4 --delta 1e-5"
TINY_TABLE = (
    "--clients 3 --examples 90 --test-examples 50 --epochs 1 --rounds 1 --batch 16 --seeds 1"
)


@dataclass(frozen=True)
class Case:
    """A command line and how it ends."""

    line: str
    code: int = 0

    def __str__(self) -> str:
        return self.line


def missing(name: str) -> bool:
    """Whether a data set is not on this machine; then a command says how to get it."""
    try:
        locate(DATASETS[name], None)
    except MissingData:
        return True
    return False


CASES: Mapping[str, list[Case]] = {
    "tacit plan": [
        Case(f"plan --clients 50 --candidates 100 --votes 5 {BUDGET}"),
        Case(f"plan --clients 50 --candidates 100 {BUDGET}"),
        Case(f"plan --method feathers --clients 100 --rounds 20 {BUDGET}"),
        Case(f"plan --method selection {BUDGET}"),
    ],
    "tacit compare": [
        Case("compare --table digits-iid-n20 --methods opt,random-guess --seeds 2 --out compared"),
        Case(f"compare {SMALL} --methods random-guess --out other"),
    ],
    "tacit audit": [Case("audit vote --runs 500 --out audited")],
    "tacit tune": [Case(f"tune {SMALL} --out tuned"), Case("tune --resume run")],
    "tacit new": [Case("new project")],
    "tacit ledger create": [Case(f"ledger create made.sqlite --federation made {BUDGET}")],
    "tacit ledger amend": [Case(f"ledger amend anna/ledger.sqlite {BUDGET} --reason test")],
    "tacit ledger show": [
        Case("ledger show anna/ledger.sqlite"),
        Case("ledger show run/ledger.sqlite"),
    ],
    "tacit ledger verify": [Case("ledger verify run/ledger.sqlite")],
    "tacit roster key": [Case("roster key dora")],
    "tacit roster make": [
        Case(f"roster make made.toml anna ben --federation made --dropout 0 {BUDGET}")
    ],
    "tacit roster check": [Case("roster check anna"), Case("roster check anna/roster.toml")],
    "tacit data list": [Case("data list")],
    "tacit data fetch": [Case("data fetch digits", 2)],
    "tacit data show": [
        Case(f"data show {name} --clients 10", 2 if missing(name) else 0) for name in DATASETS
    ],
    "tacit tables make": [Case(f"tables make {TINY_TABLE}")],
    "tacit tables list": [Case("tables list")],
    "tacit tables show": [Case(f"tables show {name}") for name in shipped()],
    "tacit pareto run": [Case(f"pareto {QUICK_FRONT} --out searched")],
    "tacit pareto suggest": [Case("pareto suggest front --epsilon 5")],
    "tacit runs list": [Case("runs list .")],
    "tacit runs show": [Case("runs show run")],
    "tacit runs compare": [Case("runs compare run run --page both.html")],
    "tacit runs resume": [Case("runs resume run")],
    "tacit runs export": [Case("runs export run --storage sqlite:///study.db")],
    **{f"tacit bench {name}": [] for name in PRINTED},  # see test_every_record_is_shown
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shipped")
    carry_out(load_plan(None, TINY), place / "run", lambda *_: None, lambda _: None)
    front = load_pareto_plan(None, (*FRONT, "front.batch=1"))
    search(front, place / "front", lambda *_: None)
    members(place)
    return place


@pytest.fixture(scope="module")
def reading(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for commands that change nothing that others look at."""
    copy = tmp_path_factory.mktemp("reading") / "place"
    shutil.copytree(whole, copy)
    return copy


def ended(done: CompletedProcess[str], code: int) -> None:
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.returncode == code, done.stderr[-3000:]
    if code == 2:
        assert done.stderr.startswith("tacit: ")
        assert done.stdout == ""


def test_every_command_has_a_case() -> None:
    assert set(CASES) == set(COMMANDS)


CHANGING = ("tune", "compare", "new", "ledger create", "roster make", "roster key", "runs export")
"""What refuses to do the same a second time, or does it for long."""


@pytest.mark.parametrize(
    "case", [case for cases in CASES.values() for case in cases], ids=lambda case: str(case)[:60]
)
def test_a_command_ends_well_on_what_is_shipped(
    case: Case, whole: Path, reading: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_CORES", "1")
    place = reading
    if case.line.startswith(CHANGING):
        place = tmp_path / "place"
        shutil.copytree(whole, place)
    ended(in_process(*case.line.split(), folder=place), case.code)
    if case.line.startswith(CHANGING):
        shutil.rmtree(place)
        shutil.copytree(whole, place)
    done = in_process(*case.line.split(), "--json", folder=place)
    ended(done, case.code)
    if not case.code:
        json.loads(done.stdout, parse_constant=pytest.fail)


def everything(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every group and every command."""
    yield words
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from everything(inner, (*words, name))


@pytest.mark.parametrize("words", [*everything(typer.main.get_command(app))], ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...], tmp_path: Path) -> None:
    done = in_process(*words, "--help", folder=tmp_path)
    ended(done, 0)
    assert "Usage" in done.stdout


def records() -> dict[str, dict[str, Any]]:
    found = {path: json.loads(path.read_text()) for path in sorted(RECORDS.rglob("*.json"))}
    return {str(path.relative_to(RECORDS)): told for path, told in found.items() if "bench" in told}


def test_every_benchmark_has_a_record() -> None:
    assert {told["bench"] for told in records().values()} == set(PRINTED)


@pytest.mark.parametrize("name", records())
def test_every_record_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs, with what was recorded in the place of the measurement."""
    told = records()[name]
    kind = told["bench"]
    module = sys.modules[f"tacit.bench.{kind.replace('-', '_')}"]
    monkeypatch.setattr(module, "run", lambda *_: revived(told))
    if kind == "dp-hype":
        monkeypatch.setattr(bench, "_table", lambda *_, **__: None)
    for option in ((), ("--json",)):
        done = in_process("bench", kind, "--quick", "--out", "out", *option, folder=tmp_path)
        ended(done, 0)
        if option:
            assert json.loads(done.stdout)["bench"] == kind
    assert (tmp_path / "out" / f"{kind}.html").stat().st_size > 1000


@pytest.mark.parametrize("name", sorted(shipped()))
def test_a_table_has_what_its_recipe_says(name: str) -> None:
    table = ScoreTable.load(name)
    seeds, clients, candidates = table.losses.shape
    assert (seeds, clients) == (table.recipe.seeds, table.recipe.clients)
    assert table.accuracy.shape == (seeds, candidates)
    assert table.made["core_seconds"] > 0


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_every_example_plan_is_carried_out_at_a_small_size(path: Path, tmp_path: Path) -> None:
    wanted = load_plan(path, ())
    small = ("task.score_epochs=1", "task.train_rounds=1", "search.candidates=6")
    local = ("federation.engine=local", "federation.clients=8", 'federation.name=""')
    changes = [part for change in (*small, *local) for part in ("--set", change)]
    done = in_process("tune", path, *changes, "--out", "run", folder=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if missing(wanted.task.data) else 0), done.stderr


def test_commands_in_the_documentation_are_commands_with_a_case() -> None:
    said = set(re.findall(r"^(tacit [a-z-]+(?: [a-z-]+)?)", (ROOT / "README.md").read_text(), re.M))
    assert said, "the README shows commands"
    groups = {name.rsplit(" ", 1)[0] for name in CASES}
    assert all(any(line.startswith(name) for name in {*CASES, *groups}) for line in said)
