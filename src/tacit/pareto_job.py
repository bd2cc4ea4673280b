"""A planned search for a front: evaluate on all cores, journal, and write what was found.

The folder receives ``plan.toml``, ``front.json`` and ``front.html``, and a journal, from which a
killed search goes on with every point that was finished.

*Who may see a front.* Its errors are measured on data, and nothing is added to them: a front is for
those who may see the data, and page and file say so. A **private** front has noise on every error
and is charged for, before anything is measured: a point is its trainings, for a training record,
and one Gaussian release of a mean, for a record of the test data
(:class:`tacit.privacy.events.Scored`). Noise and lots then come from the operating system, not from
the plan's seed, which everybody may know. Settings are drawn beforehand, since composition is only
known for noise that does not depend on results.

*Every measurement is paid for* (:class:`_Payment`). The only free points are those that the
folder's journal returns: they were released before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import numpy as np

from tacit.dp_training import POISSON
from tacit.files import json_text, write_whole
from tacit.journal import Journal, Piece, journal_path, machine, read_journal, unusable
from tacit.one_writer import writing
from tacit.oracles import DpTraining, Oracle, OutputPerturbation
from tacit.page import versions
from tacit.pareto import (
    GRID,
    RANDOM,
    Front,
    Point,
    SavedPoint,
    Suggestion,
    evaluate,
    front,
    grid,
    hypervolume,
)
from tacit.pareto import suggest as suggestion
from tacit.pareto_page import render
from tacit.pareto_plan import ParetoPlan, load_pareto_plan, oracle_of
from tacit.plan import PLAN
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import Composed, compose
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.rounded_normal import rounded_normal
from tacit.secure.crypto import digest
from tacit.space import Config
from tacit.wording import rounded_up
from tacit.workers import worker_processes

Progress = Callable[[int, int, float], None]
"""Called with points done, points in all and the hypervolume so far."""
FOR_THE_TRUSTED = (
    "for those who may see the data: errors were measured on it, and nothing was added to them"
)
_FRONT = "front.json"
_RUN = "run"


def run(plan: ParetoPlan, out: Path, progress: Progress) -> dict[str, Any]:
    """Search, or go on; returns what ``front.json`` holds."""
    with writing(out):
        return _searched(plan, out, progress)


def _searched(plan: ParetoPlan, out: Path, progress: Progress) -> dict[str, Any]:
    """The same in a folder that nobody else writes in."""
    oracle = oracle_of(plan)
    terms = plan.front
    settings = _fixed_settings(plan, oracle)
    total = len(settings) if settings else terms.first + terms.points
    event = private_event(plan, oracle, settings) if terms.private else None
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / PLAN, plan.to_toml())
    journal = Journal(out, {"front": plan.to_json()}, _kind_of_piece)
    payment = _Payment.made(plan, event, journal) if event else None
    search = Front(oracle, terms.acquisition, terms.first, terms.seed, third_of(plan))
    search.points = _points(journal.pieces, oracle, journal.path)
    progress(len(search.points), total, hypervolume(search.points))
    with _side_by_side(terms.batch) as evaluated:
        while len(search.points) < total:
            count = min(terms.batch, total - len(search.points))
            begin = len(search.points)
            asked = settings[begin : begin + count] if settings else search.propose(count)
            seeds = [terms.seed * 1_000_003 + begin + place for place in range(len(asked))]
            if payment:
                payment.cover(range(begin, begin + count))
            for found in evaluated(partial(_evaluated, plan), asked, seeds):
                point = _noisy(found, oracle, terms.score_noise) if terms.private else found
                journal.add(len(search.points), point.to_json())
                search.points.append(point)
                progress(len(search.points), total, hypervolume(search.points))
    return _written(plan, oracle, search.points, payment.price() if payment else None, out)


def _kind_of_piece(piece: Piece) -> Any:
    return SavedPoint if isinstance(piece, int) else str


def _points(pieces: Mapping[Piece, Any], oracle: Oracle, path: Path) -> list[Point]:
    """The points that were finished, in order."""
    done = sum(isinstance(piece, int) for piece in pieces)
    missing = [number for number in range(done) if number not in pieces]
    if missing:
        raise ValueError(
            f"the journal of the front has {done} points and lacks point {missing[0]}; take the "
            "file from a copy, or begin anew in another folder"
        )
    points = [Point.from_json(pieces[number]) for number in range(done)]
    for number, point in enumerate(points):
        try:
            oracle.space.encode(point.config)
        except ValueError as error:
            raise unusable(path, number, str(error)) from None
    return points


@contextmanager
def _side_by_side(batch: int) -> Iterator[Callable[..., Iterable[Point]]]:
    """A ``map`` on all cores, or a plain one where there is nothing to run side by side."""
    if batch == 1:
        yield map
        return
    with worker_processes() as pool:
        yield pool.map


def suggest(folder: Path, *, epsilon: float | None, error: float | None) -> Suggestion:
    """Settings for a wish, from the search in a folder."""
    if not (folder / _FRONT).exists():
        raise ValueError(
            f"{folder} holds no front ({_FRONT} is missing); allowed is the folder of a search "
            "that was finished with `tacit pareto`"
        )
    plan = load_pareto_plan(folder / PLAN, ())
    path = journal_path(folder, {"front": plan.to_json()})
    if not path.exists():
        raise ValueError(
            f"{folder} has no journal of the plan in it ({path.name} is missing), so its points "
            "are not known; run `tacit pareto` again in another folder"
        )
    search = Front(oracle_of(plan), first=plan.front.first, seed=plan.front.seed)
    pieces, _ = read_journal(path, _kind_of_piece)
    search.points = _points(pieces, search.oracle, path)
    if len(search.points) < search.first:
        raise ValueError(
            f"{path} has {len(search.points)} points, too few for a model: {search.first} came "
            "first; take the file from a copy, or run `tacit pareto` again in another folder"
        )
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


def private_event(plan: ParetoPlan, oracle: Oracle, settings: Sequence[Config]) -> Composed:
    """All that a private front releases, point by point."""
    if not isinstance(oracle, DpTraining | OutputPerturbation) or (
        isinstance(oracle, DpTraining) and oracle.sampling != POISSON
    ):
        raise ValueError(
            f"oracle.kind is {plan.oracle.kind!r} and oracle.sampling {plan.oracle.sampling!r}; "
            "allowed for a private front are 'output-perturbation', and 'dp-training' with "
            "'poisson'"
        )
    if oracle.test.groups is not None:
        raise ValueError(
            "the test data say which rows belong together; allowed for a private front are test "
            "data in which every row stands alone"
        )
    deviation = plan.front.score_noise * len(oracle.test)
    return Composed(tuple(oracle.released(config, deviation) for config in settings))


@dataclass(frozen=True)
class _Payment:
    """Pays for every measurement of a private front, in whatever folder and however often.

    *Proof that no point is measured unpaid.* A point is measured only after :meth:`cover`. That
    takes the point's number from the line that charged this front (:meth:`Ledger.take`, which
    succeeds once for a line and a number), or charges the point anew, for this process alone.
    So each measurement has a paid release of its own. The line is one with the journal's random
    token in the name of its run and with this very event: the same plan on data of another size
    is charged whole. The token is in the journal before the charge, so a kill between the two
    does not waste it; where the journal is lost, or the folder is another, there is no token yet,
    and the front is charged whole.

    A kill costs the points that were being measured. A copy of a folder with its journal pays for
    every point that another copy measured first. *What remains*: a ledger that lies in the folder
    itself (``front.ledger`` empty) is copied with it, and a copy does not know of the other's
    charges; only a named ledger counts over folders. Whoever may write the ledger can forge it.
    """

    ledger: Ledger
    line: Charge
    event: Composed
    delta: float

    @classmethod
    def made(cls, plan: ParetoPlan, event: Composed, journal: Journal) -> _Payment:
        """Charge the whole front before anything is measured, or find the charge it goes on with.

        Raises:
            BudgetExceeded: before anything is written.
        """
        terms, delta = plan.front, plan.oracle.delta
        budget, path = Budget(terms.epsilon, delta), journal.path.with_name("ledger.sqlite")
        if terms.ledger:
            ledger = Ledger.of(terms.ledger, budget)
        else:
            ledger = Ledger(path) if path.exists() else Ledger.create(path, "this-front", budget)
        if _RUN not in journal.pieces:
            ledger.check(event, "front")
            journal.add(_RUN, token_hex(16))
        name = digest(b"front", plan.to_toml().encode()).hex()[:12]
        run_name = f"front-{name}-{journal.pieces[_RUN]}"
        own = (charge for charge in ledger.charges() if charge.run == run_name)
        paid = next((charge for charge in own if charge.event == event), None)
        line = paid or ledger.charge(event, "front", run_name)
        return cls(ledger, line, event, delta)

    def cover(self, numbers: Sequence[int]) -> None:
        """Take these points from the front's line; charge those anew that were taken before.

        Raises:
            BudgetExceeded: before any of them is measured.
        """
        again = [n for n in numbers if not self.ledger.take(self.line, n)]
        if again:
            lost = Composed(tuple(self.event.events[number] for number in again))
            self.ledger.charge(lost, "front: points measured again", self.line.run)

    def price(self) -> dict[str, Any]:
        """What this front has cost, with every point that was measured again."""
        own = (charge.event for charge in self.ledger.counting() if charge.run == self.line.run)
        return {"epsilon": spent(compose(own), self.delta).epsilon, "delta": self.delta}


@lru_cache(maxsize=1)
def _known_oracle(text: str) -> Oracle:
    import tomllib

    from tacit.pareto_plan import read_pareto_plan

    return oracle_of(read_pareto_plan(tomllib.loads(text)))


def _evaluated(plan: ParetoPlan, config: Config, seed: int) -> Point:
    return evaluate(_known_oracle(plan.to_toml()), config, seed, third_of(plan))


def _noisy(point: Point, oracle: Oracle, deviation: float) -> Point:
    """One mean with noise; single replications would tell more.

    *Proof.* The wrong answers of all replications together are an integer, which moves by at most
    the number of replications when one test record comes or goes or is replaced. Rounded normal
    noise is ``deviation * len(test)`` times that (what :func:`private_event` charges), and dividing
    and clipping are post-processing.
    """
    rows = len(cast(DpTraining | OutputPerturbation, oracle).test)
    replications = len(point.errors)
    wrong = int(np.rint(np.asarray(point.errors) * rows).sum())
    noise = int(rounded_normal(deviation * rows * replications, 1)[0])
    noisy = min(max((wrong + noise) / (rows * replications), 0.0), 1.0)
    return Point(point.config, point.epsilon, (noisy,), 0.0, point.extra)


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
            f"{price['delta']:g} for every record (replace-one)"
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
