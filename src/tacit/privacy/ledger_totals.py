"""What many charges cost together, kept up line by line, and never less than the truth.

Two prices are used. *Exactly*: :func:`tacit.privacy.accounting.spent` of the composition of
everything. It depends only on how often each different release happens, and takes one
self-composition for each of them, so its work does not grow with the number of lines; nor much with
that of different ones, since noise is rounded down where they are many
(:mod:`tacit.privacy.noise_lattice`). *By two numbers*: where there are more than :data:`FEW`
different releases, every Skellam release is bounded by a straight line in the Rényi order, and
straight lines add up to one. Its work does not grow at all.

*Proof that the second is never less than the truth.* At every integer order ``a > 1``, a Skellam
release with variance v and distances ``l1`` and ``l2`` has a Rényi divergence of at most ``a l2^2 /
2v + ((2a - 1) l2^2 + 6 l1) / 4v^2`` and of at most ``a l2^2 / 2v + 3 l1 / 2v``
(:class:`tacit.privacy.events.SkellamNormRelease`). Both are ``slope * a + offset``; either may be
taken, for all orders at once. Divergences of one order add up under adaptive composition, so n
releases have at most the sum of the slopes, times a, plus the sum of the offsets. Releases of other
kinds add their own curves. The conversion to (epsilon, delta) is valid at every order, so its
minimum over orders is; the error of sampled noise is paid as in ``spent``. Sums of positive numbers
in floating point are wrong by at most one part in 2^53 for each addition, and
:data:`_ROUNDING` more than covers 10^6 of them.

The slack of the second price is that of Rényi accounting, 5 to 10 percent of epsilon. Nothing is
refused because of it while ``spent`` can price everything: see :meth:`Spending.tight`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np

from tacit.privacy.accounting import (
    MOST_RELEASES,
    RDP_ORDERS,
    Guarantee,
    rounded_down,
    sampling_error_of,
    spent_together,
    with_sampling_error,
)
from tacit.privacy.events import (
    ABOUT_RECORDS,
    CLIENT,
    RECORD,
    Composed,
    Event,
    Release,
    Repeated,
    Shifts,
    SkellamNormRelease,
    SkellamRelease,
    Unprotected,
    releases,
)
from tacit.privacy.losses import TooLargeToPrice
from tacit.privacy.noise_lattice import FEW, on_lattice

TOLERANCE = 1e-6
"""Other versions of NumPy or SciPy may differ in the last digits of an epsilon."""

BOUNDED = "Rényi divergences, by straight lines"
"""How the price by two numbers is named in a guarantee."""

_ROUNDING = 1e-9
_TYPICAL_ORDER = 16
_ORDERS = np.array(RDP_ORDERS, dtype=np.float64)


class Spending:
    """Charges that count, as how often each release happened.

    >>> from tacit.privacy.events import SkellamRelease
    >>> spending = Spending()
    >>> for variance in range(1000, 1100):
    ...     spending.add(SkellamRelease(((1, 1),), variance))
    >>> round(spending.bound(1e-5).epsilon, 2), round(spending.tight(1e-5).epsilon, 2)
    (1.28, 1.17)
    """

    def __init__(self) -> None:
        self.counts: Counter[Release] = Counter()
        self._sums: _Sums | None = _Sums()
        self._unprotected = 0

    def add(self, event: Event) -> None:
        """Count one more charge."""
        if isinstance(event, (Composed, Repeated)):
            for release, times in releases(event).items():
                self._count(release, times)
        else:
            self._count(event, 1)

    def _count(self, release: Release, times: int) -> None:
        self.counts[release] = self.counts.get(release, 0) + times
        self._unprotected += times * isinstance(release, Unprotected)
        if self._sums:
            self._sums.add(release, times)

    def remove(self, event: Event) -> None:
        """Count it no longer."""
        removed = releases(event)
        self.counts -= removed
        self._unprotected -= sum(
            times for release, times in removed.items() if isinstance(release, Unprotected)
        )
        self._sums = None  # to be added up anew, since differences lose digits

    def plus(self, *events: Event) -> Spending:
        """With more charges; this one stays as it is."""
        more = Spending()
        more.counts, more._sums = self.counts.copy(), self._summed().copy()
        more._unprotected = self._unprotected
        for event in events:
            more.add(event)
        return more

    def bound(self, delta: float) -> Guarantee:
        """A price that takes little work however many charges there are."""
        if self.cheap:
            try:
                return self._exactly(delta)
            except TooLargeToPrice:
                pass
        return self._exactly(delta) if self._unprotected else self._by_two_numbers(delta)

    def quick(self, delta: float) -> Guarantee | None:
        """A price that takes next to no work; ``None`` if there is none, with curves to compute."""
        if self._unprotected:
            return self._exactly(delta)
        return None if self._summed().curved else self._by_two_numbers(delta)

    def tight(self, delta: float) -> Guarantee:
        """The smaller of both prices, before anything is refused."""
        return self.tight_later(delta)()

    def tight_later(self, delta: float) -> Callable[[], Guarantee]:
        """What computes the smaller of both prices of what counts now, whatever is added later."""
        if self.cheap:
            return partial(self.plus().bound, delta)
        bound = self.bound(delta)  # next to no work, unlike a copy of all that was spent
        if bound.accounting != BOUNDED or len(self.counts) > MOST_RELEASES:
            return lambda: bound
        return partial(_smaller, bound, dict(self.counts), delta)

    @property
    def cheap(self) -> bool:
        """Whether the price with little work is the exact one, so that none is better."""
        return len(self.counts) <= FEW

    def _exactly(self, delta: float) -> Guarantee:
        return spent_together(self.counts, delta)

    def _by_two_numbers(self, delta: float) -> Guarantee:
        sums = self._summed()
        curve = sums.slope * _ORDERS + sums.offset
        for release, times in sums.curved.items():
            curve = curve + times * release.rdp(RDP_ORDERS)
        curve = curve * (1 + _ROUNDING)

        def epsilon(ideal: float) -> float:
            converted = curve + np.log1p(-1 / _ORDERS) - np.log(ideal * _ORDERS) / (_ORDERS - 1)
            return max(0.0, float(converted.min()))

        paid = with_sampling_error(epsilon, delta, sums.error * (1 + _ROUNDING))
        return Guarantee(paid, delta, BOUNDED, RECORD if sums.about_records else CLIENT)

    def _summed(self) -> _Sums:
        if self._sums is None:
            self._sums = _Sums()
            for release, times in self.counts.items():
                self._sums.add(release, times)
        return self._sums


class _Sums:
    """What adds up over releases."""

    def __init__(self) -> None:
        self.slope = self.offset = self.error = 0.0
        self.curved: Counter[Release] = Counter()
        self.about_records = False

    def copy(self) -> _Sums:
        """The same, to be added to."""
        other = copy.copy(self)
        other.curved = self.curved.copy()
        return other

    def add(self, release: Release, times: int) -> None:
        """One release, so many times."""
        self.error += times * sampling_error_of(release)
        self.about_records |= isinstance(release, ABOUT_RECORDS)
        if isinstance(release, (SkellamRelease, SkellamNormRelease)):
            slope, offset = _straight(release)
            self.slope += times * slope
            self.offset += times * offset
        else:
            self.curved[release] += times


def _smaller(bound: Guarantee, counts: Mapping[Release, int], delta: float) -> Guarantee:
    """The exact price if it can be computed and is below a bound, or the bound."""
    few = on_lattice(counts)
    try:
        exact = spent_together(few, delta)
    except TooLargeToPrice:
        return bound
    if few is not counts:
        exact = rounded_down(exact)
    return min(exact, bound, key=lambda guarantee: guarantee.epsilon)


def understated(recorded: Guarantee, spending: Spending, delta: float) -> Guarantee | None:
    """The price that a recorded total is below, if it is below all that are valid."""
    quick = spending.quick(delta)
    if quick and _covers(recorded, quick):
        return None
    for price in (spending.bound, spending.tight):
        recomputed = price(delta)
        if _covers(recorded, recomputed):
            return None
    return recomputed


def _covers(recorded: Guarantee, recomputed: Guarantee) -> bool:
    return recorded.epsilon >= recomputed.epsilon * (1 - TOLERANCE)


@lru_cache(maxsize=1024)
def _straight(release: SkellamRelease | SkellamNormRelease) -> tuple[float, float]:
    """Slope and offset of a straight line above a release's Rényi curve."""
    if isinstance(release, SkellamRelease):
        l1, squared = _norms(release.shifts)
    else:
        l1, squared = release.l1, release.l2**2
    variance = release.variance
    steep = squared / variance / 2 * (1 + 1 / variance)
    lines = (
        (steep, max(0.0, 6 * l1 - squared) / 4 / variance / variance),
        (squared / variance / 2, 3 * l1 / variance / 2),
    )
    return min(lines, key=lambda line: line[0] * _TYPICAL_ORDER + line[1])


@lru_cache(maxsize=64)
def _norms(shifts: Shifts) -> tuple[float, float]:
    """The L1 norm of the worst pair's difference, and the square of its L2 norm."""
    return (
        float(sum(count * distance for distance, count in shifts)),
        float(sum(count * distance**2 for distance, count in shifts)),
    )
