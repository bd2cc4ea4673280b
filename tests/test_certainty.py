from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from tacit.certainty import Certainty

RECORDED = Path(__file__).parent.parent / "benchmarks" / "dp-hype"


@pytest.mark.parametrize(("first", "second"), [(60, 10), (-3, -40), (31, 5)])
def test_two_candidates_have_a_closed_form(first: int, second: int) -> None:
    variance, gap = 100.0, first - second
    kept = 1 - variance / (gap**2 / 2)
    found = Certainty.of([second, first], variance)
    assert found.leader == 1
    assert found.margin == gap
    assert found.deviations == pytest.approx(gap / math.sqrt(200))
    wanted = NormalDist().cdf(math.sqrt(kept) * gap / math.sqrt(2 * variance))
    assert found.chances.tolist() == pytest.approx([1 - wanted, wanted], abs=1e-6)


def test_chances_are_those_of_drawn_sums() -> None:
    """False alarm: below 1e-6, five standard errors in each of 12 chances."""
    rng, variance, draws = np.random.default_rng(3), 144.0, 40_000
    tally = np.round(rng.normal(20, 18, 12)).astype(int)
    kept = 1 - variance / float(np.var(tally, ddof=1))
    means = tally.mean() + kept * (tally - tally.mean())
    sums = means + rng.normal(size=(draws, 12)) * math.sqrt(kept * variance)
    shares = np.bincount(sums.argmax(axis=1), minlength=12) / draws
    chances = Certainty.of(tally.tolist(), variance).chances
    assert chances.sum() == pytest.approx(1)
    assert (abs(chances - shares) < 5 * np.sqrt(chances / draws) + 1e-4).all()


def test_a_tally_that_varies_less_than_its_noise_tells_nothing() -> None:
    found = Certainty.of([5, 3, 4, 6], variance=100.0)
    assert found.chances.tolist() == [0.25] * 4
    assert found.group == 4


def test_without_noise_the_leader_leads() -> None:
    assert Certainty.of([3, 9, 4], 0.0).chances.tolist() == [0, 1, 0]
    tied = Certainty.of([9, 9, 4], 0.0)
    assert tied.chances.tolist() == [0.5, 0.5, 0]
    assert (tied.deviations, tied.group) == (0.0, 2)
    assert math.isinf(Certainty.of([3, 9, 4], 0.0).deviations)


def test_more_noise_means_more_doubt() -> None:
    tally = [90, 60, 20, 10, 0, -5]
    leads = [Certainty.of(tally, sigma**2) for sigma in (1, 5, 10, 20, 40)]
    chances = [float(found.chances[0]) for found in leads]
    assert chances == sorted(chances, reverse=True)
    assert [found.group for found in leads] == sorted(found.group for found in leads)


@pytest.mark.parametrize("candidates", [2, 100, 2000])
def test_huge_tallies_are_no_trouble(candidates: int) -> None:
    counts = [10**9, *range(candidates - 1)]
    found = Certainty.of(counts, 1.0)
    assert found.chances[0] == pytest.approx(1)
    assert found.group == 1


@pytest.mark.parametrize("sigma", [4.7, 12.5, 24.0, 46.0])
def test_it_says_about_what_is_true_of_recorded_votes(sigma: float) -> None:
    """True votes of real clients, noise by a fixed seed: the leader leads as often as it is said.

    Taking all sums for equally likely would say up to 0.2 too much.
    """
    rng, said, true = np.random.default_rng(7), [], []
    for path in sorted(RECORDED.glob("*.json")):
        votes = np.array([one["votes"] for one in json.loads(path.read_text())["candidates"]])
        for own in votes.T:
            tally = np.round(own + rng.normal(0, sigma, (6, len(own)))).astype(int)
            for released in tally:
                found = Certainty.of(released.tolist(), sigma**2)
                said.append(float(found.chances[found.leader]))
                true.append(own[found.leader] == own.max())
    assert len(said) > 200
    assert np.mean(said) == pytest.approx(np.mean(true), abs=0.07)
