"""A federation whose members are folders on disk, as those of deployed nodes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tacit.endpoint import Endpoint
from tacit.federation import Federation, kind_of_piece
from tacit.journal import Journal
from tacit.membership import LEDGER, RECEIPTS, ROSTER, Member, Membership, named_keys, new_key
from tacit.one_writer import writing
from tacit.privacy.accounting import Budget
from tacit.privacy.events import Composed
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.mechanisms import Participation
from tacit.query import Ballot
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Refused
from tacit.secure.roster import Roster
from tacit.space import Config
from tacit.task import Client, FunctionClient
from tools.faults.history import Evidence

CANDIDATES: tuple[Config, ...] = tuple({"x": place / 9} for place in range(10))
BALLOT = Ballot(CANDIDATES, votes=2)
VARIANCE = 139.0
AMPLE = Budget(30.0, 1e-5)


def likes(best: float) -> Client:
    """A client that prefers values of x near its best."""

    def loss(config: Config) -> float:
        return abs(float(config["x"]) - best)

    return FunctionClient(loss)


def make_members(place: Path, members: int, dropout: int, budget: Budget) -> None:
    """Folders of members that know each other, and a server's ledger."""
    folders = [place / f"member-{number:02}" for number in range(members)]
    for folder in folders:
        new_key(folder)
    keys = named_keys(folders)
    roster = Membership(
        "clinics",
        tuple(keys),
        Roster(tuple(keys.values())),
        Participation(members, dropout),
        0.0,
    )
    for folder in folders:
        (folder / ROSTER).write_text(roster.to_toml())
        Ledger.create(folder / LEDGER, "clinics", AMPLE)
    Ledger.create(place / "server.sqlite", "clinics", budget)


@dataclass
class Folders:
    """A channel to members that have nothing but their folders."""

    place: Path
    _endpoints: dict[int, tuple[Endpoint, Member]] = field(default_factory=dict)

    @property
    def folders(self) -> list[Path]:
        """Of the members, in the order of the roster."""
        return sorted(self.place.glob("member-*"))

    @property
    def clients(self) -> range:
        return range(len(self.folders))

    def ask(self, _stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        replies = {}
        for client, request in requests.items():
            endpoint, member = self._member(client)
            try:
                replies[client] = endpoint.answer(member.states, request)
            except Refused:
                continue
        return replies

    def _member(self, client: int) -> tuple[Endpoint, Member]:
        if client not in self._endpoints:
            member = Member.load(self.folders[client])
            if member.membership is None or member.number is None:
                raise ValueError(f"{member.folder} has no roster")
            self._endpoints[client] = (
                Endpoint(
                    number=member.number,
                    client=likes(client / 10),
                    participation=member.membership.participation,
                    ledger=member.ledger,
                    identity=member.identity,
                    roster=member.membership.roster,
                    sessions=member.sessions,
                    on_release=member.keep,
                ),
                member,
            )
        return self._endpoints[client]


def votes(place: Path, sums: int, *, prepaid: bool) -> int:
    """Begin a run of some votes among these members, or go on with it; an exit code."""
    folder = place / "run"
    with writing(folder):
        journal = Journal(folder, {"journal": "run"}, kind_of_piece)
        channel = Folders(place)
        roster = Membership.load(channel.folders[0] / ROSTER)
        federation = Federation(
            channel,
            MaskedSum(roster.roster),
            Ledger(place / "server.sqlite"),
            roster.participation,
            "votes",
            VARIANCE,
            roster=roster.roster,
            journal=journal,
            transcripts=folder / "transcripts",
        )
        event = BALLOT.bound.release(VARIANCE)
        try:
            with federation.held():
                if prepaid:
                    federation.prepay({"votes": Composed((event,) * sums)})
                for number in range(sums):
                    federation.sum(BALLOT, f"vote {number}")
        except BudgetExceeded as error:
            print(f"tacit: {error}")  # noqa: T201  # as a command does
            return 2
    return 0


def evidence(place: Path) -> Evidence:
    """What such a federation left on disk."""
    folders = sorted(place.glob("member-*"))
    return Evidence(
        servers=[place / "server.sqlite"],
        members=[folder / LEDGER for folder in folders],
        runs=[place / "run"],
        receipts=[folder / RECEIPTS for folder in folders],
    )
