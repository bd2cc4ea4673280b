from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import sgd, ways
from tacit.data.examples import Examples, split_validation
from tacit.data.sources import digits
from tacit.grids import grid
from tacit.modules import draw
from tacit.sgd import Stack, Weights
from tacit.space import Config
from tacit.torch_task import TorchTask
from tacit.ways import epoch_of
from tests.test_sgd import plain_loop

Own = tuple[Examples, Examples]
Build = Callable[..., nn.Module]


def net(width: int = 16) -> nn.Sequential:
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


CONFIGS: Sequence[Config] = (
    {},
    {"learning_rate": 0.5},
    {"learning_rate": 0.2, "momentum": 0.9},
    {"learning_rate": 0.3, "decay": 0.5},
    {"learning_rate": 0.3, "decay": 0.0},
    {"learning_rate": 0.1, "weight_decay": 0.1},
    {"learning_rate": 0.2, "dropout": 0.5, "decay": 0.8},
)
both = pytest.mark.parametrize("build", [net, convolution])
searches = pytest.mark.parametrize("local", ["full", "halving"])


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parallel test workers whose threads outnumber the cores wait more than they compute."""
    monkeypatch.setenv("TACIT_CORES", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def some_digits() -> Own:
    return split_validation(digits().train.take(np.arange(150)), 0.2, key=0)


@pytest.fixture
def own() -> Own:
    return some_digits()


def task_of(build: Build = net, **settings: Any) -> TorchTask:
    return TorchTask(build, 10, **{"epochs": 3, "batch": 16, "metric": "loss", **settings})


@both
@pytest.mark.parametrize("metric", ["loss", "error"])
def test_scores_are_those_of_a_plain_loop_of_torch(own: Own, build: Build, metric: str) -> None:
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


@searches
@pytest.mark.parametrize("metric", ["loss", "error"])
def test_cross_validated_scores_are_means_over_folds(own: Own, metric: str, local: str) -> None:
    client = task_of(metric=metric, local=local).client(*own, seed=7)
    folds = [*client.folds(3)]
    assert folds[0].validation is client.validation
    alone = [fold.score_many(CONFIGS) for fold in folds]
    found = client.cross_validate(CONFIGS, 3)
    # Errors are ordered by loss within a step of the whole: below a step of a single fold.
    slack = 1 / 30 if metric == "error" else 1e-5
    np.testing.assert_allclose(found, np.mean(alone, axis=0), atol=slack)
    np.testing.assert_array_equal(client.cross_validate(CONFIGS, 1), alone[0])


def test_folds_keep_groups_whole() -> None:
    """A row's only feature says whose it is."""
    owners = np.repeat(np.arange(25), 4)
    visits = Examples(owners[:, None].astype(np.float32), np.arange(100) % 2, owners)
    task = TorchTask(lambda: nn.Linear(1, 2), classes=2, epochs=1)
    folds = [*task.client(*split_validation(visits, 0.2, key=1), seed=0).folds(5)]
    held = [set(one.validation.features[:, 0].tolist()) for one in folds]
    for one, own in zip(folds, held, strict=True):
        assert not own & set(one.train_examples.features[:, 0].tolist())
        assert one.train_examples.units == 20
    assert sorted(owner for own in held for owner in own) == [*range(25)]
    scores = folds[0].cross_validate([{"learning_rate": 0.1}], 5)
    assert np.isfinite(scores).all()


def test_halving_with_folds_gives_up_by_their_mean(own: Own) -> None:
    """A candidate that is bad on one fold alone goes on: nobody's last score is infinite."""
    many: list[Config] = [{"learning_rate": float(rate)} for rate in np.geomspace(1e-3, 1.0, 40)]
    full, halved = (
        task_of(local=local, epochs=5).client(*own, seed=7).cross_validate(many, 3)
        for local in ("full", "halving")
    )
    assert np.isfinite(halved).all()
    assert set(np.argsort(halved)[:3]) & set(np.argsort(full)[:3])


@both
def test_a_score_does_not_depend_on_the_other_configurations(own: Own, build: Build) -> None:
    client = task_of(build).client(*own, seed=7)
    scores = client.score_many(CONFIGS)
    assert scores.shape == (len(CONFIGS),)
    for config, score in zip(CONFIGS, scores, strict=True):
        assert client.score(config) == pytest.approx(score, rel=1e-5)
    backwards = client.score_many(CONFIGS[::-1])
    np.testing.assert_allclose(backwards[::-1], scores, rtol=1e-5)
    assert client.score_many([]).shape == (0,)


def test_halving_finds_a_candidate_that_is_among_the_best(own: Own) -> None:
    configs = grid("dp-hype-table")
    full, halving = (
        task_of(epochs=5, metric="error", local=local).client(*own, seed=7).score_many(configs)
        for local in ("full", "halving")
    )
    rank = full.argsort().argsort()
    assert rank[halving.argmin()] < 5
    assert len(set(halving.argsort()[:5]) & set(full.argsort()[:5])) >= 3
    assert (halving != full).sum() > 50  # and most were given up


def test_architectures_can_be_mixed(own: Own) -> None:
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


@searches
def test_little_memory_gives_the_same_scores(
    own: Own, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    """154 kB a candidate with its velocities: 40 do not fit into 1 MB, at rungs they train anew."""
    configs: list[Config] = [{"learning_rate": 0.01 * 1.1**number} for number in range(40)]
    alive: weakref.WeakSet[Stack] = weakref.WeakSet()
    largest: dict[int, int] = {}
    trained: dict[int, int] = {}
    train = Stack.train

    def watched(stack: Stack, epoch: sgd.Epoch) -> int:
        alive.add(stack)
        models = train(stack, epoch)
        largest[megabytes] = max(largest.get(megabytes, 0), sum(s.bytes() for s in alive))
        trained[megabytes] = trained.get(megabytes, 0) + models
        return models

    monkeypatch.setattr(Stack, "train", watched)
    monkeypatch.setattr(ways, "_speed", lambda _net, way, *_: way.stack)
    found = {}
    for megabytes in (1, 1024):
        task = task_of(lambda: net(256), epochs=5, local=local, memory_megabytes=megabytes)
        found[megabytes] = task.client(*own, seed=7).score_many(configs)
    np.testing.assert_allclose(found[1], found[1024], rtol=1e-4)
    assert largest[1] < 3 * 10**6 < 6 * 10**6 < largest[1024]
    if local == "full":
        assert trained == {1: 200, 1024: 200}
    else:
        assert trained[1024] == 40 + 11 + 10 + 10 + 10 < trained[1] < 200


@searches
@pytest.mark.parametrize("metric", ["loss", "error"])
def test_a_diverged_candidate_scores_infinite_and_disturbs_nobody(
    own: Own, local: str, metric: str
) -> None:
    client = task_of(local=local, metric=metric).client(*own, seed=7)
    good: Config = {"learning_rate": 0.2}
    bad: list[Config] = [{"learning_rate": 1e30}, {"learning_rate": 0.1, "decay": 1e200}]
    scores = client.score_many([bad[0], good, bad[1]])
    assert np.isinf(scores).tolist() == [True, False, True]
    assert scores[1] == pytest.approx(client.score(good), rel=1e-5)
    assert np.isinf(client.score_many(bad)).all()


def test_a_good_learning_rate_beats_useless_ones(own: Own) -> None:
    client = task_of(epochs=5).client(*own, seed=7)
    configs: list[Config] = [{"learning_rate": rate} for rate in (1e-5, 0.3, 1e30)]
    slow, good, diverged = client.score_many(configs)
    assert good < 1.5 < slow < diverged
    trained = client.train_many(configs, client.task.initial(3), epochs=5, round_number=0)
    accuracy = client.validate_many(trained)
    assert accuracy[1] > 0.5 > accuracy[0]
    assert accuracy[2] == 0
    assert client.task.accuracies(trained, digits().test)[1] > 0.3
    losses, by_scores = client.measure_many(configs)
    assert accuracy.tolist() == by_scores.tolist()
    assert losses.tolist() == [slow, good, diverged]


def test_own_seed_orders_the_batches_and_start_seed_draws_the_start(own: Own) -> None:
    score = task_of().client(*own, seed=7).score({})
    assert task_of().client(*own, seed=7).score({}) == score
    assert task_of().client(*own, seed=8).score({}) != score
    assert task_of(start_seed=1).client(*own, seed=7).score({}) != score


@both
def test_rounds_continue_from_given_weights_in_a_new_order(own: Own, build: Build) -> None:
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


@both
@searches
def test_two_threads_may_score_at_once(
    own: Own, monkeypatch: pytest.MonkeyPatch, build: Build, local: str
) -> None:
    expected = task_of(build, local=local).client(*own, seed=7).score_many(CONFIGS)
    monkeypatch.setattr(ways, "cores", lambda: 2)  # with trials and with two workers each
    client = task_of(build, local=local).client(*own, seed=7)
    with ThreadPoolExecutor(2) as pool:
        for scores in pool.map(client.score_many, [CONFIGS, CONFIGS]):
            np.testing.assert_allclose(scores, expected, rtol=1e-4)


def without_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def changed(examples: Examples, rows: int = 150, pixels: int = 8, label: int = 0) -> Examples:
    return Examples(examples.features[:rows, :, :pixels], examples.labels[:rows] + label)


def train_two(own: Own, change: Callable[[Weights], Weights]) -> Weights:
    client = task_of().client(*own, seed=7)
    return client.train_many([{}, {}], change(client.task.initial(2)), epochs=1, round_number=0)


SHAPES = r"allowed are \[\(16, 64\), \(16,\), \(10, 16\), \(10,\)\], one each"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda _: task_of(metric="accuracy"), "metric is 'accuracy'; allowed are loss, error"),
        (lambda _: task_of(local="quick"), "local is 'quick'; allowed are full, halving"),
        (lambda _: task_of(epochs=0), "epochs is 0; allowed is 1 and above"),
        (lambda _: task_of(batch=0), "batch is 0; allowed is 1 and above"),
        (lambda _: task_of(memory_megabytes=0), "memory_megabytes is 0; allowed is 1 and above"),
        (lambda _: task_of(lambda: net(5)[:2]).initial(1), "gives 5 logits; it must give one a cl"),
        (lambda own: train_two(own, lambda weights: weights[:-1]), SHAPES),
        (lambda own: train_two(own, lambda weights: tuple(a[:1] for a in weights)), SHAPES),
        (lambda own: train_two(own, lambda w: (w[0].transpose(0, 2, 1), *w[1:])), SHAPES),
    ],
    ids=["metric", "local", "epochs", "batch", "memory", "logits", "lacking", "one", "transposed"],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    own: Own, call: Callable[[Own], object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        call(own)


@pytest.mark.parametrize(
    ("build", "config", "reason"),
    [
        (net, {"depth": 2}, r"cannot be built from \{'depth': 2\}: it takes \(width: 'int' = 16\)"),
        (lambda width: net(width), {}, r"cannot be built from no arguments: it takes \(width\)"),
        (net, {"momentum": -1}, "momentum is -1; allowed is a finite number of at least 0"),
        (without_dropout, {"dropout": 0.5}, "dropout is 0.5, but the network has no torch.nn.Drop"),
    ],
    ids=["unknown", "missing", "value", "dropout"],
)
def test_unusable_configurations_are_refused(
    own: Own, build: Build, config: Config, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        task_of(build).check(config)
    with pytest.raises(ValueError, match=reason):
        task_of(build).client(*own, seed=7).score_many([config, config])


def test_no_dropout_needs_no_dropout_layer(own: Own) -> None:
    client = task_of(without_dropout).client(*own, seed=7)
    assert client.score({"dropout": 0}) == client.score({})


@pytest.mark.parametrize("part", [0, 1], ids=["training", "validation"])
@pytest.mark.parametrize(
    ("build", "change", "reason"),
    [
        (net, {"label": 1}, "a label is 10; allowed is 0 to 9 with a net of 10 classes"),
        (convolution, {"label": 1}, "a label is 10; allowed is 0 to 9 with a net of 10 classes"),
        (net, {"pixels": 5}, "examples have 40 features; the net has 64 inputs"),
        (net, {"rows": 0}, "there are no examples; at least 1 is needed"),
        (convolution, {"rows": 0}, "there are no examples; at least 1 is needed"),
    ],
    ids=["label", "label of a module", "features", "none", "none for a module"],
)
def test_examples_that_do_not_fit_are_refused(
    own: Own, build: Build, change: dict[str, int], reason: str, part: int
) -> None:
    given = list(own)
    given[part] = changed(own[part], **change)
    with pytest.raises(ValueError, match=reason):
        task_of(build).client(given[0], given[1], seed=7).score({})
    with pytest.raises(ValueError, match=reason):
        task_of(build).accuracies(task_of(build).initial(1), given[part])


def test_missing_torch_is_named(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'tacit\[torch\]'"):
        task_of().client(*own, seed=7).score({})
