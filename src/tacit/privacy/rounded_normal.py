"""Rounded normal noise: integers that are distributed exactly as ``round(deviation * N)``.

Floating-point noise betrays what it is added to, because sums of floating-point numbers have holes:
some results can be reached from one data set and not from its neighbour (Mironov, "On Significance
of the Least Significant Bits for Differential Privacy", 2012). The noise of one party is therefore
an integer, from the operating system's randomness, and is added to integers.

*Proof that it costs what a Gaussian costs.* For an integer ``x`` and a real number ``y``,
``x + round(y) = round(x + y)`` (ties, which have probability zero, aside). The noisy integer is
thus the Gaussian mechanism's output ``x + deviation * N``, rounded: post-processing. This holds for
vectors, and whatever data or lot ``x`` came from, so every accountant of the Gaussian mechanism,
with sampled lots or without, applies as it stands. It does not hold for sums of several parties'
rounded normals: there the noise is Skellam's (:mod:`tacit.privacy.skellam`).

*Proof that draws are exact.* A draw is a sign and a uniform real number ``u`` in (0, 1/2), whose
binary digits are drawn as they are needed; ``z = ndtri(u)`` is the lower half of a normal variable.
After 63 digits, ``u`` lies between ``m / 2^64`` and ``(m + 1) / 2^64``. As a function of ``log u``,
``z`` has the slope ``u / phi(z)``, Mills' ratio, which is below ``1.26`` for ``z < 0``. Hence,
whatever digits follow, ``z`` is within ``1.26 / m`` of ``ndtri(m / 2^64)``. Rounding ``m`` to
double precision moves ``log u`` by ``2^-52`` at most, SciPy's ``ndtri`` errs by less than ``1e-15``
of its value (a test compares it with mpmath, also where its formula changes), and products err by
``2^-53`` of theirs: all of that is below ``2^-44 (1 + |z|)``, with a factor of about fifty to
spare. If the same integer is nearest to both ends of this interval, the draw is that integer,
whatever follows. Otherwise the candidates are the integers between, and :func:`_settled` compares
``u`` with ``Phi(-(k + 1/2) / deviation)`` in arbitrary precision, drawing more digits until one
candidate is left. So the distribution is exact: its total variation from the truth is zero.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]

LARGEST_DEVIATION = 2.0**45
"""Above this, double precision could no longer tell neighbouring integers apart."""

_ALLOWED_ERROR = 2.0**-44
_MILLS = 1.26
_FURTHEST = 2**62
"""No draw is further out: even the largest deviation reaches it with a chance below exp(-2^32)."""
_WORD = 64


def rounded_normal(deviation: npt.ArrayLike, shape: int | tuple[int, ...]) -> IntArray:
    """Independent integers, each a normal number times ``deviation`` and rounded to the nearest.

    Args:
        deviation: of the normal number before it is rounded, one for all or any array that
            broadcasts to ``shape``: finite, above 0 and at most :data:`LARGEST_DEVIATION`.
        shape: of the result.

    >>> drawn = rounded_normal(100.0, (100, 100))
    >>> drawn.dtype.name, bool(abs(drawn.mean()) < 6), bool(abs(drawn.std() - 100) < 5)
    ('int64', True, True)
    >>> rounded_normal(1e-3, 5).tolist()
    [0, 0, 0, 0, 0]
    """
    deviations = np.broadcast_to(np.asarray(deviation, dtype=np.float64), shape)
    check_deviation(deviations)
    words = np.frombuffer(secrets.token_bytes(8 * deviations.size), dtype="<u8")
    found = _from_words(words.astype(np.uint64, copy=False), deviations.ravel(), _ALLOWED_ERROR)
    return found.reshape(deviations.shape)


def check_deviation(deviations: FloatArray) -> None:
    """Refuse what cannot be drawn exactly, and noise that is none."""
    allowed = (deviations > 0) & (deviations <= LARGEST_DEVIATION)
    if not allowed.all():
        raise ValueError(
            f"the deviation of rounded normal noise is {float(deviations[~allowed][0])!r}; allowed "
            "is a number above 0 and at most 2^45; use noise above 0, and less of it"
        )


def _from_words(words: WordArray, deviations: FloatArray, allowed_error: float) -> IntArray:
    """A draw for every word: its lowest bit is the sign, the others begin the magnitude.

    A larger ``allowed_error`` sends more draws through :func:`_settled`, as tests do.
    """
    from scipy.special import ndtri

    digits = (words >> np.uint64(1)).astype(np.float64)
    middle = -ndtri(np.maximum(digits, 1.0) * 2.0**-_WORD)
    with np.errstate(divide="ignore"):
        error = deviations * (_MILLS / digits + allowed_error * (1.0 + middle))
    middle *= deviations
    lowest = np.maximum(np.rint(middle - error), 0.0)
    highest = np.minimum(np.rint(middle + error), _FURTHEST)
    found = lowest.astype(np.int64)
    unsettled = np.flatnonzero(lowest != highest)
    if len(unsettled):
        from mpmath import MPContext

        context = MPContext()  # its own, since a precision that threads share could drop
        for place in unsettled:
            candidates = range(int(lowest[place]), int(highest[place]) + 1)
            begun, deviation = int(words[place]) >> 1, float(deviations[place])
            found[place] = _settled(begun, candidates, deviation, context)
    return np.where(words & np.uint64(1), -found, found)


def _settled(digits: int, candidates: range, deviation: float, context: Any) -> int:
    """The one of the candidates that is nearest to a magnitude whose digits are drawn as needed.

    With ``n`` digits, ``u`` lies between ``digits / 2^n`` and ``(digits + 1) / 2^n``. mpmath works
    with 64 bits more than that, so it errs by far less than ``2^-n``; the interval is widened by
    that much on either side. If both its ends are nearest to the same candidate, so is ``u``.
    """
    drawn = _WORD
    while True:
        context.prec = drawn + _WORD
        first, last = (
            _nearest(context.ldexp(edge, -drawn), candidates, deviation, context)
            for edge in (digits + 2, digits - 1)
        )
        if first == last:
            return first
        candidates = range(first, last + 1)
        digits, drawn = digits << _WORD | secrets.randbits(_WORD), drawn + _WORD


def _nearest(uniform: Any, candidates: range, deviation: float, context: Any) -> int:
    """The first candidate that ends beyond the point whose upper tail has this probability."""

    def ends_beyond(candidate: int) -> bool:
        return bool(context.ncdf(-(candidate + context.mpf(0.5)) / deviation) < uniform)

    return candidates[bisect_left(candidates[:-1], True, key=ends_beyond)]
