"""What was released, as frozen data, and what one release of each kind can reveal.

An event describes a release completely enough to price it; :mod:`tacit.privacy.accounting` adds
events up. dp-accounting has no Skellam event and its accountants cannot be taught one from outside,
so ours carry their own privacy-loss distribution (PLD) or Rényi curve.

Neighbours are federations that differ by replacing one client or, for what DP-SGD releases, one
record of a client (replace-one; how many records there are is public).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tacit.privacy.losses import Losses
from tacit.privacy.random_stopping import best_of_runs
from tacit.privacy.sampled_gaussian import grid_size, replaced_pld, replaced_rdp
from tacit.privacy.skellam import FloatArray, log_pmf, reach

Shifts = tuple[tuple[int, int], ...]
"""How far two answers lie apart: (distance, number of coordinates that far apart) pairs."""

EXACT_SUM = "a sum without noise"
"""What is unprotected although no single answer was seen."""

MOST_DISTANCES = 1_000
"""Different distances of the coordinates of one worst pair: each is priced on its own."""

_LOG_NEGLIGIBLE = math.log(1e-22)
_ENTRIES_PER_PLACE = 20
"""Of the grid of a step: tails of normal distributions take so much longer than other numbers."""
_LONGEST_RENYI_SUM = 100_000


@dataclass(frozen=True)
class SkellamRelease:
    """Integers plus independent Skellam noise, where the worst pair of answers is known exactly.

    ``shifts`` is the multiset of coordinate differences of the worst pair. *Proof that its PLD
    dominates every pair whose differences are, coordinate by coordinate, no larger.* Skellam
    probabilities are log-concave (convolutions of Poisson ones), so the shifted copies have
    monotone likelihood ratio: the sets that attain a hockey-stick divergence are half lines, and
    on those the divergence grows with the shift. Noise is independent between coordinates, so the
    release is the product of its coordinates, and products of dominating pairs dominate (Zhu, Dong
    and Wang 2022, Theorem 10). The sign of a shift does not matter, since the noise is symmetric.

    >>> vote = SkellamRelease(shifts=((1, 10),), variance=139.0)
    >>> vote.squared_distance
    0.07194244604316546
    """

    shifts: Shifts
    variance: float

    def __post_init__(self) -> None:
        _positive("variance", self.variance)
        if len(self.shifts) > MOST_DISTANCES:
            raise ValueError(
                f"the worst pair of answers differs by {len(self.shifts)} different distances; "
                f"allowed are up to {MOST_DISTANCES}: rank fewer candidates"
            )
        object.__setattr__(self, "shifts", _merged(tuple(map(tuple, self.shifts))))

    @property
    def squared_distance(self) -> float:
        """Squared L2 distance of the worst pair over the variance: a Gaussian's mu squared."""
        return sum(count * distance**2 for distance, count in self.shifts) / self.variance

    @property
    def compositions(self) -> int:
        """How many losses are added up: one a coordinate."""
        return sum(count for _, count in self.shifts)

    @property
    def convolutions(self) -> int:
        """How many different ones there are among them."""
        return len(self.shifts)

    @property
    def drift(self) -> float:
        """About the mean of the privacy loss, and about half of its variance."""
        return sum(
            count * distance * math.asinh(distance / self.variance) / 2
            for distance, count in self.shifts
        )

    def rdp(self, orders: Sequence[int]) -> FloatArray:
        """The Rényi divergence of the worst pair, summed over its coordinates.

        Where the sums over outcomes would be long, because shifts are large or the noise is, the
        published bound of :class:`SkellamNormRelease` stands in, which is never smaller.
        """
        outcomes = [self._reach + max(orders) * distance for distance, _ in self.shifts]
        if sum(outcomes) > _LONGEST_RENYI_SUM:
            l1 = float(sum(count * distance for distance, count in self.shifts))
            l2 = math.sqrt(self.squared_distance * self.variance)
            return SkellamNormRelease(l1, l2, self.variance).rdp(orders)
        return sum(
            (
                count * _shift_rdp(self.variance, distance, orders)
                for distance, count in self.shifts
            ),
            start=np.zeros(len(orders)),
        )

    def plds(self, times: int, interval: float) -> Iterator[tuple[Losses, int]]:
        """For each distance the PLD of a coordinate, pessimistic, and how often it happens."""
        for distance, count in self.shifts:
            yield _coordinate(self, distance, interval), times * count

    def entries(self, interval: float) -> float:
        """At most how many entries of tables and of grids :meth:`plds` makes.

        A grid has to reach from the least to the largest loss. Bessel functions of neighbouring
        orders have ``log I_{k-1}(v) / I_k(v) < asinh(k / v)``, so no outcome of the table has a
        loss beyond ``distance asinh((furthest + distance) / v)`` on either side.
        """
        furthest, largest = self._reach, self.shifts[-1][0]
        losses = sum(d * math.asinh((furthest + d) / self.variance) for d, _ in self.shifts)
        return furthest + largest + 2 * furthest * len(self.shifts) + 2 * losses / interval

    @cached_property
    def _reach(self) -> int:
        """The furthest outcome that is not counted as an infinite loss."""
        return reach(self.variance, _LOG_NEGLIGIBLE)


@dataclass(frozen=True)
class SkellamNormRelease:
    """Integers plus Skellam noise, where only norms of the difference of two answers are known.

    An L2 bound alone does not bound Skellam's loss, hence L1 beside it. Agarwal, Kairouz and Liu
    (2021), for variance v and integer order a > 1:
    ``a l2^2 / 2v + min( ((2a - 1) l2^2 + 6 l1) / 4v^2, 3 l1 / 2v )``.
    """

    l1: float
    l2: float
    variance: float

    def __post_init__(self) -> None:
        _positive("l1", self.l1)
        _positive("l2", self.l2)
        _positive("variance", self.variance)

    @property
    def squared_distance(self) -> float:
        """Squared L2 distance over the variance: a Gaussian's mu squared."""
        return self.l2**2 / self.variance

    def rdp(self, orders: Sequence[int]) -> FloatArray:
        """The published bound on the Rényi divergence, for integer orders."""
        order = np.asarray(orders, dtype=np.float64)
        variance, squared = np.float64(self.variance), self.l2**2
        with np.errstate(divide="ignore", over="ignore"):  # next to no noise costs infinity
            excess = ((2 * order - 1) * squared + 6 * self.l1) / (4 * variance**2)
            least = np.minimum(excess, 3 * self.l1 / (2 * variance))
            return np.asarray(order * squared / (2 * variance) + least)


LEAST_RATE, MOST_STEPS = 1e-9, 10**9
"""Of sampled steps: far beyond what anybody trains with, and still priced without rounding."""


@dataclass(frozen=True)
class SampledGaussian:
    """Steps of DP-SGD on a client: at the level of single records, not of clients.

    Each record is in a step with probability ``rate``; the sum of clipped gradients gets Gaussian
    noise of ``noise`` clipping norms. Neighbours differ by replacing one record; sizes are public.
    The worst pair, and the proof that it is the worst, are in
    :mod:`tacit.privacy.sampled_gaussian`. Clients hold different records, so what one record costs
    does not add up over clients.
    """

    rate: float
    noise: float
    steps: int

    def __post_init__(self) -> None:
        _positive("noise", self.noise)
        if not LEAST_RATE <= self.rate <= 1 or not 1 <= self.steps <= MOST_STEPS:
            raise ValueError(
                f"rate is {self.rate!r} and steps is {self.steps!r}; allowed is a rate from "
                f"{LEAST_RATE:g} to 1, and 1 to {MOST_STEPS} steps"
            )

    @property
    def squared_distance(self) -> float:
        """About that of a Gaussian which costs as much: for a first guess only.

        The variance of ``P / Q`` where the rate is small, or that of a record that is always in.
        """
        certain = 4 / self.noise**2
        if certain > 100:
            return self.steps * certain
        return self.steps * min(certain, 4 * self.rate**2 * math.sinh(certain / 4))

    @property
    def drift(self) -> float:
        """About the mean of the privacy loss, and about half of its variance."""
        return self.squared_distance / 2

    @property
    def compositions(self) -> int:
        """How many losses are added up."""
        return self.steps

    @property
    def convolutions(self) -> int:
        """How many different ones there are among them."""
        return 1

    def rdp(self, orders: Sequence[int]) -> FloatArray:
        """All steps together."""
        return self.steps * replaced_rdp(self.rate, self.noise, tuple(orders))

    def plds(self, times: int, interval: float) -> Iterator[tuple[Losses, int]]:
        """The PLD of a step, pessimistic, and how often it happens."""
        # The pair is its own mirror image, so that one direction is all there is.
        yield replaced_pld(self.rate, self.noise, interval), times * self.steps

    def entries(self, interval: float) -> float:
        """How many entries of simple tables the grid of one step takes as long as."""
        return _ENTRIES_PER_PLACE * 2 * grid_size(self.rate, self.noise, interval)


@dataclass(frozen=True)
class Scored:
    """A model of DP-SGD (or another Gaussian release, at rate 1), and its noisy score elsewhere.

    *Proof.* With respect to a training record it is the sampled Gaussian of its steps (the score of
    a private model is post-processing for it); with respect to a validation record it is one
    Gaussian release, of the number of right answers, which replacing one record changes by at most
    one, with noise of standard deviation ``score_noise``. A record is in one of the two sets, so at
    every order the larger of the two divergences is a bound.
    """

    rate: float
    noise: float
    steps: int
    score_noise: float

    def __post_init__(self) -> None:
        SampledGaussian(self.rate, self.noise, self.steps)  # refuses what cannot be
        _positive("score_noise", self.score_noise)

    @property
    def squared_distance(self) -> float:
        """About that of a Gaussian which costs as much: for a first guess only."""
        return SampledGaussian(self.rate, self.noise, self.steps).squared_distance

    def curves(self, orders: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """What a training record pays at every order, and what a validation record pays."""
        model = SampledGaussian(self.rate, self.noise, self.steps).rdp(orders)
        return model, np.asarray(orders, dtype=np.float64) / (2 * self.score_noise**2)

    def rdp(self, orders: Sequence[int]) -> FloatArray:
        """The larger of the two at every order."""
        return np.maximum(*self.curves(orders))


@dataclass(frozen=True)
class Selected:
    """The best of a random number of runs of DP-SGD, by noisy scores on validation records.

    *Proof.* A run is private as :class:`Scored` says. The number of runs has this ``mean`` and
    ``shape`` (0 logarithmic, 1 geometric, infinite Poisson), whatever the data are; the released
    run is the one with the best score, and nothing else leaves: Papernot and Steinke (2022),
    Theorems 2 and 6 (:mod:`tacit.privacy.random_stopping`). A record is for training or for
    validation in all runs, so the larger of the two prices holds for both.
    """

    rate: float
    noise: float
    steps: int
    score_noise: float
    mean: float
    shape: float

    def __post_init__(self) -> None:
        Scored(self.rate, self.noise, self.steps, self.score_noise)  # refuses what cannot be
        if not (1 <= self.mean < math.inf) or not self.shape >= 0:
            raise ValueError(
                f"mean is {self.mean!r} and shape is {self.shape!r}; allowed is a mean of at least "
                "1 and a shape of at least 0"
            )

    @property
    def squared_distance(self) -> float:
        """About that of a Gaussian which costs as much: for a first guess only."""
        return 2 * SampledGaussian(self.rate, self.noise, self.steps).squared_distance

    def rdp(self, orders: Sequence[int]) -> FloatArray:
        """The larger of the two at every order."""
        run = Scored(self.rate, self.noise, self.steps, self.score_noise)
        curves = [
            best_of_runs(curve, orders, self.mean, self.shape) for curve in run.curves(orders)
        ]
        return np.maximum(*curves)


@dataclass(frozen=True)
class Unprotected:
    """Answers that left the clients in clear, or exact sums: no epsilon bounds what they reveal."""

    what: str

    @property
    def squared_distance(self) -> float:
        """Infinite."""
        return math.inf

    def rdp(self, orders: Sequence[int]) -> FloatArray:
        """Infinite at every order."""
        return np.full(len(orders), math.inf)


@dataclass(frozen=True)
class Composed:
    """Several events, one after another; later questions may depend on earlier answers."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Repeated:
    """One event several times over."""

    event: Event
    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times is {self.times!r}; an event is repeated at least once")


Exact = SkellamRelease | SampledGaussian
"""Releases whose worst pair is known, so that their privacy losses can be composed exactly."""
ABOUT_RECORDS = (SampledGaussian, Scored, Selected)
"""Releases whose neighbours differ in a single record; those of the others, in a whole client."""
CLIENT, RECORD = UNITS = ("client", "record")
"""Whom a guarantee can be about."""
Release = SkellamRelease | SkellamNormRelease | SampledGaussian | Scored | Selected | Unprotected
Event = Release | Composed | Repeated
_KINDS: dict[str, type[Release]] = {
    "skellam": SkellamRelease,
    "skellam-norms": SkellamNormRelease,
    "sampled-gaussian": SampledGaussian,
    "scored": Scored,
    "selected": Selected,
    "unprotected": Unprotected,
}


def releases(event: Event) -> Counter[Release]:
    """How often each single release happens in an event.

    >>> vote = SkellamRelease(((1, 10),), 139.0)
    >>> releases(Composed((vote, Repeated(vote, 3))))[vote]
    4
    """
    if isinstance(event, Composed):
        return sum((releases(part) for part in event.events), Counter())
    if isinstance(event, Repeated):
        return Counter({part: n * event.times for part, n in releases(event.event).items()})
    return Counter({event: 1})


def covers(paid: Event, asked: Event) -> bool:
    """Whether whoever paid for one release may make the other instead.

    That is so for the same release, and for Skellam noise of the same variance on answers that lie
    no further apart. *Proof.* Where distances are known, each coordinate of the smaller pair is
    matched with one of the larger that is shifted at least as far, and :class:`SkellamRelease`
    proves that the larger dominates; where norms are known, the bound of
    :class:`SkellamNormRelease` grows with both. Anything else is not compared.

    >>> five, three = (SkellamRelease(((64, n),), 50.0) for n in (5, 3))
    >>> covers(five, three), covers(three, five)
    (True, False)
    """
    if paid == asked:
        return True
    if isinstance(paid, SkellamRelease) and isinstance(asked, SkellamRelease):
        return paid.variance == asked.variance and all(
            _as_far(asked, distance) <= _as_far(paid, distance) for distance, _ in asked.shifts
        )
    if isinstance(paid, SkellamNormRelease) and isinstance(asked, SkellamNormRelease):
        return paid.variance == asked.variance and asked.l1 <= paid.l1 and asked.l2 <= paid.l2
    return False


def to_json(event: Event) -> dict[str, Any]:
    """An event as plain data, for the ledger."""
    if isinstance(event, Composed):
        return {"kind": "composed", "events": [to_json(part) for part in event.events]}
    if isinstance(event, Repeated):
        return {"kind": "repeated", "event": to_json(event.event), "times": event.times}
    kind = next(name for name, cls in _KINDS.items() if isinstance(event, cls))
    return {"kind": kind, **asdict(event)}


def from_json(data: Mapping[str, Any]) -> Event:
    """The event that :func:`to_json` wrote.

    >>> vote = Repeated(SkellamRelease(((1, 10),), 139.0), times=2)
    >>> from_json(to_json(vote)) == vote
    True

    Raises:
        ValueError: where the data are no event.
    """
    try:
        return _from_json(data)
    except (ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"an event cannot be read: {error!r}") from None


def _from_json(data: Mapping[str, Any]) -> Event:
    given = dict(data)
    kind = given.pop("kind", None)
    if kind == "composed":
        return Composed(tuple(_from_json(part) for part in given["events"]))
    if kind == "repeated":
        return Repeated(_from_json(given["event"]), int(given["times"]))
    if kind not in _KINDS:
        allowed = ", ".join(sorted([*_KINDS, "composed", "repeated"]))
        raise ValueError(f"event kind is {kind!r}; known kinds are {allowed}")
    if "shifts" in given:
        given["shifts"] = tuple((int(d), int(n)) for d, n in given["shifts"])
    return _KINDS[kind](**given)


def compose(events: Iterable[Event]) -> Event:
    """All of them as one event, identical releases counted rather than listed."""
    counts = sum((releases(event) for event in events), Counter())
    parts = tuple(release if n == 1 else Repeated(release, n) for release, n in counts.items())
    return parts[0] if len(parts) == 1 else Composed(parts)


def _as_far(release: SkellamRelease, distance: int) -> int:
    """How many coordinates are shifted at least so far."""
    return sum(count for other, count in release.shifts if other >= distance)


@lru_cache(maxsize=64)
def _merged(shifts: Shifts) -> Shifts:
    """Equal distances counted together, in order."""
    merged: Counter[int] = Counter()
    for distance, coordinates in shifts:
        if distance < 1 or coordinates < 1:
            raise ValueError(
                f"shifts are {shifts!r}; each needs a distance and a number of coordinates of at "
                "least 1"
            )
        merged[int(distance)] += int(coordinates)
    if not merged:
        raise ValueError("shifts are empty; a release needs at least one shifted coordinate")
    return tuple(sorted(merged.items()))


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}; it must be a finite number above 0")


@lru_cache(maxsize=512)
def _coordinate(release: SkellamRelease, distance: int, interval: float) -> Losses:
    """The PLD of one coordinate of a release."""
    furthest, largest = release._reach, release.shifts[-1][0]
    table = log_pmf(release.variance, furthest + largest)
    return _shift_losses(table[: furthest + distance + 1], distance, interval)


def _shift_losses(table: FloatArray, distance: int, interval: float) -> Losses:
    """The PLD of one coordinate shifted by ``distance``, on a grid of losses, never optimistic.

    ``table`` holds the logarithms of the noise's probabilities, ``distance`` places further than
    outcomes are looked at. An outcome with probabilities p and q under the two neighbours has loss
    ``log p/q``, which falls between two grid points. We split the outcome into two, one at each
    grid point, with the same total p and the same total q.
    Merging them again is post-processing, so the split pair is at least as revealing as the true
    one ("Connect the Dots", Doroshenko et al. 2022); the error is of second order in the interval,
    where rounding every loss up would be of first order. What lies beyond the table counts as a
    loss of infinity.
    """
    furthest = len(table) - 1 - distance
    outcome = np.arange(-furthest, furthest + 1)
    log_p = table[np.abs(outcome)]
    loss = (log_p - table[np.abs(outcome - distance)]) / interval
    below = np.floor(loss)
    upper_part = np.expm1(-(loss - below) * interval) / math.expm1(-interval)
    mass = np.exp(log_p)
    slot = below.astype(np.int64)
    lowest = int(slot.min())
    size = int(slot.max()) - lowest + 2
    masses = np.zeros(size)
    masses += np.bincount(slot - lowest, mass * (1 - upper_part), size)
    masses += np.bincount(slot - lowest + 1, mass * upper_part, size)
    masses.flags.writeable = False
    return Losses(lowest, masses, 2 * math.exp(_LOG_NEGLIGIBLE), interval)


def _shift_rdp(variance: float, distance: int, orders: Sequence[int]) -> FloatArray:
    """``log sum_x p(x)^a p(x - distance)^(1 - a) / (a - 1)`` for every order ``a``.

    The summand peaks near ``x = -(a - 1) distance``; the sum runs well past that.
    """
    from scipy.special import logsumexp

    furthest = reach(variance, _LOG_NEGLIGIBLE) + max(orders) * distance
    outcome = np.arange(-furthest, furthest + 1)
    table = log_pmf(variance, furthest + distance)
    log_p, log_q = table[np.abs(outcome)], table[np.abs(outcome - distance)]
    return np.array(
        [float(logsumexp(a * log_p + (1 - a) * log_q)) / (a - 1) for a in orders], dtype=np.float64
    )
