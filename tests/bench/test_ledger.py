"""``tacit bench ledger``: every row once, also after a kill, and no charge lost between rivals.

The record shows what a ledger may cost at most: charges, verifying, and how long anybody waits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.bench import ledger
from tacit.bench.pages import page_of
from tacit.bench.terminal import PRINTED
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_totals import BOUNDED

REPOSITORY = Path(__file__).resolve().parents[2]


def quiet(done: int, total: int) -> None:
    """No bar."""


def test_every_ledger_is_measured_once_also_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger, "QUICK_SIZES", (3, 4))
    monkeypatch.setattr(ledger, "QUICK_CHARGES", 3)
    monkeypatch.setattr(ledger, "RIVALS", 2)
    measured: list[tuple[int, str]] = []
    original = ledger.measured

    def stops(lines: int, kind: str) -> dict[str, Any]:
        measured.append((lines, kind))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return original(lines, kind)

    monkeypatch.setattr(ledger, "measured", stops)
    with pytest.raises(KeyboardInterrupt):
        ledger.run(True, tmp_path, quiet)
    result = ledger.run(True, tmp_path, quiet)
    rows = [(lines, kind) for lines in (3, 4) for kind in ledger.KINDS]
    assert measured == [rows[0], rows[1], *rows[1:]]
    assert [(row["lines"], row["releases"]) for row in result["rows"]] == rows
    assert [(row["releases"], row["recorded"]) for row in result["rivals"]] == [
        (ledger.ALIKE, 6),
        (ledger.NEAR, 6),
    ]
    page = page_of(result)
    assert all(kind in page for kind in ledger.KINDS)
    PRINTED["ledger"](result)
    printed = capsys.readouterr().out
    assert "2 processes charged 3 times each, alike: 6 charges recorded" in " ".join(
        printed.split()
    )
    assert ledger.NEAR in printed


def test_releases_are_alike_or_all_different() -> None:
    assert len(set(ledger.releases(50, ledger.ALIKE))) == 1
    assert len(set(ledger.releases(50, ledger.DISTINCT))) == 50
    assert len(set(ledger.releases(10_000, ledger.NEAR))) == ledger.DEAR + ledger.CHEAP


def test_near_the_budget_every_later_line_is_priced_exactly() -> None:
    for lines in (2 * ledger.DEAR, 10_000):
        asked = ledger.releases(lines, ledger.NEAR)
        found = Ledger.in_memory("bench", ledger.budget_of(lines, ledger.NEAR))
        found.charge_all([("vote", vote) for vote in asked[: ledger.DEAR]], "first")
        later = [found.charge(vote, "vote", "later") for vote in asked[ledger.DEAR :][:20]]
        assert not any(charge.total.accounting == BOUNDED for charge in later)


def test_the_record_meets_what_was_promised() -> None:
    """A charge to 10,000 lines under 0.2 s, verifying under a minute, nobody waits for 2 s."""
    record = json.loads((REPOSITORY / "benchmarks" / "ledger.json").read_text())
    longest = {row["releases"]: row for row in record["rows"] if row["lines"] == 10_000}
    assert set(longest) == set(ledger.KINDS)
    for row in record["rows"]:
        assert max(row["first_seconds"], row["next_seconds"]) < 0.2, row
        assert row["verify_seconds"] < 60, row
    assert {found["releases"] for found in record["rivals"]} == {ledger.ALIKE, ledger.NEAR}
    for found in record["rivals"]:
        assert (found["processes"], found["charges_each"]) == (8, 1_000)
        assert found["recorded"] == 8_000
        assert max(found["longest_wait_seconds"], found["longest_first_seconds"]) < 2, found
