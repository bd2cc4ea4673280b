"""Questions: frozen data that travels to the clients, where ``answer`` runs.

A question whose answers are summed names its bound; :mod:`tacit.federation` checks the answer
against it where the noise is added. A question in clear has no bound and no privacy: whoever asks
it books an infinite epsilon, except for the training that follows a choice, which no epsilon of
the choice covers.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

from msgspec import Struct

from tacit.arrays import (
    NOT_FINITE,
    OUTSIDE,
    Array,
    Arrays,
    finite_models,
    is_finite,
    unlike,
)
from tacit.combining import (
    CellCounts,
    ClusterSums,
    LocalBest,
    LocalFindings,
    LossSums,
    SurfaceSums,
)
from tacit.local_search import ranking
from tacit.privacy.bounds import BordaVotes, Bound, TopVotes, WithAbstentions
from tacit.privacy.events import Event, SampledGaussian, Unprotected
from tacit.privacy.skellam import IntArray
from tacit.rewards import (
    LocalRewards,
    LocalSampled,
    Rewards,
    SampledLoss,
    SampledUpdate,
    drawn_arm,
)
from tacit.rules import Rule, private_part
from tacit.sgd import Weights
from tacit.space import Config
from tacit.task import Client, learner, scores, trained
from tacit.updates import PrivateUpdate


class SumQuery(Protocol):
    """A question whose answers are only ever seen as a noisy sum."""

    @property
    def bound(self) -> Bound:
        """What answers are allowed."""

    def answer(self, client: Client) -> IntArray:
        """One client's answer, without noise."""


TOP: Final = "top"
BORDA: Final = "borda"
BALLOTS = (TOP, BORDA)
MOST_FOLDS = 100
"""So that no question keeps clients training for ever."""


class Ballot(Struct, frozen=True, forbid_unknown_fields=True, tag="ballot"):
    """Vote for the candidates with the lowest loss (DP-HYPE, Algorithm 1, lines 5 to 8).

    ``top``: one vote for each of the best ``votes``, as published. ``borda``: ``votes`` for the
    best, one less for the next, and so on. The bound holds because exactly ``votes`` different
    candidates are chosen. We differ in three ways: losses that are not finite rank last, ties are
    broken by the operating system's randomness, and a client without any finite loss abstains
    instead of voting for whatever stands first. ``unit`` is how many steps the noise takes for one:
    it shares a budget among several votes. ``folds`` asks for losses that are cross-validated, of
    clients that can; the bound does not depend on how they were found.

    With ``count_abstentions`` a ballot has further entries, which an abstaining client votes for,
    at the same price (:class:`~tacit.privacy.bounds.WithAbstentions`). Without, it casts a random
    valid ballot, and nobody can tell how many did.
    """

    candidates: tuple[Config, ...]
    votes: int
    kind: Literal["top", "borda"] = "top"
    unit: int = 1
    folds: int = 1
    count_abstentions: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.folds <= MOST_FOLDS:
            raise ValueError(f"folds is {self.folds}; allowed is 1 to {MOST_FOLDS}")

    @property
    def bound(self) -> TopVotes | BordaVotes | WithAbstentions:
        kind = BordaVotes if self.kind == BORDA else TopVotes
        ballots = kind(len(self.candidates), self.votes, self.unit)
        return WithAbstentions(ballots) if self.count_abstentions else ballots

    def answer(self, client: Client) -> IntArray:
        return self.bound.ballot(ranking(scores(client, self.candidates, self.folds))[: self.votes])


class LocalTraining(Struct, frozen=True, forbid_unknown_fields=True, tag="training"):
    """Train some models for a few epochs from common weights, and return them in clear.

    With ``chances`` the client draws one of the configurations, and trains by that alone; the draw
    depends on no data.
    """

    configs: tuple[Config, ...]
    weights: Arrays
    epochs: int
    round_number: int
    rule: Rule | None = None
    chances: tuple[float, ...] = ()

    @property
    def event(self) -> Event:
        """What the answer costs: something finite, for a record, if the rule is private."""
        private = private_part(self.rule)
        if private is None:
            return Unprotected(type(self).__name__)
        steps = private.steps * (1 if self.chances else len(self.configs))
        return SampledGaussian(private.rate, private.noise, steps)

    def answer(self, client: Client) -> Arrays:
        weights: Weights = tuple(array.numpy() for array in self.weights)
        configs = self.configs
        if self.chances:
            configs = (configs[drawn_arm(self.chances)],)
        moved = trained(client, self.rule, configs, weights, self.epochs, self.round_number)
        return tuple(map(Array.of, moved))

    def unfit(self, answer: Arrays) -> str:
        """Why an answer cannot be used; nothing if it can: models like those that were sent.

        One of several models may have diverged; an answer without any finite one is none.
        """
        why = unlike(answer, [array.shape for array in self.weights])
        return why or ("" if finite_models(answer).any() else NOT_FINITE)


class LocalValidation(Struct, frozen=True, forbid_unknown_fields=True, tag="validation"):
    """How accurate some models are on the client's validation data, in clear."""

    weights: Arrays

    def answer(self, client: Client) -> Arrays:
        weights: Weights = tuple(array.numpy() for array in self.weights)
        return (Array.of(learner(client).validate_many(weights)),)

    def unfit(self, answer: Arrays) -> str:
        """Why an answer cannot be used; nothing if it can: an accuracy for each model."""
        why = unlike(answer, [self.weights[0].shape[:1]])
        if why or not is_finite(answer[0]):
            return why or NOT_FINITE
        accuracies = answer[0].numpy()
        return "" if ((accuracies >= 0) & (accuracies <= 1)).all() else OUTSIDE


Sums = (
    Ballot
    | LocalBest
    | CellCounts
    | ClusterSums
    | LossSums
    | SurfaceSums
    | PrivateUpdate
    | Rewards
    | SampledLoss
    | SampledUpdate
)
InClear = LocalFindings | LocalTraining | LocalValidation | LocalRewards | LocalSampled
