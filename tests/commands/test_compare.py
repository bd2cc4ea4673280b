from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import document, refusal, tacit
from tests.test_compare import TINY

SMALL = tuple(part for change in TINY for part in ("--set", change))


def test_a_comparison_prints_one_table_and_leaves_a_page(tmp_path: Path) -> None:
    asked = ("compare", *SMALL, "--methods", "vote-published,opt,feathers", "--out", "c")
    done = tacit(*asked, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    told = " ".join(done.stdout.split())
    assert "vote-published" in told
    assert "opt" in told
    assert "infinite" in told
    assert "feathers: task.network is 'dense'" in told
    assert "epsilons are per method" in told
    assert "if the clients were real" in told
    found = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [row["method"] for row in found["rows"]] == ["vote-published", "opt"]
    assert "vote-published" in (tmp_path / "c" / "compare.html").read_text()
    again = document(tacit(*asked, "--json", folder=tmp_path))  # all of it from the journal
    assert again["rows"] == found["rows"]


def test_a_quick_comparison_on_a_table(tmp_path: Path) -> None:
    asked = ("--table", "digits-iid-n50", "--methods", "vote-published,opt", "--quick")
    found = document(tacit("compare", *asked, "--epsilon", 2, "--json", folder=tmp_path))
    assert found["budget"] == {"epsilon": 2.0, "delta": 1e-5}
    assert len(found["seeds"]) == 3
    (folder,) = (tmp_path / "tacit-runs").iterdir()
    assert folder.name.endswith("-compare")
    assert document(tacit("runs", "list", "--json", folder=tmp_path))["unreadable"] == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--methods", "votes"), "--methods has 'votes'; allowed are vote, vote-published"),
        (
            ("--table", "digits"),
            "no table 'digits'; allowed are a file, or a name that `tacit tables list`",
        ),
        (("--table", "digits-iid-n50", "--set", "search.votes=3"), "--table with --set"),
        (("--epsilon", "2"), "a plan, which says both, with --epsilon"),
        (("--seeds", "0"), "--seeds is 0; allowed is 1 and above"),
        (("--set", "federation.engine=flower-simulation"), "On real clients"),
        (("plan.toml",), "plan.toml"),
    ],
)
def test_wrong_input_is_said(asked: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refusal(tacit("compare", *asked, folder=tmp_path))
