from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacit.data.examples import IntArray
from tacit.data.picture import figure, render
from tacit.data.skews import Dirichlet, FeatureSkew, Partition


def names(classes: int) -> list[str]:
    return [f"class {number}" for number in range(classes)]


def dealt(rule: Partition, clients: int, classes: int, examples: int = 6000) -> IntArray:
    labels = np.arange(examples) % classes
    parts = rule.deal(labels, clients, np.random.default_rng(0))
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def draw(counts: IntArray, **changes: Any) -> Any:
    return figure(**{"classes": names(counts.shape[1]), "counts": counts, **changes})


def drawn(plot: Any, kind: str, axis: str = "x") -> list[Any]:
    """Traces of a kind on a panel: x is above, x2 the sizes, x3 the distances or the noise."""
    return [trace for trace in plot.data if trace.type == kind and (trace.xaxis or "x") == axis]


@pytest.mark.parametrize("clients", [1, 10, 60])
def test_few_clients_get_a_bar_each_with_all_their_examples(clients: int) -> None:
    counts = dealt(Dirichlet(0.5), clients, 10)
    bars = drawn(draw(counts), "bar")
    assert [bar.name for bar in bars] == names(10)
    assert np.array_equal(np.stack([bar.x for bar in bars], axis=1), counts)
    assert all(bar.y.tolist() == list(range(1, clients + 1)) for bar in bars)
    assert all(bar.showlegend for bar in bars)
    assert len({bar.marker.color for bar in bars}) == 10


@pytest.mark.parametrize("many", [61, 250])
def test_many_clients_become_a_heat_map_ordered_by_class(many: int) -> None:
    counts = dealt(Dirichlet(0.5), many, 4)
    plot = draw(counts)
    assert drawn(plot, "bar") == []
    (heat,) = drawn(plot, "heatmap")
    assert heat.z.shape == (4, many)
    assert (np.diff(heat.z.argmax(axis=0)) >= 0).all()
    clients = [int(words.removeprefix("client ")) - 1 for words in heat.customdata[0]]
    assert sorted(clients) == list(range(many))
    shown = counts[clients] / counts[clients].sum(axis=1, keepdims=True)
    assert heat.z == pytest.approx(shown.T, abs=1e-6)


def test_thousands_of_clients_share_a_thousand_columns() -> None:
    counts = np.tile([[3, 1], [1, 3], [2, 2]], (1200, 1))
    (heat,) = drawn(draw(counts), "heatmap")
    assert heat.z.shape == (2, 1000)
    assert heat.z.sum(axis=0) == pytest.approx(1)
    assert set(heat.customdata[0]) == {"mean of 3 clients", "mean of 4 clients"}
    widths = [int(words.split()[2]) for words in heat.customdata[0]]
    assert sum(widths) == len(counts)
    assert heat.x[:-1] + (np.array(widths[:-1]) + widths[1:]) / 2 == pytest.approx(heat.x[1:])


def test_clients_without_examples_are_last_and_said_to_be_empty() -> None:
    counts = np.tile([[0, 0], [5, 1]], (50, 1))
    plot = draw(counts)
    (heat,) = drawn(plot, "heatmap")
    assert np.isnan(heat.z[:, 50:]).all()
    assert not np.isnan(heat.z[:, :50]).any()
    assert "last 50 without examples" in plot.layout.xaxis.title.text
    assert sum(drawn(plot, "bar", "x3")[0].y) == 50


@pytest.mark.parametrize(("clients", "classes"), [(20, 62), (300, 62), (1, 62), (60, 300)])
def test_many_classes_do_not_explode_the_layout(clients: int, classes: int) -> None:
    plot = draw(dealt(Dirichlet(0.5, 0), clients, classes))
    assert not any(bar.showlegend for bar in plot.data)
    scales = [t for t in plot.data if t.type == "heatmap" or (t.type == "scatter" and t.marker)]
    assert len(scales) == 1
    assert plot.layout.height < 5000


@pytest.mark.parametrize("clients", [1, 7, 60, 61, 2500])
def test_sizes_are_counted_completely(clients: int) -> None:
    counts = dealt(Dirichlet(0.5, smallest=1), clients, 5, examples=8000)
    (sizes,) = drawn(draw(counts), "bar", "x2")
    assert sum(sizes.y) == clients
    assert len(sizes.y) <= 20
    edges = [*(sizes.x - sizes.width / 2), sizes.x[-1] + sizes.width / 2]
    assert np.histogram(counts.sum(axis=1), edges)[0].tolist() == sizes.y.tolist()


def test_sizes_that_differ_by_one_are_told_apart() -> None:
    (sizes,) = drawn(draw(np.array([[14], [15], [15]])), "bar", "x2")
    assert sizes.x.tolist() == [14, 15]
    assert sizes.y.tolist() == [1, 2]


def test_without_noise_the_distances_are_shown() -> None:
    plot = draw(np.array([[5, 5, 0, 0], [0, 0, 5, 5], [5, 5, 5, 5]]))
    (far,) = drawn(plot, "bar", "x3")
    assert {x: y for x, y in zip(far.x.round(3), far.y, strict=True) if y} == {0.025: 1, 0.525: 2}


@pytest.mark.parametrize("clients", [1, 10, 100])
def test_a_feature_skew_shows_the_noise_of_each_client(clients: int) -> None:
    rule = FeatureSkew(0.1)
    plot = draw(dealt(rule, clients, 10), noise=rule.deviations(clients))
    (noise,) = drawn(plot, "scatter", "x3")
    assert noise.x.tolist() == list(range(1, clients + 1))
    assert noise.y.tolist() == rule.deviations(clients).tolist()
    assert drawn(plot, "bar", "x3") == []


def test_names_are_text_and_not_markup() -> None:
    plot = draw(np.array([[1, 2]]), classes=["<=50K", "a very long name & more"])
    first, second = drawn(plot, "bar")
    assert first.name == "&lt;=50K"
    assert second.name == "a very long nam…"
    assert "a very long name &amp; more" in second.hovertemplate
    page = render("a<b>", ["<=50K", "more"], np.array([[1, 2]]), "by hand")
    assert "<h1>a&lt;b&gt; dealt to 1 client</h1>" in page
    assert '<button type="button">&lt;=50K</button>' in page


def test_the_page_has_the_summary_and_every_client() -> None:
    counts = np.array([[1000, 200], [0, 1001]])
    words = render("toy", names(2), counts, "Dirichlet(alpha=0.5)")
    assert "<h1>toy dealt to 2 clients</h1>" in words
    assert "Dirichlet(alpha=0.5)" in words
    assert '<td class="number" data-order="1200.0">1200</td>' in words
    assert "2,201 examples; sizes 1,001 to 1,200, median 1,100.5" in words
    assert "On average 92% of a client’s examples are of its largest class" in words
    assert "0.42 away from the whole" in words


def test_a_page_of_many_clients_stays_small() -> None:
    page = render("toy", names(60), dealt(Dirichlet(0.5, smallest=1), 2500, 60, 60_000), "by hand")
    assert "The first 1000 clients" in page
    assert len(page.encode()) < 6_000_000


def test_axes_are_named_with_their_units() -> None:
    layout = draw(dealt(Dirichlet(0.5), 5, 3)).layout
    assert [axis.title.text for axis in (layout.xaxis, layout.xaxis2, layout.xaxis3)] == [
        "examples",
        "examples a client",
        "total variation of labels",
    ]
    assert [axis.title.text for axis in (layout.yaxis, layout.yaxis2, layout.yaxis3)] == [
        "client",
        "clients",
        "clients",
    ]
