"""DP-SGD and DP-Adam for dense networks, many runs at once.

Abadi et al., "Deep Learning with Differential Privacy" (2016), and Avent et al., "Automatic
Discovery of Privacy-Utility Pareto Fronts" (2020), Algorithms 3 and 4: gradients of single examples
are clipped, summed, noised and divided by the lot size. Lots are of a fixed size, drawn without
replacement (noise in units of twice the charged sensitivity), or each example is in with a
probability (in units of it); either way neighbours differ by replacing one record.

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
from tacit.lots import Units, packed, poisson_sample, scattered
from tacit.privacy.clipped_sum import charged_sensitivity, check_sum, grid_step, snapped
from tacit.privacy.rounded_normal import rounded_normal

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]
FIXED, POISSON = SAMPLINGS = ("fixed", "poisson")
OPTIMISERS = ("sgd", "adam")
LOSSES = ("logistic", "hinge")
_BETAS, _KAPPA = (0.9, 0.999), 1e-8
_START_STEPS = 2.0**20
"""Weights at random begin as whole numbers of this fraction of a deviation."""
_AT_ONCE = 2**20
"""How many random numbers are drawn at once, at most, for the steps ahead."""
_ROWS_AT_ONCE = 4096
"""How many rows are of double precision at once, about."""


class Chance(Protocol):
    """Where noise and lots come from."""

    def rounded_normal(self, deviation: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
        """Normal numbers of a deviation, or of one for each place, rounded to integers."""

    def lots(self, runs: int, units: int, size: int) -> IntArray:
        """So many different units for every run."""

    def some(self, units: int, rate: float) -> IntArray:
        """Each unit with a probability."""

    def placed(
        self, units: Units, lots: Sequence[IntArray], rate: float
    ) -> tuple[IntArray, FloatArray]:
        """Rows and their weights, of lots whose number of rows is a matter of chance.

        As (lots, blocks, places): every block is computed by itself (:mod:`tacit.lots`).
        """


class Secret:
    """From the operating system: for every model that may leave whoever trained it."""

    def rounded_normal(self, deviation: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
        return rounded_normal(deviation, shape)

    def lots(self, runs: int, units: int, size: int) -> IntArray:
        words = np.frombuffer(secrets.token_bytes(8 * runs * units), dtype="<u8")
        order = np.argpartition(words.reshape(runs, units), size - 1, axis=1)
        return order[:, :size].astype(np.int64)

    def some(self, units: int, rate: float) -> IntArray:
        return poisson_sample(units, rate)

    def placed(
        self, units: Units, lots: Sequence[IntArray], rate: float
    ) -> tuple[IntArray, FloatArray]:
        return scattered(units, lots, rate)


class Seeded:
    """Fast and repeatable: for measuring how well a method does, where no model is released."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def rounded_normal(self, deviation: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
        """In floating point, which is good enough where nobody sees the result; 0 gives zeros."""
        normal = self._rng.standard_normal(shape, dtype=np.float32)
        normal *= np.asarray(deviation, np.float32)
        return np.rint(normal, out=normal).astype(np.int64)

    def lots(self, runs: int, units: int, size: int) -> IntArray:
        """Small lots are drawn with repetition until there is none, all runs at once."""
        if size**2 > units:
            return np.stack([self._lot(units, size) for _ in range(runs)])
        found = np.sort(self._rng.integers(units, size=(runs, size)), axis=1)
        while (twice := (np.diff(found) == 0).any(axis=1)).any():
            again = self._rng.integers(units, size=(int(twice.sum()), size))
            found[twice] = np.sort(again, axis=1)
        return found

    def some(self, units: int, rate: float) -> IntArray:
        return self._lot(units, int(self._rng.binomial(units, rate)))

    def placed(
        self, units: Units, lots: Sequence[IntArray], rate: float
    ) -> tuple[IntArray, FloatArray]:
        del rate
        return packed(units, lots)

    def _lot(self, units: int, size: int) -> IntArray:
        return self._rng.choice(units, size, replace=False, shuffle=False)


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
    """What a single run has of its own.

    ``noise`` is in units of the charged sensitivity (:mod:`tacit.privacy.clipped_sum`), ``decay``
    is the factor on the learning rate after every epoch; ``momentum`` is for ``sgd``.
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

    def wrong(self, examples: Examples) -> IntArray:
        """How many examples every model gets wrong."""
        return np.asarray(len(examples) - self.right(examples).sum(axis=1), dtype=np.int64)

    def right(self, examples: Examples, chunk: int = 4096) -> npt.NDArray[np.bool_]:
        """Which examples every model gets right: (runs, examples).

        For neighbouring data, the answers about all other units are the same: their rows are
        computed in arrays of the same shape, at the same places (:mod:`tacit.lots`).
        """
        flat = examples.flat()
        found = np.zeros((len(self.layers[0]), len(flat)), dtype=np.bool_)
        with np.errstate(all="ignore"):  # a model that diverged is wrong, not an error
            for rows in Units(flat).every_row(chunk):
                scores, _ = _forward(self.layers, _with_one(flat.features[rows])[None])
                guess = scores.argmax(-1) if scores.shape[-1] > 1 else scores[..., 0] > 0
                there = rows >= 0
                found[:, rows[there]] = (guess == flat.labels[rows])[:, there]
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

    *Proof.* In the terms of :mod:`tacit.privacy.clipped_sum`, a step's snapped sum of clipped
    gradients moves by at most the charged sensitivity when one unit (a record, or a group of rows
    that belong together) comes or goes, and by twice that when one is replaced; rounded normal
    noise of ``noise`` times as much is added to it, and all that follows is post-processing. What
    the sum is divided by is the lot's planned size, and rates and epochs are those of units.
    """
    flat = examples.flat()
    features, units = _with_one(flat.features), Units(flat)
    squares = _row_squares(features)
    if not 1 <= recipe.lot <= len(units):
        raise ValueError(
            f"lot is {recipe.lot}; allowed is 1 to the number of examples, {len(units)}, where "
            "those that belong together count once"
        )
    outputs = 1 if classes == 2 and not recipe.hidden else classes
    sizes = (flat.features.shape[1], *recipe.hidden, outputs)
    layers = [layer.copy() for layer in (start or _start(sizes, len(runs), chance)).layers]
    rate, momentum, decay = (
        np.array([getattr(run, name) for run in runs], np.float32)[:, None, None]
        for name in ("learning_rate", "momentum", "decay")
    )
    noise, clip = (
        np.array([getattr(run, name) for run in runs], np.float64)[:, None, None]
        for name in ("noise", "clip")
    )
    parameters = sum(math.prod(layer.shape[1:]) for layer in layers)
    check_sum(clip, len(units), parameters)
    grid = grid_step(clip, parameters)
    unit = (2.0 if recipe.sampling == FIXED else 1.0) * charged_sensitivity(clip, parameters)
    epoch = max(1, len(units) // recipe.lot)
    moments = [(np.zeros_like(layer), np.zeros_like(layer)) for layer in layers]
    shapes = [layer.shape for layer in layers]
    drawn = _chances(recipe, units, shapes, noise * unit / grid, chance)
    with np.errstate(all="ignore"):  # what diverges stays out, below
        for step, (rows, weights, noises) in enumerate(drawn, start=1):
            lots = _Lots(
                features.take(rows, axis=0), flat.labels.take(rows), squares.take(rows), weights
            )
            sums = _clipped_sums(recipe, layers, lots, clip)
            for layer, total, own, added in zip(layers, sums, moments, noises, strict=True):
                noisy = snapped(total, grid)
                noisy += added
                noisy *= grid / recipe.lot
                pull = noisy.astype(np.float32)
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
            drawn = chance.rounded_normal(_START_STEPS, (runs, out, into)) / _START_STEPS
            layer[:, :, :-1] = drawn * math.sqrt((2.0 if out != sizes[-1] else 1.0) / into)
        layers.append(layer)
    return Models(tuple(layers))


@dataclass(frozen=True)
class _Lots:
    """What every run has drawn for a step: arrays begin with (runs, blocks, places)."""

    rows: Numbers
    labels: IntArray
    squares: FloatArray
    """Of the rows' norms."""
    weights: FloatArray | None
    """Of every row, one over its group's size; zero for rows that only fill a place. None: all are
    one."""


def _chances(
    recipe: Recipe,
    units: Units,
    shapes: Sequence[tuple[int, ...]],
    deviation: FloatArray,
    chance: Chance,
) -> Iterator[tuple[IntArray, FloatArray | None, list[IntArray]]]:
    """For every step its rows, their weights, and noise; drawn for some steps at once."""
    runs = shapes[0][0]
    words = max(runs * len(units), sum(map(math.prod, shapes)))
    ahead = max(1, _AT_ONCE // words)
    for begin in range(0, recipe.steps, ahead):
        some = min(ahead, recipe.steps - begin)
        noises = [chance.rounded_normal(deviation, (some, *shape)) for shape in shapes]
        for number, (rows, weights) in enumerate(_lots(recipe, units, some, runs, chance)):
            yield rows, weights, [noise[number] for noise in noises]


def _lots(
    recipe: Recipe, units: Units, steps: int, runs: int, chance: Chance
) -> Iterator[tuple[IntArray, FloatArray | None]]:
    """The rows of every step's lots and their weights."""
    rate = recipe.lot / len(units)
    if recipe.sampling == FIXED:
        drawn = chance.lots(steps * runs, len(units), recipe.lot)
        for same in drawn.reshape(steps, runs, recipe.lot):
            if units.grouped:
                yield chance.placed(units, list(same), rate)
            else:
                yield same[:, None], None
        return
    for _ in range(steps):
        lots = [chance.some(len(units), rate) for _ in range(runs)]
        yield chance.placed(units, lots, rate)


def _forward(layers: Sequence[Numbers], rows: Numbers) -> tuple[Numbers, list[Numbers]]:
    """The scores, and what went into every layer; rows are (runs, blocks, places, inputs).

    Every block is a matrix product of its own.
    """
    into = [rows]
    for layer in layers[:-1]:
        into.append(_with_one(np.maximum(into[-1] @ layer.transpose(0, 2, 1)[:, None], 0)))
    return into[-1] @ layers[-1].transpose(0, 2, 1)[:, None], into


def _clipped_sums(
    recipe: Recipe, layers: Sequence[Numbers], lots: _Lots, clip: FloatArray
) -> list[FloatArray]:
    """Sums over a lot of single examples' gradients, each clipped to its run's norm.

    Gradients are of single precision; norms, scales and sums of double precision.
    """
    scores, into = _forward(layers, lots.rows)
    back = [_slope(recipe.loss, scores, lots.labels)]
    for layer, inner in zip(reversed(layers[1:]), reversed(into[1:]), strict=True):
        back.insert(0, (back[0] @ layer[:, None, :, :-1]) * (inner[..., :-1] > 0))
    wide_into, wide_back = ([part.astype(np.float64) for part in parts] for parts in (into, back))
    squares = lots.squares * _squares(wide_back[0])
    for a, d in zip(wide_into[1:], wide_back[1:], strict=True):
        squares += _squares(a) * _squares(d)
    scale = clip / np.sqrt(np.maximum(squares, clip * clip))
    if lots.weights is not None:
        scale *= lots.weights
    known = np.isfinite(squares)
    if not known.all():  # an example whose gradient has no norm stays out
        scale = np.where(known, scale, 0.0)
        wide_into, wide_back = (
            [np.where(known[..., None], part, 0.0) for part in parts]
            for parts in (wide_into, wide_back)
        )
    return [
        _blocks_joined(d * scale[..., None]).transpose(0, 2, 1) @ _blocks_joined(a)
        for a, d in zip(wide_into, wide_back, strict=True)
    ]


def _blocks_joined(rows: FloatArray) -> FloatArray:
    """For a sum over all rows, whose order does not matter in double precision."""
    return rows.reshape(len(rows), -1, rows.shape[-1])


def _row_squares(features: Numbers) -> FloatArray:
    """The squared norm of every row, the same to the last bit wherever the row stands."""
    parts = np.array_split(features, -(-len(features) // _ROWS_AT_ONCE) or 1)
    return np.concatenate([_squares(part.astype(np.float64)) for part in parts])


def _squares(rows: FloatArray) -> FloatArray:
    """The squared norm of every row."""
    return np.asarray(np.einsum("...j,...j->...", rows, rows))


def _slope(loss: str, scores: Numbers, labels: IntArray) -> Numbers:
    """The derivative of every example's loss by its scores."""
    outputs = scores.shape[-1]
    if outputs == 1:
        known = labels[..., None].astype(np.float32)
        if loss == "logistic":
            return np.asarray(1 / (1 + np.exp(-scores)) - known)
        sign = 2 * known - 1
        return np.asarray(np.where(sign * scores < 1, -sign, np.float32(0)))
    # A row of no class is of none of them: an error where it is drawn would tell of it.
    known = (labels[..., None] == np.arange(outputs)).astype(np.float32)
    if loss == "logistic":
        odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=-1, keepdims=True) - known)
    own = np.take_along_axis(scores, np.minimum(labels, outputs - 1)[..., None], axis=-1)
    over = (scores - own + 1 > 0) * (1 - known)
    return np.asarray(over - known * over.sum(axis=-1, keepdims=True))


def _adam(moments: tuple[Numbers, Numbers], slope: Numbers, step: int) -> Numbers:
    """Algorithm 4's direction."""
    for moment, beta, part in zip(moments, _BETAS, (slope, slope * slope), strict=True):
        moment *= np.float32(beta)
        moment += np.float32(1 - beta) * part
    first, second = (
        moment / np.float32(1 - beta**step) for moment, beta in zip(moments, _BETAS, strict=True)
    )
    return np.asarray(first / (np.sqrt(second) + np.float32(_KAPPA)))
