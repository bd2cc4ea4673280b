"""What every tuner, every mechanism and every secure sum must do: add a row, pass them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit import rewards, updates
from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples
from tacit.dp_training import Recipe
from tacit.endpoint import AskInClear, AskSum, Continue
from tacit.federation import Channel, Federation, kind_of_piece, secure_sum
from tacit.journal import Journal
from tacit.networks import dense
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import (
    BordaVotes,
    Bound,
    Box,
    Marks,
    NormBall,
    OnePoint,
    TopVotes,
    WithAbstentions,
)
from tacit.privacy.events import RECORD, Event, Unprotected, compose, covers
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.mechanisms import (
    NoiseShare,
    OutOfBounds,
    Participation,
    SkellamMechanism,
    mechanism_of,
)
from tacit.privacy.selection import Runs
from tacit.query import LocalTraining, LocalValidation
from tacit.rules import Bilevel
from tacit.secure.encrypted import EncryptedParticipant
from tacit.secure.masks import MaskedParticipant
from tacit.secure.plain import PlainParticipant
from tacit.secure.protocol import Participant, Round, SecureSum, TooFewClients
from tacit.secure.roster import Identity, Roster
from tacit.space import Float, Space
from tacit.supernet import discretised, table_cells
from tacit.torch_task import TorchClient, TorchTask
from tacit.training import PrivateAveraging
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.bandit import Bandit, Stage
from tacit.tuners.baselines import Opt, RandomGuess
from tacit.tuners.combine import STRATEGIES, SUMMABLE, Combine
from tacit.tuners.fedex import FedEx
from tacit.tuners.flora import SURFACES, Flora
from tacit.tuners.nas import Feathers
from tacit.tuners.selection import Selection
from tacit.tuners.together import Together
from tacit.tuners.tuner import Outcome, Tuner, noise_for
from tacit.tuners.voting import RunOff, Vote
from tests.federations import Unreachable, federation

CLIENTS = 8
SPACE = Space({"learning_rate": Float(1e-3, 1.0, log=True), "momentum": Float(0.0, 0.9)})
TASK = TorchTask(lambda: dense((2,), 2, hidden=(4,)), classes=2, epochs=2, batch=8)
CELLS = TorchTask(partial(table_cells, (2,), 2, width=4, cells=1, nodes=1), classes=2, batch=8)

STAGE = Stage(phases=1, drawn=2, most_rounds=2, train_rounds=2)
PRIVATE: list[Tuner] = [
    Vote(votes=2, candidates=12),
    Vote(votes=3, candidates=10, sampling="grid"),
    Vote(votes=3, candidates=12, ballot="borda", smooth=True),
    Vote(votes=3, candidates=12, ballot="borda", smooth=True, run_off=RunOff()),
    *(Combine(strategy, "dp", candidates=12, points=3) for strategy in SUMMABLE),
    *(Flora(surface, "dp", candidates=12) for surface in ("sgm", "sgm+u", "aplm")),
    Flora("aplm", "dp", candidates=6, sampling="tpe"),
    Bandit(TASK.initial, STAGE, candidates=6),
    FedEx(TASK.initial, rounds=3, candidates=5),
    AdaptiveRate(TASK.initial, rounds=3),
    Vote(votes=2, candidates=7, run_off=RunOff(2, 0.3), count_abstentions=True),
    Together(
        Vote(votes=2, candidates=7, count_abstentions=True),
        PrivateAveraging(2, 1),
        TASK.initial(1),
        training_unit=40,
    ),
    Together(
        Vote(votes=2, candidates=7), PrivateAveraging(2, 1), TASK.initial(1), training_unit=40
    ),
    Feathers(
        lambda config: CELLS.initial(1, config),
        lambda weights: discretised(CELLS.architecture({}).module.names(), weights),
        replace(STAGE, rule=Bilevel()),
        STAGE,
        candidates=4,
    ),
]
ROWS = np.random.default_rng(9).normal(size=(60, 2)).astype(np.float32)
KNOWN = Examples(ROWS, (ROWS[:, 0] > 0).astype(np.int64))
OWN = KNOWN.take(np.arange(40)), KNOWN.take(np.arange(40, 60))
RECORD_LEVEL: list[Tuner] = [
    Selection(Recipe(lot=4, steps=6), *OWN, 2, Runs(3.0, 1.0), candidates=6),
    Selection(Recipe(lot=4, steps=6), *OWN, 2, Runs(3.0, 1.0), candidates=5, mode="watched"),
    Bandit(TASK.initial, STAGE, candidates=6, mode="record"),
    FedEx(TASK.initial, rounds=3, candidates=5, mode="record"),
    AdaptiveRate(TASK.initial, rounds=3, mode="record"),
]
ENCRYPTED: list[Tuner] = [
    *(Combine(strategy, "encrypted", candidates=12, points=1) for strategy in SUMMABLE),
    Flora("sgm", "encrypted", candidates=12),
]
IN_CLEAR: list[Tuner] = [
    Opt(TASK.initial, rounds=2, epochs=1, candidates=6),
    Bandit(TASK.initial, STAGE, candidates=6, mode="clear"),
    Bandit(TASK.initial, STAGE, candidates=6, mode="rewards-only"),
    Bandit(TASK.initial, STAGE, candidates=6, mode="published"),
    FedEx(TASK.initial, rounds=3, candidates=5, mode="clear"),
    FedEx(TASK.initial, rounds=3, candidates=5, mode="rewards-only"),
    AdaptiveRate(TASK.initial, rounds=3, mode="clear"),
    *(Combine(strategy, "clear", candidates=12) for strategy in STRATEGIES),
    *(Flora(surface, "clear", candidates=12) for surface in SURFACES),
    Combine("dbscan", "clear", candidates=6, sampling="tpe"),
]
ASKING_NOBODY: list[Tuner] = [RandomGuess(candidates=12)]
TUNERS = [*PRIVATE, *RECORD_LEVEL, *ENCRYPTED, *IN_CLEAR, *ASKING_NOBODY]
BOUNDS: list[Bound] = [
    TopVotes(20, 3),
    TopVotes(5, 4),
    BordaVotes(20, 4),
    Box(6, 3),
    NormBall(6, 9, 4),
    NormBall(6, 9, 4, unit=3),
    Marks(20, 3),
    Marks(3, 3),
    OnePoint(2, (3, 2), 16),
    WithAbstentions(TopVotes(20, 3)),
    WithAbstentions(BordaVotes(20, 4, unit=2)),
]
SECURE_SUMS = ["masks", "masks without roster", "plain", "encrypted"]


def learner(number: int) -> TorchClient:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(24, 2)).astype(np.float32)
    examples = Examples(features, (features[:, 0] > 0).astype(np.int64))
    return TASK.client(examples.take(np.arange(16)), examples.take(np.arange(16, 24)), seed=number)


def searcher(number: int) -> TorchClient:
    known = learner(number)
    return CELLS.client(known.train_examples, known.validation, seed=number)


def budget_of(tuner: Tuner) -> Budget:
    epsilon = 16.0 if tuner in ENCRYPTED else math.inf if tuner in IN_CLEAR else 1.0
    return Budget(epsilon, 1e-5)


def prepared(tuner: Tuner, secure: str = "masks", *, trains: bool = True) -> Federation:
    """Clients that would answer any question in the clear, unless they do not train for others.

    Encrypted sums have few clients and little noise, so that they take seconds.
    """
    encrypted = tuner in ENCRYPTED
    budget = budget_of(tuner)
    make = searcher if isinstance(tuner, Feathers) else learner
    return federation(
        [make(number) for number in range(3 if encrypted else CLIENTS)],
        noise_for(tuner, SPACE, budget),
        budget=budget,
        dropout=0.0 if encrypted else 0.1,
        secure="encrypted" if encrypted else secure,
        trains=trains,
        record_level=tuner in RECORD_LEVEL,
    )


@dataclass
class Overheard:
    """A channel that notes every question before it goes out, and what was charged by then."""

    channel: Channel
    ledger: Ledger
    asked: list[tuple[AskSum | AskInClear, list[Event]]] = field(default_factory=list)

    @property
    def clients(self) -> Sequence[int]:
        return self.channel.clients

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        message = msgspec.msgpack.decode(next(iter(requests.values())), type=Message)
        if not isinstance(message, Continue):
            self.asked.append((message, [charge.event for charge in self.ledger.charges()]))
        return self.channel.ask(stage, requests)


Message = AskSum | Continue | AskInClear
RUNS: dict[tuple[int, bool], tuple[Federation, Outcome, Overheard]] = {}


def held(tuner: Tuner, *, trains: bool = True) -> tuple[Federation, Outcome, Overheard]:
    """One run of every tuner, for all that can be asked about it, and one with other clients."""
    key = id(tuner), trains or tuner in ENCRYPTED  # those take long, and are never in the clear
    if key not in RUNS:
        built = prepared(tuner, trains=trains)
        overheard = Overheard(built.channel, built.ledger)
        questions = ChargedQuestions(replace(built, channel=overheard))
        RUNS[key] = built, tuner.tune(questions, SPACE, np.random.default_rng(5)), overheard
    return RUNS[key]


def tuned(tuner: Tuner) -> tuple[Federation, Outcome]:
    """That run, without what was overheard."""
    return held(tuner)[:2]


def price_of(message: AskSum | AskInClear, *, record_level: bool) -> Event:
    """What a question costs, by what stands in it."""
    if isinstance(message, AskSum):
        terms = Participation(message.clients, message.dropout, message.colluding)
        return mechanism_of(message.query.bound, terms, message.variance).event
    if record_level and isinstance(message.query, LocalTraining):
        return message.query.event
    return Unprotected(type(message.query).__name__)


def unpaid(asked: list[Event], charged: list[Event]) -> list[Event]:
    """Questions that no line is left for: that very release's, or a larger one's."""
    lines, left = list(charged), []
    for event in asked:
        same = [line for line in lines if line == event]
        line = next(iter(same or [line for line in lines if covers(line, event)]), None)
        if line is None:
            left.append(event)
        else:
            lines.remove(line)
    return left


def named(tuner: Any) -> str:
    kind = getattr(tuner, "strategy", getattr(tuner, "surface", ""))
    searched = (getattr(tuner, "sampling", ""), str(getattr(tuner, "candidates", "")))
    words = (tuner.name, kind, getattr(tuner, "mode", ""), *searched)
    return "-".join(word for word in words if word)


@pytest.mark.parametrize("tuner", TUNERS, ids=named)
class TestEveryTuner:
    def test_declares_at_least_what_it_spends(self, tuner: Tuner) -> None:
        built, _ = tuned(tuner)
        charged = compose(charge.event for charge in built.ledger.charges())
        declared = tuner.event(SPACE, built.variance or 1.0)
        for delta in (1e-3, 1e-5, 1e-8):
            assert spent(charged, delta).epsilon <= spent(declared, delta).epsilon

    def test_spends_no_more_of_any_client(self, tuner: Tuner) -> None:
        built, *_ = held(tuner, trains=False)
        declared = tuner.event(SPACE, built.variance or 1.0)
        for endpoint in built.channel.endpoints:  # type: ignore[attr-defined]
            own = compose(charge.event for charge in endpoint.ledger.charges())
            assert spent(own, 1e-5).epsilon <= spent(declared, 1e-5).epsilon

    def test_pays_for_every_question_before_it_is_asked(self, tuner: Tuner) -> None:
        _, _, overheard = held(tuner)
        asked: list[Event] = []
        for message, charged in overheard.asked:
            asked.append(price_of(message, record_level=tuner.unit == RECORD))
            assert unpaid(asked, charged) == []

    def test_stays_within_its_budget(self, tuner: Tuner) -> None:
        built, _ = tuned(tuner)
        assert built.ledger.total().epsilon <= built.ledger.budget.epsilon

    def test_chooses_a_member_of_the_space(self, tuner: Tuner) -> None:
        _, outcome = tuned(tuner)
        SPACE.encode(outcome.config)
        for candidate in outcome.candidates:
            SPACE.encode(candidate)

    def test_draws_the_same_candidates_from_the_same_seed(self, tuner: Tuner) -> None:
        if tuner in ENCRYPTED:
            pytest.skip("what it does before it asks is what its private twin does")
        assert held(tuner, trains=False)[1].candidates == held(tuner)[1].candidates


@dataclass(frozen=True)
class Peeking(RandomGuess):
    """A guess by somebody who breaks into the server's state and asks before."""

    def tune(self, questions: ChargedQuestions, space: Space, rng: np.random.Generator) -> Outcome:
        weights = tuple(map(Array.of, TASK.initial(1)))
        assert questions._federation.collect(LocalValidation(weights), "train")
        return super().tune(questions, space, rng)


def test_the_contract_notices_a_question_that_was_not_paid_for() -> None:
    with pytest.raises(AssertionError, match="Unprotected"):
        TestEveryTuner().test_pays_for_every_question_before_it_is_asked(Peeking())


@pytest.mark.parametrize("tuner", [*PRIVATE, *RECORD_LEVEL, *ENCRYPTED, *IN_CLEAR], ids=named)
def test_every_tuner_that_asks_is_refused_before_it_does(tuner: Tuner) -> None:
    built = prepared(tuner)
    built.ledger.amend(Budget(0.001, 1e-5), "too little for anything")
    with pytest.raises(BudgetExceeded):
        tuner.tune(
            ChargedQuestions(replace(built, channel=Unreachable(CLIENTS))),
            SPACE,
            np.random.default_rng(0),
        )


@pytest.mark.parametrize("tuner", ASKING_NOBODY, ids=named)
def test_every_tuner_that_claims_to_ask_nobody_does_not(tuner: Tuner) -> None:
    built = replace(prepared(tuner), channel=Unreachable(CLIENTS))
    tuner.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    assert len(built.ledger) == 0


@pytest.mark.parametrize("tuner", PRIVATE, ids=named)
def test_every_private_tuner_costs_more_with_less_noise(tuner: Tuner) -> None:
    needed = noise_for(tuner, SPACE, budget_of(tuner))
    little, much = (spent(tuner.event(SPACE, needed * x), 1e-5).epsilon for x in (0.5, 2.0))
    assert little > much


@pytest.mark.parametrize("tuner", PRIVATE, ids=named)
def test_masks_change_no_private_tuners_answer(
    tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, rounding and lots, which are drawn anew, the same clients give the same."""
    monkeypatch.setattr(NoiseShare, "added_to", lambda _self, answer: answer)
    for module in (updates, rewards):
        monkeypatch.setattr(module, "rounded", lambda vector, _norm: np.trunc(vector).astype(int))
    monkeypatch.setattr("tacit.rewards.secrets.randbelow", lambda limit: limit // 3)
    opened = []
    for secure in ("masks", "plain"):
        built = prepared(tuner, secure)
        built.journal = Journal(tmp_path, {"sums": secure}, kind_of_piece)
        tuner.tune(ChargedQuestions(built), SPACE, np.random.default_rng(4))
        pieces = built.journal.pieces
        opened.append([pieces[place]["value"] for place in pieces if isinstance(place, int)])
    assert opened[0] == opened[1]
    assert np.any(opened[0][0])


@pytest.mark.parametrize("bound", BOUNDS, ids=repr)
class TestEveryMechanism:
    def test_declares_at_least_what_it_spends(self, bound: Bound) -> None:
        mechanism = SkellamMechanism.calibrated(bound, Participation(20), Budget(1.0, 1e-5))
        assert spent(mechanism.event, 1e-5).epsilon <= 1.0
        guaranteed = mechanism.share_variance * mechanism.participation.guaranteed
        assert guaranteed >= mechanism.required_variance

    def test_refuses_what_its_bound_does_not_admit(self, bound: Bound) -> None:
        mechanism = SkellamMechanism(bound, Participation(20), 50.0)
        with pytest.raises(OutOfBounds):
            mechanism.perturb(np.full(bound.length, bound.largest + 1, dtype=np.int64))

    def test_noises_an_abstention_like_any_answer(self, bound: Bound) -> None:
        mechanism = SkellamMechanism(bound, Participation(20), 50.0)
        noisy = mechanism.perturb(bound.abstention())
        assert noisy.shape == (bound.length,)
        assert noisy.dtype == np.int64

    def test_knows_the_largest_entry_of_an_answer(self, bound: Bound) -> None:
        assert all(np.abs(bound.abstention()).max() <= bound.largest for _ in range(20))


class SumUnderTest:
    """One secure sum with its clients, whose vectors are given."""

    def __init__(self, kind: str, vectors: Any, dropout: float | None = None) -> None:
        count, length = vectors.shape
        if dropout is None:
            dropout = 0.0 if kind == "encrypted" else 0.1
        mechanism = SkellamMechanism(Box(length, 100), Participation(count, dropout), 50.0)
        self.round = Round.of(b"s" * 32, mechanism)
        identities = [Identity.new() for _ in range(count)] if kind == "masks" else []
        roster = Roster(tuple(i.public_key for i in identities)) if identities else None
        name = kind.split()[0]
        self.sum: SecureSum = secure_sum(name, roster)

        def participant(number: int) -> Participant:
            if name == "plain":
                return PlainParticipant(self.round)
            if name == "encrypted":
                return EncryptedParticipant(self.round)
            own = identities[number] if roster else None
            return MaskedParticipant(self.round, number, own, roster)

        self.participants = [participant(number) for number in range(count)]
        begun = [p.begin(v) for p, v in zip(self.participants, vectors, strict=True)]
        self.states = {i: step.state for i, step in enumerate(begun)}
        self.first = {i: step.reply for i, step in enumerate(begun)}
        self.released: list[int] = []

    def total(self, absent: Sequence[int] = ()) -> Any:
        """The sum, while some vanish when their vectors are asked for."""
        gone: set[int] = set()

        def ask(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            gone.update(absent if stage in ("seal", "encrypt") else ())
            replies = {}
            for i, request in requests.items():
                if i not in gone:
                    step = self.participants[i].step(self.states[i], request)
                    self.states[i], replies[i] = step.state, step.reply
                    self.released += [i] * step.releases
            return replies

        return self.sum.total(self.round, self.first, ask)


VECTORS = np.random.default_rng(3).integers(-400, 400, size=(12, 7))


@pytest.mark.parametrize("kind", [kind for kind in SECURE_SUMS if kind != "encrypted"])
class TestEverySecureSumThatSurvivesDropOuts:
    def test_masks_do_not_change_the_answer(self, kind: str) -> None:
        plain = SumUnderTest("plain", VECTORS, 0.3).total([4])
        found = SumUnderTest(kind, VECTORS, 0.3).total([4])
        assert np.array_equal(found.value, plain.value)
        assert found.survivors == plain.survivors

    def test_leaves_out_who_dropped_out(self, kind: str) -> None:
        total = SumUnderTest(kind, VECTORS, 0.3).total([2, 9])
        assert np.array_equal(total.value, np.delete(VECTORS, [2, 9], axis=0).sum(axis=0))


@pytest.mark.parametrize("kind", SECURE_SUMS)
class TestEverySecureSum:
    def test_opens_exactly_the_sum(self, kind: str) -> None:
        total = SumUnderTest(kind, VECTORS).total()
        assert np.array_equal(total.value, VECTORS.sum(axis=0))
        assert total.survivors == tuple(range(12))

    def test_gives_up_below_the_threshold(self, kind: str) -> None:
        with pytest.raises(TooFewClients):
            SumUnderTest(kind, VECTORS).total([2, 9])

    def test_says_when_a_reply_releases_the_vector(self, kind: str) -> None:
        under_test = SumUnderTest(kind, VECTORS)
        under_test.total()
        assert sorted(under_test.released) == list(range(12))
