from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.membership import Membership
from tacit.privacy.mechanisms import Participation
from tests.command_line import document, refusal, tacit
from tests.forgeries import edit
from tests.test_receipts import CLIENTS, Held, held


@pytest.fixture
def audited(tmp_path: Path) -> Held:
    honest = held(tmp_path)
    names = tuple(f"client-{number}" for number in range(CLIENTS))
    roster = Membership("clinics", names, honest.roster, Participation(len(names)), 0.0)
    (tmp_path / "roster.toml").write_text(roster.to_toml())
    return honest


def flags(audited: Held) -> tuple[object, ...]:
    return "--roster", audited.ledger.with_name("roster.toml")


def test_verify_counts_the_receipts_of_each_line(audited: Held) -> None:
    verify = ("ledger", "verify", audited.ledger, *flags(audited))
    found = document(tacit(*verify, "--receipts", audited.receipts, "--json"))
    assert found == {
        "verified": True,
        "charges": 2,
        "problems": [],
        "receipts": {
            "checked": 2 * CLIENTS,
            "problems": [],
            "by_line": {"2": 5, "5": 5},
            "left_out": {},
        },
    }
    some = [part for file in audited.files()[:3] for part in ("--receipts", file)]
    found = document(tacit(*verify, *some, "--json"))["receipts"]
    assert found["checked"] == 3
    assert sum(found["by_line"].values()) == 3
    shown = tacit(*verify, "--receipts", audited.receipts)
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == [
        "2 charge(s) recomputed: all agree.",
        "line 2: 5 client(s) signed for it",
        "line 5: 5 client(s) signed for it",
        "10 receipt(s) checked: all agree.",
    ]


def test_verify_fails_on_a_ledger_without_its_newest_line(audited: Held) -> None:
    edit(audited.ledger, "DELETE FROM line WHERE number > 4")
    plain = ("ledger", "verify", audited.ledger)
    assert document(tacit(*plain, "--json"))["verified"], "alone it cannot know"
    verify = (*plain, *flags(audited), "--receipts", audited.receipts)
    done = tacit(*verify, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["verified"], found["problems"]) == (False, [])
    assert found["receipts"]["by_line"] == {"2": 5}
    assert len(found["receipts"]["problems"]) == CLIENTS
    for problem in found["receipts"]["problems"]:
        assert Path(problem["file"]) in audited.files()
        assert "has no such line" in problem["found"]
    shown = tacit(*verify)
    assert shown.returncode == 1
    assert "10 receipt(s) checked, 5 agree: 5 problem(s) found." in shown.stdout


def test_a_damaged_ledger_is_reported_with_its_receipts(audited: Held) -> None:
    edit(audited.ledger, "UPDATE line SET body = X'00' WHERE number = 2")
    done = tacit(
        "ledger", "verify", audited.ledger, *flags(audited), "--receipts", audited.receipts
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "line 2: the line was altered" in done.stdout
    assert "10 receipt(s) checked, 0 agree: 10 problem(s) found." in done.stdout


def test_receipts_need_a_roster(audited: Held, tmp_path: Path) -> None:
    verify = ("ledger", "verify", audited.ledger)
    alone = refusal(tacit(*verify, "--receipts", audited.receipts))
    assert "--receipts is given without --roster; both belong together" in alone
    missing = refusal(tacit(*verify, *flags(audited), "--receipts", tmp_path / "none"))
    assert f"no receipts at {tmp_path / 'none'}; allowed are" in missing
    (tmp_path / "empty").mkdir()
    nothing = refusal(tacit(*verify, *flags(audited), "--receipts", tmp_path / "empty"))
    assert f"there is no receipt in {tmp_path / 'empty'}" in nothing
    no_roster = refusal(tacit(*verify, "--roster", tmp_path, "--receipts", audited.receipts))
    assert "no roster at" in no_roster
