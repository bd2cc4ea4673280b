"""Score tables: what every client thinks of every candidate, and how good each candidate really is.

Training is what takes the time in every experiment about voting, combining and ballots. A table
holds it: for one data set, partition, number of clients and grid, and for several seeds, every
client's validation loss and error of every candidate after local training, and the test accuracy of
every candidate after federated averaging. A new method is then compared in seconds.

Each seed is a run of its own: it deals the data, splits off validation parts, draws the start and
orders the batches. The test data are touched by nothing but ``accuracy``.

>>> table = ScoreTable.load("digits-dirichlet5-n50")
>>> table.scores(seed=0).shape, table.accuracy.shape
((50, 100), (3, 100))
"""

from __future__ import annotations

import json
import math
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.cores import cores
from tacit.data.examples import Dataset
from tacit.data.partitions import partition
from tacit.data.sources import load
from tacit.grids import grid
from tacit.journal import Journal, machine
from tacit.sgd import Floats, scores
from tacit.simulation import DENSE, built_in_task, simulated_clients
from tacit.space import Config
from tacit.torch_task import TorchClient, TorchTask
from tacit.training import federated_average

NETWORKS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "digits": (DENSE, (32,)),
    "adult": ("dp-hype-adult", ()),
    "fraud": ("dp-hype-adult", ()),
}
"""The network of a data set, unless another is asked for; images get the MLP 128-64."""

GRID = "dp-hype-table"
_CLIENTS_A_PIECE = 10
_CANDIDATES_A_PIECE = {True: 25, False: 5}  # whether the network can be stacked


@dataclass(frozen=True)
class Recipe:
    """All that decides what is in a table.

    >>> Recipe("adult", "dirichlet", clients=100, alpha=0.5).name
    'adult-dirichlet0.5-n100'
    """

    data: str
    partition: str = "iid"
    clients: int = 100
    alpha: float = 0.5
    percent: float = 66.0
    similarity: float = 0.0
    noise: float = 0.1
    smallest: int = 10
    grid: str = GRID
    network: str = ""
    examples: int = 0
    """How many training examples are dealt out; 0: all of them."""
    validation: float = 0.2
    batch: int = 64
    epochs: int = 5
    """Local epochs, for a score and in each round."""
    rounds: int = 5
    seeds: int = 3

    def __post_init__(self) -> None:
        for name, least in (("clients", 2), ("examples", 0), ("batch", 1), ("epochs", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is {least} and above")
        for name in ("rounds", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 and above")

    @property
    def name(self) -> str:
        """Short, and different for every recipe that differs in more than the number of seeds."""
        parameter = {
            "dirichlet": self.alpha,
            "quantity-skew": self.alpha,
            "dominant-label": self.percent,
            "class-pairs": self.similarity,
            "feature-skew": self.noise,
        }.get(self.partition)
        kind = self.partition if parameter is None else f"{self.partition}{parameter:g}"
        plain = Recipe(self.data)
        rest = {
            "grid": self.grid,
            "network": self.network,
            "examples": self.examples,
            "validation": self.validation,
            "batch": self.batch,
            "epochs": self.epochs,
            "rounds": self.rounds,
            "smallest": self.smallest,
        }
        extra = [
            f"{name}-{value}" if isinstance(value, int | float) else str(value)
            for name, value in rest.items()
            if value != getattr(plain, name)
        ]
        return "-".join([self.data, kind, f"n{self.clients}", *extra])


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Clients' scores and federated accuracies; the first axis is the seed."""

    recipe: Recipe
    candidates: tuple[Config, ...]
    losses: npt.NDArray[np.float32]
    """(seeds, clients, candidates): validation loss after local training; infinite: diverged."""
    wrong: npt.NDArray[np.uint16]
    """(seeds, clients, candidates): validation examples that the local model got wrong."""
    validation_sizes: npt.NDArray[np.int64]
    """(seeds, clients): how many validation examples there are."""
    training_sizes: npt.NDArray[np.int64]
    accuracy: Floats
    """(seeds, candidates): test accuracy of the federated model."""
    validation_accuracy: Floats
    """(seeds, candidates): the federated model's mean accuracy on the clients' validation parts."""
    made: Mapping[str, Any]
    """Seconds, peak memory and the machine."""

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    def first(self, seeds: int) -> ScoreTable:
        """The same table with fewer seeds."""
        return ScoreTable(
            replace(self.recipe, seeds=seeds),
            self.candidates,
            self.losses[:seeds],
            self.wrong[:seeds],
            self.validation_sizes[:seeds],
            self.training_sizes[:seeds],
            self.accuracy[:seeds],
            self.validation_accuracy[:seeds],
            self.made,
        )

    def errors(self, seed: int) -> Floats:
        """(clients, candidates): validation error after local training."""
        return np.asarray(self.wrong[seed] / self.validation_sizes[seed][:, None])

    def scores(self, seed: int, metric: str = "error") -> Floats:
        """(clients, candidates): what the clients rank by, as :meth:`TorchClient.score_many`."""
        loss, sizes = self.losses[seed].astype(np.float64), self.validation_sizes[seed]
        found = [
            scores(row, 1 - error, int(size), metric)
            for row, error, size in zip(loss, self.errors(seed), sizes, strict=True)
        ]
        return np.array(found)

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}")
        about = {"recipe": asdict(self.recipe), "candidates": self.candidates, "made": self.made}
        with draft.open("wb") as file:
            np.savez_compressed(
                file,
                about=np.array(json.dumps(about)),
                losses=self.losses,
                wrong=self.wrong,
                validation_sizes=self.validation_sizes,
                training_sizes=self.training_sizes,
                accuracy=self.accuracy,
                validation_accuracy=self.validation_accuracy,
            )
        draft.replace(path)

    @classmethod
    def load(cls, table: str | Path) -> ScoreTable:
        """A table by its file, or by the name of one that comes with Tacit."""
        path = shipped().get(str(table), Path(table))
        if not path.exists():
            raise ValueError(
                f"no table {str(table)!r}; allowed are a file, or one of {', '.join(shipped())}; "
                "`tacit tables make` makes others"
            )
        try:
            with np.load(path, allow_pickle=False) as arrays:
                held = {name: arrays[name] for name in arrays.files}
            about = json.loads(str(held.pop("about")))
            recipe = Recipe(**about["recipe"])
            return cls(recipe, tuple(about["candidates"]), made=about["made"], **held)
        except (OSError, KeyError, TypeError, ValueError, EOFError) as error:
            raise ValueError(f"{path} is not a score table: {error}") from None


def shipped() -> dict[str, Path]:
    """The tables that come with Tacit, by name."""
    folder = Path(str(files("tacit"))) / "score_tables"
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


def make(
    recipe: Recipe, data_dir: Path | None, folder: Path, progress: Callable[[int, int], None]
) -> ScoreTable:
    """Train everything a table holds, one process a core; a killed run goes on where it was."""
    begin = time.perf_counter()
    candidates = grid(recipe.grid)
    clients_of(recipe, data_dir, 0)  # refuses a recipe that cannot be followed before any work
    tasks = _tasks(recipe, data_dir, candidates)
    journal = Journal(folder, {"table": {**asdict(recipe), "seeds": "any"}, "version": 1})
    work = {number: partial(_do, recipe, data_dir, task) for number, task in enumerate(tasks)}
    finished: list[int] = []

    def done(number: int) -> None:
        finished.append(number)
        progress(len(finished), len(tasks))

    progress(0, len(tasks))
    context = get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=context, initializer=_one_core) as pool:
        journal.complete(pool, work, done)
    found = [journal.pieces[number] for number in range(len(tasks))]
    table = _assemble(recipe, candidates, tasks, found)
    seconds = sum(piece["seconds"] for piece in found)
    made = {
        "core_seconds": seconds,
        "seconds": time.perf_counter() - begin,
        "peak_megabytes_a_core": max(piece["peak_megabytes"] for piece in found),
        "ways": sorted({way for piece in found for way in piece["ways"]}),
        "machine": machine(),
    }
    return replace(table, made=made)


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


def _blocks(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(numbers[start : start + size]) for start in range(0, len(numbers), size)]


def _one_core() -> None:
    os.environ["TACIT_CORES"] = "1"


@lru_cache(maxsize=1)
def _dataset(data: str, data_dir: Path | None, examples: int) -> Dataset:
    dataset = load(data, data_dir)
    if not examples:
        return dataset
    if examples > len(dataset.train):
        raise ValueError(
            f"examples is {examples}; allowed is 0 for all, or up to {len(dataset.train)}"
        )
    some = np.sort(np.random.default_rng(0).permutation(len(dataset.train))[:examples])
    return replace(dataset, train=dataset.train.take(some))


@lru_cache(maxsize=1)
def clients_of(recipe: Recipe, data_dir: Path | None, seed: int) -> list[TorchClient]:
    """The clients of one seed of a recipe."""
    dataset = _dataset(recipe.data, data_dir, recipe.examples)
    network, hidden = NETWORKS.get(recipe.data, ("mlp", ()))
    task = built_in_task(
        dataset,
        recipe.network or network,
        hidden,
        epochs=recipe.epochs,
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


def _do(recipe: Recipe, data_dir: Path | None, task: _Task) -> dict[str, Any]:
    """One piece of work, in a process of its own core."""
    begin = time.process_time()
    clients, candidates = clients_of(recipe, data_dir, task.seed), grid(recipe.grid)
    if task.kind == "local":
        some = [clients[number] for number in task.members]
        result = _local(some, candidates)
    else:
        dataset = _dataset(recipe.data, data_dir, recipe.examples)
        configs = [candidates[number] for number in task.members]
        result = _federated(clients, configs, dataset, recipe)
    return {
        **result,
        "seconds": time.process_time() - begin,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ways": clients[0].task.report()["ways"],
    }


def _local(clients: Sequence[TorchClient], candidates: Sequence[Config]) -> dict[str, Any]:
    measured = [client.measure_many(candidates) for client in clients]
    sizes = [len(client.validation) for client in clients]
    return {
        "losses": [loss.tolist() for loss, _ in measured],
        "wrong": [
            np.rint((1 - accuracy) * size).astype(int).tolist()
            for (_, accuracy), size in zip(measured, sizes, strict=True)
        ],
        "validation_sizes": sizes,
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
