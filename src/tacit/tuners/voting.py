"""DP-HYPE: clients vote for their best candidates, and only the noisy tally is ever seen.

Liebenow, Peinemann and Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search", Algorithm 1. Every client scores the p public candidates on its own data, votes for its
best k, and adds its share of noise; a secure sum opens the noisy tally, whose largest entry wins.
We differ where it helps or where it must be: noise is integer and priced exactly, colluders count
as dropped, votes leave the clients masked (the authors' code sends them in clear), and who abstains
is hidden. How many did can be counted in the same sum, at no price (:mod:`tacit.abstentions`). A
run-off counts its own. It is held even if most abstained from the first vote, as the proof below
needs; whoever reads the outcome must not use it then.

Beyond the paper, at the same epsilon and delta, each a choice of its own: ballots that rank
(``borda``); a tally smoothed over the space (:mod:`tacit.smoothing`); and a run-off, where a share
of the budget is kept for a second vote among few (:mod:`tacit.deciding`); and losses that clients
cross-validate before they vote. *Proof.* Both votes are held in any case, with noise that is fixed
before the first; only who the finalists are depends on the first tally, and the worst pair of a
ballot does not, nor does it depend on how a client finds its losses. So they compose as
:meth:`Vote.event` has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from tacit.abstentions import Abstentions
from tacit.charged_questions import ChargedQuestions
from tacit.deciding import LEVEL, final_winner, finalists, winner
from tacit.federation import Sum
from tacit.privacy.bounds import BordaVotes, TopVotes, WithAbstentions
from tacit.privacy.events import CLIENT, Composed, Event
from tacit.privacy.skellam import IntArray
from tacit.query import BALLOTS, MOST_FOLDS, Ballot
from tacit.smoothing import MOST_CANDIDATES, Smoothed, Smoother, amplitudes
from tacit.space import Config, Space
from tacit.tuners.tuner import Counts, Outcome

_FINEST = 16


@dataclass(frozen=True)
class RunOff:
    """A second vote among a few finalists of the first, where everybody has one vote.

    Args:
        finalists: how many; half of them, rounded up, by the smoothed tally where it is smoothed.
        share: of the budget, for this vote; the first one has the rest.
    """

    finalists: int = 4
    share: float = 0.3

    def __post_init__(self) -> None:
        if self.finalists < 2:
            raise ValueError(f"finalists is {self.finalists}; allowed are at least 2")
        if not 0 < self.share < 1:
            raise ValueError(f"share is {self.share!r}; allowed is a number between 0 and 1")


@dataclass(frozen=True)
class Vote:
    """A private vote of ``votes`` among ``candidates``.

    >>> from tacit.space import Choice
    >>> space = Space({"learning_rate": Choice([0.001, 0.01, 0.1, 1.0])})
    >>> Vote(votes=1, candidates=4, sampling="grid").event(space, variance=30.0)
    SkellamRelease(shifts=((1, 2),), variance=30.0)

    Args:
        votes: how many candidates a ballot names.
        candidates: how many there are to choose from.
        sampling: how they are drawn.
        ballot: ``top``, as published, or ``borda``.
        smooth: whether the tally is smoothed over the space.
        run_off: a second vote, or none.
        folds: over how many parts of its examples, each held out in turn, a client's losses are
            means, if it can do that; 1, as published: one part is held out.
        count_abstentions: whether the sum counts how many clients abstained; it costs no epsilon
            and no noise, and needs ballots that name at most half of the candidates.
    """

    votes: int = 5
    candidates: int = 100
    sampling: str = "sobol"
    ballot: Literal["top", "borda"] = "top"
    smooth: bool = False
    run_off: RunOff | None = None
    folds: int = 1
    count_abstentions: bool = False
    name = "vote"
    unit = CLIENT

    def __post_init__(self) -> None:
        if self.ballot not in BALLOTS:
            raise ValueError(f"ballot is {self.ballot!r}; allowed are {' and '.join(BALLOTS)}")
        if not 1 <= self.folds <= MOST_FOLDS:
            raise ValueError(f"folds is {self.folds}; allowed is 1 to {MOST_FOLDS}")

    @property
    def plain(self) -> bool:
        """Whether it is the published vote: one vote for each of some, and the most votes win."""
        return (self.ballot, self.smooth, self.run_off, self.folds) == ("top", False, None, 1)

    def event(self, space: Space, variance: float) -> Event:
        count = space.count(self.candidates, self.sampling)
        first, final = self._bounds(count)
        if final is None:
            return self._asked(first).release(variance)
        asked = (self._asked(first), self._asked(final))
        return Composed(tuple(bound.release(variance) for bound in asked))

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        candidates = space.candidates(self.candidates, self.sampling, rng)
        first, final = self._bounds(len(candidates))
        if final is not None:
            questions.check(self.event(space, questions.variance))
        ballot = Ballot(
            candidates, self.votes, self.ballot, first.unit, self.folds, self.count_abstentions
        )
        opened = questions.sum(ballot, label="vote")
        votes, abstained = _read(ballot, opened, "vote")
        tally = votes + rng.random(len(candidates)) / 2  # ties by lot
        smoothed = self._smoothed(space, candidates, votes, opened, rng)
        counts = Counts(candidates, votes, opened.variance)
        if final is None:
            config = candidates[winner(tally, smoothed)]
            return Outcome(
                config, candidates, tally=counts, note=_note(smoothed), abstentions=abstained
            )
        few = tuple(candidates[place] for place in finalists(tally, smoothed, final.candidates))
        ballot = Ballot(few, final.votes, "top", final.unit, self.folds, self.count_abstentions)
        last = questions.sum(ballot, label="run-off")
        final_votes, abstained_last = _read(ballot, last, "run-off")
        second = final_votes + rng.random(len(few)) / 2
        return Outcome(
            few[final_winner(second, last.variance, tally, smoothed)],
            candidates,
            tally=counts,
            run_off=Counts(few, final_votes, last.variance),
            note=_run_off_note(smoothed, len(few)),
            abstentions=(*abstained, *abstained_last),
        )

    def _asked(self, ballots: TopVotes | BordaVotes) -> TopVotes | BordaVotes | WithAbstentions:
        """The bound of the question: a whole vector, abstentions included, is what is charged."""
        return WithAbstentions(ballots) if self.count_abstentions else ballots

    def _bounds(self, count: int) -> tuple[TopVotes | BordaVotes, TopVotes | None]:
        """Of the first vote, and of the run-off; their units share the budget between them."""
        kind = BordaVotes if self.ballot == "borda" else TopVotes
        first = kind(count, self.votes)
        if self.run_off is None:
            return first, None
        if self.run_off.finalists >= count:
            raise ValueError(
                f"found {self.run_off.finalists} finalists of {count} candidates; allowed are fewer"
            )
        final = TopVotes(self.run_off.finalists, 1)
        ratio = math.sqrt(
            first.release(1.0).squared_distance
            / final.release(1.0).squared_distance
            * self.run_off.share
            / (1 - self.run_off.share)
        )
        units = Fraction(max(ratio, 1 / _FINEST)).limit_denominator(_FINEST)
        return (
            kind(count, self.votes, units.numerator),
            TopVotes(self.run_off.finalists, 1, units.denominator),
        )

    def _smoothed(
        self,
        space: Space,
        candidates: tuple[Config, ...],
        votes: IntArray,
        opened: Sum,
        rng: np.random.Generator,
    ) -> Smoothed | None:
        count = len(candidates)
        if not self.smooth or not 3 <= count <= MOST_CANDIDATES or not opened.variance:
            return None
        weight = self.votes * (self.votes + 1) / 2 if self.ballot == "borda" else self.votes
        spread = amplitudes(weight * opened.answered, count)
        smoother = Smoother.of(space, candidates, self.votes)
        tally = votes.astype(np.float64)
        return smoother.read(tally[None], opened.variance, spread, rng)[0]


def _read(ballot: Ballot, opened: Sum, label: str) -> tuple[IntArray, tuple[Abstentions, ...]]:
    """The candidates' entries of an opened sum, and how many abstained, where that was asked."""
    bound = ballot.bound
    if not isinstance(bound, WithAbstentions):
        return opened.value, ()
    votes, count = bound.parted(opened.value)
    found = Abstentions.counted(label, count, bound, opened.answered, opened.variance)
    return votes, (found,)


def _note(smoothed: Smoothed | None) -> str:
    if smoothed is None:
        return ""
    if smoothed.chance <= LEVEL:
        return f"the tally was smoothed over the space{_structure(smoothed)}"
    return f"the plain tally decided, since it shows no clear structure{_structure(smoothed)}"


def _run_off_note(smoothed: Smoothed | None, few: int) -> str:
    told = "" if smoothed is None else _structure(smoothed)
    return f"a run-off among {few} finalists decided{told}"


def _structure(smoothed: Smoothed) -> str:
    return f": a tally without structure would look like it in {smoothed.chance:.1%} of cases"
