"""Model updates as bounded integers, so that they can be summed under noise.

A client trains from common weights, takes the difference, clips it to an L2 norm of ``clip`` and
counts it in steps of ``clip / steps``, each entry rounded up or down at random such that the mean
is right (but for the little that drawing again takes, see below). McMahan et al., "Learning
Differentially Private Recurrent Language Models" (2018), for clipping and capped weights; Kairouz,
Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation" (2021), for rounding; Agarwal, Kairouz and Liu (2021) for Skellam noise on it. We
differ: nothing wraps around, since the secure sums have room, so nothing needs to be rotated; and
colluding and missing clients are in the noise.

*Why the bound holds.* Rounding can lengthen a vector. It is drawn again until its norm is at most
:func:`longest`, and if that fails for long, the vector is rounded towards zero, which shortens it.
So every answer lies in a ball of that radius (:class:`~tacit.privacy.bounds.NormBall` looks again
before noise is added), and two of them lie at most twice the radius apart.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from msgspec import Struct

from tacit.arrays import Arrays
from tacit.privacy.bounds import NormBall
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.rules import Rule
from tacit.sgd import Weights
from tacit.space import Config
from tacit.task import Client, HoldsExamples, NothingToSay, trained

WEIGHT = 0.25
"""A client's own weight stands beside its update in the sum, at this share of the clipping norm."""
_TRIES = 100


def longest(norm: float, length: int) -> int:
    """The norm that a rounded vector may have.

    Rounding a vector of this norm at random exceeds ``norm^2 + length / 4 + norm +
    sqrt(length) / 2`` with probability at most ``exp(-1/2)`` (Kairouz, Liu and Steinke, section
    4.2), and never ``(norm + sqrt(length))^2``.

    >>> longest(1024.0, 25_450)
    1028
    """
    root = math.sqrt(length)
    likely = math.sqrt(norm**2 + length / 4 + norm + root / 2)
    return math.ceil(min(likely, norm + root))


def enough_steps(length: int) -> int:
    """Steps so fine that rounding adds less than one part in fifty to the squared norm.

    >>> enough_steps(25_450), enough_steps(650)
    (1024, 128)
    """
    return max(64, int(2 ** math.ceil(math.log2(math.sqrt(12.5 * length)))))


def rounded(vector: FloatArray, norm: float) -> IntArray:
    """A vector of at most this norm, in whole numbers, by bounded random rounding.

    >>> drawn = np.array([rounded(np.array([0.25, -3.5]), 4.0) for _ in range(2000)])
    >>> bool(np.abs(drawn.mean(axis=0) - [0.25, -3.5]).max() < 0.1)
    True
    """
    limit = longest(norm, len(vector)) ** 2
    below = np.floor(vector)
    chances = np.ldexp(vector - below, 32)
    for _ in range(_TRIES):
        draws = np.frombuffer(secrets.token_bytes(4 * len(vector)), dtype="<u4")
        whole = (below + (draws < chances)).astype(np.int64)
        if int(whole @ whole) <= limit:
            return whole
    return np.trunc(vector).astype(np.int64)


def clipped(vector: FloatArray, clip: float) -> FloatArray:
    """The vector, shortened to an L2 norm of ``clip`` if it is longer, in units of ``clip``.

    >>> clipped(np.array([3.0, 4.0]), 2.5)
    array([0.6, 0.8])
    """
    norm = float(np.linalg.norm(vector))
    if not math.isfinite(norm):
        raise NothingToSay("the training diverged")
    return vector / max(norm, clip)


class PrivateUpdate(Struct, frozen=True, forbid_unknown_fields=True, tag="update"):
    """Train for a few epochs from common weights, and add the difference to a noisy sum.

    With a ``cap``, a client of fewer examples than that counts in proportion; the cap is public,
    the number is not: it enters the same sum.
    """

    config: Config
    weights: Arrays
    epochs: int
    round_number: int
    clip: float
    steps: int
    unit: int
    cap: int = 0
    rule: Rule | None = None

    @property
    def bound(self) -> NormBall:
        length = sum(len(array.data) // 4 for array in self.weights) + bool(self.cap)
        l2 = longest(self._norm, length)
        return NormBall(length, math.ceil(math.sqrt(length) * l2), l2, self.unit)

    def answer(self, client: Client) -> IntArray:
        weights: Weights = tuple(array.numpy() for array in self.weights)
        moved = trained(client, self.rule, [self.config], weights, self.epochs, self.round_number)
        vector = self.steps * clipped(flat(moved) - flat(weights), self.clip)
        if self.cap:
            if not isinstance(client, HoldsExamples):
                raise TypeError(f"{type(client).__name__} does not say how many examples it holds")
            share = min(client.examples, self.cap) / self.cap
            vector = share * np.append(vector, WEIGHT * self.steps)
        return rounded(vector, self._norm)

    def mean(self, total: IntArray, answered: int) -> FloatArray:
        """The mean update, from a noisy sum over this many clients."""
        whole = total.astype(np.float64) * (self.clip / self.steps)
        if not self.cap:
            return whole / answered
        return whole[:-1] / max(float(total[-1]) / (WEIGHT * self.steps), 1.0)

    @property
    def _norm(self) -> float:
        return self.steps * math.hypot(1.0, WEIGHT if self.cap else 0.0)


def flat(weights: Weights) -> FloatArray:
    """All numbers of a model in one vector."""
    return np.concatenate([array.ravel() for array in weights]).astype(np.float64)


def shaped(vector: FloatArray, like: Weights) -> Weights:
    """A vector in the shape of a model again."""
    ends = np.cumsum([array.size for array in like])[:-1]
    return tuple(
        piece.reshape(array.shape).astype(np.float32)
        for piece, array in zip(np.split(vector, ends), like, strict=True)
    )
