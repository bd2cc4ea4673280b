"""Any torch module as a task: a client scores all its candidates in the fastest way for the model.

There are three ways. *Stacked*: a dense net's candidates train together, in stacks that share the
cores. *Spread*: one candidate a core. *In turn*: one candidate after the other, on all cores. A
short trial decides, once a task and number of candidates, and :meth:`TorchTask.report` says what it
found. The ways give equal scores up to rounding, and a candidate's score does not depend on its
neighbours.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tacit.cores import cores, import_torch, spread
from tacit.data.examples import Examples, cross_validation
from tacit.halving import LOCAL_SEARCHES, successive_halving
from tacit.modules import draw
from tacit.rules import Rule, built_from, train_by
from tacit.sgd import (
    HYPERPARAMETERS,
    METRICS,
    SERVER_HYPERPARAMETERS,
    Floats,
    Indices,
    Stack,
    Weights,
    alone,
    check_config,
    columns,
    scores,
)
from tacit.space import Config
from tacit.ways import (
    Architecture,
    Part,
    Way,
    epoch_of,
    families,
    fastest,
    gradient_descent,
    network_arguments,
    pieces,
)

if TYPE_CHECKING:
    from torch import nn

Found = TypeVar("Found")

_SIZES = (1, 2, 5, 10, 25, 50, 100)  # trials are held for these numbers of candidates
_MODELS_AT_ONCE = 25
_UNEVEN = 1.5
_NEXT_SEED = 1_000_003
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TorchTask:
    """Classification by a torch module, trained with stochastic gradient descent.

    ``build`` makes a module that ends in one logit a class. A configuration sets hyperparameters
    of gradient descent (``learning_rate``, ``momentum``, ``weight_decay``, ``dropout``, ``decay``)
    and, beyond those, whatever ``build`` takes as keyword arguments.

    >>> from torch import nn
    >>> from tacit.data.examples import split_validation
    >>> from tacit.data.sources import digits
    >>> def net(width=32):
    ...     return nn.Sequential(
    ...         nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)
    ...     )
    >>> task = TorchTask(net, classes=10, epochs=5, batch=16)
    >>> own = split_validation(digits().train.take(np.arange(80)), 0.25, key=7)
    >>> scores = task.client(*own, seed=7).score_many(
    ...     [{"learning_rate": 0.2}, {"learning_rate": 1e-4}, {"learning_rate": 0.2, "width": 64}]
    ... )
    >>> bool(scores[0] < scores[1]), bool(scores[2] < scores[1])
    (True, True)

    Args:
        build: makes a fresh module.
        classes: how many classes there are.
        epochs: how long a client trains to score a candidate.
        batch: rows a step.
        metric: the validation ``loss``, or the validation ``error`` with equal errors ordered by
            loss.
        local: ``full``, or ``halving``: bad candidates are given up early. That happens before
            anything is said, so it costs no privacy; given-up candidates rank behind all others.
        start_seed: draws the common start; the same for all clients.
        memory_megabytes: what the stacks of candidates may take together.
    """

    build: Callable[..., nn.Module]
    classes: int
    epochs: int = 5
    batch: int = 64
    metric: str = "error"
    local: str = "full"
    start_seed: int = 0
    memory_megabytes: int = 1024
    _architectures: dict[tuple[Any, ...], Architecture] = field(default_factory=dict, repr=False)
    _ways: dict[tuple[Any, ...], Way] = field(default_factory=dict, repr=False)
    _trials: dict[str, float] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("metric", self.metric, METRICS),
            ("local", self.local, LOCAL_SEARCHES),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        for name in ("epochs", "batch", "memory_megabytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 and above")

    def client(self, train: Examples, validation: Examples, seed: int) -> TorchClient:
        """A client that holds these examples; ``seed`` is its own and orders its batches."""
        return TorchClient(self, train, validation, seed)

    def check(self, config: Config) -> None:
        """Refuse a configuration that this task cannot train."""
        shape = network_arguments(config)
        check_config({name: value for name, value in config.items() if name not in shape})
        try:
            inspect.signature(self.build).bind(**shape)
        except TypeError:
            raise ValueError(
                f"the network cannot be built from {shape or 'no arguments'}: it takes "
                f"{inspect.signature(self.build)}; allowed beside that are the hyperparameters "
                f"{', '.join((*HYPERPARAMETERS, *SERVER_HYPERPARAMETERS))}"
            ) from None
        if config.get("dropout") and not self.architecture(config).module.dropouts:
            raise ValueError(
                f"dropout is {config['dropout']!r}, but the network has no torch.nn.Dropout; "
                "allowed is 0, or a network with such layers"
            )

    def check_all(self, configs: Sequence[Config]) -> None:
        """Refuse candidates of which one cannot be trained."""
        for config in configs:
            check_config({n: config[n] for n in SERVER_HYPERPARAMETERS.keys() & config.keys()})
        columns([gradient_descent(config) for config in configs], {})
        kinds = {(*network_arguments(c), bool(c.get("dropout"))): c for c in configs}
        for config in kinds.values():
            self.check(config)

    def architecture(self, config: Config) -> Architecture:
        """The network of a configuration."""
        shape = network_arguments(config)
        key = tuple(shape.items())
        with self._lock:
            if key not in self._architectures:
                template = draw(partial(self.build, **shape), self.start_seed)
                self._architectures[key] = Architecture.of(template, self.classes)
                if self._architectures[key].why_not:
                    _logger.info(
                        "candidates train one by one: %s", self._architectures[key].why_not
                    )
            return self._architectures[key]

    def initial(self, models: int, config: Config | None = None) -> Weights:
        """The common start of a configuration's network, or that without arguments."""
        start = self.architecture(config or {}).start
        return tuple(array.repeat(models, axis=0) for array in start)

    @property
    def trained(self) -> int:
        """How many arrays of a model's weights are trained; the others are running statistics."""
        return self.architecture({}).module.trained

    def accuracies(
        self, weights: Weights, examples: Examples, config: Config | None = None
    ) -> Floats:
        """Share of examples that each model gets right; see :meth:`measure`."""
        return self.measure(weights, examples, config)[1]

    def measure(
        self, weights: Weights, examples: Examples, config: Config | None = None
    ) -> tuple[Floats, Floats]:
        """Loss and accuracy of each model of a configuration's network; arrays beyond are ignored.

        Without a configuration it is the network without arguments.
        """
        architecture = self.architecture(config or {})
        architecture.check(examples)
        net = architecture.dense or architecture.module
        pieces = math.ceil(len(weights[0]) / _MODELS_AT_ONCE)

        def work(part: Indices) -> tuple[Floats, Floats]:
            some = tuple(array[part] for array in weights[: len(architecture.start)])
            return Stack.begin(net, [{}] * len(part), some).measure(examples)

        parts = np.array_split(np.arange(len(weights[0])), pieces)
        loss, accuracy = zip(*spread(work, parts, cores()), strict=True)
        return np.concatenate(loss), np.concatenate(accuracy)

    def predictions(
        self, weights: Weights, examples: Examples, config: Config | None = None
    ) -> Indices:
        """The likeliest class of every example by each model of a configuration's network."""
        torch = import_torch()
        module = self.architecture(config or {}).module
        tensors = [torch.tensor(array) for array in weights]
        with torch.no_grad():
            logits = module.logits(tensors, torch.tensor(examples.features))
        found: Indices = logits.argmax(2).numpy()
        return found

    def report(self) -> dict[str, Any]:
        """How candidates were trained (most at once first), what the trials measured, and why not.

        Trials are in candidates' steps a second.
        """
        with self._lock:
            most_first = sorted(self._ways, key=lambda key: -key[1])
            reasons = sorted({a.why_not for a in self._architectures.values() if a.why_not})
            return {
                "local": self.local,
                "ways": list(dict.fromkeys(str(self._ways[key]) for key in most_first)),
                "trials": dict(self._trials),
                "not_stacked_because": reasons,
            }

    def way(self, architecture: Architecture, candidates: int, examples: Examples) -> Way:
        """The fastest way by a short trial; measured once, whatever client comes first."""
        architecture.check(examples)
        some = min(size for size in _SIZES if size >= min(candidates, _SIZES[-1]))
        key = (id(architecture), some, cores())
        if key not in self._ways:
            way, speeds = fastest(architecture, some, examples, self.batch, self.memory_megabytes)
            with self._lock:
                self._ways[key] = way
                self._trials.update({str(way): speed for way, speed in speeds.items()})
        return self._ways[key]


@dataclass(frozen=True, eq=False)
class TorchClient:
    """A client of a :class:`TorchTask`, with training and validation examples of its own."""

    task: TorchTask
    train_examples: Examples
    validation: Examples
    seed: int

    @property
    def examples(self) -> int:
        """How many examples it trains on."""
        return len(self.train_examples)

    def score(self, config: Config) -> float:
        """How bad the model is after local training from the common start; lower is better."""
        return float(self.score_many([config])[0])

    def score_many(self, configs: Sequence[Config]) -> Floats:
        """The score of every configuration; infinite where a training diverged."""
        return self.cross_validate(configs, folds=1)

    def cross_validate(self, configs: Sequence[Config], folds: int) -> Floats:
        """The same as means over so many trainings, each held against other examples."""
        self.task.check_all(configs)
        configs = [alone(config) for config in configs]
        everyone = [*self.folds(folds)]
        metric, held_out = self.task.metric, sum(len(one.validation) for one in everyone)
        if self.task.local != "halving":
            loss, accuracy = np.mean([one.measure_many(configs) for one in everyone], axis=0)
            return scores(loss, accuracy, held_out, metric)
        room = self.task.memory_megabytes * 2**20 // folds
        trainings = [_Training(one, configs, room) for one in everyone]

        def advance(some: Indices, until: int) -> Floats:
            measured = [training.advance(some, until) for training in trainings]
            loss, accuracy = np.mean(measured, axis=0)
            return scores(loss, accuracy, held_out, metric)

        return successive_halving(
            len(configs),
            self.task.epochs,
            advance,
            trainings[0].remaining,
            held_out if metric == "error" else None,
        )

    def folds(self, count: int) -> Iterator[TorchClient]:
        """This client, and others that hold out other ones of the same examples."""
        parts = cross_validation(self.train_examples, self.validation, count, self.seed)
        for number, (train, validation) in enumerate(parts):
            yield TorchClient(self.task, train, validation, self.seed + _NEXT_SEED * number)

    def measure_many(self, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Validation loss and accuracy of every configuration after a full local training."""
        found = np.empty((2, len(configs)))
        configs = [alone(config) for config in configs]

        def work(part: Part) -> tuple[Floats, Floats]:
            stack = self.train(part.begin(), 0, self.task.epochs)
            return stack.measure(self.validation)

        for part, measured in self.spread(work, self.parts(configs)):
            found[:, part.candidates] = measured
        return found[0], found[1]

    def train_many(
        self, configs: Sequence[Config], weights: Weights, epochs: int, round_number: int
    ) -> Weights:
        """Local training from the given weights, in batches that change with the round."""
        parts = self.parts(configs)
        for part in parts:
            expected = [array.shape[1:] for array in part.architecture.start]
            found = [array.shape[1:] for array in weights]
            if found != expected or any(len(array) != len(configs) for array in weights):
                raise ValueError(
                    f"the weights have shapes {found} for {len(configs)} configurations; allowed "
                    f"are {expected}, one each"
                )
        result = tuple(np.empty_like(array) for array in weights)

        def work(part: Part) -> Weights:
            stack = part.begin(tuple(array[part.candidates] for array in weights))
            return self.train(stack, round_number, epochs).weights()

        for part, trained in self.spread(work, parts):
            for whole, piece in zip(result, trained, strict=True):
                whole[part.candidates] = piece
        return result

    def train_by(
        self,
        rule: Rule,
        configs: Sequence[Config],
        weights: Weights,
        epochs: int,
        round_number: int,
    ) -> Weights:
        """Local training by another rule than gradient descent, one model after the other."""

        def work(number: int) -> Weights:
            return train_by(
                rule,
                self.task.architecture(built_from(configs[number])).module.template,
                tuple(array[number : number + 1] for array in weights),
                configs[number],
                self.train_examples,
                self.validation,
                epochs,
                self.task.batch,
                (self.seed, round_number),
            )

        found = spread(work, range(len(configs)), min(cores(), len(configs)))
        return tuple(np.concatenate(arrays) for arrays in zip(*found, strict=True))

    def losses_many(self, configs: Sequence[Config], weights: Weights) -> Floats:
        """Validation loss of every model of one network; infinite where it is not finite."""
        return self.task.measure(weights, self.validation, built_from(configs[0]))[0]

    def validate_many(self, weights: Weights) -> Floats:
        """Validation accuracy of every model."""
        return self.task.accuracies(weights, self.validation)

    def parts(
        self,
        configs: Sequence[Config],
        candidates: Indices | None = None,
        one_epoch: bool = False,
    ) -> list[Part]:
        """All candidates, or some of them, in pieces that train by themselves.

        For one epoch only, candidates that share it count as one.
        """
        groups: dict[int, tuple[Architecture, list[int]]] = {}
        for number in range(len(configs)) if candidates is None else candidates:
            architecture = self.task.architecture(configs[number])
            groups.setdefault(id(architecture), (architecture, []))[1].append(number)
        parts = []
        for architecture, members in groups.values():
            own = [gradient_descent(configs[number]) for number in members]
            knobs = columns(own, (architecture.dense or architecture.module).defaults)
            models = families(knobs) if one_epoch else len(members)
            way = self.task.way(architecture, models, self.train_examples)
            parts += [
                Part(architecture, way, np.array(members)[piece], knobs[piece])
                for piece in pieces(knobs, way, models)
            ]
        return parts

    def train(self, stack: Stack, round_number: int, until: int) -> Stack:
        """Train a stack until it has seen the client's examples so many times."""
        while stack.epochs < until:
            seed = (self.seed, round_number, stack.epochs)
            stack.train(epoch_of(self.train_examples, self.task.batch, seed))
        return stack

    @staticmethod
    def spread(
        work: Callable[[Part], Found], parts: Sequence[Part]
    ) -> Iterator[tuple[Part, Found]]:
        """Work on every part, each architecture in its own way."""
        for way, together in groupby(parts, key=lambda part: part.way):
            some = list(together)
            yield from zip(some, spread(work, some, way.workers, way.threads), strict=True)


@dataclass(eq=False)
class _Training:
    """Candidates in training that wait for each other at the rungs of successive halving.

    What does not fit into memory does not wait: if it goes on, it trains from the start again.
    """

    client: TorchClient
    configs: Sequence[Config]
    room: int
    """Bytes that may wait."""
    waiting: list[Part] = field(default_factory=list)

    def advance(self, candidates: Indices, until: int) -> Floats:
        """Train some candidates until this epoch; the others are never asked for again.

        Returns their validation losses and accuracies.
        """
        task = self.client.task
        (begun,) = spread(self._regrouped, [candidates], workers=1)  # copies need no threads
        known = [part.candidates for part in begun]
        fresh = np.setdiff1d(candidates, np.concatenate(known)) if known else candidates
        parts = [*begun, *self.client.parts(self.configs, fresh, until == 1)]

        room = self.room

        def work(part: Part) -> tuple[Stack | None, Floats]:
            nonlocal room
            stack = self.client.train(part.resume() or part.begin(), 0, until)
            measured = stack.measure(self.client.validation)
            with task._lock:
                room -= stack.bytes()
                waits = room > 0
            return stack if waits else None, np.array(measured)

        result = np.empty((2, len(self.configs)))
        self.waiting = []
        for part, (stack, found) in self.client.spread(work, parts):
            result[:, part.candidates] = found
            if stack is not None:
                self.waiting.append(replace(part, begun=stack, going_on=None))
        return result[:, candidates]

    def remaining(self, until: int) -> Floats:
        """What share of its steps, weighted by the learning rate, each candidate has ahead."""
        steps = np.minimum(self.decays, 1) ** np.arange(self.client.task.epochs)
        return np.asarray(steps[:, until:].sum(axis=1) / steps.sum(axis=1))

    @cached_property
    def decays(self) -> Floats:
        """Every candidate's decay, as a column."""
        return np.array([[float(config.get("decay", 1))] for config in self.configs])

    def _regrouped(self, candidates: Indices) -> list[Part]:
        """The stacks that wait, without who was given up; shared out again if they got uneven."""
        groups: dict[int, list[Part]] = {}
        for part in self.waiting:
            going_on = np.flatnonzero(np.isin(part.candidates, candidates))
            if going_on.size:
                left = replace(part, candidates=part.candidates[going_on], going_on=going_on)
                groups.setdefault(id(part.architecture), []).append(left)
        return [part for group in groups.values() for part in self._evened(group)]

    def _evened(self, group: list[Part]) -> list[Part]:
        sizes = [len(part.candidates) for part in group]
        architecture, client = group[0].architecture, self.client
        way = client.task.way(architecture, sum(sizes), client.train_examples)
        if len(group) == way.pieces(sum(sizes)) and max(sizes) <= _UNEVEN * min(sizes):
            return [replace(part, way=way) for part in group]
        whole = Stack.joined([stack for part in group if (stack := part.resume()) is not None])
        everyone = np.concatenate([part.candidates for part in group])
        return [
            Part(architecture, way, everyone[some], stack.knobs, stack)
            for some, stack in whole.split(way.pieces(len(whole)))
        ]
