"""The frame of every page that Tacit writes: one HTML file that opens from disk and loads nothing.

A page is a title and parts: pieces of HTML made by the functions here, and each :class:`Plot`.
Plotly is inside once, and only if something is drawn; figures follow light and dark and the width
of paper, and behind each stands a plain table. Tables sort by a click or a key on their headings.
All text from data is escaped, and a content security policy forbids the page to fetch anything.
Epsilon and delta are rounded up, never down.
"""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.wording import NONE, short, up

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = ("#3b7dc4", "#d9702b", "#2f9461", "#9a68bd", "#a98413", "#cc4f6d")
"""Of series; like all colours of figures readable on white and on black."""
GREY = "#8290a2"
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_FONT = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
_LIBRARIES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "scikit-learn": "sklearn",
    "torch": "torch",
    "flwr": "flwr",
    "dp-accounting": "dp_accounting",
    "optuna": "optuna",
    "botorch": "botorch",
}
_MANY_ROWS, _MANY_COLUMNS = 25, 9


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is not sorted by what it shows.

    ``order`` None keeps it last, whichever way the table is sorted.
    """

    text: str
    order: float | None


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure with its heading, what it shows in words, and the plain table behind it.

    Args:
        title: the heading; plain text.
        figure: without a title of its own.
        words: what is seen and in which units; plain text.
        table: HTML, from :func:`table` or :func:`records`.
        summary: what the folded table is called; plain text.
        panels: how many stand side by side: each keeps a width that can be read.
    """

    title: str
    figure: Figure
    words: str = ""
    table: str = ""
    summary: str = "The numbers behind it"
    panels: int = 1

    def html(self, name: str) -> str:
        """With ``name`` as the identifier, which is unique on a page."""
        self.figure.update_layout(
            template="none",
            font={"family": _FONT, "size": 13},
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            colorway=COLOURS,
        )
        self.figure.update_annotations(font_size=13)
        self.figure.update_traces(error_y_color=GREY, selector={"type": "bar"})
        self.figure.update_xaxes(automargin=True, zeroline=False, title_font_size=13)
        self.figure.update_yaxes(automargin=True, title_font_size=13)
        drawn = self.figure.to_html(
            {"displayModeBar": False, "responsive": True},
            full_html=False,
            include_plotlyjs=False,
            div_id=name,
        )
        words = paragraph(self.words, soft=True) if self.words else ""
        behind = folded(self.summary, self.table) if self.table else ""
        title, width = text(self.title), f"min-width: {15 * self.panels}rem"
        return (
            f'<figure><div class="whole"><figcaption><h3>{title}</h3>{words}</figcaption>'
            f'<div class="wide"><div class="plot" style="{width}" role="img" aria-label="{title}">'
            f"{drawn}</div></div></div>{behind}</figure>"
        )


def arrange(figure: Figure, height: int = 400, *, top: int = 40, legend: str = "below") -> None:
    """A usual height, margins and place of the legend, ``below`` or ``above``."""
    places = {"below": {"y": -0.2, "yanchor": "top"}, "above": {"y": 1.02, "yanchor": "bottom"}}
    figure.update_layout(
        height=height,
        margin={"t": top, "l": 60, "r": 20, "b": 60},
        legend={"orientation": "h", **places[legend]},
    )


def page(title: str, parts: Iterable[str | Plot], below: str = "") -> str:
    """The whole page.

    Args:
        title: plain text; heading, and name of the window.
        parts: in the order of reading.
        below: what stands under the heading; plain text.
    """
    listed = list(parts)
    shown = [
        part.html(f"plot-{number}") if isinstance(part, Plot) else part
        for number, part in enumerate(listed, start=1)
    ]
    library = ""
    if any(isinstance(part, Plot) for part in listed):
        from plotly.offline import get_plotlyjs

        library = f"<script>{get_plotlyjs()}</script>"
    body = "\n".join(shown)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{_file("page.css")}</style>
{library}
<h1>{text(title)}</h1>
<p class="soft">{text(below)}</p>
<noscript><p class="warning">Figures need JavaScript; tables hold the same numbers.</p></noscript>
{body}
<script>{_file("page.js")}</script>
</html>
"""


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    caption: str = "",
    strong: int | None = None,
    foot: Sequence[object] = (),
    *,
    scrolls: bool = False,
) -> str:
    """A table that sorts by its headings.

    Cells are text, numbers (floats to four digits, sorted exactly), None or a :class:`Cell`; all
    are escaped here. A column of numbers stands to the right.

    Args:
        head: a heading for each column.
        rows: as many cells each.
        caption: above it.
        strong: the index of a row that stands out.
        foot: a last row that sorting leaves where it is.
        scrolls: whether many rows are seen through a window; on paper all are.
    """
    made = [[_cell(value) for value in row] for row in rows]
    right = [
        bool(column) and any(c.order is not None for c in column) and not any(map(_worded, column))
        for column in (zip(*made, strict=True) if made else [()] * len(head))
    ]
    kinds = [' class="number"' if number else "" for number in right]
    top = "".join(
        f'<th scope="col"{kind}><button type="button">{text(word)}</button></th>'
        for word, kind in zip(head, kinds, strict=True)
    )
    body = "".join(
        f"<tr{' class=strong' if number == strong else ''}>{_row(row, kinds)}</tr>\n"
        for number, row in enumerate(made)
    )
    last = f"<tfoot><tr>{_row(list(map(_cell, foot)), kinds)}</tr></tfoot>" if foot else ""
    words = f"<caption>{text(caption)}</caption>" if caption else ""
    crowded = " crowded" if len(head) > _MANY_COLUMNS else ""
    tall = " tall" if scrolls and len(made) > _MANY_ROWS else ""
    return (
        f'<div class="wide{tall}"><table class="sorts{crowded}">{words}'
        f"<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody>{last}</table></div>"
    )


def records(rows: Iterable[Mapping[str, Any]], caption: str = "") -> str:
    """Rows of a JSON document as a table: a column for every key, also of nested ones."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return table(names, [[row.get(name) for name in names] for row in flat], caption, scrolls=True)


def settings(found: Mapping[str, Any], caption: str = "") -> str:
    """A nested mapping as a table of two columns."""
    return table(("setting", "value"), _flat(found).items(), caption)


def section(title: str) -> str:
    """A heading."""
    return f"<h2>{text(title)}</h2>"


def paragraph(words: str, *, soft: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p{' class=soft' if soft else ''}>{text(words)}</p>"


def folded(summary: str, html: str) -> str:
    """A part that is closed until somebody opens or prints it."""
    return f"<details><summary>{text(summary)}</summary>{html}</details>"


def warning(title: str, words: str) -> str:
    """What must not be overlooked."""
    return f'<div class="warning" role="alert"><strong>{text(title)}</strong> {text(words)}</div>'


def tiles(found: Iterable[tuple[str, str]]) -> str:
    """Few numbers in large letters, each with its unit below."""
    shown = "".join(
        f"<div><b>{text(big)}</b><span>{text(unit)}</span></div>" for big, unit in found
    )
    return f'<div class="tiles">{shown}</div>'


def terms(found: Mapping[str, str]) -> str:
    """Terms and what they mean here."""
    shown = "".join(f"<dt>{text(term)}</dt><dd>{text(words)}</dd>" for term, words in found.items())
    return f"<dl>{shown}</dl>"


def command_line() -> str:
    """How this process was called, for records: of a folder only its name, not where it is."""
    return shlex.join(
        ["tacit", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])]
    )


def versions() -> dict[str, str]:
    """Of Tacit, Python and the libraries that this process has used so far."""
    used = [package for package, module in _LIBRARIES.items() if module in sys.modules]
    return {
        "tacit": metadata.version("tacit"),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in used},
    }


def text(value: object) -> str:
    """Escaped."""
    return escape(str(value))


def price(found: float | str) -> Cell:
    """An epsilon or a delta, rounded up."""
    return Cell(up(found), float(found))


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _cell(value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(short(value), float(str(value)) if number else None)


def _worded(cell: Cell) -> bool:
    return cell.order is None and cell.text not in (NONE, "")


def _row(row: Sequence[Cell], kinds: Sequence[str]) -> str:
    return "".join(
        f"<td{kind}{_order(cell)}>{text(cell.text)}</td>"
        for cell, kind in zip(row, kinds, strict=True)
    )


def _order(cell: Cell) -> str:
    """What JavaScript sorts by, where that is not the text itself."""
    if cell.order is None:
        return "" if _worded(cell) else ' data-order=""'
    return f' data-order="{cell.order!r}"'.replace('"inf"', '"Infinity"')


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Without nesting; keys become words, and what is an epsilon is rounded up."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = before + key.replace("_", " ").replace("epsilon", "ε")
        parts = value if isinstance(value, Mapping) else {}
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            parts = {str(number): part for number, part in enumerate(value, start=1)}
        if parts:
            found |= _flat(parts, f"{name} ")
        elif "epsilon" in key and isinstance(value, int | float | str):
            found[name] = price(value)
        else:
            found[name] = value
    return found
