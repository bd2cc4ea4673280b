from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.journal import Journal, journal_path, read_journal

RECIPE = {"a": "test"}
HOLDS = """
import sys, time
from pathlib import Path
from tacit.journal import Journal
journal = Journal(Path(sys.argv[1]), {"a": "test"})
journal.add(1, "another's")
print("open", flush=True)
time.sleep(120)
"""


def written(folder: Path, *pieces: object) -> Path:
    journal = Journal(folder, RECIPE)
    for number, piece in enumerate(pieces):
        journal.add(number, piece)
    return journal.path


def test_what_was_added_is_known_again(tmp_path: Path) -> None:
    written(tmp_path, {"x": 0.1}, [1, None], "two")
    assert Journal(tmp_path, RECIPE).pieces == {0: {"x": 0.1}, 1: [1, None], 2: "two"}


@pytest.mark.parametrize("tail", [b'[2, "tw', b"\x00" * 40, b'[2, "two", "0.1.0", "00000000"]'])
def test_a_line_cut_short_is_done_again_and_written_whole(tail: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, "zero", "one")
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    journal = Journal(tmp_path, RECIPE)
    assert journal.pieces == {0: "zero", 1: "one"}
    assert path.read_bytes() == whole
    journal.add(2, "two")
    assert read_journal(path)[0] == {0: "zero", 1: "one", 2: "two"}


def test_every_damage_in_a_whole_line_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, {"value": [123, 456]}, "one")
    whole = path.read_bytes()
    end = whole.index(b"\n")
    for place in range(end):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        if damaged[place] == ord("\n"):
            continue
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"line 1 cannot be read: .* take the file from a cop"):
            Journal(tmp_path, RECIPE)
        assert path.read_bytes() == damaged


def test_a_journal_of_another_release_is_shown_and_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(tacit, "__version__", "0.0.7")
        path = written(tmp_path, "zero")
    assert read_journal(path)[0] == {0: "zero"}
    with pytest.raises(ValueError, match=r"line 1 was written by Tacit 0\.0\.7, and this is"):
        Journal(tmp_path, RECIPE)
    path.write_bytes(b'[0, "zero"]\n')  # as releases wrote that had no checksum
    with pytest.raises(ValueError, match="another release or another program"):
        Journal(tmp_path, RECIPE)


def test_two_processes_never_write_one_journal(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    late = Journal(tmp_path, RECIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(ValueError, match="is being written by another process"):
            Journal(tmp_path, RECIPE)
        with pytest.raises(ValueError, match="is being written by another process"):
            late.add(2, "mine")
        assert read_journal(journal_path(tmp_path, RECIPE))[0] == {1: "another's"}
    finally:
        process.kill()
        process.communicate()
    assert Journal(tmp_path, RECIPE).pieces == {1: "another's"}


def full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_did_not_fit_on_the_disk_is_not_believed_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, RECIPE)
    journal.add(0, "zero")
    whole = journal.path.read_bytes()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as told:
            journal.add(1, "one")
    assert told.value.filename == str(journal.path)
    assert journal.pieces == {0: "zero"}
    assert journal.path.read_bytes() == whole
    journal.add(2, "two")
    assert Journal(tmp_path, RECIPE).pieces == {0: "zero", 2: "two"}


def test_a_journal_that_could_not_be_mended_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, RECIPE)
    journal.add(0, "zero")

    def broken(_path: Path, _size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        disk.setattr(os, "truncate", broken)
        with pytest.raises(OSError, match="No space left"):
            journal.add(1, "one")
    with pytest.raises(ValueError, match="nothing more is recorded in it by this process"):
        journal.add(2, "two")


def test_a_line_and_the_name_of_a_new_journal_are_brought_to_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[bool] = []
    sync = os.fsync

    def counted(handle: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{handle}"))  # noqa: PTH112  # a number
        sync(handle)

    monkeypatch.setattr(os, "fsync", counted)
    written(tmp_path, "zero", "one")
    assert synced == [False, True, False]
