from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import document, refusal, tacit


def test_dp_hype_reads_a_table_that_tacit_brings(tmp_path: Path) -> None:
    options = ("--data", "adult", "--clients", 100, "--repeats", 50)
    found = document(tacit("bench", "dp-hype", *options, "--json", folder=tmp_path))
    assert found["table"] == "adult-iid-n100"
    assert found["seeds"] == 3
    for entry in (found["opt"], found["randguess"], *found["vote"].values()):
        assert entry["low"] <= entry["mean"] <= entry["high"]
        assert {"training_variance", "noise_variance"} <= set(entry)
    assert len(found["candidates"]) == 100
    folder = tmp_path / "tacit-runs" / "bench-dp-hype"
    assert json.loads((folder / "adult-iid-n100.json").read_text())["vote"] == found["vote"]
    assert not (folder / "tables").exists(), "nothing was trained"
    fewer = document(tacit("bench", "dp-hype", *options, "--seeds", 2, "--json", folder=tmp_path))
    assert fewer["seeds"] == 2
    page = (folder / "dp-hype.html").read_text()
    assert "adult, n = 100, iid" in page


def test_dp_hype_trains_what_is_missing_once(tmp_path: Path) -> None:
    options = ["--data", "digits", "--clients", "4", "--quick", "--repeats", "20"]
    first = document(tacit("bench", "dp-hype", *options, "--json", folder=tmp_path))
    assert first["recipe"]["examples"] == 120
    tables = tmp_path / "tacit-runs" / "bench-dp-hype" / "tables"
    (table,) = tables.glob("*.npz")
    written = table.stat().st_mtime_ns
    done = tacit("bench", "dp-hype", *options, folder=tmp_path)
    assert table.stat().st_mtime_ns == written
    assert "RANDGUESS" in done.stdout
    assert "the protocol once" in done.stdout


def test_dp_hype_refuses_wrong_input(tmp_path: Path) -> None:
    repeats = tacit("bench", "dp-hype", "--data", "adult", "--clients", 100, "--repeats", 0)
    assert "repeats is 0; allowed is 1 and above" in refusal(repeats)
    data = tacit("bench", "dp-hype", "--data", "imagenet", folder=tmp_path)
    assert "no data set is called 'imagenet'" in refusal(data)
