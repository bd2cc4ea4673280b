from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.journal import Journal, Row, _line, array, each, journal_path, read_journal

RECIPE = {"a": "test"}
ANYTHING = each(Any)
HOLDS = """
import sys, time
from pathlib import Path
from tacit.journal import Journal
journal = Journal(Path(sys.argv[1]), {"a": "test"}, lambda _: object)
journal.add(1, "another's")
print("open", flush=True)
time.sleep(120)
"""


def written(folder: Path, *pieces: object) -> Path:
    journal = Journal(folder, RECIPE, ANYTHING)
    for number, piece in enumerate(pieces):
        journal.add(number, piece)
    return journal.path


def test_what_was_added_is_known_again(tmp_path: Path) -> None:
    written(tmp_path, {"x": 0.1}, [1, None], "two")
    assert Journal(tmp_path, RECIPE, ANYTHING).pieces == {0: {"x": 0.1}, 1: [1, None], 2: "two"}


@pytest.mark.parametrize("tail", [b'[2, "tw', b"\x00" * 40, b'[2, "two", "0.1.0", "00000000"]'])
def test_a_line_cut_short_is_done_again_and_written_whole(tail: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, "zero", "one")
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    journal = Journal(tmp_path, RECIPE, ANYTHING)
    assert journal.pieces == {0: "zero", 1: "one"}
    assert path.read_bytes() == whole
    journal.add(2, "two")
    assert read_journal(path, ANYTHING)[0] == {0: "zero", 1: "one", 2: "two"}


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
            Journal(tmp_path, RECIPE, ANYTHING)
        assert path.read_bytes() == damaged


def test_a_journal_of_another_release_is_shown_and_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(tacit, "__version__", "0.0.7")
        path = written(tmp_path, "zero")
    assert read_journal(path, ANYTHING)[0] == {0: "zero"}
    with pytest.raises(ValueError, match=r"line 1 was written by Tacit 0\.0\.7, and this is"):
        Journal(tmp_path, RECIPE, ANYTHING)
    path.write_bytes(b'[0, "zero"]\n')  # as releases wrote that had no checksum
    with pytest.raises(ValueError, match="another release or another program"):
        Journal(tmp_path, RECIPE, ANYTHING)


def test_two_processes_never_write_one_journal(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    late = Journal(tmp_path, RECIPE, ANYTHING)
    try:
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(ValueError, match="is being written by another process"):
            Journal(tmp_path, RECIPE, ANYTHING)
        with pytest.raises(ValueError, match="is being written by another process"):
            late.add(2, "mine")
        assert read_journal(journal_path(tmp_path, RECIPE), ANYTHING)[0] == {1: "another's"}
    finally:
        process.kill()
        process.communicate()
    assert Journal(tmp_path, RECIPE, ANYTHING).pieces == {1: "another's"}


def full(_handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_did_not_fit_on_the_disk_is_not_believed_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, RECIPE, ANYTHING)
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
    assert Journal(tmp_path, RECIPE, ANYTHING).pieces == {0: "zero", 2: "two"}


def test_a_journal_that_could_not_be_mended_takes_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, RECIPE, ANYTHING)
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


class Pair(Row):
    """As a user of journals declares it."""

    name: str
    numbers: array(int, 2)  # type: ignore[valid-type]


WHOLE = {"name": "n", "numbers": [1, 2]}


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (None, "got `null`"),
        ({"name": "n"}, "missing required field `numbers`"),
        (WHOLE | {"more": 1}, "unknown field `more`"),
        (WHOLE | {"name": 1}, "Expected `str`"),
        (WHOLE | {"numbers": [1, 2, 3]}, "length <= 2"),
        (WHOLE | {"numbers": [1, True]}, "Expected `int`"),
    ],
)
def test_a_piece_of_another_kind_is_one_sentence(result: object, why: str, tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE, result)
    before = path.read_bytes()
    for read in (
        lambda: Journal(tmp_path, RECIPE, each(Pair)),
        lambda: read_journal(path, each(Pair)),
    ):
        with pytest.raises(ValueError, match=r"take the file from a copy, or begin anew") as said:
            read()
        assert f"{path}, piece 1 is no result of this work" in str(said.value)
        assert why in str(said.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("piece", [True, None, 1.5, [1], {"a": 1}])
def test_a_piece_has_a_number_or_a_name(piece: Any, tmp_path: Path) -> None:
    path = tmp_path / "journal-0.jsonl"
    path.write_bytes(_line(piece, "one"))
    with pytest.raises(ValueError, match="line 1 cannot be read"):
        read_journal(path, ANYTHING)


def test_half_a_character_cannot_be_read(tmp_path: Path) -> None:
    assert read_journal(written(tmp_path / "whole", "\U0001f642"), ANYTHING)[0] == {0: "\U0001f642"}
    path = written(tmp_path / "half", {"\ud83d": "one"})
    with pytest.raises(ValueError, match="line 1 cannot be read"):
        read_journal(path, ANYTHING)


def test_whole_numbers_have_64_bits(tmp_path: Path) -> None:
    assert read_journal(written(tmp_path / "fit", -(2**63), 2**63 - 1), ANYTHING)[0] == {
        0: -(2**63),
        1: 2**63 - 1,
    }
    for number in (2**63, -(2**63) - 1, 10**5000):
        path = tmp_path / "journal-0.jsonl"
        with unlimited_digits():
            path.write_bytes(_line(0, number))
        with pytest.raises(ValueError, match="line 1 cannot be read"):
            read_journal(path, ANYTHING)


@contextmanager
def unlimited_digits() -> Iterator[None]:
    """Python does not write longer numbers by itself."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)
