"""Multiparty encryption: PrivTuna's Tables II and III, and whether what opens is exact.

PF-Mean and PF-DBSCAN as a federation runs them, without noise as in the paper, with every party in
turn in one process: key generation, encryption, the dense test and the opening, all bytes written
and checked. Searching costs nothing here: clients know their optima by a formula. A further row
turns on the noise that is there by default, for which the dense test covers many more numbers.
Up to 20 clients everything is done three times, keys and all, and the best time counts: what the
machine does beside it varies by half.

The single operations are timed apart, for one sum with a dense test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.combining import EXACT_STEPS, CellCounts, ClusterSums, Kept, LocalBest
from tacit.federation import kind_of_piece as kind_of_opened
from tacit.federation import local_federation
from tacit.journal import Count, Journal, Number, Piece, Row, machine
from tacit.local_search import LocalSearch
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import IntArray
from tacit.query import Sums
from tacit.secure.bfv import Message
from tacit.secure.circuit import for_dense_test
from tacit.secure.multiparty import Party, Server
from tacit.secure.protocol import ENCRYPTED
from tacit.space import Config, Float, Space
from tacit.task import FunctionClient
from tacit.tuners.combine import Combine
from tacit.tuners.tuner import noise_for
from tacit.workers import end_with_parent, worker_processes

CLIENTS = (10, 20, 50, 100)
QUICK_CLIENTS = (3, 10)
NOISY_CLIENTS = 10
SPACE = Space({"server_learning_rate": Float(0.001, 0.5), "server_momentum": Float(0.0, 0.95)})
"""PrivTuna's two hyperparameters: 7 x 7 cells, of which 4 points make one dense."""
NOISY_EPSILON, NOISY_POINTS = 8.0, 3
_TRIALS = 49
_SPARSE = range(4)
_REPEATS, _REPEATED_UP_TO = 3, 20
_SLOTS = 4096

Made = TypeVar("Made")


def run(
    sizes: Sequence[int], noisy: bool, folder: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure every size; a killed run goes on with what is missing."""
    journal = Journal(folder, {"bench": "encrypted"}, _kind_of_piece)
    work: dict[str, tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]] = {}
    for clients in sizes:
        work[f"mean {clients}"] = (best_of, ("mean", clients, math.inf))
        work[f"dbscan {clients}"] = (best_of, ("dbscan", clients, math.inf))
        work[f"operations {clients}"] = (operations, (clients,))
    if noisy:
        work["with noise"] = (best_of, ("dbscan", NOISY_CLIENTS, NOISY_EPSILON))
    for done, (piece, (measure, arguments)) in enumerate(work.items()):
        progress(done, len(work))
        if piece not in journal.pieces:
            with worker_processes(1, end_with_parent) as pool:
                journal.add(piece, pool.submit(measure, *arguments).result())
    progress(len(work), len(work))
    found = {piece: journal.pieces[piece] for piece in work}
    return {
        "bench": "encrypted",
        "pf_mean": [found[f"mean {clients}"] for clients in sizes],
        "pf_dbscan": [found[f"dbscan {clients}"] for clients in sizes],
        "pf_dbscan_with_noise": [found["with noise"]] if noisy else [],
        "operations": [row for clients in sizes for row in found[f"operations {clients}"]["rows"]],
        "machine": machine(),
    }


class _Combined(Row):
    """One combination of local optima; errors are known where there is no noise."""

    clients: Count
    epsilon: Number | None
    seconds: Number
    stages: dict[str, Number]
    bytes_per_client: Number
    upload_bytes_per_client: Number
    config: dict[str, bool | int | float | str]
    all_seconds: list[Number]


class _Exact(_Combined):
    mse: Number
    mask_errors: Count


class _Operation(Row):
    clients: Count
    ring: Count
    operation: str
    who: str
    seconds: Number
    bytes: Count | None


class _Operations(Row):
    """Every operation of one sum."""

    rows: list[_Operation]
    slots: Count
    wrong: Count


def _kind_of_piece(piece: Piece) -> Any:
    if str(piece).startswith("operations "):
        return _Operations
    return _Combined if piece == "with noise" else _Exact


def best_of(strategy: str, clients: int, epsilon: float) -> dict[str, Any]:
    """The fastest of a few runs; errors are those of all of them."""
    times = _REPEATS if clients <= _REPEATED_UP_TO else 1
    runs = [protocol(strategy, clients, epsilon) for _ in range(times)]
    best = min(runs, key=lambda one: float(one["seconds"]))
    worst: dict[str, Any] = {
        key: max(one[key] for one in runs) for key in ("mse", "mask_errors") if key in best
    }
    return {**best, **worst, "all_seconds": [one["seconds"] for one in runs]}


def protocol(strategy: str, clients: int, epsilon: float) -> dict[str, Any]:
    """One combination of local optima, and how far what opened is from the plain computation."""
    budget = Budget(epsilon, 1e-5)
    points = 10 if math.isinf(epsilon) else NOISY_POINTS
    tuner = Combine(strategy, "encrypted", _TRIALS, "grid", points)
    members = [_client(number) for number in range(clients)]
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder), {}, kind_of_opened)
        federation = local_federation(
            members,
            Participation(clients, dropout=0.0),
            Ledger.in_memory("bench", budget),
            "bench",
            noise_for(tuner, SPACE, budget),
            secure=ENCRYPTED,
            roster=False,
            journal=journal,
        )
        begin = time.perf_counter()
        outcome = tuner.tune(ChargedQuestions(federation), SPACE, np.random.default_rng(0))
        seconds = time.perf_counter() - begin
    opened = [np.array(piece["value"]) for piece in journal.pieces.values()]
    errors = _errors(strategy, members, opened) if math.isinf(epsilon) else {}
    up = sum(cost.up for cost in federation.costs.values())
    down = sum(cost.down for cost in federation.costs.values())
    return {
        "clients": clients,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "seconds": seconds,
        "stages": {stage: cost.seconds for stage, cost in federation.costs.items()},
        "bytes_per_client": (up + down) / clients,
        "upload_bytes_per_client": up / clients,
        "config": outcome.config,
        **errors,
    }


def _client(number: int) -> FunctionClient:
    """A client whose error grows with the distance from an optimum of its own."""
    rng = np.random.default_rng(number)
    rate, momentum = rng.choice([0.05, 0.3]) + rng.normal(0, 0.03), 0.6 + rng.normal(0, 0.1)

    def error(config: Config) -> float:
        away = (float(config["server_learning_rate"]) - rate) / 0.5
        return float(min(1.0, 0.1 + abs(away) + abs(float(config["server_momentum"]) - momentum)))

    return FunctionClient(error)


def _errors(
    strategy: str, members: Sequence[FunctionClient], opened: Sequence[IntArray]
) -> dict[str, Any]:
    """What opened, compared with the same sums computed without any encryption."""
    seed = int(np.random.default_rng(0).integers(2**31))
    search = LocalSearch(SPACE.to_json(), "grid", _TRIALS, seed, "bench")
    if strategy == "mean":
        expected = _sum(LocalBest(search, steps=EXACT_STEPS), members)
        return {"mse": float(np.mean((opened[0] - expected) ** 2)), "mask_errors": 0}
    dense = _sum(CellCounts(search, Kept()), members) >= 2 * len(SPACE.dimensions)
    wrong = int(np.sum(opened[0].astype(bool) != dense))
    shown = np.ones_like(dense) if not opened[0].any() else opened[0].astype(bool)
    cells = tuple(map(int, np.flatnonzero(shown)))
    sums = _sum(ClusterSums(search, Kept(), cells, EXACT_STEPS), members)
    return {"mse": float(np.mean((opened[1] - sums) ** 2)), "mask_errors": wrong}


def _sum(query: Sums, members: Sequence[FunctionClient]) -> IntArray:
    return np.asarray(np.sum([query.answer(member) for member in members], axis=0))


def operations(clients: int) -> dict[str, Any]:
    """Seconds and bytes of every operation, for one party or for the server."""
    parameters = for_dense_test(len(_SPARSE), clients)
    server, seed = Server(parameters, clients), b"bench".ljust(32, b"\0")
    rows: list[dict[str, Any]] = []

    def timed(name: str, who: str, work: Callable[[], list[Made]]) -> list[Made]:
        begin = time.perf_counter()
        made = work()
        seconds = time.perf_counter() - begin
        size = len(made[0].to_bytes()) if isinstance(made[0], Message) else None
        row = {"clients": clients, "ring": parameters.degree, "operation": name, "who": who}
        rows.append({**row, "seconds": seconds / len(made), "bytes": size})
        return made

    values = np.random.default_rng(0).integers(0, 3, size=(clients, _SLOTS))
    parties = timed(
        "secret key", "party", lambda: [Party.new(parameters, seed) for _ in range(clients)]
    )
    shares = timed("public key share", "party", lambda: [p.public_share() for p in parties])
    firsts = timed(
        "relinearisation share, first half",
        "party",
        lambda: [p.relinearisation_first() for p in parties],
    )
    (public,) = timed("public key", "server", lambda: [server.public_key(shares)])
    (total,) = timed(
        "sum of first halves", "server", lambda: [server.relinearisation_total(firsts)]
    )
    seconds = timed(
        "relinearisation share, second half",
        "party",
        lambda: [p.relinearisation_second(total) for p in parties],
    )
    (key,) = timed(
        "relinearisation key", "server", lambda: [server.relinearisation_key(total, seconds)]
    )
    server.use(key)
    sealed = timed(
        "encryption",
        "party",
        lambda: [p.encrypt(public, own) for p, own in zip(parties, values, strict=True)],
    )
    masks = timed("encrypted mask", "party", lambda: [p.encrypt_mask(public) for p in parties])
    sums = timed("sum of ciphertexts", "server", lambda: [server.sum(sealed), server.sum(masks)])
    count, mask = sums
    (tested,) = timed("dense test", "server", lambda: [server.dense_test(count, mask, _SPARSE)])
    (prepared,) = timed("switch to few primes", "server", lambda: [server.prepare(tested)])
    openings = timed(
        "opening share", "party", lambda: [p.opening_share(prepared.request) for p in parties]
    )
    (slots,) = timed("opening", "server", lambda: [server.open(prepared, openings)])
    wrong = int(np.sum((slots[:_SLOTS] != 0) != (values.sum(axis=0) >= len(_SPARSE))))
    return {"rows": rows, "slots": _SLOTS, "wrong": wrong}
