from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit import files
from tacit.files import remove_abandoned_drafts, whole_file, write_whole
from tacit.one_writer import writing

WRITES_AND_WAITS = """
import sys, time
from pathlib import Path
from tacit.files import whole_file
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half of it")
    file.flush()
    print("writing", flush=True)
    time.sleep(120)
"""


def drafts(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.draft"))


def half_written(path: Path) -> subprocess.Popen[str]:
    """Another process in the middle of writing a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES_AND_WAITS, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "writing\n"
    return process


def ended(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to files and folders, in order."""
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def counted_sync(handle: int) -> None:
        folder = os.path.isdir(f"/proc/self/fd/{handle}")  # noqa: PTH112  # a number, not a path
        done.append("sync folder" if folder else "sync file")
        sync(handle)

    def counted_replace(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", counted_sync)
    monkeypatch.setattr(Path, "replace", counted_replace)
    return done


def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_after(
    steps: list[str], tmp_path: Path
) -> None:
    write_whole(tmp_path / "result.json", "{}")
    assert steps == ["sync file", "rename", "sync folder"]
    assert (tmp_path / "result.json").read_text() == "{}"


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_clears_its_draft_away(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.json"
    write_whole(path, "the old one")
    ended(half_written(path))
    assert path.read_text() == "the old one"
    assert len(drafts(tmp_path)) == 1
    with writing(tmp_path):
        assert not drafts(tmp_path)
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_a_draft_that_a_living_process_writes_stays(tmp_path: Path) -> None:
    (tmp_path / "transcripts").mkdir()
    process = half_written(tmp_path / "transcripts" / "one")
    try:
        with writing(tmp_path):
            assert len(drafts(tmp_path)) == 1
    finally:
        ended(process)
    remove_abandoned_drafts(tmp_path)
    assert not drafts(tmp_path)


def full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def wrong_value(_handle: int) -> None:
    raise ValueError


@pytest.mark.parametrize("accident", [full, wrong_value])
def test_a_file_that_could_not_be_written_is_the_old_one_and_leaves_no_draft(
    accident: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    write_whole(path, "the old one")
    monkeypatch.setattr(os, "fsync", accident)
    with pytest.raises((OSError, ValueError)) as told:
        write_whole(path, "the new one")
    if isinstance(told.value, OSError):
        assert told.value.filename == str(path)
        assert told.value.errno == errno.ENOSPC
    assert path.read_text() == "the old one"
    assert not drafts(tmp_path)


def test_an_error_about_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as told, whole_file(tmp_path / "copy"):
        (tmp_path / "missing").read_text()
    assert told.value.filename == str(tmp_path / "missing")


def test_json_of_another_shape_too_deep_or_too_large_is_a_sentence_with_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    for text in (b"", b"[", b"{}", b"[" * 100_000, b"\xff", b"[NaN]", b"[1e999]", b'["one"]'):
        path.write_bytes(text)
        with pytest.raises(ValueError, match=r"found\.json cannot be read as numbers: "):
            files.read_json(path, "numbers", list[float])
    path.write_text("[1, 2.5]")
    assert files.read_json(path, "numbers", list[float]) == [1.0, 2.5]
    monkeypatch.setattr(files, "MOST_JSON", 7)
    with pytest.raises(ValueError, match="it has 8 bytes; allowed are 7"):
        files.read_json(path, "numbers", list[float])
    monkeypatch.undo()
    with pytest.raises(ValueError, match="Is a directory"):
        files.read_json(tmp_path, "numbers", list[float])


def test_many_small_files_cost_a_few_syncs_each_and_no_waiting(
    steps: list[str], tmp_path: Path
) -> None:
    begun = time.perf_counter()
    for number in range(20):
        write_whole(tmp_path / f"{number}", "x" * 2000)
    assert time.perf_counter() > begun
    assert len(steps) == 3 * 20
