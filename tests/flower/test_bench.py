"""``tacit bench flower``: what is Flower's, what is ours, and that a kill loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.bench import flower as bench

ROOT = Path(__file__).parents[2]


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


@pytest.mark.slow
def test_a_real_vote_is_measured_beside_empty_messages(tmp_path: Path) -> None:
    (point,) = bench.run((3,), None, tmp_path, quiet)["points"]
    assert (point["kind"], point["nodes"]) == ("simulation", 3)
    stages = ["evaluate", "share", "deliver", "seal", "confirm", "open"]
    assert list(point["stages"]) == stages
    assert point["messages"] == 2 * 3 * len(stages), "there and back, every node, every stage"
    assert len(point["empty_seconds"]) == bench.ROUNDS
    assert min(point["empty_seconds"]) > 0
    assert all(stage["up"] > 0 < stage["down"] for stage in point["stages"].values())
    assert not (tmp_path / "unfinished").exists()


def measured(place: Path, nodes: int, empty: list[float], stages: dict[str, float]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    told = {s: {"seconds": t, "up": 500, "down": 1000, "messages": 8} for s, t in stages.items()}
    document = {"nodes": nodes, "empty_seconds": empty, "stages": told}
    (place / "measured.json").write_text(json.dumps(document))


@pytest.mark.parametrize(("kind", "ours"), [("simulation", 8.0), ("deployment", 3.0)])
def test_ours_is_what_is_beyond_as_many_empty_rounds(
    tmp_path: Path, kind: str, ours: float
) -> None:
    """A deployed node waits for the deadline of five seconds, which is a choice and no cost."""
    measured(tmp_path, 4, [1.0, 9.0, 2.0], {"evaluate": 7.0, "open": 5.0})
    point = bench._point(kind, tmp_path)
    assert (point["flower_seconds"], point["our_seconds"]) == (4.0, ours)
    assert (point["messages"], point["bytes_up_a_node"], point["bytes_down_a_node"]) == (
        16,
        250.0,
        500.0,
    )


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def once(clients: int, place: Path) -> dict[str, Any]:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(clients)
        place.mkdir()
        recorded = json.loads((ROOT / "benchmarks" / "flower.json").read_text())["points"][0]
        return {**recorded, "nodes": clients}

    monkeypatch.setattr(bench, "_simulated", once)
    with pytest.raises(KeyboardInterrupt):
        bench.run((10, 50), None, tmp_path, quiet)
    done.clear()
    found = bench.run((10, 50), None, tmp_path, quiet)
    assert [point["nodes"] for point in found["points"]] == [10, 50]
    assert done == [50]


def test_what_is_no_deployment_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_simulated", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=r"none is no deployment; make one with .*up.sh"):
        bench.run((10,), tmp_path / "none", tmp_path / "out", quiet)
