"""Pictures of the benchmarks of tuning while training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.page import COLOURS, Plot, arrange, records

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = Mapping[str, Any]

_SPREAD = "Means over seeds; bars reach from the least to the most."


def averaging(result: Mapping[str, Any]) -> list[Plot]:
    """Accuracy against epsilon, one panel a data set."""
    rows = result["rows"]
    names = sorted({row["data"] for row in rows})
    plot = _panels(names)
    finite = sorted({row["epsilon"] for row in rows if math.isfinite(row["epsilon"])})
    for column, name in enumerate(names, start=1):
        for colour, clients in enumerate(sorted({row["clients"] for row in rows})):
            own = [r for r in rows if (r["data"], r["clients"]) == (name, clients)]
            label = f"{clients} clients"
            _line(plot, own, "epsilon", "accuracy", finite, label, colour, column)
            _level(plot, own, finite, f"{label}, no noise", colour, column)
        plot.update_xaxes(type="log", tickvals=finite, title_text="ε", row=1, col=column)
    plot.update_yaxes(title_text="test accuracy", range=[0, 1])
    words = f"ε at δ = 1e-5, client level, replace-one. {_SPREAD}"
    title = "Private federated averaging: accuracy against ε"
    return [Plot(title, plot, words, records(rows), panels=len(names))]


def adaptive(result: Mapping[str, Any]) -> list[Plot]:
    """The supplement's two figures: accuracy against randomness, and against the first rate."""
    rows = result["rows"]
    shares = sorted({row["random"] for row in rows})
    best = _panels(["best rate of each method"])
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for colour, method in enumerate(methods):
        tops = [
            {"random": share, "accuracy": max(own)}
            for share in shares
            for seed in sorted({row["seed"] for row in rows})
            if (own := _of(rows, method=method, random=share, seed=seed))
        ]
        _line(best, tops, "random", "accuracy", shares, method, colour, 1)
    best.update_xaxes(title_text="share of data dealt at random")
    best.update_yaxes(title_text="test accuracy", rangemode="tozero")
    ends = [shares[0], shares[-1]]
    titles = [f"{share:.0%} random" for share in ends]
    rates = _panels(titles)
    for column, share in enumerate(ends, start=1):
        for colour, method in enumerate(methods):
            at = [row for row in rows if row["method"] == method and row["random"] == share]
            values = sorted({row["rate"] for row in at})
            _line(rates, at, "rate", "accuracy", values, method, colour, column)
    rates.update_xaxes(
        type="log", dtick=1, exponentformat="power", title_text="first learning rate"
    )
    rates.update_yaxes(title_text="test accuracy", rangemode="tozero")
    behind = records(rows)
    return [
        Plot("Accuracy against the share of random data", best, _SPREAD, behind),
        Plot("Accuracy against the (first) learning rate", rates, _SPREAD, behind, panels=2),
    ]


def feathers(result: Mapping[str, Any]) -> list[Plot]:
    """Accuracy and run times of all methods, what was chosen over time, and F1 against epsilon."""
    import plotly.graph_objects as go

    rows, plots = result["rows"], []
    settings = sorted({(row["clients"], row["skew"]) for row in rows})
    words = [f"{clients} clients{', label skew' if skew else ''}" for clients, skew in settings]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for what, title in (("accuracy", "Test accuracy"), ("seconds", "Processor seconds of a run")):
        plot = _panels([""])
        for colour, method in enumerate(methods):
            values = [
                [r[what] for r in rows if (r["method"], r["clients"], r["skew"]) == (method, *one)]
                for one in settings
            ]
            plot.add_trace(
                go.Bar(
                    x=words,
                    y=[float(np.mean(v)) for v in values],
                    error_y=_bars(values),
                    name=method,
                    marker_color=COLOURS[colour % len(COLOURS)],
                )
            )
        plot.update_yaxes(title_text=title.lower())
        behind = [{key: row[key] for key in row if key != "history"} for row in rows]
        plots.append(Plot(title, plot, _SPREAD, records(behind)))
    return [*plots, _over_time(rows), _fraud(result)]


def _over_time(rows: Sequence[Row]) -> Plot:
    import plotly.graph_objects as go

    plot, behind = _panels(["all runs"]), []
    for row in rows:
        history = [note for note in row.get("history", ()) if note["what"] == "training"]
        if not history:
            continue
        skewed = ", label skew" if row["skew"] else ""
        behind += [
            {key: row[key] for key in ("clients", "skew", "seed")}
            | {"round": number, **note["config"]}
            for number, note in enumerate(history, start=1)
        ]
        plot.add_trace(
            go.Scatter(
                y=[note["config"]["learning_rate"] for note in history],
                x=list(range(1, len(history) + 1)),
                mode="lines",
                line={"shape": "hv", "width": 1.5},
                name=f"{row['clients']} clients{skewed}, seed {row['seed']}",
            )
        )
    plot.update_xaxes(title_text="training round (search, then evaluation)")
    plot.update_yaxes(type="log", dtick=1, title_text="learning rate")
    plot.update_layout(height=460, legend_y=-0.25)
    words = "One line a run; rounds of the search, then of the evaluation."
    return Plot("Learning rate that FEATHERS chose over time", plot, words, records(behind))


def _fraud(result: Mapping[str, Any]) -> Plot:
    import plotly.graph_objects as go

    rows = result["fraud"]
    finite = sorted({row["epsilon"] for row in rows if math.isfinite(row["epsilon"])})
    plot = _panels(["F1 of the rarer class"])
    _line(plot, rows, "epsilon", "f1", finite, "every release priced", 0, 1)
    _level(plot, rows, finite, "no noise", 0, 1, what="f1")
    told = [one for one in result["published"] if one["rewards_if_clipped"] is not None]
    plot.add_trace(
        go.Scatter(
            x=[one["rewards_if_clipped"] for one in told],
            y=[0.02] * len(told),
            mode="markers",
            marker={"symbol": "x", "color": COLOURS[5]},
            text=[f"claimed ε = {one['claimed']:g}" for one in told],
            hovertemplate="%{text}, rewards alone cost %{x:.3g}<extra></extra>",
            name="what published rewards cost, were losses clipped to 1",
        )
    )
    plot.update_xaxes(type="log", dtick=1, title_text="ε")
    plot.update_yaxes(title_text="F1", range=[0, 1])
    words = f"ε at client level, replace-one. {_SPREAD}"
    return Plot("FEATHERS on the fraud data: F1 against ε", plot, words, records(rows))


def _panels(names: Sequence[str]) -> Figure:
    from plotly.subplots import make_subplots

    plot = make_subplots(rows=1, cols=len(names), subplot_titles=list(names))
    arrange(plot)
    return plot


def _line(
    plot: Figure,
    rows: Sequence[Row],
    x: str,
    y: str,
    values: Sequence[float],
    name: str,
    colour: int,
    column: int,
) -> None:
    import plotly.graph_objects as go

    found = [[row[y] for row in rows if row[x] == value] for value in values]
    kept = [(value, ys) for value, ys in zip(values, found, strict=True) if ys]
    plot.add_trace(
        go.Scatter(
            x=[value for value, _ in kept],
            y=[float(np.mean(ys)) for _, ys in kept],
            error_y=_bars([ys for _, ys in kept]),
            mode="lines+markers",
            line={"color": COLOURS[colour % len(COLOURS)]},
            name=name,
            legendgroup=name,
            showlegend=column == 1,
        ),
        row=1,
        col=column,
    )


def _level(
    plot: Figure,
    rows: Sequence[Row],
    across: Sequence[float],
    name: str,
    colour: int,
    column: int,
    what: str = "accuracy",
) -> None:
    import plotly.graph_objects as go

    own = [row[what] for row in rows if math.isinf(row["epsilon"])]
    if own and across:
        plot.add_trace(
            go.Scatter(
                x=[across[0], across[-1]],
                y=[float(np.mean(own))] * 2,
                mode="lines",
                line={"color": COLOURS[colour % len(COLOURS)], "dash": "dot"},
                name=name,
                legendgroup=name,
                showlegend=column == 1,
            ),
            row=1,
            col=column,
        )


def _bars(values: Sequence[Sequence[float]]) -> dict[str, Any]:
    means = [float(np.mean(v)) for v in values]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(v) - mean for v, mean in zip(values, means, strict=True)],
        "arrayminus": [mean - min(v) for v, mean in zip(values, means, strict=True)],
        "thickness": 1,
        "width": 3,
    }


def _of(rows: Sequence[Row], **terms: Any) -> list[float]:
    return [row["accuracy"] for row in rows if all(row[k] == v for k, v in terms.items())]
