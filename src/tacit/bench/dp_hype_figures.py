"""DP-HYPE's figures from our results: accuracy by epsilon (5, 6, 10, 11) and histograms (4, 9)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from tacit.page import COLOURS, GREY, Plot, arrange, records

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class _Recipe(TypedDict):
    data: str
    partition: str
    alpha: float
    clients: int
    network: NotRequired[str]
    examples: NotRequired[int]
    grid: NotRequired[str]


class _Interval(TypedDict):
    mean: float
    low: float
    high: float


class _Histogram(TypedDict):
    edges: Annotated[list[float], Meta(min_length=2)]
    candidates: list[float]


class Drawn(TypedDict):
    """What a result has to hold to be drawn."""

    recipe: _Recipe
    votes: int
    delta: float
    opt: _Interval
    randguess: _Interval
    vote: dict[str, _Interval]
    vote_published_noise: dict[str, _Interval]
    histogram: _Histogram


_OURS, _PUBLISHED, _BEST, _GUESS = *COLOURS[:3], GREY


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


def plots(results: Sequence[dict[str, Any]]) -> list[Plot]:
    """Every setting: accuracy by epsilon, and beside it the candidates' accuracies."""
    return [
        Plot(title(result["recipe"]), figure(result), _words(result), _behind(result), panels=2)
        for result in results
    ]


def figure(result: dict[str, Any]) -> Figure:
    """One setting in two panels."""
    from plotly.subplots import make_subplots

    names = ["what a private vote picks", "what the candidates reach"]
    plot = make_subplots(rows=1, cols=2, subplot_titles=names, column_widths=[0.6, 0.4])
    _by_epsilon(plot, result)
    _histogram(plot, result)
    arrange(plot, 380)
    return plot


def _words(result: dict[str, Any]) -> str:
    return (
        f"{result['votes']} votes a client, ε at δ = {result['delta']:g} (client level, "
        "replace-one); bars: 95 % interval of the mean over training seeds."
    )


def _behind(result: dict[str, Any]) -> str:
    """Everything on the left, in rows."""
    rows = [{"method": "OPT", **result["opt"]}, {"method": "RANDGUESS", **result["randguess"]}]
    for key, method in (("vote", "vote"), ("vote_published_noise", "vote, published noise")):
        rows += [{"method": method, "epsilon": e, **found} for e, found in result[key].items()]
    return records(rows)


def _by_epsilon(plot: Figure, result: dict[str, Any]) -> None:
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
            row=1,
            col=1,
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
            row=1,
            col=1,
        )
    plot.update_xaxes(
        title_text="ε",
        tickvals=list(range(len(ticks))),
        ticktext=ticks,
        range=[-0.5, len(ticks) - 0.5],
        row=1,
        col=1,
    )
    plot.update_yaxes(title_text="test accuracy", range=[0, 1.02], tickformat=".0%", row=1, col=1)


def _histogram(plot: Figure, result: dict[str, Any]) -> None:
    edges, counts = result["histogram"]["edges"], result["histogram"]["candidates"]
    plot.add_bar(
        x=[(low + high) / 2 for low, high in pairwise(edges)],
        y=counts,
        width=edges[1] - edges[0],
        marker={"color": _BEST, "line": {"color": "white", "width": 1}},
        showlegend=False,
        row=1,
        col=2,
    )
    plot.update_xaxes(title_text="test accuracy", tickformat=".0%", range=[0, 1], row=1, col=2)
    plot.update_yaxes(title_text="candidates", row=1, col=2)
