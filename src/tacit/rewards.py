"""How much some configurations improve a common model, on a client's own validation data.

Seng et al., "FEATHERS: Federated Architecture and Hyperparameter Search" (2023), Algorithm 2: for
each configuration, short local training from the same weights, reset after each; the reward is the
validation loss before less the loss after. In a noisy sum (:class:`Rewards`) rewards are clipped to
``clip`` on either side and counted in ``steps``, all clients alike: the paper weights them by the
size of the validation data, which is private. A configuration that diverged has the worst reward.

FedEx (Khodak et al., "Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to
Weight-Sharing", 2021) has each client draw one configuration, train by it and keep the result: in
:class:`SampledUpdate` update and loss enter one noisy sum, the loss at the place of the
configuration drawn. Where weights leave the client otherwise, :class:`SampledLoss` asks for the
loss alone, of a model that the client trains for it and forgets.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from msgspec import Struct

from tacit.arrays import NOT_FINITE, OUTSIDE, Array, Arrays, is_finite, unlike
from tacit.privacy.bounds import Box, NormBall
from tacit.privacy.planner import REWARD_STEPS
from tacit.privacy.rounded_normal import rounded_normal
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.rules import Rule
from tacit.sgd import Weights
from tacit.space import Config
from tacit.task import Client, NothingToSay, losses, trained
from tacit.updates import clipped, flat, longest, rounded


class Rewards(Struct, frozen=True, forbid_unknown_fields=True, tag="rewards"):
    """A reward for each of some configurations, clipped and in steps; the sum is noisy."""

    configs: tuple[Config, ...]
    weights: Arrays
    epochs: int
    round_number: int
    clip: float
    rule: Rule | None = None
    steps: int = REWARD_STEPS

    @property
    def bound(self) -> Box:
        return Box(len(self.configs), self.steps, self.steps)

    def answer(self, client: Client) -> IntArray:
        found = _rewards(self, client)
        return np.rint(self.steps * np.clip(found / self.clip, -1, 1)).astype(np.int64)

    def mean(self, total: IntArray, answered: int) -> FloatArray:
        """The mean rewards, from a sum over this many clients."""
        return total.astype(np.float64) * (self.clip / self.steps / answered)


class LocalRewards(Struct, frozen=True, forbid_unknown_fields=True, tag="rewards"):
    """The same rewards in clear, unclipped.

    With an ``epsilon``, as published: Gaussian noise on both losses of a reward, of the size that
    would protect a loss of sensitivity one, which losses do not have.
    """

    configs: tuple[Config, ...]
    weights: Arrays
    epochs: int
    round_number: int
    rule: Rule | None = None
    epsilon: float = 0.0
    delta: float = 1e-5

    def answer(self, client: Client) -> Arrays:
        found = _rewards(self, client)
        if self.epsilon:
            sigma = math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
            noise = rounded_normal(sigma * _PUBLISHED_STEPS, (2, *found.shape))
            found = found + (noise[0] - noise[1]) / _PUBLISHED_STEPS
        return (Array.of(np.maximum(found, DIVERGED)),)

    def unfit(self, answer: Arrays) -> str:
        """Why an answer cannot be used; nothing if it can: a reward for each configuration."""
        why = unlike(answer, [(len(self.configs),)])
        return why or ("" if is_finite(answer[0]) else NOT_FINITE)


def _rewards(asked: Rewards | LocalRewards, client: Client) -> FloatArray:
    one: Weights = tuple(array.numpy() for array in asked.weights)
    configs = list(asked.configs)
    each = tuple(array.repeat(len(configs), axis=0) for array in one)
    after = trained(client, asked.rule, configs, each, asked.epochs, asked.round_number)
    before = losses(client, configs[:1], one)[0]
    if not math.isfinite(before):
        raise NothingToSay("the common model has no finite loss")
    gained = before - losses(client, configs, after)
    return np.where(np.isnan(gained), -np.inf, gained)


class SampledUpdate(Struct, frozen=True, forbid_unknown_fields=True, tag="sampled"):
    """Train by a configuration drawn from ``chances``; update and loss in one noisy sum.

    The loss counts relative to a ``baseline``, clipped to ``loss_clip`` on either side, and at
    ``LOSS_SHARE`` of the update's clipping norm.
    """

    configs: tuple[Config, ...]
    chances: tuple[float, ...]
    weights: Arrays
    epochs: int
    round_number: int
    clip: float
    loss_clip: float
    baseline: float
    steps: int
    unit: int
    rule: Rule | None = None

    @property
    def bound(self) -> NormBall:
        length = sum(len(array.data) // 4 for array in self.weights) + len(self.configs)
        l2 = longest(self._norm, length)
        return NormBall(length, math.ceil(math.sqrt(length) * l2), l2, self.unit)

    def answer(self, client: Client) -> IntArray:
        arm, start, moved, loss = _drawn(self, client)
        update = self.steps * clipped(flat(moved) - flat(start), self.clip)
        told = np.zeros(len(self.configs))
        told[arm] = LOSS_SHARE * self.steps * _short(loss, self)
        return rounded(np.append(update, told), self._norm)

    def means(self, total: IntArray, answered: int) -> tuple[FloatArray, FloatArray]:
        """The mean update, and each configuration's part of the mean loss beyond the baseline."""
        whole = total.astype(np.float64) / (self.steps * answered)
        arms = len(self.configs)
        return whole[:-arms] * self.clip, whole[-arms:] * (self.loss_clip / LOSS_SHARE)

    @property
    def _norm(self) -> float:
        return self.steps * math.hypot(1.0, LOSS_SHARE)


LOSS_SHARE = 0.5
_PUBLISHED_STEPS = 2.0**20
DIVERGED = -1e6
"""The reward in clear of a configuration that diverged: finite, so that a mean of it is one."""


class SampledLoss(Struct, frozen=True, forbid_unknown_fields=True, tag="sampled-loss"):
    """Train by a configuration drawn from ``chances`` and tell its loss, at its place.

    The bound holds because one entry at most differs from zero, and is at most ``steps``: both
    norms of an answer are at most that.
    """

    configs: tuple[Config, ...]
    chances: tuple[float, ...]
    weights: Arrays
    epochs: int
    round_number: int
    loss_clip: float
    baseline: float
    rule: Rule | None = None
    steps: int = REWARD_STEPS

    @property
    def bound(self) -> NormBall:
        return NormBall(len(self.configs), self.steps, self.steps, self.steps)

    def answer(self, client: Client) -> IntArray:
        arm, _, _, loss = _drawn(self, client)
        told = np.zeros(len(self.configs), dtype=np.int64)
        told[arm] = round(self.steps * _short(loss, self))
        return told

    def means(self, total: IntArray, answered: int) -> FloatArray:
        """Each configuration's part of the mean loss beyond the baseline."""
        return total.astype(np.float64) * (self.loss_clip / (self.steps * answered))


def _short(loss: float, asked: SampledUpdate | SampledLoss) -> float:
    """A loss beyond the baseline, in units of the clip, between -1 and 1."""
    return float(np.clip((loss - asked.baseline) / asked.loss_clip, -1, 1))


class LocalSampled(Struct, frozen=True, forbid_unknown_fields=True, tag="sampled"):
    """The same in clear: the loss and a one at the configuration drawn, and the trained weights."""

    configs: tuple[Config, ...]
    chances: tuple[float, ...]
    weights: Arrays
    epochs: int
    round_number: int
    rule: Rule | None = None

    def answer(self, client: Client) -> Arrays:
        arm, _, moved, loss = _drawn(self, client)
        drawn = np.eye(len(self.configs))[arm]
        return (Array.of(loss * drawn), Array.of(drawn), *map(Array.of, moved))

    def unfit(self, answer: Arrays) -> str:
        """Why an answer cannot be used; nothing if it can: one loss at its place, and a model."""
        arms = (len(self.configs),)
        why = unlike(answer, [arms, arms, *(array.shape for array in self.weights)])
        if why or not all(map(is_finite, answer)):
            return why or NOT_FINITE
        loss, drawn = (array.numpy() for array in answer[:2])
        one = (np.sort(drawn) == np.eye(len(drawn))[-1]).all()
        return "" if one and not loss[drawn == 0].any() else OUTSIDE


def drawn_arm(chances: tuple[float, ...]) -> int:
    """An index by its chance, from the operating system's randomness."""
    point = secrets.randbelow(2**53) / 2**53
    return int(np.searchsorted(np.cumsum(chances)[:-1], point, side="right"))


def _drawn(
    asked: SampledUpdate | SampledLoss | LocalSampled, client: Client
) -> tuple[int, Weights, Weights, float]:
    """The arm a client drew by itself, the common weights, its own, and their loss."""
    arm = drawn_arm(asked.chances)
    start: Weights = tuple(array.numpy() for array in asked.weights)
    config = [asked.configs[arm]]
    moved = trained(client, asked.rule, config, start, asked.epochs, asked.round_number)
    loss = float(losses(client, config, moved)[0])
    if not math.isfinite(loss):
        raise NothingToSay("the training diverged")
    return arm, start, moved, loss
