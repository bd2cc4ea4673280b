"""What the best of a random number of runs costs, from what one run costs.

Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy" (2022), Theorems 2 and
6. dp-accounting has both, for its own events alone; a run whose records are replaced under sampling
is none of them (:mod:`tacit.privacy.sampled_gaussian`), so the two formulas are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tacit.privacy.skellam import FloatArray


def stopping_gamma(mean: float, shape: float) -> float:
    """The parameter of the truncated negative binomial distribution that has this mean.

    >>> stopping_gamma(mean=10.0, shape=1.0)
    0.1
    """
    from scipy.optimize import brentq

    if shape == 1:
        return 1 / mean
    if mean == 1:
        return 1.0

    def excess(log_gamma: float) -> float:
        return math.log(_mean(math.exp(log_gamma), shape) / mean)

    return math.exp(float(brentq(excess, -60.0, -1e-12, xtol=1e-14)))


def best_of_runs(run: FloatArray, orders: Sequence[int], mean: float, shape: float) -> FloatArray:
    """The Rényi curve of releasing the best of a random number of runs, and nothing else.

    With the curve ``e`` of one run, for all orders ``a`` and ``b`` above one:

    - truncated negative binomial (Theorem 2):
      ``e(a) + (1 + shape) ((1 - 1/b) e(b) + log(1/gamma) / b) + log(mean) / (a - 1)``;
    - Poisson (Theorem 6): ``e(a) + mean d + log(mean) / (a - 1)``, if a run is (epsilon, d)-private
      for ``exp(epsilon) = 1 + 1 / (a - 1)``.

    Rényi divergences grow with their order, so what holds at an order holds at all below it.

    Args:
        run: the curve of one run, at ``orders``.
        orders: above one, growing.
        mean: of the number of runs.
        shape: 0 logarithmic, 1 geometric, infinite Poisson.
    """
    order = np.asarray(orders, dtype=np.float64)
    more = math.log(mean) / (order - 1)
    if math.isinf(shape):
        best = run + mean * _deltas(run, orders) + more
    else:
        gamma = stopping_gamma(mean, shape)
        least = float(np.min((1 - 1 / order) * run - math.log(gamma) / order))
        best = run + (1 + shape) * least + more
    return np.asarray(np.minimum.accumulate(best[::-1])[::-1])


def _deltas(run: FloatArray, orders: Sequence[int]) -> FloatArray:
    """For every order ``a``, the delta of one run at ``log(1 + 1 / (a - 1))``."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    curve = run.tolist()
    return np.array(
        [compute_delta(list(orders), curve, math.log1p(1 / (a - 1)))[0] for a in orders]
    )


def _mean(gamma: float, shape: float) -> float:
    if not shape:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))
