from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as google

from tacit.privacy import accounting, events
from tacit.privacy.accounting import Budget, Guarantee, calibrate, privacy_loss, rdp, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import (
    Composed,
    Event,
    Release,
    Repeated,
    SkellamNormRelease,
    SkellamRelease,
    Unprotected,
    compose,
    from_json,
    releases,
    to_json,
)
from tacit.privacy.skellam import FloatArray
from tests.brute_force import hockey_stick, noisy, skellam_pmf

DELTA = 1e-5
PUBLISHED_VARIANCES = {
    1: (1890.1, 351.8, 97.5, 26.3, 2.48),
    5: (9456.1, 1765.2, 494.4, 139.0, 18.98),
    10: (18912.8, 3530.7, 989.2, 278.4, 38.5),
}
VOTE = SkellamRelease(((1, 10),), 139.0)
NORMS = SkellamNormRelease(l1=10.0, l2=math.sqrt(10), variance=139.0)


@pytest.mark.parametrize("votes", PUBLISHED_VARIANCES)
def test_calibration_reproduces_the_table_within_half_a_percent(votes: int) -> None:
    bound = TopVotes(100, votes)
    for epsilon, expected in zip((0.1, 0.25, 0.5, 1, 3), PUBLISHED_VARIANCES[votes], strict=True):
        found = calibrate(bound.release, Budget(epsilon, DELTA))
        assert found == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(
    ("shifts", "variance"),
    [
        (((1, 1),), 0.3),
        (((1, 2),), 2.0),
        (((1, 3),), 1.0),
        (((1, 1), (2, 1)), 3.0),
        (((3, 1), (2, 1), (1, 1)), 4.0),
        (((4, 2),), 6.0),
    ],
)
def test_deltas_match_brute_force_and_are_never_below_it(
    shifts: tuple[tuple[int, int], ...], variance: float
) -> None:
    """Every outcome of the noisy vector, enumerated."""
    release = SkellamRelease(shifts, variance)
    answer = [distance for distance, count in release.shifts for _ in range(count)]
    margin = max(answer)
    pmf = skellam_pmf(variance, furthest=int(8 * math.sqrt(variance)) + 12)
    p, q = noisy([0] * len(answer), pmf, margin), noisy(answer, pmf, margin)
    loss = privacy_loss({release: 1}, DELTA)
    for epsilon in (0.0, 0.2, 1.0, 2.5, 5.0, 8.0, 12.0):
        exact = hockey_stick(p, q, epsilon)
        found = loss.get_delta_for_epsilon(epsilon)
        assert found >= exact * (1 - 1e-9) - 1e-15
        assert found <= exact * 1.001 + 1e-12


@pytest.mark.parametrize("votes", [1, 5])
@pytest.mark.parametrize("variance", [2.5, 139.0, 1765.0])
def test_epsilon_agrees_with_dp_accounting_called_by_hand(votes: int, variance: float) -> None:
    """Google's own pessimistic and optimistic rounding enclose ours."""
    furthest = int(9 * math.sqrt(variance)) + 12
    log_pmf = dict(
        zip(range(-furthest, furthest + 1), np.log(skellam_pmf(variance, furthest)), strict=True)
    )
    shifted = {x + 1: value for x, value in log_pmf.items()}

    def by_hand(*, pessimistic: bool) -> float:
        one = google.from_two_probability_mass_functions(
            shifted,
            log_pmf,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=2e-5,
        )
        return float(one.self_compose(2 * votes).get_epsilon_for_delta(DELTA))

    found = spent(SkellamRelease(((1, 2 * votes),), variance), DELTA).epsilon
    assert by_hand(pessimistic=False) <= found <= by_hand(pessimistic=True)


@pytest.mark.parametrize("release", [VOTE, NORMS, SkellamRelease(((3, 2), (1, 4)), 50.0)])
def test_repeating_costs_as_often(release: Release) -> None:
    """n times the Rényi curve; and exactly, n releases of m shifts are one of n m shifts."""
    once, often = rdp(release), rdp(Repeated(release, 7))
    assert list(often.values()) == pytest.approx([7 * value for value in once.values()])
    repeated = spent(Repeated(release, 7), DELTA)
    assert repeated == spent(Composed((release,) * 7), DELTA)
    if isinstance(release, SkellamRelease):
        wide = SkellamRelease(tuple((d, 7 * n) for d, n in release.shifts), release.variance)
        assert repeated.epsilon == pytest.approx(spent(wide, DELTA).epsilon, rel=1e-6)
    assert repeated.epsilon > 2 * spent(release, DELTA).epsilon


def test_renyi_curve_of_the_worst_pair_matches_the_definition() -> None:
    pmf = skellam_pmf(5.0, furthest=35)
    p, q = pmf[2:], pmf[:-2]
    curve = rdp(SkellamRelease(((2, 3),), 5.0))
    for order in (2, 3, 8):
        direct = math.log(float((p**order * q ** (1.0 - order)).sum())) / (order - 1)
        assert curve[order] == pytest.approx(3 * direct, rel=1e-9)


@pytest.mark.parametrize("shift", [1, 7, 60])
@pytest.mark.parametrize("variance", [0.05, 4.0, 900.0])
def test_renyi_sums_run_far_enough(
    monkeypatch: pytest.MonkeyPatch, shift: int, variance: float
) -> None:
    release = SkellamRelease(((shift, 1),), variance)
    found = rdp(release)
    monkeypatch.setattr(events, "_LOG_NEGLIGIBLE", 20 * math.log(1e-22))
    assert list(rdp(release).values()) == pytest.approx(list(found.values()), rel=1e-12)


def test_long_renyi_sums_give_way_to_the_published_bound() -> None:
    far = SkellamRelease(((100_000, 3),), 1e9)
    norms = SkellamNormRelease(300_000.0, 100_000 * math.sqrt(3), 1e9)
    assert rdp(far) == pytest.approx(rdp(norms))


@pytest.mark.parametrize("variance", [4.0, 139.0, 9456.0])
@pytest.mark.parametrize("shifts", [((1, 10),), ((5, 2), (1, 3)), ((20, 1),)])
def test_published_norm_bound_dominates_the_exact_curve(
    shifts: tuple[tuple[int, int], ...], variance: float
) -> None:
    exact = SkellamRelease(shifts, variance)
    l1 = float(sum(d * n for d, n in shifts))
    l2 = math.sqrt(sum(d * d * n for d, n in shifts))
    bound = rdp(SkellamNormRelease(l1, l2, variance))
    for order, value in rdp(exact).items():
        assert value <= bound[order] * (1 + 1e-9)


@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-5])
@pytest.mark.parametrize("variance", [1e-4, 0.02])
def test_very_little_noise_is_priced_exactly_too(variance: float, delta: float) -> None:
    """Where a Gaussian would be far off: two coordinates, all outcomes enumerated."""
    pmf = skellam_pmf(variance, furthest=25)
    p, q = noisy([0, 0], pmf, 1), noisy([1, 1], pmf, 1)
    epsilon = spent(SkellamRelease(((1, 2),), variance), delta).epsilon
    assert hockey_stick(p, q, epsilon) <= delta
    assert hockey_stick(p, q, epsilon - 0.002) > delta


@pytest.mark.parametrize("mu", [2e-5, 2.55e-5, 3e-5])
def test_a_nearly_free_release_is_priced_on_a_modest_grid(
    monkeypatch: pytest.MonkeyPatch, mu: float
) -> None:
    intervals: list[float] = []
    real = events._shift_losses

    def watched(table: FloatArray, distance: int, interval: float) -> object:
        intervals.append(interval)
        return real(table, distance, interval)

    monkeypatch.setattr(events, "_shift_losses", watched)
    events._coordinate.cache_clear()
    release = SkellamRelease(((1, 2),), 2 / mu**2)
    spread = math.sqrt(release.squared_distance)
    found = spent(release, DELTA).epsilon
    exact = accounting.gaussian_epsilon(release.squared_distance, DELTA)
    assert exact * 0.999 - 1e-12 <= found <= exact * 1.01 + 1e-12
    assert min(intervals) > spread / 10**5.5


def test_an_l2_bound_alone_would_be_optimistic() -> None:
    """One coordinate shifted by 4 and 16 shifted by 1 have the same L2 distance."""
    focused = spent(SkellamRelease(((4, 1),), 4.0), DELTA).epsilon
    spread = spent(SkellamRelease(((1, 16),), 4.0), DELTA).epsilon
    assert abs(spread - focused) > 0.05 * focused


@pytest.mark.parametrize("budget", [Budget(0.1, 1e-5), Budget(3.0, 1e-9), Budget(20.0, 1e-6)])
@pytest.mark.parametrize(
    "event_of",
    [
        lambda v: SkellamRelease(((1, 10),), v),
        lambda v: Repeated(SkellamRelease(((3, 2), (2, 2), (1, 2)), v), 5),
        lambda v: SkellamNormRelease(40.0, 12.0, v),
    ],
)
def test_calibrated_noise_fits_and_hardly_less_would(event_of: object, budget: Budget) -> None:
    assert callable(event_of)
    variance = calibrate(event_of, budget)
    assert spent(event_of(variance), budget.delta).epsilon <= budget.epsilon
    assert spent(event_of(variance * 0.9999), budget.delta).epsilon > budget.epsilon


def test_mixed_kinds_split_delta_and_say_so() -> None:
    mixed = spent(Composed((Repeated(VOTE, 30), SkellamNormRelease(1.0, 1.0, 5000.0))), DELTA)
    assert "delta split in halves, epsilons added" in mixed.accounting
    halves = (
        spent(Repeated(VOTE, 30), DELTA / 2).epsilon
        + spent(SkellamNormRelease(1.0, 1.0, 5000.0), DELTA / 2).epsilon
    )
    assert mixed.epsilon == pytest.approx(halves, rel=1e-3)
    assert mixed.delta == DELTA


def test_mixing_never_costs_more_than_renyi_alone() -> None:
    event = Composed((VOTE, NORMS))
    found = spent(event, DELTA)
    assert found.accounting == "Rényi divergences"
    assert found.epsilon < spent(VOTE, DELTA / 2).epsilon + spent(NORMS, DELTA / 2).epsilon


def test_sampling_error_is_taken_from_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    ideal = spent(VOTE, DELTA).epsilon
    monkeypatch.setattr(accounting, "SAMPLING_ERROR", 1e-6)

    def priced_anew(event: Event, delta: float) -> Guarantee:
        return accounting._spent.__wrapped__(tuple(releases(event).items()), delta)

    coarse = priced_anew(VOTE, DELTA)
    loss = privacy_loss({VOTE: 1}, DELTA)
    reserved = (1 + math.exp(coarse.epsilon)) * 1e-6
    assert loss.get_delta_for_epsilon(coarse.epsilon) + reserved <= DELTA
    assert coarse.epsilon > ideal
    assert priced_anew(Repeated(VOTE, 20), DELTA).epsilon == math.inf


def test_nothing_asked_costs_nothing_and_answers_in_clear_cost_everything() -> None:
    assert spent(Composed(()), DELTA).epsilon == 0
    in_clear = compose([VOTE, Unprotected("winners")])
    assert spent(in_clear, DELTA).epsilon == math.inf
    assert from_json(to_json(in_clear)) == in_clear


def test_missing_noise_costs_what_the_notes_say() -> None:
    """90, 80 and 50 % of the planned noise turn epsilon 1 into 1.06, 1.13 and 1.46."""
    planned = calibrate(TopVotes(100, 5).release, Budget(1.0, DELTA))
    for share, expected in ((0.9, 1.06), (0.8, 1.13), (0.5, 1.46)):
        found = spent(SkellamRelease(((1, 10),), share * planned), DELTA).epsilon
        assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("delta", [0.0, 1e-11, 0.5, math.nan])
def test_delta_outside_the_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=r"delta is .*; allowed is 1e-10 to 0.1"):
        spent(VOTE, delta)


@pytest.mark.parametrize(
    "event", [VOTE, NORMS, Repeated(VOTE, 3), Composed((VOTE, Repeated(NORMS, 2)))]
)
def test_events_survive_json_and_composition(event: Event) -> None:
    assert from_json(to_json(event)) == event
    assert spent(compose([event]), DELTA) == spent(event, DELTA)


def test_equal_shifts_are_equal_events_in_any_order() -> None:
    assert SkellamRelease(((2, 1), (1, 3)), 5.0) == SkellamRelease(((1, 1), (2, 1), (1, 2)), 5.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SkellamRelease((), 5.0),
        lambda: SkellamRelease(((0, 3),), 5.0),
        lambda: SkellamRelease(((1, 3),), 0.0),
        lambda: SkellamRelease(((1, 3),), math.nan),
        lambda: SkellamNormRelease(-1.0, 1.0, 5.0),
        lambda: Repeated(VOTE, 0),
        lambda: from_json({"kind": "laplace"}),
        lambda: Budget(-math.inf, 1e-5),
        lambda: calibrate(TopVotes(100, 5).release, Budget(math.inf, 1e-5)),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"is|are|nothing"):
        make()


@pytest.mark.parametrize("sigma", [0.5, 50.0])
def test_noise_that_does_not_depend_on_the_variance_is_refused_not_searched_for(
    sigma: float,
) -> None:
    """A search for it never ended, and took all of the machine's memory."""
    with pytest.raises(ValueError, match="does not depend on the variance"):
        calibrate(lambda _variance: events.SampledGaussian(0.01, sigma, 10), Budget(1.0, 1e-5))


@pytest.mark.parametrize("variance", [1e-170, 1e-310])
def test_next_to_no_noise_costs_more_than_any_budget(variance: float) -> None:
    """A node that is asked for that refuses, and NumPy has nothing to say in its log."""
    asked = SkellamNormRelease(10.0, 3.0, variance)
    assert np.all(asked.rdp((2, 64)) > 1e100)
    assert not spent(asked, DELTA).epsilon <= accounting.LARGEST_EPSILON
