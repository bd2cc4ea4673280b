from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit import sgd
from tacit.data.examples import Examples
from tacit.dense import Dense, stackable
from tacit.grids import grid
from tacit.modules import Module, draw
from tacit.sgd import HYPERPARAMETERS, Epoch, Net, Stack, Weights, check_config, scores
from tacit.ways import epoch_of

Configs = Sequence[Mapping[str, Any]]
BATCH = 8
CONFIGS: Configs = (
    {},
    {"learning_rate": 0.5},
    {"learning_rate": 0.2, "momentum": 0.9},
    {"learning_rate": 0.3, "decay": 0.5},
    {"learning_rate": 0.3, "decay": 0.0},
    {"learning_rate": 0.3, "decay": 0.0, "momentum": 0.9},
    {"learning_rate": 0.1, "weight_decay": 0.1},
    {"learning_rate": 0.0, "momentum": 0.9, "weight_decay": 0.1},
    {"learning_rate": 0.2, "decay": 0.8, "momentum": 0.5, "weight_decay": 0.01},
)
WITH_DROPOUT: Configs = (
    {"dropout": 0.3},
    {"learning_rate": 0.3, "dropout": 0.6, "momentum": 0.9, "decay": 0.5},
    {"learning_rate": 0.3, "dropout": 0.0, "momentum": 0.9, "decay": 0.5},
)
KINDS = ("stacked", "in turn")

kinds = pytest.mark.parametrize("kind", KINDS)


def blobs(count: int, seed: int = 0) -> Examples:
    """Three classes in five dimensions that overlap a little."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    features = 2 * np.eye(3, 5)[labels] + rng.standard_normal((count, 5))
    return Examples(features.astype(np.float32), labels)


def mlp(*hidden: int, dropout: float = 0.0) -> nn.Sequential:
    """A small net for blobs, with dropout after every hidden layer."""

    def build() -> nn.Sequential:
        layers: list[nn.Module] = []
        for before, after in zip((5, *hidden), (*hidden, 3), strict=True):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        return nn.Sequential(*layers[:-2])

    found = draw(build, seed=3)
    assert isinstance(found, nn.Sequential)
    return found


def net_of(kind: str, template: nn.Module) -> Net:
    if kind == "in turn":
        return Module(template, 3)
    found = stackable(template)
    assert isinstance(found, Dense)
    return found


def start_of(template: nn.Module, models: int = 1) -> Weights:
    return tuple(array.repeat(models, axis=0) for array in Module(template, 3).weights())


def epochs_of(examples: Examples, count: int) -> list[Epoch]:
    return [epoch_of(examples, BATCH, (5, number)) for number in range(count)]


def trained(net: Net, configs: Configs, weights: Weights, epochs: Sequence[Epoch]) -> Stack:
    stack = Stack.begin(net, configs, weights)
    for epoch in epochs:
        stack.train(epoch)
    return stack


def plain_loop(
    template: nn.Module, config: Mapping[str, Any], epochs: Sequence[Epoch], batch: int = BATCH
) -> nn.Module:
    """One candidate trained the way torch's users do it; evaluation mode."""
    module = copy.deepcopy(template).train()
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=config.get("learning_rate", 0.1),
        momentum=config.get("momentum", 0.0),
        weight_decay=config.get("weight_decay", 0.0),
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, config.get("decay", 1.0))
    for epoch in epochs:
        order = np.random.default_rng(epoch.seed).permutation(len(epoch.labels))
        generator = epoch.generator()
        for start in range(0, len(order), batch):
            rows = torch.tensor(order[start : start + batch])
            optimizer.zero_grad()
            logits = with_masks(module, epoch.features[rows], config.get("dropout"), generator)
            torch.autograd.backward(nn.functional.cross_entropy(logits, epoch.labels[rows]))
            optimizer.step()
        schedule.step()
    return module.eval()


def with_masks(
    module: nn.Module, signal: torch.Tensor, rate: float | None, generator: torch.Generator
) -> torch.Tensor:
    """A forward pass with dropout by hand: one number a row and place decides."""
    for layer in module if isinstance(module, nn.Sequential) else [module]:
        if isinstance(layer, nn.Dropout):
            own = layer.p if rate is None else rate
            if own > 0:
                dropped = torch.rand(signal.shape, generator=generator) < own
                signal = (signal / (1 - own)).masked_fill(dropped, 0)
        else:
            signal = layer(signal)
    return signal


def loaded(template: nn.Module, weights: Weights, candidate: int) -> nn.Module:
    """The module with a candidate's weights, by the names of its state."""
    module = copy.deepcopy(template)
    named = zip(Module(template, 3).names(), weights, strict=True)
    state = {name: torch.tensor(array[candidate]) for name, array in named}
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing).isdisjoint(name for name, _ in module.named_parameters())
    assert all("running" not in name for name in missing)
    return module.eval()


def assert_same_state(
    found: nn.Module, expected: nn.Module, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    for name, tensor in expected.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            own = found.state_dict()[name]
            np.testing.assert_allclose(own, tensor, rtol=rtol, atol=atol, err_msg=name)


@kinds
@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)], ids=len)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_training_equals_a_plain_loop_of_torch(
    kind: str, hidden: tuple[int, ...], dropout: float
) -> None:
    """20 rows in batches of 8: the last batch is smaller."""
    template, configs = mlp(*hidden, dropout=dropout), (*CONFIGS, *WITH_DROPOUT)
    epochs, fresh = epochs_of(blobs(20), 4), blobs(50, seed=1)
    stack = trained(net_of(kind, template), configs, start_of(template), epochs)
    weights, (loss, accuracy) = stack.weights(), stack.measure(fresh)
    for candidate, config in enumerate(configs):
        expected, found = plain_loop(template, config, epochs), loaded(template, weights, candidate)
        assert_same_state(found, expected)
        with torch.no_grad():
            logits = expected(torch.tensor(fresh.features))
            np.testing.assert_allclose(found(torch.tensor(fresh.features)), logits, atol=1e-4)
        labels = torch.tensor(fresh.labels)
        by_torch = nn.functional.cross_entropy(logits, labels).item()
        assert loss[candidate] == pytest.approx(by_torch, rel=1e-4)
        assert accuracy[candidate] == (logits.argmax(1) == labels).double().mean().item()


@kinds
def test_every_hyperparameter_matters_in_the_comparison(kind: str) -> None:
    template, configs = mlp(6, 4), (*CONFIGS, *WITH_DROPOUT)
    stack = trained(net_of(kind, template), configs, start_of(template), epochs_of(blobs(20), 4))
    assert len(set(stack.measure(blobs(50, seed=1))[0].round(4))) == len(configs)


@kinds
def test_what_is_shared_or_finished_is_trained_once_and_comes_out_the_same(kind: str) -> None:
    """DP-HYPE's grid: 10 rates x 2 momenta in the first epoch; later 4 of 5 decays go on."""
    template, configs, epochs = mlp(6), grid("dp-hype-table"), epochs_of(blobs(20), 3)
    net = net_of(kind, template)
    shared = Stack.begin(net, configs, start_of(template))
    alone = Stack.begin(net, configs, start_of(template, models=100))
    assert [shared.train(epoch) for epoch in epochs] == [20, 80, 80]
    assert [alone.train(epoch) for epoch in epochs] == [100, 80, 80]
    for found, expected in zip(shared.weights(), alone.weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=0 if kind == "in turn" else 1e-6)
    once = trained(net, configs, start_of(template), epochs[:1]).weights()
    finished = [number for number, config in enumerate(configs) if config["decay"] == 0]
    for found, expected in zip(shared.weights(), once, strict=True):
        assert np.array_equal(found[finished], expected[finished])


@kinds
def test_a_rate_of_zero_trains_nothing(kind: str) -> None:
    template = mlp(6)
    configs = [{"learning_rate": 0.0, "weight_decay": 0.1}, {"learning_rate": 0.0, "decay": 0.5}]
    stack = Stack.begin(net_of(kind, template), configs, start_of(template))
    assert [stack.train(epoch) for epoch in epochs_of(blobs(20), 3)] == [0, 0, 0]
    assert_same_state(loaded(template, stack.weights(), 1), template, rtol=0, atol=0)


def test_with_running_statistics_a_rate_of_zero_still_trains() -> None:
    template = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    configs = [{"learning_rate": 0.0}, {"decay": 0.0}, {"decay": 0.5}, {"learning_rate": 0.0}]
    stack = Stack.begin(Module(template, 3), configs, start_of(template))
    epochs = epochs_of(blobs(20), 3)
    assert [stack.train(epoch) for epoch in epochs] == [2, 3, 3]
    for candidate, config in enumerate(configs):
        found = loaded(template, stack.weights(), candidate)
        assert_same_state(found, plain_loop(template, config, epochs))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from(KINDS), st.data())
def test_keeping_splitting_and_joining_change_no_candidate(kind: str, data: st.DataObject) -> None:
    template, epochs = mlp(4), epochs_of(blobs(12), 4)
    steps = st.sampled_from(["split", "join", "keep"])
    choice = st.sampled_from([*CONFIGS[2:6], WITH_DROPOUT[0]])  # some are alike, some finish
    configs = data.draw(st.lists(choice, min_size=2, max_size=5))
    net = net_of(kind, template)
    held = [(np.arange(len(configs)), Stack.begin(net, configs, start_of(template)))]
    for epoch in epochs:
        for step in data.draw(st.lists(steps, min_size=1, max_size=3)):
            who, stack = held.pop(data.draw(st.integers(0, len(held) - 1)))
            if step == "keep":
                places = st.integers(0, len(who) - 1)
                some = np.array(data.draw(st.lists(places, min_size=1, unique=True)))
                stack.keep(some)
                held.append((who[some], stack))
            elif step == "split":
                parts = stack.split(min(len(who), data.draw(st.integers(1, 4))))
                held += [(who[some], part) for some, part in parts]
            else:
                order = data.draw(st.permutations([*held, (who, stack)]))
                names = np.concatenate([names for names, _ in order])
                held = [(names, Stack.joined([part for _, part in order]))]
        for _, stack in held:
            stack.train(epoch)
    for who, stack in held:
        assert len(stack) == len(who)
        for place, candidate in enumerate(who):
            found = loaded(template, stack.weights(), place)
            assert_same_state(found, plain_loop(template, configs[candidate], epochs))


def test_split_parts_are_as_equal_as_can_be_and_have_memory_of_their_own() -> None:
    template, epochs = mlp(4), epochs_of(blobs(20), 2)
    whole = Stack.begin(net_of("stacked", template), CONFIGS[:7], start_of(template))
    parts = whole.split(3)
    assert sorted(len(part) for _, part in parts) == [2, 2, 3]
    before = whole.weights()
    for _, part in parts:
        part.train(epochs[0])
    assert all(np.array_equal(a, b) for a, b in zip(before, whole.weights(), strict=True))


@kinds
def test_joined_stacks_go_on_where_some_candidates_are_finished(kind: str) -> None:
    template, epochs = mlp(4), epochs_of(blobs(20), 4)
    configs: Configs = ({"decay": 0.0}, {"decay": 0.5}, {"learning_rate": 0.0}, {"momentum": 0.9})
    net, start = net_of(kind, template), start_of(template)
    whole = Stack.joined([trained(net, [config], start, epochs[:3]) for config in configs])
    assert whole.train(epochs[3]) == 2
    for candidate, config in enumerate(configs):
        found = loaded(template, whole.weights(), candidate)
        assert_same_state(found, plain_loop(template, config, epochs))


@kinds
def test_candidates_go_on_from_their_own_weights(kind: str) -> None:
    first, second, epochs = mlp(6), mlp(6), epochs_of(blobs(20), 2)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(2)
    both = tuple(
        np.concatenate(pair) for pair in zip(start_of(first), start_of(second), strict=True)
    )
    weights = trained(net_of(kind, first), [{}, {}], both, epochs).weights()
    for candidate, template in enumerate((first, second)):
        assert_same_state(loaded(first, weights, candidate), plain_loop(template, {}, epochs))


@pytest.mark.parametrize("models", [2, 4])
def test_weights_for_another_number_of_candidates_are_refused(models: int) -> None:
    template = mlp(6)
    reason = f"3 configurations for the weights of {models} candidates; there must be one each, or"
    with pytest.raises(ValueError, match=reason):
        Stack.begin(net_of("stacked", template), CONFIGS[:3], start_of(template, models))


def test_an_epoch_takes_every_row_once_and_repeats_with_its_seed() -> None:
    examples = Examples(np.arange(20, dtype=np.float32)[:, None], np.arange(20) % 3)
    epoch, other = epoch_of(examples, 8, (5, 0)), epoch_of(examples, 8, (5, 1))
    rows = [features[:, 0].tolist() for features, _ in epoch.batches()]
    assert [len(batch) for batch in rows] == [8, 8, 4]
    assert sorted(row for batch in rows for row in batch) == list(range(20))
    assert all((labels == features[:, 0] % 3).all() for features, labels in epoch.batches())
    assert rows == [features[:, 0].tolist() for features, _ in epoch.batches()]
    assert rows != [features[:, 0].tolist() for features, _ in other.batches()]
    masks = [torch.rand(9, generator=one.generator()) for one in (epoch, epoch, other)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@kinds
def test_evaluation_in_pieces_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template, examples = mlp(6), blobs(50)
    stack = trained(net_of(kind, template), CONFIGS, start_of(template), epochs_of(examples, 1))
    whole = stack.measure(examples)
    monkeypatch.setattr(sgd, "_ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(stack.measure(examples), whole, rtol=1e-6)


def test_the_size_of_a_stack_counts_weights_and_velocities_once_a_model() -> None:
    template = mlp(6)
    numbers = 5 * 6 + 6 + 6 * 3 + 3
    stack = Stack.begin(net_of("stacked", template), CONFIGS, start_of(template))
    assert stack.bytes() == 2 * 4 * numbers
    stack.train(epochs_of(blobs(20), 1)[0])
    assert stack.bytes() == 2 * 4 * numbers * (len(CONFIGS) - 1)  # two differ in decay only


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"depth": 1}, "'depth' is no hyperparameter of gradient descent; allowed are learning_r"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1; allowed is a finite number of at least"),
        ({"momentum": math.nan}, "momentum is nan; allowed is a finite number"),
        ({"decay": math.inf}, "decay is inf; allowed is a finite number"),
        ({"weight_decay": "0.1"}, "weight_decay is '0.1'; allowed is a finite number"),
        ({"learning_rate": None}, "learning_rate is None; allowed is a finite number"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed is a number of at least 0, below 1"),
    ],
)
def test_unusable_configurations_are_refused(config: Mapping[str, Any], reason: str) -> None:
    template = mlp(6)
    with pytest.raises(ValueError, match=reason):
        check_config(config)
    with pytest.raises(ValueError, match=reason):
        Stack.begin(net_of("stacked", template), [{}, config], start_of(template))


def test_known_names_pass_and_numbers_of_numpy_are_numbers() -> None:
    check_config(HYPERPARAMETERS)
    check_config({"learning_rate": np.float32(0.25), "momentum": np.int64(0)})


def test_errors_are_ordered_by_loss_among_equals_only() -> None:
    loss = np.array([5.0, 0.1, 9.0, math.inf, 1e300])
    accuracy = np.array([0.75, 0.5, 0.75, 0.0, 0.75])
    found = scores(loss, accuracy, 4, "error")
    assert found.argsort().tolist() == [0, 2, 4, 1, 3]
    np.testing.assert_allclose(found[:2], [0.25 + 5 / 6 / 4, 0.5 + 0.1 / 1.1 / 4])
    assert scores(loss, accuracy, 4, "loss") is loss
