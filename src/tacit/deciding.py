"""From noisy tallies to a winner: pure functions of what was opened.

The vote and the simulation that plans it decide by the same rules. A tally alone: its largest entry
wins; if it was smoothed and clearly has structure, the peak of the smoothed one does. With a
run-off: finalists come half from the smoothed tally and half from the plain one, so that neither
has to be right about the surface, and clients choose among them. What the first tally said about
structure is not thrown away: a smoothed finalist starts ahead by up to one and a half standard
deviations of a difference of two counts, and one that leads both tallies by two more. All of it is
post-processing of released tallies. The run-off is held in any case: that it is depends on no
answer, as adding up privacy losses requires.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.privacy.skellam import FloatArray
from tacit.smoothing import Smoothed

LEVEL = 0.1
"""Without a run-off, structure is found where there is none at most so often."""
FAVOUR = 1.5
"""Deviations by which a smoothed finalist starts ahead, if structure is certain."""
AGREED = 2.0
"""Deviations by which the leader of both tallies starts ahead."""


def winner(tally: FloatArray, smoothed: Smoothed | None) -> int:
    """The place of the winner, if the first tally decides.

    >>> tally = np.array([9.0, 1.0, 5.0])
    >>> [winner(tally, Smoothed(np.array([1.0, 4.0, 3.0]), chance)) for chance in (0.01, 0.5)]
    [1, 0]
    """
    if smoothed is not None and smoothed.chance <= LEVEL:
        return smoothed.best
    return int(np.argmax(tally))


def finalists(tally: FloatArray, smoothed: Smoothed | None, count: int) -> list[int]:
    """The best by the smoothed tally, half of them, and the best of the others by the plain one.

    >>> votes = np.array([1.0, 4.0, 3.0, 2.0])
    >>> finalists(np.array([9.0, 1.0, 5.0, 2.0]), Smoothed(votes, 0.5), 2)
    [1, 0]
    """
    found = []
    if smoothed is not None:
        found = list(map(int, np.argsort(-smoothed.votes)[: favoured(count)]))
    others = [int(place) for place in np.argsort(-tally) if int(place) not in found]
    return found + others[: count - len(found)]


def favoured(count: int) -> int:
    """How many of the finalists come from the smoothed tally, where there is one."""
    return (count + 1) // 2


def final_winner(
    counts: FloatArray, variance: float, tally: FloatArray, smoothed: Smoothed | None
) -> int:
    """Which of the finalists wins, by the counts of the run-off and what was known before.

    >>> counts, tally = np.array([20.0, 27.0]), np.array([1.0, 2.0])
    >>> peak_first = np.array([2.0, 1.0])
    >>> [final_winner(counts, 16.0, tally, Smoothed(peak_first, chance)) for chance in (0.01, 0.4)]
    [0, 1]
    """
    ahead = np.zeros(len(counts))
    if smoothed is not None:
        ahead[: favoured(len(counts))] = FAVOUR * (1 - smoothed.chance)
        if smoothed.best == int(np.argmax(tally)):
            ahead[0] += AGREED
    return int(np.argmax(counts + ahead * math.sqrt(2 * variance)))
