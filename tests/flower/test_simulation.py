"""Plans and projects on Flower's own simulation: Ray, a SuperLink, processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.flower.processes import run_app, simulated_nodes, simulating_superlink
from tests.command_line import document, refusal, tacit

SMALL = (
    "task.score_epochs=2",
    "task.train_rounds=1",
    "search.candidates=8",
    "search.votes=2",
    "privacy.epsilon=8",
)


def changes(*more: str) -> list[str]:
    keys = ("federation.engine=flower-simulation", *SMALL, *more)
    return [part for key in keys for part in ("--set", key)]


def check(tmp_path: Path, clients: int) -> None:
    out = tmp_path / "run"
    found = document(
        tacit("tune", *changes(f"federation.clients={clients}"), "--out", out, "--json")
    )
    assert found["clients"]["answered"] == clients
    assert 0 < found["privacy"]["epsilon"] <= 8
    assert "a simulation on Flower" in found["privacy"]["setting"]
    assert "may deviate from the protocol" in found["privacy"]["server"]
    assert found["accuracy"] is not None
    assert (out / "report.html").exists()
    books = document(
        tacit(
            "ledger",
            "verify",
            out / "ledger.sqlite",
            "--receipts",
            out / "members",
            "--roster",
            out / "members" / "client-0000" / "roster.toml",
            "--json",
        )
    )
    assert books["verified"]
    votes = 1 if found["run_off"] is None else 2
    assert books["receipts"]["checked"] == votes * clients


def test_a_plan_runs_on_flowers_simulation(tmp_path: Path) -> None:
    check(tmp_path, clients=4)


@pytest.mark.slow
def test_a_method_that_trains_runs_and_goes_on_over_flower(tmp_path: Path) -> None:
    out = tmp_path / "run"
    terms = (
        *("search.method=bandit", "search.mode=dp", "search.candidates=4", "task.train_epochs=1"),
        *("rounds.phases=1", "rounds.rewards=1", "rounds.drawn=2", "task.train_rounds=2"),
    )
    done = tacit("tune", *changes(*terms, "federation.clients=4"), "--out", out, "--json")
    found = document(done)
    assert [note["what"] for note in found["rounds"]] == ["rewards", "training", "training"]
    assert "ε so far" in done.stderr
    assert 0 < found["privacy"]["epsilon"] <= 8
    assert "training of the model" in found["privacy"]["covers"]
    again = document(tacit("tune", "--resume", out, "--json"))
    assert again["privacy"]["epsilon"] == found["privacy"]["epsilon"]
    assert again["accuracy"] == found["accuracy"]
    assert [note["reward"] for note in again["rounds"]] == [n["reward"] for n in found["rounds"]]


@pytest.mark.slow
def test_fifty_clients(tmp_path: Path) -> None:
    check(tmp_path, clients=50)


def test_what_cannot_be_run_is_refused_before_flower_is_started(tmp_path: Path) -> None:
    plain = tacit("tune", *changes("federation.secure=plain"), "--out", tmp_path / "a", "--json")
    assert "federation.secure is 'plain'; allowed on Flower is 'masks' or 'encrypted'" in refusal(
        plain
    )
    many = tacit("tune", *changes("federation.clients=5000"), "--out", tmp_path / "b", "--json")
    assert "federation.clients is 5000" in refusal(many)
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_the_project_that_tacit_writes_tunes_and_then_trains(tmp_path: Path) -> None:
    project = tmp_path / "clinics"
    document(tacit("new", project, "--json"))
    settings = project / "pyproject.toml"
    text = settings.read_text().replace("rounds = 5", "rounds = 2").replace("= 1.0 ", "= 8.0 ")
    settings.write_text(text)
    said: list[str] = []
    home = tmp_path / "home"
    with simulating_superlink(home, TACIT_HOME=str(tmp_path / "tacit")):
        run_app(project, home, options=simulated_nodes(4), line=said.append)
    (result,) = (tmp_path / "tacit" / "runs").glob("*/result.json")
    found = json.loads(result.read_text())
    assert found["clients"]["answered"] == 4
    assert found["privacy"]["server"] == "honest-but-curious server"
    assert "num-examples" in found["privacy"]["covers"]
    assert not (tmp_path / "tacit" / "nodes").exists(), "simulated nodes end with their run"
    log = "\n".join(said)
    assert "tacit: evaluate: 4 of 4 nodes answered" in log
    assert "[ROUND 2/2]" in log
    assert f"{found['config']['learning_rate']}" in log, "FedAvg trains with what was chosen"
