"""Numbers as people read them; none of it is escaped."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

NONE = "–"
_LONG_LIST = 6
_STEP = Decimal("0.0001")


def short(value: object, digits: int = 4) -> str:
    """A value for people, not escaped.

    >>> short(0.123456), short(True), short(None), short([1, 2.5])
    ('0.1235', 'yes', '–', '1, 2.5')
    """
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        if len(value) > _LONG_LIST:
            return f"{len(value)} values"
        return ", ".join(short(each, digits) for each in value)
    return str(value)


def percent(fraction: float) -> str:
    """Three digits of a hundred."""
    return f"{100 * fraction:.3g}%"


def up(price: float | str) -> str:
    """At most four significant digits, rounded up: a price is never understated.

    >>> up(0.99991), up(12.3401), up(1e-5), up("inf")
    ('1.000', '12.35', '0.00001', '∞')
    """
    rounded = Context(prec=4, rounding=ROUND_CEILING).create_decimal(str(price))
    return "∞" if rounded.is_infinite() else f"{rounded:g}"


def rounded_up(epsilon: float) -> str:
    """Four decimals, rounded up, for sentences and terminals; pages have :func:`up`.

    >>> rounded_up(0.99991), rounded_up(1234.56711), rounded_up(0.1), rounded_up(math.inf)
    ('1', '1234.5672', '0.1', 'infinite')
    """
    if not math.isfinite(epsilon):
        return "infinite"
    exact = Decimal(repr(float(epsilon))).quantize(_STEP, ROUND_CEILING)
    return f"{exact.normalize():f}"


def size(count: float) -> str:
    """Bytes in units for people.

    >>> size(999), size(154_840), size(2.5e9)
    ('999 B', '154.8 kB', '2.5 GB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from just below to just above: for logarithmic axes.

    >>> log_ticks(0.3, 4.0)
    [0.2, 0.5, 1.0, 2.0, 5.0]
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{first}e{power}") for power in powers for first in (1, 2, 5)]
    below, above = max(t for t in ticks if t <= low), min(t for t in ticks if t >= high)
    return [tick for tick in ticks if below <= tick <= above]
