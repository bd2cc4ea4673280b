"""Any torch module as a network whose candidates train one after the other.

What cannot be stacked comes here: convolutions (measured: stacked as grouped convolutions they are
slower than one by one) and whatever else a user brings. The candidates still live in one stack, so
that everything above (shared first epochs, halving, averaging) is the same as for dense nets: a
module works directly on a view of its slice.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacit.cores import import_torch
from tacit.data.examples import Examples
from tacit.sgd import Epoch, Knobs, Weights, check_labels

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tacit.seeded_dropout import SeededDropout

_AS_BUILT = -1.0  # a dropout rate that stands for those of the module's own layers
_drawing = threading.RLock()
_copies = threading.local()


def draw(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module with the weights that torch draws for this seed.

    >>> from torch import nn
    >>> first, again = (draw(lambda: nn.Linear(2, 1), seed=7) for _ in range(2))
    >>> bool((first.weight == again.weight).all())
    True
    """
    torch = import_torch()
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


@dataclass(frozen=True, eq=False)
class Module:
    """A network given by a module, which is a template and never trained itself.

    Random layers other than :class:`torch.nn.Dropout` draw from torch's global generator, so they
    do not repeat with a seed when candidates train on several cores.
    """

    template: nn.Module
    classes: int

    def __post_init__(self) -> None:
        for name, layer in self.template.named_modules():
            if getattr(layer, "track_running_stats", False) and layer.momentum is None:
                raise ValueError(
                    f"layer {name!r} averages over all batches (momentum=None), which needs a "
                    "counter that candidates do not have; allowed is a momentum"
                )

    @property
    def trained(self) -> int:
        return sum(1 for _ in self.template.parameters())

    @property
    def dropouts(self) -> list[float]:
        """The rates of its dropout layers."""
        from torch import nn

        return [layer.p for layer in self.template.modules() if isinstance(layer, nn.Dropout)]

    @property
    def defaults(self) -> Mapping[str, float]:
        rates = set(self.dropouts)
        return {"dropout": rates.pop() if len(rates) == 1 else _AS_BUILT}

    def names(self) -> list[str]:
        """The names of parameters and running statistics, as in the module's state."""
        statistics = {id(owner.get_buffer(name)) for owner, name in _statistics(self.template)}
        buffers = [name for name, b in self.template.named_buffers() if id(b) in statistics]
        return [*(name for name, _ in self.template.named_parameters()), *buffers]

    def weights(self) -> Weights:
        """The template's own, as a stack of one."""
        return tuple(tensor.detach().numpy()[None].copy() for tensor in _tensors(self.template))

    def arrange(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors

    def restore(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors

    def train(
        self, tensors: Sequence[Tensor], velocities: Sequence[Tensor], epoch: Epoch, knobs: Knobs
    ) -> None:
        torch = import_torch()
        channels_last = torch.channels_last  # convolutions are faster so
        with _borrowed(self.template) as (module, dropouts):
            module.train()
            for number in range(len(tensors[0])):
                own = [tensor[number] for tensor in tensors]
                working = [
                    one.contiguous(memory_format=channels_last) if one.dim() == 4 else one
                    for one in own
                ]
                _bind(module, working)
                rate, momentum, weight_decay, dropout = (
                    float(knob[number])
                    for knob in (knobs.rate, knobs.momentum, knobs.weight_decay, knobs.dropout)
                )
                generator = epoch.generator()
                for layer in dropouts:
                    layer.generator = generator
                    layer.rate = layer.built_rate if dropout == _AS_BUILT else dropout
                step = _Step(
                    [p for p in module.parameters() if p.requires_grad],
                    [
                        velocity[number]
                        for p, velocity in zip(module.parameters(), velocities, strict=True)
                        if p.requires_grad
                    ],
                    rate,
                    momentum,
                    weight_decay,
                )
                for features, labels in epoch.batches():
                    if features.dim() == 4:
                        features = features.contiguous(memory_format=channels_last)
                    step.take(torch.nn.functional.cross_entropy(module(features), labels))
                for one, worked in zip(own, working, strict=True):
                    if worked is not one:
                        one.copy_(worked)

    def logits(self, tensors: Sequence[Tensor], features: Tensor) -> Tensor:
        torch = import_torch()
        outputs = []
        with _borrowed(self.template) as (module, _):
            module.eval()
            for number in range(len(tensors[0])):
                _bind(module, [tensor[number] for tensor in tensors])
                outputs.append(module(features))
        found: Tensor = torch.stack(outputs)
        if found.shape[1:] != (len(features), self.classes):
            raise ValueError(
                f"the module gives outputs of shape {tuple(found.shape[1:])} for {len(features)} "
                f"rows; it must give one logit a class: ({len(features)}, {self.classes})"
            )
        return found

    def check(self, examples: Examples) -> None:
        check_labels(examples, self.classes)


@dataclass(frozen=True)
class _Step:
    """One step of gradient descent for one model, in place."""

    parameters: Sequence[Tensor]
    velocities: Sequence[Tensor]
    rate: float
    momentum: float
    weight_decay: float

    def take(self, loss: Tensor) -> None:
        torch = import_torch()
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, velocity, gradient in zip(
                self.parameters, self.velocities, gradients, strict=True
            ):
                if gradient is None:  # it had no part in this loss; torch's SGD skips it
                    continue
                if self.weight_decay:
                    gradient = gradient.add(parameter, alpha=self.weight_decay)
                if self.momentum:
                    gradient = velocity.mul_(self.momentum).add_(gradient)
                parameter.add_(gradient, alpha=-self.rate)


@contextmanager
def _borrowed(template: nn.Module) -> Iterator[tuple[nn.Module, list[SeededDropout]]]:
    """This thread's copy of a template; it holds on to nobody's tensors afterwards."""
    if getattr(_copies, "template", None) is not template:
        _copies.template, _copies.own = template, _copy(template)
    try:
        yield _copies.own
    finally:
        for tensor in _tensors(_copies.own[0]):
            tensor.data = tensor.data.new_empty(0)


def _copy(template: nn.Module) -> tuple[nn.Module, list[SeededDropout]]:
    """A copy whose dropout draws from a generator that it is given."""
    from torch import nn

    from tacit.seeded_dropout import SeededDropout

    module = copy.deepcopy(template)
    seeded: list[SeededDropout] = []
    for parent in list(module.modules()):
        for name, layer in list(parent._modules.items()):  # named_children skips repeats
            if isinstance(layer, nn.Dropout):
                seeded.append(SeededDropout(layer.p))
                setattr(parent, name, seeded[-1])
    return module, seeded


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, then running statistics; counters stay behind."""
    return [*module.parameters(), *(owner.get_buffer(name) for owner, name in _statistics(module))]


def _bind(module: nn.Module, tensors: Sequence[Tensor]) -> None:
    """Let a module work on these tensors."""
    parameters = list(module.parameters())
    for parameter, tensor in zip(parameters, tensors, strict=False):
        parameter.data = tensor
    for (owner, name), tensor in zip(
        list(_statistics(module)), tensors[len(parameters) :], strict=True
    ):
        setattr(owner, name, tensor)


def _statistics(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for owner in module.modules():
        for name, tensor in owner._buffers.items():
            if tensor is not None and tensor.is_floating_point():
                yield owner, name
