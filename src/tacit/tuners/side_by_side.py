"""Several methods, one after the other, on the same real clients: one budget for all of them.

Each method declares what it will release; those events compose, and noise is calibrated so that
their composition fits the budget. *Proof.* Noise levels and the number of questions are fixed
before the first is asked, so the composition of the declared events bounds what is learned, whoever
sees all of it; and it is charged, whole, before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.federation import Federation
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import Composed, Event
from tacit.space import Space
from tacit.tuners.tuner import Outcome, Tuner, noise_for


@dataclass(frozen=True)
class SideBySide:
    """Methods by name, and the variance of each one's noise; :meth:`planned` shares the budget.

    >>> from tacit.space import Float
    >>> from tacit.tuners.voting import Vote
    >>> space, budget = Space({"x": Float(0.0, 1.0)}), Budget(1.0, 1e-5)
    >>> both = SideBySide.planned({"five": Vote(5), "one": Vote(1)}, space, budget)
    >>> {name: round(variance) for name, variance in both.variances.items()}
    {'five': 284, 'one': 54}
    """

    methods: Mapping[str, Tuner]
    variances: Mapping[str, float]
    name = "compare"

    @classmethod
    def planned(cls, methods: Mapping[str, Tuner], space: Space, budget: Budget) -> SideBySide:
        """Give every method an equal part: noise larger than alone by one factor for all."""
        alone = {name: noise_for(method, space, budget) for name, method in methods.items()}
        largest = max(alone.values(), default=0.0)
        if not largest:
            return cls(methods, alone)
        shares = {name: variance / largest for name, variance in alone.items()}

        def with_noise(variance: float) -> SideBySide:
            return cls(methods, {name: share * variance for name, share in shares.items()})

        return with_noise(calibrate(lambda v: with_noise(v).event(space), budget))

    def event(self, space: Space) -> Event:
        """All that all of them will spend."""
        return Composed(tuple(self.events(space).values()))

    def events(self, space: Space) -> dict[str, Event]:
        """What each of them will spend."""
        return {
            name: method.event(space, self.variances[name]) for name, method in self.methods.items()
        }

    def held(
        self, federation: Federation, space: Space, seed: int
    ) -> Iterator[tuple[str, Outcome]]:
        """Charge for all of them, then hold one after the other."""
        federation.prepay(self.events(space))
        for name, method in self.methods.items():
            federation.variance = self.variances[name]
            federation.costs = {}
            questions = ChargedQuestions(federation)
            yield name, method.tune(questions, space, np.random.default_rng(seed))
