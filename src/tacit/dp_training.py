"""DP-SGD and DP-Adam for dense networks, many runs at once.

Abadi et al., "Deep Learning with Differential Privacy" (2016), and Avent et al., "Automatic
Discovery of Privacy-Utility Pareto Fronts" (2020), Algorithms 3 and 4: gradients of single examples
are clipped, summed, noised and divided by the lot size. Lots are of a fixed size, drawn without
replacement (neighbours: one record replaced, noise in units of twice the clipping norm), or each
example is in with a probability (neighbours: one record added or removed, in units of the norm).

Written by hand because Opacus trains one model at a time; here all runs are stacked. The norm of an
example's gradient in a dense layer is the product of the norms of what goes in and of what comes
back, so no gradient of a single example is ever formed (Goodfellow 2015); a test compares with
Opacus.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from tacit.cores import import_torch
from tacit.data.examples import Examples
from tacit.gaussian import gaussian, poisson_sample

if TYPE_CHECKING:
    from torch import Tensor

IntArray = npt.NDArray[np.int64]
FIXED, POISSON = SAMPLINGS = ("fixed", "poisson")
OPTIMISERS = ("sgd", "adam")
LOSSES = ("logistic", "hinge")
_BETAS, _KAPPA = (0.9, 0.999), 1e-8


class Chance(Protocol):
    """Where noise and lots come from."""

    def normal(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Standard normal numbers."""

    def lots(self, runs: int, examples: int, size: int) -> IntArray:
        """So many different examples for every run."""

    def some(self, examples: int, rate: float) -> IntArray:
        """Each example with a probability."""


class Secret:
    """From the operating system: for every model that may leave whoever trained it."""

    def normal(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
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

    def normal(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
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

    layers: tuple[Tensor, ...]

    def one(self, run: int) -> tuple[npt.NDArray[np.float32], ...]:
        """The arrays of one of them, as torch's dense layers have them, a stack of one.

        A single score, of two classes, becomes the second of two.
        """
        found = []
        for layer in self.layers:
            own = layer[run].numpy()
            pair = [own[None, :, :-1], own[None, :, -1]]
            if len(own) == 1:
                pair = [np.concatenate([0 * part, part], axis=1) for part in pair]
            found += [part.copy() for part in pair]
        return tuple(found)

    def wrong(self, examples: Examples, chunk: int = 4096) -> IntArray:
        """How many examples every model gets wrong."""
        torch = import_torch()
        found = np.zeros(len(self.layers[0]), dtype=np.int64)
        flat = examples.flat()
        for begin in range(0, len(flat), chunk):
            rows = _with_one(torch.from_numpy(flat.features[begin : begin + chunk]))
            labels = torch.from_numpy(flat.labels[begin : begin + chunk])
            scores, _ = _forward(self.layers, rows.expand(len(found), -1, -1))
            guess = scores.argmax(2) if scores.shape[2] > 1 else (scores[:, :, 0] > 0).long()
            found += (guess != labels).sum(1).numpy()
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
    torch = import_torch()
    flat = examples.flat()
    features, labels = _with_one(torch.from_numpy(flat.features)), torch.from_numpy(flat.labels)
    squares = features.square().sum(1)
    count = len(flat)
    if not 1 <= recipe.lot <= count:
        raise ValueError(f"lot is {recipe.lot}; allowed is 1 to the number of examples, {count}")
    outputs = 1 if classes == 2 and not recipe.hidden else classes
    sizes = (flat.features.shape[1], *recipe.hidden, outputs)
    layers = [layer.clone() for layer in (start or _start(sizes, len(runs), chance)).layers]
    rate, noise, clip, momentum, decay = (
        torch.tensor([float(getattr(run, name)) for run in runs])[:, None, None]
        for name in ("learning_rate", "noise", "clip", "momentum", "decay")
    )
    epoch = max(1, count // recipe.lot)
    unit = (2.0 if recipe.sampling == FIXED else 1.0) * noise * clip / recipe.lot
    moments = [(torch.zeros_like(layer), torch.zeros_like(layer)) for layer in layers]
    for step in range(1, recipe.steps + 1):
        rows, present = _lots(recipe, count, len(runs), chance)
        drawn_rows = features.index_select(0, rows.flatten()).view(*rows.shape, -1)
        lots = _Lots(drawn_rows, labels[rows], squares[rows], present)
        for layer, pull, own in zip(
            layers, _clipped_sums(recipe, layers, lots, clip[:, :, 0]), moments, strict=True
        ):
            drawn = torch.from_numpy(chance.normal(tuple(layer.shape)))
            pull.div_(recipe.lot).addcmul_(unit, drawn)
            if recipe.optimiser == "adam":
                pull = _adam(own, pull, step)
            else:
                pull = own[0].mul_(momentum).add_(pull)
            layer.addcmul_(rate, pull, value=-1)
        if step % epoch == 0:
            rate = rate * decay
    return Models(tuple(layers))


def _with_one(rows: Tensor) -> Tensor:
    """Another feature that is one, so that a bias is a weight."""
    return cast("Tensor", import_torch().nn.functional.pad(rows, (0, 1), value=1.0))


def _start(sizes: Sequence[int], runs: int, chance: Chance) -> Models:
    """Zeros for a linear model (Algorithm 3); He's random weights where there are hidden layers."""
    torch = import_torch()
    layers = []
    for into, out in pairwise(sizes):
        layer = torch.zeros(runs, out, into + 1)
        if len(sizes) > 2:
            drawn = torch.from_numpy(chance.normal((runs, out, into)))
            layer[:, :, :-1] = drawn * math.sqrt((2.0 if out != sizes[-1] else 1.0) / into)
        layers.append(layer)
    return Models(tuple(layers))


@dataclass(frozen=True)
class _Lots:
    """What every run has drawn for a step."""

    rows: Tensor
    labels: Tensor
    squares: Tensor
    """Of the rows' norms."""
    present: Tensor | None
    """One for a row that is there: lots of chance differ in size."""


def _lots(recipe: Recipe, count: int, runs: int, chance: Chance) -> tuple[Tensor, Tensor | None]:
    """Rows for every run, and which of them are there."""
    torch = import_torch()
    if recipe.sampling == FIXED:
        return torch.from_numpy(chance.lots(runs, count, recipe.lot)), None
    lots = [chance.some(count, recipe.lot / count) for _ in range(runs)]
    longest = max(1, *map(len, lots))
    rows, present = np.zeros((runs, longest), np.int64), np.zeros((runs, longest), np.float32)
    for run, lot in enumerate(lots):
        rows[run, : len(lot)], present[run, : len(lot)] = lot, 1.0
    return torch.from_numpy(rows), torch.from_numpy(present)


def _forward(layers: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The scores, and what went into every layer."""
    torch = import_torch()
    into = [rows]
    for layer in layers[:-1]:
        into.append(_with_one(torch.relu(torch.bmm(into[-1], layer.transpose(1, 2)))))
    # The last layer is narrow, where this order is about twice as fast.
    return torch.bmm(layers[-1], into[-1].transpose(1, 2)).transpose(1, 2), into


def _clipped_sums(
    recipe: Recipe, layers: Sequence[Tensor], lots: _Lots, clip: Tensor
) -> list[Tensor]:
    """Sums over a lot of single examples' gradients, each clipped to its run's norm."""
    torch = import_torch()
    scores, into = _forward(layers, lots.rows)
    back = [_slope(recipe.loss, scores, lots.labels)]
    for layer, inner in zip(reversed(layers[1:]), reversed(into[1:]), strict=True):
        through = torch.bmm(back[0], layer[:, :, :-1])
        back.insert(0, through.mul_(inner[:, :, :-1] > 0))
    squares = lots.squares * back[0].square().sum(2)
    for a, d in zip(into[1:], back[1:], strict=True):
        squares = squares + a.square().sum(2) * d.square().sum(2)
    scale = clip * torch.maximum(squares, clip.square()).rsqrt()
    if lots.present is not None:
        scale = scale * lots.present
    known = squares.isfinite()
    if not known.all():  # an example whose gradient has no norm stays out
        scale = torch.where(known, scale, 0.0)
        into, back = (
            [torch.where(known[:, :, None], part, 0.0) for part in parts] for parts in (into, back)
        )
    return [
        torch.bmm((d * scale[:, :, None]).transpose(1, 2), a)
        for a, d in zip(into, back, strict=True)
    ]


def _slope(loss: str, scores: Tensor, labels: Tensor) -> Tensor:
    """The derivative of every example's loss by its scores."""
    torch = import_torch()
    outputs = scores.shape[2]
    if outputs == 1:
        if loss == "logistic":
            return cast("Tensor", torch.sigmoid(scores) - labels[:, :, None])
        sign = 2.0 * labels[:, :, None] - 1.0
        return cast("Tensor", torch.where(sign * scores < 1.0, -sign, 0.0))
    if loss == "logistic":
        known = torch.nn.functional.one_hot(labels, outputs)
        return cast("Tensor", torch.softmax(scores, 2) - known)
    own = scores.gather(2, labels[:, :, None])
    over = (scores - own + 1.0 > 0).float().scatter(2, labels[:, :, None], 0.0)
    return over.scatter(2, labels[:, :, None], -over.sum(2, keepdim=True))


def _adam(moments: tuple[Tensor, Tensor], slope: Tensor, step: int) -> Tensor:
    """Algorithm 4's direction."""
    first, second = moments
    first.mul_(_BETAS[0]).add_(slope, alpha=1 - _BETAS[0])
    second.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
    unbiased = first / (1 - _BETAS[0] ** step)
    return unbiased / ((second / (1 - _BETAS[1] ** step)).sqrt() + _KAPPA)
