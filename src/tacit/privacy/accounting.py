"""What events cost together, in epsilon and delta, and the least noise a budget allows.

Releases whose worst pair is known (sums under Skellam noise, steps of DP-SGD) are composed exactly,
as privacy-loss distributions; the others through Rényi divergences. Of very many that differ in
their noise, the noise is rounded down (:mod:`tacit.privacy.noise_lattice`). A ledger that holds
both kinds gets the smaller of two valid bounds: everything through Rényi divergences, or each kind
at half of delta with the epsilons added; the result says which. Delta is stated once, for
everything together.

What the guarantee assumes: later *questions* may depend on earlier answers, but noise levels and
the number of questions are fixed without looking at them. (Privacy-loss distributions are not known
to compose when the noise itself is chosen adaptively.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from tacit.privacy.events import (
    ABOUT_RECORDS,
    CLIENT,
    EXACT_SUM,
    RECORD,
    Event,
    Exact,
    Release,
    SampledGaussian,
    Scored,
    Selected,
    SkellamRelease,
    Unprotected,
    releases,
)
from tacit.privacy.losses import Losses, TooLargeToPrice, composed
from tacit.privacy.noise_lattice import on_lattice

SAMPLING_ERROR = 2.0**-80
"""Total-variation distance from true Skellam noise that every release is charged with."""

RUNS_ERROR = 2.0**-40
"""That of the number of runs that a selection draws."""

RDP_ORDERS: tuple[int, ...] = (*range(2, 65), 72, 80, 96, 128, 192, 256, 512, 1024)
"""Integers, because the published Skellam bound is stated for those."""

MOST_WORK = 3e7
"""What pricing may take, in entries of tables, grids and convolutions: a few seconds."""

MOST_RELEASES = 1_000
"""Different releases that are priced together; how often each happens does not matter."""

LEAST_DELTA, LARGEST_DELTA = 1e-10, 0.1
LEAST_EPSILON, LARGEST_EPSILON = 1e-3, 30.0

"""Claims about single records; other releases protect whole clients, and so their records."""
_INTERVALS_PER_EPSILON = 1e4
_MOST_SPREAD = 0.01
"""What a coarser grid may add to the variance of a loss, where the usual one is too much work."""
_MOST_COARSE_STEPS = 10**6
"""Beyond, what powers of transforms lose to rounding is no longer far below any delta."""
_ENTRIES_PER_TRANSFORMED = 10
# What floating-point convolution may lose: on the delta actually aimed at, so never optimistic.
_RELATIVE_SLACK, _ABSOLUTE_SLACK = 1e-6, 1e-14
_LARGEST_MU = 30.0
_WIDEST_SEARCH = 25.0
"""How far a calibration looks from a Gaussian's variance, as a logarithm."""


@dataclass(frozen=True)
class Budget:
    """The most that may be spent; an infinite epsilon allows answers in clear.

    >>> Budget(epsilon=0.0, delta=1e-5)
    Traceback (most recent call last):
        ...
    ValueError: epsilon is 0.0; allowed is 0.001 to 30
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            _within("epsilon", self.epsilon, LEAST_EPSILON, LARGEST_EPSILON)
        _within("delta", self.delta, LEAST_DELTA, LARGEST_DELTA)


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, with everything needed to read it."""

    epsilon: float
    delta: float
    accounting: str
    unit: str = "client"
    relation: str = "replace-one"


def spent(event: Event, delta: float) -> Guarantee:
    """What an event costs at ``delta``, never optimistic.

    The order of releases does not matter, not even to the last digit.

    *Proof of the last step.* The noise really drawn lies within ``t = releases * 2^-80`` of Skellam
    in total variation, whatever the data. If the ideal release is (e, d)-private then for every set
    S: ``P'(S) <= P(S) + t <= exp(e) Q(S) + d + t <= exp(e) Q'(S) + d + (1 + exp(e)) t``. So we ask
    the ideal release for ``delta - (1 + exp(e)) t``.

    Raises:
        TooLargeToPrice: before any work, where there would be too much of it.

    >>> vote = SkellamRelease(((1, 10),), variance=139.0)
    >>> round(spent(vote, delta=1e-5).epsilon, 3)
    0.999
    """
    return spent_together(releases(event), delta)


def spent_together(counts: Mapping[Release, int], delta: float) -> Guarantee:
    """What releases cost together that happen so many times each; see :func:`spent`."""
    _within("delta", delta, LEAST_DELTA, LARGEST_DELTA)
    if not counts:
        return Guarantee(0.0, delta, "nothing was asked")
    open_to_all = {release.what for release in counts if isinstance(release, Unprotected)}
    if open_to_all:
        exact_sums = open_to_all == {EXACT_SUM}
        reason = "sums were opened without noise" if exact_sums else "answers were sent in clear"
        return Guarantee(math.inf, delta, f"none: {reason}")
    if len(counts) > MOST_RELEASES:
        raise TooLargeToPrice(
            f"{len(counts)} different releases would be priced together; allowed are up to "
            f"{MOST_RELEASES}: ask questions that were asked before, with the same noise"
        )
    few = on_lattice(counts)
    # Sums of floating-point numbers depend on their order, prices must not.
    found = _spent(tuple(sorted(few.items(), key=repr)), delta)
    return found if few is counts else rounded_down(found)


def rounded_down(found: Guarantee) -> Guarantee:
    """The price of releases whose noise was rounded down, which it tells."""
    return replace(found, accounting=f"{found.accounting}, noise rounded down")


@lru_cache(maxsize=1024)
def _spent(ordered: tuple[tuple[Release, int], ...], delta: float) -> Guarantee:
    counts = dict(ordered)
    exact = {release: n for release, n in counts.items() if isinstance(release, Exact)}
    bounded: dict[Release, int] = {
        release: n for release, n in counts.items() if not isinstance(release, Exact)
    }
    sampling_error = sum(n * sampling_error_of(release) for release, n in counts.items())
    about_records = any(isinstance(release, ABOUT_RECORDS) for release in counts)
    unit = RECORD if about_records else CLIENT

    def cost(ideal: Callable[[float], float]) -> float:
        return with_sampling_error(ideal, delta, sampling_error)

    loss = _loss_of(exact, delta if not bounded else delta / 2, may_be_bounded=about_records)
    if not bounded and loss is not None:
        exactly = "exact worst pair, privacy-loss distribution"
        return Guarantee(cost(loss.get_epsilon_for_delta), delta, exactly, unit)
    curve = _rdp_curve(counts)
    everything = Guarantee(
        cost(lambda ideal: _rdp_epsilon(curve, ideal)), delta, "Rényi divergences", unit
    )
    if loss is None:
        return everything
    losses, rest = loss, _rdp_curve(bounded)
    added = Guarantee(
        cost(lambda ideal: losses.get_epsilon_for_delta(ideal / 2) + _rdp_epsilon(rest, ideal / 2)),
        delta,
        "mixed kinds: delta split in halves, epsilons added "
        "(privacy-loss distribution + Rényi divergences)",
        unit,
    )
    return min(everything, added, key=lambda guarantee: guarantee.epsilon)


def _loss_of(exact: Mapping[Exact, int], delta: float, *, may_be_bounded: bool) -> Losses | None:
    """What :func:`privacy_loss` says; None where there is nothing to compose or far too much.

    Of steps there may be millions, which Rényi divergences price as well. Questions are refused if
    they cannot be priced exactly, since whoever asks them chooses them.
    """
    try:
        return privacy_loss(exact, delta) if exact else None
    except TooLargeToPrice:
        if may_be_bounded:
            return None
        raise


def privacy_loss(counts: Mapping[Exact, int], delta: float) -> Losses:
    """The composed privacy-loss distribution, on a grid of epsilon / 10^4 or finer.

    A Gaussian of the same variance tells the scale of epsilon; where it is far too large, as with
    very little noise, the epsilon found on the coarse grid sets a finer one. An epsilon much
    smaller than the spread of the loss itself (a nearly free release) needs no finer grid. Whoever
    asks decides what is priced, so the work is estimated before any of it is done.
    """
    squared = sum(n * release.squared_distance for release, n in counts.items())
    compositions = sum(n * release.compositions for release, n in counts.items())
    steps = max(_INTERVALS_PER_EPSILON, 100 * math.sqrt(compositions))
    if not math.isfinite(squared):
        least = min(
            release.variance if isinstance(release, SkellamRelease) else release.noise**2
            for release in counts
        )
        raise TooLargeToPrice(f"noise of variance {least:.3g} is too little to be priced: add more")

    may_widen = _steps_only(counts) and compositions <= _MOST_COARSE_STEPS

    def on_grid(scale: float) -> Losses:
        interval = _grid(scale / steps)
        # Twice as wide, splitting adds up to (2 interval)^2 / 4 to the variance of each loss.
        while may_widen and compositions * interval**2 < _MOST_SPREAD * squared:
            if _work(counts, interval) <= MOST_WORK:
                break
            interval *= 2
        _check_work(counts, max(interval, scale / steps))
        return composed(part for release, n in counts.items() for part in release.plds(n, interval))

    finest = min(math.sqrt(squared), 1.0) / 10
    scale = max(gaussian_epsilon(squared, delta), finest)
    loss = on_grid(scale)
    better = max(loss.get_epsilon_for_delta(delta), finest)
    return loss if better > scale / 2 else on_grid(better)


def _grid(interval: float) -> float:
    """The next finer of four intervals per octave, so that neighbouring prices share tables."""
    return math.exp2(math.floor(4 * math.log2(interval)) / 4)


def _work(counts: Mapping[Exact, int], interval: float) -> float:
    """About how many entries pricing on a grid of this interval takes.

    Beside the entries of every release, each of its convolutions is with a total that reaches about
    ten deviations of the loss to either side of its mean.
    """
    drift = sum(n * release.drift for release, n in counts.items())
    total = (2 * drift + 20 * math.sqrt(2 * drift)) / interval
    convolutions = sum(release.convolutions for release in counts)
    if _steps_only(counts):  # which have another price, so they need not take as long as votes may
        convolutions *= _ENTRIES_PER_TRANSFORMED
    return convolutions * total + sum(release.entries(interval) for release in counts)


def _steps_only(counts: Mapping[Exact, int]) -> bool:
    return all(isinstance(release, SampledGaussian) for release in counts)


def _check_work(counts: Mapping[Exact, int], interval: float) -> None:
    """Refuse to price what would take too many entries on a grid of this interval."""
    work = _work(counts, interval)
    if not work <= MOST_WORK:
        shifted = [release for release in counts if isinstance(release, SkellamRelease)]
        furthest = max((release.shifts[-1][0] for release in shifted), default=0)
        variance = max((release.variance for release in shifted), default=0.0)
        convolutions = sum(release.convolutions for release in counts)
        raise TooLargeToPrice(
            f"exact pricing would take {work:.3g} entries of tables, of {convolutions} distances "
            f"up to {furthest} under noise of variance up to {variance:.3g}; allowed are "
            f"{MOST_WORK:.3g}: rank fewer candidates, or count in coarser steps"
        )


def rdp(event: Event) -> dict[int, float]:
    """The Rényi curve of an event: order to divergence."""
    curve = _rdp_curve(releases(event))
    return dict(zip(RDP_ORDERS, curve, strict=True))


def gaussian_epsilon(squared_distance: float, delta: float) -> float:
    """The exact epsilon of a Gaussian with this ``mu^2``: for scale and comparison only.

    Delta is ``Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)`` (Balle and
    Wang 2018, Theorem 8).

    >>> round(gaussian_epsilon(1.0, 1e-5), 2)
    4.38
    """
    mu = math.sqrt(squared_distance)
    # P(loss > epsilon) bounds delta, and the loss is normal: (mu^2 / 2, mu).
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    if mu > _LARGEST_MU:
        return high  # where exponentials overflow
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        exceeded = _normal_tail(middle / mu - mu / 2)
        exceeded -= math.exp(middle) * _normal_tail(middle / mu + mu / 2)
        low, high = (middle, high) if exceeded > delta else (low, middle)
    return high


def _normal_tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def calibrate(event_of: Callable[[float], Event], budget: Budget) -> float:
    """The least variance (to 1e-5 of itself) whose event fits the budget.

    ``event_of`` says what would be spent with noise of a given variance. More noise is
    post-processing, so the cost falls with the variance.

    Raises:
        ValueError: the cost does not pass the budget at any variance, since part of the event does
            not depend on it.

    >>> variance = calibrate(lambda v: SkellamRelease(((1, 10),), v), Budget(1.0, 1e-5))
    >>> round(variance, 1)
    138.9
    """
    from dp_accounting import get_sigma_gaussian
    from scipy.optimize import brentq

    if not math.isfinite(budget.epsilon):
        raise ValueError(
            f"epsilon is {budget.epsilon}; a private question needs a finite one, "
            f"{LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    squared = sum(n * part.squared_distance for part, n in releases(event_of(1.0)).items())
    guess = math.log(squared * float(get_sigma_gaussian(budget.epsilon, budget.delta)) ** 2)

    @cache
    def excess(log_variance: float) -> float:
        cost = spent(event_of(math.exp(log_variance)), budget.delta).epsilon
        return _log_ratio(cost, budget.epsilon)

    low, high = guess - 0.1, guess + 0.1
    while excess(low) < 0 and low > guess - _WIDEST_SEARCH:
        low -= 0.7
    while excess(high) > 0 and high < guess + _WIDEST_SEARCH:
        high += 0.7
    if excess(low) < 0 or excess(high) > 0:
        raise ValueError(
            f"variances from {math.exp(low):.3g} to {math.exp(high):.3g} were tried; none of them "
            f"costs epsilon {budget.epsilon:g} at delta {budget.delta:g}, since part of the event "
            "does not depend on the variance: allowed is an event whose noise is all of it"
        )
    root = float(brentq(excess, low, high, xtol=1e-6))
    while excess(root) > 0:
        root += 2e-6
    return math.exp(root)


def ideal_epsilon(event: Event, delta: float) -> float:
    """The cost at any delta by Rényi divergences, were noise sampled without error.

    For comparisons beyond what a :class:`Budget` admits; nothing is certified there.
    """
    return _rdp_epsilon(_rdp_curve(releases(event)), delta)


def ideal_noise(event_of: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The least variance for any epsilon by Rényi divergences, were noise sampled without error.

    For comparisons beyond what a :class:`Budget` admits; nothing is certified there.
    """
    from scipy.optimize import brentq

    def excess(log_variance: float) -> float:
        return _log_ratio(ideal_epsilon(event_of(math.exp(log_variance)), delta), epsilon)

    root = float(brentq(excess, -20.0, 40.0, xtol=1e-6))
    return math.exp(root + 2e-6)


def _log_ratio(cost: float, epsilon: float) -> float:
    return math.log(min(max(cost, 1e-9), 1e9) / epsilon)


def sampling_error_of(release: Release) -> float:
    """How far what was drawn lies from what is priced, in total variation."""
    if isinstance(release, Selected):
        return RUNS_ERROR
    return 0.0 if isinstance(release, (SampledGaussian, Scored)) else SAMPLING_ERROR


def with_sampling_error(
    ideal: Callable[[float], float], delta: float, sampling_error: float
) -> float:
    """An epsilon whose own ``(1 + exp(epsilon)) t`` was set aside from delta before."""
    reserved = 0.0
    while True:
        aimed = delta * (1 - _RELATIVE_SLACK) - _ABSOLUTE_SLACK - reserved
        if aimed <= 0:
            return math.inf
        epsilon = ideal(aimed)
        if epsilon > 600:
            return math.inf
        needed = (1 + math.exp(epsilon)) * sampling_error
        if needed <= reserved:
            return epsilon
        reserved = 2 * needed


def _rdp_curve(counts: Mapping[Release, int]) -> list[float]:
    curves = [n * release.rdp(RDP_ORDERS) for release, n in counts.items()]
    return [float(sum(at_order)) for at_order in zip(*curves, strict=True)]


def _rdp_epsilon(curve: list[float], delta: float) -> float:
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(list(RDP_ORDERS), curve, delta)[0])


def _within(name: str, value: float, least: float, largest: float) -> None:
    if not least <= value <= largest:
        raise ValueError(f"{name} is {value!r}; allowed is {least:g} to {largest:g}")
