"""Noise is rounded down, not by much, and for a part no further than for the whole."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.accounting import privacy_loss, spent
from tacit.privacy.events import (
    Exact,
    Release,
    SampledGaussian,
    SkellamNormRelease,
    SkellamRelease,
    compose,
)
from tacit.privacy.noise_lattice import FEW, on_lattice

DELTA = 1e-5
SHIFTS = ((1, 10),)
OTHERS: tuple[Release, ...] = (SampledGaussian(0.01, 1.5, 7), SkellamNormRelease(2.0, 1.0, 900.0))


def spread_over(factor: float, count: int) -> Counter[Release]:
    """Releases whose noise differs by up to a factor, each as often as no neighbour."""
    return Counter(
        {
            SkellamRelease(SHIFTS, 1e5 * factor ** (number / (count - 1))): 1 + number % 3
            for number in range(count)
        }
    )


def rounded_one_by_one(counts: Counter[Release]) -> list[tuple[float, float]]:
    """Every variance, and what it is rounded to: order is kept where nothing is above itself."""
    before = sorted(r.variance for r in counts.elements() if isinstance(r, SkellamRelease))
    few = Counter(on_lattice(counts))
    after = sorted(r.variance for r in few.elements() if isinstance(r, SkellamRelease))
    return list(zip(before, after, strict=True))


@given(
    st.lists(
        st.floats(min_value=1e-6, max_value=2.0**33), min_size=FEW + 1, max_size=90, unique=True
    )
)
@settings(max_examples=60, deadline=None)
def test_no_noise_is_rounded_up_or_far_down_and_rounding_twice_changes_nothing(
    variances: list[float],
) -> None:
    counts = Counter[Release](SkellamRelease(SHIFTS, variance) for variance in variances)
    for before, after in rounded_one_by_one(counts):
        assert 0.84 * before < after <= before
    few = on_lattice(counts)
    assert on_lattice(few) == few


@given(st.integers(0, 2**32), st.sampled_from([1.001, 1.05, 1.9, 30.0, 1e6]))
@settings(max_examples=60, deadline=None)
def test_a_part_has_at_least_the_noise_that_it_has_in_the_whole(seed: int, factor: float) -> None:
    whole = list(spread_over(factor, 120))
    part = random.Random(seed).sample(whole, 60)
    in_the_whole = dict(rounded_one_by_one(Counter(whole)))
    for before, after in rounded_one_by_one(Counter(part)):
        assert after >= in_the_whole[before]


def test_other_releases_and_few_stay_as_they_are_and_kinds_apart() -> None:
    few = Counter[Release]([*OTHERS, *list(spread_over(2.0, FEW))])
    assert on_lattice(few) is few
    many = Counter[Release]([*OTHERS, *list(spread_over(1.2, 50))])
    many.update({SkellamRelease(((2, 3),), variance): 2 for variance in range(900, 910)})
    found = Counter(on_lattice(many))
    assert len(found) <= FEW + len(OTHERS)
    assert all(found[release] == many[release] for release in OTHERS)
    for shifts in (SHIFTS, ((2, 3),)):
        often = [
            sum(n for r, n in each.items() if isinstance(r, SkellamRelease) and r.shifts == shifts)
            for each in (many, found)
        ]
        assert often[0] == often[1]


@pytest.mark.parametrize(
    ("factor", "dearer"),
    [(1.01, 1.0002), (1.03, 1.0005), (2.0, 1.015), (10.0, 1.03), (100.0, 1.06)],
)
def test_rounded_noise_costs_no_less_and_not_much_more(factor: float, dearer: float) -> None:
    counts = spread_over(factor, 60)
    whole: dict[Exact, int] = {
        release: n for release, n in counts.items() if isinstance(release, SkellamRelease)
    }
    exact = privacy_loss(whole, DELTA).get_epsilon_for_delta(DELTA)
    found = spent(compose(counts.elements()), DELTA)
    assert exact < found.epsilon < dearer * exact
    assert found.accounting.endswith("noise rounded down")
