from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.one_writer import FolderInUse, writer_of, writing
from tests.command_line import refusal, tacit

HOLDS = """
import sys, time
from pathlib import Path
from tacit.one_writer import writing
with writing(Path(sys.argv[1])):
    print("writing", flush=True)
    time.sleep(120)
"""
FORKS_AND_IS_KILLED = """
import os, signal, sys, time
from pathlib import Path
from tacit.one_writer import writing
with writing(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        time.sleep(120)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def another_writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "writing\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_writer_is_refused_with_the_folder_and_the_process_that_holds_it(
    tmp_path: Path,
) -> None:
    with another_writer(tmp_path) as first:
        with pytest.raises(FolderInUse) as told, writing(tmp_path):
            pytest.fail("two processes write in one folder")
        assert f"{tmp_path} is being written by process {first.pid}" in str(told.value)
        assert platform.node() in str(told.value)
        found = writer_of(tmp_path)
        assert found
        assert found.process == first.pid


def test_a_killed_writer_holds_nothing_and_leaves_nothing_to_clean(tmp_path: Path) -> None:
    with another_writer(tmp_path) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert writer_of(tmp_path) is None
        with writing(tmp_path):
            found = writer_of(tmp_path)
    assert found
    assert found.process == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_child_that_outlives_a_killed_writer_keeps_nobody_out(tmp_path: Path) -> None:
    done = subprocess.Popen(
        [sys.executable, "-c", FORKS_AND_IS_KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout
    child = int(done.stdout.readline())
    try:
        done.wait()
        os.kill(child, 0)
        with writing(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        done.stdout.close()


def test_the_folder_is_held_until_the_last_of_one_process_lets_go(tmp_path: Path) -> None:
    with writing(tmp_path):
        with writing(tmp_path):
            pass
        done = subprocess.run(
            [sys.executable, "-c", HOLDS, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "is being written by process" in done.stderr


def test_a_folder_made_in_vain_is_gone_and_one_with_files_stays(tmp_path: Path) -> None:
    with writing(tmp_path / "a" / "b"):
        pass
    assert not (tmp_path / "a").exists()
    with writing(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert (tmp_path / "a" / "b" / "kept").exists()
    with pytest.raises(ValueError, match="kept is a file; allowed is a folder"):
        writing(tmp_path / "a" / "b" / "kept").__enter__()


def test_a_system_without_locks_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(ImportError, match="this system has no file locks"), writing(tmp_path):
        pytest.fail("it writes without a lock")


TINY_TABLE = ("--data", "digits", "--clients", 3, "--examples", 90, "--epochs", 1, "--seeds", 1)


@pytest.mark.parametrize(
    "command",
    [
        ("tune", "--out", "{}"),
        ("compare", "--out", "{}", "--table", "digits-iid-n50"),
        ("pareto", "--out", "{}"),
        ("audit", "vote", "--quick", "--out", "{}"),
        ("tables", "make", *TINY_TABLE, "--out", "{}"),
        ("bench", "votes", "--quick", "--out", "{}"),
        ("bench", "dp-hype", "--quick", "--out", "{}"),
        ("bench", "ballots", "--quick", "--out", "{}"),
        ("bench", "noise", "--quick", "--out", "{}"),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)
def test_every_command_that_fills_a_folder_is_refused_while_another_does(
    command: tuple[object, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with another_writer(folder) as first:
        done = tacit(*(str(part).format(folder) for part in command), folder=tmp_path)
        assert done.returncode == 2, done.stderr
        assert f"{folder} is being written by process {first.pid}" in " ".join(done.stderr.split())
        assert [path.name for path in folder.iterdir()] == [".writer"]


def test_a_run_that_is_being_written_is_shown_as_such_and_not_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "tacit-runs" / "one"
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_text("")
    with another_writer(folder) as first:
        who = f"process {first.pid}"
        shown = tacit("runs", "show", "one", folder=tmp_path).stdout
        assert f"Being written now by {who}" in shown
        assert "Go on with" not in shown
        assert "runs now" in tacit("runs", "list", folder=tmp_path).stdout
        assert who in " ".join(
            tacit("runs", "compare", "one", "one", folder=tmp_path).stdout.split()
        )
        assert who in refusal(tacit("runs", "resume", "one", folder=tmp_path))
    assert "Go on with" in tacit("runs", "show", "one", folder=tmp_path).stdout
