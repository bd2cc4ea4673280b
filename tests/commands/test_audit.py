from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from tacit.audits.auditing import AUDITS, Finding, Point
from tacit.commands import audit as command
from tests.command_line import document, refusal, tacit


def test_an_audit_tells_claims_bounds_and_runs(tmp_path: Path) -> None:
    """Fails by chance with probability at most 1e-6."""
    options = ("audit", "vote", "--runs", 5_000, "--epsilon", 2, "--out", "here")
    found = document(tacit(*options, "--json", folder=tmp_path, TACIT_CORES="1"))
    assert json.loads((tmp_path / "here" / "audit.json").read_text()) == found
    assert found["confidence"] == pytest.approx(1 - 1e-6)
    (vote,) = found["methods"]
    whole = AUDITS["vote"].sizes["quick"].whole
    assert whole > 100
    assert vote["runs"] == {"the client's bound and noise": 5_000, "the whole federation": whole}
    assert (vote["unit"], vote["relation"]) == ("client", "replace-one")
    assert [point["delta"] for point in vote["curve"]] == [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    assert all(0 < point["audited"] < point["claimed"] for point in vote["curve"])
    assert vote["curve"][0]["claimed"] == pytest.approx(2.0, abs=1e-3)
    assert vote["tightness"] == vote["curve"][0]["audited"] / vote["curve"][0]["claimed"]
    assert vote["failures"] == []


def test_people_read_sentences(tmp_path: Path) -> None:
    """Fails by chance with probability at most 1e-6."""
    done = tacit("audit", "vote", "--runs", 2_000, folder=tmp_path, TACIT_CORES="1")
    assert done.returncode == 0, done.stderr
    assert "99.9999%" in done.stdout
    assert "2,000 through the client's bound and noise" in done.stdout
    assert "does not prove the claim" in done.stdout


def test_the_quick_audit_of_everything_finds_nothing(tmp_path: Path) -> None:
    """As ``make audit`` runs it. Fails by chance with probability at most 1e-6."""
    done = tacit("audit", "--quick", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = document(done)
    assert [finding["method"] for finding in found["methods"]] == list(AUDITS)
    assert {finding["method"] for finding in found["methods"] if finding["failures"]} == set()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_false_claim_ends_with_a_sentence_and_a_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    curve = (Point(1e-5, 3.0, 2.9), Point(1e-1, 0.7, 0.8))
    found = Finding("vote", "differ", "client", "replace-one", curve, {}, 0.5, 0.1, 1.0)
    monkeypatch.setattr(command, "run", lambda *_: [found])
    with pytest.raises(typer.Exit) as ended:
        command.audit("vote", out=tmp_path, as_json=as_json)
    assert ended.value.exit_code == 1
    told = capsys.readouterr()
    words = " ".join(told.err.split())
    assert "at least 0.800 at delta 0.1, and 0.700 is claimed: the claim is false" in words
    assert "at delta 1e-05" not in words
    assert "does not add the noise that is charged" in words
    assert bool(told.out.startswith("{")) is as_json


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["votes"], "the method is 'votes'; allowed are vote, auto,"),
        (["vote", "--quick", "--runs", "5"], "found --quick and --runs 5; allowed is one of them"),
        (["vote", "--runs", "0"], "--runs is 0; allowed is 1 to"),
        (["vote", "--epsilon", "0"], "--epsilon is 0; allowed is 0.001 to 30"),
    ],
)
def test_wrong_input_is_refused(options: list[str], words: str, tmp_path: Path) -> None:
    assert words in refusal(tacit("audit", *options, folder=tmp_path))
    assert list(tmp_path.iterdir()) == []
