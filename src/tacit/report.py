"""One run as one page: a self-contained HTML file that opens from disk and loads nothing.

It is made from plain data: ``result.json``, the plan and the ledger's extract. Every text that
comes from those is escaped, and a content security policy forbids the page to fetch anything.
Epsilon and delta are rounded up, never down.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.files import json_text, write_whole
from tacit.result import ENCRYPTED_SERVER, EVERY_RUN, OPEN_SERVER, RESULT_ONLY, Result

Data = Mapping[str, Any]

_NONE = "–"
_BAR, _WINNER = "#7390b0", "#e0641e"  # readable on white and on black
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_PRINTING = """
const resize = size => window.Plotly && Plotly.relayout("tally", size);
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  resize({width: 640});
});
addEventListener("afterprint", () => resize({width: null, autosize: true}));
"""
# Plotly takes no CSS variables, so what changes in the dark is set here, against its own.
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c2430; --soft: #5a6675; --line: #d9dee5;
  --panel: #f4f6f9; --warn: #b91c1c; --alarm: #fef2f2; }
@media screen and (prefers-color-scheme: dark) { :root { --page: #14181e; --text: #e4e8ee;
  --soft: #9aa6b5; --line: #333c48; --panel: #1f262f; --warn: #fca5a5; --alarm: #3b1717; } }
body { margin: 0 auto; max-width: 56rem; padding: 2rem 1.2rem; background: var(--page);
  color: var(--text); font: 1rem/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.2rem; margin-top: 1.8rem; padding-top: 1rem; border-top: 1px solid var(--line); }
dt, th, summary, caption, .soft, .tiles span { color: var(--soft); font-size: .875rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; }
.tiles div, pre, blockquote { background: var(--panel); border-radius: 8px; padding: .7rem .9rem; }
.tiles b { display: block; font-size: 1.35rem; overflow-wrap: anywhere; }
.wide, pre { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .2rem .4rem; }
th, td { padding: .28rem .5rem; border-bottom: 1px solid var(--line); text-align: left; }
th + th, td + td { padding-left: 1.5rem; text-align: right; }
td + td { white-space: nowrap; }
.strong { font-weight: 650; background: var(--panel); }
blockquote, .warning { margin: .8rem 0; border-left: 4px solid var(--soft); }
.warning { color: var(--warn); background: var(--alarm); border: 2px solid; border-radius: 8px;
  padding: .7rem .9rem; }
dl { display: grid; grid-template-columns: 10rem 1fr; gap: .4rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
#tally .main-svg { background: transparent !important; }
#tally text { fill: var(--text) !important; }
#tally .gridlayer path { stroke: var(--line) !important; }
#tally .zerolinelayer path { stroke: var(--soft) !important; }
#tally .hovertext path { fill: var(--panel) !important; stroke: var(--soft) !important; }
@media (max-width: 36rem) { dl { display: block; } dd { margin-bottom: .6rem; }
  th + th, td + td { padding-left: .3rem; } }
@media print { html { font-size: 12px; } body { max-width: none; padding: 0; }
  pre { white-space: pre-wrap; } h2 { break-after: avoid; }
  tr, blockquote, .warning, #tally { break-inside: avoid; } }
"""


def write_run(result: Result, plan: str, folder: Path) -> None:
    """A run's ``ledger.json``, ``result.json`` and ``report.html``, each whole or not at all."""
    document = result.to_json()
    write_whole(folder / "ledger.json", json_text(result.ledger) + "\n")
    write_whole(folder / "result.json", json_text(document) + "\n")
    write_whole(folder / "report.html", render(document, plan, result.ledger))


def render(result: Data, plan: str, ledger: Data) -> str:
    """The page of a run.

    Args:
        result: the content of ``result.json``, see :meth:`tacit.result.Result.to_json`.
        plan: the plan's TOML text as it was run.
        ledger: the run's extract, see :meth:`tacit.privacy.ledger.Ledger.extract`.
    """
    versions = f"Tacit {tacit.__version__}, Python {platform.python_version()}"
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tacit report: {_text(ledger["run"])}</title>
<style>{_STYLE}</style>
<h1>Private hyperparameter tuning</h1>
<p class="soft">Federation {_text(ledger["federation"])}, run {_text(ledger["run"])}</p>
{_headline(result)}
<h2>Tally</h2>
{_tally(result)}
{_rounds(result)}
<h2>Privacy</h2>
{_privacy(result, ledger)}
<h2>Ledger</h2>
{_ledger(ledger)}
<h2>Time and traffic</h2>
{_costs(result)}
<h2>Plan</h2>
<pre>{_text(plan)}</pre>
<p class="soft">This page was made with {versions} and NumPy {np.__version__}.</p>
<script>{_PRINTING}</script>
</html>
"""


def _headline(result: Data) -> str:
    privacy, clients, accuracy = result["privacy"], result["clients"], result["accuracy"]
    price = f"ε at δ = {_up(privacy['delta'])}"
    if _infinite(privacy):
        price = "ε: no privacy guarantee"
    elif privacy["server"] == OPEN_SERVER:
        price += ", not against the server"
    tried = f"{len(result['candidates'])} candidates" if result["candidates"] else "own candidates"
    tiles = [(_text(result["method"]), f"method, {tried}")]
    if accuracy is not None:
        tiles.append((f"{accuracy:.2%}", "accuracy on the public test split"))
    tiles.append((_up(privacy["epsilon"]), price))
    if clients["asked"]:
        tiles.append((f"{clients['answered']} of {clients['asked']}", "clients answered"))
    shown = "".join(f"<div><b>{value}</b><span>{label}</span></div>" for value, label in tiles)
    chosen = [(_text(name), _value(value, 6)) for name, value in result["config"].items()]
    table = _table(("chosen configuration", "value, to six digits"), chosen)
    note = f"<p>Note: {_text(result['note'])}.</p>" if result["note"] else ""
    return f'<div class="tiles">{shown}</div>{table}{note}'


def _rounds(result: Data) -> str:
    """What a method that trains did in every round, and what it had cost by then."""
    notes = result.get("rounds")
    if not notes:
        return ""
    names = list(dict.fromkeys(name for note in notes for name in note["config"]))
    rows = [
        (
            str(note["number"]),
            _text(note["what"]),
            *(_value(note["config"][n]) if n in note["config"] else _NONE for n in names),
            _NONE if note["reward"] is None else _value(note["reward"]),
            _up(note["epsilon"]),
        )
        for note in notes
    ]
    head = ("round", "kind", *map(_text, names), "mean reward", "ε so far")
    found = result["architecture"]
    network = f"<p>Architecture found: <code>{_text(found)}</code></p>" if found else ""
    return (
        f"<h2>Rounds</h2>{network}<details open><summary>All {len(rows)} rounds</summary>"
        f'<div class="wide">{_table(head, rows)}</div></details>'
    )


def _tally(result: Data) -> str:
    chosen, privacy = result["config"], result["privacy"]
    if result["tally"] is None:
        reason = "opened sums, but no count for each candidate"
        if privacy["unit"] == "record":
            reason = "protects single records, in what every client sends"
        if _infinite(privacy):
            if privacy["server"] != ENCRYPTED_SERVER:
                reason = "had clients answer in clear, instead of opening a sum"
        elif privacy["mechanism"] == "none":
            reason = "chose without asking any client"
        return f"<p>There is none: the method “{_text(result['method'])}” {reason}.</p>"
    votes = zip(result["candidates"], result["tally"], strict=True)
    # Among equals the chosen one comes first: it won the lot.
    ranked = sorted(votes, key=lambda row: (-row[1], row[0] != chosen))
    sigma = math.sqrt(privacy["delivered_variance"] or 0)
    rows = [
        (str(rank), str(count), *(_value(candidate[name]) for name in chosen))
        for rank, (candidate, count) in enumerate(ranked, start=1)
    ]
    winner = next((i for i, (candidate, _) in enumerate(ranked) if candidate == chosen), None)
    table = _table(("rank", "released count", *map(_text, chosen)), rows, strong=winner)
    return (
        f"{_run_off(result)}{_chart(ranked, winner, sigma)}"
        f"{_reading([count for _, count in ranked], sigma)}"
        f"<details><summary>All {len(rows)} candidates with their counts</summary>{table}</details>"
    )


def _run_off(result: Data) -> str:
    """The second vote, if one was held: it decided, not the counts of the first."""
    held, chosen = result.get("run_off"), result["config"]
    if not held:
        return ""
    rows = [
        (str(count), *(_value(candidate[name]) for name in chosen))
        for candidate, count in zip(held["candidates"], held["tally"], strict=True)
    ]
    winner = held["candidates"].index(chosen)
    return (
        f"<p>A second vote among {len(rows)} finalists of the first decided. The noise in each of "
        f"its counts has a standard deviation of σ = {math.sqrt(held['variance']):.1f}.</p>"
        f"{_table(('run-off count', *map(_text, chosen)), rows, strong=winner)}"
        "<p>The first vote:</p>"
    )


def _chart(ranked: Sequence[tuple[Data, int]], winner: int | None, sigma: float) -> str:
    import plotly.graph_objects as go

    hover = [
        "<br>".join(f"{_text(name)} = {_value(value)}" for name, value in candidate.items())
        for candidate, _ in ranked
    ]
    bars = go.Bar(
        x=list(range(1, len(ranked) + 1)),
        y=[count for _, count in ranked],
        marker_color=[_WINNER if i == winner else _BAR for i in range(len(ranked))],
        customdata=hover,  # Plotly reads a little markup in it, so it is escaped as well
        hovertemplate="rank %{x}, released count %{y}<br>%{customdata}<extra></extra>",
    )
    layout = {
        "template": "none",
        "font": {"family": "system-ui, Segoe UI, Helvetica, Arial, sans-serif", "size": 13},
        "margin": {"l": 80, "r": 10, "t": 10, "b": 50},
        "xaxis": {"title": "candidates by rank", "showgrid": False, "zeroline": False},
        "yaxis": {"title": "released count, noise included"},
    }
    plot = go.Figure(bars, layout)
    if sigma:
        text = f"noise: ±2σ = ±{2 * sigma:.1f}"
        plot.add_hrect(
            -2 * sigma, 2 * sigma, fillcolor=_BAR, opacity=0.2, line_width=0, layer="below"
        )
        plot.add_annotation(
            text=text, x=1, y=2 * sigma, xref="paper", yanchor="bottom", showarrow=False
        )
    config = {"displayModeBar": False, "responsive": True}
    drawn = plot.to_html(config, full_html=False, default_height="380px", div_id="tally")
    return f'<div role="img" aria-label="Released counts by rank">{drawn}</div>'


def _reading(counts: Sequence[int], sigma: float) -> str:
    """What the counts say.

    The difference of two independent counts has a deviation of sqrt(2) sigma; half a vote is the
    continuity correction of the normal approximation.
    """
    words = "The chosen candidate is highlighted."
    if not sigma:
        return f"<p>{words} No noise was added.</p>"
    if len(counts) > 1:
        gap = counts[0] - counts[1]
        chance = math.erfc(max(gap - 0.5, 0) / (2 * sigma))
        words += (
            f" The two largest counts are {counts[0]} and {counts[1]}: a gap of {gap}, which is "
            f"{gap / sigma:.2f} σ. Between two given candidates with equally many true votes, "
            f"noise alone makes a gap this large or larger in about {_percent(chance)} of runs."
        )
        if chance > 0.05:
            words += " That does not prove the first to be ahead: read the leaders as a group."
    return (
        f"<p>{words}</p><p>The noise in each count has a standard deviation of σ = {sigma:.1f}: "
        f"about 95% of released counts lie within ±{2 * sigma:.1f} of the true ones, and a "
        "candidate that nobody voted for falls into the shaded band as often. Because of the "
        "noise, counts can be negative, or larger than the number of clients.</p>"
    )


def _privacy(result: Data, ledger: Data) -> str:
    privacy, clients = result["privacy"], result["clients"]
    facts = {"What the server saw": _seen(privacy, ledger)}
    if _infinite(privacy):
        statement = _warning(
            "No privacy guarantee (ε = ∞).",
            "Nothing bounds what the server, or anyone it tells, can learn about a client’s data "
            "from this run. It must not be called differentially private.",
        )
        if privacy["server"] == ENCRYPTED_SERVER:
            facts["Against whom answers were encrypted"] = _text(privacy["server"])
    elif privacy["mechanism"] == "none":
        statement = (
            "<blockquote>No client was asked anything, so this run reveals nothing about anyone’s "
            "data: ε = 0.</blockquote>"
        )
    else:
        statement = _statement(privacy)
        facts = {
            "Who is protected": _protected(privacy),
            "Against whom": _text(privacy["server"]),
            **facts,
            **_conditions(privacy, clients),
        }
    facts |= {
        "Setting": _text(privacy["setting"]),
        "Accounting": _text(privacy["accounting"]),
        "Covers": _text(privacy["covers"]),
    }
    terms = "".join(f"<dt>{term}</dt><dd>{words}</dd>" for term, words in facts.items())
    names = ("epsilon", "delta", "required_variance", "delivered_variance", "dropout", "colluding")
    recorded = {name.replace("_", " "): privacy[name] for name in names}
    recorded |= {f"clients {name}": count for name, count in clients.items()}
    rows = [(_text(k), _NONE if v is None else _text(v)) for k, v in recorded.items()]
    return f"{statement}<dl>{terms}</dl>{_table(('exact figure', 'as recorded'), rows)}"


def _protected(privacy: Data) -> str:
    if privacy["unit"] == "record":
        return "every single record; not what all the records of a client have in common"
    return f"every {_text(privacy['unit'])}, with all its data"


def _statement(privacy: Data) -> str:
    unit, relation = _text(privacy["unit"]), _text(privacy["relation"])
    epsilon, delta = _up(privacy["epsilon"]), _up(privacy["delta"])
    changed = f"replacing all the data of any one {unit}"
    if unit == "record":
        changed = "adding or removing any one record"
    statement = (
        f"<blockquote>What this run released is (ε, δ)-differentially private at {unit} level "
        f"({relation}), with ε&nbsp;=&nbsp;{epsilon} and δ&nbsp;=&nbsp;{delta}: "
        f"{changed} changes the probability of any outcome by at "
        f"most a factor of exp(ε) = {_up(math.exp(privacy['epsilon']))}, plus δ.</blockquote>"
    )
    if privacy["server"] != OPEN_SERVER:
        return statement
    return statement + _warning(
        "Not protected from the server.",
        "It saw every client’s answer with only that client’s share of the noise. The statement "
        "above is for those who see nothing but the released sums.",
    )


def _conditions(privacy: Data, clients: Data) -> dict[str, str]:
    required, delivered = privacy["required_variance"], privacy["delivered_variance"]
    by_clients = "Gaussian noise on sums of clipped gradients, which every client adds alone"
    if privacy["server"] in (RESULT_ONLY, EVERY_RUN):
        return {"Mechanism": "Gaussian noise on sums of clipped gradients and on models’ scores"}
    if required is None:
        return {"Mechanism": by_clients}
    collusion = (
        f"holds while at most {_percent(privacy['colluding'])} of the clients tell their noise"
    )
    # As the decimals that were written, like Participation.
    lost, told = (Fraction(str(privacy[k])) * clients["asked"] for k in ("dropout", "colluding"))
    if told < 1 <= lost:
        collusion += "; a curious participant is not covered should drop-outs reach their limit"
    return {
        "Drop-outs": f"holds while at most {_percent(privacy['dropout'])} of the clients drop out; "
        f"{clients['dropped']} of {clients['asked']} did",
        "Collusion": collusion,
        "Mechanism": f"skellam noise, a share from every client; variance "
        f"required {required:.4g} (σ = {math.sqrt(required):.3g}), delivered {delivered:.4g} "
        f"(σ = {math.sqrt(delivered):.3g})"
        + (f"; and {by_clients}" if privacy["unit"] == "record" else ""),
    }


def _seen(privacy: Data, ledger: Data) -> str:
    kinds = {_text(line["label"]): line["event"]["kind"] for line in ledger["lines"]}
    clear = [f"“{label}”" for label, kind in kinds.items() if kind == "unprotected"]
    if clear and privacy["server"] == ENCRYPTED_SERVER:
        return f"exact outputs, without noise, of {' and '.join(clear)}; answers were encrypted"
    if clear:
        return f"clients’ answers in clear, to {' and '.join(clear)}"
    if privacy["mechanism"] == "none":
        return "nothing from any client"
    if privacy["server"] == OPEN_SERVER:
        return "every client’s noisy answer, one by one"
    if privacy["server"] == RESULT_ONLY:
        return "the model released, and nothing of the other runs"
    if privacy["server"] == EVERY_RUN:
        return "the model and the noisy score of every run"
    if privacy["unit"] == "record":
        alone = "every client’s weights, trained by DP-SGD"
        return alone if privacy["required_variance"] is None else f"{alone}, and noisy sums"
    hidden = "encrypted" if privacy["server"] == ENCRYPTED_SERVER else "masked"
    return f"the noisy sums only; what single clients sent was {hidden}"


def _ledger(ledger: Data) -> str:
    lines = [
        (
            *map(_text, (line["label"], line["number"], line["event"]["kind"])),
            *(_up(line[price]["epsilon"]) for price in ("alone", "total")),
            _text(line["time"]),
        )
        for line in ledger["lines"]
    ]
    head = ("question", "line", "event", "ε alone", "ε in total", "time")
    totals = [
        (name, _up(ledger[key]["epsilon"]), _up(ledger[key]["delta"]))
        for name, key in (("spent so far", "lifetime"), ("budget", "budget"))
    ]
    return (
        (_table(head, lines, "This run") if lines else "<p>This run was charged nothing.</p>")
        + _table(("", "ε", "δ"), totals, "The federation’s lifetime")
        + '<p class="soft">Totals price all lines together; they are not sums of epsilons. '
        f"Accounting: {_text(ledger['lifetime']['accounting'])}.</p>"
    )


def _costs(result: Data) -> str:
    seconds, traffic, asked = result["seconds"], result["bytes"], result["clients"]["asked"]
    if not seconds:
        return "<p>No client was asked, so nothing was sent.</p>"
    up, down = ({name: sent[way] for name, sent in traffic.items()} for way in ("up", "down"))
    seconds, up, down = (
        {**column, "total": sum(column.values())} for column in (seconds, up, down)
    )
    rows = [
        (
            _text(name),
            f"{seconds[name]:.2f} s",
            *map(_size, (up[name], down[name])),
            _size((up[name] + down[name]) / asked) if asked else _NONE,
        )
        for name in seconds
    ]
    head = ("stage", "time", "sent by clients", "sent to clients", "a client’s average")
    caption = "Bytes of all clients together; the average of a client is both ways"
    return _table(head, rows, caption, strong=len(seconds) - 1) + _trained(result["evaluation"])


def _trained(evaluation: Data | None) -> str:
    """How simulated clients trained their candidates; real clients do not tell."""
    if evaluation is None or not evaluation["ways"]:
        return ""
    search = {"full": "every candidate in full", "halving": "bad candidates were given up early"}
    why = "".join(f"; not stacked: {_text(word)}" for word in evaluation["not_stacked_because"])
    return (
        f'<p class="soft">Simulated clients trained {search[evaluation["local"]]}: '
        f"{_text(evaluation['ways'][0])}{why}. This process held at most "
        f"{evaluation['peak_megabytes']:.0f} MB.</p>"
    )


def _table(
    head: Iterable[str], rows: Sequence[Iterable[str]], caption: str = "", strong: int | None = None
) -> str:
    """A table of cells that are escaped already; the row with index ``strong`` stands out."""
    body = "".join(
        f"<tr{' class=strong' if i == strong else ''}><td>{'</td><td>'.join(row)}</td></tr>\n"
        for i, row in enumerate(rows)
    )
    top = f"<thead><tr><th>{'</th><th>'.join(head)}</th></tr></thead>\n"
    return f'<div class="wide"><table><caption>{caption}</caption>{top}{body}</table></div>'


def _warning(title: str, words: str) -> str:
    return f'<div class="warning" role="alert"><strong>{title}</strong> {words}</div>'


def _infinite(privacy: Data) -> bool:
    return math.isinf(float(privacy["epsilon"]))  # in result.json it is a string


def _text(value: object) -> str:
    return escape(str(value))


def _value(value: object, digits: int = 4) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else _text(value)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"


def _up(price: float | str) -> str:
    """At most four significant digits, rounded up: a price is never understated.

    >>> _up(0.99991), _up(12.3401), _up(1e-5), _up("inf")
    ('1.000', '12.35', '0.00001', '∞')
    """
    rounded = Context(prec=4, rounding=ROUND_CEILING).create_decimal(str(price))
    return "∞" if rounded.is_infinite() else f"{rounded:g}"


def _size(count: float) -> str:
    """Bytes in units for people.

    >>> _size(999), _size(154_840), _size(2.5e9)
    ('999 B', '154.8 kB', '2.5 GB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
