"""``tacit roster``: who takes part, and whether a member's folder is in order."""

from __future__ import annotations

import math
import sqlite3
import stat
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.commands.options import AsJson, Delta, Epsilon, number, whole
from tacit.files import write_whole
from tacit.membership import (
    KEY,
    LEDGER,
    PUBLIC_KEY,
    ROSTER,
    Membership,
    named_keys,
    new_key,
    read_key,
    read_public,
    write_public,
)
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger, LedgerError
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.receipts import read_receipts
from tacit.secure.roster import Roster
from tacit.terminal import print_json

app = typer.Typer(help="Who takes part: keys, rosters, members' folders.", no_args_is_help=True)

_LEDGER_TROUBLE = (LedgerError, sqlite3.Error, LookupError, TypeError)
"""What reading a ledger raises that somebody edited by hand."""


@app.command("key")
def roster_key(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The member's own folder.")],
    as_json: AsJson = False,
) -> None:
    """Make a member's key pair; an existing one is never replaced.

    Example: tacit roster key anna
    """
    public = write_public(new_key(folder).public_key)
    secret_file, public_file = folder / KEY, folder / PUBLIC_KEY
    if as_json:
        print_json({"key": public, "file": str(public_file), "secret_file": str(secret_file)})
        return
    typer.echo(public)
    typer.echo(f"It is in {public_file}: send that file to whoever makes the roster.")
    typer.echo(f"The secret key is in {secret_file}: it stays there, for nobody else to read.")


@app.command("make")
def roster_make(
    path: Annotated[Path, typer.Argument(metavar="ROSTER.toml", help="The file to be made.")],
    keys: Annotated[
        list[Path],
        typer.Argument(metavar="KEYS...", help="Members' public keys: files, or their folders."),
    ],
    federation: Annotated[str, typer.Option(metavar="NAME", help="What the federation is called.")],
    dropout: Annotated[
        float,
        typer.Option(
            parser=number, metavar="FRACTION", help="Fraction of members that may drop out."
        ),
    ] = 0.1,
    colluding: Annotated[
        float,
        typer.Option(
            parser=number,
            metavar="FRACTION",
            help="Fraction of members that may tell the server their noise.",
        ),
    ] = 0.0,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    candidates: Annotated[
        int,
        typer.Option(parser=whole, metavar="N", help="How many configurations a vote compares."),
    ] = 100,
    votes: Annotated[
        int,
        typer.Option(parser=whole, metavar="N", help="How many candidates a member votes for."),
    ] = 5,
    least: Annotated[
        float | None,
        typer.Option(
            "--least-share-variance",
            parser=number,
            metavar="NUMBER",
            help="The least noise a member adds; default: what one vote as above needs.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the file that lists all members, how many may fail, and the least noise they add.

    A member is called as its key's file; as its folder, if the file is a plain node.pub.

    Example: tacit roster make roster.toml anna.pub ben.pub cleo.pub --federation clinics
    """
    if path.exists():
        raise ValueError(
            f"{path} exists already; a roster is never replaced: give the new one another name"
        )
    members = _different(named_keys(keys))
    participation = Participation(len(members), dropout, colluding)
    if least is None:
        vote = TopVotes(candidates, votes)
        least = _least_share_variance(vote, participation, Budget(epsilon, delta))
    made = Membership(
        federation, tuple(members), Roster(tuple(members.values())), dropout, colluding, least
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, made.to_toml())
    if as_json:
        print_json({"file": str(path), **_plain(made)})
        return
    _print_roster(made)
    typer.echo(f"Roster: {path}; every member copies it to its folder, as {ROSTER}.")


@app.command("check")
def roster_check(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A roster's file, or a member's folder.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a roster says, or whether a member's folder is in order; exit code 1 if not.

    Example: tacit roster check anna
    """
    checkup = Checkup.of(path) if path.is_dir() else Checkup(path, Membership.load(path))
    if as_json:
        print_json(checkup.to_json())
    else:
        _print_checkup(checkup)
    if checkup.problems:
        raise typer.Exit(1)


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
        checkup = cls(folder)
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
            "roster": _plain(self.membership) if self.membership else None,
        }
        if self.receipts is None:
            return found
        member = _members(self.membership)[self.number] if self.number is not None else None
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
                self._judge(self.ledger, path)
                return ledger
        except _LEDGER_TROUBLE as error:
            damages = [f"it cannot be read: {error}"]
        self.problems += [
            f"{path} is damaged: {damage}; take no part until that is explained, since a copy of "
            "it from earlier forgets what was spent since"
            for damage in damages
        ]
        return None

    def _judge(self, ledger: dict[str, Any], path: Path) -> None:
        if self.membership and ledger["federation"] != self.membership.federation:
            self.problems.append(
                f"{path} is the ledger of {ledger['federation']!r}, the roster is of "
                f"{self.membership.federation!r}; put it where it belongs and create one here "
                f"with: tacit ledger create {path} --federation {self.membership.federation} "
                "--epsilon E --delta D"
            )
        if math.isinf(ledger["budget"]["epsilon"]):
            self.problems.append(
                f"the budget in {path} is infinite, so this member would answer in clear; set one "
                f"with: tacit ledger amend {path} --epsilon E --delta D --reason WHY"
            )

    def _look_at_receipts(self, ledger: Ledger | None) -> None:
        folder = self.path / "receipts"
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


def _different(members: dict[str, bytes]) -> dict[str, bytes]:
    """The members, if there are enough of them and each has a key of its own."""
    if len(members) < 2:
        raise ValueError(f"found {len(members)} key; a roster needs those of 2 members at least")
    owners: dict[bytes, str] = {}
    for name, key in members.items():
        if key in owners:
            raise ValueError(
                f"{owners[key]} and {name} have the same key; each member makes its own with: "
                "tacit roster key"
            )
        owners[key] = name
    return members


def _least_share_variance(vote: TopVotes, participation: Participation, budget: Budget) -> float:
    """What one vote needs, with four digits, rounded down.

    Other versions of NumPy or SciPy may differ in the last digits, and a server that calibrates
    with those is not to be refused.
    """
    needed = SkellamMechanism.calibrated(vote, participation, budget).share_variance
    return float(Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(needed))


def _members(membership: Membership | None) -> list[dict[str, Any]]:
    if membership is None:
        return []
    pairs = zip(membership.names, membership.roster.keys, strict=True)
    return [
        {"number": number, "name": name, "key": write_public(key)}
        for number, (name, key) in enumerate(pairs)
    ]


def _plain(membership: Membership) -> dict[str, Any]:
    """A roster as plain data."""
    return {
        "federation": membership.federation,
        "members": _members(membership),
        "dropout": membership.dropout,
        "colluding": membership.colluding,
        "threshold": membership.participation.threshold,
        "least_share_variance": membership.least_share_variance,
        "digest": membership.digest,
    }


def _print_roster(membership: Membership) -> None:
    table = Table(
        title=f"Roster of {membership.federation}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("number", "name", "public key"):
        table.add_column(heading, justify="right" if heading == "number" else "left")
    for member in _members(membership):
        table.add_row(str(member["number"]), member["name"], member["key"])
    Console(highlight=False).print(table)
    clients, threshold = len(membership.names), membership.participation.threshold
    typer.echo(
        f"At least {threshold} of {clients} must answer (drop-out {membership.dropout:g}, "
        f"colluding {membership.colluding:g}), else nothing opens."
    )
    typer.echo(f"Each adds noise of variance {membership.least_share_variance:.10g} at least.")
    digest = membership.digest
    typer.echo("Digest of all this, which members compare by telephone:")
    typer.echo("  " + " ".join(digest[at : at + 8] for at in range(0, len(digest), 8)))


def _print_checkup(checkup: Checkup) -> None:
    membership = checkup.membership
    if membership:
        _print_roster(membership)
    if checkup.receipts is None:
        return
    if membership and checkup.number is not None:
        mode = f"; its key has mode {checkup.key_mode}" if checkup.key_mode else ""
        typer.echo(f"Member {checkup.number}, {membership.names[checkup.number]}{mode}.")
    if checkup.ledger:
        budget = checkup.ledger["budget"]
        typer.echo(
            f"Ledger of {checkup.ledger['federation']}: ε = {_floor(checkup.ledger['left'])} of "
            f"{budget['epsilon']:g} is left at δ = {budget['delta']:g}."
        )
    typer.echo(f"{checkup.receipts} receipt(s) kept.")
    for problem in checkup.problems:
        typer.echo(f"Problem: {problem}")
    typer.echo(f"{len(checkup.problems)} problem(s) found." if checkup.problems else "All is well.")


def _floor(epsilon: float) -> str:
    """Four decimals, rounded down: no more is shown than is left."""
    return f"{math.floor(epsilon * 1e4) / 1e4:g}" if math.isfinite(epsilon) else "infinite"
