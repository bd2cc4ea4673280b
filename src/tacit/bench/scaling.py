"""How time and memory grow with candidates, clients and samples.

Seconds are those of :meth:`score_many` on random examples, best of a few repetitions, without the
trial that chooses how to train (see :mod:`tacit.bench.speed`). For clients it is the local
evaluation of a whole simulated federation, one client after the other, each on all cores. The plain
loop over candidates (:mod:`tacit.bench.plain_loop`, the better of one thread and all) stands beside
the first curve, at sizes where waiting for it is bearable.

Memory is measured in a fresh process a point: the peak of resident memory, trial included, above
what torch and the examples took before; with a bound on what stacks may take, and without one. The
bound is on weights, velocities, gradients and activations: what the operations need for themselves
comes on top. A stack holds 100 candidates at most, so memory levels off there even without a bound.

The exponent of a curve is the slope of the least-squares line through its logarithms.

A killed run goes on with the points that are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tacit.bench.plain_loop import random_examples, sobol, timed, torch_loop
from tacit.cores import cores, import_torch
from tacit.journal import Journal, Piece, Positive, Row, machine, resident_megabytes
from tacit.networks import dense
from tacit.page import COLOURS
from tacit.sgd import Floats
from tacit.space import Config
from tacit.torch_task import TorchClient, TorchTask
from tacit.wording import log_ticks
from tacit.workers import end_with_parent, worker_processes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from torch import nn

NO_BOUND = 2**20
"""Megabytes that are no bound."""
UNITS = {
    "candidates": "seconds",
    "plain loop": "seconds",
    "clients": "seconds",
    "samples": "seconds",
    "memory": "megabytes",
    "bounded memory": "megabytes",
}
"""Every curve, in the order of measurement."""
_LEAST_MEGABYTES = 0.1  # below what the system counts memory in; keeps logarithms finite
_SEED = 1


@dataclass(frozen=True)
class Net:
    """A dense net, and what one of its clients holds and does."""

    inputs: int
    hidden: tuple[int, ...]
    classes: int
    rows: int
    epochs: int
    batch: int = 64

    def build(self) -> nn.Module:
        """A fresh module."""
        return dense((self.inputs,), self.classes, self.hidden)

    def clients(self, count: int, megabytes: int = NO_BOUND) -> list[TorchClient]:
        """Clients of one task, with random examples."""
        task = TorchTask(
            self.build,
            self.classes,
            epochs=self.epochs,
            batch=self.batch,
            metric="loss",
            memory_megabytes=megabytes,
        )
        examples = partial(random_examples, (self.inputs,), self.classes)
        held_out = max(1, self.rows // 4)
        return [
            task.client(
                examples(self.rows, seed=2 * number),
                examples(held_out, seed=2 * number + 1),
                seed=_SEED + number,
            )
            for number in range(count)
        ]


@dataclass(frozen=True)
class Setup:
    """Which points are measured, and at which sizes everything else stays."""

    net: Net = Net(105, (64, 64), 2, rows=260, epochs=5)
    memory_net: Net = Net(784, (256, 128), 10, rows=128, epochs=2)
    candidates: tuple[int, ...] = (10, 20, 50, 100, 200, 400)
    plain: tuple[int, ...] = (10, 20, 50, 100)
    """Candidates that the plain loop is waited for."""
    clients: tuple[int, ...] = (10, 20, 50, 100)
    samples: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    memory: tuple[int, ...] = (10, 20, 50, 100, 200, 400)
    usual_candidates: int = 100
    megabytes: int = 64
    repetitions: int = 3

    def points(self) -> list[tuple[str, int]]:
        """A curve and a place on it, in the order of measurement."""
        sizes = (
            self.candidates,
            self.plain,
            self.clients,
            self.samples,
            self.memory,
            self.memory,
        )
        return [(curve, size) for curve, own in zip(UNITS, sizes, strict=True) for size in own]


FULL = Setup()
QUICK = Setup(
    candidates=(10, 50, 100, 200),
    plain=(10, 50),
    clients=(10, 20, 40),
    samples=(64, 256, 1024),
    memory=(10, 50, 200),
    repetitions=1,
)


def run(quick: bool, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Measure every point, those of earlier runs excepted; JSON."""
    result = measure(QUICK if quick else FULL, folder, progress)
    return {"bench": "scaling", "quick": quick, **result}


def _kind_of_piece(points: Sequence[tuple[str, int]], piece: Piece) -> Any:
    """The very curve and size of the piece, and what was measured there."""
    if not isinstance(piece, int) or not 0 <= piece < len(points):
        return Any
    curve, size = points[piece]
    fields = [("curve", Literal[curve]), ("size", Literal[size]), (UNITS[curve], Positive)]
    return msgspec.defstruct("Point", fields, bases=(Row,))


def measure(setup: Setup, folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """All points of a setup; ``progress`` hears of finished and planned ones."""
    begin = time.perf_counter()
    points = setup.points()
    kind_of = partial(_kind_of_piece, points)
    journal = Journal(folder, {"bench": "scaling", **asdict(setup)}, kind_of)
    resumed = len(journal.pieces)
    for piece, (curve, size) in enumerate(points):
        progress(piece, len(points))
        if piece not in journal.pieces:
            found = (_seconds if UNITS[curve] == "seconds" else _megabytes)(curve, size, setup)
            journal.add(piece, {"curve": curve, "size": size, UNITS[curve]: found})
    progress(len(points), len(points))
    measured = [journal.pieces[piece] for piece in range(len(points))]
    return {
        "points": measured,
        "exponents": {curve: exponent(*_curve(measured, curve)) for curve in UNITS},
        "candidates": setup.usual_candidates,
        "net": asdict(setup.net),
        "memory_net": asdict(setup.memory_net),
        "megabytes": setup.megabytes,
        "seconds": time.perf_counter() - begin,
        "resumed": resumed,
        "torch": import_torch().__version__,
        "machine": machine(),
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The power of the size that values grow with; nothing for a single size.

    >>> round(exponent([1, 10, 100], [3, 300, 30000]), 6)
    2.0
    """
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _curve(points: Sequence[dict[str, Any]], curve: str) -> tuple[list[int], list[float]]:
    own = [point for point in points if point["curve"] == curve]
    return [point["size"] for point in own], [point[UNITS[curve]] for point in own]


def _seconds(curve: str, size: int, setup: Setup) -> float:
    count = size if curve in ("candidates", "plain loop") else setup.usual_candidates
    net = replace(setup.net, rows=size) if curve == "samples" else setup.net
    configs = sobol(count)
    clients = net.clients(size if curve == "clients" else 1)
    first = clients[0]

    def ours() -> Floats:
        return np.concatenate([client.score_many(configs) for client in clients])

    def plain(some: Sequence[Config], threads: int) -> Floats:
        losses, _ = torch_loop(
            net.build,
            first.train_examples,
            first.validation,
            some,
            epochs=net.epochs,
            batch=net.batch,
            seed=first.seed,
            threads=threads,
        )
        return losses

    sides: list[Callable[[], Floats]] = [ours]
    if curve == "plain loop":
        sides = [partial(plain, configs, threads) for threads in sorted({1, cores()})]
        plain(configs[:1], threads=1)  # what torch loads at the first use
    else:
        first.score_many(configs)  # holds the trial
    return min(timed(side)[0] for _ in range(setup.repetitions) for side in sides)


def _megabytes(curve: str, size: int, setup: Setup) -> float:
    megabytes = setup.megabytes if curve == "bounded memory" else NO_BOUND
    with worker_processes(1, end_with_parent) as pool:
        peak = pool.submit(_peak_megabytes, setup.memory_net, size, megabytes).result()
    return max(_LEAST_MEGABYTES, peak)


def _peak_megabytes(net: Net, candidates: int, megabytes: int) -> float:
    """What scoring takes at its peak, in a process that did nothing else."""
    (client,) = net.clients(1, megabytes)
    net.clients(1)[0].score_many(sobol(2))  # what torch loads and keeps at the first use
    configs = sobol(candidates)
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")  # the peak so far is forgotten
    start = resident_megabytes("VmRSS")
    client.score_many(configs)
    return resident_megabytes() - start


def figure(result: dict[str, Any]) -> Figure:
    """Four panels on logarithmic axes: seconds by candidates, clients and samples; memory."""
    from plotly.subplots import make_subplots

    net, large = (_widths(result[name]) for name in ("net", "memory_net"))
    samples, many = result["net"]["rows"], result["candidates"]
    ours, blue = "Tacit", COLOURS[0]
    bound = f"Tacit, bound of {result['megabytes']} MB"
    curves = {
        "candidates": (ours, blue, 1, 1),
        "plain loop": ("plain torch loop", COLOURS[1], 1, 1),
        "clients": (ours, blue, 1, 2),
        "samples": (ours, blue, 2, 1),
        "memory": (ours, blue, 2, 2),
        "bounded memory": (bound, COLOURS[2], 2, 2),
    }
    panels = {
        (1, 1): ("Candidates", f"one client, {net}, {samples} samples", "candidates"),
        (1, 2): ("Clients", f"all, {net}, {many} candidates, {samples} samples each", "clients"),
        (2, 1): ("Samples", f"one client, {net}, {many} candidates", "samples a client"),
        (2, 2): ("Memory", f"one client, {large}", "candidates"),
    }
    titles = [f"<b>{title}</b><br><sup>{about}</sup>" for title, about, _ in panels.values()]
    plot = make_subplots(2, 2, subplot_titles=titles, vertical_spacing=0.2)
    named: set[str] = set()
    drawn: dict[tuple[int, int], list[tuple[list[int], list[float]]]] = {}
    for curve, (name, colour, row, column) in curves.items():
        sizes, values = _curve(result["points"], curve)
        drawn.setdefault((row, column), []).append((sizes, values))
        power = result["exponents"][curve]
        label = "" if power is None else f"n<sup>{power:.2f}</sup>"
        plot.add_scatter(
            x=sizes,
            y=values,
            row=row,
            col=column,
            mode="lines+markers+text",
            text=[""] * (len(sizes) - 1) + [label],
            textposition="middle right",
            textfont={"color": colour},
            line={"color": colour},
            marker={"size": 7},
            name=name,
            legendgroup=name,
            showlegend=name not in named,
            cliponaxis=False,
            hovertemplate=f"%{{x}}: %{{y:.3g}} {UNITS[curve]}<extra>{name}</extra>",
        )
        named.add(name)
    for (row, column), (title, _, along) in panels.items():
        ticks = sorted({size for sizes, _ in drawn[row, column] for size in sizes})
        plot.update_xaxes(
            type="log",
            title_text=along,
            tickvals=ticks,
            range=[math.log10(ticks[0] / 1.15), math.log10(ticks[-1] * 1.5)],
            row=row,
            col=column,
        )
        values = [value for _, own in drawn[row, column] for value in own]
        levels = log_ticks(min(values), max(values))
        plot.update_yaxes(
            type="log",
            title_text="megabytes above the start" if title == "Memory" else "seconds",
            tickvals=levels,
            range=[math.log10(levels[0] / 1.05), math.log10(levels[-1] * 1.05)],
            row=row,
            col=column,
        )
    plot.update_layout(
        height=780,
        legend={"orientation": "h", "y": 1.08, "yanchor": "bottom"},
        margin={"t": 100, "l": 60, "r": 30, "b": 60},
    )
    return plot


def _widths(net: dict[str, Any]) -> str:
    return "-".join(str(width) for width in (net["inputs"], *net["hidden"], net["classes"]))
