from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.bench import votes
from tacit.journal import Journal, each
from tacit.privacy.planner import chance_bound


def quiet(done: int, total: int) -> None:
    assert done <= total


def test_tallies_agree_with_a_plain_loop() -> None:
    standard = np.random.default_rng(0).standard_normal((3, votes.CLIENTS, 60), dtype=np.float32)
    setting = votes.Setting("candidates", loss_deviation=0.7, good=4, candidates=50)
    tallies = votes._tallies(standard, setting)
    assert sorted(tallies) == [1, 5, 10, 25, 50]
    for repetition in range(3):
        for number, tally in tallies.items():
            expected = np.zeros(50, dtype=int)
            for client in range(votes.CLIENTS):
                loss = 0.7 * standard[repetition, client, :50].astype(float)
                loss[4:] += 1
                expected[np.argsort(loss)[:number]] += 1
            assert tally[repetition].tolist() == expected.tolist()


def test_bounds_agree_with_the_planner() -> None:
    tally = np.array([[200, 180, 3, 5], [10, 9, 9, 2], [250, 250, 0, 0]])
    expected = sum(
        chance_bound([(float(row[:2].min()), 1)], [(float(row[2:].max()), 2)], 40.0)
        for row in tally
    )
    assert votes._bounds(tally, 2, 40.0) == pytest.approx(expected)


def test_ties_count_by_their_good_share() -> None:
    noisy = np.array([[5, 1, 5, 5], [7, 1, 2, 3], [1, 1, 9, 2]])
    assert votes._successes(noisy, good=2) == pytest.approx(1 / 3 + 1 + 0)


@pytest.mark.slow
def test_results_do_not_depend_on_interruptions(tmp_path: Path) -> None:
    whole = votes.run(150, seed=5, folder=tmp_path / "whole", progress=quiet)

    script = "from tacit.cli import main; main()"
    command = [sys.executable, "-c", script, "bench", "votes", "--repetitions", "150"]
    command += ["--seed", "5", "--out", str(tmp_path / "parts")]
    killed = subprocess.Popen(command)
    while not any(path.stat().st_size for path in (tmp_path / "parts").glob("journal-*")):
        assert killed.poll() is None, "the benchmark ended by itself"
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    (journal,) = (tmp_path / "parts").glob("journal-*.jsonl")
    journal.write_bytes(journal.read_bytes() + b"[2, [[[0.0")  # a write cut short
    resumed = votes.run(150, seed=5, folder=tmp_path / "parts", progress=quiet)
    assert resumed["points"] == whole["points"]
    assert resumed["resumed_share"] >= 1 / 3


def test_other_recipes_never_mix(tmp_path: Path) -> None:
    Journal(tmp_path, {"seed": 1}, each(str)).add(0, "one")
    assert Journal(tmp_path, {"seed": 1}, each(str)).pieces == {0: "one"}
    assert Journal(tmp_path, {"seed": 2}, each(str)).pieces == {}


def shape(result: dict[str, Any]) -> dict[tuple[str, float, int, float], dict[str, Any]]:
    return {(p["figure"], p["x"], p["votes"], p["epsilon"]): p for p in result["points"]}


def test_simulation_has_the_papers_shape(tmp_path: Path) -> None:
    """Standard error at most 0.025 with 400 repetitions; margins are 6 of them or more."""
    points = shape(votes.run(400, seed=2, folder=tmp_path, progress=quiet))
    # A vote for every candidate is a random guess: 5 of 100.
    assert points["loss deviation", 0.2, 100, 1.0]["published"] < 0.2
    assert points["loss deviation", 0.2, 100, 1.0]["tacit"] is None
    # Many votes waste a small budget; five do not.
    assert points["loss deviation", 0.2, 5, 0.25]["published"] > 0.95
    assert points["loss deviation", 0.2, 50, 0.25]["published"] < 0.5
    # One vote splits among many good candidates, and recovers when bad ones are rare.
    split = [points["good candidates", g, 1, 0.25]["published"] for g in (2, 16, 64)]
    assert split[1] < split[0] - 0.15
    assert split[1] < split[2]
    # More votes help when losses overlap.
    assert (
        points["loss deviation", 1.0, 10, 1.0]["published"]
        > points["loss deviation", 1.5, 1, 1.0]["published"] + 0.15
    )
    for point in points.values():
        assert point["bound"] <= point["published"] + 0.15
        assert point["tacit"] is None or point["tacit"] >= point["published"] - 0.15


@pytest.mark.slow
def test_full_simulation_favours_exact_noise(tmp_path: Path) -> None:
    """The paper's 5000 repetitions; standard error at most 0.007 a point, 6 allowed."""
    points = shape(votes.run(5000, seed=1, folder=tmp_path, progress=quiet))
    better = [p["tacit"] - p["published"] for p in points.values() if p["tacit"] is not None]
    assert min(better) > -6 * 0.01
    assert float(np.mean(better)) > 0.005
    for point in points.values():
        assert point["bound"] <= point["published"] + 6 * 0.0071
