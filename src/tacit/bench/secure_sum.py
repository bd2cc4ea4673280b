"""How long the masked sum takes, what it needs, and whether it opens when things go wrong.

Every client is simulated in this process: noise, keys, shares, masks, signatures and recovery, for
one private vote among 100 candidates whose scores cost nothing. Each size runs in a process of its
own, so that its peak memory is its own. Three settings: nothing goes wrong; 2 % of all messages are
lost, in both directions, of which a silent client's is sent once more, as on Flower; and one member
deals junk to all its neighbours. Then many sums with lost messages: how many open?
Checks of equal signatures are shared between simulated clients (see :mod:`tacit.secure.roster`),
which a real client could not do and does not need.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tacit.endpoint import Endpoint
from tacit.federation import Federation, LocalChannel, local_federation
from tacit.journal import (
    Count,
    Journal,
    Number,
    Piece,
    Positive,
    Row,
    Some,
    machine,
    resident_megabytes,
)
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.query import Ballot
from tacit.secure.evidence import parcel_of
from tacit.secure.graph import wiring
from tacit.secure.messages import Shared, Shares, pack, unpack_reply, unpack_state
from tacit.secure.protocol import TooFewClients
from tacit.secure.setup import parcel_digest, publics, signed_dealing
from tacit.space import Config
from tacit.states import Waiting, from_bytes, to_bytes
from tacit.task import FunctionClient
from tacit.workers import end_with_parent, worker_processes

SIZES = (50, 100, 250, 1000, 3000)
QUICK_SIZES = (50, 100)
LOSSY_SUMS = {100: 100, 250: 100, 1000: 100}
QUICK_LOSSY_SUMS = {50: 5, 100: 3}
"""How many sums with lost messages, by number of clients."""
QUIET, LOSSY, HOSTILE = "quiet", "2 % lost", "one hostile"
SETTINGS = (QUIET, LOSSY, HOSTILE)
LOSS, DROPOUT, TRIES = 0.02, 0.2, 2
CANDIDATES, VOTES = 100, 5
_GROWTH_FROM = 1000


@dataclass
class LossyChannel(LocalChannel):
    """Loses messages in both directions; who is silent is asked once more, as on Flower."""

    loss: float = 0.0
    fate: random.Random = field(default_factory=random.Random)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        replies: dict[int, bytes] = {}
        for _ in range(TRIES):
            missing = {c: request for c, request in requests.items() if c not in replies}
            arrived = {c: request for c, request in missing.items() if self._arrives()}
            answered = super().ask(stage, arrived)
            replies |= {c: reply for c, reply in answered.items() if self._arrives()}
        return replies

    def _arrives(self) -> bool:
        return self.fate.random() >= self.loss


@dataclass(frozen=True)
class JunkDealer(Endpoint):
    """A member whose boxes hold nothing, properly signed; it explains them when asked."""

    def handle(self, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        following, reply = super().handle(state, request)
        shares = unpack_reply(Shares, reply)
        if shares is None or self.identity is None:
            return following, reply
        waiting = from_bytes(following)
        shared = unpack_state(waiting.sum_state) if isinstance(waiting, Waiting) else None
        if not isinstance(shared, Shared):
            return following, reply
        size = len(next(iter(shares.boxes.values())))
        junk = replace(shares, boxes=dict.fromkeys(shares.boxes, bytes(size)))
        setup = shared.setup_digest
        public = publics(setup, self.number, junk)
        parcels = {other: parcel_digest(parcel_of(public, other, junk)) for other in junk.boxes}
        told = replace(waiting, sum_state=pack(replace(shared, parcels=parcels)))
        signature = self.identity.sign(signed_dealing(setup, self.number, junk))
        return to_bytes(told), pack(replace(junk, signature=signature))


class _Measured(Row):
    """A sum that was timed."""

    clients: Count
    setting: str
    answered: Count
    faults: list[str]
    degree: Some
    seconds: Positive
    processor_seconds: Number
    stages: dict[str, Number]
    peak_megabytes: Number
    upload_bytes_per_client: Number
    download_bytes_per_client: Number


def _kind_of_piece(piece: Piece) -> Any:
    """A timed sum, or the number of answers of one with lost messages."""
    return Count if ", sum " in str(piece) else _Measured


def run(
    sizes: tuple[int, ...],
    lossy_sums: Mapping[int, int],
    folder: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Measure every size and setting; a killed run goes on with what is missing."""
    recipe = {"bench": "secure-sum", "version": 3, "candidates": CANDIDATES, "votes": VOTES}
    journal = Journal(folder, recipe, _kind_of_piece)
    timed = [(clients, setting) for clients in sizes for setting in SETTINGS]
    lossy = {
        f"{clients} clients, sum {number}": (clients, number)
        for clients, sums in lossy_sums.items()
        for number in range(sums)
    }
    done, whole = 0, len(timed) + len(lossy)

    def count(_piece: str) -> None:
        nonlocal done
        done += 1
        progress(done, whole)

    progress(0, whole)
    for clients, setting in timed:  # one after the other, so that times are of a machine at rest
        piece = f"{clients} clients, {setting}"
        if piece not in journal.pieces:
            with worker_processes(1, end_with_parent) as pool:
                journal.add(piece, pool.submit(measure, clients, setting).result())
        count(piece)
    work = {piece: partial(opens, *which) for piece, which in lossy.items()}
    with worker_processes(prepare=end_with_parent) as pool:
        journal.complete(pool, work, count)
    points = [
        journal.pieces[f"{clients} clients, {setting}"] | {"clients": clients, "setting": setting}
        for clients, setting in timed
    ]
    return {
        "bench": "secure-sum",
        "candidates": CANDIDATES,
        "votes": VOTES,
        "loss": LOSS,
        "dropout": DROPOUT,
        "points": points,
        "lossy": [_opened(journal, clients, sums) for clients, sums in lossy_sums.items()],
        "growth": _growth([point for point in points if point["setting"] == QUIET]),
        "machine": machine(),
    }


def built(clients: int, setting: str, seed: int = 0) -> Federation:
    """A federation of this setting; fates of messages are drawn from the seed, nothing else is."""
    participation, budget = Participation(clients, DROPOUT), Budget(1.0, 1e-5)
    bound = TopVotes(CANDIDATES, VOTES)
    variance = SkellamMechanism.calibrated(bound, participation, budget).required_variance
    ledger = Ledger.in_memory("bench", budget)
    members = [FunctionClient(_loss)] * clients
    federation = local_federation(members, participation, ledger, "bench", variance)
    channel = federation.channel
    if not isinstance(channel, LocalChannel):
        raise TypeError("a local federation has a local channel")
    endpoints = list(channel.endpoints)
    if setting == HOSTILE:
        own = {one.name: getattr(endpoints[0], one.name) for one in fields(Endpoint)}
        endpoints[0] = JunkDealer(**own)
    loss = LOSS if setting == LOSSY else 0.0
    federation.channel = LossyChannel(endpoints, loss=loss, fate=random.Random(seed))  # noqa: S311
    return federation


def ballot() -> Ballot:
    """What is asked."""
    candidates: tuple[Config, ...] = tuple({"x": number} for number in range(CANDIDATES))
    return Ballot(candidates, VOTES)


def measure(clients: int, setting: str) -> dict[str, Any]:
    """One sum."""
    federation = built(clients, setting)
    start, used = time.perf_counter(), time.process_time()
    tally = federation.sum(ballot(), "vote")
    seconds, processor = time.perf_counter() - start, time.process_time() - used
    return {
        "clients": clients,
        "setting": setting,
        "answered": tally.answered,
        "faults": list(map(str, federation.faults)),
        "degree": wiring(federation.participation, clients).degree,
        "seconds": seconds,
        "processor_seconds": processor,
        "stages": {stage: cost.seconds for stage, cost in federation.costs.items()},
        "peak_megabytes": resident_megabytes(),
        "upload_bytes_per_client": sum(cost.up for cost in federation.costs.values()) / clients,
        "download_bytes_per_client": sum(cost.down for cost in federation.costs.values()) / clients,
    }


def opens(clients: int, number: int) -> int:
    """How many answers a sum with lost messages has; 0 if it does not open."""
    federation = built(clients, LOSSY, seed=number)
    try:
        return federation.sum(ballot(), "vote").answered
    except TooFewClients:
        return 0


def _opened(journal: Journal, clients: int, sums: int) -> dict[str, Any]:
    answered = [journal.pieces[f"{clients} clients, sum {number}"] for number in range(sums)]
    return {
        "clients": clients,
        "sums": sums,
        "opened": sum(map(bool, answered)),
        "fewest_answers": min(answered),
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
