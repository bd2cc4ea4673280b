"""One state for each session: what is under way at once, what is removed, what is damaged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tacit.endpoint import SESSION_BYTES, VERSION, AskInClear, Continue, encode, heading_of
from tacit.federation import LocalChannel
from tacit.keeping import MOST_UNREADABLE, FolderError, locked
from tacit.membership import Member
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.query import LocalValidation
from tacit.receipts import check_receipts, read_receipts
from tacit.secure.messages import Opened, Sealed, unpack_reply
from tacit.secure.protocol import Refused, TooFewClients
from tacit.sessions import DAY, MOST_ENDED, Sessions
from tacit.states import (
    FORMAT,
    HOUR,
    MOST_FINISHED,
    MOST_UNDER_WAY,
    Finished,
    Heading,
    StateFile,
    StatesInFolder,
    StatesInMemory,
    Waiting,
    from_bytes,
    to_bytes,
)
from tests.federations import channel as channel_of
from tests.federations import federation as federation_of
from tests.federations import likes
from tests.interleaved import (
    BALLOT,
    STAGES,
    InFolders,
    answered,
    endpoint_of,
    federation,
    in_session,
    spent,
    state_file,
    two_sums,
)
from tests.test_federation import request
from tests.test_membership import members

NOW = 1e9


def name(number: int) -> str:
    return number.to_bytes(SESSION_BYTES).hex()


def under_way(number: int, reply: bytes = b"reply") -> bytes:
    return to_bytes(Waiting(bytes.fromhex(name(number)), b"asked", b"state", b"request", reply))


def finished(number: int) -> bytes:
    return to_bytes(Finished(bytes.fromhex(name(number)), b"request", b"reply"))


def begins(number: int) -> Heading:
    return Heading(name(number), begins=True)


def goes_on(number: int) -> Heading:
    return Heading(name(number), begins=False)


def states_in(
    folder: Path, now: float = NOW, tell: Callable[[str], None] = print
) -> StatesInFolder:
    """The states as the next message finds them, at some time."""
    sessions = Sessions(folder / "sessions", lambda: now, tell)
    return StatesInFolder(folder / "states", sessions, lambda: now, tell)


def keep(folder: Path, number: int, state: bytes, when: float = NOW) -> Path:
    """Write a state at some time."""
    with states_in(folder, when).open(goes_on(number)) as held:
        held.write(state)
    path = folder / "states" / name(number)
    os.utime(path, (when, when))
    return path


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, where a test writes thousands of files."""
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


def test_a_state_is_read_as_it_was_written_and_by_its_owner_only(tmp_path: Path) -> None:
    states = states_in(tmp_path)
    for state in (under_way(1, b"a longer reply"), under_way(1, b""), finished(1)):
        with states.open(goes_on(1)) as held:
            held.write(state)
        (tmp_path / "states" / f".{name(1)}").touch(mode=0o644)  # a draft that somebody left
        with states.open(goes_on(1)) as held:
            assert held.read() == state
        assert stat.S_IMODE((tmp_path / "states" / name(1)).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "states").stat().st_mode) == 0o700


def test_a_state_is_on_disk_under_its_name_before_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, swap = os.fsync, os.replace

    def fsync(handle: int) -> None:
        found = os.fstat(handle)
        done.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        sync(handle)

    def exchange(source: Path, target: Path) -> None:
        done.append("name")
        swap(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", exchange)
    monkeypatch.setattr(Path, "replace", exchange)
    StateFile(tmp_path / "state", print).write(b"seven b")
    assert done == ["7 bytes", "name", "folder"]


def test_a_message_syncs_one_state_and_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sum's first and last message note besides is another file of another folder."""
    folders = members(tmp_path)
    synced: list[Path] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    channel = InFolders(folders)
    server = federation(channel, tmp_path / "server.sqlite")
    server.sum(BALLOT, "first")
    synced.clear()
    server.sum(BALLOT, "second")
    states = folders[1] / "states"
    assert sum(path == states for path in synced) == len(STAGES)
    assert sum(path.parent == states for path in synced) == len(STAGES)
    listed = [path for path in synced if path.name == ".sessions" and path.parent == folders[1]]
    assert len(listed) == 2


def test_a_kill_while_writing_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, 1, under_way(1))

    def killed(_handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt), states_in(tmp_path).open(goes_on(1)) as held:
            held.write(finished(1))
    with states_in(tmp_path).open(goes_on(1)) as held:
        assert held.read() == under_way(1)


def test_two_messages_of_one_session_are_not_answered_at_once_and_of_two_they_are(
    tmp_path: Path,
) -> None:
    keep(tmp_path, 1, under_way(1))
    with states_in(tmp_path).open(goes_on(1)) as first:
        with (
            pytest.raises(Refused, match="this client is answering another message"),
            states_in(tmp_path).open(goes_on(1)),
        ):
            pass
        with states_in(tmp_path).open(begins(2)) as second:
            second.write(under_way(2))
            first.write(finished(1))
    with states_in(tmp_path).open(goes_on(2)) as held:
        assert held.read() == under_way(2)


def test_a_message_that_failed_does_not_keep_the_lock_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no sum"), states_in(tmp_path).open(goes_on(1)):
        raise Refused("no sum is under way")
    with states_in(tmp_path).open(goes_on(1)) as held:
        assert held.read() == b""
    assert not list((tmp_path / "states").iterdir())


def test_a_lock_whose_file_is_removed_while_another_waits_for_it_is_not_shared(
    tmp_path: Path,
) -> None:
    """Else two messages could hold the lock of one session, on two files of one name."""
    path = tmp_path / "lock"
    order: list[str] = []

    def wait() -> None:
        with locked(path, wait=True) as held:
            order.append(f"waited {held}")

    waiting = threading.Thread(target=wait)
    first, second = ExitStack(), ExitStack()
    first.enter_context(locked(path, wait=False))
    waiting.start()
    waiting.join(timeout=0.2)
    path.unlink()
    assert second.enter_context(locked(path, wait=False))
    first.close()
    waiting.join(timeout=0.2)
    order.append("released")
    second.close()
    waiting.join(timeout=60.0)
    assert order == ["released", "waited True"]


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    with states_in(tmp_path).open(goes_on(1)):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    try:
        with states_in(tmp_path).open(goes_on(1)) as held:
            assert held.read() == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_so_many_sums_are_under_way_and_no_more(tmp_path: Path) -> None:
    for number in range(MOST_UNDER_WAY):
        keep(tmp_path, number, under_way(number))
    with (
        pytest.raises(Refused, match="32 sums are under way on this client; that is the most"),
        states_in(tmp_path).open(begins(99)),
    ):
        pass
    with states_in(tmp_path).open(goes_on(3)) as held:  # those that are go on
        held.write(finished(3))
    os.utime(tmp_path / "states" / name(3), (NOW, NOW))
    with states_in(tmp_path).open(begins(4)) as held:  # and may be asked for again
        assert held.read() == under_way(4)
    with states_in(tmp_path).open(begins(99)) as held:
        held.write(under_way(99))
    assert (tmp_path / "states" / name(3)).exists(), "its last reply may have been lost"


def test_a_state_that_was_idle_for_a_day_is_removed_by_the_next_message_of_any_session(
    tmp_path: Path,
) -> None:
    old = keep(tmp_path, 1, under_way(1))
    recent = keep(tmp_path, 2, under_way(2), NOW + 2)
    with states_in(tmp_path, NOW + DAY + 1).open(goes_on(3)):
        pass
    assert (old.exists(), recent.exists()) == (False, True)
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == [
        name(2),
        f"{name(2)}.lock",
    ]


def test_a_state_in_use_is_not_removed_however_old_it_is(tmp_path: Path) -> None:
    old = keep(tmp_path, 1, under_way(1))
    with states_in(tmp_path).open(goes_on(1)), states_in(tmp_path, NOW + 9 * DAY).open(goes_on(2)):
        assert old.exists()


def test_finished_sums_are_kept_for_an_hour_and_only_the_newest(tmp_path: Path) -> None:
    files = [keep(tmp_path, n, finished(n), NOW + n) for n in range(MOST_FINISHED + 2)]
    with states_in(tmp_path, NOW + 20).open(goes_on(99)):
        pass
    assert [file.exists() for file in files] == [False] * 2 + [True] * MOST_FINISHED
    with states_in(tmp_path, NOW + HOUR + 5.5).open(goes_on(99)):
        pass
    assert [file.exists() for file in files] == [False] * 6 + [True] * 4


def test_what_kills_left_is_removed_in_time(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir(mode=0o700)
    for left in (f".{name(1)}", f"{name(2)}.lock"):
        (folder / left).touch()
        os.utime(folder / left, (NOW, NOW))
    for later, expected in ((60.0, 2), (HOUR + 1, 1), (DAY + 1, 0)):
        with states_in(tmp_path, NOW + later).open(goes_on(3)):
            pass
        assert len(list(folder.iterdir())) == expected


def test_a_clock_that_was_wrong_keeps_no_state_for_ever(tmp_path: Path) -> None:
    ahead = keep(tmp_path, 1, under_way(1), NOW + 1000 * DAY)
    with states_in(tmp_path).open(goes_on(2)):
        pass
    assert not ahead.exists()


def test_states_in_memory_are_bounded_and_the_oldest_go() -> None:
    held = StatesInMemory()
    for number in range(2 * MOST_UNDER_WAY):
        held.write(name(number), under_way(number))
        held.write(name(1000 + number), finished(1000 + number))
    assert len(held.kept) == MOST_UNDER_WAY + MOST_FINISHED
    with held.open(goes_on(2 * MOST_UNDER_WAY - 1)) as state:
        assert state.read() == under_way(2 * MOST_UNDER_WAY - 1)
    with held.open(goes_on(0)) as state:
        assert state.read() == b""


CLEAR = AskInClear(VERSION, b"c" * SESSION_BYTES, LocalValidation(()))


@pytest.mark.parametrize(
    ("message", "heading"),
    [
        (request(), Heading((b"s" * SESSION_BYTES).hex(), begins=True)),
        (
            encode(Continue(VERSION, b"t" * SESSION_BYTES, b"")),
            Heading((b"t" * SESSION_BYTES).hex(), begins=False),
        ),
        (encode(CLEAR), Heading((b"c" * SESSION_BYTES).hex(), begins=False)),
    ],
)
def test_a_message_says_which_session_it_is_of(message: bytes, heading: Heading) -> None:
    assert heading_of(message) == heading


NESTED = b"\x91" * 100_000


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "the message cannot be read"),
        (b"\xc1", "the message cannot be read"),
        (NESTED, "the message cannot be read"),
        (encode({"a": 1}), "the message cannot be read"),
        (encode([1, VERSION]), "the message cannot be read"),
        (encode([2, VERSION, "text", b""]), "the message cannot be read"),
        (encode(["2", VERSION, bytes(32), b""]), "the message cannot be read"),
        (encode([2, VERSION + 1, bytes(32), b""]), f"the message has version {VERSION + 1}; this"),
        (encode([9, VERSION - 1]), f"the message has version {VERSION - 1}; this"),
        (encode([2, VERSION, bytes(31), b""]), "a session has 32 bytes, not 31"),
    ],
)
def test_a_message_without_a_heading_is_refused_as_the_endpoint_refuses_it(
    message: bytes, reason: str
) -> None:
    endpoint = channel_of(federation_of([likes(0.5)] * 3)).endpoints[0]
    for refuse in (heading_of, lambda told: endpoint.handle(b"", told)):
        with pytest.raises(Refused, match=reason):
            refuse(message)


def test_random_bytes_have_a_heading_or_a_refusal() -> None:
    rng = random.Random(1)
    whole = request()
    for _ in range(3000):
        told = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            told[rng.randrange(60)] = rng.randrange(256)
        with suppress(Refused):
            assert len(heading_of(bytes(told[: rng.randint(0, 200)])).session) == 2 * SESSION_BYTES


def test_a_state_of_another_session_is_not_used() -> None:
    endpoint = channel_of(federation_of([likes(0.5)] * 5)).endpoints[0]
    state, _ = endpoint.handle(b"", request())
    other = b"t" * SESSION_BYTES
    for message in (request(session=b"t"), encode(Continue(VERSION, other, b"")), encode(CLEAR)):
        with pytest.raises(Refused, match="the message belongs to another session"):
            endpoint.handle(state, message)


@pytest.mark.usefixtures("quick_disk")
def test_two_runs_on_the_same_members_both_open_in_whatever_order_they_ask(tmp_path: Path) -> None:
    """With one state a node, the later question destroyed the earlier sum."""
    folders = members(tmp_path)
    for seed in range(1, 9):
        opened = two_sums(folders, tmp_path, seed)
        assert opened.keys() == {"one", "two"}
        for total, channel in opened.values():
            assert total.answered == 3
            assert total.value.tolist() == sum(channel.vectors.values()).tolist()  # type: ignore[union-attr]
        for folder in folders:
            charged = spent(folder)
            assert len(charged) == len(set(charged)) == 2 * seed
        for one in ("one", "two"):
            assert len(Ledger(tmp_path / f"{one}.sqlite")) == seed
    member = Member.load(folders[0])
    assert member.membership
    receipts = read_receipts([folder / "receipts" for folder in folders])
    assert len(receipts) == 3 * 2 * seed
    for one in ("one", "two"):
        ledger = Ledger(tmp_path / f"{one}.sqlite")
        lines = {charge.digest for charge in ledger.charges()}
        of_run = {file: found for file, found in receipts.items() if found and found.line in lines}
        assert len(of_run) == 3 * seed
        assert check_receipts(of_run, ledger, member.membership.roster) == []


@pytest.mark.parametrize("within", STAGES[1:])
def test_a_whole_run_in_the_middle_of_another_disturbs_nobody_in_process(within: str) -> None:
    built = federation_of([likes(0.5)] * 3, budget=Budget(30.0, 1e-5), dropout=0)
    inner: list[int] = []

    class Meddling(LocalChannel):
        def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            if stage == within and not inner:
                inner.append(0)
                inner.append(replace(built, channel=self, run="inner").sum(BALLOT, "in").answered)
            return super().ask(stage, requests)

    channel = Meddling(channel_of(built).endpoints)
    assert replace(built, channel=channel).sum(BALLOT, "vote").answered == 3
    assert inner == [0, 3]
    assert [len(one.ledger) for one in channel.endpoints] == [2] * 3


@pytest.mark.usefixtures("quick_disk")
def test_what_belongs_to_one_session_opens_nothing_of_another(tmp_path: Path) -> None:
    """A server mixes two sums: every message of one is sent as one of the other, at every stage."""
    folders = members(tmp_path)
    opened = two_sums(folders, tmp_path, seed=1)
    one, two = (opened[run][1] for run in ("one", "two"))
    for stage in STAGES[1:]:
        for told in STAGES[1:]:
            # As the member was before this stage of the second sum, which never left it.
            anna = shutil.copytree(folders[0], tmp_path / "copy")
            file = state_file(anna, two.requests["evaluate"])
            file.write_bytes(two.before[stage])
            try:
                reply = answered(anna, in_session(one.requests[told], two.requests["evaluate"]))
            except Refused:
                reply = b""
            if reply != two.replies[told]:  # lists of members may be the same in both
                assert unpack_reply(Sealed, reply) is None
                assert unpack_reply(Opened, reply) is None
            assert sorted(spent(anna)) == sorted(spent(folders[0]))
            shutil.rmtree(anna)


@pytest.mark.usefixtures("quick_disk")
def test_a_state_under_the_name_of_another_session_is_set_aside(tmp_path: Path) -> None:
    folders = members(tmp_path)
    opened = two_sums(folders, tmp_path, seed=1)
    one, two = (opened[run][1] for run in ("one", "two"))
    file = state_file(folders[0], two.requests["evaluate"])
    for stage in STAGES[1:]:
        file.write_bytes(one.before[stage])
        with pytest.raises(Refused, match="no sum is under way"):
            answered(folders[0], in_session(one.requests[stage], two.requests["evaluate"]))
        assert not file.exists()
    assert len(spent(folders[0])) == 2


@pytest.mark.usefixtures("quick_disk")
def test_what_was_asked_before_is_never_answered_in_another_way(tmp_path: Path) -> None:
    """Every message of a sum comes again after each of its stages: the same bytes, or none."""
    folders = members(tmp_path)
    channel = InFolders(folders)
    federation(channel, tmp_path / "server.sqlite").sum(BALLOT, "vote")
    after = {reached: channel.before[stage] for reached, stage in pairwise(STAGES)}
    file = state_file(folders[0], channel.requests["evaluate"])
    last = file.read_bytes()
    for reached in STAGES:
        file.write_bytes(after.get(reached, last))
        for told in STAGES[: STAGES.index(reached) + 1]:
            try:
                reply = answered(folders[0], channel.requests[told])
            except Refused:
                assert told != reached
            else:
                assert reply == channel.replies[told]
                assert told == reached
    assert len(spent(folders[0])) == 1


def stopped(folders: list[Path], base: Path, until: str) -> InFolders:
    """A sum that its server gave up before this stage."""
    channel = InFolders(folders, until=until)
    with pytest.raises(TooFewClients):
        federation(channel, base / "server.sqlite").sum(BALLOT, "vote")
    return channel


def age(file: Path) -> None:
    """As if the state had been idle for more than a day."""
    written = file.stat().st_mtime - DAY - 1
    os.utime(file, (written, written))


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("until", STAGES[1:])
def test_a_session_whose_state_was_removed_is_not_answered_again(
    tmp_path: Path, until: str
) -> None:
    """Neither its question, with other keys and noise, nor any later message of it."""
    folders = members(tmp_path)
    channel = stopped(folders, tmp_path, until)
    age(state_file(folders[0], channel.requests[until]))
    with pytest.raises(Refused, match="no sum is under way"):
        answered(folders[0], encode(Continue(VERSION, bytes(SESSION_BYTES), b"")))
    assert not state_file(folders[0], channel.requests[until]).exists()
    sealed = STAGES.index(until) > STAGES.index("seal")
    reason = "answered before" if sealed else "asked before"
    for stage, message in channel.requests.items():
        with pytest.raises(Refused, match=reason if stage == "evaluate" else "no sum is under way"):
            answered(folders[0], message)
    assert len(spent(folders[0])) == sealed
    federation(InFolders(folders), tmp_path / "server.sqlite").sum(BALLOT, "later")
    assert len(spent(folders[0])) == sealed + 1


@pytest.mark.usefixtures("quick_disk")
def test_a_sum_that_nobody_remembers_begins_with_nothing_of_its_first_life(tmp_path: Path) -> None:
    """The last case of the proof in `tacit.states`: other keys, and the old shares fit nothing."""
    folders = members(tmp_path)
    channel = stopped(folders, tmp_path, "seal")
    age(state_file(folders[0], channel.requests["seal"]))
    member = Member.load(folders[0])
    with pytest.raises(Refused):
        answered(folders[0], encode(Continue(VERSION, bytes(SESSION_BYTES), b"")))
    for number in range(MOST_ENDED):
        member.sessions.end(name(number))
    advert = answered(folders[0], channel.requests["evaluate"])
    assert advert != channel.replies["evaluate"]
    for stage in ("share", "deliver", "seal"):
        with pytest.raises(Refused):
            answered(folders[0], channel.requests[stage])
    assert spent(folders[0]) == []


def broken(rng: random.Random, whole: bytes) -> bytes:
    """The file after something happened to it."""
    data = bytearray(whole)
    start = rng.randrange(len(data))
    end = min(start + rng.choice((1, 4, 100)), len(data))
    match rng.randrange(5):
        case 0:
            data[start] ^= 1 << rng.randrange(8)
        case 1:
            del data[start:end]
        case 2:
            data[start:start] = rng.randbytes(end - start)
        case 3:
            data[start:end] = bytes(end - start)
        case 4:
            data[start:end] = rng.randbytes(end - start)
    return bytes(data)


OLD: dict[str, Callable[[bytes], bytes]] = {
    "of another format": lambda state: state.replace(
        b"tacit state" + bytes([FORMAT]), b"tacit state" + bytes([FORMAT + 1])
    ),
    "of the release before": lambda _state: encode([4, b"question", [], b"state", b"r", b"r"]),
    "of another kind with its digest": lambda _state: to_bytes(
        Waiting(bytes(32), b"", b"", b"", b"")
    ),
    "empty": lambda _state: b"",
}


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("damage", ["cut", "random", *OLD])
def test_a_damaged_state_ends_its_own_sum_and_no_other(
    tmp_path: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, what could not be read raised with every message, of later sessions too."""
    folders = members(tmp_path)
    channel, other = stopped(folders, tmp_path, "seal"), stopped(folders, tmp_path, "deliver")
    file, whole = state_file(folders[0], channel.requests["seal"]), channel.before["seal"]
    rng = random.Random(7)
    damages = {
        "cut": [whole[:length] for length in range(len(whole))],
        "random": [broken(rng, whole) for _ in range(2500)],
    }.get(damage) or [OLD[damage](whole)]
    said: list[str] = []
    endpoint, member = endpoint_of(folders[0])
    member = replace(member, tell=said.append)
    for number, data in enumerate(data for data in damages if data != whole):
        file.write_bytes(data)
        if number % 2:  # a message of another session finds it, or one of its own
            assert endpoint.answer(member.states, other.requests["share"]) == other.replies["share"]
        with pytest.raises(Refused, match="no sum is under way"):
            endpoint.answer(member.states, channel.requests["seal"])
        with pytest.raises(Refused, match="this session was asked before"):
            endpoint.answer(member.states, channel.requests["evaluate"])
        assert not file.exists()
        assert len(said) == number + 1
        assert f"{file} is" in said[-1]
        if number % 500 == 0:
            federation(InFolders(folders), tmp_path / "server.sqlite").sum(BALLOT, "later")
    aside = [path for path in file.parent.iterdir() if path.name.endswith(".unreadable")]
    assert 1 <= len(aside) <= MOST_UNREADABLE
    assert heading_of(channel.requests["evaluate"]).session not in spent(folders[0])
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("part", ["asked", "sum_state"])
def test_a_forged_state_whose_digest_fits_is_refused_and_seals_nothing(
    tmp_path: Path, part: str
) -> None:
    """Somebody who may write the folder; an error would end the node's process."""
    folders = members(tmp_path)
    channel = stopped(folders, tmp_path, "seal")
    file = state_file(folders[0], channel.requests["seal"])
    kept, rng = from_bytes(channel.before["seal"]), random.Random(11)
    endpoint, member = endpoint_of(folders[0])
    for _ in range(300):
        altered = broken(rng, getattr(kept, part))
        if altered == getattr(kept, part):
            continue
        file.write_bytes(to_bytes(msgspec.structs.replace(kept, **{part: altered})))
        with suppress(Refused):  # a mask of another secret is as good as any
            endpoint.answer(member.states, channel.requests["seal"])
    assert len(spent(folders[0])) <= 1


def test_files_that_were_set_aside_are_bounded(tmp_path: Path) -> None:
    said: list[str] = []
    for number in range(MOST_UNREADABLE + 4):
        path = keep(tmp_path, number, under_way(number))
        path.write_bytes(b"junk")
        os.utime(path, (NOW + number, NOW + number))
        with states_in(tmp_path, NOW + 60, said.append).open(goes_on(99)):
            pass
    left = sorted(path.name for path in (tmp_path / "states").iterdir())
    assert left == [f"{name(number)}.unreadable" for number in range(4, MOST_UNREADABLE + 4)]
    assert len(said) == MOST_UNREADABLE + 4


def test_a_folder_in_place_of_a_state_is_set_aside(tmp_path: Path) -> None:
    said: list[str] = []
    path = keep(tmp_path, 1, under_way(1))
    path.unlink()
    path.mkdir()
    with states_in(tmp_path, NOW, said.append).open(goes_on(1)) as held:
        assert held.read() == b""
    assert len(said) == 1
    assert "is a folder and no file" in said[0]


def test_a_file_in_place_of_the_states_is_named(tmp_path: Path) -> None:
    (tmp_path / "states").touch()
    with (
        pytest.raises(FolderError, match="states is not a folder; move it elsewhere"),
        states_in(tmp_path).open(goes_on(1)),
    ):
        pass
