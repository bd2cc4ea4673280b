"""Pictures of what things cost: secure sums, encryption, Flower, local evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacit.page import COLOURS, Plot, arrange, records
from tacit.wording import log_ticks

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Row = Mapping[str, Any]


def secure_sum(result: Mapping[str, Any]) -> list[Plot]:
    """Time, memory and traffic against the number of clients."""
    everything = result["points"]
    points = [point for point in everything if point["setting"] == everything[0]["setting"]]
    clients = [point["clients"] for point in points]
    settings = dict.fromkeys(point["setting"] for point in everything)
    panels: dict[str, dict[str, Sequence[float]]] = {
        "processor seconds, all clients and the server": {
            setting: _column(
                [point for point in everything if point["setting"] == setting], "processor_seconds"
            )
            for setting in settings
        },
        "kB a client": {
            "up": _column(points, "upload_bytes_per_client", 1e-3),
            "down": _column(points, "download_bytes_per_client", 1e-3),
        },
        "megabytes of this process": {"peak memory": _column(points, "peak_megabytes")},
    }
    plot = _lines(clients, "clients", panels)
    words = f"One sum of {result['candidates']} integers a client; both axes are logarithmic."
    title = "The masked sum against the number of clients"
    told = [{**point, "faults": "; ".join(point["faults"])} for point in everything]
    lossy = result["lossy"]
    shares = {
        "clients in the sum": {
            "fewest in any of the sums": _column(lossy, "fewest_answers"),
            "needed": [row["clients"] * (1 - result["dropout"]) for row in lossy],
        }
    }
    opened = Plot(
        "Sums with lost messages",
        _lines([row["clients"] for row in lossy], "clients", shares),
        f"{result['loss']:.0%} of all messages are lost in either direction, and a silent client "
        f"is asked once more; a drop-out of {result['dropout']:.0%} was planned.",
        records(lossy),
    )
    return [Plot(title, plot, words, records(told), panels=len(panels)), opened]


def encrypted(result: Mapping[str, Any]) -> list[Plot]:
    """Time and traffic of the two encrypted methods, and the slowest single operations."""
    named = (("pf_mean", "PF-Mean"), ("pf_dbscan", "PF-DBSCAN"))
    clients = [row["clients"] for row in result["pf_mean"]]
    panels = {
        "seconds, every party in turn": {n: _column(result[k], "seconds") for k, n in named},
        "MB a client": {n: _column(result[k], "bytes_per_client", 1e-6) for k, n in named},
    }
    noisy = [("pf_dbscan_with_noise", "PF-DBSCAN with noise")]
    rows = [
        {"method": name, **{k: v for k, v in row.items() if k != "config"}}
        for key, name in (*named, *noisy)
        for row in result[key]
    ]
    return [
        Plot(
            "Multiparty encryption against the number of parties",
            _lines(clients, "parties", panels),
            "All keys included; both axes are logarithmic.",
            records(rows),
            panels=2,
        ),
        Plot(
            "Single operations",
            _operations(result["operations"]),
            "Milliseconds of one operation, for each number of parties and each ring.",
            records(result["operations"]),
        ),
    ]


def flower(result: Mapping[str, Any]) -> list[Plot]:
    """What Flower takes and what is ours, for every federation."""
    points = result["points"]
    names = [f"{point['nodes']} nodes, {point['kind']}" for point in points]
    bars = {
        "Flower, empty messages": _column(points, "flower_seconds"),
        "Tacit, beyond that": _column(points, "our_seconds"),
    }
    plot = _bars(names, bars, "seconds of one private vote")
    plot.update_layout(barmode="stack")
    return [Plot("One private vote over Flower", plot, table=records(points))]


def speed(result: Mapping[str, Any]) -> list[Plot]:
    """How many times as fast as a plain loop, and what halving adds."""
    rows = result["rows"]
    against = _bars(
        [row["model"] for row in rows],
        {
            "candidates that share nothing": _column(rows, "ratio"),
            "a grid, where epochs are shared": [row.get("shared_epochs_ratio") for row in rows],
        },
        "times as fast as a plain loop",
    )
    measured = [row for row in result["halving"] if "skipped" not in row]
    plots = [Plot("100 candidates against a plain loop", against, table=records(rows))]
    if measured:
        kinds = ("data", "federation", "space", "cores")
        names = [", ".join(str(row[kind]) for kind in kinds) for row in measured]
        ratios = {"times as fast": _column(measured, "ratio")}
        plots.append(
            Plot(
                "Successive halving against a full search",
                _bars(names, ratios, "times as fast as a full search", lying=True),
                "By data set, clients in the federation, candidates and cores.",
                records(result["halving"]),
            )
        )
    return plots


def noise(result: Mapping[str, Any]) -> list[Plot]:
    """A step with noise of either kind, for every model."""
    rows = result["rows"]
    steps = {"a step, beside one of single precision": _column(rows, "ratio")}
    plot = _bars([row["model"] for row in rows], steps, "times as long", lying=True)
    words = "Below 1: the step with noise without holes is the faster one."
    return [Plot("A step of DP-SGD with rounded normals", plot, words, records(rows))]


def ledger(result: Mapping[str, Any]) -> list[Plot]:
    """What a charge and a verification take, by the length of a ledger."""
    rows = result["rows"]
    sizes = sorted({row["lines"] for row in rows})
    panels = {
        title: {
            kind: [row[key] for row in rows if row["releases"] == kind]
            for kind in dict.fromkeys(row["releases"] for row in rows)
        }
        for title, key in (
            ("first charge, s", "first_seconds"),
            ("next charge, s", "next_seconds"),
            ("verify, s", "verify_seconds"),
        )
    }
    words = (
        "Releases that are all alike, all different, or different and so near the budget that "
        "every charge is priced exactly. The first charge is a fresh process's."
    )
    contests = result["rivals"]
    waits = {
        "longest wait for a first charge": _column(contests, "longest_first_seconds"),
        "longest wait for any other": _column(contests, "longest_wait_seconds"),
    }
    rivals = (
        f"{contests[0]['processes']} processes charge one ledger at once, "
        f"{contests[0]['charges_each']:,} times each; no charge is lost."
    )
    names = [found["releases"] for found in contests]
    return [
        Plot("A ledger of so many charges", _lines(sizes, "charges", panels), words, records(rows)),
        Plot("Rivals", _bars(names, waits, "seconds"), rivals, records(contests)),
    ]


def _lines(
    along: Sequence[float], what: str, panels: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    from plotly.subplots import make_subplots

    plot = make_subplots(rows=1, cols=len(panels), horizontal_spacing=0.12)
    colours: dict[str, str] = {}
    for column, (unit, curves) in enumerate(panels.items(), start=1):
        for name, values in curves.items():
            new = name not in colours
            colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
            plot.add_scatter(
                x=list(along)[: len(values)],
                y=values,
                mode="lines+markers",
                line={"color": colour},
                name=name,
                legendgroup=name,
                showlegend=new,
                row=1,
                col=column,
            )
        found = [value for values in curves.values() for value in values]
        levels = log_ticks(min(found), max(found))
        plot.update_yaxes(type="log", title_text=unit, tickvals=levels, row=1, col=column)
    plot.update_xaxes(type="log", title_text=what, tickvals=list(along))
    arrange(plot, 380, top=20)
    return plot


def _bars(
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    *,
    lying: bool = False,
) -> Figure:
    """Bars beside each other; lying ones leave room for long names."""
    import plotly.graph_objects as go

    plot = go.Figure()
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        places = {"x": values, "y": names} if lying else {"x": names, "y": values}
        kind = {"orientation": "h" if lying else "v", "marker_color": colour}
        plot.add_bar(**places, **kind, name=name)
    if lying:
        plot.update_xaxes(title_text=unit)
        plot.update_yaxes(autorange="reversed")
    else:
        plot.update_yaxes(title_text=unit)
    arrange(plot, top=40 if len(series) > 1 else 10, legend="above")
    plot.update_layout(showlegend=len(series) > 1)
    return plot


def _operations(rows: Sequence[Row]) -> Figure:
    import plotly.graph_objects as go

    plot = go.Figure()
    names = list(dict.fromkeys(row["operation"] for row in rows))
    rings = sorted({row["ring"] for row in rows})
    for ring, colour in zip(rings, COLOURS, strict=False):
        own = [row for row in rows if row["ring"] == ring]
        plot.add_scatter(
            x=_column(own, "seconds", 1e3),
            y=[row["operation"] for row in own],
            mode="markers",
            marker={"color": colour, "size": 8},
            text=[f"{row['clients']} parties, {row['who']}" for row in own],
            hovertemplate="%{y}, %{text}: %{x:.3g} ms<extra></extra>",
            name=f"ring {ring}",
        )
    found = _column(rows, "seconds", 1e3)
    levels = log_ticks(min(found), max(found))
    plot.update_xaxes(type="log", title_text="milliseconds", tickvals=levels)
    plot.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    arrange(plot, 120 + 26 * len(names), legend="above")
    plot.update_layout(showlegend=True)
    return plot


def _column(rows: Sequence[Row], key: str, unit: float = 1.0) -> list[float]:
    return [unit * row[key] for row in rows]
