from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import (
    Composed,
    Event,
    Repeated,
    SampledGaussian,
    Scored,
    Selected,
    SkellamNormRelease,
    SkellamRelease,
    Unprotected,
)
from tacit.privacy.ledger import BudgetExceeded, Charge, Ledger, LedgerError, ledger_path
from tests.forgeries import chained_anew, edit
from tests.privacy.kill_switch import Moment, run_until_killed, unavailable

VOTE = TopVotes(100, 5).release(variance=139.0)
BUDGET = Budget(3.0, 1e-5)
SPENDING: tuple[Callable[[Ledger, Charge], object], ...] = (
    lambda ledger, _: ledger.charge(VOTE, "vote", "new"),
    lambda ledger, _: ledger.charge_all([("vote", VOTE), ("vote", VOTE)], "new"),
    lambda ledger, _: ledger.charge_and_ask(VOTE, "vote", "new", "session"),
    lambda ledger, _: ledger.check(VOTE, "vote"),
    lambda ledger, charge: ledger.take(charge, 0),
    lambda ledger, charge: ledger.ask(charge, "session"),
    lambda ledger, _: ledger.seal("session"),
    lambda ledger, _: ledger.close("session", {}),
    lambda ledger, _: ledger.bar("session"),
    lambda ledger, _: ledger.knows("session"),
    lambda ledger, _: ledger.amend(Budget(9.0, 1e-5), "why not"),
    lambda ledger, _: ledger.total(),
    lambda ledger, _: ledger.budget,
    lambda ledger, _: ledger.charges(),
    lambda ledger, _: ledger.extract("r"),
    lambda ledger, _: len(ledger),
)
"""Whatever spends or says what is left."""
needs_kill_switch = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.sqlite", "hospitals", BUDGET)


def test_total_is_the_composition_of_everything_spent(ledger: Ledger) -> None:
    assert ledger.total().epsilon == 0
    for number in range(1, 4):
        charge = ledger.charge(VOTE, label="vote", run=f"run-{number}")
        assert charge.total == spent(Repeated(VOTE, number), BUDGET.delta)
        assert charge.alone == spent(VOTE, BUDGET.delta)
    assert ledger.total() == spent(Repeated(VOTE, 3), BUDGET.delta)
    assert (ledger.total().unit, ledger.total().relation) == ("client", "replace-one")


def test_a_ledger_shows_itself_at_a_prompt_and_escaped_in_a_notebook(ledger: Ledger) -> None:
    assert "ε = 0 of 3 spent" in repr(ledger)
    charge = ledger.charge(VOTE, label="<vote>", run="first")
    shown = f"{math.ceil(charge.total.epsilon * 1e4) / 1e4:g}"
    assert f"ε = {shown} of 3 spent at δ = 1e-05 (per client, replace-one), 1 charge" in repr(
        ledger
    )
    table = ledger._repr_html_()
    assert "<td>&lt;vote&gt;</td>" in table
    assert f"<td>{shown}</td>" in table


def test_a_damaged_ledger_says_so_at_a_prompt(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="first")
    edit(ledger.path, "UPDATE line SET body = '{}' WHERE kind = 'charge'")
    assert "line 2 was altered" in repr(Ledger(ledger.path))
    chained_anew(ledger.path)
    assert "line 2 cannot be read" in repr(Ledger(ledger.path))


def test_refuses_before_asking_anyone(ledger: Ledger) -> None:
    asked = []

    def ask() -> None:
        ledger.charge(Repeated(VOTE, 3), label="vote", run="r")
        asked.append("everyone")

    def ask_for_ever() -> None:
        while True:
            ask()

    with pytest.raises(BudgetExceeded, match=r"'vote' would bring epsilon to .* above the budget"):
        ask_for_ever()
    assert asked
    assert len(asked) == len(ledger.charges())
    assert ledger.total().epsilon <= BUDGET.epsilon
    assert ledger.verify() == []


def test_a_failed_question_stays_paid(ledger: Ledger) -> None:
    before = ledger.total().epsilon

    def ask() -> None:
        ledger.charge(VOTE, label="vote", run="r")
        raise ConnectionError("nobody answered")

    with pytest.raises(ConnectionError):
        ask()
    assert ledger.total().epsilon > before
    assert Ledger(ledger.path).total() == spent(VOTE, BUDGET.delta)


def test_a_new_process_or_folder_is_not_a_new_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "home"))
    Ledger.of("hospitals", BUDGET).charge(Repeated(VOTE, 3), label="vote", run="out-1")
    monkeypatch.chdir(tmp_path)
    again = Ledger.of("hospitals", Budget(30.0, 1e-5))
    assert again.budget == BUDGET
    assert len(again.charges()) == 1
    assert again.path == ledger_path("hospitals")
    assert Ledger.of("banks", BUDGET).charges() == []


def test_two_processes_that_make_one_ledger_at_once_both_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "home"))
    create = Ledger.create

    def after_a_rival(path: Path, federation: str, budget: Budget) -> Ledger:
        create(path, federation, budget).charge(VOTE, label="vote", run="rival")
        return create(path, federation, budget)

    monkeypatch.setattr(Ledger, "create", after_a_rival)
    assert len(Ledger.of("hospitals", BUDGET)) == 1


def test_lines_cannot_be_changed_or_removed(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="r")
    connection = sqlite3.connect(ledger.path)
    for statement in (
        "DELETE FROM line WHERE number = 2",
        "UPDATE line SET body = '{}'",
        "UPDATE line SET number = 7 WHERE number = 2",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def tampered(ledger: Ledger, *statements: str) -> Ledger:
    edit(ledger.path, *statements)
    return Ledger(ledger.path)


def test_verify_finds_a_smaller_epsilon_even_with_a_forged_chain(ledger: Ledger) -> None:
    charge = ledger.charge(VOTE, label="vote", run="r")
    ledger.charge(VOTE, label="vote", run="r")
    stated = json.dumps(charge.total.epsilon)
    edit(ledger.path, f"UPDATE line SET body = replace(body, '{stated}', '0.01') WHERE number = 2")
    chained_anew(ledger.path)
    alone, total = Ledger(ledger.path).verify()
    assert alone.number == total.number == 2
    assert "epsilon alone as 0.01" in alone.found
    assert "epsilon in total as 0.01" in total.found


@pytest.mark.parametrize("share", [0.99, 0.999999 - 1e-8])
def test_nothing_is_spent_where_the_newest_total_is_understated(
    ledger: Ledger, share: float
) -> None:
    """Even with a forged chain; a slightly smaller one is what another NumPy may find."""
    ledger.charge(VOTE, label="vote", run="r")
    charge = ledger.charge(VOTE, label="vote", run="r")
    stated, forged = (json.dumps(charge.total.epsilon * part) for part in (1.0, share))
    edit(ledger.path, f"UPDATE line SET body = replace(body, '{stated}', '{forged}')")
    chained_anew(ledger.path)
    found = Ledger(ledger.path)
    for attempt in SPENDING:
        with pytest.raises(LedgerError, match=r"line 3 records epsilon in total as .* recomp"):
            attempt(found, charge)
    assert [problem.number for problem in found.verify()] == [3]


@pytest.mark.parametrize(
    ("statement", "number", "found"),
    [
        ("UPDATE line SET body = replace(body, 'vote', 'veto') WHERE number = 2", 2, "altered"),
        ("DELETE FROM line WHERE number = 2", 2, "missing"),
        ("UPDATE line SET body = '{}' WHERE number = 3", 3, "altered"),
    ],
)
def test_verify_finds_edits_and_gaps(
    ledger: Ledger, statement: str, number: int, found: str
) -> None:
    for _ in range(2):
        ledger.charge(VOTE, label="vote", run="r")
    assert ledger.verify() == []
    problems = tampered(ledger, statement).verify()
    assert any(problem.number == number and found in problem.found for problem in problems)


def test_an_amended_budget_is_recorded_and_earlier_lines_still_verify(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="r")
    with pytest.raises(ValueError, match="reason is empty"):
        ledger.amend(Budget(5.0, 1e-6), " ")
    ledger.amend(Budget(5.0, 1e-6), "data-protection officer, 12 May")
    assert ledger.budget == Budget(5.0, 1e-6)
    assert ledger.total().delta == 1e-6
    ledger.charge(Repeated(VOTE, 5), label="vote", run="r")
    assert ledger.verify() == []


def test_a_part_of_a_charge_is_taken_once(ledger: Ledger, tmp_path: Path) -> None:
    """By whichever process comes first, for good; and only from the ledger that was charged."""
    first, second = (ledger.charge(VOTE, "front", run) for run in ("a", "b"))
    other = Ledger(ledger.path)
    assert ledger.take(first, 0)
    assert not other.take(first, 0)
    assert other.take(first, 1)
    assert not ledger.take(first, 1)
    assert ledger.take(second, 0)
    assert not ledger.verify()
    with pytest.raises(LedgerError, match="asks on line 2, of which parts were taken"):
        ledger.ask(first, "session")
    elsewhere = Ledger.create(tmp_path / "other.sqlite", "other", BUDGET)
    with pytest.raises(LedgerError, match="does not hold line 2 of the run 'a'"):
        elsewhere.take(first, 5)


def test_ledgers_may_mix_kinds(ledger: Ledger) -> None:
    ledger.charge(Repeated(VOTE, 3), label="vote", run="r")
    charge = ledger.charge(SkellamNormRelease(2.0, 1.0, 900.0), label="mean", run="r")
    assert charge.total.epsilon <= BUDGET.epsilon
    assert "split" in charge.total.accounting or "Rényi" in charge.total.accounting
    assert ledger.verify() == []


def test_every_kind_of_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also those with infinite numbers, which JSON does not have."""
    asked: tuple[Event, ...] = (
        Selected(0.01, 3.0, 50, 40.0, mean=4.0, shape=math.inf),
        Scored(0.01, 3.0, 50, 40.0),
        Composed((SampledGaussian(0.01, 3.0, 50), Repeated(VOTE, 2))),
        Unprotected("infinity"),
    )
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(math.inf, 1e-5))
    for event in asked:
        ledger.charge(event, "question", "run")
    again = Ledger(ledger.path)
    assert tuple(charge.event for charge in again.charges()) == asked
    assert again.budget.epsilon == again.total().epsilon == math.inf
    assert again.verify() == []


def test_extract_holds_one_run_and_the_lifetime_total(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="first")
    ledger.charge(VOTE, label="vote", run="second")
    extract = ledger.extract("second")
    assert [line["run"] for line in extract["lines"]] == ["second"]
    assert extract["lifetime"]["epsilon"] == ledger.total().epsilon
    assert json.loads(json.dumps(extract)) == json.loads(json.dumps(extract))


def charge_until_refused(path: Path, count: multiprocessing.Queue[int]) -> None:
    ledger, accepted = Ledger(path), 0
    try:
        while True:
            ledger.charge(VOTE, label="vote", run="r")
            accepted += 1
    except BudgetExceeded:
        count.put(accepted)


def test_processes_cannot_overspend_together(ledger: Ledger) -> None:
    context = multiprocessing.get_context("spawn")
    count: multiprocessing.Queue[int] = context.Queue()
    processes = [
        context.Process(target=charge_until_refused, args=(ledger.path, count)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    accepted = sum(count.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    assert accepted == len(ledger.charges())
    assert ledger.total().epsilon <= BUDGET.epsilon
    assert spent(Repeated(VOTE, accepted + 1), BUDGET.delta).epsilon > BUDGET.epsilon
    assert ledger.verify() == []


@needs_kill_switch
@pytest.mark.parametrize("moment", get_args(Moment))
def test_a_kill_at_any_write_never_forgets_a_spend(tmp_path: Path, moment: Moment) -> None:
    """Every file-changing system call of two charges, enumerated."""
    original = Ledger.create(tmp_path / "original.sqlite", "hospitals", BUDGET).path

    def work(acknowledge: Callable[[], None]) -> None:
        ledger = Ledger(path)
        for _ in range(2):
            ledger.charge(VOTE, label="vote", run="r")
            acknowledge()

    path = tmp_path / "counted.sqlite"
    shutil.copy(original, path)
    killed, acknowledged, boundaries = run_until_killed(work, 0, moment)
    assert not killed
    assert acknowledged == 2
    assert boundaries >= 10, "the switch sees SQLite's writes"
    outcomes = set()
    for boundary in range(1, boundaries + 1):
        path = tmp_path / f"{boundary}.sqlite"
        shutil.copy(original, path)
        killed, acknowledged, _ = run_until_killed(work, boundary, moment)
        assert killed
        survivor = Ledger(path)
        kept = len(survivor.charges())
        assert acknowledged <= kept <= acknowledged + 1
        assert survivor.verify() == []
        survivor.charge(VOTE, label="vote", run="later")
        assert len(survivor.charges()) == kept + 1
        outcomes.add((acknowledged, kept))
    unasked = set() if moment == "before" else {(0, 1), (1, 2)}  # paid, then killed before asking
    assert outcomes == {(0, 0), (1, 1)} | unasked


@needs_kill_switch
def test_a_kill_while_creating_leaves_a_whole_ledger_or_none(tmp_path: Path) -> None:
    def work(acknowledge: Callable[[], None]) -> None:
        Ledger.create(path, "hospitals", BUDGET)
        acknowledge()

    path = tmp_path / "counted.sqlite"
    _, _, boundaries = run_until_killed(work, 0, "after")
    for boundary in range(1, boundaries + 1):
        path = tmp_path / f"{boundary}.sqlite"
        run_until_killed(work, boundary, "after")
        ledger = Ledger(path) if path.exists() else Ledger.create(path, "hospitals", BUDGET)
        assert ledger.verify() == []
        assert ledger.budget == BUDGET


def test_a_commit_that_fails_leaves_the_ledger_usable(ledger: Ledger) -> None:
    """A reader that never lets go keeps SQLite from committing: refused, and tried again later."""
    ledger._file.connection.execute("PRAGMA busy_timeout = 50")
    reader = sqlite3.connect(ledger.path)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM line").fetchall()
    with pytest.raises(LedgerError, match="nothing may be asked: database is locked"):
        ledger.charge(VOTE, label="vote", run="r")
    reader.close()
    assert len(ledger) == 0
    ledger.charge(VOTE, label="vote", run="r")
    assert len(ledger) == 1


def test_commits_are_synchronised_to_the_disk(ledger: Ledger) -> None:
    connection = ledger._file.connection
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 3
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"


def test_never_replaces_an_existing_ledger(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(ledger.path, "hospitals", BUDGET)


def test_wrong_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no ledger at .*; create one with: tacit ledger create"):
        Ledger(tmp_path / "missing.sqlite")
    text = tmp_path / "text.sqlite"
    text.write_text("not a database at all, but long enough to be read as a header" * 10)
    with pytest.raises(LedgerError, match="cannot be read as a ledger"):
        Ledger(text)
    foreign = tmp_path / "foreign.sqlite"
    sqlite3.connect(foreign).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(LedgerError, match="is not a Tacit ledger"):
        Ledger(foreign)
    newer = Ledger.create(tmp_path / "newer.sqlite", "hospitals", BUDGET).path
    sqlite3.connect(newer).execute("PRAGMA user_version = 9").connection.close()
    with pytest.raises(LedgerError, match="format 9"):
        Ledger(newer)
    sqlite3.connect(newer).execute("PRAGMA user_version = 1").connection.close()
    with pytest.raises(LedgerError, match=r"format 1, .* create a new ledger, and give"):
        Ledger(newer)


@pytest.mark.parametrize("name", ["", "../etc/passwd", "a/b", ".hidden", "x" * 101])
def test_federation_names_cannot_leave_their_folder(name: str) -> None:
    with pytest.raises(ValueError, match="federation is"):
        ledger_path(name)


def test_a_charge_beyond_any_accounting_is_refused(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded, match="inf"):
        ledger.charge(SkellamRelease(((50, 50),), 0.5), label="careless", run="r")
    assert ledger.charges() == []


def test_ledger_file_is_readable_by_its_owner_only(ledger: Ledger) -> None:
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
