"""``tacit roster``: who takes part, and whether a member's folder is in order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tacit.checkup import Checkup, members_json, roster_json
from tacit.commands.options import AsJson, Colluding, Delta, Dropout, Epsilon, number
from tacit.files import write_whole
from tacit.membership import (
    KEY,
    PUBLIC_KEY,
    ROSTER,
    Membership,
    named_keys,
    new_key,
    write_public,
)
from tacit.printing import plain_console
from tacit.privacy.accounting import Budget
from tacit.privacy.mechanisms import Participation, least_noise
from tacit.secure.roster import Roster
from tacit.terminal import print_json

app = typer.Typer(help="Who takes part: keys, rosters, members' folders.", no_args_is_help=True)


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
    dropout: Dropout = "0.1",
    colluding: Colluding = "0",
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    least: Annotated[
        float | None,
        typer.Option(
            "--least-noise",
            parser=number,
            metavar="NUMBER",
            help="The least variance a member adds, in squared distances of answers; default: its "
            "share if one answer spends epsilon and delta.",
        ),
    ] = None,
    secure: Annotated[
        str, typer.Option(metavar="KIND", help="The sums members take part in: masks or encrypted.")
    ] = "masks",
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
        least = least_noise(participation, Budget(epsilon, delta))
    made = Membership(
        federation,
        tuple(members),
        Roster(tuple(members.values())),
        participation,
        least,
        secure,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, made.to_toml())
    if as_json:
        print_json({"file": str(path), **roster_json(made)})
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


def _print_roster(membership: Membership) -> None:
    table = Table(
        title=f"Roster of {membership.federation}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("number", "name", "public key"):
        table.add_column(heading, justify="right" if heading == "number" else "left")
    for member in members_json(membership):
        table.add_row(str(member["number"]), member["name"], member["key"])
    plain_console().print(table)
    planned = membership.participation
    typer.echo(
        f"At least {planned.threshold} of {planned.clients} must answer, else nothing opens "
        f"({planned.dropout} may drop out, {planned.colluding} collude)."
    )
    typer.echo(
        f"Each adds noise of {membership.least_noise:.10g} squared distances of answers at least."
    )
    if membership.warning:
        typer.echo(membership.warning)
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
