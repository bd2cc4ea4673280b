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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, cast
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.files import decoded, whole_file
from tacit.packed_arrays import read_array
from tacit.sgd import Floats, scores
from tacit.space import Choice, Config, Float, Space

GRID = "dp-hype-table"
_MOST, _MOST_ABOUT = 2**30, 2**26
"""Bytes of an array, and of what is said about all."""
_FLOAT_BYTES = (2, 4, 8)
"""How many bytes a number of ``losses`` may have; each is a plane of a file."""
_EVERY, _BY_CLIENT, _BY_CANDIDATE = (0, 1, 2), (0, 1), (0, 2)
_AXES: Mapping[str, tuple[int, ...]] = {
    "losses": _EVERY,
    "wrong": _EVERY,
    "validation_sizes": _BY_CLIENT,
    "training_sizes": _BY_CLIENT,
    "accuracy": _BY_CANDIDATE,
    "validation_accuracy": _BY_CANDIDATE,
}
"""Of seeds, clients and candidates, those that an array of a file has."""
_KINDS = {
    "losses": "f",
    "wrong": "iu",
    "validation_sizes": "iu",
    "training_sizes": "iu",
    "accuracy": "f",
    "validation_accuracy": "f",
}


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
    test_examples: int = 0
    """How many test examples accuracies are measured on; 0: all of them."""
    validation: float = 0.2
    batch: int = 64
    epochs: int = 5
    """Local epochs in each round."""
    score_epochs: int = 0
    """Local epochs for a score; 0: as many as in a round."""
    rounds: int = 5
    seeds: int = 3
    folds: int = 1
    """Over how many parts of a client's examples, held out in turn, its scores are summed."""

    def __post_init__(self) -> None:
        for name, least in {
            "clients": 2,
            "examples": 0,
            "test_examples": 0,
            "batch": 1,
            "epochs": 1,
            "score_epochs": 0,
            "rounds": 1,
            "seeds": 1,
            "folds": 1,
        }.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is {least} and above")

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
        words = {
            "grid": self.grid,
            "network": self.network,
            "examples": f"ex{self.examples}",
            "test_examples": f"test{self.test_examples}",
            "validation": f"val{self.validation:g}",
            "batch": f"batch{self.batch}",
            "epochs": f"ep{self.epochs}",
            "score_epochs": f"score{self.score_epochs}",
            "rounds": f"r{self.rounds}",
            "smallest": f"min{self.smallest}",
            "folds": f"cv{self.folds}",
        }
        extra = [
            word for name, word in words.items() if getattr(self, name) != getattr(plain, name)
        ]
        return "-".join([self.data, kind, f"n{self.clients}", *extra])


class Made(TypedDict):
    """How a table was made."""

    core_seconds: Annotated[float, Meta(ge=0)]
    ways: list[str]
    machine: dict[str, str | int | None]
    seconds: NotRequired[float]
    """Not of tables that were put together from several runs, nor is the memory."""
    peak_megabytes_a_core: NotRequired[float]
    train: NotRequired[int]
    test: NotRequired[int]


class _About(TypedDict):
    """What a file says about its arrays."""

    recipe: Recipe
    candidates: Annotated[list[Annotated[dict[str, float], Meta(min_length=1)]], Meta(min_length=1)]
    made: Made


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Clients' scores and federated accuracies; the first axis is the seed.

    >>> table = ScoreTable.load("digits-iid-n50")
    >>> table.scores(seed=0).shape, table.accuracy.shape
    ((50, 100), (3, 100))
    """

    recipe: Recipe
    candidates: tuple[Config, ...]
    losses: npt.NDArray[np.float32]
    """(seeds, clients, candidates): validation loss after local training; infinite: diverged."""
    wrong: npt.NDArray[np.uint16]
    """(seeds, clients, candidates): validation examples that the local model got wrong."""
    validation_sizes: npt.NDArray[np.int64]
    """(seeds, clients): how many validation examples there are, over all folds."""
    training_sizes: npt.NDArray[np.int64]
    accuracy: Floats
    """(seeds, candidates): test accuracy of the federated model."""
    validation_accuracy: Floats
    """(seeds, candidates): the federated model's mean accuracy on the clients' validation parts."""
    made: Mapping[str, Any]
    """Seconds, peak memory and the machine, see :class:`Made`."""

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
        about = {"recipe": asdict(self.recipe), "candidates": self.candidates, "made": self.made}
        with whole_file(path) as file:
            np.savez_compressed(
                file,
                about=np.array(json.dumps(about)),
                losses=_in_planes(self.losses),
                wrong=self.wrong,
                validation_sizes=self.validation_sizes,
                training_sizes=self.training_sizes,
                accuracy=self.accuracy,
                validation_accuracy=self.validation_accuracy,
            )

    @classmethod
    def load(cls, table: str | Path) -> ScoreTable:
        """A table by its file, or by the name of one that comes with Tacit."""
        path = shipped().get(str(table), Path(table))
        if not path.exists():
            raise ValueError(
                f"no table {str(table)!r}; allowed are a file, or a name that `tacit tables list` "
                f"shows{_like(str(table))}; `tacit tables make` makes others"
            )
        try:
            return cls._read(path)
        except OSError as error:
            raise ValueError(f"{path} is not a score table: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{path} is not a score table: {error}") from None

    @classmethod
    def _read(cls, path: Path) -> ScoreTable:
        """What a file holds, if all of it fits together."""
        with path.open("rb") as file:  # is_zipfile says False of a file that may not be opened
            if not is_zipfile(file):
                raise ValueError("it is no npz file")
        text = read_array(path, "about", _MOST_ABOUT)
        if text.shape or text.dtype.kind != "U":
            raise ValueError("about is no text")
        about = decoded(str(text), _About)
        recipe, candidates = about["recipe"], tuple(map(_config, about["candidates"]))
        if any(list(candidate) != list(candidates[0]) for candidate in candidates):
            raise ValueError("its candidates have different hyperparameters")
        shape = recipe.seeds, recipe.clients, len(candidates)
        most = min(8 * math.prod(shape), _MOST)  # no number has more than 8 bytes
        held = {name: read_array(path, name, most) for name in _AXES}
        held["losses"] = _from_planes(held["losses"])
        for name, axes in _AXES.items():
            wanted = tuple(shape[axis] for axis in axes)
            if held[name].shape != wanted or held[name].dtype.kind not in _KINDS[name]:
                raise ValueError(
                    f"{name} has shape {held[name].shape} and type {held[name].dtype}; the recipe "
                    f"says {wanted}"
                )
        for name in ("validation_sizes", "training_sizes"):
            if held[name].min() < 1:
                raise ValueError(f"{name} has a client without examples")
        for name in ("accuracy", "validation_accuracy"):
            if not ((held[name] >= 0) & (held[name] <= 1)).all():
                raise ValueError(f"{name} has a number that is not between 0 and 1")
        if (held["wrong"] > held["validation_sizes"][:, :, None]).any():
            raise ValueError("wrong counts more examples than there are")
        return cls(recipe, candidates, made=cast(Mapping[str, Any], about["made"]), **held)


def _config(numbers: dict[str, float]) -> Config:
    return {**numbers}


def _like(name: str) -> str:
    """Names that come with Tacit and look like one that does not."""
    near = get_close_matches(name, shipped())
    return f", such as {', '.join(near)}" if near else ""


def _in_planes(losses: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The first bytes of all numbers, then the second: alike, so that files are a fifth smaller."""
    little = np.ascontiguousarray(losses, losses.dtype.newbyteorder("<"))
    octets = little.view(np.uint8).reshape(*losses.shape, losses.dtype.itemsize)
    return np.ascontiguousarray(np.moveaxis(octets, -1, 0))


def _from_planes(planes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The numbers again, bit for bit; files of numbers as they are stay readable."""
    if planes.dtype != np.uint8:
        return planes
    if not planes.ndim or len(planes) not in _FLOAT_BYTES:
        raise ValueError(
            f"losses has shape {planes.shape}; allowed are {_FLOAT_BYTES} planes of bytes"
        )
    octets = np.ascontiguousarray(np.moveaxis(planes, 0, -1))
    found: npt.NDArray[np.float32] = octets.view(np.dtype(f"<f{len(planes)}"))[..., 0]
    return found


@dataclass(frozen=True, eq=False)
class TableClients:
    """The clients of a table, who answer from it: nothing is trained.

    A configuration that is none of the candidates, of a method that combines numbers, has the
    scores and the accuracy of the nearest one in the box around them.

    >>> clients = TableClients(ScoreTable.load("digits-iid-n50"))
    >>> clients.grid.size, sorted(clients.box.dimensions)
    (100, ['decay', 'learning_rate', 'momentum'])
    """

    table: ScoreTable

    @cached_property
    def grid(self) -> Space:
        """The candidates themselves, each number one of its values."""
        return Space({name: Choice(found) for name, found in self._values.items()})

    @cached_property
    def box(self) -> Space:
        """All that lies between them."""
        return Space(
            {
                name: Float(found[0], found[-1], log=found[0] > 0 and found[-1] > 99 * found[0])
                for name, found in self._values.items()
                if len(found) > 1
            }
        )

    def of_seed(self, seed: int) -> list[TableClient]:
        """Everybody who took part in one of the table's seeds."""
        return [TableClient(self, row) for row in self.table.scores(seed)]

    def accuracy(self, seed: int, config: Config) -> float:
        """Test accuracy of the federated model."""
        return float(self.table.accuracy[seed][self.nearest(config)])

    def nearest(self, config: Config) -> int:
        """Which candidate lies nearest to a configuration."""
        key = tuple(config[name] for name in self.box.dimensions)
        if key not in self._found:
            gaps = self._places - self._place(config)
            self._found[key] = int(np.argmin(np.square(gaps).sum(axis=1)))
        return self._found[key]

    @cached_property
    def _found(self) -> dict[tuple[Any, ...], int]:
        return {}

    @cached_property
    def _values(self) -> dict[str, list[float]]:
        names = self.table.candidates[0]
        every = {name: [float(c[name]) for c in self.table.candidates] for name in names}
        return {name: sorted(set(found)) for name, found in every.items()}

    @cached_property
    def _places(self) -> Floats:
        return np.array([self._place(candidate) for candidate in self.table.candidates])

    def _place(self, config: Config) -> Floats:
        return self.box.encode({name: config[name] for name in self.box.dimensions})


@dataclass(frozen=True, eq=False)
class TableClient:
    """One of them."""

    clients: TableClients
    row: Floats

    def score(self, config: Config) -> float:
        """What the table says about the candidate that lies nearest."""
        return float(self.row[self.clients.nearest(config)])


def shipped() -> dict[str, Path]:
    """The tables that come with Tacit, by name."""
    folder = Path(str(files("tacit"))) / "score_tables"
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}
