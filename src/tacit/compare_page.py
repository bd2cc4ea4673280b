"""A comparison for people: the rows of its table, its figure, the sentences that belong to both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacit.page import Plot, paragraph, section, settings, table, versions
from tacit.page import page as framed
from tacit.wording import rounded_up

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Data = Mapping[str, Any]
PRIVATE, ALL_PRIVATE = "private choice", "private choice and training"
ASKS_NOBODY, REFERENCE = "asks nobody", "reference, not private"
_COLOURS = {
    PRIVATE: "#2459a9",
    ALL_PRIVATE: "#2f7d4f",
    ASKS_NOBODY: "#8a94a3",
    REFERENCE: "#e07b39",
}
_PANELS = {
    "accuracy": "test accuracy",
    "regret": "accuracy lost against the best",
    "bytes_per_client": "kB a client, both ways",
    "seconds": "seconds",
}


def ordered(result: Data) -> list[Data]:
    """The best first, what protects nobody after all others."""
    return sorted(result["rows"], key=lambda row: (row["reference"], -row["accuracy"]))


def kind(row: Data) -> str:
    """What a method's epsilon is worth."""
    if row["reference"]:
        return REFERENCE
    if not float(row["epsilon"]):
        return ASKS_NOBODY
    return PRIVATE if row["covers"] == "choice" else ALL_PRIVATE


def columns(result: Data) -> list[str]:
    """The head of the table."""
    if result["compare"] == "table":
        return ["method", "accuracy", "lost against the best", "ε", "ε covers"]
    return ["method", "accuracy", "ε", "ε covers", "kB a client", "exchanges", "seconds"]


def cells(result: Data) -> list[list[str]]:
    """The rows of the table."""
    return [_cells(result, row) for row in ordered(result)]


def _cells(result: Data, row: Data) -> list[str]:
    price = [rounded_up(float(row["epsilon"])), row["covers"]]
    if result["compare"] == "table":
        return [row["method"], _accuracy(row), f"{100 * row['regret']:.1f} %", *price]
    return [
        row["method"],
        _accuracy(row),
        *price,
        f"{row['bytes_per_client'] / 1000:,.1f}",
        f"{row['exchanges']:.0f}",
        f"{row['seconds']:.1f}",
    ]


def _accuracy(row: Data) -> str:
    error = row["standard_error"]
    spread = "" if error is None else f" ± {100 * error:.1f}"
    return f"{100 * row['accuracy']:.1f}{spread} %"


def notes(result: Data) -> list[str]:
    """What a reader must know about the numbers."""
    budget, runs = result["budget"], len(result["seeds"])
    whole = f"ε = {float(budget['epsilon']):g} at δ = {budget['delta']:g}"
    both = result["together"]
    shared = (
        f"Publishing one run of each of the {len(both['methods'])} methods that are not references "
        f"would cost ε = {rounded_up(float(both['epsilon']))} at δ = {both['delta']:g} together, "
        "if the clients were real."
    )
    told = [
        f"{result['clients']} simulated clients; every method has the whole budget, {whole} (per "
        "client, replace-one), on a throw-away ledger: epsilons are per method.",
        shared,
    ]
    if any(row["reference"] for row in result["rows"]):
        told.append("References send answers in clear: their epsilon is infinite.")
    if {PRIVATE, ALL_PRIVATE} <= {kind(row) for row in result["rows"]}:
        told.append(
            "Some epsilons cover the choice alone and others the training too: those methods have "
            "noise in every update, and their accuracies are not for the same protection."
        )
    seconds = (
        "Seconds are those of this simulation, in which all clients compute in turn; bytes, "
        "exchanges and seconds include the training with the choice."
    )
    of_table = (
        "Scores and accuracies are those of the score table: nothing was trained here, or "
        "cross-validated."
    )
    told.append(of_table if result["compare"] == "table" else seconds)
    if runs > 1:
        told.append(f"Means over {runs} runs, ± the standard error of the mean.")
    return told


def figure(result: Data) -> Figure:
    """One panel each for accuracy and costs, one line a method."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rows = ordered(result)[::-1]  # plotly draws from below
    kinds = [word for word in _COLOURS if any(kind(row) == word for row in rows)]
    shown = [key for key in _PANELS if rows and rows[0].get(key) is not None]
    plot = make_subplots(
        rows=1,
        cols=len(shown),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[_PANELS[key] for key in shown],
    )
    for column, key in enumerate(shown, start=1):
        for word in kinds:
            own = [row for row in rows if kind(row) == word]
            plot.add_trace(
                go.Scatter(
                    y=[label(row) for row in own],
                    x=[row[key] / 1000 if key == "bytes_per_client" else row[key] for row in own],
                    error_x=_errors(own) if key in ("accuracy", "regret") else None,
                    mode="markers",
                    name=word,
                    legendgroup=word,
                    showlegend=column == 1,
                    marker={"color": _COLOURS[word], "size": 10},
                    hovertemplate="%{y}: %{x:.4g}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        if key in ("accuracy", "regret"):
            plot.update_xaxes(tickformat=".0%", rangemode="tozero", row=1, col=column)
        else:  # from few to very many: equal steps are equal factors
            plot.update_xaxes(type="log", dtick="D2", tickformat="~r", row=1, col=column)
    plot.update_yaxes(
        categoryorder="array", categoryarray=[label(row) for row in rows], automargin=True
    )
    plot.update_layout(
        height=170 + 26 * max(len(rows), 4),
        margin={"t": 40, "l": 20, "r": 20, "b": 70},
        legend={"orientation": "h", "y": -0.12, "yanchor": "top"},
    )
    return plot


def title(result: Data) -> str:
    """What was compared on what."""
    if result["compare"] == "table":
        return f"Methods on the table {result['table']}"
    plan = result["plan"]
    where = f"{plan['task']['data']}, {plan['federation']['partition']}"
    return f"Methods on {where}, {result['clients']} clients"


def label(row: Data) -> str:
    """A method with its price."""
    epsilon = float(row["epsilon"])
    price = "∞" if math.isinf(epsilon) else rounded_up(epsilon)
    return f"{row['method']} (ε = {price})"


def page(result: Data) -> str:
    """One page that loads nothing."""
    why = list(result["not_compared"].items())
    words = "What protects nobody is marked as a reference."
    if result["compare"] != "table":
        words = f"Costs are on logarithmic axes. {words}"
    parts: list[str | Plot] = [
        table(columns(result), cells(result)),
        *(paragraph(note) for note in notes(result)),
        Plot(title(result), figure(result), words, panels=3),
    ]
    if why:
        parts += [section("Not compared"), table(("method", "why"), why)]
    parts += [section("How it was made"), settings(versions())]
    return framed(title(result), parts, "A comparison by Tacit")


def _errors(rows: Sequence[Data]) -> dict[str, Any] | None:
    if any(row["standard_error"] is None for row in rows):
        return None  # of a single run
    found = [row["standard_error"] for row in rows]
    return {"type": "data", "array": found, "thickness": 1, "width": 3}
