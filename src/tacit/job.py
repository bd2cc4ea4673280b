"""A planned run on a built-in task: simulate the clients, choose, train with the choice, report.

The folder of a run receives ``plan.toml`` (the plan as run), ``ledger.json`` (what it cost, and the
federation's lifetime total), ``result.json``, ``model.npz`` and ``report.html``. The result is
written as soon as the sums are open and again when the model is trained, so a kill never loses what
was paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Dataset, split_validation
from tacit.data.partitions import partition
from tacit.data.sources import load
from tacit.dp_training import Recipe
from tacit.federation import Federation, Progress, Watch, local_federation, lone_holder
from tacit.federation import kind_of_piece as kind_of_opened
from tacit.files import whole_file, write_whole
from tacit.journal import Journal, Piece, resident_megabytes
from tacit.one_writer import writing
from tacit.plan import PLAN, TRAINING_METHODS, Plan, combining, participation_of, settled, voting
from tacit.privacy.accounting import Budget
from tacit.privacy.events import RECORD
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.mechanisms import Participation
from tacit.privacy.selection import SHAPES, Runs
from tacit.report import write_run
from tacit.result import MostAbstained, Result
from tacit.rules import (
    ARCHITECTURE,
    ARCHITECTURE_HYPERPARAMETERS,
    Adaptive,
    Bilevel,
    RecordSteps,
)
from tacit.secure.protocol import SpoiledSum
from tacit.sgd import Weights
from tacit.simulation import built_in_task, simulated_clients
from tacit.space import Choice, Config
from tacit.torch_task import TorchClient, TorchTask
from tacit.training import PrivateAveraging, federated_average
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.bandit import Bandit, Stage
from tacit.tuners.baselines import Opt, RandomGuess
from tacit.tuners.fedex import FedEx
from tacit.tuners.nas import DARTS, Feathers
from tacit.tuners.selection import Selection
from tacit.tuners.together import Together
from tacit.tuners.tuner import Tuner, noise_for, unit_of
from tacit.tuners.voting import Vote
from tacit.tuning import conclude, run_name

RUN, REFUSED, SPOILED = "run", "refused", "spoiled"
"""What the journal of a run calls its name, why it was not allowed to ask, and why what it opened
chooses nothing."""
RECIPE = {"journal": "run"}
"""Of the journal of a run."""
_FILES = (PLAN, "ledger.sqlite", "ledger.json", "result.json", "model.npz", "report.html")


def run(plan: Plan, out: Path, progress: Progress, watch: Watch, *, resume: bool = False) -> Result:
    """Carry out a plan in this process, and fill the folder ``out``, or go on with it."""
    with writing(out):
        check_folder(out, resume=resume)
        return carry_out(plan, out, lambda parts: _local(parts, progress), watch)


def kind_of_piece(piece: Piece) -> Any:
    """Of the journal of a run: an ending that was gone on from is None."""
    return str | None if piece in (REFUSED, SPOILED) else kind_of_opened(piece)


def check_folder(out: Path, *, resume: bool = False) -> None:
    """Refuse a folder that holds a run already, unless it is to go on."""
    taken = [name for name in _FILES if (out / name).exists()]
    if taken and not resume:
        raise ValueError(
            f"{out} holds a run already ({taken[0]}); allowed is a new or empty folder, since what "
            f"was spent is never overwritten, or to go on with that run: tacit tune --resume {out}"
        )


@dataclass(frozen=True)
class Parts:
    """What a plan comes to before anybody is asked."""

    plan: Plan
    out: Path
    dataset: Dataset
    task: TorchTask
    clients: Sequence[TorchClient]
    budget: Budget
    method: Tuner
    run: str
    variance: float

    @classmethod
    def of(cls, plan: Plan, out: Path) -> Parts:
        """Everything that can be refused is refused here."""
        plan, _ = settled(plan, participation_of(plan))
        dataset = dataset_of(plan)
        task = task_of(plan, dataset)
        budget = Budget(plan.privacy.epsilon, plan.privacy.delta)
        method = tuner(plan, task, dataset)
        alone = isinstance(method, Selection)
        clients = [] if alone else clients_of(plan, dataset, task)
        noise = noise_for(method, plan.space, budget)
        return cls(plan, out, dataset, task, clients, budget, method, run_name(method.name), noise)

    @property
    def participation(self) -> Participation:
        """Who takes part, and how many of them may fail or betray."""
        return participation_of(self.plan)

    @property
    def trains_in_clear(self) -> bool:
        """Whether clients agree to train with the choice, at no charge."""
        by_itself = self.plan.search.method in (*TRAINING_METHODS, "selection")
        return not by_itself and not self.plan.training.private

    @property
    def record_level(self) -> bool:
        """Whether the guarantee is about single records."""
        return unit_of(self.method, self.plan.space) == RECORD

    def ledger(self) -> Ledger:
        """A named federation's lifetime ledger; simulated clients of no name end with their run."""
        if self.plan.federation.name:
            return Ledger.of(self.plan.federation.name, self.budget)
        path = self.out / "ledger.sqlite"
        return Ledger(path) if path.exists() else Ledger.create(path, "this-run", self.budget)

    def journal(self) -> Journal:
        """What the run opened so far: a run that goes on has its name from there."""
        found = Journal(self.out, RECIPE, kind_of_piece)
        if RUN not in found.pieces:
            found.add(RUN, self.run)
        return found


def carry_out(
    plan: Plan, out: Path, federate: Callable[[Parts], Federation], watch: Watch
) -> Result:
    """Choose, train with the choice, report; ``federate`` says on which engine."""
    parts = Parts.of(plan, out)
    text = parts.plan.to_toml()
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / PLAN, text)
    federation = federate(parts)
    federation.watch = watch
    for ending in (REFUSED, SPOILED):
        if federation.journal and federation.journal.pieces.get(ending):
            federation.journal.add(ending, None)  # it may be allowed, or go well, by now
    try:
        result = perform(
            parts,
            federation,
            np.random.default_rng(plan.search.seed),
            lambda chosen: write_run(chosen, text, out),
        )
    except (BudgetExceeded, SpoiledSum) as error:
        if federation.journal:
            ending = SPOILED if isinstance(error, SpoiledSum) else REFUSED
            federation.journal.add(ending, str(error))
        raise
    if result.weights is not None:
        _save_model(result.weights, parts.task, _network(result), out / "model.npz")
        write_run(result, text, out)
    return result


def perform(
    parts: Parts,
    federation: Federation,
    rng: np.random.Generator,
    keep: Callable[[Result], None],
) -> Result:
    """Choose, and train with the choice; ``keep`` has the choice as soon as it is paid for.

    Raises:
        MostAbstained: nothing is trained with a choice that means nothing.
    """
    with federation.held():
        return _performed(parts, federation, rng, keep)


def _performed(
    parts: Parts,
    federation: Federation,
    rng: np.random.Generator,
    keep: Callable[[Result], None],
) -> Result:
    plan, method, task = parts.plan, parts.method, parts.task
    outcome = method.tune(ChargedQuestions(federation), plan.space, rng)
    result = conclude(method, outcome, federation, parts.budget)
    result = replace(result, evaluation=_evaluation(task))
    keep(result)
    if result.warning:
        raise MostAbstained(result)
    weights = outcome.weights
    if weights is None and plan.task.train_rounds and parts.trains_in_clear:
        weights = federated_average(
            lambda query: federation.collect(query, "train"),
            [result.config],
            task.initial(1),
            plan.task.train_rounds,
            plan.task.train_epochs,
            task.trained,
        )
    if weights is None:
        return result
    test = parts.dataset.standardise(parts.dataset.test)
    accuracy = float(task.accuracies(weights, test, _network(result))[0])
    costs = conclude(method, outcome, federation, parts.budget)  # with the bytes of the training
    return replace(costs, accuracy=accuracy, evaluation=_evaluation(task), weights=weights)


def _network(result: Result) -> Config:
    return {ARCHITECTURE: result.architecture} if result.architecture else {}


def _local(parts: Parts, progress: Progress) -> Federation:
    journal = parts.journal()
    return in_process(parts, parts.clients, parts.ledger(), journal.pieces[RUN], progress, journal)


def in_process(
    parts: Parts,
    clients: Sequence[TorchClient],
    ledger: Ledger,
    run: str,
    progress: Progress,
    journal: Journal | None = None,
) -> Federation:
    """The server's side of a plan, with all clients in this process."""
    terms = parts.plan.federation
    if isinstance(parts.method, Selection):
        return lone_holder(ledger, run, parts.variance, journal)
    return local_federation(
        clients,
        parts.participation,
        ledger,
        run=run,
        journal=journal,
        variance=parts.variance,
        secure=terms.secure,
        roster=terms.roster,
        deadline=terms.deadline,
        trains=parts.trains_in_clear,
        record_level=parts.record_level,
        progress=progress,
    )


def dataset_of(plan: Plan) -> Dataset:
    """The data that a plan names."""
    return load(plan.task.data, Path(plan.task.data_dir) if plan.task.data_dir else None)


def task_of(plan: Plan, dataset: Dataset) -> TorchTask:
    """The network that a plan names, and how clients score with it."""
    try:
        task = built_in_task(
            dataset,
            plan.task.network,
            plan.task.hidden,
            epochs=plan.task.score_epochs,
            batch=plan.task.batch,
            metric=plan.task.score,
            local=plan.search.local,
        )
    except ValueError as error:
        raise ValueError(f"task.network: {error}") from None
    for name, dimension in plan.space.dimensions.items():
        if name in ARCHITECTURE_HYPERPARAMETERS:
            continue
        extreme = max(dimension.options) if isinstance(dimension, Choice) else dimension.high
        try:
            task.check({name: extreme})
        except ValueError as error:
            raise ValueError(f"space: {error}") from None
    return task


def clients_of(plan: Plan, dataset: Dataset, task: TorchTask) -> list[TorchClient]:
    """The clients that a plan describes."""
    terms = plan.federation
    try:
        dealt = partition(
            terms.partition,
            alpha=terms.alpha,
            percent=terms.percent,
            similarity=terms.similarity,
            noise=terms.noise,
            smallest=terms.smallest,
        )
        return simulated_clients(
            dataset, dealt, terms.clients, task, plan.task.validation, plan.search.seed
        )
    except ValueError as error:  # it begins with the name of the key
        raise ValueError(f"federation.{error}") from None


def tuner(plan: Plan, network: TorchTask, dataset: Dataset) -> Tuner:
    """The method that a plan names, with the training that follows, if that is private."""
    if plan.search.method == "selection":
        return selection_tuner(plan, dataset)
    method = chooser(plan, network)
    return with_training(plan, method, network) if plan.training.private else method


def chooser(plan: Plan, network: TorchTask) -> Tuner:
    """The method that a plan names."""
    search, task = plan.search, plan.task
    combined = combining(plan)
    if combined:
        return combined
    if search.method in TRAINING_METHODS:
        return training_tuner(plan, network)
    if search.method == Vote.name:
        return voting(plan)
    methods: dict[str, Tuner] = {
        "random-guess": RandomGuess(search.candidates, search.sampling),
        "opt": Opt(
            network.initial,
            max(task.train_rounds, 1),
            task.train_epochs,
            search.candidates,
            search.sampling,
            network.trained,
        ),
    }
    return methods[search.method]


def selection_tuner(plan: Plan, dataset: Dataset) -> Selection:
    """The best of some private trainings, where one holder has all the data."""
    terms, search = plan.selection, plan.search
    whole = dataset.standardise(dataset.train)
    train, validation = split_validation(whole, plan.task.validation, search.seed)
    recipe = Recipe(plan.task.hidden, optimiser=terms.optimiser, lot=terms.lot, steps=terms.steps)
    runs = Runs(terms.mean_runs, SHAPES[terms.shape])
    return Selection(
        recipe,
        train,
        validation,
        len(dataset.classes),
        runs,
        search.candidates,
        search.sampling,
        search.mode,
        terms.clip,
    )


def training_tuner(plan: Plan, network: TorchTask) -> Tuner:
    """The method that a plan names, if it trains while it tunes."""
    search, task, rounds, clip = plan.search, plan.task, plan.rounds, plan.training.clip
    records = RecordSteps(rounds.record_rate, rounds.record_steps, rounds.record_clip, task.batch)
    if search.method == "fedex":
        return FedEx(
            network.initial,
            task.train_rounds,
            task.train_epochs,
            search.candidates,
            search.sampling,
            clip=clip,
            loss_clip=rounds.reward_clip,
            mode=search.mode,
            records=records,
            reward_share=rounds.reward_share,
            reward_epsilon=rounds.reward_epsilon,
        )
    if search.method == "adaptive":
        return AdaptiveRate(
            network.initial,
            task.train_rounds,
            task.train_epochs,
            Adaptive(rounds.tolerance, printed=rounds.factor == "printed"),
            rounds.first_rate,
            clip,
            search.mode,
            records,
        )
    stage = Stage(
        rounds.phases,
        rounds.drawn,
        rounds.alpha,
        rounds.beta,
        rounds.rewards,
        task.train_rounds,
        task.train_epochs,
        rounds.reward_clip,
        clip,
        records=records,
    )
    mode = "published" if search.method == "feathers-published" else search.mode
    if search.method == "bandit":
        return Bandit(
            network.initial,
            stage,
            search.candidates,
            search.sampling,
            mode,
            rounds.reward_share,
            rounds.reward_epsilon,
        )
    from tacit.supernet import discretised

    names = network.architecture({}).module.names()
    return Feathers(
        lambda config: network.initial(1, config),
        lambda weights: discretised(names, weights),
        replace(stage, rule=Bilevel(adam=search.method == "darts")),
        replace(stage, phases=rounds.evaluation_phases),
        search.candidates,
        search.sampling,
        DARTS if search.method == "darts" else None,
        mode,
        rounds.reward_share,
        rounds.reward_epsilon,
    )


def _evaluation(task: TorchTask) -> dict[str, Any] | None:
    """How candidates were trained in this process, and the most memory that it ever held."""
    report = task.report()
    return {**report, "peak_megabytes": resident_megabytes()} if report["ways"] else None


def with_training(plan: Plan, method: Tuner, task: TorchTask) -> Together:
    """How a plan shares its budget between choice and private training."""
    terms = plan.training
    start = task.initial(1)
    if task.trained < len(start):
        raise ValueError(
            f"task.network {plan.task.network!r} keeps running statistics, which private training "
            "cannot clip; allowed are networks without, such as 'dense'"
        )
    training = PrivateAveraging(
        plan.task.train_rounds, plan.task.train_epochs, terms.clip, terms.steps, terms.cap
    )
    budget = Budget(plan.privacy.epsilon, plan.privacy.delta)
    participation = participation_of(plan)
    share = terms.choice_share
    return Together.planned(method, plan.space, training, start, budget, participation, share)


def method_of(plan: Plan) -> Tuner:
    """The method of a plan, before anybody is asked."""
    dataset = dataset_of(plan)
    return tuner(plan, task_of(plan, dataset), dataset)


def _save_model(weights: Weights, task: TorchTask, network: Config, path: Path) -> None:
    names = task.architecture(network).module.names()
    with whole_file(path) as file:
        np.savez(file, **{name: array[0] for name, array in zip(names, weights, strict=True)})
