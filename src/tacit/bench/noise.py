"""What noise without holes costs a step of DP-SGD: whole steps of two kinds, which take turns.

*The step that Tacit takes* (:mod:`tacit.rules` on torch, :mod:`tacit.dp_training` for dense
networks without it): norms, scales and sums of double precision, rows at places that tell nothing
of others (:mod:`tacit.lots`), sums snapped to a grid, rounded normals.

*The step with the noise that has holes* (:func:`stacked_with_holes`, :func:`module_with_holes`): as
libraries take it, and as Tacit took it before. All of it is of single precision: norms, sums, and
noise, which is the mean of four normals, as secure modes of DP-SGD draw it (Holohan and Braghin
2021). There is no grid, and no row is computed that is not in the lot. Clipping and the division by
the lot are the same, and so are the operating system's lots. A test compares the models of both.

Both sides train from the same start, for the same number of steps, and torch has one thread; what
is done once in a training is part of both. The ratio is one whole step over the other, the best of
some repetitions of each. Both draws of noise are timed by themselves too, for the same number of
parameters. "Places" is how many rows are computed for each that is in a lot by chance: small lots
pay most for that.

A killed run goes on with the models that are missing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.bench.plain_loop import random_examples
from tacit.cores import import_torch, spread
from tacit.data.examples import Examples
from tacit.dp_training import Models, Numbers, Recipe, Run, Secret, train
from tacit.journal import Count, Journal, Number, Row, each, machine
from tacit.lots import Units, poisson_sample
from tacit.networks import dense, dp_hype_mnist
from tacit.privacy.clipped_sum import charged_sensitivity, grid_step
from tacit.privacy.rounded_normal import rounded_normal
from tacit.rules import DpSgd, train_by
from tacit.space import Config

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tacit.rules import Tensors

_DRAWS = 4
_SEED = 1
_RATE, _MOMENTUM, _NOISE = 0.1, 0.0, 1.0
_AT_ONCE = 2**20
"""How much noise is drawn at once, at most, for the steps ahead."""
_STACKED_STEPS = 20
"""How many times as many steps a stacked training has: what is done once should not count."""


@dataclass(frozen=True)
class Model:
    """One row: a network, the shape of its rows, and the mean of a lot."""

    name: str
    inputs: tuple[int, ...]
    hidden: tuple[int, ...] | None
    """None: a convolutional network."""
    lot: int
    stacked: bool = False
    """Many runs at once, without torch."""
    rows: int = 4000
    classes: int = 10

    def build(self) -> nn.Module:
        """A fresh module."""
        if self.hidden is None:
            return dp_hype_mnist(self.inputs, self.classes)
        return dense(self.inputs, self.classes, self.hidden)


MODELS = (
    Model("linear, stacked", (64,), (), 64, stacked=True),
    Model("784-128-10, stacked", (784,), (128,), 256, stacked=True),
    Model("linear", (784,), (), 64),
    Model("784-256-10", (784,), (256,), 64),
    Model("convolutional", (1, 28, 28), None, 64),
    Model("convolutional, large lots", (1, 28, 28), None, 512),
)


class _Measured(Row):
    """A step of one model."""

    model: str
    parameters: Count
    lot: Count
    places: Number
    step_milliseconds: Number
    before_milliseconds: Number
    noise_milliseconds: Number
    before_noise_milliseconds: Number
    ratio: Number


def run(quick: bool, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Measure every model, those of earlier runs excepted; JSON."""
    begin = time.perf_counter()
    steps, repetitions = (3, 2) if quick else (10, 7)
    setup = {"bench": "noise", "steps": steps, "repetitions": repetitions}
    recipe = {**setup, "models": [model.name for model in MODELS]}
    journal = Journal(folder, recipe, each(_Measured))
    for piece, model in enumerate(MODELS):
        progress(piece, len(MODELS))
        if piece not in journal.pieces:
            work = partial(measured, steps=steps, repetitions=repetitions)
            (row,) = spread(work, [model], workers=1, threads=1)
            journal.add(piece, row)
    progress(len(MODELS), len(MODELS))
    return {
        **setup,
        "quick": quick,
        "rows": [journal.pieces[piece] for piece in range(len(MODELS))],
        "seconds": time.perf_counter() - begin,
        "machine": machine(),
    }


def measured(model: Model, steps: int, repetitions: int) -> dict[str, Any]:
    """One row: the best of some repetitions of each side, which take turns."""
    torch = import_torch()
    torch.manual_seed(_SEED)
    module = model.build()
    parameters = sum(one.numel() for one in module.parameters())
    deviation = float(charged_sensitivity(1.0, parameters) / grid_step(1.0, parameters))
    examples = random_examples(model.inputs, model.classes, model.rows, seed=_SEED)
    if model.stacked:
        steps *= _STACKED_STEPS
    ours, before = _both_trainings(model, module, examples, steps)
    sides: tuple[Callable[[], Any], ...] = (
        ours,
        before,
        lambda: [rounded_normal(deviation, (parameters,)) for _ in range(steps)],
        lambda: [mean_of_normals((parameters,)) for _ in range(steps)],
    )
    for side in sides:
        side()
    found = [[_seconds(side) / steps for side in sides] for _ in range(repetitions)]
    step, before_step, noise, before_noise = (1e3 * np.min(found, axis=0)).tolist()
    return {
        "model": model.name,
        "parameters": parameters,
        "lot": model.lot,
        "places": Units(examples).places(model.lot / model.rows) / model.lot,
        "step_milliseconds": step,
        "before_milliseconds": before_step,
        "noise_milliseconds": noise,
        "before_noise_milliseconds": before_noise,
        "ratio": step / before_step,
    }


def mean_of_normals(shape: tuple[int, ...]) -> Numbers:
    """Single-precision noise from the operating system's randomness; it has holes.

    >>> bool(abs(mean_of_normals((100, 100)).std() - 1) < 0.05)
    True
    """
    from scipy.special import ndtri

    count = int(np.prod(shape, dtype=np.int64))
    words = np.frombuffer(secrets.token_bytes(8 * _DRAWS * count), dtype="<u8")
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    drawn = ndtri(uniform).reshape(_DRAWS, *shape).sum(axis=0) / np.sqrt(_DRAWS)
    return np.asarray(drawn, dtype=np.float32)


def stacked_with_holes(
    start: Sequence[Numbers], examples: Examples, lot: int, steps: int, noise: float
) -> list[Numbers]:
    """Steps of :func:`tacit.dp_training.train`, with the noise that has holes.

    Layers are (1, out, in + 1), biases in the last column: one run, so that no lot is filled up to
    the longest.
    """
    layers, flat = [layer.copy() for layer in start], examples.flat()
    features, rate = _with_one(flat.features), lot / len(flat)
    squares, classes = _squares(features), np.eye(layers[-1].shape[1], dtype=np.float32)
    moments = [np.zeros_like(layer) for layer in layers]
    ahead = max(1, _AT_ONCE // max(len(flat), sum(layer.size for layer in layers)))
    for begin in range(0, steps, ahead):
        some = min(ahead, steps - begin)
        noises = [mean_of_normals((some, *layer.shape)) for layer in layers]
        for number in range(some):
            rows = poisson_sample(len(flat), rate)[None]
            into = [features[rows]]
            for layer in layers[:-1]:
                into.append(_with_one(np.maximum(into[-1] @ layer.transpose(0, 2, 1), 0)))
            scores = into[-1] @ layers[-1].transpose(0, 2, 1)
            odds = np.exp(scores - scores.max(axis=2, keepdims=True))
            back = [odds / odds.sum(axis=2, keepdims=True) - classes[flat.labels[rows]]]
            for layer, inner in zip(reversed(layers[1:]), reversed(into[1:]), strict=True):
                back.insert(0, (back[0] @ layer[:, :, :-1]) * (inner[:, :, :-1] > 0))
            norms = squares[rows] * _squares(back[0])
            for a, d in zip(into[1:], back[1:], strict=True):
                norms += _squares(a) * _squares(d)
            scale = np.where(np.isfinite(norms), 1 / np.sqrt(np.maximum(norms, 1)), 0)
            scale = scale[:, :, None].astype(np.float32)
            for layer, moment, a, d, normals in zip(
                layers, moments, into, back, noises, strict=True
            ):
                pull = (d * scale).transpose(0, 2, 1) @ a
                pull *= np.float32(1 / lot)
                pull += np.float32(noise / lot) * normals[number]
                moment[:] = _MOMENTUM * moment + pull
                layer -= _RATE * moment
    return layers


def _with_one(rows: Numbers) -> Numbers:
    ones = np.ones((*rows.shape[:-1], 1), np.float32)
    return np.concatenate([rows, ones], axis=-1, dtype=np.float32)


def _squares(rows: Numbers) -> Numbers:
    return np.asarray(np.einsum("...j,...j->...", rows, rows))


def module_with_holes(
    module: nn.Module, examples: Examples, lot: int, steps: int, noise: float
) -> list[Numbers]:
    """Steps of :class:`tacit.rules.DpSgd`, with the noise that has holes."""
    torch = import_torch()
    parameters = {name: one.detach().clone() for name, one in module.named_parameters()}
    features, labels = torch.tensor(examples.features), torch.tensor(examples.labels)

    def loss(own: Tensors, feature: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(module, own, (feature[None],))
        found: Tensor = torch.nn.functional.cross_entropy(logits, label[None])
        return found

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    velocity = {name: torch.zeros_like(one) for name, one in parameters.items()}
    for _ in range(steps):
        rows = torch.from_numpy(poisson_sample(len(labels), lot / len(labels)))
        if not len(rows):  # so rare that it changes no time
            continue
        each = gradients(parameters, features[rows], labels[rows])
        norms = torch.stack([one.flatten(1).norm(dim=1) for one in each.values()]).norm(dim=0)
        scale = (1 / norms.clamp(min=1)).nan_to_num(0.0)
        for name, one in each.items():
            shaped = scale.reshape(-1, *[1] * (one.dim() - 1))
            known = norms.isfinite().reshape(shaped.shape)
            total = torch.where(known, one * shaped, 0.0).sum(0)
            normals = torch.from_numpy(mean_of_normals(tuple(total.shape)))
            velocity[name] = _MOMENTUM * velocity[name] + (total + noise * normals) / lot
        parameters = {name: one - _RATE * velocity[name] for name, one in parameters.items()}
    return [one.numpy() for one in parameters.values()]


def _both_trainings(
    model: Model, module: nn.Module, examples: Examples, steps: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    if model.stacked:
        recipe = Recipe(model.hidden or (), lot=model.lot, steps=steps)
        start = _layers(module)
        return (
            partial(
                train,
                recipe,
                [Run(_RATE, _NOISE, 1.0)],
                examples,
                model.classes,
                Secret(),
                Models(start),
            ),
            partial(stacked_with_holes, start, examples, model.lot, steps, _NOISE),
        )
    weights = tuple(one.detach().numpy()[None].copy() for one in module.parameters())
    rule = DpSgd(model.lot / model.rows, steps, 1.0, _NOISE, model.lot)
    config: Config = {"learning_rate": _RATE}
    return (
        partial(
            train_by, rule, module, weights, config, examples, examples, 1, model.lot, (_SEED,)
        ),
        partial(module_with_holes, module, examples, model.lot, steps, _NOISE),
    )


def _layers(module: nn.Module) -> tuple[Numbers, ...]:
    """A dense network's weights as a stack of one, biases in the last column."""
    arrays = [one.detach().numpy() for one in module.parameters()]
    return tuple(
        np.concatenate([weight, bias[:, None]], axis=1)[None]
        for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)
    )


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
