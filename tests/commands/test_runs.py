from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import optuna
import pytest

from tacit.job import run as carry_out
from tacit.plan import load_plan
from tacit.result_files import read_result
from tacit.runs import named_run
from tacit.studies import export
from tests.command_line import document, refusal, tacit

TINY = (
    "federation.clients=8",
    "search.candidates=6",
    "search.ballot=published",
    "search.votes=2",
    "task.score_epochs=1",
    "task.train_rounds=1",
    "task.train_epochs=1",
    "task.hidden=[]",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "vote"
    carry_out(load_plan(None, TINY), folder, lambda *_: None, lambda _: None)
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A folder in which somebody works, with one run in it."""
    shutil.copytree(finished, tmp_path / "tacit-runs" / "vote")
    return tmp_path


def without_result(folder: Path) -> None:
    """As a kill leaves a run before its result is written."""
    for name in ("result.json", "ledger.json", "report.html", "model.npz"):
        (folder / name).unlink()


def journal(folder: Path) -> Path:
    (found,) = folder.glob("journal-*.jsonl")
    return found


def test_the_list_tells_states_choices_and_costs(place: Path) -> None:
    again = place / "tacit-runs" / "deeper" / "killed"
    shutil.copytree(place / "tacit-runs" / "vote", again)
    without_result(again)
    found = document(tacit("runs", "list", "--json", folder=place))["runs"]
    rows = {Path(row["folder"]).name: row for row in found}
    assert {name: row["state"] for name, row in rows.items()} == {
        "vote": "finished",
        "killed": "unfinished",
    }
    assert 0.9 < rows["vote"]["epsilon"] <= 1
    assert set(rows["vote"]["config"]) == {"learning_rate", "decay", "momentum"}
    assert rows["killed"]["accuracy"] is None
    told = tacit("runs", "list", "tacit-runs/deeper", folder=place).stdout
    assert "unfinished" in told
    assert "\x1b" not in told


def test_an_empty_place_says_how_to_begin(tmp_path: Path) -> None:
    assert "tacit tune" in tacit("runs", "list", folder=tmp_path).stdout
    assert document(tacit("runs", "list", "--json", folder=tmp_path))["runs"] == []


def test_a_choice_without_its_training_is_unfinished(place: Path) -> None:
    path = place / "tacit-runs" / "vote" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": None}))
    shown = document(tacit("runs", "show", "vote", "--json", folder=place))
    assert shown["state"] == "unfinished"
    assert shown["result"]["config"] == shown["config"]


def test_showing_tells_plan_and_result(place: Path) -> None:
    shown = document(tacit("runs", "show", "tacit-runs/vote", "--json", folder=place))
    assert shown["plan"]["search"]["votes"] == 2
    assert shown["opened"] == 1
    told = tacit("runs", "show", "vote", folder=place).stdout
    assert "finished" in told
    assert "Go on with" not in told


def test_a_tally_in_the_journal_is_not_charged_again(place: Path) -> None:
    folder = place / "tacit-runs" / "vote"
    before = json.loads((folder / "result.json").read_text())
    without_result(folder)
    done = tacit("runs", "resume", "vote", "--json", folder=place)
    assert "Going on charges nothing more" in done.stderr
    assert document(done)["config"] == before["config"]
    assert document(done)["accuracy"] == before["accuracy"]
    assert len(json.loads((folder / "ledger.json").read_text())["lines"]) == 1


def test_what_is_missing_is_announced_and_refused_beyond_the_budget(place: Path) -> None:
    folder = place / "tacit-runs" / "vote"
    without_result(folder)
    kept = journal(folder).read_text().splitlines(keepends=True)[0]
    journal(folder).write_text(kept)  # the vote was charged, and never opened
    done = tacit("runs", "resume", "vote", folder=place)
    assert done.returncode == 2
    assert "at most 1 more question(s) and charges for them" in done.stdout
    assert "The ledger has less left" in done.stdout
    assert "would bring epsilon to" in done.stderr
    shown = document(tacit("runs", "show", "vote", "--json", folder=place))
    assert shown["state"] == "refused"
    assert shown["why"] in done.stderr
    amended = ("--epsilon", 3, "--delta", "1e-5", "--reason", "a test")
    assert tacit("ledger", "amend", folder / "ledger.sqlite", *amended).returncode == 0
    allowed = tacit("tune", "--resume", folder, "--json")
    assert "The ledger has less left" not in allowed.stderr
    assert document(allowed)["accuracy"] is not None
    assert document(tacit("runs", "show", folder, "--json"))["state"] == "finished"


def test_a_finished_run_is_left_alone(place: Path) -> None:
    folder = place / "tacit-runs" / "vote"
    before = (folder / "result.json").read_bytes(), (folder / "ledger.sqlite").read_bytes()
    done = tacit("runs", "resume", "vote", "--json", folder=place)
    assert "finished already" in done.stderr
    assert document(done)["privacy"]["epsilon"] <= 1
    assert (
        (folder / "result.json").read_bytes(),
        (folder / "ledger.sqlite").read_bytes(),
    ) == before


def test_comparing_shows_what_differs(place: Path) -> None:
    other = place / "tacit-runs" / "other"
    shutil.copytree(place / "tacit-runs" / "vote", other)
    text = (other / "plan.toml").read_text()
    (other / "plan.toml").write_text(text.replace("seed = 1", "seed = 2"))
    path = other / "result.json"
    changed = {**json.loads(path.read_text()), "accuracy": 0.125}
    changed["config"] = {**changed["config"], "momentum": 0.5}
    path.write_text(json.dumps(changed))
    found = document(tacit("runs", "compare", "vote", "other", "--json", folder=place))
    assert found["plan"] == {"search.seed": [1, 2]}
    assert list(found["config"]) == ["momentum"]
    assert found["accuracy"][1] == 0.125
    assert found["bytes"][0] == found["bytes"][1] > 0
    assert found["exchanges"][0] >= 3  # two stages of the secure sum and a round of training
    told = tacit("runs", "compare", "vote", "other", folder=place).stdout
    assert "search.seed" in told
    assert "12.5 %" in told
    done = tacit("runs", "compare", "vote", "other", "--page", "both.html", folder=place)
    assert "2 runs compared" in (place / "both.html").read_text()
    assert done.returncode == 0


def test_the_tally_becomes_a_study_that_says_what_its_values_are(place: Path) -> None:
    storage = f"sqlite:///{place}/study.db"
    written = document(
        tacit("runs", "export", "vote", "--storage", storage, "--name", "s", "--json", folder=place)
    )
    study = optuna.load_study(study_name="s", storage=storage)
    result = json.loads((place / "tacit-runs" / "vote" / "result.json").read_text())
    assert written["trials"] == len(study.trials) == 6
    assert [trial.value for trial in study.trials] == result["tally"]
    (chosen,) = (trial for trial in study.trials if trial.user_attrs["chosen"])
    assert chosen.params == result["config"]
    assert "noisy votes" in study.user_attrs["values"]
    again = tacit("runs", "export", "vote", "--storage", storage, "--name", "s", folder=place)
    assert "allowed is another --name" in refusal(again)
    nowhere = tacit("runs", "export", "vote", "--storage", "nowhere://x", folder=place)
    assert "such as sqlite:///study.db" in refusal(nowhere)


def test_without_a_tally_there_is_nothing_to_export(place: Path) -> None:
    path = place / "tacit-runs" / "vote" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tally": None}))
    said = refusal(tacit("runs", "export", "vote", "--storage", "sqlite:///s.db", folder=place))
    assert "released no tally" in said


def test_without_optuna_the_extra_is_named(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'tacit\[optuna\]'"):
        export(named_run(str(finished)), "sqlite:///s.db", "s")


def test_no_such_run_names_the_nearest(place: Path) -> None:
    assert "did you mean vote?" in refusal(tacit("runs", "show", "votes", folder=place))
    (place / "tacit-runs" / "empty").mkdir()
    said = refusal(tacit("runs", "show", "empty", folder=place))
    assert "holds no run (plan.toml is missing)" in said
    assert "is no folder" in refusal(tacit("runs", "list", "nowhere", folder=place))


@pytest.mark.parametrize(
    "abstentions",
    [1.5, [7], ["text"], [{"vote": "vote"}], [{"vote": "vote", "answered": -1}], {"vote": 1}],
)
def test_counts_of_abstentions_that_cannot_be_are_a_sentence(
    place: Path, abstentions: object
) -> None:
    """They were a traceback: the rest of a result was checked, and they were not."""
    path = place / "tacit-runs" / "vote" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "abstentions": abstentions}))
    with pytest.raises(ValueError, match="cannot be read as the result of a run"):
        read_result(path.parent)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("journal", "neither JSON nor a piece\n", "cannot be read: a journal has one finished"),
        ("result.json", "{}", "cannot be read as the result of a run"),
        ("plan.toml", "[search]\nvote = 3\n", "search.vote is not a key"),
    ],
)
def test_a_damaged_run_is_named_and_does_not_hide_the_others(
    place: Path, name: str, text: str, said: str
) -> None:
    damaged = place / "tacit-runs" / "damaged"
    shutil.copytree(place / "tacit-runs" / "vote", damaged)
    path = journal(damaged) if name == "journal" else damaged / name
    path.write_text(text)
    assert said in refusal(tacit("runs", "show", "damaged", folder=place))
    listed = document(tacit("runs", "list", "--json", folder=place))
    assert [Path(row["folder"]).name for row in listed["runs"]] == ["vote"]
    assert said in listed["unreadable"][0]["why"]
    assert path.read_text() == text  # reading repairs nothing


def test_a_line_cut_short_by_a_kill_is_no_damage(place: Path) -> None:
    folder = place / "tacit-runs" / "vote"
    with journal(folder).open("a") as file:
        file.write('[1, {"asks": "ab')
    text = journal(folder).read_text()
    assert document(tacit("runs", "show", "vote", "--json", folder=place))["opened"] == 1
    assert journal(folder).read_text() == text
