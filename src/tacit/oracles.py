"""What a private algorithm with given settings costs, and how well it does.

Avent et al., "Automatic Discovery of Privacy-Utility Pareto Fronts" (2020), section 2: a family of
private algorithms, a privacy oracle (settings to epsilon at a fixed delta) and a utility oracle
(settings to an error between 0 and 1, measured over some replications). Any object with the methods
of :class:`Oracle` will do. Built in: DP-SGD and DP-Adam for linear models and small networks, the
paper's two examples whose true fronts can be computed, and Tacit's own tuners in simulation.

Utilities are measured on data and released to nobody by these classes; see :mod:`tacit.pareto`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Dataset, Examples
from tacit.domains import ADULT, Domain
from tacit.dp_training import FIXED, POISSON, Chance, Recipe, Run, Secret, Seeded, train
from tacit.federation import local_federation
from tacit.privacy.accounting import Budget, gaussian_epsilon, ideal_epsilon, spent
from tacit.privacy.clipped_sum import charged_sensitivity, grid_step, snapped
from tacit.privacy.events import SampledGaussian, Scored
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SomeClients
from tacit.privacy.skellam import FloatArray
from tacit.secure.protocol import PLAIN
from tacit.space import Choice, Config, Dimension, Float, Int, Space
from tacit.tables import ScoreTable, TableClients
from tacit.tuners.combine import Combine
from tacit.tuners.flora import Flora
from tacit.tuners.tuner import Tuner, noise_for
from tacit.tuners.voting import Vote

ORDERS = (tuple(range(2, 33)), (40, 48, 64), (96, 128), (256,))
"""Rényi orders of the fixed-size bound. An order's time grows with its square, and large ones help
small epsilons only: they are tried while they do. Fewer are never optimistic."""
MODELS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "logreg": ("logistic", ()),
    "svm": ("hinge", ()),
    "mlp1": ("logistic", (1000,)),
    "mlp2": ("logistic", (128, 64)),
}
"""Loss and hidden layers; the paper's networks are for MNIST."""


PER_RECORD = "per record, replace-one"


class Oracle(Protocol):
    """A family of private algorithms."""

    @property
    def delta(self) -> float:
        """At which epsilon is told; 0 for what is purely private."""

    @property
    def protects(self) -> str:
        """Whose presence epsilon is about, and the neighbouring relation."""

    @property
    def name(self) -> str:
        """How pages call it."""

    @property
    def space(self) -> Space:
        """What may be set."""

    def epsilon(self, config: Config) -> float:
        """What an algorithm with these settings costs."""

    def errors(self, config: Config, seed: int) -> FloatArray:
        """One minus the utility, from 0 to 1, of every replication."""

    def draw(self, rng: np.random.Generator) -> Config:
        """Settings at random, as an expert would search."""


@dataclass(frozen=True)
class DpTraining:
    """DP-SGD or DP-Adam, on lots of a fixed size or drawn by chance; a record is replaced.

    Args:
        examples: what is trained on.
        test: where accuracy is measured.
        classes: how many there are.
        domain: epochs, lot, learning rate, noise variance and clip; and, to choose among several,
            ``model``, ``optimiser`` or the ``width`` of a hidden layer.
        model: of :data:`MODELS`, unless the domain has it.
        optimiser: ``sgd`` or ``adam``, unless the domain has it.
        sampling: ``fixed`` or ``poisson``.
        delta: at which epsilon is told.
        replications: trainings to average over, all at once.
        hidden: other widths than the model's.
        secret: take noise and lots from the operating system, as whatever tells of the trained
            models beyond those who may see the data must; otherwise from the seed.
    """

    examples: Examples = field(repr=False)
    test: Examples = field(repr=False)
    classes: int
    domain: Domain = ADULT
    model: str = "logreg"
    optimiser: str = "sgd"
    sampling: str = FIXED
    delta: float = 1e-6
    replications: int = 5
    hidden: tuple[int, ...] | None = None
    secret: bool = False
    protects: ClassVar[str] = PER_RECORD

    @classmethod
    def of(cls, data: Dataset, **more: Any) -> DpTraining:
        """On a data set, standardised by its public numbers; no lot is larger than all of it."""
        train_part, test = (data.standardise(part) for part in (data.train, data.test))
        made = cls(train_part, test, len(data.classes), **more)
        return replace(made, domain=made.domain.within(train_part.units))

    @property
    def name(self) -> str:
        return f"{self.model}+{self.optimiser}"

    @property
    def space(self) -> Space:
        return self.domain.space

    def epsilon(self, config: Config) -> float:
        """By dp-accounting's Rényi accountants; noise is in units of the sensitivity."""
        noise = math.sqrt(float(config["noise_variance"]))
        lot, steps = int(config["lot"]), self.steps(config)
        if self.sampling == POISSON:
            return poisson_epsilon(lot / self.examples.units, noise, steps, self.delta)
        return fixed_epsilon(self.examples.units, lot, noise, steps, self.delta)

    def released(self, config: Config, score_noise: float) -> Scored:
        """Models of all replications, trained on lots by chance, and a score with this noise."""
        return Scored(
            int(config["lot"]) / self.examples.units,
            math.sqrt(float(config["noise_variance"])),
            self.steps(config) * self.replications,
            score_noise,
        )

    def errors(self, config: Config, seed: int) -> FloatArray:
        return self.errors_of([config], seed)[0]

    def errors_of(self, configs: Sequence[Config], seed: int) -> list[FloatArray]:
        """Errors of many settings: those of the same steps and lots are trained at once."""
        found: dict[int, FloatArray] = {}
        chance = Secret() if self.secret else Seeded(seed)
        recipes = [self._recipe(config) for config in configs]
        for recipe in dict.fromkeys(recipes):
            own = [place for place, other in enumerate(recipes) if other == recipe]
            runs = [_run(configs[place]) for place in own for _ in range(self.replications)]
            models = train(recipe, runs, self.examples, self.classes, chance)
            errors = models.wrong(self.test).reshape(len(own), -1) / len(self.test)
            found |= dict(zip(own, errors, strict=True))
        return [found[place] for place in range(len(configs))]

    def _recipe(self, config: Config) -> Recipe:
        return Recipe(
            self._hidden(config),
            MODELS[str(config.get("model", self.model))][0],
            str(config.get("optimiser", self.optimiser)),
            self.sampling,
            int(config["lot"]),
            self.steps(config),
        )

    def draw(self, rng: np.random.Generator) -> Config:
        return self.domain.draw(rng)

    def parameters(self, config: Config) -> float:
        """How large the model is: a third objective."""
        widths = (math.prod(self.examples.shape), *self._hidden(config), self.classes)
        return float(sum((into + 1) * out for into, out in pairwise(widths)))

    def _hidden(self, config: Config) -> tuple[int, ...]:
        if "width" in config:
            return (int(config["width"]),)
        _, hidden = MODELS[str(config.get("model", self.model))]
        return hidden if self.hidden is None else self.hidden

    def steps(self, config: Config) -> int:
        """How many a training has."""
        lot = int(config["lot"])
        return int(config["epochs"]) * max(1, self.examples.units // lot)


def _run(config: Config) -> Run:
    noise = math.sqrt(float(config["noise_variance"]))
    return Run(float(config["learning_rate"]), noise, float(config["clip"]))


@lru_cache(maxsize=4096)
def fixed_epsilon(records: int, lot: int, noise: float, steps: int, delta: float) -> float:
    """Steps on lots of a fixed size without replacement, noise in units of twice the clip.

    Wang, Balle and Kasiviswanathan (2019) through dp-accounting, neighbours by replacing one; its
    sensitivity there is 1, and ours in those units is 1.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation
    from dp_accounting.dp_event import SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    event = SampledWithoutReplacementDpEvent(records, lot, GaussianDpEvent(noise))
    best = math.inf
    for orders in ORDERS:
        accountant = RdpAccountant(list(orders), NeighboringRelation.REPLACE_ONE)
        found = float(accountant.compose(event, steps).get_epsilon(delta))
        if found >= best:
            break
        best = found
    return best


@lru_cache(maxsize=4096)
def poisson_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Steps whose records are drawn by chance, noise in units of the clip.

    Beyond what is certified (far above any epsilon that protects), Rényi divergences tell it.
    """
    event = SampledGaussian(rate, noise, steps)
    found = spent(event, delta).epsilon
    return found if math.isfinite(found) else ideal_epsilon(event, delta)


LEVELS = np.logspace(-4, 0, 101)
"""The regularisations that are trained."""
PERTURBATIONS = Space(
    {"regularisation": Float(1e-4, 1.0, log=True), "sigma": Float(0.1, 10.0, log=True)}
)
"""The paper's domain for output perturbation."""
_MOST_ROUNDING = 2**50
"""Epochs times squared rows times features, for which steps round by less than is charged."""


@dataclass(frozen=True)
class OutputPerturbation:
    """Regularised logistic regression, with Gaussian noise on the trained weights.

    The paper's first example: Wu et al., "Bolt-on Differential Privacy" (2017), Algorithm 2: one
    row a step, rows of norm at most one, ``n`` of them in the same order in every one of ``k``
    epochs, weights projected onto the ball of radius ``1 / g`` for the regularisation ``g``, and
    in step ``t`` of ``T = k n`` a rate of ``r = min(1 / (1 + g), 1 / (g t))``. The regularisation
    is rounded to one of :data:`LEVELS` values, which are all trained at once.

    *Proof.* Neighbours differ by replacing one row.

    1. *Exact weights* then differ by at most ``2 / (g n)``, half of what the paper says. A step is
       ``w (1 - g r) - r s(x w) x`` and a projection, where ``s`` is nondecreasing, within -1 and 1,
       and has slopes of at most 1/4. On the same row it brings two weights together by the factor
       ``1 - g r`` at least, since ``r (g + 1/4) <= 1``; on the replaced row it adds at most ``2 r``
       to that; projections bring them no further apart. The ``2 r`` of step ``t`` are multiplied by
       ``1 - g r`` in all later ones. Where ``g r = 1 / t`` this leaves ``2 / (g t) * t / T``; in
       the steps before that, at most ``2 / (1 + g) * min(1, m / T)`` for ``m = (1 + g) / g``. Both
       are at most ``2 / (g T)``, and the row comes ``k`` times.
    2. *Computed weights.* In double precision a step errs by at most ``(d + 32) 2^-53 / g`` for
       ``d`` features: the inner product by ``(d + 1) 2^-53 / g``, of which the slope lets a quarter
       through, the norm by a share of ``(d + 4) 2^-54``, all else by less than ``30 * 2^-53 / g``.
       Later steps make no error larger, so both weights together err by at most
       ``2 k n (d + 32) 2^-53 / g``, which is below ``1 / (4 g n)``: what is larger is refused.
    3. *Rows* are scaled to norm at most one where weights are trained, whoever made the examples; a
       row whose norm is not finite, or of no class, is a row of zeros.
    4. *Noise.* So ``4 / (g n)``, the paper's bound, is one for computed weights too. They are
       snapped to a grid and rounded normal noise is added; the charged sensitivity has room for
       both (:mod:`tacit.privacy.clipped_sum`). Hence noisy weights are the rounded output of a
       Gaussian mechanism, and epsilon is the exact one of that.

    Args:
        examples: what is trained on, in two classes; every row stands alone.
        test: where accuracy is measured.
        epochs: how often training goes through the rows.
        delta: at which epsilon is told.
        replications: draws of noise to average over; each is a release.
        secret: take noise from the operating system, as whatever tells of the noisy weights beyond
            those who may see the data must; otherwise from the seed, in single precision.
        space: of ``regularisation`` and ``sigma``, the noise's standard deviation.
    """

    examples: Examples = field(repr=False)
    test: Examples = field(repr=False)
    epochs: int = 10
    delta: float = 1e-6
    replications: int = 50
    secret: bool = False
    space: Space = PERTURBATIONS
    name = "output-perturbation"
    protects = PER_RECORD

    @classmethod
    def of(cls, data: Dataset, **more: Any) -> OutputPerturbation:
        """On a data set of two classes, rows scaled to norm at most one."""
        train_part, test = (_unit_rows(data.standardise(p)) for p in (data.train, data.test))
        return cls(train_part, test, **more)

    def __post_init__(self) -> None:
        if self.examples.groups is not None:
            raise ValueError(
                "the examples say which rows belong together; allowed for output perturbation are "
                "examples in which every row stands alone"
            )
        if self.space.dimensions.keys() != PERTURBATIONS.dimensions.keys():
            raise ValueError(
                f"the space has {', '.join(self.space.dimensions)}; allowed for output "
                f"perturbation are {' and '.join(PERTURBATIONS.dimensions)}"
            )
        rows, parameters = len(self.examples), math.prod(self.examples.shape)
        if self.epochs * rows**2 * (parameters + 32) > _MOST_ROUNDING:
            raise ValueError(
                f"output perturbation has {rows} rows of {parameters} features and {self.epochs} "
                "epochs; allowed is epochs * rows^2 * (features + 32) up to 2^50, for which the "
                "rounding of weights is known to be harmless; train on fewer rows"
            )

    def epsilon(self, config: Config) -> float:
        return gaussian_epsilon((self._charged(config) / _sigma(config)) ** 2, self.delta)

    def released(self, config: Config, score_noise: float) -> Scored:
        """Noisy weights of all replications, and a score of them with this noise.

        Every row is in for certain. Its replacement moves the weights by the charged sensitivity,
        and would move a sum of gradients by two of the units that the event has.
        """
        noise = 2 * _sigma(config) / self._charged(config)
        return Scored(1.0, noise, self.replications, score_noise)

    def errors(self, config: Config, seed: int) -> FloatArray:
        noisy = self.noisy_weights(config, Secret() if self.secret else Seeded(seed))
        with np.errstate(all="ignore"):  # a row that has no score is of the first class
            scores = self.test.features @ noisy.T.astype(np.float32)
        wrong = (scores > 0) != (self.test.labels[:, None] == 1)
        return np.asarray(wrong.mean(axis=0), dtype=np.float64)

    def noisy_weights(self, config: Config, chance: Chance) -> FloatArray:
        """Of every replication."""
        weights = _trained(self.examples, self.epochs)[self._level(config)]
        grid = grid_step(self._moves(config), len(weights))
        shape = self.replications, len(weights)
        noise = chance.rounded_normal(_sigma(config) / grid, shape)
        return (snapped(weights, grid) + noise) * grid

    def draw(self, rng: np.random.Generator) -> Config:
        return self.space.decode(rng.random(2))

    def _charged(self, config: Config) -> float:
        return float(charged_sensitivity(self._moves(config), math.prod(self.examples.shape)))

    def _moves(self, config: Config) -> float:
        """How far one row moves the weights, at most, before they are snapped."""
        return float(4 / (LEVELS[self._level(config)] * len(self.examples)))

    @staticmethod
    def _level(config: Config) -> int:
        wanted = float(config["regularisation"])
        if not 0.999 * LEVELS[0] <= wanted <= 1.001 * LEVELS[-1]:
            raise ValueError(
                f"regularisation is {wanted:g}; allowed is {LEVELS[0]:g} to {LEVELS[-1]:g}"
            )
        return int(np.argmin(np.abs(np.log(LEVELS / wanted))))


def _sigma(config: Config) -> float:
    sigma = float(config["sigma"])
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma is {sigma:g}; allowed is a finite number above 0")
    return sigma


@lru_cache(maxsize=2)
def _trained(examples: Examples, epochs: int) -> FloatArray:
    """Weights for every level of regularisation, all along the same order of rows."""
    rows, signs = _bounded_rows(examples), 2.0 * (examples.labels == 1) - 1.0
    rng, step = np.random.default_rng(0), 0
    weights = np.zeros((len(LEVELS), rows.shape[1]))
    for _ in range(epochs):
        for place in rng.permutation(len(rows)):
            step += 1
            row, sign = rows[place], signs[place]
            pull = -sign / (1 + np.exp(np.minimum(sign * (weights @ row), 50.0)))
            rate = np.minimum(1 / (1 + LEVELS), 1 / (LEVELS * step))
            weights *= (1 - rate * LEVELS)[:, None]
            weights -= np.outer(rate * pull, row)
            norms = np.sqrt(np.einsum("ij,ij->i", weights, weights))
            weights *= np.minimum(1.0, 1 / (LEVELS * np.maximum(norms, 1e-300)))[:, None]
    return weights


def _bounded_rows(examples: Examples) -> FloatArray:
    """Rows of norm at most one; what has no finite norm, or no class, is zero."""
    rows = examples.features.astype(np.float64)
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    known = np.isfinite(norms) & ((examples.labels == 0) | (examples.labels == 1))
    scale = np.where(known, np.maximum(norms, 1.0), 1.0)
    return np.asarray(np.where(known[:, None], rows, 0.0) / scale[:, None])


def _unit_rows(examples: Examples) -> Examples:
    flat = examples.flat()
    norms = np.linalg.norm(flat.features, axis=1, keepdims=True)
    return Examples(flat.features / np.maximum(norms, 1.0), flat.labels, flat.groups)


@dataclass(frozen=True)
class SparseVector:
    """The paper's second example: which of 100 queries are one, by the sparse vector technique.

    Lyu, Su and Li (2017), Algorithm 7, with noise ``b`` and at most ``C`` answers:
    ``epsilon = (1 + (2 C)^(1/3)) (1 + (2 C)^(2/3)) / b``. Utility is the F1 score, over random
    orders.
    """

    queries: int = 100
    ones: int = 10
    replications: int = 50
    delta = 0.0
    name = "sparse-vector"
    protects = PER_RECORD
    space = Space({"C": Int(1, 30), "b": Float(1e-2, 1e2, log=True)})

    def epsilon(self, config: Config) -> float:
        root = float((2.0 * float(config["C"])) ** (1 / 3))
        return (1 + root) * (1 + root**2) / float(config["b"])

    def errors(self, config: Config, seed: int) -> FloatArray:
        rng, runs = np.random.default_rng(seed), self.replications
        most, noise = int(config["C"]), float(config["b"])
        first = noise / (1 + (2.0 * most) ** (1 / 3))
        truth = np.zeros((runs, self.queries))
        truth[:, : self.ones] = 1
        truth = rng.permuted(truth, axis=1)
        threshold = 0.5 + rng.laplace(0, first, (runs, 1))
        above = truth + rng.laplace(0, noise - first, truth.shape) >= threshold
        found = above & (np.cumsum(above, axis=1) <= most)
        right = (found & (truth == 1)).sum(axis=1)
        return np.asarray(1 - 2 * right / (found.sum(axis=1) + self.ones), dtype=np.float64)

    def draw(self, rng: np.random.Generator) -> Config:
        return self.space.decode(rng.random(2))


TUNERS = ("vote", "mean", "flora")
"""Tacit's own tuners that can be simulated on a score table."""


@dataclass(frozen=True)
class TunerOracle:
    """Tacit's own tuners on a score table: what a choice's epsilon buys in final accuracy.

    The tuners themselves run, with their noise, on simulated clients, whose scores are the table's:
    the vote on the table's candidates, combining and FLoRA on the box around them, where a
    configuration has the scores and the accuracy of the nearest candidate.

    Args:
        table: scores of every client, accuracies of every candidate.
        tuner: one of :data:`TUNERS`, or ``any``: chosen with the other settings.
        delta: at which epsilon is told.
        replications: runs, over the table's seeds in turn.
        dropout: clients that may drop out, a count or a fraction; nobody does.
    """

    table: ScoreTable = field(repr=False)
    tuner: str = "any"
    delta: float = 1e-5
    replications: int = 5
    dropout: SomeClients = 0.1
    protects = "per client, replace-one"

    @property
    def name(self) -> str:
        return f"tuner {self.tuner}"

    @property
    def space(self) -> Space:
        axes: dict[str, Dimension] = {"epsilon": Float(0.05, 10.0, log=True)}
        if self.tuner in ("vote", "any"):
            axes["votes"] = Int(1, min(20, len(self.table.candidates) // 4))
        return Space(axes | ({"tuner": Choice(list(TUNERS))} if self.tuner == "any" else {}))

    def epsilon(self, config: Config) -> float:
        return float(config["epsilon"])

    def errors(self, config: Config, seed: int) -> FloatArray:
        tuner = str(config.get("tuner", self.tuner))
        method: Tuner = Combine("mean", "dp") if tuner == "mean" else Flora("sgm", "dp")
        space = self._clients.box
        if tuner == "vote":
            space = self._clients.grid
            method = Vote(int(config["votes"]), len(self.table.candidates), "grid")
        budget = Budget(float(config["epsilon"]), self.delta)
        variance, rng = noise_for(method, space, budget), np.random.default_rng(seed)
        found = []
        for number in range(self.replications):
            own = number % len(self.table.accuracy)
            members = self._clients.of_seed(own)
            federation = local_federation(
                members,
                Participation(len(members), self.dropout),
                Ledger.in_memory("simulated", budget),
                "simulated",
                variance,
                secure=PLAIN,
                roster=False,
            )
            outcome = method.tune(ChargedQuestions(federation), space, rng)
            found.append(1 - self._clients.accuracy(own, outcome.config))
        return np.array(found)

    def draw(self, rng: np.random.Generator) -> Config:
        return self.space.decode(rng.random(len(self.space.dimensions)))

    @cached_property
    def _clients(self) -> TableClients:
        return TableClients(self.table)
