from __future__ import annotations

from pathlib import Path

import pytest

from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger
from tests.command_line import document, refusal, tacit

VOTE = TopVotes(100, 5).release(variance=200.0)
BUDGET = ("--epsilon", 1, "--delta", "1e-5")


def created(path: Path, *options: object) -> Path:
    document(tacit("ledger", "create", path, "--federation", "h", *BUDGET, *options, "--json"))
    return path


def shown(*arguments: object) -> str:
    done = tacit("ledger", *arguments)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_show_says_which_epsilon_may_be_quoted_when(tmp_path: Path) -> None:
    path = created(tmp_path / "l.sqlite")
    assert "Nothing was charged yet" in shown("show", path)
    Ledger(path).charge(VOTE, label="vote", run="first")
    told = shown("show", path)
    assert "By distributions: ε = 0.8191 at δ = 1e-05. Quote it if the noise levels" in told
    assert "By the Rényi filter: ε = 1 at δ = 1e-05. Quote it if noise levels or" in told
    assert "ladder" not in told
    found = document(tacit("ledger", "show", path, "--json"))
    assert found["ladder"] == []
    assert found["quotes"]["distributions"]["epsilon"] == found["total"]["epsilon"]
    assert {name: quote["quotable"] for name, quote in found["quotes"].items()} == {
        "distributions": True,
        "filter": True,
    }
    assert " ".join(found["verdict"].split()) in told


def test_a_ladder_is_announced_climbed_and_left(tmp_path: Path) -> None:
    path = created(tmp_path / "l.sqlite", "--ladder", "1,2,4")
    assert "budgets of ε = 1, 2, 4" in shown("show", path)
    Ledger(path).charge(VOTE, label="vote", run="first")
    reason = ("--delta", "1e-5", "--reason", "the board")
    told = shown("amend", path, "--epsilon", 2, *reason)
    assert "The new budget is step 2 of the ladder" in told
    Ledger(path).charge(VOTE, label="vote", run="second")
    told = shown("show", path)
    assert "By the announced ladder: ε = 2 at δ = 1e-05. Quote it" in told
    assert "Quote epsilon 2 at delta 1e-05, by the ladder" in told
    found = document(tacit("ledger", "show", path, "--json"))
    assert [step["epsilon"] for step in found["ladder"]] == [1, 2, 4]
    assert sum(step["delta"] for step in found["ladder"]) == pytest.approx(1e-5)
    assert found["quotes"]["ladder"]["step"] == 2
    told = shown("amend", path, "--epsilon", 3, *reason)
    assert "The new budget is not on the ladder" in told
    assert "No number here may be quoted without a caveat" in told
    assert document(tacit("ledger", "verify", path, "--json"))["verified"]


@pytest.mark.parametrize(
    ("ladder", "found"),
    [
        ("1", "the ladder has 1 step(s)"),
        ("1,two", "--ladder is '1,two'; allowed are numbers with commas"),
        ("1,,2", "--ladder is '1,,2'; allowed are numbers with commas"),
        ("2,4", "the ladder begins with epsilon 2 and the budget is 1"),
        ("1,4,2", "epsilons are 1, 4, 2; each must be larger"),
        ("1,99", "epsilon is 99.0; allowed is 0.001 to 30"),
    ],
)
def test_what_is_no_ladder_is_refused_and_makes_no_ledger(
    tmp_path: Path, ladder: str, found: str
) -> None:
    path = tmp_path / "l.sqlite"
    flags = ("--federation", "h", *BUDGET, "--ladder", ladder)
    assert found in refusal(tacit("ledger", "create", path, *flags))
    assert not path.exists()
