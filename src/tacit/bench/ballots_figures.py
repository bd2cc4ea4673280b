"""Pictures of the benchmark of ballots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacit.page import COLOURS, GREY, Plot, arrange, records

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NAMES = {
    "published": "as published",
    "exact": "exact accounting only",
    "borda": "Borda",
    "smoothed": "Borda, smoothed",
    "two-stage": "Borda, run-off",
    "auto": "auto",
    "published, cross-validated": "as published, cross-validated",
    "auto, one fold": "auto, not cross-validated",
}
_COLOURS = {
    "published": GREY,
    "exact": COLOURS[4],
    "borda": COLOURS[3],
    "smoothed": COLOURS[2],
    "two-stage": COLOURS[1],
    "auto": COLOURS[0],
    "published, cross-validated": GREY,
    "auto, one fold": COLOURS[0],
}
_DASHED = ("published, cross-validated", "auto, one fold")
_BAR = {"thickness": 1}


def plots(result: Mapping[str, Any]) -> list[Plot]:
    """Regret against epsilon on average and for every kind of table, and what smoothing harms."""
    spread = "Bars are standard errors over draws of noise."
    means = [
        {"clients": group, "tables": found["tables"], "method": method, "epsilon": epsilon} | point
        for group, found in result["summary"]["groups"].items()
        for method, points in found["curves"].items()
        for epsilon, point in zip(result["summary"]["epsilons"], points, strict=True)
    ]
    return [
        Plot(
            "On average over real tables",
            averages(result),
            f"Regret of the pick in points of test accuracy. {spread}",
            records(means),
            panels=2,
        ),
        Plot(
            "On every kind of table",
            tables(result),
            f"Regret in points; dotted: skewed labels (Dirichlet, α = 0.5). {spread}",
            records(result["rows"]),
            panels=4,
        ),
        Plot(
            "Where neighbours say nothing",
            harm(result),
            "How much more regret than the largest entry of the plain tally, in points, on tables "
            "with permuted candidates and on rough surfaces. Bars are two standard errors.",
            records(result["harm"]),
        ),
    ]


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
        for method, name in NAMES.items():
            points = found["curves"][method]
            plot.add_scatter(
                x=epsilons,
                y=[point["regret"] for point in points],
                error_y={"array": [point["se"] for point in points], **_BAR},
                name=name,
                legendgroup=method,
                showlegend=column == 1,
                line={
                    "color": _COLOURS[method],
                    "width": 3 if method in ("published", "auto") else 1.5,
                    "dash": "dash" if method in _DASHED else "solid",
                },
                row=1,
                col=column,
            )
        goal, need = found["curves"]["published"][-1]["regret"], found["needs"]["auto"]
        plot.add_hline(y=goal, line_dash="dot", line_color=GREY, row=1, col=column)
        if need is not None:
            plot.add_annotation(
                x=math.log10(need),
                y=goal,
                text=f"published needs ε = {epsilons[-1]:g},<br>auto needs ε = {need:.2f}",
                ax=55,
                ay=-130,
                row=1,
                col=column,
            )
        _epsilon_axis(plot, epsilons, row=1, col=column)
    plot.update_yaxes(title_text="regret, points of accuracy", col=1, rangemode="tozero")
    arrange(plot, 460)
    return plot


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
    named: set[tuple[str, str]] = set()
    wanted = (row for row in rows if row["method"] in ("published", "auto"))
    curves: dict[tuple[str, str, int, str], list[Mapping[str, Any]]] = {}
    for row in wanted:
        key = (row["data"], row["partition"], row["clients"], row["method"])
        curves.setdefault(key, []).append(row)
    for (name, partition, count, method), points in curves.items():
        dash = "dot" if partition.startswith("dirichlet") else "solid"
        plot.add_scatter(
            x=[row["epsilon"] for row in points],
            y=[row["regret"] for row in points],
            error_y={"array": [row["se"] for row in points], **_BAR},
            name=NAMES[method] + (", skewed labels" if dash == "dot" else ""),
            legendgroup=method + dash,
            showlegend=(method, dash) not in named,
            line={"color": _COLOURS[method], "dash": dash},
            row=data.index(name) + 1,
            col=clients.index(count) + 1,
        )
        named.add((method, dash))
    _epsilon_axis(plot, result["summary"]["epsilons"])
    plot.update_xaxes(title_text="")
    plot.update_xaxes(title_text="ε", row=len(data))
    plot.update_yaxes(rangemode="tozero")
    plot.update_yaxes(title_text="regret", col=1)
    arrange(plot, 150 * len(data) + 140)
    plot.update_layout(legend_y=-0.06)
    return plot


def harm(result: Mapping[str, Any]) -> Figure:
    """Where neighbours say nothing: how much worse than the plain tally of the same ballots."""
    import plotly.graph_objects as go

    plot = go.Figure()
    for method in ("smoothed", "auto"):
        own = [row for row in result["harm"] if row["method"] == method]
        plot.add_scatter(
            x=[_place(row) for row in own],
            y=[row["harm"] for row in own],
            error_y={"array": [2 * row["se"] for row in own], **_BAR},
            mode="markers",
            marker={"color": _COLOURS[method]},
            name=NAMES[method],
        )
    plot.add_hline(
        y=1, line_dash="dot", annotation_text="1 point worse", annotation_position="top left"
    )
    plot.update_xaxes(showticklabels=False, title_text="permuted tables and rough surfaces")
    plot.update_yaxes(title_text="regret beyond plain, points")
    arrange(plot, 420)
    return plot


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
