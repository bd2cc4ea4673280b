"""Privacy-loss distributions on a grid, and what they are together.

A release is described by the distribution of its privacy loss under the worse of two neighbours, on
multiples of an interval, with some mass at infinity. Losses of independent releases add up, so
their distributions are convolved: by Fourier transforms, all at once, which multiplies.

*Why cutting off is not optimistic.* The result is computed on a window of the grid outside of which
the true distribution has a mass of at most :data:`_CUT`, by Chernoff's bound at a few orders, each
of which is valid. A discrete Fourier transform puts what lies outside of the window somewhere into
it. So every mass in the window is at least the true one, and the mass outside, counted as an
infinite loss on top, is at least the true one too: both raise delta at every epsilon. How floating
point errs is set aside from delta by whoever asks (:mod:`tacit.privacy.accounting`).

*Why few frequencies are enough.* A transform of masses is nowhere above 1. So where the product of
some of them is below :data:`_NEGLIGIBLE`, the product of all is too, and is left out: that changes
no mass by more than this. Losses of many releases are spread over many places, so their transform
is concentrated on few frequencies. Those are kept with the losses, as whoever composes them once
composes them again with a few others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tacit.privacy.skellam import FloatArray

_CUT = 1e-15
_NEGLIGIBLE = 1e-40
_LARGEST_LOSS = 700.0
"""Beyond it, exponentials overflow; a smaller one makes delta larger."""
_ORDERS = np.array([4.0, 6.5, 8.0, 9.5, 13.0])
"""Of Chernoff's bound, in units of one over the deviation; for a Gaussian 8.4 would be best."""
_QUARTERINGS = 16
_ORDERS_PER_OCTAVE = 8
"""Any orders do for Chernoff's bound; of few of them, what was computed is met again."""
_MOST_KEPT, _LONGEST_KEPT = 8, 2**12
"""How many results are kept with one distribution, and how long a transform may be for that."""

MOST_LONG = 4e7
"""Entries of all transforms of one composition; estimates of the work stay well below."""

ComplexArray = npt.NDArray[np.complex128]
Key = TypeVar("Key")
Result = TypeVar("Result")


class TooLargeToPrice(ValueError):
    """Pricing would take too long, so whatever would be priced is not to happen."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Masses of the losses ``(lowest + index) * interval``, and of infinity; never changed."""

    lowest: int
    masses: FloatArray
    infinite: float
    interval: float

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """The hockey-stick divergence; named as in dp-accounting."""
        losses = self._losses()
        above = losses > epsilon
        return self.infinite - float(np.sum(np.expm1(epsilon - losses[above]) * self.masses[above]))

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The least epsilon, not below 0, whose divergence is at most ``delta``.

        Between two neighbouring places of the grid, delta is ``above - exp(epsilon) * weighed``
        with the mass above and the mass weighed by ``exp(-loss)``, both summed from the far end.
        """
        if self.infinite > delta:
            return math.inf
        losses, above, weighed, deltas = self._tail
        if not len(losses) or above[0] - weighed[0] <= delta:
            return 0.0
        enough = int(np.argmax(deltas <= delta))
        if weighed[enough] <= 0 or above[enough] <= delta:
            return float(losses[enough])
        inside = math.log((above[enough] - delta) / weighed[enough])
        return max(0.0, min(inside, float(losses[enough])))

    @cached_property
    def _tail(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """For each positive loss: the mass from there on, the same weighed, and delta there."""
        losses = self._losses()
        start = int(np.searchsorted(losses, 0.0, side="right"))
        losses, masses = losses[start:], self.masses[start:]
        above = self.infinite + np.cumsum(masses[::-1])[::-1]
        weighed = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        scale = np.exp(np.minimum(losses, _LARGEST_LOSS))
        deltas = np.append(above[1:], self.infinite) - scale * np.append(weighed[1:], 0.0)
        return losses, above, weighed, deltas

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of the index."""
        return _moments(self.masses)

    def log_mean_exp(self, orders: FloatArray) -> FloatArray:
        """``log sum_k mass_k exp(order (k - mean))`` for every order."""
        key = orders.tobytes()
        known = self._generating.get(key)
        if known is None:
            known = _log_mean_exp(self.masses, orders, self.moments[0])
            _keep(self._generating, key, known)
        return known

    def transform(self, length: int, most: int, times: int) -> ComplexArray:
        """The first of the frequencies of the transform of this length.

        At least the first ``most``, or those beyond which no one's power is above the negligible.
        """
        known = self._transforms.get(length)
        if known is not None:
            first, beyond = known
            if len(first) >= most or beyond <= _NEGLIGIBLE ** (1 / times):
                return first
        whole = np.fft.rfft(self.masses, length)
        sizes = np.abs(whole)
        # For a smaller power than asked for and some more frequencies, to be met again
        fewer = 1 << (times.bit_length() - 1)
        enough = min(2 * most, _support(sizes, _NEGLIGIBLE ** (1 / fewer)))
        first = whole[:enough].copy()
        if enough <= _LONGEST_KEPT:
            beyond = float(sizes[enough:].max(initial=0.0))
            _keep(self._transforms, length, (first, beyond))
        return first

    @cached_property
    def _generating(self) -> dict[bytes, FloatArray]:
        return {}

    @cached_property
    def _transforms(self) -> dict[int, tuple[ComplexArray, float]]:
        """By length: the first frequencies, and the largest magnitude of the others."""
        return {}

    def _losses(self) -> FloatArray:
        places = np.arange(len(self.masses), dtype=np.float64)
        return (self.lowest + places) * self.interval


def composed(parts: Iterable[tuple[Losses, int]]) -> Losses:
    """Independent releases together, each so many times; all on the same grid.

    Raises:
        TooLargeToPrice: before any transform, where those would be too long.

    >>> coin = Losses(-1, np.array([0.25, 0.0, 0.75]), 0.0, math.log(3.0))
    >>> two = composed([(coin, 2)])
    >>> two.lowest, [round(float(mass), 4) for mass in two.masses]
    (-2, [0.0625, 0.0, 0.375, 0.0, 0.5625])
    """
    listed = list(parts)
    if len(listed) == 1 and listed[0][1] == 1:
        return listed[0][0]
    intervals = {part.interval for part, _ in listed}
    if len(intervals) != 1:
        raise ValueError(f"losses are on {len(intervals)} grids; allowed is one")
    least, most = _window(listed)
    length = _fast(max(most - least + 1, *(len(part.masses) for part, _ in listed)))
    if length * len(listed) > MOST_LONG:
        raise TooLargeToPrice(
            f"{len(listed)} different losses would be added up on {length} places of a grid; "
            f"allowed are {MOST_LONG:.3g} together: add more noise, or ask the same questions again"
        )
    product = _product(listed, length)
    finite = sum(times * math.log1p(-part.infinite) for part, times in listed)
    wrapped = np.roll(np.fft.irfft(product, length), -least)[: most - least + 1]
    start = sum(times * part.lowest for part, times in listed)
    (interval,) = intervals
    return Losses(start + least, np.maximum(wrapped, 0.0), _CUT - math.expm1(finite), interval)


def _product(parts: Sequence[tuple[Losses, int]], length: int) -> ComplexArray:
    """The transform of all together, without the last frequencies if those are negligible."""
    product = np.ones(length // 2 + 1, dtype=np.complex128)
    # The widest first: it leaves the fewest frequencies for the others.
    for part, times in sorted(parts, key=lambda pair: pair[1] * pair[0].moments[1], reverse=True):
        base = part.transform(length, len(product), times)[: len(product)]
        product = product[: len(base)] * _power(base, times)
        product = product[: _support(np.abs(product), _NEGLIGIBLE)]
    return product


def _support(sizes: FloatArray, least: float) -> int:
    """Up to which place there are numbers above the least one."""
    above = np.flatnonzero(sizes > least)
    return int(above[-1]) + 1 if len(above) else 1


def _window(parts: Sequence[tuple[Losses, int]]) -> tuple[int, int]:
    """Between which places, counted from the least possible one, all but a cut of the mass lies."""
    most = sum(times * (len(part.masses) - 1) for part, times in parts)
    mean = sum(times * part.moments[0] for part, times in parts)
    variance = sum(times * part.moments[1] for part, times in parts)
    if variance <= 0:
        return 0, most

    def bound(orders: FloatArray) -> float:
        generating = np.zeros(len(orders))
        for part, times in parts:
            generating += times * part.log_mean_exp(orders)
        found: float = np.min((generating + math.log(2 / _CUT)) / np.abs(orders))
        return float(found)

    def least_bound(orders: FloatArray) -> float:
        # Losses of rare large outcomes have a tail that is much heavier than a Gaussian's, for
        # which only smaller orders give a bound. It has one minimum, in whichever order.
        least = bound(orders)
        for smaller in orders[0] * 4.0 ** -np.arange(1, _QUARTERINGS):
            found = bound(np.array([smaller]))
            if found >= least and math.isfinite(least):
                break
            least = min(found, least)
        return least

    octave = round(_ORDERS_PER_OCTAVE * math.log2(variance) / 2)
    orders = _ORDERS / math.exp2(octave / _ORDERS_PER_OCTAVE)
    upper, lower = mean + least_bound(orders), mean - least_bound(-orders)
    high = min(most, math.ceil(upper)) if math.isfinite(upper) else most
    low = max(0, math.floor(lower)) if math.isfinite(lower) else 0
    return min(low, high), high


def _moments(masses: FloatArray) -> tuple[float, float]:
    # Sums, not products of matrices: for those NumPy wakes threads, which costs more than it saves
    index = np.arange(len(masses))
    mean = float(np.sum(index * masses))
    return mean, float(np.sum((index - mean) ** 2 * masses))


def _log_mean_exp(masses: FloatArray, orders: FloatArray, centre: float) -> FloatArray:
    """``log sum_k mass_k exp(order (k - centre))`` for every order."""
    index = np.arange(len(masses)) - centre
    largest = np.maximum(orders * index[0], orders * index[-1])
    shifted = np.exp(np.outer(orders, index) - largest[:, np.newaxis])
    with np.errstate(divide="ignore"):
        logarithms: FloatArray = np.log(np.sum(shifted * masses, axis=1)) + largest
    return logarithms


def _power(base: ComplexArray, times: int) -> ComplexArray:
    """``base ** times`` by repeated squaring, where that is not far below what rounding loses."""
    result = np.zeros_like(base)
    seen = np.abs(base) > _NEGLIGIBLE ** (1 / times)
    base, power = base[seen], np.ones(int(np.count_nonzero(seen)), dtype=np.complex128)
    while times:
        if times & 1:
            power = power * base
        times >>= 1
        if times:
            base = base * base
    result[seen] = power
    return result


def _keep(results: dict[Key, Result], key: Key, result: Result) -> None:
    """Put a result with the others, of which the oldest goes."""
    if len(results) >= _MOST_KEPT:
        results.pop(next(iter(results)), None)
    results[key] = result


def _fast(length: int) -> int:
    """The least even length, not below this one, that transforms are fast for."""
    candidates = (
        odd << max(1, math.ceil(math.log2(length / odd)) if length > odd else 1)
        for odd in (1, 3, 5, 9, 15)
    )
    return min(candidate for candidate in candidates if candidate >= length)
