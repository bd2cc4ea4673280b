from __future__ import annotations

import math
from pathlib import Path

import pytest

from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import Event, Repeated, Unprotected
from tacit.privacy.filters import split_ladder
from tacit.privacy.ledger import Ledger
from tacit.privacy.quoting import Quote, quotes

VOTE = TopVotes(100, 5).release(variance=200.0)
LADDER = (1.0, 2.0, 4.0)
CAVEAT = "No number here may be quoted without a caveat"


@pytest.fixture
def plain(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "plain.sqlite", "clinics", Budget(1.0, 1e-5))


@pytest.fixture
def announced(tmp_path: Path) -> Ledger:
    steps = split_ladder(LADDER, 1e-5)
    return Ledger.create(tmp_path / "steps.sqlite", "clinics", Budget(1.0, 1e-5), steps)


def charge(ledger: Ledger, event: Event = VOTE, run: str = "first") -> None:
    ledger.charge(event, label="vote", run=run)


def raised(ledger: Ledger, epsilon: float, delta: float = 1e-5) -> None:
    ledger.amend(Budget(epsilon, delta), "the board")


def by_name(ledger: Ledger) -> dict[str, Quote]:
    return {quote.name: quote for quote in quotes(ledger).quotes}


def quotable(ledger: Ledger) -> set[str]:
    return {quote.name for quote in quotes(ledger).quotes if quote.quotable}


def test_a_budget_never_raised_leaves_two_numbers_with_their_conditions(plain: Ledger) -> None:
    charge(plain)
    found = by_name(plain)
    assert set(found) == quotable(plain) == {"distributions", "filter"}
    assert found["distributions"].epsilon == plain.total().epsilon
    assert "fixed before the first answer" in found["distributions"].sentence
    assert found["filter"].epsilon == 1.0, "the budget, since less would depend on the answers"
    assert "chosen after looking at answers" in found["filter"].sentence
    assert quotes(plain).verdict == (
        "Quote epsilon 0.8191 at delta 1e-05, by distributions, if everything was planned before "
        "the first answer; otherwise epsilon 1 at delta 1e-05, by the filter."
    )


def test_several_runs_have_to_be_planned_together(plain: Ledger) -> None:
    raised(plain, 2.0)
    charge(plain, run="first")
    charge(plain, run="second")
    assert "questions of all 2 runs were fixed" in by_name(plain)["distributions"].sentence


def test_nothing_is_quoted_before_anything_was_charged(plain: Ledger) -> None:
    assert quotes(plain).verdict == "Nothing was charged yet, so there is nothing to quote."


def test_a_filter_that_is_exceeded_is_not_quoted(plain: Ledger) -> None:
    """What fits by distributions need not fit the filter, which costs more."""
    charge(plain)
    charge(plain, TopVotes(100, 5).release(variance=700.0), run="second")
    found = by_name(plain)["filter"]
    assert not found.quotable
    assert found.epsilon == math.inf
    assert "exceed the filter" in found.sentence
    assert "only the 1 charge(s) before line 3" in found.sentence
    assert quotes(plain).verdict.endswith(
        "Otherwise no number here may be quoted without a caveat."
    )


def test_a_budget_raised_before_any_charge_is_fixed_beforehand(plain: Ledger) -> None:
    raised(plain, 2.0)
    charge(plain)
    assert quotable(plain) == {"distributions", "filter"}
    assert by_name(plain)["filter"].epsilon == 2.0


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-5), (1.0, 2e-5), (math.inf, 1e-5)])
def test_a_budget_raised_after_a_charge_leaves_no_number_without_a_caveat(
    plain: Ledger, epsilon: float, delta: float
) -> None:
    charge(plain)
    raised(plain, epsilon, delta)
    assert not quotable(plain)
    verdict = quotes(plain).verdict
    assert verdict.startswith(f"{CAVEAT}: line 3 raised the budget to epsilon {epsilon:g}")
    assert "after 1 charge(s), and no steps were announced" in verdict


def test_a_lowered_budget_changes_nothing_and_raising_it_back_neither(plain: Ledger) -> None:
    charge(plain)
    raised(plain, 0.9)
    raised(plain, 1.0)
    assert quotable(plain) == {"distributions", "filter"}


def test_a_budget_raised_as_announced_is_quoted_by_the_ladder(announced: Ledger) -> None:
    charge(announced)
    raised(announced, 2.0)
    assert quotable(announced) == {"ladder"}
    assert by_name(announced)["ladder"].step == 1, "nothing of the second step is spent yet"
    charge(announced, run="second")
    found = by_name(announced)["ladder"]
    assert (found.step, found.epsilon, found.delta) == (2, 2.0, 1e-5)
    assert "within step 2 of 3 (epsilon 1, 2, 4)" in found.sentence
    assert quotes(announced).verdict == (
        "Quote epsilon 2 at delta 1e-05, by the ladder: the budget was raised after charges, as "
        "announced."
    )
    assert announced.verify() == []


def test_a_ladder_takes_the_place_of_the_filter(announced: Ledger) -> None:
    """The smaller of both would need the delta of both."""
    charge(announced)
    assert quotable(announced) == {"distributions", "ladder"}
    assert "otherwise epsilon 1 at delta 1e-05, by the ladder" in quotes(announced).verdict


def test_a_budget_raised_beside_the_ladder_leaves_no_number_without_a_caveat(
    announced: Ledger,
) -> None:
    charge(announced)
    raised(announced, 3.0)
    raised(announced, 4.0)
    assert not quotable(announced)
    verdict = quotes(announced).verdict
    assert verdict.startswith(f"{CAVEAT}: line 3 raised the budget to epsilon 3")
    assert "outside the announced steps" in verdict


def test_charges_beyond_the_last_step_are_not_quoted(announced: Ledger) -> None:
    charge(announced)
    raised(announced, 4.0)
    times = 2
    while by_name(announced)["ladder"].step is not None:
        charge(announced, Repeated(VOTE, times))
        times = 1
    found = by_name(announced)["ladder"]
    assert not found.quotable
    assert found.epsilon == math.inf
    assert "exceed every announced step" in found.sentence
    assert quotes(announced).verdict.startswith(f"{CAVEAT}: line 3 raised")


def test_answers_in_clear_have_no_epsilon(plain: Ledger) -> None:
    raised(plain, math.inf)
    charge(plain, Unprotected("answers"))
    assert not quotable(plain)
    assert quotes(plain).verdict.startswith("No epsilon may be quoted")


def test_a_ladder_is_on_record_with_the_first_budget_alone(announced: Ledger) -> None:
    charge(announced)
    raised(announced, 2.0)
    assert announced.ladder == Ledger(announced.path).ladder == split_ladder(LADDER, 1e-5)
    assert [(line.budget.epsilon, line.charges_before) for line in announced.budgets()] == [
        (1.0, 0),
        (2.0, 1),
    ]


def test_a_ladder_that_is_none_makes_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "none.sqlite"
    whole = (Budget(1.0, 1e-5), Budget(2.0, 1e-5))
    with pytest.raises(ValueError, match="give each step a share"):
        Ledger.create(path, "clinics", Budget(1.0, 1e-5), whole)
    assert not path.exists()
