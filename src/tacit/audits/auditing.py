"""Carrying audits out: cuts first, then runs in pieces over the cores, then what they show.

What a first run left and the cuts that follow from it are written to the journal before the first
audited run, so nothing about the tests can depend on what they will find. A killed audit goes on
with the pieces that are missing; one that was finished begins anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

import tacit
from tacit.audits.records import RECORD_AUDITS
from tacit.audits.sums import SUM_AUDITS
from tacit.audits.worlds import DELTA, HOLES, LOSS, WHOLE, Audit, Material, Numbers, Progress, Sizes
from tacit.cores import cores
from tacit.journal import (
    Count,
    Journal,
    Number,
    Piece,
    Row,
    array,
    check_piece,
    machine,
    unusable,
)
from tacit.privacy.accounting import Guarantee
from tacit.privacy.audit import DELTAS, Hits, best_cuts, bounds, error_of_each
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.secure.crypto import digest
from tacit.workers import worker_processes

ERROR = 1e-6
"""The chance that anything which one command prints is wrong, if the claims are true."""
QUICK, FULL = "quick", "full"
AUDITS: Mapping[str, Audit] = {**SUM_AUDITS, **RECORD_AUDITS}
_LEAST_PILOT, _PILOT = 50_000, 1_000_000
"""Claimed losses from which cuts are computed; fewer runs need fewer."""
_WHOLE_PIECE = 10
_BINS = 64
_PLAN = ": plan"


_UNCHARGED = "{}: a ledger was charged nothing for what was released: the claim is false"


@dataclass(frozen=True)
class Point:
    """One point of the curve: what is claimed at a delta, and what was audited."""

    delta: float
    claimed: float
    audited: float


@dataclass(frozen=True)
class Finding:
    """What the audit of one method showed."""

    method: str
    worlds: str
    unit: str
    relation: str
    curve: tuple[Point, ...]
    runs: Mapping[str, int]
    """How many runs a world has, by what they went through."""
    noise_distance: float
    """How far noise in the whole federation lies from the claimed, as Kolmogorov and Smirnov do."""
    largest_distance: float
    """What chance explains."""
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Why the claim is false, in sentences; none if nothing speaks against it."""
        found = [] if self.tightness < math.inf else [_UNCHARGED.format(self.method)]
        found += [
            f"{self.method}: epsilon is at least {point.audited:.3f} at delta {point.delta:g}, and "
            f"{point.claimed:.3f} is claimed: the claim is false"
            for point in self.curve
            if point.audited > point.claimed
        ]
        if self.noise_distance > self.largest_distance:
            found.append(
                f"{self.method}: the noise of opened sums lies {self.noise_distance:.3f} from what "
                f"is claimed, and chance explains {self.largest_distance:.3f}: the federation does "
                "not add the noise that is charged"
            )
        return found

    @property
    def tightness(self) -> float:
        """The audited epsilon over the claimed one, at the delta that methods are planned with.

        Infinite where nothing is claimed: every method that is audited releases something.
        """
        first = self.curve[0]
        return first.audited / first.claimed if first.claimed else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain data; a tightness that is infinite is None."""
        tightness = self.tightness if self.tightness < math.inf else None
        return {**asdict(self), "tightness": tightness, "failures": self.failures}


def chosen(method: str | None) -> list[str]:
    """The methods to audit: one, or all."""
    if method is None:
        return list(AUDITS)
    if method not in AUDITS:
        raise ValueError(f"the method is {method!r}; allowed are {', '.join(AUDITS)}")
    return [method]


def run(
    methods: Sequence[str],
    epsilon: float,
    size: str | int | Sizes,
    folder: Path,
    progress: Progress,
) -> list[Finding]:
    """Audit some methods at a budget.

    Args:
        methods: names in :data:`AUDITS`.
        epsilon: the budget of each.
        size: one of the names of sizes; or so many runs of every method, with as many through the
            whole federation as a quick audit has; or both numbers.
        folder: for the journal.
        progress: called with pieces done and pieces in all.
    """
    sizes = {name: _sized(name, size) for name in methods}
    each = error_of_each(ERROR / 2, (len(DELTAS) + 1) * len(methods))
    recipe = {
        "methods": list(methods),
        "epsilon": epsilon,
        "sizes": {name: asdict(one) for name, one in sizes.items()},
        "error": ERROR,
        "version": tacit.__version__,
        "code": code(),
    }
    journal = Journal(folder, {"audit": recipe}, _kind_of_piece)
    plans = {name: _planned(journal, name, epsilon, sizes[name].runs, each) for name in methods}
    work = {
        key: partial(_piece, name, plans[name], epsilon, count, kind)
        for name in methods
        for key, kind, count in _pieces(name, sizes[name])
    }
    finished = [0]

    def done(_key: str) -> None:
        finished[0] += 1
        progress(finished[0], len(work))

    progress(0, len(work))
    with _pool() as pool:
        journal.complete(pool, work, done)
    found = {key: journal.pieces[key] for key in work}
    for name in methods:
        for key, _, count in _pieces(name, sizes[name]):
            _check_hits(journal, key, plans[name], count)
    findings = [
        _finding(name, plans[name], sizes[name], found, each, len(methods)) for name in methods
    ]
    journal.path.unlink()  # whoever audits again, perhaps other code, begins anew
    return findings


def _sized(name: str, size: str | int | Sizes) -> Sizes:
    if isinstance(size, Sizes):
        return size
    known = AUDITS[name].sizes
    return known[size] if isinstance(size, str) else Sizes(size, known[QUICK].whole)


def record(findings: Sequence[Finding], epsilon: float, size: str) -> dict[str, Any]:
    """All findings of one command as one document; the confidence is that of all together."""
    return {
        "epsilon": epsilon,
        "delta": DELTA,
        "size": size,
        "confidence": 1 - ERROR,
        "code": code(),
        "methods": [finding.to_json() for finding in findings],
        "machine": machine(),
    }


@cache
def code() -> str:
    """A digest of Tacit's Python files: which code ran, whatever its version is called."""
    folder = Path(tacit.__file__).parent
    files = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix())
    parts = ((path.relative_to(folder).as_posix().encode(), path.read_bytes()) for path in files)
    return digest(b"code", *(part for pair in parts for part in pair)).hex()


def _planned(
    journal: Journal, name: str, epsilon: float, runs: int, error: float
) -> dict[str, Any]:
    """What the first run left, and the cuts, from the journal or new."""
    key = f"{name}{_PLAN}"
    if key not in journal.pieces:
        audit = AUDITS[name]
        material = audit.material(epsilon)
        count = min(max(runs, _LEAST_PILOT), _PILOT)
        losses = audit.claimed_losses(material, epsilon, count)
        cuts = {LOSS: best_cuts(losses, runs, error)}
        if audit.holes:
            cuts[HOLES] = [0.5]
        journal.add(key, {"material": material.to_json(), "cuts": cuts})
    found: dict[str, Any] = journal.pieces[key]
    try:
        Material.from_json(found["material"])
    except ValueError as error:
        raise unusable(journal.path, key, str(error)) from None
    ways = {LOSS, HOLES} if AUDITS[name].holes else {LOSS}
    if found["cuts"].keys() != ways:
        raise unusable(journal.path, key, f"it has cuts for {', '.join(found['cuts'])}")
    return found


def _check_hits(journal: Journal, key: str, plan: Mapping[str, Any], runs: int) -> None:
    """Refuse counts that are not of the plan's cuts, or of more runs than there were."""
    hits: Mapping[str, Any] = journal.pieces[key]["hits"]
    cuts = {
        way: array(Annotated[int, Meta(ge=0, le=runs)], 2, len(plan["cuts"][way]), 2)
        for way in plan["cuts"]
    }
    if hits.keys() != cuts.keys():
        raise unusable(journal.path, key, f"it counts {', '.join(hits)}")
    for way, kind in cuts.items():
        check_piece(journal.path, key, hits[way], kind)


class _Material(Row):
    charged: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    questions: list[str]


class _Plan(Row):
    """The first piece of a method."""

    material: _Material
    cuts: dict[str, Annotated[list[Number], Meta(min_length=1)]]


class _Counted(Row):
    """What :func:`_piece` tells."""

    hits: dict[str, list[list[list[Count]]]]
    ranks: array(Count, _BINS)  # type: ignore[valid-type]
    seconds: Number


def _kind_of_piece(piece: Piece) -> Any:
    return _Plan if str(piece).endswith(_PLAN) else _Counted


def _pieces(name: str, sizes: Sizes) -> Iterator[tuple[str, str, int]]:
    """Key, path and number of runs of every piece."""
    audit = AUDITS[name]
    for path, total, block in (
        (audit.path, sizes.runs, audit.block),
        (WHOLE, sizes.whole, _WHOLE_PIECE),
    ):
        for begin in range(0, total, block):
            yield f"{name}: {path}, from {begin}", path, min(block, total - begin)


def _piece(
    name: str, plan: dict[str, Any], epsilon: float, count: int, path: str
) -> dict[str, Any]:
    """Some runs of both worlds, counted."""
    begin = time.process_time()
    audit, material = AUDITS[name], Material.from_json(plan["material"])
    ranks: list[FloatArray] = []
    worlds: list[Numbers] = []
    for world in ("A", "B"):
        if path == WHOLE:
            numbers, own = SUM_AUDITS[name].whole_runs(epsilon, world, count)
            ranks.append(own)
        else:
            numbers = audit.runs(material, epsilon, world, count)
        worlds.append(numbers)
    hits = {
        way: Hits.of(cuts, worlds[0][way], worlds[1][way]).counts.tolist()
        for way, cuts in plan["cuts"].items()
    }
    return {
        "hits": hits,
        "ranks": _histogram(ranks).tolist(),
        "seconds": time.process_time() - begin,
    }


def _histogram(ranks: Sequence[FloatArray]) -> IntArray:
    if not ranks:
        return np.zeros(_BINS, dtype=np.int64)
    return np.histogram(np.concatenate(ranks), _BINS, (0.0, 1.0))[0].astype(np.int64)


def _pool() -> AbstractContextManager[Executor]:
    """A process a core; with one core, this process."""
    if cores() == 1:
        return ThreadPoolExecutor(1)
    return worker_processes()


def _finding(
    name: str,
    plan: dict[str, Any],
    sizes: Sizes,
    found: Mapping[str, Any],
    error: float,
    methods: int,
) -> Finding:
    audit, material = AUDITS[name], Material.from_json(plan["material"])
    own = [piece for key, piece in found.items() if key.startswith(f"{name}: ")]
    hits = {
        way: Hits(np.sum([np.array(piece["hits"][way]) for piece in own], axis=0))
        for way in plan["cuts"]
    }
    runs = sizes.runs + sizes.whole
    by_way = [bounds(counted, runs, DELTAS, error) for counted in hits.values()]
    claims: list[Guarantee] = [material.claim(delta) for delta in DELTAS]
    distance, largest = _distance([piece["ranks"] for piece in own], ERROR / 2 / methods)
    return Finding(
        name,
        audit.worlds,
        audit.unit,
        claims[0].relation,
        tuple(
            Point(delta, claim.epsilon, max(audited))
            for delta, claim, *audited in zip(DELTAS, claims, *by_way, strict=True)
        ),
        {path: count for path, count in ((audit.path, sizes.runs), (WHOLE, sizes.whole)) if count},
        distance,
        largest,
        float(sum(piece["seconds"] for piece in own)),
    )


def _distance(histograms: Sequence[Sequence[int]], error: float) -> tuple[float, float]:
    """How far ranks lie from uniform, and how far chance brings them with this probability.

    Dvoretzky, Kiefer and Wolfowitz (1956), with Massart's constant (1990). Ranks and their distance
    from the middle are looked at, each with half of the error: noise of another size moves the
    second twice as far.
    """
    counts = np.sum(np.array(histograms), axis=0)
    total = int(counts.sum())
    if not total:
        return 0.0, 1.0
    half = _BINS // 2
    distance = max(
        float(np.abs(np.cumsum(part) / total - np.arange(1, len(part) + 1) / len(part)).max())
        for part in (counts, counts[half:] + counts[:half][::-1])
    )
    return distance, math.sqrt(math.log(4 / error) / (2 * total))
