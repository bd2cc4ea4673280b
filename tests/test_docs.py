"""What the README shows is what the commands print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tacit.bench.terminal import PRINTED
from tacit.data.partitions import PARTITIONS
from tacit.data.sources import DATASETS
from tacit.halving import rungs
from tacit.pareto_plan import load_pareto_plan
from tacit.plan import load_plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def python_of(page: str) -> dict[str, Any]:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


@pytest.mark.parametrize(
    "page", ["README.md", "docs/combine.md", "docs/selection.md", "docs/training.md"]
)
def test_python_of_a_page_runs_within_its_budget(page: str) -> None:
    assert python_of(page)["result"].privacy.epsilon <= 1


def test_python_of_private_training_returns_the_model() -> None:
    result = python_of("docs/averaging.md")["result"]
    assert 7 < result.privacy.epsilon <= 8
    assert [array.shape for array in result.weights] == [(1, 10, 64), (1, 10)]
    assert "training of the model" in result.privacy.covers


def test_python_of_fronts_searches_one() -> None:
    front = python_of("docs/pareto.md")["front"]
    assert len(front.points) == 12


def test_three_lines_load_a_score_table() -> None:
    found = python_of("docs/tables.md")
    assert found["scores"].shape == (100, 100)
    assert 0.8 < found["accuracy"].max() < 1


def test_every_data_set_and_partition_is_explained() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    explained = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert explained == [*DATASETS, *PARTITIONS]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]:
        for target in re.findall(r"\]\(([^):#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_plan_of_the_readme_is_what_the_command_prints() -> None:
    shown = re.search(r"\$ \S*tacit (plan .*?)\n(.*?)```", README, re.DOTALL)
    assert shown
    printed = subprocess.run(
        [sys.executable, "-c", "from tacit.cli import main; main()", *shown.group(1).split()],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "120"},
    ).stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines == shown.group(2).splitlines()


@pytest.mark.parametrize("target", re.findall(r"make ([\w-]+)", README))
def test_make_targets_of_the_readme_exist(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "plan"),
    [("plan.md", load_plan(None, [])), ("pareto.md", load_pareto_plan(None, []))],
    ids=["tune", "pareto"],
)
def test_every_key_of_a_plan_is_explained_with_its_default(page: str, plan: Any) -> None:
    text = (ROOT / "docs" / page).read_text()
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| `([^`]*)` \|", text, re.MULTILINE)
    explained = {(section, key): tomllib.loads(f"v = {text}")["v"] for section, key, text in rows}
    defaults = {
        (section, key): value
        for section, table in plan.to_json().items()
        for key, value in table.items()
        if section != "space"
    }
    assert explained == defaults


def test_numbers_of_the_dp_hype_page_are_recorded() -> None:
    page = (ROOT / "docs" / "dp-hype.md").read_text()
    shown = re.findall(r"^\| (adult|digits|mnist|cifar-10) \| .*$", page, re.MULTILINE)
    recorded = sorted(ROOT.glob("benchmarks/dp-hype/*.json"))
    assert len(shown) == len(recorded) > 0
    for path in recorded:
        result = json.loads(path.read_text())
        entries = (result["opt"], result["randguess"], *result["vote"].values())
        numbers = " | ".join(f"{100 * entry['mean']:.1f}" for entry in entries)
        recipe = result["recipe"]
        line = rf"^\| {recipe['data']} \| {recipe['clients']} \| .* \| {re.escape(numbers)} \|$"
        assert re.search(line, page, re.MULTILINE), f"{path.name} is not on the page"


def test_numbers_of_the_training_page_are_recorded() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    recorded = json.loads((ROOT / "benchmarks" / "speed.json").read_text())
    for row in recorded["rows"]:
        shown = re.search(rf"^\| {row['model']} \| (.*?) \|.* \| (.*?) s \|", page, re.MULTILINE)
        assert shown, row["model"]
        assert shown.groups() == (f"{row['ratio']:.1f}", f"{row['seconds']:.2f}")
    for row in recorded["halving"]:
        agreed = f"{row['agreement']:.0%} | {row['agreement_with_ties']:.0%}"
        kind = " | ".join(str(row[k]) for k in ("data", "federation", "space", "cores"))
        assert f"| {kind} | {row['ratio']:.1f} | {agreed} |" in page


def test_numbers_of_the_combining_page_are_recorded() -> None:
    page = " ".join((ROOT / "docs" / "combine.md").read_text().split())
    default, paper_rate = (
        json.loads((ROOT / "benchmarks" / "combine" / name).read_text())
        for name in ("combine.json", "paper-rate.json")
    )
    verdicts = {"not reproduced: the opposite holds": "the opposite"}

    def cell(found: dict[str, Any]) -> str:
        low, high = (f"{found[end]:+.3f}" for end in ("low", "high"))
        verdict = verdicts.get(found["verdict"], found["verdict"])
        return f"{found['effect']:+.3f} ({low} to {high}), {verdict}"

    for one, other in zip(default["claims"], paper_rate["claims"], strict=True):
        assert f"| {one['claim']} | {cell(one)} | {cell(other)} |" in page
    for recorded in (default, paper_rate):
        won = recorded["wins"]["won"]
        assert ", ".join(f"{name} {times}" for name, times in won.items()) in page


def claim_line(found: dict[str, Any]) -> str:
    low, high = (f"{found[end]:+.3f}" for end in ("low", "high"))
    return f"| {found['claim']} | {found['effect']:+.3f} ({low} to {high}) | {found['verdict']} |"


def test_numbers_of_adaptive_rates_are_recorded() -> None:
    page = (ROOT / "docs" / "while-training.md").read_text()
    recorded = json.loads((ROOT / "benchmarks" / "adaptive.json").read_text())
    for claim in recorded["claims"]:
        assert claim_line(claim) in page
    for method in dict.fromkeys(row["method"] for row in recorded["table"]):
        best = [f"{row['best']:.3f}" for row in recorded["table"] if row["method"] == method]
        assert f"| {method} | {' | '.join(best)} |" in page
    assert recorded["core_seconds"] < 2 * 100 * 60, "a recorded run fits in 100 minutes on 2 cores"


def test_numbers_of_feathers_are_recorded() -> None:
    page = (ROOT / "docs" / "while-training.md").read_text()
    recorded = json.loads((ROOT / "benchmarks" / "feathers.json").read_text())
    for claim in recorded["claims"]:
        assert claim_line(claim) in page
    for method in dict.fromkeys(row["method"] for row in recorded["table"]):
        own = [row for row in recorded["table"] if row["method"] == method]
        seconds = sum(row["seconds"] for row in own) / len(own)
        cells = " | ".join(f"{row['accuracy']:.3f}" for row in own)
        assert f"| {method} | {cells} | {seconds:.0f} s |" in page
    for row in recorded["fraud_table"]:
        numbers = f"{row['f1']:.3f} ({row['least']:.3f} to {row['most']:.3f})"
        epsilon = str(row["epsilon"])
        shown = "∞" if epsilon.startswith(("inf", "Inf")) else f"{row['epsilon']:g}"
        assert f"| {shown} | {numbers} |" in page
    assert recorded["core_seconds"] < 2 * 100 * 60, "a recorded run fits in 100 minutes on 2 cores"


def test_numbers_of_private_averaging_are_recorded() -> None:
    page = (ROOT / "docs" / "averaging.md").read_text()
    recorded = json.loads((ROOT / "benchmarks" / "averaging.json").read_text())
    rows = recorded["rows"]
    for data, clients in dict.fromkeys((row["data"], row["clients"]) for row in rows):
        cells = []
        for epsilon in dict.fromkeys(str(row["epsilon"]) for row in rows):
            key = (data, clients, epsilon)
            own = [
                row["accuracy"]
                for row in rows
                if (row["data"], row["clients"], str(row["epsilon"])) == key
            ]
            cells.append(f"{sum(own) / len(own):.3f}")
        assert f"| {data} | {clients} | {' | '.join(cells)} |" in page
    assert all(float(row["ledger_epsilon"]) <= float(row["epsilon"]) for row in rows)
    assert recorded["core_seconds"] < 2 * 100 * 60


def test_the_rungs_of_halving_are_explained() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    *early, last = [str(kept) for _, kept in rungs(candidates=100, effort=5)[:-1]]
    assert f"at most {', '.join(early)} and {last} % go on" in page


def test_numbers_of_the_flower_page_are_recorded() -> None:
    page = (ROOT / "docs" / "flower.md").read_text()
    points = json.loads((ROOT / "benchmarks" / "flower.json").read_text())["points"]
    for point in points:
        up, down = (point[f"bytes_{way}_a_node"] / 1000 for way in ("up", "down"))
        sizes = f"{point['messages']} | {up:.1f} | {down:.1f}"
        seconds = f"{point['flower_seconds']:.1f} s | {point['our_seconds']:.1f} s"
        assert f"| {point['nodes']} | {point['kind']} | {sizes} | {seconds} |" in page
    assert [(point["nodes"], point["kind"]) for point in points] == [
        *((nodes, "simulation") for nodes in (10, 50, 100, 250)),
        (5, "deployment"),
    ]
    largest = points[3]
    assert largest["our_seconds"] < largest["flower_seconds"]


def test_recorded_measurements_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    speed, scaling = (
        json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())
        for name in ("speed", "scaling")
    )
    assert {row["model"] for row in speed["rows"]} == {
        "adult",
        "mnist-mlp",
        "mnist-cnn",
        "sklearn",
    }
    for recorded in (speed, scaling):
        PRINTED[recorded["bench"]](recorded)
    printed = capsys.readouterr().out
    assert all(row["model"] in printed for row in speed["rows"])
    assert all(f"{power:.2f}" in printed for power in scaling["exponents"].values())


def test_numbers_of_private_selection_are_recorded() -> None:
    page = (ROOT / "docs" / "selection.md").read_text()
    recorded = json.loads((ROOT / "benchmarks" / "selection.json").read_text())
    for data, mean in dict.fromkeys((row["data"], row["mean_runs"]) for row in recorded["rows"]):
        own = {
            row["shape"]: f"{row['accuracy']:.3f} ± {row['deviation']:.3f}"
            for row in recorded["rows"]
            if (row["data"], row["mean_runs"]) == (data, mean)
        }
        cells = " | ".join(own[shape] for shape in ("geometric", "logarithmic", "poisson"))
        assert f"| {data} | {mean:g} | {cells} |" in page
    for row in recorded["adaptive"]:
        assert f"| {row['data']} | {row['accuracy']:.3f} ± {row['deviation']:.3f} |" in page
    assert all(row["epsilon"] <= recorded["setup"]["epsilon"] for row in recorded["rows"])


def test_numbers_of_the_front_are_recorded() -> None:
    page = (ROOT / "docs" / "pareto.md").read_text()
    recorded = json.loads((ROOT / "benchmarks" / "pareto.json").read_text())
    for claim in recorded["claims"]:
        assert claim_line(claim) in page
    for problem in dict.fromkeys(row["problem"] for row in recorded["rows"]):
        known = problem in recorded["truths"]
        own = {
            search: [
                row["true_volume"] if known else row["volumes"][-1]
                for row in recorded["rows"]
                if (row["problem"], row["acquisition"]) == (problem, search)
            ]
            for search in ("random", "hvpoi", "nehvi")
        }
        cells = [f" {sum(found) / len(found):.3f} " if found else " " for found in own.values()]
        beside = " "
        if known:
            beside = f" {recorded['truths'][problem]['volume']:.3f} (true) "
        elif problem in recorded["grids"]:
            beside = f" {recorded['grids'][problem]['volume']:.3f} (grid of 243) "
        assert f"| {problem} |{'|'.join(cells)}|{beside}|" in page
    cost = recorded["overhead"]
    assert f"NEHVI {cost['nehvi']['seconds']:.0f} s" in page
    assert cost["nehvi"]["seconds"] < 45
    assert max(cost["privacy_call"].values()) < 0.3
    for kind, name in (("fixed", "lots of a fixed size"), ("poisson", "lots by chance")):
        assert f"{cost['privacy_call'][kind]:.2f} s for {name}" in page
