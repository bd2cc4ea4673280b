"""What a ledger's lines say together, followed line by line.

A history accepts a line only if it continues the chain, can be read, and is allowed by what came
before. These are the rules, which whoever appends a line checks first with the same history:

* A charge comes after a budget, and not for a run that was barred.
* A charge is asked once, by a session that no other line named; parts of it cannot be taken after
  that.
* A session is sealed after it was asked, and not after it was closed.
* A session is closed after it was asked, and not after it was sealed. Its charge no longer counts.
* A part of a charge is taken once, and not of a charge that is closed. A charge of which a part was
  taken is not asked.
* A run that was charged is not barred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tacit.privacy.accounting import Budget
from tacit.privacy.events import Event
from tacit.privacy.ledger_lines import (
    AskedBody,
    BarredBody,
    BudgetBody,
    BudgetLine,
    Charge,
    ChargeBody,
    ClosedBody,
    Line,
    Misfit,
    SealingBody,
    TakenBody,
    decoded,
    digest,
    event_of,
    guarantee_of,
    unreadable,
)
from tacit.privacy.ledger_totals import Spending, understated


@dataclass(frozen=True)
class _BudgetEntry:
    number: int
    body: BudgetBody
    budget: Budget


class History:
    """A ledger as far as it was read."""

    def __init__(self) -> None:
        self.length, self.tip = 0, ""
        self.spent_at = ""
        """The digest of the newest line that changed what counts, or the budget."""
        self.charges: list[Charge] = []
        self.spending = Spending()
        """Of all charges that count."""
        self.barred: set[str] = set()
        self._budgets: list[_BudgetEntry] = []
        self._places: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._runs: set[str] = set()
        self._parts: dict[str, set[int]] = {}
        self._events: dict[bytes, Event] = {}
        self._closed_since: list[Event] = []
        self._delta_then = 0.0

    @property
    def opening(self) -> BudgetBody:
        """The first line."""
        return self._budgets[0].body

    @property
    def budget(self) -> Budget:
        """The newest budget."""
        return self._budgets[-1].budget

    @property
    def budgets(self) -> list[BudgetLine]:
        """Every budget, oldest first."""
        counting = [charge.number for charge in self.charges if charge.state != "closed"]
        return [
            BudgetLine(
                entry.number,
                entry.budget,
                entry.body.reason,
                entry.body.time,
                sum(number < entry.number for number in counting),
            )
            for entry in self._budgets
        ]

    def has_run(self, run: str) -> bool:
        """Whether a charge was made for this run."""
        return run in self._runs

    def charge_of(self, digest: str) -> Charge | None:
        """The charge on the line with this digest."""
        place = self._places.get(digest)
        return None if place is None else self.charges[place]

    def asked_by(self, session: str) -> Charge | None:
        """The charge that pays for a session's question."""
        place = self._sessions.get(session)
        return None if place is None else self.charges[place]

    def has_part(self, digest: str, part: int) -> bool:
        """Whether a part of a charge was taken."""
        return part in self._parts.get(digest, ())

    def follow(self, line: Line) -> None:
        """Accept the next line, or say what is wrong with it and change nothing."""
        self.check_link(line)
        self.read(line)

    def check_link(self, line: Line) -> None:
        """That a line is the next one, and was not altered."""
        if line.number != self.length + 1:
            raise Misfit("is missing", self.length + 1)
        if not (
            isinstance(line.kind, str)
            and isinstance(line.body, str)
            and isinstance(line.digest, str)
        ):
            raise Misfit("was altered: it is no text")
        if line.digest != digest(self.tip, line.number, line.kind, line.body):
            raise Misfit("was altered, or one before it")

    def read(self, line: Line) -> None:
        """Accept what a line says, whatever its digest is."""
        if line.kind not in _READERS:
            raise Misfit(unreadable(ValueError(f"its kind is {line.kind!r}")))
        _READERS[line.kind](self, line)
        self.pass_by(line)

    def pass_by(self, line: Line) -> None:
        """Go on after a line, accepted or not."""
        self.length, self.tip = line.number, line.digest

    def understated(self) -> str:
        """What is wrong with the newest recorded total, if it is below the recomputed one."""
        if not self.charges:
            return ""
        newest = self.charges[-1]
        recomputed = understated(newest.total, self._counted_then(), self._delta_then)
        return total_problem(newest, recomputed.epsilon, self._delta_then) if recomputed else ""

    def _counted_then(self) -> Spending:
        """What counted when the newest charge was made."""
        return self.spending.plus(*self._closed_since)

    # Rules -----------------------------------------------------------------------------------

    def check_charge(self, run: str) -> None:
        """That a run may be charged."""
        if run in self.barred:
            raise Misfit(f"charges the run {run!r}, which was barred")

    def check_asking(self, charge: Charge | None, session: str) -> None:
        """That a charge may pay for the question of this session."""
        if charge is None:
            raise Misfit("asks on a charge that is not in this ledger")
        if charge.state != "charged":
            raise Misfit(
                f"asks on line {charge.number} for the session {session!r}; that line is "
                f"{charge.state} by the session {charge.session!r}"
            )
        if self._parts.get(charge.digest):
            raise Misfit(f"asks on line {charge.number}, of which parts were taken")
        self.check_session(session)

    def check_session(self, session: str) -> None:
        """That a session is new."""
        if session in self._sessions or session in self.barred:
            raise Misfit(f"asks for the session {session!r}, which was used before")

    def check_sealing(self, session: str) -> None:
        """That answers of a session may leave."""
        charge = self.asked_by(session)
        if charge is None:
            raise Misfit(f"seals the session {session!r}, which was not asked")
        if charge.state == "closed":
            raise Misfit(f"seals the session {session!r}, which was closed")

    def check_closing(self, session: str) -> None:
        """That a session may be closed."""
        charge = self.asked_by(session)
        if charge is None:
            raise Misfit(f"closes the session {session!r}, which was not asked")
        if charge.state != "asked":
            raise Misfit(f"closes the session {session!r}, which was {charge.state} before")

    def check_barring(self, session: str) -> None:
        """That a session may be barred."""
        if session in self._runs:
            raise Misfit(f"bars the session {session!r}, which was charged")

    def check_taking(self, charge: Charge | None, part: int) -> None:
        """That a part may be taken."""
        if charge is None:
            raise Misfit("takes from a charge that is not in this ledger")
        if charge.state != "charged":
            raise Misfit(f"takes from line {charge.number}, which is {charge.state}")
        if self.has_part(charge.digest, part):
            raise Misfit(f"takes part {part} of line {charge.number} a second time")

    # Lines -----------------------------------------------------------------------------------

    def _read_budget(self, line: Line) -> None:
        body = decoded(line, BudgetBody)
        try:
            entry = _BudgetEntry(line.number, body, body.budget)
            for step in body.ladder:
                Budget(*step)
        except (TypeError, ValueError) as error:
            raise Misfit(unreadable(error)) from None
        if bool(body.federation and body.schema) != (line.number == 1):
            raise Misfit("does not say whose ledger it is, which the first line does and only it")
        self._budgets.append(entry)
        self.spent_at = line.digest

    def _read_charge(self, line: Line) -> None:
        if not self._budgets:
            raise Misfit("spends before any budget was set")
        body = decoded(line, ChargeBody)
        event = event_of(body, self._events)
        self.check_charge(body.run)
        self._places[line.digest] = len(self.charges)
        self.charges.append(
            Charge(
                line.number,
                body.run,
                body.label,
                event,
                guarantee_of(body.alone),
                guarantee_of(body.total),
                body.time,
                line.digest,
            )
        )
        self._runs.add(body.run)
        self.spending.add(event)
        self._closed_since, self._delta_then = [], self.budget.delta
        self.spent_at = line.digest

    def _read_asked(self, line: Line) -> None:
        body = decoded(line, AskedBody)
        charge = self._named(body)
        self.check_asking(charge, body.session)
        place = self._places[body.line]
        self._sessions[body.session] = place
        self._change(place, state="asked", session=body.session, roster=body.roster)

    def _read_sealing(self, line: Line) -> None:
        body = decoded(line, SealingBody)
        self.check_sealing(body.session)
        self._change(self._sessions[body.session], state="sealed")

    def _read_closed(self, line: Line) -> None:
        body = decoded(line, ClosedBody)
        self.check_closing(body.session)
        place = self._sessions[body.session]
        self._change(place, state="closed", evidence=body.proof)
        event = self.charges[place].event
        self.spending.remove(event)
        self._closed_since.append(event)
        self.spent_at = line.digest

    def _read_barred(self, line: Line) -> None:
        body = decoded(line, BarredBody)
        self.check_barring(body.session)
        self.barred.add(body.session)

    def _read_taken(self, line: Line) -> None:
        body = decoded(line, TakenBody)
        self.check_taking(self._named(body), body.part)
        self._parts.setdefault(body.line, set()).add(body.part)

    def _named(self, body: AskedBody | TakenBody) -> Charge | None:
        charge = self.charge_of(body.line)
        return charge if charge and charge.number == body.charge else None

    def _change(self, place: int, **changes: Any) -> None:
        self.charges[place] = replace(self.charges[place], **changes)


_READERS: Mapping[str, Callable[[History, Line], None]] = {
    "budget": History._read_budget,
    "charge": History._read_charge,
    "asked": History._read_asked,
    "sealing": History._read_sealing,
    "closed": History._read_closed,
    "barred": History._read_barred,
    "taken": History._read_taken,
}


def total_problem(charge: Charge, recomputed: float, delta: float) -> str:
    """What is said of a recorded total that is not the recomputed one."""
    return (
        f"records epsilon in total as {charge.total.epsilon:.6g} at delta {charge.total.delta:g}, "
        f"recomputed {recomputed:.6g} at delta {delta:g}"
    )
