"""The table of docs/which-method.md shows what the benchmarks recorded."""

from __future__ import annotations

import json
import math
from statistics import mean
from typing import Any

import pytest

from tacit.plan import METHODS
from tests.pages import ROOT

PAGE = ROOT / "docs" / "which-method.md"


def recorded_points() -> dict[str, str]:
    """What the decision table shows of each benchmark, as cells of its rows."""

    def load(name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())

    votes = {n: load(f"dp-hype/adult-iid-n{n}") for n in (50, 100, 250)}

    def lost(clients: int, epsilon: str) -> str:
        record = votes[clients]
        found = record["randguess"] if epsilon == "guess" else record["vote"][epsilon]
        return f"{100 * (record['opt']['mean'] - found['mean']):.1f}"

    measured = load("secure-sum")["points"]
    sums = {point["clients"]: point for point in measured if point["setting"] == "quiet"}
    vote_cost = {
        n: f"{point['upload_bytes_per_client'] / 1000:.1f} kB | {point['seconds']:.1f} s"
        for n, point in sums.items()
    }

    def combined(strategy: str) -> str:
        iid, skewed = (
            mean(
                100 * (row["chosen"]["gho"]["accuracy"] - row["chosen"][strategy]["accuracy"])
                for row in load("combine/combine")["rows"]
                if (row["skew"] == "iid") == even
            )
            for even in (True, False)
        )
        return f"{iid:.1f} lost iid, {skewed:.1f} skewed"

    encrypted = load("encrypted")
    sealed = {
        kind: next(row for row in encrypted[kind] if row["clients"] == 100)
        for kind in ("pf_mean", "pf_dbscan")
    }
    kilobytes = sealed["pf_mean"]["upload_bytes_per_client"] / 1e3
    megabytes = sealed["pf_dbscan"]["upload_bytes_per_client"] / 1e6
    feathers = load("feathers")
    five = {
        row["method"]: 100 * row["accuracy"]
        for row in feathers["table"]
        if row["clients"] == 5 and not row["skew"]
    }
    seconds = {
        name: mean(row["seconds"] for row in feathers["table"] if row["method"] == name)
        for name in five
    }
    (fraud,) = (row for row in feathers["fraud_table"] if row["epsilon"] == 3.5)
    rates = {
        row["method"]: 100 * row["best"]
        for row in load("adaptive")["table"]
        if row["random"] == 1.0
    }
    averages = load("averaging")["rows"]

    def noise_lost(clients: int, epsilon: float) -> float:
        private, plain = (
            mean(
                100 * row["accuracy"]
                for row in averages
                if (row["data"], row["clients"], float(row["epsilon"])) == ("mnist", clients, one)
            )
            for one in (epsilon, math.inf)
        )
        return float(plain - private)

    runs = {
        row["mean_runs"]: f"{row['accuracy']:.3f} ± {row['deviation']:.3f}"
        for row in load("selection")["rows"]
        if (row["data"], row["shape"]) == ("digits", "geometric")
    }
    fronts = load("pareto")
    volume = {
        search: mean(
            row["volumes"][-1]
            for row in fronts["rows"]
            if (row["problem"], row["acquisition"]) == ("logreg+sgd", search)
        )
        for search in ("nehvi", "random")
    }
    return {
        "250": f"| {lost(250, '0.25')} lost (Adult) | 0.25, clients | 1 or 2 | {vote_cost[250]} |",
        "100": f"| {lost(100, '1')} lost, {lost(100, '0.5')} at ε = 0.5 (Adult) | 1, clients | "
        f"1 or 2 | {vote_cost[100]} |",
        "50": f"| {lost(50, '1')} lost, {lost(50, '0.5')} at ε = 0.5 (Adult) | 1, clients | "
        f"1 or 2 | {vote_cost[50]} |",
        "guess": f"| `random-guess` | {lost(100, 'guess')} lost (Adult, 100 clients) | 0 |",
        "mean": f"| `combine`, `mean` | {combined('mean')} (84 settings) | ∞ |",
        "sealed mean": f"| {kilobytes:.0f} kB | {sealed['pf_mean']['seconds']:.1f} s, "
        "100 clients |",
        "dbscan": f"| `combine`, `dbscan`, `encrypted` | {combined('dbscan')} |",
        "sealed dbscan": f"| {megabytes:.1f} MB | {sealed['pf_dbscan']['seconds']:.1f} s, "
        "100 clients |",
        "flora": f"| `flora`, `sgm` | {combined('sgm')} | ∞ |",
        "fedex": f"| `fedex` | {five['fedavg'] - five['fedex']:.1f} lost against",
        "fedex time": f"| {seconds['fedex']:.0f} s | enough rounds",
        "feathers": f"| `feathers` | {five['fedavg'] - five['feathers']:.1f} lost likewise | "
        f"∞; F1 {fraud['f1']:.3f} at ε = 3.5 ",
        "feathers time": f"| {seconds['feathers']:.0f} s | hours",
        "adaptive": f"| `adaptive` | {rates['constant'] - rates['adaptive']:.1f} lost against",
        "averaging": f"| {noise_lost(1000, 2.0):.1f} lost to the noise (MNIST, linear) | 2, ",
        "few": f"| {noise_lost(100, 2.0):.1f} lost to the noise, {noise_lost(100, 8.0):.1f} at "
        "ε = 8 | 2, ",
        "selection": f"| accuracy {runs[6.72]} from about 7 runs, {runs[2.04]} from 2 (digits) ",
        "front": f"| hypervolume {volume['nehvi']:.3f} of at most 10, {volume['random']:.3f} at ",
        "front time": f"| {fronts['overhead']['nehvi']['seconds']:.0f} s for 272 settings |",
    }


@pytest.mark.parametrize(("row", "shown"), recorded_points().items())
def test_numbers_of_the_decision_table_are_recorded(row: str, shown: str) -> None:
    page = PAGE.read_text()
    assert page.count(shown) == 1, f"{row}: {shown}"


def test_every_method_of_a_plan_is_in_the_decision_table() -> None:
    page = PAGE.read_text()
    published = {"bandit", "darts", "feathers-published"}
    assert {name for name in METHODS if f"`{name}`" not in page} <= published
