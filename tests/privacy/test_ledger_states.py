"""What happened to a charge: asked, sealed, closed, barred and held; by rivals, and killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import Repeated
from tacit.privacy.ledger import BudgetExceeded, Charge, ChargedBefore, Ledger, LedgerError
from tacit.privacy.quoting import quotes
from tests.command_line import document, tacit
from tests.privacy.kill_switch import Moment, run_until_killed, unavailable

VOTE = TopVotes(100, 5).release(variance=139.0)
BUDGET = Budget(3.0, 1e-5)
MOST_VOTES = max(
    votes for votes in range(1, 20) if spent(Repeated(VOTE, votes), BUDGET.delta).epsilon <= 3.0
)
"""That this budget pays for."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.sqlite", "hospitals", BUDGET)


def test_a_charge_pays_for_the_question_of_one_session(ledger: Ledger) -> None:
    first, second = (ledger.charge(VOTE, "vote", "run") for _ in range(2))
    assert (first.state, first.session) == ("charged", "")
    ledger.ask(first, "s1")
    with pytest.raises(LedgerError, match=r"asks on line 2 .*'s2'; that line is asked .*'s1'"):
        Ledger(ledger.path).ask(first, "s2")
    with pytest.raises(LedgerError, match="'s1', which was used before"):
        ledger.ask(second, "s1")
    elsewhere = Ledger.in_memory("other", BUDGET).charge(VOTE, "vote", "run")
    with pytest.raises(LedgerError, match="does not hold line 2"):
        ledger.ask(elsewhere, "s3")
    ledger.seal("s1")
    ledger.seal("s1")
    with pytest.raises(LedgerError, match="closes the session 's1', which was sealed before"):
        ledger.close("s1", {})
    for act in (ledger.seal, lambda session: ledger.close(session, {})):
        with pytest.raises(LedgerError, match="'s9', which was not asked"):
            act("s9")
    assert [(c.state, c.session) for c in ledger.charges()] == [("sealed", "s1"), ("charged", "")]
    assert ledger.verify() == []
    assert len(ledger._file.lines(None)) == 5, "sealing twice is one line"


def test_a_closed_charge_counts_nowhere_and_is_never_asked_again(ledger: Ledger) -> None:
    charges = [ledger.charge(VOTE, "vote", f"run-{n}") for n in range(3)]
    ledger.ask(charges[1], "s1")
    assert ledger.total() == spent(Repeated(VOTE, 3), BUDGET.delta), "a reservation counts"
    ledger.close("s1", {"refused": ["anna", "ben"]})
    assert ledger.total() == spent(Repeated(VOTE, 2), BUDGET.delta)
    assert ledger.check(VOTE, "vote") == spent(Repeated(VOTE, 3), BUDGET.delta)
    assert [charge.run for charge in ledger.counting()] == ["run-0", "run-2"]
    assert [charge.state for charge in ledger.charges()] == ["charged", "closed", "charged"]
    assert ledger.extract("run-1")["lines"] == []
    assert quotes(ledger).quotes[0].epsilon == ledger.total().epsilon
    for session in ("s1", "s2"):
        with pytest.raises(LedgerError, match=r"which is closed|is closed by"):
            ledger.ask(charges[1], session)
    with pytest.raises(LedgerError, match="which was closed"):
        ledger.seal("s1")
    with pytest.raises(LedgerError, match="which was closed before"):
        ledger.close("s1", {})
    with pytest.raises(LedgerError, match="which is closed"):
        ledger.take(charges[1], 0)
    for opened in (ledger, Ledger(ledger.path)):
        fourth = opened.charge(VOTE, "vote", "later")
        assert opened.verify() == []
    assert fourth.total == spent(Repeated(VOTE, 4), BUDGET.delta)


def test_budgets_and_charges_that_were_closed_leave_the_ladder_and_the_filter(
    ledger: Ledger,
) -> None:
    charge = ledger.charge(VOTE, "vote", "run")
    ledger.amend(Budget(4.0, 1e-5), "the board")
    assert ledger.budgets()[1].charges_before == 1
    ledger.ask(charge, "s")
    ledger.close("s", {})
    assert ledger.budgets()[1].charges_before == 0
    assert quotes(ledger).verdict.startswith("Nothing was charged")


def test_evidence_is_plain_json_and_on_record(ledger: Ledger) -> None:
    ledger.ask(ledger.charge(VOTE, "vote", "run"), "s")
    with pytest.raises(ValueError, match="a ledger holds plain JSON only"):
        ledger.close("s", {"bytes": b"x"})
    with pytest.raises(ValueError, match="a ledger holds plain JSON only"):
        ledger.close("s", {"number": float("nan")})
    proof = {"refusals": [{"client": 3, "signature": "ab"}], "deep": {"er": None}}
    ledger.close("s", proof)
    assert json.loads(ledger._file.lines(None)[-1].body)["proof"] == proof


def test_a_line_that_could_not_be_read_again_is_not_written(ledger: Ledger) -> None:
    """A terminal in Latin-1 hands over such text; before, it made the ledger useless for good."""
    charge = ledger.charge(VOTE, label="vote", run="run")
    wrong = "f\udcfcr"
    attempts: list[Callable[[], object]] = [
        lambda: ledger.amend(Budget(2.0, 1e-5), wrong),
        lambda: ledger.charge(VOTE, label=wrong, run="other"),
        lambda: ledger.charge(VOTE, label="vote", run=wrong),
        lambda: ledger.charge_and_ask(VOTE, "vote", "run", wrong),
        lambda: ledger.bar(wrong),
        lambda: ledger.take(charge, 1.5),  # type: ignore[arg-type]
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="a ledger holds plain JSON only"):
            attempt()
    assert ledger.charges() == [charge]
    assert Ledger(ledger.path).verify() == []
    assert {charge} == set(ledger.charges()), "charges can be put into sets"


def test_charging_and_asking_are_one_transaction(ledger: Ledger) -> None:
    charge = ledger.charge_and_ask(VOTE, "vote", "run", "s1")
    assert (charge.state, charge.session) == ("asked", "s1")
    assert charge.total == spent(VOTE, BUDGET.delta)
    with pytest.raises(LedgerError, match="'s1', which was used before"):
        ledger.charge_and_ask(VOTE, "vote", "run", "s1")
    assert len(ledger) == 1
    with pytest.raises(BudgetExceeded):
        ledger.charge_and_ask(Repeated(VOTE, 9), "vote", "run", "s2")
    assert len(Ledger(ledger.path)) == 1
    assert ledger.verify() == []


def test_a_barred_session_is_never_charged_and_a_charged_one_never_barred(ledger: Ledger) -> None:
    assert ledger.bar("s1")
    assert ledger.bar("s1"), "barring again changes nothing"
    for opened in (ledger, Ledger(ledger.path)):
        assert opened.knows("s1")
        attempts: tuple[Callable[[Ledger], object], ...] = (
            lambda to: to.charge(VOTE, "answer", "s1"),
            lambda to: to.charge(VOTE, "answer", "s1", once=True),
            lambda to: to.charge_all([("answer", VOTE)], "s1"),
        )
        for attempt in attempts:
            with pytest.raises(ChargedBefore, match="'s1' is barred"):
                attempt(opened)
    ledger.charge(VOTE, "answer", "s2", once=True)
    with pytest.raises(ChargedBefore, match="'s2' was charged before"):
        Ledger(ledger.path).charge(VOTE, "answer", "s2", once=True)
    assert not Ledger(ledger.path).bar("s2")
    ledger.charge(VOTE, "answer", "s2")
    assert [line.kind for line in ledger._file.lines(None)] == [
        "budget",
        "barred",
        "charge",
        "charge",
    ]


def test_states_are_shown_and_in_json(ledger: Ledger) -> None:
    for session in ("s1", "s2", "s3"):
        ledger.charge_and_ask(VOTE, "vote", "run", session)
    ledger.seal("s1")
    ledger.close("s2", {})
    shown = document(tacit("ledger", "show", ledger.path, "--json"))
    assert [(line["state"], line["session"]) for line in shown["charges"]] == [
        ("sealed", "s1"),
        ("closed", "s2"),
        ("asked", "s3"),
    ]
    assert shown["total"]["epsilon"] == ledger.total().epsilon
    told = tacit("ledger", "show", ledger.path).stdout
    assert all(state in told for state in ("state", "sealed", "closed", "asked"))
    assert "1 closed charge(s) do not count" in told
    assert "3 charge(s) recomputed: all agree" in tacit("ledger", "verify", ledger.path).stdout


class Rules(RuleBasedStateMachine):
    """Any acts in any order, by two that have the same file open, against sets of names."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "l.sqlite"
        Ledger.create(path, "hospitals", BUDGET)
        self.ledgers = [Ledger(path), Ledger(path)]
        self.charges: list[Charge] = []
        self.runs: list[str] = []
        self.asked: dict[str, int] = {}
        self.sealed: set[str] = set()
        self.closed: set[str] = set()
        self.barred: set[str] = set()
        self.taken: set[tuple[int, int]] = set()

    def teardown(self) -> None:
        assert self.ledgers[0].verify() == []
        self.folder.cleanup()

    who = st.integers(0, 1)
    names = st.sampled_from(["a", "b", "c"])
    places = st.integers(0, MOST_VOTES)

    @property
    def counted(self) -> int:
        return len(self.charges) - len(self.closed)

    @rule(who=who, run=names, once=st.booleans(), session=st.none() | names)
    def charge(self, who: int, run: str, once: bool, session: str | None) -> None:
        ledger = self.ledgers[who]
        used = session in self.asked or session in self.barred
        once = once and session is None
        allowed = run not in self.barred and not (once and run in self.runs) and not used
        allowed &= self.counted < MOST_VOTES

        def act() -> None:
            if session is None:
                charge = ledger.charge(VOTE, "vote", run, once=once)
            else:
                charge = ledger.charge_and_ask(VOTE, "vote", run, session)
                self.asked[session] = len(self.charges)
            self.charges.append(charge)
            self.runs.append(run)

        self.only_if(act, allowed=allowed)

    @rule(who=who, place=places, session=names)
    def ask(self, who: int, place: int, session: str) -> None:
        if place >= len(self.charges):
            return
        allowed = place not in self.asked.values()
        allowed &= session not in self.asked and session not in self.barred
        allowed &= not any(of == place for of, _ in self.taken)

        def act() -> None:
            self.ledgers[who].ask(self.charges[place], session)
            self.asked[session] = place

        self.only_if(act, allowed=allowed)

    @rule(who=who, session=names)
    def seal(self, who: int, session: str) -> None:
        def act() -> None:
            self.ledgers[who].seal(session)
            self.sealed.add(session)

        self.only_if(act, allowed=session in self.asked and session not in self.closed)

    @rule(who=who, session=names)
    def close(self, who: int, session: str) -> None:
        def act() -> None:
            self.ledgers[who].close(session, {"why": session})
            self.closed.add(session)

        left = self.sealed | self.closed
        self.only_if(act, allowed=session in self.asked and session not in left)

    @rule(who=who, session=names)
    def bar(self, who: int, session: str) -> None:
        assert self.ledgers[who].bar(session) == (session not in self.runs)
        if session not in self.runs:
            self.barred.add(session)

    @rule(who=who, place=places, part=st.integers(0, 1))
    def take(self, who: int, place: int, part: int) -> None:
        if place >= len(self.charges):
            return
        new = (place, part) not in self.taken

        def act() -> None:
            assert self.ledgers[who].take(self.charges[place], part) == new
            self.taken.add((place, part))

        self.only_if(act, allowed=not new or place not in self.asked.values())

    def only_if(self, act: Callable[[], None], *, allowed: bool) -> None:
        if allowed:
            act()
            return
        with pytest.raises((LedgerError, BudgetExceeded)):
            act()

    @invariant()
    def both_see_the_model(self) -> None:
        def state(place: int) -> tuple[str, str]:
            session = next((s for s, of in self.asked.items() if of == place), "")
            for name, these in (("sealed", self.sealed), ("closed", self.closed)):
                if session in these:
                    return name, session
            return "asked" if session else "charged", session

        for ledger in self.ledgers:
            found = ledger.charges()
            assert [charge.digest for charge in found] == [c.digest for c in self.charges]
            assert [(c.state, c.session) for c in found] == list(map(state, range(len(found))))
            assert all(ledger.knows(s) == (s in self.barred or s in self.runs) for s in "abc")
            paid = Repeated(VOTE, self.counted) if self.counted else None
            epsilon = spent(paid, BUDGET.delta).epsilon if paid else 0.0
            assert ledger.total().epsilon == epsilon


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def ask_all(path: Path, number: int, results: Any) -> None:
    ledger, got = Ledger(path), []
    for charge in ledger.charges():
        try:
            ledger.ask(charge, f"session-{number}-{charge.number}")
            got.append(charge.number)
        except LedgerError:
            pass
    results.put(got)


def test_of_rival_processes_one_gets_each_line(ledger: Ledger) -> None:
    for _ in range(MOST_VOTES):
        ledger.charge(VOTE, "vote", "run")
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    rivals = [context.Process(target=ask_all, args=(ledger.path, n, results)) for n in range(3)]
    for rival in rivals:
        rival.start()
    got = [number for _ in rivals for number in results.get(timeout=300)]
    for rival in rivals:
        rival.join()
    assert sorted(got) == [charge.number for charge in ledger.charges()]
    assert ledger.verify() == []


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("moment", get_args(Moment))
def test_a_kill_at_any_write_neither_forgets_nor_asks_twice(tmp_path: Path, moment: Moment) -> None:
    """Charge, ask, seal, ask, close, bar: every file-changing call of them, enumerated."""
    original = Ledger.create(tmp_path / "original.sqlite", "hospitals", BUDGET).path
    steps: tuple[Callable[[Ledger], object], ...] = (
        lambda ledger: ledger.charge(VOTE, "vote", "run"),
        lambda ledger: ledger.ask(ledger.charges()[0], "s1"),
        lambda ledger: ledger.seal("s1"),
        lambda ledger: ledger.charge_and_ask(VOTE, "vote", "run", "s2"),
        lambda ledger: ledger.close("s2", {"refused": 3}),
        lambda ledger: ledger.bar("s3"),
    )
    lines = (1, 2, 3, 4, 6, 7, 8)
    """How many there are after so many steps."""

    def work(acknowledge: Callable[[], None]) -> None:
        ledger = Ledger(path)
        for step in steps:
            step(ledger)
            acknowledge()

    path = tmp_path / "counted.sqlite"
    shutil.copy(original, path)
    killed, acknowledged, boundaries = run_until_killed(work, 0, moment)
    assert (killed, acknowledged) == (False, len(steps))
    for boundary in range(1, boundaries + 1):
        path = tmp_path / f"{boundary}.sqlite"
        shutil.copy(original, path)
        killed, acknowledged, _ = run_until_killed(work, boundary, moment)
        assert killed
        survivor = Ledger(path)
        assert survivor.verify() == []
        done = lines.index(len(survivor._file.lines(None)))
        assert acknowledged <= done <= acknowledged + 1
        if done >= 2:
            with pytest.raises(LedgerError, match="that line is"):
                survivor.ask(survivor.charges()[0], "other")
        assert len(survivor.counting()) == (0, 1, 1, 1, 2, 1, 1)[done]
        for step in steps[done:]:
            step(survivor)
        assert [charge.state for charge in survivor.charges()] == ["sealed", "closed"]
        assert survivor.knows("s3")
        assert survivor.verify() == []


# Holding a run --------------------------------------------------------------------------------


def hold_until_killed(path: Path, ready: Any) -> None:
    with Ledger(path).hold("the run"):
        ready.set()
        signal.pause()


def test_a_run_is_held_by_one_process_and_let_go_when_it_dies(ledger: Ledger) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold_until_killed, args=(ledger.path, ready), daemon=True)
    holder.start()
    assert ready.wait(timeout=300)
    with (
        pytest.raises(LedgerError, match=f"the run 'the run' is under way in process {holder.pid}"),
        ledger.hold("the run"),
    ):
        pass
    with ledger.hold("another run"):
        ledger.charge(VOTE, "vote", "another run")
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    for _ in range(2):
        with (
            ledger.hold("the run"),
            pytest.raises(LedgerError, match="is under way"),
            Ledger(ledger.path).hold("the run"),
        ):
            pass
    assert {path.name for path in ledger.path.parent.iterdir()} == {
        ledger.path.name,
        f"{ledger.path.name}.lock",
        f"{ledger.path.name}.pricing.lock",
    }


FORKS = """
import os, sys, time
from pathlib import Path
from tacit.privacy.ledger_locks import hold, look, pricing_turn, turn
path = Path(sys.argv[1])
with {}:
    if not os.fork():
        print(os.getpid(), flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize(
    "what", ["hold(path, 'the run')", "turn(path)", "look(path)", "pricing_turn(path)"]
)
def test_a_child_that_outlives_a_killed_process_keeps_nobody_out(ledger: Ledger, what: str) -> None:
    """Such as a worker that loads data; with a lock of its own it would, until it ended."""
    command = [sys.executable, "-c", FORKS.format(what), str(ledger.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout
        child = int(killed.stdout.readline())
        try:
            killed.kill()
            killed.wait()
            with ledger.hold("the run"):
                ledger.charge(VOTE, "vote", "the run")
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


LETS_GO_IN_A_CHILD = """
import os, sys
from pathlib import Path
from tacit.privacy.ledger_locks import hold
with hold(Path(sys.argv[1]), "the run"):
    if not (child := os.fork()):
        sys.exit()
    print(os.waitpid(child, 0)[1], flush=True)
    sys.stdin.readline()
"""


def test_a_child_cannot_let_go_what_its_parent_holds(ledger: Ledger) -> None:
    command = [sys.executable, "-c", LETS_GO_IN_A_CHILD, str(ledger.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "0\n"
        with pytest.raises(LedgerError, match=f"process {holder.pid};"), ledger.hold("the run"):
            pass
        holder.communicate("end\n")
    with ledger.hold("the run"):
        pass


def test_a_run_that_ends_with_an_error_is_let_go(ledger: Ledger) -> None:
    with pytest.raises(KeyboardInterrupt), ledger.hold("run/../with : any name"):
        raise KeyboardInterrupt
    with ledger.hold("run/../with : any name"):
        pass
