"""Pictures of the benchmarks of selection and fronts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLOURS = {"nehvi": "#2459a9", "hvpoi": "#2f7d4f", "random": "#9aa6b5"}
_SHAPES = {"geometric": "#e07b39", "logarithmic": "#2459a9", "poisson": "#2f7d4f"}


def pareto(result: Mapping[str, Any]) -> list[Figure]:
    """How the hypervolume grows, one panel a problem: means over seeds, from least to most.

    Axes begin where the model does: before, all searches are the same random settings.
    """
    import plotly.graph_objects as go

    plots, first = [], result["setup"]["first"]
    for problem in dict.fromkeys(row["problem"] for row in result["rows"]):
        plot, seen = go.Figure(), []
        for name, colour in _COLOURS.items():
            curves = np.array(
                [
                    row["volumes"]
                    for row in result["rows"]
                    if (row["problem"], row["acquisition"]) == (problem, name)
                ]
            )
            if not len(curves):
                continue
            points = list(range(1, curves.shape[1] + 1))
            seen += [float(curves[:, first - 1].min()), float(curves.max())]
            plot.add_scatter(
                x=[*points, *reversed(points)],
                y=[*curves.max(axis=0), *reversed(curves.min(axis=0))],
                fill="toself",
                mode="none",
                fillcolor=colour,
                opacity=0.15,
                showlegend=False,
                hoverinfo="skip",
            )
            plot.add_scatter(
                x=points, y=curves.mean(axis=0), name=name, line={"color": colour}, mode="lines"
            )
        for name, known in (("grid of 243", "grids"), ("true front", "truths")):
            if problem in result[known]:
                level = result[known][problem]["volume"]
                seen.append(level)
                plot.add_hline(
                    y=level,
                    line_dash="dot",
                    annotation_text=name,
                    annotation_position="bottom right",
                )
        room = 0.05 * (max(seen) - min(seen))
        title = problem
        if problem in result["truths"]:
            title += " (as measured: noise flatters, so curves may pass the true front)"
        plot.update_layout(template="plotly_white", height=420, title=title)
        plot.update_xaxes(title_text="points evaluated", range=[first, len(points)])
        plot.update_yaxes(
            title_text="hypervolume, up to ε = 10", range=[min(seen) - room, max(seen) + room]
        )
        plots.append(plot)
    return plots


def selection(result: Mapping[str, Any]) -> list[Figure]:
    """Accuracy against mean runs, with one deviation on either side; the adaptive run as a line."""
    import plotly.graph_objects as go

    plots = []
    for data in dict.fromkeys(row["data"] for row in result["rows"]):
        plot = go.Figure()
        for shape, colour in _SHAPES.items():
            own = [r for r in result["rows"] if (r["data"], r["shape"]) == (data, shape)]
            plot.add_scatter(
                x=[row["mean_runs"] for row in own],
                y=[row["accuracy"] for row in own],
                error_y={"array": [row["deviation"] for row in own]},
                name=shape,
                line={"color": colour},
            )
        (single,) = [row for row in result["adaptive"] if row["data"] == data]
        plot.add_hline(
            y=single["accuracy"],
            line_dash="dot",
            annotation_text="one run, adaptive rate",
            annotation_position="bottom right",
        )
        plot.update_layout(template="plotly_white", height=420, title=f"Private selection, {data}")
        plot.update_xaxes(type="log", title_text="mean number of runs")
        plot.update_yaxes(title_text="test accuracy", rangemode="tozero")
        plots.append(plot)
    return plots
