"""By how much a sum of clipped gradients can move, as a computer adds it up, and on which grid.

DP-SGD adds up gradients of single records, each scaled to a norm of at most ``C``, and adds noise.
A computer rounds, so the sum may move by a little more than ``C`` when a record comes or goes. Here
the sum, in double precision, is *snapped*: rounded to whole steps of a grid, a power of two ``g``
with ``g sqrt(d) <= C / 2^14`` for ``d`` parameters. Noise is a number of whole steps too
(:mod:`tacit.privacy.rounded_normal`), in units of the *charged sensitivity*
``C (1 + MARGIN) + g sqrt(d)``, so that events and prices need not know of any of this.

*Proof.* Let a row's contribution be ``s v``: the single-precision gradient ``v`` of its own loss, a
function of the row and the weights alone (:mod:`tacit.lots` says why), times the scale
``s = w min(1, C / |v|)``, where the weight ``w`` is one over the number of rows of its group.

1. *Norms.* Products of two single-precision numbers are exact in double precision, so ``|v|^2``, a
   sum of at most ``2^30`` such products, or over layers of products of two such sums, is known to a
   factor of ``1 +- 2^-21``. Hence a contribution has norm at most ``w C (1 + 2^-21)``, and all rows
   of a group together at most ``C (1 + 2^-21)``, by the triangle inequality. What has no finite
   norm contributes nothing.
2. *Sums.* An entry is a sum of ``n <= 2^20`` products in some order (of each of ``u`` groups, at
   most the first ``2^20 / u`` rows are used), each rounded at most twice: it errs by at most
   ``(n + 2) 2^-53`` times the sum of their absolute values, to first order. So
   the whole sum errs by at most ``n (n + 2) 2^-53 C``, which is below ``1.01 * 2^-13 C``.
   Nothing over- or underflows, since ``C`` is between ``2^-60`` and ``2^60``.
3. *Snapping.* Dividing by a power of two is exact; rounding moves an entry by at most ``g / 2``.

Two sums whose exact values differ by one contribution therefore differ, snapped, by at most
``C (1 + 2^-21) + 2 * 1.01 * 2^-13 C + 2 sqrt(d) g / 2``, which is less than the charged sensitivity
by more than ``2^-13 C``: more than what rounding takes off the deviation of the noise. Where a
record is replaced they differ by two contributions, and by less than twice the charged sensitivity.
Sums of snapped numbers and noise stay below ``2^53`` steps, so that addition is exact. The noisy
sum, in steps, is thus the rounded output of a Gaussian mechanism, and all that follows is
post-processing.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MARGIN = 2.0**-11
MOST_ROWS = 2**20
MOST_PARAMETERS = 2**30
_FINENESS = 2**14
_SMALLEST_CLIP, _LARGEST_CLIP = 2.0**-60, 2.0**60


def grid_step(sensitivity: npt.ArrayLike, parameters: int) -> FloatArray:
    """The largest power of two ``g`` with ``g sqrt(parameters) <= sensitivity / 2^14``.

    >>> float(grid_step(1.0, 100)) == 2.0**-18
    True
    """
    _, exponent = np.frexp(np.asarray(sensitivity) / (_FINENESS * math.sqrt(parameters)))
    return np.asarray(np.ldexp(1.0, exponent - 1))


def charged_sensitivity(sensitivity: npt.ArrayLike, parameters: int) -> FloatArray:
    """How far a snapped sum can move when its exact value moves by at most ``sensitivity``.

    >>> bool(1.0004 < charged_sensitivity(1.0, 100) < 1.0006)
    True
    """
    exact = np.asarray(sensitivity, dtype=np.float64)
    return exact * (1 + MARGIN) + grid_step(exact, parameters) * math.sqrt(parameters)


def snapped(total: FloatArray, step: FloatArray) -> FloatArray:
    """A sum in whole steps of a grid, which are exact in double precision."""
    steps = total * (1 / step)
    return np.asarray(np.rint(steps, out=steps))


def check_sum(clips: npt.ArrayLike, units: int, parameters: int) -> None:
    """Refuse sums for which the proof above does not hold.

    A unit is a row or a group of rows. How many rows a group has is not public, and decides nothing
    here.
    """
    for clip in np.ravel(clips):
        if not _SMALLEST_CLIP <= clip <= _LARGEST_CLIP:
            raise ValueError(f"clip is {float(clip)!r}; allowed is a number from 2^-60 to 2^60")
    if units > MOST_ROWS:
        raise ValueError(
            f"private training has {units} records, where rows that belong together count once; "
            f"allowed is up to {MOST_ROWS}, for which the rounding of sums is known to be "
            "harmless; train on fewer"
        )
    if parameters > MOST_PARAMETERS:
        raise ValueError(
            f"the model has {parameters} parameters; allowed in private training is up to "
            f"{MOST_PARAMETERS}; use a smaller model"
        )
