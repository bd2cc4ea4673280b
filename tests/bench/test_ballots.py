"""The benchmark of ballots, on few draws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.bench import ballots, ballots_figures
from tacit.bench.ballots import METHODS, PARTS, TRIED, Crowd, Setup, reached
from tacit.bench.pieces import Workplace
from tacit.cli import app
from tacit.grids import GRIDS
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import Composed
from tacit.privacy.planner import published_sigma
from tacit.smoothing import SHUFFLES, places
from tacit.strategy import Noise
from tacit.tables import GRID, ScoreTable
from tacit.tuners.voting import RunOff

BUDGET = Budget(1.0, 1e-5)
TINY = Setup(
    ("digits-iid-n50",), (20,), (1.0,), draws=12, exactness={"smoothed": 4.0, "auto": 16.0}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ballots")


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    told: list[tuple[int, int]] = []
    found = ballots.run(TINY, Workplace(None, folder, lambda *how: told.append(how)))
    pieces = 2 + 3  # a table, permuted or not, and surfaces
    assert told[-1] == (pieces, pieces)
    return found


def test_every_method_has_a_row_for_every_table_and_surface(result: dict[str, Any]) -> None:
    keys = {"data", "partition", "clients", "epsilon", "method", "regret", "se", "near_best"}
    for row in result["rows"]:
        assert keys <= set(row)
        assert 0 <= row["near_best"] <= 1
        assert 0 <= row["regret"] <= 100
    per_table = len(METHODS) + len(PARTS) + len(TRIED)
    assert len(result["rows"]) == per_table + 3 * len(METHODS)
    assert {row["partition"] for row in result["harm"]} == {"iid, permuted", "made up"}
    assert "vote" in next(row for row in result["rows"] if row["method"] == "auto")


@pytest.mark.parametrize(
    ("method", "table"),
    [("borda", "digits-iid-n50"), ("published, cross-validated", "digits-iid-n50-cv5")],
)
def test_a_vote_is_counted_among_clients_who_score_as_it_asks(
    method: str, table: str, result: dict[str, Any]
) -> None:
    crowd = Crowd.of(ScoreTable.load("digits-iid-n50"), TINY.draws, ScoreTable.load(table))
    vote, methods = (METHODS | PARTS)[method], list(METHODS | PARTS)
    assert vote is not None
    noise = ballots.integer_noise(vote, GRID, BUDGET)
    if method.startswith("published"):
        noise = Noise(published_sigma(vote.votes, BUDGET)), Noise(0.0)
    (row,) = (
        row for row in result["rows"] if row["method"] == method and row["partition"] != "made up"
    )
    about = {key: row[key] for key in ("data", "partition", "clients", "epsilon")}
    rng = np.random.default_rng([10, methods.index(method), ballots.seed(about)])
    picks = crowd.family().picks(vote, 50, noise, rng, SHUFFLES)
    assert row["regret"] == crowd.regrets(picks).mean()


def test_the_summary_averages_the_real_tables(result: dict[str, Any]) -> None:
    found = result["summary"]["groups"]["at least 50"]
    assert found["tables"] == 1
    own = [
        row["regret"]
        for row in result["rows"]
        if (row["method"], row["epsilon"]) == ("borda", 1.0) and row["partition"] != "made up"
    ]
    assert found["curves"]["borda"][0]["regret"] == pytest.approx(np.mean(own))
    assert set(result["summary"]["groups"]) == {"at least 50", "50"}


def test_figures_have_a_line_for_every_method(result: dict[str, Any]) -> None:
    averages, tables, harm = (plot.figure for plot in ballots_figures.plots(result))
    assert {trace.name for trace in averages.data} == set(ballots_figures.NAMES.values())
    drawn = [trace for trace in tables.data if trace.x]
    assert len(drawn) == 2 * 4  # a table and three kinds of surface, published and auto
    assert [trace.name for trace in harm.data] == ["Borda, smoothed", "auto"]


def test_harm_is_drawn_until_its_error_is_small(result: dict[str, Any]) -> None:
    for row in result["harm"]:
        assert row["se"] <= TINY.exactness[row["method"]]
        assert row["draws"] % TINY.draws == 0


def test_harm_is_what_a_vote_loses_beyond_the_plain_tally_of_the_same_noise() -> None:
    """By hand, of as many batches as the error asks for."""
    vote, plain = replace(ballots.RANKED, smooth=True), ballots.RANKED
    noise = ballots.integer_noise(plain, GRID, BUDGET)
    crowds = [Crowd.made_up("rough", 20, 40, batch) for batch in range(60)]
    asked: list[int] = []

    def crowd(folds: int, batch: int) -> Crowd:
        assert folds == 1
        asked.append(batch)
        return crowds[batch]

    (row,) = ballots.harm(crowd, BUDGET, {"clients": 20}, {"smoothed": 0.6})
    assert asked == list(range(len(asked)))
    assert len(asked) > 1
    assert row["draws"] == 40 * len(asked)
    more = np.concatenate(
        [
            np.subtract(
                *(
                    crowds[batch].regrets(
                        crowds[batch]
                        .family()
                        .picks(each, 20, noise, np.random.default_rng([12, batch]), SHUFFLES)
                    )
                    for each in (vote, plain)
                )
            )
            for batch in asked
        ]
    )
    assert row["harm"] == pytest.approx(more.mean())
    assert row["se"] == pytest.approx(more.std(ddof=1) / np.sqrt(len(more)))
    before = more[:-40]
    assert before.std(ddof=1) / np.sqrt(len(before)) > 0.6 >= row["se"]


def test_batches_of_made_up_surfaces_are_strangers() -> None:
    first, second = (Crowd.made_up("rough", 5, 35, batch).accuracy for batch in (0, 1))
    assert not (first[:, None] == second[None]).all(axis=2).any()


def test_permuting_keeps_every_candidates_own_row_and_column() -> None:
    crowd = Crowd.of(ScoreTable.load("digits-iid-n50"), 4)
    moved = crowd.permuted(np.random.default_rng(0))
    assert not np.array_equal(moved.accuracy, crowd.accuracy)
    for vote in range(4):
        assert _columns(moved, vote) == _columns(crowd, vote)


def _columns(crowd: Crowd, vote: int) -> list[tuple[float, ...]]:
    together = np.vstack([crowd.accuracy[vote], crowd.losses[vote]])
    return sorted(tuple(column) for column in together.T.tolist())


def test_made_up_surfaces_are_what_they_are_called() -> None:
    """Neighbours along the rate are alike on a hill, strangers on rough ground."""
    space = GRIDS[GRID]
    columns, _ = places(space, space.candidates(10**6, "grid"))
    apart = np.abs(columns[:, None] - columns[None]).sum(axis=2)
    near = (apart > 0) & (apart < 0.12)
    steps = {}
    for kind in ballots.SURFACES:
        surface = Crowd.made_up(kind, 5, 30).accuracy
        assert surface.min() >= 0.1
        assert surface.max() <= 0.96
        between = np.abs(surface[:, :, None] - surface[:, None, :])
        steps[kind] = between[:, near].mean() / between.mean()
    assert steps["smooth"] < steps["cliff"] < 0.8 < steps["rough"]
    cliff = Crowd.made_up("cliff", 5, 1).accuracy[0]
    assert np.isclose(cliff, 0.1).mean() > 0.04  # beyond the cliff
    assert cliff.max() == pytest.approx(0.95)


def test_noise_is_what_the_whole_budget_buys() -> None:
    space = GRIDS[GRID]
    vote = replace(ballots.RANKED, smooth=True, run_off=RunOff(4, 0.3))
    first, final = ballots.integer_noise(vote, GRID, BUDGET)
    event = vote.event(space, calibrate(lambda variance: vote.event(space, variance), BUDGET))
    assert isinstance(event, Composed)
    found = [getattr(part, "variance", 0.0) for part in event.events]
    assert [first.deviation**2, final.deviation**2] == pytest.approx(found)
    drawn = first.drawn((20_000,), np.random.default_rng(0))
    assert np.array_equal(drawn, np.rint(drawn))
    assert drawn.std() == pytest.approx(first.deviation, rel=0.03)  # six standard errors


def test_a_grade_is_between_a_clients_worst_and_best() -> None:
    grades = ballots._grades(np.array([[[0.2, 0.7, np.inf, 0.45]]]))
    assert grades.tolist() == [[[5.0, 0.0, 0.0, 2.0]]]


@pytest.mark.parametrize(
    ("regrets", "epsilon"), [([9.0, 1.0], 0.5), ([4.0, 1.0], 0.25), ([9.0, 6.0], None)]
)
def test_the_epsilon_that_reaches_a_goal(regrets: list[float], epsilon: float | None) -> None:
    found = reached([0.25, 1.0], regrets, 5.0)
    assert found == (None if epsilon is None else pytest.approx(epsilon))


def test_the_command_goes_on_and_writes_a_page(
    result: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ballots, "QUICK", TINY)
    options = ["bench", "ballots", "--quick", "--out", str(folder)]
    shown = CliRunner().invoke(app, options)
    assert "What the published vote reaches at ε = 1, auto" in shown.stdout
    assert (folder / "ballots.html").stat().st_size < 6e6
    told = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert told["rows"] == result["rows"]  # from the journal
    assert json.loads((folder / "ballots.json").read_text())["rows"] == told["rows"]
