"""Epsilons that hold although somebody looked: a Rényi filter, and a ladder of announced budgets.

:func:`tacit.privacy.accounting.spent` is proved for a plan that nobody changes after an answer:
noise levels and the number of questions are fixed beforehand. Two weaker promises are priced here.

*A filter* (Feldman and Zrnic 2021, "Individual privacy accounting via a Rényi filter"; Lécuyer
2021) lets noise levels and the number of questions depend on all earlier answers, under one budget
that was fixed before the first. *A ladder* lets the budget itself grow after looking, over steps
that were announced before the first answer.

How we differ: Lécuyer's filter follows many Rényi orders and goes on while one of them is within
its bound. Which order that is in the end depends on the answers, and we know of no proof that does
not pay for it, so we follow one order, a public function of the budget (:func:`filter_order`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from tacit.privacy.accounting import (
    LEAST_DELTA,
    RDP_ORDERS,
    RUNS_ERROR,
    SAMPLING_ERROR,
    Budget,
    rdp,
)
from tacit.privacy.events import (
    Event,
    Release,
    SampledGaussian,
    Scored,
    SkellamNormRelease,
    SkellamRelease,
    releases,
)

MOST_STEPS = 100
"""Of a ladder; each has its share of delta."""

_SAMPLING_SHARE, _ROUNDING_SHARE = 1e-2, 1e-6
"""Of delta: set aside for the error of sampled noise, and for that of floating-point numbers."""


def filter_order(budget: Budget) -> int:
    """The one Rényi order that a budget's filter follows, fixed together with the budget.

    Any order is valid. We take the one at which a Gaussian needs the least noise to fit the budget:
    its divergence of order a is proportional to a.

    >>> filter_order(Budget(1.0, 1e-5)), filter_order(Budget(4.0, 1e-5))
    (18, 6)
    """
    if not math.isfinite(budget.epsilon):
        return RDP_ORDERS[0]
    return max(RDP_ORDERS, key=lambda order: _level(order, budget) / order)


def filter_level(budget: Budget) -> float:
    """The largest divergence of order :func:`filter_order` that all charges may have together.

    *Proof that what is released within the level is (epsilon, delta)-private, however noise levels
    and the number of questions were chosen.* Let P and Q be the distributions of the transcript
    ``y_1, y_2, ..`` under two neighbours, a the order and B the level. Before question t is asked,
    its noise is known, hence a bound ``r_t`` on its divergence of order a: a function of
    ``y_1 .. y_{t-1}``. Let ``M_t`` be the product over s <= t of ``(p_s / q_s)^a exp(-(a - 1)
    r_s)``, with ``p_s`` and ``q_s`` the densities of ``y_s`` given what came before. By the
    definition of the divergence, ``E_Q[(p_t / q_t)^a | y_1 .. y_{t-1}] <= exp((a - 1) r_t)``, so M
    is a supermartingale under Q and ``E_Q[M] <= 1`` at the end. The transcript ends before the
    first question that would bring the sum of the ``r_t`` above B, so that sum is at most B on
    *every* transcript, and ``E_Q[(dP/dQ)^a] <= exp((a - 1) B)``: the divergence of the whole is at
    most B. At a fixed order this gives (epsilon, delta) by Canonne, Kamath and Steinke 2020,
    Proposition 12: ``epsilon = B + log(1 - 1/a) - log(delta a) / (a - 1)``, solved for B here.

    *What was really drawn.* Noise lies within ``t_s`` of the priced one in total variation. The
    transcript also ends before the sum of the ``t_s`` would exceed a bound T with ``(1 + exp(
    epsilon)) T`` = 1 % of delta. Drawing both transcripts together, they differ with probability at
    most T, and :func:`tacit.privacy.accounting.spent` shows that ``(1 + exp(epsilon)) T`` more of
    delta pays for it. So 99 % of delta are converted.

    The level is 0 or below where a budget is too small for the orders we have: nothing is covered.

    >>> round(filter_level(Budget(1.0, 1e-5)), 3)
    0.549
    """
    return _level(filter_order(budget), budget)


def filter_epsilon(events: Sequence[Event], budget: Budget) -> float:
    """How far events have filled a budget's filter, on the scale of epsilon.

    It is at most ``budget.epsilon`` if and only if the filter covers the events. It is a gauge,
    *not an epsilon to quote*: events that were chosen by looking make it random. What the filter
    proves is ``budget.epsilon``.

    >>> vote = SkellamRelease(((1, 10),), variance=200.0)
    >>> round(filter_epsilon([vote], Budget(1.0, 1e-5)), 3)
    0.9
    """
    return _gauges(events, budget)[-1] if events else 0.0


def covered(events: Sequence[Event], budget: Budget) -> int:
    """How many events, from the first on, a budget's filter covers.

    Everything up to the first event that would exceed the filter is (epsilon, delta)-private,
    whatever came later.

    >>> vote = SkellamRelease(((1, 10),), variance=200.0)
    >>> covered([vote] * 5, Budget(1.0, 1e-5)), covered([vote] * 5, Budget(2.0, 1e-5))
    (1, 4)
    """
    gauges = _gauges(events, budget)
    beyond = (count for count, gauge in enumerate(gauges) if gauge > budget.epsilon)
    return next(beyond, len(events))


def split_ladder(epsilons: Sequence[float], delta: float) -> tuple[Budget, ...]:
    """The steps of a ladder: every epsilon with an equal share of delta.

    Raises:
        ValueError: unless there are at least two steps, each larger than the one before.

    >>> split_ladder([1, 2, 4], 3e-5)
    (Budget(epsilon=1, delta=1e-05), Budget(epsilon=2, delta=1e-05), Budget(epsilon=4, delta=1e-05))
    """
    _check_epsilons(epsilons)
    share = delta / len(epsilons)
    if share < LEAST_DELTA <= delta:
        raise ValueError(
            f"delta is {delta:g}, of which each of the ladder's {len(epsilons)} steps gets "
            f"{share:g}; allowed is {LEAST_DELTA:g} a step or more: announce fewer steps"
        )
    return tuple(Budget(epsilon, share) for epsilon in epsilons)


def check_ladder(ladder: Sequence[Budget], budget: Budget) -> None:
    """Refuse a ladder that is none, or that does not begin with the budget.

    The deltas of the steps must not exceed the budget's delta together: the proof of
    :func:`ladder_step` adds them up.
    """
    _check_epsilons([step.epsilon for step in ladder])
    if ladder[0].epsilon != budget.epsilon:
        raise ValueError(
            f"the ladder begins with epsilon {ladder[0].epsilon:g} and the budget is "
            f"{budget.epsilon:g}; both must be the same: begin the ladder with the budget"
        )
    total = ladder_delta(ladder)
    if total > budget.delta:
        raise ValueError(
            f"the deltas of the ladder's steps are {total:g} together and the budget's delta is "
            f"{budget.delta:g}; allowed is no more than that: give each step a share of it"
        )


def ladder_delta(ladder: Sequence[Budget]) -> float:
    """What all steps of a ladder have of delta, rounded to 12 digits."""
    return float(f"{math.fsum(step.delta for step in ladder):.12g}")


def announced_step(budget: Budget, ladder: Sequence[Budget]) -> int | None:
    """Which step of a ladder, from 1 on, a budget is; none if it was not announced.

    >>> announced_step(Budget(2.0, 1e-5), split_ladder([1, 2, 4], 1e-5))
    2
    """
    if not ladder or budget.delta > ladder_delta(ladder):
        return None
    epsilons = [step.epsilon for step in ladder]
    return epsilons.index(budget.epsilon) + 1 if budget.epsilon in epsilons else None


def ladder_step(events: Sequence[Event], ladder: Sequence[Budget]) -> int | None:
    """The lowest step, from 1 on, whose filter covers all events; none if no step does.

    *What holds.* Let K be this step, a function of the transcript. For every set S of transcripts
    that some step covers and every two neighbours: ``P(S) <= sum over i of exp(epsilon_i) Q(S and
    K = i) + delta``, where delta is the sum of all ``delta_i``. So all transcripts together that
    end at step k or below have epsilon ``epsilon_k`` at that delta, whoever raised the budget after
    whatever answer, and whenever they stopped.

    *Proof.* The filter of step i is fixed beforehand. By :func:`filter_level`, the transcript up to
    the first question that would exceed it is (``epsilon_i``, ``delta_i``)-private, whatever is
    asked later and whatever budget is in force. Where K = i, that part is the whole transcript, so
    "S and K = i" is a set of outcomes of it, and ``P(S and K = i) <= exp(epsilon_i) Q(S and K = i)
    + delta_i``. Add up over i. (Steps share delta because each may fail on other transcripts.)

    >>> vote = SkellamRelease(((1, 10),), variance=200.0)
    >>> steps = split_ladder([1, 2, 4], 1e-5)
    >>> [ladder_step([vote] * times, steps) for times in (1, 2, 9, 20)]
    [1, 2, 3, None]
    """
    within = (filter_epsilon(events, step) <= step.epsilon for step in ladder)
    return next((number for number, fits in enumerate(within, start=1) if fits), None)


def _check_epsilons(epsilons: Sequence[float]) -> None:
    listed = ", ".join(f"{epsilon:g}" for epsilon in epsilons)
    if not 2 <= len(epsilons) <= MOST_STEPS:
        raise ValueError(
            f"the ladder has {len(epsilons)} step(s); allowed are 2 to {MOST_STEPS}: announce the "
            "budget and every larger epsilon that it may be raised to"
        )
    if any(not low < high for low, high in pairwise(epsilons)):
        raise ValueError(
            f"the ladder's epsilons are {listed}; each must be larger than the one before: "
            "sort them and drop repeats"
        )
    if not math.isfinite(epsilons[-1]):
        raise ValueError(
            f"the ladder's epsilons are {listed}; an infinite one guarantees nothing: announce "
            "finite ones"
        )


def _gauges(events: Sequence[Event], budget: Budget) -> list[float]:
    """What :func:`filter_epsilon` says after each event."""
    order = filter_order(budget)
    aimed, largest_error = _aimed(budget), _largest_error(budget)
    gauges, divergence, error = [], 0.0, 0.0
    for event in events:
        divergence, error = map(sum, zip((divergence, error), _cost(event, order), strict=True))
        gauge = max(0.0, _converted(order, divergence, aimed))
        gauges.append(gauge if error <= largest_error else math.inf)
    return gauges


@lru_cache(maxsize=4096)
def _cost(event: Event, order: int) -> tuple[float, float]:
    """An event's divergence at this order, and the error of the noise drawn for it."""
    error = math.fsum(n * _sampling_error(release) for release, n in releases(event).items())
    return rdp(event)[order], error


def _sampling_error(release: Release) -> float:
    """How far what is drawn lies from what is priced; for kinds unknown here, the largest."""
    if isinstance(release, SampledGaussian | Scored):
        return 0.0
    skellam = isinstance(release, SkellamRelease | SkellamNormRelease)
    return SAMPLING_ERROR if skellam else RUNS_ERROR


def _largest_error(budget: Budget) -> float:
    if not math.isfinite(budget.epsilon):
        return math.inf
    return _SAMPLING_SHARE * budget.delta / (1 + math.exp(budget.epsilon))


def _aimed(budget: Budget) -> float:
    return budget.delta * (1 - _SAMPLING_SHARE - _ROUNDING_SHARE)


def _converted(order: int, divergence: float, delta: float) -> float:
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _level(order: int, budget: Budget) -> float:
    return budget.epsilon - _converted(order, 0.0, _aimed(budget))
