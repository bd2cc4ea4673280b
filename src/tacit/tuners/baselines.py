"""What a private choice is measured against: a guess, and the best there is.

DP-HYPE's section VI compares with RANDGUESS (a random candidate, which costs no privacy) and OPT
(the candidate whose federated model is best, found by training all of them in clear). We differ in
OPT: it is chosen on the clients' validation data, so that the test data stay untouched by any
choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.events import CLIENT, Composed, Event, Unprotected
from tacit.query import LocalValidation
from tacit.sgd import Weights
from tacit.space import Space
from tacit.training import federated_average
from tacit.tuners.tuner import Outcome


@dataclass(frozen=True)
class RandomGuess:
    """A random candidate (RANDGUESS): nobody is asked, nothing is spent.

    >>> from tacit.space import Float
    >>> RandomGuess(candidates=8).event(Space({"x": Float(0.0, 1.0)}), variance=1.0)
    Composed(events=())
    """

    candidates: int = 100
    sampling: str = "sobol"
    name = "random-guess"
    unit = CLIENT

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return Composed(())

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        del questions
        candidates = space.candidates(self.candidates, self.sampling, rng)
        return Outcome(candidates[int(rng.integers(len(candidates)))], candidates)


@dataclass(frozen=True)
class Opt:
    """Federated training of every candidate, all at once and in clear (OPT): the upper line.

    ``start(p)`` gives common initial weights for p models, of which the first ``trained`` arrays
    are trained (None: all) and the others running statistics. The server's learning rate and
    momentum may be among what is chosen: PrivTuna calls this federated grid search (GHO).

    >>> from tacit.space import Float
    >>> opt = Opt(lambda models: (np.zeros((models, 2, 3), np.float32),), candidates=8)
    >>> opt.event(Space({"x": Float(0.0, 1.0)}), variance=1.0)
    Unprotected(what='LocalTraining')
    """

    start: Callable[[int], Weights] = field(repr=False)
    rounds: int = 5
    epochs: int = 5
    candidates: int = 100
    sampling: str = "sobol"
    trained: int | None = None
    name = "opt"
    unit = CLIENT

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return Unprotected("LocalTraining")

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        candidates = space.candidates(self.candidates, self.sampling, rng)
        weights = federated_average(
            lambda query: questions.gather(query, "train every candidate"),
            candidates,
            self.start(len(candidates)),
            self.rounds,
            self.epochs,
            self.trained,
        )
        sent = tuple(map(Array.of, weights))
        answers = questions.gather(LocalValidation(sent), "validate every candidate")
        accuracy = np.mean([answer[0].numpy() for answer in answers], axis=0)
        return Outcome(candidates[int(np.argmax(accuracy))], candidates)
