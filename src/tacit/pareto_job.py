"""A planned search for a front: evaluate on all cores, journal, and write what was found.

The folder receives ``plan.toml``, ``front.json`` and ``front.html``, and a journal, from which a
killed search goes on with every point that was finished.

*Who may see a front.* Its errors are measured on data, and nothing is added to them: a front is for
those who may see the data, and page and file say so. A **private** front has noise on every error
and is charged for, before anything is measured: a point is its trainings, for a training record,
and one Gaussian release of a mean, for a record of the test data (:class:`Scored`). Noise and lots
then come from the operating system, not from the plan's seed, which everybody may know. Settings
are drawn beforehand, since composition is only known for noise that does not depend on results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from tacit.cores import cores
from tacit.dp_training import POISSON
from tacit.files import json_text, write_whole
from tacit.gaussian import gaussian
from tacit.journal import Journal, machine
from tacit.oracles import DpTraining, Oracle
from tacit.page import versions
from tacit.pareto import GRID, RANDOM, Front, Point, Suggestion, evaluate, front, grid, hypervolume
from tacit.pareto import suggest as suggestion
from tacit.pareto_page import render
from tacit.pareto_plan import ParetoPlan, load_pareto_plan, oracle_of
from tacit.plan import PLAN
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import Composed, Event, Scored
from tacit.privacy.ledger import Ledger
from tacit.secure.crypto import digest
from tacit.space import Config
from tacit.table_maker import one_core
from tacit.wording import rounded_up

Progress = Callable[[int, int, float], None]
"""Called with points done, points in all and the hypervolume so far."""
FOR_THE_TRUSTED = (
    "for those who may see the data: errors were measured on it, and nothing was added to them"
)
_FRONT = "front.json"


def run(plan: ParetoPlan, out: Path, progress: Progress) -> dict[str, Any]:
    """Search, or go on; returns what ``front.json`` holds."""
    oracle = oracle_of(plan)
    terms = plan.front
    settings = _fixed_settings(plan, oracle)
    total = len(settings) if settings else terms.first + terms.points
    event = private_event(plan, oracle, settings) if terms.private else None
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / PLAN, plan.to_toml())
    price = _charged(plan, event, out) if event else None
    journal = Journal(out, {"front": plan.to_json()})
    search = Front(oracle, terms.acquisition, terms.first, terms.seed, third_of(plan))
    search.points = [Point.from_json(journal.pieces[n]) for n in range(len(journal.pieces))]
    progress(len(search.points), total, hypervolume(search.points))
    with _side_by_side(terms.batch) as evaluated:
        while len(search.points) < total:
            count = min(terms.batch, total - len(search.points))
            begin = len(search.points)
            asked = settings[begin : begin + count] if settings else search.propose(count)
            seeds = [terms.seed * 1_000_003 + begin + place for place in range(len(asked))]
            for found in evaluated(partial(_evaluated, plan), asked, seeds):
                point = _noisy(found, terms.score_noise) if terms.private else found
                journal.add(len(search.points), point.to_json())
                search.points.append(point)
                progress(len(search.points), total, hypervolume(search.points))
    return _written(plan, oracle, search.points, price, out)


@contextmanager
def _side_by_side(batch: int) -> Iterator[Callable[..., Iterable[Point]]]:
    """A ``map`` on all cores, or a plain one where there is nothing to run side by side."""
    if batch == 1:
        yield map
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=context, initializer=one_core) as pool:
        yield pool.map


def suggest(folder: Path, *, epsilon: float | None, error: float | None) -> Suggestion:
    """Settings for a wish, from the search in a folder."""
    if not (folder / _FRONT).exists():
        raise ValueError(
            f"{folder} holds no front ({_FRONT} is missing); allowed is the folder of a search "
            "that was finished with `tacit pareto`"
        )
    plan = load_pareto_plan(folder / PLAN, ())
    journal = Journal(folder, {"front": plan.to_json()})
    search = Front(oracle_of(plan), first=plan.front.first, seed=plan.front.seed)
    search.points = [Point.from_json(journal.pieces[n]) for n in range(len(journal.pieces))]
    return suggestion(search, epsilon=epsilon, error=error)


def third_of(plan: ParetoPlan) -> Callable[[Point], float] | None:
    """A third objective to be small: time, as measured or in epochs, or the size of the model."""
    third = plan.front.third
    if third == "none":
        return None
    if third == "seconds":
        return lambda point: point.seconds
    if third == "epochs":
        return lambda point: float(point.config["epochs"])
    oracle = _known_oracle(plan.to_toml())
    if not isinstance(oracle, DpTraining):
        raise TypeError("a plan admits parameters for training only")
    return lambda point: oracle.parameters(point.config)


def _fixed_settings(plan: ParetoPlan, oracle: Oracle) -> list[Config]:
    """All settings, where they do not depend on results."""
    terms = plan.front
    if terms.acquisition == GRID:
        return grid(oracle, terms.first + terms.points)
    if terms.private and terms.acquisition != RANDOM:
        raise ValueError(
            f"front.acquisition is {terms.acquisition!r}; allowed for a private front is 'random' "
            "or 'grid': settings that depend on results are not covered by its price"
        )
    if terms.acquisition == RANDOM:
        rng = np.random.default_rng(terms.seed)
        return [oracle.draw(rng) for _ in range(terms.first + terms.points)]
    return []


def private_event(plan: ParetoPlan, oracle: Oracle, settings: Sequence[Config]) -> Event:
    """All that a private front releases."""
    if not isinstance(oracle, DpTraining) or oracle.sampling != POISSON:
        raise ValueError(
            f"oracle.kind is {plan.oracle.kind!r} and oracle.sampling {plan.oracle.sampling!r}; "
            "allowed for a private front are 'dp-training' and 'poisson'"
        )
    deviation = plan.front.score_noise * len(oracle.test)
    return Composed(
        tuple(
            Scored(
                int(config["lot"]) / len(oracle.examples),
                math.sqrt(float(config["noise_variance"])),
                oracle.steps(config) * oracle.replications,
                deviation,
            )
            for config in settings
        )
    )


def _charged(plan: ParetoPlan, event: Event, out: Path) -> dict[str, Any]:
    """Charge a private front once, to a named ledger or to the folder's own."""
    terms, delta = plan.front, plan.oracle.delta
    budget = Budget(terms.epsilon, delta)
    path = out / "ledger.sqlite"
    if terms.ledger:
        ledger = Ledger.of(terms.ledger, budget)
    else:
        ledger = Ledger(path) if path.exists() else Ledger.create(path, "this-front", budget)
    run_name = f"front-{digest(b'front', plan.to_toml().encode()).hex()[:12]}"
    if not ledger.knows(run_name):
        ledger.charge(event, "front", run_name)
    return {"epsilon": spent(event, delta).epsilon, "delta": delta}


@lru_cache(maxsize=1)
def _known_oracle(text: str) -> Oracle:
    import tomllib

    from tacit.pareto_plan import read_pareto_plan

    return oracle_of(read_pareto_plan(tomllib.loads(text)))


def _evaluated(plan: ParetoPlan, config: Config, seed: int) -> Point:
    return evaluate(_known_oracle(plan.to_toml()), config, seed, third_of(plan))


def _noisy(point: Point, deviation: float) -> Point:
    """One mean with noise; single replications would tell more."""
    noisy = point.error + deviation * float(gaussian((1,))[0])
    return Point(point.config, point.epsilon, (float(np.clip(noisy, 0, 1)),), 0.0, point.extra)


def _written(
    plan: ParetoPlan,
    oracle: Oracle,
    points: Sequence[Point],
    price: dict[str, Any] | None,
    out: Path,
) -> dict[str, Any]:
    best = front(points)
    who = FOR_THE_TRUSTED
    if price is not None:
        who = (
            f"for anybody, at a price of epsilon {rounded_up(price['epsilon'])} at delta "
            f"{price['delta']:g} for every record (add-or-remove-one)"
        )
    result = {
        "name": oracle.name,
        "delta": oracle.delta,
        "protects": oracle.protects,
        "third": None if plan.front.third == "none" else plan.front.third,
        "hypervolume": hypervolume(points),
        "who_may_see_it": who,
        "price": price,
        "front": [point.to_json() for point in best],
        "points": [point.to_json() for point in points],
        "plan": plan.to_json(),
        "machine": machine(),
        "versions": versions(),
    }
    write_whole(out / _FRONT, json_text(result) + "\n")
    write_whole(out / "front.html", render(result))
    return result
