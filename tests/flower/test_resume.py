"""A server that is killed, and a run of the same name that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from tacit.flower import server
from tacit.privacy.ledger import Ledger, ledger_path
from tests.flower.clinics import NAME, Clinics, charges
from tests.flower.grids import STAGES, InProcessGrid, stage_of

pytestmark = pytest.mark.usefixtures("at_once")


def killed(*_args: object) -> Any:
    raise KeyboardInterrupt


def run_of(home: Path) -> str:
    """The name of the only run so far."""
    (folder,) = (home / "runs").iterdir()
    return folder.name


def killed_at(grid: InProcessGrid, stage: str) -> None:
    """The server ends in the middle of a stage: two nodes were asked, the others were not."""
    asked: list[Message] = []

    def alter(message: Message) -> Message:
        if stage_of(message) == stage:
            asked.append(message)
            if len(asked) == 3:
                raise KeyboardInterrupt
        return message

    grid.alter = alter


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_killed_before_its_sum_opened_asks_anew_and_pays_for_what_was_sealed(
    tmp_path: Path, tacit_home: Path, stage: str
) -> None:
    """What was not sealed, every member signs off; the rest stays spent."""
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    killed_at(grid, stage)
    with pytest.raises(KeyboardInterrupt):
        clinics.vote(grid)
    run = run_of(tacit_home)
    again = clinics.grid()
    result = clinics.vote(again, run__resume=run)
    assert run_of(tacit_home) == run
    assert result.tally == again.sum_of(again.nodes)
    assert {charge.run for charge in Ledger(ledger_path(NAME)).charges()} == {run}
    assert charges() == 2
    states = [charge.state for charge in Ledger(ledger_path(NAME)).charges()]
    if STAGES.index(stage) < STAGES.index("seal"):
        assert states == ["closed", "sealed"]
        assert result.privacy.epsilon <= 3.0
    else:
        assert states == ["sealed", "sealed"]
        assert result.privacy.epsilon > 3.0, "both questions are paid"


@pytest.mark.parametrize("where", ["conclude", "write_run"])
def test_a_run_killed_after_its_sum_opened_asks_and_charges_nobody(
    tmp_path: Path, tacit_home: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    with monkeypatch.context() as patch:
        patch.setattr(server, where, killed)
        with pytest.raises(KeyboardInterrupt):
            clinics.vote(grid)
    run = run_of(tacit_home)
    again = clinics.grid()
    result = clinics.vote(again, run__resume=run)
    assert not again.seen
    assert result.tally == grid.sum_of(grid.nodes)
    assert (result.clients.asked, result.clients.answered) == (5, 5)
    assert charges() == 1
    assert result.privacy.epsilon <= 3.0
    assert (tacit_home / "runs" / run / "result.json").exists()


@pytest.mark.parametrize(
    "other", [{"search__votes": 3}, {"search__seed": 2}, {"privacy__epsilon": 2.0}]
)
def test_a_run_is_not_resumed_with_another_question(
    tmp_path: Path, tacit_home: Path, other: dict[str, object]
) -> None:
    clinics = Clinics.found(tmp_path)
    clinics.vote(clinics.grid())
    again = clinics.grid()
    with pytest.raises(ValueError, match="asked another question before it was ended"):
        clinics.vote(again, run__resume=run_of(tacit_home), **other)
    assert not again.seen
    assert charges() == 1


def test_a_run_is_not_resumed_with_another_ledger(tmp_path: Path, tacit_home: Path) -> None:
    clinics = Clinics.found(tmp_path)
    clinics.vote(clinics.grid())
    ledger_path(NAME).unlink()
    again = clinics.grid()
    with pytest.raises(ValueError, match="the ledger does not hold the charge of the run"):
        clinics.vote(again, run__resume=run_of(tacit_home))
    assert not again.seen
