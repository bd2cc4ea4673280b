from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.accounting import SAMPLING_ERROR, Budget, spent
from tacit.privacy.bounds import BordaVotes, Bound, Box, NormBall, TopVotes
from tacit.privacy.events import EXACT_SUM, Repeated, Unprotected
from tacit.privacy.mechanisms import (
    OutOfBounds,
    Participation,
    SkellamMechanism,
    least_noise,
    mechanism_of,
)
from tests.randomness import fits_skellam

BUDGET = Budget(1.0, 1e-5)
BOUNDS = [TopVotes(100, 5), BordaVotes(100, 10), Box(20, 3), NormBall(50, 30, 8)]


@pytest.fixture(scope="module", params=BOUNDS, ids=repr)
def mechanism(request: pytest.FixtureRequest) -> SkellamMechanism:
    return SkellamMechanism.calibrated(request.param, Participation(50), BUDGET)


def test_event_fits_the_budget_it_was_calibrated_for(mechanism: SkellamMechanism) -> None:
    cost = spent(mechanism.event, BUDGET.delta)
    assert 0.999 * BUDGET.epsilon <= cost.epsilon <= BUDGET.epsilon


def test_sampling_error_stays_within_what_accounting_charges(mechanism: SkellamMechanism) -> None:
    assert 0 < mechanism.sampling_error <= Fraction(SAMPLING_ERROR)


def test_guaranteed_survivors_alone_deliver_the_required_noise() -> None:
    """Through the whole client path: known ballots taken off the sum. False-alarm rate 1e-6."""
    bound = TopVotes(1000, 5)
    mechanism = SkellamMechanism.calibrated(bound, Participation(10, dropout=0.2), BUDGET)
    noise = []
    for _ in range(40):
        ballots = [bound.abstention() for _ in range(mechanism.participation.guaranteed)]
        noise.append(sum(mechanism.perturb(ballot) - ballot for ballot in ballots))
    assert fits_skellam(np.concatenate(noise), mechanism.required_variance)


def test_noise_is_refused_outside_the_bound(mechanism: SkellamMechanism) -> None:
    bound = mechanism.bound
    member = bound.abstention()
    outside = member.copy()
    outside[3] += 987_654_321
    assert mechanism.perturb(member).shape == (bound.length,)
    with pytest.raises(OutOfBounds) as refusal:
        mechanism.perturb(outside)
    assert "987" not in str(refusal.value), "a refusal tells nothing of the answer"


def test_every_call_draws_fresh_noise(mechanism: SkellamMechanism) -> None:
    member = mechanism.bound.abstention()
    views = {tuple(mechanism.perturb(member).tolist()) for _ in range(20)}
    assert len(views) == 20


@settings(deadline=None)
@given(
    clients=st.integers(2, 400),
    dropout=st.integers(0, 60),
    colluding=st.integers(0, 39),
    required=st.floats(0.5, 1e6),
)
def test_shares_of_the_guaranteed_clients_reach_the_requirement(
    clients: int, dropout: int, colluding: int, required: float
) -> None:
    missing, told = dropout * clients // 100, colluding * clients // 100
    if missing + max(told, 1) >= clients:
        return
    participation = Participation(clients, dropout / 100, colluding / 100)
    guaranteed = participation.guaranteed
    assert guaranteed == clients - missing - max(told, 1)
    mechanism = SkellamMechanism(TopVotes(4, 1), participation, required)
    assert Fraction(mechanism.share_variance) * guaranteed >= Fraction(required)
    assert mechanism.share_variance <= required / guaranteed * (1 + 1e-12) + 2.0**-32
    assert mechanism.delivered_variance >= required


@given(st.integers(2, 500), st.integers(0, 99), st.integers(0, 99))
def test_threshold_keeps_the_noise_floor_and_a_united_view(n: int, out: int, bad: int) -> None:
    traitors = bad * n // 100
    if out * n // 100 + max(traitors, 1) >= n:
        return
    participation = Participation(n, out / 100, bad / 100)
    threshold = participation.threshold
    assert threshold >= n - out * n // 100, "the noise floor"
    assert threshold > n / 2
    assert threshold - max(traitors, 1) >= participation.guaranteed
    # Two openings need 2 * threshold honest or repeated voices; only traitors speak twice.
    assert 2 * threshold > n + traitors


def test_more_rounds_need_more_noise() -> None:
    one, ten = (
        SkellamMechanism.calibrated(TopVotes(100, 5), Participation(50), BUDGET, rounds=rounds)
        for rounds in (1, 10)
    )
    assert ten.required_variance > 7 * one.required_variance
    assert spent(Repeated(ten.event, 10), BUDGET.delta).epsilon <= BUDGET.epsilon


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Participation(1), "clients is 1; allowed is 2 to"),
        (
            lambda: SkellamMechanism(Box(4, 10**6), Participation(2), 2.0**40),
            "variance of a noise share is .*; allowed is",
        ),
        (
            lambda: SkellamMechanism(Box(10**9, 1), Participation(10**6), 1e6),
            "away from Skellam in total variation; allowed is",
        ),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=reason):
        make()


@pytest.mark.parametrize("bound", BOUNDS, ids=repr)
def test_abstention_gets_the_same_noise_as_an_answer(bound: Bound) -> None:
    mechanism = SkellamMechanism.calibrated(bound, Participation(50), BUDGET)
    assert mechanism.perturb(bound.abstention()).dtype == np.int64


def test_no_noise_is_checked_like_noise_and_costs_everything() -> None:
    mechanism = mechanism_of(Box(3, 5), Participation(4), 0.0)
    assert mechanism.perturb(np.array([5, -5, 0])).tolist() == [5, -5, 0]
    assert mechanism.event == Unprotected(EXACT_SUM)
    with pytest.raises(OutOfBounds):
        mechanism.perturb(np.array([6, 0, 0]))


def test_noise_is_measured_in_units_of_the_bound() -> None:
    fine = mechanism_of(NormBall(3, 60, 40, unit=10), Participation(4), 7.0)
    coarse = mechanism_of(NormBall(3, 60, 40), Participation(4), 700.0)
    assert isinstance(fine, SkellamMechanism)
    assert fine.share_variance == coarse.share_variance
    assert fine.required_variance == 700.0
    assert fine.event == coarse.event


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("bound", [TopVotes(9, 1), *BOUNDS, BordaVotes(100, 3, unit=7)], ids=repr)
def test_nothing_that_fits_a_budget_has_less_noise_than_a_single_vote(
    bound: Bound, epsilon: float
) -> None:
    """Members that insist on the least noise refuse nobody who asks for what they allow."""
    participation, budget = Participation(50, 0.1, 0.1), Budget(epsilon, 1e-5)
    for rounds in (1, 3):
        asked = SkellamMechanism.calibrated(bound, participation, budget, rounds)
        assert asked.share_noise >= least_noise(participation, budget)
    cheaper = SkellamMechanism.calibrated(bound, participation, Budget(1.7 * epsilon, 1e-5))
    if not isinstance(bound, NormBall):  # which is priced with some caution
        assert cheaper.share_noise < least_noise(participation, budget)
