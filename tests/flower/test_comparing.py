"""Several methods on one grid, for one charge."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import tacit
import tacit.flower
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import compose
from tacit.privacy.ledger import BudgetExceeded, Ledger, ledger_path
from tacit.receipts import check_receipts, read_receipts
from tacit.result import Result
from tacit.tuners.tuner import Tuner
from tacit.tuners.voting import RunOff
from tests.federations import SPACE
from tests.flower.clinics import NAME, Clinics
from tests.flower.grids import InProcessGrid, grid_of, server_context, voters

BUDGET = Budget(3.0, 1e-5)
METHODS: dict[str, Tuner] = {
    "vote": tacit.Vote(2, 10),
    "run-off": tacit.Vote(3, 10, ballot="borda", run_off=RunOff(2, 0.2)),
    "mean": tacit.Combine("mean", "dp", 10, "sobol"),
    "clusters": tacit.Combine("dbscan", "dp", 10, "sobol"),
    "surface": tacit.Flora("sgm+u", "dp", 10, "sobol"),
    "guess": tacit.RandomGuess(10),
}
QUESTIONS = 1 + 2 + 1 + 2 + 1
TERMS = {"federation__name": NAME, "federation__deadline": 30.0, "federation__wait": 0.0}


def compared(grid: InProcessGrid, **settings: object) -> dict[str, Result]:
    context = server_context(**{**TERMS, **settings})
    return tacit.flower.compare(grid, context, METHODS, space=SPACE, budget=BUDGET)


@pytest.mark.usefixtures("at_once", "tacit_home")
def test_all_methods_together_keep_to_one_budget(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        results = compared(grid_of(voters(5)))
    assert list(results) == list(METHODS)
    charges = Ledger(ledger_path(NAME)).charges()
    assert len(charges) == QUESTIONS
    total = spent(compose(charge.event for charge in charges), BUDGET.delta)
    assert 2.9 < total.epsilon <= 3.0
    assert {result.privacy.epsilon for result in results.values()} == {total.epsilon}
    (announced,) = (r.getMessage() for r in caplog.records if "all together cost" in r.getMessage())
    assert "epsilon 3 at delta 1e-05 (per client, replace-one)" in announced
    for name, result in results.items():
        assert set(result.config) == set(SPACE.dimensions), name


@pytest.mark.usefixtures("at_once", "tacit_home")
def test_everything_is_charged_before_the_first_question() -> None:
    grid = grid_of(voters(5))
    seen: list[int] = []

    def count(message: object) -> object:
        seen.append(len(Ledger(ledger_path(NAME))))
        return message

    grid.alter = count  # type: ignore[assignment]
    compared(grid)
    assert set(seen) == {QUESTIONS}


@pytest.mark.usefixtures("at_once", "tacit_home")
def test_what_the_ledger_cannot_pay_is_refused_before_anybody_is_asked() -> None:
    Ledger.of(NAME, Budget(1.0, 1e-5))
    grid = grid_of(voters(5))
    with pytest.raises(BudgetExceeded, match="all questions together"):
        compared(grid)
    assert grid.seen == []
    assert len(Ledger(ledger_path(NAME))) == 0


@pytest.mark.usefixtures("at_once", "tacit_home")
def test_a_comparison_that_was_cut_off_uses_the_lines_it_has_not_used() -> None:
    class Killed(Exception):
        pass

    grid, home = grid_of(voters(5)), ledger_path(NAME).parent.parent
    asked: list[str] = []

    def kill(message: object) -> object:
        asked.append("one")
        if len(asked) > 30:  # within the second method
            raise Killed
        return message

    grid.alter = kill  # type: ignore[assignment]
    with pytest.raises(Killed):
        compared(grid)
    before = len(Ledger(ledger_path(NAME)))
    assert before == QUESTIONS
    (run,) = (home / "runs").iterdir()
    first = (run / "vote" / "result.json").read_text()
    fresh = grid_of(voters(5))
    with pytest.raises(BudgetExceeded):  # what went out and never came back is paid for again
        compared(fresh, run__resume=run.name)
    Ledger(ledger_path(NAME)).amend(Budget(9.0, 1e-5), "a test")
    results = compared(grid_of(voters(5)), run__resume=run.name)
    assert len(Ledger(ledger_path(NAME))) == QUESTIONS + 1
    assert list(results) == list(METHODS)
    assert str(results["vote"].config["x"]) in first


@pytest.mark.usefixtures("at_once", "tacit_home")
def test_nodes_with_a_roster_sign_for_the_lines_that_were_prepaid(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    settings = {"federation__roster_file": str(clinics.roster_file), "federation__name": NAME}
    results = compared(clinics.grid(), **settings)
    assert len(results) == len(METHODS)
    receipts = read_receipts([folder / "receipts" for folder in clinics.folders])
    assert len(receipts) == QUESTIONS * len(clinics.folders)
    assert check_receipts(receipts, Ledger(ledger_path(NAME)), clinics.membership.roster) == []


@pytest.mark.parametrize(
    ("methods", "budget", "said"),
    [
        ({}, BUDGET, "no method to compare"),
        ({"a/b": tacit.Vote()}, BUDGET, "a method's name is 'a/b'"),
        ({"vote": tacit.Vote()}, Budget(float("inf"), 1e-5), "belong into a simulation"),
        ({"clear": tacit.Combine("mean", "clear")}, BUDGET, "sends answers in clear"),
        ({"hidden": tacit.Combine("mean", "encrypted", 10)}, BUDGET, "sums are 'masks'"),
    ],
)
@pytest.mark.usefixtures("at_once", "tacit_home")
def test_what_cannot_be_one_charge_is_refused(
    methods: dict[str, Tuner], budget: Budget, said: str
) -> None:
    grid = grid_of(voters(5))
    with pytest.raises(ValueError, match=said):
        tacit.flower.compare(grid, server_context(**TERMS), methods, space=SPACE, budget=budget)
    assert grid.seen == []
