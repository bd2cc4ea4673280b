"""Stochastic gradient descent for many candidates of one network at once.

Candidates differ in their hyperparameters, not in their shape, so their weights are kept in one
array with a leading axis, one entry a candidate: a :class:`Stack`. How a network trains such a
stack is its own affair (:mod:`tacit.dense` multiplies all candidates' matrices at once,
:mod:`tacit.modules` takes one after the other); what is not done twice is decided here:

* Candidates that differ in nothing but their decay have the same first epoch: it is trained once.
* A candidate whose learning rate has decayed to zero is finished.

Both are exact. The rule is that of ``torch.optim.SGD``: with gradient g of the mean cross-entropy,
parameters q, velocity v (0 at the start), momentum m and weight decay w, ``v <- m v + g + w q`` and
``q <- q - rate v``; the rate is multiplied by ``decay`` after every epoch. All candidates see the
same batches, and the same random numbers decide their dropout.

Torch is imported by the functions that compute, not with this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tacit.cores import import_torch
from tacit.data.examples import Examples
from tacit.space import Config

if TYPE_CHECKING:
    from torch import Generator, Tensor

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Weights = tuple[npt.NDArray[np.float32], ...]
"""Parameters of several models at once, in the order and shape of a torch module's; every array has
a leading axis, one entry a model."""

HYPERPARAMETERS: Mapping[str, float] = {
    "learning_rate": 0.1,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "dropout": 0.0,
    "decay": 1.0,
}
"""What a configuration may set, and the value of what it does not. Decay comes last: all columns
before it are what the first epoch depends on."""

SERVER_HYPERPARAMETERS: Mapping[str, float] = {"server_learning_rate": 1.0, "server_momentum": 0.0}
"""What a configuration may set for the server of federated averaging; see :func:`alone`."""

METRICS = ("loss", "error")

_RATE, _MOMENTUM, _WEIGHT_DECAY, _DROPOUT, _DECAY = range(len(HYPERPARAMETERS))
_ROWS_AT_ONCE = 1024  # bounds the memory of an evaluation: rows x candidates x widest layer


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse hyperparameters that gradient descent does not have, and values they cannot take.

    >>> check_config({"momentum": 0.9, "depth": 3})
    Traceback (most recent call last):
        ...
    ValueError: 'depth' is no hyperparameter of gradient descent; allowed are learning_rate, \
momentum, weight_decay, dropout, decay, server_learning_rate, server_momentum
    """
    known = (*HYPERPARAMETERS, *SERVER_HYPERPARAMETERS)
    for name, value in config.items():
        if name not in known:
            raise ValueError(
                f"{name!r} is no hyperparameter of gradient descent; allowed are {', '.join(known)}"
            )
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ValueError(f"{name} is {value!r}; allowed is a finite number of at least 0")
        if name == "dropout" and float(value) >= 1:
            raise ValueError(f"dropout is {value!r}; allowed is a number of at least 0, below 1")


def alone(config: Config) -> Config:
    """A configuration as a client reads it that trains by itself, where there is no server.

    PrivTuna tunes the server's learning rate and momentum by what the same numbers do to a client's
    own gradient descent; so here they take the place of the client's.

    >>> alone({"server_learning_rate": 0.3, "server_momentum": 0.9, "learning_rate": 0.01})
    {'learning_rate': 0.3, 'momentum': 0.9}
    """
    own = {name: value for name, value in config.items() if name not in SERVER_HYPERPARAMETERS}
    for name in SERVER_HYPERPARAMETERS.keys() & config.keys():
        own[name.removeprefix("server_")] = config[name]
    return own


def columns(configs: Sequence[Mapping[str, Any]], defaults: Mapping[str, float]) -> Floats:
    """The hyperparameters as a matrix: a row a candidate, a column each as in HYPERPARAMETERS."""
    for config in configs:
        if not _plainly_right(config):
            check_config(config)
    names = {**HYPERPARAMETERS, **defaults}
    return np.array([[float(c.get(n, default)) for n, default in names.items()] for c in configs])


def _plainly_right(config: Mapping[str, Any]) -> bool:
    """What most configurations are, without the cost of asking about every kind of number."""
    return (
        HYPERPARAMETERS.keys() >= config.keys()
        and all(type(value) is float and 0 <= value <= 1 for value in config.values())
        and config.get("dropout", 0) < 1
    )


@dataclass(frozen=True)
class Knobs:
    """The hyperparameters of one epoch, one number a model of a stack."""

    rate: Tensor
    momentum: Tensor
    weight_decay: Tensor
    dropout: Tensor


@dataclass(frozen=True)
class Epoch:
    """One pass over examples, in an order and with dropout that depend on the seed alone.

    It can be taken as often as one likes: every network, stack and candidate sees the same.
    """

    features: Tensor
    labels: Tensor
    batch: int
    seed: tuple[int, ...]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels, cut every ``batch`` rows; the last batch may be smaller."""
        torch = import_torch()
        order = np.random.default_rng(self.seed).permutation(len(self.labels))
        for rows in torch.split(torch.from_numpy(order), self.batch):
            yield self.features[rows], self.labels[rows]

    def generator(self) -> Generator:
        """The random numbers of this epoch's dropout, from their beginning."""
        seed = int(np.random.SeedSequence((*self.seed, 1)).generate_state(1, np.uint64)[0] >> 1)
        generator: Generator = import_torch().Generator().manual_seed(seed)
        return generator


class Net(Protocol):
    """An architecture. Its models live in stacked tensors; the first ``trained`` have gradients.

    A network may keep its tensors in a layout of its own.
    """

    @property
    def trained(self) -> int:
        """How many of the tensors gradient descent changes; the others are running statistics."""

    @property
    def defaults(self) -> Mapping[str, float]:
        """Hyperparameters that are part of the architecture, such as its dropout."""

    def arrange(self, tensors: list[Tensor]) -> list[Tensor]:
        """From a module's layout to this network's."""

    def restore(self, tensors: list[Tensor]) -> list[Tensor]:
        """Back to a module's layout."""

    def train(
        self, tensors: Sequence[Tensor], velocities: Sequence[Tensor], epoch: Epoch, knobs: Knobs
    ) -> None:
        """One epoch for every model, in place."""

    def logits(self, tensors: Sequence[Tensor], features: Tensor) -> Tensor:
        """Outputs of every model for every row: (models, rows, classes)."""

    def check(self, examples: Examples) -> None:
        """Refuse examples that do not fit."""


class Stack:
    """Candidates of one network in training.

    Several candidates may be the same model so far: ``model_of`` says which model is whose. Models
    that still move stand first, so that they are trained in place, as a slice.
    """

    def __init__(
        self,
        net: Net,
        knobs: Floats,
        tensors: list[Tensor],
        velocities: list[Tensor],
        model_of: Indices,
        moving: Flags,
        epochs: int,
    ) -> None:
        self.net, self.knobs, self.model_of, self.epochs = net, knobs, model_of, epochs
        self._tensors, self._velocities, self._moving = tensors, velocities, moving

    @classmethod
    def begin(cls, net: Net, configs: Sequence[Mapping[str, Any]], weights: Weights) -> Stack:
        """Candidates that start from copies of these weights: one model each, or one for all."""
        return cls.from_knobs(net, columns(configs, net.defaults), weights)

    @classmethod
    def from_knobs(cls, net: Net, knobs: Floats, weights: Weights) -> Stack:
        """As :meth:`begin`, with the hyperparameters as :func:`columns` makes them."""
        models, candidates = len(weights[0]), len(knobs)
        if models not in (1, candidates):
            raise ValueError(
                f"there are {candidates} configurations for the weights of {models} candidates; "
                "there must be one each, or one for all"
            )
        torch = import_torch()
        tensors = net.arrange([torch.tensor(array) for array in weights])
        return cls(
            net,
            knobs,
            tensors,
            [torch.zeros_like(tensor) for tensor in tensors[: net.trained]],
            np.arange(candidates) if models > 1 else np.zeros(candidates, np.intp),
            np.ones(models, np.bool_),
            0,
        )

    def __len__(self) -> int:
        return len(self.model_of)

    def train(self, epoch: Epoch) -> int:
        """One more epoch; returns how many models it took."""
        torch = import_torch()
        if self.epochs <= 1:  # candidates part ways at the start, and after the first epoch
            self._part_ways()
        moving = int(self._moving.sum())
        own = np.zeros(len(self._moving), dtype=np.intp)
        own[self.model_of] = np.arange(len(self))
        knobs = self.knobs[own[:moving]]
        if moving:
            with np.errstate(over="ignore", invalid="ignore"):  # a rate may grow out of bounds
                rate = knobs[:, _RATE] * knobs[:, _DECAY] ** self.epochs
            values = (rate, *(knobs[:, k] for k in (_MOMENTUM, _WEIGHT_DECAY, _DROPOUT)))
            self.net.train(
                [tensor[:moving] for tensor in self._tensors],
                [velocity[:moving] for velocity in self._velocities],
                epoch,
                Knobs(*(torch.tensor(value, dtype=torch.float32) for value in values)),
            )
        self.epochs += 1
        return moving

    def keep(self, candidates: Indices) -> None:
        """Go on with some of the candidates only."""
        self.knobs, model_of = self.knobs[candidates], self.model_of[candidates]
        models, self.model_of = np.unique(model_of, return_inverse=True)
        self._select(models)

    def split(self, parts: int) -> list[tuple[Indices, Stack]]:
        """Several stacks, as equal as can be, and the candidates in each; one is the stack."""
        if parts == 1:
            return [(np.arange(len(self)), self)]
        pieces = []
        for candidates in np.array_split(np.argsort(self.model_of, kind="stable"), parts):
            piece = Stack(
                self.net,
                self.knobs,
                self._tensors,
                self._velocities,
                self.model_of,
                self._moving,
                self.epochs,
            )
            piece.keep(candidates)
            if len(piece._moving) == len(self._moving):  # nothing was left out, so nothing copied
                piece._tensors = [tensor.clone() for tensor in piece._tensors]
                piece._velocities = [velocity.clone() for velocity in piece._velocities]
            pieces.append((candidates, piece))
        return pieces

    @staticmethod
    def joined(stacks: Sequence[Stack]) -> Stack:
        """Several stacks of the same network and epoch as one, in this order."""
        if len(stacks) == 1:
            return stacks[0]
        cat = import_torch().cat
        sizes = np.cumsum([0, *(len(stack._moving) for stack in stacks)])
        shifted = [stack.model_of + size for stack, size in zip(stacks, sizes, strict=False)]
        whole = Stack(
            stacks[0].net,
            np.concatenate([stack.knobs for stack in stacks]),
            [cat(group) for group in zip(*(s._tensors for s in stacks), strict=True)],
            [cat(group) for group in zip(*(s._velocities for s in stacks), strict=True)],
            np.concatenate(shifted),
            np.concatenate([stack._moving for stack in stacks]),
            stacks[0].epochs,
        )
        whole._movers_first()
        return whole

    def measure(self, examples: Examples) -> tuple[Floats, Floats]:
        """Loss (mean cross-entropy) and accuracy of each candidate.

        If any output of a candidate is not finite, its loss is infinite and its accuracy 0.
        """
        torch = import_torch()
        self.net.check(examples)
        loss, right = np.zeros(len(self._moving)), np.zeros(len(self._moving))
        for start in range(0, len(examples), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            labels = torch.tensor(examples.labels[some])
            with torch.no_grad():
                logits = self.net.logits(self._tensors, torch.tensor(examples.features[some]))
                sound = logits.isfinite().all(2).all(1)
                classes = logits.argmax(2)
                single = torch.nn.functional.cross_entropy(
                    logits.double().movedim(2, 1), labels.expand(len(logits), -1), reduction="none"
                )
                loss += single.sum(1).where(sound, math.inf).numpy()
                right += (classes == labels).sum(1).where(sound, -math.inf).numpy()
        loss, accuracy = loss / len(examples), np.maximum(right, 0) / len(examples)
        return loss[self.model_of], accuracy[self.model_of]

    def bytes(self) -> int:
        """What weights and velocities take."""
        return sum(t.element_size() * t.nelement() for t in (*self._tensors, *self._velocities))

    def weights(self) -> Weights:
        """The weights of every candidate."""
        index = import_torch().from_numpy(self.model_of)
        own = self.net.restore([tensor[index] for tensor in self._tensors])
        return tuple(tensor.numpy() for tensor in own)

    def _part_ways(self) -> None:
        """Give a model of its own to every candidate that differs from now on."""
        told_apart = self.knobs if self.epochs else self.knobs[:, :_DECAY]
        keys = np.column_stack([self.model_of, told_apart])
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        still = self.knobs[first, _RATE] > 0
        if self.epochs:
            still &= self.knobs[first, _DECAY] > 0
        if self.net.trained < len(self._tensors):  # running statistics move at any rate
            still[:] = True
        order = np.argsort(~still, kind="stable")
        self._select(self.model_of[first][order])
        self._moving = still[order]
        self.model_of = _places(order)[inverse.reshape(-1)]

    def _movers_first(self) -> None:
        order = np.argsort(~self._moving, kind="stable")
        self._select(order)
        self.model_of = _places(order)[self.model_of]

    def _select(self, models: Indices) -> None:
        if np.array_equal(models, np.arange(len(self._moving))):
            return
        index = import_torch().from_numpy(models)
        self._tensors = [tensor[index] for tensor in self._tensors]
        self._velocities = [velocity[index] for velocity in self._velocities]
        self._moving = self._moving[models]


def _places(order: Indices) -> Indices:
    """Where each one stands in an order."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def scores(loss: Floats, accuracy: Floats, examples: int, metric: str) -> Floats:
    """The loss, or the error with equal errors ordered by loss; lower is better.

    Errors are multiples of 1 / examples: a loss squeezed below that decides between equals.

    >>> scores(np.array([2.0, 1.0, 1.5]), np.array([0.5, 0.5, 0.9]), 10, "error").argsort().tolist()
    [2, 1, 0]
    """
    if metric == "loss":
        return loss
    with np.errstate(invalid="ignore"):
        order = np.where(np.isfinite(loss), loss / (1 + loss) / examples, np.inf)
    return 1 - accuracy + order


def check_labels(examples: Examples, classes: int) -> None:
    """Refuse examples that are none, or of a class that the network does not have."""
    if len(examples) == 0:
        raise ValueError("there are no examples; at least 1 is needed")
    if examples.labels.max() >= classes:
        raise ValueError(
            f"a label is {examples.labels.max()}; allowed is 0 to {classes - 1} with a net of "
            f"{classes} classes"
        )
