"""The ways to train many candidates of one network, and the trial that decides between them.

*Stacked*: a dense net's candidates train together, in stacks. *Spread*: one candidate a core. *In
turn*: one candidate after the other, on all cores. The ways give equal results up to rounding.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacit.cores import cores, import_torch, spread
from tacit.data.examples import Examples
from tacit.dense import Dense, stackable
from tacit.modules import Module
from tacit.sgd import (
    HYPERPARAMETERS,
    SERVER_HYPERPARAMETERS,
    Epoch,
    Floats,
    Indices,
    Net,
    Stack,
    Weights,
)
from tacit.space import Config

if TYPE_CHECKING:
    from torch import nn

_TRIAL_BATCHES = 3
_SMALL_STACK = 25
_PRODUCTS_WORTH_A_THREAD = 5_000_000  # a step; below, a busy machine makes torch's threads wait


@dataclass(frozen=True)
class Way:
    """How candidates train: ``stack`` of them at a time in each of ``workers`` pieces of work.

    Each piece has ``threads`` of torch's own. What is not stacked trains one by one in its piece.
    """

    stacked: bool
    workers: int
    threads: int
    stack: int

    def pieces(self, candidates: int) -> int:
        """In how many pieces so many candidates train."""
        return min(candidates, max(self.workers, math.ceil(candidates / self.stack)))

    def __str__(self) -> str:
        used = f"{self.workers * self.threads} core{'s' * (self.workers * self.threads > 1)}"
        if self.stacked:
            return f"{self.workers} x {self.stack} candidates stacked, on {used}"
        if self.workers > 1:
            return f"one candidate a core, on {used}"
        return f"one candidate after the other, on {used}"


@dataclass(frozen=True, eq=False)
class Architecture:
    """One network of a task, with the common start of its candidates."""

    module: Module
    dense: Dense | None
    why_not: str
    """Why the module cannot be stacked; empty if it can."""
    start: Weights

    @classmethod
    def of(cls, template: nn.Module, classes: int) -> Architecture:
        """A module, and as a dense net if it is one."""
        module, found = Module(template, classes), stackable(template)
        if isinstance(found, str):
            return cls(module, None, found, module.weights())
        if found.classes != classes:
            raise ValueError(
                f"the network gives {found.classes} logits; it must give one a class: {classes}"
            )
        return cls(module, found, "", module.weights())

    def net(self, way: Way) -> Net:
        """What trains a stack in this way."""
        return self.dense if self.dense is not None and way.stacked else self.module

    def check(self, examples: Examples) -> None:
        """Refuse examples that do not fit."""
        (self.dense or self.module).check(examples)

    def bytes_a_candidate(self, batch: int) -> int:
        """Weights and velocities, twice while candidates part; and what a dense net's batch leaves.

        A module's activations are not known beforehand, but only one candidate a worker has any.
        """
        numbers = 4 * sum(array.size for array in self.start)
        if self.dense is not None:
            numbers += 3 * batch * sum(self.dense.widths[1:])
        return 4 * numbers


def fastest(
    architecture: Architecture, candidates: int, examples: Examples, batch: int, megabytes: int
) -> tuple[Way, dict[Way, float]]:
    """The best of the possible ways, and what the trial measured: candidates' steps a second."""
    ways = _possible(architecture, candidates, batch, megabytes)
    if len(ways) == 1:
        return ways[0], {}
    speeds = {way: _speed(architecture, way, examples, batch) for way in ways}
    return max(ways, key=lambda way: speeds[way]), speeds


def epoch_of(examples: Examples, batch: int, seed: tuple[int, ...]) -> Epoch:
    """One pass over examples."""
    torch = import_torch()
    features, labels = (  # torch wants arrays that it could write to
        torch.from_numpy(np.require(array, requirements=["C", "W"]))
        for array in (examples.features, examples.labels)
    )
    return Epoch(features, labels, batch, seed)


@dataclass(frozen=True, eq=False)
class Part:
    """Some candidates of one architecture that train as one stack."""

    architecture: Architecture
    way: Way
    candidates: Indices
    knobs: Floats
    """Their hyperparameters, as :func:`tacit.sgd.columns` makes them."""
    begun: Stack | None = None
    going_on: Indices | None = None
    """Which candidates of the begun stack these are; None: all of them."""

    def resume(self) -> Stack | None:
        """The begun stack, without who was given up."""
        if self.begun is not None and self.going_on is not None:
            self.begun.keep(self.going_on)
        return self.begun

    def begin(self, weights: Weights | None = None) -> Stack:
        """A stack at its start: the common one, or weights of the candidates' own."""
        net = self.architecture.net(self.way)
        return Stack.from_knobs(net, self.knobs, weights or self.architecture.start)


def gradient_descent(config: Config) -> Config:
    """The part of a configuration that a client's own training goes by."""
    return {name: value for name, value in config.items() if name in HYPERPARAMETERS}


def network_arguments(config: Config) -> Config:
    """The part of a configuration that the network is built from."""
    others = {**HYPERPARAMETERS, **SERVER_HYPERPARAMETERS}
    return {name: config[name] for name in sorted(config) if name not in others}


def families(knobs: Floats) -> int:
    """How many models train in the first epoch: candidates that differ in decay share one."""
    return len(_families(knobs))


def pieces(knobs: Floats, way: Way, models: int) -> list[Indices]:
    """Candidates in pieces for so many models; who shares the first epoch stays together if it can.

    Stacks get families in turn, so that each has its share of good and bad ones: when the bad are
    given up, the stacks stay about equal.
    """
    found = _families(knobs)
    if way.stacked:
        count = way.pieces(models)
        in_turn = [family for first in range(count) for family in found[first::count]]
        return np.array_split(np.concatenate(in_turn), count)
    if len(found) < way.workers:
        found = np.array_split(np.concatenate(found), min(way.workers, len(knobs)))
    return [
        piece
        for family in found
        for piece in np.array_split(family, math.ceil(len(family) / way.stack))
    ]


def _families(knobs: Floats) -> list[Indices]:
    order = np.lexsort(knobs.T[::-1])
    first_epoch = knobs[order, :-1]
    changes = 1 + np.flatnonzero((first_epoch[1:] != first_epoch[:-1]).any(axis=1))
    return np.split(order, changes)


def _possible(architecture: Architecture, candidates: int, batch: int, megabytes: int) -> list[Way]:
    """All cores as workers or as torch's threads, and one core where threads would not pay."""
    available = cores()
    each = architecture.bytes_a_candidate(batch)
    shapes = {(1, 1), (min(available, candidates), 1)}
    products = batch * candidates * sum(array.size for array in architecture.start)
    if architecture.dense is None or products > _PRODUCTS_WORTH_A_THREAD:
        shapes.add((1, available))
    ways = []
    for workers, threads in sorted(shapes):
        share = min(
            math.ceil(candidates / workers),
            max(1, megabytes * 2**20 // (each * workers)),
        )
        if architecture.dense is None:
            ways.append(Way(False, workers, threads, share))
        else:
            sizes = {share, min(share, _SMALL_STACK)}
            ways += [Way(True, workers, threads, size) for size in sorted(sizes)]
    return ways


def _speed(architecture: Architecture, way: Way, examples: Examples, batch: int) -> float:
    """Steps of one candidate a second: the better of two short runs."""
    rows = np.arange(min(len(examples), _TRIAL_BATCHES * batch))
    epoch = epoch_of(examples.take(rows), batch, (0,))
    models = way.stack if way.stacked else 1
    configs: list[Config] = [{"learning_rate": 1e-3, "momentum": 0.5}] * models
    start = tuple(array.repeat(models, axis=0) for array in architecture.start)

    def train(_number: int) -> None:
        stack = Stack.begin(architecture.net(way), configs, start)
        stack.train(epoch)

    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        spread(train, range(way.workers), way.workers, way.threads)
        seconds.append(time.perf_counter() - begin)
    steps = math.ceil(len(rows) / batch)
    return way.workers * models * steps / min(seconds)
