"""FEATHERS' first phase: a bandit over configurations, in turn with training under the best.

Seng et al., "FEATHERS: Federated Architecture and Hyperparameter Search" (2023), Algorithm 1. In a
reward round some configurations are drawn from ``pi = softmax(r)``; clients train by each for a
short while from the same weights, forget it, and say by how much their validation loss fell. The
estimates r follow, ``pi`` decides how many such rounds the next phase has (its entropy times beta),
and the model then trains for some rounds under the best configuration.

Misprints, and what we take: ``H = sum pi ln pi`` is negative, so the entropy is meant; the update's
bracket subtracts r from every estimate, where the text says that configurations not drawn decay,
``r <- alpha r``. How we differ: rewards are clipped, so that their sum can be protected; every
client counts the same; a phase's rounds have a declared maximum, which is what is paid for.

*Why the declared maximum is charged, whatever is asked.* How many reward rounds there are follows
from noisy rewards, and a price for a number that was chosen by looking at results is outside the
proof. So all declared rounds are charged before the first question. *Proof.* Noise and the most
rounds are fixed; a run that skips rounds releases a function of what the whole would, were the
skipped ones asked and ignored. The composition of all of them bounds it.

*What is private*: see :mod:`tacit.tuners.modes`; and ``published``, as the paper has it: Gaussian
noise on each unbounded loss. No epsilon follows from that, see :data:`WHY_PUBLISHED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import (
    Composed,
    Event,
    Repeated,
    SampledGaussian,
    SkellamRelease,
    Unprotected,
    releases,
)
from tacit.privacy.mechanisms import Participation
from tacit.privacy.skellam import FloatArray
from tacit.query import LocalTraining
from tacit.rewards import LocalRewards, Rewards
from tacit.rules import RecordSteps, Rule, private_part
from tacit.sgd import Weights
from tacit.space import Config, Space
from tacit.training import PrivateAveraging
from tacit.tuners.modes import (
    PRIVATE,
    RECORD,
    REWARDS_ONLY,
    REWARDS_ONLY_NOTE,
    WHILE_TRAINING,
    check_training_mode,
    unit_in,
)
from tacit.tuners.tuner import Outcome

PUBLISHED = "published"
MODES = (*WHILE_TRAINING, PUBLISHED)
WHY_PUBLISHED = (
    "losses have no bound, so noise of any fixed size protects nothing; and every round is a "
    "release of its own, which the published accounting does not add up"
)


class Estimates:
    """What is known about every configuration, and which to try next.

    >>> known = Estimates(3, decay=0.65)
    >>> known.update([0, 1], np.array([1.0, -1.0]))
    >>> known.values.round(2).tolist()
    [0.65, -0.65, 0.0]
    >>> known.update([1], np.array([1.0]))
    >>> known.values.round(2).tolist(), known.best
    ([0.42, 0.42, 0.0], 0)
    """

    def __init__(self, arms: int, decay: float) -> None:
        self.values: FloatArray = np.zeros(arms)
        self.decay = decay

    @property
    def chances(self) -> FloatArray:
        """``pi = softmax(r)``."""
        odds = np.exp(self.values - self.values.max())
        chances: FloatArray = odds / odds.sum()
        return chances

    @property
    def best(self) -> int:
        """The configuration with the largest estimate; among equals the first."""
        return int(np.argmax(np.round(self.values, 12)))

    def rounds(self, beta: float) -> int:
        """How many rounds the uncertainty is worth: at least one."""
        some = self.chances[self.chances > 0]
        return max(1, round(-beta * float(some @ np.log(some))))

    def draw(self, number: int, rng: np.random.Generator) -> list[int]:
        """Different configurations, by their chances, of which extreme rewards may leave few."""
        number = min(number, int(np.count_nonzero(self.chances)))
        return sorted(map(int, rng.choice(len(self.values), number, False, self.chances)))

    def update(self, drawn: Sequence[int], rewards: FloatArray) -> None:
        """``r <- r + alpha (reward - r)`` for those drawn, ``r <- alpha r`` for the others."""
        before = self.values[drawn]
        self.values = self.values * self.decay
        self.values[drawn] = before + self.decay * (rewards - before)


@dataclass(frozen=True)
class Stage:
    """Phases of reward rounds and training rounds in turn, with every number declared.

    >>> stage = Stage(phases=2, drawn=3, most_rounds=2, train_rounds=4)
    >>> stage.averaging.rounds
    8

    Args:
        phases: how often both happen.
        drawn: configurations tried in a reward round.
        decay: the paper's alpha.
        beta: reward rounds a unit of entropy.
        most_rounds: reward rounds in a phase at most; 0: none, the first configuration stays.
        train_rounds: training rounds in a phase.
        epochs: of a client, in either kind of round.
        reward_clip: rewards beyond this on either side count as this.
        clip: the norm of a client's update, where updates are private.
        steps: in how many steps that norm is counted; 0: as many as its length needs.
        rule: how clients train.
        records: how clients protect single records in a training round, where they do.
    """

    phases: int = 2
    drawn: int = 5
    decay: float = 0.65
    beta: float = 4.0
    most_rounds: int = 5
    train_rounds: int = 15
    epochs: int = 1
    reward_clip: float = 1.0
    clip: float = 1.0
    steps: int = 0
    rule: Rule | None = None
    records: RecordSteps = field(default_factory=RecordSteps)

    @property
    def averaging(self) -> PrivateAveraging:
        rounds = self.phases * self.train_rounds
        return PrivateAveraging(rounds, self.epochs, self.clip, self.steps, rule=self.rule)

    def reward_event(self, variance: float) -> Event:
        """All reward rounds there can be."""
        if not self.most_rounds:
            return Composed(())
        query = Rewards(({},) * self.drawn, (), 0, 0, self.reward_clip)
        return Repeated(query.bound.release(variance), self.phases * self.most_rounds)

    def unit(self, start: Weights, share: float) -> int:
        """The noise of updates such that rewards have this share of the squared distance."""
        steps = self.averaging.unit(start)
        rewards = self.phases * self.most_rounds * self.drawn
        if not rewards:
            return steps
        rounds = max(1, self.phases * self.train_rounds)
        return math.ceil(steps * math.sqrt(share / (1 - share) * rounds / rewards))

    def noise(
        self, start: Weights, share: float, variance: float, participation: Participation
    ) -> float:
        """The noise of a mean update in every direction, in clipping norms."""
        return self.averaging.noise(start, self.unit(start, share), variance, participation)

    def record_rule(self, share: float, variance: float) -> Rule:
        """How clients train where single records are protected."""
        rounds = self.phases * self.train_rounds
        rewards = self.phases * self.most_rounds * self.drawn
        private = self.records.beside(rewards, rounds, share, variance)
        return private if self.rule is None else structs.replace(self.rule, private=private)

    def record_event(self, share: float, variance: float) -> Event:
        """All that a stage spends at most where single records are protected."""
        rewards = self.reward_event(variance)
        private = private_part(self.record_rule(share, variance))
        if private is None or not self.train_rounds:
            return rewards
        one = SampledGaussian(private.rate, private.noise, private.steps)
        return Composed((rewards, Repeated(one, self.phases * self.train_rounds)))

    def event(self, start: Weights, share: float, variance: float) -> Event:
        """All that a private stage spends at most."""
        rewards = self.reward_event(variance)
        if not self.train_rounds:
            return rewards
        updates = self.averaging.event(start, self.unit(start, share), variance)
        return Composed((rewards, updates))


@dataclass(frozen=True)
class Bandit:
    """Hyperparameters that change while one model trains.

    >>> Bandit(lambda models: (), mode="secret")
    Traceback (most recent call last):
        ...
    ValueError: mode is 'secret'; allowed are dp, record, rewards-only, clear, published

    Args:
        start: common initial weights for so many models.
        stage: phases, rounds and what they cost.
        candidates: the bandit's arms.
        sampling: how they are drawn.
        mode: what is protected.
        reward_share: of the budget, for rewards; the rest is for updates.
        reward_epsilon: of the rewards, in the mode ``rewards-only``; and of each single loss, as
            the paper would claim, in the mode ``published``.
    """

    start: Callable[[int], Weights] = field(repr=False)
    stage: Stage = field(default_factory=Stage)
    candidates: int = 120
    sampling: str = "random"
    mode: str = PRIVATE
    reward_share: float = 0.2
    reward_epsilon: float = 1.0
    name = "bandit"

    def __post_init__(self) -> None:
        check_training_mode(self.mode, MODES)

    @property
    def unit(self) -> str:
        """Whom the guarantee is about, by the mode."""
        return unit_in(self.mode)

    def event(self, space: Space, variance: float) -> Event:
        del space
        if self.mode == RECORD:
            return self.stage.record_event(self.reward_share, variance)
        if self.mode != PRIVATE:
            return Unprotected(LocalTraining.__name__)
        return self.stage.event(self.start(1), self.reward_share, variance)

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in clipping norms; 0 if there is none."""
        del space
        if self.mode != PRIVATE:
            return 0.0
        return self.stage.noise(self.start(1), self.reward_share, variance, participation)

    def own_noise(self, budget: Budget) -> float:
        """In the mode ``rewards-only``, the noise with which the rewards keep their epsilon."""
        if self.mode != REWARDS_ONLY:
            return 0.0
        return calibrate(self.stage.reward_event, Budget(self.reward_epsilon, budget.delta))

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        declare(questions, self.event(space, questions.variance), self.mode, [self.stage])
        arms = space.candidates(self.candidates, self.sampling, rng)
        run = Run(questions, self.stage, self.mode, self.reward_share, self.reward_epsilon, rng)
        weights, config = run.through(arms, self.start(1))
        return Outcome(config, arms, note=note(self.mode), weights=weights)


def declare(questions: ChargedQuestions, event: Event, mode: str, stages: Sequence[Stage]) -> None:
    """Charge all that can be asked with noise; refuse what cannot be afforded.

    Answers in clear have no epsilon to choose by, so they are charged when they are asked.
    """
    questions.check(event)
    if mode in (PRIVATE, RECORD):
        questions.prepay(_by_name(event))
    elif mode == REWARDS_ONLY:
        rewards = tuple(stage.reward_event(questions.variance) for stage in stages)
        questions.prepay({"rewards": Composed(rewards)})


def _by_name(event: Event) -> dict[str, Event]:
    """Rewards and training, as the ledger names them: rewards alone have known worst pairs."""
    kinds: dict[str, list[Event]] = {"rewards": [], "training": []}
    for release, times in releases(event).items():
        name = "rewards" if isinstance(release, SkellamRelease) else "training"
        kinds[name].append(Repeated(release, times))
    return {name: Composed(tuple(events)) for name, events in kinds.items()}


def note(mode: str) -> str:
    """What whoever reads a result should know."""
    return {REWARDS_ONLY: REWARDS_ONLY_NOTE, PUBLISHED: WHY_PUBLISHED}.get(mode, "")


@dataclass
class Run:
    """One stage, and whom it asks."""

    questions: ChargedQuestions
    stage: Stage
    mode: str
    share: float
    epsilon: float
    rng: np.random.Generator
    fixed: Config = field(default_factory=dict)
    """What every configuration holds beside the drawn: the network that was found."""
    round_number: int = 0

    def through(self, arms: Sequence[Config], weights: Weights) -> tuple[Weights, Config]:
        """All phases: the model, and the configuration that was best in the end."""
        stage, known = self.stage, Estimates(len(arms), self.stage.decay)
        for _ in range(stage.phases):
            # Each kind of round has prepaid lines: one that a kill lost does not end the other.
            with self.questions.while_affordable():
                for _ in range(min(known.rounds(stage.beta), stage.most_rounds)):
                    drawn = known.draw(stage.drawn, self.rng)
                    rewards = self._rewards([arms[arm] for arm in drawn], weights)
                    known.update(drawn, rewards)
                    self.questions.tell("rewards", arms[known.best], float(np.max(rewards)))
            config = arms[known.best]
            with self.questions.while_affordable():
                for _ in range(stage.train_rounds):
                    weights = self._trained({**config, **self.fixed}, weights)
                    self.questions.tell("training", config)
        return weights, arms[known.best]

    def _rewards(self, configs: list[Config], weights: Weights) -> FloatArray:
        self.round_number += 1
        asked = tuple({**config, **self.fixed} for config in configs)
        sent = tuple(map(Array.of, weights))
        terms = asked, sent, self.stage.epochs, self.round_number
        if self.mode in (PRIVATE, RECORD, REWARDS_ONLY):
            query = Rewards(*terms, self.stage.reward_clip, self.stage.rule)
            opened = self.questions.sum(query, f"rewards {self.round_number}")
            return query.mean(opened.value, opened.answered)
        published = self.epsilon if self.mode == PUBLISHED else 0.0
        in_clear = LocalRewards(*terms, self.stage.rule, published, self.questions.delta)
        (found,) = self.questions.average(in_clear, f"rewards {self.round_number}")
        return np.asarray(found, dtype=np.float64)

    def _trained(self, config: Config, weights: Weights) -> Weights:
        self.round_number += 1
        averaging = self.stage.averaging
        if self.mode == PRIVATE:
            unit = self.stage.unit(weights, self.share)
            return averaging.moved(self.questions, config, weights, self.round_number, unit)
        sent = tuple(map(Array.of, weights))
        rule = self.stage.rule
        if self.mode == RECORD:
            rule = self.stage.record_rule(self.share, self.questions.variance)
        query = LocalTraining((config,), sent, self.stage.epochs, self.round_number, rule)
        return self.questions.average(query, f"training {self.round_number}")
