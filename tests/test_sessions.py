from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from tacit.secure.protocol import Refused
from tacit.sessions import DAY, MOST_ENDED, MOST_UNOPENED, Sessions

NOW = 1e9


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, where a test writes a thousand files."""
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


def at(folder: Path, now: float = NOW) -> Sessions:
    """The list as the next message finds it, at some time."""
    return Sessions(folder / "sessions", lambda: now)


def test_sums_that_never_opened_are_limited_to_so_many_a_day(tmp_path: Path) -> None:
    """Whoever reads the file again, as every message on Flower does, counts the same."""
    for number in range(MOST_UNOPENED):
        at(tmp_path).begin(str(number))
    with pytest.raises(Refused, match="32 sums were begun and not opened within a day"):
        at(tmp_path).begin("one more")
    at(tmp_path).finish("3")
    at(tmp_path).begin("one more")
    with pytest.raises(Refused):
        at(tmp_path).begin("another")
    at(tmp_path, NOW + DAY).begin("tomorrow")


def test_sums_that_begin_at_once_are_all_counted(tmp_path: Path) -> None:
    refused: list[Refused] = []

    def begin(first: int) -> None:
        for number in range(first, first + 20):
            try:
                at(tmp_path).begin(str(number))
            except Refused as reason:
                refused.append(reason)

    threads = [threading.Thread(target=begin, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 80 - MOST_UNOPENED


@pytest.mark.parametrize("in_file", [True, False])
def test_a_sum_that_was_ended_is_not_begun_again_and_counts_for_its_day(
    tmp_path: Path, in_file: bool
) -> None:
    sessions = at(tmp_path) if in_file else Sessions(clock=lambda: NOW)
    for number in range(MOST_UNOPENED):
        sessions.begin(str(number))
    sessions.end("5")
    with pytest.raises(Refused, match="this session was asked before"):
        sessions.begin("5")
    with pytest.raises(Refused, match="32 sums were begun"):
        sessions.begin("one more")
    later = at(tmp_path, NOW + 400 * DAY) if in_file else sessions
    with pytest.raises(Refused, match="this session was asked before"):
        later.begin("5")


@pytest.mark.usefixtures("quick_disk")
def test_the_file_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    """Before, every sum left two lines for ever."""
    sizes = []
    for number in range(200):
        at(tmp_path).begin(f"{number:064x}")
        at(tmp_path).finish(f"{number:064x}")
        sizes.append((tmp_path / "sessions").stat().st_size)
    assert len(set(sizes)) == 1
    for number in range(MOST_ENDED + 10):
        at(tmp_path).end(f"{number:064x}")
    size = (tmp_path / "sessions").stat().st_size
    at(tmp_path).end("f" * 64)
    assert (tmp_path / "sessions").stat().st_size == size < 100 * MOST_ENDED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sessions", "sessions.lock"]


@pytest.mark.parametrize("left", [b"", b"half of"])
def test_a_kill_while_it_is_written_leaves_what_was_noted(
    tmp_path: Path, left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MOST_UNOPENED):
        at(tmp_path).begin(str(number))

    def killed(_handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            at(tmp_path).finish("1")
    (tmp_path / ".sessions").write_bytes(left)
    with pytest.raises(Refused, match="32 sums were begun"):
        at(tmp_path).begin("one more")
    at(tmp_path).finish("2")
    at(tmp_path).begin("one more")


def test_a_clock_that_was_wrong_locks_nobody_out_for_long(tmp_path: Path) -> None:
    for number in range(MOST_UNOPENED):
        at(tmp_path, NOW + 1000 * DAY).begin(str(number))
    with pytest.raises(Refused):
        at(tmp_path).begin("one more")
    at(tmp_path).finish("1")
    at(tmp_path).begin("one more")
    at(tmp_path, NOW + DAY).begin("tomorrow")


@pytest.mark.usefixtures("quick_disk")
def test_a_damaged_list_is_set_aside_and_sums_go_on(tmp_path: Path) -> None:
    """Cut at every length, altered at random, of another release, or no file at all."""
    path = tmp_path / "sessions"
    at(tmp_path).begin("one")
    at(tmp_path).end("two")
    whole = path.read_bytes()
    rng = random.Random(5)
    damages = [whole[:length] for length in range(len(whole))]
    damages += [b'\n["one", 3.0]\n', whole.replace(b"sessions 1", b"sessions 2"), b"\xff" * 99]
    for _ in range(1000):
        altered = bytearray(whole)
        for _ in range(rng.randint(1, 9)):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        damages.append(bytes(altered))
    for data in damages:
        said: list[str] = []
        path.write_bytes(data)
        sessions = Sessions(path, lambda: NOW, said.append)
        sessions.begin("three")
        if data != whole:
            (sentence,) = said
            assert sentence.startswith(f"tacit: {path} is ")
            assert "kept as sessions.unreadable" in sentence
    path.unlink()
    path.mkdir()
    at(tmp_path).begin("four")
    assert path.is_file()


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    at(tmp_path).begin("one")
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}
