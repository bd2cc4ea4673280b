"""What a private choice is measured against: a guess, the best there is, and an average in clear.

DP-HYPE's section VI compares with RANDGUESS (a random candidate, which costs no privacy) and OPT
(the candidate whose federated model is best, found by training all of them in clear). PrivTuna's
simplest strategy is the mean of the clients' local winners, sent in clear. We differ in OPT: it is
chosen on the clients' validation data, so that the test data stay untouched by any choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tacit.federation import Federation
from tacit.privacy.events import Composed, Event, Unprotected
from tacit.query import Array, LocalValidation, LocalWinner
from tacit.sgd import Weights
from tacit.space import Space
from tacit.training import federated_average
from tacit.tuners.tuner import Outcome


@dataclass(frozen=True)
class RandomGuess:
    """A random candidate (RANDGUESS): nobody is asked, nothing is spent."""

    candidates: int = 100
    sampling: str = "sobol"
    name = "random-guess"

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return Composed(())

    def tune(self, federation: Federation, space: Space, rng: np.random.Generator) -> Outcome:
        del federation
        candidates = space.candidates(self.candidates, self.sampling, rng)
        return Outcome(candidates[int(rng.integers(len(candidates)))], candidates)


@dataclass(frozen=True)
class Opt:
    """Federated training of every candidate, all at once and in clear (OPT): the upper line.

    ``start(p)`` gives common initial weights for p models.
    """

    start: Callable[[int], Weights] = field(repr=False)
    rounds: int = 5
    epochs: int = 5
    candidates: int = 100
    sampling: str = "sobol"
    name = "opt"

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return Unprotected("LocalTraining")

    def tune(self, federation: Federation, space: Space, rng: np.random.Generator) -> Outcome:
        candidates = space.candidates(self.candidates, self.sampling, rng)
        weights = federated_average(
            lambda query: federation.gather(query, "train every candidate"),
            candidates,
            self.start(len(candidates)),
            self.rounds,
            self.epochs,
        )
        sent = tuple(map(Array.of, weights))
        answers = federation.gather(LocalValidation(sent), "validate every candidate")
        accuracy = np.mean([answer[0].numpy() for answer in answers], axis=0)
        return Outcome(candidates[int(np.argmax(accuracy))], candidates)


@dataclass(frozen=True)
class MeanOfWinners:
    """The mean of the clients' own winners, sent in clear; in the logarithm on such axes."""

    candidates: int = 100
    sampling: str = "sobol"
    name = "mean-of-winners"

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return Unprotected("LocalWinner")

    def tune(self, federation: Federation, space: Space, rng: np.random.Generator) -> Outcome:
        candidates = space.candidates(self.candidates, self.sampling, rng)
        answers = federation.gather(LocalWinner(candidates), "local winners")
        winners = [candidates[int(answer[0].numpy()[0])] for answer in answers]
        mean = np.mean([space.encode(winner) for winner in winners], axis=0)
        return Outcome(space.decode(mean), candidates)
