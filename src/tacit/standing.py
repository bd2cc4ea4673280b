"""How sure a run's choice is, and the tally behind it, as parts of a page.

All of it is post-processing of what was released, see :mod:`tacit.certainty`, so it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.certainty import Certainty
from tacit.page import COLOURS, GREY, Cell, Plot, arrange, paragraph, section, table, text, tiles
from tacit.result import ENCRYPTED_SERVER
from tacit.statement import infinite
from tacit.wording import short

Data = Mapping[str, Any]

_WINNER = COLOURS[1]


def standing(result: Data) -> list[str | Plot]:
    """From the content of ``result.json``."""
    return [section("How sure is the choice?"), *_certainty(result), *_tally(result)]


def _certainty(result: Data) -> list[str]:
    """How far ahead the chosen one is: post-processing of what was released, so free of charge."""
    held, tally = result.get("run_off"), result["tally"]
    if held:
        return [
            paragraph(
                f"A second vote among {len(held['tally'])} finalists of the first decided; the "
                "following is about its counts."
            ),
            *_standing(held["candidates"], held["tally"], held["variance"], result["config"]),
        ]
    if tally is not None and len(tally) > 1:
        variance = result["privacy"]["delivered_variance"] or 0.0
        return _standing(result["candidates"], tally, variance, result["config"])
    if tally is not None:
        return [paragraph("There was one candidate only.")]
    return [
        paragraph(
            f"There is no tally: the method “{result['method']}” {_no_tally(result['privacy'])}. "
            "So what was released does not tell how far the chosen configuration is ahead of "
            "others."
        )
    ]


def _no_tally(privacy: Data) -> str:
    if infinite(privacy) and privacy["server"] != ENCRYPTED_SERVER:
        return "had clients answer in clear, instead of opening a sum"
    if not infinite(privacy) and privacy["mechanism"] == "none":
        return "chose without asking any client"
    if privacy["unit"] == "record":
        return "protects single records, in what every client sends"
    return "opened sums, but no count for each candidate"


def certainty_of(result: Data) -> float | None:
    """The chance that the chosen one truly has the most votes, where counts were released."""
    held = result.get("run_off") or {**result, "variance": result["privacy"]["delivered_variance"]}
    tally = held["tally"]
    if tally is None or len(tally) < 2 or result["config"] not in held["candidates"]:
        return None
    place = held["candidates"].index(result["config"])
    return float(Certainty.of(tally, held["variance"] or 0.0).chances[place])


def _standing(
    candidates: Sequence[Data], tally: Sequence[int], variance: float, chosen: Data
) -> list[str]:
    found = Certainty.of(tally, variance)
    first, second = sorted(tally, reverse=True)[:2]
    place = next((i for i, candidate in enumerate(candidates) if candidate == chosen), None)
    leads = place is not None and tally[place] == first
    who = "The chosen configuration has" if leads else "The leader of the tally has"
    if not variance:
        return [paragraph(f"{who} {first} votes, the runner-up {second}. No noise was added.")]
    shown = [
        (
            f"{found.deviations:.2f}",
            f"standard deviations of a difference: {first} against {second} of the runner-up",
        )
    ]
    if place is not None:
        shown.append(
            (chance_words(found.chances[place]), "chance that it truly has the most votes")
        )
    shown.append((str(found.group), "candidates hold the true leader with a chance of 95%"))
    words = []
    if not leads:
        words.append(
            "The chosen configuration is not the leader of this tally: what was known of its "
            "neighbours, or from the first vote, decided as well, which these numbers leave out."
        )
    if found.group > 1:
        words.append("Read the leaders as a group: the tally does not prove the first to be ahead.")
    words.append(
        f"The noise in each count has a standard deviation of σ = {math.sqrt(variance):.1f}. The "
        "chances assume that the true counts of all candidates are draws of one normal "
        "distribution, with the spread that the tally has beyond its noise, and that neighbours in "
        "the space do not support each other; they are about the ballots that were cast. They are "
        "computed from released counts and public numbers alone, so they cost no privacy."
    )
    return [tiles(shown), *map(paragraph, words)]


def chance_words(chance: float) -> str:
    """Never 100 %: a finite noise never proves anything.

    >>> chance_words(0.9999), chance_words(0.5349), chance_words(0.0001)
    ('over 99%', '53%', 'under 1%')
    """
    if chance > 0.99:
        return "over 99%"
    return "under 1%" if chance < 0.01 else f"{chance:.0%}"


def _tally(result: Data) -> list[str | Plot]:
    chosen, privacy = result["config"], result["privacy"]
    if result["tally"] is None:
        return []
    variance = privacy["delivered_variance"] or 0.0
    sigma = math.sqrt(variance)
    chances = [1.0]
    if len(result["tally"]) > 1:
        chances = Certainty.of(result["tally"], variance).chances.tolist()
    votes = zip(result["candidates"], result["tally"], chances, strict=True)
    # Among equals the chosen one comes first: it won the lot.
    ranked = sorted(votes, key=lambda row: (-row[1], row[0] != chosen))
    winner = next((i for i, (candidate, _, _) in enumerate(ranked) if candidate == chosen), None)
    rows = [
        (rank, count, Cell(chance_words(chance), chance), *candidate.values())
        for rank, (candidate, count, chance) in enumerate(ranked, start=1)
    ]
    head = ("rank", "released count", "chance to lead", *chosen)
    held = "The first vote" if result.get("run_off") else "The vote"
    words = f"{held}: released counts by rank, noise included; the chosen one is highlighted."
    if sigma:
        words += (
            f" About 95% of released counts lie within ±{2 * sigma:.1f} of the true ones, and a "
            "candidate that nobody voted for falls into the shaded band as often. Because of the "
            "noise, counts can be negative, or larger than the number of clients."
        )
    plot = Plot(
        "Released counts",
        _chart([(candidate, count) for candidate, count, _ in ranked], winner, sigma),
        words,
        table(head, rows, strong=winner),
        f"All {len(rows)} candidates with their counts",
    )
    return [section("Tally"), *_run_off(result), plot]


def _run_off(result: Data) -> list[str]:
    """The second vote, if one was held: it decided, not the counts of the first."""
    held, chosen = result.get("run_off"), result["config"]
    if not held:
        return []
    chances = Certainty.of(held["tally"], held["variance"]).chances
    rows = [
        (count, Cell(chance_words(chance), chance), *(candidate[name] for name in chosen))
        for candidate, count, chance in zip(
            held["candidates"], held["tally"], chances.tolist(), strict=True
        )
    ]
    words = (
        f"The second vote, among {len(rows)} finalists; the noise in each count has σ = "
        f"{math.sqrt(held['variance']):.1f}"
    )
    winner = held["candidates"].index(chosen)
    return [table(("run-off count", "chance to lead", *chosen), rows, words, strong=winner)]


def _chart(ranked: Sequence[tuple[Data, int]], winner: int | None, sigma: float) -> Any:
    import plotly.graph_objects as go

    hover = [
        "<br>".join(f"{text(name)} = {text(short(value))}" for name, value in candidate.items())
        for candidate, _ in ranked
    ]
    plot = go.Figure(
        go.Bar(
            x=list(range(1, len(ranked) + 1)),
            y=[count for _, count in ranked],
            marker_color=[_WINNER if i == winner else COLOURS[0] for i in range(len(ranked))],
            customdata=hover,  # Plotly reads a little markup in it, so it is escaped as well
            hovertemplate="rank %{x}, released count %{y}<br>%{customdata}<extra></extra>",
        )
    )
    arrange(plot, 380, top=10)
    plot.update_xaxes(title_text="candidates by rank", showgrid=False)
    plot.update_yaxes(title_text="released count, noise included")
    if sigma:
        plot.add_hrect(
            -2 * sigma, 2 * sigma, fillcolor=GREY, opacity=0.25, line_width=0, layer="below"
        )
        plot.add_annotation(
            text=f"noise: ±2σ = ±{2 * sigma:.1f}",
            x=1,
            y=2 * sigma,
            xref="paper",
            yanchor="bottom",
            showarrow=False,
        )
    return plot
