from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import SampledGaussian, compose
from tacit.query import LocalTraining
from tacit.rewards import LOSS_SHARE, LocalSampled, SampledLoss, SampledUpdate
from tacit.rules import DpSgd, RecordSteps
from tacit.sgd import Weights
from tacit.space import Config
from tacit.tuners.fedex import Exponentiated, FedEx
from tacit.tuners.modes import REWARDS_ONLY_NOTE
from tacit.tuners.tuner import noise_for
from tests.federations import federation
from tests.tuners.test_bandit import INFINITE, SPACE, Slope, built, start

CONFIGS: tuple[Config, ...] = ({"rate": 0.1}, {"rate": 0.5}, {"rate": 0.9})
SENT = tuple(map(Array.of, start(1)))


def test_exponentiated_gradient_by_hand() -> None:
    known = Exponentiated(2, discount=0.9)
    known.update(np.array([0.1, 0.3]))
    gradient = np.array([0.2, 0.6])
    step = math.sqrt(2 * math.log(2) / 0.6**2)
    odds = 0.5 * np.exp(-step * gradient)
    np.testing.assert_allclose(known.chances, odds / odds.sum())
    known.update(np.zeros(2))  # nothing is known, nothing moves
    np.testing.assert_allclose(known.chances, odds / odds.sum())


def test_the_baseline_is_a_discounted_mean() -> None:
    known = Exponentiated(2, discount=0.5)
    for loss in (4.0, 2.0, 1.0):
        known.remember(loss)
    assert known.baseline == pytest.approx((1.0 + 0.5 * 2.0 + 0.25 * 4.0) / 1.75)


def test_no_configuration_is_ever_ruled_out() -> None:
    known = Exponentiated(3, discount=0.9)
    for _ in range(200):
        known.update(np.array([0.0, 1.0, 1.0]))
    assert known.best == 0
    assert known.chances.min() > 0


def test_a_client_draws_by_the_chances_and_reports_at_its_place() -> None:
    chances = (0.0, 0.25, 0.75)
    drawn = [
        int(LocalSampled(CONFIGS, chances, SENT, 1, 0).answer(Slope())[1].numpy().argmax())
        for _ in range(400)
    ]
    counts = np.bincount(drawn, minlength=3)
    assert counts[0] == 0
    assert abs(counts[1] - 100) < 6 * math.sqrt(400 * 0.25 * 0.75)


def test_update_and_loss_share_one_vector_within_its_bound() -> None:
    query = SampledUpdate(CONFIGS, (0.0, 1.0, 0.0), SENT, 1, 0, 10.0, 2.0, 1.0, 4096, 4096)
    answer = query.answer(Slope())
    assert query.bound.admits(answer)
    update, beyond = query.means(answer, 1)
    np.testing.assert_allclose(update, [-4.0, -4.0], atol=0.01)
    np.testing.assert_allclose(beyond, [0.0, -1.0, 0.0], atol=0.01)
    assert LOSS_SHARE < 1


@pytest.mark.parametrize("loss_clip", [1e-3, 1e9])
def test_whatever_the_loss_the_answer_is_admitted(loss_clip: float) -> None:
    far = Slope(goal=1e6)
    query = SampledUpdate(CONFIGS, (0.3, 0.3, 0.4), SENT, 1, 0, 1.0, loss_clip, 0.0, 64, 64)
    for _ in range(20):
        assert query.bound.admits(query.answer(far))


def test_in_clear_good_configurations_become_likely() -> None:
    method = FedEx(start, rounds=25, candidates=9, sampling="grid", mode="clear")
    built = federation(
        [Slope(goal=float(g)) for g in np.linspace(-1, 1, 12)],
        0.0,
        budget=Budget(math.inf, 1e-5),
        dropout=0.0,
        secure="plain",
        roster=False,
    )
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    assert 0.2 < float(outcome.config["rate"]) < 0.8
    assert outcome.weights is not None
    assert built.ledger.total().epsilon == math.inf
    assert len(built.rounds) == 25


def test_privately_it_spends_what_it_said() -> None:
    method = FedEx(start, rounds=6, candidates=5)
    budget = Budget(4.0, 1e-5)
    built = federation(
        [Slope() for _ in range(8)],
        noise_for(method, SPACE, budget),
        budget=budget,
        dropout=0.0,
        secure="plain",
        roster=False,
    )
    method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    assert 3.9 < built.ledger.total().epsilon <= 4.0


# Weights in clear, losses in a sum of their own


@pytest.mark.parametrize(("goal", "told"), [(0.0, 4 - 0.36 * 4 - 1), (1e6, 2.0)])
def test_a_loss_alone_stands_at_its_place_within_its_bound(goal: float, told: float) -> None:
    query = SampledLoss(CONFIGS, (1.0, 0.0, 0.0), SENT, 1, 0, 2.0, 1.0)
    answer = query.answer(Slope(goal=goal))
    assert query.bound.admits(answer)
    np.testing.assert_allclose(query.means(answer, 1), [told, 0, 0], atol=0.01)


def test_a_loss_in_two_places_is_not_admitted() -> None:
    bound = SampledLoss(CONFIGS, (0.3, 0.3, 0.4), SENT, 1, 0, 1.0, 0.0).bound
    assert bound.admits(np.array([bound.l1, 0, 0]))
    assert not bound.admits(np.array([bound.l1, 1, 0]))


def test_a_draw_costs_the_steps_of_one_training() -> None:
    rule = DpSgd(0.1, 7, 1.0, 2.0, 16)
    drawn = LocalTraining(CONFIGS, SENT, 1, 0, rule, (0.2, 0.3, 0.5))
    assert drawn.event == SampledGaussian(0.1, 2.0, 7)
    assert LocalTraining(CONFIGS, SENT, 1, 0, rule).event == SampledGaussian(0.1, 2.0, 21)


def test_a_client_trains_by_its_draw_alone() -> None:
    only = LocalTraining(CONFIGS, SENT, 1, 0, None, (0.0, 1.0, 0.0)).answer(Slope())
    fixed = LocalTraining(CONFIGS[1:2], SENT, 1, 0).answer(Slope())
    assert only == fixed


def test_record_level_is_priced_as_such() -> None:
    records = RecordSteps(rate=0.2, steps=5)
    method = FedEx(start, rounds=4, candidates=5, mode="record", records=records)
    run = built(method, Budget(3.0, 1e-5), record_level=True)
    method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    total = run.ledger.total()
    assert (total.unit, total.relation) == ("record", "replace-one")
    assert 2.9 < total.epsilon <= 3.0
    assert [c.label.split()[0] for c in run.ledger.charges()] == ["losses", "training"] * 4


def test_a_federation_of_clients_does_not_take_record_level_for_its_own() -> None:
    method = FedEx(start, rounds=2, candidates=5, mode="record")
    run = built(method, Budget(3.0, 1e-5))
    with pytest.raises(Exception, match="would bring epsilon to inf"):
        method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))


def test_rewards_only_is_labelled_and_costs_infinity_but_losses_keep_their_epsilon() -> None:
    method = FedEx(start, rounds=4, candidates=5, mode="rewards-only", reward_epsilon=2.0)
    run = built(method, INFINITE)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(1))
    assert outcome.note == REWARDS_ONLY_NOTE
    assert run.ledger.total().epsilon == math.inf
    noisy = [c.event for c in run.ledger.charges() if c.label.startswith("losses")]
    assert len(noisy) == 4
    assert 1.9 < spent(compose(noisy), 1e-5).epsilon <= 2.0


class Restless(Slope):
    """A client that starts anew in every round, so that losses tell rates apart in all of them."""

    def train_many(
        self, configs: Sequence[Config], weights: Weights, epochs: int, round_number: int
    ) -> Weights:
        return super().train_many(configs, start(len(weights[0])), epochs, round_number)


def test_with_little_noise_on_losses_good_configurations_become_likely() -> None:
    """False alarm below 1 in 5000: none of 20,000 simulations of noise and draws ended outside."""
    method = FedEx(
        start,
        rounds=12,
        candidates=9,
        sampling="grid",
        mode="rewards-only",
        reward_epsilon=29.0,
        loss_clip=4.0,
    )
    run = built(method, INFINITE, clients=120, kind=Restless)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    assert 0.2 < float(outcome.config["rate"]) < 0.8
