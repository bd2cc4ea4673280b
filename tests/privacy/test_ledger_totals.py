"""What many charges cost together: never less than the truth, with work that does not grow."""

from __future__ import annotations

import math
import multiprocessing
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import accounting, events, ledger_totals
from tacit.privacy import ledger as ledger_module
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
from tacit.privacy.ledger_totals import BOUNDED, Spending
from tacit.privacy.noise_lattice import FEW
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


def test_nor_is_a_plan_of_so_many_noises_that_they_are_rounded_down() -> None:
    budget = Budget(2.0, 1e-6)

    def questions(variance: float) -> list[Event]:
        return [VOTE(variance * 1.05**number) for number in range(FEW + 8)]

    variance = calibrate(lambda noise: compose(questions(noise)), budget)
    for order in (questions(variance), questions(variance)[::-1]):
        ledger = Ledger.in_memory("f", budget)
        for event in order:
            charge = ledger.charge(event, "vote", "run")
        assert charge.total.accounting.endswith("noise rounded down")
        with pytest.raises(BudgetExceeded):
            ledger.charge(order[0], "vote", "run")
        assert ledger.verify() == []


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


@pytest.mark.parametrize("kinds", [FEW, 300])
def test_near_the_budget_and_far_from_it_a_line_takes_few_transforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    """Counted: tables of losses that are made, their transforms, and prices in a process's life.

    Whoever opens the ledger anew makes those of what counts once, each next line next to none.
    """
    asked, lines = [TopVotes(100, 5).release(1e6 + 100 * number) for number in range(kinds)], 600
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(29.0, DELTA))
    ledger.charge_all([("vote", event) for event in asked * (lines // kinds)], "run")
    tight = ledger.total().epsilon
    ledger.amend(Budget(tight * 1.03, DELTA), "the budget is nearly spent")
    # New places on the lattice, and new lengths of transforms, are met now and then.
    next_lines, new = 30, 6

    def anew() -> Ledger:
        accounting._spent.cache_clear()
        events._coordinate.cache_clear()
        work.clear()
        return Ledger(ledger.path)

    work = Counter[str]()
    tables, transforms = events._shift_losses, np.fft.rfft

    def watched_tables(*arguments: Any) -> Any:
        work["tables"] += 1
        return tables(*arguments)

    def watched_transforms(*arguments: Any) -> Any:
        work["transforms"] += 1
        return transforms(*arguments)

    monkeypatch.setattr(events, "_shift_losses", watched_tables)
    monkeypatch.setattr(np.fft, "rfft", watched_transforms)
    opened = anew()
    bounded = [
        opened.charge(VOTE(1e6 + 100 * number + 7), "vote", "run").total.accounting == BOUNDED
        for number in range(next_lines)
    ]
    assert not any(bounded), "every line is priced exactly, since its bound is above the budget"
    # What counts, the question alone, and both again whenever the grid changes
    assert max(work.values()) <= 2 * (FEW + next_lines) + new, work
    opened = anew()
    assert opened.verify() == []
    assert max(work.values()) <= 2 * (FEW + next_lines) + kinds + new, work


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


class Prices:
    """What a ledger computes to price a charge, and where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> None:
        self.charges, self.inside = 0, list[bool]()
        exact, quick, totals = (
            accounting.spent_together,
            Spending._by_two_numbers,
            ledger_module._totals,
        )

        def watched_exact(counts: Any, delta: float) -> Guarantee:
            self.inside.append(ledger._file.connection.in_transaction)
            return exact(counts, delta)

        def watched_quick(spending: Spending, delta: float) -> Guarantee:
            self.inside.append(ledger._file.connection.in_transaction)
            return quick(spending, delta)

        def watched_totals(history: History, asked: Any) -> list[Guarantee]:
            self.charges += 1
            return totals(history, asked)

        monkeypatch.setattr(ledger_totals, "spent_together", watched_exact)
        monkeypatch.setattr(Spending, "_by_two_numbers", watched_quick)
        monkeypatch.setattr(ledger_module, "_totals", watched_totals)


@pytest.mark.parametrize("kinds", [3, FEW + 8])
def test_nothing_is_priced_in_a_transaction_also_if_the_budget_was_amended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    asked = votes(kinds)
    enough, less = spent(compose(asked), DELTA), spent(compose(asked), DELTA / 2)
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(less.epsilon, DELTA))
    for event in asked[:-1]:
        ledger.charge(event, "vote", "run")
    rival, real = Ledger(ledger.path), ledger._append
    budgets = [Budget(less.epsilon, DELTA / 2), Budget(enough.epsilon * 0.999, DELTA)]

    def amended_just_before(decide: Any) -> None:
        if budgets:
            rival.amend(budgets.pop(0), "meanwhile")
        real(decide)

    monkeypatch.setattr(ledger, "_append", amended_just_before)
    prices = Prices(monkeypatch, ledger)
    with pytest.raises(BudgetExceeded):
        ledger.charge(asked[-1], "vote", "run")
    assert prices.charges == 3
    rival.amend(Budget(less.epsilon, DELTA / 2), "again")
    charge = ledger.charge(asked[-1], "vote", "run")
    assert charge.total.epsilon == less.epsilon
    assert charge.alone == spent(asked[-1], DELTA / 2)
    assert prices.inside
    assert not any(prices.inside)
    monkeypatch.undo()
    assert ledger.verify() == []


def test_whoever_does_not_charge_goes_on_while_a_charge_is_priced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a session that is closed, after which the charge is priced anew."""
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(20.0, DELTA))
    for session in ("s1", "s2"):
        ledger.charge_and_ask(VOTE(139.0), "vote", "run", session)
    rival, done = Ledger(ledger.path), list[str]()
    real = ledger_module._totals

    def meanwhile(history: History, asked: Any) -> list[Guarantee]:
        if ledger._file.connection.in_transaction:
            pytest.fail("a charge is priced while everybody waits")
        totals = real(history, asked)
        if not done:
            rival.seal("s1")
            rival.close("s2", {})
            assert rival.bar("s3")
        done.append(rival.charges()[0].state)
        return totals

    monkeypatch.setattr(ledger_module, "_totals", meanwhile)
    charge = ledger.charge(VOTE(139.0), "vote", "run")
    assert done == ["sealed", "sealed"]
    assert charge.total == spent(Repeated(VOTE(139.0), 2), DELTA)
    assert ledger.verify() == []


def charge_until(path: Path, started: Any, ended: Any) -> None:
    ledger = Ledger(path)
    while not ended.is_set():
        ledger.charge(VOTE(1e7), "vote", "rival")
        started.set()


def test_a_charge_is_priced_once_however_many_rivals_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a turn of its own it would start again whenever a rival was faster."""
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(29.0, DELTA))
    context = multiprocessing.get_context("spawn")
    started, ended = [context.Event() for _ in range(2)], context.Event()
    rivals = [
        context.Process(target=charge_until, args=(ledger.path, event, ended)) for event in started
    ]
    for rival in rivals:
        rival.start()
    try:
        assert all(event.wait(timeout=300) for event in started)
        prices, real = Prices(monkeypatch, ledger), ledger_module._totals

        def dear(history: History, asked: Any) -> list[Guarantee]:
            if prices.charges > 3:
                pytest.fail("a charge was priced again")
            totals = real(history, asked)
            time.sleep(0.3)  # stands for work; a rival charges in less
            return totals

        monkeypatch.setattr(ledger_module, "_totals", dear)
        for number in range(3):
            ledger.charge_all([("vote", VOTE(1e7 + number))] * 2, "own")
    finally:
        ended.set()
        for rival in rivals:
            rival.join(timeout=300)
    assert prices.charges == 3
    assert not any(prices.inside)
    assert [charge.run for charge in ledger.charges()].count("own") == 6
    assert ledger.verify() == []


def charge_once(path: Path, run: str) -> None:
    Ledger(path).charge(VOTE(139.0), "vote", run)


def price_until_killed(path: Path, ready: Any) -> None:
    def endless(*_: Any) -> None:
        ready.set()
        signal.pause()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "_totals", endless)
        Ledger(path).charge(VOTE(139.0), "vote", "killed")


def test_a_process_that_is_killed_while_it_prices_a_charge_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    ledger = Ledger.create(tmp_path / "l.sqlite", "f", Budget(29.0, DELTA))
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    head = context.Process(target=price_until_killed, args=(ledger.path, ready))
    head.start()
    assert ready.wait(timeout=300)
    behind = context.Process(target=charge_once, args=(ledger.path, "behind"))
    behind.start()
    head.kill()
    head.join()
    ledger.charge(VOTE(139.0), "vote", "next")
    behind.join(timeout=300)
    assert {charge.run for charge in ledger.charges()} == {"behind", "next"}


@pytest.mark.parametrize("kinds", [1, 200])
def test_many_questions_at_once_are_priced_with_work_that_grows_with_their_number(
    monkeypatch: pytest.MonkeyPatch, kinds: int
) -> None:
    done = []
    for count in (100, 200):
        ledger = Ledger.in_memory("f", Budget(29.0, DELTA))
        ledger.charge(VOTE(1e6), "vote", "first")
        accounting._spent.cache_clear()
        asked = [("vote", event) for event in (votes(kinds) * (200 // kinds))[:count]]
        with monkeypatch.context() as patch:
            work, prices = Work(patch), Prices(patch, ledger)
            assert len(ledger.charge_all(asked, "run")) == count
            done.append(work.priced + work.read + len(prices.inside))
        assert ledger.charges()[-1].total == together(
            [VOTE(1e6), *(event for _, event in asked)]
        ).bound(DELTA)
        assert ledger.verify() == []
    assert done[1] <= 2.5 * done[0]


def test_the_order_of_releases_changes_no_digit() -> None:
    asked: list[Release] = [release for event in SEVERAL for release in releases(event)]
    exact = {spent(Composed(tuple(order)), DELTA).epsilon for order in (asked, asked[::-1])}
    assert len(exact) == 1
    assert events.releases(Composed(tuple(asked))) == events.releases(Composed(tuple(asked[::-1])))
