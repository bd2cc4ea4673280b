"""Two servers that ask the same nodes at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from tacit.flower import client
from tacit.flower.server import Settings
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.receipts import check_receipts, read_receipts
from tests.flower.clinics import AMPLE, Clinics
from tests.flower.grids import (
    RUN,
    InProcessGrid,
    generous,
    grid_of,
    server_context,
    stage_of,
    voters,
)
from tests.flower.lies import BALLOT, VARIANCE

pytestmark = pytest.mark.usefixtures("at_once")


def opened(grids: list[InProcessGrid], base: Path, **settings: object) -> list[tuple[int, ...]]:
    """The sums of as many servers as there are grids, each in a thread and with a ledger."""
    totals: dict[int, tuple[int, ...]] = {}
    building = threading.Lock()
    together = threading.Barrier(len(grids))

    def run(number: int) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
        terms = {"federation__deadline": 30.0, "federation__wait": 0.0, **settings}
        context = server_context(**terms)
        with building:  # the named ledger is made by whoever is first
            built = Settings.of(context.run_config).federation(
                grids[number], AMPLE, f"run-{number}", base / f"run-{number}"
            )
        built.variance = VARIANCE
        built.ledger = Ledger.create(base / f"server-{number}.sqlite", "clinics", AMPLE)
        together.wait(timeout=60.0)
        for _ in range(2):
            total = built.sum(BALLOT, "vote")
            assert total.answered == len(grids[number].nodes)
            totals[number] = tuple(map(int, total.value))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(grids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [totals[number] for number in range(len(grids))]


def test_two_runs_on_the_same_members_both_finish_and_each_is_charged_once(
    tmp_path: Path,
) -> None:
    """Before, the question of one run destroyed the sum of the other, on every node."""
    clinics = Clinics.found(tmp_path, budget=Budget(30.0, 1e-5))
    first = clinics.grid()
    second = InProcessGrid(first.nodes)
    opened([first, second], tmp_path, federation__roster_file=str(clinics.roster_file))
    assert clinics.spent() == [4] * 5
    receipts = read_receipts([folder / "receipts" for folder in clinics.folders])
    assert len(receipts) == 4 * 5
    for number in range(2):
        ledger = Ledger(tmp_path / f"server-{number}.sqlite")
        lines = {charge.digest for charge in ledger.charges()}
        of_run = {file: found for file, found in receipts.items() if found and found.line in lines}
        assert len(of_run) == 2 * 5
        assert check_receipts(of_run, ledger, clinics.membership.roster) == []


@pytest.mark.parametrize("simulated", [True, False])
def test_two_runs_on_nodes_without_a_folder_both_finish(
    tmp_path: Path, simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Question by question in turn: of a simulated node, Flower's context has both states."""
    monkeypatch.setattr(client, "simulated", lambda: simulated)
    first = generous(grid_of(voters(3)))
    second = InProcessGrid(first.nodes)
    inner: list[tuple[int, ...]] = []

    (tmp_path / "second").mkdir()

    def alter(message: Message) -> Message:
        if stage_of(message) == "share" and not inner:  # a whole run, in the middle of the first
            inner.append(())
            inner.extend(opened([second], tmp_path / "second", federation__name="second"))
        return message

    first.alter = alter
    (total,) = opened([first], tmp_path, federation__name="first")
    assert len(total) == len(inner[1]) == len(BALLOT.candidates)
