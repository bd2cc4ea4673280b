"""Successive halving: give up bad candidates early (Jamieson and Talwalkar 2016).

It happens on a client, before the client says anything, so it costs no privacy: the answer is
bounded in the same way whatever it was computed from. What it saves is time, at the risk that a
candidate that starts slowly is given up.

How we differ: a candidate whose schedule leaves it almost nothing more to learn (its learning rate
has decayed) is not given up but finished, with the score it has. How many candidates go on is not
halved but at most a share from a list; and, as in a race (Maron and Moore 1993), who lies far
behind is given up although there is room: more than four standard errors behind the tenth best.
List and distance were chosen on a few clients of Adult and MNIST so that the best five mostly stay
the same; ``tacit bench speed`` measures what it saves and what it misses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

LOCAL_SEARCHES = ("full", "halving")

_RUNGS = ((0.2, 0.28), (0.4, 0.24), (0.6, 0.18), (0.8, 0.14))
"""After this share of the effort at most this share of the candidates goes on."""
_LEAST_KEPT = 10
_FAR_BEHIND = 4.0
"""In standard errors of a difference of two error rates, from the tenth best."""
_FINISHED = 0.02


def rungs(candidates: int, effort: int) -> list[tuple[int, int]]:
    """Where candidates are compared, and how many go on from there.

    >>> rungs(candidates=100, effort=5)
    [(1, 28), (2, 24), (3, 18), (4, 14), (5, 0)]
    >>> rungs(candidates=10, effort=5)
    [(5, 0)]
    """
    found = []
    compared = candidates
    for share, kept in _RUNGS:
        until, going_on = round(share * effort), max(_LEAST_KEPT, round(kept * candidates))
        if 0 < until < effort and going_on < compared:
            found.append((until, going_on))
            compared = going_on
    return [*dict(found).items(), (effort, 0)]


def successive_halving(
    candidates: int,
    effort: int,
    advance: Callable[[Indices, int], Floats],
    remaining: Callable[[int], Floats],
    examples: int | None = None,
) -> Floats:
    """A score for every candidate: its last one, but nobody given up ranks before who went on.

    Args:
        candidates: how many there are.
        effort: what a full evaluation takes, in epochs for example.
        advance: trains some candidates until this effort and returns their scores.
        remaining: what share of its learning every candidate still has ahead after this effort.
        examples: on how many the scores are error rates; None if they are something else, then
            nobody is given up for being far behind.

    >>> scores = successive_halving(
    ...     40, 5, lambda some, until: some / until, lambda until: np.full(40, 1 - until / 5)
    ... )
    >>> bool(np.argmin(scores) == 0), bool((scores[14:] > scores[:10].max()).all())
    (True, True)
    """
    scores = np.full(candidates, np.inf)
    alive = np.arange(candidates)
    parted: list[tuple[Indices, Indices]] = []
    for until, kept in rungs(candidates, effort):
        scores[alive] = advance(alive, until)
        if until == effort:
            break
        if not np.isfinite(scores[alive]).any():
            continue  # nothing can be said yet
        alive = alive[remaining(until)[alive] >= _FINISHED]
        best = alive[np.argsort(scores[alive], kind="stable")[:kept]]
        going_on = np.sort(best[~(scores[best] > _too_far(scores, examples))])
        parted.append((np.setdiff1d(alive, going_on), going_on))
        alive = going_on
        if not alive.size:
            break
    for given_up, went_on in reversed(parted):  # who went on from a late rung may have got worse
        finite = scores[went_on][np.isfinite(scores[went_on])]
        if finite.size:
            behind = np.nextafter(finite.max(), np.inf)
            scores[given_up] = np.maximum(scores[given_up], behind)
    return scores


def _too_far(scores: Floats, examples: int | None) -> float:
    """The error rate from which on a candidate is hopeless.

    >>> round(_too_far(np.linspace(0.02, 0.9, 45), examples=100), 2)
    0.43
    """
    known = np.sort(scores[np.isfinite(scores)])
    if examples is None or len(known) < _LEAST_KEPT:
        return np.inf
    tenth = known[_LEAST_KEPT - 1]
    rate = np.clip(tenth, 1 / examples, 1 - 1 / examples)
    return float(tenth + _FAR_BEHIND * np.sqrt(2 * rate * (1 - rate) / examples))
