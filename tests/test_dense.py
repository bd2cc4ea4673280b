from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.data.examples import Examples
from tacit.dense import Dense, stackable
from tacit.modules import Module
from tacit.sgd import Stack
from tests.test_sgd import (
    CONFIGS,
    WITH_DROPOUT,
    blobs,
    epochs_of,
    mlp,
    net_of,
    start_of,
    trained,
)


class OwnForward(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return 2 * torch.as_tensor(self[0](input))


class Named(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 3))


class Doubling(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return 2 * super().forward(input)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def sequential(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (sequential(nn.Linear(5, 3)), Dense(5, (), 3)),
        (sequential(nn.Flatten(), nn.Linear(5, 3)), Dense(5, (), 3)),
        (sequential(nn.Identity(), nn.Linear(5, 3), nn.Identity()), Dense(5, (), 3)),
        (mlp(6, 4), Dense(5, (6, 4), 3)),
        (mlp(6, 4, dropout=0.25), Dense(5, (6, 4), 3, 0.25)),
        (sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), Dense(5, (6,), 3)),
        (Named(), Dense(5, (), 3)),
    ],
    ids=["linear", "flatten", "identity", "dense", "dropout", "no dropout", "named"],
)
def test_dense_modules_are_recognised(module: nn.Module, expected: Dense) -> None:
    assert stackable(module) == expected


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(5, 3), "Linear is not an nn.Sequential"),
        (OwnForward(nn.Linear(5, 3)), "OwnForward has a forward of its own"),
        (sequential(Doubling(5, 3)), "Doubling cannot be stacked"),
        (sequential(nn.Conv1d(1, 1, 3), nn.Linear(3, 3)), "Conv1d cannot be stacked"),
        (sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), "Tanh cannot be stacked"),
        (
            sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
            "BatchNorm1d cannot be stacked",
        ),
        (sequential(nn.Linear(5, 3, bias=False)), "a Linear layer without bias cannot be stacked"),
        (sequential(frozen(nn.Linear(5, 3))), "a frozen Linear layer cannot be stacked"),
        (sequential(nn.Linear(5, 6), nn.Linear(6, 3)), "Linear stands where it cannot be stacked"),
        (sequential(nn.Dropout(0.1), nn.Linear(5, 3)), "Dropout stands where it cannot be stacked"),
        (
            sequential(nn.Linear(5, 6), nn.Dropout(0.1), nn.ReLU(), nn.Linear(6, 3)),
            "Dropout stands where it cannot be stacked",
        ),
        (sequential(nn.ReLU(), nn.Linear(5, 3)), "ReLU stands where it cannot be stacked"),
        (sequential(nn.Linear(5, 3), nn.ReLU()), "it does not end with a Linear layer"),
        (
            sequential(nn.Linear(5, 3), nn.ReLU(), nn.Dropout()),
            "it does not end with a Linear layer",
        ),
        (sequential(nn.Flatten()), "it does not end with a Linear layer"),
        (
            sequential(*list(mlp(6, dropout=0.1))[:-1], *mlp(4, dropout=0.2)),
            "its hidden layers differ in their dropout",
        ),
        (
            sequential(*list(mlp(6))[:3], nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
            "its hidden layers differ in their dropout",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_other_modules_are_not_stacked_and_the_reason_is_said(
    module: nn.Module, reason: str
) -> None:
    assert stackable(module) == reason


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)], ids=len)
def test_stacked_and_in_turn_are_equal(hidden: tuple[int, ...], dropout: float) -> None:
    template, configs = mlp(*hidden, dropout=dropout), (*CONFIGS, *WITH_DROPOUT)
    stacked, in_turn = (
        trained(net_of(kind, template), configs, start_of(template), epochs_of(blobs(30), 4))
        for kind in ("stacked", "in turn")
    )
    for found, expected in zip(stacked.weights(), in_turn.weights(), strict=True):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        stacked.measure(blobs(50, seed=1)), in_turn.measure(blobs(50, seed=1)), rtol=1e-4
    )


def test_images_are_taken_as_lists_of_numbers() -> None:
    flat, template = blobs(20), mlp(6)
    images = Examples(flat.features.reshape(20, 1, 5, 1), flat.labels)
    found, expected = (
        trained(net_of("stacked", template), CONFIGS, start_of(template), epochs_of(some, 2))
        for some in (images, flat)
    )
    assert np.array_equal(found.measure(images), expected.measure(flat))


def test_training_leaves_its_input_alone_even_if_read_only() -> None:
    examples, template = blobs(20), mlp(6)
    start = start_of(template, models=2)
    copies = [array.copy() for array in start]
    for array in start:
        array.setflags(write=False)
    examples.features.setflags(write=False)
    examples.labels.setflags(write=False)
    stack = trained(
        net_of("stacked", template), [{}, {"momentum": 0.9}], start, epochs_of(examples, 2)
    )
    stack.measure(examples)
    for given, copy, new in zip(start, copies, stack.weights(), strict=True):
        assert np.array_equal(given, copy)
        assert not np.array_equal(new, copy)
        assert not np.shares_memory(new, given)


def test_weights_are_a_copy() -> None:
    template, epochs = mlp(6), epochs_of(blobs(20), 2)
    for kind in ("stacked", "in turn"):
        stack = trained(net_of(kind, template), [{}], start_of(template), epochs[:1])
        weights = stack.weights()
        before = [array.copy() for array in weights]
        stack.train(epochs[1])
        assert all(np.array_equal(a, b) for a, b in zip(weights, before, strict=True))


@pytest.mark.parametrize("kind", ["stacked", "in turn"])
@pytest.mark.parametrize(
    "config",
    [
        {"learning_rate": 1e30, "momentum": 0.9},
        {"learning_rate": 1e30, "dropout": 0.5},
        {"learning_rate": 1e300, "decay": 1e200},
        {"learning_rate": 0.1, "weight_decay": 1e30},
        {"learning_rate": 0.1, "momentum": 1e30},
    ],
    ids=lambda config: "-".join(config),
)
def test_a_diverging_candidate_disturbs_nobody(kind: str, config: Mapping[str, Any]) -> None:
    examples, template = blobs(40), mlp(6)
    net, epochs = net_of(kind, template), epochs_of(examples, 6)
    alone = trained(net, [{}], start_of(template), epochs)
    among = trained(net, [config, {}, {**config, "decay": 1.0}], start_of(template), epochs)
    for single, several in zip(alone.weights(), among.weights(), strict=True):
        np.testing.assert_allclose(several[1], single[0], rtol=1e-5, atol=1e-6)
    loss, accuracy = among.measure(examples)
    assert loss[[0, 2]].tolist() == [np.inf, np.inf]
    assert accuracy[[0, 2]].tolist() == [0.0, 0.0]
    assert np.isfinite(loss[1])
    assert accuracy[1] > 0.5


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_net_with_a_single_broken_output_has_diverged(broken: float) -> None:
    template = mlp()
    start = start_of(template, models=2)
    start[1][0, 2] = broken
    examples = Examples(np.zeros((4, 5), np.float32), np.full(4, start[1][1].argmax()))
    stack = Stack.begin(net_of("stacked", template), [{}, {}], start)
    loss, accuracy = stack.measure(examples)
    assert accuracy.tolist() == [0.0, 1.0]
    assert np.isinf(loss).tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Dense(5, (0,), 3), r"hidden layers \(0,\) .*allowed are at least 1, 1 each and 2"),
        (lambda: Dense(0, (), 3), "has 0 inputs"),
        (lambda: Dense(5, (), 1), "1 classes; allowed"),
        (lambda: Dense(6, (), 3).check(blobs(5)), "5 features; the net has 6 inputs"),
        (lambda: Dense(5, (), 2).check(blobs(50)), "a label is 2; allowed is 0 to 1 with a net of"),
        (lambda: Dense(5, (), 3).check(blobs(0)), "no examples; at least 1"),
        (lambda: Module(mlp(), 2).check(blobs(50)), "a label is 2; allowed is 0 to 1"),
        (lambda: Module(mlp(), 3).check(blobs(0)), "no examples; at least 1"),
    ],
    ids=["hidden", "inputs", "classes", "features", "label", "none", "module label", "module none"],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    call: Callable[[], object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        call()


@pytest.mark.parametrize("kind", ["stacked", "in turn"])
def test_a_stack_measures_no_examples_that_do_not_fit(kind: str) -> None:
    template = mlp()
    stack = Stack.begin(net_of(kind, template), [{}], start_of(template))
    with pytest.raises(ValueError, match="no examples; at least 1"):
        stack.measure(blobs(0))


def test_importing_loads_no_torch() -> None:
    names = "dense, sgd, modules, ways, torch_task, sklearn_task, simulation, grids"
    script = f"import sys; from tacit import {names}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr


def test_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    template = mlp(6)
    net, start, epoch = net_of("stacked", template), start_of(template), epochs_of(blobs(9), 1)[0]
    stack = Stack.begin(net, [{}], start)
    monkeypatch.setitem(sys.modules, "torch", None)
    for call in (
        lambda: Stack.begin(net, [{}], start),
        lambda: stack.train(epoch),
        lambda: stack.measure(blobs(9)),
    ):
        with pytest.raises(ImportError, match=r"pip install 'tacit\[torch\]'"):
            call()
