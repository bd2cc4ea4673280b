"""DP-HYPE's simulation of votes: how the number of votes, the budget and the candidates matter.

DP-HYPE (Liebenow, Peinemann and Mohammadi), section V-B, Figures 2a and 2b, and the artifact's
third experiment. Clients' losses are N(0, s^2) for good and N(1, s^2) for bad candidates; each
client votes for its ``votes`` smallest; noise is added to the sum; success is a good winner.

How we differ: besides the published noise (Gaussian, Theorems II.1 and IV.1) the same votes are
counted with Tacit's own (Skellam, exactly accounted, every client present), and with Theorem V.1's
bound given the votes. The paper's ``2^i, i in [7]`` good candidates overshoot 100 and stop at 64.
A vote for every candidate, which the paper includes, is refused by Tacit and has no second curve.
No client's data is involved, so noise here comes from the seeded generator. Settings share their
random numbers, which makes the curves comparable point by point.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.cores import cores
from tacit.journal import Journal, Number, array, each, machine
from tacit.page import COLOURS
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.bounds import TopVotes
from tacit.privacy.planner import published_sigma

CLIENTS = 250
VOTES = (1, 5, 10, 25, 50, 100)
EPSILONS = (0.25, 1.0)
DELTA = 1e-5
REPETITIONS, QUICK_REPETITIONS = 5000, 400
_CHUNK = 50

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Setting:
    """One point on the horizontal axis of a figure."""

    figure: str
    loss_deviation: float = 0.2
    good: int = 5
    candidates: int = 100

    @property
    def horizontal(self) -> float:
        """The value that this figure varies."""
        return {
            "loss deviation": self.loss_deviation,
            "good candidates": self.good,
            "candidates": self.candidates,
        }[self.figure]


SETTINGS = (
    *(
        Setting("loss deviation", loss_deviation=s)
        for s in (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    ),
    *(Setting("good candidates", good=g) for g in (2, 4, 8, 16, 32, 64)),
    *(Setting("candidates", candidates=p) for p in (10, 25, 50, 100, 200, 400)),
)


@dataclass(frozen=True)
class Curve:
    """One way to vote: a number of votes at an epsilon."""

    votes: int
    epsilon: float


CURVES = tuple(Curve(votes, epsilon) for epsilon in EPSILONS for votes in VOTES)


def run(
    repetitions: int,
    seed: int,
    folder: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Simulate every setting; ``progress`` hears of finished and planned repetitions."""
    if repetitions < 1:
        raise ValueError(f"repetitions is {repetitions}; it must be at least 1")
    started = time.perf_counter()
    recipe = {
        "bench": "votes",
        "seed": seed,
        "repetitions": repetitions,
        "settings": [asdict(setting) for setting in SETTINGS],
        "curves": [asdict(curve) for curve in CURVES],
    }
    sums = array(Number, len(SETTINGS), len(CURVES), 3)
    journal = Journal(folder, recipe, each(sums))
    sizes = [min(_CHUNK, repetitions - start) for start in range(0, repetitions, _CHUNK)]
    resumed = sum(chunk in journal.pieces for chunk in range(len(sizes)))
    sigmas = _noise_levels()
    work = {chunk: partial(_chunk, seed, chunk, size, sigmas) for chunk, size in enumerate(sizes)}
    finished: list[int] = []

    def done(chunk: int) -> None:
        finished.append(sizes[chunk])
        progress(sum(finished), repetitions)

    progress(0, repetitions)
    with ThreadPoolExecutor(cores()) as pool:
        journal.complete(pool, work, done)
    total = np.sum([journal.pieces[chunk] for chunk in range(len(sizes))], axis=0)
    return {
        "bench": "votes",
        "paper": "DP-HYPE, section V-B, Figures 2a and 2b and the artifact's third",
        "clients": CLIENTS,
        "delta": DELTA,
        "repetitions": repetitions,
        "seed": seed,
        "points": list(_points(total, repetitions)),
        "seconds": time.perf_counter() - started,
        "resumed_share": resumed / len(sizes),
        "machine": machine(),
    }


def _noise_levels() -> dict[Curve, tuple[float, dict[int, float]]]:
    """Per curve the published sigma and, by number of candidates, Tacit's variance."""
    levels = {}
    for curve in CURVES:
        budget = Budget(curve.epsilon, DELTA)
        bounds = {
            setting.candidates: TopVotes(setting.candidates, curve.votes)
            for setting in SETTINGS
            if curve.votes < setting.candidates
        }
        distinct = {bound.shifts: bound for bound in bounds.values()}
        variance = {shifts: calibrate(b.release, budget) for shifts, b in distinct.items()}
        levels[curve] = (
            published_sigma(curve.votes, budget),
            {candidates: variance[bound.shifts] for candidates, bound in bounds.items()},
        )
    return levels


def _chunk(
    seed: int, chunk: int, size: int, levels: dict[Curve, tuple[float, dict[int, float]]]
) -> list[Any]:
    """Sums over some repetitions: [setting][curve][published, Tacit, bound]."""
    rng = np.random.default_rng([seed, chunk])
    widest = max(setting.candidates for setting in SETTINGS)
    standard = rng.standard_normal((size, CLIENTS, widest), dtype=np.float32)
    noise = rng.standard_normal((size, widest))
    result = np.zeros((len(SETTINGS), len(CURVES), 3))
    for row, setting in enumerate(SETTINGS):
        tallies = _tallies(standard, setting)
        for column, curve in enumerate(CURVES):
            if curve.votes not in tallies:
                continue
            tally = tallies[curve.votes]
            sigma, variances = levels[curve]
            published = tally + sigma * noise[:, : setting.candidates]
            result[row, column, 0] = _successes(published, setting.good)
            result[row, column, 2] = _bounds(tally, setting.good, sigma)
            variance = variances.get(setting.candidates)
            if variance is not None:
                mean = variance / 2
                skellam = rng.poisson(mean, tally.shape) - rng.poisson(mean, tally.shape)
                result[row, column, 1] = _successes(tally + skellam, setting.good)
    nested: list[Any] = result.tolist()
    return nested


def _tallies(standard: Array, setting: Setting) -> dict[int, Array]:
    """Votes summed over clients, by number of votes; good candidates come first.

    Losses are divided by their deviation, which changes no ranking. Two equal losses at the last
    place (about one ballot in 10^5) give one vote more.
    """
    losses = standard[..., : setting.candidates].copy()
    losses[..., setting.good :] += np.float32(1 / setting.loss_deviation)
    ranked = np.sort(losses, axis=-1)
    return {
        votes: (losses <= ranked[..., votes - 1 : votes]).sum(axis=1, dtype=np.int16)
        for votes in VOTES
        if votes <= setting.candidates
    }


def _successes(noisy: Array, good: int) -> float:
    """Repetitions won by a good candidate; ties count by the share of good ones in them."""
    winners = noisy == noisy.max(axis=1, keepdims=True)
    return float((winners[:, :good].sum(axis=1) / winners.sum(axis=1)).sum())


def _bounds(tally: Array, good: int, sigma: float) -> float:
    """Theorem V.1 given the votes, summed over repetitions; 0 where it says nothing."""
    gap = np.maximum(tally[:, :good].min(axis=1) - tally[:, good:].max(axis=1), 0) / sigma
    bad = tally.shape[1] - good
    with np.errstate(divide="ignore"):
        miss = bad / (gap * math.sqrt(math.pi)) * np.exp(-(gap**2) / 4)
    return float(np.maximum(0.0, 1 - miss).sum())


def _points(total: Array, repetitions: int) -> Iterator[dict[str, Any]]:
    for row, setting in enumerate(SETTINGS):
        for column, curve in enumerate(CURVES):
            if curve.votes > setting.candidates:
                continue
            published, tacit, bound = (total[row, column] / repetitions).tolist()
            refused = curve.votes == setting.candidates
            yield {
                **asdict(setting),
                **asdict(curve),
                "x": setting.horizontal,
                "published": published,
                "tacit": None if refused else tacit,
                "bound": bound,
                "standard_error": math.sqrt(published * (1 - published) / repetitions),
            }


def figure(result: dict[str, Any]) -> Any:
    """The paper's figures as one interactive plot: a column per figure, a row per epsilon."""
    from plotly.subplots import make_subplots

    figures = ("loss deviation", "good candidates", "candidates")
    titles = [
        f"{name}, ε = {epsilon:g}"
        for epsilon in EPSILONS
        for name in (
            "Fig. 2a: spread of losses",
            "Fig. 2b: good candidates",
            "Number of candidates",
        )
    ]
    plot = make_subplots(
        len(EPSILONS),
        len(figures),
        subplot_titles=titles,
        vertical_spacing=0.14,
        horizontal_spacing=0.06,
        shared_yaxes=True,
    )
    styles = (("published", "solid", 2.0), ("tacit", "dot", 2.0), ("bound", "dash", 1.0))
    for column, name in enumerate(figures, start=1):
        for curve, colour in zip(CURVES, COLOURS * len(EPSILONS), strict=True):
            points = [
                p
                for p in result["points"]
                if (p["figure"], p["votes"], p["epsilon"]) == (name, curve.votes, curve.epsilon)
            ]
            across = [p["x"] for p in points]
            row = EPSILONS.index(curve.epsilon) + 1
            for key, dash, width in styles:
                plot.add_scatter(
                    x=across,
                    y=[p[key] for p in points],
                    row=row,
                    col=column,
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": width},
                    marker={"size": 5 if key == "published" else 3},
                    name=f"k = {curve.votes}",
                    legendgroup=str(curve.votes),
                    showlegend=key == "published" and column == 1 and row == 1,
                    hovertemplate=f"k = {curve.votes}, {key}: %{{y:.3f}}<extra></extra>",
                )
    axes = ("standard deviation of a loss", "good candidates of 100", "candidates, 5 of them good")
    for column, label in enumerate(axes, start=1):
        shown = [s.horizontal for s in SETTINGS if s.figure == figures[column - 1]]
        plot.update_xaxes(
            type="log", tickvals=shown, ticktext=[f"{x:g}" for x in shown], col=column
        )
        plot.update_xaxes(title_text=label, row=len(EPSILONS), col=column)
    plot.update_yaxes(range=[-0.03, 1.03])
    plot.update_yaxes(title_text="chance of a good winner", col=1)
    plot.update_layout(
        height=720,
        legend={"orientation": "h", "y": -0.12, "yanchor": "top"},
        margin={"t": 40, "l": 60, "r": 20, "b": 60},
    )
    return plot
