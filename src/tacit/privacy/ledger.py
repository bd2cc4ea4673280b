"""What a federation has spent, durably: charged before anyone is asked, never refunded.

One SQLite file per federation, outside any run's folder, so that a new output folder is not a new
budget. Every charge is one transaction that takes the write lock first, prices everything spent so
far together with the new event, and either refuses or commits a line with full synchronisation.
Hence: two processes cannot overspend together, a crash at any moment loses no committed line, and a
question is asked only after its line is on disk. Lines are append-only (triggers refuse changes)
and chained by SHA-256, which reveals edits and deletions except of the newest lines; whoever may
write the file can of course forge all of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.display import rows_html
from tacit.privacy.accounting import Budget, Guarantee, spent
from tacit.privacy.events import Event, compose, from_json, to_json
from tacit.wording import rounded_up

COLUMNS = ("line", "time", "run", "question", "ε alone", "ε so far")
_APPLICATION = 0x54616369
_VERSION = 1
_LOCK_SECONDS = 600.0
_APPEND_ONLY = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
_SCHEMA = (
    "CREATE TABLE federation (name TEXT NOT NULL, created TEXT NOT NULL)",
    "CREATE TABLE line (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, "
    "digest TEXT NOT NULL)",
    f"CREATE TRIGGER line_is_never_changed BEFORE UPDATE ON line {_APPEND_ONLY}",
    f"CREATE TRIGGER line_is_never_removed BEFORE DELETE ON line {_APPEND_ONLY}",
    f"CREATE TRIGGER federation_is_never_changed BEFORE UPDATE ON federation {_APPEND_ONLY}",
)


class LedgerError(Exception):
    """A file that is missing, is no ledger, or belongs to somebody else."""


class BudgetExceeded(Exception):
    """A question was refused before anyone was asked."""


@dataclass(frozen=True)
class Charge:
    """One line of spending: what was asked, and what it cost alone and with all before it."""

    number: int
    run: str
    label: str
    event: Event
    alone: Guarantee
    total: Guarantee
    time: str
    digest: str
    """Of this line and, through it, of all lines before it."""


@dataclass(frozen=True)
class Problem:
    """A line that does not agree with itself or with the lines before it."""

    number: int
    found: str


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
        """Open an existing ledger; :meth:`create` makes a new one."""
        self.path = path
        if not path.is_file():
            raise LedgerError(
                f"no ledger at {path}; create one with: tacit ledger create {path} "
                "--federation NAME --epsilon E --delta D"
            )
        try:
            self._connection = _connect(path)
            application, version = (
                self._connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"{path} cannot be read as a ledger: {error}") from None
        if application != _APPLICATION:
            raise LedgerError(f"{path} is not a Tacit ledger; nothing was read or written")
        if version != _VERSION:
            raise LedgerError(
                f"{path} has ledger format {version}; this version of Tacit reads {_VERSION}"
            )

    @classmethod
    def create(cls, path: Path, federation: str, budget: Budget) -> Ledger:
        """A new, empty ledger; an existing file is refused, never reset."""
        check_name(federation)
        if path.exists():
            raise LedgerError(f"{path} exists already; a ledger is never replaced: open it instead")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Built aside, then linked: at no moment is there half a ledger under the final name.
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        connection = _connect(draft)
        _fill(connection, federation, budget)
        connection.close()
        try:
            os.link(draft, path)  # unlike a rename, refuses to replace what a rival just made
        except FileExistsError:
            raise LedgerError(f"{path} exists already; open it instead") from None
        finally:
            draft.unlink()
        _sync_folder(path.parent)
        return cls(path)

    @classmethod
    def in_memory(cls, federation: str, budget: Budget) -> Ledger:
        """A ledger that ends with the process: for clients that are simulated and end with it."""
        check_name(federation)
        ledger = object.__new__(cls)
        ledger.path = Path(":memory:")
        ledger._connection = sqlite3.connect(":memory:", isolation_level=None)
        _fill(ledger._connection, federation, budget)
        return ledger

    @classmethod
    def of(cls, federation: str, budget: Budget) -> Ledger:
        """The federation's own ledger; the budget is for making it on first use.

        An existing ledger keeps the budget it has, which only :meth:`amend` changes.
        """
        path = ledger_path(federation)
        if not path.exists():
            return cls.create(path, federation, budget)
        return cls(path)

    @property
    def federation(self) -> str:
        """Whose ledger it is."""
        try:
            (name,) = self._connection.execute("SELECT name FROM federation").fetchone()
        except (TypeError, sqlite3.DatabaseError):
            raise LedgerError(f"{self.path} does not say whose ledger it is") from None
        return str(name)

    @property
    def budget(self) -> Budget:
        """The budget in force: the newest one recorded."""
        return _budget(*self._lines("budget")[-1][:2])

    def __len__(self) -> int:
        """How many charges there are."""
        return len(self._lines("charge"))

    def __repr__(self) -> str:
        """The state at a prompt; a damaged ledger says so instead of failing."""
        try:
            told = self._state()
        except (LedgerError, sqlite3.Error) as error:
            told = str(error)
        return f"<Ledger of {self.federation}: {told}>"

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
        """Every line of spending, oldest first."""
        return [_charge(*line) for line in self._lines("charge")]

    def total(self) -> Guarantee:
        """The lifetime total at the budget's delta."""
        budget = self.budget
        return spent(compose(charge.event for charge in self.charges()), budget.delta)

    def charge(self, event: Event, label: str, run: str) -> Charge:
        """Spend, durably, or refuse. Ask only after this has returned.

        Raises:
            BudgetExceeded: when the lifetime total would exceed the budget; nothing is written.
        """
        with _transaction(self._connection) as connection:
            budget, total = self.budget, self.check(event, label)
            body = {
                "run": run,
                "label": label,
                "event": to_json(event),
                "alone": vars(spent(event, budget.delta)),
                "total": vars(total),
                "time": _now(),
            }
            line = _append(connection, "charge", body)
        return _charge(*line)

    def check(self, event: Event, label: str) -> Guarantee:
        """What the total would be, or :class:`BudgetExceeded`; nothing is written."""
        budget = self.budget
        earlier = [charge.event for charge in self.charges()]
        total = spent(compose([*earlier, event]), budget.delta)
        if total.epsilon > budget.epsilon:
            raise BudgetExceeded(
                f"{label!r} would bring epsilon to {total.epsilon:.6g}, above the budget of "
                f"{budget.epsilon:g} at delta {budget.delta:g}; ask fewer questions, add "
                "noise or raise the budget"
            )
        return total

    def knows(self, run: str) -> bool:
        """Whether anything was ever charged for this run."""
        return any(charge.run == run for charge in self.charges())

    def amend(self, budget: Budget, reason: str) -> None:
        """Set another budget from now on; the old one and the reason stay on record."""
        if not reason.strip():
            raise ValueError("reason is empty; say who allowed the new budget and why")
        with _transaction(self._connection) as connection:
            _append(connection, "budget", _budget_body(budget, reason))

    def verify(self) -> list[Problem]:
        """Recompute every line from its stored event; an empty list means all agree."""
        problems: list[Problem] = []
        previous = ""
        budget: Budget | None = None
        earlier: list[Event] = []
        rows = self._rows()
        if not rows:
            return [Problem(1, "this line is missing")]
        for expected, (number, kind, body, digest) in enumerate(rows, start=1):
            if number != expected:
                return [*problems, Problem(expected, "this line is missing")]
            if digest != _digest(previous, number, kind, body):
                problems.append(Problem(number, "the line was altered, or one before it"))
            previous = digest
            try:
                if kind == "budget":
                    budget = _budget(number, body)
                    continue
                charge = _charge(number, body, digest)
            except LedgerError as error:
                problems.append(Problem(number, str(error)))
                continue
            earlier.append(charge.event)
            if budget is None:
                problems.append(Problem(number, "spent before any budget was set"))
                continue
            for name, stored, event in (
                ("alone", charge.alone, charge.event),
                ("in total", charge.total, compose(earlier)),
            ):
                recomputed = spent(event, budget.delta)
                if not _agree(stored, recomputed):
                    problems.append(
                        Problem(
                            number,
                            f"epsilon {name} is recorded as {stored.epsilon:.6g} at delta "
                            f"{stored.delta:g}, recomputed {recomputed.epsilon:.6g} at delta "
                            f"{recomputed.delta:g}",
                        )
                    )
            if charge.total.epsilon > budget.epsilon:
                problems.append(
                    Problem(
                        number,
                        f"epsilon {charge.total.epsilon:.6g} exceeds the budget of "
                        f"{budget.epsilon:g} then in force",
                    )
                )
        return problems

    def intact(self) -> list[Charge]:
        """The charges before the first line that is missing, was altered or cannot be read."""
        charges: list[Charge] = []
        previous = ""
        for expected, (number, kind, body, digest) in enumerate(self._rows(), start=1):
            if number != expected or digest != _digest(previous, number, kind, body):
                break
            previous = digest
            try:
                charges += [_charge(number, body, digest)] if kind == "charge" else []
            except LedgerError:
                break
        return charges

    def extract(self, run: str) -> dict[str, Any]:
        """One run's lines and the federation's lifetime total, for the run's folder."""
        return {
            "federation": self.federation,
            "budget": vars(self.budget),
            "lifetime": vars(self.total()),
            "run": run,
            "lines": [line_json(charge) for charge in self.charges() if charge.run == run],
        }

    def _rows(self) -> list[tuple[int, str, str, str]]:
        return self._connection.execute(
            "SELECT number, kind, body, digest FROM line ORDER BY number"
        ).fetchall()  # at once: an open query would keep others from committing

    def _lines(self, kind: str) -> list[tuple[int, str, str]]:
        return self._connection.execute(
            "SELECT number, body, digest FROM line WHERE kind = ? ORDER BY number", (kind,)
        ).fetchall()


def check_name(name: str, what: str = "federation") -> None:
    """Refuse names that cannot be part of a file's name or of a sentence."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            f"{what} is {name!r}; allowed are 1 to 100 letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )


def _fill(connection: sqlite3.Connection, federation: str, budget: Budget) -> None:
    with _transaction(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO federation VALUES (?, ?)", (federation, _now()))
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        _append(connection, "budget", _budget_body(budget, "as created"))


def line_json(charge: Charge) -> dict[str, Any]:
    """A line of spending as plain data."""
    return {
        "number": charge.number,
        "run": charge.run,
        "label": charge.label,
        "event": to_json(charge.event),
        "alone": vars(charge.alone),
        "total": vars(charge.total),
        "time": charge.time,
        "digest": charge.digest,
    }


def _connect(path: Path) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode=rw"  # an existing file only
    connection = sqlite3.connect(address, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
    # A rollback journal with EXTRA syncs the file, the journal and its removal: what COMMIT
    # reported survives a power cut, not only a kill.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing, with the write lock from the start: reading, pricing and writing are one."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        raise LedgerError(
            f"the ledger could not be written, so nothing may be asked: {error}"
        ) from None


def _append(
    connection: sqlite3.Connection, kind: str, body: dict[str, Any]
) -> tuple[int, str, str]:
    last = connection.execute(
        "SELECT number, digest FROM line ORDER BY number DESC LIMIT 1"
    ).fetchone()
    number, previous = (last[0] + 1, last[1]) if last else (1, "")
    text = json.dumps(body, sort_keys=True)
    line = number, kind, text, _digest(previous, number, kind, text)
    connection.execute("INSERT INTO line VALUES (?, ?, ?, ?)", line)
    return int(number), text, line[-1]


def _digest(previous: str, number: int, kind: str, body: str) -> str:
    # A forger may store bytes where texts belong; those are written as what they are not.
    text = json.dumps([previous, number, kind, body], default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _reading(number: int) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"line {number} cannot be read ({error}); nothing is spent from a damaged ledger"
        ) from None


def _charge(number: int, text: str, digest: str) -> Charge:
    with _reading(number):
        body = json.loads(text)
        return Charge(
            number=number,
            run=body["run"],
            label=body["label"],
            event=from_json(body["event"]),
            alone=Guarantee(**body["alone"]),
            total=Guarantee(**body["total"]),
            time=body["time"],
            digest=digest,
        )


def _budget(number: int, text: str) -> Budget:
    with _reading(number):
        body = json.loads(text)
        return Budget(body["epsilon"], body["delta"])


def _budget_body(budget: Budget, reason: str) -> dict[str, Any]:
    return {**vars(budget), "reason": reason, "time": _now()}


def _agree(stored: Guarantee, recomputed: Guarantee) -> bool:
    # Other versions of NumPy or SciPy may differ in the last digits.
    close = math.isclose(stored.epsilon, recomputed.epsilon, rel_tol=1e-6)
    return close and (stored.delta, stored.unit, stored.relation) == (
        recomputed.delta,
        recomputed.unit,
        recomputed.relation,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
