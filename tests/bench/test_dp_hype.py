from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tacit.bench import dp_hype
from tacit.bench.dp_hype_figures import plots
from tacit.privacy.accounting import spent
from tacit.privacy.bounds import TopVotes
from tacit.tables import Recipe, ScoreTable

CANDIDATES, CLIENTS, SEEDS = 20, 30, 3


def made_up(good: int = 5, accuracies: tuple[float, ...] = (0.9, 0.8, 0.7)) -> ScoreTable:
    """All clients agree on which candidates are good; each seed has its own accuracy."""
    losses = np.tile(np.arange(CANDIDATES, dtype=np.float32), (SEEDS, CLIENTS, 1))
    accuracy = np.full((SEEDS, CANDIDATES), 0.1)
    accuracy[:, :good] = np.array(accuracies)[:, None]
    return ScoreTable(
        Recipe("digits", clients=CLIENTS, seeds=SEEDS),
        tuple({"x": number} for number in range(CANDIDATES)),
        losses,
        np.zeros(losses.shape, np.uint16),
        np.full((SEEDS, CLIENTS), 10),
        np.full((SEEDS, CLIENTS), 40),
        accuracy,
        accuracy,
        {"core_seconds": 1.0},
    )


def test_without_noise_unanimous_clients_pick_what_opt_picks() -> None:
    found = dp_hype.run(made_up(), repeats=50)
    assert found["vote"]["inf"]["mean"] == pytest.approx(0.8)
    assert found["opt"]["mean"] == found["opt_by_test"]["mean"] == pytest.approx(0.8)
    assert found["randguess"]["mean"] == pytest.approx((5 * 0.8 + 15 * 0.1) / 20)


def test_more_noise_is_worse_and_the_exact_noise_is_not_worse_than_the_published() -> None:
    """Chances by the planner: at epsilon 0.5 both are far from 0 and 1; 2000 draws, 4 sigma."""
    found = dp_hype.run(made_up(accuracies=(1.0, 1.0, 1.0)), repeats=2000)
    means = [entry["mean"] for entry in found["vote"].values()]
    assert all(later > earlier - 0.02 for earlier, later in pairwise(means))
    assert means[0] < 0.6 < 0.99 < means[-1]
    assert list(found["vote"]) == ["0.1", "0.25", "0.5", "1", "3", "inf"]
    for epsilon in ("0.1", "0.25", "0.5", "1"):
        published = found["vote_published_noise"][epsilon]["mean"]
        assert found["vote"][epsilon]["mean"] > published - 4 * math.sqrt(0.5 / 6000)


def test_the_published_deviations_cost_about_what_they_claim() -> None:
    """Read as variances they would cost several times the epsilon."""
    for epsilon, sigma in zip(dp_hype.EPSILONS, dp_hype.PUBLISHED_SIGMAS, strict=True):
        cost = spent(TopVotes(100, 5).release(sigma**2), dp_hype.DELTA).epsilon
        assert 0.8 * epsilon < cost <= 1.05 * epsilon
        if sigma < 30:
            assert spent(TopVotes(100, 5).release(sigma), dp_hype.DELTA).epsilon > 2 * epsilon


def test_variance_of_training_is_told_apart_from_that_of_noise() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.normal(0.7, 0.05, (400, 1))
    found = dp_hype._interval(np.clip(seeds + rng.normal(0, 0.02, (400, 50)), 0, 1))
    assert found["training_variance"] == pytest.approx(0.05**2, rel=0.25)
    assert found["noise_variance"] == pytest.approx(0.02**2, rel=0.05)
    assert found["low"] < 0.7 < found["high"]


def test_the_interval_is_students_over_seeds() -> None:
    found = dp_hype._interval(np.array([[0.6], [0.7], [0.8]]))
    reach = 4.302653 * 0.1 / math.sqrt(3)
    assert (found["low"], found["high"]) == pytest.approx((0.7 - reach, 0.7 + reach))
    alone = dp_hype._interval(np.array([[0.5, 0.7]]))
    assert alone["low"] < 0.6 < alone["high"]
    assert alone["training_variance"] == 0


def test_the_protocol_itself_runs_with_drop_outs() -> None:
    once = dp_hype.protocol(made_up())
    assert (once["asked"], once["dropped"], once["answered"]) == (30, 3, 27)
    assert once["accuracy"] in (0.9, 0.1)
    assert once["upload_bytes_per_client"] > 1000


def test_histogram_counts_every_candidate_once() -> None:
    found = dp_hype.run(made_up(), repeats=5)
    assert sum(found["histogram"]["candidates"]) == pytest.approx(CANDIDATES)
    assert len(found["histogram"]["edges"]) == len(found["histogram"]["candidates"]) + 1


def test_the_result_is_json_and_repeats_with_the_seed_but_for_the_protocol() -> None:
    first, again = (dp_hype.run(made_up(), repeats=20) for _ in range(2))
    assert json.loads(json.dumps(first))["vote"] == again["vote"]
    assert dp_hype.run(made_up(), repeats=20, seed=2)["vote"] != again["vote"]


def test_clients_with_equal_scores_vote_at_random() -> None:
    flat = replace(made_up(), losses=np.zeros((SEEDS, CLIENTS, CANDIDATES), np.float32))
    votes = np.array([entry["votes"] for entry in dp_hype.run(flat, repeats=1)["candidates"]])
    assert (votes.sum(axis=0) == 5 * CLIENTS).all()
    assert (votes > 0).all(), "150 votes spread over 20 candidates; a miss has chance 4e-3 at most"


def test_repeats_must_be_positive() -> None:
    with pytest.raises(ValueError, match="repeats is 0; allowed is 1 and above"):
        dp_hype.run(made_up(), repeats=0)


def test_figures_show_every_setting() -> None:
    results = [dp_hype.run(made_up(), repeats=5) for _ in range(4)]
    results[1]["recipe"] |= {"partition": "dirichlet", "alpha": 0.5}
    drawn = plots(results)
    shown = [plot.title for plot in drawn]
    assert shown.count("digits, n = 30, iid") == 3
    assert "digits, n = 30, dirichlet α = 0.5" in shown
    for plot, result in zip(drawn, results, strict=True):
        *lines, bars = plot.figure.data
        assert [trace.name for trace in lines] == [
            "vote, Tacit's exact noise",
            "vote, published noise",
            "OPT",
            "RANDGUESS",
        ]
        assert list(lines[0].y) == [found["mean"] for found in result["vote"].values()]
        assert list(bars.y) == result["histogram"]["candidates"]
        assert plot.table.count("<tr>") == 1 + 2 + 2 * len(result["vote"])
