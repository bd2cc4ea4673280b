"""Which epsilon of a ledger may be quoted when.

A ledger knows every charge and every budget, and in which order they came. It does not know
*why* noise was chosen as it was. So each :class:`Quote` says what has to be true beside it, and
:attr:`Quote.quotable` is false only if the ledger itself shows that it is not.

The price by distributions (:func:`tacit.privacy.accounting.spent`) needs a plan that was fixed
before the first answer, the filter a budget that was fixed before, the ladder steps that were
announced before (:mod:`tacit.privacy.filters` has the proofs). With a ladder, the filter of the
first budget is not quoted beside it: whoever takes the smaller of the two after looking needs the
delta of both. A budget counts as raised if it was set after a charge and allows a larger epsilon,
or a larger delta, than the one at the first charge: only then could a result have been the reason.
Closed charges count nowhere, since nothing was released under them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.privacy.accounting import Budget, Guarantee
from tacit.privacy.filters import (
    announced_step,
    covered,
    filter_epsilon,
    filter_order,
    ladder_delta,
    ladder_step,
)
from tacit.privacy.ledger import BudgetLine, Charge, Ledger
from tacit.wording import rounded_up


@dataclass(frozen=True)
class Quote:
    """One epsilon and what has to be true for it to be quoted."""

    name: str
    """``distributions``, ``filter`` or ``ladder``."""
    epsilon: float
    """Infinite where nothing is proved."""
    delta: float
    quotable: bool
    """Whether the ledger's history allows it; what the sentence asks for has to be true too."""
    sentence: str
    step: int | None = None
    """Of the ladder, from 1 on."""


@dataclass(frozen=True)
class Quotes:
    """Every epsilon of a ledger that somebody could quote, and which one to take."""

    quotes: tuple[Quote, ...]
    verdict: str


@dataclass(frozen=True)
class _History:
    """What a ledger shows."""

    charges: list[Charge]
    opening: Budget
    """In force at the first charge: fixed before any answer."""
    ladder: tuple[Budget, ...]
    raises: list[BudgetLine]
    unannounced: list[BudgetLine]
    total: Guarantee

    @property
    def runs(self) -> int:
        return len({charge.run for charge in self.charges})


def quotes(ledger: Ledger) -> Quotes:
    """Every epsilon of a ledger, with the condition under which it holds.

    >>> from tacit.privacy.events import SkellamRelease
    >>> ledger = Ledger.in_memory("clinics", Budget(2.0, 1e-5))
    >>> charge = ledger.charge(SkellamRelease(((1, 10),), 200.0), label="vote", run="first")
    >>> [(quote.name, rounded_up(quote.epsilon)) for quote in quotes(ledger).quotes]
    [('distributions', '0.8191'), ('filter', '2')]
    >>> ledger.amend(Budget(3.0, 1e-5), "we want more")
    >>> [quote.quotable for quote in quotes(ledger).quotes]
    [False, False]
    """
    history = _history(ledger)
    found = [_distributions(history), _filter(history)]
    if history.ladder:
        found.append(_ladder(history))
    return Quotes(tuple(found), _verdict(history, found))


def _history(ledger: Ledger) -> _History:
    charges, budgets, ladder = ledger.counting(), ledger.budgets(), ledger.ladder
    opening = [line for line in budgets if not line.charges_before][-1].budget
    raises = [
        line
        for line in budgets
        if line.charges_before
        and (line.budget.epsilon > opening.epsilon or line.budget.delta > opening.delta)
    ]
    unannounced = [line for line in raises if announced_step(line.budget, ladder) is None]
    return _History(charges, opening, ladder, raises, unannounced, ledger.total())


def _distributions(history: _History) -> Quote:
    total = history.total
    if not math.isfinite(total.epsilon):
        sentence = f"It bounds nothing ({total.accounting})."
    elif history.raises:
        sentence = (
            f"Do not quote it by itself: {_raised(history.raises[0])}, and this number is proved "
            "only for a plan that nobody changed after an answer."
        )
    else:
        runs = f" of all {history.runs} runs" if history.runs > 1 else ""
        sentence = (
            f"Quote it if the noise levels and the number of questions{runs} were fixed before the "
            "first answer. The budget was never raised after a charge."
        )
    quotable = math.isfinite(total.epsilon) and not history.raises
    return Quote("distributions", total.epsilon, total.delta, quotable, sentence)


def _filter(history: _History) -> Quote:
    budget, events = history.opening, [charge.event for charge in history.charges]
    if not math.isfinite(budget.epsilon):
        return Quote(
            "filter",
            math.inf,
            budget.delta,
            quotable=False,
            sentence="There is no filter, because the budget at the first charge was infinite.",
        )
    reached, count = filter_epsilon(events, budget), covered(events, budget)
    everything = count == len(events)
    gauge = f"{rounded_up(reached)} of {budget.epsilon:g} at order {filter_order(budget)}"
    if not everything:
        first = history.charges[count].number
        sentence = (
            f"Do not quote it: the charges exceed the filter ({gauge}), which covers only the "
            f"{count} charge(s) before line {first}."
        )
    elif history.raises:
        sentence = (
            f"Do not quote it by itself: {_raised(history.raises[0])}. What was charged so far is "
            f"still within the filter of the earlier budget ({gauge})."
        )
    elif history.ladder:
        sentence = (
            f"Do not quote it: the announced ladder takes its place, with the same delta. The "
            f"charges are within the filter ({gauge})."
        )
    else:
        sentence = (
            "Quote it if noise levels or the number of questions were chosen after looking at "
            "answers, under this budget, which was fixed before the first. The charges are within "
            f"the filter ({gauge}); quote the {budget.epsilon:g}, since the smaller number depends "
            "on the answers."
        )
    quotable = everything and not history.raises and not history.ladder
    epsilon = budget.epsilon if everything else math.inf
    return Quote("filter", epsilon, budget.delta, quotable, sentence)


def _ladder(history: _History) -> Quote:
    ladder, delta = history.ladder, ladder_delta(history.ladder)
    steps = ", ".join(f"{step.epsilon:g}" for step in ladder)
    step = ladder_step([charge.event for charge in history.charges], ladder)
    if step is None:
        return Quote(
            "ladder",
            math.inf,
            delta,
            quotable=False,
            sentence=f"The charges exceed every announced step (epsilon {steps}).",
        )
    where = f"The charges are within step {step} of {len(ladder)} (epsilon {steps})"
    if history.unannounced:
        sentence = f"Do not quote it by itself: {_raised(history.unannounced[0])}. {where}."
    else:
        sentence = (
            "Quote it if noise, the number of questions or the budget was chosen after looking at "
            f"answers. {where}, announced before the first answer, each with its share of delta."
        )
    epsilon = ladder[step - 1].epsilon
    return Quote("ladder", epsilon, delta, not history.unannounced, sentence, step)


def _raised(line: BudgetLine) -> str:
    return (
        f"line {line.number} raised the budget to epsilon {line.budget.epsilon:g} at delta "
        f"{line.budget.delta:g} after {line.charges_before} charge(s)"
    )


def _verdict(history: _History, found: list[Quote]) -> str:
    """Which one to take, in one or two sentences."""
    if not history.charges:
        return "Nothing was charged yet, so there is nothing to quote."
    if not math.isfinite(history.total.epsilon):
        return "No epsilon may be quoted: no number bounds what was revealed."
    if history.unannounced:
        outside = "outside the announced steps" if history.ladder else "and no steps were announced"
        return (
            "No number here may be quoted without a caveat: "
            f"{_raised(history.unannounced[0])}, {outside}, and results that were seen by then may "
            "have been the reason. Say so wherever you quote one."
        )
    best = next((quote for quote in found[1:] if quote.quotable), None)
    if history.raises:
        if best is None:
            return (
                "No number here may be quoted without a caveat: "
                f"{_raised(history.raises[0])}, as announced, but the charges exceed every "
                "announced step. Say so wherever you quote one."
            )
        return (
            f"Quote epsilon {best.epsilon:g} at delta {best.delta:g}, by the {best.name}: the "
            "budget was raised after charges, as announced."
        )
    fixed = (
        f"Quote epsilon {rounded_up(history.total.epsilon)} at delta {history.total.delta:g}, by "
        "distributions, if everything was planned before the first answer"
    )
    if best is None:
        return f"{fixed}. Otherwise no number here may be quoted without a caveat."
    return (
        f"{fixed}; otherwise epsilon {best.epsilon:g} at delta {best.delta:g}, by the {best.name}."
    )
