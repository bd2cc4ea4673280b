from __future__ import annotations

import math
import platform
import sys

import pytest

from tacit.page import Cell, Plot, page, records, settings, table, versions

HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_numbers_stand_to_the_right_and_sort_exactly() -> None:
    made = table(("name", "found"), [("a", 0.123456), ("b", None), ("c", Cell("∞", math.inf))])
    assert '<th scope="col"><button type="button">name</button></th>' in made
    assert '<th scope="col" class="number"><button type="button">found</button></th>' in made
    assert '<td class="number" data-order="0.123456">0.1235</td>' in made
    assert '<td class="number" data-order="">–</td>' in made, "an empty cell stays last"
    assert '<td class="number" data-order="Infinity">∞</td>' in made, "as JavaScript writes it"


def test_rows_of_json_become_columns_of_words_with_epsilon_rounded_up() -> None:
    rows = [{"ledger_epsilon": 0.99991, "chosen": {"rate": 0.5}}, {"seed": 3, "long": [0] * 9}]
    made = records(rows)
    for heading in ("ledger ε", "chosen rate", "seed", "long"):
        assert f">{heading}</button>" in made
    assert 'data-order="0.99991">1.000</td>' in made
    assert "9 values" in made
    assert "parts 2 data" in settings({"parts": [{"data": "a"}, {"data": "b"}]})


def test_text_is_never_markup() -> None:
    for made in (
        table([HOSTILE], [[HOSTILE]], HOSTILE),
        records([{HOSTILE: HOSTILE}]),
        page(HOSTILE, [], HOSTILE),
    ):
        assert "<img" not in made
        assert "&lt;img" in made


def test_plotly_is_inside_once_and_only_where_something_is_drawn() -> None:
    from plotly.graph_objects import Figure
    from plotly.offline import get_plotlyjs

    assert get_plotlyjs() not in page("a", ["<p>b</p>"])
    drawn = page("a", [Plot("one", Figure()), Plot("two", Figure())])
    assert drawn.count(get_plotlyjs()) == 1
    assert drawn.count("Plotly.newPlot(") - get_plotlyjs().count("Plotly.newPlot(") == 2


def test_versions_are_those_of_what_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["numpy"] == sys.modules["numpy"].__version__
    monkeypatch.delitem(sys.modules, "flwr", raising=False)
    assert "flwr" not in versions()
