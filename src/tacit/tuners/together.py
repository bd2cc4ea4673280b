"""A choice and the private training that follows it, as one method: one budget, one epsilon.

The choice is any tuner's; the training is :class:`~tacit.training.PrivateAveraging`. All releases
of both have noise of the same variance, in units of their own: ``training_unit`` says how many
steps of an update the noise takes for one, and so how the budget is shared. *Proof.* Both declare
what they release, given what was released before; those events compose, and are charged to one
ledger. A vote that counts abstentions may tell that its choice means nothing; then there is no
training, but it was paid for before the vote, so that what is charged does not depend on the vote.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import Composed, Event, releases
from tacit.privacy.mechanisms import Participation
from tacit.privacy.planner import enough_noise
from tacit.sgd import Weights
from tacit.space import Space
from tacit.training import PrivateAveraging
from tacit.tuners.tuner import Outcome, Tuner, noise_for
from tacit.tuners.voting import Vote

LIKELY = 0.95
"""How often a good candidate should win a vote of unanimous clients before training is favoured."""
LEAST_SHARE = 0.1
"""Of the budget, for a vote: less would save the training next to nothing, and clients differ."""


@dataclass(frozen=True)
class Together:
    """Choose, then train with the choice; :meth:`planned` shares the budget.

    >>> from tacit.space import Float
    >>> from tacit.tuners.baselines import RandomGuess
    >>> start = (np.zeros((1, 2, 3), np.float32),)
    >>> both = Together(RandomGuess(candidates=8), PrivateAveraging(rounds=5, epochs=2), start, 40)
    >>> choice, training = both.event(Space({"x": Float(0.0, 1.0)}), variance=50.0).events
    >>> choice.events, training.times
    ((), 5)

    Args:
        method: how to choose.
        training: how to train.
        start: the model to begin with.
        training_unit: training rounds have noise of so many times the choice's standard deviation.
    """

    method: Tuner
    training: PrivateAveraging
    start: Weights = field(repr=False)
    training_unit: int
    """Steps of an update in one step of the choice."""

    @classmethod
    def planned(
        cls,
        method: Tuner,
        space: Space,
        training: PrivateAveraging,
        start: Weights,
        budget: Budget,
        participation: Participation,
        share: float = 0.0,
    ) -> Together:
        """Share a budget.

        The choice gets this ``share`` of it, as a share of the squared distance between
        neighbours, in which Gaussian-like noise adds up. Without one, a vote gets as much as makes
        a good pick likely, at most half, and any other choice half; one that asks nobody, nothing.
        The training gets what is left of epsilon when the choice is priced.
        """
        if math.isinf(budget.epsilon):
            raise ValueError(
                "private training needs a finite epsilon; found infinity: set privacy.epsilon"
            )
        alone = noise_for(method, space, budget)
        if not alone:
            return cls(method, training, start, training.unit(start))
        variance = alone / (share or 0.5)
        if isinstance(method, Vote) and not share:
            enough = _enough_for_a_vote(method, space, participation)
            variance = min(max(variance, enough), alone / LEAST_SHARE)
        chosen = method.event(space, variance)
        noise = calibrate(lambda v: Composed((chosen, training.event(start, 1, v))), budget)
        return cls(method, training, start, math.ceil(math.sqrt(noise / variance)))

    @property
    def name(self) -> str:
        """That of the choice."""
        return self.method.name

    @property
    def unit(self) -> str:
        """Whom the guarantee of the choice is about."""
        return self.method.unit

    def event(self, space: Space, variance: float) -> Event:
        """All that both will spend."""
        chosen = self.method.event(space, variance)
        return Composed((chosen, self.training.event(self.start, self.training_unit, variance)))

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in clipping norms."""
        del space
        return self.training.noise(self.start, self.training_unit, variance, participation)

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        if isinstance(self.method, Vote) and self.method.count_abstentions:
            variance = questions.variance
            training = self.training.event(self.start, self.training_unit, variance)
            questions.prepay({"vote": self.method.event(space, variance), "training": training})
        else:
            questions.check(self.event(space, questions.variance))
        outcome = self.method.tune(questions, space, rng)
        if outcome.warning:
            return outcome
        weights = self.training.train(questions, outcome.config, self.start, self.training_unit)
        return replace(outcome, weights=weights)


def _enough_for_a_vote(vote: Vote, space: Space, participation: Participation) -> float:
    """The largest variance with which unanimous clients are still likely to pick well.

    Taken from a plain vote, in proportion to how far two answers lie apart.
    """
    candidates = space.count(vote.candidates, vote.sampling)
    plain = TopVotes(candidates, min(vote.votes, candidates - 1))
    enough = enough_noise(participation, candidates, plain.votes, LIKELY)
    asked = sum(release.squared_distance for release in releases(vote.event(space, 1.0)))
    return enough * asked / plain.release(1.0).squared_distance
