"""Many different releases priced as few: with noise that is rounded down to a lattice.

What pricing takes grows with the number of different releases, and whoever asks chooses their
noise. So more than :data:`FEW` Skellam releases that differ in their noise are priced as if every
variance were the next lower one of ``2^(k / n)``, for integers k, with the finest n that leaves
few: 4096, 2048, and so on, to :data:`_COARSEST`.

*Proof that this is never less than the truth.* Skellam noise of variance v is the sum of
independent Skellam noise of variances w < v and v - w. So a release with variance v is one with
variance w to which more noise is added, which is post-processing: for any pair of answers, and so
for the worst one, its loss is at most that of the release with w, and adaptive composition may take
the larger one for every release.

*Proof that whatever a plan spends on its way is not above what it spends in the end.* Every lattice
holds all places of the coarser ones. More releases have at least as many different places on any
lattice, so theirs is the same or a coarser one, on which no variance is larger. So a part of some
releases is priced with at least the noise that it has in the price of all: a ledger that is charged
a plan line by line refuses nothing of it, as long as the plan as a whole fits.

What it costs: a variance is at most ``1 - 2^(-1 / n)`` lower, half of that on average, and epsilon
grows by about half of what the variance falls by. Where all variances lie within 1 percent, epsilon
is not 0.01 percent higher, and 2 percent within a factor of ten. No variance falls by more than 16
percent, so that more than :data:`FEW` places may be left of noise that differs by a factor of 200,
or of many kinds of questions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tacit.privacy.events import Release, Shifts, SkellamRelease

FEW = 32
"""Up to so many different releases are priced as they are."""

_FINEST, _COARSEST = 4096, 4
"""Places of the lattices for each doubling of the variance."""
_BEYOND = 2**40
"""More than there are places for all numbers in floating point."""


def on_lattice(counts: Mapping[Release, int]) -> Mapping[Release, int]:
    """The same releases, or fewer different ones that cost at least as much together.

    >>> many = {SkellamRelease(((1, 10),), 1e5 + variance): 1 for variance in range(1000)}
    >>> few = on_lattice(many)
    >>> len(few), sum(few.values()), round(min(release.variance for release in few))
    (30, 1000, 99982)
    """
    if len(counts) <= FEW:
        return counts
    few = Counter[Release]()
    kinds: dict[Shifts, int] = {}
    noisy: list[int] = []
    often: list[int] = []
    for release, times in counts.items():
        if isinstance(release, SkellamRelease):
            kind = kinds.setdefault(release.shifts, len(kinds))
            noisy.append(kind * _BEYOND + _place(release.variance))
            often.append(times)
        else:
            few[release] = times
    if len(noisy) <= FEW:
        return counts
    places, step = np.array(noisy), 1
    in_order = np.sort(places)
    while step < _FINEST // _COARSEST and np.count_nonzero(np.diff(in_order // step)) >= FEW:
        step *= 2
    together = Counter[int]()
    for place, times in zip((places // step * step).tolist(), often, strict=True):
        together[place] += times
    shifts = list(kinds)
    for place, times in together.items():
        kind = (place + _BEYOND // 2) // _BEYOND  # a small variance has a place below 0
        few[_rounded(shifts[kind], place - kind * _BEYOND)] = times
    return counts if few == counts else few


@lru_cache(maxsize=4096)
def _place(variance: float) -> int:
    """Of the finest lattice, the last place that is not above a variance."""
    place = math.floor(math.log2(variance) * _FINEST)
    while _variance(place) > variance:
        place -= 1
    while _variance(place + 1) <= variance:
        place += 1
    return place


def _variance(place: int) -> float:
    return math.exp2(place / _FINEST)


@lru_cache(maxsize=1024)
def _rounded(shifts: Shifts, place: int) -> SkellamRelease:
    return SkellamRelease(shifts, _variance(place))
