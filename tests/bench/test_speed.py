from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from tacit.bench import plain_loop, speed
from tacit.bench.plain_loop import race, random_examples, sklearn_loop, sobol, torch_loop
from tacit.networks import network
from tacit.sklearn_task import SklearnTask
from tacit.space import Config
from tacit.torch_task import TorchTask

TINY = speed.Setup(
    models=(
        speed.Model("adult", "dp-hype-adult", (6,), 2, rows=20, epochs=2, batch=8),
        speed.Model("mnist-cnn", "dp-hype-mnist", (1, 8, 8), 3, rows=8, epochs=1, batch=4),
    ),
    repetitions=1,
    clients=2,
    candidates=8,
    sklearn_rows=30,
    halving=(("digits", "mlp", 10),),
    epochs=3,
    matrix=64,
)

RECORDED = json.loads((Path(__file__).parents[2] / "benchmarks" / "speed.json").read_text())
"""For rows that nobody measures here."""


def raced(name: str, ratio: float) -> dict[str, Any]:
    return {**RECORDED["rows"][0], "model": name, "ratio": ratio}


def halved(ratio: float) -> dict[str, Any]:
    return {**RECORDED["halving"][0], "ratio": ratio}


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share the machine; threads that wait for each other would take all of it."""
    monkeypatch.setenv("TACIT_CORES", "1")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CORES", "1")
        return speed.measure(TINY, None, tmp_path_factory.mktemp("speed"), quiet)


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def convolution() -> nn.Module:
    return network("dp-hype-mnist").build((1, 8, 8), 3)


@pytest.mark.parametrize(("build", "shape"), [(dense, (6,)), (convolution, (1, 8, 8))])
def test_plain_loop_has_our_scores(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    train, validation = (random_examples(shape, 3, rows, seed=rows) for rows in (21, 12))
    configs: list[Config] = [
        {"learning_rate": 0.2, "momentum": 0.9, "decay": 0.5},
        {"learning_rate": 0.1, "decay": 0.0},
        {"weight_decay": 0.01},
    ]
    client = TorchTask(build, 3, epochs=3, batch=8, start_seed=4).client(train, validation, seed=5)
    loss, accuracy = client.measure_many(configs)
    plain = torch_loop(
        build, train, validation, configs, epochs=3, batch=8, seed=5, start_seed=4, threads=1
    )
    np.testing.assert_allclose(plain[0], loss, rtol=1e-5)
    np.testing.assert_allclose(plain[1], accuracy, rtol=1e-6)


def test_plain_loop_gives_torchs_threads_back() -> None:
    before = torch.get_num_threads()
    examples = random_examples((6,), 3, 4, seed=1)
    torch_loop(dense, examples, examples, [{}], epochs=1, batch=4, seed=1, threads=before + 1)
    assert torch.get_num_threads() == before


def test_plain_loop_refuses_what_it_would_ignore() -> None:
    examples = random_examples((6,), 3, 4, seed=1)
    with pytest.raises(ValueError, match="the plain loop has learning_rate, momentum"):
        torch_loop(
            dense, examples, examples, [{"dropout": 0.1}], epochs=1, batch=4, seed=1, threads=1
        )


def test_plain_sklearn_loop_has_our_scores() -> None:
    train, validation = (random_examples((6,), 3, rows, seed=rows) for rows in (40, 20))
    estimator = LogisticRegression(max_iter=500)
    configs: list[Config] = [{"C": 0.01}, {"C": 1.0}]
    loss, accuracy = sklearn_loop(estimator, train, validation, configs, threads=1)
    for metric, found in (("loss", loss), ("error", 1 - accuracy)):
        task = SklearnTask(estimator, metric=metric)
        expected = task.client(train, validation, seed=1).score_many(configs)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_flops_of_a_dense_net_are_those_of_its_products() -> None:
    first, second = 6 * 5, 5 * 3
    assert speed.flops(dense(), (6,)) == (4 * first + 6 * second, 2 * (first + second))


def test_flops_of_a_convolution_count_every_place_of_the_kernel() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.Conv2d(3, 5, 3, padding=1),
        nn.Flatten(),
        nn.Linear(180, 2),
    )
    first, second, last = 6 * 6 * 3 * 9, 6 * 6 * 5 * 3 * 9, 180 * 2
    training, evaluation = speed.flops(module, (1, 8, 8))
    assert evaluation == 2 * (first + second + last)
    assert training == 4 * first + 6 * (second + last)


def test_random_examples_have_every_class() -> None:
    assert set(random_examples((2,), 7, 9, seed=3).labels.tolist()) == set(range(7))
    assert len(random_examples((2,), 7, 4, seed=3)) == 4


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        self.now += seconds
        self.order.append(name)
        return np.ones(2)


def test_a_race_alternates_and_takes_the_better_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(plain_loop, "time", clock)
    monkeypatch.setattr(plain_loop, "cores", lambda: 2)
    ours, alone, together = iter([4.0, 2.0]), iter([9.0, 8.0]), iter([7.0, 6.0])
    found = race(
        lambda: clock.work("ours", next(ours)),
        lambda threads: clock.work(f"plain {threads}", next(alone if threads == 1 else together)),
        repetitions=2,
    )
    assert (found.seconds, found.plain_seconds, found.threads, found.ratio) == (2.0, 6.0, 2, 3.0)
    assert clock.order == ["ours", "plain 1", "plain 2"] * 2


def test_short_races_are_repeated_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(plain_loop, "time", clock)
    lap = plain_loop.A_WHILE / 10
    race(
        lambda: clock.work("ours", lap / 4),
        lambda _: clock.work("plain", lap * 3 / 4),
        repetitions=3,
        threads=1,
    )
    assert clock.order == ["ours", "plain"] * 10


def test_diverged_on_both_sides_is_the_same() -> None:
    ours, plain = np.array([1.0, np.inf]), np.array([1.0, np.nan])
    assert race(lambda: ours, lambda _: plain, repetitions=1, threads=1).difference == 0
    finite = np.array([1.0, 2.0])
    assert race(lambda: ours, lambda _: finite, repetitions=1, threads=1).difference == math.inf
    near = np.array([1.0, 2.5])
    assert race(lambda: near, lambda _: finite, repetitions=1, threads=1).difference == 0.25


def test_every_row_is_whole_and_consistent(measured: dict[str, Any]) -> None:
    json.dumps(measured, allow_nan=False)
    adult, cnn, sklearn = measured["rows"]
    assert [row["model"] for row in measured["rows"]] == ["adult", "mnist-cnn", "sklearn"]
    for row in measured["rows"]:
        assert row["ratio"] == row["plain_seconds"] / row["seconds"]
        assert row["agrees"] < 1e-4
        assert row["candidates"] == 8
        assert row["way"]
    assert (sklearn["share_of_peak"], sklearn["epochs"], sklearn["batch"]) == (None, None, None)
    assert (adult["rows"], adult["epochs"], adult["batch"]) == (20, 2, 8)
    assert "stacked" in adult["way"]
    assert "one candidate" in cnn["way"]
    assert cnn["shared_epochs_ratio"] == (
        cnn["shared_epochs_plain_seconds"] / cnn["shared_epochs_seconds"]
    )
    products = 6 * 64, 64 * 64 + 64 * 2
    work = 8 * (2 * 20 * (4 * products[0] + 6 * products[1]) + 5 * 2 * sum(products))
    speed_of_adult = work / adult["seconds"] / 1e9
    assert adult["gflops_per_second"] == pytest.approx(speed_of_adult)
    assert adult["share_of_peak"] == pytest.approx(speed_of_adult / adult["peak_gflops_per_second"])


def test_halving_that_gives_nobody_up_agrees(measured: dict[str, Any]) -> None:
    """Halving never goes below ten candidates, and there are eight."""
    rows = measured["halving"]
    assert [(row["data"], row["space"], row["cores"]) for row in rows] == [
        ("digits", "dp-hype-table", 1),
        ("digits", "sobol", 1),
    ]
    assert (rows[1]["agreement"], rows[1]["agreement_with_ties"]) == (1.0, 1.0)
    for row in rows:
        assert row["clients"] == 2
        assert row["ratio"] == row["seconds_full"] / row["seconds_halving"]


def refuse(*_given: object) -> dict[str, Any]:
    raise AssertionError("measured again")


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def killed(model: speed.Model, _setup: speed.Setup) -> dict[str, Any]:
        if done:
            raise KeyboardInterrupt
        done.append(model.name)
        return raced(model.name, 7.0)

    monkeypatch.setattr(speed, "_torch_row", killed)
    with pytest.raises(KeyboardInterrupt):
        speed.measure(TINY, None, tmp_path, quiet)

    monkeypatch.setattr(speed, "_sklearn_row", lambda _: raced("sklearn", 1.0))
    monkeypatch.setattr(speed, "_halving_row", lambda *_: halved(1.0))
    monkeypatch.setattr(speed, "_torch_row", lambda model, _: raced(model.name, 2.0))
    resumed = speed.measure(TINY, None, tmp_path, quiet)
    assert [row["ratio"] for row in resumed["rows"]] == [7.0, 2.0, 1.0]
    assert resumed["resumed"] == 1

    for name in ("_torch_row", "_sklearn_row", "_halving_row"):
        monkeypatch.setattr(speed, name, refuse)
    again = speed.measure(TINY, None, tmp_path, quiet)
    assert (again["rows"], again["halving"]) == (resumed["rows"], resumed["halving"])


def test_missing_data_is_said_and_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = speed.Setup((), 1, 1, halving=(("adult", "dp-hype-adult", 100),))
    monkeypatch.setattr(speed, "_sklearn_row", lambda _: raced("sklearn", 1.0))
    empty = tmp_path / "nothing"
    empty.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty))
    rows = speed.measure(setup, empty, tmp_path, quiet)["halving"]
    assert [(row["data"], row["space"]) for row in rows] == [
        ("adult", "dp-hype-table"),
        ("adult", "sobol"),
    ]
    assert all("adult lacks" in row["skipped"] for row in rows)

    monkeypatch.setattr(speed, "_halving_row", lambda *_: halved(3.0))
    rows = speed.measure(setup, empty, tmp_path, quiet)["halving"]
    assert [row["ratio"] for row in rows] == [3.0, 3.0]


def test_a_comparison_of_different_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_batches(*given: Any, seed: int, **settings: Any) -> Any:
        return torch_loop(*given, seed=seed + 1, **settings)

    monkeypatch.setattr(speed, "torch_loop", other_batches)
    with pytest.raises(RuntimeError, match="do not do the same work"):
        speed._torch_row(TINY.models[0], TINY)


def test_both_sizes_have_a_hundred_candidates_and_the_papers_nets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "measure", lambda setup, *_: {"setup": setup})
    for quick, clients, rows in ((True, 2, 128), (False, 20, 480)):
        found = speed.run(quick, None, tmp_path, quiet)
        assert (found["bench"], found["quick"]) == ("speed", quick)
        assert (found["setup"].candidates, found["setup"].clients) == (100, clients)
        adult, mlp, _ = found["setup"].models
        assert [layer.out_features for layer in adult.build() if isinstance(layer, nn.Linear)] == [
            64,
            64,
            2,
        ]
        assert (adult.rows, mlp.rows, mlp.epochs, mlp.batch) == (260, rows, 5, 64)


def test_sobol_candidates_share_no_first_epoch() -> None:
    first_epochs = {
        tuple(value for name, value in config.items() if name != "decay") for config in sobol(100)
    }
    assert len(first_epochs) == 100
