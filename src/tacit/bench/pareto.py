"""DPareto's measurements: fronts found by a model against chance and grids.

Avent et al., "Automatic Discovery of Privacy-Utility Pareto Fronts" (2020), sections 3 and 4: two
examples whose true fronts can be computed; DP-SGD and DP-Adam on Adult over the domains of Table 1,
by hypervolume, against random search with the paper's distributions and as many points, and against
a grid of 243; networks on MNIST; and what proposing costs.

How we differ: hypervolumes of the two examples count what settings truly reach, by many
replications, since a noisy measurement flatters whoever measures most; 16 first points and 64 more
instead of 256, over some seeds, with intervals; MNIST on a subset, with fewer epochs and narrower
networks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Meta, UnsetType

from tacit import domains
from tacit.bench.claims import claim
from tacit.bench.pieces import Workplace
from tacit.data.sources import load
from tacit.journal import Count, Number, Piece, Positive, Row
from tacit.oracles import (
    DpTraining,
    Oracle,
    OutputPerturbation,
    SparseVector,
)
from tacit.pareto import (
    HVPOI,
    NEHVI,
    RANDOM,
    Front,
    Point,
    SavedPoint,
    evaluate,
    front,
    grid,
    hypervolume,
)
from tacit.space import Config, Int

SEEDS = 3
KNOWN = ("sparse-vector", "output-perturbation")
ADULT = ("logreg+sgd", "logreg+adam", "svm+sgd")
MNIST = ("mlp1+sgd", "mlp2+sgd")
PUBLISHED = {"logreg+sgd": 0.158, "logreg+adam": 0.439, "svm+sgd": 0.282}
"""Table 2: mean differences of hypervolume, after 256 points."""
MODELS = (NEHVI, HVPOI)
GRID_POINTS = 243


@dataclass(frozen=True)
class Setup:
    """What is run."""

    first: int = 16
    known_points: int = 84
    points: int = 64
    mnist_points: int = 24
    replications: int = 3
    examples: int = 0
    adult_epochs: int = 64
    mnist_examples: int = 6000
    mnist_epochs: int = 20
    grid_points: int = GRID_POINTS
    true_replications: int = 500
    proposals: int = 256
    privacy_calls: int = 10


QUICK = Setup(
    first=6,
    known_points=6,
    points=3,
    mnist_points=2,
    replications=2,
    examples=400,
    adult_epochs=8,
    mnist_examples=300,
    mnist_epochs=2,
    grid_points=8,
    true_replications=100,
    proposals=12,
    privacy_calls=2,
)


class _Searched(Row):
    """One search; the truth is known where it can be computed."""

    volumes: Annotated[list[Number], Meta(min_length=1)]
    front: list[SavedPoint]
    seconds: Number
    true_volume: Number | UnsetType = UNSET


class _SearchedKnown(_Searched, kw_only=True):
    true_volume: Number


class _True(Row):
    volume: Positive
    seconds: Number


class _Grid(Row):
    volume: Number
    points: Count
    seconds: Number


class _Proposing(Row):
    seconds: Number
    after: dict[str, Number]


class _PrivacyCall(Row):
    fixed: Number
    poisson: Number


class _Overhead(Row):
    nehvi: _Proposing
    hvpoi: _Proposing
    privacy_call: _PrivacyCall
    seconds: Number


def _kind_of_piece(piece: Piece) -> Any:
    problem, _, rest = str(piece).partition(" ")
    kinds = {"grid": _Grid, "true": _True, "": _Overhead}
    return kinds.get(rest, _SearchedKnown if problem in KNOWN else _Searched)


def run(setup: Setup, seeds: int, place: Workplace) -> dict[str, Any]:
    """Search what is missing, and judge the paper's claims; JSON."""
    data_dir = place.data_dir
    searches = [
        (problem, acquisition, seed)
        for seed in range(seeds)
        for problem in (*KNOWN, *ADULT, *MNIST)
        for acquisition in (*MODELS, RANDOM)
        if problem not in MNIST or acquisition != HVPOI
    ]
    work: dict[str, Callable[[], Any]] = {
        f"{problem} {acquisition} {seed}": partial(
            searched, setup, data_dir, problem, acquisition, seed
        )
        for problem, acquisition, seed in searches
    }
    work |= {f"{problem} grid": partial(on_grid, setup, data_dir, problem) for problem in ADULT}
    work |= {f"{problem} true": partial(true_front, setup, data_dir, problem) for problem in KNOWN}
    work["overhead"] = partial(overhead, setup)
    pieces, about = place.carried_out("pareto", setup, ("adult", "mnist"), work, _kind_of_piece)
    rows = [
        {"problem": problem, "acquisition": acquisition, "seed": seed}
        | pieces[f"{problem} {acquisition} {seed}"]
        for problem, acquisition, seed in searches
    ]
    grids = {problem: pieces[f"{problem} grid"] for problem in ADULT}
    truths = {problem: pieces[f"{problem} true"] for problem in KNOWN}
    return about | {
        "seeds": seeds,
        "rows": rows,
        "grids": grids,
        "truths": truths,
        "overhead": pieces["overhead"],
        "published": PUBLISHED,
        "claims": claims(rows, truths),
    }


@cache
def oracle(setup: Setup, data_dir: Path | None, problem: str) -> Oracle:
    """The family of algorithms of this name."""
    if problem == "sparse-vector":
        return SparseVector()
    if problem == "output-perturbation":
        family = OutputPerturbation.of(load("adult", data_dir).some(setup.examples))
        return replace(family, test=family.test.take(np.arange(min(4000, len(family.test)))))
    model, optimiser = problem.split("+")
    if problem in ADULT:
        data = load("adult", data_dir).some(setup.examples)
        domain = domains.ADULT.having(epochs=Int(1, setup.adult_epochs))
        hidden = None
    else:
        data = load("mnist", data_dir).some(setup.mnist_examples)
        largest = min(4000, setup.mnist_examples // 4)
        domain = domains.MNIST.having(
            epochs=Int(1, setup.mnist_epochs, log=True), lot=Int(16, largest, log=True)
        )
        hidden = (100,) if model == "mlp1" else (32, 16)
    return DpTraining.of(
        data,
        domain=domain,
        model=model,
        optimiser=optimiser,
        replications=setup.replications,
        hidden=hidden,
    )


def searched(
    setup: Setup, data_dir: Path | None, problem: str, acquisition: str, seed: int
) -> dict[str, Any]:
    """One search; the first points are the same for all acquisitions of a seed."""
    begin = time.process_time()
    family = oracle(setup, data_dir, problem)
    more = setup.known_points if problem in KNOWN else setup.points
    total = setup.first + (setup.mnist_points if problem in MNIST else more)
    search = Front(family, acquisition, setup.first, seed)
    volumes = []
    while len(search.points) < total:
        for config in search.propose(1):
            search.tell(config, 10_000 * seed + len(search.points))
        volumes.append(hypervolume(search.points))
    found = {
        "volumes": volumes,
        "front": [point.to_json() for point in front(search.points)],
        "seconds": time.process_time() - begin,
    }
    if problem in KNOWN:
        found["true_volume"] = hypervolume([_truly(setup, family, p.config) for p in search.points])
    return found


def _truly(setup: Setup, family: Any, config: Config) -> Point:
    """A point with next to no noise in its error."""
    return evaluate(replace(family, replications=setup.true_replications), config, 77)


def true_front(setup: Setup, data_dir: Path | None, problem: str) -> dict[str, Any]:
    """The front on a fine grid."""
    begin = time.process_time()
    family: Any = oracle(setup, data_dir, problem)
    levels = 3000 if setup.true_replications >= 500 else 60
    points = [_truly(setup, family, config) for config in grid(family, levels)]
    return {"volume": hypervolume(points), "seconds": time.process_time() - begin}


def on_grid(setup: Setup, data_dir: Path | None, problem: str) -> dict[str, Any]:
    """A grid as wide as the domain."""
    begin = time.process_time()
    family: Any = oracle(setup, data_dir, problem)
    configs = grid(family, setup.grid_points)
    points = [
        Point(dict(config), family.epsilon(config), tuple(map(float, errors)))
        for config, errors in zip(configs, family.errors_of(configs, 0), strict=True)
    ]
    return {
        "volume": hypervolume(points),
        "points": len(points),
        "seconds": time.process_time() - begin,
    }


@dataclass(frozen=True)
class _Cheap:
    """Answers at once, in the space of Adult: what is left is the cost of proposing."""

    name = "cheap"
    delta = 1e-6
    protects = "per record, replace-one"
    space = domains.ADULT.space

    def epsilon(self, config: Config) -> float:
        return float(config["epochs"]) * float(config["lot"]) / float(config["noise_variance"]) / 99

    def errors(self, config: Config, seed: int) -> Any:
        best = 0.15 + 0.05 * abs(math.log10(float(config["learning_rate"])) + 2)
        best += 0.1 / float(config["epochs"]) + 0.02 * float(config["clip"])
        return best + 0.003 * np.random.default_rng(seed).normal(size=5)

    def draw(self, rng: np.random.Generator) -> Config:
        return self.space.decode(rng.random(5))


def overhead(setup: Setup) -> dict[str, Any]:
    """Seconds on the wall of proposing, one point after the other, and of one privacy call."""
    found: dict[str, Any] = {}
    all_of_it = time.process_time()
    for acquisition in MODELS:
        search, seconds, marks = Front(_Cheap(), acquisition, setup.first, 0), 0.0, {}
        while len(search.points) < setup.first + setup.proposals:
            begin = time.perf_counter()
            proposed = search.propose(1)
            seconds += time.perf_counter() - begin
            for config in proposed:
                search.tell(config, len(search.points))
            asked = len(search.points) - setup.first
            if asked in (32, 64, 128, setup.proposals):
                marks[str(asked)] = seconds
        found[acquisition] = {"seconds": seconds, "after": marks}
    found["privacy_call"] = _privacy_call(setup.privacy_calls)
    return found | {"seconds": time.process_time() - all_of_it}


def _privacy_call(calls: int) -> dict[str, float]:
    """The slowest of some calls of each kind, none of them known before."""
    from tacit.oracles import fixed_epsilon, poisson_epsilon

    fixed_epsilon(1000, 10, 1.0, 10, 1e-6)  # what is imported once is not counted
    poisson_epsilon(0.01, 1.0, 10, 1e-6)
    slowest = {"fixed": 0.0, "poisson": 0.0}
    for number in range(calls):
        for noise, steps in ((1.0, 5000), (4.0, 60)):  # a small epsilon takes longest
            begin = time.perf_counter()
            fixed_epsilon(32_561, 64 + number, noise, steps, 1e-6)
            slowest["fixed"] = max(slowest["fixed"], time.perf_counter() - begin)
        begin = time.perf_counter()
        poisson_epsilon(0.002 + 1e-4 * number, 1.0, 5000, 1e-6)
        slowest["poisson"] = max(slowest["poisson"], time.perf_counter() - begin)
    return slowest


# Judgement


def claims(
    rows: Sequence[Mapping[str, Any]], truths: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Near the true fronts, and above chance."""
    found = []
    for problem in KNOWN:
        for model in MODELS:
            found.append(_near(rows, problem, model, truths[problem]["volume"]))
            found.append(_above(rows, problem, model, "true_volume"))
    for problem in (*ADULT, *MNIST):
        found += [_above(rows, problem, model, "last") for model in MODELS]
    return [one for one in found if one]


def _near(
    rows: Sequence[Mapping[str, Any]], problem: str, model: str, truth: float
) -> dict[str, Any]:
    own = [r for r in rows if (r["problem"], r["acquisition"]) == (problem, model)]
    return claim(
        f"{problem}: {model} comes within 2 % of the true hypervolume",
        own,
        lambda row: row["true_volume"] / truth - 0.98,
        "share of the true hypervolume beyond 98 %",
    )


def _above(
    rows: Sequence[Mapping[str, Any]], problem: str, model: str, measure: str
) -> dict[str, Any]:
    def volume(row: Mapping[str, Any]) -> float:
        return float(row["volumes"][-1] if measure == "last" else row[measure])

    chance = {
        r["seed"]: volume(r) for r in rows if (r["problem"], r["acquisition"]) == (problem, RANDOM)
    }
    own = [r for r in rows if (r["problem"], r["acquisition"]) == (problem, model)]
    return claim(
        f"{problem}: {model} is above random search with as many points",
        own,
        lambda row: volume(row) - chance[row["seed"]],
        "hypervolume",
    )
