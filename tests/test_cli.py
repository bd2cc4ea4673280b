from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger, LedgerError
from tests.command_line import document, tacit
from tests.forgeries import chained_anew, edit

PLAN = {"clients": 50, "candidates": 100, "votes": 5, "epsilon": 1, "delta": "1e-5"}


def plan(**changes: object) -> subprocess.CompletedProcess[str]:
    options = {**PLAN, **changes}
    flags = [part for key, value in options.items() for part in (f"--{key}", value)]
    return tacit("plan", *flags, "--json")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.create(tmp_path / "l.sqlite", "hospitals", Budget(2.0, 1e-5))
    ledger.charge(TopVotes(100, 5).release(139.0), label="vote", run="first")
    return ledger


def test_plan_prints_the_promised_json() -> None:
    found = document(plan())
    assert set(found["noise"]) == {
        "mechanism",
        "required_variance",
        "delivered_variance",
        "share_variance",
        "sigma",
    }
    assert set(found["published"]) == set(found["exact_gaussian"]) == {"sigma", "variance"}
    assert {
        "success",
        "success_bound",
        "recommended_votes",
        "threshold",
        "bytes_per_client",
    } <= set(found)
    assert found["privacy"]["relation"] == "replace-one"
    assert found["noise"]["required_variance"] == pytest.approx(139.0, rel=5e-3)


def test_plan_speaks_plainly_and_warns_where_the_chance_is_poor() -> None:
    flags = [part for key, value in PLAN.items() for part in (f"--{key}", value)]
    fine = tacit("plan", *flags)
    poor = tacit("plan", *flags, "--clients", 10)
    assert fine.returncode == poor.returncode == 0
    assert "44 honest clients suffice" in fine.stdout
    assert "Warning" not in fine.stdout
    assert "Warning" in poor.stdout


def test_without_a_number_of_votes_the_planner_chooses_and_says_why() -> None:
    flags = [p for key, value in PLAN.items() if key != "votes" for p in (f"--{key}", value)]
    told = " ".join(tacit("plan", *flags).stdout.split())
    found = document(tacit("plan", *flags, "--json"))
    assert found["why"] in told
    assert f"rank {found['vote']['votes']}" in told
    assert found["loss"] < found["published"]
    poor = " ".join(tacit("plan", *flags, "--clients", 10).stdout.split())
    assert "have more clients, a larger epsilon or fewer candidates" in poor
    assert "--candidates is missing" in tacit("plan", *flags[4:], "--clients", 50).stderr


@pytest.mark.parametrize(
    ("changes", "value", "allowed"),
    [
        ({"votes": 100}, "100", "1 to 99"),
        ({"votes": 0}, "0", "1 to 99"),
        ({"votes": "five"}, "five", "whole number"),
        ({"candidates": 1}, "1", "2 to"),
        ({"clients": 1}, "1", "2 to 10000000"),
        ({"clients": -5}, "-5", "2 to 10000000"),
        ({"clients": 10**400}, "10000", "2 to 10000000"),
        ({"epsilon": 0}, "0.0", "0.001 to 30"),
        ({"epsilon": "nan"}, "nan", "0.001 to 30"),
        ({"epsilon": "much"}, "much", "a number"),
        ({"delta": 0}, "0.0", "1e-10 to 0.1"),
        ({"delta": 1}, "1.0", "1e-10 to 0.1"),
        ({"dropout": 1.0}, "1.0", "fraction of them from 0"),
        ({"dropout": 50}, "50", "fewer than the clients"),
        ({"colluding": -0.1}, "-0.1", "fraction of them from 0"),
        ({"colluding": "some"}, "some", "a count of clients"),
        ({"dropout": 0.6, "colluding": 0.5}, "25 may know", "fewer than the clients"),
        ({"good": 0}, "0", "1 to 99"),
        ({"good": 100}, "100", "1 to 99"),
        (
            {"epsilon": 0.001, "candidates": 10**6, "votes": 10**5},
            "variance",
            "serves up to 8.59e+09",
        ),
    ],
)
def test_bad_input_names_value_and_range(
    changes: dict[str, object], value: str, allowed: str
) -> None:
    done = plan(**changes)
    assert done.returncode == 2
    assert done.stdout == ""
    assert value in done.stderr
    assert allowed in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_ledger_is_created_shown_amended_and_verified(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "l.sqlite"
    budget = ("--epsilon", 2, "--delta", 1e-5)
    made = document(tacit("ledger", "create", path, "--federation", "h", *budget, "--json"))
    assert made["charges"] == []
    Ledger(path).charge(TopVotes(100, 5).release(139.0), label="vote", run="first")
    shown = document(tacit("ledger", "show", path, "--json"))
    assert shown["charges"][0]["label"] == "vote"
    assert shown["total"]["epsilon"] == pytest.approx(1.0, abs=0.01)
    assert (shown["total"]["unit"], shown["total"]["relation"]) == ("client", "replace-one")
    more = ("--epsilon", 3, "--delta", 1e-5, "--reason", "officer agreed")
    assert document(tacit("ledger", "amend", path, *more, "--json"))["budget"]["epsilon"] == 3
    verified = document(tacit("ledger", "verify", path, "--json"))
    assert verified == {"verified": True, "charges": 1, "problems": []}


def test_ledger_reads_well_in_a_terminal(ledger: Ledger) -> None:
    shown = tacit("ledger", "show", ledger.path)
    assert "first" in shown.stdout
    assert "of 2 at δ = 1e-05" in shown.stdout
    assert "all agree" in tacit("ledger", "verify", ledger.path).stdout


def test_verify_fails_on_a_forged_ledger(ledger: Ledger) -> None:
    edit(ledger.path, "UPDATE line SET body = replace(body, '139.0', '13900.0') WHERE number = 2")
    done = tacit("ledger", "verify", ledger.path, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["verified"]
    assert any("recomputed" in problem["found"] for problem in found["problems"])


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_missing_ledger_is_not_made_by_looking(tmp_path: Path, command: str) -> None:
    path = tmp_path / "none.sqlite"
    done = tacit("ledger", command, path)
    assert done.returncode == 2
    assert f"no ledger at {path}" in done.stderr
    assert not path.exists()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("body", ["{}", "[]", "7", "no JSON", '{"epsilon": "x", "delta": 1}'])
def test_a_damaged_line_is_reported_not_a_traceback(ledger: Ledger, number: int, body: str) -> None:
    edit(ledger.path, f"UPDATE line SET body = '{body}' WHERE number = {number}")
    chained_anew(ledger.path)
    shown = tacit("ledger", "show", ledger.path)
    verified = tacit("ledger", "verify", ledger.path)
    assert (shown.returncode, verified.returncode) == (2, 1)
    assert f"line {number} cannot be read" in shown.stderr
    assert f"line {number}: the line cannot be read" in verified.stdout
    with pytest.raises(LedgerError, match="nothing is spent from a damaged ledger"):
        ledger.charge(TopVotes(100, 5).release(1e6), label="vote", run="second")


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "ledger",
            "create",
            "/dev/null/l.sqlite",
            "--federation",
            "h",
            "--epsilon",
            1,
            "--delta",
            1e-5,
        ),
        ("bench", "votes", "--repetitions", 1, "--out", "/dev/null/x"),
    ],
)
def test_an_impossible_folder_is_reported_not_a_traceback(arguments: tuple[object, ...]) -> None:
    done = tacit(*arguments)
    assert done.returncode == 2
    assert "/dev/null" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert tacit("--version").stdout.startswith("tacit 0.")
    assert "Example: tacit plan" in tacit("plan", "--help").stdout


def test_bench_votes_writes_json_and_plot(tmp_path: Path) -> None:
    out = tmp_path / "bench"
    found = document(tacit("bench", "votes", "--repetitions", 60, "--out", out, "--json"))
    assert found["repetitions"] == 60
    assert json.loads((out / "votes.json").read_text())["points"] == found["points"]
    page = (out / "votes.html").read_text()
    assert "Theorem V.1" in page
    assert "tacit bench votes --repetitions 60 --out bench --json" in page
    assert str(tmp_path) not in page
    assert found["versions"]["tacit"] in page
    assert 'src="http' not in page
    assert sorted(path.name[:7] for path in out.iterdir()) == ["journal", "votes.h", "votes.j"]
    wrong = tacit("bench", "votes", "--repetitions", 0, "--out", out)
    both = tacit("bench", "votes", "--repetitions", 7, "--quick", "--out", out)
    assert wrong.returncode == both.returncode == 2
    assert "repetitions is 0" in wrong.stderr
    assert "--quick and --repetitions 7; allowed is one" in both.stderr


SMALL = (
    *("--set", "federation.clients=12"),
    *("--set", "search.candidates=12"),
    *("--set", "search.votes=2"),
    *("--set", "task.score_epochs=2"),
    *("--set", "task.train_rounds=2"),
)


def test_tune_fills_its_folder_and_prints_the_promised_json(tmp_path: Path) -> None:
    done = tacit("tune", *SMALL, "--out", tmp_path / "run", "--json", "--seed", 7)
    found = document(done)
    assert done.stderr == ""
    assert found == json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["method"] == "vote"
    assert found["config"] in found["candidates"]
    assert len(found["tally"]) == len(found["candidates"]) == 12
    assert found["clients"] == {"planned": 12, "asked": 12, "answered": 12, "dropped": 0}
    assert 0 < found["privacy"]["epsilon"] <= 1
    assert {"delta", "unit", "relation", "mechanism", "required_variance"} < set(found["privacy"])
    assert {"delivered_variance", "dropout", "colluding", "accounting"} < set(found["privacy"])
    for words in ("choice of hyperparameters", "public test split", "must not depend on the data"):
        assert words in found["privacy"]["covers"]
    assert 0 <= found["accuracy"] <= 1
    stages = {"evaluate", "share", "deliver", "seal", "confirm", "open", "train"}
    assert stages == set(found["seconds"])
    plan = tomllib.loads((tmp_path / "run" / "plan.toml").read_text())
    assert plan["search"]["seed"] == 7
    assert plan["federation"]["clients"] == 12
    extract = json.loads((tmp_path / "run" / "ledger.json").read_text())
    labels = [line["label"] for line in extract["lines"]]
    assert labels == (["vote", "run-off"] if found["run_off"] else ["vote"])
    assert plan["search"]["ballot"] in ("published", "borda")
    assert "</html>" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "model.npz").exists()

    again = tacit("tune", tmp_path / "run" / "plan.toml", "--out", tmp_path / "second", "--json")
    assert document(again)["candidates"] == found["candidates"]
    taken = tacit("tune", *SMALL, "--out", tmp_path / "run")
    assert taken.returncode == 2
    assert "holds a run already" in taken.stderr


def test_tune_tells_people_what_was_chosen_and_what_it_cost(tmp_path: Path) -> None:
    done = tacit("tune", *SMALL, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    for words in ("Chosen", "learning_rate = ", "12 answered", "ε = ", "Accuracy", "report.html"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "search.vote=3"), "search.vote is not a key; allowed are"),
        (("--set", "privacy.epsilon=0"), "privacy.epsilon is 0; allowed is a number"),
        (("--set", "federation.clients=500"), "500"),
        (("--set", "search.method=opt"), "sends answers in clear"),
        (("--seed", "x"), "found 'x'; allowed is a whole number"),
        (("missing.toml",), "missing.toml"),
    ],
)
def test_tune_refuses_wrong_input_in_a_sentence(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = tacit("tune", *arguments, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def test_a_named_federation_cannot_spend_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "home"))
    more = ("federation.name=clinics", "task.train_rounds=0", "search.ballot=published")
    named = (*SMALL, *(part for change in more for part in ("--set", change)))
    assert tacit("tune", *named, "--out", tmp_path / "first").returncode == 0
    second = tacit("tune", *named, "--out", tmp_path / "second")
    assert second.returncode == 2
    assert "'vote' would bring epsilon to" in second.stderr


@pytest.mark.parametrize("method", ["random-guess", "opt", "combine", "flora"])
def test_baselines_run_and_say_what_they_cost(method: str, tmp_path: Path) -> None:
    found = document(
        tacit(
            *("tune", *SMALL, "--out", tmp_path / "run", "--json"),
            *("--set", f"search.method={method}", "--set", "privacy.epsilon=inf"),
            *("--set", "search.mode=clear"),
        )
    )
    assert found["method"] == method
    assert found["privacy"]["epsilon"] == (0 if method == "random-guess" else "inf")
    assert found["tally"] is None
    assert 0 <= found["accuracy"] <= 1


def test_plan_prints_the_graph_of_the_secure_sum() -> None:
    for clients, dropout, degree in (
        (250, 0.1, 249),
        (300, 0.1, 98),
        (1000, 0.1, 158),
        (1000, 0.2, 214),
    ):
        assert document(plan(clients=clients, dropout=dropout))["degree"] == degree
    options = [
        part for key, value in {**PLAN, "clients": 1000}.items() for part in (f"--{key}", value)
    ]
    shown = " ".join(tacit("plan", *options).stdout.split())
    assert "158 neighbours a client (random graph), 105 of them recover a secret" in shown
