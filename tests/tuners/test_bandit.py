from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import entropy

from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.federation import EVALUATE, Federation, LocalChannel, kind_of_piece
from tacit.journal import Journal
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import SkellamRelease, compose
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.skellam import FloatArray
from tacit.rewards import LocalRewards, Rewards
from tacit.rules import RecordSteps, Rule
from tacit.sgd import Weights
from tacit.space import Config, Float, Space
from tacit.tuners.bandit import WHY_PUBLISHED, Bandit, Estimates, Stage
from tacit.tuners.modes import REWARDS_ONLY_NOTE
from tacit.tuners.tuner import Tuner, noise_for
from tacit.tuning import conclude
from tests.federations import Unreachable, federation

SPACE = Space({"rate": Float(0.0, 1.0)})
INFINITE = Budget(math.inf, 1e-5)
STAGE = Stage(phases=2, drawn=3, most_rounds=2, train_rounds=3)


def start(models: int) -> Weights:
    return (np.full((models, 2), 4.0, np.float32),)


@dataclass(frozen=True)
class Slope:
    """A client that goes a rate's share of the way to its goal; half of the way is best."""

    goal: float = 0.0
    broken: bool = False

    def score(self, config: Config) -> float:
        return abs(float(config["rate"]) - 0.5)

    def train_many(
        self, configs: Sequence[Config], weights: Weights, epochs: int, round_number: int
    ) -> Weights:
        del epochs, round_number
        rates = np.array([[float(c["rate"])] for c in configs])
        way = 4 * rates * (1 - rates)  # one at a rate of one half
        return tuple((a + way * (self.goal - a)).astype(np.float32) for a in weights)

    def train_by(
        self,
        rule: Rule,
        configs: Sequence[Config],
        weights: Weights,
        epochs: int,
        round_number: int,
    ) -> Weights:
        del rule
        return self.train_many(configs, weights, epochs, round_number)

    def losses_many(self, configs: Sequence[Config], weights: Weights) -> FloatArray:
        del configs
        if self.broken:
            return np.full(len(weights[0]), math.nan)
        return np.asarray(np.abs(weights[0] - self.goal).mean(axis=1), dtype=np.float64)

    def validate_many(self, weights: Weights) -> FloatArray:
        return -self.losses_many([], weights)


def built(
    method: Tuner, budget: Budget, clients: int = 6, *, kind: type[Slope] = Slope, **more: Any
) -> Federation:
    return federation(
        [kind() for _ in range(clients)],
        noise_for(method, SPACE, budget),
        budget=budget,
        dropout=0.0,
        secure="plain",
        roster=False,
        **more,
    )


# Estimates


def test_estimates_follow_rewards_and_forget_the_others() -> None:
    known = Estimates(4, decay=0.65)
    known.update([0, 2], np.array([2.0, -1.0]))
    np.testing.assert_allclose(known.values, [1.3, 0, -0.65, 0])
    known.update([2], np.array([1.0]))
    np.testing.assert_allclose(known.values, [1.3 * 0.65, 0, -0.65 + 0.65 * 1.65, 0])


def test_the_number_of_rounds_is_beta_times_the_entropy() -> None:
    known = Estimates(120, decay=0.65)
    assert known.rounds(4.0) == round(4 * math.log(120)) == 19
    known.update(list(range(60)), np.linspace(0, 20, 60))
    assert known.rounds(4.0) == max(1, round(4 * float(entropy(known.chances))))
    known.values[0] = 1e6
    assert known.rounds(4.0) == 1


def test_configurations_are_drawn_by_their_chances_and_only_once() -> None:
    known, rng = Estimates(5, 0.65), np.random.default_rng(0)
    known.values[:] = [0, 0, 3, 0, 0]
    drawn = [known.draw(2, rng) for _ in range(500)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    assert sum(2 in pair for pair in drawn) > 450
    assert known.draw(9, rng) == [0, 1, 2, 3, 4]


# Rewards


def test_rewards_are_differences_of_losses_from_the_same_weights() -> None:
    configs: tuple[Config, ...] = ({"rate": 0.0}, {"rate": 0.25}, {"rate": 0.5})
    sent = tuple(Array.of(a) for a in start(1))
    found = LocalRewards(configs, sent, 1, 0).answer(Slope())[0].numpy()
    np.testing.assert_allclose(found, [0.0, 3.0, 4.0], atol=1e-6)
    clipped = Rewards(configs, sent, 1, 0, clip=2.0).answer(Slope())
    np.testing.assert_array_equal(clipped, [0, 32, 32])


def test_a_configuration_that_diverges_has_the_worst_reward() -> None:
    @dataclass(frozen=True)
    class Explodes(Slope):
        def train_many(self, configs: Any, weights: Weights, *_rest: int) -> Weights:
            bad = np.array([[math.nan if c["rate"] > 0.9 else 0.0] for c in configs])
            return tuple((a + bad).astype(np.float32) for a in weights)

    sent = tuple(Array.of(a) for a in start(1))
    query = Rewards(({"rate": 0.5}, {"rate": 1.0}), sent, 1, 0, clip=1.0)
    np.testing.assert_array_equal(query.answer(Explodes()), [0, -32])


# The whole method


def test_in_clear_the_best_configuration_wins_and_the_model_arrives() -> None:
    method = Bandit(start, replace(STAGE, drawn=8), candidates=9, sampling="grid", mode="clear")
    run = built(method, INFINITE)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    assert outcome.config == {"rate": 0.5}
    assert outcome.weights is not None
    assert np.abs(outcome.weights[0]).max() < 1e-3
    assert run.ledger.total().epsilon == math.inf
    kinds = [note.what for note in run.rounds]
    assert kinds == (["rewards"] * 2 + ["training"] * 3) * 2
    assert all(note.reward is not None for note in run.rounds if note.what == "rewards")


def test_with_many_clients_the_private_version_finds_it_too() -> None:
    stage = Stage(phases=1, drawn=9, most_rounds=2, train_rounds=2, reward_clip=4.0, clip=6.0)
    method = Bandit(start, stage, candidates=9, sampling="grid", reward_share=0.5)
    budget = Budget(20.0, 1e-5)
    run = built(method, budget, clients=200)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    assert abs(float(outcome.config["rate"]) - 0.5) <= 0.25
    total = run.ledger.total()
    assert 0.9 * 20 < total.epsilon <= 20
    assert total.unit == "client"


SKIPPING = replace(STAGE, most_rounds=4, beta=0.01, records=RecordSteps(rate=0.2, steps=5))
"""A beta of nearly zero asks for one reward round a phase; four are declared."""


@pytest.mark.parametrize("mode", ["dp", "record"])
def test_reward_rounds_that_are_skipped_are_charged_all_the_same(mode: str) -> None:
    """How many are skipped is a result. So what is declared is charged, before anyone is asked."""
    method = Bandit(start, SKIPPING, candidates=6, mode=mode)
    budget = Budget(5.0, 1e-5)
    run = built(method, budget, record_level=mode == "record")
    declared = spent(method.event(SPACE, run.variance), 1e-5).epsilon
    assert declared <= budget.epsilon
    with pytest.raises(AssertionError, match="were asked at evaluate"):
        method.tune(
            ChargedQuestions(replace(run, channel=Unreachable(20))), SPACE, np.random.default_rng(1)
        )
    assert run.ledger.total().epsilon == pytest.approx(declared, rel=1e-9)

    run = built(method, budget, record_level=mode == "record")
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    assert [note.what for note in run.rounds] == ["rewards", *["training"] * 3] * 2
    result = conclude(method, outcome, run, budget)
    for charged in (run.ledger.total().epsilon, result.privacy.epsilon, run.rounds[0].epsilon):
        assert charged == pytest.approx(declared, rel=1e-9)
    with pytest.raises(BudgetExceeded):
        run.ledger.check(SkellamRelease(((1, 10),), 139.0), "what the skipped rounds would pay")


def test_clients_are_charged_for_what_they_answered() -> None:
    """A client cannot know what else was declared; the server's ledger holds that."""
    method = Bandit(start, SKIPPING, candidates=6)
    run = built(method, Budget(5.0, 1e-5))
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    assert isinstance(run.channel, LocalChannel)
    for endpoint in run.channel.endpoints:
        assert len(endpoint.ledger) == 8
        assert endpoint.ledger.total().epsilon < run.ledger.total().epsilon


def test_rewards_only_charges_rewards_that_are_skipped() -> None:
    method = Bandit(start, SKIPPING, candidates=6, mode="rewards-only", reward_epsilon=2.0)
    run = built(method, INFINITE)
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    noisy = [c.event for c in run.ledger.charges() if c.label.startswith("rewards")]
    assert 1.9 < spent(compose(noisy), 1e-5).epsilon <= 2.0


def test_fewer_configurations_than_declared_take_the_declared_line() -> None:
    """Three candidates where five may be drawn: a smaller question, and no second charge."""
    method = Bandit(start, replace(STAGE, drawn=5), candidates=3)
    budget = Budget(5.0, 1e-5)
    run = built(method, budget)
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    declared = spent(method.event(SPACE, run.variance), 1e-5).epsilon
    assert run.ledger.total().epsilon == pytest.approx(declared, rel=1e-9)


def test_rewards_only_is_labelled_and_costs_infinity_but_rewards_keep_their_epsilon() -> None:
    stage = replace(STAGE, beta=1e9)  # all rounds there may be, whatever entropy noise leaves
    method = Bandit(start, stage, candidates=6, mode="rewards-only", reward_epsilon=2.0)
    run = built(method, INFINITE)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    result = conclude(method, outcome, run, INFINITE)
    assert result.note == REWARDS_ONLY_NOTE
    assert result.privacy.epsilon == math.inf
    noisy = [c.event for c in run.ledger.charges() if c.label.startswith("rewards")]
    assert len(noisy) == 4
    assert 1.9 < spent(compose(noisy), 1e-5).epsilon <= 2.0


def test_the_published_version_says_why_it_has_no_epsilon() -> None:
    method = Bandit(start, STAGE, candidates=6, mode="published", reward_epsilon=1.25)
    run = built(method, INFINITE)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    assert outcome.note == WHY_PUBLISHED
    assert run.ledger.total().epsilon == math.inf


def test_record_level_is_priced_as_such() -> None:
    stage = replace(STAGE, records=RecordSteps(rate=0.2, steps=5))
    method = Bandit(start, stage, candidates=6, mode="record")
    budget = Budget(3.0, 1e-5)
    run = built(method, budget, record_level=True)
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    total = run.ledger.total()
    assert (total.unit, total.relation) == ("record", "replace-one")
    assert 2.9 < total.epsilon <= 3.0


def test_a_federation_of_clients_does_not_take_record_level_for_its_own() -> None:
    method = Bandit(start, STAGE, candidates=6, mode="record")
    run = built(method, Budget(3.0, 1e-5))
    with pytest.raises(ValueError, match=r"protects single records; allowed .* unit 'client'"):
        method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))


@pytest.mark.parametrize("mode", ["dp", "clear", "rewards-only"])
@pytest.mark.parametrize("after", [1, 3, 7])
def test_a_killed_run_goes_on_after_its_last_round(mode: str, after: int, tmp_path: Path) -> None:
    budget = Budget(8.0, 1e-5) if mode == "dp" else INFINITE
    method = Bandit(start, STAGE, candidates=6, mode=mode)
    run = built(method, budget)
    run.journal = Journal(tmp_path, {}, kind_of_piece)

    class Killed(Exception):
        pass

    def kill(note: Any) -> None:
        if note.number == after:
            raise Killed

    run.watch = kill
    with pytest.raises(Killed):
        method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    declared = {"dp": 10, "rewards-only": 4, "clear": 0}[mode]
    trained = [note.what for note in run.rounds].count("training")
    in_clear = {"dp": 0, "rewards-only": trained, "clear": after}[mode]
    assert len(run.ledger.charges()) == declared + in_clear
    again = built(method, budget)
    again.ledger, again.journal = run.ledger, Journal(tmp_path, {}, kind_of_piece)
    method.tune(ChargedQuestions(again), SPACE, np.random.default_rng(1))
    trained = [note.what for note in again.rounds].count("training")
    in_clear = {"dp": 0, "rewards-only": trained, "clear": len(again.rounds)}[mode]
    assert len(again.ledger.charges()) == declared + in_clear
    assert trained == 6
    assert not again.shortened
    assert again.ledger.total().epsilon <= budget.epsilon


@pytest.mark.parametrize("cut_at", [1, 2, 4])
def test_a_run_that_is_cut_off_within_a_round_pays_for_it_twice(
    cut_at: int, tmp_path: Path
) -> None:
    """All five rounds are prepaid: two of rewards, three of training. One line is lost."""
    budget = Budget(8.0, 1e-5)
    method = Bandit(start, replace(STAGE, phases=1, beta=1e9), candidates=6)
    ledger = Ledger.in_memory("test", budget)

    def going(cut_at: int) -> Federation:
        run = built(method, budget)
        run.ledger, run.journal, run.run = ledger, Journal(tmp_path, {}, kind_of_piece), "cut"
        channel, asked = run.channel, 0

        class Cut:
            clients = channel.clients

            def ask(self, stage: str, requests: Any) -> Any:
                nonlocal asked
                asked += stage == EVALUATE
                if asked == cut_at:
                    raise KeyboardInterrupt
                return channel.ask(stage, requests)

        run.channel = Cut()
        return run

    with pytest.raises(KeyboardInterrupt):
        method.tune(ChargedQuestions(going(cut_at)), SPACE, np.random.default_rng(1))
    assert len(ledger) == 5
    again = going(cut_at=0)
    method.tune(ChargedQuestions(again), SPACE, np.random.default_rng(1))
    assert len(ledger) == 5
    assert len(again.rounds) == 4
    assert again.shortened
    assert ledger.total().epsilon <= budget.epsilon
