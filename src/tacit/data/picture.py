"""Who holds what, as a picture.

DP-HYPE shows the label counts of ten of its clients (Figures 7 and 8). How we differ: every client
is in the picture, and so are the sizes and how far clients' labels are from everybody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.data.examples import FloatArray, IntArray
from tacit.data.holdings import Summary, distances, shares, table
from tacit.page import COLOURS, Plot, page, records, section, settings, versions

Data = Mapping[str, Any]

_MOST_BARS = 60
_MOST_COLUMNS = 1000
_MOST_ROWS, _MOST_CELLS = 1000, 10_000
_MOST_PLACES = 30_000  # in a heat map, so that the page stays small
_LEGEND_CLASSES = 20
_LONGEST_NAME = 16  # of a class in the legend
_BINS = 20
_PALETTE = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2",
    "#eeca3b", "#b279a2", "#ff9da6", "#9d755d", "#8a8a8a",
)  # fmt: skip
_SCALE = "Turbo"
_PLAIN = COLOURS[0]
_TOP, _GAP, _LOWER, _BOTTOM = 40, 110, 200, 60  # pixels


def render(
    dataset: str,
    classes: Sequence[str],
    counts: IntArray,
    partition: str,
    noise: FloatArray | None = None,
) -> str:
    """The picture as a page, with every client's holdings in a table.

    Args:
        dataset: the name of the data set.
        classes: the names of the classes.
        counts: how often each client (row) has each class (column).
        partition: a description of the partition.
        noise: the standard deviation of the noise on each client's features, if there is any.
    """
    held = table(classes, counts, noise)
    summary = held.summary
    plural = "" if summary.clients == 1 else "s"
    title = f"{dataset} dealt to {summary.clients:,} client{plural}"
    shown = held.clients[:_MOST_ROWS]
    labels = classes if len(classes) * len(shown) <= _MOST_CELLS else ()
    rows = [
        {"client": one.client, "examples": one.size}
        | dict(zip(labels, one.labels, strict=False))
        | ({} if one.noise is None else {"noise on features": one.noise})
        for one in shown
    ]
    behind = "Every client" if len(shown) == summary.clients else f"The first {len(shown)} clients"
    drawn = figure(classes, counts, noise)
    plot = Plot("The partition", drawn, _words(summary), records(rows), behind, panels=2)
    return page(title, [plot, section("How it was made"), settings(versions())], partition)


def figure(classes: Sequence[str], counts: IntArray, noise: FloatArray | None = None) -> Any:
    """Who holds what, and how sizes are distributed, as an interactive Plotly figure.

    Up to 60 clients get a bar each, coloured by class; more become a heat map of label shares, with
    at most 1000 columns, each the mean of neighbouring clients. Below are the sizes, and next to
    them the noise on each client's features, or, without any, how far clients' labels are from
    everybody's.

    Args:
        classes: the names of the classes.
        counts: how often each client (row) has each class (column).
        noise: the standard deviation of the noise on each client's features, if there is any.
    """
    from plotly.subplots import make_subplots

    few = len(counts) <= _MOST_BARS
    upper = max(280, 14 * len(counts) if few else 11 * len(classes))
    inner = upper + _GAP + _LOWER
    plot = make_subplots(
        rows=2,
        cols=2,
        row_heights=[upper, _LOWER],
        specs=[[{"colspan": 2}, None], [{}, {}]],
        subplot_titles=[
            "Who holds what",
            "Sizes",
            "Distance from the whole" if noise is None else "Noise on features",
        ],
        horizontal_spacing=0.13,
        vertical_spacing=_GAP / inner,
    )
    beside = {"thickness": 14, "lenmode": "pixels", "len": upper, "y": 1, "yanchor": "top"}
    if few:
        _bars(plot, classes, counts, beside)
    else:
        _heat_map(plot, classes, counts, beside)
    _sizes(plot, counts.sum(axis=1))
    if noise is None:
        _far(plot, distances(counts))
    else:
        _noise(plot, noise)
    plot.update_layout(
        barmode="stack",
        height=_TOP + inner + _BOTTOM,
        margin={"t": _TOP, "b": _BOTTOM, "l": 70, "r": 30},
    )
    return plot


def _bars(plot: Any, names: Sequence[str], counts: IntArray, beside: Data) -> None:
    clients, sizes = np.arange(1, len(counts) + 1), counts.sum(axis=1)
    colours = _colours(len(names))
    spare = max(5 - len(counts), 0) / 2
    for name, colour, held in zip(names, colours, counts.T, strict=True):
        plot.add_bar(
            x=held,
            y=clients,
            orientation="h",
            name=_short(name),
            marker={"color": colour, "line": {"width": 0}},
            customdata=sizes,
            hovertemplate=f"client %{{y}}, class {_text(name)}: "
            "%{x:,} of %{customdata:,} examples<extra></extra>",
            showlegend=len(names) <= _LEGEND_CLASSES,
            row=1,
            col=1,
        )
    plot.update_xaxes(title_text="examples", rangemode="tozero", tickformat=",d", row=1, col=1)
    plot.update_yaxes(
        title_text="client",
        range=[len(counts) + 0.5 + spare, 0.5 - spare],
        tickvals=clients if len(counts) <= 30 else clients[4::5],
        showgrid=False,
        zeroline=False,
        row=1,
        col=1,
    )
    plot.update_layout(bargap=0.15, legend={"title": {"text": "class"}, "traceorder": "normal"})
    if len(names) > _LEGEND_CLASSES:
        _class_scale(plot, names, beside)


def _class_scale(plot: Any, names: Sequence[str], beside: Data) -> None:
    """A colour bar in place of a legend that would not fit."""
    ticks = np.unique(np.linspace(0, len(names) - 1, 12).round().astype(int))
    plot.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        marker={
            "color": [0],
            "cmin": 0,
            "cmax": len(names) - 1,
            "colorscale": _SCALE,
            "showscale": True,
            "colorbar": {
                "title": {"text": "class"},
                "tickvals": ticks,
                "ticktext": [_short(names[tick]) for tick in ticks],
                **beside,
            },
        },
        showlegend=False,
        hoverinfo="skip",
        row=1,
        col=1,
    )


def _heat_map(plot: Any, names: Sequence[str], counts: IntArray, beside: Data) -> None:
    """Clients by their most frequent class, and within it by its share; those without data last."""
    held = shares(counts)
    empty = np.isnan(held[:, 0])
    order = np.lexsort((-held.max(axis=1), held.argmax(axis=1), empty))
    most = min(_MOST_COLUMNS, _MOST_PLACES // len(names))
    columns = np.array_split(order, min(len(order), most))
    ends = np.cumsum([len(column) for column in columns])
    who = [
        f"client {column[0] + 1}" if len(column) == 1 else f"mean of {len(column)} clients"
        for column in columns
    ]
    plot.add_heatmap(
        x=ends - np.array([len(column) - 1 for column in columns]) / 2,
        y=[_text(name) for name in names],
        z=np.stack([_mean(held[column]) for column in columns], axis=1).astype(np.float32),
        zmin=0,
        colorscale="Blues",
        customdata=np.tile(np.array(who), (len(names), 1)),
        hovertemplate="%{customdata}, class %{y}: %{z:.1%} of its examples<extra></extra>",
        hoverongaps=False,
        colorbar={
            "title": {"text": "share of the client’s examples", "side": "right"},
            "tickformat": ".0%",
            **beside,
        },
        row=1,
        col=1,
    )
    plot.update_xaxes(
        title_text="clients, ordered by their largest class and its share"
        + (f"; last {empty.sum():,} without examples" if empty.any() else ""),
        range=[0.5, len(order) + 0.5],
        tickformat=",d",
        row=1,
        col=1,
    )
    plot.update_yaxes(title_text="class", type="category", autorange="reversed", row=1, col=1)


def _sizes(plot: Any, sizes: IntArray) -> None:
    """Bins of whole numbers, so that sizes that differ by one are told apart."""
    least, most = int(sizes.min()), int(sizes.max())
    width = -(-(most - least + 1) // _BINS)
    starts = np.arange(least, most + 1, width)
    found = np.bincount((sizes - least) // width, minlength=len(starts))
    ends = starts + width - 1
    spans = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in zip(starts, ends, strict=True)]
    plot.add_bar(
        x=(starts + ends) / 2,
        y=found,
        width=width,
        customdata=spans,
        hovertemplate="%{customdata} examples: %{y:,} clients<extra></extra>",
        **_plain(),
        row=2,
        col=1,
    )
    plot.update_xaxes(
        title_text="examples a client",
        range=[least - max(width, 1.5), ends[-1] + max(width, 1.5)],
        dtick=1 if most - least < 6 else None,
        tickformat=",d",
        row=2,
        col=1,
    )
    _count_axis(plot, column=1, most=int(found.max()))


def _far(plot: Any, apart: npt.NDArray[np.float64]) -> None:
    found, edges = np.histogram(apart[~np.isnan(apart)], _BINS, (0.0, 1.0))
    plot.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=found,
        width=1 / _BINS,
        customdata=[f"{a:.2f} to {b:.2f}" for a, b in pairwise(edges)],
        hovertemplate="distance %{customdata}: %{y:,} clients<extra></extra>",
        **_plain(),
        row=2,
        col=2,
    )
    plot.update_xaxes(
        title_text="total variation of labels", range=[-0.02, 1.02], dtick=0.25, row=2, col=2
    )
    _count_axis(plot, column=2, most=int(found.max()))


def _noise(plot: Any, noise: FloatArray) -> None:
    plot.add_scatter(
        x=np.arange(1, len(noise) + 1),
        y=noise,
        mode="markers" if len(noise) <= _MOST_BARS else "lines",
        hovertemplate="client %{x:,}: %{y:.4g}<extra></extra>",
        **_plain(),
        row=2,
        col=2,
    )
    plot.update_xaxes(
        title_text="client",
        range=[0.5 - len(noise) / 50, len(noise) + 0.5 + len(noise) / 50],
        tickformat=",d",
        dtick=1 if len(noise) <= 12 else None,
        row=2,
        col=2,
    )
    plot.update_yaxes(title_text="standard deviation", rangemode="tozero", row=2, col=2)


def _count_axis(plot: Any, column: int, most: int) -> None:
    plot.update_yaxes(
        title_text="clients",
        range=[0, 1.08 * most],
        tickformat=",d",
        dtick=1 if most < 6 else None,
        row=2,
        col=column,
    )


def _plain() -> dict[str, Any]:
    return {"marker": {"color": _PLAIN}, "showlegend": False}


def _colours(classes: int) -> Sequence[str]:
    from plotly.colors import sample_colorscale

    if classes <= len(_PALETTE):
        return _PALETTE[:classes]
    return [str(colour) for colour in sample_colorscale(_SCALE, classes)]


def _mean(held: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    known = held[~np.isnan(held[:, 0])]
    return np.asarray(known.mean(axis=0)) if len(known) else held[0]


def _words(summary: Summary) -> str:
    return (
        f"{summary.examples:,} examples; sizes {summary.smallest:,} to {summary.largest:,}, median "
        f"{summary.median:,.12g}. On average {summary.largest_share:.0%} of a "
        "client’s examples are of its largest class, and its labels are "
        f"{summary.distance:.2f} away from the whole (total variation; 0: iid)."
    )


def _short(name: str) -> str:
    return _text(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")


def _text(words: str) -> str:
    """Plotly reads a little markup, which a class called "<=50K" is not."""
    return escape(words, quote=False)
