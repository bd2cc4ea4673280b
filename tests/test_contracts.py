"""What every tuner, every mechanism and every secure sum must do: add a row, pass them all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.data.examples import Examples
from tacit.federation import Federation
from tacit.networks import dense
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import BordaVotes, Bound, Box, NormBall, TopVotes
from tacit.privacy.events import compose
from tacit.privacy.ledger import BudgetExceeded
from tacit.privacy.mechanisms import OutOfBounds, Participation, SkellamMechanism
from tacit.secure.masks import MaskedParticipant
from tacit.secure.opening import MaskedSum
from tacit.secure.plain import PlainParticipant, PlainSum
from tacit.secure.protocol import Participant, Round, SecureSum, TooFewClients
from tacit.secure.roster import Identity, Roster
from tacit.space import Float, Space
from tacit.torch_task import TorchClient, TorchTask
from tacit.tuners.baselines import MeanOfWinners, Opt, RandomGuess
from tacit.tuners.tuner import Tuner
from tacit.tuners.voting import Vote
from tacit.tuning import noise_for
from tests.federations import Unreachable, federation

CLIENTS = 8
SPACE = Space({"learning_rate": Float(1e-3, 1.0, log=True), "momentum": Float(0.0, 0.9)})
TASK = TorchTask(lambda: dense((2,), 2, hidden=(4,)), classes=2, epochs=2, batch=8)

PRIVATE: list[Tuner] = [
    Vote(votes=2, candidates=12),
    Vote(votes=3, candidates=10, sampling="grid"),
]
IN_CLEAR: list[Tuner] = [
    Opt(TASK.initial, rounds=2, epochs=1, candidates=6),
    MeanOfWinners(candidates=12),
]
ASKING_NOBODY: list[Tuner] = [RandomGuess(candidates=12)]
TUNERS = [*PRIVATE, *IN_CLEAR, *ASKING_NOBODY]
BOUNDS: list[Bound] = [
    TopVotes(20, 3),
    TopVotes(5, 4),
    BordaVotes(20, 4),
    Box(6, 3),
    NormBall(6, 9, 4),
]
SECURE_SUMS = ["masks", "masks without roster", "plain"]


def learner(number: int) -> TorchClient:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(24, 2)).astype(np.float32)
    examples = Examples(features, (features[:, 0] > 0).astype(np.int64))
    return TASK.client(examples.take(np.arange(16)), examples.take(np.arange(16, 24)), seed=number)


def budget_of(tuner: Tuner) -> Budget:
    cost = spent(tuner.event(SPACE, 100.0), 1e-5).epsilon
    return Budget(math.inf if math.isinf(cost) else 1.0, 1e-5)


def prepared(tuner: Tuner, secure: str = "masks") -> Federation:
    budget = budget_of(tuner)
    variance = noise_for(tuner, SPACE, budget)
    return federation(
        [learner(number) for number in range(CLIENTS)], variance, budget=budget, secure=secure
    )


def named(tuner: Any) -> str:
    return f"{tuner.name}-{tuner.candidates}"


@pytest.mark.parametrize("tuner", TUNERS, ids=named)
class TestEveryTuner:
    def test_declares_at_least_what_it_spends(self, tuner: Tuner) -> None:
        built = prepared(tuner)
        tuner.tune(built, SPACE, np.random.default_rng(0))
        charged = compose(charge.event for charge in built.ledger.charges())
        declared = tuner.event(SPACE, built.variance or 1.0)
        for delta in (1e-3, 1e-5, 1e-8):
            assert spent(charged, delta).epsilon <= spent(declared, delta).epsilon
        for endpoint in built.channel.endpoints:  # type: ignore[attr-defined]
            own = compose(charge.event for charge in endpoint.ledger.charges())
            assert spent(own, 1e-5).epsilon <= spent(declared, 1e-5).epsilon

    def test_stays_within_its_budget(self, tuner: Tuner) -> None:
        built = prepared(tuner)
        tuner.tune(built, SPACE, np.random.default_rng(0))
        assert built.ledger.total().epsilon <= built.ledger.budget.epsilon

    def test_chooses_a_member_of_the_space(self, tuner: Tuner) -> None:
        outcome = tuner.tune(prepared(tuner), SPACE, np.random.default_rng(0))
        SPACE.encode(outcome.config)
        for candidate in outcome.candidates:
            SPACE.encode(candidate)

    def test_draws_the_same_candidates_from_the_same_seed(self, tuner: Tuner) -> None:
        first, second = (
            tuner.tune(prepared(tuner), SPACE, np.random.default_rng(5)) for _ in range(2)
        )
        assert first.candidates == second.candidates


@pytest.mark.parametrize("tuner", [*PRIVATE, *IN_CLEAR], ids=named)
def test_every_tuner_that_asks_is_refused_before_it_does(tuner: Tuner) -> None:
    built = prepared(tuner)
    built.ledger.amend(Budget(0.001, 1e-5), "too little for anything")
    with pytest.raises(BudgetExceeded):
        tuner.tune(replace(built, channel=Unreachable(CLIENTS)), SPACE, np.random.default_rng(0))


@pytest.mark.parametrize("tuner", ASKING_NOBODY, ids=named)
def test_every_tuner_that_claims_to_ask_nobody_does_not(tuner: Tuner) -> None:
    built = replace(prepared(tuner), channel=Unreachable(CLIENTS))
    tuner.tune(built, SPACE, np.random.default_rng(0))
    assert len(built.ledger) == 0


@pytest.mark.parametrize("tuner", PRIVATE, ids=named)
def test_every_private_tuner_costs_more_with_less_noise(tuner: Tuner) -> None:
    little, much = (spent(tuner.event(SPACE, v), 1e-5).epsilon for v in (20.0, 200.0))
    assert little > much


@pytest.mark.parametrize("tuner", PRIVATE, ids=named)
def test_masks_change_no_private_tuners_answer(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, which differs from run to run, the same clients give the same tally."""
    monkeypatch.setattr(SkellamMechanism, "perturb", lambda _self, answer: answer)
    masked, plain = (
        tuner.tune(prepared(tuner, secure), SPACE, np.random.default_rng(4)).tally
        for secure in ("masks", "plain")
    )
    assert masked is not None
    assert plain is not None
    assert np.array_equal(masked, plain)
    assert masked.sum() > 0


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

    def __init__(self, kind: str, vectors: Any, dropout: float = 0.1) -> None:
        count, length = vectors.shape
        mechanism = SkellamMechanism(Box(length, 100), Participation(count, dropout), 50.0)
        self.round = Round.of(b"s" * 32, mechanism)
        identities = [Identity.new() for _ in range(count)] if kind == "masks" else []
        roster = Roster(tuple(i.public_key for i in identities)) if identities else None
        self.sum: SecureSum = PlainSum() if kind == "plain" else MaskedSum(roster)
        self.participants: list[Participant] = [
            PlainParticipant(self.round)
            if kind == "plain"
            else MaskedParticipant(self.round, i, identities[i] if roster else None, roster)
            for i in range(count)
        ]
        begun = [p.begin(v) for p, v in zip(self.participants, vectors, strict=True)]
        self.states = {i: step.state for i, step in enumerate(begun)}
        self.first = {i: step.reply for i, step in enumerate(begun)}
        self.released: list[int] = []

    def total(self, absent: Mapping[int, str] | None = None) -> Any:
        gone: set[int] = set()

        def ask(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            gone.update(i for i, when in (absent or {}).items() if when == stage)
            replies = {}
            for i, request in requests.items():
                if i not in gone:
                    step = self.participants[i].step(self.states[i], request)
                    self.states[i], replies[i] = step.state, step.reply
                    self.released += [i] * step.releases
            return replies

        return self.sum.total(self.round, self.first, ask)


VECTORS = np.random.default_rng(3).integers(-400, 400, size=(12, 7))


@pytest.mark.parametrize("kind", SECURE_SUMS)
class TestEverySecureSum:
    def test_opens_exactly_the_sum(self, kind: str) -> None:
        total = SumUnderTest(kind, VECTORS).total()
        assert np.array_equal(total.value, VECTORS.sum(axis=0))
        assert total.survivors == tuple(range(12))

    def test_masks_do_not_change_the_answer(self, kind: str) -> None:
        plain = SumUnderTest("plain", VECTORS, 0.3).total({4: "seal"})
        found = SumUnderTest(kind, VECTORS, 0.3).total({4: "seal"})
        assert np.array_equal(found.value, plain.value)
        assert found.survivors == plain.survivors

    def test_leaves_out_who_dropped_out(self, kind: str) -> None:
        total = SumUnderTest(kind, VECTORS, 0.3).total({2: "seal", 9: "seal"})
        assert np.array_equal(total.value, np.delete(VECTORS, [2, 9], axis=0).sum(axis=0))

    def test_gives_up_below_the_threshold(self, kind: str) -> None:
        with pytest.raises(TooFewClients):
            SumUnderTest(kind, VECTORS).total({2: "seal", 9: "seal"})

    def test_says_when_a_reply_releases_the_vector(self, kind: str) -> None:
        under_test = SumUnderTest(kind, VECTORS)
        under_test.total()
        assert sorted(under_test.released) == list(range(12))
