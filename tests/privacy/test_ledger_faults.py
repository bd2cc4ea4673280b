"""Files that were damaged, and places where locks do nothing: refused, in one sentence."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tacit.locks import try_lock
from tacit.privacy import ledger_locks
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Charge, Ledger, LedgerError
from tests.command_line import tacit
from tests.forgeries import chained_anew, edit
from tests.privacy.kill_switch import run_until_killed, unavailable

VOTE = TopVotes(100, 5).release(variance=139.0)
BUDGET = Budget(3.0, 1e-5)
PAGE = 4096
FAULTS = 120
EVERY_FAULT = 1_200


def filled(path: Path) -> Ledger:
    """A ledger with a line of every kind."""
    ledger = Ledger.create(path, "hospitals", BUDGET)
    first, second, third, _ = (ledger.charge(VOTE, "vote", f"run-{n}") for n in range(4))
    ledger.ask(first, "s1")
    ledger.seal("s1")
    ledger.ask(second, "s2")
    ledger.close("s2", {"refusals": 3})
    ledger.take(third, 0)
    ledger.bar("s3")
    ledger.amend(Budget(4.0, 1e-5), "the board")
    return ledger


def content(ledger: Ledger) -> tuple[str, Budget, list[Charge], bool]:
    return ledger.federation, ledger.budget, ledger.charges(), ledger.knows("s3")


def damaged(data: bytes, draw: random.Random) -> bytes:
    """One byte flipped, some zeroed, inserted or cut off, or a whole page lost, at random."""
    place = draw.randrange(len(data))
    how = draw.choice(("flip", "flip", "flip", "zero", "insert", "truncate", "page"))
    if how == "flip":
        return data[:place] + bytes([data[place] ^ draw.randrange(1, 256)]) + data[place + 1 :]
    if how == "zero":
        length = min(draw.randrange(1, 100), len(data) - place)
        return data[:place] + bytes(length) + data[place + length :]
    if how == "insert":
        return data[:place] + draw.randbytes(draw.randrange(1, 100)) + data[place:]
    if how == "truncate":
        return data[:place]
    page = place - place % PAGE
    lost = draw.choice((bytes(PAGE), data[:PAGE], draw.randbytes(PAGE)))
    return data[:page] + lost + data[page + PAGE :]


def refused_or_whole(path: Path, expected: object, seed: str) -> bool:
    """Whether it was refused; if not, everything is as it was, before a charge and after it."""
    try:
        ledger = Ledger(path)
        before = content(ledger)
        ledger.charge(VOTE, "vote", "new")
    except LedgerError as error:
        return str(error).isprintable()
    assert ledger.verify() == [], seed
    assert before == expected, seed
    again = Ledger(path)
    assert again.verify() == [], seed
    assert again.charges()[:-1] == before[2], seed
    return False


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(FAULTS), id="some"),
        pytest.param(range(FAULTS, EVERY_FAULT), id="many", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_file_is_refused_or_says_what_it_said(tmp_path: Path, seeds: range) -> None:
    original = filled(tmp_path / "original.sqlite")
    data, expected = original.path.read_bytes(), content(original)
    refused = 0
    for seed in seeds:
        path = tmp_path / f"{seed}.sqlite"
        path.write_bytes(damaged(data, random.Random(seed)))
        refused += refused_or_whole(path, expected, f"seed {seed}")
    assert refused > len(seeds) / 2, "most of the file is lines"


def half_done(folder: Path) -> tuple[bytes, bytes]:
    """A ledger and its journal, as a process leaves them that is killed while it commits."""
    original = filled(folder / "whole.sqlite").path

    def work(acknowledge: Callable[[], None]) -> None:
        Ledger(path).charge(VOTE, "vote", "new")
        acknowledge()

    found: tuple[bytes, bytes] = b"", b""
    for boundary in range(1, 40):
        path = folder / f"killed-{boundary}.sqlite"
        shutil.copy(original, path)
        killed, _, _ = run_until_killed(work, boundary, "after")
        journal = path.with_name(f"{path.name}-journal")
        changed = path.read_bytes() != original.read_bytes()
        if killed and changed and journal.exists() and journal.stat().st_size:
            found = path.read_bytes(), journal.read_bytes()
    assert found[1], "SQLite writes a journal"
    return found


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(FAULTS // 2), id="some"),
        pytest.param(range(FAULTS // 2, EVERY_FAULT // 2), id="many", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_journal_loses_no_line(tmp_path: Path, seeds: range) -> None:
    """What is put back from it is refused, or is what was there before or after the charge."""
    data, journal = half_done(tmp_path)
    before = content(Ledger(tmp_path / "whole.sqlite"))
    for seed in seeds:
        path = tmp_path / f"{seed}.sqlite"
        path.write_bytes(data)
        path.with_name(f"{path.name}-journal").write_bytes(damaged(journal, random.Random(seed)))
        try:
            ledger = Ledger(path)
            found = content(ledger)
            ledger.charge(VOTE, "vote", "newer")
        except LedgerError:
            continue
        assert ledger.verify() == [], f"seed {seed}"
        assert (*found[:2], found[2][:4], found[3]) == before, f"seed {seed}"
        assert [charge.run for charge in found[2][4:]] in ([], ["new"]), f"seed {seed}"


def test_one_byte_does_not_turn_a_budget_of_one_into_nine(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l.sqlite", "hospitals", Budget(1.0, 1e-5))
    data = ledger.path.read_bytes()
    assert data.count(b'"epsilon": 1.0') == 1
    ledger.path.write_bytes(data.replace(b'"epsilon": 1.0', b'"epsilon": 9.0'))
    with pytest.raises(LedgerError, match=r"line 1 was altered.*put it back from a copy.*verify"):
        Ledger(ledger.path).charge(VOTE, "vote", "r")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER line_is_never_changed",
        "CREATE TRIGGER more AFTER INSERT ON line BEGIN SELECT 1; END",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON line (kind)",
        "ALTER TABLE line ADD COLUMN more TEXT",
    ],
)
def test_another_schema_is_refused(tmp_path: Path, statement: str) -> None:
    ledger = filled(tmp_path / "l.sqlite")
    connection = sqlite3.connect(ledger.path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    for opened in (ledger, Ledger(ledger.path)):
        with pytest.raises(LedgerError, match="tables or triggers are not those of a ledger"):
            opened.charge(VOTE, "vote", "new")
        assert opened.verify()[0].number == 1


def test_lines_of_an_open_ledger_are_read_once_and_its_newest_every_time(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l.sqlite")
    read: list[int] = []
    real = type(ledger._history).follow

    def counted(history: Any, line: Any) -> None:
        read.append(line.number)
        real(history, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ledger._history), "follow", counted)
        for _ in range(3):
            ledger.knows("s3")
            ledger.charges()
            len(ledger)
        other = Ledger(ledger.path)
        other.charge(VOTE, "vote", "other")
        ledger.knows("other")
    assert sorted(read) == [*range(1, 13), 13, 13]
    edit(ledger.path, "DELETE FROM line WHERE number = 13")
    with pytest.raises(LedgerError, match="line 13 was altered or removed"):
        ledger.charge(VOTE, "vote", "new")


def test_a_ledger_that_was_put_back_from_a_copy_is_not_written_over(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l.sqlite")
    copy = shutil.copy(ledger.path, tmp_path / "copy.sqlite")
    ledger.charge(VOTE, "vote", "new")
    Path(copy).replace(ledger.path)
    with pytest.raises(LedgerError, match="was replaced while it was open"):
        ledger.charge(VOTE, "vote", "newer")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: edit(path, "UPDATE line SET body = X'00' WHERE number = 2"),
        lambda path: edit(path, "DELETE FROM line WHERE number = 3"),
        lambda path: edit(path, "DELETE FROM line"),
        lambda path: path.write_bytes(path.read_bytes()[: PAGE + 100]),
        lambda path: path.write_bytes(path.read_bytes()[:PAGE] + bytes(8 * PAGE)),
    ],
)
def test_commands_say_one_sentence_about_a_damaged_ledger(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    path = filled(tmp_path / "l.sqlite").path
    damage(path)
    amended = ("--epsilon", 9, "--delta", 1e-5, "--reason", "why not")
    for command in (("show", path), ("show", path, "--json"), ("amend", path, *amended)):
        done = tacit("ledger", *command)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stdout == ""
    done = tacit("ledger", "verify", path)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr + done.stdout
    assert "line 1" in done.stdout or "cannot be read" in done.stderr or "line" in done.stdout


def test_lines_that_break_the_rules_are_refused_though_the_chain_is_whole(tmp_path: Path) -> None:
    """Whoever can write the file can make the chain fit; what lines say together is looked at."""
    for statement, found in (
        ("UPDATE line SET body = replace(body, '\"s2\"', '\"s1\"')", "was used before"),
        ("UPDATE line SET kind = 'sealing' WHERE kind = 'closed'", "cannot be read"),
        ("UPDATE line SET kind = 'other' WHERE number = 6", "its kind is 'other'"),
        ("UPDATE line SET body = replace(body, '\"s3\"', '\"run-1\"')", "which was charged"),
    ):
        path = tmp_path / f"{found[:6]}.sqlite"
        filled(path)
        edit(path, statement)
        chained_anew(path)
        with pytest.raises(LedgerError, match=found):
            Ledger(path).charge(VOTE, "vote", "new")
        assert any(found in problem.found for problem in Ledger(path).verify())


# Locks ---------------------------------------------------------------------------------------

SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

static int lies(int fd, int command, void *argument) {
    if (IS_LOCK(command)) return 0;
    return syscall(SYS_fcntl, fd, command, argument);
}
#define REPLACED(name) int name(int fd, int command, ...) { \
    va_list rest; va_start(rest, command); \
    void *argument = va_arg(rest, void *); va_end(rest); \
    return lies(fd, command, argument); }
REPLACED(fcntl)
REPLACED(fcntl64)
#ifdef NO_FLOCK
int flock(int fd, int operation) { return 0; }
#endif
"""
OLD_KIND = "-DIS_LOCK(c)=((c)==F_SETLK||(c)==F_SETLKW)"
BOTH_KINDS = "-DIS_LOCK(c)=((c)==F_SETLK||(c)==F_SETLKW||(c)==F_OFD_SETLK||(c)==F_OFD_SETLKW)"
NO_KIND = "-DIS_LOCK(c)=0"
COMPILER = shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler to make locks that do nothing")
@pytest.mark.parametrize(
    "flags", [[OLD_KIND], [BOTH_KINDS], [BOTH_KINDS, "-DNO_FLOCK"], [NO_KIND, "-DNO_FLOCK"]]
)
def test_nothing_is_opened_where_locks_do_nothing(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    command = [str(COMPILER), *flags, "-shared", "-fPIC", "-o", str(shim), f"{tmp_path}/shim.c"]
    subprocess.run(command, check=True)
    path = filled(tmp_path / "l.sqlite").path
    before = path.read_bytes()
    script = f"""
from pathlib import Path
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, LedgerError
for attempt in (lambda: Ledger(Path({str(path)!r})),
                lambda: Ledger.create(Path({str(tmp_path / "new")!r}), "h", Budget(1, 1e-5))):
    try:
        attempt()
    except LedgerError as error:
        print(error)
"""
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.count("is where file locks do nothing") == 2, done.stdout
    assert f"{path} is where" in done.stdout
    assert "keep the ledger on a local disk" in done.stdout
    assert path.read_bytes() == before
    assert not (tmp_path / "new").exists()
    left = {each.name for each in tmp_path.iterdir()}
    locks = {"l.sqlite.lock", "l.sqlite.pricing.lock"}
    assert left <= {"shim.c", "shim.so", "l.sqlite", *locks}


def test_where_the_newer_kind_of_lock_is_unknown_another_process_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    real = subprocess.run

    def counted(*arguments: Any, **named: Any) -> Any:
        tried.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(ledger_locks, "_range_lock", lambda *_: errno.EINVAL)
    monkeypatch.setattr(subprocess, "run", counted)
    ledger = Ledger.create(tmp_path / "l.sqlite", "hospitals", BUDGET)
    assert len(tried) == 2
    monkeypatch.setattr(ledger_locks, "_RIVAL", "")
    with pytest.raises(LedgerError, match="file locks do nothing"):
        Ledger(ledger.path)


@pytest.mark.parametrize(
    ("mount", "found"),
    [
        ("9 1 0:9 / /data rw - nfs4 host:/ rw,vers=4.2,local_lock=none", ""),
        ("9 1 0:9 / /data rw - nfs host:/ rw,vers=3,local_lock=all", "local_lock=all"),
        ("9 1 0:9 / /data rw - nfs host:/ rw,vers=3,nolock", "nolock"),
        ("9 1 0:9 / /data/of\\040all rw - nfs host:/ rw,nolock", ""),
        ("9 1 0:9 / / rw - nfs host:/ rw,nolock\n9 1 0:9 / /data rw - ext4 /dev/sda rw", ""),
        ("9 1 0:9 / /dat rw - nfs host:/ rw,nolock", ""),
        ("9 1 0:9 / /data rw - nfs4 host:/ rw,local_lock=posix", "local_lock=posix"),
        ("9 1 0:9 / /data rw - cifs //host/data rw,vers=3.1.1,soft", ""),
        ("9 1 0:9 / /data rw - cifs //host/data rw,vers=3.1.1,nobrl", "nobrl"),
        ("9 1 0:9 / /data rw - smb3 //host/data rw,nobrl", "nobrl"),
        ("9 1 0:9 / /data rw - lustre host@tcp:/fs rw,flock", ""),
        ("9 1 0:9 / /data rw - lustre host@tcp:/fs rw,localflock", "localflock"),
        ("9 1 0:9 / /data rw - lustre host@tcp:/fs rw,noflock", "noflock"),
        ("9 1 0:9 / /data rw - gfs2 /dev/sda rw,localflocks", "localflocks"),
        ("9 1 0:9 / /data rw - fuse.sshfs host:/ rw,user_id=0", "fuse.sshfs"),
        ("9 1 0:9 / /data rw - ext4 /dev/sda rw,nolock", ""),
    ],
)
def test_network_file_systems_without_locks_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, found: str
) -> None:
    assert ledger_locks._local_option(mount.splitlines(), Path("/data/ledgers")) == found
    mounts = tmp_path / "mountinfo"
    mounts.write_text(mount.replace("/data", str(tmp_path)) + "\n")
    monkeypatch.setattr(ledger_locks, "_MOUNTS", mounts)
    if found:
        with pytest.raises(LedgerError, match=f"mounted with {found}.*keep the ledger on a local"):
            Ledger.create(tmp_path / "l.sqlite", "hospitals", BUDGET)
        assert not (tmp_path / "l.sqlite").exists()
    else:
        Ledger.create(tmp_path / "l.sqlite", "hospitals", BUDGET)


def test_without_posix_locks_only_ledgers_in_memory_are_for_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where the module that has them cannot be imported."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    ledger = Ledger.in_memory("hospitals", BUDGET)
    with ledger.hold("run"):
        ledger.charge(VOTE, "vote", "run")
    with pytest.raises(LedgerError, match="has no POSIX file locks"):
        Ledger.create(tmp_path / "l.sqlite", "hospitals", BUDGET)
    script = "import sys; sys.modules['fcntl'] = None; import tacit.privacy.ledger"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_whoever_may_only_read_can_still_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that this user cannot write to."""
    ledger = filled(tmp_path / "l.sqlite")
    expected = content(ledger)
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    looking = Ledger(ledger.path)
    assert content(looking) == expected
    with pytest.raises(LedgerError, match="nothing may be asked"):
        looking.charge(VOTE, "vote", "new")


@pytest.mark.parametrize("ending", ["lock", "pricing.lock"])
def test_a_lock_that_cannot_be_opened_is_said_of_the_ledger(tmp_path: Path, ending: str) -> None:
    ledger = Ledger.create(tmp_path / "l.sqlite", "hospitals", BUDGET)
    (tmp_path / f"l.sqlite.{ending}").mkdir()
    with pytest.raises(LedgerError, match=rf"^{ledger.path} cannot be written.*sqlite\.{ending}"):
        ledger.charge(VOTE, "vote", "new")


def free(path: Path, ending: str, *, shared: bool = False) -> bool:
    """Whether nobody has a lock beside a ledger."""
    handle = os.open(path.with_name(f"{path.name}.{ending}"), os.O_RDWR)
    try:
        return try_lock(handle, shared=shared)
    finally:
        os.close(handle)


def test_readers_share_no_lock_and_keep_it_no_longer_than_they_have_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader after the other would keep out a writer that waits until there is none."""
    ledger = filled(tmp_path / "l.sqlite")
    with ledger_locks.look(ledger.path):
        assert not free(ledger.path, "lock", shared=True)
    read: list[bool] = []
    real = type(ledger._history).follow

    def watched(history: Any, line: Any) -> None:
        read.append(free(ledger.path, "lock"))
        real(history, line)

    monkeypatch.setattr(type(ledger._history), "follow", watched)
    Ledger(ledger.path).total()
    assert read == [True] * 12


def test_a_rival_that_waits_is_served_in_turn(tmp_path: Path) -> None:
    """Of processes that charge as fast as they can, none is left behind."""
    context = multiprocessing.get_context("spawn")
    path = Ledger.create(tmp_path / "l.sqlite", "hospitals", Budget(29.0, 1e-5)).path
    start = context.Barrier(4)
    processes = [context.Process(target=keep_charging, args=(path, n, start)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
    runs = [charge.run for charge in Ledger(path).charges()]
    assert len(runs) == 4 * 30
    # While all are at it, nobody waits for more than a few turns of the others.
    together = runs[: min(len(runs) - runs[::-1].index(f"run-{n}") for n in range(4)) - 1]
    gaps = [
        max(here - before for before, here in pairwise(places))
        for n in range(4)
        if len(places := [at for at, run in enumerate(together) if run == f"run-{n}"]) > 1
    ]
    assert max(gaps) <= 40
    assert Ledger(path).verify() == []


def keep_charging(path: Path, number: int, start: Any) -> None:
    ledger = Ledger(path)
    vote = TopVotes(100, 5).release(variance=13_900.0)
    ledger.check(vote, "imports what prices need")
    start.wait()
    for _ in range(30):
        ledger.charge(vote, "vote", f"run-{number}")


@pytest.mark.parametrize(
    "attempt", [Ledger, lambda path: Ledger.create(path, "clinics", BUDGET)], ids=["open", "create"]
)
def test_a_loop_of_links_in_the_place_of_a_ledger_is_one_sentence(
    attempt: Callable[[Path], Ledger], tmp_path: Path
) -> None:
    path = tmp_path / "loop.sqlite"
    path.symlink_to(path)
    with pytest.raises(LedgerError, match=r"loop\.sqlite"):
        attempt(path)
