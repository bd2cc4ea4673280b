"""Whether a member's folder is in order: modes, key, roster, ledger, receipts; and what to do."""

from __future__ import annotations

import math
import sqlite3
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.membership import (
    KEY,
    LEDGER,
    PUBLIC_KEY,
    RECEIPTS,
    ROSTER,
    Membership,
    exposures,
    other_federation,
    read_key,
    read_public,
    write_public,
)
from tacit.privacy.ledger import Ledger, LedgerError
from tacit.receipts import read_receipts

_LEDGER_TROUBLE = (LedgerError, sqlite3.Error, LookupError, TypeError, ValueError)
"""What reading a ledger raises that somebody edited by hand."""


@dataclass
class Checkup:
    """What a member's folder holds, and what to do about all that is wrong with it."""

    path: Path
    membership: Membership | None = None
    key: bytes | None = None
    key_mode: str | None = None
    ledger: dict[str, Any] | None = None
    receipts: int | None = None
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Checkup:
        """Look at everything in a member's folder; nothing is written."""
        checkup = cls(folder, problems=exposures(folder))
        checkup._look_at_roster()
        checkup._look_at_key()
        ledger = checkup._look_at_ledger()
        checkup._look_at_receipts(ledger)
        return checkup

    @property
    def number(self) -> int | None:
        """Which member of the roster this is."""
        if self.membership is None or self.key not in self.membership.roster.keys:
            return None
        return self.membership.roster.keys.index(self.key)

    def to_json(self) -> dict[str, Any]:
        """The checkup as plain data; a roster's file has no member."""
        found: dict[str, Any] = {
            "ok": not self.problems,
            "problems": self.problems,
            "roster": roster_json(self.membership) if self.membership else None,
        }
        if self.receipts is None:
            return found
        member = members_json(self.membership)[self.number] if self.number is not None else None
        return {
            **found,
            "member": member,
            "key_mode": self.key_mode,
            "ledger": self.ledger,
            "receipts": self.receipts,
        }

    def _look_at_roster(self) -> None:
        path = self.path / ROSTER
        if not path.is_file():
            self.problems.append(
                f"no roster at {path}; without it the server alone says who takes part: ask "
                "whoever made the roster for a copy"
            )
            return
        try:
            self.membership = Membership.load(path)
        except ValueError as error:
            self.problems.append(f"{error}; ask whoever made the roster for a copy")

    def _look_at_key(self) -> None:
        path, public = self.path / KEY, self.path / PUBLIC_KEY
        if path.is_file():
            self.key_mode = f"{stat.S_IMODE(path.stat().st_mode):03o}"
        try:
            self.key = read_key(path).public_key
        except ValueError as error:
            self.problems.append(str(error))
        try:
            told = read_public(public.read_text()) if public.is_file() else None
        except ValueError:
            told = b""
        if self.key and told not in (None, self.key):
            self.problems.append(
                f"{public} is not the public half of {path}; let it read '{write_public(self.key)}'"
            )
        self.key = self.key or told or None
        if self.membership and self.key and self.number is None:
            self.problems.append(
                f"the key {write_public(self.key)} is not on the roster of "
                f"{self.membership.federation!r}; send {public} to whoever makes the roster"
            )

    def _look_at_ledger(self) -> Ledger | None:
        """The member's own ledger, if it can be relied on."""
        path = self.path / LEDGER
        try:
            ledger = Ledger(path)
        except LedgerError as error:
            self.problems.append(str(error))
            return None
        except _LEDGER_TROUBLE as error:
            self.problems.append(
                f"{path} is damaged: it cannot be read: {error}; take no part until that is "
                "explained, since a copy of it from earlier forgets what was spent since"
            )
            return None
        try:
            damages = [f"line {damage.number}: {damage.found}" for damage in ledger.verify()]
            if not damages:
                budget, total = ledger.budget, ledger.total()
                endless = math.isinf(budget.epsilon)
                self.ledger = {
                    "federation": ledger.federation,
                    "budget": vars(budget),
                    "spent": total.epsilon,
                    "left": math.inf if endless else max(budget.epsilon - total.epsilon, 0.0),
                }
                self._judge(ledger)
                return ledger
        except _LEDGER_TROUBLE as error:
            damages = [f"it cannot be read: {error}"]
        self.problems += [
            f"{path} is damaged: {damage}; take no part until that is explained, since a copy of "
            "it from earlier forgets what was spent since"
            for damage in damages
        ]
        return None

    def _judge(self, ledger: Ledger) -> None:
        if self.membership and ledger.federation != self.membership.federation:
            self.problems.append(other_federation(ledger, self.membership.federation))
        if math.isinf(ledger.budget.epsilon):
            self.problems.append(
                f"the budget in {ledger.path} is infinite, so this member would answer in clear; "
                f"set one with: tacit ledger amend {ledger.path} --epsilon E --delta D --reason WHY"
            )

    def _look_at_receipts(self, ledger: Ledger | None) -> None:
        folder = self.path / RECEIPTS
        found = read_receipts([folder]) if folder.is_dir() else {}
        self.receipts = len(found)
        for file, receipt in found.items():
            if receipt is None:
                self.problems.append(
                    f"{file} cannot be read as a receipt; receipts are written whole, so find out "
                    "who altered it, and move it elsewhere"
                )
            elif (
                self.membership
                and self.number is not None
                and (receipt.client != self.number or not receipt.is_signed(self.membership.roster))
            ):
                self.problems.append(
                    f"{file} is not signed by this member for this roster; find out where it comes "
                    "from, and move it elsewhere"
                )
            elif ledger is not None and not ledger.knows(receipt.session):
                self.problems.append(
                    f"{file} is of an answer that {ledger.path} was never charged for; take no "
                    "part until that is explained, since a ledger from earlier spends twice"
                )


def members_json(membership: Membership | None) -> list[dict[str, Any]]:
    """The members of a roster as plain data."""
    if membership is None:
        return []
    pairs = zip(membership.names, membership.roster.keys, strict=True)
    return [
        {"number": number, "name": name, "key": write_public(key)}
        for number, (name, key) in enumerate(pairs)
    ]


def roster_json(membership: Membership) -> dict[str, Any]:
    """A roster as plain data."""
    return {
        "federation": membership.federation,
        "members": members_json(membership),
        "dropout": membership.participation.dropout,
        "colluding": membership.participation.colluding,
        "threshold": membership.participation.threshold,
        "least_noise": membership.least_noise,
        "secure": membership.secure,
        "warning": membership.warning,
        "digest": membership.digest,
    }
