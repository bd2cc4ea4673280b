from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.federation import EVALUATE, Federation, kind_of_piece
from tacit.journal import Journal
from tacit.privacy.accounting import RDP_ORDERS, Budget, spent
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.mechanisms import OutOfBounds, Participation, SkellamMechanism
from tacit.sgd import Weights
from tacit.space import Config, Float, Space
from tacit.training import PrivateAveraging
from tacit.tuners.baselines import RandomGuess
from tacit.tuners.together import Together
from tacit.tuners.tuner import noise_for
from tacit.tuners.voting import Vote
from tacit.updates import PrivateUpdate, clipped, enough_steps, flat, longest, rounded, shaped
from tests.federations import Unreachable, federation

SPACE = Space({"rate": Float(0.0, 1.0)})
START: Weights = (np.zeros((1, 3, 4), np.float32), np.zeros((1, 3), np.float32))
LENGTH = 15


@dataclass(frozen=True)
class Pulls:
    """A client whose training always moves by the same vector, times its configured rate."""

    towards: float
    examples: int = 10

    def score(self, config: Config) -> float:
        return abs(float(config["rate"]) - 0.5)

    def train_many(self, configs: Any, weights: Weights, epochs: int, round_number: int) -> Weights:
        del epochs, round_number
        rate = float(configs[0]["rate"])
        return tuple(array + np.float32(rate * self.towards) for array in weights)

    def validate_many(self, weights: Weights) -> Any:
        return np.zeros(len(weights[0]))


def query(
    clip: float = 1.0, steps: int = 64, cap: int = 0, weights: Weights = START
) -> PrivateUpdate:
    sent = tuple(map(Array.of, weights))
    return PrivateUpdate({"rate": 1.0}, sent, 1, 0, clip, steps, steps, cap)


# Rounding and clipping


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 3000),
    steps=st.sampled_from([1, 2, 16, 256]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_rounded_vectors_stay_in_the_ball_and_next_to_the_truth(
    seed: int, length: int, steps: int, share: float
) -> None:
    vector = np.random.default_rng(seed).normal(size=length)
    vector *= share * steps / np.linalg.norm(vector)
    found = rounded(vector, float(steps))
    assert np.abs(found - vector).max() < 1
    assert int(found @ found) <= longest(steps, length) ** 2


def test_rounding_is_right_on_average() -> None:
    """Drawing again shortens a little: far less than one standard deviation of the rounding."""
    steps = float(enough_steps(40))
    vector = np.random.default_rng(0).normal(size=40)
    vector *= steps / np.linalg.norm(vector)
    mean = np.mean([rounded(vector, steps) for _ in range(4000)], axis=0)
    assert np.linalg.norm(mean - vector) < 0.02 * steps


def test_what_cannot_be_rounded_at_random_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that always rounds up would lengthen the vector; the bound holds nevertheless."""
    monkeypatch.setattr("tacit.updates.secrets.token_bytes", bytes)
    vector = np.full(100, 0.01)
    found = rounded(vector, 0.1)
    assert not found.any()
    assert longest(0.1, 100) ** 2 < 100


@pytest.mark.parametrize(("given", "norm"), [(0.5, 0.5), (2.0, 1.0), (1e30, 1.0), (0.0, 0.0)])
def test_clipping_shortens_but_never_lengthens(given: float, norm: float) -> None:
    vector = np.array([0.6, 0.8]) * given
    assert np.linalg.norm(clipped(vector, 1.0)) == pytest.approx(norm)


def test_models_become_vectors_and_back() -> None:
    rng = np.random.default_rng(1)
    weights: Weights = tuple(rng.normal(size=a.shape).astype(np.float32) for a in START)
    for one, other in zip(shaped(flat(weights), weights), weights, strict=True):
        np.testing.assert_array_equal(one, other)


# The bound


@pytest.mark.parametrize("cap", [0, 20])
@pytest.mark.parametrize("towards", [0.0, 1e-3, 1.0, 1e12, -5.0])
def test_every_answer_is_admitted(cap: int, towards: float) -> None:
    asked = query(cap=cap)
    for examples in (1, 20, 10_000):
        answer = asked.answer(Pulls(towards, examples))
        assert asked.bound.admits(answer)
        assert asked.bound.length == LENGTH + bool(cap)


def test_an_update_that_was_not_clipped_gets_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.updates.clipped", lambda vector, clip: vector / clip)
    asked = query()
    mechanism = SkellamMechanism(asked.bound, Participation(10), 1.0)
    with pytest.raises(OutOfBounds):
        mechanism.perturb(rounded(np.full(LENGTH, 1000.0), 1e6))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_client_adds_zero_under_noise(bad: float) -> None:
    built = federated([Pulls(0.5), Pulls(bad), Pulls(0.5)], 1e-4)
    opened = built.sum(query(), "training")
    assert opened.answered == 3
    expected = 2 * flat(shaped(clipped(np.full(LENGTH, 0.5), 1.0), START)) * 64
    assert np.abs(opened.value - expected).max() < 12


def test_capped_weights_are_known_to_nobody_and_right_in_the_mean() -> None:
    """Half of a cap counts half, more than the cap no more than it."""
    asked = query(clip=10.0, steps=4096, cap=20)
    clients = [Pulls(1.0, 10), Pulls(3.0, 20), Pulls(3.0, 2000)]
    total = np.sum([asked.answer(client) for client in clients], axis=0)
    assert asked.mean(total, 3) == pytest.approx(
        np.full(LENGTH, (0.5 * 1.0 + 2 * min(3.0, 10 / math.sqrt(LENGTH))) / 2.5), abs=0.01
    )


# Training


def federated(clients: Any, variance: float, budget: Budget | None = None) -> Federation:
    return federation(
        clients,
        variance,
        budget=budget or Budget(math.inf, 1e-5),
        dropout=0.0,
        secure="plain",
        roster=False,
    )


def test_epsilon_is_that_of_dp_accounting_by_hand() -> None:
    training = PrivateAveraging(rounds=7, epochs=1)
    steps = training.unit(START)
    variance = 40.0
    l2 = 2.0 * longest(steps, LENGTH)
    l1 = 2.0 * math.ceil(math.sqrt(LENGTH) * l2 / 2)
    noise = variance * steps**2
    orders = np.array(RDP_ORDERS)
    once = orders * l2**2 / (2 * noise) + np.minimum(
        ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * noise**2), 1.5 * l1 / noise
    )
    by_hand, _ = compute_epsilon(list(RDP_ORDERS), list(7 * once), 1e-5)
    assert spent(training.event(START, steps, variance), 1e-5).epsilon == pytest.approx(
        by_hand, rel=1e-5
    )
    assert spent(training.event(START, steps, variance), 1e-5).epsilon >= by_hand


@pytest.mark.parametrize("method", [Vote(votes=2, candidates=10), RandomGuess(candidates=10)])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_one_budget_pays_for_choice_and_training(method: Any, share: float) -> None:
    budget, participation = Budget(2.0, 1e-5), Participation(30, 0.0)
    training = PrivateAveraging(rounds=4, epochs=1)
    both = Together.planned(method, SPACE, training, START, budget, participation, share)
    built = federated([Pulls(0.1)] * 30, noise_for(both, SPACE, budget), budget)
    outcome = both.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    assert outcome.weights is not None
    total = built.ledger.total().epsilon
    assert total == pytest.approx(spent(both.event(SPACE, built.variance), 1e-5).epsilon, rel=1e-9)
    assert 0.98 * budget.epsilon < total <= budget.epsilon
    assert [note.epsilon for note in built.rounds][-1] == pytest.approx(total)
    assert len(built.rounds) == 4
    with pytest.raises(BudgetExceeded):
        both.tune(ChargedQuestions(replace(built, run="another")), SPACE, np.random.default_rng(0))


def test_a_vote_leaves_to_the_training_what_it_does_not_need() -> None:
    budget, training = Budget(4.0, 1e-5), PrivateAveraging(rounds=4, epochs=1)
    vote = Vote(votes=2, candidates=10)
    alone = noise_for(vote, SPACE, budget)

    def share(clients: int) -> float:
        terms = Participation(clients, 0.0)
        planned = Together.planned(vote, SPACE, training, START, budget, terms)
        return alone / noise_for(planned, SPACE, budget)

    assert share(1000) == pytest.approx(0.1, rel=0.05)
    assert share(5) == pytest.approx(0.5, rel=0.05)
    assert 0.1 < share(12) < 0.5


def test_what_is_not_affordable_is_refused_before_anybody_is_asked() -> None:
    built = federated([Pulls(0.1)] * 5, 1.0, Budget(1.0, 1e-5))
    built.channel = Unreachable(5)
    with pytest.raises(BudgetExceeded):
        PrivateAveraging(rounds=3, epochs=1).train(ChargedQuestions(built), {"rate": 1.0}, START, 8)


def test_a_run_cut_off_within_a_round_goes_on_and_ends_one_round_earlier(tmp_path: Path) -> None:
    budget, training = Budget(4.0, 1e-5), PrivateAveraging(rounds=5, epochs=1)
    both = Together.planned(
        RandomGuess(candidates=4), SPACE, training, START, budget, Participation(5, 0.0)
    )
    ledger = Ledger.in_memory("test", budget)

    def going(cut_at: int) -> Federation:
        built = federated([Pulls(0.1)] * 5, noise_for(both, SPACE, budget), budget)
        built.ledger, built.journal = ledger, Journal(tmp_path, {}, kind_of_piece)
        channel, asked = built.channel, 0

        class Cut:
            clients = channel.clients

            def ask(self, stage: str, requests: Any) -> Any:
                nonlocal asked
                asked += stage == EVALUATE
                if asked == cut_at:
                    raise KeyboardInterrupt
                return channel.ask(stage, requests)

        built.channel = Cut()
        return built

    with pytest.raises(KeyboardInterrupt):
        both.tune(ChargedQuestions(going(cut_at=3)), SPACE, np.random.default_rng(0))
    assert len(ledger) == 3
    again = going(cut_at=0)
    both.tune(ChargedQuestions(again), SPACE, np.random.default_rng(0))
    assert [charge.label[-1] for charge in ledger.charges()] == ["1", "2", "3", "3", "4"]
    assert len(again.rounds) == 4
    assert again.shortened
    assert ledger.total().epsilon <= 4.0


def test_without_noise_private_averaging_is_the_clipped_mean() -> None:
    """As little noise as there can be, and many steps: 3 rounds of the mean of 1, 2 and 3."""
    training = PrivateAveraging(rounds=3, epochs=1, clip=100.0, steps=100_000)
    built = federated([Pulls(1.0), Pulls(2.0), Pulls(3.0)], 1e-9)
    (matrix, _bias) = training.train(ChargedQuestions(built), {"rate": 1.0}, START, 100_000)
    assert np.abs(matrix - 6.0).max() < 0.05


def test_noise_of_the_mean_update_is_as_announced() -> None:
    budget, participation = Budget(3.0, 1e-5), Participation(20, 0.0)
    training = PrivateAveraging(rounds=60, epochs=1, clip=2.0)
    both = Together.planned(
        RandomGuess(candidates=4), SPACE, training, START, budget, participation
    )
    variance = noise_for(both, SPACE, budget)
    built = federated([Pulls(0.0)] * 20, variance, budget)
    walked = flat(training.train(ChargedQuestions(built), {"rate": 1.0}, START, both.training_unit))
    expected = both.update_noise(SPACE, variance, participation) * 2.0 * math.sqrt(60 * LENGTH)
    assert expected / 1.8 < np.linalg.norm(walked) < expected * 1.8


def test_steps_are_fine_enough_for_the_length() -> None:
    for length in (10, 1000, 100_000):
        steps = enough_steps(length)
        assert longest(steps, length) ** 2 < 1.1 * steps**2
