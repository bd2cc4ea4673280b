"""Whatever names and labels hold, commands show it as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.federation import RoundNote
from tacit.printing import plain_console, print_warning, styled
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger
from tacit.terminal import progress_bars, round_rows, stage_bars, working
from tests.command_line import in_process

SOURCE = Path(__file__).parent.parent / "src" / "tacit"
ODD = "n[/x] [bold]:smile:"
FRONT = (
    *("oracle.kind=sparse-vector", "oracle.replications=4", "front.first=4", "front.points=2"),
    "front.batch=1",
)


def printed(folder: Path, *words: object) -> str:
    """What a command printed, in one line."""
    done = in_process(*words, folder=folder)
    assert done.returncode == 0, done.stderr
    return "".join(done.stdout.split())


def test_every_console_comes_from_one_place() -> None:
    """The others would read markup."""
    made = [path.name for path in SOURCE.rglob("*.py") if " Console(" in path.read_text()]
    assert made == ["printing.py"]
    assert not [path for path in SOURCE.rglob("*.py") if "rich.markup" in path.read_text()]


def test_a_ledger_is_shown_whatever_its_runs_and_questions_are_called(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l.sqlite", "hospitals", Budget(30.0, 1e-5))
    ledger.charge(TopVotes(100, 5).release(variance=139.0), label="[/red]", run="[/x]")
    shown = printed(tmp_path, "ledger", "show", "l.sqlite")
    assert "[/red]" in shown
    assert "[/x]" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("new", ODD),
        ("data", "show", "digits", "--clients", 10, "--out", f"{ODD}.html"),
        ("pareto", *(part for word in FRONT for part in ("--set", word)), "--out", ODD),
    ],
    ids=lambda command: str(command[0]),
)
def test_a_folder_is_shown_as_it_is_called(tmp_path: Path, command: tuple[object, ...]) -> None:
    assert "".join(ODD.split()) in printed(tmp_path, *command)


def on_terminal(monkeypatch: pytest.MonkeyPatch, show: Callable[[], object]) -> None:
    """As if standard error were a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    show()


def test_progress_is_shown_as_it_is_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def show() -> None:
        with progress_bars() as progress:
            stage_bars(progress)(ODD, 1, 2)
            round_rows(progress)(RoundNote(1, "train", {ODD: 1}, 0.5, 1.0))
        with working(ODD):
            pass

    on_terminal(monkeypatch, show)
    assert capsys.readouterr().err.count(ODD) >= 2


def test_what_stands_out_is_styled_and_the_rest_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def show() -> None:
        plain_console().print(styled("[a]", "bold", "[/b]"))
        print_warning(plain_console(), "[/c]")

    on_terminal(monkeypatch, show)
    assert capsys.readouterr().out == "\x1b[1m[a]\x1b[0m[/b]\n\x1b[33mWarning:\x1b[0m [/c]\n"
