"""What many charges cost together: never less than the truth, with work that does not grow."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import accounting, events, ledger_totals
from tacit.privacy.accounting import RDP_ORDERS, Budget, Guarantee, calibrate, spent
from tacit.privacy.bounds import BordaVotes, TopVotes
from tacit.privacy.events import (
    Composed,
    Event,
    Release,
    Repeated,
    SampledGaussian,
    SkellamNormRelease,
    SkellamRelease,
    Unprotected,
    compose,
    releases,
)
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerError
from tacit.privacy.ledger_history import History
from tacit.privacy.ledger_totals import BOUNDED, FEW, Spending
from tests.forgeries import chained_anew, edit

DELTA = 1e-5
VOTE, RANKS = TopVotes(100, 5).release, BordaVotes(10, 2).release
SEVERAL: tuple[Event, ...] = (
    TopVotes(100, 5).release(variance=139.0),
    BordaVotes(10, 3).release(variance=500.0),
    Repeated(SkellamRelease(((3, 2), (1, 4)), 5_000.0), 7),
    SkellamNormRelease(2.0, 1.0, 900.0),
    SampledGaussian(0.01, 1.5, 100),
    Composed((SkellamRelease(((1, 1),), 200.0), SkellamRelease(((1, 2),), 300.0))),
)


def votes(count: int) -> list[SkellamRelease]:
    """So many releases, each with noise of its own."""
    return [TopVotes(100, 5).release(20_000.0 + 10 * number) for number in range(count)]


def together(charged: list[Event]) -> Spending:
    spending = Spending()
    for event in charged:
        spending.add(event)
    return spending


@given(st.lists(st.sampled_from(SEVERAL), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_an_ordinary_ledger_costs_the_composition_of_everything_in_any_order(
    charged: list[Event],
) -> None:
    exact = spent(compose(charged), DELTA)
    for order in (charged, charged[::-1], random.Random(1).sample(charged, len(charged))):
        spending = together(order)
        assert spending.bound(DELTA) == spending.tight(DELTA) == exact
        assert spent(Composed(tuple(order)), DELTA) == exact


@given(st.lists(st.sampled_from(SEVERAL), min_size=2, max_size=8), st.data())
@settings(max_examples=30, deadline=None)
def test_what_is_removed_leaves_nothing_behind(charged: list[Event], data: Any) -> None:
    gone = data.draw(st.sampled_from(charged))
    left = list(charged)
    left.remove(gone)
    spending = together(charged)
    spending._by_two_numbers(DELTA)
    spending.remove(gone)
    assert spending.counts == together(left).counts
    assert spending.bound(DELTA) == together(left).bound(DELTA)
    assert spending._by_two_numbers(DELTA).epsilon == pytest.approx(
        together(left)._by_two_numbers(DELTA).epsilon, rel=1e-12
    )


@pytest.mark.parametrize(
    "release",
    [
        SkellamRelease(((1, 10),), 139.0),
        SkellamRelease(((1, 10),), 3.0),
        SkellamRelease(((50, 3), (1, 40)), 900.0),
        SkellamRelease(((64, 1),), 1e7),
        SkellamNormRelease(9.0, 3.0, 40.0),
        SkellamNormRelease(1.0, 1.0, 0.7),
    ],
)
def test_the_straight_line_is_above_the_curve(release: SkellamRelease | SkellamNormRelease) -> None:
    slope, offset = ledger_totals._straight(release)
    assert offset >= 0
    for order, divergence in zip(RDP_ORDERS, release.rdp(RDP_ORDERS), strict=True):
        assert slope * order + offset >= divergence * (1 - 1e-12)


@pytest.mark.parametrize("count", [FEW + 1, 60, 200])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_the_quick_price_is_an_upper_bound_and_not_far_above(count: int, delta: float) -> None:
    spending = together(list(votes(count)))
    quick, exact = spending.bound(delta), spending.tight(delta)
    assert quick.accounting == BOUNDED
    assert exact == spent(compose(votes(count)), delta)
    assert exact.epsilon <= quick.epsilon <= 1.15 * exact.epsilon
    assert (quick.unit, quick.relation, quick.delta) == (exact.unit, exact.relation, exact.delta)


def test_records_and_answers_in_clear_are_bounded_as_what_they_are() -> None:
    spending = together([*votes(FEW), SampledGaussian(0.01, 2.0, 10)])
    assert spending.bound(DELTA).unit == "record"
    spending.add(Unprotected("answers"))
    assert spending.bound(DELTA).epsilon == math.inf


def test_sampling_error_is_paid_in_the_quick_price_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = together(list(votes(FEW + 1))).bound(DELTA).epsilon
    monkeypatch.setattr(accounting, "SAMPLING_ERROR", 1e-8)
    after = together(list(votes(FEW + 1))).bound(DELTA).epsilon
    assert before < after < math.inf


def test_a_plan_that_was_calibrated_to_its_budget_is_never_refused() -> None:
    """To the last digit: of one question often, and of different ones, in any order."""
    budget = Budget(2.0, 1e-6)

    def plan(variance: float) -> Event:
        return Composed((Repeated(VOTE(variance), 40), RANKS(variance / 3), VOTE(2 * variance)))

    variance = calibrate(plan, budget)
    asked: list[Event] = [VOTE(2 * variance), RANKS(variance / 3), *[VOTE(variance)] * 40]
    for order in (asked, asked[::-1]):
        ledger = Ledger.in_memory("f", budget)
        for event in order:
            ledger.charge(event, "vote", "run")
        with pytest.raises(BudgetExceeded):
            ledger.charge(VOTE(variance), "vote", "run")


def test_the_exact_price_is_tried_before_anything_is_refused() -> None:
    """With so many different releases that the quick price exceeds a budget that suffices."""
    asked = votes(FEW + 8)
    budget = Budget(spent(compose(asked), DELTA).epsilon, DELTA)
    ledger = Ledger.in_memory("f", budget)
    charges = [ledger.charge(event, "vote", "run") for event in asked]
    assert together(list(asked)).bound(DELTA).epsilon > budget.epsilon
    assert charges[-1].total.epsilon == budget.epsilon
    assert BOUNDED in {charge.total.accounting for charge in charges}
    assert ledger.total().epsilon == budget.epsilon
    assert ledger.verify() == []
    with pytest.raises(BudgetExceeded):
        ledger.charge(asked[0], "vote", "run")


def test_an_understated_quick_total_is_found(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(20.0, DELTA))
    for event in votes(FEW + 2):
        charge = ledger.charge(event, "vote", "run")
    exact = ledger.total().epsilon
    for share, refused in ((0.999, True), (1.0, False)):
        path = tmp_path / f"{share}.sqlite"
        path.write_bytes(ledger.path.read_bytes())
        stated = f'"epsilon": {charge.total.epsilon!r}'
        edit(
            path,
            f"UPDATE line SET body = replace(body, '{stated}', '\"epsilon\": {exact * share!r}') "
            f"WHERE number = {charge.number}",
        )
        chained_anew(path)
        found = Ledger(path)
        assert bool(found.verify()) == refused, "the exact price is one that may be recorded"
        if refused:
            with pytest.raises(LedgerError, match=f"line {charge.number} records epsilon in total"):
                found.charge(VOTE(1e6), "vote", "run")
        else:
            found.charge(VOTE(1e6), "vote", "run")


class Work:
    """How many releases are priced one by one, and how many lines are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.priced = self.read = 0
        curve, straight = SkellamRelease.plds, ledger_totals._straight
        follow = History.follow

        def plds(release: Any, *arguments: Any) -> Any:
            self.priced += 1
            return curve(release, *arguments)

        def line(release: Any) -> Any:
            self.priced += 1
            return straight(release)

        def counted(history: Any, row: Any) -> None:
            self.read += 1
            follow(history, row)

        monkeypatch.setattr(SkellamRelease, "plds", plds)
        monkeypatch.setattr(ledger_totals, "_straight", line)
        monkeypatch.setattr(History, "follow", counted)


@pytest.mark.parametrize("kinds", [1, 400])
def test_the_work_of_a_charge_does_not_grow_with_the_lines(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    """Counted, not timed: releases that are priced and lines that are read at every charge."""
    ledger = Ledger.in_memory("f", Budget(29.0, DELTA))
    asked = votes(kinds) * (400 // kinds)
    work, per_charge = Work(monkeypatch), []
    for event in asked:
        before = work.priced + work.read
        ledger.charge(event, "vote", "run")
        ledger.knows("other")
        per_charge.append(work.priced + work.read - before)
    assert max(per_charge[-100:]) <= max(per_charge[FEW + 2 : FEW + 102])
    assert max(per_charge[-100:]) <= 8


@pytest.mark.parametrize("kinds", [1, 300])
def test_verifying_takes_work_that_grows_with_the_lines_and_not_their_square(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    done = []
    for count in (300, 600):
        ledger = Ledger.in_memory("f", Budget(29.0, DELTA))
        for event in (votes(kinds) * (600 // kinds))[:count]:
            ledger.charge(event, "vote", "run")
        accounting._spent.cache_clear()
        with monkeypatch.context() as patch:
            work = Work(patch)
            assert ledger.verify() == []
            done.append(work.priced)
    assert done[1] <= 2.5 * done[0]


def test_dearer_prices_are_computed_while_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exact price of many different releases is never computed inside of a transaction."""
    asked = votes(FEW + 8)
    ledger = Ledger.create(
        tmp_path / "l.sqlite", "f", Budget(spent(compose(asked), DELTA).epsilon, DELTA)
    )
    inside: list[bool] = []
    real = accounting.spent_together

    def watched(counts: Any, delta: float) -> Guarantee:
        if len(counts) > FEW:
            inside.append(ledger._file.connection.in_transaction)
        return real(counts, delta)

    monkeypatch.setattr(ledger_totals, "spent_together", watched)
    for event in asked[:-1]:
        ledger.charge(event, "vote", "run")
    rival = Ledger(ledger.path)
    rival.bar("somebody wrote meanwhile")
    ledger.charge(asked[-1], "vote", "run")
    assert inside
    assert not any(inside)


def test_the_order_of_releases_changes_no_digit() -> None:
    asked: list[Release] = [release for event in SEVERAL for release in releases(event)]
    exact = {spent(Composed(tuple(order)), DELTA).epsilon for order in (asked, asked[::-1])}
    assert len(exact) == 1
    assert events.releases(Composed(tuple(asked))) == events.releases(Composed(tuple(asked[::-1])))
