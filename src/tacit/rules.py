"""Ways for a client to move its own copy of a model, beside plain gradient descent.

* :class:`Adaptive`: the learning rate follows the difference between one full and two half steps.
  Koskela and Honkela, "Learning Rate Adaptation for Federated and Differentially Private Learning"
  (2018), supplement, Algorithm 1.
* :class:`Bilevel`: architecture and weights in turn, on validation and on training data. Liu,
  Simonyan and Yang, "DARTS" (2019), in the form of FEATHERS, Algorithm 2.
* :class:`Adam`, for comparison.
* :class:`DpSgd`: gradients of single records are clipped, and noise protects each record. Abadi et
  al., "Deep Learning with Differential Privacy" (2016).

Torch is imported by the functions that compute, not with this module. One model trains at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from tacit.cores import import_torch
from tacit.data.examples import Examples
from tacit.lots import Units, poisson_sample, scattered
from tacit.privacy.clipped_sum import charged_sensitivity, check_sum, grid_step, snapped
from tacit.privacy.rounded_normal import rounded_normal
from tacit.sgd import HYPERPARAMETERS, Weights
from tacit.space import Config

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Tensors = dict[str, "Tensor"]
Gradient = Callable[[Tensors], Tensors]
"""The gradient of the loss on the next batch, at these parameters."""

_AT_ONCE = 2**18
"""How many numbers of gradients are of double precision at once, about."""

ARCHITECTURE = "architecture"
"""Parameters whose name begins so belong to the architecture, all others are weights."""
ARCHITECTURE_HYPERPARAMETERS: Mapping[str, float] = {
    "architecture_learning_rate": 3e-3,
    "architecture_weight_decay": 1e-3,
}


def built_from(config: Config) -> Config:
    """What of a configuration says which network it is, for methods that search architectures."""
    return {name: value for name, value in config.items() if name == ARCHITECTURE}


class DpSgd(Struct, frozen=True, forbid_unknown_fields=True, tag="dp-sgd"):
    """Every record takes part in a step with probability ``rate``; ``steps`` of them in all.

    A record's gradient is clipped to ``clip``, rounded normal noise of ``noise`` times the charged
    sensitivity (:mod:`tacit.privacy.clipped_sum`) is added to the sum, and the sum is divided by
    ``batch``, which is public: how many records a client holds does not show. Where rows have
    groups, a group is a record: all its rows take part or none, and all together they weigh as
    much as one. The steps taken cost what :class:`tacit.privacy.events.SampledGaussian` says.
    """

    rate: float
    steps: int
    clip: float
    noise: float
    batch: int


@dataclass(frozen=True)
class RecordSteps:
    """DP-SGD in one training round of a client; all numbers are public and the same for all."""

    rate: float = 0.1
    steps: int = 10
    clip: float = 1.0
    batch: int = 16

    def with_noise(self, noise: float) -> DpSgd:
        """With noise of so many clipping norms."""
        return DpSgd(self.rate, self.steps, self.clip, noise, self.batch)

    def beside(self, rewards: int, rounds: int, share: float, variance: float) -> DpSgd:
        """With the noise that leaves so many released rewards this share of the budget.

        What rewards between -1 and 1, with noise of this variance, and the steps of all rounds cost
        is compared as if both were Gaussian; what is charged does not rest on that.
        """
        wanted = 1.0
        if rewards and rounds:
            steps = rounds * self.steps * self.rate**2
            wanted = math.sqrt(share / (1 - share) * steps / (4 * rewards))
        return self.with_noise(wanted * math.sqrt(variance))


class Adaptive(Struct, frozen=True, forbid_unknown_fields=True, tag="adaptive"):
    """Steps whose size follows their error; the last array of the weights is the rate's logarithm.

    ``printed`` takes the supplement's factor ``tolerance / error``, otherwise the authors' square
    root of it; either is kept between ``slowest`` and ``fastest``. With ``private``, both gradients
    of a step are private, and both are paid for.
    """

    tolerance: float = 1.0
    slowest: float = 0.9
    fastest: float = 1.1
    printed: bool = False
    private: DpSgd | None = None


class Adam(Struct, frozen=True, forbid_unknown_fields=True, tag="adam"):
    """Kingma and Ba, "Adam" (2015), with its usual decay rates: for comparison."""


class Bilevel(Struct, frozen=True, forbid_unknown_fields=True, tag="bilevel"):
    """Architecture on validation data, weights on training data, in turn (FEATHERS, Algorithm 2).

    The architecture's gradient is taken where one step of the weights would lead (``lookahead``),
    or at the weights themselves (DARTS of first order, a third cheaper). Gradients are clipped to
    ``clip``. ``adam`` moves the architecture as Liu, Simonyan and Yang do (beginning anew in every
    round), otherwise it is gradient descent, as in FEATHERS. With ``private`` gradients are private
    at the level of records, without looking ahead: a record is either in the training or in the
    validation data, and pays for the steps on those.
    """

    lookahead: bool = True
    clip: float = 5.0
    adam: bool = False
    private: DpSgd | None = None


Rule = Adam | Adaptive | Bilevel | DpSgd


def private_part(rule: Rule | None) -> DpSgd | None:
    """The steps by which a rule protects single records, if it does."""
    if isinstance(rule, Adaptive | Bilevel):
        return rule.private
    return rule if isinstance(rule, DpSgd) else None


def train_by(
    rule: Rule,
    template: nn.Module,
    weights: Weights,
    config: Config,
    train: Examples,
    validation: Examples,
    epochs: int,
    batch: int,
    seed: tuple[int, ...],
) -> Weights:
    """One model after local training by a rule, in the arrays and order it came in."""
    torch = import_torch()
    names = [name for name, _ in template.named_parameters()]
    parameters = {name: torch.tensor(array[0]) for name, array in zip(names, weights, strict=False)}
    own = copy.deepcopy(template)  # functional calls borrow a module's places: not for two threads
    model = _Model(own, train, batch)
    match rule:
        case Adaptive():
            log_rate = float(weights[len(names)][0].item())
            passes = (
                model.gradient(epochs, seed)
                if rule.private is None
                else model.private_gradient(rule.private)
            )
            parameters, log_rate = _adapted(rule, passes, parameters, log_rate)
            last = np.full_like(weights[len(names)], log_rate)
            return (*_arrays(parameters), last)
        case Adam():
            return _arrays(_adam(model.gradient(epochs, seed), parameters, config))
        case DpSgd():
            return _arrays(_descended(model.private_gradient(rule), parameters, config))
        case Bilevel():
            held_out = _Model(own, validation, batch)
            if rule.private is not None:
                return _arrays(_private_bilevel(rule, model, held_out, parameters, config))
            found = _bilevel(rule, model, held_out, parameters, config, epochs, seed)
            return _arrays(found)


class _Model:
    """A network's loss on a client's examples, as a function of its parameters."""

    def __init__(self, template: nn.Module, examples: Examples, batch: int) -> None:
        torch = import_torch()
        self.template, self.batch = template, batch
        self.features = torch.tensor(examples.features)
        self.labels = torch.tensor(examples.labels)
        self.units = Units(examples)

    def loss(self, parameters: Tensors, features: Tensor, labels: Tensor) -> Tensor:
        torch = import_torch()
        logits = torch.func.functional_call(self.template, parameters, (features,))
        # A row of no class counts for nothing: an error where it is drawn would tell of it.
        known = torch.where(labels < logits.shape[-1], labels, -100)
        found: Tensor = torch.nn.functional.cross_entropy(logits, known)
        return found

    def batches(self, epochs: int, seed: tuple[int, ...]) -> Iterator[Tensor]:
        torch = import_torch()
        for epoch in range(epochs):
            order = np.random.default_rng((*seed, epoch)).permutation(len(self.labels))
            yield from torch.split(torch.from_numpy(order), self.batch)

    def at(self, parameters: Tensors, rows: Tensor, moved: list[str]) -> Tensors:
        """The gradient of the mean loss over some rows, of some of the parameters."""
        torch = import_torch()
        free = {
            name: tensor.detach().requires_grad_(name in moved)
            for name, tensor in parameters.items()
        }
        loss = self.loss(free, self.features[rows], self.labels[rows])
        wanted = [free[name] for name in moved]  # a reduction cell may not be there to use its own
        gradients = torch.autograd.grad(loss, wanted, materialize_grads=True)
        return dict(zip(moved, gradients, strict=True))

    def gradient(self, epochs: int, seed: tuple[int, ...]) -> Iterator[Gradient]:
        """One function a batch."""
        for rows in self.batches(epochs, seed):
            yield partial(self._whole, rows)

    def _whole(self, rows: Tensor, parameters: Tensors) -> Tensors:
        return self.at(parameters, rows, list(parameters))

    def private_gradient(self, rule: DpSgd) -> Iterator[Gradient]:
        """One function a step, whose records are drawn afresh."""
        for _ in range(rule.steps):
            yield partial(self.private_at, rule)

    def private_at(
        self, rule: DpSgd, parameters: Tensors, moved: Sequence[str] | None = None
    ) -> Tensors:
        """A private gradient of some of the parameters, or of all.

        *Proof.* Norms, scales and sums are of double precision, as
        :mod:`tacit.privacy.clipped_sum` asks for, and blocks of rows are computed one by one, as
        :mod:`tacit.lots` asks for; so the snapped sum moves by at most the charged sensitivity when
        a unit comes or goes. The rest is post-processing.
        """
        torch = import_torch()
        free = {name: parameters[name] for name in moved or parameters}
        held = {name: one for name, one in parameters.items() if name not in free}
        count = sum(tensor.numel() for tensor in free.values())
        check_sum(rule.clip, len(self.units), count)
        grid = grid_step(rule.clip, count)
        unit = charged_sensitivity(rule.clip, count)
        lot = poisson_sample(len(self.units), rule.rate)
        (blocks,), (weights,) = scattered(self.units, [lot], rule.rate)
        sums = {name: np.zeros(tensor.shape) for name, tensor in free.items()}
        gradients = torch.func.vmap(
            torch.func.grad(
                lambda own, feature, label: self.loss({**held, **own}, feature[None], label[None])
            ),
            in_dims=(None, 0, 0),
            randomness="different",
        )
        for rows, own in zip(blocks, weights, strict=True) if len(lot) else ():
            each = gradients(free, self.features[rows], self.labels[rows])
            totals = _clipped_totals([one.flatten(1) for one in each.values()], own, rule.clip)
            for name, one in zip(each, totals, strict=True):
                sums[name] += one.reshape(free[name].shape).numpy()
        found = {}
        for name, total in sums.items():
            noisy = snapped(total, grid) + rounded_normal(rule.noise * unit / grid, total.shape)
            found[name] = torch.from_numpy(noisy * (grid / rule.batch)).to(free[name].dtype)
        return found


def _clipped_totals(
    gradients: Sequence[Tensor], weights: npt.NDArray[np.float64], clip: float
) -> list[Tensor]:
    """The sums of all rows' gradients, each row clipped over all of them and weighted.

    In double precision, some rows at a time, so that they stay in the processor's cache.
    """
    torch = import_torch()
    totals = [torch.zeros(one.shape[1], dtype=torch.float64) for one in gradients]
    some = max(1, _AT_ONCE // sum(map(len, totals)))
    for rows in torch.split(torch.from_numpy(np.flatnonzero(weights)), some):
        wide = [one[rows].double() for one in gradients]
        # not by torch, whose sums may be split over threads by how many rows there are
        squares = sum(torch.from_numpy(np.einsum("ij,ij->i", one, one)) for one in wide)
        scale = clip / squares.clamp(min=clip**2).sqrt() * torch.from_numpy(weights)[rows]
        known = squares.isfinite()
        if not known.all():  # a record whose gradient has no norm stays out
            scale, wide = scale[known], [one[known] for one in wide]
        for total, one in zip(totals, wide, strict=True):
            total += scale @ one
    return totals


def _adapted(
    rule: Adaptive, gradients: Iterator[Gradient], parameters: Tensors, log_rate: float
) -> tuple[Tensors, float]:
    """Algorithm 1: steps while there are two more gradients."""
    for first in gradients:
        second = next(gradients, None)
        if second is None:
            break
        rate = math.exp(log_rate)
        slope = first(parameters)
        half = _moved(parameters, slope, rate / 2)
        full = _moved(parameters, slope, rate)
        twice = _moved(half, second(half), rate / 2)
        error = _error(twice, full)
        if error <= rule.tolerance:
            parameters = twice
        log_rate += math.log(_factor(rule, error))
    return parameters, log_rate


def _factor(rule: Adaptive, error: float) -> float:
    """By how much the learning rate changes; a step that is not finite is far too long."""
    if not math.isfinite(error):
        return rule.slowest
    ratio = rule.tolerance / max(error, 1e-300)
    return min(max(ratio if rule.printed else math.sqrt(ratio), rule.slowest), rule.fastest)


def _error(twice: Tensors, full: Tensors) -> float:
    squares = sum(
        float((((full[name] - one) / full[name].abs().clamp(min=1.0)).double() ** 2).sum())
        for name, one in twice.items()
    )
    return math.sqrt(squares)


def _moved(parameters: Tensors, slope: Tensors, rate: float) -> Tensors:
    return {name: tensor - rate * slope[name] for name, tensor in parameters.items()}


def _descended(gradients: Iterator[Gradient], parameters: Tensors, config: Config) -> Tensors:
    """Gradient descent with momentum and weight decay; both are post-processing of gradients."""
    descent = _Descent.of(config)
    for gradient in gradients:
        parameters = descent.step(parameters, gradient(parameters))
    return parameters


def _adam(gradients: Iterator[Gradient], parameters: Tensors, config: Config) -> Tensors:
    torch = import_torch()
    rate = float(config.get("learning_rate", HYPERPARAMETERS["learning_rate"]))
    moving = {name: tensor.clone() for name, tensor in parameters.items()}
    optimizer = torch.optim.Adam(moving.values(), lr=rate)
    for gradient in gradients:
        for name, slope in gradient(moving).items():
            moving[name].grad = slope
        optimizer.step()
    return moving


def _bilevel(
    rule: Bilevel,
    train: _Model,
    validation: _Model,
    parameters: Tensors,
    config: Config,
    epochs: int,
    seed: tuple[int, ...],
) -> Tensors:
    architecture = [name for name in parameters if name.startswith(ARCHITECTURE)]
    weights = [name for name in parameters if name not in architecture]
    slow = _slow(rule, config)
    descent = _Descent.of(config)
    held_out = _forever(validation, seed)
    for rows in train.batches(epochs, seed):
        ahead = parameters
        if rule.lookahead:
            slope = _clipped(train.at(parameters, rows, weights), rule.clip)
            ahead = {
                **parameters,
                **_moved({n: parameters[n] for n in weights}, slope, descent.rate),
            }
        pull = _clipped(validation.at(ahead, next(held_out), architecture), rule.clip)
        parameters = {**parameters, **slow.step({n: parameters[n] for n in architecture}, pull)}
        slope = _clipped(train.at(parameters, rows, weights), rule.clip)
        parameters = {**parameters, **descent.step({n: parameters[n] for n in weights}, slope)}
    return parameters


def _private_bilevel(
    rule: Bilevel, train: _Model, validation: _Model, parameters: Tensors, config: Config
) -> Tensors:
    """First order, with private gradients only."""
    private = cast(DpSgd, rule.private)
    architecture = [name for name in parameters if name.startswith(ARCHITECTURE)]
    weights = [name for name in parameters if name not in architecture]
    slow = _slow(rule, config)
    descent = _Descent.of(config)
    for _ in range(private.steps):
        pull = validation.private_at(private, parameters, architecture)
        parameters = {**parameters, **slow.step({n: parameters[n] for n in architecture}, pull)}
        slope = train.private_at(private, parameters, weights)
        parameters = {**parameters, **descent.step({n: parameters[n] for n in weights}, slope)}
    return parameters


def _slow(rule: Bilevel, config: Config) -> _Descent | _SmallSteps:
    """How the architecture moves: its own learning rate and weight decay, no momentum."""
    rate, decay = (
        float(config.get(name, value)) for name, value in ARCHITECTURE_HYPERPARAMETERS.items()
    )
    return _SmallSteps(rate, decay) if rule.adam else _Descent(rate, 0.0, decay)


class _SmallSteps:
    """Adam with the decay rates that DARTS has for its architecture."""

    def __init__(self, rate: float, weight_decay: float) -> None:
        self.rate, self.weight_decay = rate, weight_decay
        self._moving: Tensors = {}
        self._adam: Optimizer | None = None

    def step(self, parameters: Tensors, slope: Tensors) -> Tensors:
        torch = import_torch()
        if self._adam is None:
            self._moving = {name: tensor.clone() for name, tensor in parameters.items()}
            self._adam = torch.optim.Adam(
                self._moving.values(), self.rate, (0.5, 0.999), weight_decay=self.weight_decay
            )
        for name, one in slope.items():
            self._moving[name].grad = one
        self._adam.step()
        return {name: tensor.detach().clone() for name, tensor in self._moving.items()}


class _Descent:
    """Gradient descent's own state: velocities and a configuration's three numbers."""

    def __init__(self, rate: float, momentum: float, weight_decay: float) -> None:
        self.rate, self.momentum, self.weight_decay = rate, momentum, weight_decay
        self._velocity: Tensors = {}

    @classmethod
    def of(cls, config: Config) -> _Descent:
        names = ("learning_rate", "momentum", "weight_decay")
        return cls(*(float(config.get(name, HYPERPARAMETERS[name])) for name in names))

    def step(self, parameters: Tensors, slope: Tensors) -> Tensors:
        for name, tensor in parameters.items():
            pull = slope[name] + self.weight_decay * tensor
            before = self._velocity.get(name)
            self._velocity[name] = pull if before is None else self.momentum * before + pull
        return _moved(parameters, self._velocity, self.rate)


def _forever(model: _Model, seed: tuple[int, ...]) -> Iterator[Tensor]:
    number = 0
    while True:
        yield from model.batches(1, (*seed, 1, number))
        number += 1


def _clipped(slope: Tensors, clip: float) -> Tensors:
    norm = math.sqrt(sum(float((one.double() ** 2).sum()) for one in slope.values()))
    scale = 1.0 if norm <= clip else clip / norm
    return {name: one * scale for name, one in slope.items()}


def _arrays(parameters: Tensors) -> Weights:
    return tuple(tensor.detach().numpy()[None].astype(np.float32) for tensor in parameters.values())
