"""Every answer lies within its bound, and sums of answers give back what they are sums of."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.cells import Cells
from tacit.combining import (
    EXACT_STEPS,
    STEPS,
    CellCounts,
    ClusterSums,
    Kept,
    LocalBest,
    LossSums,
    SurfaceSums,
    clipped,
    losses_bound,
)
from tacit.local_search import LocalSearch
from tacit.optima import mean
from tacit.query import Sums
from tacit.space import Choice, Config, Float, Int, Space
from tacit.task import Client, FunctionClient, NothingToSay

SPACE = Space(
    {
        "rate": Float(1e-3, 1.0, log=True),
        "layers": Int(1, 9),
        "kind": Choice(["sgd", "adam", "adagrad"]),
    }
)
SEARCH = LocalSearch(SPACE.to_json(), "sobol", 40, seed=1)


def client(rate: float, layers: int, kind: str, worst: float = 1.0) -> Client:
    """A client whose error is the distance from what it likes."""
    liked = SPACE.encode({"rate": rate, "layers": layers, "kind": kind})

    def error(config: Config) -> float:
        return min(worst, float(np.abs(SPACE.encode(config) - liked).sum()))

    return FunctionClient(error)


CLIENTS = [
    client(0.01, 3, "adam"),
    client(0.02, 4, "adam"),
    client(0.5, 9, "sgd"),
    client(0.03, 3, "adagrad"),
    client(0.015, 4, "adam"),
]
DENSE = tuple(range(Cells(SPACE).count))
QUERIES: list[Sums] = [
    LocalBest(SEARCH),
    LocalBest(SEARCH, share=0.05),
    CellCounts(SEARCH, Kept()),
    CellCounts(SEARCH, Kept(points=2)),
    ClusterSums(SEARCH, Kept(), DENSE),
    ClusterSums(SEARCH, Kept(points=1), DENSE[:20]),
    LossSums(SEARCH, clip=0.5),
    SurfaceSums(SEARCH, SEARCH.candidates[:7]),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
def test_every_answer_lies_within_its_bound(query: Sums) -> None:
    for each in CLIENTS:
        assert query.bound.admits(query.answer(each))
    assert query.bound.admits(query.bound.abstention())
    assert not query.bound.abstention().any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=40, max_size=40), st.integers(1, 12))
def test_no_scores_whatever_lead_beyond_the_bounds(errors: list[float], points: int) -> None:
    table = dict(zip(map(repr, SEARCH.candidates), errors, strict=True))
    strange = FunctionClient(lambda config: table[repr(config)])
    kept = Kept(points=points, within=0.0, least_best=0.0)
    for query in (
        LocalBest(SEARCH, 0.3),
        CellCounts(SEARCH, kept),
        ClusterSums(SEARCH, kept, DENSE),
        LossSums(SEARCH, 2.0),
    ):
        assert query.bound.admits(query.answer(strange))


def test_the_sum_of_best_points_gives_their_mean_and_most_frequent_option() -> None:
    query = LocalBest(SEARCH)
    found = query.combined(np.sum([query.answer(each) for each in CLIENTS], axis=0))
    best = np.array([SEARCH.search(each).points[0] for each in CLIENTS])
    expected = mean(SPACE, best)
    assert found["kind"] == expected["kind"]
    assert found["layers"] == expected["layers"]
    assert abs(math.log10(float(found["rate"]) / float(expected["rate"]))) < 3 / STEPS


def test_who_abstains_does_not_move_the_mean() -> None:
    query = LocalBest(SEARCH)
    total = np.sum([query.answer(each) for each in CLIENTS], axis=0)
    assert query.combined(total + query.bound.abstention()) == query.combined(total)
    assert query.combined(np.zeros_like(total)) == query.combined(query.bound.abstention())


def test_a_client_counts_once_a_cell() -> None:
    counts = CellCounts(SEARCH, Kept(points=40, within=0.5)).answer(CLIENTS[0])
    kept = Kept(points=40, within=0.5).of(SEARCH.search(CLIENTS[0]))
    assert set(np.flatnonzero(counts)) == set(Cells(SPACE).of(kept.points))
    assert counts.max() == 1


def test_cluster_sums_give_back_numbers_accuracies_and_weights() -> None:
    kept = Kept(points=4)
    query = ClusterSums(SEARCH, kept, DENSE, EXACT_STEPS)
    total = np.sum([query.answer(each) for each in CLIENTS], axis=0)
    points, accuracies, totals = query.averages(total)
    assert totals.sum() == pytest.approx(len(CLIENTS), abs=0.02), "every client counts once"
    own = [kept.of(SEARCH.search(each)) for each in CLIENTS]
    everything = np.concatenate([one.points for one in own])
    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in own])
    right = np.concatenate([one.accuracies for one in own])
    labels = query.labels[Cells(SPACE).of(everything)]
    tolerance = len(CLIENTS) / EXACT_STEPS
    for cluster in range(query.clusters):
        inside = labels == cluster
        assert totals[cluster] == pytest.approx(weights[inside].sum(), abs=tolerance)
        numbers = (weights[inside, None] * everything[inside][:, :2]).sum(axis=0)
        assert points[cluster] == pytest.approx(numbers, abs=tolerance)
        found = (weights * right)[inside].sum()
        assert accuracies[cluster] == pytest.approx(found, abs=tolerance)


def test_a_point_outside_every_dense_cell_is_left_out() -> None:
    kept = Kept(points=3)
    cells = Cells(SPACE)
    far = cells.of(np.array([SPACE.encode({"rate": 1.0, "layers": 9, "kind": "adagrad"})]))
    query = ClusterSums(SEARCH, kept, (int(far[0]),))
    assert not query.answer(CLIENTS[0]).any()


def test_losses_are_compared_with_their_mean_and_shrunk() -> None:
    assert clipped(np.array([5.0, 5.0, 5.0]), 1.0).tolist() == [0, 0, 0]
    shrunk = clipped(np.array([0.0, 100.0]), 1.0)
    assert shrunk.tolist() == [-round(STEPS / math.sqrt(2)), round(STEPS / math.sqrt(2))]
    kept = clipped(np.array([0.1, 0.2]), 1.0)
    assert kept.tolist() == [round(-0.05 * STEPS), round(0.05 * STEPS)]
    with pytest.raises(NothingToSay):
        clipped(np.array([math.nan, math.inf]), 1.0)
    with pytest.raises(ValueError, match="clip is 0; allowed is a finite number above 0"):
        losses_bound(3, 0)


def test_a_client_without_promising_points_says_zero() -> None:
    hopeless = FunctionClient(lambda _config: 0.7)
    for query in (CellCounts(SEARCH, Kept()), ClusterSums(SEARCH, Kept(), DENSE)):
        assert not query.answer(hopeless).any()


def test_cells_that_there_are_not_and_too_many_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="a dense cell is none of the 147 cells"):
        ClusterSums(SEARCH, Kept(), (147,)).bound  # noqa: B018
    with pytest.raises(ValueError, match="trials is 1000000000; allowed is 1 to 100000"):
        LossSums(LocalSearch(SPACE.to_json(), "sobol", 10**9)).bound  # noqa: B018


def test_a_question_for_no_points_is_refused_by_whoever_reads_it() -> None:
    """Where it was priced, it divided by zero."""
    asked = msgspec.msgpack.encode(ClusterSums(SEARCH, Kept(points=2), ()))
    for nothing in (b"points\x00", b"points\xff"):
        with pytest.raises(msgspec.ValidationError, match=r"points is -?[01]; allowed is 1 and"):
            msgspec.msgpack.decode(asked.replace(b"points\x02", nothing), type=ClusterSums)


def test_one_noise_level_prices_both_questions_alike() -> None:
    for points in (1, 3, 10):
        kept = Kept(points=points)
        counts = CellCounts(SEARCH, kept).bound.release(100.0)
        sums = ClusterSums(SEARCH, kept, ()).bound.release(100.0)
        assert sums.squared_distance == pytest.approx(counts.squared_distance, rel=0.05)
