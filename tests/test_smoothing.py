from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.grids import GRIDS
from tacit.smoothing import (
    LENGTHS,
    MOST_CANDIDATES,
    SHARES,
    Smoother,
    _lengths,
    amplitudes,
    places,
)
from tacit.space import Choice, Config, Float, Int, Space

GRID = Space(
    {"rate": Choice([1.0, 0.1, 0.01, 1e-3]), "depth": Int(1, 5), "net": Choice(["a", "b"])}
)
CANDIDATES = GRID.candidates(40, "grid")
PEAK: list[Config] = [
    {"learning_rate": rate, "decay": decay, "momentum": 0.9}
    for rate in (0.05, 0.1)
    for decay in (0.99, 1.0)
]
"""At twice as large a rate models diverge, and nobody votes for that."""
TALLY = np.random.default_rng(0).normal(size=40)


def test_numbers_among_choices_have_an_order_and_names_have_none() -> None:
    found, ordered = places(GRID, CANDIDATES)
    assert ordered.tolist() == [True, True, False]
    rates = {float(c["rate"]): float(p[0]) for c, p in zip(CANDIDATES, found, strict=True)}
    assert rates == pytest.approx({1.0: 1.0, 0.1: 2 / 3, 0.01: 1 / 3, 1e-3: 0.0})
    nets = {c["net"]: float(p[2]) for c, p in zip(CANDIDATES, found, strict=True)}
    assert nets == {"a": 0.0, "b": 1.0}


def test_close_numbers_stay_on_their_own_scale_and_true_is_not_one() -> None:
    space = Space({"momentum": Choice([0.0, 0.9, 0.5]), "flag": Choice([1, True])})
    configs: list[Config] = [{"momentum": 0.9, "flag": 1}, {"momentum": 0.5, "flag": True}]
    found, ordered = places(space, configs)
    assert found[:, 0].tolist() == pytest.approx([1.0, 5 / 9])
    assert found[:, 1].tolist() == [0.0, 1.0]
    assert ordered.tolist() == [True, False]


def test_three_names_are_equally_far_from_each_other() -> None:
    """An exchangeable kernel: relabelling the options changes nothing."""
    tally = np.random.default_rng(1).normal(size=9)
    found = []
    for order in (["a", "b", "c"], ["c", "a", "b"]):
        space = Space({"net": Choice(order), "x": Choice([0.0, 0.5, 1.0])})
        configs: list[Config] = [{"net": n, "x": x} for n in "abc" for x in (0.0, 0.5, 1.0)]
        found.append(Smoother.of(space, configs, 2).mean(tally[None], 1.0, (1.0,))[0])
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)


def test_one_process_is_the_textbooks_posterior_mean() -> None:
    space = Space({"x": Float(0.0, 1.0)})
    candidates = space.candidates(12, "grid")
    found, _ = places(space, candidates)
    kernel = np.exp(-0.5 * (found - found.T) ** 2)
    centre = np.eye(12) - 1 / 12
    kernel = centre @ kernel @ centre
    kernel *= 12 / np.trace(kernel)
    tally = np.random.default_rng(2).normal(size=12)
    centred = tally - tally.mean()
    values, vectors = np.linalg.eigh(kernel)
    one = Smoother(np.maximum(values, 0)[None], vectors[None], np.eye(12)[None])
    # Nine parts of ten are this process, pure or half every candidate's own, and one is no
    # structure, weighted by their likelihoods.
    priors = {1.0: 0.45, 0.5: 0.45, 0.0: 0.1}
    assert set(priors) == {*SHARES, 0.0}
    means, weights = [], []
    for part, prior in priors.items():
        signal = 4 * (part * kernel + (1 - part) * np.eye(12))
        whole = signal + 2 * np.eye(12)
        means.append(signal @ np.linalg.solve(whole, centred))
        fit = centred @ np.linalg.solve(whole, centred) + np.linalg.slogdet(whole)[1]
        weights.append(prior * math.exp(-0.5 * fit))
    mixed = np.average(means, axis=0, weights=weights)
    np.testing.assert_allclose(one.mean(tally[None], 2.0, (2.0,))[0], mixed, atol=1e-9)


def test_a_peak_beside_a_cliff_stays_where_it_is() -> None:
    """The best rate's neighbour diverges, and the peak is clear: smoothing must not move it."""
    space = GRIDS["dp-hype-table"]
    candidates = space.candidates(100, "grid")
    votes = np.array([300.0 if c in PEAK else 0.0 for c in candidates])
    noise = np.random.default_rng(4).normal(0, 100, (200, 100))
    found = Smoother.of(space, candidates, 10).mean(votes + noise, 100.0**2, amplitudes(2750, 100))
    picks = [candidates[place] for place in found.argmax(axis=1)]
    # A smoother without short lengths and own shares falls off the cliff in most of these.
    assert np.mean([pick in PEAK for pick in picks]) >= 0.93


def test_a_level_and_the_order_of_candidates_change_nothing() -> None:
    smoother, order = Smoother.of(GRID, CANDIDATES, 4), np.random.default_rng(3).permutation(40)
    found = smoother.mean(TALLY[None], 1.0, (1.0, 2.0))[0]
    np.testing.assert_allclose(smoother.mean(TALLY[None] + 7, 1.0, (1.0, 2.0))[0], found, atol=1e-9)
    shuffled = Smoother.of(GRID, [CANDIDATES[place] for place in order], 4)
    np.testing.assert_allclose(
        shuffled.mean(TALLY[order][None], 1.0, (1.0, 2.0))[0], found[order], atol=1e-7
    )


def test_structure_is_found_where_there_is_some() -> None:
    found, _ = places(GRID, CANDIDATES)
    votes = 40 * np.exp(-3 * ((found[:, 0] - 0.7) ** 2 + (found[:, 1] - 0.5) ** 2))
    rng = np.random.default_rng(4)
    smoother = Smoother.of(GRID, CANDIDATES, 4)
    noisy = votes + rng.normal(0, 10, 40)
    seen = smoother.read(noisy[None], 100.0, (10.0, 20.0), rng)[0]
    assert seen.chance <= 0.05
    assert votes[seen.best] > 0.8 * votes.max()


def test_structure_is_found_by_mistake_no_more_often_than_allowed() -> None:
    """200 tallies of a few favourites anywhere, at a level of 0.2: 64 and more once in 10^5."""
    rng = np.random.default_rng(5)
    smoother, mistakes = Smoother.of(GRID, CANDIDATES, 4), 0
    for _ in range(200):
        votes = np.zeros(40)
        votes[rng.permutation(40)[:6]] = 30
        noisy = votes + rng.normal(0, 10, 40)
        mistakes += smoother.read(noisy[None], 100.0, (10.0, 20.0), rng)[0].chance <= 0.2
    assert mistakes < 64


def test_many_tallies_are_read_like_each_alone() -> None:
    smoother, rng = Smoother.of(GRID, CANDIDATES, 4), np.random.default_rng(6)
    tallies = np.stack([TALLY, 3 * TALLY[::-1], np.arange(40.0)])
    for tally, seen in zip(tallies, smoother.read(tallies, 1.0, (1.0,), rng, 19), strict=True):
        np.testing.assert_allclose(seen.votes, smoother.mean(tally[None], 1.0, (1.0,))[0])
        assert 0.05 <= seen.chance <= 1


def test_many_axes_or_candidates_have_fewer_processes_and_too_many_are_refused() -> None:
    assert len(_lengths(LENGTHS, 3, 100)) == 64
    assert len(_lengths(LENGTHS, 9, 100)) == 81
    assert len(_lengths(LENGTHS, 9, 2000)) == 5
    many: list[Config] = [{"x": n / MOST_CANDIDATES} for n in range(MOST_CANDIDATES + 1)]
    with pytest.raises(ValueError, match="found 2001 candidates to smooth over; allowed are 2 to"):
        Smoother.of(Space({"x": Float(0.0, 1.0)}), many, 5)


def test_amplitudes_grow_with_the_votes_and_exist_for_few_candidates() -> None:
    assert amplitudes(200.0, 50) == pytest.approx([2 * a for a in amplitudes(100.0, 50)])
    assert min(amplitudes(10.0, 2)) > 0
