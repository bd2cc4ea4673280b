"""Dense classifiers, many candidates at once: one batched matrix product trains them all.

The gradient is written out instead of left to autograd: the products are added into the velocities
where they are, which saves two passes over memory a step, and memory is what limits small layers.
Candidates are independent; one that diverges does not disturb the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

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
        generator = epoch.generator() if knobs.dropout.any() else None
        with torch.inference_mode():
            layers = _layers(tensors, velocities)
            descent = _Descent.of(knobs)
            room = _Room(self.widths, len(tensors[0]), min(epoch.batch, len(epoch.labels)))
            one_hot = torch.eye(self.classes)
            for features, labels in epoch.batches():
                buffers = room.cut(len(labels))
                signals, masks = _forward(
                    layers, features, buffers.signals, knobs.dropout, generator
                )
                # the gradient at the outputs; along a middle axis softmax is ten times as fast
                torch.softmax(signals.pop().transpose(1, 2), 1, out=buffers.chances)
                error = buffers.chances.transpose(1, 2)
                error -= one_hot[labels]
                for number in reversed(range(len(layers))):
                    layer, entering = layers[number], signals[number]
                    below = error
                    if number:
                        below = torch.bmm(error, layer.transposed, out=buffers.errors[number - 1])
                        torch.ops.aten.threshold_backward.grad_input(
                            below, entering, 0, grad_input=below
                        )
                        if masks:
                            below *= masks[number - 1]
                    descent.step(layer, entering, error, buffers.ones)
                    error = below

    def logits(self, tensors: Sequence[Tensor], features: Tensor) -> Tensor:
        layers = _layers(tensors, tensors)
        return _forward(layers, features, [None] * len(layers), None, None)[0][-1]

    def check(self, examples: Examples) -> None:
        found = math.prod(examples.shape)
        if found != self.inputs:
            raise ValueError(f"examples have {found} features; the net has {self.inputs} inputs")
        check_labels(examples, self.classes)


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


class _Layer(NamedTuple):
    """A layer of all models, looked at in the ways a step needs; made once an epoch."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor
    velocity: Tensor
    bias_velocity: Tensor


def _layers(tensors: Sequence[Tensor], velocities: Sequence[Tensor]) -> list[_Layer]:
    return [
        _Layer(weight, weight.transpose(1, 2), bias[:, None], velocity, bias_velocity[:, None])
        for weight, bias, velocity, bias_velocity in zip(
            tensors[::2], tensors[1::2], velocities[::2], velocities[1::2], strict=True
        )
    ]


class _Buffers(NamedTuple):
    """Where the products of one batch go; whatever it held before is overwritten."""

    signals: list[Tensor]
    errors: list[Tensor]
    chances: Tensor
    ones: Tensor


class _Room:
    """Memory for the batches of an epoch, taken once.

    A tensor of its own for every product would be given back to the system and asked for again at
    every step, with page faults each time.
    """

    def __init__(self, widths: Sequence[int], models: int, rows: int) -> None:
        torch = import_torch()
        self.widths, self.models = widths[1:], models
        self._signals = [torch.empty(models * rows * width) for width in self.widths]
        self._errors = [torch.empty(models * rows * width) for width in self.widths[:-1]]
        self._chances = torch.empty(models * rows * self.widths[-1])
        self._cut: dict[int, _Buffers] = {}

    def cut(self, rows: int) -> _Buffers:
        """The buffers for a batch of so many rows; the last batch of an epoch may have fewer."""
        if rows not in self._cut:
            self._cut[rows] = _Buffers(
                [
                    self._shaped(flat, rows, w)
                    for flat, w in zip(self._signals, self.widths, strict=True)
                ],
                [
                    self._shaped(flat, rows, w)
                    for flat, w in zip(self._errors, self.widths, strict=False)
                ],
                self._shaped(self._chances, self.widths[-1], rows),
                import_torch().ones(1, 1, rows).expand(self.models, 1, rows),
            )
        return self._cut[rows]

    def _shaped(self, flat: Tensor, *shape: int) -> Tensor:
        return flat[: self.models * math.prod(shape)].view(self.models, *shape)


def _forward(
    layers: Sequence[_Layer],
    features: Tensor,
    buffers: Sequence[Tensor | None],
    dropout: Tensor | None,
    generator: Generator | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """What enters each layer and what leaves the last; and the masks, if there is dropout."""
    torch = import_torch()
    signals: list[Tensor] = [features.flatten(1).expand(len(layers[0].weight), -1, -1)]
    masks: list[Tensor] = []
    for layer, room in zip(layers, buffers, strict=True):
        signal = torch.baddbmm(layer.bias, signals[-1], layer.weight, out=room)
        if layer is not layers[-1]:
            signal.relu_()
            if generator is not None and dropout is not None:
                chance = torch.rand(signal.shape[1:], generator=generator)
                rate = dropout.view(-1, 1, 1)
                masks.append((chance >= rate) / (1 - rate))
                signal *= masks[-1]
        signals.append(signal)
    return signals, masks


@dataclass(frozen=True)
class _Descent:
    """The steps of gradient descent, each model with its own hyperparameters, in place."""

    rate: Tensor
    momentum: Tensor
    weight_decay: Tensor | None
    rates: list[float]
    momenta: list[float]

    @classmethod
    def of(cls, knobs: Knobs) -> _Descent:
        """The steps with these hyperparameters."""
        rate, momentum, weight_decay = (
            knob.view(-1, 1, 1) for knob in (knobs.rate, knobs.momentum, knobs.weight_decay)
        )
        decays = bool(knobs.weight_decay.any())
        return cls(
            rate,
            momentum,
            weight_decay if decays else None,
            knobs.rate.tolist(),
            knobs.momentum.tolist(),
        )

    def step(self, layer: _Layer, entering: Tensor, error: Tensor, ones: Tensor) -> None:
        """One step for a layer; the gradient is ``entering`` transposed times ``error``.

        The error is that of the sum over the batch, the step goes by the mean.
        """
        share = 1 / error.shape[1]
        inputs = entering.transpose(1, 2)
        layer.bias_velocity.mul_(self.momentum).baddbmm_(ones, error, alpha=share)
        self._move(layer.bias, layer.bias_velocity)
        if layer.weight[0].nelement() < _LARGE_MATRIX:
            layer.velocity.mul_(self.momentum).baddbmm_(inputs, error, alpha=share)
            self._move(layer.weight, layer.velocity)
            return
        # one model at a time saves a pass over the velocities, which outgrow the cache
        for model, momentum in enumerate(self.momenta):
            layer.velocity[model].addmm_(inputs[model], error[model], beta=momentum, alpha=share)
        if self.weight_decay is not None:
            layer.velocity.addcmul_(layer.weight, self.weight_decay)
        for model, rate in enumerate(self.rates):
            layer.weight[model].add_(layer.velocity[model], alpha=-rate)

    def _move(self, parameter: Tensor, velocity: Tensor) -> None:
        if self.weight_decay is not None:
            velocity.addcmul_(parameter, self.weight_decay)
        parameter.addcmul_(velocity, self.rate, value=-1)
