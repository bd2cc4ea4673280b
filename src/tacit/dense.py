"""Dense classifiers, many candidates at once: one batched matrix product trains them all.

The gradient is written out instead of left to autograd: the products are added into the velocities
where they are, which saves two passes over memory a step, and memory is what limits small layers.
Candidates are independent; one that diverges does not disturb the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.cores import import_torch
from tacit.data.examples import Examples
from tacit.sgd import Epoch, Knobs, check_labels

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn


_LARGE_MATRIX = 30_000  # numbers; measured: 64 x 105 is faster batched, 128 x 784 one by one


@dataclass(frozen=True)
class Dense:
    """Fully connected layers with ReLU between them, and dropout after every ReLU.

    Its tensors are weights (p, inputs, outputs) and biases (p, outputs) in turn: the transposed
    layout of torch's linear layers halves the speed of the products. ``dropout`` is the rate of
    candidates that do not set their own.
    """

    inputs: int
    hidden: tuple[int, ...]
    classes: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.inputs < 1 or self.classes < 2 or any(width < 1 for width in self.hidden):
            raise ValueError(
                f"a dense net has {self.inputs} inputs, hidden layers {self.hidden} and "
                f"{self.classes} classes; allowed are at least 1, 1 each and 2"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs, hidden layers and outputs."""
        return (self.inputs, *self.hidden, self.classes)

    @property
    def trained(self) -> int:
        return 2 * (len(self.widths) - 1)

    @property
    def defaults(self) -> Mapping[str, float]:
        return {"dropout": self.dropout}

    def arrange(self, tensors: list[Tensor]) -> list[Tensor]:
        return [_transposed(tensor) for tensor in tensors]

    def restore(self, tensors: list[Tensor]) -> list[Tensor]:
        return [_transposed(tensor) for tensor in tensors]

    def train(
        self, tensors: Sequence[Tensor], velocities: Sequence[Tensor], epoch: Epoch, knobs: Knobs
    ) -> None:
        torch = import_torch()
        descent = _Descent.of(knobs)
        generator = epoch.generator() if knobs.dropout.any() else None
        with torch.no_grad():
            for features, labels in epoch.batches():
                signals, masks = self._forward(tensors, features, knobs.dropout, generator)
                # the gradient at the outputs; along a middle axis softmax is ten times as fast
                error = torch.softmax(signals.pop().transpose(1, 2), 1).transpose(1, 2)
                error -= torch.nn.functional.one_hot(labels, self.classes)
                error /= len(labels)
                for layer in reversed(range(len(signals))):
                    weight, bias = tensors[2 * layer : 2 * layer + 2]
                    moving = velocities[2 * layer : 2 * layer + 2]
                    below = error
                    if layer:
                        passed = torch.bmm(error, weight.transpose(1, 2))
                        below = torch.ops.aten.threshold_backward(passed, signals[layer], 0)
                        if masks:
                            below *= masks[layer - 1]
                    descent.matrices(weight, moving[0], signals[layer], error)
                    descent.vectors(bias, moving[1], error.sum(1))
                    error = below

    def logits(self, tensors: Sequence[Tensor], features: Tensor) -> Tensor:
        return self._forward(tensors, features, None, None)[0][-1]

    def check(self, examples: Examples) -> None:
        found = math.prod(examples.shape)
        if found != self.inputs:
            raise ValueError(f"examples have {found} features; the net has {self.inputs} inputs")
        check_labels(examples, self.classes)

    def _forward(
        self,
        tensors: Sequence[Tensor],
        features: Tensor,
        dropout: Tensor | None,
        generator: Generator | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What enters each layer and what leaves the last; and the masks, if there is dropout."""
        torch = import_torch()
        signals: list[Tensor] = [features.flatten(1)[None]]
        masks: list[Tensor] = []
        for layer in range(0, len(tensors), 2):
            weight, bias = tensors[layer : layer + 2]
            entering = signals[-1].expand(len(weight), -1, -1)
            signal = torch.baddbmm(bias[:, None], entering, weight)
            if layer + 2 < len(tensors):
                signal.relu_()
                if generator is not None and dropout is not None:
                    chance = torch.rand(signal.shape[1:], generator=generator)
                    rate = dropout.view(-1, 1, 1)
                    masks.append((chance >= rate) / (1 - rate))
                    signal *= masks[-1]
            signals.append(signal)
        return signals, masks


def stackable(module: nn.Module) -> Dense | str:
    """A module as a dense net, or the reason why it is none.

    >>> from torch import nn
    >>> stackable(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    Dense(inputs=64, hidden=(32,), classes=10, dropout=0.0)
    >>> stackable(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8, 10)))
    'Conv2d cannot be stacked'
    """
    from torch import nn

    if not isinstance(module, nn.Sequential):
        return f"{type(module).__name__} is not an nn.Sequential"
    if type(module).forward is not nn.Sequential.forward:
        return f"{type(module).__name__} has a forward of its own"
    layers = [layer for layer in module if not isinstance(layer, nn.Flatten | nn.Identity)]
    linear: list[nn.Linear] = []
    rates: list[float | None] = []
    expected: tuple[type[nn.Module], ...] = (nn.Linear,)
    for layer in layers:
        if type(layer) not in (nn.Linear, nn.ReLU, nn.Dropout):  # a subclass may compute otherwise
            return f"{type(layer).__name__} cannot be stacked"
        if not isinstance(layer, expected):
            return f"{type(layer).__name__} stands where it cannot be stacked"
        if isinstance(layer, nn.Linear):
            if layer._parameters["bias"] is None:
                return "a Linear layer without bias cannot be stacked"
            if not all(parameter.requires_grad for parameter in layer.parameters()):
                return "a frozen Linear layer cannot be stacked"
            linear.append(layer)
            rates.append(None)
            expected = (nn.ReLU,)
        elif isinstance(layer, nn.ReLU):
            expected = (nn.Linear, nn.Dropout)
        elif isinstance(layer, nn.Dropout):
            rates[-1] = layer.p
            expected = (nn.Linear,)
    if not linear or expected != (nn.ReLU,):
        return "it does not end with a Linear layer"
    if len(set(map(id, linear))) < len(linear):
        return "layers that share their weights cannot be stacked"
    if 1.0 in rates:
        return "a dropout of everything cannot be stacked"
    if len(set(rates[:-1])) > 1:
        return "its hidden layers differ in their dropout"
    widths = [layer.in_features for layer in linear]
    return Dense(widths[0], tuple(widths[1:]), linear[-1].out_features, rates[0] or 0.0)


def _transposed(tensor: Tensor) -> Tensor:
    """Matrices the other way round; biases as they are."""
    return tensor.transpose(1, 2).contiguous() if tensor.dim() == 3 else tensor


@dataclass(frozen=True)
class _Descent:
    """The steps of gradient descent, each model with its own hyperparameters, in place."""

    knobs: Knobs
    rates: list[float]
    momenta: list[float]
    decays: bool

    @classmethod
    def of(cls, knobs: Knobs) -> _Descent:
        """The steps with these hyperparameters."""
        rates, momenta = knobs.rate.tolist(), knobs.momentum.tolist()
        return cls(knobs, rates, momenta, bool(knobs.weight_decay.any()))

    def matrices(self, weight: Tensor, velocity: Tensor, entering: Tensor, error: Tensor) -> None:
        """A step for weights whose gradient is ``entering`` transposed times ``error``."""
        inputs = entering.expand(len(weight), -1, -1).transpose(1, 2)
        if weight[0].nelement() < _LARGE_MATRIX:
            velocity *= _against(velocity, self.knobs.momentum)
            velocity.baddbmm_(inputs, error)
            self._move(weight, velocity)
            return
        # one model at a time saves a pass over the velocities, which outgrow the cache
        for model, momentum in enumerate(self.momenta):
            velocity[model].addmm_(inputs[model], error[model], beta=momentum)
        if self.decays:
            velocity.addcmul_(weight, _against(weight, self.knobs.weight_decay))
        for model, rate in enumerate(self.rates):
            weight[model].add_(velocity[model], alpha=-rate)

    def vectors(self, bias: Tensor, velocity: Tensor, gradient: Tensor) -> None:
        """A step for biases."""
        velocity *= _against(velocity, self.knobs.momentum)
        velocity += gradient
        self._move(bias, velocity)

    def _move(self, parameter: Tensor, velocity: Tensor) -> None:
        if self.decays:
            velocity.addcmul_(parameter, _against(parameter, self.knobs.weight_decay))
        parameter.addcmul_(velocity, _against(velocity, self.knobs.rate), value=-1)


def _against(tensor: Tensor, knob: Tensor) -> Tensor:
    """One number a model, shaped to multiply the models of a tensor."""
    return knob.view(-1, *[1] * (tensor.dim() - 1))
