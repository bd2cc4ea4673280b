"""The server's side on Flower: tune before training, over the grid that the training will use.

Settings come from the run's configuration, in the words of a plan with ``tacit.`` in
front, so they can stand in ``[tool.flwr.app.config]`` or follow ``flwr run --run-config``::

    tacit.privacy.epsilon = 1.0
    tacit.federation.name = "clinics"
    tacit.federation.roster_file = "/etc/tacit/roster.toml"

``tacit.run.out`` names the folder for runs (default: ``runs`` beside the ledgers) and
``tacit.run.resume`` a run that was killed. What is passed to :func:`tune` goes before settings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid

from tacit.charged_questions import ChargedQuestions
from tacit.federation import Federation, RoundNote, kind_of_piece, secure_sum
from tacit.flower.channel import FlowerChannel
from tacit.journal import Journal
from tacit.membership import Membership
from tacit.plan import Plan, combining, read_plan, settled, voting
from tacit.privacy.accounting import Budget
from tacit.privacy.events import RECORD
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import percent
from tacit.privacy.planner import plan as price
from tacit.report import write_run
from tacit.result import MostAbstained, Result
from tacit.secure.protocol import HIDING, TooFewClients
from tacit.secure.roster import Roster
from tacit.settings import read_table, with_value
from tacit.space import Dimension, Space, as_space
from tacit.strategy import POOR_LOSS, Strategy, counting
from tacit.tuners.tuner import Tuner, noise_for, unit_of
from tacit.tuners.voting import Vote
from tacit.tuning import conclude, run_name

SIMULATED_ON_FLOWER = (
    "a simulation on Flower: one machine plays the server and all clients, and holds every key"
)
DEPLOYED_ON_FLOWER = "a deployment on Flower: clients are nodes of their own"
FOLLOWS = (
    "A strategy of Flower that trains next shows the server every client's weights in clear, and "
    "whatever its metrics say: FedAvg's num-examples, unless it is the same for all."
)
DEADLINE = 60.0
"""Seconds until evaluations are answered where a deployment sets no other deadline."""
_PREFIX = "tacit."
_WAIT_SECONDS = 1.0


def tune(
    grid: Grid,
    context: Context,
    *,
    space: Space | Mapping[str, Dimension] | None = None,
    method: Tuner | None = None,
    budget: Budget | None = None,
    plan: Path | None = None,
) -> Result:
    """Let the nodes of a grid agree on a configuration; the server sees a noisy sum only.

    Writes ``result.json``, ``ledger.json`` and ``report.html`` to the run's folder and logs where.

    >>> from flwr.app import RecordDict
    >>> context = Context(1, 1, {}, RecordDict(), {"tacit.search.method": "opt"})
    >>> tune(None, context, budget=Budget(1.0, 1e-5))
    Traceback (most recent call last):
        ...
    ValueError: search.method is 'opt'; allowed here is 'vote', 'combine' or 'flora': give another \
method to tune() itself

    Args:
        grid: the grid of the ServerApp.
        context: its context; the settings stand in ``context.run_config``.
        space: what to tune.
        method: how to choose; default: what the settings say; without any, the vote that
            :func:`tacit.strategy.choose` picks.
        budget: the most this call may spend.
        plan: a plan file; the settings change it. How many clients there are comes from the roster
            or from ``federation.clients``, otherwise all connected nodes take part.

    Raises:
        BudgetExceeded: the federation's ledger has too little left; nobody was asked.
        TooFewClients: too many nodes are missing; nothing was released, and what was charged stays
            charged.
        MostAbstained: most nodes abstained from a vote that counts them; results are written, and
            what was charged stays charged.
    """
    settings = Settings.of(context.run_config, plan)
    wanted = settings.plan.space if space is None else as_space(space)
    terms = settings.plan.privacy
    allowed = Budget(terms.epsilon, terms.delta) if budget is None else budget
    search = settings.plan.search
    check_engine(settings.plan)
    chosen = method or combining(settings.plan)
    if chosen is None and search.method != Vote.name:
        raise ValueError(
            f"search.method is {search.method!r}; allowed here is 'vote', 'combine' or 'flora': "
            "give another method to tune() itself"
        )
    run = settings.resume or run_name((chosen or Vote()).name)
    folder = settings.folder(run)
    federation = settings.federation(grid, allowed, run, folder)
    planned, strategy = settings.plan, None
    if chosen is None:
        terms = replace(terms, epsilon=allowed.epsilon, delta=allowed.delta)
        planned = replace(planned, space=wanted, privacy=terms)
        planned, strategy = settled(planned, federation.participation, late=True)
        chosen = voting(planned)
    federation.variance = noise_for(chosen, wanted, allowed)
    federation.record_level = unit_of(chosen, wanted) == RECORD
    federation.watch = log_round
    log(INFO, "tacit: run %s, results go to %s", run, folder)
    _log_chance(chosen, strategy, wanted, allowed, federation.participation)
    try:
        with federation.held():
            questions = ChargedQuestions(federation)
            outcome = chosen.tune(questions, wanted, np.random.default_rng(search.seed))
    finally:
        log_refusals(federation)
    result = conclude(chosen, outcome, federation, allowed)
    write_run(result, planned.to_toml(), folder)
    for vote in result.abstentions:
        log(INFO, "tacit: %s abstained from the %s", vote.words, vote.vote)
    if result.warning:
        log(WARNING, "tacit: %s", result.warning)
        raise MostAbstained(result)
    log(
        INFO,
        "tacit: chose %s; epsilon %.4g of %g",
        result.config,
        result.privacy.epsilon,
        allowed.epsilon,
    )
    return result


@dataclass(frozen=True)
class Settings:
    """What a run's configuration says about Tacit."""

    plan: Plan
    given: frozenset[str]
    """The keys of the plan that were set, all others have their defaults."""
    out: str = ""
    resume: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any], plan: Path | None = None) -> Settings:
        """Settings from a plan file, if any, changed by ``context.run_config``.

        Keys without ``tacit.`` in front are the app's own.

        >>> Settings.of({"lr": 0.1, "tacit.search.votes": 3}).plan.search.votes
        3
        """
        ours = {k.removeprefix(_PREFIX): v for k, v in config.items() if k.startswith(_PREFIX)}
        table = read_table(plan) if plan else {}
        for key, value in ours.items():
            table = with_value(table, key.split("."), value)
        run = table.pop("run", {})
        if not isinstance(run, Mapping) or not all(isinstance(told, str) for told in run.values()):
            raise ValueError(f"tacit.run is {run!r}; allowed are texts: tacit.run.out, .resume")
        unknown = set(run) - {"out", "resume"}
        if unknown:
            raise ValueError(f"tacit.run.{unknown.pop()} is not a setting; allowed are out, resume")
        complete = read_plan(table)  # refuses what is no section
        given = {f"{section}.{key}" for section, keys in table.items() for key in keys}
        return cls(complete, frozenset(given), **run)

    def folder(self, run: str) -> Path:
        """Where a run's results and journal go."""
        base = Path(self.out) if self.out else ledger_path("any").parent.parent / "runs"
        return base / run

    def federation(self, grid: Grid, budget: Budget, run: str, folder: Path) -> Federation:
        """The server's side over a grid, once enough nodes are connected."""
        terms, privacy = self.plan.federation, self.plan.privacy
        membership = Membership.load(Path(terms.roster_file)) if terms.roster_file else None
        expected = terms.clients if "federation.clients" in self.given else None
        if membership:
            if expected not in (None, len(membership.names)):
                raise ValueError(
                    f"{expected} clients are planned and {len(membership.names)} are on the roster"
                )
            participation = membership.participation
            nodes = wait_for_nodes(grid, participation.clients, terms.wait)
        else:
            nodes = wait_for_nodes(grid, expected or 2, terms.wait)
            planned = expected or len(nodes)
            nodes = nodes[:planned]
            participation = Participation(planned, privacy.dropout, privacy.colluding)
        if len(nodes) < participation.threshold:
            raise TooFewClients("connect", len(nodes), participation.threshold)
        simulated = is_simulation(grid)
        deadline = terms.deadline
        if "federation.deadline" not in self.given and not simulated:
            deadline = DEADLINE
        folder.mkdir(parents=True, exist_ok=True)
        return over_grid(
            grid,
            nodes,
            participation,
            membership.roster if membership else None,
            self._ledger(budget, folder, membership, simulated=simulated),
            run,
            secure=terms.secure,
            timeout=terms.timeout,
            deadline=deadline,
            setting=SIMULATED_ON_FLOWER if simulated else DEPLOYED_ON_FLOWER,
            follows=FOLLOWS,
            journal=Journal(folder, {"run": run}, kind_of_piece),
            transcripts=folder / "transcripts" if membership else None,
        )

    def _ledger(
        self, budget: Budget, folder: Path, membership: Membership | None, *, simulated: bool
    ) -> Ledger:
        """The federation's lifetime ledger; only simulated clients may end with their run."""
        name = self.plan.federation.name or (membership.federation if membership else "")
        if name:
            return Ledger.of(name, budget)
        if not simulated:
            raise ValueError(
                "federation.name is empty; real clients need a ledger that outlives the run: set "
                "tacit.federation.name to the federation's name"
            )
        path = folder / "ledger.sqlite"
        return Ledger(path) if path.exists() else Ledger.create(path, "this-run", budget)


def check_engine(plan: Plan) -> None:
    """Refuse a plan that Flower's messages must not carry."""
    if plan.federation.secure not in HIDING:
        raise ValueError(
            f"federation.secure is {plan.federation.secure!r}; allowed on Flower is "
            f"{' or '.join(map(repr, HIDING))}: a plain sum would show every noisy answer to "
            "whoever carries it"
        )


def over_grid(
    grid: Grid,
    nodes: Sequence[int],
    participation: Participation,
    roster: Roster | None,
    ledger: Ledger,
    run: str,
    *,
    secure: str,
    timeout: float,
    deadline: float,
    **more: Any,
) -> Federation:
    """A federation whose messages are Flower's; ``more`` are further fields of it."""
    report = Progress().report
    return Federation(
        FlowerChannel(grid, nodes, participation.clients, deadline, timeout, report, roster=roster),
        secure_sum(secure, roster),
        ledger,
        participation,
        run,
        roster=roster,
        deadline=deadline,
        **more,
    )


def wait_for_nodes(grid: Grid, expected: int, seconds: float) -> list[int]:
    """The connected nodes in order, as soon as there are enough of them or the time is up."""
    begun = time.monotonic()
    told = -1
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= expected or time.monotonic() - begun >= seconds:
            return nodes
        if len(nodes) != told:
            told = len(nodes)
            log(INFO, "tacit: %d of %d nodes are connected, waiting", told, expected)
        time.sleep(_WAIT_SECONDS)


def is_simulation(grid: Grid) -> bool:
    """Whether a grid belongs to Flower's simulation, where one machine plays everybody."""
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


@dataclass
class Progress:
    """Lines in the log: stage, nodes answered, seconds; a few each stage, the last one always."""

    every: float = 10.0
    last: float = -math.inf

    def report(self, stage: str, answered: int, asked: int, seconds: float) -> None:
        now = time.monotonic()
        if answered in (0, asked) or now - self.last >= self.every:
            self.last = now
            log(INFO, "tacit: %s: %d of %d nodes answered, %.0f s", stage, answered, asked, seconds)


def _log_chance(
    method: Tuner,
    strategy: Strategy | None,
    space: Space,
    budget: Budget,
    participation: Participation,
) -> None:
    """Say how likely a vote of so many clients picks well, before anything is spent."""
    if isinstance(method, Vote) and method.count_abstentions:
        candidates = space.count(method.candidates, method.sampling)
        counted = counting(method, candidates, participation, budget)
        if counted is not None:
            log(INFO if counted.tells else WARNING, "tacit: abstentions %s", counted.words)
    if strategy is not None:
        log(INFO, "tacit: %s", strategy.why)
        if strategy.loss > POOR_LOSS:
            log(WARNING, "tacit: %s", strategy.warning)
    elif isinstance(method, Vote) and method.plain:
        candidates = space.count(method.candidates, method.sampling)
        priced = price(participation, candidates, method.votes, budget)
        chance = f"if all agree, a good candidate wins {percent(priced.success)} of the time"
        log(WARNING if priced.warning else INFO, "tacit: %s", priced.warning or chance)


def log_round(note: RoundNote) -> None:
    """A round of a method that trains, as a line in the log."""
    log(INFO, "tacit: round %s", note.to_json())


def log_refusals(federation: Federation) -> None:
    """How many nodes refused, and why, in their own public words; and what else went wrong."""
    if isinstance(federation.channel, FlowerChannel):
        for reason, times in federation.channel.refusals.items():
            log(WARNING, "tacit: %d node(s) refused at %s", times, reason)
    for reason, times in federation.unusable.items():
        log(WARNING, "tacit: %d answer(s) in clear were left out: %s", times, reason)
    for fault in federation.faults:
        log(WARNING, "tacit: %s", fault)
    if federation.unkept:
        log(WARNING, "tacit: %d transcript(s) were too large to keep", federation.unkept)
