"""The lines of a ledger: what each kind says, and the chain that binds it to all before it.

A line's digest is the SHA-256 of the digest before it, the line's number, its kind and its text. So
whoever knows the newest digest would notice any change to any line. The first line holds the
federation's name, the budget and a digest of the file's schema, so they are under the chain too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from tacit.privacy.accounting import Budget, Guarantee
from tacit.privacy.events import Event, from_json, to_json

State = Literal["charged", "asked", "sealed", "closed"]
"""What happened to the question that a charge paid for."""


class LedgerError(Exception):
    """A file that is missing, damaged, no ledger, or belongs to somebody else."""


class Misfit(Exception):
    """What is wrong with a line: a verb and what follows, said after "line 3"."""

    def __init__(self, found: str, number: int | None = None) -> None:
        super().__init__(found)
        self.number = number
        """Of the line that is meant, where that is not the one that was read."""


@dataclass(frozen=True)
class Line:
    """A line as it is stored."""

    number: int
    kind: str
    body: str
    digest: str


@dataclass(frozen=True)
class Charge:
    """One line of spending: what was asked, and what it cost alone and with all before it."""

    number: int
    run: str
    label: str
    event: Event
    alone: Guarantee
    total: Guarantee
    """An upper bound on everything that counted when this was charged."""
    time: str
    digest: str
    """Of this line and, through it, of all lines before it."""
    state: State = "charged"
    """``closed`` charges no longer count: it is on record that no answer ever left."""
    session: str = ""
    """The session whose question this charge pays for; empty while nobody asked."""
    roster: str = ""
    """The digest of the roster whose members were asked, in hex; empty if there was none."""
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of a closed charge, what shows that no answer left, as plain JSON."""


@dataclass(frozen=True)
class BudgetLine:
    """A budget on record: the first, or one that an amendment set."""

    number: int
    budget: Budget
    reason: str
    time: str
    charges_before: int
    """How many charges that count the ledger had by then: how many results could be known."""


@dataclass(frozen=True)
class Problem:
    """A line that does not agree with itself or with the lines before it."""

    number: int
    found: str


class _Guarantee(Struct, frozen=True):
    epsilon: float | None  # JSON has no infinity
    delta: float
    accounting: str
    unit: str
    relation: str


class ChargeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A charge."""

    run: str
    label: str
    event: msgspec.Raw
    alone: _Guarantee
    total: _Guarantee
    time: str


class BudgetBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A budget; the first line also says whose ledger it is and how the file is built."""

    epsilon: float | None
    delta: float
    reason: str
    time: str
    federation: str = ""
    schema: str = ""
    ladder: tuple[tuple[float, float], ...] = ()

    @property
    def budget(self) -> Budget:
        """As a value; refused outside of what budgets may be."""
        return Budget(math.inf if self.epsilon is None else self.epsilon, self.delta)


class AskedBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A charge pays for the question of a session from now on."""

    charge: int
    line: str
    session: str
    time: str
    roster: str = ""


class SealingBody(Struct, frozen=True, forbid_unknown_fields=True):
    """From now on answers of a session may leave."""

    session: str
    time: str


class ClosedBody(Struct, frozen=True, forbid_unknown_fields=True):
    """No answer of a session ever left or will leave, with the evidence."""

    session: str
    proof: dict[str, Any]
    time: str


class BarredBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A session that is never answered."""

    session: str
    time: str


class TakenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A numbered part of what a charge paid for was taken."""

    charge: int
    line: str
    part: int
    time: str


_BODIES: Mapping[str, type[Struct]] = {
    "budget": BudgetBody,
    "charge": ChargeBody,
    "asked": AskedBody,
    "sealing": SealingBody,
    "closed": ClosedBody,
    "barred": BarredBody,
    "taken": TakenBody,
}
_LONGEST_MESSAGE = 200
_INFINITY = {"number": "infinity"}
_BodyT = TypeVar("_BodyT")


def decoded(line: Line, kind: type[_BodyT]) -> _BodyT:
    """A line's text as what its kind says."""
    try:
        return msgspec.json.decode(line.body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Misfit(unreadable(error)) from None


def unreadable(error: Exception) -> str:
    """What is said of a line that makes no sense."""
    return f"cannot be read ({printable(error)})"


def printable(error: object) -> str:
    """What an error says, on one line and not too long: it may quote what is damaged."""
    text = str(error)[:_LONGEST_MESSAGE]
    return "".join(character if character.isprintable() else "?" for character in text)


def event_of(body: ChargeBody, known: dict[bytes, Event]) -> Event:
    """The event of a charge; equal texts are read once."""
    text = bytes(body.event)
    event = known.get(text)
    if event is None:
        try:
            plain = msgspec.json.decode(text)
            # Few events hold an infinity; to look for one in all of them takes long.
            endless = _INFINITY["number"].encode() in text or b"\\" in text
            event = known[text] = from_json(_with_infinity(plain) if endless else plain)
        except (
            msgspec.MsgspecError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise Misfit(unreadable(error)) from None
    return event


def guarantee_of(stored: _Guarantee) -> Guarantee:
    """As a value."""
    epsilon = math.inf if stored.epsilon is None else stored.epsilon
    return Guarantee(epsilon, stored.delta, stored.accounting, stored.unit, stored.relation)


def charge_body(
    event: Event, label: str, run: str, alone: Guarantee, total: Guarantee
) -> dict[str, Any]:
    """What a charge's line says."""
    return {
        "run": run,
        "label": label,
        "event": _without_infinity(to_json(event)),
        "alone": _finite(vars(alone)),
        "total": _finite(vars(total)),
        "time": now(),
    }


def budget_body(budget: Budget, reason: str) -> dict[str, Any]:
    """What a budget's line says."""
    return {**_finite(vars(budget)), "reason": reason, "time": now()}


def link(previous: str, number: int, kind: str, body: Mapping[str, Any]) -> Line:
    """A new line, bound to the digest of the line before it; a ValueError if none could read it."""
    text = json.dumps(body, sort_keys=True, allow_nan=False)
    line = Line(number, kind, text, digest(previous, number, kind, text))
    try:
        decoded(line, _BODIES[kind])
    except Misfit as misfit:
        raise ValueError(f"the line {misfit}") from None
    return line


def digest(previous: str, number: int, kind: str, body: str) -> str:
    """What binds a line to all before it."""
    return hashlib.sha256(
        f"{previous}\n{number}\n{kind}\n{body}".encode(errors="surrogatepass")
    ).hexdigest()


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
        "state": charge.state,
        "session": charge.session,
    }


def now() -> str:
    """The time in UTC, as lines record it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _without_infinity(value: Any) -> Any:
    """Plain data as JSON can hold it, which has no infinity: a Poisson number of runs has one."""
    if isinstance(value, dict):
        return {key: _without_infinity(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(part) for part in value]
    return _INFINITY if value == math.inf else value


def _with_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        if value == _INFINITY:
            return math.inf
        return {key: _with_infinity(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_infinity(part) for part in value]
    return value


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    endless = values["epsilon"] == math.inf
    return {**values, "epsilon": None if endless else values["epsilon"]}
