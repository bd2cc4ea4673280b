"""The benchmarks of private selection and of fronts, on files that these tests write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.bench import pareto, pareto_figures, selection
from tacit.bench.pieces import Workplace
from tests.command_line import refusal, tacit
from tests.data.writers import ADULT_ROW, idx, pixels, write

TINY = replace(
    pareto.QUICK, first=4, points=1, mnist_points=1, known_points=2, examples=60, mnist_examples=80
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that earn more the older they are, and images whose class shows in their brightness."""
    folder = tmp_path_factory.mktemp("data")
    rows = [
        ADULT_ROW.replace("39,", f"{20 + n % 50},").replace("<=50K", "<=50K" if n % 2 else ">50K")
        for n in range(100)
    ]
    write(folder / "adult.data", ("\n".join(rows) + "\n").encode())
    tests = "".join(f"{row}.\n" for row in rows)
    write(folder / "adult.test", f"|1x3 Cross validator\n{tests}".encode())
    labels = np.arange(150) % 10
    grey = (pixels(150, 28, 28) // 8 + 20 * labels[:, None, None]).astype(np.uint8)
    for part, some in (("train", slice(0, 100)), ("t10k", slice(100, 150))):
        write(folder / f"mnist/{part}-images-idx3-ubyte", idx(grey[some]))
        write(folder / f"mnist/{part}-labels-idx1-ubyte", idx(labels[some]))
    return folder


@pytest.mark.parametrize("problem", [*pareto.KNOWN, *pareto.ADULT, *pareto.MNIST])
def test_every_problem_is_searched(data: Path, problem: str) -> None:
    found = pareto.searched(TINY, data, problem, "hvpoi", 0)
    grown = found["volumes"]
    assert len(grown) == (6 if problem in pareto.KNOWN else 5)
    assert grown == sorted(grown)
    assert ("true_volume" in found) == (problem in pareto.KNOWN)


def test_a_grid_is_as_large_as_it_may_be(data: Path) -> None:
    found = pareto.on_grid(TINY, data, "svm+sgd")
    assert 1 <= found["points"] <= TINY.grid_points
    assert 0 <= found["volume"] <= 10


def test_settings_trained_at_once_are_those_trained_alone(data: Path) -> None:
    family: Any = pareto.oracle(TINY, data, "logreg+adam")
    configs = [{**family.draw(np.random.default_rng(0)), "clip": clip} for clip in (0.2, 2.0)]
    configs.append({**configs[0], "lot": 9})
    together = family.errors_of(configs, 5)
    assert [len(errors) for errors in together] == [2, 2, 2]
    assert (family.errors_of(configs[:1], 5)[0] == family.errors(configs[0], 5)).all()


def test_what_proposing_takes_grows_with_the_points() -> None:
    found = pareto.overhead(replace(TINY, proposals=3, privacy_calls=1))
    assert set(found) == {"nehvi", "hvpoi", "privacy_call", "seconds"}
    assert list(found["nehvi"]["after"]) == ["3"]
    assert set(found["privacy_call"]) == {"fixed", "poisson"}


def volumes(gain: float) -> list[dict[str, Any]]:
    return [
        {"problem": problem, "acquisition": name, "seed": seed, "seconds": 1.0, "front": []}
        | {"volumes": [5.0, 6.0 + 0.01 * seed + (gain if name != "random" else 0.0)]}
        | {"true_volume": 6.0 + 0.001 * seed + (gain if name != "random" else 0.0)}
        for problem in (*pareto.KNOWN, *pareto.ADULT)
        for name in ("nehvi", "hvpoi", "random")
        for seed in range(3)
    ]


def test_claims_are_judged_by_their_intervals() -> None:
    truths = {problem: {"volume": 6.1} for problem in pareto.KNOWN}
    good = {one["claim"]: one["verdict"] for one in pareto.claims(volumes(0.1), truths)}
    assert set(good.values()) == {"reproduced"}
    bad = {one["claim"]: one["verdict"] for one in pareto.claims(volumes(-0.3), truths)}
    assert set(bad.values()) == {"not reproduced: the opposite holds"}
    shown = {"setup": {"first": 1}, "rows": volumes(0.1), "grids": {}, "truths": truths}
    plots = pareto_figures.pareto(shown)
    assert len(plots) == 5
    assert all(plot.figure.layout.xaxis.range[0] == 1 for plot in plots)


def test_more_runs_mean_more_noise_in_each() -> None:
    (part,) = selection.QUICK.parts
    few, many = (selection.one(selection.QUICK, None, part, "poisson", m) for m in (2.0, 20.0))
    assert few["noise"] < many["noise"]
    for row in (few, many):
        assert row["single_epsilon"] < row["epsilon"] <= selection.QUICK.epsilon
        assert 0 < row["accuracy"] < 1
    assert few["watched_epsilon"] < many["watched_epsilon"]


def test_selection_is_measured_shown_and_goes_on(tmp_path: Path) -> None:
    shown = tacit("bench", "selection", "--quick", "--out", tmp_path)
    assert "for those who see the result alone" in " ".join(shown.stdout.split())
    found = json.loads((tmp_path / "selection.json").read_text())
    assert len(found["rows"]) == 6
    assert all(0 < row["accuracy"] < 1 for row in (*found["rows"], *found["adaptive"]))
    assert "Private selection, digits" in (tmp_path / "selection.html").read_text()
    place = Workplace(None, tmp_path, lambda *_: None)
    again = selection.run(selection.QUICK, place)
    assert again["rows"] == found["rows"], "nothing was trained again"


def test_missing_data_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing = tacit("bench", "pareto", "--data-dir", tmp_path / "empty", folder=tmp_path)
    assert "adult" in refusal(missing).lower()
    assert not (tmp_path / "tacit-runs").exists()
