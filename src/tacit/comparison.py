"""Several runs on one page: what each chose, how good it is, what it cost, and where plans differ.

For the command that compares runs: ``render([Run(name, result, plan, ledger), ..])``, with what
the folder of a run holds.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacit.page import (
    COLOURS,
    Cell,
    Plot,
    arrange,
    page,
    paragraph,
    price,
    section,
    table,
    text,
    warning,
)
from tacit.standing import certainty_of, chance_words
from tacit.statement import asked_nobody, infinite, proved_epsilon
from tacit.wording import short, size

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Data = Mapping[str, Any]

_FAR = 10.0  # how far right of the largest finite epsilon an infinite one stands


@dataclass(frozen=True)
class Run:
    """One run, as its folder tells it."""

    name: str
    result: Data
    """The content of ``result.json``."""
    plan: str
    """The text of ``plan.toml``."""
    ledger: Data
    """The content of ``ledger.json``."""

    @property
    def epsilon(self) -> float:
        """What may be quoted."""
        return proved_epsilon(self.result, self.plan)


def render(runs: Sequence[Run]) -> str:
    """The page that compares runs."""
    parts: list[str | Plot] = [*_units(runs), _table(runs), *_plots(runs)]
    parts += [section("What was chosen"), _chosen(runs)]
    parts += [section("Where the plans differ"), _differences(runs)]
    words = (
        "Every run was charged on its own. Runs of one federation add up in its ledger, which is "
        "what a client has lost in all: choosing the best of several runs does not refund the "
        "others."
    )
    return page(
        f"{len(runs)} runs compared", [*parts, section("Cost of comparing"), paragraph(words)]
    )


def _units(runs: Sequence[Run]) -> list[str]:
    """Epsilons of different kinds must not be compared."""
    found = {
        (run.result["privacy"]["unit"], run.result["privacy"]["relation"])
        for run in runs
        if not infinite(run.result["privacy"])
    }
    if len(found) < 2:
        return []
    kinds = " and ".join(f"{unit} level ({relation})" for unit, relation in sorted(found))
    return [warning("These epsilons do not compare.", f"They are about {kinds}.")]


def _table(runs: Sequence[Run]) -> str:
    head = ("run", "method", "accuracy", "ε", "δ", "protects", "surely first", "answered", "time")
    rows = []
    for run in runs:
        found, clients = run.result, run.result["clients"]
        privacy, seconds = found["privacy"], sum(found["seconds"].values())
        moved = sum(sent["up"] + sent["down"] for sent in found["bytes"].values())
        sure, accuracy = certainty_of(found), found["accuracy"]
        rows.append(
            (
                run.name,
                found["method"],
                None if accuracy is None else Cell(f"{accuracy:.2%}", accuracy),
                price(run.epsilon),
                price(privacy["delta"]),
                _protected(privacy),
                None if sure is None else Cell(chance_words(sure), sure),
                f"{clients['answered']} of {clients['asked']}" if clients["asked"] else None,
                Cell(f"{seconds:.1f} s", seconds),
                Cell(size(moved), float(moved)),
            )
        )
    caption = (
        "Accuracy on the public test split; “surely first”: chance that the chosen one truly had "
        "the most votes; bytes of all clients, both ways"
    )
    return table((*head, "bytes"), rows, caption)


def _protected(privacy: Data) -> str:
    if infinite(privacy):
        return "nobody"
    if asked_nobody(privacy):
        return "nobody was asked"
    return f"{privacy['unit']} ({privacy['relation']})"


def _plots(runs: Sequence[Run]) -> list[Plot]:
    drawn = [run for run in runs if run.result["accuracy"] is not None and run.epsilon > 0]
    if not drawn:
        return []
    words = "ε is logarithmic; runs without a guarantee stand at the right, at ∞."
    return [Plot("Accuracy against ε", _figure(drawn), words)]


def _figure(runs: Sequence[Run]) -> Figure:
    import plotly.graph_objects as go

    finite = sorted({run.epsilon for run in runs if math.isfinite(run.epsilon)})
    edge = _FAR * max(finite, default=1.0)
    plot = go.Figure()
    methods = dict.fromkeys(run.result["method"] for run in runs)
    for number, method in enumerate(methods):
        own = [run for run in runs if run.result["method"] == method]
        plot.add_scatter(
            x=[min(run.epsilon, edge) for run in own],
            y=[run.result["accuracy"] for run in own],
            mode="markers",
            marker={"color": COLOURS[number % len(COLOURS)], "size": 11},
            text=[text(run.name) for run in own],
            hovertemplate="%{text}: %{y:.2%}<extra></extra>",
            name=text(method),
        )
    ticks = [*finite, *([edge] if len(finite) < len({run.epsilon for run in runs}) else [])]
    names = [short(epsilon) for epsilon in finite] + ["∞"]
    shown = {"tickvals": ticks, "ticktext": names[: len(ticks)], "tickangle": 0}
    plot.update_xaxes(type="log", title_text="ε", **shown)
    plot.update_yaxes(title_text="accuracy on the public test split", tickformat=".1%")
    arrange(plot, top=20)
    plot.update_layout(showlegend=True)
    return plot


def _chosen(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.result["config"]))
    rows = [(run.name, *(run.result["config"].get(name) for name in names)) for run in runs]
    return table(("run", *names), rows)


def _differences(runs: Sequence[Run]) -> str:
    plans = [tomllib.loads(run.plan) for run in runs]
    keys = dict.fromkeys((part, key) for plan in plans for part in plan for key in plan[part])
    found = {f"{part}.{key}": [plan.get(part, {}).get(key) for plan in plans] for part, key in keys}
    rows = [
        (name, *map(short, values))
        for name, values in found.items()
        if any(value != values[0] for value in values)
    ]
    if not rows:
        return paragraph("Nowhere: only noise, and what follows from it, made a difference.")
    return table(("key", *(run.name for run in runs)), rows)
