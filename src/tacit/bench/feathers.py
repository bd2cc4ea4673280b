"""FEATHERS' measurements: architecture and hyperparameters searched together, against rivals.

Seng et al., "FEATHERS: Federated Architecture and Hyperparameter Search" (2023), section 4 and
appendix B: Fashion-MNIST with and without label skew (one client holds 66 % of a label), FEATHERS
against federated DARTS with its usual settings, FedEx on DARTS' architecture, and federated
averaging with defaults on a hand-made network; the evaluation stage with and without the bandit;
what was chosen over time; run times. And the fraud data: F1 against epsilon, with every release
priced, beside what the published accounting would have claimed.

How we differ: a subset, small cells and few rounds (``full`` takes the paper's numbers); the same
number of client epochs for everybody, so that who spends some on rewards trains less;
3 seeds and intervals. For the fraud data the guarantee is at the level of clients, 100 of them,
where the paper's is about records; classes are not oversampled, since a record that is copied costs
as many times as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tacit.bench.claims import claim
from tacit.bench.feathers_runs import FraudRow, ImageRow, Setup, one_fraud, one_image
from tacit.bench.pieces import Workplace
from tacit.journal import Piece
from tacit.privacy.accounting import gaussian_epsilon

SEEDS = 3
METHODS = ("feathers", "darts", "fedex", "fedavg")


def _kind_of_piece(piece: Piece) -> Any:
    return FraudRow if str(piece).startswith("fraud, ") else list[ImageRow]


def run(setup: Setup, seeds: int, place: Workplace) -> dict[str, Any]:
    """Train what is missing, and judge the paper's claims; JSON."""
    images = [
        (seed, clients, skew, method)
        for seed in range(seeds)
        for clients in setup.clients
        for skew in (False, True)
        for method in ("feathers", "darts", "fedavg")
    ]
    frauds = [(seed, epsilon) for seed in range(seeds) for epsilon in setup.epsilons]
    work: dict[str, Callable[[], Any]] = {
        f"{method}, {clients} clients, skew {skew}, seed {seed}": partial(
            one_image, setup, place.data_dir, seed, clients, skew, method
        )
        for seed, clients, skew, method in images
    }
    pieces = dict(zip(work, images, strict=True))
    fraud = {
        f"fraud, epsilon {epsilon:g}, seed {seed}": partial(
            one_fraud, setup, place.data_dir, seed, epsilon
        )
        for seed, epsilon in frauds
    }
    data = ("fashion-mnist", "fraud")
    found, about = place.carried_out("feathers", setup, data, {**work, **fraud}, _kind_of_piece)
    rows = [
        {"seed": seed, "clients": clients, "skew": skew, **row}
        for piece, (seed, clients, skew, _) in pieces.items()
        for row in found[piece]
    ]
    fraud_rows = [
        {"seed": seed, "epsilon": epsilon, **found[piece]}
        for piece, (seed, epsilon) in zip(fraud, frauds, strict=True)
    ]
    return about | {
        "seeds": seeds,
        "rows": rows,
        "table": table(rows),
        "fraud": fraud_rows,
        "fraud_table": fraud_table(fraud_rows),
        "published": [published(setup, epsilon) for epsilon in setup.epsilons],
        "claims": claims(rows),
    }


def published(setup: Setup, epsilon: float) -> dict[str, Any]:
    """What the published accounting claims, and what its rewards alone would cost, if clipped.

    The paper takes one epsilon for every message (a Gaussian's textbook noise for sensitivity 1)
    and reports that; two losses a configuration leave every client in every reward round. Losses
    have no bound; were they clipped to one, their releases would compose to this, for a client.
    """
    if math.isinf(epsilon):
        return {"epsilon": epsilon, "claimed": epsilon, "rewards_if_clipped": None}
    stages = setup.fraud_search, setup.fraud_evaluation
    losses = sum(2 * s.phases * s.most_rounds * s.drawn for s in stages)
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / epsilon
    return {
        "epsilon": epsilon,
        "claimed": epsilon,
        "rewards_if_clipped": gaussian_epsilon(losses / sigma**2, 1e-5),
    }


# Judgement


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean accuracy and processor time of every method in every setting."""
    settings = dict.fromkeys((row["clients"], row["skew"], row["method"]) for row in rows)
    found = []
    for clients, skew, method in settings:
        own = [r for r in rows if (r["clients"], r["skew"], r["method"]) == (clients, skew, method)]
        accuracy, seconds = (float(np.mean([r[k] for r in own])) for k in ("accuracy", "seconds"))
        found.append({"clients": clients, "skew": skew, "method": method})
        found[-1] |= {"accuracy": accuracy, "seconds": seconds}
    return found


def fraud_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean, least and most F1 for every epsilon."""
    found = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        own = [row["f1"] for row in rows if row["epsilon"] == epsilon]
        found.append({"epsilon": epsilon, "f1": float(np.mean(own))})
        found[-1] |= {"least": min(own), "most": max(own)}
    return found


def claims(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The paper's orderings, each over all settings."""
    found = [
        claim(
            f"FEATHERS' model beats that of {other}",
            _paired(rows, "feathers", other),
            lambda pair: pair["gain"],
            "test accuracy gained",
        )
        for other in ("darts", "fedex", "fedavg")
    ]
    found.append(
        claim(
            "the bandit in the evaluation stage helps",
            _paired(rows, "feathers", "feathers without the bandit"),
            lambda pair: pair["gain"],
            "test accuracy gained",
        )
    )
    numbers = sorted({r["clients"] for r in rows})
    if len(numbers) > 1:
        few, many = numbers[0], numbers[-1]
        for method in ("fedex", "feathers"):
            found.append(
                claim(
                    f"{method} loses accuracy from {few} to {many} clients",
                    _grown(rows, method, few, many),
                    lambda pair: pair["gain"],
                    "test accuracy lost",
                )
            )
    return [one for one in found if one]


def _paired(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> list[dict[str, Any]]:
    accuracy = {(r["method"], r["seed"], r["clients"], r["skew"]): r["accuracy"] for r in rows}
    return [
        {"seed": seed, "gain": accuracy[one, seed, clients, skew] - second}
        for (method, seed, clients, skew), second in accuracy.items()
        if method == other and (one, seed, clients, skew) in accuracy
    ]


def _grown(
    rows: Sequence[Mapping[str, Any]], method: str, few: int, many: int
) -> list[dict[str, Any]]:
    accuracy = {
        (r["seed"], r["skew"], r["clients"]): r["accuracy"] for r in rows if r["method"] == method
    }
    return [
        {"seed": seed, "gain": first - accuracy[seed, skew, many]}
        for (seed, skew, clients), first in accuracy.items()
        if clients == few
    ]
