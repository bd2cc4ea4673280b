"""Pictures of the benchmark of ballots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NAMES = {
    "published": "as published",
    "exact": "exact accounting only",
    "borda": "Borda",
    "smoothed": "Borda, smoothed",
    "two-stage": "Borda, run-off",
    "auto": "auto",
}
_COLOURS = ("#9aa6b5", "#8c6d00", "#8c5aa8", "#2f7d4f", "#e07b39", "#2459a9")
_BAR = {"thickness": 1}


def figures(result: Mapping[str, Any]) -> list[Figure]:
    """Regret against epsilon on average and for every kind of table, and what smoothing harms."""
    return [averages(result), tables(result), harm(result)]


def averages(result: Mapping[str, Any]) -> Figure:
    """All methods, averaged over real tables; which epsilon the planner's choice needs."""
    from plotly.subplots import make_subplots

    summary = result["summary"]
    groups = [group for group in ("at least 50", "100") if group in summary["groups"]]
    titles = [f"{group} clients, {summary['groups'][group]['tables']} tables" for group in groups]
    plot = make_subplots(1, len(groups), subplot_titles=titles, shared_yaxes=True)
    epsilons = summary["epsilons"]
    for column, group in enumerate(groups, start=1):
        found = summary["groups"][group]
        for (method, name), colour in zip(NAMES.items(), _COLOURS, strict=True):
            points = found["curves"][method]
            plot.add_scatter(
                x=epsilons,
                y=[point["regret"] for point in points],
                error_y={"array": [point["se"] for point in points], **_BAR},
                name=name,
                legendgroup=method,
                showlegend=column == 1,
                line={"color": colour, "width": 3 if method in ("published", "auto") else 1.5},
                row=1,
                col=column,
            )
        goal, need = found["curves"]["published"][-1]["regret"], found["needs"]["auto"]
        plot.add_hline(y=goal, line_dash="dot", line_color="#5a6675", row=1, col=column)
        if need is not None:
            plot.add_annotation(
                x=math.log10(need),
                y=goal,
                text=f"published needs ε = {epsilons[-1]:g},<br>auto needs ε = {need:.2f}",
                ax=40,
                ay=-70,
                row=1,
                col=column,
            )
        _epsilon_axis(plot, epsilons, row=1, col=column)
    plot.update_yaxes(title_text="regret, points of accuracy", col=1, rangemode="tozero")
    return _finished(plot, "The same ε and δ, other votes", 480)


def tables(result: Mapping[str, Any]) -> Figure:
    """The published vote and the planner's, one panel for data and number of clients."""
    from plotly.subplots import make_subplots

    rows = result["rows"]
    data = list(dict.fromkeys(row["data"] for row in rows))
    clients = sorted({row["clients"] for row in rows})
    plot = make_subplots(
        len(data),
        len(clients),
        shared_xaxes=True,
        shared_yaxes=True,
        row_titles=data,
        column_titles=[f"{n} clients" for n in clients],
        vertical_spacing=0.02,
        horizontal_spacing=0.02,
    )
    dashes = ("solid", "dot")
    for down, name in enumerate(data, start=1):
        own = [row for row in rows if row["data"] == name]
        kinds = dict.fromkeys(row["partition"] for row in own)
        for dash, partition in zip(dashes, kinds, strict=False):
            for across, count in enumerate(clients, start=1):
                some = [r for r in own if (r["partition"], r["clients"]) == (partition, count)]
                for method, colour in (("published", _COLOURS[0]), ("auto", _COLOURS[-1])):
                    points = [row for row in some if row["method"] == method]
                    plot.add_scatter(
                        x=[row["epsilon"] for row in points],
                        y=[row["regret"] for row in points],
                        error_y={"array": [row["se"] for row in points], **_BAR},
                        name=f"{NAMES[method]}{', skewed labels' if dash == 'dot' else ''}",
                        legendgroup=method + dash,
                        showlegend=(down, across) == (1, clients.index(points[0]["clients"]) + 1)
                        if points
                        else False,
                        line={"color": colour, "dash": dash},
                        row=down,
                        col=across,
                    )
    _epsilon_axis(plot, result["summary"]["epsilons"])
    plot.update_xaxes(title_text="", row=None, col=None)
    plot.update_xaxes(title_text="ε", row=len(data))
    plot.update_yaxes(rangemode="tozero")
    plot.update_yaxes(title_text="regret", col=1)
    return _finished(plot, "Every table", 190 * len(data) + 120)


def harm(result: Mapping[str, Any]) -> Figure:
    """Where neighbours say nothing: how much worse than the plain tally of the same ballots."""
    import plotly.graph_objects as go

    plot = go.Figure()
    for method, colour in (("smoothed", _COLOURS[3]), ("auto", _COLOURS[-1])):
        own = [row for row in result["harm"] if row["method"] == method]
        plot.add_scatter(
            x=[_place(row) for row in own],
            y=[row["harm"] for row in own],
            error_y={"array": [2 * row["se"] for row in own], **_BAR},
            mode="markers",
            marker={"color": colour},
            name=NAMES[method],
        )
    plot.add_hline(y=1, line_dash="dot", annotation_text="1 point worse")
    plot.update_xaxes(showticklabels=False, title_text="permuted tables and rough surfaces")
    plot.update_yaxes(title_text="regret more than plain, points; bars: 2 standard errors")
    return _finished(plot, "What it harms where there is no structure", 460)


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['data']}, {row['partition']}, {row['clients']} clients, ε = {row['epsilon']:g}"


def _epsilon_axis(plot: Figure, epsilons: Sequence[float], **where: int) -> None:
    plot.update_xaxes(
        type="log",
        tickvals=epsilons,
        ticktext=[f"{epsilon:g}" for epsilon in epsilons],
        title_text="ε",
        **where,
    )


def _finished(plot: Figure, title: str, height: int) -> Figure:
    plot.update_layout(title=title, template="plotly_white", height=height, margin={"t": 90})
    return plot
