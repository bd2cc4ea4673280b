"""Files that are fuzzed: whatever a command or a node reads from disk."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.arrays import Array
from tacit.federation import Federation, kind_of_piece, local_federation
from tacit.files import json_text
from tacit.job import RECIPE
from tacit.job import run as carry_out
from tacit.journal import Journal, journal_path, read_journal
from tacit.keeping import UNREADABLE
from tacit.membership import Membership
from tacit.oracles import SparseVector
from tacit.pareto import RANDOM, Front, hypervolume, transformed
from tacit.pareto_job import _kind_of_piece as _kind_of_point
from tacit.pareto_job import _points
from tacit.pareto_plan import load_pareto_plan
from tacit.plan import load_plan
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.query import Ballot, LocalTraining
from tacit.receipts import check_receipts, read_receipts
from tacit.result_files import read_result
from tacit.runs import read_run
from tacit.secure.crypto import digest
from tacit.secure.protocol import PLAIN, Refused
from tacit.secure.roster import Roster
from tacit.sessions import Sessions
from tacit.space import Config
from tacit.tables import ScoreTable, TableClients, shipped
from tacit.task import FunctionClient
from tacit.transcripts import ClosedRecord, Record
from tools.faults.mutations import bytewise, in_arrays, in_journal, in_json, in_lines, in_msgpack
from tools.faults.recorded import Conversation, spoiled
from tools.faults.target import Target

_FRONT = {"front": "fuzzed"}
_TINY = (
    "federation.clients=8",
    "search.candidates=6",
    "search.ballot=published",
    "search.votes=2",
    "task.score_epochs=1",
    "task.train_rounds=1",
    "task.train_epochs=1",
    "task.hidden=[]",
)


def file_targets(talk: Conversation, prepared: Path) -> list[Target]:
    """Everything that a command or a node reads from disk."""
    run = prepared / "run"
    plan = load_plan(None, _TINY)
    carry_out(plan, run, lambda *_: None, lambda _: None)
    pareto = load_pareto_plan(None, []).to_toml()
    journals = _Journals.written(run, prepared)
    receipts = [file.read_bytes() for file in sorted((prepared / "receipts").iterdir())[:6]]
    transcripts = [file.read_bytes() for file in sorted((prepared / "transcripts").iterdir())[:3]]
    ledger = Ledger(prepared / "server.sqlite")
    charges = {charge.digest: charge for charge in ledger.charges()}
    keyring = _roster_of(talk.federation)
    names = tuple(f"client-{number}" for number in range(len(keyring.keys)))
    planned = talk.federation.participation
    roster = Membership("clinics", names, keyring, Participation(len(names)), 1.0).to_toml()
    closed = spoiled(prepared / "closed")
    paid = {charge.digest: charge for charge in closed.ledger.charges()}
    evidence = [file.read_bytes() for file in (prepared / "closed" / "transcripts").iterdir()]
    table = min(shipped().values(), key=lambda path: path.stat().st_size)

    def result(base: int, data: bytes, folder: Path) -> None:
        for number, name in enumerate(("result.json", "ledger.json")):
            (folder / name).write_bytes(data if base == number else (run / name).read_bytes())
        read_result(folder)

    def receipt(_base: int, data: bytes, folder: Path) -> None:
        file = _written(folder, "receipt.json", data)
        check_receipts(read_receipts([file]), _Lines(charges), keyring)  # type: ignore[arg-type]

    def sessions(_base: int, data: bytes, folder: Path) -> None:
        noted = Sessions(_written(folder, "sessions", data), tell=lambda _text: None)
        try:
            noted.begin("00" * 32)
            noted.finish("00" * 32)
        finally:
            (folder / f"sessions{UNREADABLE}").unlink(missing_ok=True)

    def accused(_base: int, data: bytes, folder: Path) -> str:
        record = ClosedRecord.read(_written(folder, "closed.transcript", data))
        _, faults = record.check(paid, _roster_of(closed), closed.participation)
        return "" if faults == tuple(closed.faults) else f"it accuses others: {faults}"

    sessions_file = prepared / "sessions"
    for number in range(3):
        Sessions(sessions_file).begin(f"{number:064x}")
    Sessions(sessions_file).end("f" * 64)

    def simple(read: Callable[[Path], object], name: str) -> Callable[[int, bytes, Path], str]:
        def attempt(_base: int, data: bytes, folder: Path) -> str:
            read(_written(folder, name, data))
            return ""

        return attempt

    def quiet(
        read: Callable[[int, bytes, Path], None],
    ) -> Callable[[int, bytes, Path], str]:
        def attempt(base: int, data: bytes, folder: Path) -> str:
            read(base, data, folder)
            return ""

        return attempt

    wrong = (ValueError,)
    results = [(run / name).read_bytes() for name in ("result.json", "ledger.json")]
    plans = [(run / "plan.toml").read_bytes(), plan.to_toml().encode()]
    return [
        Target(
            "sessions files",
            [sessions_file.read_bytes()],
            (bytewise, _resealed_sessions),
            quiet(sessions),
            (Refused,),
            60,
        ),
        Target("receipts", receipts, (bytewise, in_json, in_json), quiet(receipt), wrong, 60),
        Target(
            "rosters",
            [roster.encode()],
            (bytewise, in_lines),
            simple(Membership.load, "roster.toml"),
            wrong,
            40,
        ),
        Target(
            "transcripts",
            transcripts,
            (bytewise, in_msgpack),
            simple(
                lambda file: Record.read(file).check(charges, keyring, planned), "one.transcript"
            ),
            wrong,
            8,
        ),
        Target(
            "evidence of closed sums",
            evidence,
            (bytewise, in_msgpack, in_msgpack),
            accused,
            wrong,
            8,
        ),
        Target(
            "journals",
            journals.bases,
            (bytewise, in_journal, in_journal, in_journal, in_lines),
            quiet(journals.attempt),
            wrong,
            60,
        ),
        Target("results", results, (bytewise, in_json, in_json), quiet(result), wrong, 40),
        Target(
            "tables",
            [table.read_bytes()],
            (bytewise, in_arrays, in_arrays, in_arrays),
            simple(_table_used, "t.npz"),
            wrong,
            24,
        ),
        Target(
            "plans",
            plans,
            (bytewise, in_lines, in_lines),
            simple(lambda file: load_plan(file, ()), "plan.toml"),
            wrong,
            15,
        ),
        Target(
            "plans of fronts",
            [pareto.encode()],
            (bytewise, in_lines, in_lines),
            simple(lambda file: load_pareto_plan(file, []), "front.toml"),
            wrong,
            10,
        ),
    ]


def _roster_of(federation: Federation) -> Roster:
    if federation.roster is None:
        raise TypeError("the federation has a roster")
    return federation.roster


@dataclass(frozen=True)
class _Lines:
    """As much of a ledger as receipts are compared with, read once."""

    charges: Mapping[str, Any]

    def intact(self) -> list[Any]:
        """All of it."""
        return list(self.charges.values())


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _table_used(file: Path) -> None:
    """As a comparison uses it."""
    clients = TableClients(ScoreTable.load(file))
    clients.of_seed(0)[0].score(clients.table.candidates[0])
    _ = clients.grid, clients.box


@dataclass(frozen=True)
class _Willing(FunctionClient):
    """A client that trains in no time."""

    def train_many(self, _configs: Any, weights: Any, *_more: Any) -> Any:
        return tuple(array + 1 for array in weights)

    def validate_many(self, weights: Any) -> Any:
        return np.full(len(weights[0]), 0.75, np.float32)


@dataclass(frozen=True)
class _Journals:
    """Journals of a run, of a federation and of a front, each read by what goes on with it."""

    plan: str
    ledger: Ledger
    bases: list[bytes]

    @classmethod
    def written(cls, run: Path, prepared: Path) -> _Journals:
        """One of each kind."""
        own = next(run.glob("journal-*.jsonl")).read_bytes()
        ledger = Ledger.in_memory("fuzzed", Budget(math.inf, 1e-5))
        sums, front = prepared / "sums", prepared / "front"
        _question(ledger, sums)
        points = Journal(front, _FRONT, _kind_of_point)
        search = Front(SparseVector(replications=2), RANDOM)
        for number, config in enumerate(search.propose(4)):
            points.add(number, search.tell(config, number).to_json())
        files = journal_path(sums, RECIPE), journal_path(front, _FRONT)
        bases = [own, *(file.read_bytes() for file in files)]
        return cls((run / "plan.toml").read_text(), ledger, bases)

    def attempt(self, base: int, data: bytes, folder: Path) -> None:
        """Go on with an altered one."""
        place = folder / f"journal-{base}"
        place.mkdir(exist_ok=True)
        file = journal_path(place, _FRONT if base == 2 else RECIPE)
        file.write_bytes(data)
        if base == 0:
            (place / "plan.toml").write_text(self.plan)
            json_text(read_run(place).summary())
        elif base == 1:
            _question(self.ledger, place)
        else:
            pieces, _ = read_journal(file, _kind_of_point)
            points = _points(pieces, SparseVector(), file)
            if points:
                transformed(points)
                hypervolume(points)


def _question(ledger: Ledger, folder: Path) -> None:
    """Open a sum and a mean, or go on from what the journal in a folder says of them."""
    candidates: tuple[Config, ...] = tuple({"x": number} for number in range(4))
    network = (Array.of(np.zeros((1, 3), np.float32)),)
    federation = local_federation(
        [_Willing(lambda config: float(config["x"]))] * 3,
        Participation(3),
        ledger,
        "fuzzed",
        5.0,
        secure=PLAIN,
        roster=False,
        trains=True,
        journal=Journal(folder, RECIPE, kind_of_piece),
    )
    federation.sum(Ballot(candidates, votes=1), "vote")
    federation.average(LocalTraining(candidates[:1], network, 1, 1), "training 1")


def _resealed_sessions(data: bytes, chance: random.Random) -> bytes:
    head, _, body = data.split(b"\n", 2)
    body = in_json(body, chance)
    return b"\n".join((head, digest(b"sessions", body).hex().encode(), body))
