"""The plan of a run: a TOML file with eight sections, every key checked and explained.

An error names the key, the value found and what is allowed. What a plan leaves out takes the
default, and the plan as run is written next to the results, complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tacit.data.partitions import PARTITIONS
from tacit.data.sources import DATASETS
from tacit.dp_training import OPTIMISERS
from tacit.halving import LOCAL_SEARCHES
from tacit.local_search import SAMPLERS
from tacit.networks import NETWORKS
from tacit.privacy.accounting import (
    LARGEST_DELTA,
    LARGEST_EPSILON,
    LEAST_DELTA,
    LEAST_EPSILON,
    Budget,
)
from tacit.privacy.mechanisms import Participation
from tacit.privacy.selection import SHAPES
from tacit.query import BALLOTS, BORDA, MOST_FOLDS, TOP
from tacit.rules import ARCHITECTURE_HYPERPARAMETERS
from tacit.settings import (
    changed_table,
    flag,
    flag_or,
    number,
    one_of,
    read_section,
    read_table,
    some_of_the_clients,
    text,
    whole,
    widths,
)
from tacit.sgd import METRICS, SERVER_HYPERPARAMETERS, check_config
from tacit.space import SAMPLINGS, Choice, Space
from tacit.strategy import PUBLISHED_VOTES, Strategy, choose
from tacit.tuners.combine import STRATEGIES, Combine
from tacit.tuners.flora import SURFACES, Flora
from tacit.tuners.modes import MODES, PRIVATE, RECORD, WHILE_TRAINING
from tacit.tuners.selection import MODES as SELECTION_MODES
from tacit.tuners.selection import TUNABLE
from tacit.tuners.tuner import Tuner
from tacit.tuners.voting import RunOff, Vote

PLAN = "plan.toml"
"""The plan as run, in the folder of a run."""
TRAINING_METHODS = ("bandit", "feathers", "feathers-published", "darts", "fedex", "adaptive")
"""Methods that train a model while they tune."""
METHODS = ("vote", "combine", "flora", "selection", "random-guess", "opt", *TRAINING_METHODS)
ALL_MODES = tuple(dict.fromkeys((*MODES, *WHILE_TRAINING, *SELECTION_MODES)))
DENSE, CELLS = "dense", "cells"
AUTO, PUBLISHED = "auto", "published"
BALLOT_WORDS = (AUTO, PUBLISHED, *BALLOTS)
FACTORS = ("authors", "printed")
SECURE_SUMS = ("masks", "encrypted", "plain")
ENGINES = ("local", "flower-simulation")
DEFAULT_SPACE: dict[str, Any] = {
    "learning_rate": {"low": 1e-4, "high": 1.0, "log": True},
    "decay": {"low": 0.1, "high": 1.0},
    "momentum": {"low": 0.0, "high": 0.95},
}


@dataclass(frozen=True)
class Task:
    """What is learned: data, a network, how a client scores, how the federation trains."""

    data: str = one_of("digits", tuple(DATASETS))
    data_dir: str = text("", "the folder that holds the data, or nothing")
    network: str = one_of(DENSE, (DENSE, CELLS, *NETWORKS))
    hidden: tuple[int, ...] = widths((32,))
    batch: int = whole(16, 1, 65_536)
    validation: float = number(0.2, 0.01, 0.9)
    score: str = one_of("error", METRICS)
    score_epochs: int = whole(20, 1, 1000)
    train_epochs: int = whole(5, 1, 1000)
    train_rounds: int = whole(10, 0, 1000)


@dataclass(frozen=True)
class Search:
    """How a configuration is chosen."""

    method: str = one_of("vote", METHODS)
    candidates: int = whole(100, 2, 1_000_000)
    sampling: str = one_of("sobol", SAMPLERS)
    ballot: str = one_of("auto", BALLOT_WORDS)
    votes: int = whole(0, 0, 1_000_000)
    smooth: bool = flag(False)
    finalists: int = whole(0, 0, 1_000_000)
    final_share: float = number(0.2, 0.01, 0.9)
    folds: int = whole(0, 0, MOST_FOLDS)
    local: str = one_of("full", LOCAL_SEARCHES)
    mode: str = one_of("dp", ALL_MODES)
    strategy: str = one_of("dbscan", STRATEGIES)
    points: int = whole(10, 1, 10_000)
    min_points: int = whole(0, 0, 1_000_000)
    surface: str = one_of("sgm", SURFACES)
    clip: float = number(1.0, 0.001, 1000.0)
    seed: int = whole(1, 0, 2**63 - 1)


@dataclass(frozen=True)
class Rounds:
    """How methods that train while they tune divide their rounds."""

    phases: int = whole(2, 1, 1000)
    drawn: int = whole(5, 1, 1000)
    alpha: float = number(0.65, 0.01, 0.99)
    beta: float = number(4.0, 0.0, 1000.0)
    rewards: int = whole(5, 0, 1000)
    evaluation_phases: int = whole(1, 1, 1000)
    reward_clip: float = number(1.0, 1e-6, 1e6)
    reward_share: float = number(0.2, 0.01, 0.99)
    reward_epsilon: float = number(1.0, LEAST_EPSILON, LARGEST_EPSILON)
    tolerance: float = number(1.0, 1e-9, 1e9)
    factor: str = one_of("authors", FACTORS)
    first_rate: float = number(0.001, 1e-12, 1e6)
    record_rate: float = number(0.1, 1e-6, 1.0)
    record_steps: int = whole(10, 1, 1_000_000)
    record_clip: float = number(1.0, 1e-6, 1e6)


@dataclass(frozen=True)
class Training:
    """Whether the training that follows the choice is private too, and how."""

    private: bool = flag(False)
    clip: float = number(1.0, 1e-6, 1e6)
    steps: int = whole(0, 0, 1_000_000)
    cap: int = whole(0, 0, 1_000_000_000)
    choice_share: float = number(0.0, 0.0, 0.99)


@dataclass(frozen=True)
class SelectionTerms:
    """How the best of some private trainings is found."""

    mean_runs: float = number(10.0, 1.01, 100_000.0)
    shape: str = one_of("logarithmic", tuple(SHAPES))
    optimiser: str = one_of("sgd", OPTIMISERS)
    lot: int = whole(64, 1, 1_000_000)
    steps: int = whole(200, 1, 10_000_000)
    clip: float = number(1.0, 1e-6, 1e6)


@dataclass(frozen=True)
class PrivacyTerms:
    """What may be spent, and against whom it must hold."""

    epsilon: float = number(
        1.0,
        LEAST_EPSILON,
        LARGEST_EPSILON,
        ", or inf for methods in clear and encrypted sums without noise",
    )
    delta: float = number(1e-5, LEAST_DELTA, LARGEST_DELTA)
    dropout: int | float | str = some_of_the_clients(0.1)
    colluding: int | float | str = some_of_the_clients(0)


@dataclass(frozen=True)
class FederationTerms:
    """Who takes part."""

    clients: int = whole(50, 2, 100_000)
    partition: str = one_of("dirichlet", tuple(PARTITIONS))
    alpha: float = number(5.0, 0.001, 1e6)
    percent: float = number(66.0, 0.0, 100.0)
    similarity: float = number(0.0, 0.0, 1.0)
    noise: float = number(0.1, 0.0, 1e6)
    smallest: int = whole(10, 2, 1_000_000)
    name: str = text("", "the name of a federation with a lifetime ledger, or nothing")
    secure: str = one_of("masks", SECURE_SUMS)
    roster: bool = flag(True)
    deadline: float = number(math.inf, 0.001, 86_400, ", or inf for none")
    count_abstentions: bool | str = flag_or(AUTO)
    engine: str = one_of("local", ENGINES)
    roster_file: str = text("", "the roster that all nodes hold, or nothing")
    timeout: float = number(600.0, 1.0, 1e6, ", or inf for none")
    wait: float = number(120.0, 0.0, 1e6)


@dataclass(frozen=True)
class Plan:
    """A complete plan.

    >>> read_plan({"search": {"votes": 3}}).search.votes
    3
    >>> read_plan({"search": {"vote": 3}})
    Traceback (most recent call last):
        ...
    ValueError: search.vote is not a key; allowed are method, candidates, sampling, ballot, \
votes, smooth, finalists, final_share, folds, local, mode, strategy, points, min_points, surface, \
clip, seed
    >>> read_plan({"privacy": {"delta": "small"}})
    Traceback (most recent call last):
        ...
    ValueError: privacy.delta is 'small'; allowed is a number from 1e-10 to 0.1
    """

    task: Task
    space: Space
    search: Search
    training: Training
    rounds: Rounds
    selection: SelectionTerms
    privacy: PrivacyTerms
    federation: FederationTerms

    def to_json(self) -> dict[str, Any]:
        """Every key with its value, as in the TOML file."""
        sections = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        tables = {
            name: section.to_json() if isinstance(section, Space) else asdict(section)
            for name, section in sections.items()
        }
        return {**tables, "task": {**tables["task"], "hidden": list(self.task.hidden)}}

    def to_toml(self) -> str:
        """The plan as a file that runs again."""
        import tomli_w

        return tomli_w.dumps(self.to_json())


def read_plan(table: Mapping[str, Any]) -> Plan:
    """A plan from a table of sections, all of them optional."""
    sections = [entry.name for entry in fields(Plan)]
    for name, section in table.items():
        if name not in sections:
            raise ValueError(f"[{name}] is not a section; allowed are {', '.join(sections)}")
        if not isinstance(section, Mapping):
            raise ValueError(f"{name} is {section!r}; allowed is a section of keys: [{name}]")
    plan = Plan(
        task=read_section("task", Task, table),
        space=_read_space(table.get("space", DEFAULT_SPACE)),
        search=read_section("search", Search, table),
        training=read_section("training", Training, table),
        rounds=read_section("rounds", Rounds, table),
        selection=read_section("selection", SelectionTerms, table),
        privacy=read_section("privacy", PrivacyTerms, table),
        federation=read_section("federation", FederationTerms, table),
    )
    _check_together(plan)
    return plan


def load_plan(path: Path | None, changes: Sequence[str]) -> Plan:
    """A plan from a file, or the default one, with ``key=value`` changes on top.

    >>> load_plan(None, ["search.votes=3", "space.momentum.high=0.5"]).search.votes
    3
    """
    table = {} if path is None else read_table(path)
    table.setdefault("space", DEFAULT_SPACE)
    table = changed_table(table, changes)
    return read_plan(table)


def _read_space(table: Mapping[str, Any]) -> Space:
    try:
        space = Space.from_json(table)
        for name, dimension in space.dimensions.items():
            extremes = (
                dimension.options
                if isinstance(dimension, Choice)
                else (dimension.low, dimension.high)
            )
            for value in extremes:
                if name not in ARCHITECTURE_HYPERPARAMETERS:
                    check_config({name: value})
    except ValueError as error:
        raise ValueError(f"space: {error}") from None
    return space


def combining(plan: Plan) -> Tuner | None:
    """The method of a plan, if it combines what clients found by themselves."""
    search = plan.search
    shared = (search.mode, search.candidates, search.sampling)
    if search.method == "combine":
        return Combine(search.strategy, *shared, search.points, search.min_points or None)
    if search.method == "flora":
        return Flora(search.surface, *shared, search.clip)
    return None


def voting(plan: Plan) -> Vote:
    """The vote of a plan that says which one is held.

    >>> voting(read_plan({"search": {"ballot": "borda", "votes": 10, "finalists": 2}})).run_off
    RunOff(finalists=2, share=0.2)
    """
    search = plan.search
    if search.ballot == AUTO:
        raise ValueError("which vote is held was not decided yet: see settled()")
    return Vote(
        search.votes or PUBLISHED_VOTES,
        search.candidates,
        search.sampling,
        BORDA if search.ballot == BORDA else TOP,
        search.smooth,
        RunOff(search.finalists, search.final_share) if search.finalists else None,
        search.folds or 1,
        plan.federation.count_abstentions is True,
    )


def with_vote(plan: Plan, vote: Vote) -> Plan:
    """A plan that holds this vote."""
    final = vote.run_off or RunOff(share=plan.search.final_share)
    search = replace(
        plan.search,
        ballot=PUBLISHED if vote.plain else vote.ballot,
        votes=vote.votes,
        smooth=vote.smooth,
        finalists=final.finalists if vote.run_off else 0,
        final_share=final.share,
        folds=vote.folds,
    )
    return replace(plan, search=search)


def participation_of(plan: Plan) -> Participation:
    """Who takes part in a plan, and how many of them may fail or betray."""
    privacy = plan.privacy
    return Participation(plan.federation.clients, privacy.dropout, privacy.colluding)


def settled(
    plan: Plan, participation: Participation, *, late: bool | None = None
) -> tuple[Plan, Strategy | None]:
    """The plan with the vote that is held, and how that was chosen, where it was left to us.

    Public numbers alone decide, so that a plan settled twice is the same. Where one budget is for
    the training too, half of its epsilon is taken for the vote's. Abstentions are counted, where
    that was left to us, if it is free, clients can be late, and the published vote was not asked
    for; ``late`` says whether they can, None: as the plan's engine has it.
    """
    if plan.search.method != Vote.name:
        return plan, None
    held, strategy = _with_chosen_vote(plan, participation)
    if plan.federation.count_abstentions != AUTO or plan.search.ballot == PUBLISHED:
        return held, strategy
    vote = voting(held)
    can_be_late = plan.federation.engine != ENGINES[0] if late is None else late
    free = 2 * vote.votes <= plan.space.count(vote.candidates, vote.sampling)
    terms = replace(held.federation, count_abstentions=can_be_late and free)
    return replace(held, federation=terms), strategy


def _with_chosen_vote(plan: Plan, participation: Participation) -> tuple[Plan, Strategy | None]:
    search, terms = plan.search, plan.privacy
    if search.ballot != AUTO:
        return plan, None
    epsilon = terms.epsilon / 2 if plan.training.private else terms.epsilon
    budget = Budget(max(epsilon, LEAST_EPSILON), terms.delta)
    found = choose(
        plan.space,
        participation,
        budget,
        search.candidates,
        search.sampling,
        search.votes,
        search.folds,
    )
    return with_vote(plan, found.vote), found


def _check_combining(plan: Plan) -> None:
    search, privacy, secure = plan.search, plan.privacy, plan.federation.secure
    try:
        combining(plan)
    except ValueError as error:
        raise ValueError(f"search: {error}") from None
    if search.mode != "clear" and (search.mode == "encrypted") != (secure == "encrypted"):
        needed = "encrypted" if search.mode == "encrypted" else "masks"
        raise ValueError(
            f"search.mode is {search.mode!r} and federation.secure is {secure!r}; allowed with it "
            f"is federation.secure = {needed!r}"
        )
    if search.mode == "dp" and math.isinf(privacy.epsilon):
        raise ValueError(
            "privacy.epsilon is inf; allowed with search.mode 'dp' is a number from "
            f"{LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    if search.method == "combine" and search.strategy == "dbscan" and plan.task.score != "error":
        raise ValueError(
            f"task.score is {plan.task.score!r}; allowed with search.strategy 'dbscan', which "
            "compares accuracies, is 'error'"
        )


def _check_vote(plan: Plan) -> None:
    search = plan.search
    candidates = plan.space.count(search.candidates, search.sampling)
    if not search.votes < candidates:
        raise ValueError(
            f"search.votes is {search.votes} of {candidates} candidates; allowed is 1 to "
            f"{candidates - 1}, or 0 for a number that fits"
        )
    if search.ballot in (AUTO, PUBLISHED) and (search.smooth or search.finalists):
        raise ValueError(
            f"search.ballot is {search.ballot!r}, search.smooth {search.smooth} and "
            f"search.finalists {search.finalists}; allowed with it are false and 0: name a ballot, "
            f"{TOP!r} or {BORDA!r}, to have them your way"
        )
    if search.ballot == PUBLISHED and search.folds > 1:
        raise ValueError(
            f"search.ballot is {PUBLISHED!r} and search.folds {search.folds}; allowed with it is 0 "
            f"or 1: name the ballot {TOP!r} to have clients cross-validate for the same votes"
        )
    if search.ballot != AUTO:
        try:
            voting(plan).event(plan.space, 1.0)
        except ValueError as error:
            raise ValueError(f"search: {error}") from None
    if math.isinf(plan.privacy.epsilon):
        raise ValueError(
            "privacy.epsilon is inf; allowed with search.method 'vote' is a number from "
            f"{LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )


def _check_server(plan: Plan) -> None:
    """A client that trains alone cannot tell its own rate from the server's."""
    axes = {
        name
        for name, axis in plan.space.dimensions.items()
        if axis.values is None or len(axis.values) > 1
    }
    for name in SERVER_HYPERPARAMETERS.keys() & axes:
        own = name.removeprefix("server_")
        if own in axes:
            raise ValueError(
                f"space: {name} and {own} are both tuned, but a client that trains by itself takes "
                "one for the other; allowed is one of them, or search.method 'opt'"
            )


def _check_training_method(plan: Plan) -> None:
    """What a method that trains while it tunes can do, and what it needs."""
    search, inf = plan.search, math.isinf(plan.privacy.epsilon)
    modes = {
        "adaptive": ("dp", "record", "clear"),
        "feathers-published": ("clear",),
    }.get(search.method, WHILE_TRAINING)
    if search.mode not in modes:
        raise ValueError(
            f"search.mode is {search.mode!r}; allowed with search.method {search.method!r} is "
            f"{' or '.join(map(repr, modes))}"
        )
    finite = search.mode in (PRIVATE, RECORD)
    if finite == inf:
        allowed = f"a number from {LEAST_EPSILON:g} to {LARGEST_EPSILON:g}" if finite else "inf"
        raise ValueError(
            f"privacy.epsilon is {plan.privacy.epsilon:g}; allowed with search.method "
            f"{search.method!r} and search.mode {search.mode!r} is {allowed}"
        )
    if plan.training.private:
        raise ValueError(
            f"training.private is true, but search.method {search.method!r} trains by itself; "
            "allowed is false: search.mode says what is private"
        )
    searches = search.method in ("feathers", "feathers-published", "darts")
    if searches != (plan.task.network == CELLS):
        raise ValueError(
            f"task.network is {plan.task.network!r}; allowed with search.method {search.method!r} "
            f"is {CELLS!r}"
            if searches
            else f"task.network is {CELLS!r}; allowed with it are the methods that search an "
            "architecture: 'feathers', 'feathers-published' and 'darts'"
        )
    if not plan.task.train_rounds:
        raise ValueError(
            f"task.train_rounds is 0; allowed with search.method {search.method!r} is 1 and above"
        )


def _check_selection(plan: Plan) -> None:
    search, task = plan.search, plan.task
    if search.mode not in SELECTION_MODES:
        raise ValueError(
            f"search.mode is {search.mode!r}; allowed with search.method 'selection' is "
            f"{' or '.join(map(repr, SELECTION_MODES))}: whether somebody sees every training"
        )
    if math.isinf(plan.privacy.epsilon):
        raise ValueError(
            "privacy.epsilon is inf; allowed with search.method 'selection' is a number from "
            f"{LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    if task.network != DENSE or plan.training.private or plan.federation.engine != "local":
        raise ValueError(
            f"task.network is {task.network!r}, training.private {plan.training.private} and "
            f"federation.engine {plan.federation.engine!r}; allowed with search.method 'selection' "
            f"are {DENSE!r}, false and 'local': one holder of data trains by itself"
        )
    unknown = [name for name in plan.space.dimensions if name not in TUNABLE]
    if unknown or "learning_rate" not in plan.space.dimensions:
        raise ValueError(
            f"space: found {', '.join(plan.space.dimensions)}; allowed with search.method "
            f"'selection' are {', '.join(TUNABLE)}, the first of them always"
        )


def _check_private_training(plan: Plan) -> None:
    if math.isinf(plan.privacy.epsilon):
        raise ValueError(
            "privacy.epsilon is inf; allowed with training.private is a number from "
            f"{LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    if not plan.task.train_rounds:
        raise ValueError(
            "task.train_rounds is 0; allowed with training.private is 1 and above, since there is "
            "nothing to train otherwise"
        )


def _check_together(plan: Plan) -> None:
    """What single keys cannot tell."""
    if plan.search.method in ("combine", "flora"):
        _check_combining(plan)
    elif plan.search.sampling not in SAMPLINGS:
        raise ValueError(
            f"search.sampling is {plan.search.sampling!r}; allowed with search.method "
            f"{plan.search.method!r} is {' or '.join(map(repr, SAMPLINGS))}"
        )
    if plan.search.method != "opt":
        _check_server(plan)
    try:
        participation = participation_of(plan)
    except ValueError as error:
        raise ValueError(f"privacy: {error}") from None
    if plan.federation.secure == "encrypted" and participation.dropout:
        raise ValueError(
            f"privacy.dropout is {plan.privacy.dropout!r}; allowed with federation.secure "
            "'encrypted' is 0: without everybody nothing opens"
        )
    if plan.search.method == "vote":
        _check_vote(plan)
    elif plan.federation.count_abstentions is True:
        raise ValueError(
            "federation.count_abstentions is true; allowed with search.method "
            f"{plan.search.method!r} is false or {AUTO!r}: only votes count them"
        )
    if plan.search.method == "selection":
        _check_selection(plan)
    if plan.search.method in TRAINING_METHODS:
        _check_training_method(plan)
    elif plan.training.private:
        _check_private_training(plan)
