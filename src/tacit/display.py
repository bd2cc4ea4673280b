"""How values look where they are shown by themselves: in a notebook, and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from html import escape

_STEP = Decimal("0.0001")


def rounded_up(epsilon: float) -> str:
    """Four decimals, rounded up: a cost is never shown smaller than it is.

    >>> rounded_up(0.99991), rounded_up(1234.56711), rounded_up(0.1), rounded_up(math.inf)
    ('1', '1234.5672', '0.1', 'infinite')
    """
    if not math.isfinite(epsilon):
        return "infinite"
    exact = Decimal(repr(float(epsilon))).quantize(_STEP, ROUND_CEILING)
    return f"{exact.normalize():f}"


def short(value: object) -> str:
    """A hyperparameter's value in a few digits.

    >>> short(0.123456789), short(3), short("adam")
    ('0.1235', '3', 'adam')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings(config: Mapping[str, object]) -> str:
    """A configuration in one line.

    >>> settings({"rate": 0.123456789, "layers": 3})
    'rate = 0.1235, layers = 3'
    """
    return ", ".join(f"{name} = {short(value)}" for name, value in config.items())


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Names and what is to be said about each, as a table for a notebook; all of it escaped.

    >>> facts_html("a < b", {"who": "<me>"})
    '<table><caption>a &lt; b</caption><tr><th>who</th><td>&lt;me&gt;</td></tr></table>'
    """
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(told)}</td></tr>" for name, told in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def rows_html(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a head, for a notebook; all of it escaped.

    >>> rows_html("t", ["a"], [["1"]])
    '<table><caption>t</caption><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    """
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><caption>{escape(title)}</caption><tr>{top}</tr>{body}</table>"
