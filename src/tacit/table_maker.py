"""Score tables in the making: every client's local training, every candidate's federated one.

The work is cut into pieces (some clients' scores, some candidates' federated training, for one
seed) that are done one process a core and recorded as they are finished.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.data.examples import Dataset, Examples
from tacit.data.partitions import partition
from tacit.data.sources import load
from tacit.grids import grid
from tacit.journal import Count, Journal, Number, Piece, Row, array, machine, resident_megabytes
from tacit.simulation import DENSE, built_in_task, simulated_clients
from tacit.space import Config
from tacit.tables import Recipe, ScoreTable
from tacit.torch_task import TorchClient, TorchTask
from tacit.training import federated_average
from tacit.workers import worker_processes

NETWORKS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "digits": (DENSE, (32,)),
    "adult": ("dp-hype-adult", ()),
    "fraud": ("dp-hype-adult", ()),
}
"""The network of a data set, unless another is asked for; images get the MLP 128-64."""

_CLIENTS_A_PIECE = 10
_CANDIDATES_A_PIECE = {True: 25, False: 5}  # whether the network can be stacked


def make(
    recipe: Recipe, data_dir: Path | None, folder: Path, progress: Callable[[int, int], None]
) -> ScoreTable:
    """Train everything a table holds, one process a core; a killed run goes on where it was."""
    begin = time.perf_counter()
    candidates = grid(recipe.grid)
    clients_of(recipe, data_dir, 0)  # refuses a recipe that cannot be followed before any work
    tasks = _tasks(recipe, data_dir, candidates)
    dataset = _dataset(recipe.data, data_dir, recipe.examples, recipe.test_examples)
    held = {"train": len(dataset.train), "test": len(dataset.test)}  # a folder may hold a subset
    # Pieces that were made with another split into training and validation parts do not fit.
    identity = {"table": {**asdict(recipe), "seeds": "any"}, "split": "by position", **held}
    journal = Journal(folder, identity, partial(_kind_of_piece, tasks, len(candidates)))
    work = {number: partial(_do, recipe, data_dir, task) for number, task in enumerate(tasks)}
    finished: list[int] = []

    def done(number: int) -> None:
        finished.append(number)
        progress(len(finished), len(tasks))

    progress(0, len(tasks))
    with worker_processes() as pool:
        journal.complete(pool, work, done)
    found = [journal.pieces[number] for number in range(len(tasks))]
    table = _assemble(recipe, candidates, tasks, found)
    seconds = sum(piece["seconds"] for piece in found)
    made = {
        **held,
        "core_seconds": seconds,
        "seconds": time.perf_counter() - begin,
        "peak_megabytes_a_core": max(piece["peak_megabytes"] for piece in found),
        "ways": sorted({way for piece in found for way in piece["ways"]}),
        "machine": machine(),
    }
    return replace(table, made=made)


def one_seed(recipe: Recipe, data_dir: Path | None, seed: int) -> dict[str, Any]:
    """What a table holds for one seed, made in this process: for benchmarks with many tables."""
    candidates = grid(recipe.grid)
    local = _Task(seed, "local", tuple(range(recipe.clients)))
    together = _Task(seed, "federated", tuple(range(len(candidates))))
    parts = _do(recipe, data_dir, local), _do(recipe, data_dir, together)
    return {**parts[0], **parts[1], "seconds": sum(part["seconds"] for part in parts)}


def federated(
    recipe: Recipe, data_dir: Path | None, seed: int, configs: Sequence[Config]
) -> dict[str, Any]:
    """Federated accuracies of configurations that need not be in the recipe's grid."""
    clients = clients_of(recipe, data_dir, seed)
    dataset = _dataset(recipe.data, data_dir, recipe.examples, recipe.test_examples)
    return _federated(clients, configs, dataset, recipe)


@dataclass(frozen=True)
class _Task:
    """Some clients' local scores, or some candidates' federated training, for one seed."""

    seed: int
    kind: str
    members: tuple[int, ...]


def _tasks(recipe: Recipe, data_dir: Path | None, candidates: Sequence[Config]) -> list[_Task]:
    """The pieces, a seed after the other, so that more seeds go on where fewer ended."""
    architecture = clients_of(recipe, data_dir, 0)[0].task.architecture({})
    stacked = architecture.dense is not None
    names = list(candidates[0])
    order = sorted(
        range(len(candidates)),
        key=lambda i: [candidates[i][name] for name in names if name != "decay"],
    )
    tasks = []
    for seed in range(recipe.seeds):
        for block in _blocks(range(recipe.clients), _CLIENTS_A_PIECE):
            tasks.append(_Task(seed, "local", block))
        for block in _blocks(order, _CANDIDATES_A_PIECE[stacked]):
            tasks.append(_Task(seed, "federated", block))
    return tasks


class _Piece(Row):
    """What every piece tells of its making."""

    seconds: Number
    peak_megabytes: Number
    ways: list[str]


def _kind_of_piece(tasks: Sequence[_Task], candidates: int, piece: Piece) -> Any:
    """Arrays as large as the task; of seeds that are not asked for now, nothing is read."""
    if not isinstance(piece, int) or not 0 <= piece < len(tasks):
        return Any
    members = len(tasks[piece].members)
    if tasks[piece].kind == "federated":
        scores = array(float, members)
        fields = [("accuracy", scores), ("validation_accuracy", scores)]
        return msgspec.defstruct("Federated", fields, bases=(_Piece,))
    sizes, wrong = array(Count, members), Annotated[int, Meta(ge=0, le=2**16 - 1)]
    fields = [
        ("losses", array(float, members, candidates)),
        ("wrong", array(wrong, members, candidates)),
        ("validation_sizes", sizes),
        ("training_sizes", sizes),
    ]
    return msgspec.defstruct("Local", fields, bases=(_Piece,))


def _blocks(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(numbers[start : start + size]) for start in range(0, len(numbers), size)]


@lru_cache(maxsize=1)
def _dataset(data: str, data_dir: Path | None, examples: int, test_examples: int) -> Dataset:
    dataset = load(data, data_dir)
    return replace(
        dataset,
        train=_some("examples", dataset.train, examples),
        test=_some("test_examples", dataset.test, test_examples),
    )


def _some(name: str, examples: Examples, wanted: int) -> Examples:
    """This many of them, always the same; 0: all."""
    if not wanted:
        return examples
    if wanted > len(examples):
        raise ValueError(f"{name} is {wanted}; allowed is 0 for all, or up to {len(examples)}")
    return examples.take(np.sort(np.random.default_rng(0).permutation(len(examples))[:wanted]))


@lru_cache(maxsize=1)
def clients_of(recipe: Recipe, data_dir: Path | None, seed: int) -> list[TorchClient]:
    """The clients of one seed of a recipe."""
    dataset = _dataset(recipe.data, data_dir, recipe.examples, recipe.test_examples)
    network, hidden = _network(recipe)
    task = built_in_task(
        dataset,
        network,
        hidden,
        epochs=recipe.score_epochs or recipe.epochs,
        batch=recipe.batch,
        start_seed=seed,
    )
    dealt = partition(
        recipe.partition,
        alpha=recipe.alpha,
        percent=recipe.percent,
        similarity=recipe.similarity,
        noise=recipe.noise,
        smallest=recipe.smallest,
    )
    return simulated_clients(
        dataset, dealt, recipe.clients, task, recipe.validation, seed * 1_000_003
    )


def _network(recipe: Recipe) -> tuple[str, tuple[int, ...]]:
    """A network's name, and the widths of its hidden layers: ``dense-64-32`` names both."""
    name, *widths = recipe.network.split("-")
    if name == DENSE and all(width.isdecimal() for width in widths):
        return name, tuple(map(int, widths))
    own, hidden = NETWORKS.get(recipe.data, ("mlp", ()))
    return (recipe.network, ()) if recipe.network else (own, hidden)


def _do(recipe: Recipe, data_dir: Path | None, task: _Task) -> dict[str, Any]:
    """One piece of work, in a process of its own core."""
    begin = time.process_time()
    clients, candidates = clients_of(recipe, data_dir, task.seed), grid(recipe.grid)
    if task.kind == "local":
        some = [clients[number] for number in task.members]
        result = _local(some, candidates, recipe.folds)
    else:
        dataset = _dataset(recipe.data, data_dir, recipe.examples, recipe.test_examples)
        configs = [candidates[number] for number in task.members]
        result = _federated(clients, configs, dataset, recipe)
    return {
        **result,
        "seconds": time.process_time() - begin,
        "peak_megabytes": resident_megabytes(),
        "ways": clients[0].task.report()["ways"],
    }


def _local(
    clients: Sequence[TorchClient], candidates: Sequence[Config], folds: int
) -> dict[str, Any]:
    measured = [
        np.array([fold.measure_many(candidates) for fold in client.folds(folds)])
        for client in clients
    ]  # of every client (folds, loss and accuracy, candidates)
    sizes = [len(client.validation) for client in clients]
    return {
        "losses": [found[:, 0].mean(axis=0).tolist() for found in measured],
        "wrong": [
            np.rint((1 - found[:, 1]) * size).sum(axis=0).astype(int).tolist()
            for found, size in zip(measured, sizes, strict=True)
        ],
        "validation_sizes": [size * folds for size in sizes],
        "training_sizes": [len(client.train_examples) for client in clients],
    }


def _federated(
    clients: Sequence[TorchClient], configs: Sequence[Config], dataset: Dataset, recipe: Recipe
) -> dict[str, Any]:
    task: TorchTask = clients[0].task
    weights = federated_average(
        lambda query: (query.answer(client) for client in clients),
        configs,
        task.initial(len(configs)),
        recipe.rounds,
        recipe.epochs,
        task.trained,
    )
    held_out = [client.validate_many(weights) for client in clients]
    return {
        "accuracy": task.accuracies(weights, dataset.standardise(dataset.test)).tolist(),
        "validation_accuracy": np.mean(held_out, axis=0).tolist(),
    }


def _assemble(
    recipe: Recipe, candidates: tuple[Config, ...], tasks: Sequence[_Task], found: Sequence[Any]
) -> ScoreTable:
    shape = (recipe.seeds, recipe.clients, len(candidates))
    local: dict[str, npt.NDArray[Any]] = {
        "losses": np.full(shape, math.nan, np.float32),
        "wrong": np.zeros(shape, np.uint16),
        "validation_sizes": np.zeros(shape[:2], np.int64),
        "training_sizes": np.zeros(shape[:2], np.int64),
    }
    accuracy, validation_accuracy = (np.zeros((recipe.seeds, len(candidates))) for _ in range(2))
    for task, piece in zip(tasks, found, strict=True):
        members = list(task.members)
        if task.kind == "local":
            for name, array in local.items():
                array[task.seed, members] = piece[name]
        else:
            accuracy[task.seed, members] = piece["accuracy"]
            validation_accuracy[task.seed, members] = piece["validation_accuracy"]
    return ScoreTable(
        recipe,
        candidates,
        **local,
        accuracy=accuracy,
        validation_accuracy=validation_accuracy,
        made={},
    )
