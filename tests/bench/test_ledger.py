"""``tacit bench ledger``: every row once, also after a kill, and no charge lost between rivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.bench import ledger
from tacit.bench.pages import page_of


def quiet(done: int, total: int) -> None:
    """No bar."""


def test_every_ledger_is_measured_once_also_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ledger, "QUICK_SIZES", (3, 4))
    monkeypatch.setattr(ledger, "QUICK_CHARGES", 3)
    monkeypatch.setattr(ledger, "RIVALS", 2)
    measured: list[tuple[int, bool]] = []
    original = ledger.measured

    def stops(lines: int, *, distinct: bool) -> dict[str, Any]:
        measured.append((lines, distinct))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return original(lines, distinct=distinct)

    monkeypatch.setattr(ledger, "measured", stops)
    with pytest.raises(KeyboardInterrupt):
        ledger.run(True, tmp_path, quiet)
    result = ledger.run(True, tmp_path, quiet)
    assert measured == [(3, False), (3, True), (3, True), (4, False), (4, True)]
    assert [(row["lines"], row["releases"]) for row in result["rows"]] == [
        (3, "alike"),
        (3, "distinct"),
        (4, "alike"),
        (4, "distinct"),
    ]
    assert result["rivals"]["recorded"] == 6
    assert "distinct" in page_of(result)


def test_releases_are_alike_or_all_different() -> None:
    assert len({ledger.release(number, distinct=False) for number in range(50)}) == 1
    assert len({ledger.release(number, distinct=True) for number in range(50)}) == 50
