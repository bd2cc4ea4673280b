"""What holds for every command there is."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import click
import pytest
import typer

from tacit import cli
from tacit.cli import app
from tacit.federation import EngineFailed, EvaluationFailed
from tacit.journal import each, read_journal
from tacit.privacy.ledger import BudgetExceeded, LedgerError
from tacit.secure.protocol import SpoiledSum, TooFewClients
from tests.command_line import document, tacit
from tests.test_compare import TINY
from tests.test_tables import group_lives


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups left out."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            for inner, below in command.commands.items():
                yield from walk(f"{name} {inner}", below)
        else:
            yield name, command

    return walk("tacit", typer.main.get_command(app))


COMMANDS = dict(commands())


def test_the_walk_finds_commands_and_commands_of_groups() -> None:
    assert {"tacit tune", "tacit compare", "tacit runs list", "tacit bench votes"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_speaks_json_and_shows_an_example(name: str) -> None:
    command = COMMANDS[name]
    options = [option for parameter in command.params for option in parameter.opts]
    assert "--json" in options
    words = command.help or ""
    examples = [line.strip() for line in words.splitlines() if line.strip().startswith("Example: ")]
    assert examples
    short = "tacit pareto" if name == "tacit pareto run" else name
    assert all(line.startswith(f"Example: {short}") for line in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_name_options_that_there_are(name: str) -> None:
    command = COMMANDS[name]
    known = {option for parameter in command.params for option in parameter.opts}
    for line in (command.help or "").splitlines():
        if line.strip().startswith("Example: "):
            used = {word for word in line.split() if word.startswith("--")}
            assert used <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_argument_is_explained(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tacit runs res", ["resume"]),
        ("tacit tune --set search.method=f", ["search.method=flora", "search.method=feathers"]),
        ("tacit data show svh", ["svhn"]),
        ("tacit data show digits --partition q", ["quantity-skew"]),
        ("tacit tables show digits-i", ["digits-iid-n50"]),
        ("tacit compare --table mnist-d", ["mnist-dirichlet0.5-n100"]),
        ("tacit compare --methods vote,op", ["vote,opt"]),
        ("tacit plan --method fea", ["feathers"]),
        ("tacit runs show kil", ["killed"]),
        ("tacit runs show tacit-runs/k", ["tacit-runs/killed"]),
    ],
)
def test_the_shell_is_offered_what_there_is(
    typed: str, offered: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shell")
    (folder / "tacit-runs" / "killed").mkdir(parents=True)
    (folder / "tacit-runs" / "killed" / "plan.toml").touch()
    done = tacit(
        folder=folder,
        _TACIT_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(typed.split()) - 1),
    )
    assert set(offered) <= set(done.stdout.split())
    last = typed.split()[-1]
    assert all(word.startswith(last) for word in done.stdout.split())


EXITS = {
    ValueError("a wrong value"): 2,
    BudgetExceeded("too dear"): 2,
    LedgerError("no ledger"): 2,
    EvaluationFailed("nobody could score"): 2,
    ImportError("an extra is missing"): 2,
    FileNotFoundError(2, "No such file", "x"): 2,
    sqlite3.DatabaseError("damaged"): 2,
    TooFewClients("seal", 3, 5): 3,
    SpoiledSum(): 3,
    EngineFailed("the engine stopped"): 3,
}


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_expected_errors_are_one_sentence_and_a_code(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends() -> None:
        raise error

    monkeypatch.setattr(cli, "app", ends)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == EXITS[error]
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("tacit: ")
    assert "\x1b" not in told.err


def test_an_error_that_nobody_expected_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "app", ends)
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main()


def test_an_interrupted_run_says_how_to_go_on_and_ends_with_130(tmp_path: Path) -> None:
    # Whoever was started in the background by a shell, as this test may be, ignores the signal.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; from tacit.cli import main; main()"
    small = (part for change in TINY for part in ("--set", change))
    slow = ("--set", "search.ballot=published", "--set", "task.train_rounds=1000")
    command = [sys.executable, "-c", code, "tune", *small, *slow, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True)
    limit = time.monotonic() + 120
    while not (tmp_path / "run" / "result.json").exists() and time.monotonic() < limit:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"tacit runs resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    shown = document(tacit("runs", "show", tmp_path / "run", "--json"))
    assert (shown["state"], shown["opened"]) == ("unfinished", 1)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "votes", "--repetitions", "2000000"),
        ("bench", "secure-sum"),
        ("tables", "make", "--clients", "20", "--seeds", "50"),
        ("pareto", "--set", "oracle.replications=3", "--set", "front.points=400"),
        ("audit", "vote", "--runs", "2000000000"),
    ],
    ids=" ".join,
)
def test_what_is_interrupted_says_what_is_kept_and_leaves_no_process_and_no_lock(
    command: tuple[str, ...], sent: signal.Signals, code: int, tmp_path: Path
) -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = tmp_path / "run.py"  # a file, since workers import what began them
    script.write_text(f"{heard}\nfrom tacit.cli import main\nif __name__ == '__main__': main()\n")
    folder = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, script, *command, "--out", str(folder)],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        start_new_session=True,
    )
    limit = time.monotonic() + 120
    while sum(path.read_bytes().count(b"\n") for path in folder.rglob("journal-*")) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert (folder / ".writer").exists()
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert f"What was finished is kept in {folder}. Go on with the same command" in said
    while group_lives(process.pid) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not group_lives(process.pid)
    assert not (folder / ".writer").exists()
    for path in folder.rglob("journal-*"):
        read_journal(path, each(Any))


def test_the_page_explains_every_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    explained = [int(code) for code in re.findall(r"^\| `(\d+)` \|", page, re.MULTILINE)]
    assert explained == [0, 1, 2, 3, 130, 143]
    assert set(EXITS.values()) <= set(explained)
