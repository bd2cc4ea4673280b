from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit import torch_task, ways
from tacit.data.examples import Examples
from tacit.dense import Dense
from tacit.grids import grid
from tacit.modules import Module
from tacit.sgd import HYPERPARAMETERS, columns
from tacit.space import Config
from tacit.ways import (
    Architecture,
    Part,
    Way,
    epoch_of,
    families,
    fastest,
    gradient_descent,
    network_arguments,
    pieces,
)
from tests.test_sgd import blobs, mlp
from tests.test_torch_task import CONFIGS, Build, both, convolution, searches, some_digits, task_of

steadily = settings(derandomize=True, deadline=None, max_examples=150)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Parallel test workers whose threads outnumber the cores wait more than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CORES", "1")
        yield
    torch.set_num_threads(threads)


STACKABLE = Architecture.of(mlp(300, 300), 3)
OTHER = Architecture.of(
    nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ),
    3,
)
ARCHITECTURES = {"dense": STACKABLE, "convolution": OTHER}
WAYS = (
    Way(True, 1, 1, 100),
    Way(True, 1, 1, 1),
    Way(True, 2, 1, 2),
    Way(False, 1, 1, 100),
    Way(False, 2, 1, 3),
    Way(False, 4, 1, 100),
)


def possible(cores: int, name: str, candidates: int, batch: int, megabytes: int) -> list[Way]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "cores", lambda: cores)
        return ways._possible(ARCHITECTURES[name], candidates, batch, megabytes)


@given(
    st.integers(1, 64),
    st.sampled_from(sorted(ARCHITECTURES)),
    st.integers(1, 200),
    st.integers(1, 256),
    st.integers(1, 64),
)
@steadily
def test_no_way_uses_more_cores_or_memory_than_there_are(
    cores: int, name: str, candidates: int, batch: int, megabytes: int
) -> None:
    found = possible(cores, name, candidates, batch, megabytes)
    assert len(found) == len(set(found)) >= 1
    each = ARCHITECTURES[name].bytes_a_candidate(batch)
    for way in found:
        assert 1 <= way.workers * way.threads <= cores
        assert way.workers <= candidates
        assert 1 <= way.stack <= candidates
        assert way.stack == 1 or each * way.stack * way.workers <= megabytes * 2**20
        assert way.stacked == (name == "dense")


@given(st.integers(1, 64), st.sampled_from(sorted(ARCHITECTURES)), st.integers(1, 200))
@steadily
def test_one_way_has_all_cores_as_workers_and_one_as_threads(
    cores: int, name: str, candidates: int
) -> None:
    shapes = {(way.workers, way.threads) for way in possible(cores, name, candidates, 8, 1024)}
    assert shapes >= {(1, 1), (min(cores, candidates), 1)}
    assert shapes <= {(1, 1), (1, cores), (min(cores, candidates), 1)}


def test_small_steps_of_dense_nets_get_no_threads_of_torch() -> None:
    def threads(name: str, batch: int) -> set[int]:
        return {way.threads for way in possible(4, name, 10, batch, 1024)}

    assert threads("dense", batch=4) == {1}
    assert threads("dense", batch=64) == {1, 4}, "92,703 weights x 10 candidates x 64 rows"
    assert 4 in threads("convolution", batch=8)


def test_memory_limits_the_stacks() -> None:
    weights = 5 * 300 + 300 + 300 * 300 + 300 + 300 * 3 + 3
    between = 100 * (300 + 300 + 3)
    assert STACKABLE.bytes_a_candidate(batch=100) == 4 * (4 * weights + 3 * between)
    sizes = {
        megabytes: max(way.stack for way in possible(1, "dense", 100, 100, megabytes))
        for megabytes in (1, 10, 1000)
    }
    assert sizes == {1: 1, 10: 4, 1000: 100}
    numbers = 3 * 4 + 4 + 12 * 3 + 3
    assert OTHER.bytes_a_candidate(batch=100) == OTHER.bytes_a_candidate(batch=1) == 16 * numbers


def test_large_stacks_compete_with_small_ones() -> None:
    assert [way.stack for way in possible(1, "dense", 100, 8, 1024)] == [25, 100]
    assert [way.stack for way in possible(1, "dense", 20, 8, 1024)] == [20]


@st.composite
def divisions(draw: st.DrawFn) -> tuple[list[Config], Way]:
    rates = st.sampled_from([0.1, 0.2, 0.3])
    decays = st.sampled_from([0.0, 0.5, 1.0])
    pairs = st.lists(st.tuples(rates, decays), min_size=1, max_size=60)
    way = st.builds(Way, st.booleans(), st.integers(1, 20), st.just(1), st.integers(1, 30))
    return [{"learning_rate": r, "decay": d} for r, d in draw(pairs)], draw(way)


@given(divisions())
@steadily
def test_pieces_hold_every_candidate_once_and_none_is_too_large(
    division: tuple[list[Config], Way],
) -> None:
    configs, way = division
    found = pieces(columns(configs, {}), way, len(configs))
    assert sorted(np.concatenate(found).tolist()) == list(range(len(configs)))
    assert all(1 <= len(piece) <= way.stack for piece in found)
    assert len(found) >= min(way.workers, len(configs)) or not way.stacked
    if way.stacked:
        assert len(found) == way.pieces(len(configs))


@given(divisions())
@steadily
def test_families_stay_together_where_every_worker_has_one(
    division: tuple[list[Config], Way],
) -> None:
    configs, way = division
    rates_of_all = {config["learning_rate"] for config in configs}
    found = pieces(columns(configs, {}), Way(False, way.workers, 1, stack=100), len(configs))
    rates = [{configs[candidate]["learning_rate"] for candidate in piece} for piece in found]
    if len(rates_of_all) >= way.workers:
        assert sorted(rates, key=str) == sorted([{rate} for rate in rates_of_all], key=str)
    else:
        assert len(found) == min(way.workers, len(configs))


def test_pieces_of_the_grid_of_dp_hype() -> None:
    knobs = columns(grid("dp-hype-table"), {})
    assert [len(piece) for piece in pieces(knobs, Way(False, 2, 1, 50), 100)] == [5] * 20
    assert [len(piece) for piece in pieces(knobs, Way(False, 2, 1, 3), 100)] == [3, 2] * 20
    assert [len(piece) for piece in pieces(knobs, Way(True, 2, 1, 50), 100)] == [50, 50]
    assert [len(piece) for piece in pieces(knobs, Way(True, 2, 1, 30), 100)] == [25] * 4
    assert families(knobs) == 20  # one epoch of 20 models fits into one stack of 25
    assert [len(piece) for piece in pieces(knobs, Way(True, 1, 2, 25), 20)] == [100]
    for piece in pieces(knobs, Way(True, 2, 1, 50), 100):
        assert len(np.unique(knobs[piece, :-1], axis=0)) == 10


@pytest.mark.parametrize("winner", range(6))
def test_the_trial_takes_the_fastest(monkeypatch: pytest.MonkeyPatch, winner: int) -> None:
    monkeypatch.setattr(ways, "cores", lambda: 2)
    expected = ways._possible(STACKABLE, 100, 8, 1024)[winner]
    measured: list[tuple[Way, int, int]] = []

    def speed(architecture: Architecture, way: Way, examples: Examples, batch: int) -> float:
        assert architecture is STACKABLE
        measured.append((way, len(examples), batch))
        return 10.0 if way == expected else 5.0

    monkeypatch.setattr(ways, "_speed", speed)
    way, speeds = fastest(STACKABLE, 100, blobs(20), 8, 1024)
    assert way == expected
    assert speeds[expected] == 10.0
    assert sorted(speeds.values()) == [5.0] * (len(speeds) - 1) + [10.0]
    assert [way for way, *_ in measured] == ways._possible(STACKABLE, 100, 8, 1024)
    assert {(rows, batch) for _, rows, batch in measured} == {(20, 8)}


def test_a_single_way_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "cores", lambda: 1)
    monkeypatch.setattr(ways, "_speed", lambda *_: pytest.fail("there is nothing to compare"))
    assert fastest(OTHER, 100, blobs(20), 8, 1024) == (Way(False, 1, 1, 100), {})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_trial_counts_steps_of_candidates_a_second(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A clock that says every run takes 2 seconds; at most 3 batches of 8 are tried."""
    ticks = iter(np.arange(0.0, 100.0, 2.0).tolist())
    monkeypatch.setattr(ways, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    seen: list[int] = []
    real = epoch_of

    def watched(examples: Examples, batch: int, seed: tuple[int, ...]) -> object:
        seen.append(len(examples))
        return real(examples, batch, seed)

    monkeypatch.setattr(ways, "epoch_of", watched)
    architecture = ARCHITECTURES[name]
    way = Way(architecture.dense is not None, 2, 1, 4)
    models = 2 * 4 if architecture.dense else 2
    assert ways._speed(architecture, way, blobs(90), 8) == models * 3 / 2
    assert ways._speed(architecture, way, blobs(10), 8) == models * 2 / 2
    assert seen == [24, 10]
    for array, start in zip(architecture.module.weights(), architecture.start, strict=True):
        assert np.array_equal(array, start)


def test_an_architecture_knows_how_it_can_train() -> None:
    stacked, in_turn = Way(True, 1, 1, 5), Way(False, 1, 1, 5)
    assert STACKABLE.net(stacked) == Dense(5, (300, 300), 3)
    assert isinstance(STACKABLE.net(in_turn), Module)
    assert isinstance(OTHER.net(stacked), Module)
    assert (STACKABLE.why_not, OTHER.why_not) == ("", "Unflatten cannot be stacked")


def test_a_network_with_another_number_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="gives 3 logits; it must give one a class: 10"):
        Architecture.of(mlp(6), 10)


def test_a_part_begins_with_its_candidates_only() -> None:
    configs: list[Config] = [{"learning_rate": rate, "width": 6} for rate in (0.1, 0.2, 0.3)]
    chosen, knobs = np.array([2, 0]), columns([gradient_descent(c) for c in configs], {})
    part = Part(Architecture.of(mlp(6), 3), Way(True, 1, 1, 5), chosen, knobs[chosen])
    stack = part.begin()
    assert stack.knobs[:, 0].tolist() == [0.3, 0.1]
    own = tuple(array.repeat(2, axis=0) + 1 for array in part.architecture.start)
    for found, expected in zip(part.begin(own).weights(), own, strict=True):
        assert np.array_equal(found, expected)


def test_a_configuration_is_divided_between_network_and_training() -> None:
    config: Config = {"width": 6, "decay": 0.5, "depth": 2, "learning_rate": 0.1}
    assert gradient_descent(config) == {"decay": 0.5, "learning_rate": 0.1}
    assert list(network_arguments(config).items()) == [("depth", 2), ("width", 6)]
    assert network_arguments(dict(HYPERPARAMETERS)) == {}


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (Way(True, 2, 1, 50), "2 x 50 candidates stacked, on 2 cores"),
        (Way(True, 1, 1, 25), "1 x 25 candidates stacked, on 1 core"),
        (Way(False, 4, 1, 25), "one candidate a core, on 4 cores"),
        (Way(False, 1, 4, 25), "one candidate after the other, on 4 cores"),
        (Way(False, 1, 1, 25), "one candidate after the other, on 1 core"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_way_says_what_it_is(way: Way, text: str) -> None:
    assert str(way) == text


def force(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    def forced(*_given: object) -> tuple[Way, dict[Way, float]]:
        return way, {way: 1.0}

    monkeypatch.setattr(torch_task, "fastest", forced)


@both
@searches
def test_scores_do_not_depend_on_the_way(
    monkeypatch: pytest.MonkeyPatch, build: Build, local: str
) -> None:
    more: list[Config] = [{"learning_rate": 0.1 + n / 40, "decay": 0.9} for n in range(5)]
    configs = [*CONFIGS, *more]
    expected = task_of(build, local=local).client(*some_digits(), seed=7).score_many(configs)
    for way in WAYS:
        force(monkeypatch, way)
        task = task_of(build, local=local)
        found = task.client(*some_digits(), seed=7).score_many(configs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=str(way))
        assert task.report()["ways"] == [str(way)]


@both
@pytest.mark.parametrize("stacked", [True, False])
def test_torchs_own_threads_give_the_same_scores(
    monkeypatch: pytest.MonkeyPatch, build: Build, stacked: bool
) -> None:
    """One step only: where other processes compute, torch's threads wait for each other."""
    expected = (
        task_of(build, epochs=1, batch=120).client(*some_digits(), seed=7).score_many(CONFIGS[:2])
    )
    force(monkeypatch, Way(stacked, 1, 2, 2))
    found = (
        task_of(build, epochs=1, batch=120).client(*some_digits(), seed=7).score_many(CONFIGS[:2])
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert torch.get_num_threads() == 1


def test_the_report_says_what_was_measured_and_why_nothing_was_stacked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ways, "cores", lambda: 2)
    monkeypatch.setattr(ways, "_speed", lambda _net, way, *_: 3.0 * way.workers)
    task = task_of(convolution, local="halving")
    assert task.report()["ways"] == task.report()["not_stacked_because"] == []
    with caplog.at_level(logging.INFO, "tacit.torch_task"):
        for seed in range(3):
            task.client(*some_digits(), seed=seed).score_many(CONFIGS[:2])
    assert task.report() == {
        "local": "halving",
        "ways": ["one candidate a core, on 2 cores"],
        "trials": {
            "one candidate after the other, on 1 core": 3.0,
            "one candidate after the other, on 2 cores": 3.0,
            "one candidate a core, on 2 cores": 6.0,
        },
        "not_stacked_because": ["Conv2d cannot be stacked"],
    }
    assert caplog.messages == ["candidates train one by one: Conv2d cannot be stacked"]


def test_a_trial_is_held_once_a_task_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(_net: object, candidates: int, *_given: object) -> tuple[Way, dict[Way, float]]:
        sizes.append(candidates)
        return Way(True, 1, 1, candidates), {}

    monkeypatch.setattr(torch_task, "fastest", watched)
    task = task_of(epochs=1)
    for count in (1, 3, 4, 5, 7, 120, 150):
        task.client(*some_digits(), seed=count).score_many([{"learning_rate": 0.1}] * count)
    assert sizes == [1, 5, 10, 100]
    most_first = [f"1 x {size} candidates stacked, on 1 core" for size in (100, 10, 5, 1)]
    assert task.report()["ways"] == most_first
