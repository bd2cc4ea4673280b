"""The best of a random number of private trainings, and nothing of the others.

Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy" (2022); Liu and
Talwar, "Private Selection from Private Candidates" (2019), whom the supplement of Koskela and
Honkela (2018) compares with. One holder of data trains by DP-SGD, each time with a configuration
drawn at random; every model's right answers on validation records are counted, with noise; the
model with the best noisy count is released. See :class:`tacit.privacy.events.Selected` for the
proof, in which the validation records pay too.

How we differ: scores have noise, which the papers leave to the reader; configurations are drawn
from the operating system's randomness, since a known order would tell how many runs came before
the best; and the case matters. ``trusted``: whoever trains keeps the number of runs and all but
the best to itself, and the price is that of a selection. ``watched``: somebody sees every run, for
instance a server that takes part in each; that costs their composition, and a fixed number of runs
is held. After a kill, the number is drawn anew and paid for anew.

What stays secret here stays in memory: no log, table or file tells of single runs. The time that a
selection takes does tell how many there were; who may see a clock must wait until an hour that was
fixed before.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples
from tacit.dp_training import POISSON, Chance, Models, Recipe, Run, Secret, train
from tacit.lots import Units
from tacit.privacy.events import RECORD, Event, Repeated, Scored
from tacit.privacy.selection import Runs, score_noise, selected
from tacit.space import Config, Space
from tacit.tuners.tuner import Outcome

TRUSTED, WATCHED = MODES = ("trusted", "watched")
NOTES = {
    TRUSTED: "the price is for those who see this result alone: whoever trained saw every run, and "
    "the time it took tells how many there were",
    WATCHED: "every run was seen, so their composition is charged",
}
NO_RUN = "the number of runs drawn was 0, so nothing was trained"
TUNABLE = ("learning_rate", "momentum", "decay", "clip")
_STACKED = 16
_SCORE_STEPS = 1024
"""What a unit whose rows are all answered right adds to a score."""


@dataclass(frozen=True)
class Selection:
    """Random candidates, trained privately by one holder of data; the best is released.

    >>> from tacit.space import Float
    >>> rows = Examples(np.zeros((60, 2), np.float32), np.zeros(60, np.int64))
    >>> own, others = rows.take(np.arange(40)), rows.take(np.arange(40, 60))
    >>> method = Selection(Recipe(lot=4, steps=6), own, others, classes=2, runs=Runs(3.0, 1.0))
    >>> method.event(Space({"learning_rate": Float(0.1, 10.0, log=True)}), variance=2.0).rate
    0.1

    Args:
        recipe: the network, the optimiser, lots and steps; lots are drawn by chance.
        examples: what models are trained on.
        validation: other records, on which the best is decided.
        classes: how many there are.
        runs: how many trainings, in distribution.
        candidates: configurations to draw from.
        sampling: how those are made.
        mode: ``trusted`` or ``watched``.
        clip: the norm of a record's gradient, unless the space has one.
        chance: where noise comes from.
    """

    recipe: Recipe
    examples: Examples = field(repr=False)
    validation: Examples = field(repr=False)
    classes: int
    runs: Runs
    candidates: int = 100
    sampling: str = "sobol"
    mode: str = TRUSTED
    clip: float = 1.0
    chance: Chance = field(default_factory=Secret, repr=False)
    name = "selection"
    unit = RECORD

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; allowed are {' and '.join(MODES)}")
        if self.recipe.sampling != POISSON:
            raise ValueError(
                f"sampling is {self.recipe.sampling!r}; allowed in a selection is {POISSON!r}"
            )

    @property
    def rate(self) -> float:
        """With which probability a record is in a lot."""
        return self.recipe.lot / self.examples.units

    @property
    def watched_runs(self) -> int:
        """How many are held where they are seen."""
        return max(1, round(self.runs.mean))

    def event(self, space: Space, variance: float) -> Event:
        """All of it; ``variance`` is the square of the noise, in clipping norms."""
        del space
        noise, steps = math.sqrt(variance), self.recipe.steps
        if self.mode == TRUSTED:
            return selected(self.runs, self.rate, steps, noise)
        score = score_noise(self.rate, steps, noise)
        return Repeated(Scored(self.rate, noise, steps, score), self.watched_runs)

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        unknown = [name for name in space.dimensions if name not in TUNABLE]
        if unknown:
            raise ValueError(
                f"the space has {', '.join(unknown)}; allowed in a selection are "
                f"{', '.join(TUNABLE)}"
            )
        if "learning_rate" not in space.dimensions:
            raise ValueError("the space has no learning_rate; a selection needs one")
        arms = space.candidates(self.candidates, self.sampling, rng)
        event = self.event(space, questions.variance)
        questions.charge(event, "selection")
        number = self.runs.draw() if self.mode == TRUSTED else self.watched_runs
        found = self._best(arms, number, math.sqrt(questions.variance))
        if found is None:
            return Outcome(arms[secrets.randbelow(len(arms))], arms, note=NO_RUN)
        config, weights = found
        return Outcome(config, arms, note=NOTES[self.mode], weights=weights)

    def _best(
        self, arms: tuple[Config, ...], number: int, noise: float
    ) -> tuple[Config, tuple[npt.NDArray[np.float32], ...]] | None:
        """Of so many runs, some at a time.

        *Proof.* A unit of the validation data moves a score by at most :data:`_SCORE_STEPS`, and
        rounded normal noise is ``score_noise`` times that. Of two runs with the same noisy score
        the earlier wins: since runs are independent and alike, that is as good as a coin.
        """
        best: tuple[int, Config, tuple[npt.NDArray[np.float32], ...]] | None = None
        deviation = score_noise(self.rate, self.recipe.steps, noise)
        for begin in range(0, number, _STACKED):
            count = min(_STACKED, number - begin)
            drawn = [arms[secrets.randbelow(len(arms))] for _ in range(count)]
            models = self.trained(drawn, noise)
            scores = _scores(models, self.validation)
            scores += self.chance.rounded_normal(_SCORE_STEPS * deviation, (count,))
            top = int(np.argmax(scores))
            if best is None or scores[top] > best[0]:
                best = int(scores[top]), drawn[top], models.one(top)
        return None if best is None else best[1:]

    def trained(self, configs: list[Config], noise: float) -> Models:
        """One model for each configuration."""
        runs = [
            Run(noise=noise, **{"clip": self.clip, **{k: float(config[k]) for k in config}})
            for config in configs
        ]
        return train(self.recipe, runs, self.examples, self.classes, self.chance)


def _scores(models: Models, validation: Examples) -> npt.NDArray[np.int64]:
    """Every model's right answers: a unit adds the share of its rows, in whole steps."""
    right, units = models.right(validation), Units(validation)
    return np.array([units.shares(row, _SCORE_STEPS).sum() for row in right])
