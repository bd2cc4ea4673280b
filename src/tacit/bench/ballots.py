"""Which vote picks best at the same epsilon and delta: the published one, or one of Tacit's.

DP-HYPE (Liebenow, Peinemann and Mohammadi) as published, five votes with its own noise, against the
same votes exactly accounted, ballots that rank, smoothed tallies, a run-off, and what
:mod:`tacit.strategy` chooses. Clients' rankings and the federated accuracies come from score
tables; surfaces that are smooth, have a cliff or are rough are made up here, in another way than
those that the planner looks at. Every tally is counted many times with fresh noise.

Clients who cross-validate before they vote, as the planner's choice has them do, have a table of
their own for every table. Which part of the gain is theirs is told by two more rows: the published
vote of such clients, and the planner's choice of clients who hold one part out. On made-up surfaces
nothing is trained, and folds make no difference.

What harms is looked for as well: on tables whose candidates are permuted, so that neighbours say
nothing of each other, and on rough surfaces, smoothing can only mislead. A difference of a point is
small beside what one draw of noise makes, so every such place is drawn until its standard error is
as small as :attr:`Setup.exactness` asks.

Two ballots that were tried and are not offered stand beside them. *Graded*: every client gives
every candidate a grade from 0 to :data:`GRADES`, its scores stretched over that range; the worst
pair differs by that much everywhere. *Approval*: a vote for each candidate within
:data:`TOLERANCE` of the client's best score, at most :data:`APPROVED`.

Noise is the integer noise that the whole budget buys, nobody drops out. It comes from a seeded
generator, since no client is protected here.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from tacit.bench.pieces import Workplace
from tacit.deciding import winner
from tacit.grids import GRIDS
from tacit.journal import Count, Number, Piece, Row
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import Composed, Event, SkellamRelease
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import published_sigma
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.smoothing import SHUFFLES, Smoother, amplitudes, places
from tacit.space import Space
from tacit.strategy import FOLDS, Family, Noise, choose, describe
from tacit.tables import GRID, ScoreTable, shipped
from tacit.tuners.voting import RunOff, Vote

DELTA = 1e-5
EPSILONS = (0.1, 0.25, 0.5, 1.0)
CLIENTS = (20, 50, 100, 250)
NEAR = 2.0
"""Points of accuracy within which a pick counts as near the best."""
RANKED = Vote(10, ballot="borda")
METHODS: dict[str, Vote | None] = {
    "published": Vote(5),
    "exact": Vote(5),
    "borda": RANKED,
    "smoothed": replace(RANKED, smooth=True),
    "two-stage": replace(RANKED, run_off=RunOff(4, 0.3)),
    "auto": None,
}
"""``auto`` is whatever the planner chooses."""
PARTS: dict[str, Vote | None] = {
    "published, cross-validated": Vote(5, folds=FOLDS),
    "auto, one fold": None,
}
"""On tables only."""
TRIED = ("graded", "graded smoothed", "approval")
GRADES, TOLERANCE, APPROVED = 5, 0.05, 10
SURFACES = ("smooth", "cliff", "rough")
_STANDARD = re.compile(
    r"(digits|adult|mnist|fashion-mnist)-(iid|dirichlet0\.5)-n[0-9]+(-ex[0-9]+)?(-min5)?"
)
_FORMS = 35
"""Made-up surfaces of a kind."""
DESIGN = ("digits", "adult")
"""Data that rules and constants were made on; the other data sets are the test."""


@dataclass(frozen=True)
class Setup:
    """What is counted."""

    tables: tuple[str, ...] = field(default_factory=lambda: standard_tables())
    clients: tuple[int, ...] = CLIENTS
    """Of made-up surfaces."""
    epsilons: tuple[float, ...] = EPSILONS
    draws: int = 210
    exactness: Mapping[str, float] = field(default_factory=lambda: {"smoothed": 0.15, "auto": 1.0})
    """What may mislead where neighbours say nothing, and up to which standard error, in points,
    its harm is drawn, :attr:`draws` at a time."""


def standard_tables() -> tuple[str, ...]:
    """Tables on the paper's grid that come with Tacit, dealt evenly or with alpha 0.5.

    >>> "adult-iid-n50" in standard_tables(), "adult-dirichlet5-n100" in standard_tables()
    (True, False)
    """
    return tuple(name for name in shipped() if _STANDARD.fullmatch(name))


QUICK = Setup(
    ("digits-iid-n50", "mnist-iid-n100"),
    (50,),
    (0.25, 1.0),
    draws=60,
    exactness={"smoothed": 1.0, "auto": 4.0},
)


@dataclass(frozen=True, eq=False)
class Crowd:
    """Many votes to hold: how good candidates are, and what the clients think, for each."""

    grid: str
    accuracy: FloatArray
    """(votes, candidates)"""
    losses: FloatArray
    """(votes, clients, candidates)"""

    @classmethod
    def of(cls, table: ScoreTable, draws: int, voters: ScoreTable | None = None) -> Crowd:
        """A table's seeds in turn; a candidate's accuracy is its mean over all seeds.

        ``voters``: the same clients, who score in another way.
        """
        voters = voters or table
        losses = np.array([voters.scores(seed) for seed in range(len(voters.losses))])
        turns = np.arange(draws) % len(losses)
        accuracy = np.broadcast_to(table.accuracy.mean(axis=0), (draws, len(table.candidates)))
        return cls(table.recipe.grid, accuracy, losses[turns])

    @classmethod
    def made_up(cls, kind: str, clients: int, draws: int, batch: int = 0) -> Crowd:
        """Surfaces on the same grid, of accuracies up to 0.95, on which clients nearly agree.

        Every batch has others.
        """
        space = GRIDS[GRID]
        columns, _ = places(space, space.candidates(10**6, "grid"))
        columns = columns[:, np.ptp(columns, axis=0) > 0]
        numbers = range(batch * _FORMS, (batch + 1) * _FORMS)
        forms = [_form(kind, columns, np.random.default_rng([7, n])) for n in numbers]
        accuracy = np.array(forms)[np.arange(draws) % _FORMS]
        rng = np.random.default_rng([8, SURFACES.index(kind), clients, batch])
        shape = (draws, clients, len(columns))
        return cls(GRID, accuracy, 1 - accuracy[:, None] + 0.1 * rng.normal(size=shape))

    def permuted(self, rng: np.random.Generator) -> Crowd:
        """Every vote with its candidates in another order, so that neighbours are strangers."""
        votes, count = self.accuracy.shape
        order = rng.permuted(np.tile(np.arange(count), (votes, 1)), axis=1)
        losses = np.take_along_axis(self.losses, order[:, None], axis=2)
        return replace(self, accuracy=np.take_along_axis(self.accuracy, order, 1), losses=losses)

    @property
    def clients(self) -> int:
        """How many vote."""
        return len(self.losses[0])

    @property
    def space(self) -> Space:
        """Whose grid the candidates are."""
        return GRIDS[self.grid]

    def family(self) -> Family:
        """The same as rankings."""
        candidates = self.space.candidates(10**6, "grid")
        ranks = self.losses.argsort(axis=2).argsort(axis=2)
        return Family(self.space, candidates, self.accuracy, ranks)

    def regrets(self, picks: IntArray) -> FloatArray:
        """In points of accuracy."""
        own = self.accuracy[np.arange(len(picks)), picks]
        found: FloatArray = 100 * (self.accuracy.max(axis=1) - own)
        return found


def _form(kind: str, columns: FloatArray, rng: np.random.Generator) -> FloatArray:
    """One surface: a hill; a slope that breaks off; or every candidate on its own."""
    if kind == "rough":
        return 0.1 + 0.85 * rng.beta(1.0, 3.0, len(columns))
    top = rng.uniform(size=columns.shape[1])
    if kind == "smooth":
        reach = rng.uniform(0.15, 0.5)
        hill = np.exp(-0.5 * np.square((columns - top) / reach).sum(axis=1))
        return np.asarray(0.1 + 0.85 * hill / hill.max())
    direction = rng.normal(size=columns.shape[1])
    height = (columns - top) @ (direction / np.linalg.norm(direction))
    height -= np.quantile(height, rng.uniform(0.6, 0.95))
    slope = np.where(height > 0, -1.0, np.exp(2 * height))
    return np.asarray(np.where(height > 0, 0.1, 0.1 + 0.85 * slope / slope.max()))


@cache
def integer_noise(vote: Vote, grid: str, budget: Budget) -> tuple[Noise, Noise]:
    """What clients draw together for the tally and for the run-off, in votes."""
    vote, space = replace(vote, candidates=10**6, sampling="grid"), GRIDS[grid]
    event = vote.event(space, calibrate(partial(vote.event, space), budget))
    parts = event.events if isinstance(event, Composed) else (event,)
    found = [
        Noise(math.sqrt(part.variance), integer=True)
        for part in parts
        if isinstance(part, SkellamRelease)
    ]
    return found[0], found[-1]


def _rows(about: Mapping[str, Any], regrets: Iterable[str], harms: Iterable[str] = ()) -> Any:
    """The rows of a piece: one of each method, in this order."""
    epsilon = Annotated[float, Meta(ge=about["epsilon"], le=about["epsilon"])]
    known = [(name, Literal[about[name]]) for name in ("data", "partition", "clients")]
    measured = [("se", Number), ("seconds", Number)]
    regret = [("regret", Number), ("near_best", Number), ("vote", str | UnsetType, UNSET)]
    harm = [("harm", Number), ("plain", Number), ("draws", Count)]
    rows = [
        msgspec.defstruct(
            "Row",
            [("method", Literal[name]), ("epsilon", epsilon), *known, *measured, *own],
            bases=(Row,),
        )
        for names, own in ((regrets, regret), (harms, harm))
        for name in names
    ]
    return GenericAlias(tuple, tuple(rows))


def run(setup: Setup, place: Workplace) -> dict[str, Any]:
    """Count every vote; JSON."""
    work: dict[str, Callable[[], Any]] = {}
    kinds: dict[Piece, Any] = {}
    for epsilon in setup.epsilons:
        budget = Budget(epsilon, DELTA)
        for name in setup.tables:
            seeds = "+".join(str(table.recipe.seeds) for table in _pair(name))
            piece = f"{name}, seeds {seeds}, {epsilon:g}"
            about = _about(_pair(name)[0], budget)
            work[piece] = partial(on_table, name, budget, setup.draws)
            kinds[piece] = _rows(about, (*METHODS, *PARTS, *TRIED))
            work[f"{piece} permuted"] = partial(on_permuted, name, budget, setup)
            kinds[f"{piece} permuted"] = _rows(_permuted_about(about), (), setup.exactness)
        for kind in SURFACES:
            for clients in setup.clients:
                piece = f"{kind} {clients} {epsilon:g}"
                work[piece] = partial(on_surfaces, kind, clients, budget, setup)
                about = _made_up(kind, clients, budget)
                kinds[piece] = _rows(about, METHODS, setup.exactness if kind == "rough" else ())
    pieces, about = place.carried_out(
        "ballots", setup, [], work, lambda piece: kinds.get(piece, Any)
    )
    found = [row for piece in work for row in pieces[piece]]
    rows = [row for row in found if "regret" in row]
    harmed = [row for row in found if "harm" in row]
    return about | {
        "delta": DELTA,
        "near": NEAR,
        "rows": rows,
        "harm": harmed,
        "summary": summary(rows),
        "mean_harm": {method: mean_harm(harmed, method) for method in setup.exactness},
    }


def on_table(name: str, budget: Budget, draws: int) -> list[dict[str, Any]]:
    """All methods on one table."""
    table, careful = _pair(name)
    crowds = {1: Crowd.of(table, draws), FOLDS: Crowd.of(table, draws, careful)}
    about = _about(table, budget)
    return counted(crowds, budget, about, METHODS | PARTS) + tried(crowds[1], budget, about)


def on_permuted(name: str, budget: Budget, setup: Setup) -> list[dict[str, Any]]:
    """What smoothing and run-offs harm on one table whose candidates are permuted."""
    table, careful = _pair(name)
    about = _permuted_about(_about(table, budget))
    return harm(partial(_permuted, table, careful, setup.draws), budget, about, setup.exactness)


def _permuted_about(about: dict[str, Any]) -> dict[str, Any]:
    return about | {"partition": about["partition"] + ", permuted"}


def _permuted(table: ScoreTable, careful: ScoreTable, draws: int, folds: int, batch: int) -> Crowd:
    crowd = Crowd.of(table, draws, careful if folds == FOLDS else table)
    return crowd.permuted(np.random.default_rng([9, batch]))


def on_surfaces(kind: str, clients: int, budget: Budget, setup: Setup) -> list[dict[str, Any]]:
    """All methods on made-up surfaces of a kind; on rough ones, harm too."""
    about = _made_up(kind, clients, budget)

    def crowd(folds: int, batch: int) -> Crowd:
        del folds  # nothing is trained
        return Crowd.made_up(kind, clients, setup.draws, batch)

    rows = counted(dict.fromkeys((1, FOLDS), crowd(1, 0)), budget, about, METHODS)
    return rows + (harm(crowd, budget, about, setup.exactness) if kind == "rough" else [])


def _made_up(kind: str, clients: int, budget: Budget) -> dict[str, Any]:
    return {"data": kind, "partition": "made up", "clients": clients, "epsilon": budget.epsilon}


def _about(table: ScoreTable, budget: Budget) -> dict[str, Any]:
    recipe = table.recipe
    skewed = "" if recipe.partition == "iid" else f" {recipe.alpha:g}"
    return {
        "data": recipe.data,
        "partition": recipe.partition + skewed,
        "clients": recipe.clients,
        "epsilon": budget.epsilon,
    }


def _pair(name: str) -> tuple[ScoreTable, ScoreTable]:
    """A table, and that of the same clients who cross-validate."""
    table = ScoreTable.load(name)
    return table, ScoreTable.load(replace(table.recipe, folds=FOLDS).name)


def counted(
    crowds: Mapping[int, Crowd],
    budget: Budget,
    about: dict[str, Any],
    methods: Mapping[str, Vote | None],
) -> list[dict[str, Any]]:
    """A row for every method; ``crowds`` are the same clients, by folds of cross-validation."""
    families, rows = {folds: crowd.family() for folds, crowd in crowds.items()}, []
    for number, (method, fixed) in enumerate(methods.items()):
        begin = time.process_time()
        one, folds = crowds[1], 1 if method in PARTS else FOLDS
        vote = fixed or _choice(one.grid, one.clients, budget, folds)
        crowd = crowds[vote.folds]
        noise = integer_noise(vote, crowd.grid, budget)
        if method.startswith("published"):
            noise = Noise(published_sigma(vote.votes, budget)), Noise(0.0)
        rng = np.random.default_rng([10, number, seed(about)])
        picks = families[vote.folds].picks(vote, crowd.clients, noise, rng, SHUFFLES)
        row = _row(crowd, picks, about | {"method": method}, begin)
        rows.append(row | ({"vote": describe(vote)} if fixed is None else {}))
    return rows


def seed(about: Mapping[str, Any]) -> int:
    """Of one setting: averages over settings have small errors only if their noise differs.

    >>> seed({"epsilon": 0.5, "clients": 20}) == seed({"epsilon": 0.5, "clients": 50})
    False
    """
    return zlib.crc32(json.dumps(about).encode())


def tried(crowd: Crowd, budget: Budget, about: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every ballot that Tacit does not offer."""
    family, rows = crowd.family(), []
    for method in TRIED:
        begin = time.process_time()
        picks = _tried(method, crowd, family, budget, np.random.default_rng([11, seed(about)]))
        rows.append(_row(crowd, picks, about | {"method": method}, begin))
    return rows


def _row(crowd: Crowd, picks: IntArray, about: dict[str, Any], begin: float) -> dict[str, Any]:
    regrets = crowd.regrets(picks)
    return about | {
        "regret": float(regrets.mean()),
        "se": float(regrets.std(ddof=1) / math.sqrt(len(regrets))),
        "near_best": float((regrets <= NEAR).mean()),
        "seconds": time.process_time() - begin,
    }


@cache
def _choice(grid: str, clients: int, budget: Budget, folds: int) -> Vote:
    everybody = Participation(clients, dropout=0.0)
    return choose(
        GRIDS[grid], everybody, budget, candidates=10**6, sampling="grid", folds=folds
    ).vote


def harm(
    crowd: Callable[[int, int], Crowd],
    budget: Budget,
    about: dict[str, Any],
    exactness: Mapping[str, float],
) -> list[dict[str, Any]]:
    """How much worse than the largest entry of the same ballots' plain tally, in points.

    ``crowd(folds, batch)``: who votes, others in every batch.
    """
    rows = []
    for method, largest in exactness.items():
        begin = time.process_time()
        vote = METHODS[method] or _choice(GRID, about["clients"], budget, FOLDS)
        plain = replace(vote, smooth=False, run_off=None)
        bold, careful = np.empty(0), np.empty(0)
        for batch in itertools.count():
            voters = crowd(vote.folds, batch)
            bold = np.append(bold, _regrets(voters, vote, budget, batch))
            careful = np.append(careful, _regrets(voters, plain, budget, batch))
            se = float((bold - careful).std(ddof=1) / math.sqrt(len(bold)))
            if se <= largest:
                break
        rows.append(
            about
            | {
                "method": method,
                "harm": float((bold - careful).mean()),
                "se": se,
                "plain": float(careful.mean()),
                "draws": len(bold),
                "seconds": time.process_time() - begin,
            }
        )
    return rows


def _regrets(crowd: Crowd, vote: Vote, budget: Budget, batch: int) -> FloatArray:
    """Votes of one batch draw from the same generator, so their noise is alike where it can be."""
    noise, rng = integer_noise(vote, crowd.grid, budget), np.random.default_rng([12, batch])
    return crowd.regrets(crowd.family().picks(vote, crowd.clients, noise, rng, SHUFFLES))


def mean_harm(rows: Sequence[dict[str, Any]], method: str) -> dict[str, Any]:
    """On average over tables, surfaces and epsilons, and where it is largest.

    Settings share permutations and noise, so the error of their mean is that of one of them, and
    no smaller.
    """
    own = [row for row in rows if row["method"] == method]
    worst = max(own, key=lambda row: row["harm"])
    place = (worst["data"], worst["partition"], f"n = {worst['clients']}")
    return {
        "mean": float(np.mean([row["harm"] for row in own])),
        "se": float(np.mean([row["se"] for row in own])),
        "worst": worst["harm"],
        "worst_se": worst["se"],
        "where": ", ".join((*place, f"epsilon {worst['epsilon']:g}")),
    }


def _tried(
    method: str, crowd: Crowd, family: Family, budget: Budget, rng: np.random.Generator
) -> IntArray:
    """Winners by a ballot that Tacit does not offer."""
    _, clients, count = crowd.losses.shape
    if method == "approval":
        best = crowd.losses.min(axis=2, keepdims=True)
        near = (crowd.losses <= best + TOLERANCE) & (family.ranks < APPROVED)
        tallies = near.sum(axis=1).astype(np.float64)
        deviation = integer_noise(Vote(APPROVED), crowd.grid, budget)[0].deviation
    else:
        tallies = _grades(crowd.losses).sum(axis=1)
        deviation = math.sqrt(_graded_variance(count, budget))
    tallies = tallies + Noise(deviation, integer=True).drawn(tallies.shape, rng)
    if method != "graded smoothed":
        return np.asarray(tallies.argmax(axis=1))
    smoother = Smoother.of(crowd.space, family.candidates, RANKED.votes)
    spread = amplitudes(GRADES * clients * count / 4, count)
    smoothed = smoother.read(tallies, deviation**2, spread, rng)
    return np.array([winner(*each) for each in zip(tallies, smoothed, strict=True)])


def _grades(losses: FloatArray) -> FloatArray:
    """From 0 for a client's worst finite loss, and all that are not finite, to its best."""
    finite = np.isfinite(losses)
    low = losses.min(axis=2, keepdims=True)
    high = np.where(finite, losses, -np.inf).max(axis=2, keepdims=True)
    known = np.where(finite, losses, high)
    found: FloatArray = np.rint(GRADES * (high - known) / np.maximum(high - low, 1e-12))
    return found


@cache
def _graded_variance(count: int, budget: Budget) -> float:
    def event(variance: float) -> Event:
        return SkellamRelease(((GRADES, count),), variance)

    return calibrate(event, budget)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regret averaged over the real tables of some numbers of clients.

    ``needs`` tells which epsilon makes the planner's choice as good as the published vote at the
    largest one.
    """
    real = [row for row in rows if row["partition"] != "made up"]
    epsilons = sorted({row["epsilon"] for row in real})
    found: dict[str, Any] = {"epsilons": epsilons, "groups": {}}
    groups = {"at least 50": range(50, 10**6), **{str(n): (n,) for n in CLIENTS}}
    for group, numbers in groups.items():
        own = [row for row in real if row["clients"] in numbers]
        if not own:
            continue
        curves = {
            method: [_mean(own, method, epsilon) for epsilon in epsilons]
            for method in dict.fromkeys(row["method"] for row in own)
        }
        goal = curves["published"][-1]["regret"]
        regrets = [point["regret"] for point in curves["auto"]]
        found["groups"][group] = {
            "tables": len({(row["data"], row["partition"], row["clients"]) for row in own}),
            "curves": curves,
            "needs": {"published": epsilons[-1], "auto": reached(epsilons, regrets, goal)},
        }
    return found


def _mean(rows: Sequence[dict[str, Any]], method: str, epsilon: float) -> dict[str, float]:
    own = [row for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
    return {
        "regret": float(np.mean([row["regret"] for row in own])),
        "se": math.sqrt(sum(row["se"] ** 2 for row in own)) / len(own),
        "near_best": float(np.mean([row["near_best"] for row in own])),
    }


def reached(epsilons: Sequence[float], regrets: Sequence[float], goal: float) -> float | None:
    """The epsilon from which regrets are no larger than the goal, between points on a log scale.

    >>> round(reached([0.25, 1.0], [8.0, 2.0], 5.0), 3), reached([0.25, 1.0], [8.0, 6.0], 5.0)
    (0.5, None)
    """
    if regrets[-1] > goal:
        return None
    place = len(regrets) - 1
    while place and regrets[place - 1] <= goal:
        place -= 1
    if not place:
        return epsilons[0]
    above, below = regrets[place - 1], regrets[place]
    part = (above - goal) / (above - below)
    return float(epsilons[place - 1] ** (1 - part) * epsilons[place] ** part)
