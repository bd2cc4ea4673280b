"""A front as a page that loads nothing: all points, the front, its band, settings on hover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.pareto import ANTI_IDEAL

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = Mapping[str, Any]
_CELL = "padding: .2rem .8rem .2rem 0; text-align: left"


def page(result: Mapping[str, Any]) -> str:
    """The whole page."""
    plot = figure(result).to_html({"displayModeBar": False}, full_html=False, include_plotlyjs=True)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{escape(result['name'])}: privacy and utility</title>"
        '<body style="font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto">'
        f"<h1>{escape(result['name'])}: privacy and utility</h1>"
        f"<p><b>Who may see this page:</b> {escape(result['who_may_see_it'])}.</p>"
        f"{plot}{_table(result['front'], result['third'])}</body></html>"
    )


def figure(result: Mapping[str, Any]) -> Figure:
    """Epsilon to the right on a logarithmic scale, error upwards."""
    import plotly.graph_objects as go

    best = result["front"]
    kept = {_key(row) for row in best}
    others = [row for row in result["points"] if _key(row) not in kept]
    plot = go.Figure()
    if result["third"] is None:
        _add_band(plot, best)
    for rows, name, colour, mode in (
        (others, "dominated", "#9aa6b5", "markers"),
        (best, "the front", "#2459a9", "markers" if result["third"] else "lines+markers"),
    ):
        plot.add_scatter(
            x=[row["epsilon"] for row in rows],
            y=[float(np.mean(row["errors"])) for row in rows],
            mode=mode,
            name=name,
            line={"color": colour, "shape": "hv"},
            marker={"color": colour, "size": 7},
            text=[_words(row, result["third"]) for row in rows],
            hovertemplate="ε = %{x:.3g}, error %{y:.3f}<br>%{text}<extra></extra>",
        )
    if result["third"]:
        plot.data[-1].marker.update(
            color=[row["extra"] for row in best],
            colorscale="Viridis",
            colorbar={"title": {"text": result["third"]}},
            size=10,
        )
    plot.add_vline(ANTI_IDEAL[0], line={"color": "#9aa6b5", "dash": "dot"})
    plot.add_annotation(  # on a logarithmic axis, annotations are placed by the logarithm
        x=math.log10(ANTI_IDEAL[0]),
        y=1,
        yref="paper",
        text="counts up to here",
        showarrow=False,
        xanchor="right",
        xshift=-4,
    )
    plot.update_xaxes(
        type="log",
        title_text=f"ε at δ = {result['delta']:g} ({result['protects']})",
        range=[math.log10(end) for end in _shown(result["points"])],
    )
    plot.update_yaxes(title_text="error (1 − utility)", rangemode="tozero")
    plot.update_layout(
        template="plotly_white",
        height=520,
        margin={"t": 30, "l": 70, "r": 20, "b": 110},
        legend={"orientation": "h", "y": -0.2},
    )
    return plot


def _shown(points: Sequence[Row]) -> tuple[float, float]:
    """The axis: all that is cheap enough to matter; dearer points are in the table.

    >>> _shown([{"epsilon": 0.5}, {"epsilon": 1e5}])
    (0.35, 100.0)
    """
    found = [row["epsilon"] for row in points]
    most = max(1.5 * ANTI_IDEAL[0], 1.4 * max(found))
    return 0.7 * min(found), min(most, 10 * ANTI_IDEAL[0])


def _add_band(plot: Figure, best: Sequence[Row]) -> None:
    """From the best replication of every point of the front to its worst."""
    epsilon = [row["epsilon"] for row in best]
    low, high = ([float(pick(row["errors"])) for row in best] for pick in (min, max))
    if low == high:
        return
    (across, above), (_, below) = _steps(epsilon, high), _steps(epsilon, low)
    plot.add_scatter(
        x=[*across, *reversed(across)],
        y=[*above, *reversed(below)],
        fill="toself",
        mode="none",
        fillcolor="rgba(36,89,169,0.18)",
        name="best to worst replication",
        hoverinfo="skip",
    )


def _steps(epsilon: Sequence[float], errors: Sequence[float]) -> tuple[list[float], list[float]]:
    """Corners of a line that keeps its height until the next point, as the front does.

    >>> _steps([1.0, 2.0], [0.5, 0.3])
    ([1.0, 2.0, 2.0], [0.5, 0.5, 0.3])
    """
    across = [epsilon[0], *(value for value in epsilon[1:] for _ in range(2))]
    heights = [*(value for value in errors[:-1] for _ in range(2)), errors[-1]]
    return across, heights


def _table(best: Sequence[Row], third: str | None) -> str:
    names = list(best[0]["config"]) if best else []
    words = ("ε", "error", *([third] if third else []), *names)
    head = "".join(f"<th style='{_CELL}'>{escape(word)}</th>" for word in words)
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td style='{_CELL}'>{escape(text)}</td>"
            for text in (
                f"{row['epsilon']:.4g}",
                f"{float(np.mean(row['errors'])):.4f}",
                *([_short(row["extra"])] if third else []),
                *(_short(row["config"][name]) for name in names),
            )
        )
        + "</tr>"
        for row in best
    )
    return f"<h2>The front</h2><table><tr>{head}</tr>{rows}</table>"


def _words(row: Row, third: str | None) -> str:
    told = {**row["config"], **({third: row["extra"]} if third else {})}
    return "<br>".join(escape(f"{name} = {_short(value)}") for name, value in told.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _key(row: Row) -> str:
    return f"{row['epsilon']!r} {row['errors']!r} {row['config']!r}"
