"""A noisy tally, smoothed over the space of its candidates.

Neighbours of a good candidate tend to be good too, so what a tally says about them says something
about it. Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), chapters 2 and
5: the tally is a level, plus a function from a Gaussian process over the encoded candidates, plus
noise of known variance; the posterior mean of that function is averaged over processes (a length
for each axis, an amplitude, a share of what is every candidate's own), each weighted by how well it
explains the tally, and over *no structure*, where every candidate is on its own. Short lengths and
own shares are for cliffs: the best learning rate often has neighbours that diverge, and a process
that is only smooth moves the peak onto them.

*Privacy.* A tally that was released is smoothed with public knowledge only, the candidates, the
number of clients and the noise: post-processing, which costs nothing. Noise is Skellam's and is
taken for normal here; no guarantee rests on that.

*Structure.* Where votes ignore the axes, smoothing harms. :meth:`Smoother.read` has a permutation
test: if candidates are exchangeable (the votes have no order along the axes, and neither has the
noise), shuffling the tally changes nothing, so any statistic of it has every rank among those of
shuffled tallies with equal probability, and a test at level ``a`` finds structure that is not
there at most that often, whatever the votes look like. The statistic is the fullest *window*: the
largest weighted sum of the votes around a candidate, over windows from a quarter to twice the
region that agreeing ballots name. It tells more than the evidence for a process, which is moved by
valleys as much as by peaks: votes gather, they do not avoid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from tacit.privacy.skellam import FloatArray
from tacit.space import Choice, Config, Dimension, Space

LENGTHS = (0.25, 0.65, 2.0, 8.0)
"""Of a process along an axis, in widths of what a ballot names: from cliffs to nearly flat."""
SHARES = (1.0, 0.5)
"""Of a process in what varies; the rest is every candidate's own."""
WINDOWS = (0.25, 0.65, 2.0)
"""Along an axis, in the same widths, in which votes are looked for."""
MOST_CANDIDATES = 2000
_MOST_KERNELS, _MOST_NUMBERS = 81, 20_000_000
_LOG_FROM = 20.0
"""Numbers among choices whose largest is so many times the smallest are taken for magnitudes."""
_NO_STRUCTURE = 0.1
"""The share of no structure before the tally is seen."""
SHUFFLES = 199


def places(space: Space, candidates: Sequence[Config]) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Coordinates from 0 to 1, one column an axis, and which axes have an order at all.

    >>> space = Space({"rate": Choice([1.0, 0.1, 0.001]), "net": Choice(["a", "b"])})
    >>> found, ordered = places(space, ({"rate": 0.1, "net": "a"}, {"rate": 1.0, "net": "b"}))
    >>> found.round(2).tolist(), ordered.tolist()
    ([[0.67, 0.0], [1.0, 1.0]], [True, False])
    """
    columns, ordered = [], []
    for name, axis in space.dimensions.items():
        column, numeric = _column(axis, [config[name] for config in candidates])
        columns.append(column)
        ordered.append(numeric)
    return np.stack(columns, axis=1), np.array(ordered)


def _column(axis: Dimension, members: Sequence[object]) -> tuple[FloatArray, bool]:
    if not isinstance(axis, Choice):
        return np.array([axis.encode(member) for member in members]), True
    options = np.array([float(o) if type(o) in (int, float) else math.nan for o in axis.options])
    own = np.rint([axis.encode(m) * (len(options) - 1) for m in members]).astype(np.int64)
    if np.isnan(options).any() or len(options) < 2:
        return own.astype(np.float64), False
    if options.min() > 0 and options.max() >= _LOG_FROM * options.min():
        options = np.log10(options)
    scaled = (options - options.min()) / (options.max() - options.min())
    return scaled[own], True


@dataclass(frozen=True, eq=False)
class Smoothed:
    """A smoothed tally, and how often one without structure would look as structured."""

    votes: FloatArray
    """Expected votes beyond their level."""
    chance: float

    @property
    def best(self) -> int:
        """Where it peaks."""
        return int(np.argmax(self.votes))


@dataclass(frozen=True)
class Smoother:
    """Gaussian processes over some candidates, ready for any tally of them.

    >>> from tacit.space import Float
    >>> space = Space({"x": Float(0.0, 1.0)})
    >>> candidates = space.candidates(21, "grid")
    >>> votes = np.array([100 * math.exp(-8 * (float(c["x"]) - 0.3) ** 2) for c in candidates])
    >>> noisy = votes + np.random.default_rng(9).normal(0, 40, 21)
    >>> smoother = Smoother.of(space, candidates, votes=6)
    >>> found = smoother.mean(noisy[None], 40.0**2, (30.0,))[0]
    >>> float(candidates[int(noisy.argmax())]["x"]), float(candidates[int(found.argmax())]["x"])
    (0.65, 0.2)
    """

    values: FloatArray
    """(kernels, candidates): eigenvalues, of mean one."""
    vectors: FloatArray
    """(kernels, candidates, candidates): eigenvectors, in columns."""
    windows: FloatArray
    """(windows, candidates, candidates): weights around every candidate, squares adding to one."""

    @classmethod
    def of(cls, space: Space, candidates: Sequence[Config], votes: int) -> Smoother:
        """For these candidates, at most :data:`MOST_CANDIDATES`, of which a ballot names some.

        Ballots that agree name a region of ``votes / candidates`` of the space, whose width along
        an axis is the scale on which votes change.
        """
        count = len(candidates)
        if not 2 <= count <= MOST_CANDIDATES:
            raise ValueError(
                f"found {count} candidates to smooth over; allowed are 2 to {MOST_CANDIDATES}"
            )
        columns, ordered = places(space, candidates)
        apart = columns[:, None, :] - columns[None, :, :]
        squares = np.where(ordered, apart**2, apart != 0)
        centre = np.eye(count) - 1 / count  # the level is no part of the function
        values, vectors = [], []
        axes = columns.shape[1]
        width = (votes / count) ** (1 / axes)
        for lengths in width * np.array(_lengths(LENGTHS, axes, count)):
            kernel = centre @ np.exp(-0.5 * squares @ (1 / np.square(lengths))) @ centre
            if (whole := float(np.trace(kernel))) < 1e-9:
                continue  # all candidates are alike for this kernel
            found = np.linalg.eigh(kernel * (count / whole))
            values.append(np.maximum(found.eigenvalues, 0.0))
            vectors.append(found.eigenvectors)
        windows = np.array(
            [
                np.exp(-0.5 * squares @ (1 / np.square(lengths)))
                for lengths in width * np.array(_lengths(WINDOWS, axes, count))
            ]
        )
        windows /= np.sqrt(np.square(windows).sum(axis=2, keepdims=True))
        return cls(np.array(values), np.array(vectors), windows)

    def mean(self, tallies: FloatArray, variance: float, amplitudes: Sequence[float]) -> FloatArray:
        """Expected votes beyond their level, (tallies, candidates)."""
        centred = tallies - tallies.mean(axis=1, keepdims=True)
        ratios = np.square(amplitudes) / variance
        shares = np.array(SHARES)[:, None, None, None]
        mixed = ratios[:, None, None] * (shares * self.values + 1 - shares)
        signal = mixed.reshape(-1, *self.values.shape)  # (shares x amplitudes, kernels, candidates)
        weights, alone = self._weights(centred, variance, signal, ratios)
        found: FloatArray = centred * (alone @ (ratios / (1 + ratios)))[:, None]
        for kernel, vectors in enumerate(self.vectors):
            kept = weights[:, :, kernel] @ (signal[:, kernel] / (1 + signal[:, kernel]))
            found += ((centred @ vectors) * kept) @ vectors.T
        return found

    def read(
        self,
        tallies: FloatArray,
        variance: float,
        amplitudes: Sequence[float],
        rng: np.random.Generator,
        shuffles: int = SHUFFLES,
    ) -> list[Smoothed]:
        """Every tally smoothed, with the chance of one without structure to look like it."""
        means = self.mean(tallies, variance, amplitudes)
        shuffled = rng.permuted(np.repeat(tallies, shuffles, axis=0), axis=1)
        full = self.fullest(shuffled).reshape(-1, shuffles) >= self.fullest(tallies)[:, None]
        chances = (1 + full.sum(axis=1)) / (1 + shuffles)
        return [Smoothed(*each) for each in zip(means, map(float, chances), strict=True)]

    def fullest(self, tallies: FloatArray) -> FloatArray:
        """For every tally, what its fullest window holds beyond the level."""
        centred = tallies - tallies.mean(axis=1, keepdims=True)
        found = np.full(len(tallies), -np.inf)
        for window in self.windows:
            np.maximum(found, (centred @ window.T).max(axis=1), out=found)
        return found

    def _logs(self, centred: FloatArray, variance: float, signal: FloatArray) -> FloatArray:
        """Log likelihoods, (tallies, amplitudes, kernels)."""
        logs = np.empty((len(centred), *signal.shape[:2]))
        for kernel, vectors in enumerate(self.vectors):
            total = 1 + signal[:, kernel]
            squares = np.square(centred @ vectors) / variance
            logs[:, :, kernel] = -0.5 * (squares @ (1 / total).T + np.log(total).sum(axis=1))
        return logs

    def _weights(
        self, centred: FloatArray, variance: float, signal: FloatArray, ratios: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What each process, and each amplitude of no structure, is worth given the tally."""
        count = centred.shape[1]
        squares = np.square(centred).sum(axis=1, keepdims=True) / variance
        rough = -0.5 * (squares / (1 + ratios) + count * np.log(1 + ratios))
        rough += math.log(_NO_STRUCTURE)
        logs = self._logs(centred, variance, signal)
        logs += math.log((1 - _NO_STRUCTURE) / len(self.vectors) / len(SHARES))
        most = np.maximum(logs.max(axis=(1, 2)), rough.max(axis=1))
        weights, alone = np.exp(logs - most[:, None, None]), np.exp(rough - most[:, None])
        whole = weights.sum(axis=(1, 2)) + alone.sum(axis=1)
        return weights / whole[:, None, None], alone / whole[:, None]


def _lengths(choices: Sequence[float], axes: int, candidates: int) -> list[tuple[float, ...]]:
    """A length for each axis: all ways, or, where there are too many, some of them."""
    most = min(_MOST_KERNELS, max(len(choices), _MOST_NUMBERS // candidates**2))
    if len(choices) ** axes <= most:
        return list(product(choices, repeat=axes))
    same = [(length,) * axes for length in choices]
    drawn = np.random.default_rng(0).choice(choices, size=(most - len(same), axes))
    return same + [tuple(map(float, row)) for row in drawn]


def amplitudes(total: float, candidates: int) -> tuple[float, ...]:
    """How much votes may vary over candidates: as if they gathered on a few, or on a quarter.

    ``total`` is the sum of all votes, which is known: every ballot has the same weights.

    >>> [round(amplitude, 1) for amplitude in amplitudes(2750.0, 100)]
    [106.5, 72.8, 47.6]
    """
    return tuple(
        total / candidates * math.sqrt(max(candidates / max(candidates / part, 1.0) - 1, 0.25))
        for part in (16, 8, 4)
    )
