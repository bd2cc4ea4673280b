"""DP-SGD and DP-Adam for dense networks, many runs at once.

Abadi et al., "Deep Learning with Differential Privacy" (2016), and Avent et al., "Automatic
Discovery of Privacy-Utility Pareto Fronts" (2020), Algorithms 3 and 4: gradients of single examples
are clipped, summed, noised and divided by the lot size. Lots are of a fixed size, drawn without
replacement (neighbours: one record replaced, noise in units of twice the clipping norm), or each
example is in with a probability (neighbours: one record added or removed, in units of the norm).

Written by hand because Opacus trains one model at a time; here all runs are stacked. The norm of an
example's gradient in a dense layer is the product of the norms of what goes in and of what comes
back, so no gradient of a single example is ever formed (Goodfellow 2015); a test compares with
Opacus. In NumPy, whose calls cost a fraction of torch's: a step of a linear model is so little
arithmetic that calls are most of its time.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tacit.data.examples import Examples
from tacit.gaussian import gaussian, poisson_sample

IntArray = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]
FIXED, POISSON = SAMPLINGS = ("fixed", "poisson")
OPTIMISERS = ("sgd", "adam")
LOSSES = ("logistic", "hinge")
_BETAS, _KAPPA = (0.9, 0.999), 1e-8
_ROUNDING = 1e-5
"""Clipping is this much shorter, more than what single precision errs by in a norm."""
_AT_ONCE = 2**20
"""How many random numbers are drawn at once, at most, for the steps ahead."""


class Chance(Protocol):
    """Where noise and lots come from."""

    def normal(self, shape: tuple[int, ...]) -> Numbers:
        """Standard normal numbers."""

    def lots(self, runs: int, examples: int, size: int) -> IntArray:
        """So many different examples for every run."""

    def some(self, examples: int, rate: float) -> IntArray:
        """Each example with a probability."""


class Secret:
    """From the operating system: for every model that may leave whoever trained it."""

    def normal(self, shape: tuple[int, ...]) -> Numbers:
        return gaussian(shape)

    def lots(self, runs: int, examples: int, size: int) -> IntArray:
        words = np.frombuffer(secrets.token_bytes(8 * runs * examples), dtype="<u8")
        order = np.argpartition(words.reshape(runs, examples), size - 1, axis=1)
        return order[:, :size].astype(np.int64)

    def some(self, examples: int, rate: float) -> IntArray:
        return poisson_sample(examples, rate)


class Seeded:
    """Fast and repeatable: for measuring how well a method does, where no model is released."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...]) -> Numbers:
        return self._rng.standard_normal(shape, dtype=np.float32)

    def lots(self, runs: int, examples: int, size: int) -> IntArray:
        """Small lots are drawn with repetition until there is none, all runs at once."""
        if size**2 > examples:
            return np.stack([self._lot(examples, size) for _ in range(runs)])
        found = np.sort(self._rng.integers(examples, size=(runs, size)), axis=1)
        while (twice := (np.diff(found) == 0).any(axis=1)).any():
            again = self._rng.integers(examples, size=(int(twice.sum()), size))
            found[twice] = np.sort(again, axis=1)
        return found

    def some(self, examples: int, rate: float) -> IntArray:
        return self._lot(examples, int(self._rng.binomial(examples, rate)))

    def _lot(self, examples: int, size: int) -> IntArray:
        return self._rng.choice(examples, size, replace=False, shuffle=False)


@dataclass(frozen=True)
class Recipe:
    """What all runs have in common.

    Args:
        hidden: widths of the hidden layers; none: a linear model.
        loss: ``logistic`` (cross-entropy) or ``hinge`` (a support vector machine).
        optimiser: ``sgd`` or ``adam``.
        sampling: lots of a ``fixed`` size, or ``poisson``.
        lot: their size, or its mean.
        steps: how many of them.
    """

    hidden: tuple[int, ...] = ()
    loss: str = "logistic"
    optimiser: str = "sgd"
    sampling: str = POISSON
    lot: int = 64
    steps: int = 100

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("loss", self.loss, LOSSES),
            ("optimiser", self.optimiser, OPTIMISERS),
            ("sampling", self.sampling, SAMPLINGS),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed are {' and '.join(allowed)}")
        if self.lot < 1 or self.steps < 1:
            raise ValueError(f"lot is {self.lot} and steps {self.steps}; allowed is 1 and above")


@dataclass(frozen=True)
class Run:
    """What a single run has of its own: noise in units of the sensitivity, the rest as usual.

    ``decay`` is the factor on the learning rate after every epoch; ``momentum`` is for ``sgd``.
    """

    learning_rate: float
    noise: float
    clip: float
    momentum: float = 0.0
    decay: float = 1.0


@dataclass(frozen=True)
class Models:
    """Trained models side by side: a layer is (runs, out, in + 1), biases in its last column."""

    layers: tuple[Numbers, ...]

    def one(self, run: int) -> tuple[Numbers, ...]:
        """The arrays of one of them, as torch's dense layers have them, a stack of one.

        A single score, of two classes, becomes the second of two.
        """
        found = []
        for layer in self.layers:
            pair = [layer[None, run, :, :-1], layer[None, run, :, -1]]
            if layer.shape[1] == 1:
                pair = [np.concatenate([0 * part, part], axis=1) for part in pair]
            found += [part.copy() for part in pair]
        return tuple(found)

    def wrong(self, examples: Examples, chunk: int = 4096) -> IntArray:
        """How many examples every model gets wrong."""
        found = np.zeros(len(self.layers[0]), dtype=np.int64)
        flat = examples.flat()
        with np.errstate(all="ignore"):  # a model that diverged is wrong, not an error
            for begin in range(0, len(flat), chunk):
                rows = _with_one(flat.features[begin : begin + chunk])
                scores, _ = _forward(self.layers, rows[None])
                guess = scores.argmax(2) if scores.shape[2] > 1 else scores[:, :, 0] > 0
                found += (guess != flat.labels[begin : begin + chunk]).sum(axis=1)
        return found


def train(
    recipe: Recipe,
    runs: Sequence[Run],
    examples: Examples,
    classes: int,
    chance: Chance,
    start: Models | None = None,
) -> Models:
    """All runs, each on lots and with noise of its own; linear models begin at zero.

    *Proof.* A step's sum of clipped gradients moves by at most ``clip`` when one record comes or
    goes, and by twice that when one is replaced; noise of ``noise`` times as much is added to it,
    and all that follows is post-processing. What the sum is divided by is the lot's planned size.
    """
    flat = examples.flat()
    features, count = _with_one(flat.features), len(flat)
    squares = np.einsum("ij,ij->i", features, features)
    if not 1 <= recipe.lot <= count:
        raise ValueError(f"lot is {recipe.lot}; allowed is 1 to the number of examples, {count}")
    outputs = 1 if classes == 2 and not recipe.hidden else classes
    sizes = (flat.features.shape[1], *recipe.hidden, outputs)
    layers = [layer.copy() for layer in (start or _start(sizes, len(runs), chance)).layers]
    rate, noise, clip, momentum, decay = (
        np.array([float(getattr(run, name)) for run in runs], np.float32)[:, None, None]
        for name in ("learning_rate", "noise", "clip", "momentum", "decay")
    )
    epoch = max(1, count // recipe.lot)
    unit = (2.0 if recipe.sampling == FIXED else 1.0) * noise * clip / np.float32(recipe.lot)
    moments = [(np.zeros_like(layer), np.zeros_like(layer)) for layer in layers]
    drawn = _chances(recipe, count, [layer.shape for layer in layers], chance)
    with np.errstate(all="ignore"):  # what diverges stays out, below
        for step, (rows, present, noises) in enumerate(drawn, start=1):
            lots = _Lots(features[rows], flat.labels[rows], squares[rows], present)
            sums = _clipped_sums(recipe, layers, lots, clip[:, :, 0])
            for layer, pull, own, normal in zip(layers, sums, moments, noises, strict=True):
                pull *= np.float32(1 / recipe.lot)
                pull += unit * normal
                if recipe.optimiser == "adam":
                    layer -= rate * _adam(own, pull, step)
                else:
                    own[0][:] = momentum * own[0] + pull
                    layer -= rate * own[0]
            if step % epoch == 0:
                rate = rate * decay
    return Models(tuple(layers))


def _with_one(rows: Numbers) -> Numbers:
    """Another feature that is one, so that a bias is a weight."""
    ones = np.ones((*rows.shape[:-1], 1), np.float32)
    return np.concatenate([rows, ones], axis=-1, dtype=np.float32)


def _start(sizes: Sequence[int], runs: int, chance: Chance) -> Models:
    """Zeros for a linear model (Algorithm 3); He's random weights where there are hidden layers."""
    layers = []
    for into, out in pairwise(sizes):
        layer = np.zeros((runs, out, into + 1), np.float32)
        if len(sizes) > 2:
            drawn = chance.normal((runs, out, into))
            layer[:, :, :-1] = drawn * math.sqrt((2.0 if out != sizes[-1] else 1.0) / into)
        layers.append(layer)
    return Models(tuple(layers))


@dataclass(frozen=True)
class _Lots:
    """What every run has drawn for a step."""

    rows: Numbers
    labels: IntArray
    squares: Numbers
    """Of the rows' norms."""
    present: Numbers | None
    """One for a row that is there: lots of chance differ in size."""


def _chances(
    recipe: Recipe, count: int, shapes: Sequence[tuple[int, ...]], chance: Chance
) -> Iterator[tuple[IntArray, Numbers | None, list[Numbers]]]:
    """For every step its rows, which of them are there, and noise; drawn for some steps at once."""
    runs = shapes[0][0]
    words = max(runs * count, sum(map(math.prod, shapes)))
    ahead = max(1, _AT_ONCE // words)
    for begin in range(0, recipe.steps, ahead):
        some = min(ahead, recipe.steps - begin)
        noises = [chance.normal((some, *shape)) for shape in shapes]
        lots: list[tuple[IntArray, Numbers | None]]
        if recipe.sampling == FIXED:
            drawn = chance.lots(some * runs, count, recipe.lot).reshape(some, runs, recipe.lot)
            lots = [(rows, None) for rows in drawn]
        else:
            lots = [_by_chance(recipe, count, runs, chance) for _ in range(some)]
        for number, (rows, present) in enumerate(lots):
            yield rows, present, [noise[number] for noise in noises]


def _by_chance(
    recipe: Recipe, count: int, runs: int, chance: Chance
) -> tuple[IntArray, Numbers | None]:
    lots = [chance.some(count, recipe.lot / count) for _ in range(runs)]
    longest = max(1, *map(len, lots))
    rows, present = np.zeros((runs, longest), np.int64), np.zeros((runs, longest), np.float32)
    for run, lot in enumerate(lots):
        rows[run, : len(lot)], present[run, : len(lot)] = lot, 1.0
    return rows, present


def _forward(layers: Sequence[Numbers], rows: Numbers) -> tuple[Numbers, list[Numbers]]:
    """The scores, and what went into every layer."""
    into = [rows]
    for layer in layers[:-1]:
        into.append(_with_one(np.maximum(into[-1] @ layer.transpose(0, 2, 1), 0)))
    return into[-1] @ layers[-1].transpose(0, 2, 1), into


def _clipped_sums(
    recipe: Recipe, layers: Sequence[Numbers], lots: _Lots, clip: Numbers
) -> list[Numbers]:
    """Sums over a lot of single examples' gradients, each clipped to its run's norm."""
    scores, into = _forward(layers, lots.rows)
    back = [_slope(recipe.loss, scores, lots.labels)]
    for layer, inner in zip(reversed(layers[1:]), reversed(into[1:]), strict=True):
        back.insert(0, (back[0] @ layer[:, :, :-1]) * (inner[:, :, :-1] > 0))
    squares = lots.squares * _squares(back[0])
    for a, d in zip(into[1:], back[1:], strict=True):
        squares += _squares(a) * _squares(d)
    scale = (1 - _ROUNDING) * clip / np.sqrt(np.maximum(squares, clip * clip))
    if lots.present is not None:
        scale *= lots.present
    known = np.isfinite(squares)
    if not known.all():  # an example whose gradient has no norm stays out
        scale = np.where(known, scale, np.float32(0))
        into, back = (
            [np.where(known[:, :, None], part, np.float32(0)) for part in parts]
            for parts in (into, back)
        )
    scale = scale[:, :, None].astype(np.float32)
    return [(d * scale).transpose(0, 2, 1) @ a for a, d in zip(into, back, strict=True)]


def _squares(rows: Numbers) -> Numbers:
    """The squared norm of every row."""
    return np.asarray(np.einsum("rij,rij->ri", rows, rows), dtype=np.float32)


def _slope(loss: str, scores: Numbers, labels: IntArray) -> Numbers:
    """The derivative of every example's loss by its scores."""
    outputs = scores.shape[2]
    if outputs == 1:
        known = labels[:, :, None].astype(np.float32)
        if loss == "logistic":
            return np.asarray(1 / (1 + np.exp(-scores)) - known)
        sign = 2 * known - 1
        return np.asarray(np.where(sign * scores < 1, -sign, np.float32(0)))
    known = np.eye(outputs, dtype=np.float32)[labels]
    if loss == "logistic":
        odds = np.exp(scores - scores.max(axis=2, keepdims=True))
        return np.asarray(odds / odds.sum(axis=2, keepdims=True) - known)
    own = np.take_along_axis(scores, labels[:, :, None], axis=2)
    over = (scores - own + 1 > 0) * (1 - known)
    return np.asarray(over - known * over.sum(axis=2, keepdims=True))


def _adam(moments: tuple[Numbers, Numbers], slope: Numbers, step: int) -> Numbers:
    """Algorithm 4's direction."""
    for moment, beta, part in zip(moments, _BETAS, (slope, slope * slope), strict=True):
        moment *= np.float32(beta)
        moment += np.float32(1 - beta) * part
    first, second = (
        moment / np.float32(1 - beta**step) for moment, beta in zip(moments, _BETAS, strict=True)
    )
    return np.asarray(first / (np.sqrt(second) + np.float32(_KAPPA)))
