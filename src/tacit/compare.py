"""All methods on the same clients, candidates and budget, one after the other, in a simulation.

Every method has a throw-away ledger with the whole budget, so that each shows what it can do with
it: epsilons are one method's. Whoever held all of them on real data and told what came out would
pay for their composition, which is told beside. Clients remember what they scored, since several
methods ask for the same candidates; the seconds that took are counted for each.

Candidates are the same for all methods: those that let clients search draw a seed first, and the
others begin with that seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from tacit.contenders import Contender
from tacit.files import json_text, write_whole
from tacit.job import Parts, clients_of, dataset_of, in_process, perform, task_of
from tacit.journal import Count, Journal, Number, Row, each, machine, unusable
from tacit.plan import Plan
from tacit.privacy.accounting import spent
from tacit.privacy.events import compose, from_json
from tacit.privacy.ledger import Ledger
from tacit.result import COVERS_TRAINING, Result
from tacit.sgd import Floats
from tacit.space import Config
from tacit.torch_task import TorchClient

PLAN, RESULT, PAGE = "compare.toml", "compare.json", "compare.html"
QUICK = {"candidates": 16, "score_epochs": 5, "train_rounds": 3, "train_epochs": 2}
"""The most that a quick comparison has of each."""
_LETS_CLIENTS_SEARCH = ("combine", "flora")
Told = Callable[[str, int, int], None]
"""Called with what is next, how many runs are done and how many there are."""
StageProgress = Callable[[str, int, int], None]


class Run(Row):
    """What every piece of the journal of a comparison has: one run of one method."""

    accuracy: Number
    epsilon: Annotated[float, Meta(ge=0)] | Literal["inf"]
    delta: Annotated[float, Meta(ge=0, le=1)]
    protects: str
    covers: str
    config: dict[str, bool | int | float | str]
    note: str
    events: list[dict[str, Any]]


class _Held(Run):
    """The same on clients who train."""

    bytes_per_client: Number
    exchanges: Count
    seconds: Number


@dataclass
class Memory:
    """What the clients of one seed scored before, and how long that took."""

    known: dict[tuple[int, int, str], tuple[Floats, float]] = field(default_factory=dict)
    recalled: float = 0.0
    """Seconds that were not spent again."""

    def scores(
        self, client: int, asked: Sequence[Config], folds: int, fresh: Callable[[], Floats]
    ) -> Floats:
        """From memory, or else from the client itself."""
        key = client, folds, repr(asked)
        if key in self.known:
            found, seconds = self.known[key]
            self.recalled += seconds
            return found
        begin = time.perf_counter()
        found = fresh()
        self.known[key] = found, time.perf_counter() - begin
        return found


@dataclass(frozen=True, eq=False)
class RememberingClient(TorchClient):
    """A client that scores the same candidates once."""

    memory: Memory

    def cross_validate(self, configs: Sequence[Config], folds: int) -> Floats:
        """The score of every configuration, trained or remembered."""
        return self.memory.scores(
            self.seed,
            list(configs),
            folds,
            lambda: TorchClient.cross_validate(self, configs, folds),
        )


def quick(plan: Plan) -> Plan:
    """The same plan with fewer candidates and shorter trainings."""
    search = replace(plan.search, candidates=min(plan.search.candidates, QUICK["candidates"]))
    task = replace(
        plan.task,
        **{n: min(getattr(plan.task, n), most) for n, most in QUICK.items() if n != "candidates"},
    )
    return replace(plan, search=search, task=task)


def check(plan: Plan) -> None:
    """Refuse what a comparison cannot be held on."""
    if plan.federation.engine != "local" or plan.federation.roster_file:
        raise ValueError(
            f"federation.engine is {plan.federation.engine!r} and federation.roster_file "
            f"{plan.federation.roster_file!r}; allowed for a comparison are 'local' and none: it "
            "simulates its clients in this process. On real clients every method is charged for, "
            "all of them together: tacit.flower.compare in a ServerApp does that "
            "(docs/compare.md)"
        )
    if not plan.task.train_rounds:
        raise ValueError(
            "task.train_rounds is 0; allowed for a comparison is 1 and above, since what is "
            "compared is the accuracy of the trained model"
        )


def run(
    plan: Plan,
    contenders: Iterable[Contender],
    seeds: int,
    out: Path,
    told: Told,
    progress: StageProgress,
) -> dict[str, Any]:
    """Hold every method that applies, once a seed, and put the results side by side."""
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}; allowed is 1 and above")
    check(plan)
    dataset = dataset_of(plan)
    clients_of(plan, dataset, task_of(plan, dataset))  # what is wrong for all is said for all
    begin_folder(out, plan.to_toml())
    journal = Journal(out, {"compare": plan.to_json()}, each(_Held))
    numbers = [plan.search.seed + number for number in range(seeds)]
    fit, unfit = applicable(plan, contenders)
    total, done = len(fit) * seeds, 0
    for number in numbers:
        memory = Memory()
        for one in list(fit):
            piece = f"{one.name} seed {number}"
            told(piece, done, total)
            if piece not in journal.pieces:
                try:
                    journal.add(piece, held(one, plan, number, memory, progress))
                except ValueError as error:
                    unfit[one.name] = str(error)
                    fit.remove(one)
            done += 1
            told(piece, done, total)
    rows = [
        row(one, [journal.pieces[f"{one.name} seed {number}"] for number in numbers]) for one in fit
    ]
    return {
        "compare": "plan",
        "plan": plan.to_json(),
        "seeds": numbers,
        "budget": {"epsilon": plan.privacy.epsilon, "delta": plan.privacy.delta},
        "clients": plan.federation.clients,
        "rows": rows,
        "not_compared": unfit,
        "together": together(rows, journal, numbers[0], plan.privacy.delta),
        "machine": machine(),
    }


def begin_folder(out: Path, recipe: str) -> None:
    """Use a new folder, or one with this very comparison."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / PLAN
    if path.exists() and path.read_bytes() != recipe.encode():
        raise ValueError(
            f"{out} holds another comparison ({PLAN} differs); allowed is a new folder, or the "
            "same plan to go on"
        )
    write_whole(path, recipe)


def applicable(
    plan: Plan, contenders: Iterable[Contender]
) -> tuple[list[Contender], dict[str, str]]:
    """Who can take part, and why the others cannot."""
    fit: list[Contender] = []
    unfit: dict[str, str] = {}
    for one in contenders:
        try:
            one.plan(plan, plan.search.seed)
            fit.append(one)
        except ValueError as error:
            unfit[one.name] = str(error)
    return fit, unfit


def row(one: Contender, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One method: means over its runs, and the largest epsilon among them."""
    accuracies = [float(found["accuracy"]) for found in runs]
    return {
        "method": one.name,
        "reference": one.reference,
        "accuracy": float(np.mean(accuracies)),
        "standard_error": standard_error(accuracies),
        "accuracies": accuracies,
        "epsilon": max(float(found["epsilon"]) for found in runs),
        **{key: runs[0][key] for key in ("delta", "protects", "covers", "config", "note")},
        **{
            key: float(np.mean([found[key] for found in runs])) if key in runs[0] else None
            for key in ("regret", "bytes_per_client", "seconds", "exchanges")
        },
    }


def standard_error(values: Sequence[float]) -> float | None:
    """Of their mean; None for a single one, which tells nothing about itself.

    >>> standard_error([0.0, 1.0])
    0.5
    """
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def together(
    rows: Sequence[Mapping[str, Any]], journal: Journal, seed: int, delta: float
) -> dict[str, Any]:
    """What one run of every method that protects anybody would cost together on real data."""
    private, events = [entry["method"] for entry in rows if not entry["reference"]], []
    for piece in (f"{name} seed {seed}" for name in private):
        try:
            events += [from_json(event) for event in journal.pieces[piece]["events"]]
        except ValueError as error:
            raise unusable(journal.path, piece, str(error)) from None
    cost = spent(compose(events), delta)
    return {"methods": private, "epsilon": cost.epsilon, "delta": cost.delta}


def written(result: Mapping[str, Any], page: str, out: Path) -> None:
    """Leave a comparison in its folder."""
    write_whole(out / RESULT, json_text(result) + "\n")
    write_whole(out / PAGE, page)


def held(
    one: Contender, base: Plan, seed: int, memory: Memory, progress: StageProgress
) -> dict[str, Any]:
    """One run of one method."""
    parts = Parts.of(one.plan(base, seed), Path())
    clients = [
        RememberingClient(c.task, c.train_examples, c.validation, c.seed, memory)
        for c in parts.clients
    ]
    ledger = Ledger.in_memory("comparison", parts.budget)
    memory.recalled = 0.0
    federation = in_process(parts, clients, ledger, parts.run, progress)
    result = perform(parts, federation, _drawing(one, seed), lambda _result: None)
    return told_of(result, sum(result.seconds.values()) + memory.recalled)


def _drawing(one: Contender, seed: int) -> np.random.Generator:
    """Where candidates come from: the same for all."""
    first = np.random.default_rng(seed)
    if one.family in _LETS_CLIENTS_SEARCH:
        return first
    return np.random.default_rng(int(first.integers(2**31)))


def told_of(result: Result, seconds: float) -> dict[str, Any]:
    """A line of the journal."""
    guarantee, clients = result.privacy.guarantee, result.privacy.participation.clients
    covers = "choice and training" if result.privacy.covers == COVERS_TRAINING else "choice"
    sent = sum(cost["up"] + cost["down"] for cost in result.bytes.values())
    return {
        "accuracy": result.accuracy,
        "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else "inf",
        "delta": guarantee.delta,
        "protects": f"per {guarantee.unit}, {guarantee.relation}",
        "covers": "nothing" if math.isinf(guarantee.epsilon) else covers,
        "config": result.config,
        "note": result.note,
        "bytes_per_client": sent / clients,
        "exchanges": result.exchanges,
        "seconds": seconds,
        "events": [line["event"] for line in result.ledger["lines"]],
    }
