from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.bench import combine
from tacit.bench.combine_figures import plots
from tacit.bench.pages import page_of
from tacit.grids import grid
from tacit.tables import Recipe
from tests.command_line import document, refusal, tacit

TINY = replace(
    combine.SUBSETS[0],
    clients=3,
    grid="privtuna-skew",
    score_epochs=1,
    epochs=1,
    rounds=1,
    examples=60,
    test_examples=50,
)


def table(favourite: int, clients: int = 6) -> dict[str, Any]:
    """What a table holds if every client likes one candidate best, and the federation too."""
    candidates = grid("privtuna-skew")
    away = np.abs(np.arange(len(candidates)) - favourite)
    wrong = np.minimum(10 + 8 * away, 90)
    return {
        "losses": np.tile(0.1 + 0.1 * away, (clients, 1)).tolist(),
        "wrong": np.tile(wrong, (clients, 1)).tolist(),
        "validation_sizes": [100] * clients,
        "accuracy": (0.9 - 0.01 * away).tolist(),
        "validation_accuracy": (0.8 - 0.01 * away).tolist(),
    }


def test_the_settings_are_the_papers() -> None:
    settings = combine.experiments(combine.SUBSETS)
    assert len(settings) == 4 * 21
    skewed = [recipe for recipe in settings if recipe.partition != "iid"]
    assert 2 * len(skewed) == 144, "section IV-C2 counts 144 experiments"
    assert {recipe.clients for recipe in settings if recipe.partition == "iid"} == {10, 20, 50}
    assert {(r.rounds, r.epochs, r.score_epochs) for r in settings} == {(30, 2, 30)}
    assert len({recipe.name for recipe in settings}) == len(settings)


def test_full_size_takes_all_examples_and_the_papers_networks() -> None:
    assert [recipe.network for recipe in combine.FULL[1:]] == [
        "privtuna-a",
        "privtuna-b",
        "privtuna-c",
    ]
    assert {recipe.examples for recipe in combine.FULL} == {0}


def test_where_all_agree_every_strategy_finds_what_gho_finds() -> None:
    """The 21st candidate; only the mean of the best 5 % has a single candidate to look at."""
    recipe = Recipe("digits", "dirichlet", 6, grid="privtuna-skew")
    found = combine.choose(recipe, None, 0, table(20) | {"accuracy": [0.5] * 24})
    liked = combine.tuned(grid("privtuna-skew")[20])
    for name in ("gho", "mean", "median", "trimmed-mean", "best-mean", "best-median", "sgm+u"):
        assert {axis: found["chosen"][name][axis] for axis in combine.AXES} == liked


def test_wins_count_all_who_are_nearest() -> None:
    place = {"server_learning_rate": 0.1, "server_momentum": 0.9}
    off = {"server_learning_rate": 0.2, "server_momentum": 0.9}
    chosen = dict.fromkeys(combine.STRATEGIES, off) | {"gho": place, "dbscan": place}
    row = {"skew": "label", "seed": 0, "chosen": chosen}
    found = combine.wins([row, row | {"skew": "iid"}])
    assert found["experiments"] == 2
    assert found["won"]["dbscan"] == 2
    assert found["won"]["mean"] == 1, "its momentum is as near"
    assert (found["alone"]["dbscan"], found["alone"]["mean"]) == (1, 0)


def rows(gain: float, seeds: int) -> list[dict[str, Any]]:
    places = {"server_learning_rate": 0.1, "server_momentum": 0.9}
    return [
        {
            "skew": skew,
            "seed": seed,
            "chosen": {
                name: {**places, "accuracy": 0.8 + (gain + 0.001 * seed) * (name == "dbscan")}
                for name in ("gho", *combine.STRATEGIES, *combine.SURFACES)
            },
        }
        for skew in ("iid", "label")
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("gain", "seeds", "verdict"),
    [
        (0.05, 3, "reproduced"),
        (0.0, 2, "not reproduced"),
        (-0.05, 3, "not reproduced: the opposite holds"),
        (0.05, 1, "not judged: one seed"),
    ],
)
def test_a_claim_needs_an_interval_that_excludes_zero(
    gain: float, seeds: int, verdict: str
) -> None:
    found = {claim["claim"]: claim for claim in combine.claims(rows(gain, seeds))}
    claim = found["skewed: DBSCAN's model beats that of sgm"]
    assert claim["verdict"] == verdict
    assert math.isclose(claim["effect"], gain + 0.001 * (seeds - 1) / 2, abs_tol=1e-9)
    if seeds > 1:
        assert claim["low"] < claim["effect"] < claim["high"]
    same = found["iid: the mean suffices (less than 0.02 of accuracy lost against GHO)"]
    assert same["effect"] == pytest.approx(0.02)


def test_a_run_goes_on_where_it_was_and_draws_figures(tmp_path: Path) -> None:
    recipes = [replace(TINY, partition="dirichlet", alpha=1.0, smallest=10)]
    seen: list[tuple[int, int]] = []
    first = combine.run(recipes, 1, None, tmp_path, lambda *done: seen.append(done))
    assert seen[-1] == (2, 2)
    (row,) = first["rows"]
    assert (row["data"], row["skew"], row["amount"], row["clients"]) == ("digits", "label", 1.0, 3)
    assert set(row["chosen"]) == {"gho", *combine.STRATEGIES, *combine.SURFACES}
    assert all(0 <= one["accuracy"] <= 1 for one in row["chosen"].values())
    (journal,) = tmp_path.glob("journal-*")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:40])
    again = combine.run(recipes, 1, None, tmp_path, lambda *_: None)
    assert again["rows"][0]["chosen"] == row["chosen"]
    drawn = plots(first["rows"])
    assert [plot.title.split(":")[0] for plot in drawn] == ["Figure 4", "Figure 5"]
    assert "Figure 4: label skew" in page_of(first)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--quick", "--full"], "found --quick with --full or --data"),
        (["--data", "adult"], "--data is 'adult'; allowed are digits, mnist, fashion-mnist, cifar"),
        (["--data", "mnist", "--data-dir", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_refused(options: list[str], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(tacit("bench", "combine", *options, "--out", tmp_path / "a", "--json"))


@pytest.mark.slow
def test_the_quick_set_runs(tmp_path: Path) -> None:
    found = document(tacit("bench", "combine", "--quick", "--out", tmp_path, "--json"))
    assert len(found["rows"]) == 8
    assert (tmp_path / "combine.html").exists()
