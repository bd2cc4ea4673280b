"""PrivTuna's Figures 2 to 8 from our results: bars of what was chosen, dots of the ground truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = Mapping[str, Any]

_COLOURS = ("#2459a9", "#e07b39", "#2f7d4f", "#8c5aa8", "#b8860b", "#c23b5a")
_TRUTH = "#111111"
_NO_TOOLS = {"displayModeBar": False}
_RATE, _MOMENTUM = "server_learning_rate", "server_momentum"
_NAMES = {_RATE: "server learning rate", _MOMENTUM: "server momentum", "accuracy": "test accuracy"}
_STRATEGIES = ("mean", "median", "trimmed-mean", "best-mean", "best-median", "dbscan")
_SURFACES = ("gho", "dbscan", "sgm", "sgm+u", "mplm", "aplm")


def figures(rows: Sequence[Row]) -> list[Figure]:
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
    with_data = [plot for plot in drawn if plot.data]
    return sorted(with_data, key=lambda plot: str(plot.layout.title.text))


def page(rows: Sequence[Row]) -> str:
    """One page with all figures."""
    parts = [
        plot.to_html(_NO_TOOLS, full_html=False, include_plotlyjs=number == 0)
        for number, plot in enumerate(figures(rows))
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        "<title>Combining local optima</title><body>" + "".join(parts) + "</body></html>"
    )


def _by_clients(
    rows: Sequence[Row], title: str, strategy: str, skew: str, amount: float | None
) -> Figure:
    """Three panels; a bar for each number of clients, a dot for its ground truth."""
    some = [row for row in rows if row["skew"] == skew and row["amount"] == amount]
    plot = _panels(title, 1, [_NAMES[what] for what in _NAMES])
    for column, what in enumerate(_NAMES, start=1):
        groups = {f"{n} clients": _where(some, clients=n) for n in _values(some, "clients")}
        _bars(plot, groups, lambda row, w=what: row["chosen"][strategy][w], 1, column)
        _dots(plot, groups, lambda row, w=what: row["chosen"]["gho"][w], 1, column)
    return plot


def _by_strategy(rows: Sequence[Row], title: str, amounts: tuple[float, float, float]) -> Figure:
    """A row of panels for each skew; a bar for each strategy, a dot for the ground truth."""
    skews = tuple(zip(("feature", "label", "quantity"), amounts, strict=True))
    names = [
        f"{_NAMES[what]}, {skew} skew β = {amount:g}"
        for skew, amount in skews
        for what in (_RATE, _MOMENTUM)
    ]
    plot = _panels(title, 3, names)
    for line, (skew, amount) in enumerate(skews, start=1):
        some = [row for row in _where(rows, skew=skew, clients=20) if row["amount"] == amount]
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
    return plot


def _against_flora(rows: Sequence[Row]) -> Figure:
    """Accuracy of DBSCAN and of FLoRA's four surfaces, by skew and over all skews."""
    skewed = [row for row in rows if row["skew"] != "iid"]
    panels = {
        f"{skew} skew": _where(skewed, skew=skew) for skew in ("feature", "quantity", "label")
    }
    panels["all skews"] = skewed
    plot = _panels("Figure 5: DBSCAN against FLoRA, test accuracy", 2, list(panels))
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
    return plot


def _panels(title: str, rows: int, names: Sequence[str]) -> Figure:
    from plotly.subplots import make_subplots

    columns = len(names) // rows
    plot = make_subplots(rows=rows, cols=columns, subplot_titles=names, vertical_spacing=0.12)
    height = 190 + 260 * rows
    plot.update_layout(
        template="plotly_white",
        barmode="group",
        height=height,
        title={
            "text": f"{title}<br><sup>means over seeds; lines: from the least to the most; "
            "black dots: ground truth (GHO)</sup>",
            "y": 1 - 15 / height,
            "yanchor": "top",
        },
        margin={"t": 130, "l": 60, "r": 20, "b": 50},
        legend={"orientation": "h", "y": 1 - 85 / height, "yanchor": "middle", "yref": "container"},
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
            marker_color=_TRUTH if name == "gho" else _COLOURS[number % len(_COLOURS)],
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
            marker={"color": _TRUTH, "size": 7},
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
