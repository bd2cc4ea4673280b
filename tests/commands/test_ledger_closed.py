"""A line stops counting only with the word of every member, and an auditor can read that word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.closing import closed
from tacit.federation import CLOSE
from tacit.membership import Membership
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.secure.roster import Identity, Roster
from tests.command_line import document, refusal, tacit
from tests.test_closing import killed_run

MEMBERS = 5


def write_roster(path: Path, roster: Roster) -> Path:
    names = tuple(f"client-{number}" for number in range(len(roster.keys)))
    path.write_text(Membership("clinics", names, roster, Participation(len(names)), 0.0).to_toml())
    return path


def verify(folder: Path, *more: object) -> tuple[int, dict[str, Any]]:
    done = tacit("ledger", "verify", folder / "ledger.sqlite", *more, "--json")
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Path, str, list[Identity], Roster]:
    """A ledger with one charge whose session was asked and never sealed, and who was asked."""
    resumed, network = killed_run(tmp_path, "share")
    (charge,) = resumed.ledger.charges()
    identities = [endpoint.identity for endpoint in network.endpoints]
    assert resumed.roster is not None
    write_roster(tmp_path / "roster.toml", resumed.roster)
    return tmp_path, charge.session, [one for one in identities if one], resumed.roster


def test_what_the_members_signed_is_checked(tmp_path: Path) -> None:
    resumed, _ = killed_run(tmp_path, "share")
    assert resumed.roster is not None
    roster = write_roster(tmp_path / "roster.toml", resumed.roster)
    assert verify(tmp_path, "--roster", roster) == (
        0,
        {"verified": True, "charges": 1, "problems": []},
    )
    assert resumed.settle() == 1
    assert CLOSE in resumed.costs
    assert verify(tmp_path, "--roster", roster) == (
        0,
        {
            "verified": True,
            "charges": 1,
            "problems": [],
            "closed": [{"number": 2, "problem": ""}],
        },
    )
    shown = tacit("ledger", "verify", tmp_path / "ledger.sqlite", "--roster", roster)
    assert shown.stdout.splitlines() == [
        "1 charge(s) recomputed: all agree.",
        "1 closed line(s) checked: all agree.",
    ]


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda signed: dict(list(signed.items())[:-1]), "signature of client 4: it"),
        (lambda signed: {**signed, "1": signed["0"]}, "signature of client 1: it"),
        (lambda _: {}, "signature of client 0, 1, 2, 3, 4: it"),
        (lambda signed: {**signed, "0": "no hex"}, "evidence that cannot be read"),
        (lambda signed: {**signed, "nobody": signed["0"]}, "evidence that cannot be read"),
        (lambda signed: list(signed), "evidence that cannot be read"),
        (lambda _: None, "evidence that cannot be read"),
    ],
)
def test_a_server_that_closes_a_line_on_its_own_word_is_found(
    asked: tuple[Path, str, list[Identity], Roster], forge: Any, said: str
) -> None:
    """The attack: a server that wants its epsilon back writes a line that the ledger accepts."""
    folder, session, identities, roster = asked
    signed = {
        str(client): closed(one, roster, client, bytes.fromhex(session)).hex()
        for client, one in enumerate(identities)
    }
    Ledger(folder / "ledger.sqlite").close(session, {"signatures": forge(signed)})
    assert Ledger(folder / "ledger.sqlite").total().epsilon == 0
    assert verify(folder)[0] == 0, "alone it cannot know: it has no keys"
    code, found = verify(folder, "--roster", folder / "roster.toml")
    assert (code, found["verified"], found["problems"]) == (1, False, [])
    (line,) = found["closed"]
    assert said in line["problem"]
    shown = tacit("ledger", "verify", folder / "ledger.sqlite", "--roster", folder / "roster.toml")
    assert shown.returncode == 1
    assert "1 closed line(s) checked: 1 problem(s) found." in shown.stdout


def test_signatures_of_another_session_close_nothing(
    asked: tuple[Path, str, list[Identity], Roster],
) -> None:
    folder, session, identities, roster = asked
    signed = {
        str(client): closed(one, roster, client, bytes(32)).hex()
        for client, one in enumerate(identities)
    }
    Ledger(folder / "ledger.sqlite").close(session, {"signatures": signed})
    assert verify(folder, "--roster", folder / "roster.toml")[0] == 1


def test_a_line_that_another_roster_closed_is_checked_only_with_that_one(tmp_path: Path) -> None:
    """A server could invent members who sign whatever it likes."""
    resumed, _ = killed_run(tmp_path, "share")
    resumed.settle()
    assert resumed.roster is not None
    before = write_roster(tmp_path / "before.toml", resumed.roster)
    other = Roster(tuple(Identity.new().public_key for _ in range(MEMBERS)))
    now = write_roster(tmp_path / "now.toml", other)
    code, found = verify(tmp_path, "--roster", now)
    assert (code, found["verified"]) == (1, False)
    assert "closed by members of another roster" in found["closed"][0]["problem"]
    code, found = verify(tmp_path, "--roster", now, "--roster", before)
    assert (code, found["closed"]) == (0, [{"number": 2, "problem": ""}])


def test_a_line_closed_without_a_roster_is_a_problem(tmp_path: Path) -> None:
    resumed, _ = killed_run(tmp_path, "share", roster=False)
    (charge,) = resumed.ledger.charges()
    resumed.ledger.close(charge.session, {"signatures": {}})
    some = Roster(tuple(Identity.new().public_key for _ in range(MEMBERS)))
    code, found = verify(tmp_path, "--roster", write_roster(tmp_path / "some.toml", some))
    assert code == 1
    assert "without a roster" in found["closed"][0]["problem"]


def test_a_damaged_ledger_with_closed_lines_and_a_missing_roster(tmp_path: Path) -> None:
    resumed, _ = killed_run(tmp_path, "share")
    resumed.settle()
    ledger = tmp_path / "ledger.sqlite"
    assert "no roster at" in refusal(tacit("ledger", "verify", ledger, "--roster", tmp_path))
    listed = document(tacit("ledger", "show", ledger, "--json"))["charges"]
    assert [line["state"] for line in listed] == ["closed"]
