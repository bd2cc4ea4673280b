"""What a user brings: a client that can score a configuration on its own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tacit.privacy.skellam import FloatArray
from tacit.rules import Rule
from tacit.sgd import Weights
from tacit.space import Config


class NothingToSay(Exception):
    """The client has no usable answer and abstains."""


@runtime_checkable
class Client(Protocol):
    """One member of a federation. Only ``score`` is needed."""

    def score(self, config: Config, /) -> float:
        """How bad a configuration is on this client's data: lower is better."""


@runtime_checkable
class ScoresMany(Protocol):
    """A client that scores many configurations faster together than one by one."""

    def score_many(self, configs: Sequence[Config], /) -> FloatArray:
        """One score a configuration."""


@runtime_checkable
class CrossValidates(Protocol):
    """A client that can hold out its examples in turn, so that few of them tell more."""

    def cross_validate(self, configs: Sequence[Config], folds: int, /) -> FloatArray:
        """One score a configuration, the mean over so many parts held out."""


@runtime_checkable
class Learner(Protocol):
    """A client that takes part in federated averaging of several models at once."""

    def train_many(
        self, configs: Sequence[Mapping[str, Any]], weights: Weights, epochs: int, round_number: int
    ) -> Weights:
        """Local training of every model under its own configuration."""

    def validate_many(self, weights: Weights) -> FloatArray:
        """Accuracy of every model on the client's validation data."""


@runtime_checkable
class LearnsByRule(Protocol):
    """A client for methods that tune while they train: other rules, and its validation loss."""

    def train_by(
        self,
        rule: Rule,
        configs: Sequence[Config],
        weights: Weights,
        epochs: int,
        round_number: int,
    ) -> Weights:
        """Local training of every model by a rule, under its own configuration."""

    def losses_many(self, configs: Sequence[Config], weights: Weights) -> FloatArray:
        """Validation loss of every model; the configurations say which network it is."""


@runtime_checkable
class HoldsExamples(Protocol):
    """A client that says how many examples it trains on; nobody but itself is told."""

    @property
    def examples(self) -> int:
        """How many there are."""


@dataclass(frozen=True)
class FunctionClient:
    """A plain function as a client.

    >>> FunctionClient(lambda config: (config["x"] - 0.3) ** 2).score({"x": 0.3})
    0.0
    """

    function: Callable[[Config], float]

    def score(self, config: Config) -> float:
        """What the function returns."""
        return self.function(config)


def as_client(given: Client | Callable[[Config], float]) -> Client:
    """A client, or a function made one."""
    if isinstance(given, Client):
        return given
    if callable(given):
        return FunctionClient(given)
    raise TypeError(
        f"found a {type(given).__name__} among the clients; allowed are objects with a method "
        "score(config) and functions that return a loss"
    )


def learner(client: Client) -> Learner:
    """A client that can train, or a TypeError."""
    if not isinstance(client, Learner):
        raise TypeError(
            f"{type(client).__name__} cannot train: it has no train_many and validate_many"
        )
    return client


def trained(
    client: Client,
    rule: Rule | None,
    configs: Sequence[Config],
    weights: Weights,
    epochs: int,
    round_number: int,
) -> Weights:
    """Models after a client's local training, by gradient descent or by another rule."""
    if rule is None:
        return learner(client).train_many(configs, weights, epochs, round_number)
    return _by_rule(client).train_by(rule, configs, weights, epochs, round_number)


def losses(client: Client, configs: Sequence[Config], weights: Weights) -> FloatArray:
    """A client's validation loss of every model."""
    return _by_rule(client).losses_many(configs, weights)


def _by_rule(client: Client) -> LearnsByRule:
    if not isinstance(client, LearnsByRule):
        raise TypeError(
            f"{type(client).__name__} cannot tune while it trains: it has no train_by and "
            "losses_many"
        )
    return client


def scores(client: Client, configs: Sequence[Config], folds: int = 1) -> FloatArray:
    """All scores of a client; a configuration that cannot be scored gets NaN.

    With several ``folds`` they are cross-validated, by a client that can.
    """
    if folds > 1 and isinstance(client, CrossValidates):
        found = np.asarray(client.cross_validate(configs, folds), dtype=np.float64)
    elif isinstance(client, ScoresMany):
        found = np.asarray(client.score_many(configs), dtype=np.float64)
    else:
        found = np.array([_score(client, config) for config in configs], dtype=np.float64)
    if found.shape != (len(configs),):
        raise ValueError(f"found scores of shape {found.shape} for {len(configs)} configurations")
    return found


def _score(client: Client, config: Config) -> float:
    try:
        return float(client.score(config))
    except ArithmeticError:  # an overflow or a division by zero is a diverged training
        return float("nan")
