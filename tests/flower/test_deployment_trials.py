"""What a deployment survives, and that the trials' look at the books finds what is wrong there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tacit.membership import LEDGER, RECEIPTS, read_key
from tacit.privacy.ledger import Ledger
from tacit.receipts import read_receipts
from tests.flower.clinics import AMPLE, NAME, Clinics
from tests.flower.deployment import Deployment, deployed
from tests.forgeries import edit
from tools.deployment_trials.__main__ import app, played, table_of
from tools.deployment_trials.books import problems_in_books, server_ledger
from tools.deployment_trials.campaigns import CAMPAIGNS, RESULT


@pytest.fixture
def voted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None) -> Deployment:
    """What a deployment of five leaves behind after a vote that was held in this process."""
    del at_once
    deployment = Deployment(tmp_path / "deployment", nodes=5)
    monkeypatch.setenv("TACIT_HOME", str(deployment.folder / "server"))
    clinics = Clinics.found(deployment.folder / "nodes")
    clinics.vote(clinics.grid())
    return deployment


def folders(deployment: Deployment) -> list[Path]:
    return sorted(path for path in (deployment.folder / "nodes").iterdir() if path.is_dir())


def test_the_books_of_an_honest_vote_agree(voted: Deployment) -> None:
    assert problems_in_books(voted, voted.folder / "nodes" / "roster.toml") == []


def lost_charge(deployment: Deployment) -> None:
    edit(folders(deployment)[0] / LEDGER, "DELETE FROM line WHERE kind = 'charge'")


def lost_receipts(deployment: Deployment) -> None:
    for node in folders(deployment)[:3]:
        shutil.rmtree(node / RECEIPTS)


def other_ledger(deployment: Deployment) -> None:
    server_ledger(deployment).unlink()
    Ledger.create(server_ledger(deployment), NAME, AMPLE)


def altered_ledger(deployment: Deployment) -> None:
    edit(server_ledger(deployment), "UPDATE line SET body = replace(body, 'vote', 'note')")


def two_sessions(deployment: Deployment) -> None:
    """A node signs that it was asked a second time under the same line."""
    node = folders(deployment)[0]
    (receipt,) = read_receipts([node / RECEIPTS]).values()
    assert receipt is not None
    other = msgspec.structs.replace(receipt, session="ab" * 32)
    signature = read_key(node / "node.key").sign(other.text).hex()
    msgspec.structs.replace(other, signature=signature).keep(node / RECEIPTS)


FORGERIES: dict[str, tuple[Callable[[Deployment], None], str]] = {
    "a node's charge is gone": (lost_charge, "clinic-0 signed 1 receipts for 0 lines"),
    "receipts are gone": (lost_receipts, "5 clients are in a sum, 2 signed for it"),
    "another ledger": (other_ledger, "a sum was opened whose line the ledger does not hold"),
    "more sums than lines": (other_ledger, "1 sums were opened and 0 lines charged"),
    "an altered line": (altered_ledger, "tacit ledger verify ended with 1"),
    "one line, two sessions": (two_sessions, "a line was asked by 2 sessions"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_the_look_at_the_books_finds(name: str, voted: Deployment) -> None:
    forge, finding = FORGERIES[name]
    forge(voted)
    found = problems_in_books(voted, voted.folder / "nodes" / "roster.toml")
    assert any(finding in problem for problem in found), found


def test_a_kind_that_there_is_not_is_refused() -> None:
    done = CliRunner().invoke(app, ["--only", "superlink,flood"])
    assert done.exit_code == 2
    assert "--only names 'flood'; allowed are superlink, " in done.output


@pytest.mark.slow
def test_one_trial_of_each_kind() -> None:
    trials = list(played(list(CAMPAIGNS), 1, seed=1))
    assert [trial.failure for trial in trials] == [""] * len(CAMPAIGNS), trials
    rows = table_of(trials)["campaigns"]
    assert [(row["campaign"], row["trials"]) for row in rows] == [(name, 1) for name in CAMPAIGNS]
    assert {trial.campaign for trial in trials if trial.ended != RESULT} == {"failure"}


@pytest.mark.slow
def test_nothing_runs_on_after_a_failure(tmp_path: Path) -> None:
    seen: list[Deployment] = []

    def fail() -> None:
        with deployed(tmp_path / "deployment", nodes=2, dropout=0) as deployment:
            assert len(deployment.processes()) >= 3
            seen.append(deployment)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen[0].processes() == []
