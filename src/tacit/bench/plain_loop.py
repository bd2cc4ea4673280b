"""The loops that users of torch and scikit-learn write, which Tacit's speed is compared with.

One candidate after the other, with the library's own optimiser, schedule and metrics, and as fast
as such a loop gets: the data are tensors before it starts and batches are cut by indexing (a
DataLoader would collate single rows), the network is drawn once and copied, and the caller says how
many threads the library may have. The optimiser is ``torch.optim.SGD`` as it comes; its fused
variant, which has to be asked for, is somewhat faster on small nets. Both loops give the scores
that Tacit gives, up to rounding: start, batches and seeds are the same. A :class:`Race` times both.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.cores import cores, import_torch
from tacit.data.examples import Examples
from tacit.modules import draw
from tacit.sgd import HYPERPARAMETERS, Floats
from tacit.space import Config, Float, Space

if TYPE_CHECKING:
    from torch import nn

A_WHILE = 30.0  # seconds
SPACE = Space(
    {
        "learning_rate": Float(1e-4, 0.1, log=True),
        "momentum": Float(0.0, 0.9),
        "decay": Float(0.5, 1.0),
    }
)
"""Continuous in everything, so that no two candidates share an epoch."""


def torch_loop(
    build: Callable[[], nn.Module],
    train: Examples,
    validation: Examples,
    configs: Sequence[Config],
    *,
    epochs: int,
    batch: int,
    seed: int,
    start_seed: int = 0,
    threads: int,
) -> tuple[Floats, Floats]:
    """Validation loss and accuracy of every candidate, each trained by itself.

    Args:
        build: makes a fresh module.
        train: what candidates are trained on.
        validation: what they are measured on.
        configs: any of ``learning_rate``, ``momentum``, ``weight_decay`` and ``decay``; what is
            not set is as for Tacit's own gradient descent.
        epochs: passes over the training examples.
        batch: rows a step.
        seed: orders the batches, as a client's own.
        start_seed: draws the start that all candidates share.
        threads: how many threads torch may share an operation among.
    """
    torch = import_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        start = draw(build, start_seed)
        measured = [
            _train(start, train, validation, _rates(config), epochs, batch, seed)
            for config in configs
        ]
    finally:
        torch.set_num_threads(before)
    losses, accuracies = zip(*measured, strict=True)
    return np.array(losses), np.array(accuracies)


def _rates(config: Config) -> Mapping[str, float]:
    known = {name: value for name, value in HYPERPARAMETERS.items() if name != "dropout"}
    if not config.keys() <= known.keys():
        raise ValueError(f"found {config}; the plain loop has {', '.join(known)}")
    return {name: float(config.get(name, default)) for name, default in known.items()}


def _train(
    start: nn.Module,
    train: Examples,
    validation: Examples,
    rates: Mapping[str, float],
    epochs: int,
    batch: int,
    seed: int,
) -> tuple[float, float]:
    import torch
    from torch.nn.functional import cross_entropy
    from torch.optim import SGD
    from torch.optim.lr_scheduler import ExponentialLR

    features, labels = torch.from_numpy(train.features), torch.from_numpy(train.labels)
    model = copy.deepcopy(start).train()
    optimizer = SGD(
        model.parameters(),
        lr=rates["learning_rate"],
        momentum=rates["momentum"],
        weight_decay=rates["weight_decay"],
    )
    scheduler = ExponentialLR(optimizer, gamma=rates["decay"])
    for epoch in range(epochs):
        order = np.random.default_rng((seed, 0, epoch)).permutation(len(labels))
        for rows in torch.split(torch.from_numpy(order), batch):
            optimizer.zero_grad()
            loss = cross_entropy(model(features[rows]), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        scheduler.step()
    model.eval()
    with torch.inference_mode():
        logits = model(torch.from_numpy(validation.features))
        wanted = torch.from_numpy(validation.labels)
        accuracy = (logits.argmax(dim=1) == wanted).float().mean()
        return float(cross_entropy(logits, wanted)), float(accuracy)


def sklearn_loop(
    estimator: Any,
    train: Examples,
    validation: Examples,
    configs: Sequence[Config],
    *,
    threads: int,
) -> tuple[Floats, Floats]:
    """Validation log loss and accuracy of every candidate; all classes must be in ``train``.

    Args:
        estimator: a template, which is cloned.
        train: what candidates are fitted to.
        validation: what they are measured on.
        configs: parameters of the estimator.
        threads: how many threads NumPy's and SciPy's linear algebra may have.
    """
    from sklearn.base import clone
    from sklearn.metrics import accuracy_score, log_loss
    from threadpoolctl import threadpool_limits

    losses, accuracies = [], []
    with threadpool_limits(limits=threads):
        for config in configs:
            model = clone(estimator).set_params(**config)
            model.fit(train.features, train.labels)
            chances = model.predict_proba(validation.features)
            predicted = model.classes_[chances.argmax(axis=1)]
            losses.append(log_loss(validation.labels, chances, labels=model.classes_))
            accuracies.append(accuracy_score(validation.labels, predicted))
    return np.array(losses), np.array(accuracies)


def sobol(count: int) -> tuple[Config, ...]:
    """Candidates that share nothing."""
    return SPACE.candidates(count, "sobol", np.random.default_rng(1))


def random_examples(shape: tuple[int, ...], classes: int, rows: int, seed: int) -> Examples:
    """Random numbers with random labels; the first rows have every class."""
    rng = np.random.default_rng(seed)
    labels = np.append(np.arange(classes), rng.integers(classes, size=max(0, rows - classes)))
    features = rng.standard_normal((rows, *shape), dtype=np.float32)
    return Examples(features, labels[:rows])


@dataclass(frozen=True)
class Race:
    """The best times of both sides, and how far their scores are apart."""

    seconds: float
    plain_seconds: float
    threads: int
    """Of the faster plain loop."""
    difference: float

    @property
    def ratio(self) -> float:
        """How many times as long the plain loop takes."""
        return self.plain_seconds / self.seconds


def race(
    ours: Callable[[], Floats],
    plain: Callable[[int], Floats],
    repetitions: int,
    threads: int | None = None,
) -> Race:
    """Both sides in turn, the plain one with this number of threads, or with one and with all.

    The best of so many repetitions counts; where several are wanted and they are short, of as many
    as fit into a while, since chance weighs more on short ones.

    >>> found = race(lambda: np.ones(3), np.ones, repetitions=1, threads=3)
    >>> found.threads, found.difference, found.ratio == found.plain_seconds / found.seconds
    (3, 0.0, True)
    """
    seconds, worst = math.inf, 0.0
    plain_seconds = dict.fromkeys((threads,) if threads else (1, cores()), math.inf)
    begin, done = time.perf_counter(), 0
    while done < repetitions or (repetitions > 1 and time.perf_counter() - begin < A_WHILE):
        done += 1
        spent, found = timed(ours)
        seconds = min(seconds, spent)
        for number in plain_seconds:
            spent, expected = timed(partial(plain, number))
            plain_seconds[number] = min(plain_seconds[number], spent)
            worst = max(worst, _difference(found, expected))
    faster = min(plain_seconds, key=plain_seconds.__getitem__)
    return Race(seconds, plain_seconds[faster], faster, worst)


def timed(work: Callable[[], Floats]) -> tuple[float, Floats]:
    """Seconds, and what was found."""
    begin = time.perf_counter()
    found = work()
    return time.perf_counter() - begin, found


def _difference(ours: Floats, plain: Floats) -> float:
    """The largest relative difference; a training that diverged on both sides is the same."""
    one, other = (np.where(np.isfinite(values), values, np.inf) for values in (ours, plain))
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other) / np.minimum(np.abs(one), np.abs(other))
    return float(np.where(one == other, 0.0, apart).max())
