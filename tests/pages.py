"""What stands on the pages of the documentation: links, headings, blocks of code and their marks.

A block may be marked by a comment on a line of its own before it::

    <!-- run -->                          its commands are run, and what it shows is what they print
    <!-- printed -->                      it is what the Python before it prints
    <!-- continues elsewhere: why -->     it cannot run here

Python and TOML need no mark: they always run and are always read as plans. A page runs from top to
bottom in one empty folder; TOML whose first line is a comment with a file's name is put there. In a
shell block lines after ``$`` are commands and the others are output, where ``...`` stands for
anything; without any ``$`` all lines are commands.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import typer
from markdown.extensions.toc import slugify, unique
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tacit.cli import app
from tacit.pareto_plan import load_pareto_plan
from tacit.plan import load_plan
from tests.command_line import tacit

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
SHELL = ("", "sh", "console")
LANGUAGES = (*SHELL, "python", "toml", "text")
ELSEWHERE = re.compile(r"<!-- continues elsewhere: (.{10,}) -->")
RUN, PRINTED = "<!-- run -->", "<!-- printed -->"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def elsewhere(self) -> bool:
        return bool(ELSEWHERE.fullmatch(self.mark))

    @property
    def runs(self) -> bool:
        """Whether something happens when its page runs."""
        return not self.elsewhere and (self.mark != "" or self.language == "python")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[tuple[list[str], str]]:
        """Commands of a shell block, as words, each with the output that is shown."""
        text = self.text.replace("\\\n", " ")
        prompted = re.split(r"^\$ ", text, flags=re.MULTILINE)
        pairs = (
            [part.partition("\n")[::2] for part in prompted[1:]]
            if len(prompted) > 1
            else [(line, "") for line in text.splitlines()]
        )
        found = []
        for line, shown in pairs:
            words = shlex.split(line, comments=True)
            while "&&" in words:
                found.append((words[: words.index("&&")], ""))
                words = words[words.index("&&") + 1 :]
            if words:
                found.append((words, shown))
        return found


@functools.cache
def tokens(page: str) -> Sequence[Token]:
    return MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text())


def blocks(page: str) -> list[Block]:
    found, mark = [], ""
    for token in tokens(page):
        if token.type == "fence":
            assert token.map
            found.append(Block(page, token.map[0] + 1, token.info, token.content, mark))
        if token.level == 0:
            mark = token.content.strip() if token.type == "html_block" else ""
    return found


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def links(page: str) -> Iterator[str]:
    for token in tokens(page):
        for child in token.children or ():
            for kind in ("href", "src"):
                if child.attrGet(kind):
                    yield str(child.attrGet(kind))


def mentions(page: str) -> Iterator[str]:
    """Commands of ``tacit`` in the middle of a text."""
    for token in tokens(page):
        for child in token.children or ():
            if child.type == "code_inline" and child.content.startswith("tacit "):
                yield child.content


def anchors(page: str) -> set[str]:
    """The headings of a page as the site names them."""
    taken: set[str] = set()
    for opening, inline in zip(tokens(page), tokens(page)[1:], strict=False):
        if opening.type == "heading_open":
            said = "".join(child.content for child in inline.children or ())
            unique(slugify(said, "-"), taken)
    return taken


@functools.cache
def namespace(page: str) -> dict[str, Any]:
    """Run a page, check what it shows, and return the names that its Python defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(page):
            if name := re.match(r"# ([\w-]+\.toml)\n", block.text):
                Path(name[1]).write_text(block.text)
            if block.runs and block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(block.text, str(block), "exec"), names)
                printed = out.getvalue()
            elif block.mark == PRINTED:
                assert printed_as_shown(block.text, printed), f"{block}: {printed}"
            elif block.mark == RUN:
                run_commands(block, Path(folder))
    return names


def run_commands(block: Block, folder: Path) -> None:
    """Run the ``tacit`` commands of a block, and compare what they print with what it shows."""
    for words, shown in block.commands():
        if Path(words[0]).name == "tacit":
            home = str(folder / "home")
            done = tacit(*words[1:], folder=folder, COLUMNS="120", TACIT_HOME=home)
            assert done.returncode == 0, f"{block}: {done.stderr}"
            assert not shown or printed_as_shown(shown, done.stdout), f"{block}: {done.stdout}"


@functools.cache
def command_tree() -> click.Command:
    tree: click.Command = typer.main.get_command(app)
    return tree


def check_command(words: Sequence[str]) -> None:
    """Refuse a command of ``tacit`` that there is not, an option or a key that it has not."""
    command = command_tree()
    context = command.make_context("tacit", list(words))
    path = []
    while isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, inner, rest = command.resolve_command(context, rest)
        assert name is not None
        assert inner is not None
        path.append(name)
        command = inner
        context = command.make_context(name, rest, parent=context)
    changes = context.params.get("changes") or []
    if path == ["tune"]:
        load_plan(None, changes)
    elif path == ["pareto", "run"]:
        load_pareto_plan(None, changes)


def check_mention(text: str) -> None:
    """Refuse words that look like a command of ``tacit``, in the middle of a text, and are none."""
    command = command_tree()
    for word in text.split()[1:]:
        if not isinstance(command, click.Group) or not re.fullmatch("[a-z-]+", word):
            return
        if word.startswith("--") or not command.commands:
            return
        assert word in command.commands, f"{text!r}: there is no {word!r}"
        command = command.commands[word]


def printed_as_shown(shown: str, printed: str) -> bool:
    """Whether output is what a page shows, where ``...`` stands for anything."""
    wanted = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    found = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, found, re.DOTALL) is not None
