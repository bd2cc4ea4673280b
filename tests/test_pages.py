"""Pages in a real browser: Debian's Chromium, one for the whole file."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.bench.pages import PAGES, page_of, revived
from tacit.comparison import Run, render
from tacit.files import json_text
from tacit.pareto_page import render as render_front
from tacit.plan import load_plan
from tacit.report import write_run
from tests.browser import Tab, chromium

ROOT = Path(__file__).parent.parent
SMALLEST_SCREEN = 380
BARS, POINTS = ".bars .point", ".scatterlayer .points path"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("no browser: install Debian's chromium (`make browser`), or set CHROMIUM")
    with chromium(program, tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind, made by what makes them for users."""
    folder = tmp_path_factory.mktemp("pages")
    plan = load_plan(None, []).to_toml()
    tastes = [0.3 + 0.01 * i for i in range(30)]
    clients = [lambda config, taste=taste: (config["x"] - taste) ** 2 for taste in tastes]
    space = tacit.Space({"x": tacit.Float(0.0, 1.0), "kind": tacit.Choice(["a", "b"])})
    runs = []
    for name, method, epsilon in (
        ("run", tacit.Vote(votes=3, candidates=40), 1.0),
        ("in-clear", tacit.Combine("mean", "clear", candidates=16), float("inf")),
    ):
        result = tacit.tune(clients, space, method, tacit.Budget(epsilon, 1e-5), seed=1)
        (folder / name).mkdir()
        write_run(result, plan, folder / name)
        found, spent = (json.loads(json_text(part)) for part in (result.to_json(), result.ledger))
        runs.append(Run(name, {**found, "accuracy": 0.9}, plan, spent))
    written = {
        "front": render_front(front()),
        "bench": page_of(recorded("averaging")),
        "comparison": render(runs),
    }
    for name, page in written.items():
        (folder / f"{name}.html").write_text(page)
    return {
        "run": folder / "run" / "report.html",
        "in-clear": folder / "in-clear" / "report.html",
        **{name: folder / f"{name}.html" for name in written},
    }


def recorded(bench: str) -> dict[str, Any]:
    path = ROOT / "benchmarks" / f"{bench}.json"
    found: dict[str, Any] = revived(json.loads(path.read_text()))
    return found


def front() -> dict[str, Any]:
    errors = {0.1: [0.9, 0.95], 0.5: [0.6, 0.7], 2.0: [0.3, 0.4], 8.0: [0.1, 0.1]}
    points = [
        {"epsilon": epsilon, "errors": found, "config": {"rate": epsilon / 7}, "extra": 0.0}
        for epsilon, found in errors.items()
    ]
    worse = {"epsilon": 9.0, "errors": [0.8, 0.9], "config": {"rate": 3.0}, "extra": 0.0}
    return {
        "name": "toy",
        "delta": 1e-5,
        "protects": "per record, replace-one",
        "third": None,
        "hypervolume": 7.5,
        "who_may_see_it": "anybody",
        "front": points,
        "points": [*points, worse],
        "plan": {"front": {"points": 5}},
        "machine": {"cores": 2},
    }


@pytest.mark.parametrize(
    ("name", "marks", "least"),
    [
        ("run", BARS, 40),
        ("in-clear", "", 0),
        ("front", POINTS, 5),
        ("bench", POINTS, 20),
        ("comparison", POINTS, 2),
    ],
)
def test_a_page_works_everywhere(
    tab: Tab, pages: dict[str, Path], name: str, marks: str, least: int
) -> None:
    page = pages[name]
    assert page.stat().st_size < 6_000_000
    tab.open(page)
    assert tab.requested() == [page.as_uri()], "it loads nothing but itself"
    if least:
        assert tab.value(f"document.querySelectorAll({marks!r}).length") >= least
        box = "document.querySelector('.plot .main-svg').getBoundingClientRect()"
        assert tab.value(f"{box}.height") > 200
        assert tab.value(f"{box}.width") > 500
    check_light_and_dark(tab, drawn=bool(least))
    check_print(tab)
    tab.screen(width=SMALLEST_SCREEN)
    tab.value("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= SMALLEST_SCREEN
    assert tab.complaints() == []
    assert tab.requested() == [page.as_uri()]


def check_light_and_dark(tab: Tab, *, drawn: bool) -> None:
    ink = ["h1", "td", *([".plot .xtick text"] if drawn else [])]
    for dark in (True, False):
        tab.screen(dark=dark)
        assert (brightness(tab, "body", "backgroundColor") < 128) == dark
        for what in ink:
            style = "fill" if what.endswith("text") else "color"
            assert (brightness(tab, what, style) > 128) == dark, (what, dark)


def brightness(tab: Tab, what: str, style: str) -> float:
    found = tab.value(f"getComputedStyle(document.querySelector('{what}')).{style}")
    return sum(int(value) for value in re.findall(r"\d+", found)[:3]) / 3


def check_print(tab: Tab) -> None:
    tab.value(
        "addEventListener('beforeprint', () => { window.seen = {"
        " closed: document.querySelectorAll('details:not([open])').length,"
        " widths: [...document.querySelectorAll('.plot .main-svg')].map(one => one.clientWidth)"
        "}; });"
        "window.after = new Promise(done => addEventListener('afterprint', done))"
        ".then(() => true); 0"
    )
    closed = "document.querySelectorAll('details:not([open])').length"
    before = tab.value(closed)
    sheets = len(re.findall(rb"/Type\s*/Page\b", tab.printed()))
    assert 1 <= sheets <= 12
    seen = tab.value("window.seen")
    assert seen["closed"] == 0, "paper shows what is folded on the screen"
    assert all(width == 680 for width in seen["widths"])
    assert tab.value("window.after")
    assert tab.value(closed) == before, "and the screen is as before"


def column(tab: Tab, number: int) -> list[float]:
    """A column of the first folded table, as it is ordered now."""
    found = tab.value(
        "[...document.querySelector('details table').tBodies[0].rows]"
        f".map(row => Number(row.cells[{number}].dataset.order))"
    )
    return [float(value) for value in found]


def heading(number: int) -> str:
    return f"document.querySelectorAll('details table th button')[{number}]"


def test_tables_sort_by_mouse_and_by_keyboard(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["run"])
    tab.value("document.querySelector('details').open = true")
    counts = column(tab, 1)
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 10
    tab.click(heading(1))
    assert column(tab, 1) == sorted(counts)
    tab.click(heading(1))
    assert column(tab, 1) == sorted(counts, reverse=True)
    sorts = "document.querySelectorAll('details th')[{}].getAttribute('aria-sort')"
    assert tab.value(sorts.format(1)) == "descending"
    tab.value(f"{heading(2)}.focus()")
    tab.press("Tab")  # to the next heading, which is x
    tab.press("Enter")
    values = column(tab, 3)
    assert values == sorted(values)
    tab.press(" ")
    assert column(tab, 3) == sorted(values, reverse=True)
    assert tab.value(sorts.format(3)) == "descending"
    assert tab.value(sorts.format(1)) is None
    assert tab.complaints() == []


def test_the_row_of_totals_and_empty_cells_stay_last(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["comparison"])
    found = "[...document.querySelectorAll('th button')].find(one => one.textContent == '{}')"
    sure, sent = found.format("surely first"), found.format("sent by clients")
    last = "document.querySelector('table tbody tr:last-child').cells[0].textContent"
    for _ in range(2):
        tab.click(sure)
        assert tab.value(last) == "in-clear", "it released no counts"
    tab.open(pages["run"])
    for _ in range(2):
        tab.click(sent)
        table = f"({sent}).closest('table')"
        assert tab.value(f"{table}.rows[{table}.rows.length - 1].cells[0].textContent") == "total"


@pytest.mark.parametrize("bench", ["encrypted", "feathers", "pareto", "votes"])
def test_recorded_benchmarks_have_pages_that_draw(tab: Tab, tmp_path: Path, bench: str) -> None:
    path = tmp_path / f"{bench}.html"
    path.write_text(page_of(recorded(bench)))
    tab.open(path)
    plots, marks = "[...document.querySelectorAll('.plot')]", "'.point, .points path, .js-line'"
    assert tab.value(f"{plots}.length") >= 1
    assert tab.value(f"{plots}.every(plot => plot.querySelectorAll({marks}).length > 0)")
    figures = "[...document.querySelectorAll('figure')]"
    assert tab.value(f"{figures}.every(one => one.querySelectorAll('details tbody tr').length)")
    assert tab.value("document.documentElement.scrollWidth") <= 1000
    assert tab.complaints() == []


@pytest.mark.parametrize("bench", sorted(set(PAGES) - {"combine", "dp-hype"}))
def test_every_recorded_benchmark_has_a_page(bench: str) -> None:
    result = recorded(bench)
    title, about, draw = PAGES[bench]
    page = page_of(result)
    assert len(page.encode()) < 6_000_000
    assert f"<h1>{escape(title)}</h1>" in page
    assert escape(about) in page
    assert page.count("<figure>") == len(draw(result)) > 0
    assert result["machine"]["processor"] in unescape(page)
    assert page.count("<td>reproduced</td>") == sum(
        claim["verdict"] == "reproduced" for claim in result.get("claims", ())
    )
