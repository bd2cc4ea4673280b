"""DP-HYPE's figures from our results: accuracy by epsilon (5, 6, 10, 11) and histograms (4, 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLUMNS = 3
_PANEL_HEIGHT = 300
_OURS, _PUBLISHED, _BEST, _GUESS = "#2459a9", "#e07b39", "#2f7d4f", "#777777"


def title(recipe: dict[str, Any]) -> str:
    """What a panel shows.

    >>> title({"data": "adult", "partition": "dirichlet", "alpha": 0.5, "clients": 100})
    'adult, n = 100, dirichlet α = 0.5'
    """
    words = [recipe["data"], f"n = {recipe['clients']}"]
    skewed = recipe["partition"] == "dirichlet"
    words.append(f"dirichlet α = {recipe['alpha']:g}" if skewed else recipe["partition"])
    for key, shown in (("network", "{}"), ("examples", "{} examples")):
        if recipe.get(key):
            words.append(shown.format(recipe[key]))
    if recipe.get("grid", "dp-hype-table") != "dp-hype-table":
        words.append(recipe["grid"])
    return ", ".join(words)


def figure(results: Sequence[dict[str, Any]]) -> Figure:
    """Every result as two panels: accuracy by epsilon, and the candidates' accuracies."""
    from plotly.subplots import make_subplots

    columns = min(_COLUMNS, len(results))
    rows = 2 * math.ceil(len(results) / columns)
    names = [""] * (rows * columns)
    for number, result in enumerate(results):
        place = 2 * columns * (number // columns) + number % columns
        names[place] = title(result["recipe"])
    plot = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=names,
        vertical_spacing=min(0.12, 0.35 / rows),
        horizontal_spacing=0.07,
    )
    for number, result in enumerate(results):
        row, column = 1 + 2 * (number // columns), 1 + number % columns
        _by_epsilon(plot, result, row, column, legend=number == 0)
        _histogram(plot, result, row + 1, column)
    height = 160 + _PANEL_HEIGHT * rows
    plot.update_layout(
        template="plotly_white",
        height=height,
        margin={"t": 165, "l": 70, "r": 20, "b": 60},
        legend={
            "orientation": "h",
            "y": 1 - 112 / height,
            "yanchor": "middle",
            "yref": "container",
        },
        title={
            "text": "Test accuracy of the configuration a private vote picks<br>"
            f"<sup>{results[0]['votes']} votes a client, δ = {results[0]['delta']:g}; bars: 95 % "
            "interval of the mean over training seeds</sup><br>"
            "<sup>lower panels: how many candidates reach which accuracy</sup>",
            "y": 1 - 20 / height,
            "yanchor": "top",
            "yref": "container",
        },
    )
    return plot


def _by_epsilon(
    plot: Figure, result: dict[str, Any], row: int, column: int, *, legend: bool
) -> None:
    ticks = ["∞" if epsilon == "inf" else epsilon for epsilon in result["vote"]]
    for key, name, colour, shift in (
        ("vote", "vote, Tacit's exact noise", _OURS, -0.09),
        ("vote_published_noise", "vote, published noise", _PUBLISHED, 0.09),
    ):
        found = list(result[key].values())
        plot.add_scatter(
            x=[place + shift for place in range(len(found))],
            y=[each["mean"] for each in found],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [each["high"] - each["mean"] for each in found],
                "arrayminus": [each["mean"] - each["low"] for each in found],
                "thickness": 1.2,
                "width": 3,
            },
            mode="lines+markers",
            line={"color": colour, "width": 1.5},
            name=name,
            legendgroup=key,
            showlegend=legend,
            row=row,
            col=column,
        )
    for key, name, colour, dash in (
        ("opt", "OPT", _BEST, "dash"),
        ("randguess", "RANDGUESS", _GUESS, "dot"),
    ):
        plot.add_scatter(
            x=[-0.4, len(ticks) - 0.6],
            y=[result[key]["mean"]] * 2,
            mode="lines",
            line={"color": colour, "dash": dash, "width": 1.8},
            name=name,
            legendgroup=key,
            showlegend=legend,
            row=row,
            col=column,
        )
    plot.update_xaxes(
        title_text="ε",
        tickvals=list(range(len(ticks))),
        ticktext=ticks,
        range=[-0.5, len(ticks) - 0.5],
        row=row,
        col=column,
    )
    plot.update_yaxes(range=[0, 1.02], tickformat=".0%", row=row, col=column)
    if column == 1:
        plot.update_yaxes(title_text="test accuracy", row=row, col=column)


def _histogram(plot: Figure, result: dict[str, Any], row: int, column: int) -> None:
    edges, counts = result["histogram"]["edges"], result["histogram"]["candidates"]
    plot.add_bar(
        x=[(low + high) / 2 for low, high in pairwise(edges)],
        y=counts,
        width=edges[1] - edges[0],
        marker={"color": _BEST, "line": {"color": "white", "width": 1}},
        showlegend=False,
        row=row,
        col=column,
    )
    plot.update_xaxes(
        title_text="test accuracy", tickformat=".0%", range=[0, 1], row=row, col=column
    )
    if column == 1:
        plot.update_yaxes(title_text="candidates", row=row, col=column)
