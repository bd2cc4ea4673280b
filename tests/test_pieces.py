"""Journals whose checksums fit and whose pieces are no results of the work: one sentence each.

Checksums keep accidents out, and whoever can write a file can compute them. Every command that goes
on from a journal says which piece it is, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tacit import compare, compare_tables, journal, pareto_job, table_maker
from tacit.audits import auditing
from tacit.bench import (
    adaptive,
    averaging,
    ballots,
    combine,
    encrypted,
    feathers,
    feathers_runs,
    flower,
    ledger,
    noise,
    pareto,
    pieces,
    scaling,
    secure_sum,
    selection,
    speed,
    votes,
)
from tacit.bench.pieces import Workplace
from tacit.contenders import CONTENDERS
from tacit.federation import Federation, kind_of_piece
from tacit.job import run as carry_out
from tacit.journal import Journal, _line, journal_path, read_journal
from tacit.pareto_plan import load_pareto_plan
from tacit.plan import load_plan
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.runs import read_run
from tacit.tables import ScoreTable
from tests.commands.test_runs import TINY
from tests.federations import federation
from tests.test_charged_questions import BALLOT, TRAINING, Willing
from tests.test_tables import TINY as SMALL_TABLE
from tools.faults import running

NOBODY = "is no result of this work"
NOT_READ = "line 1 cannot be read"


def quiet(*_: object) -> None:
    pass


def place(folder: Path) -> Workplace:
    return Workplace(None, folder, quiet)


READERS: dict[str, tuple[Callable[[Path], object], str | int]] = {
    "adaptive": (lambda f: adaptive.run(adaptive.QUICK, 1, place(f)), "any"),
    "averaging": (lambda f: averaging.run(averaging.QUICK, 1, place(f)), "any"),
    "ballots": (
        lambda f: ballots.run(ballots.Setup((), (50,), (1.0,)), place(f)),
        "smooth 50 1",
    ),
    "combine, table": (
        lambda f: combine.run(combine.quick(), 1, None, f, quiet),
        combine.piece("table", combine.quick()[0], 0),
    ),
    "combine, chosen": (lambda f: combine.run(combine.quick(), 1, None, f, quiet), "chosen any"),
    "encrypted": (lambda f: encrypted.run((3,), False, f, quiet), "mean 3"),
    "encrypted, noisy": (lambda f: encrypted.run((3,), True, f, quiet), "with noise"),
    "encrypted, operations": (lambda f: encrypted.run((3,), False, f, quiet), "operations 3"),
    "feathers": (lambda f: feathers.run(feathers_runs.QUICK, 1, place(f)), "any"),
    "feathers, fraud": (lambda f: feathers.run(feathers_runs.QUICK, 1, place(f)), "fraud, any"),
    "flower": (lambda f: flower.run((), None, f, quiet), 10),
    "ledger": (lambda f: ledger.run(True, f, quiet), "10 alike"),
    "ledger, rivals": (lambda f: ledger.run(True, f, quiet), "rivals alike"),
    "noise": (lambda f: noise.run(True, f, quiet), 0),
    "pareto": (lambda f: pareto.run(pareto.QUICK, 1, place(f)), "any nehvi 0"),
    "pareto, known": (lambda f: pareto.run(pareto.QUICK, 1, place(f)), "sparse-vector nehvi 0"),
    "pareto, true": (lambda f: pareto.run(pareto.QUICK, 1, place(f)), "sparse-vector true"),
    "pareto, grid": (lambda f: pareto.run(pareto.QUICK, 1, place(f)), "svm+sgd grid"),
    "pareto, overhead": (lambda f: pareto.run(pareto.QUICK, 1, place(f)), "overhead"),
    "scaling": (lambda f: scaling.run(True, f, quiet), 0),
    "secure sum": (lambda f: secure_sum.run((), {}, f, quiet), "50 clients, quiet"),
    "secure sum, lossy": (lambda f: secure_sum.run((), {}, f, quiet), "50 clients, sum 0"),
    "selection": (lambda f: selection.run(selection.QUICK, place(f)), "any"),
    "selection, adaptive": (lambda f: selection.run(selection.QUICK, place(f)), "any adaptive"),
    "speed": (lambda f: speed.run(True, None, f, quiet), 0),
    "speed, halving": (lambda f: speed.run(True, None, f, quiet), 9),
    "votes": (lambda f: votes.run(2, 0, f, quiet), 0),
    "table, local": (lambda f: table_maker.make(SMALL_TABLE, None, f, quiet), 0),
    "audit": (lambda f: auditing.run(["vote"], 1.0, "quick", f, quiet), "vote: any"),
    "audit's plan": (lambda f: auditing.run(["vote"], 1.0, "quick", f, quiet), "vote: plan"),
    "comparison": (
        lambda f: compare.run(load_plan(None, TINY), [], 1, f, quiet, quiet),
        "vote seed 0",
    ),
    "comparison on a table": (
        lambda f: compare_tables.run(
            ScoreTable.load("digits-iid-n20"), [], Budget(1.0, 1e-5), 1, f, quiet
        ),
        "vote seed 0",
    ),
    "front": (lambda f: pareto_job.run(load_pareto_plan(None, ()), f, quiet), 0),
    "front's token": (lambda f: pareto_job.run(load_pareto_plan(None, ()), f, quiet), "run"),
    "run": (lambda f: carry_out(load_plan(None, TINY), f, quiet, quiet, resume=True), 0),
    "run's name": (
        lambda f: carry_out(load_plan(None, TINY), f, quiet, quiet, resume=True),
        "run",
    ),
    "run's ending": (
        lambda f: carry_out(load_plan(None, TINY), f, quiet, quiet, resume=True),
        "refused",
    ),
    "run, shown": (read_run, "members"),
    "faults": (
        lambda f: running.carried_out(running.Wanted((), 1, True, 0, f, 1, 1.0)),
        "fuzz 0",
    ),
    "faults, planned": (
        lambda f: running.carried_out(running.Wanted((), 1, True, 0, f, 1, 1.0)),
        "fuzz: planned",
    ),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("odd", [{"": None}, -1], ids=["object", "number"])
def test_a_piece_of_another_kind_is_named_in_one_sentence(
    name: str, odd: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, piece = READERS[name]
    monkeypatch.setattr(journal, "journal_path", lambda folder, _: folder / "journal-0.jsonl")
    monkeypatch.setattr(pareto_job, "journal_path", journal.journal_path)
    monkeypatch.setattr(pieces, "load", quiet)
    path = tmp_path / "journal-0.jsonl"
    path.write_bytes(_line(piece, odd))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=NOBODY) as refused:
        read(tmp_path)
    assert f"{path}, piece {piece!r}" in str(refused.value)
    assert path.read_bytes() == before


RECIPE = {"journal": "run"}


def asking(folder: Path, ledger: Ledger) -> Federation:
    clients = [Willing(lambda config: float(config["x"]))] * 5
    built = federation(clients, 20.0, budget=ledger.budget, trains=True)
    built.ledger, built.run = ledger, "run"
    built.journal = Journal(folder, RECIPE, kind_of_piece)
    return built


QUESTIONS: dict[str, Callable[[Federation], object]] = {
    "sum": lambda built: built.sum(BALLOT, "vote"),
    "mean": lambda built: built.average(TRAINING, "training 1"),
}
TOO_LONG = "a number beyond 64 bits"
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "fewer numbers": ("sum", {"value": [1, 2]}),
    "lists of numbers": ("sum", {"value": [[1], [2], [3]]}),
    TOO_LONG: ("sum", {"value": [0, 0, 2**70]}),
    "nobody answered": ("sum", {"clients": [5, 0]}),
    "a mean in place of a sum": ("sum", {"value": None, "arrays": []}),
    "no array": ("mean", {"arrays": []}),
    "another shape": ("mean", {"arrays": [["<f4", [3], "A" * 16]]}),
    "fewer bytes": ("mean", {"arrays": [["<f4", [1, 3], "AAAA"]]}),
    "no kind of array": ("mean", {"arrays": [["<O8", [1, 3], "A" * 16]]}),
    "no base64": ("mean", {"arrays": [["<f4", [1, 3], "A"]]}),
    "a sum in place of a mean": ("mean", {"arrays": None, "value": [1, 2, 3]}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_does_not_go_on_from_an_answer_of_another_form(change: str, tmp_path: Path) -> None:
    question, changes = CHANGES[change]
    ledger = Ledger.in_memory("federation", Budget(math.inf, 1e-5))
    ask = QUESTIONS[question]
    first = asking(tmp_path, ledger)
    ask(first)
    charged = len(ledger)
    ask(asking(tmp_path, ledger))
    assert len(ledger) == charged, "it went on from the journal"
    path = journal_path(tmp_path, RECIPE)
    noted = read_journal(path, kind_of_piece)[0][0] | changes
    path.write_bytes(_line(0, {key: value for key, value in noted.items() if value is not None}))
    with pytest.raises(ValueError, match=NOT_READ if change == TOO_LONG else NOBODY):
        ask(asking(tmp_path, ledger))
    assert len(ledger) == charged, "nothing is asked again either"


def changed_point(folder: Path, **changes: object) -> Path:
    plan = load_pareto_plan(None, ["oracle.kind=sparse-vector"])
    path = journal_path(folder, {"front": plan.to_json()})
    point = {"config": {"C": 3, "b": 1.0}, "epsilon": 1.0, "errors": [0.5], "seconds": 0.1}
    path.write_bytes(_line(0, point | {"extra": None} | changes))
    return path


@pytest.mark.parametrize(
    "config", [{"C": 3}, {"C": 3, "b": 1.0, "c": 1}, {"C": 99, "b": 1.0}, {"C": 3, "b": "inf"}]
)
def test_a_point_outside_of_the_space_of_its_front_is_named(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = changed_point(tmp_path, config=config)
    plan = load_pareto_plan(None, ["oracle.kind=sparse-vector"])
    with pytest.raises(ValueError, match=NOBODY) as refused:
        pareto_job.run(plan, tmp_path, quiet)
    assert f"{path}, piece 0" in str(refused.value)


def test_an_event_that_is_none_is_named_in_one_sentence(tmp_path: Path) -> None:
    table, budget = ScoreTable.load("digits-iid-n20"), Budget(1.0, 1e-5)
    guess = CONTENDERS["random-guess"]
    run = partial(compare_tables.run, table, [guess], budget, 1, tmp_path, quiet)
    run()
    (path,) = tmp_path.glob("journal-*.jsonl")
    name = "random-guess seed 0"
    known = read_journal(path, lambda _: object)[0][name]
    for event in ({}, {"kind": "skellam", "odd": 1}, {"kind": "composed", "events": 3}):
        path.write_bytes(_line(name, known | {"events": [event]}))
        with pytest.raises(ValueError, match=NOBODY):
            run()
