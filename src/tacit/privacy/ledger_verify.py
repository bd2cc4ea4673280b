"""Every line of a ledger, recomputed from what it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from tacit.cores import cores
from tacit.privacy.accounting import Budget, Guarantee, spent
from tacit.privacy.ledger_file import SCHEMA, LedgerFile
from tacit.privacy.ledger_history import History, total_problem
from tacit.privacy.ledger_lines import Charge, LedgerError, Line, Misfit, Problem
from tacit.privacy.ledger_totals import BOUNDED, TOLERANCE, Spending
from tacit.privacy.losses import TooLargeToPrice

_AHEAD = 256
"""Of so many lines, prices may wait to be computed."""


def verify(file: LedgerFile) -> list[Problem]:
    """Whatever does not agree; an empty list means all agree.

    A recorded total agrees if it is one of the two prices of :mod:`tacit.privacy.ledger_totals`,
    whichever it says it is; in particular it is not below the smaller of them.
    """
    problems: list[Problem] = []
    try:
        with file.looking():
            unsound = file.unsound()
            problems += [Problem(1, unsound)] if unsound else []
            lines = file.lines(None)
    except LedgerError as error:
        return [*problems, Problem(1, str(error))]
    if not lines:
        return [*problems, Problem(1, "this line is missing")]
    history, pending = History(), deque[tuple[int, Future[list[str]]]]()
    with ThreadPoolExecutor(cores()) as pool:  # NumPy computes without the interpreter's lock
        for line in lines:
            if line.number != history.length + 1:
                problems.append(Problem(history.length + 1, "this line is missing"))
                break
            problems += [Problem(line.number, found) for found in _problems(history, line)]
            if history.charges and history.charges[-1].number == line.number:
                check = _check_of(history, history.charges[-1])
                pending.append((line.number, pool.submit(check)))
                if len(pending) > _AHEAD:  # each of which has a copy of what counted
                    problems += _found(*pending.popleft())
        while pending:
            problems += _found(*pending.popleft())
    return sorted(problems, key=lambda problem: problem.number)


def _found(number: int, wrong: Future[list[str]]) -> list[Problem]:
    return [Problem(number, found) for found in wrong.result()]


def intact(file: LedgerFile) -> list[Charge]:
    """The charges before the first line that is missing, was altered or cannot be read."""
    history = History()
    try:
        with file.looking():
            lines = file.lines(None)
    except LedgerError:
        return []
    for line in lines:
        try:
            history.follow(line)
        except Misfit:
            break
    return history.charges


def wrong_schema(history: History) -> str:
    """What is wrong with the first line, if it is not of a file like this."""
    if history.opening.schema != SCHEMA:
        return "records another schema than that of this version"
    return ""


def _problems(history: History, line: Line) -> list[str]:
    """What is wrong with a line; the history goes on after it in any case."""
    found = []
    try:
        history.check_link(line)
    except Misfit as misfit:
        found.append(_said(misfit))
    try:
        history.read(line)
    except Misfit as misfit:
        history.pass_by(line)
        return [*found, _said(misfit)]
    if line.number == 1 and (wrong := wrong_schema(history)):
        found.append(_said(Misfit(wrong)))
    return found


def _said(misfit: Misfit) -> str:
    return f"the line {misfit}"


def _check_of(history: History, charge: Charge) -> Callable[[], list[str]]:
    """What recomputes the prices of the newest line; the history may go on meanwhile."""
    budget = history.budget
    total = _total_later(history.spending, charge, budget)
    return partial(_wrong_prices, charge, budget, total)


def _wrong_prices(charge: Charge, budget: Budget, total: Callable[[], Guarantee]) -> list[str]:
    found = []
    try:
        alone = spent(charge.event, budget.delta)
        if not _agree(charge.alone, alone):
            found.append(
                f"the line records epsilon alone as {charge.alone.epsilon:.6g} at delta "
                f"{charge.alone.delta:g}, recomputed {alone.epsilon:.6g} at delta {budget.delta:g}"
            )
        recomputed = total()
    except TooLargeToPrice as error:
        return [*found, f"the line cannot be priced: {error}"]
    if not _agree(charge.total, recomputed):
        found.append(f"the line {total_problem(charge, recomputed.epsilon, budget.delta)}")
    if charge.total.epsilon > budget.epsilon:
        found.append(
            f"epsilon {charge.total.epsilon:.6g} exceeds the budget of {budget.epsilon:g} then in "
            "force"
        )
    return found


def _total_later(spending: Spending, charge: Charge, budget: Budget) -> Callable[[], Guarantee]:
    """What computes the price that was recorded, or the smallest one.

    The exact one only if it has to be, and never in the thread that reads line after line.
    """
    delta = budget.delta
    if spending.cheap:
        return partial(_cheap_total, spending.plus(), charge, delta)
    for price in (spending.quick, spending.bound):
        found = price(delta)
        if found and _agree(charge.total, found):
            return partial(_as_found, found)
    return spending.tight_later(delta)


def _cheap_total(spending: Spending, charge: Charge, delta: float) -> Guarantee:
    prices = [spending.quick, spending.bound]
    if charge.total.accounting != BOUNDED:
        prices.reverse()
    for price in prices:
        found = price(delta)
        if found and _agree(charge.total, found):
            return found
    return spending.tight(delta)


def _as_found(found: Guarantee) -> Guarantee:
    return found


def _agree(stored: Guarantee, recomputed: Guarantee) -> bool:
    close = stored.epsilon == recomputed.epsilon or (
        abs(stored.epsilon - recomputed.epsilon) <= TOLERANCE * abs(recomputed.epsilon)
    )
    return close and (stored.delta, stored.unit, stored.relation) == (
        recomputed.delta,
        recomputed.unit,
        recomputed.relation,
    )
