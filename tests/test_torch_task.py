from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import sgd, torch_task, ways
from tacit.data.examples import Dataset, Examples, split_validation
from tacit.data.sources import digits
from tacit.grids import grid
from tacit.modules import draw
from tacit.sgd import Floats, Stack
from tacit.space import Config
from tacit.torch_task import TorchClient, TorchTask
from tacit.ways import Way, epoch_of
from tests.test_sgd import plain_loop

CONFIGS: Sequence[Config] = (
    {},
    {"learning_rate": 0.5},
    {"learning_rate": 0.2, "momentum": 0.9},
    {"learning_rate": 0.3, "decay": 0.5},
    {"learning_rate": 0.3, "decay": 0.0},
    {"learning_rate": 0.1, "weight_decay": 0.1},
    {"learning_rate": 0.2, "dropout": 0.5, "decay": 0.8},
)
WAYS = (
    Way(True, 1, 1, 100),
    Way(True, 1, 1, 1),
    Way(True, 1, 2, 3),
    Way(True, 2, 1, 2),
    Way(False, 1, 1, 100),
    Way(False, 1, 2, 1),
    Way(False, 2, 1, 3),
    Way(False, 4, 1, 100),
)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parallel test workers whose threads outnumber the cores wait more than they compute."""
    monkeypatch.setenv("TACIT_CORES", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return digits()


@pytest.fixture(scope="module")
def own(data: Dataset) -> tuple[Examples, Examples]:
    return split_validation(data.train.take(np.arange(150)), 0.2, np.random.default_rng(0))


def net(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Dropout(0.0),
        nn.Linear(width, 10),
    )


def convolution(filters: int = 2) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, filters, 3),
        nn.ReLU(),
        nn.Dropout(0.0),
        nn.Flatten(),
        nn.Linear(36 * filters, 10),
    )


def task_of(build: Callable[..., nn.Module] = net, **settings: Any) -> TorchTask:
    return TorchTask(build, 10, **{"epochs": 3, "batch": 16, "metric": "loss", **settings})


def force(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    def forced(*_given: object) -> tuple[Way, dict[Way, float]]:
        return way, {way: 1.0}

    monkeypatch.setattr(torch_task, "fastest", forced)


@pytest.mark.parametrize("build", [net, convolution])
@pytest.mark.parametrize("metric", ["loss", "error"])
def test_scores_are_those_of_a_plain_loop_of_torch(
    own: tuple[Examples, Examples], build: Callable[..., nn.Module], metric: str
) -> None:
    task = task_of(build, metric=metric, start_seed=4)
    scores = task.client(*own, seed=7).score_many(CONFIGS)
    epochs = [epoch_of(own[0], 16, (7, 0, number)) for number in range(3)]
    features, labels = torch.tensor(own[1].features), torch.tensor(own[1].labels)
    for config, score in zip(CONFIGS, scores, strict=True):
        module = plain_loop(draw(build, 4), config, epochs, batch=16)
        with torch.no_grad():
            logits = module(features)
        loss = nn.functional.cross_entropy(logits, labels).item()
        error = (logits.argmax(1) != labels).double().mean().item()
        expected = loss if metric == "loss" else error + loss / (1 + loss) / len(labels)
        assert score == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("build", [net, convolution])
@pytest.mark.parametrize("local", ["full", "halving"])
def test_scores_do_not_depend_on_the_way(
    own: tuple[Examples, Examples],
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[..., nn.Module],
    local: str,
) -> None:
    configs = [*CONFIGS, *({"learning_rate": 0.1 + n / 40, "decay": 0.9} for n in range(8))]
    expected = task_of(build, local=local).client(*own, seed=7).score_many(configs)
    for way in WAYS:
        force(monkeypatch, way)
        task = task_of(build, local=local)
        found = task.client(*own, seed=7).score_many(configs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=str(way))
        assert task.report()["ways"] == [str(way)]


@pytest.mark.parametrize("build", [net, convolution])
def test_a_score_does_not_depend_on_the_other_configurations(
    own: tuple[Examples, Examples], build: Callable[..., nn.Module]
) -> None:
    client = task_of(build).client(*own, seed=7)
    scores = client.score_many(CONFIGS)
    assert scores.shape == (len(CONFIGS),)
    for config, score in zip(CONFIGS, scores, strict=True):
        assert client.score(config) == pytest.approx(score, rel=1e-5)
    backwards = client.score_many(CONFIGS[::-1])
    np.testing.assert_allclose(backwards[::-1], scores, rtol=1e-5)
    assert client.score_many([]).shape == (0,)


def test_halving_finds_a_candidate_that_is_among_the_best(own: tuple[Examples, Examples]) -> None:
    configs = grid("dp-hype-table")
    full, halving = (
        task_of(epochs=5, metric="error", local=local).client(*own, seed=7).score_many(configs)
        for local in ("full", "halving")
    )
    rank = full.argsort().argsort()
    assert rank[halving.argmin()] < 5
    assert len(set(halving.argsort()[:5]) & set(full.argsort()[:5])) >= 3
    assert (halving != full).sum() > 50  # and most were given up


def test_architectures_can_be_mixed(own: tuple[Examples, Examples]) -> None:
    client = task_of().client(*own, seed=7)
    configs: list[Config] = [
        {"width": width, "learning_rate": rate} for rate in (0.1, 0.5) for width in (8, 16, 40)
    ]
    scores = client.score_many(configs)
    assert len(set(scores)) == 6
    for config, score in zip(configs, scores, strict=True):
        width = config["width"]
        assert isinstance(width, int)
        fixed = task_of(lambda width=width: net(width)).client(*own, seed=7)
        alone = fixed.score({"learning_rate": config["learning_rate"]})
        assert score == pytest.approx(alone, rel=1e-5)
    assert client.score({"learning_rate": 0.1}) == pytest.approx(scores[1], rel=1e-5)
    halving = task_of(local="halving").client(*own, seed=7).score_many(configs)
    np.testing.assert_allclose(halving, scores, rtol=1e-5)  # fewer than ten: nobody is given up


@pytest.mark.parametrize("local", ["full", "halving"])
def test_little_memory_gives_the_same_scores(
    own: tuple[Examples, Examples], monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    """154 kB a candidate with its velocities: 40 do not fit into 1 MB, at rungs they train anew."""
    configs: list[Config] = [{"learning_rate": 0.01 * 1.1**number} for number in range(40)]
    alive: weakref.WeakSet[Stack] = weakref.WeakSet()
    largest: dict[int, int] = {}
    trained: dict[int, int] = {}
    train = Stack.train

    def watched(stack: Stack, epoch: sgd.Epoch) -> int:
        alive.add(stack)
        largest[megabytes] = max(largest.get(megabytes, 0), sum(s.bytes() for s in alive))
        models = train(stack, epoch)
        trained[megabytes] = trained.get(megabytes, 0) + models
        return models

    monkeypatch.setattr(Stack, "train", watched)
    found = {}
    for megabytes in (1, 1024):
        task = task_of(lambda: net(256), epochs=5, local=local, memory_megabytes=megabytes)
        found[megabytes] = task.client(*own, seed=7).score_many(configs)
    np.testing.assert_allclose(found[1], found[1024], rtol=1e-4)
    assert largest[1] < 3 * 2**20 < 6 * 2**20 < largest[1024]
    if local == "full":
        assert trained == {1: 200, 1024: 200}
    else:
        assert trained[1024] == 40 + 14 + 10 + 10 + 10 < trained[1] < 200


@pytest.mark.parametrize("local", ["full", "halving"])
@pytest.mark.parametrize("metric", ["loss", "error"])
def test_a_diverged_candidate_scores_infinite_and_disturbs_nobody(
    own: tuple[Examples, Examples], local: str, metric: str
) -> None:
    client = task_of(local=local, metric=metric).client(*own, seed=7)
    good: Config = {"learning_rate": 0.2}
    bad: list[Config] = [{"learning_rate": 1e30}, {"learning_rate": 0.1, "decay": 1e200}]
    scores = client.score_many([bad[0], good, bad[1]])
    assert np.isinf(scores).tolist() == [True, False, True]
    assert scores[1] == pytest.approx(client.score(good), rel=1e-5)
    assert np.isinf(client.score_many(bad)).all()


def test_a_good_learning_rate_beats_useless_ones(
    data: Dataset, own: tuple[Examples, Examples]
) -> None:
    client = task_of(epochs=5).client(*own, seed=7)
    configs: list[Config] = [{"learning_rate": rate} for rate in (1e-5, 0.3, 1e30)]
    slow, good, diverged = client.score_many(configs)
    assert good < 1.5 < slow < diverged
    trained = client.train_many(configs, client.task.initial(3), epochs=5, round_number=0)
    accuracy = client.validate_many(trained)
    assert accuracy[1] > 0.5 > accuracy[0]
    assert accuracy[2] == 0
    assert client.task.accuracies(trained, data.test)[1] > 0.5
    losses, by_scores = client.measure_many(configs)
    assert accuracy.tolist() == by_scores.tolist()
    assert losses.tolist() == [slow, good, diverged]


def test_own_seed_orders_the_batches_and_start_seed_draws_the_start(
    own: tuple[Examples, Examples],
) -> None:
    score = task_of().client(*own, seed=7).score({})
    assert task_of().client(*own, seed=7).score({}) == score
    assert task_of().client(*own, seed=8).score({}) != score
    assert task_of(start_seed=1).client(*own, seed=7).score({}) != score


@pytest.mark.parametrize("build", [net, convolution])
def test_rounds_continue_from_given_weights_in_a_new_order(
    own: tuple[Examples, Examples], build: Callable[..., nn.Module]
) -> None:
    client = task_of(build).client(*own, seed=7)
    start = client.task.initial(len(CONFIGS))
    kept = [array.copy() for array in start]
    first, again, other = (client.train_many(CONFIGS, start, 1, number) for number in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert all(np.array_equal(a, b) for a, b in zip(start, kept, strict=True))
    further = client.train_many(CONFIGS[::-1], tuple(array[::-1] for array in first), 1, 2)
    epochs = [[epoch_of(own[0], 16, (7, number, 0))] for number in (1, 2)]
    for candidate, config in enumerate(CONFIGS):
        config = {name: value for name, value in config.items() if name != "decay"}
        module = draw(build, 0)
        for epoch in epochs:
            module = plain_loop(module, config, epoch, batch=16)
        for found, parameter in zip(further, module.parameters(), strict=True):
            np.testing.assert_allclose(
                found[-1 - candidate], parameter.detach(), rtol=1e-4, atol=1e-5
            )


def in_two_threads(client: TorchClient) -> list[Floats]:
    found: list[Floats] = []
    failed: list[BaseException] = []

    def score() -> None:
        try:
            found.append(client.score_many(CONFIGS))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=score) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failed
    return found


@pytest.mark.parametrize("build", [net, convolution])
@pytest.mark.parametrize("local", ["full", "halving"])
def test_two_threads_may_score_at_once(
    own: tuple[Examples, Examples],
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[..., nn.Module],
    local: str,
) -> None:
    expected = task_of(build, local=local).client(*own, seed=7).score_many(CONFIGS)
    monkeypatch.setattr(ways, "cores", lambda: 2)  # with trials and with two workers each
    found = in_two_threads(task_of(build, local=local).client(*own, seed=7))
    assert len(found) == 2
    for scores in found:
        np.testing.assert_allclose(scores, expected, rtol=1e-4)
