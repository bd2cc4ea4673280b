"""Dense classifiers, many candidates at once: local training, scores and a client of a federation.

Candidates differ in their hyperparameters, not in their shape, so their weights are stacked along
a leading axis and one batched matrix product trains them all. They share the start and the order
of batches; apart from that they are independent, and one that diverges does not disturb the others.

Torch is imported by the functions that compute, not with this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacit.data.sources import Examples

if TYPE_CHECKING:
    from torch import Tensor

Weights = tuple[npt.NDArray[np.float32], ...]
"""Weights and biases by layer, W1 (p, d, h), b1 (p, 1, h), W2, ..; p is the candidate axis."""

HYPERPARAMETERS: Mapping[str, float] = {
    "learning_rate": 0.1,
    "decay": 1.0,
    "momentum": 0.0,
    "weight_decay": 0.0,
}
"""What a configuration may set, and the value of what it does not."""

METRICS = ("loss", "error")

_PRODUCTS_WORTH_A_THREAD = 20_000_000
_ROWS_AT_ONCE = 1024  # bounds the memory of an evaluation: rows x candidates x widest layer


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse hyperparameters that a dense net does not have, and values that they cannot take.

    >>> check_config({"momentum": 0.9, "dropout": 0.5})
    Traceback (most recent call last):
        ...
    ValueError: 'dropout' is no hyperparameter of a dense net; allowed are learning_rate, decay, \
momentum, weight_decay
    """
    for name, value in config.items():
        if name not in HYPERPARAMETERS:
            raise ValueError(
                f"{name!r} is no hyperparameter of a dense net; allowed are "
                f"{', '.join(HYPERPARAMETERS)}"
            )
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ValueError(f"{name} is {value!r}; allowed is a finite number of at least 0")


@dataclass(frozen=True)
class Dense:
    """The shape of a net: fully connected layers with ReLU between them.

    >>> net = Dense(inputs=64, hidden=(32,), classes=10)
    >>> [array.shape for array in net.initial(candidates=100, seed=0)]
    [(100, 64, 32), (100, 1, 32), (100, 32, 10), (100, 1, 10)]
    """

    inputs: int
    hidden: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        if self.inputs < 1 or self.classes < 2 or any(width < 1 for width in self.hidden):
            raise ValueError(
                f"a dense net has {self.inputs} inputs, hidden layers {self.hidden} and "
                f"{self.classes} classes; allowed are at least 1, 1 each and 2"
            )

    def initial(self, candidates: int, seed: int) -> Weights:
        """The common start: one draw, repeated for every candidate.

        Weights and biases are uniform in +-1/sqrt(fan-in), torch's default for a linear layer.
        """
        if candidates < 1:
            raise ValueError(f"candidates is {candidates}; allowed is 1 and above")
        rng = np.random.default_rng(seed)
        drawn = []
        for before, after in pairwise((self.inputs, *self.hidden, self.classes)):
            furthest = 1 / math.sqrt(before)
            for rows in (before, 1):
                layer = rng.uniform(-furthest, furthest, (1, rows, after)).astype(np.float32)
                drawn.append(layer.repeat(candidates, axis=0))
        return tuple(drawn)


def train(
    weights: Weights,
    examples: Examples,
    configs: Sequence[Mapping[str, Any]],
    epochs: int,
    batch: int,
    rng: np.random.Generator,
) -> Weights:
    """Train every candidate with its own configuration, and return the new weights.

    Stochastic gradient descent on the mean cross-entropy, as ``torch.optim.SGD`` does it: with
    gradient g, parameters q, velocity v (0 at the start), momentum m and weight decay w,
    ``v <- m v + g + w q`` and ``q <- q - rate v``. The learning rate is multiplied by ``decay``
    after every epoch. All candidates see the same batches: a permutation an epoch from ``rng``,
    cut every ``batch`` rows, the last batch may be smaller. Velocity and learning rate start anew
    with every call. A diverged candidate has weights that are not finite.

    >>> from tacit.data.sources import digits
    >>> data, net = digits(), Dense(64, (32,), 10)
    >>> configs = [{"learning_rate": 0.1, "momentum": 0.9}, {"learning_rate": 1e-6}]
    >>> trained = train(net.initial(2, 0), data.train, configs, 3, 128, np.random.default_rng(0))
    >>> good, useless = accuracies(trained, data.test)
    >>> bool(good > 0.8), bool(useless < 0.3)
    (True, True)
    """
    torch = _torch()
    _check_positive(epochs=epochs, batch=batch)
    values = _columns(configs)
    _check_fit(weights, examples)
    if len(configs) != len(weights[0]):
        raise ValueError(
            f"there are {len(configs)} configurations for the weights of {len(weights[0])} "
            "candidates; there must be one each"
        )
    features, labels = _tensor(examples.features), _tensor(examples.labels)
    parameters = [_tensor(array).requires_grad_() for array in weights]
    velocities = [torch.zeros_like(parameter) for parameter in parameters]
    first_rate, decay = _tensor(values["learning_rate"]), _tensor(values["decay"])
    momentum, weight_decay = (
        _tensor(values[name]).float() for name in ("momentum", "weight_decay")
    )

    def step(rows: Tensor, rate: Tensor) -> None:
        # the gradient of a sum of losses holds each candidate's own gradient
        loss = _losses(_logits(parameters, features[rows]), labels[rows]).sum()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, velocity, gradient in zip(
                parameters, velocities, gradients, strict=True
            ):
                velocity.mul_(momentum).add_(gradient).addcmul_(parameter, weight_decay)
                parameter.addcmul_(velocity, rate, value=-1)

    with _threads(sum(array.size for array in weights) * min(batch, len(examples))):
        for epoch in range(epochs):
            rate = (first_rate * decay**epoch).float()
            for rows in torch.split(_tensor(rng.permutation(len(examples))), batch):
                step(rows, rate)
    return tuple(parameter.detach().numpy() for parameter in parameters)


def losses(weights: Weights, examples: Examples) -> npt.NDArray[np.float64]:
    """Mean cross-entropy of each candidate; infinite if any of its outputs is not finite."""
    total = np.zeros(len(weights[0]))
    for logits, labels in _outputs(weights, examples):
        summed = _losses(logits, labels) * len(labels)
        total += summed.where(_sound(logits), np.inf).numpy()
    return total / len(examples)


def accuracies(weights: Weights, examples: Examples) -> npt.NDArray[np.float64]:
    """Share of examples that each candidate gets right; 0 if any of its outputs is not finite."""
    right = np.zeros(len(weights[0]))
    sound = np.ones(len(weights[0]), dtype=np.bool_)
    for logits, labels in _outputs(weights, examples):
        right += (logits.argmax(2) == labels).sum(1).numpy()
        sound &= _sound(logits).numpy()
    return np.where(sound, right / len(examples), 0.0)


@dataclass(frozen=True, eq=False)
class DenseClient:
    """A client of a federation that trains dense nets on its own examples.

    ``seed`` is the client's own and orders its batches; ``start_seed`` draws the common start and
    must be the same for all clients. Scores train ``epochs`` epochs from that start; ``metric`` is
    the validation loss, or the validation error with equal errors ordered by loss.

    >>> from tacit.data.sources import digits, split_validation
    >>> own = digits().train.take(np.arange(60))
    >>> train_examples, validation = split_validation(own, 0.2, np.random.default_rng(7))
    >>> client = DenseClient(train_examples, validation, Dense(64, (32,), 10), 5, 16, seed=7)
    >>> scores = client.score_many([{"learning_rate": 0.2}, {"learning_rate": 1e-4}])
    >>> bool(scores[0] < scores[1])
    True
    """

    train_examples: Examples
    validation: Examples
    net: Dense
    epochs: int
    batch: int
    seed: int
    start_seed: int = 0
    metric: str = "loss"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric is {self.metric!r}; allowed are {', '.join(METRICS)}")
        _check_positive(epochs=self.epochs, batch=self.batch)
        for examples in (self.train_examples, self.validation):
            _check_shape(self.net.inputs, self.net.classes, examples)

    def score(self, config: Mapping[str, Any]) -> float:
        """How bad the net is after local training from the common start; lower is better."""
        return float(self.score_many([config])[0])

    def score_many(self, configs: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.float64]:
        """The score of every configuration, trained together; infinite where one diverged."""
        if not configs:
            return np.zeros(0)
        start = self.net.initial(len(configs), self.start_seed)
        trained = self.train_many(configs, start, self.epochs, 0)
        loss = losses(trained, self.validation)
        if self.metric == "loss":
            return loss
        # Errors are multiples of 1 / examples: a loss squeezed below that decides between equals.
        order = np.where(np.isfinite(loss), loss / (1 + loss) / len(self.validation), np.inf)
        return 1 - accuracies(trained, self.validation) + order

    def train_many(
        self,
        configs: Sequence[Mapping[str, Any]],
        weights: Weights,
        epochs: int,
        round_number: int,
    ) -> Weights:
        """Local training from the given weights, in batches that change with the round."""
        rng = np.random.default_rng([self.seed, round_number])
        return train(weights, self.train_examples, configs, epochs, self.batch, rng)

    def validate_many(self, weights: Weights) -> npt.NDArray[np.float64]:
        """Validation accuracy of every candidate."""
        return accuracies(weights, self.validation)


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as missing:
        raise ImportError("dense nets need torch: pip install 'tacit[torch]'") from missing
    return torch


@contextmanager
def _threads(products: int) -> Iterator[None]:
    """One thread for small steps: waiting for a second one costs more than it brings.

    On a busy machine it can cost everything, because OpenMP's threads wait for each other after
    every operation.
    """
    torch = _torch()
    before = torch.get_num_threads()
    if products < _PRODUCTS_WORTH_A_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    """A copy: training must not write into what the caller holds."""
    copied: Tensor = _torch().tensor(np.ascontiguousarray(array))
    return copied


def _logits(parameters: Sequence[Tensor], features: Tensor) -> Tensor:
    """Outputs of every candidate for every row: (p, rows, classes)."""
    torch = _torch()
    signal: Tensor = features.expand(len(parameters[0]), -1, -1)
    for layer in range(0, len(parameters), 2):
        if layer:
            signal = signal.relu()
        signal = torch.baddbmm(parameters[layer + 1], signal, parameters[layer])
    return signal


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of every candidate."""
    candidates, rows, classes = logits.shape
    single: Tensor = _torch().nn.functional.cross_entropy(
        logits.reshape(-1, classes), labels.repeat(candidates), reduction="none"
    )
    return single.view(candidates, rows).mean(1)


def _sound(logits: Tensor) -> Tensor:
    """Which candidates have finite outputs only."""
    return logits.isfinite().all(2).all(1)


def _outputs(weights: Weights, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs, in double precision, and labels for some rows at a time."""
    _check_fit(weights, examples)
    parameters = [_tensor(array) for array in weights]
    for start in range(0, len(examples), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        rows = _tensor(examples.features[some])
        with _threads(sum(array.size for array in weights) * len(rows)):
            logits = _logits(parameters, rows).double()
        yield logits, _tensor(examples.labels[some])


def _columns(configs: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[np.float64]]:
    """Every hyperparameter of all candidates, shaped (p, 1, 1) to multiply weights with."""
    for config in configs:
        check_config(config)
    return {
        name: np.array([float(c.get(name, default)) for c in configs]).reshape(-1, 1, 1)
        for name, default in HYPERPARAMETERS.items()
    }


def _check_fit(weights: Weights, examples: Examples) -> None:
    for array in weights:
        if array.dtype.name != "float32":
            raise ValueError(f"weights are of type {array.dtype}; allowed is float32")
    _check_shape(weights[0].shape[1], weights[-1].shape[2], examples)


def _check_shape(inputs: int, classes: int, examples: Examples) -> None:
    rows, found = examples.features.shape
    if found != inputs:
        raise ValueError(f"examples have {found} features; the net has {inputs} inputs")
    if rows == 0:
        raise ValueError("there are no examples; at least 1 is needed")
    if examples.labels.max() >= classes:
        raise ValueError(
            f"a label is {examples.labels.max()}; allowed is 0 to {classes - 1} with a net of "
            f"{classes} classes"
        )


def _check_positive(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; allowed is 1 and above")
