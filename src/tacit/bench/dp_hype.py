"""DP-HYPE's experiments: how good is the configuration that a private vote picks?

Liebenow, Peinemann and Mohammadi, section VI and Appendices C and D: OPT (the best candidate there
is), RANDGUESS (a random one) and the vote of k = 5 at several epsilons, on real data. Training is
read from a score table; every vote of a table's seed is then counted many times with fresh noise.

How we differ: the vote is counted with Tacit's own noise (Skellam, exactly accounted, nobody drops
out) and, beside it, with the published one; local scores come from validation data and accuracies
from test data that nobody voted with (the authors use one split for both); OPT is chosen on the
clients' validation data, and on the test data, as published, beside it; the private protocol itself
runs once, with drop-outs. Simulated noise comes from a seeded generator: no client is protected
here. The protocol's noise has no seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tacit.federation import local_federation
from tacit.journal import machine
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.sgd import Floats
from tacit.space import Config
from tacit.tables import ScoreTable

VOTES, DELTA = 5, 1e-5
EPSILONS = (0.1, 0.25, 0.5, 1.0, 3.0)
PUBLISHED_SIGMAS = (103.0, 46.0, 24.0, 12.5, 4.7)
"""DP-HYPE, section VI-C, prints these as variances; they are standard deviations."""
PROTOCOL_EPSILON = 1.0
_BINS = 20
_STAGES = ("evaluate", "share", "seal")


def run(table: ScoreTable, repeats: int, seed: int = 1) -> dict[str, Any]:
    """Count every vote ``repeats`` times at each epsilon; JSON."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; allowed is 1 and above")
    begin = time.perf_counter()
    clients, candidates = table.recipe.clients, len(table.candidates)
    bound = TopVotes(candidates, VOTES)
    nobody_drops = Participation(clients, dropout=0.0)
    rng = np.random.default_rng(seed)
    ballots = [_ballots(table.scores(number), rng) for number in range(len(table.accuracy))]
    tallies = np.array([each.sum(axis=0) for each in ballots])
    ours, published = {}, {}
    for epsilon, sigma in zip(EPSILONS, PUBLISHED_SIGMAS, strict=True):
        noise = SkellamMechanism.calibrated(bound, nobody_drops, Budget(epsilon, DELTA))
        rate = noise.delivered_variance / 2
        shape = (repeats, candidates)
        drawn = [rng.poisson(rate, shape) - rng.poisson(rate, shape) for _ in tallies]
        ours[epsilon] = _outcome(table, tallies, drawn, rng)
        gaussian = [rng.normal(0, sigma, shape) for _ in tallies]
        published[epsilon] = _outcome(table, tallies, gaussian, rng)
    silent = [np.zeros((repeats, candidates)) for _ in tallies]
    ours[math.inf] = published[math.inf] = _outcome(table, tallies, silent, rng)
    best = table.accuracy[np.arange(len(tallies)), table.validation_accuracy.argmax(axis=1)]
    return {
        "bench": "dp-hype",
        "table": table.name,
        "recipe": asdict(table.recipe),
        "votes": VOTES,
        "delta": DELTA,
        "repeats": repeats,
        "seeds": len(tallies),
        "opt": _interval(best[:, None]),
        "opt_by_test": _interval(table.accuracy.max(axis=1)[:, None]),
        "randguess": _interval(table.accuracy.mean(axis=1)[:, None]),
        "vote": {f"{epsilon:g}": found for epsilon, found in ours.items()},
        "vote_published_noise": {f"{epsilon:g}": found for epsilon, found in published.items()},
        "candidates": [
            {"config": config, "accuracy": accuracy.tolist(), "votes": votes.tolist()}
            for config, accuracy, votes in zip(
                table.candidates, table.accuracy.T, tallies.T, strict=True
            )
        ],
        "histogram": _histogram(table.accuracy),
        "protocol": protocol(table),
        "seconds": time.perf_counter() - begin,
        "made": dict(table.made),
        "machine": machine(),
    }


@dataclass(frozen=True)
class TableClient:
    """A client whose scores were computed before.

    >>> TableClient(({"x": 1}, {"x": 2}), np.array([0.5, 0.25])).score({"x": 2})
    0.25
    """

    candidates: tuple[Config, ...]
    row: Floats

    def score(self, config: Config) -> float:
        """What the table says about this candidate."""
        return float(self.row[self.candidates.index(config)])


def protocol(table: ScoreTable) -> dict[str, Any]:
    """The private vote itself, once: keys, masks, noise on the clients, a tenth drops out."""
    clients = table.recipe.clients
    participation, budget = Participation(clients, dropout=0.1), Budget(PROTOCOL_EPSILON, DELTA)
    bound = TopVotes(len(table.candidates), VOTES)
    noise = SkellamMechanism.calibrated(bound, participation, budget)
    gone = clients - participation.threshold
    drops = {client: _STAGES[client % len(_STAGES)] for client in range(gone)}
    rows = table.scores(0)
    begin = time.perf_counter()
    federation = local_federation(
        [TableClient(table.candidates, row) for row in rows],
        participation,
        Ledger.in_memory("bench", budget),
        "bench",
        noise.required_variance,
        drops=drops,
    )
    tally = federation.sum(Ballot(table.candidates, VOTES), "vote")
    winner = int(tally.value.argmax())
    return {
        "epsilon": PROTOCOL_EPSILON,
        "delta": DELTA,
        "asked": clients,
        "dropped": gone,
        "answered": tally.answered,
        "winner": table.candidates[winner],
        "accuracy": float(table.accuracy[0, winner]),
        "seconds": time.perf_counter() - begin,
        "upload_bytes_per_client": sum(c.up for c in federation.costs.values()) / clients,
    }


def _ballots(scores: Floats, rng: np.random.Generator) -> IntArray:
    """Each client's best, one row each; equal scores in random order."""
    lots = rng.random(scores.shape)
    ballots = np.zeros(scores.shape, dtype=np.int64)
    for row, (score, lot) in enumerate(zip(scores, lots, strict=True)):
        ballots[row, np.lexsort((lot, score))[:VOTES]] = 1
    return ballots


def _outcome(
    table: ScoreTable, tallies: IntArray, noise: Sequence[Any], rng: np.random.Generator
) -> dict[str, float]:
    """How accurate the winners are, over seeds and draws of noise."""
    accuracies = []
    for tally, drawn, accuracy in zip(tallies, noise, table.accuracy, strict=True):
        counted = tally + drawn + rng.random(drawn.shape) / 2  # equals in random order
        accuracies.append(accuracy[counted.argmax(axis=1)])
    return _interval(np.array(accuracies))


def _interval(accuracies: Floats) -> dict[str, float]:
    """Mean and 95 % interval of the mean, with the variance of training apart from that of noise.

    Rows are training seeds, columns draws of noise. The interval is Student's over the seeds'
    means, so it stays honest about how few they are; with a single seed it covers noise only.
    """
    from scipy.stats import t

    means = accuracies.mean(axis=1)
    seeds, draws = accuracies.shape
    noise = float(accuracies.var(axis=1, ddof=1).mean()) if draws > 1 else 0.0
    between = float(means.var(ddof=1)) if seeds > 1 else 0.0
    if seeds > 1:
        reach = t.ppf(0.975, seeds - 1) * math.sqrt(between / seeds)
    else:
        reach = 1.96 * math.sqrt(noise / draws)
    return {
        "mean": float(means.mean()),
        "low": float(max(0.0, means.mean() - reach)),
        "high": float(min(1.0, means.mean() + reach)),
        "training_variance": max(0.0, between - noise / draws),
        "noise_variance": noise,
    }


def _histogram(accuracy: Floats) -> dict[str, list[float]]:
    """How many candidates reach which accuracy, a mean over seeds (the paper's Figures 4, 9)."""
    edges = np.linspace(0, 1, _BINS + 1)
    counts = np.mean([np.histogram(row, edges)[0] for row in accuracy], axis=0)
    return {"edges": edges.tolist(), "candidates": counts.tolist()}
