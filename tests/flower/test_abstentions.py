"""Over Flower's messages, where clients can really be late."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from flwr.app import Context

from tacit.flower import server
from tacit.flower.wire import read
from tacit.result import MostAbstained
from tacit.space import Config
from tacit.task import Client, FunctionClient
from tests.flower.grids import InProcessGrid, generous, grid_of, stage_of, vote, voters

TERMS = {
    "federation__name": "clinics",
    "privacy__epsilon": 20.0,
    "privacy__dropout": 0,
    "search__ballot": "top",
}
"""Little noise, so that a dozen nodes can be counted."""


def slow(config: Config) -> float:
    time.sleep(30.0)
    return float(config["x"])


def late(_context: Context) -> Client:
    return FunctionClient(slow)


def broken(_context: Context) -> Client:
    raise RuntimeError("there is no data here")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def log(_level: int, text: str, *told: object) -> None:
        found.append(text % told)

    monkeypatch.setattr(server, "log", log)
    return found


def test_a_deadline_that_every_node_misses_is_told(lines: list[str], tmp_path: Path) -> None:
    grid = generous(grid_of([late] * 12))
    with pytest.raises(MostAbstained, match="Most clients had no score in time: about 1") as ended:
        vote(grid, **TERMS, federation__deadline=0.5, run__out=str(tmp_path / "runs"))
    told = str(ended.value)
    assert f"tacit: {told}" in lines
    assert not any("chose" in line for line in lines)
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert next(iter(result)) == "warning"
    assert result["warning"] == told
    assert result["clients"]["answered"] == 12
    assert (folder / "report.html").read_text().count("Most clients abstained.") == 1


@pytest.mark.usefixtures("at_once")
def test_without_the_count_nobody_can_tell() -> None:
    grid = generous(grid_of([broken] * 12))
    result = vote(grid, **TERMS, federation__count_abstentions=False)
    assert result.abstentions == ()
    assert not result.warning


@pytest.mark.usefixtures("at_once")
def test_a_few_that_miss_are_estimated(lines: list[str]) -> None:
    result = vote(generous(grid_of([*voters(10), broken, broken])), **TERMS)
    (found,) = result.abstentions
    assert found.answered == 12
    assert found.least <= 2 <= found.most
    assert not result.warning
    assert f"tacit: {found.words} abstained from the vote" in lines
    assert any(line.startswith("tacit: abstentions can be counted at no cost") for line in lines)


@pytest.mark.usefixtures("at_once")
def test_the_published_vote_stays_as_published_unless_it_is_asked_for() -> None:
    terms = {**TERMS, "search__ballot": "published", "privacy__epsilon": 3.0}
    assert vote(generous(grid_of(voters(4))), **terms).abstentions == ()
    terms |= {"federation__name": "others", "federation__count_abstentions": True}
    assert len(vote(generous(grid_of(voters(4))), **terms).abstentions) == 1


def sizes(grid: InProcessGrid) -> dict[str, set[int]]:
    """How long the replies to each stage were, in bytes."""
    found: dict[str, set[int]] = {}
    for asked, said in zip(grid.seen, grid.said, strict=True):
        found.setdefault(stage_of(asked), set()).add(len(read(said.content).body))
    return found


@pytest.mark.usefixtures("at_once")
def test_replies_of_nodes_that_abstain_have_the_size_of_all_others() -> None:
    grid = generous(grid_of([*voters(6), *[broken] * 6]))
    vote(grid, **TERMS)
    stages = sizes(grid)
    assert "evaluate" in stages
    assert "seal" in stages
    assert {stage: len(found) for stage, found in stages.items()} == dict.fromkeys(stages, 1)
