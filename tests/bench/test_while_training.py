"""The benchmarks of tuning while training, on files that these tests write, and at tiny sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.bench import adaptive, feathers, feathers_runs, training_figures
from tacit.tuners.bandit import Stage
from tests.command_line import document, refusal, tacit
from tests.data.writers import FRAUD_HEADER, fraud_line, idx, pixels, write


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of the right formats: images whose class shows in their brightness, and rows."""
    folder = tmp_path_factory.mktemp("data")
    labels = np.arange(150) % 10
    grey = (pixels(150, 28, 28) // 8 + 20 * labels[:, None, None]).astype(np.uint8)
    for part, rows in (("train", slice(0, 100)), ("t10k", slice(100, 150))):
        write(folder / f"fashion-mnist/{part}-images-idx3-ubyte", idx(grey[rows]))
        write(folder / f"fashion-mnist/{part}-labels-idx1-ubyte", idx(labels[rows]))
    upright = (pixels(150, 32, 32, 3) // 8 + 20 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(
        folder / "cifar10_train10000_test2000.npz",
        x_train=upright[:100],
        y_train=labels[:100],
        x_test=upright[100:],
        y_test=labels[100:],
    )
    lines = [fraud_line(time=n, value=n % 5 + n / 1000, label=int(n % 5 == 4)) for n in range(200)]
    write(folder / "creditcard.csv", "\n".join([FRAUD_HEADER, *lines]).encode())
    return folder


TINY = replace(
    feathers_runs.QUICK,
    examples=60,
    test_examples=50,
    fraud_examples=140,
    fraud_clients=5,
    fraud_search=replace(feathers_runs.QUICK.fraud_search, train_rounds=1),
)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("feathers", ["feathers", "feathers without the bandit"]),
        ("darts", ["darts", "fedex"]),
        ("fedavg", ["fedavg"]),
    ],
)
def test_every_method_trains_on_images(data: Path, method: str, names: list[str]) -> None:
    rows = feathers_runs.one_image(TINY, data, 0, 4, True, method)
    assert [row["method"] for row in rows] == names
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    assert all("@" in row["architecture"] for row in rows)
    if method == "feathers":
        assert {note["what"] for note in rows[0]["history"]} == {"rewards", "training"}


@pytest.mark.parametrize("epsilon", [3.5, 250.0, math.inf])
def test_fraud_is_priced_or_says_that_it_is_not(data: Path, epsilon: float) -> None:
    row = feathers_runs.one_fraud(TINY, data, 0, epsilon)
    assert 0 <= row["f1"] <= 1
    if epsilon == 3.5:
        assert 3.0 < row["ledger_epsilon"] <= 3.5
    else:
        assert row["ledger_epsilon"] is None


def test_everybody_has_as_many_epochs() -> None:
    """Who spends some on rewards trains less: 2 x (3 x 4 + 5) in all."""
    stage = Stage(phases=2, drawn=4, most_rounds=3, train_rounds=5)
    assert feathers_runs.epochs_of(stage) == 34


def test_published_rewards_cost_more_than_they_claim() -> None:
    for epsilon in feathers_runs.EPSILONS[:-1]:
        row = feathers.published(feathers_runs.Setup(), epsilon)
        assert row["claimed"] == epsilon
        assert row["rewards_if_clipped"] > 3 * epsilon
    assert feathers.published(feathers_runs.Setup(), math.inf)["rewards_if_clipped"] is None


def image_rows(gain: float) -> list[dict[str, Any]]:
    better = {"feathers": gain, "feathers without the bandit": 0.0}
    return [
        {"seed": seed, "clients": clients, "skew": skew, "method": method, "seconds": 2.0}
        | {"accuracy": 0.5 + 0.01 * seed + better.get(method, 0.0)}
        for seed in range(3)
        for clients in (5, 20)
        for skew in (False, True)
        for method in (*feathers.METHODS, "feathers without the bandit")
    ]


def test_orderings_are_judged_by_their_intervals() -> None:
    found = {one["claim"]: one["verdict"] for one in feathers.claims(image_rows(0.1))}
    assert found["FEATHERS' model beats that of darts"] == "reproduced"
    assert found["fedex loses accuracy from 5 to 20 clients"] == "not reproduced"
    worse = {one["claim"]: one["verdict"] for one in feathers.claims(image_rows(-0.1))}
    assert worse["the bandit in the evaluation stage helps"] == "not reproduced: the opposite holds"


def test_tables_and_figures_are_means_over_seeds() -> None:
    rows = image_rows(0.1)
    table = feathers.table(rows)
    assert len(table) == 2 * 2 * 5
    assert table[0]["accuracy"] == pytest.approx(0.61)
    fraud = [{"epsilon": e, "f1": 0.1 * s, "seed": s} for e in (1.0, math.inf) for s in range(3)]
    told = feathers.fraud_table(fraud)
    assert [row["f1"] for row in told] == pytest.approx([0.1, 0.1])
    history = [{"what": "training", "config": {"learning_rate": 0.1}, "reward": None}] * 3
    result = {
        "rows": [{**row, "history": history} for row in rows],
        "fraud": fraud,
        "published": [feathers.published(feathers_runs.Setup(), e) for e in (1.0, math.inf)],
    }
    accuracy, _, over_time, f1 = training_figures.feathers(result)
    assert accuracy.figure.data[0].y[0] == pytest.approx(0.61)
    assert accuracy.table.count("<tr>") == 1 + len(rows)
    assert all(list(line.y) == [0.1] * 3 for line in over_time.figure.data)
    assert f1.figure.data[0].y[0] == pytest.approx(0.1)


@pytest.mark.parametrize("method", adaptive.METHODS)
def test_every_rate_trains_on_class_pairs(data: Path, method: str) -> None:
    setup = replace(adaptive.QUICK, examples=100, test_examples=50, rounds=1)
    found = adaptive.one(setup, data, 0, 0.0, method, 0.01)
    assert 0 <= found["accuracy"] <= 1
    assert (found["last_rate"] != 0.01) == method.startswith("adaptive")


def rate_rows(adaptive_span: float) -> list[dict[str, Any]]:
    spans = {"constant": 0.3, "adam": 0.3}
    return [
        {"seed": seed, "random": share, "method": method, "rate": rate, "seconds": 1.0}
        | {"accuracy": 0.4 + 0.001 * seed - spans.get(method, adaptive_span) * place}
        for seed in range(3)
        for share in (0.0, 1.0)
        for method in adaptive.METHODS
        for place, rate in enumerate((0.1, 1.0))
    ]


def test_spans_are_judged_by_their_intervals() -> None:
    steady = {one["claim"]: one["verdict"] for one in adaptive.claims(rate_rows(0.01))}
    claim = " data: over first rates of four decades the accuracy of adaptive spans less than 0.05"
    assert steady["random" + claim] == "reproduced"
    assert steady["random data: where a constant rate loses more than 0.2"] == "reproduced"
    loose = {one["claim"]: one["verdict"] for one in adaptive.claims(rate_rows(0.2))}
    assert loose["pathological" + claim] == "not reproduced: the opposite holds"
    table = adaptive.table(rate_rows(0.2))
    assert table[0]["best"] == pytest.approx(0.401)
    assert table[0]["span"] == pytest.approx(0.2)
    plots = training_figures.adaptive({"rows": rate_rows(0.2)})
    assert [len(plot.figure.data) for plot in plots] == [5, 10]


def test_averaging_books_what_it_says_and_goes_on(tmp_path: Path) -> None:
    command = ("bench", "averaging", "--quick", "--out", tmp_path / "a")
    found = document(tacit(*command, "--json"))
    private, clear = found["rows"]
    assert private["ledger_epsilon"] <= 8
    assert math.isinf(float(clear["ledger_epsilon"]))
    assert 0.3 < private["accuracy"] <= clear["accuracy"] + 0.1
    assert "Private federated averaging" in (tmp_path / "a" / "averaging.html").read_text()
    again = tacit(*command)
    assert "in every direction" in " ".join(again.stdout.split())
    after = document(tacit(*command, "--json"))
    assert after["rows"] == found["rows"], "nothing was trained again"


def test_wrong_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    both = tacit("bench", "feathers", "--quick", "--full", folder=tmp_path)
    assert "found --quick and --full; allowed is one" in refusal(both)
    (tmp_path / "empty").mkdir()
    missing = tacit("bench", "adaptive", "--data-dir", tmp_path / "empty", folder=tmp_path)
    assert "cifar" in refusal(missing).lower()
    assert not (tmp_path / "tacit-runs").exists()
