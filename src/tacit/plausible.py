"""Whether an opened sum can be one of valid answers and their noise.

A secure sum hides its members' answers from everybody, also those of a member that does not keep to
its bound. Nothing proves an answer here. What can be checked is the opened sum: valid answers of n
members leave only some room (:meth:`tacit.privacy.bounds.Bound.sums`), and noise reaches only so
far. A sum outside is spoiled, whoever spoiled it, and nothing may be chosen by it.

What one member can still do within that room is on the page about privacy (``docs/privacy.md``).
"""

from __future__ import annotations

import math

import numpy as np

from tacit.privacy.bounds import Bound
from tacit.privacy.skellam import IntArray, reach
from tacit.secure.protocol import SpoiledSum

FALSE_ALARM = 1e-6
"""How often at most each of the three checks refuses a sum of valid answers."""


class ImplausibleSum(SpoiledSum):
    """A sum was opened that no valid answers and their noise give; it must not be used."""

    def __init__(self, found: str, allowed: str) -> None:
        Exception.__init__(
            self,
            f"{found}, and no valid answers with their noise give that ({allowed}): a client is "
            "faulty or hostile, so the sum is spoiled and nothing was chosen; what was charged "
            "stays charged: find that client before you ask again",
        )


def check_sum(
    value: IntArray,
    bound: Bound,
    members: int,
    share_variance: float,
    false_alarm: float = FALSE_ALARM,
) -> None:
    """Refuse an opened sum that lies outside what valid answers and their noise can give.

    Three checks: every entry, the total of all entries, and for bounds of a norm the Euclidean
    length. *Each refuses a sum of valid answers with a chance of at most* ``false_alarm``. The
    noise is ``x``, L independent Skellams of variance ``v = members * share_variance``.

    - Entries: an honest sum is in the range of its entry, so it leaves the widened range only where
      ``|x_i| > r`` with ``r = reach(v, log(false_alarm / 2L))``. Each of the 2L tails weighs at
      most ``false_alarm / 2L``: union bound.
    - Total: the sum of the x is Skellam of variance ``Lv``; two tails of ``false_alarm / 2``.
    - Length: ``|s + x| <= |s| + |x|``, and ``|x|^2 <= Lv + t`` with t from :func:`_squared_reach`,
      which fails with a chance of at most ``false_alarm``.

    Draws are within 2^-80 of Skellam in total variation, which no digit of the rate shows. Without
    noise nothing is widened, and a sum of valid answers always passes.

    Raises:
        ImplausibleSum: with what was found and what valid answers give.
    """
    allowed = bound.sums(members)
    length, variance = bound.length, members * share_variance
    one = _reach(variance, false_alarm / (2 * length))
    low, high = allowed.lowest - one, allowed.highest + one
    outside = (value < low) | (value > high)
    if outside.any():
        worst = max(map(int, value[outside]), key=abs)
        given = f"from {min(low.tolist())} to {max(high.tolist())} an entry"
        raise ImplausibleSum(f"an entry of the sum of {members} clients is {worst}", given)
    entries = value.astype(object)  # Python's integers cannot overflow
    total, whole = int(entries.sum()), _reach(length * variance, false_alarm / 2)
    least, most = allowed.total[0] - whole, allowed.total[1] + whole
    if not least <= total <= most:
        raise ImplausibleSum(
            f"the entries of the sum of {members} clients add up to {total}",
            f"from {least} to {most} together",
        )
    if allowed.norm is not None:
        noise = math.sqrt(_squared_reach(variance, length, false_alarm))
        longest = allowed.norm + (math.ceil(noise) if noise else 0)
        squared = int((entries * entries).sum())
        if squared > longest**2:
            raise ImplausibleSum(
                f"the sum of {members} clients has length {math.sqrt(squared):.6g}",
                f"at most {longest}",
            )


def check_reached(
    reached: int,
    at_least: int,
    bound: Bound,
    members: int,
    share_variance: float,
    false_alarm: float = FALSE_ALARM,
) -> None:
    """The same for a sum of which only opens which entries reach a threshold.

    *Refuses a sum of valid answers with a chance of at most* ``false_alarm``: except with that
    chance, noise raises no entry by more than ``r = reach(v, log(false_alarm / L))`` (union bound).
    So valid answers add up to ``at_least - r`` or more in each entry that reaches the threshold,
    and in all of these together to no more than their total less the least of all others.

    Raises:
        ImplausibleSum: with what was found and what valid answers give.
    """
    allowed = bound.sums(members)
    most = allowed.total[1] - int(np.minimum(allowed.lowest, 0).sum())
    each = at_least - _reach(members * share_variance, false_alarm / bound.length)
    if each > 0 and reached * each > most:
        raise ImplausibleSum(
            f"{reached} entries of the sum of {members} clients reach {at_least}",
            f"up to {most // each} entries",
        )


def _reach(variance: float, chance: float) -> int:
    return reach(variance, math.log(chance)) if variance else 0


def _squared_reach(variance: float, length: int, chance: float) -> float:
    """What the squared length of so many independent Skellams exceeds with at most this chance.

    *Proof.* Let ``r`` be what no entry's absolute value exceeds, except with ``chance / 2`` (union
    bound over 2L tails). Then the squared length is at most ``L r^2``, the better answer for short
    vectors. It is also the sum of ``y_i = min(x_i^2, r^2)``. Those are independent, at most
    ``r^2``, have a mean of at most ``v``, and a variance of at most that of ``x_i^2``, because
    cutting off never spreads: ``E x^4 - v^2 = 2 v^2 + v`` for a Skellam. By Bernstein's inequality
    their sum exceeds ``Lv + t`` with a chance of at most
    ``exp(-t^2 / (2 L (2v^2 + v) + 2 r^2 t / 3))``, which is ``chance / 2`` for the t that solves
    ``t^2 = c (2 L (2v^2 + v) + 2 r^2 t / 3)`` with ``c = log(2 / chance)``.

    >>> _squared_reach(100.0, 10_000, 1e-6) / (100.0 * 10_000) < 1.2
    True
    """
    if not variance:
        return 0.0
    furthest = reach(variance, math.log(chance / (4 * length)))
    needed = math.log(2 / chance)
    linear = needed * furthest**2 / 3
    spread = 2 * needed * length * (2 * variance**2 + variance)
    by_bernstein = length * variance + linear + math.sqrt(linear**2 + spread)
    return min(by_bernstein, float(length * furthest**2))
