"""One run as one page, in the frame of :mod:`tacit.page`, with :mod:`tacit.statement`'s words.

It is made from plain data: ``result.json``, the plan and the ledger's extract.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.files import json_text, write_whole
from tacit.page import (
    Cell,
    folded,
    page,
    paragraph,
    price,
    section,
    settings,
    table,
    terms,
    text,
    tiles,
    versions,
    warning,
)
from tacit.result import OPEN_SERVER, Result
from tacit.standing import standing
from tacit.statement import (
    NO_GUARANTEE,
    OPEN_TO_THE_SERVER,
    facts,
    infinite,
    named,
    proved_epsilon,
    quotable,
)
from tacit.wording import NONE, short, size, up

Data = Mapping[str, Any]


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
    parts = [
        *_abstained(result),
        *_headline(result, plan),
        *standing(result),
        *_rounds(result),
        section("Privacy"),
        *_privacy(result, plan, ledger),
        section("Ledger"),
        *_ledger(ledger),
        section("Time and traffic"),
        *_costs(result),
        section("Run it again"),
        *_again(result, plan),
    ]
    whose = f"Federation {ledger['federation']}, run" if named(ledger) else "Run"
    return page("Private hyperparameter tuning", parts, f"{whose} {ledger['run']}")


def _abstained(result: Data) -> list[str]:
    """First of all, where it is so: that the choice means nothing."""
    told = result.get("warning")
    return [warning("Most clients abstained.", told)] if told else []


def _headline(result: Data, plan: str) -> list[str]:
    privacy, clients, accuracy = result["privacy"], result["clients"], result["accuracy"]
    words = f"ε at δ = {up(privacy['delta'])}"
    if infinite(privacy):
        words = "ε: no privacy guarantee"
    elif privacy["server"] == OPEN_SERVER:
        words += ", not against the server"
    tried = f"{len(result['candidates'])} candidates" if result["candidates"] else "own candidates"
    shown = [(result["method"], f"method, {tried}")]
    if accuracy is not None:
        shown.append((f"{accuracy:.2%}", "accuracy on the public test split"))
    shown.append((up(proved_epsilon(result, plan)), words))
    if clients["asked"]:
        shown.append((f"{clients['answered']} of {clients['asked']}", "clients answered"))
    chosen = [(name, short(value, 6)) for name, value in result["config"].items()]
    note = [paragraph(f"Note: {result['note']}.")] if result["note"] else []
    note += [paragraph(f"Misbehaved: {fault}.") for fault in result.get("faults", ())]
    return [tiles(shown), table(("chosen configuration", "value, to six digits"), chosen), *note]


def _rounds(result: Data) -> list[str]:
    """What a method that trains did in every round, and what it had cost by then."""
    notes = result.get("rounds")
    if not notes:
        return []
    names = list(dict.fromkeys(name for note in notes for name in note["config"]))
    rows = [
        (
            note["number"],
            note["what"],
            *(note["config"].get(name) for name in names),
            note["reward"],
            price(note["epsilon"]),
        )
        for note in notes
    ]
    found = result["architecture"]
    return [
        section("Rounds"),
        paragraph(f"Architecture found: {found}") if found else "",
        table(("round", "kind", *names, "mean reward", "ε so far"), rows),
    ]


def _privacy(result: Data, plan: str, ledger: Data) -> list[str]:
    privacy, clients = result["privacy"], result["clients"]
    if infinite(privacy):
        statement = [warning("No privacy guarantee (ε = ∞).", NO_GUARANTEE)]
    else:
        words = "".join(map(paragraph, quotable(result, plan, ledger)))
        statement = [paragraph("To quote:", soft=True), f"<blockquote>{words}</blockquote>"]
        if privacy["server"] == OPEN_SERVER:
            statement.append(warning("Not protected from the server.", OPEN_TO_THE_SERVER))
    names = ("epsilon", "delta", "required_variance", "delivered_variance", "dropout", "colluding")
    recorded = {name.replace("_", " "): privacy[name] for name in names}
    recorded |= {f"clients {name}": count for name, count in clients.items()}
    rows = [(name, NONE if value is None else str(value)) for name, value in recorded.items()]
    exact = table(("exact figure", "as recorded"), rows)
    return [
        *statement,
        terms(facts(result, plan, ledger)),
        folded("Exact figures, not rounded", exact),
    ]


def _ledger(ledger: Data) -> list[str]:
    lines = [
        (
            line["number"],
            line["label"],
            line["event"]["kind"],
            *(price(line[part]["epsilon"]) for part in ("alone", "total")),
            line["time"],
        )
        for line in ledger["lines"]
    ]
    head = ("line", "question", "event", "ε alone", "ε in total", "time")
    totals = [
        (name, price(ledger[key]["epsilon"]), price(ledger[key]["delta"]))
        for name, key in (("spent so far", "lifetime"), ("budget", "budget"))
    ]
    return [
        table(head, lines, "This run") if lines else paragraph("This run was charged nothing."),
        table(("", "ε", "δ"), totals, "The federation’s lifetime"),
        paragraph(
            "Totals price all lines together; they are not sums of epsilons. "
            f"Accounting: {ledger['lifetime']['accounting']}.",
            soft=True,
        ),
    ]


def _costs(result: Data) -> list[str]:
    seconds, traffic, asked = result["seconds"], result["bytes"], result["clients"]["asked"]
    if not seconds:
        return [paragraph("No client was asked, so nothing was sent.")]
    up_, down = ({name: sent[way] for name, sent in traffic.items()} for way in ("up", "down"))

    def row(name: str, taken: float, sent: float, received: float) -> tuple[object, ...]:
        mean = (sent + received) / asked if asked else None
        sizes = (Cell(NONE if n is None else size(n), n) for n in (sent, received, mean))
        return name, Cell(f"{taken:.2f} s", taken), *sizes

    rows = [row(name, seconds[name], up_[name], down[name]) for name in seconds]
    whole = row("total", sum(seconds.values()), sum(up_.values()), sum(down.values()))
    head = ("stage", "time", "sent by clients", "sent to clients", "a client’s average")
    caption = "Bytes of all clients together; the average of a client is both ways"
    return [table(head, rows, caption, foot=whole), *_trained(result["evaluation"])]


def _trained(evaluation: Data | None) -> list[str]:
    """How simulated clients trained their candidates; real clients do not tell."""
    if evaluation is None or not evaluation["ways"]:
        return []
    search = {"full": "every candidate in full", "halving": "bad candidates were given up early"}
    why = "".join(f"; not stacked: {word}" for word in evaluation["not_stacked_because"])
    words = (
        f"Simulated clients trained {search[evaluation['local']]}: {evaluation['ways'][0]}{why}. "
        f"This process held at most {evaluation['peak_megabytes']:.0f} MB."
    )
    return [paragraph(words, soft=True)]


def _again(result: Data, plan: str) -> list[str]:
    return [
        paragraph(
            "The plan as it was run, with every default; in the run’s folder it is plan.toml. For "
            "simulated clients, “tacit tune plan.toml” runs it again. Noise has no seed: another "
            "run draws other noise, may choose otherwise, and is charged again."
        ),
        f"<pre>{text(plan)}</pre>",
        settings(result.get("versions") or versions(), "Versions"),
    ]
