from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.bench import encrypted
from tests.command_line import document, refusal, tacit

pytest.importorskip("seal")


def test_the_command_tells_time_bytes_and_errors_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    options = ("bench", "encrypted", "--clients", "2", "--out", tmp_path, "--json")
    found = document(tacit(*options))
    for key in ("pf_mean", "pf_dbscan"):
        assert [row["clients"] for row in found[key]] == [2]
        for row in found[key]:
            assert row["seconds"] > 0
            assert row["bytes_per_client"] > row["upload_bytes_per_client"] > 0
            assert (row["mse"], row["mask_errors"]) == (0, 0)
    names = [row["operation"] for row in found["operations"] if row["clients"] == 2]
    assert {"public key share", "encryption", "dense test", "opening share"} <= set(names)
    assert found["pf_dbscan_with_noise"] == []
    assert json.loads((tmp_path / "encrypted.json").read_text()) == found
    (journal,) = tmp_path.glob("journal-*")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:20])
    again = document(tacit(*options))
    assert again["pf_dbscan"] == found["pf_dbscan"], "measured before the kill"


def test_operations_are_exact_too() -> None:
    assert encrypted.operations(2)["wrong"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--clients", "1"], "--clients is 1; allowed is 2 and above"),
        (["--clients", "ten"], "'ten'"),
        (["--quick", "--clients", "5"], "found --quick and --clients 5; allowed is one of them"),
    ],
)
def test_wrong_options_are_refused(options: list[str], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(tacit("bench", "encrypted", *options, "--out", tmp_path, "--json"))
