from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace as altered

from tacit.membership import Membership
from tacit.privacy.mechanisms import Participation
from tests.command_line import document, refusal, tacit
from tests.forgeries import edit
from tests.test_transcripts import CLIENTS, Voted, accused, voted
from tools.faults.recorded import spoiled


def with_roster(found: Voted) -> tuple[object, ...]:
    """The command that checks its ledger; the roster's file lies next to it."""
    ledger = found.federation.ledger.path
    names = tuple(f"client-{number}" for number in range(CLIENTS))
    planned = Participation(CLIENTS, dropout=2)
    roster = Membership("clinics", names, found.roster, planned, 0.0)
    (ledger.parent / "roster.toml").write_text(roster.to_toml())
    return "ledger", "verify", ledger, "--roster", ledger.parent / "roster.toml"


@pytest.fixture
def honest(tmp_path: Path) -> Voted:
    return voted(tmp_path)


def test_verify_adds_up_what_was_signed(honest: Voted) -> None:
    verify = with_roster(honest)
    found = document(tacit(*verify, "--transcript", honest.folder, "--json"))
    assert (found["verified"], found["charges"], found["problems"]) == (True, 2, [])
    first, second = honest.files()
    by_file = {one.pop("file"): one for one in found["transcripts"]}
    assert by_file == {
        str(file): {"line": line, "survivors": 5, "faults": [], "problem": "", "closed": False}
        for file, line in ((first, 2), (second, 5))
    }
    shown = tacit(*verify, "--transcript", first, "--transcript", second)
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == [
        "2 charge(s) recomputed: all agree.",
        "line 2: the vectors that 5 client(s) signed add up to the sum that was opened",
        "line 5: the vectors that 5 client(s) signed add up to the sum that was opened",
        "2 transcript(s) checked: all agree.",
    ]


def test_verify_fails_on_another_sum_than_was_signed(honest: Voted) -> None:
    record, _ = honest.records()
    altered(record, value=[9, *record.value[1:]]).keep(honest.folder, honest.files()[0].stem)
    verify = (*with_roster(honest), "--transcript", honest.folder)
    done = tacit(*verify, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["verified"], found["problems"]) == (False, [])
    problems = [one["problem"] for one in found["transcripts"] if one["problem"]]
    assert problems == ["the signed vectors add up to another sum than was recorded"]
    shown = tacit(*verify)
    assert shown.returncode == 1
    assert f"{honest.files()[0]}: the signed vectors add up to another sum" in shown.stdout
    assert "2 transcript(s) checked: 1 problem(s) found." in shown.stdout


def test_verify_fails_on_a_sum_that_nobody_paid_for(honest: Voted) -> None:
    edit(honest.federation.ledger.path, "DELETE FROM line WHERE number > 4")
    shown = tacit(*with_roster(honest), "--transcript", honest.folder)
    assert shown.returncode == 1
    assert "the ledger has no such line: it was removed or altered" in shown.stdout
    assert "2 transcript(s) checked: 1 problem(s) found." in shown.stdout


def test_verify_survives_any_file(honest: Voted) -> None:
    junk = honest.folder / "junk.transcript"
    record = honest.records()[0]
    for data in (b"", record.transcript):
        junk.write_bytes(data)
        done = tacit(*with_roster(honest), "--transcript", honest.folder)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert f"{junk}: the file is no transcript" in done.stdout
        assert "3 transcript(s) checked: 1 problem(s) found." in done.stdout


def test_verify_names_who_misbehaved(tmp_path: Path) -> None:
    found = accused(tmp_path)
    shown = tacit(*with_roster(found), "--transcript", found.folder)
    assert shown.returncode == 0, "the sum is right all the same"
    assert (
        "line 2: client 2 complained about a neighbour's shares without cause, as the transcript "
        "proves"
    ) in shown.stdout


def test_verify_names_who_spoiled_a_sum_that_stayed_closed(tmp_path: Path) -> None:
    played = spoiled(tmp_path)
    assert played.roster is not None
    found = Voted(played, tmp_path / "transcripts", played.roster)
    guilty = "client 2 shared another key than it advertised"
    shown = tacit(*with_roster(found), "--transcript", found.folder)
    assert (shown.returncode, shown.stdout.splitlines()) == (
        0,
        [
            "1 charge(s) recomputed: all agree.",
            "line 2: the sum stayed closed, so there is none to compute",
            f"line 2: {guilty}, as the transcript proves",
            "1 transcript(s) checked: all agree.",
        ],
    )
    (one,) = document(tacit(*with_roster(found), "--transcript", found.folder, "--json"))[
        "transcripts"
    ]
    assert (one["line"], one["faults"], one["closed"]) == (2, [guilty], True)


def test_transcripts_and_roster_belong_together(honest: Voted, tmp_path: Path) -> None:
    verify = with_roster(honest)
    alone = refusal(tacit(*verify[:3], "--transcript", honest.folder))
    assert "--transcript is given without --roster; both belong together" in alone
    missing = refusal(tacit(*verify, "--transcript", tmp_path / "none"))
    assert f"no transcripts at {tmp_path / 'none'}; allowed are" in missing
    (tmp_path / "empty").mkdir()
    nothing = refusal(tacit(*verify, "--transcript", tmp_path / "empty"))
    assert f"there is no transcript in {tmp_path / 'empty'}" in nothing
