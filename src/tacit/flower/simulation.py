"""A plan on Flower's simulation: the same run as in one process, over Flower's messages.

The apps below are what Flower runs; they find the plan in the folder of the run. With a roster
every simulated client is a member with a folder of its own (:mod:`tacit.membership`), so that its
ledger and its receipts can be looked at afterwards.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit.endpoint import Endpoint
from tacit.federation import EngineFailed, Federation, RoundNote, Watch
from tacit.federation import Progress as StageProgress
from tacit.files import write_whole
from tacit.flower.client import answer_as, endpoint_of
from tacit.flower.processes import (
    run_app,
    simulated_nodes,
    simulating_superlink,
    write_app,
)
from tacit.flower.server import (
    SIMULATED_ON_FLOWER,
    check_engine,
    log_round,
    over_grid,
    wait_for_nodes,
)
from tacit.job import RUN, Parts, carry_out, check_folder
from tacit.locks import real
from tacit.membership import LEDGER, ROSTER, Member, Membership, new_key
from tacit.one_writer import writing
from tacit.plan import Plan, load_plan
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, least_noise
from tacit.result import Result
from tacit.result_files import read_result
from tacit.secure.roster import Roster

_PROGRESS = re.compile(r"tacit: (\w+): (\d+) of (\d+) nodes answered")
_ROUND = re.compile(r"tacit: round (\{.*\})")


def run(
    plan: Plan, out: Path, progress: StageProgress, watch: Watch, *, resume: bool = False
) -> Result:
    """Carry out a plan on Flower's simulation, and fill the folder ``out``; or go on."""
    with writing(out):
        check_folder(out, resume=resume)
        return _carried_out(plan, out, progress, watch)


def _carried_out(plan: Plan, out: Path, progress: StageProgress, watch: Watch) -> Result:
    """The same in a folder that nobody else writes in; Flower's server writes on our behalf."""
    check_engine(plan)
    parts = Parts.of(plan, out)  # refuses what cannot be run before any process is started
    plan = parts.plan
    flower = real(out / "flower")
    app = write_app(
        flower / "app",
        server="tacit.flower.simulation:server_app",
        client="tacit.flower.simulation:client_app",
        folder=str(real(out)),
    )
    write_whole(flower / "plan.toml", plan.to_toml())
    failed = flower / "failed.txt"
    failed.unlink(missing_ok=True)
    if plan.federation.roster and not (out / "members").exists():
        name = plan.federation.name or "this-run"
        make_members(
            out / "members",
            name,
            parts.participation,
            parts.budget,
            plan.federation.secure,
        )

    def show(line: str) -> None:
        found = _PROGRESS.search(line)
        if found:
            progress(found[1], int(found[2]), int(found[3]))
        told = _ROUND.search(line)
        if told:
            watch(RoundNote.from_json(told[1]))

    with simulating_superlink(flower / "home"):
        options = simulated_nodes(plan.federation.clients)
        try:
            run_app(app, flower / "home", options=options, line=show)
        except EngineFailed:
            if not failed.exists():  # what the app itself says tells more
                raise
    if failed.exists():
        raise EngineFailed(failed.read_text())
    return read_result(out)


def make_members(
    folder: Path,
    federation: str,
    participation: Participation,
    budget: Budget,
    secure: str = "masks",
) -> None:
    """A folder with a key, the common roster and a ledger for every simulated client."""
    names = [member_name(number) for number in range(participation.clients)]
    identities = [new_key(folder / name) for name in names]
    membership = Membership(
        federation,
        tuple(names),
        Roster(tuple(identity.public_key for identity in identities)),
        participation,
        least_noise(participation, budget),
        secure=secure,
    )
    for name in names:
        write_whole(folder / name / ROSTER, membership.to_toml())
        Ledger.create(folder / name / LEDGER, federation, budget)


def member_name(number: int) -> str:
    """What a simulated client is called."""
    return f"client-{number:04d}"


@lru_cache(maxsize=1)
def _parts(folder: Path) -> Parts:
    return Parts.of(load_plan(folder / "flower" / "plan.toml", ()), folder)


def _folder(context: Context) -> Path:
    return Path(str(context.run_config["folder"]))


def member_of(folder: Path, number: int) -> Member | None:
    """A simulated client's own folder, if the run has a roster."""
    own = folder / "members" / member_name(number)
    return Member.load(own) if own.exists() else None


client_app = ClientApp()


@answer_as(client_app)
def simulated_endpoint(context: Context, given: int) -> tuple[Endpoint, Member | None]:
    """One simulated client; nobody's privacy is at stake, so it does not wait for deadlines."""
    folder = _folder(context)
    number = int(str(context.node_config["partition-id"]))
    member = member_of(folder, number)
    parts = _parts(folder)
    client, trains = parts.clients[number], parts.trains_in_clear
    endpoint = endpoint_of(member, client, number if member else given, trains=trains)
    return replace(endpoint, punctual=False, record_level=parts.record_level), member


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """The server of a simulated run; why it failed is left in a file for the command."""
    folder = _folder(context)
    try:
        plan = load_plan(folder / "flower" / "plan.toml", ())
        carry_out(plan, folder, lambda parts: _federation(grid, parts), log_round)
    except Exception as error:
        write_whole(folder / "flower" / "failed.txt", f"{error}")
        raise


def _federation(grid: Grid, parts: Parts) -> Federation:
    terms, participation = parts.plan.federation, parts.participation
    member = member_of(parts.out, 0)
    roster = member.membership.roster if member and member.membership else None
    nodes = wait_for_nodes(grid, participation.clients, terms.wait)
    journal = parts.journal()
    return over_grid(
        grid,
        nodes,
        participation,
        roster,
        parts.ledger(),
        journal.pieces[RUN],
        journal=journal,
        transcripts=parts.out / "transcripts" if roster else None,
        secure=terms.secure,
        timeout=terms.timeout,
        deadline=terms.deadline,
        variance=parts.variance,
        record_level=parts.record_level,
        setting=SIMULATED_ON_FLOWER,
    )
