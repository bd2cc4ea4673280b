"""A front as a page that loads nothing: all points, the front, its band, settings on hover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.page import (
    COLOURS,
    GREY,
    Plot,
    page,
    paragraph,
    price,
    section,
    settings,
    table,
    tiles,
    versions,
)
from tacit.pareto import ANTI_IDEAL
from tacit.wording import log_ticks, short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = Mapping[str, Any]


def render(result: Mapping[str, Any]) -> str:
    """The whole page, from the content of ``front.json``."""
    third, points = result["third"], result["points"]
    words = (
        f"ε at δ = {result['delta']:g} ({result['protects']}) against the error. A point of the "
        "front has the least error that was found for its ε or less"
        + ("." if third else "; the band reaches from its best to its worst replication.")
    )
    behind, summary = _table(points, third), f"All {len(points)} points"
    parts: list[str | Plot] = [
        tiles(
            [
                (str(len(result["front"])), f"points of {len(points)} are on the front"),
                (short(result["hypervolume"]), "hypervolume, up to ε = 10 and an error of 1"),
            ]
        ),
        paragraph(f"Who may see this page: {result['who_may_see_it']}."),
        Plot("What ε buys", figure(result), words, behind, summary),
        section("The front"),
        _table(result["front"], third),
        section("Plan"),
        paragraph(
            "As it was run, with every default; in the folder of the front it is plan.toml, and "
            "“tacit pareto plan.toml” runs it again."
        ),
        settings(result["plan"]),
        section("How it was made"),
        settings({**result["machine"], **(result.get("versions") or versions())}),
    ]
    return page(f"{result['name']}: privacy and utility", parts, "A privacy-utility front")


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
        (others, "dominated", GREY, "markers"),
        (best, "the front", COLOURS[0], "markers" if result["third"] else "lines+markers"),
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
    plot.add_vline(ANTI_IDEAL[0], line={"color": GREY, "dash": "dot"})
    plot.add_annotation(  # on a logarithmic axis, annotations are placed by the logarithm
        x=math.log10(ANTI_IDEAL[0]),
        y=1,
        yref="paper",
        text="counts up to here",
        showarrow=False,
        xanchor="right",
        xshift=-4,
    )
    shown = _shown(result["points"])
    plot.update_xaxes(
        type="log",
        tickvals=log_ticks(*shown),
        title_text=f"ε at δ = {result['delta']:g} ({result['protects']})",
        range=[math.log10(end) for end in shown],
    )
    plot.update_yaxes(title_text="error (1 − utility)", rangemode="tozero")
    plot.update_layout(
        height=480,
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
        fillcolor="rgba(59,125,196,0.22)",
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


def _table(rows: Sequence[Row], third: str | None) -> str:
    names = list(rows[0]["config"]) if rows else []
    head = ("ε", "error", "least", "most", *([third] if third else []), *names)
    return table(
        head,
        [
            (
                price(row["epsilon"]),
                float(np.mean(row["errors"])),
                float(min(row["errors"])),
                float(max(row["errors"])),
                *([row["extra"]] if third else []),
                *(row["config"][name] for name in names),
            )
            for row in rows
        ],
    )


def _words(row: Row, third: str | None) -> str:
    told = {**row["config"], **({third: row["extra"]} if third else {})}
    return "<br>".join(escape(f"{name} = {short(value)}") for name, value in told.items())


def _key(row: Row) -> str:
    return f"{row['epsilon']!r} {row['errors']!r} {row['config']!r}"
