"""Pictures of the benchmarks of selection and fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.page import COLOURS, GREY, Plot, arrange, records

_SEARCHES = {"nehvi": COLOURS[0], "hvpoi": COLOURS[2], "random": GREY}
_SHAPES = {"geometric": COLOURS[1], "logarithmic": COLOURS[0], "poisson": COLOURS[2]}


def pareto(result: Mapping[str, Any]) -> list[Plot]:
    """How the hypervolume grows, one panel a problem: means over seeds, from least to most.

    Axes begin where the model does: before, all searches are the same random settings.
    """
    import plotly.graph_objects as go

    plots, first = [], result["setup"]["first"]
    for problem in dict.fromkeys(row["problem"] for row in result["rows"]):
        plot, seen = go.Figure(), []
        for name, colour in _SEARCHES.items():
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
                    line={"dash": "dot", "color": GREY},
                    annotation_text=name,
                    annotation_position="right",
                )
        room = 0.05 * (max(seen) - min(seen))
        words = "Means over seeds; bands reach from the least to the most."
        if problem in result["truths"]:
            words += " As measured: noise flatters, so curves may pass the true front."
        arrange(plot, top=20)
        plot.update_layout(margin_r=90)  # for the names of levels
        plot.update_xaxes(title_text="points evaluated", range=[first, len(points)])
        plot.update_yaxes(
            title_text="hypervolume, up to ε = 10", range=[min(seen) - room, max(seen) + room]
        )
        title = f"{problem}: hypervolume against points evaluated"
        plots.append(Plot(title, plot, words, _behind(result["rows"], problem, first)))
    return plots


def _behind(rows: Sequence[Mapping[str, Any]], problem: str, first: int) -> str:
    """Where every search stood when the model began, and along the way."""
    own = [row for row in rows if row["problem"] == problem]
    most = max(len(row["volumes"]) for row in own)
    places = sorted({first, *range(first, most + 1, 8), most})
    return records(
        {
            **{name: row[name] for name in ("acquisition", "seed", "seconds")},
            **{f"after {n}": row["volumes"][n - 1] for n in places if n <= len(row["volumes"])},
            **({"true volume": row["true_volume"]} if "true_volume" in row else {}),
        }
        for row in own
    )


def selection(result: Mapping[str, Any]) -> list[Plot]:
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
            line={"dash": "dot", "color": GREY},
            annotation_text="one run,<br>adaptive rate",
            annotation_position="right",
        )
        arrange(plot, top=20)
        plot.update_layout(margin_r=90)  # for the names of levels
        runs = sorted({row["mean_runs"] for row in result["rows"] if row["data"] == data})
        plot.update_xaxes(type="log", tickvals=runs, title_text="mean number of runs")
        plot.update_yaxes(title_text="test accuracy", rangemode="tozero")
        words = (
            f"All at ε = {result['setup']['epsilon']:g} and δ = {result['setup']['delta']:g} (per "
            "record, replace-one) for those who see the result alone; bars are one standard "
            "deviation."
        )
        rows = [row for row in (*result["rows"], *result["adaptive"]) if row["data"] == data]
        plots.append(Plot(f"Private selection, {data}", plot, words, records(rows)))
    return plots
