from __future__ import annotations

from typing import Any

from tacit.comparison import Run, render
from tests.test_report import in_clear, ledger, own_part, vote

PLAN = '[search]\nmethod = "vote"\nseed = {}\n[privacy]\nepsilon = 8.0\n'


def run(name: str, result: dict[str, Any], seed: int = 1) -> Run:
    return Run(name, result, PLAN.format(seed), ledger())


def test_every_run_has_its_row_and_its_choice() -> None:
    page = own_part(render([run("one", vote()), run("<two>", in_clear())]))
    assert "<h1>2 runs compared</h1>" in page
    assert '<td class="number" data-order="0.97312">97.31%</td>' in page
    assert '<td class="number" data-order="0.99991">1.000</td>' in page
    assert '<td class="number" data-order="Infinity">∞</td>' in page
    assert "<td>nobody</td>" in page
    assert "&lt;two&gt;" in page
    assert "<two>" not in page
    assert "do not compare" not in page


def test_epsilons_of_different_kinds_are_warned_about() -> None:
    other = vote()
    other["privacy"] |= {"unit": "record", "relation": "add-or-remove-one"}
    page = own_part(render([run("one", vote()), run("two", other)]))
    assert "These epsilons do not compare." in page
    assert "client level (replace-one) and record level (add-or-remove-one)" in page


def test_a_run_that_may_stop_early_counts_by_its_budget() -> None:
    page = own_part(render([run("one", vote() | {"method": "bandit"})]))
    assert '<td class="number" data-order="8.0">8.0</td>' in page


def test_only_what_differs_of_the_plans_is_shown() -> None:
    page = own_part(render([run("one", vote(), seed=1), run("two", vote(), seed=2)]))
    assert "<td>search.seed</td><td>1</td><td>2</td>" in page
    assert "search.method" not in page
    same = own_part(render([run("one", vote()), run("two", vote())]))
    assert "Nowhere: only noise" in same
