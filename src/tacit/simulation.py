"""Simulated clients: a public data set dealt out, and a built-in network to train on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tacit.data.examples import Dataset, client_key, split_validation
from tacit.data.partitions import deal
from tacit.data.skews import Partition
from tacit.networks import dense, network
from tacit.torch_task import TorchClient, TorchTask

if TYPE_CHECKING:
    from torch import nn

DENSE, CELLS = "dense", "cells"


def cells(shape: tuple[int, ...], classes: int) -> Callable[..., nn.Module]:
    """Networks of cells for examples of this shape: small ones, that search in minutes."""
    from tacit.supernet import image_cells, table_cells

    if len(shape) == 1:
        return partial(table_cells, shape, classes)
    stride = 1 if min(shape[-2:]) < 16 else 2
    return partial(image_cells, shape, classes, channels=8, cells=3, nodes=2, stem_stride=stride)


def built_in_task(
    dataset: Dataset,
    name: str,
    hidden: tuple[int, ...] = (),
    *,
    epochs: int,
    batch: int,
    metric: str = "error",
    local: str = "full",
    start_seed: int = 0,
) -> TorchTask:
    """A network by its name, dense layers of the given widths, or cells, on a data set.

    >>> from tacit.data.sources import digits
    >>> task = built_in_task(digits(), "dense", (32,), epochs=5, batch=16)
    >>> [array.shape for array in task.initial(models=1)]
    [(1, 32, 64), (1, 32), (1, 10, 32), (1, 10)]
    """
    shape, classes = dataset.train.shape, len(dataset.classes)
    build: Callable[..., nn.Module] = partial(dense, shape, classes, hidden)
    if name == CELLS:
        build = cells(shape, classes)
    elif name != DENSE:
        build = partial(network(name).build, shape, classes)
        build()  # refuses examples that do not fit, once and now
    return TorchTask(
        build,
        classes,
        epochs=epochs,
        batch=batch,
        metric=metric,
        local=local,
        start_seed=start_seed,
    )


def simulated_clients(
    dataset: Dataset,
    partition: Partition,
    clients: int,
    task: TorchTask,
    validation: float,
    seed: int,
) -> list[TorchClient]:
    """The training data dealt to clients, each with a validation part of its own."""
    parts = deal(dataset, partition, clients, np.random.default_rng(seed))
    return [
        task.client(
            *split_validation(part, validation, client_key(seed, number)), seed=seed + number
        )
        for number, part in enumerate(parts)
    ]
