"""Consoles for people: a text is shown as it is, whoever wrote it.

Rich would read ``[/x]`` in a text as markup and ``:x:`` as a picture. Names of runs and folders,
labels and configurations come from outside, so no console here reads either: words that stand out
get their style from :func:`styled`. Commands print through :func:`plain_console` only.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def plain_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Where a command prints.

    >>> plain_console().print("run[/x] of [bold] :x:")
    run[/x] of [bold] :x:

    Args:
        stderr: whether it prints to standard error.
        soft_wrap: whether long lines are left to the terminal, as for a path to be copied.
    """
    return Console(stderr=stderr, soft_wrap=soft_wrap, highlight=False, markup=False, emoji=False)


def styled(begin: str, style: str, rest: str = "") -> Text:
    """A line that begins in a style.

    >>> plain_console().print(styled("run[/x]", "bold", ": 3 clients"))
    run[/x]: 3 clients
    """
    return Text.assemble((begin, style), rest)


def print_warning(printed: Console, sentence: str) -> None:
    """A sentence that stands out."""
    printed.print(styled("Warning:", "yellow", f" {sentence}"))
