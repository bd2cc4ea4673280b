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
from tacit.privacy.events import Repeated, SkellamNormRelease, SkellamRelease
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerError, ledger_path
from tests.privacy.kill_switch import Moment, run_until_killed, unavailable

VOTE = TopVotes(100, 5).release(variance=139.0)
BUDGET = Budget(3.0, 1e-5)
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


def test_a_damaged_ledger_still_has_a_name_at_a_prompt(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="first")
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("DROP TRIGGER line_is_never_changed")
        connection.execute("UPDATE line SET body = '{}' WHERE kind = 'charge'")
    connection.close()
    assert "line 2 cannot be read" in repr(ledger)


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


def test_lines_cannot_be_changed_or_removed(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="r")
    connection = sqlite3.connect(ledger.path)
    for statement in (
        "DELETE FROM line WHERE number = 2",
        "UPDATE line SET body = '{}'",
        "UPDATE federation SET name = 'others'",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def tampered(ledger: Ledger, change: Callable[[sqlite3.Connection], object]) -> Ledger:
    connection = sqlite3.connect(ledger.path)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        connection.execute(f"DROP TRIGGER {trigger}")
    change(connection)
    connection.commit()
    connection.close()
    return Ledger(ledger.path)


def test_verify_finds_a_smaller_epsilon_even_with_a_forged_chain(ledger: Ledger) -> None:
    ledger.charge(VOTE, label="vote", run="r")

    def forge(connection: sqlite3.Connection) -> None:
        from tacit.privacy.ledger import _digest

        ((body, first),) = connection.execute(
            "SELECT l.body, b.digest FROM line l JOIN line b ON b.number = 1 WHERE l.number = 2"
        )
        data = json.loads(body)
        data["total"]["epsilon"] = 0.01
        text = json.dumps(data, sort_keys=True)
        digest = _digest(first, 2, "charge", text)
        connection.execute("UPDATE line SET body = ?, digest = ? WHERE number = 2", (text, digest))

    (problem,) = tampered(ledger, forge).verify()
    assert problem.number == 2
    assert "in total is recorded as 0.01" in problem.found


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
    problems = tampered(ledger, lambda connection: connection.execute(statement)).verify()
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


def test_ledgers_may_mix_kinds(ledger: Ledger) -> None:
    ledger.charge(Repeated(VOTE, 3), label="vote", run="r")
    charge = ledger.charge(SkellamNormRelease(2.0, 1.0, 900.0), label="mean", run="r")
    assert charge.total.epsilon <= BUDGET.epsilon
    assert "split" in charge.total.accounting or "Rényi" in charge.total.accounting
    assert ledger.verify() == []


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
    ledger._connection.execute("PRAGMA busy_timeout = 50")
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
    connection = ledger._connection
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
