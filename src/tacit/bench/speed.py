"""How much faster candidates are scored than by the loop a user writes, and what halving saves.

A row compares :meth:`score_many` with :mod:`tacit.bench.plain_loop`: same candidates, start,
batches and scores, on the same machine and in one run, in turn, best of a few repetitions each. The
plain loop runs with all of the library's threads and with one, and the better counts. The headline
``ratio`` is on Sobol candidates, which share nothing; ``shared_epochs_ratio`` is on DP-HYPE's grid,
where candidates that differ in their decay share the first epoch and decay 0 stops after it (with
the threads that were the better ones before). Examples are random numbers of the real shape, since
the time does not depend on their values. The trial that chooses how to train is held once a task
and is not in ``seconds``; ``trial_seconds`` says what it took.

``share_of_peak`` divides the floating point operations a second that were executed by those of a
large float32 matrix product on all cores, measured beside the row. Matrix products and convolutions
are counted, 2 for a multiplication and addition: outputs, gradients of the weights, and gradients
of the inputs except in the first layer.

Halving is measured on real data dealt evenly to clients: the same clients search in full and with
halving, in turn, best of a few repetitions each, on one core and on all. ``agreement`` is the mean
share of the full search's five best that halving also has among its five; with ties, the share of
halving's five whose full error is no worse than the fifth best.

A killed run goes on with the rows that are missing; a row's times all come from the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.bench.plain_loop import Race, race, random_examples, sklearn_loop, sobol, torch_loop
from tacit.cores import at_most, cores, import_torch, spread
from tacit.data.examples import Dataset
from tacit.data.folders import MissingData
from tacit.data.skews import Iid
from tacit.data.sources import load
from tacit.grids import grid
from tacit.journal import Count, Journal, Number, Piece, Row, machine
from tacit.networks import network
from tacit.sgd import Floats, scores
from tacit.simulation import built_in_task, simulated_clients
from tacit.sklearn_task import SklearnTask
from tacit.space import Config
from tacit.torch_task import TorchTask

if TYPE_CHECKING:
    from torch import nn

GRID = "dp-hype-table"
BEST = 5
VALIDATION = 0.2
_SAME = 1e-3  # relative; rounding is far below, another batch or start far above
_SEED = 1


@dataclass(frozen=True)
class Model:
    """A network and the size of the client that it is trained on."""

    name: str
    network: str
    shape: tuple[int, ...]
    classes: int
    rows: int
    epochs: int = 5
    batch: int = 64

    def build(self) -> nn.Module:
        """A fresh module."""
        return network(self.network).build(self.shape, self.classes)


@dataclass(frozen=True)
class Setup:
    """The sizes of everything that is measured."""

    models: tuple[Model, ...]
    repetitions: int
    clients: int
    """How many of a federation's clients search with and without halving."""
    candidates: int = 100
    sklearn_rows: int = 260
    halving: tuple[tuple[str, str, int], ...] = (
        ("adult", "dp-hype-adult", 50),
        ("adult", "dp-hype-adult", 100),
        ("mnist", "mlp", 100),
    )
    """Data sets, their networks, and among how many clients they are dealt."""
    epochs: int = 5
    matrix: int = 2048


_ADULT = Model("adult", "dp-hype-adult", (105,), 2, rows=260)
_MLP = Model("mnist-mlp", "mlp", (1, 28, 28), 10, rows=480)
_CNN = Model("mnist-cnn", "dp-hype-mnist", (1, 28, 28), 10, rows=32, batch=32)
FULL = Setup((_ADULT, _MLP, _CNN), repetitions=3, clients=20)
QUICK = Setup(
    (_ADULT, replace(_MLP, rows=128), replace(_CNN, rows=16, batch=16, epochs=1)),
    repetitions=1,
    clients=2,
    halving=(("adult", "dp-hype-adult", 50), ("mnist", "mlp", 100)),
)


def run(
    quick: bool, data_dir: Path | None, folder: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure every row, those of earlier runs excepted; JSON."""
    result = measure(QUICK if quick else FULL, data_dir, folder, progress)
    return {"bench": "speed", "quick": quick, **result}


class _Raced(Row):
    """Candidates scored against a plain loop; None is what a model does not have."""

    model: str
    ratio: Number
    seconds: Number
    plain_seconds: Number
    plain_threads: Count
    agrees: Number
    share_of_peak: Number | None
    way: str
    candidates: Count
    rows: Count
    epochs: Count | None
    batch: Count | None
    shared_epochs_ratio: Number | None
    gflops_per_second: Number | None = None
    peak_gflops_per_second: Number | None = None
    trial_seconds: Number | None = None
    shared_epochs_seconds: Number | None = None
    shared_epochs_plain_seconds: Number | None = None


class _Halved(Row):
    """Successive halving against a full search."""

    data: str
    federation: Count
    space: str
    cores: Count
    ratio: Number
    agreement: Number
    agreement_with_ties: Number
    clients: Count
    candidates: Count
    seconds_full: Number
    seconds_halving: Number


def _kind_of_piece(models: int, piece: Piece) -> Any:
    return _Raced if isinstance(piece, int) and piece < models else _Halved


def measure(
    setup: Setup, data_dir: Path | None, folder: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """All rows of a setup; ``progress`` hears of finished and planned ones."""
    begin = time.perf_counter()
    models = len(setup.models) + 1
    journal = Journal(folder, {"bench": "speed", **asdict(setup)}, partial(_kind_of_piece, models))
    resumed = len(journal.pieces)
    dataset = cache(partial(load, folder=data_dir))
    work: list[Callable[[], dict[str, Any]]] = [
        *(partial(_torch_row, model, setup) for model in setup.models),
        partial(_sklearn_row, setup),
        *(
            partial(_halving_row, data, name, federation, space, used, setup, dataset)
            for data, name, federation in setup.halving
            for space in (GRID, "sobol")
            for used in sorted({1, cores()})
        ),
    ]
    rows = []
    for piece, row in enumerate(work):
        progress(piece, len(work))
        if piece in journal.pieces:
            rows.append(journal.pieces[piece])
            continue
        rows.append(row())
        if "skipped" not in rows[-1]:  # the data may be there the next time
            journal.add(piece, rows[-1])
    progress(len(work), len(work))
    return {
        "rows": rows[: len(setup.models) + 1],
        "halving": rows[len(setup.models) + 1 :],
        "seconds": time.perf_counter() - begin,
        "resumed": resumed,
        "torch": import_torch().__version__,
        "machine": machine(),
    }


def flops(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """Floating point operations a row: in a step of training, and in an evaluation.

    >>> from torch import nn
    >>> flops(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)), (7,))
    (230, 100)
    """
    torch = import_torch()
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as forward:
        outputs = module(torch.zeros(1, *shape))
    with FlopCounterMode(display=False) as backward:
        outputs.sum().backward()
    evaluation = forward.get_total_flops()
    return evaluation + backward.get_total_flops(), evaluation


def peak_flops(size: int) -> float:
    """Operations a second of a float32 product of square matrices on all cores; best of ten."""
    torch = import_torch()
    matrix = torch.rand(size, size)

    def seconds(_number: int) -> float:
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        return time.perf_counter() - begin

    return 2 * size**3 / min(spread(seconds, range(10), workers=1, threads=cores()))


def agreement(full: Floats, halving: Floats, errors: Floats) -> tuple[float, float]:
    """What share of halving's five best are among the five best; and what share are as good.

    >>> errors = np.array([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4])
    >>> agreement(np.arange(7.0), np.array([0.0, 1.0, 2.0, 3.0, 9.0, 9.0, 4.0]), errors)
    (0.8, 0.8)
    >>> agreement(np.arange(7.0), np.array([0.0, 1.0, 2.0, 3.0, 9.0, 4.0, 9.0]), errors)
    (0.8, 1.0)
    """
    best, chosen = (np.argsort(each, kind="stable")[:BEST] for each in (full, halving))
    as_good = errors[chosen] <= np.sort(errors)[BEST - 1]
    return float(np.isin(chosen, best).mean()), float(as_good.mean())


def _torch_row(model: Model, setup: Setup) -> dict[str, Any]:
    held_out = round(model.rows * VALIDATION / (1 - VALIDATION))
    train = random_examples(model.shape, model.classes, model.rows, seed=1)
    validation = random_examples(model.shape, model.classes, held_out, seed=2)
    task = TorchTask(
        model.build, model.classes, epochs=model.epochs, batch=model.batch, metric="loss"
    )
    client = task.client(train, validation, seed=_SEED)

    def plain(configs: Sequence[Config], threads: int) -> Floats:
        losses, _ = torch_loop(
            model.build,
            train,
            validation,
            configs,
            epochs=model.epochs,
            batch=model.batch,
            seed=_SEED,
            threads=threads,
        )
        return losses

    peak = peak_flops(setup.matrix)
    candidates = sobol(setup.candidates)
    begin = time.perf_counter()
    way = task.way(task.architecture({}), len(candidates), train)
    trial_seconds = time.perf_counter() - begin
    if way.stacked:  # large memory is touched for the first time
        client.score_many(candidates)
    plain(candidates[:1], 1)
    alone = race(
        partial(client.score_many, candidates),
        partial(plain, candidates),
        setup.repetitions,
    )
    _check_same_scores(model.name, alone.difference)
    on_grid = grid(GRID)[: setup.candidates]
    shared = race(
        partial(client.score_many, on_grid),
        partial(plain, on_grid),
        setup.repetitions,
        alone.threads,
    )
    a_step, an_evaluation = flops(model.build(), model.shape)
    work = len(candidates) * (model.epochs * model.rows * a_step + held_out * an_evaluation)
    return {
        "model": model.name,
        **_raced(alone),
        "share_of_peak": work / alone.seconds / peak,
        "gflops_per_second": work / alone.seconds / 1e9,
        "peak_gflops_per_second": peak / 1e9,
        "way": str(way),
        "trial_seconds": trial_seconds,
        "candidates": len(candidates),
        "rows": model.rows,
        "epochs": model.epochs,
        "batch": model.batch,
        "shared_epochs_ratio": shared.ratio,
        "shared_epochs_seconds": shared.seconds,
        "shared_epochs_plain_seconds": shared.plain_seconds,
    }


def _sklearn_row(setup: Setup) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    train = random_examples(_ADULT.shape, 2, setup.sklearn_rows, seed=1)
    validation = random_examples(_ADULT.shape, 2, max(2, setup.sklearn_rows // 4), seed=2)
    estimator = LogisticRegression(max_iter=1000)
    candidates: list[Config] = [
        {"C": float(value)} for value in np.logspace(-4, 1, setup.candidates)
    ]
    task = SklearnTask(estimator, metric="loss")
    client = task.client(train, validation, seed=_SEED)

    def plain(threads: int) -> Floats:
        return sklearn_loop(estimator, train, validation, candidates, threads=threads)[0]

    found = race(partial(client.score_many, candidates), plain, setup.repetitions)
    _check_same_scores("sklearn", found.difference)
    return {
        "model": "sklearn",
        **_raced(found),
        "share_of_peak": None,
        "way": ", ".join(task.report()["ways"]),
        "candidates": len(candidates),
        "rows": len(train),
        "epochs": None,
        "batch": None,
        "shared_epochs_ratio": None,
    }


def _check_same_scores(name: str, difference: float) -> None:
    if not difference < _SAME:
        raise RuntimeError(
            f"{name}: scores differ from the plain loop's by {difference:.1e} relative, above "
            f"{_SAME:g}; the two sides do not do the same work"
        )


def _raced(found: Race) -> dict[str, Any]:
    return {
        "ratio": found.ratio,
        "seconds": found.seconds,
        "plain_seconds": found.plain_seconds,
        "plain_threads": found.threads,
        "agrees": found.difference,
    }


def _halving_row(
    data: str,
    name: str,
    federation: int,
    space: str,
    used: int,
    setup: Setup,
    find: Callable[[str], Dataset],
) -> dict[str, Any]:
    kind = {"data": data, "federation": federation, "space": space, "cores": used}
    try:
        dataset = find(data)
    except MissingData as missing:
        return {**kind, "skipped": str(missing)}
    full, halving = (
        built_in_task(dataset, name, epochs=setup.epochs, batch=64, metric="error", local=local)
        for local in ("full", "halving")
    )
    configs = sobol(setup.candidates) if space == "sobol" else grid(space)[: setup.candidates]
    clients = simulated_clients(
        dataset, Iid(), federation, full, validation=VALIDATION, seed=_SEED
    )[: setup.clients]
    seconds = {"full": 0.0, "halving": 0.0}
    agreed = []
    with at_most(used):
        for some in range(1, len(configs) + 1):  # all trials, however many survive on a client
            halving.way(halving.architecture({}), some, clients[0].train_examples)
        for task in (full, halving):
            replace(clients[0], task=task).score_many(configs)
        for client in clients:
            impatient, best = replace(client, task=halving), [np.inf, np.inf]
            for _ in range(setup.repetitions):
                begin = time.perf_counter()
                loss, accuracy = client.measure_many(configs)
                middle = time.perf_counter()
                found = impatient.score_many(configs)
                taken = middle - begin, time.perf_counter() - middle
                best = [min(pair) for pair in zip(best, taken, strict=True)]
            seconds["full"] += best[0]
            seconds["halving"] += best[1]
            expected = scores(loss, accuracy, len(client.validation), full.metric)
            agreed.append(agreement(expected, found, 1 - accuracy))
    same, as_good = np.mean(agreed, axis=0).tolist()
    return {
        **kind,
        "ratio": seconds["full"] / seconds["halving"],
        "agreement": same,
        "agreement_with_ties": as_good,
        "clients": len(clients),
        "candidates": len(configs),
        "seconds_full": seconds["full"],
        "seconds_halving": seconds["halving"],
    }
