"""DP-HYPE: clients vote for their best candidates, and only the noisy tally is ever seen.

Liebenow, Peinemann and Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search", Algorithm 1. Every client scores the p public candidates on its own data, votes for its
best k, and adds its share of noise; a secure sum opens the noisy tally, whose largest entry wins.
We differ where it helps or where it must be: noise is integer and priced exactly, colluders count
as dropped, votes leave the clients masked (the authors' code sends them in clear), and abstentions
are hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.federation import Federation
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import Event
from tacit.query import Ballot
from tacit.space import Space
from tacit.tuners.tuner import Outcome


@dataclass(frozen=True)
class Vote:
    """A private vote of ``votes`` among ``candidates``.

    >>> from tacit.space import Choice
    >>> space = Space({"learning_rate": Choice([0.001, 0.01, 0.1, 1.0])})
    >>> Vote(votes=1, candidates=4, sampling="grid").event(space, variance=30.0)
    SkellamRelease(shifts=((1, 2),), variance=30.0)
    """

    votes: int = 5
    candidates: int = 100
    sampling: str = "sobol"
    name = "vote"

    def event(self, space: Space, variance: float) -> Event:
        return TopVotes(space.count(self.candidates, self.sampling), self.votes).release(variance)

    def tune(self, federation: Federation, space: Space, rng: np.random.Generator) -> Outcome:
        candidates = space.candidates(self.candidates, self.sampling, rng)
        tally = federation.sum(Ballot(candidates, self.votes), label="vote").value
        return Outcome(candidates[_largest(tally, rng)], candidates, tally)


def _largest(tally: np.ndarray[tuple[int], np.dtype[np.int64]], rng: np.random.Generator) -> int:
    """The winner; among equals, a random one: the order of candidates carries no information."""
    return int(rng.choice(np.flatnonzero(tally == tally.max())))
