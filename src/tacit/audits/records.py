"""Audits of what is claimed about single records: DP-SGD, selection, fronts, the mode ``record``.

Neighbours differ by one record that is replaced; how many there are is public. All rows have the
feature 0, so a row's gradient points along the bias, up or down by its label, and is as long as the
clip: replacing the label is the worst pair, and the released bias tells the noisy sum of gradients.
Where data are split into training and validation, both worlds go through the real split, and the
record that is replaced is the one whose replacement moves the sum most. A split that depended on
what records hold would deal others anew, and the sum would move further than one record can.

The sums are compared by the Gaussian that is claimed (a mixture, where records are sampled). One
step of DP-SGD is also looked at bit by bit: floating-point noise has holes, and where taking off
one world's gradient leaves a number that the noise can be, and taking off the other's does not, the
worlds can be told apart (Mironov, "On Significance of the Least Significant Bits for Differential
Privacy", 2012).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from tacit import pareto_job
from tacit.audits.worlds import (
    DELTA,
    HOLES,
    LOSS,
    TRAINING,
    VICTIM,
    Audit,
    Listening,
    Material,
    Numbers,
    Sizes,
    World,
    charged_to,
)
from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples, split_validation
from tacit.dp_training import POISSON, Models, Recipe, Run, Secret, train
from tacit.endpoint import AskInClear
from tacit.federation import LocalChannel, local_federation, lone_holder
from tacit.pareto_plan import FrontTerms, OracleTerms, ParetoPlan, oracle_of
from tacit.privacy.accounting import LARGEST_EPSILON, Budget, calibrate
from tacit.privacy.events import (
    RECORD,
    Event,
    Repeated,
    SampledGaussian,
    compose,
    releases,
)
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.privacy.mechanisms import Participation
from tacit.privacy.selection import Runs
from tacit.privacy.skellam import FloatArray
from tacit.query import LocalTraining
from tacit.rules import RecordSteps, private_part
from tacit.sgd import Weights
from tacit.space import Choice, Space
from tacit.torch_task import TorchClient, TorchTask
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.selection import Selection
from tacit.tuners.tuner import noise_for

LABEL: Mapping[World, int] = {"A": 1, "B": 0}
"""Of the record that is replaced."""
_PILOT_SEED = 2
_HARDLY_ANY = 1e-9
_FAR = 1000.0
"""A feature at which a row is classified with so much margin that its gradient is 0."""


def gaussian_losses(sums: FloatArray, in_a: float, in_b: float, variance: float) -> FloatArray:
    """Log likelihood of A over that of B, for sums with these means under Gaussian noise."""
    return np.asarray(((sums - in_b) ** 2 - (sums - in_a) ** 2) / (2 * variance))


def sampled_losses(sums: FloatArray, rate: float, noise: float, steps: int) -> FloatArray:
    """The same for the sum of all steps, in each of which the record is with a probability.

    It adds -1 to a step in A and 1 in B; how often, is binomial.
    """
    from scipy.special import gammaln, logsumexp, xlog1py, xlogy

    times = np.arange(steps + 1)
    chances = gammaln(steps + 1) - gammaln(times + 1) - gammaln(steps - times + 1)
    chances = chances + xlogy(times, rate) + xlog1py(steps - times, -rate)
    in_a, in_b = (
        logsumexp(chances - (sums[:, None] - way * times) ** 2 / (2 * steps * noise**2), axis=1)
        for way in (-1, 1)
    )
    return np.asarray(in_a - in_b)


@dataclass(frozen=True)
class DpSgdAudit:
    """Steps of DP-SGD on four records, of which all but the replaced one have no gradient."""

    name: str
    worlds: str
    sizes: Mapping[str, Sizes]
    rate: float
    steps: int
    records = 4
    unit = RECORD
    path = TRAINING
    block = 20_000

    @property
    def holes(self) -> bool:
        """After several steps, weights are rounded several times."""
        return self.steps == 1

    def event(self, noise: float) -> Event:
        return SampledGaussian(self.rate, noise, self.steps)

    def noise(self, epsilon: float) -> float:
        return _least_noise(self.rate, self.steps, epsilon)

    def material(self, epsilon: float) -> Material:
        """Training charges nobody by itself, so the audit charges a ledger as methods do."""
        ledger = Ledger.in_memory("audit", Budget(epsilon, DELTA))
        ledger.charge(self.event(self.noise(epsilon)), "training", "audit")
        return Material(charged_to(ledger))

    def claimed_losses(self, material: Material, epsilon: float, count: int) -> FloatArray:
        del material
        rng, noise = np.random.default_rng(_PILOT_SEED), self.noise(epsilon)
        shape = (self.steps, count)
        present = rng.random(shape) < self.rate
        sums = (noise * rng.normal(size=shape) - present).sum(axis=0)
        return sampled_losses(sums, self.rate, noise, self.steps)

    def runs(self, material: Material, epsilon: float, world: World, count: int) -> Numbers:
        del material
        noise = self.noise(epsilon)
        sums = self._sums(noise, world, count)
        numbers = {LOSS: sampled_losses(sums, self.rate, noise, self.steps)}
        if self.holes:  # the gradient is what training without much noise comes to
            numbers[HOLES] = holes(sums, abs(float(self._sums(_HARDLY_ANY, "A", 1)[0])))
        return numbers

    def _sums(self, noise: float, world: World, count: int) -> FloatArray:
        """Noisy sums of gradients over all steps, from the biases of trained models."""
        lot = round(self.rate * self.records)
        shrink = 1.0 if self.steps == 1 else 2.0**-10  # the gradient must stay as it is
        recipe = Recipe((), "hinge", "sgd", POISSON, lot, self.steps)
        start = Models((np.tile(np.array([[1.0, 0.0]], np.float32), (count, 1, 1)),))
        runs = [Run(lot * shrink, noise, 1.0)] * count
        models = train(recipe, runs, self._examples(world), 2, Secret(), start)
        return -models.layers[0][:, 0, -1].astype(np.float64) / shrink

    def _examples(self, world: World) -> Examples:
        features = np.full((self.records, 1), _FAR, np.float32)
        features[0] = 0.0
        labels = np.ones(self.records, np.int64)
        labels[0] = LABEL[world]
        return Examples(features, labels)


def holes(sums: FloatArray, gradient: float) -> FloatArray:
    """1 where single precision could not have come to this in B, -1 where not in A, else 0.

    The gradient, between 1/2 and 1, and noise beyond 1/2 are multiples of 2^-24, and so is their
    sum, which is exact if it is below 1. So the noise, the sum less the gradient, is a number of
    single precision.
    """
    in_a, in_b = (
        (np.abs(sums) < 1) & (np.abs(noise) >= 0.5) & (noise.astype(np.float32) != noise)
        for noise in (sums + gradient, sums - gradient)
    )
    return np.asarray(in_b.astype(np.float64) - in_a)


@lru_cache(maxsize=16)
def _least_noise(rate: float, steps: int, epsilon: float) -> float:
    budget = Budget(epsilon, DELTA)
    return math.sqrt(calibrate(lambda v: SampledGaussian(rate, math.sqrt(v), steps), budget))


@dataclass(frozen=True)
class Halves:
    """Two neighbouring data sets as the real split deals them."""

    train: Mapping[World, Examples]
    validation: Mapping[World, Examples]

    @classmethod
    @lru_cache(maxsize=4)
    def dealt(cls, records: int) -> Halves:
        """With the record replaced that moves the training part's labels most."""
        pairs = [cls._replaced(records, place) for place in range(records)]
        return max(pairs, key=lambda pair: abs(pair.up("A") - pair.up("B")))

    @classmethod
    def _replaced(cls, records: int, place: int) -> Halves:
        train, validation = {}, {}
        for world, label in LABEL.items():
            labels = np.arange(records, dtype=np.int64) % 2
            labels[place] = label
            whole = Examples(np.zeros((records, 1), np.float32), labels)
            train[world], validation[world] = split_validation(whole, 0.25, key=1)
        return cls(train, validation)

    def up(self, world: World) -> int:
        """How many more training records have label 1 than 0."""
        labels = self.train[world].labels
        return int(2 * labels.sum() - len(labels))


@dataclass(frozen=True, eq=False)
class SelectionAudit:
    """The best of some private trainings, released by the holder of 200 records."""

    name = "selection"
    worlds = (
        "one of 200 records has the other label; the model is the best of a random number of "
        "trainings"
    )
    sizes: Mapping[str, Sizes]
    unit = RECORD
    path = TRAINING
    block = 250
    holes = False
    records = 200
    """So many that a split that is dealt anew moves their sum by far more than one record can."""
    space = Space({"learning_rate": Choice([1.0])})

    def method(self, world: World) -> Selection:
        halves = Halves.dealt(self.records)
        recipe = Recipe((), "hinge", "sgd", POISSON, len(halves.train[world]), 1)
        return Selection(
            recipe,
            halves.train[world],
            halves.validation[world],
            classes=2,
            runs=Runs(2.0, 1.0),
            candidates=1,
            sampling="grid",
        )

    def material(self, epsilon: float) -> Material:
        ledger, _ = self._released(epsilon, "A")
        return Material(charged_to(ledger))

    def claimed_losses(self, material: Material, epsilon: float, count: int) -> FloatArray:
        """Of a single training: cuts that are good for that are good enough for the best of two."""
        del material
        noise = math.sqrt(self._variance(epsilon))
        mean, other = self._means()
        normal = np.random.default_rng(_PILOT_SEED).normal(size=count)
        return gaussian_losses(mean + noise * normal, mean, other, noise**2)

    def runs(self, material: Material, epsilon: float, world: World, count: int) -> Numbers:
        del material
        sums = np.array([self._released(epsilon, world)[1] for _ in range(count)])
        return {LOSS: gaussian_losses(sums, *self._means(), self._variance(epsilon))}

    def _means(self) -> tuple[float, float]:
        halves = Halves.dealt(self.records)
        return -float(halves.up("A")), -float(halves.up("B"))

    def _released(self, epsilon: float, world: World) -> tuple[Ledger, float]:
        """One selection: its ledger, and the noisy sum that the released bias tells."""
        method = self.method(world)
        ledger = Ledger.in_memory("audit", Budget(epsilon, DELTA))
        federation = lone_holder(ledger, "audit", self._variance(epsilon))
        outcome = method.tune(ChargedQuestions(federation), self.space, np.random.default_rng(0))
        if outcome.weights is None:
            raise ValueError("the selection released no model")
        return ledger, -float(outcome.weights[1][0, 1]) * method.recipe.lot

    def _variance(self, epsilon: float) -> float:
        """Of a step's noise, in clipping norms."""
        return _selection_variance(self, epsilon)


@lru_cache(maxsize=4)
def _selection_variance(audit: SelectionAudit, epsilon: float) -> float:
    return noise_for(audit.method("A"), audit.space, Budget(epsilon, DELTA))


@dataclass(frozen=True, eq=False)
class FrontAudit:
    """A private front whose plan is carried out 16 times, in 16 folders, on one ledger.

    The models classify every test row alike, by far; of the test rows one has the other label. Each
    released error tells one more or one less wrong answer, under noise. All points of a search have
    the same settings, so every point is a run of the audit: what 16 folders say of it, at the price
    that the ledger was charged for one point in all of them. The budget is that of a point in one
    folder: so a charge that is forgotten for the others is far below what all of them tell.
    """

    name = "front"
    worlds = "one of 40 test records has the other label; the front is released into 16 folders"
    sizes: Mapping[str, Sizes]
    unit = RECORD
    path = "a point of the whole search"
    block = 100
    holes = False
    tested = 40
    trained = 200
    releases = 16

    def material(self, epsilon: float) -> Material:
        with self._data("A") as data:
            ledger, _ = self._released(data, epsilon, self.block)
            (charged,) = charged_to(ledger)
        counts = releases(charged)
        one = compose(Repeated(release, -(-n // self.block)) for release, n in counts.items())
        return Material((one,))

    def claimed_losses(self, material: Material, epsilon: float, count: int) -> FloatArray:
        del material
        deviation = math.sqrt(_front_variance(self, epsilon))
        normal = np.random.default_rng(_PILOT_SEED).normal(size=(self.releases, count))
        return np.asarray(gaussian_losses(deviation * normal, 0.0, 1.0, deviation**2).sum(axis=0))

    def runs(self, material: Material, epsilon: float, world: World, count: int) -> Numbers:
        del material
        with self._data(world) as data:
            _, wrong = self._released(data, epsilon, count)
        half, variance = self.tested // 2, _front_variance(self, epsilon)
        return {LOSS: np.asarray(gaussian_losses(wrong, half, half + 1, variance).sum(axis=0))}

    @contextmanager
    def _data(self, world: World) -> Iterator[Path]:
        """Files of a data set whose rows are all alike, in all but the label."""
        row = (
            "39, Private, 100000, Bachelors, 10, Divorced, Sales, Wife, White, Male, 0, 0, 40, "
            "United-States, "
        )
        half = self.tested // 2
        labels = {"adult.data": [1] * self.trained}
        labels["adult.test"] = [LABEL[world]] + [1] * (self.tested - half - 1) + [0] * half
        with TemporaryDirectory() as folder:
            for name, incomes in labels.items():
                lines = [f"{row}{'>50K' if income else '<=50K'}\n" for income in incomes]
                (Path(folder) / name).write_text("".join(lines))
            yield Path(folder)

    def plan(self, data: Path, points: int, score_noise: float) -> ParetoPlan:
        """A front of so many points with the same settings."""
        oracle = OracleTerms(
            data="adult", data_dir=str(data), sampling=POISSON, delta=DELTA, replications=2
        )
        terms = FrontTerms(
            acquisition="random",
            first=max(points, _LEAST_POINTS) - 1,
            points=1,
            batch=1,
            private=True,
            score_noise=score_noise,
            epsilon=LARGEST_EPSILON,
            ledger="audit",
        )
        settings = {
            "epochs": 1,
            "lot": self.trained,
            "learning_rate": 1.0,
            "noise_variance": 400.0,
            "clip": 1.0,
        }
        space = Space({name: Choice([value]) for name, value in settings.items()})
        return ParetoPlan(oracle, terms, space)

    def _released(self, data: Path, epsilon: float, points: int) -> tuple[Ledger, FloatArray]:
        """Wrong answers by folder and point, and the ledger, which was new before."""
        deviation = math.sqrt(_front_variance(self, epsilon))
        plan = self.plan(data, points, deviation / self.tested)
        boundless = Budget(math.inf, DELTA)  # all points of all folders have to fit
        ledger = Ledger.in_memory("audit", boundless)
        with TemporaryDirectory() as home, _home(home):
            Ledger.create(ledger_path("audit"), "audit", boundless)
            folders = [Path(home) / str(number) for number in range(self.releases)]
            found = [pareto_job.run(plan, folder, lambda *_: None) for folder in folders]
            for charge in Ledger(ledger_path("audit")).charges():
                ledger.charge(charge.event, charge.label, charge.run)
        errors = [[point["errors"][0] for point in one["points"][:points]] for one in found]
        return ledger, np.array(errors, dtype=np.float64) * self.tested


_LEAST_POINTS = 5
"""Fewer a plan does not allow."""


@lru_cache(maxsize=4)
def _front_variance(audit: FrontAudit, epsilon: float) -> float:
    """Of the noise on the number of wrong answers, with which one point costs this epsilon."""
    with audit._data("A") as data:
        plan = audit.plan(data, 1, 1.0)
        oracle = oracle_of(plan)
    settings = [oracle.draw(np.random.default_rng(0))]

    def event(variance: float) -> Event:
        terms = replace(plan.front, score_noise=math.sqrt(variance) / audit.tested)
        return pareto_job.private_event(replace(plan, front=terms), oracle, settings)

    return calibrate(event, Budget(epsilon, DELTA))


@contextmanager
def _home(folder: str) -> Iterator[None]:
    """Ledgers by name lie in this folder."""
    before = os.environ.get("TACIT_HOME")
    os.environ["TACIT_HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TACIT_HOME"]
        else:
            os.environ["TACIT_HOME"] = before


@dataclass(frozen=True)
class RecordAudit:
    """The mode ``record`` of the adaptive method: a client's weights leave it in the clear."""

    name = "record"
    worlds = "one of a client's 40 records has the other label; the server sees its weights"
    sizes: Mapping[str, Sizes]
    unit = RECORD
    path = "the client's own training"
    block = 100
    holes = False
    records = 40
    clip = 0.5
    space = Space({"learning_rate": Choice([2.0**-10])})

    @property
    def method(self) -> AdaptiveRate:
        steps = RecordSteps(rate=1.0, steps=2, clip=self.clip, batch=1)
        return AdaptiveRate(_zeros, rounds=1, mode="record", records=steps)

    def material(self, epsilon: float) -> Material:
        """One round in a whole federation of three clients."""
        budget = Budget(epsilon, DELTA)
        ledger = Ledger.in_memory("audit", budget)
        federation = local_federation(
            [_record_client("A")] * 3,
            Participation(3, 0, 0),
            ledger,
            "audit",
            noise_for(self.method, self.space, budget),
            record_level=True,
        )
        questions: list[bytes] = []
        channel = federation.channel
        if not isinstance(channel, LocalChannel):
            raise TypeError("a local federation has a local channel")
        federation.channel = Listening(channel, "training", questions)
        self.method.tune(ChargedQuestions(federation), self.space, np.random.default_rng(0))
        return Material(charged_to(ledger, channel.endpoints[VICTIM].ledger), tuple(questions))

    def claimed_losses(self, material: Material, epsilon: float, count: int) -> FloatArray:
        del epsilon
        mean, other, variance = self._terms(material)
        normal = np.random.default_rng(_PILOT_SEED).normal(size=count)
        return gaussian_losses(mean + math.sqrt(variance) * normal, mean, other, variance)

    def runs(self, material: Material, epsilon: float, world: World, count: int) -> Numbers:
        del epsilon
        client, sums = _record_client(world), np.zeros(count)
        for question in material.questions:
            query = self._query(question)
            start = tuple(array.numpy() for array in query.weights)
            rate = math.exp(float(start[-1].item()))
            for run in range(count):
                moved = [array.numpy() for array in query.answer(client)]
                bias = (moved[1] - start[1])[0].astype(np.float64)
                sums[run] += (bias[1] - bias[0]) / math.sqrt(2) * 2 / rate
        mean, other, variance = self._terms(material)
        return {LOSS: gaussian_losses(sums, mean, other, variance)}

    def _terms(self, material: Material) -> tuple[float, float, float]:
        """Means of both worlds, and the variance, of the sum over all steps.

        The noise is what the client was asked to add.
        """
        steps, variance = 0, 0.0
        for question in material.questions:
            asked = private_part(self._query(question).rule)
            if asked is None:
                raise TypeError("the mode 'record' asks for a private rule")
            steps += asked.steps
            variance += asked.steps * (asked.noise * asked.clip) ** 2
        halves = Halves.dealt(self.records)
        mean, other = (steps * self.clip * halves.up(world) for world in LABEL)
        return mean, other, variance

    def _query(self, question: bytes) -> LocalTraining:
        query = msgspec.msgpack.decode(question, type=AskInClear).query
        if not isinstance(query, LocalTraining):
            raise TypeError("the mode 'record' asks for training")
        return query


def _zeros(models: int) -> Weights:
    return np.zeros((models, 2, 1), np.float32), np.zeros((models, 2), np.float32)


@lru_cache(maxsize=4)
def _record_client(world: World) -> TorchClient:
    from torch import nn

    halves = Halves.dealt(RecordAudit.records)
    task = TorchTask(lambda: nn.Linear(1, 2), classes=2, epochs=1, batch=1)
    return task.client(halves.train[world], halves.validation[world], seed=0)


RECORD_AUDITS: Mapping[str, Audit] = {
    audit.name: audit
    for audit in (
        DpSgdAudit(
            "dp-sgd",
            "one of four records has the other label; all are in the step",
            {"full": Sizes(10_000_000), "quick": Sizes(100_000)},
            rate=1.0,
            steps=1,
        ),
        DpSgdAudit(
            "dp-sgd-steps",
            "one of four records has the other label; each is in each of four steps with "
            "probability 1/2, and the last model is seen",
            {"full": Sizes(5_000_000), "quick": Sizes(100_000)},
            rate=0.5,
            steps=4,
        ),
        SelectionAudit({"full": Sizes(50_000), "quick": Sizes(3_000)}),
        FrontAudit({"full": Sizes(3_000), "quick": Sizes(200)}),
        RecordAudit({"full": Sizes(50_000), "quick": Sizes(10_000)}),
    )
}
