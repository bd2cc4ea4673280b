"""What a federation has spent, durably: charged before anyone is asked, never refunded.

One SQLite file per federation, outside any run's folder, so that a new output folder is not a new
budget. Every charge is one transaction that follows the chain of lines up to the newest, makes sure
that the price of everything that counts together with the new event was computed for just that, and
commits a line with full synchronisation. Hence: two processes cannot overspend together, a crash at
any moment loses no committed line, and a question is asked only after its line is on disk. The
price is computed before the transaction, in turn with other charges: see :meth:`Ledger._spend`.

Lines are append-only (triggers refuse changes) and chained by SHA-256, together with the
federation's name, the budgets and the schema. A ledger whose chain does not hold, whose lines
cannot be read or whose newest total is understated spends nothing. That reveals accidents, edits
and deletions except of the newest lines; whoever may write the file can of course forge all of it.

A charge pays for one question. What happens to that question is on record too: a session *asks* on
the charge, is *sealed* before the first answer leaves, or is *closed* with the evidence that no
answer ever will. Only a closed charge counts no longer, since nothing was released under it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from tacit.display import rows_html
from tacit.privacy.accounting import Budget, Guarantee, spent
from tacit.privacy.events import Event
from tacit.privacy.filters import check_ladder
from tacit.privacy.ledger_file import SCHEMA, LedgerFile
from tacit.privacy.ledger_history import History
from tacit.privacy.ledger_lines import (
    BudgetLine,
    Charge,
    LedgerError,
    Line,
    Misfit,
    Problem,
    budget_body,
    charge_body,
    line_json,
    link,
    now,
)
from tacit.privacy.ledger_locks import hold, pricing_turn
from tacit.privacy.ledger_totals import Spending
from tacit.privacy.ledger_verify import intact, verify, wrong_schema
from tacit.privacy.noise_lattice import FEW
from tacit.wording import rounded_up

__all__ = [
    "COLUMNS",
    "BudgetExceeded",
    "BudgetLine",
    "Charge",
    "ChargedBefore",
    "Ledger",
    "LedgerError",
    "Problem",
    "check_name",
    "home",
    "ledger_path",
    "line_json",
]

COLUMNS = ("line", "time", "run", "question", "state", "ε alone", "ε so far")
_Entry = tuple[str, Mapping[str, Any]]
_Decide = Callable[[History], Sequence[_Entry]]


class BudgetExceeded(Exception):
    """A question was refused before anyone was asked."""


class ChargedBefore(LedgerError):
    """A run that may be charged once was charged before, or is barred."""


class _Moved(Exception):
    """What counts, or the budget, is not what it was when a charge was priced."""


def home() -> Path:
    """Where Tacit keeps what outlasts a run: ``$TACIT_HOME`` or ``~/.local/share/tacit``."""
    named = os.environ.get("TACIT_HOME")
    return Path(named) if named else Path.home() / ".local" / "share" / "tacit"


def ledger_path(federation: str) -> Path:
    """Where a federation's ledger lives, below :func:`home`."""
    check_name(federation)
    return home() / "ledgers" / f"{federation}.sqlite"


class Ledger:
    """The spending of one federation.

    >>> import tempfile
    >>> from tacit.privacy.bounds import TopVotes
    >>> vote = TopVotes(candidates=100, votes=5).release(variance=139.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.create(Path(folder) / "l.sqlite", "hospitals", Budget(1.0, 1e-5))
    ...     first = ledger.charge(vote, label="vote", run="first")
    ...     second = ledger.charge(vote, label="vote", run="second")
    Traceback (most recent call last):
        ...
    tacit.privacy.ledger.BudgetExceeded: 'vote' would bring epsilon to 1.4652, above the \
budget of 1 at delta 1e-05; ask fewer questions, add noise or raise the budget
    """

    def __init__(self, path: Path) -> None:
        """Open an existing ledger; :meth:`create` makes a new one.

        Raises:
            LedgerError: when there is none, when it is of another format, or when file locks do
                nothing in its folder.
        """
        if not path.is_file():
            raise LedgerError(
                f"no ledger at {path}; create one with: tacit ledger create {path} "
                "--federation NAME --epsilon E --delta D"
            )
        self._use(path, LedgerFile.open(path))

    def _use(self, path: Path, file: LedgerFile) -> None:
        self.path, self._file, self._history = path, file, History()
        self._checked = 0

    @classmethod
    def create(
        cls, path: Path, federation: str, budget: Budget, ladder: Sequence[Budget] = ()
    ) -> Ledger:
        """A new, empty ledger; an existing file is refused, never reset.

        Args:
            path: where the new file goes.
            federation: whose ledger it is.
            budget: the lifetime budget, until it is amended.
            ladder: all budgets that it may later be raised to without leaving the proof of
                :func:`tacit.privacy.filters.ladder_step`, this one first;
                :func:`tacit.privacy.filters.split_ladder` makes them. They are on record in the
                ledger's first line, before anything can be charged.
        """
        check_name(federation)
        if ladder:
            check_ladder(ladder, budget)
        if path.exists():
            raise LedgerError(f"{path} exists already; a ledger is never replaced: open it instead")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = LedgerFile.draft(path)
        file.append(_opening(federation, budget, ladder))
        file.finish(path)
        return cls(path)

    @classmethod
    def in_memory(cls, federation: str, budget: Budget) -> Ledger:
        """A ledger that ends with the process: for clients that are simulated and end with it."""
        check_name(federation)
        ledger, file = object.__new__(cls), LedgerFile.in_memory()
        file.append(_opening(federation, budget, ()))
        ledger._use(file.path, file)
        return ledger

    @classmethod
    def of(cls, federation: str, budget: Budget) -> Ledger:
        """The federation's own ledger; the budget is for making it on first use.

        An existing ledger keeps the budget it has, which only :meth:`amend` changes.
        """
        path = ledger_path(federation)
        if not path.exists():
            try:
                return cls.create(path, federation, budget)
            except LedgerError:
                if not path.exists():
                    raise  # otherwise another process made it just now
        return cls(path)

    @property
    def federation(self) -> str:
        """Whose ledger it is."""
        return self._read().opening.federation

    @property
    def budget(self) -> Budget:
        """The budget in force: the newest one recorded."""
        return self._read().budget

    @property
    def ladder(self) -> tuple[Budget, ...]:
        """The budgets that were announced with the first; empty if none were."""
        return tuple(Budget(*step) for step in self._read().opening.ladder)

    def __len__(self) -> int:
        """How many charges there are, closed ones among them."""
        return len(self._read().charges)

    def __repr__(self) -> str:
        """The state at a prompt; a damaged ledger says so instead of failing."""
        try:
            return f"<Ledger of {self.federation}: {self._state()}>"
        except LedgerError as error:
            return f"<Ledger: {error}>"

    def _repr_html_(self) -> str:
        """For notebooks: every charge and the total."""
        return rows_html(f"Ledger of {self.federation}: {self._state()}", COLUMNS, self.rows())

    def rows(self) -> list[tuple[str, ...]]:
        """Every charge for people to read, in :data:`COLUMNS`."""
        return [
            (
                str(charge.number),
                charge.time,
                charge.run,
                charge.label,
                charge.state,
                rounded_up(charge.alone.epsilon),
                rounded_up(charge.total.epsilon),
            )
            for charge in self.charges()
        ]

    def _state(self) -> str:
        budget, total = self.budget, self.total()
        return (
            f"ε = {rounded_up(total.epsilon)} of {budget.epsilon:g} spent at δ = {total.delta:g} "
            f"(per {total.unit}, {total.relation}), {len(self)} charge(s)"
        )

    def charges(self) -> list[Charge]:
        """Every line of spending, oldest first, with what happened to its question.

        Those whose ``state`` is ``closed`` count no longer: see :meth:`counting`.
        """
        return list(self._read().charges)

    def counting(self) -> list[Charge]:
        """The charges that count: all but those that were closed."""
        return [charge for charge in self._read().charges if charge.state != "closed"]

    def budgets(self) -> list[BudgetLine]:
        """Every budget there ever was, oldest first."""
        return self._read().budgets

    def total(self) -> Guarantee:
        """The lifetime total at the budget's delta, of all charges that count."""
        history = self._read()
        return history.spending.tight(history.budget.delta)

    # Spending --------------------------------------------------------------------------------

    def charge(self, event: Event, label: str, run: str, *, once: bool = False) -> Charge:
        """Spend, durably, or refuse. Ask only after this has returned.

        Args:
            event: what is released.
            label: the question, for people.
            run: on whose behalf; on a client's own ledger, the session that is answered.
            once: refuse if this run was charged before.

        Raises:
            BudgetExceeded: when the lifetime total would exceed the budget; nothing is written.
            ChargedBefore: when the run is barred, or was charged before and may be charged once.
        """
        return self._spend([(label, event)], run, once=once)[0]

    def charge_and_ask(
        self, event: Event, label: str, run: str, session: str, roster: str = ""
    ) -> Charge:
        """:meth:`charge` and :meth:`ask` in one transaction: both happen or none."""
        return self._spend([(label, event)], run, session=session, roster=roster)[0]

    def charge_all(self, asked: Sequence[tuple[str, Event]], run: str) -> list[Charge]:
        """Spend on several questions, a line each, given with their labels: on all or on none.

        Raises:
            BudgetExceeded: when the lifetime total would exceed the budget; nothing is written.
        """
        return self._spend(asked, run)

    def check(self, event: Event, label: str) -> Guarantee:
        """What the total would be, or :class:`BudgetExceeded`; nothing is written."""
        return _totals(self._read(), [(label, event)])[0]

    def _spend(
        self,
        asked: Sequence[tuple[str, Event]],
        run: str,
        *,
        once: bool = False,
        session: str = "",
        roster: str = "",
    ) -> list[Charge]:
        """Append a line for each, and one that the first is asked if a session is given.

        Charges are priced one after another, so that a price still holds when it is recorded,
        however long it took and however many want to charge. Lines that are no charges are written
        meanwhile. If one of them changes what counts, or the budget, the charge is priced again.
        """
        if not asked:
            return []
        history = self._read()
        _admit(history, run, once=once)
        delta = history.budget.delta
        alone = [spent(event, delta) for _, event in asked]  # loads libraries: before the turn

        def decide(history: History) -> list[_Entry]:
            _admit(history, run, once=once)
            if history.spent_at != priced_at:
                raise _Moved
            entries: list[_Entry] = [
                ("charge", charge_body(event, label, run, own, total))
                for (label, event), own, total in zip(asked, alone, totals, strict=True)
            ]
            if session:
                return [*entries, self._asking_first(history, entries, session, roster)]
            return entries

        with pricing_turn(self.path) if self._file.on_disk else nullcontext():
            while True:
                history = self._look()
                _admit(history, run, once=once)
                priced_at = history.spent_at
                totals = _totals(history, asked)
                if history.budget.delta != delta:
                    delta = history.budget.delta
                    alone = [spent(event, delta) for _, event in asked]
                with suppress(_Moved):
                    self._append(decide)
                    self._checked = history.charges[-1].number
                    return history.charges[-len(asked) :]

    def amend(self, budget: Budget, reason: str) -> None:
        """Set another budget from now on; the old one and the reason stay on record."""
        if not reason.strip():
            raise ValueError("reason is empty; say who allowed the new budget and why")
        self._write(lambda _: [("budget", budget_body(budget, reason))])

    # What happened to a charge ----------------------------------------------------------------

    def ask(self, charge: Charge, session: str, roster: str = "") -> None:
        """Record, durably, that a charge pays for the question of this session; ask after that.

        Of several processes, or copies of a folder, one gets the charge.

        Args:
            charge: that nobody asked on yet.
            session: that was never used.
            roster: the digest of the roster whose members are asked, if there is one.

        Raises:
            LedgerError: when the charge was asked before, the session was used before, or the
                charge is not in this ledger.
        """

        def decide(history: History) -> list[_Entry]:
            found = self._found(history, charge)
            with self._allowed():
                history.check_asking(found, session)
            return [("asked", _asked_body(charge.number, charge.digest, session, roster))]

        self._write(decide)

    def seal(self, session: str) -> None:
        """Record, durably, that answers of this session may leave from now on.

        Raises:
            LedgerError: unless the session was asked and is not closed.
        """

        def decide(history: History) -> list[_Entry]:
            with self._allowed():
                history.check_sealing(session)
            charge = history.asked_by(session)
            if charge and charge.state == "sealed":
                return []
            return [("sealing", {"session": session, "time": now()})]

        self._write(decide)

    def close(self, session: str, proof: Mapping[str, Any]) -> None:
        """Record that nothing was or will be released in this session; its charge counts no longer.

        *Why that is sound.* A charge bounds what is released under it. :meth:`seal` is on disk
        before the first answer may leave, so of an unsealed session nothing has left. Closing and
        sealing are transactions of one file, and each refuses after the other, so of a closed
        session nothing ever leaves either. The charge cannot be asked again. What remains is the
        product of all other releases, and that is what the total prices.

        Args:
            session: that was asked.
            proof: the evidence, as plain JSON.

        Raises:
            LedgerError: when the session was sealed, closed or never asked.
        """

        def decide(history: History) -> list[_Entry]:
            with self._allowed():
                history.check_closing(session)
            return [("closed", {"session": session, "proof": dict(proof), "time": now()})]

        self._write(decide)

    def bar(self, session: str) -> bool:
        """On a client's own ledger: never answer this session; ``False`` if it was charged before.

        From then on nothing can be charged for it, and :meth:`knows` is true of it.
        """
        barred = True

        def decide(history: History) -> list[_Entry]:
            nonlocal barred
            barred = not history.has_run(session)
            new = barred and session not in history.barred
            return [("barred", {"session": session, "time": now()})] if new else []

        self._write(decide)
        return barred

    def knows(self, run: str) -> bool:
        """Whether anything was ever charged for this run, or it is barred."""
        history = self._read()
        return history.has_run(run) or run in history.barred

    def take(self, charge: Charge, part: int) -> bool:
        """Take one numbered part of what a charge paid for; ``False`` if it was taken before.

        A charge for many releases lasts longer than a process. Whoever makes the release of this
        number takes it first, durably; of several processes, or copies of a folder, one gets it.

        Raises:
            LedgerError: when this ledger does not hold the charge, or a session asked on it.
        """
        taken = False

        def decide(history: History) -> list[_Entry]:
            nonlocal taken
            found = self._found(history, charge)
            taken = not history.has_part(charge.digest, part)
            if not taken:
                return []
            with self._allowed():
                history.check_taking(found, part)
            body = {"charge": charge.number, "line": charge.digest, "part": part, "time": now()}
            return [("taken", body)]

        self._write(decide)
        return taken

    @contextmanager
    def hold(self, run: str) -> Iterator[None]:
        """Keep every other process from going on with a run until this block, or process, ends.

        A ledger in memory has no other processes, so nothing is held.

        Raises:
            LedgerError: when the run is held, naming the run and, if known, the process.
        """
        with hold(self.path, run) if self._file.on_disk else nullcontext():
            yield

    # Looking ---------------------------------------------------------------------------------

    def verify(self) -> list[Problem]:
        """Read and recompute every line; an empty list means all agree."""
        return verify(self._file)

    def intact(self) -> list[Charge]:
        """The charges before the first line that is missing, was altered or cannot be read."""
        return intact(self._file)

    def extract(self, run: str) -> dict[str, Any]:
        """One run's lines that count and the federation's lifetime total, for the run's folder."""
        return {
            "federation": self.federation,
            "budget": vars(self.budget),
            "lifetime": vars(self.total()),
            "run": run,
            "lines": [line_json(charge) for charge in self.counting() if charge.run == run],
        }

    # Lines -----------------------------------------------------------------------------------

    def _read(self) -> History:
        """Everything up to the newest line, which is verified before anything is said of it."""
        history = self._look()
        self._check_newest()
        return history

    def _look(self) -> History:
        """Everything up to the newest line, whose total is not verified."""
        with self._file.looking():
            lines = self._new_lines()
        self._follow(lines)  # nobody waits for this
        return self._history

    def _new_lines(self) -> list[Line]:
        unsound = self._file.unsound()
        if unsound:
            raise self._damaged(1, unsound)
        return self._file.lines(self._history.length or None)

    def _follow(self, lines: list[Line]) -> None:
        history = self._history
        known = history.length
        if known and (not lines or lines.pop(0).digest != history.tip):
            raise self._damaged(known, f"line {known} was altered or removed")
        for line in lines:
            try:
                history.follow(line)
                if line.number == 1 and (wrong := wrong_schema(history)):
                    raise Misfit(wrong)
            except Misfit as misfit:
                number = misfit.number or line.number
                raise self._damaged(number, f"line {number} {misfit}") from None
        if not history.length:
            raise self._damaged(1, "line 1 is missing")

    def _check_newest(self) -> None:
        """That the newest recorded total is not below what is recomputed."""
        history = self._history
        newest = history.charges[-1].number if history.charges else 0
        if newest <= self._checked:
            return
        try:
            wrong = history.understated()
        except ValueError as error:
            wrong = f"cannot be priced ({error})"
        if wrong:
            raise self._damaged(newest, f"line {newest} {wrong}")
        self._checked = newest

    def _damaged(self, number: int, found: str) -> LedgerError:
        self._history, self._checked = History(), 0
        return LedgerError(
            f"{self.path}: {found}; nothing is spent from a damaged ledger: put it back from a "
            f"copy that holds this line {number} and all after it, and look with: tacit ledger "
            f"verify {self.path}"
        )

    def _write(self, decide: _Decide) -> None:
        """Append what is decided on in view of all lines."""
        self._read()
        self._append(decide)

    def _append(self, decide: _Decide) -> None:
        """Append lines in one transaction, in which others wait: nothing is priced in it."""
        with self._file.transaction():
            self._follow(self._new_lines())
            history = self._history
            lines: list[Line] = []
            number, tip = history.length, history.tip
            for kind, body in decide(history):
                number += 1
                try:
                    lines.append(link(tip, number, kind, body))
                except (TypeError, ValueError) as error:
                    raise ValueError(f"a ledger holds plain JSON only: {error}") from None
                tip = lines[-1].digest
                self._file.append(lines[-1])
        for line in lines:
            history.follow(line)

    def _found(self, history: History, charge: Charge) -> Charge:
        found = history.charge_of(charge.digest)
        if found is None:
            raise LedgerError(
                f"{self.path} does not hold line {charge.number} of the run {charge.run!r}; "
                "what was paid from another ledger cannot be taken from this one"
            )
        return found

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        try:
            yield
        except Misfit as misfit:
            raise LedgerError(
                f"{self.path} refuses a line that {misfit}; a charge pays for one question of one "
                "session: charge again to ask again"
            ) from None

    def _asking_first(
        self, history: History, entries: Sequence[_Entry], session: str, roster: str
    ) -> _Entry:
        """The line that asks on a charge that is about to be appended."""
        kind, body = entries[0]
        line = link(history.tip, history.length + 1, kind, body)
        with self._allowed():
            history.check_session(session)
        return "asked", _asked_body(line.number, line.digest, session, roster)


def check_name(name: str, what: str = "federation") -> None:
    """Refuse names that cannot be part of a file's name or of a sentence."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            f"{what} is {name!r}; allowed are 1 to 100 letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )


def _totals(history: History, asked: Sequence[tuple[str, Event]]) -> list[Guarantee]:
    """What everything costs that counts, with the first of these, with the first two, and so on.

    Of many questions, all but the last get the price with the least work, if it is in the budget.
    """
    budget, spending = history.budget, history.spending.plus()
    if len(asked) > 1:
        together = spending.plus(*(event for _, event in asked))
        _total(together, budget, "all questions together")
    totals: list[Guarantee] = []
    for label, event in asked:
        spending.add(event)
        hurried = len(asked) > FEW and len(totals) + 1 < len(asked)
        quick = spending.quick(budget.delta) if hurried else None
        fits = quick is not None and quick.epsilon <= budget.epsilon
        totals.append(quick if quick and fits else _total(spending, budget, label))
    return totals


def _total(spending: Spending, budget: Budget, label: str) -> Guarantee:
    """The price to tell people; the exact one before anything is refused."""
    total = spending.bound(budget.delta)
    if total.epsilon > budget.epsilon:
        total = spending.tight(budget.delta)
    if total.epsilon > budget.epsilon:
        raise BudgetExceeded(
            f"{label!r} would bring epsilon to {total.epsilon:.6g}, above the budget of "
            f"{budget.epsilon:g} at delta {budget.delta:g}; ask fewer questions, add "
            "noise or raise the budget"
        )
    return total


def _admit(history: History, run: str, *, once: bool) -> None:
    if run in history.barred:
        raise ChargedBefore(f"{run!r} is barred: it was agreed that it is never answered")
    if once and history.has_run(run):
        raise ChargedBefore(f"{run!r} was charged before and may be charged once: begin a new one")


def _opening(federation: str, budget: Budget, ladder: Sequence[Budget]) -> Line:
    steps = {"ladder": [[step.epsilon, step.delta] for step in ladder]} if ladder else {}
    named = {"federation": federation, "schema": SCHEMA}
    return link("", 1, "budget", {**budget_body(budget, "as created"), **named, **steps})


def _asked_body(number: int, digest: str, session: str, roster: str) -> dict[str, Any]:
    asked = {"charge": number, "line": digest, "session": session, "time": now()}
    return {**asked, "roster": roster} if roster else asked
