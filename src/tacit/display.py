"""How values look where they are shown by themselves: in a notebook, and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tacit.wording import short


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
