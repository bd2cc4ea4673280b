"""An independent look at everything that a run left on disk, whatever happened to it.

Ledgers are read with SQL, journals, receipts and results as JSON. Nothing here trusts the classes
that wrote them; only prices are computed with Tacit's accountant, and one rule asks a ledger to
verify itself. What is looked for, in ledgers of servers and of members, journals, receipts and
results together:

* a line on which two questions were asked;
* a release (a line of a member, a receipt, an opened sum, a result) without a sealed line of a
  server, or of a session that was closed;
* two releases of one member in one session, or two opened sums on one line;
* more opened sums than sealed lines, or more answers in a sum than members' ledgers have lines;
* a budget that is exceeded by everything that counts, now or when a line was written;
* a chain of digests that does not hold, or a ledger that does not verify.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tacit.privacy.accounting import spent
from tacit.privacy.events import Event, compose, from_json
from tacit.privacy.ledger import Ledger, LedgerError

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Evidence:
    """What lies on disk after a trial."""

    servers: Sequence[Path]
    """Ledgers of servers."""
    members: Sequence[Path] = ()
    """Ledgers of clients."""
    runs: Sequence[Path] = ()
    """Folders with a journal, and perhaps with results."""
    receipts: Sequence[Path] = ()
    """Folders of receipts."""


@dataclass(frozen=True)
class _Line:
    number: int
    kind: str
    body: dict[str, Any]
    text: str
    digest: str


@dataclass
class _Book:
    """One ledger, as its lines tell."""

    path: Path
    lines: list[_Line]
    asked: dict[str, list[str]] = field(default_factory=dict)
    """The sessions that asked on a charge, by the charge's digest."""
    sealed: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for line in self.lines:
            if line.kind == "asked":
                self.asked.setdefault(line.body["line"], []).append(line.body["session"])
            elif line.kind == "sealing":
                self.sealed.add(line.body["session"])
            elif line.kind == "closed":
                self.closed.add(line.body["session"])

    @property
    def charges(self) -> list[_Line]:
        return [line for line in self.lines if line.kind == "charge"]

    def sealed_lines(self) -> dict[str, str]:
        """The session of every charge that was sealed, by the charge's digest."""
        return {
            digest: session
            for digest, sessions in self.asked.items()
            for session in sessions
            if session in self.sealed
        }


def breaches(evidence: Evidence) -> list[str]:
    """Whatever must not be; empty if all is as it should be."""
    servers = [_book(path) for path in evidence.servers]
    members = [_book(path) for path in evidence.members]
    found: list[str] = []
    for book in (*servers, *members):
        found += [f"{book.path.name}: {what}" for what in _of_one_book(book)]
    for book in members:
        found += [f"{book.path}: {what}" for what in _of_a_member(book, servers)]
    found += _of_receipts(evidence.receipts, servers)
    found += _of_journals(evidence.runs, servers, members)
    found += _of_results(evidence.runs, servers)
    return found


def given_up_for_nothing(evidence: Evidence) -> list[str]:
    """Charges that still count although nothing was sealed under them.

    When a run has ended, whoever went on with it has had them signed off.
    """
    found = []
    for book in map(_book, evidence.servers):
        asked = {session for sessions in book.asked.values() for session in sessions}
        found += [
            f"{book.path.name}: the session {session[:8]} was asked and never sealed, and it counts"
            for session in sorted(asked - book.sealed - book.closed)
        ]
    return found


def lines_by_kind(evidence: Evidence) -> Counter[str]:
    """How many lines of each kind the servers' ledgers have: what a trial went through."""
    found: Counter[str] = Counter()
    for path in evidence.servers:
        found.update(f"{line.kind} lines" for line in _book(path).lines if line.kind != "budget")
    return found


# One ledger -------------------------------------------------------------------------------------


def _book(path: Path) -> _Book:
    connection = sqlite3.connect(path, timeout=60)
    try:
        rows = connection.execute(
            "SELECT number, kind, body, digest FROM line ORDER BY number"
        ).fetchall()
    finally:
        connection.close()
    return _Book(
        path,
        [
            _Line(number, kind, json.loads(body), body, digest)
            for number, kind, body, digest in rows
        ],
    )


def _of_one_book(book: _Book) -> Iterator[str]:
    yield from _chain(book)
    for digest, sessions in book.asked.items():
        if len(sessions) > 1:
            yield f"two questions were asked on one line ({digest[:8]}: {len(sessions)} sessions)"
    for session in book.sealed & book.closed:
        yield f"the session {session[:8]} was sealed and closed"
    asked = {session for sessions in book.asked.values() for session in sessions}
    for session in (book.sealed | book.closed) - asked:
        yield f"the session {session[:8]} was sealed or closed, and never asked"
    yield from _budgets(book)
    try:
        problems = Ledger(book.path).verify()
    except LedgerError as error:
        yield f"it cannot be opened: {error}"
        return
    for problem in problems:
        yield f"it does not verify: line {problem.number}: {problem.found}"


def _chain(book: _Book) -> Iterator[str]:
    before = ""
    for place, line in enumerate(book.lines, start=1):
        text = f"{before}\n{line.number}\n{line.kind}\n{line.text}"
        if line.number != place or hashlib.sha256(text.encode()).hexdigest() != line.digest:
            yield f"the chain breaks at line {place}"
            return
        before = line.digest


def _budgets(book: _Book) -> Iterator[str]:
    """What counts after every charge, against the budget that was in force when it was made."""
    session_of = {session: digest for digest, all_ in book.asked.items() for session in all_}
    counting: dict[str, Event] = {}
    allowed, delta = math.inf, 0.0
    for line in book.lines:
        if line.kind == "budget":
            epsilon = line.body["epsilon"]
            allowed, delta = math.inf if epsilon is None else epsilon, line.body["delta"]
        elif line.kind == "closed":
            counting.pop(session_of.get(line.body["session"], ""), None)
        elif line.kind == "charge":
            counting[line.digest] = from_json(line.body["event"])
            told = line.body["total"]["epsilon"]
            total = _price(tuple(sorted(counting.values(), key=repr)), delta)
            recorded = math.inf if told is None else told
            if max(total, recorded) > allowed * (1 + _ROUNDING):
                yield (
                    f"line {line.number} brings epsilon to {total:.6g} (recorded {recorded:.6g}), "
                    f"above the budget of {allowed:g}"
                )
            if recorded < total * (1 - 1e-6):
                yield f"line {line.number} records {recorded:.6g} in total, and it is {total:.6g}"


@cache
def _price(events: tuple[Event, ...], delta: float) -> float:
    return float(spent(compose(events), delta).epsilon)


# What was released ------------------------------------------------------------------------------


def _of_a_member(book: _Book, servers: Sequence[_Book]) -> Iterator[str]:
    sessions = Counter(
        line.body["run"] for line in book.charges if line.body["label"] != "answer in clear"
    )
    for session, times in sessions.items():
        if times > 1:
            yield f"it released {times} times in the session {session[:8]}"
        yield from _paid(session, servers)


def _paid(session: str, servers: Sequence[_Book]) -> Iterator[str]:
    if any(session in book.closed for book in servers):
        yield f"a release in the session {session[:8]}, which was closed"
    if not any(session in book.sealed for book in servers):
        yield f"a release in the session {session[:8]}, which no server sealed"


def _of_receipts(folders: Sequence[Path], servers: Sequence[_Book]) -> Iterator[str]:
    paid = {digest: session for book in servers for digest, session in book.sealed_lines().items()}
    seen: Counter[tuple[int, str]] = Counter()
    for file in (file for folder in folders for file in sorted(folder.rglob("*.json"))):
        told = json.loads(file.read_bytes())
        seen[told["client"], told["line"]] += 1
        for what in _paid(told["session"], servers):
            yield f"{file.name}: {what}"
        if paid.get(told["line"]) != told["session"]:
            yield f"{file.name}: its line did not pay for its session"
    for (client, line), times in seen.items():
        if times > 1:
            yield f"client {client} has {times} receipts for one line ({line[:8]})"


def _of_journals(
    runs: Sequence[Path], servers: Sequence[_Book], members: Sequence[_Book]
) -> Iterator[str]:
    paid = {digest: session for book in servers for digest, session in book.sealed_lines().items()}
    released = Counter(line.body["run"] for book in members for line in book.charges)
    opened: Counter[str] = Counter()
    for file in (file for folder in runs for file in sorted(folder.glob("journal-*.jsonl"))):
        *lines, _cut_short = file.read_bytes().split(b"\n")
        for piece, told, *_ in map(json.loads, lines):
            if isinstance(piece, int):
                opened[told["line"]] += 1
                session = paid.get(told["line"], "")
                if not session:
                    yield f"{file.name}: the sum {piece} was opened, and its line is not sealed"
                elif members and released[session] < told["clients"][1]:
                    yield (
                        f"{file.name}: the sum {piece} has {told['clients'][1]} answers, and the "
                        f"ledgers of {released[session]} members have its line"
                    )
    for line, times in opened.items():
        if times > 1:
            yield f"{times} sums were opened on one line ({line[:8]})"
    if opened.total() > len(paid):
        yield f"{opened.total()} sums were opened on {len(paid)} sealed lines"


def _of_results(runs: Sequence[Path], servers: Sequence[_Book]) -> Iterator[str]:
    known = {line.digest: book for book in servers for line in book.charges}
    for folder in runs:
        if not (folder / "result.json").exists():
            continue
        told = json.loads((folder / "ledger.json").read_bytes())
        sealed = 0
        for line in told["lines"]:
            book = known.get(line["digest"])
            if book is None:
                yield f"{folder.name}: the result rests on line {line['number']}, which is nowhere"
            else:
                sealed += line["digest"] in book.sealed_lines()
        if not sealed:
            yield f"{folder.name}: the result rests on no sealed line"
