from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.arrays import Array
from tacit.privacy.accounting import Budget
from tacit.rewards import LOSS_SHARE, LocalSampled, SampledUpdate
from tacit.space import Config
from tacit.tuners.fedex import Exponentiated, FedEx
from tacit.tuners.tuner import noise_for
from tests.federations import federation
from tests.tuners.test_bandit import SPACE, Slope, start

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
    outcome = method.tune(built, SPACE, np.random.default_rng(0))
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
    method.tune(built, SPACE, np.random.default_rng(0))
    assert 3.9 < built.ledger.total().epsilon <= 4.0
