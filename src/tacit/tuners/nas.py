"""FEATHERS: an architecture and hyperparameters together; and federated DARTS, with fixed ones.

Seng et al., "FEATHERS: Federated Architecture and Hyperparameter Search" (2023). In the search
stage a network of mixed operations trains (:mod:`tacit.supernet`, by
:class:`~tacit.rules.Bilevel`), its weights and architecture averaged alike, in turn with the bandit
(:mod:`tacit.tuners.bandit`). What it found is made discrete and trained anew in the evaluation
stage, with the bandit only. Without reward rounds, under one fixed configuration, it is federated
DARTS (He et al., "FedNAS", 2020).

How we differ from the paper: the network that is made discrete is the last one, not the one that
scored best on test data along the way; the evaluation stage does not tune the architecture's
learning rate and weight decay, which it has no use for. The modes and what is private are the
bandit's; the noise is declared for the search network, which has more parameters than any that can
be found in it. All rounds of both stages are charged before the first question, those too that the
bandit skips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget, calibrate
from tacit.privacy.events import Composed, Event, Unprotected
from tacit.privacy.mechanisms import Participation
from tacit.query import LocalTraining
from tacit.rules import ARCHITECTURE, ARCHITECTURE_HYPERPARAMETERS, Bilevel
from tacit.sgd import Weights
from tacit.space import Config, Space
from tacit.tuners.bandit import MODES, Run, Stage, declare, note
from tacit.tuners.modes import PRIVATE, RECORD, REWARDS_ONLY, check_training_mode, unit_in
from tacit.tuners.tuner import Outcome

DARTS: Config = {
    "learning_rate": 0.025,
    "momentum": 0.9,
    "weight_decay": 3e-4,
    "architecture_learning_rate": 3e-4,
    "architecture_weight_decay": 1e-3,
}
"""What Liu, Simonyan and Yang use, with :class:`~tacit.rules.Bilevel` by Adam."""


@dataclass(frozen=True)
class Feathers:
    """Search, then evaluation.

    >>> from tacit.space import Float
    >>> def start(config):  # a network of one small matrix, whatever its architecture
    ...     return (np.zeros((1, 2, 3), np.float32),)
    >>> few = Stage(phases=1, drawn=2, most_rounds=1, train_rounds=2)
    >>> method = Feathers(start, lambda weights: "none", replace(few, rule=Bilevel()), few)
    >>> declared = method.event(Space({"learning_rate": Float(1e-3, 1.0)}), variance=50.0)
    >>> [[rounds.times for rounds in stage.events] for stage in declared.events]
    [[1, 2], [1, 2]]

    Args:
        start: common initial weights for a network: of the architecture named by a configuration,
            or of the search network for an empty one.
        discretise: the architecture in a search network's weights.
        search: phases and rounds of the search stage.
        evaluation: phases and rounds of the evaluation stage.
        candidates: the bandit's arms, in each stage.
        sampling: how they are drawn.
        fixed: one configuration instead of a bandit: federated DARTS.
        mode: what is protected, see :mod:`tacit.tuners.bandit`.
        reward_share: of the budget, for rewards; the rest is for updates.
        reward_epsilon: as in :class:`~tacit.tuners.bandit.Bandit`.
    """

    start: Callable[[Config], Weights] = field(repr=False)
    discretise: Callable[[Weights], str] = field(repr=False)
    search: Stage = field(default_factory=lambda: Stage(rule=Bilevel()))
    evaluation: Stage = field(default_factory=Stage)
    candidates: int = 120
    sampling: str = "random"
    fixed: Config | None = None
    mode: str = PRIVATE
    reward_share: float = 0.2
    reward_epsilon: float = 1.0

    def __post_init__(self) -> None:
        check_training_mode(self.mode, MODES)

    @property
    def name(self) -> str:
        """Federated DARTS if the configuration is fixed."""
        return "feathers" if self.fixed is None else "darts"

    @property
    def unit(self) -> str:
        """Whom the guarantee is about, by the mode."""
        return unit_in(self.mode)

    def event(self, space: Space, variance: float) -> Event:
        del space
        network, share = self.start({}), self.reward_share
        stages = self._stages(network)
        if self.mode == RECORD:
            return Composed(tuple(stage.record_event(share, variance) for stage in stages))
        if self.mode != PRIVATE:
            return Unprotected(LocalTraining.__name__)
        return Composed(tuple(stage.event(network, share, variance) for stage in stages))

    def update_noise(self, space: Space, variance: float, participation: Participation) -> float:
        """The noise of a mean update in every direction, in the search stage, in clipping norms."""
        del space
        if self.mode != PRIVATE:
            return 0.0
        network = self.start({})
        search, _ = self._stages(network)
        return search.noise(network, self.reward_share, variance, participation)

    def own_noise(self, budget: Budget) -> float:
        """In the mode ``rewards-only``, the noise with which the rewards keep their epsilon."""
        if self.mode != REWARDS_ONLY:
            return 0.0
        stages = self._stages(self.start({}))
        return calibrate(
            lambda variance: Composed(tuple(stage.reward_event(variance) for stage in stages)),
            Budget(self.reward_epsilon, budget.delta),
        )

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        network = self.start({})
        search, evaluation = self._stages(network)
        event = self.event(space, questions.variance)
        declare(questions, event, self.mode, [search, evaluation])
        terms = self.mode, self.reward_share, self.reward_epsilon, rng
        arms = self._arms(space, rng)
        searching = Run(questions, search, *terms)
        found, chosen = searching.through(arms, network)
        architecture = self.discretise(found)
        fixed: Config = {ARCHITECTURE: architecture}
        fresh = self.start(fixed)
        if _size(fresh) > _size(network):
            raise ValueError(
                f"the network found has {_size(fresh)} parameters and the search network "
                f"{_size(network)}, for which the noise was declared; allowed is no larger one"
            )
        training = Run(
            questions, evaluation, *terms, fixed=fixed, round_number=searching.round_number
        )
        own = [_without_architecture(arm) for arm in self._arms(space, rng)]
        weights, best = training.through(own, fresh)
        return Outcome(
            {**chosen, **best} if self.fixed is None else self.fixed,
            tuple(arms),
            note=note(self.mode),
            weights=weights,
            architecture=architecture,
        )

    def _arms(self, space: Space, rng: np.random.Generator) -> Sequence[Config]:
        if self.fixed is not None:
            return [self.fixed]
        return space.candidates(self.candidates, self.sampling, rng)

    def _stages(self, network: Weights) -> tuple[Stage, Stage]:
        """Both, counting updates in the same steps, and without rewards where nothing is tuned."""
        steps = self.search.averaging.unit(network)
        stages = replace(self.search, steps=steps), replace(self.evaluation, steps=steps)
        if self.fixed is None:
            return stages
        return replace(stages[0], most_rounds=0), replace(stages[1], most_rounds=0)


def _without_architecture(config: Config) -> Config:
    return {
        name: value for name, value in config.items() if name not in ARCHITECTURE_HYPERPARAMETERS
    }


def _size(weights: Weights) -> int:
    return sum(array.size for array in weights)
