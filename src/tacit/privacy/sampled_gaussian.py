"""What one step of DP-SGD reveals of a record that is replaced: its worst pair and its price.

Every unit (a record, or a group of rows that belong together) is in a step with probability ``q``,
independently of all others. The step releases the sum of the gradients that are in, each of norm at
most one, plus Gaussian noise of standard deviation ``noise`` in every coordinate. Neighbours differ
by **replacing one unit**; how many there are is public.

*Theorem.* The pair ``P = (1 - q) N(0) + q N(1)`` and ``Q = (1 - q) N(0) + q N(-1)``, on a line and
with the same noise, dominates: no other pair of neighbours has a larger hockey-stick divergence at
any order, hence none has a larger Rényi divergence, and products of it dominate compositions (Zhu,
Dong and Wang 2022, Theorem 10).

*Proof.* Which other units are in has the same distribution in both worlds, and divergences are
jointly convex, so fix them; they shift both worlds alike, so let their sum be zero. Let ``u`` and
``v`` be the gradients of the unit and of its replacement. With ``A = dN(u)/dN(0)`` and
``B = dN(v)/dN(0)``, the divergence at order ``g`` is the mean under ``N(0)`` of
``F(A, B) = max(0, (1 - q)(1 - g) + q A - g q B)``. There ``log A`` and ``log B`` are jointly normal
with variances ``|u|^2`` and ``|v|^2``, the covariance ``<u, v>`` (all over the noise squared), and
the means that make ``E A = E B = 1``. ``F`` is convex in ``A`` and in ``B``, and its mixed
derivative is not positive.

1. *Directions.* At fixed variances the mean of a function of two jointly normal numbers changes
   with their covariance by the mean of its mixed derivative (Plackett 1954; smooth ``F`` first,
   then go to the limit), and that of ``F`` by the logarithms is ``A B`` times that of ``F``, so not
   positive. So the divergence is largest where ``<u, v> = -|u| |v|``: opposite directions.
2. *Lengths.* Let ``|u|`` grow to one. Adding to ``log A`` an independent normal number of the
   missing variance, with a mean that keeps ``E A = 1``, does not lower the mean of ``F`` (Jensen,
   given ``A`` and ``B``). It leaves the covariance; lowering that to ``-|v|`` does not lower the
   mean of ``F`` either, by 1. The same holds for ``|v|`` and ``B``. So both norms are one.

``P`` and ``Q`` are mirror images, so both directions cost the same. dp-accounting has this pair
among its privacy-loss distributions (``REPLACE_ONE``), where ``noise_multiplier`` is in units of
the norm of one gradient; its Rényi accountant has add-or-remove only, and its other Gaussian events
under ``REPLACE_ONE`` are in units of the *distance* of two gradients, twice as much. So Rényi
divergences are computed here, by quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tacit.privacy.losses import Losses
from tacit.privacy.skellam import FloatArray

_LEAST_NOISE = 0.2
"""Below this, Rényi divergences are those of a record that is in for certain."""
_STEPS_PER_WIDTH = 24
_DEVIATIONS = 40.0
_SLACK = 1e-9
"""What quadrature may be wrong by, as a share of the divergence; tests compare with mpmath."""
_SMALL = 1e-3
_REACH = 10.0
"""Deviations beyond which a Gaussian weighs less than 1e-23."""
_TAIL_ERROR = 1e-13
"""SciPy's normal tails are within 4e-14 of themselves, and the places where they are taken, which
are within some units of double precision, add less than that."""
_LARGE_RATIO = 20.0
_LARGE_LOSS = 600.0
"""Before exponentials overflow; what loses more counts as if it lost the upper end."""


@lru_cache(maxsize=16)
def replaced_pld(rate: float, noise: float, interval: float) -> Losses:
    """The privacy-loss distribution of one step, pessimistic, on a grid of this interval.

    With ``c = q exp(-1 / 2 noise^2)`` the loss at ``x`` is ``e`` where ``x = noise^2 (e / 2 +
    asinh((1 - q) sinh(e / 2) / c))``: a quadratic equation in ``exp(x / noise^2)``. So the places
    where the loss is on the grid are known, and between two of them there is a mass ``p`` under
    ``P`` and ``r`` under ``Q``. That is split over both ends so that both totals stay ("Connect the
    Dots", Doroshenko et al. 2022): the true outcomes are a post-processing of the split ones. Below
    zero everything is mirrored, with ``p`` and ``r`` exchanged. What is beyond the last place
    counts as a loss of infinity on one side, and as the least loss of the grid on the other.

    *Floating point.* A difference of two tails is wrong by :data:`_TAIL_ERROR` of them at most. So
    much more is put at the upper end, which makes delta larger at every epsilon.

    dp-accounting computes the same, in a Python call for each place of the grid.

    >>> round(replaced_pld(1.0, 2.0, 1e-3).get_epsilon_for_delta(1e-5), 2)  # a Gaussian of mu 1
    4.38
    """
    size = int(grid_size(rate, noise, interval))
    grid: FloatArray = np.arange(size + 1, dtype=np.float64) * interval
    x = _where_loss_is(rate, noise, grid)
    away, near, far = (_between(x, mean, noise) for mean in (0.0, 1.0, -1.0))
    (p, p_error), (r, r_error) = (
        tuple((1 - rate) * common + rate * own for common, own in zip(away, one, strict=True))
        for one in (near, far)
    )
    width = -math.expm1(-interval)
    shrink = np.exp(-grid)
    # The upper end of a loss below zero is the one nearer to it.
    excess = (p + p_error) * shrink[:-1] - (r - r_error)
    above = np.clip(excess * np.exp(np.minimum(grid[:-1], _LARGE_LOSS)) / width, 0.0, p)
    above = np.where(grid[:-1] > _LARGE_LOSS, p, above)
    below = np.clip((r - p * shrink[1:] + r_error + p_error * shrink[1:]) / width, 0.0, r)
    masses = np.zeros(2 * size + 1)
    masses[size + 1 :] += above
    masses[size:-1] += p - above
    masses[1 : size + 1] += below[::-1]
    masses[:size] += (r - below)[::-1]
    beyond = _mass_beyond(rate, noise, float(x[-1]), 1.0)
    masses[0] += _mass_beyond(rate, noise, float(x[-1]), -1.0)
    masses.flags.writeable = False
    return Losses(-size, masses, beyond, interval)


def grid_size(rate: float, noise: float, interval: float) -> float:
    """How many places the grid of one step has above zero; below there are as many.

    >>> len(replaced_pld(0.01, 1.0, 1e-3).masses) == 2 * grid_size(0.01, 1.0, 1e-3) + 1
    True
    """
    furthest = 1 + _REACH * noise
    absent = math.log1p(-rate) if rate < 1 else -math.inf
    up, down = (
        float(np.logaddexp(absent, math.log(rate) + (sign * furthest - 0.5) / noise**2))
        for sign in (1, -1)
    )
    return float(np.ceil((up - down) / interval))


def _where_loss_is(rate: float, noise: float, loss: FloatArray) -> FloatArray:
    """Where ``log P / Q`` is so much, which is 0 or more."""
    with np.errstate(divide="ignore"):  # a loss of 0, and a rate of 1
        log_sinh = loss / 2 + np.log(-np.expm1(-loss)) - math.log(2)
        scale = np.log1p(-rate) - math.log(rate) + 1 / (2 * noise**2)
    log_ratio = log_sinh + scale
    large = log_ratio > _LARGE_RATIO  # asinh of it is its logarithm and that of two
    inverse = np.where(
        large, log_ratio + math.log(2), np.arcsinh(np.exp(np.where(large, 0.0, log_ratio)))
    )
    return np.asarray(noise**2 * (loss / 2 + inverse), dtype=np.float64)


def _between(x: FloatArray, mean: float, noise: float) -> tuple[FloatArray, FloatArray]:
    """The mass of a normal variable between neighbouring places, and how wrong it may be."""
    from scipy.special import ndtr

    z = (x - mean) / noise
    tail = ndtr(-np.abs(z))
    left, right = tail[:-1], tail[1:]
    apart = (z[:-1] < 0) & (z[1:] > 0)
    mass = np.where(apart, 1 - left - right, np.abs(left - right))
    return mass, _TAIL_ERROR * np.where(apart, 1.0, np.maximum(left, right))


def _mass_beyond(rate: float, noise: float, x: float, mean: float) -> float:
    from scipy.special import ndtr

    return float((1 - rate) * ndtr(-x / noise) + rate * ndtr((mean - x) / noise))


@lru_cache(maxsize=2048)
def replaced_rdp(rate: float, noise: float, orders: Sequence[int]) -> FloatArray:
    """The Rényi divergence of one step at every order, an upper bound.

    The divergence at order ``a`` is ``log(1 + M) / (a - 1)`` with the mean ``M``, under ``Q``, of
    ``(1 + r)^a - 1 - a r``, where ``1 + r = P / Q``: since the mean of ``r`` is zero, taking it off
    changes nothing, and leaves an integrand that is never negative and does not lose its digits
    where rates are small. It is analytic in a strip of half width ``pi noise^2``, where ``Q`` has
    its zeros, so the trapezoidal rule converges exponentially.

    A unit that is in for certain is the worst of all (a mixture of pairs is no worse than the worst
    of them): ``2 a / noise^2``. That is the price where it is the smaller one, or noise is small.

    >>> [round(float(x), 6) for x in replaced_rdp(1.0, 2.0, (2, 3))]
    [1.0, 1.5]
    """
    order = np.asarray(orders, dtype=np.float64)
    certain = 2 * order / noise**2
    if rate == 1 or noise < _LEAST_NOISE:
        return certain
    return np.minimum([_divergence(rate, noise, int(a)) for a in orders], certain)


def _divergence(rate: float, noise: float, order: int) -> float:
    from scipy.special import logsumexp

    step = min(noise, math.pi * noise**2) / _STEPS_PER_WIDTH
    reach = _DEVIATIONS * noise
    x = np.arange(-1 - reach, order + reach + step, step)
    up, down = ((sign * x - 0.5) / noise**2 for sign in (1, -1))
    in_q = _log_mixture(rate, down)
    loss = _log_mixture(rate, up) - in_q
    log_q = in_q - x**2 / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    log_mean = float(logsumexp(log_q + _log_excess(loss, order))) + math.log(step)
    return float(np.logaddexp(0.0, log_mean)) * (1 + _SLACK) / (order - 1)


def _log_mixture(rate: float, exponent: FloatArray) -> FloatArray:
    """``log(1 - rate + rate exp(exponent))``, also where the rate is tiny or the exponent large."""
    large = exponent > 30
    mixed = np.log1p(rate * np.expm1(np.where(large, 0.0, exponent)))
    far = np.logaddexp(np.log1p(-rate), math.log(rate) + np.where(large, exponent, 0.0))
    return np.where(large, far, mixed)


def _log_excess(loss: FloatArray, order: int) -> FloatArray:
    """``log(exp(a loss) - 1 - a (exp(loss) - 1))``, which is never negative.

    Where ``a r`` is small, by the binomial series, of which the terms that are left out are below
    ``_SMALL^4`` of the first; where it is large, the first part is all there is.
    """
    a = float(order)
    ratio = np.expm1(np.minimum(loss, 1.0))
    small = np.abs(a * ratio) < _SMALL
    large = a * loss > 40
    series = 1 + (a - 2) * ratio / 3 * (
        1 + (a - 3) * ratio / 4 * (1 + (a - 4) * ratio / 5 * (1 + (a - 5) * ratio / 6))
    )
    middle = np.where(small | large, 0.5, loss)
    direct = np.expm1(a * middle) - a * np.expm1(middle)
    with np.errstate(divide="ignore"):
        return np.where(
            small,
            np.log(a * (a - 1) / 2)
            + 2 * np.log(np.abs(ratio))
            + np.log(np.maximum(series, 1e-300)),
            np.where(large, a * loss, np.log(np.maximum(direct, 1e-300))),
        )
