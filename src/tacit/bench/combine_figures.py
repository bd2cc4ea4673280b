"""PrivTuna's Figures 2 to 8 from our results: bars of what was chosen, dots of the ground truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.page import COLOURS, GREY, Plot, records

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = Mapping[str, Any]

_TRUTH = GREY
_SPREAD = "Means over seeds; lines reach from the least to the most"
_WORDS = f"{_SPREAD}; ringed dots: ground truth (GHO)."
_RATE, _MOMENTUM = "server_learning_rate", "server_momentum"
_NAMES = {_RATE: "server learning rate", _MOMENTUM: "server momentum", "accuracy": "test accuracy"}
_STRATEGIES = ("mean", "median", "trimmed-mean", "best-mean", "best-median", "dbscan")
_SURFACES = ("gho", "dbscan", "sgm", "sgm+u", "mplm", "aplm")


def plots(rows: Sequence[Row]) -> list[Plot]:
    """All of the paper's figures for which there are results."""
    by_clients = (
        ("Figure 2: iid, the mean", "mean", "iid", None),
        ("Figure 4: label skew β = 1, DBSCAN", "dbscan", "label", 1.0),
        ("Figure 7: feature skew β = 0.02, DBSCAN", "dbscan", "feature", 0.02),
        ("Figure 8: quantity skew β = 2, DBSCAN", "dbscan", "quantity", 2.0),
    )
    by_strategy = (
        ("Figure 3: every strategy, 20 clients", (0.02, 1.0, 0.4)),
        ("Figure 6: every strategy, 20 clients, other skews", (0.1, 5.0, 2.0)),
    )
    drawn = [_by_clients(rows, *one) for one in by_clients]
    drawn += [_by_strategy(rows, *one) for one in by_strategy]
    drawn.append(_against_flora(rows))
    with_data = [plot for plot in drawn if plot.figure.data]
    return sorted(with_data, key=lambda plot: plot.title)


def _behind(rows: Sequence[Row], names: Sequence[str], wanted: Sequence[str]) -> str:
    """Some numbers of what some strategies chose."""
    kept = ("data", "skew", "amount", "clients", "seed")
    return records(
        {key: row[key] for key in kept}
        | {name: {_NAMES[w]: row["chosen"][name][w] for w in wanted} for name in names}
        for row in rows
    )


def _by_clients(
    rows: Sequence[Row], title: str, strategy: str, skew: str, amount: float | None
) -> Plot:
    """Three panels; a bar for each number of clients, a dot for its ground truth."""
    some = [row for row in rows if row["skew"] == skew and row["amount"] == amount]
    plot = _panels(1, [_NAMES[what] for what in _NAMES])
    for column, what in enumerate(_NAMES, start=1):
        groups = {f"{n} clients": _where(some, clients=n) for n in _values(some, "clients")}
        _bars(plot, groups, lambda row, w=what: row["chosen"][strategy][w], 1, column)
        _dots(plot, groups, lambda row, w=what: row["chosen"]["gho"][w], 1, column)
    return Plot(title, plot, _WORDS, _behind(some, ("gho", strategy), list(_NAMES)), panels=3)


def _by_strategy(rows: Sequence[Row], title: str, amounts: tuple[float, float, float]) -> Plot:
    """A row of panels for each skew; a bar for each strategy, a dot for the ground truth."""
    skews = tuple(zip(("feature", "label", "quantity"), amounts, strict=True))
    names = [
        f"{_NAMES[what]}, {skew} skew β = {amount:g}"
        for skew, amount in skews
        for what in (_RATE, _MOMENTUM)
    ]
    plot, behind = _panels(3, names), []
    for line, (skew, amount) in enumerate(skews, start=1):
        some = [row for row in _where(rows, skew=skew, clients=20) if row["amount"] == amount]
        behind += some
        for column, what in enumerate((_RATE, _MOMENTUM), start=1):
            for number, name in enumerate(_STRATEGIES):
                _bars(
                    plot,
                    {name: some} if some else {},
                    lambda row, n=name, w=what: row["chosen"][n][w],
                    line,
                    column,
                    first=number,
                )
            groups = dict.fromkeys(_STRATEGIES, some) if some else {}
            _dots(plot, groups, lambda row, w=what: row["chosen"]["gho"][w], line, column)
    rows_behind = _behind(behind, ("gho", *_STRATEGIES), (_RATE, _MOMENTUM))
    return Plot(title, plot, _WORDS, rows_behind, panels=2)


def _against_flora(rows: Sequence[Row]) -> Plot:
    """Accuracy of DBSCAN and of FLoRA's four surfaces, by skew and over all skews."""
    skewed = [row for row in rows if row["skew"] != "iid"]
    panels = {
        f"{skew} skew": _where(skewed, skew=skew) for skew in ("feature", "quantity", "label")
    }
    panels["all skews"] = skewed
    plot = _panels(2, list(panels))
    for number, some in enumerate(panels.values()):
        for place, name in enumerate(_SURFACES):
            _bars(
                plot,
                {name: some} if some else {},
                lambda row, n=name: row["chosen"][n]["accuracy"],
                1 + number // 2,
                1 + number % 2,
                first=place,
            )
    behind = _behind(skewed, _SURFACES, ("accuracy",))
    return Plot("Figure 5: DBSCAN against FLoRA, test accuracy", plot, f"{_SPREAD}.", behind)


def _panels(rows: int, names: Sequence[str]) -> Figure:
    from plotly.subplots import make_subplots

    columns = len(names) // rows
    plot = make_subplots(rows=rows, cols=columns, subplot_titles=names, vertical_spacing=0.12)
    height = 110 + 260 * rows
    plot.update_layout(
        barmode="group",
        height=height,
        margin={"t": 80, "l": 50, "r": 20, "b": 40},
        legend={"orientation": "h", "y": 1 - 20 / height, "yanchor": "middle", "yref": "container"},
    )
    return plot


def _bars(
    plot: Figure,
    groups: Mapping[str, Sequence[Row]],
    value: Callable[..., float],
    line: int,
    column: int,
    first: int = 0,
) -> None:
    shown = {trace.name for trace in plot.data}
    for number, (name, rows) in enumerate(groups.items(), start=first):
        sets = _values(rows, "data")
        found = [[float(value(row)) for row in _where(rows, data=data)] for data in sets]
        means = np.array([np.mean(one) for one in found])
        plot.add_bar(
            x=sets,
            y=means,
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [max(one) for one in found] - means,
                "arrayminus": means - np.array([min(one) for one in found]),
                "thickness": 1,
                "width": 2,
            },
            name="GHO" if name == "gho" else name,
            marker_color=_TRUTH if name == "gho" else COLOURS[number % len(COLOURS)],
            offsetgroup=name,
            legendgroup=name,
            showlegend=("GHO" if name == "gho" else name) not in shown,
            row=line,
            col=column,
        )


def _dots(
    plot: Figure,
    groups: Mapping[str, Sequence[Row]],
    value: Callable[..., float],
    line: int,
    column: int,
) -> None:
    """The ground truth of every bar, upon the bar."""
    shown = {trace.name for trace in plot.data}
    for number, (name, rows) in enumerate(groups.items()):
        sets = _values(rows, "data")
        plot.add_scatter(
            x=sets,
            y=[np.mean([value(row) for row in _where(rows, data=data)]) for data in sets],
            mode="markers",
            marker={"color": "#111", "size": 8, "line": {"color": "#fff", "width": 1.5}},
            cliponaxis=False,
            name="GHO",
            legendgroup="GHO",
            offsetgroup=name,
            showlegend=number == 0 and "GHO" not in shown,
            row=line,
            col=column,
        )
    plot.update_layout(scattermode="group")


def _where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _values(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))
