"""The page of a benchmark: its figures with the rows behind them, and how it was made.

It is made from the JSON document that the benchmark writes, so recorded results can be drawn again:
``page_of(revived(json.loads(text)))``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tacit.bench import (
    ballots_figures,
    combine_figures,
    cost_figures,
    dp_hype_figures,
    pareto_figures,
    scaling,
    training_figures,
    votes,
)
from tacit.page import Plot, folded, page, paragraph, records, section, settings, table

Data = Mapping[str, Any]

_MADE = ("setup", "machine", "versions", "command", "bench", "claims", "seconds", "core_seconds")
_DRAWN = ("vote", "vote_published_noise", "opt", "opt_by_test", "randguess", "histogram")


def page_of(result: Data, drawn: Sequence[Data] = ()) -> str:
    """The page of a result.

    Args:
        result: the document of a benchmark; its key ``bench`` names which.
        drawn: which documents are drawn; default: this one.
    """
    title, about, draw = PAGES[result["bench"]]
    plots = [plot for one in drawn or [result] for plot in draw(one)]
    parts: list[str | Plot] = [paragraph(about), *_claims(result), section("Figures"), *plots]
    return page(title, [*parts, *_how(result)], "A benchmark of Tacit")


def revived(document: Any) -> Any:
    """What :func:`tacit.files.json_text` wrote, with infinities as numbers again.

    >>> revived({"rows": [{"epsilon": "inf"}]})
    {'rows': [{'epsilon': inf}]}
    """
    if isinstance(document, dict):
        return {key: revived(value) for key, value in document.items()}
    if isinstance(document, list):
        return [revived(value) for value in document]
    return float(document) if document in ("inf", "-inf", "nan") else document


def _claims(result: Data) -> list[str]:
    if not result.get("claims"):
        return []
    rows = [
        (
            one["claim"],
            one["effect"],
            one["low"],
            one["high"],
            one["unit"],
            one["verdict"],
        )
        for one in result["claims"]
    ]
    head = ("claim", "effect", "95 % from", "to", "unit", "verdict")
    return [section("The paper’s claims"), table(head, rows)]


def _how(result: Data) -> list[str]:
    """The setup: everything but long lists, which are in the figures' tables."""
    setup = dict(result.get("setup", {})) | {
        name: value
        for name, value in result.items()
        if name not in (*_MADE, *_DRAWN) and not _rows(value) and not isinstance(value, list)
    }
    times = {
        words: f"{result[key]:.0f} s"
        for key, words in (("seconds", "time of this run"), ("core_seconds", "processor time"))
        if key in result
    }
    command = {"command": result["command"]} if "command" in result else {}
    made = {**command, **times, **result.get("machine", {}), **result.get("versions", {})}
    return [
        *([section("Setup"), settings(setup)] if setup else []),
        section("How it was made"),
        settings(made),
        *_further(result),
    ]


def _further(result: Data) -> list[str]:
    """Summaries in rows that no figure shows."""
    names = [name for name in ("table", "fraud_table", "published", "recipes") if name in result]
    return [
        folded(f"Recorded as “{name}”", records(result[name]))
        for name in names
        if _rows(result[name])
    ]


def _rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _scaling(result: Data) -> list[Plot]:
    words = "Both axes are logarithmic; at the end of a curve stands its fitted growth."
    grows = result["exponents"]
    behind = records({**one, "exponent": grows[one["curve"]]} for one in result["points"])
    return [Plot("How time and memory grow", scaling.figure(dict(result)), words, behind, panels=2)]


def _votes(result: Data) -> list[Plot]:
    words = (
        f"{result['clients']} clients, δ = {result['delta']:g} (client level, replace-one), "
        f"{result['repetitions']} repetitions. Solid: published noise; dotted: Tacit's exact "
        "Skellam noise at the same ε and δ; dashed: Theorem V.1's lower bound; k: votes a client."
    )
    drawn = votes.figure(dict(result))
    return [Plot("DP-HYPE's vote, simulated", drawn, words, records(result["points"]), panels=3)]


PAGES: dict[str, tuple[str, str, Callable[[Data], list[Plot]]]] = {
    "adaptive": (
        "Adaptive learning rates",
        "Adaptive rates against constant ones and Adam, on CIFAR-10 with class pairs.",
        training_figures.adaptive,
    ),
    "averaging": (
        "Private federated averaging",
        "Updates are clipped, noised and securely summed; every release is priced.",
        training_figures.averaging,
    ),
    "ballots": (
        "Other votes at the same price",
        "How far the pick of a vote is from the best candidate, in points of test accuracy, on "
        "score tables and made-up surfaces.",
        ballots_figures.plots,
    ),
    "combine": (
        "Combining local optima",
        "PrivTuna's measurements: local optima combined, against federated grid search and FLoRA.",
        lambda result: combine_figures.plots(result["rows"]),
    ),
    "dp-hype": (
        "DP-HYPE on real data",
        "Test accuracy of what a private vote picks, against the best candidate (OPT) and a "
        "random one (RANDGUESS).",
        lambda result: dp_hype_figures.plots([dict(result)]),
    ),
    "encrypted": (
        "Multiparty encryption",
        "Time and bytes of PF-Mean and PF-DBSCAN, and of every operation.",
        cost_figures.encrypted,
    ),
    "feathers": (
        "FEATHERS",
        "FEATHERS against federated DARTS, FedEx and FedAvg; and F1 against ε on fraud data.",
        training_figures.feathers,
    ),
    "flower": (
        "Tacit over Flower",
        "Messages, bytes and seconds of a private vote over Flower, beside empty messages.",
        cost_figures.flower,
    ),
    "ledger": (
        "Ledgers of many lines",
        "What a charge and a verification take, by the length of a ledger.",
        cost_figures.ledger,
    ),
    "noise": (
        "Noise without holes",
        "A step of DP-SGD with rounded normals, against a whole step in single precision.",
        cost_figures.noise,
    ),
    "pareto": (
        "Privacy and utility",
        "Fronts of private algorithms: a model's proposals against chance and a grid.",
        pareto_figures.pareto,
    ),
    "scaling": (
        "How local evaluation grows",
        "Time against candidates, clients and samples; memory against candidates.",
        _scaling,
    ),
    "secure-sum": (
        "The masked sum",
        "Time, memory and bytes of one sum, every client simulated in one process.",
        cost_figures.secure_sum,
    ),
    "selection": (
        "Private selection",
        "The best of a random number of private trainings, at one ε.",
        pareto_figures.selection,
    ),
    "speed": (
        "Local evaluation",
        "Scoring 100 candidates against the loop a user writes, and what halving saves.",
        cost_figures.speed,
    ),
    "votes": (
        "DP-HYPE's simulation",
        "Chance of a good winner (section V-B): spread of losses, good and all candidates.",
        _votes,
    ),
}
"""Title, what was measured, and how it is drawn; a benchmark is one line."""
