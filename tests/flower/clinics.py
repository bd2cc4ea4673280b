"""A federation with a roster: every member has a folder of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.flower.client import MakeClient
from tacit.membership import LEDGER, ROSTER, Membership, new_key
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.privacy.mechanisms import Participation, SomeClients
from tacit.result import Result
from tacit.secure.roster import Roster
from tests.flower.grids import InProcessGrid, grid_of, vote, voters

NAME = "clinics"
AMPLE = Budget(30.0, 1e-5)
"""Enough for several votes of these tests."""


@dataclass(frozen=True)
class Clinics:
    """Its members, in the order of the roster."""

    membership: Membership
    folders: Sequence[Path]
    roster_file: Path

    @classmethod
    def found(
        cls,
        base: Path,
        count: int = 5,
        *,
        dropout: SomeClients = 0.4,
        colluding: SomeClients = 0,
        least_noise: float = 0.0,
        budget: Budget = AMPLE,
    ) -> Clinics:
        folders = [base / f"clinic-{number}" for number in range(count)]
        keys = tuple(new_key(folder).public_key for folder in folders)
        names = tuple(folder.name for folder in folders)
        planned = Participation(count, dropout, colluding)
        membership = Membership(NAME, names, Roster(keys), planned, least_noise)
        for folder in folders:
            (folder / ROSTER).write_text(membership.to_toml())
            Ledger.create(folder / LEDGER, NAME, budget)
        (base / ROSTER).write_text(membership.to_toml())
        return cls(membership, folders, base / ROSTER)

    def grid(self, makes: Sequence[MakeClient] | None = None) -> InProcessGrid:
        """Its nodes, in the roster's order."""
        return grid_of(makes or voters(len(self.folders)), self.folders)

    def vote(self, grid: InProcessGrid, **settings: object) -> Result:
        """A vote with the roster; its ledger is ample unless there is one already."""
        if not ledger_path(NAME).exists():
            Ledger.create(ledger_path(NAME), NAME, AMPLE)
        return vote(grid, federation__roster_file=str(self.roster_file), **settings)

    def spent(self) -> list[int]:
        """How often each member's own ledger was charged."""
        return self.spent_of(range(len(self.folders)))

    def spent_of(self, numbers: Iterable[int]) -> list[int]:
        """How often the ledgers of some members were charged."""
        return [len(Ledger(self.folders[number] / LEDGER)) for number in numbers]


def charges() -> int:
    """How often the federation's ledger was charged."""
    return len(Ledger(ledger_path(NAME)))
