from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.data.examples import Examples
from tacit.modules import Module, draw
from tacit.sgd import Stack
from tests.test_sgd import (
    CONFIGS,
    assert_same_state,
    blobs,
    epochs_of,
    loaded,
    mlp,
    plain_loop,
    start_of,
    trained,
)


class Tied(nn.Module):
    """One matrix used twice, and a parameter that is used nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.last = nn.Linear(5, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        signal = torch.relu(self.second(torch.relu(self.first(features))))
        return torch.as_tensor(self.last(signal))


def partly_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    return net


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    ),
    "batch norm of its own momentum": lambda: nn.Sequential(
        nn.BatchNorm1d(5, momentum=0.5), nn.Linear(5, 3)
    ),
    "batch norm without statistics": lambda: nn.Sequential(
        nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)
    ),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)),
    "tied and unused": Tied,
    "frozen": partly_frozen,
}


@pytest.mark.parametrize("name", MODULES)
def test_training_and_evaluation_equal_a_plain_loop_of_torch(name: str) -> None:
    template = draw(MODULES[name], seed=1)
    epochs, fresh = epochs_of(blobs(20), 3), blobs(30, seed=1)
    stack = trained(Module(template, 3), CONFIGS, start_of(template), epochs)
    loss, accuracy = stack.measure(fresh)
    for candidate, config in enumerate(CONFIGS):
        expected = plain_loop(template, config, epochs)
        assert_same_state(loaded(template, stack.weights(), candidate), expected)
        with torch.no_grad():
            logits = expected(torch.tensor(fresh.features))
        labels = torch.tensor(fresh.labels)
        by_torch = nn.functional.cross_entropy(logits, labels).item()
        assert loss[candidate] == pytest.approx(by_torch, rel=1e-4)
        assert accuracy[candidate] == (logits.argmax(1) == labels).double().mean().item()


def test_running_statistics_are_those_of_torch_and_decide_the_evaluation() -> None:
    template = draw(MODULES["batch norm"], seed=1)
    epochs, fresh = epochs_of(blobs(20), 2), blobs(30, seed=1)
    module = Module(template, 3)
    stack = trained(module, [{"learning_rate": 0.0}], start_of(template), epochs)
    found = dict(zip(module.names(), stack.weights(), strict=True))
    layer = nn.BatchNorm1d(6)
    with torch.no_grad():
        for epoch in epochs:
            for features, _ in epoch.batches():
                layer(template[0](features))  # type: ignore[index]
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(found[f"1.{name}"][0], layer.get_buffer(name), atol=1e-6)
    assert abs(found["1.running_mean"]).max() > 0.01
    row_by_row = [stack.measure(fresh.take(np.array([row])))[0][0] for row in range(len(fresh))]
    assert stack.measure(fresh)[0][0] == pytest.approx(np.mean(row_by_row), rel=1e-5)


def test_frozen_parameters_stay_as_they_are() -> None:
    template = partly_frozen()
    stack = trained(
        Module(template, 3), [{"weight_decay": 0.1}], start_of(template), epochs_of(blobs(20), 2)
    )
    same = [np.array_equal(a, b) for a, b in zip(stack.weights(), start_of(template), strict=True)]
    assert same == [True, True, False, False, False, False]


@pytest.mark.parametrize("name", MODULES)
def test_the_template_never_changes(name: str) -> None:
    template = draw(MODULES[name], seed=1)
    before = copy.deepcopy(template.state_dict())
    modes = [layer.training for layer in template.modules()]
    stack = trained(Module(template, 3), CONFIGS, start_of(template), epochs_of(blobs(20), 1))
    stack.measure(blobs(20))
    start_of(template)[0][:] = 7
    assert template.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[key]) for key, tensor in template.state_dict().items())
    assert [layer.training for layer in template.modules()] == modes
    assert all(parameter.grad is None for parameter in template.parameters())


@pytest.mark.parametrize("name", MODULES)
def test_names_and_shapes_are_those_of_the_modules_state(name: str) -> None:
    template = MODULES[name]()
    module = Module(template, 3)
    state = template.state_dict()
    for key, array in zip(module.names(), module.weights(), strict=True):
        assert array.shape == (1, *state[key].shape)
        assert np.array_equal(array[0], state[key])
    left = set(state) - set(module.names())
    assert left <= {"1.num_batches_tracked", "0.num_batches_tracked", "second.weight"}
    assert module.trained == sum(1 for _ in template.parameters())


def test_a_draw_repeats_with_its_seed_and_leaves_torchs_generator_alone() -> None:
    state = torch.get_rng_state()
    nets = [draw(lambda: nn.Linear(5, 3), seed) for seed in (1, 1, 2)]
    assert torch.equal(nets[0].weight, nets[1].weight)  # type: ignore[arg-type]
    assert not torch.equal(nets[0].weight, nets[2].weight)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(nn.Linear(5, 3).weight, nets[0].weight)  # type: ignore[arg-type]
    torch.set_rng_state(state)


def test_a_draw_that_fails_leaves_torchs_generator_alone() -> None:
    def fails() -> nn.Module:
        torch.rand(3)
        raise ArithmeticError("no such net")

    state = torch.get_rng_state()
    with pytest.raises(ArithmeticError, match="no such net"):
        draw(fails, 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_draw_may_draw() -> None:
    found: list[nn.Module] = []

    def nested() -> None:
        found.append(draw(lambda: draw(lambda: nn.Linear(5, 3), 1), 2))

    thread = threading.Thread(target=nested, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert found, "it waits for itself"
    alone = draw(lambda: nn.Linear(5, 3), 1)
    assert torch.equal(found[0].weight, alone.weight)  # type: ignore[arg-type]


def different_rates() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Dropout(0.1), *mlp(6, 4, dropout=0.5)]
    layers[6] = nn.Dropout(0.0)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("config", [{}, {"dropout": 0.3}, {"dropout": 0.0}], ids=str)
def test_dropout_layers_keep_their_rates_unless_a_candidate_sets_one(
    config: Mapping[str, Any],
) -> None:
    template, epochs = different_rates(), epochs_of(blobs(20), 2)
    assert [layer.p for layer in template if isinstance(layer, nn.Dropout)] == [0.1, 0.5, 0.0]
    stack = trained(Module(template, 3), [config], start_of(template), epochs)
    found = loaded(template, stack.weights(), 0)
    assert_same_state(found, plain_loop(template, config, epochs))
    other = plain_loop(template, {"dropout": 0.2}, epochs)
    with pytest.raises(AssertionError):
        assert_same_state(found, other)


def test_a_dropout_layer_that_stands_twice_is_seeded_twice() -> None:
    twice = nn.Dropout(0.5)
    template = nn.Sequential(nn.Linear(5, 6), twice, nn.Linear(6, 4), twice, nn.Linear(4, 3))
    epochs = epochs_of(blobs(20), 2)
    state = torch.get_rng_state()
    stack = trained(Module(template, 3), [{}], start_of(template), epochs)
    assert_same_state(loaded(template, stack.weights(), 0), plain_loop(template, {}, epochs))
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_inside_other_modules_is_found() -> None:
    inner = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5))
    assert Module(nn.Sequential(inner, nn.Linear(6, 3)), 3).dropouts == [0.5]
    assert Module(mlp(6), 3).defaults == {"dropout": 0.0}
    assert Module(mlp(6, dropout=0.25), 3).defaults == {"dropout": 0.25}
    assert Module(nn.Sequential(nn.Linear(5, 3)), 3).dropouts == []


@pytest.mark.parametrize(
    ("template", "shape"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.Tanh()), r"\(7, 4\) for 7 rows"),
        (nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Linear(5, 3)), r"\(7, 1, 3\) for 7 rows"),
    ],
    ids=["classes", "axes"],
)
def test_outputs_that_are_not_one_logit_a_class_are_refused(
    template: nn.Module, shape: str
) -> None:
    stack = Stack.begin(Module(template, 3), [{}], Module(template, 3).weights())
    with pytest.raises(ValueError, match=shape + r"; it must give one logit a class: \(7, 3\)"):
        stack.measure(blobs(7))


def test_a_batch_norm_that_counts_batches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer '0' averages over all batches \(momentum=None\)"):
        Module(nn.Sequential(nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3)), 3)


def test_images_reach_the_module_as_images() -> None:
    rng = np.random.default_rng(0)
    images = Examples(rng.standard_normal((20, 2, 4, 4)).astype(np.float32), rng.integers(0, 3, 20))
    template = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    epochs = epochs_of(images, 2)
    stack = trained(Module(template, 3), CONFIGS, start_of(template), epochs)
    for candidate, config in enumerate(CONFIGS):
        found = loaded(template, stack.weights(), candidate)
        assert_same_state(found, plain_loop(template, config, epochs))
