"""How long the masked sum takes, what it needs, and how that grows with the number of clients.

Every client is simulated in this process: noise, keys, shares, masks, signatures and recovery, for
one private vote among 100 candidates whose scores cost nothing. Each size runs in a process of its
own, so that its peak memory is its own. Checks of equal signatures are shared between simulated
clients (see :mod:`tacit.secure.roster`), which a real client could not do and does not need.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tacit.federation import local_federation
from tacit.journal import Journal, machine, resident_megabytes
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.query import Ballot
from tacit.secure.graph import wiring
from tacit.space import Config
from tacit.task import FunctionClient

SIZES = (50, 100, 250, 500, 1000)
QUICK_SIZES = (50, 100, 250)
CANDIDATES, VOTES = 100, 5
_GROWTH_FROM = 250


def run(
    sizes: tuple[int, ...], folder: Path, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure every size; a killed run goes on with the sizes that are missing."""
    journal = Journal(folder, {"bench": "secure-sum", "candidates": CANDIDATES, "votes": VOTES})
    for done, clients in enumerate(sizes):
        progress(done, len(sizes))
        if clients not in journal.pieces:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                journal.add(clients, pool.submit(_measure, clients).result())
    progress(len(sizes), len(sizes))
    points = [journal.pieces[clients] for clients in sizes]
    return {
        "bench": "secure-sum",
        "candidates": CANDIDATES,
        "votes": VOTES,
        "points": points,
        "growth": _growth(points),
        "machine": machine(),
    }


def _measure(clients: int) -> dict[str, Any]:
    participation, budget = Participation(clients), Budget(1.0, 1e-5)
    bound = TopVotes(CANDIDATES, VOTES)
    variance = SkellamMechanism.calibrated(bound, participation, budget).required_variance
    ledger = Ledger.in_memory("bench", budget)
    members = [FunctionClient(_loss)] * clients
    federation = local_federation(members, participation, ledger, "bench", variance)
    candidates: tuple[Config, ...] = tuple({"x": number} for number in range(CANDIDATES))
    start = time.perf_counter()
    tally = federation.sum(Ballot(candidates, VOTES), "vote")
    seconds = time.perf_counter() - start
    if tally.answered != clients:
        raise RuntimeError(f"{tally.answered} of {clients} clients are in the sum")
    return {
        "clients": clients,
        "degree": wiring(participation, clients).degree,
        "seconds": seconds,
        "stages": {stage: cost.seconds for stage, cost in federation.costs.items()},
        "peak_megabytes": resident_megabytes(),
        "upload_bytes_per_client": sum(cost.up for cost in federation.costs.values()) / clients,
        "download_bytes_per_client": sum(cost.down for cost in federation.costs.values()) / clients,
    }


def _loss(config: Config) -> float:
    return float(config["x"])


def _growth(points: list[dict[str, Any]]) -> dict[str, float] | None:
    """Seconds against n log n, where the degree has outgrown the effects of few clients."""
    sparse = [point for point in points if point["clients"] >= _GROWTH_FROM]
    if len(sparse) < 2:
        return None
    first, last = sparse[0], sparse[-1]
    times = last["clients"] / first["clients"]
    slower = last["seconds"] / first["seconds"]
    expected = times * math.log(last["clients"]) / math.log(first["clients"])
    return {
        "from_clients": first["clients"],
        "to_clients": last["clients"],
        "seconds_ratio": slower,
        "n_log_n_ratio": expected,
        "links_ratio": times * last["degree"] / first["degree"],
        "exponent": math.log(slower) / math.log(times),
    }
