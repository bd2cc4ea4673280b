"""Questions: frozen data that travels to the clients, where ``answer`` runs.

A question whose answers are summed names its bound; :mod:`tacit.federation` checks the answer
against it where the noise is added. A question in clear has no bound and no privacy: whoever asks
it books an infinite epsilon, except for the training that follows a choice, which no epsilon of
the choice covers.
"""

from __future__ import annotations

from secrets import token_bytes
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from tacit.privacy.bounds import Bound, TopVotes
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.sgd import Weights
from tacit.space import Config
from tacit.task import Client, Learner, scores


class NothingToSay(Exception):
    """The client has no usable answer and abstains."""


class SumQuery(Protocol):
    """A question whose answers are only ever seen as a noisy sum."""

    @property
    def bound(self) -> Bound:
        """What answers are allowed."""

    def answer(self, client: Client) -> IntArray:
        """One client's answer, without noise."""


class Ballot(Struct, frozen=True, forbid_unknown_fields=True, tag="ballot"):
    """Vote for the candidates with the lowest loss (DP-HYPE, Algorithm 1, lines 5 to 8).

    The bound holds because exactly ``votes`` different candidates are chosen. We differ in three
    ways: losses that are not finite rank last, ties are broken by the operating system's
    randomness, and a client without any finite loss abstains instead of voting for whatever stands
    first.
    """

    candidates: tuple[Config, ...]
    votes: int

    @property
    def bound(self) -> TopVotes:
        return TopVotes(len(self.candidates), self.votes)

    def answer(self, client: Client) -> IntArray:
        return self.bound.ballot(ranking(scores(client, self.candidates))[: self.votes])


class LocalWinner(Struct, frozen=True, forbid_unknown_fields=True, tag="winner"):
    """Which candidate is best, in clear."""

    candidates: tuple[Config, ...]

    def answer(self, client: Client) -> Arrays:
        best = ranking(scores(client, self.candidates))[0]
        return (Array.of(np.array([best], dtype=np.int64)),)


class LocalTraining(Struct, frozen=True, forbid_unknown_fields=True, tag="training"):
    """Train some models for a few epochs from common weights, and return them in clear."""

    configs: tuple[Config, ...]
    weights: Arrays
    epochs: int
    round_number: int

    def answer(self, client: Client) -> Arrays:
        weights: Weights = tuple(array.numpy() for array in self.weights)
        trained = learner(client).train_many(self.configs, weights, self.epochs, self.round_number)
        return tuple(map(Array.of, trained))


class LocalValidation(Struct, frozen=True, forbid_unknown_fields=True, tag="validation"):
    """How accurate some models are on the client's validation data, in clear."""

    weights: Arrays

    def answer(self, client: Client) -> Arrays:
        weights: Weights = tuple(array.numpy() for array in self.weights)
        return (Array.of(learner(client).validate_many(weights)),)


class Array(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array on the wire: little-endian numbers of a few allowed kinds, never a pickle."""

    kind: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> Array:
        """An array as bytes."""
        kind = _kind(array.dtype.newbyteorder("<").str)
        return cls(kind, array.shape, np.ascontiguousarray(array, dtype=kind).tobytes())

    def numpy(self) -> npt.NDArray[Any]:
        """The array again."""
        return np.frombuffer(self.data, _kind(self.kind)).reshape(self.shape)


Arrays = tuple[Array, ...]
Sums = Ballot
InClear = LocalWinner | LocalTraining | LocalValidation


def ranking(losses: FloatArray) -> list[int]:
    """Candidates from best to worst: finite losses first, ties in random order.

    >>> ranking(np.array([0.3, np.nan, 0.1]))[:2]
    [2, 0]
    """
    if not np.isfinite(losses).any():
        raise NothingToSay
    usable = np.where(np.isfinite(losses), losses, np.inf)
    lots = np.frombuffer(token_bytes(8 * len(losses)), dtype=np.uint64)
    return [int(index) for index in np.lexsort((lots, usable))]


def learner(client: Client) -> Learner:
    """A client that can train, or a TypeError."""
    if not isinstance(client, Learner):
        raise TypeError(
            f"{type(client).__name__} cannot train: it has no train_many and validate_many"
        )
    return client


def _kind(name: str) -> str:
    if name not in ("<f4", "<f8", "<i8"):
        raise ValueError(f"array of kind {name!r}; allowed are '<f4', '<f8' and '<i8'")
    return name
