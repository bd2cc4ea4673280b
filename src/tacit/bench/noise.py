"""What noise without holes costs a step of DP-SGD, against the noise that has them.

A row is one step of a model: on torch by :mod:`tacit.rules`, and for dense networks by
:mod:`tacit.dp_training`, in the same run. "Before" is the step with the draw of rounded normals
taken off and the draw of single-precision noise put in its place: the mean of four normals, as
secure modes of DP-SGD draw it (Holohan and Braghin 2021). Both draws are timed by themselves, with
the same number of parameters. "Places" is how many rows are computed for each that is in a lot by
chance (:mod:`tacit.lots`): small lots pay most for that.

A killed run goes on with the models that are missing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacit.bench.plain_loop import random_examples
from tacit.cores import import_torch
from tacit.dp_training import Recipe, Run, Secret, train
from tacit.journal import Count, Journal, Number, Row, each, machine
from tacit.lots import Units
from tacit.networks import dense, dp_hype_mnist
from tacit.privacy.clipped_sum import charged_sensitivity, grid_step
from tacit.privacy.rounded_normal import rounded_normal
from tacit.rules import DpSgd, train_by
from tacit.space import Config

if TYPE_CHECKING:
    from torch import nn

_DRAWS = 4
_SEED = 1


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
    noise_milliseconds: Number
    before_milliseconds: Number
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
            journal.add(piece, measured(model, steps, repetitions))
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
    sides: tuple[Callable[[], Any], ...] = (
        _training(model, module, steps),
        lambda: [rounded_normal(deviation, (parameters,)) for _ in range(steps)],
        lambda: [mean_of_normals((parameters,)) for _ in range(steps)],
    )
    for side in sides:
        side()
    found = [[_seconds(side) / steps for side in sides] for _ in range(repetitions)]
    step, ours, before = np.min(found, axis=0).tolist()
    examples = random_examples(model.inputs, model.classes, model.rows, seed=_SEED)
    return {
        "model": model.name,
        "parameters": parameters,
        "lot": model.lot,
        "places": Units(examples).places(model.lot / model.rows) / model.lot,
        "step_milliseconds": 1e3 * step,
        "noise_milliseconds": 1e3 * ours,
        "before_milliseconds": 1e3 * before,
        "ratio": step / (step - ours + before),
    }


def mean_of_normals(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
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


def _training(model: Model, module: nn.Module, steps: int) -> Callable[[], Any]:
    examples = random_examples(model.inputs, model.classes, model.rows, seed=_SEED)
    if model.stacked:
        recipe = Recipe(model.hidden or (), lot=model.lot, steps=steps)
        return partial(train, recipe, [Run(0.1, 1.0, 1.0)], examples, model.classes, Secret())
    weights = tuple(one.detach().numpy()[None].copy() for one in module.parameters())
    rule = DpSgd(model.lot / model.rows, steps, 1.0, 1.0, model.lot)
    config: Config = {"learning_rate": 0.1}
    return partial(
        train_by, rule, module, weights, config, examples, examples, 1, model.lot, (_SEED,)
    )


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
