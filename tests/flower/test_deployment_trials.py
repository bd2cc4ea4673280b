"""What a deployment survives, and that the trials' look at the books finds what is wrong there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pytest
from typer.testing import CliRunner

from tacit.membership import LEDGER, RECEIPTS, read_key
from tacit.privacy.ledger import Ledger
from tacit.receipts import read_receipts
from tests.flower.clinics import AMPLE, NAME, Clinics
from tests.flower.deployment import Deployment, DeploymentFailed, deployed
from tests.forgeries import chained_anew, edit
from tools.deployment_trials import __main__ as trials
from tools.deployment_trials import campaigns
from tools.deployment_trials.__main__ import Trial, app, played, recorded, table_of
from tools.deployment_trials.books import evidence_of, problems_in_books, server_ledger
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


def unsealed(deployment: Deployment) -> None:
    """The server's ledger says that another session was sealed than the one that opened a sum."""
    other = f"json_set(body, '$.session', '{'cd' * 32}')"
    ledger = server_ledger(deployment)
    edit(ledger, f"UPDATE line SET body = {other} WHERE kind = 'sealing'")
    chained_anew(ledger)


def moved_aside(deployment: Deployment) -> None:
    """As the trial of a changed roster does before its second run."""
    for node in folders(deployment):
        shutil.move(node / RECEIPTS, node / "receipts-before")
    runs = deployment.folder / "server" / "runs"
    shutil.move(runs, runs.with_name("runs-before"))


def test_a_trial_looks_at_an_honest_history(voted: Deployment) -> None:
    scene = campaigns.Scene(voted, Random(1))
    scene.check_books(voted.folder / "nodes" / "roster.toml")
    moved_aside(voted)
    scene.check_books(voted.folder / "nodes" / "roster.toml")
    seen = evidence_of(voted)
    assert [len(seen.servers), len(seen.members), len(seen.runs), len(seen.receipts)] == [
        1,
        5,
        1,
        5,
    ]


@pytest.mark.parametrize("aside", [False, True])
def test_a_trial_finds_a_forged_history(aside: bool, voted: Deployment) -> None:
    if aside:
        moved_aside(voted)
    unsealed(voted)
    with pytest.raises(DeploymentFailed) as failed:
        campaigns.Scene(voted, Random(1)).check_books(voted.folder / "nodes" / "roster.toml")
    for what in (
        "a release in the session [0-9a-f]{8}, which no server sealed",
        "client-0-.*: its line did not pay for its session",
        "the sum 0 was opened, and its line is not sealed",
        "the result rests on no sealed line",
    ):
        assert re.search(what, str(failed.value)), (what, failed.value)


def test_a_kind_that_there_is_not_is_refused() -> None:
    done = CliRunner().invoke(app, ["--only", "superlink,flood"])
    assert done.exit_code == 2
    assert "--only names 'flood'; allowed are superlink, " in done.output


def test_trials_that_are_on_disk_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def play(name: str, seed: int, _deployment: object) -> Trial:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append((name, seed))
        return Trial(name, seed, RESULT, "", 1.0)

    monkeypatch.setattr(trials, "ready", nullcontext)
    monkeypatch.setattr(trials, "_played", play)
    out = tmp_path / "table.json"
    options = ["--only", "superlink,roster", "--trials", "2", "--seed", "7", "--out", str(out)]
    assert CliRunner().invoke(app, options).exit_code != 0
    first = asked.copy()
    assert [(trial.campaign, trial.seed) for trial in recorded(out)] == first
    asked.clear()
    done = CliRunner().invoke(app, options)
    assert (done.exit_code, asked) == (0, [("roster", 8)])
    assert first == [("superlink", 7), ("superlink", 8), ("roster", 7)]
    assert "superlink: 2 trial(s), 0 failure(s)\nroster: 2 trial(s), 0 failure(s)" in done.output


def test_only_a_run_that_must_fail_may_end_without_a_result() -> None:
    refused = [Trial(name, 1, "the budget is spent", "", 1.0) for name in CAMPAIGNS]
    failures = {row["campaign"]: row["failures"] for row in table_of(refused)["campaigns"]}
    assert failures == {name: int(name != "failure") for name in CAMPAIGNS}


def test_a_run_that_never_resumes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverDone:
        said, reason = "", "Run 1 did not complete (finished:failed): the nodes are gone"

        def wait(self, _seconds: float) -> int:
            return 1

    scene = campaigns.Scene(cast("Deployment", None), Random(1))
    monkeypatch.setattr(scene, "run", lambda **_: NeverDone())
    with pytest.raises(DeploymentFailed, match="no result after 3 attempts: the nodes are gone"):
        campaigns._finish(scene, scene.run(), "name")
    assert scene.events == ["the nodes are gone"] * 3


@pytest.mark.slow
def test_one_trial_of_each_kind() -> None:
    done = list(played(list(CAMPAIGNS), 1, seed=1))
    assert [trial.failure for trial in done] == [""] * len(CAMPAIGNS), done
    rows = table_of(done)["campaigns"]
    assert [(row["campaign"], row["trials"]) for row in rows] == [(name, 1) for name in CAMPAIGNS]
    assert {trial.campaign for trial in done if trial.ended != RESULT} == {"failure"}


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
