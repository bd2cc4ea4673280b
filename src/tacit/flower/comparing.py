"""Several methods on the same real nodes: one charge for all of them, before the first question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid

from tacit.flower.server import Settings, check_engine, log_refusals, log_round
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import RECORD
from tacit.privacy.ledger import check_name
from tacit.report import write_run
from tacit.result import Result
from tacit.space import Dimension, Space, as_space
from tacit.tuners.side_by_side import SideBySide
from tacit.tuners.tuner import NeedsSums, Tuner, unit_of
from tacit.tuning import conclude, run_name
from tacit.wording import rounded_up


def compare(
    grid: Grid,
    context: Context,
    methods: Mapping[str, Tuner],
    *,
    space: Space | Mapping[str, Dimension] | None = None,
    budget: Budget | None = None,
    plan: Path | None = None,
) -> dict[str, Result]:
    """Hold several methods on the nodes of a grid; the budget covers all of them together.

    Each has more noise than it would have alone, so that the composition of all their questions
    fits. What that costs is logged and charged to the federation's ledger before anybody is asked.
    The epsilon of every result is that of all of them: who sees one sees the others. Choices are
    compared here, not models: train with each by a strategy of yours and measure on data of yours.

    >>> from flwr.app import RecordDict
    >>> compare(None, Context(1, 1, {}, RecordDict(), {}), {}, budget=Budget(1.0, 1e-5))
    Traceback (most recent call last):
        ...
    ValueError: there is no method to compare; give at least one by a name

    Args:
        grid: the grid of the ServerApp.
        context: its context; settings as for :func:`tacit.flower.tune`.
        methods: tuners by a name of yours, which names the folders of their results.
        space: what to tune.
        budget: the most that all may spend together.
        plan: a plan file; the settings change it.

    Raises:
        BudgetExceeded: the federation's ledger has too little left; nobody was asked.
        TooFewClients: too many nodes are missing; what was charged stays charged.
    """
    settings = Settings.of(context.run_config, plan)
    terms = settings.plan.privacy
    wanted = settings.plan.space if space is None else as_space(space)
    allowed = Budget(terms.epsilon, terms.delta) if budget is None else budget
    check_engine(settings.plan)
    _check(methods, wanted, allowed)
    planned = SideBySide.planned(methods, wanted, allowed)
    run = settings.resume or run_name(planned.name)
    folder = settings.folder(run)
    federation = settings.federation(grid, allowed, run, folder)
    for method in methods.values():
        if isinstance(method, NeedsSums):
            method.check_sums(federation.secure.name)
    federation.watch = log_round
    cost = spent(planned.event(wanted), allowed.delta)
    log(
        INFO,
        "tacit: run %s compares %s; all together cost epsilon %s at delta %g (per %s, %s), charged "
        "before anybody is asked; results go to %s",
        run,
        ", ".join(methods),
        rounded_up(cost.epsilon),
        cost.delta,
        cost.unit,
        cost.relation,
        folder,
    )
    privacy = replace(terms, epsilon=allowed.epsilon, delta=allowed.delta)
    text = replace(settings.plan, space=wanted, privacy=privacy).to_toml()
    results = {}
    try:
        with federation.held():
            for name, outcome in planned.held(federation, wanted, settings.plan.search.seed):
                results[name] = conclude(methods[name], outcome, federation, allowed)
                (folder / name).mkdir(exist_ok=True)
                write_run(results[name], text, folder / name)
                log(INFO, "tacit: %s chose %s", name, results[name].config)
                if results[name].warning:
                    log(WARNING, "tacit: %s: %s", name, results[name].warning)
    finally:
        log_refusals(federation)
    return results


def _check(methods: Mapping[str, Tuner], space: Space, budget: Budget) -> None:
    """Refuse what cannot be one charge with a meaning."""
    if not methods:
        raise ValueError("there is no method to compare; give at least one by a name")
    if math.isinf(budget.epsilon):
        raise ValueError(
            "epsilon is inf; allowed for a comparison on real clients is a finite one: references "
            "in clear belong into a simulation (`tacit compare`)"
        )
    for name, method in methods.items():
        check_name(name, "a method's name")
        if unit_of(method, space) == RECORD:
            raise ValueError(
                f"{name} protects single records, and the others clients; allowed are methods of "
                "one kind, so that one epsilon says something"
            )
