from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.endpoint import heading_of
from tacit.federation import Federation, LocalChannel
from tacit.membership import (
    KEY,
    LEDGER,
    PUBLIC_KEY,
    ROSTER,
    Member,
    Membership,
    named_keys,
    new_key,
    read_key,
    read_public,
    write_public,
)
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, LedgerError
from tacit.privacy.mechanisms import Participation
from tacit.query import Ballot
from tacit.receipts import Receipt, check_receipts, read_receipts
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Refused
from tacit.secure.roster import Identity, Roster
from tacit.states import Heading, Waiting, to_bytes
from tests.interleaved import InFolders, answered, endpoint_of

BALLOT = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
BUDGET = Budget(30.0, 1e-5)
QUESTION = Heading(bytes(32).hex(), begins=True)
UNDER_WAY = to_bytes(Waiting(bytes(32), b"question", b"", b"request", b"reply"))
NAMES = ("anna", "ben", "cleo")
KEYS = tuple(Identity.new().public_key for _ in NAMES)


def membership(**changes: Any) -> Membership:
    return replace(Membership("clinics", NAMES, Roster(KEYS), Participation(3), 12.5), **changes)


def members(folder: Path) -> list[Path]:
    """The folders of a federation of three, ready to take part."""
    folders = [folder / name for name in NAMES]
    for one in folders:
        new_key(one)
    keys = named_keys(folders)
    roster = membership(names=tuple(keys), roster=Roster(tuple(keys.values())))
    for one in folders:
        (one / ROSTER).write_text(roster.to_toml())
        Ledger.create(one / LEDGER, "clinics", BUDGET)
    return folders


def test_a_roster_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "roster.toml"
    file.write_text(membership().to_toml())
    read = Membership.load(file)
    assert read == membership()
    assert read.digest == membership().digest
    assert read.participation.threshold == 3


def test_comments_and_spaces_do_not_alter_the_digest(tmp_path: Path) -> None:
    file = tmp_path / "roster.toml"
    file.write_text("# ours\n" + membership().to_toml().replace(" = ", "="))
    assert Membership.load(file).digest == membership().digest


@pytest.mark.parametrize("written", ["1", "0.34", '"1/3"', "0.3333333333333333", '"1"'])
def test_a_roster_means_the_same_however_a_count_is_written(written: str) -> None:
    third = membership(participation=Participation(3, colluding=1))
    assert "colluding = 1\n" in third.to_toml()
    read = Membership.from_toml(
        membership().to_toml().replace("colluding = 0", f"colluding = {written}")
    )
    assert (read, read.digest) == (third, third.digest)


@pytest.mark.parametrize(
    "changes",
    [
        {"federation": "banks"},
        {"names": ("anna", "ben", "dora")},
        {"roster": Roster(KEYS[::-1])},
        {"participation": Participation(3, dropout=1)},
        {"participation": Participation(3, colluding=1)},
        {"least_noise": 12.4},
    ],
)
def test_the_digest_covers_all_that_a_roster_says(changes: dict[str, Any]) -> None:
    assert membership(**changes).digest != membership().digest


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"federation": "../etc"}, "federation is '../etc'; allowed are 1 to 100 letters"),
        ({"federation": ""}, "federation is ''"),
        ({"names": ("anna", "ben", "\x1b[2J")}, "a member's name is '.x1b.2J'; allowed are"),
        ({"names": ("anna", "ben", "ben")}, "names each of its members once"),
        ({"names": ("anna", "ben")}, "names each of its members once"),
        ({"least_noise": -1.0}, "least_noise is -1.0; allowed is a finite"),
        ({"least_noise": float("nan")}, "least_noise is nan"),
        ({"least_noise": float("inf")}, "least_noise is inf"),
        ({"participation": Participation(4)}, "counts on 4 clients and names 3"),
        ({"names": ("anna",), "roster": Roster(KEYS[:1])}, "counts on 3 clients and names 1"),
    ],
)
def test_a_roster_that_cannot_be_is_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        membership(**changes)


@pytest.mark.parametrize(
    ("alter", "found"),
    [
        (lambda _text: "no TOML", "not a TOML file"),
        (lambda _text: "", "is missing; a roster has colluding, dropout, federation, least"),
        (lambda text: text.replace("dropout", "drop"), "drop"),
        (lambda text: text + "more = 1\n", r"a key is 1; allowed is 'tacit-ed25519 \.\.\.'"),
        (lambda text: "more = 1\n" + text, "more is not a key of a roster"),
        (lambda text: text.replace("dropout = 0", "dropout = true"), "dropout is True; allowed"),
        (lambda text: text.replace("dropout = 0", "dropout = 1.0"), "dropout is 1.0; allowed"),
        (
            lambda text: text.replace("dropout = 0", "dropout = []"),
            r"dropout is \[\]; allowed",
        ),
        (lambda text: text.replace("colluding = 0", "colluding = 3"), "3 may know their own noise"),
        (lambda text: text.replace('"clinics"', "7"), "federation must be a text"),
        (lambda text: text.replace("tacit-ed25519 ", "", 1), "a public key does not read"),
        (lambda text: text.replace("tacit-ed25519", "ssh-ed25519", 1), "does not read"),
        (lambda text: text.replace('="', '"', 1), "32 bytes in base64"),
        (lambda text: text.replace("12.5", "nan"), "least_noise is nan"),
        (
            lambda text: text.replace(write_public(KEYS[0]), write_public(KEYS[1])),
            "different Ed25519 public keys",
        ),
    ],
)
def test_a_malformed_file_is_refused_by_name(
    tmp_path: Path, alter: Callable[[str], str], found: str
) -> None:
    file = tmp_path / "roster.toml"
    file.write_text(alter(membership().to_toml()))
    with pytest.raises(ValueError, match=found) as refused:
        Membership.load(file)
    assert str(refused.value).startswith(str(file))


def test_a_missing_or_binary_file_is_no_roster(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no roster at .*; make one with: tacit roster make"):
        Membership.load(tmp_path / "roster.toml")
    (tmp_path / "roster.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"roster\.toml: "):
        Membership.load(tmp_path / "roster.toml")


def test_a_key_pair_survives_its_files_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    made = new_key(tmp_path / "deep" / "anna")
    key, public = tmp_path / "deep" / "anna" / KEY, tmp_path / "deep" / "anna" / PUBLIC_KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert read_key(key).secret == made.secret
    assert read_public(public.read_text()) == made.public_key
    assert write_public(made.public_key) + "\n" == public.read_text()


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    made = new_key(tmp_path)
    with pytest.raises(ValueError, match=r"node\.key exists already; a key is never replaced"):
        new_key(tmp_path)
    assert read_key(tmp_path / KEY).secret == made.secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o610, 0o777])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    new_key(tmp_path)
    (tmp_path / KEY).chmod(mode)
    with pytest.raises(ValueError, match=rf"mode {mode:03o}\); allowed is 600: chmod 600"):
        read_key(tmp_path / KEY)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_that_only_its_owner_can_reach_is_read(tmp_path: Path, mode: int) -> None:
    made = new_key(tmp_path)
    (tmp_path / KEY).chmod(mode)
    assert read_key(tmp_path / KEY).secret == made.secret


@pytest.mark.parametrize("text", [b"", b"junk", b"tacit-ed25519-secret AAAA", b"\xff\xfe", b"\x00"])
def test_a_malformed_key_is_refused_without_showing_it(tmp_path: Path, text: bytes) -> None:
    new_key(tmp_path)
    (tmp_path / KEY).write_bytes(text)
    with pytest.raises(ValueError, match=r"node\.key does not read 'tacit-ed25519-secret \.\.\.'"):
        read_key(tmp_path / KEY)
    with pytest.raises(ValueError, match=r"no key at .*; make one with: tacit roster key"):
        read_key(tmp_path / "none" / KEY)


def test_a_secret_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    secret = new_key(tmp_path).secret
    with pytest.raises(ValueError, match="does not read") as refused:
        named_keys([tmp_path / KEY])
    assert write_public(secret).split()[1] not in str(refused.value)


def test_members_are_called_as_their_file_or_folder(tmp_path: Path) -> None:
    anna, ben = new_key(tmp_path / "anna"), new_key(tmp_path / "mail")
    (tmp_path / "mail" / PUBLIC_KEY).rename(tmp_path / "ben.pub")
    found = named_keys([tmp_path / "anna", tmp_path / "ben.pub"])
    assert found == {"anna": anna.public_key, "ben": ben.public_key}
    assert named_keys([tmp_path / "anna" / PUBLIC_KEY]) == {"anna": anna.public_key}


def test_keys_that_cannot_be_listed_are_refused_by_name(tmp_path: Path) -> None:
    for folder in ("anna", "other/anna", "a b"):
        new_key(tmp_path / folder)
    with pytest.raises(ValueError, match="two keys are called 'anna'"):
        named_keys([tmp_path / "anna", tmp_path / "other" / "anna"])
    with pytest.raises(ValueError, match=r"rename .*: the member's name is 'a b'; allowed are 1"):
        named_keys([tmp_path / "a b"])
    with pytest.raises(ValueError, match=r"no public key at .*none; a member makes it with"):
        named_keys([tmp_path / "none"])
    (tmp_path / "cleo.pub").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"cleo\.pub does not read 'tacit-ed25519 \.\.\.'"):
        named_keys([tmp_path / "anna", tmp_path / "cleo.pub"])


def test_a_member_is_what_its_folder_says(tmp_path: Path) -> None:
    for number, folder in enumerate(members(tmp_path)):
        member = Member.load(folder)
        assert (member.number, member.ledger.budget) == (number, BUDGET)
        assert member.membership
        assert member.membership.names == NAMES


def test_what_is_missing_in_a_members_folder_is_named(tmp_path: Path) -> None:
    anna, ben, _ = members(tmp_path)
    with pytest.raises(ValueError, match=r"no folder of a member at .*; make it with"):
        Member.load(tmp_path / "none")
    (ben / KEY).unlink()
    with pytest.raises(ValueError, match="no key at"):
        Member.load(ben)
    new_key(ben)
    with pytest.raises(ValueError, match="is not on the roster of 'clinics'; send the public key"):
        Member.load(ben)
    (anna / LEDGER).unlink()
    with pytest.raises(LedgerError, match="no ledger at"):
        Member.load(anna)


def test_a_folder_without_a_roster_has_only_a_ledger(tmp_path: Path) -> None:
    Ledger.create(tmp_path / LEDGER, "clinics", BUDGET)
    member = Member.load(tmp_path)
    assert (member.membership, member.identity, member.number) == (None, None, None)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o722, 0o702, 0o720, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever can write it can put an old ledger, or another roster, in place of the member's."""
    folder = members(tmp_path)[0]
    folder.chmod(mode)
    with pytest.raises(ValueError, match=rf"others \(mode {mode:03o}\); allowed is 700: chmod 700"):
        Member.load(folder)
    folder.chmod(0o755)
    Member.load(folder)


@pytest.mark.parametrize(
    ("name", "mode", "allowed"),
    [
        (LEDGER, 0o666, "600"),
        (LEDGER, 0o660, "600"),
        (LEDGER, 0o644, "600"),
        ("states", 0o705, "700"),
        ("states", 0o770, "700"),
        ("sessions", 0o660, "600"),
        ("receipts", 0o777, "700"),
        ("receipts", 0o730, "700"),
        (ROSTER, 0o666, "600"),
        (ROSTER, 0o664, "600"),
    ],
)
def test_a_file_that_others_can_reach_is_refused(
    tmp_path: Path, name: str, mode: int, allowed: str
) -> None:
    folder = members(tmp_path)[0]
    folder.chmod(0o755)
    (folder / "receipts").mkdir()
    (folder / "states").mkdir(mode=0o700)
    (folder / "sessions").touch(mode=0o600)
    Member.load(folder)
    (folder / name).chmod(mode)
    found = rf"{name} can be .* others \(mode {mode:03o}\); allowed is {allowed}: chmod {allowed}"
    with pytest.raises(ValueError, match=found):
        Member.load(folder)


def test_a_roster_of_any_mode_is_read_in_a_folder_that_nobody_else_can_enter(
    tmp_path: Path,
) -> None:
    """A copy has whatever mode the user's own mask gives it."""
    folder = members(tmp_path)[0]
    (folder / ROSTER).chmod(0o666)
    assert Member.load(folder).number == 0


@pytest.mark.parametrize("name", [".", LEDGER, KEY, ROSTER])
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = members(tmp_path)[0]
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        name, user = ".", 12345
    else:
        os.chown(folder / name, 12345, -1)
        user = 0
    with pytest.raises(ValueError, match=rf"belongs to user .*: chown {user} {folder}"):
        Member.load(folder)


def test_a_ledger_of_another_federation_is_refused(tmp_path: Path) -> None:
    """Its budget was granted for something else, and what is spent here would be missing there."""
    folder = members(tmp_path)[0]
    (folder / LEDGER).unlink()
    Ledger.create(folder / LEDGER, "banks", BUDGET)
    found = "is the ledger of 'banks', the roster is of 'clinics'; .* --federation clinics"
    with pytest.raises(ValueError, match=found):
        Member.load(folder)


def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = members(tmp_path)[0]
        member = Member.load(folder)
        with member.states.open(QUESTION) as state:
            state.write(UNDER_WAY)
            member.sessions.begin(QUESTION.session)
        vote = BALLOT.bound.release(139.0)
        member.ledger.charge(vote, "answer", run="any")
        assert member.identity
        assert member.membership
        roster = member.membership.roster
        receipt = Receipt.signed(
            member.identity,
            roster,
            client=0,
            session="ab",
            question="cd",
            line="ef",
            event=vote,
        )
        member.keep(receipt)
        Member.load(folder)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    states = {stat.S_IMODE(path.stat().st_mode) for path in (folder / "states").iterdir()}
    assert states == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == modes.pop("receipts") == 0o700
    assert modes.pop("states") == 0o700
    assert {name for name, mode in modes.items() if mode & 0o077} == {PUBLIC_KEY, ROSTER}


def test_a_ledgers_journal_is_for_its_owner_alone_too(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ledger = Ledger.create(tmp_path / "ledgers" / LEDGER, "clinics", BUDGET)
        with ledger._file.transaction():
            ledger._file.connection.execute("INSERT INTO line VALUES (9, '', '', '')")
            files = {path.name: path.stat().st_mode for path in ledger.path.parent.iterdir()}
            ledger._file.connection.execute("ROLLBACK")
            ledger._file.connection.execute("BEGIN")
    finally:
        os.umask(before)
    assert sorted(files) == [LEDGER, f"{LEDGER}-journal", f"{LEDGER}.lock"]
    assert {stat.S_IMODE(mode) for mode in files.values()} == {0o600}
    assert stat.S_IMODE(ledger.path.parent.stat().st_mode) == 0o700


def held_vote(folder: Path) -> tuple[Federation, InFolders]:
    folders = members(folder)
    roster = Membership.load(folders[0] / ROSTER)
    ledger = Ledger.create(folder / "server.sqlite", "clinics", BUDGET)
    channel = InFolders(folders)
    federation = Federation(
        channel,
        MaskedSum(roster.roster),
        ledger,
        roster.participation,
        "run",
        139.0,
        roster=roster.roster,
    )
    federation.sum(BALLOT, "vote")
    return federation, channel


def test_members_that_forget_all_but_their_folder_hold_a_vote(tmp_path: Path) -> None:
    federation, channel = held_vote(tmp_path)
    assert federation.sum(BALLOT, "again").answered == 3
    roster = Membership.load(channel.folders[0] / ROSTER).roster
    receipts = read_receipts([folder / "receipts" for folder in channel.folders])
    assert len(receipts) == 6
    assert check_receipts(receipts, federation.ledger, roster) == []
    assert all(len(Ledger(folder / LEDGER)) == 2 for folder in channel.folders)


def test_a_session_is_not_released_again_after_its_state_was_rolled_back(tmp_path: Path) -> None:
    """A restored backup, or a server that sends a stage again: the ledger remembers."""
    _, channel = held_vote(tmp_path)
    anna = channel.folders[0]
    for stage in ("evaluate", "seal"):
        state, request = channel.before[stage], channel.requests[stage]
        file = anna / "states" / heading_of(request).session
        file.unlink() if not state else file.write_bytes(state)
        with pytest.raises(Refused, match="this session was answered before"):
            answered(anna, request)
        assert not state or file.read_bytes() == state
    assert len(Ledger(anna / LEDGER)) == 1
    assert len(read_receipts([anna / "receipts"])) == 1


def test_a_stage_that_is_over_is_refused(tmp_path: Path) -> None:
    _, channel = held_vote(tmp_path)
    for stage in ("share", "deliver", "seal", "confirm"):
        with pytest.raises(Refused, match="this sum is over; it is answered once"):
            answered(channel.folders[0], channel.requests[stage])


def test_an_endpoint_in_process_refuses_an_old_state_too(tmp_path: Path) -> None:
    """The same through a LocalChannel, whose states are in memory."""
    federation, folders = held_vote(tmp_path)
    kept: dict[str, tuple[bytes, bytes]] = {}

    class Remembering(LocalChannel):
        def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            session = heading_of(requests[0]).session
            kept[stage] = self._states[0].kept.get(session, b""), requests[0]
            return super().ask(stage, requests)

    endpoints = [endpoint_of(folder)[0] for folder in folders.folders]
    replace(federation, channel=Remembering(endpoints)).sum(BALLOT, "vote")
    before = len(endpoints[0].ledger)
    for _ in range(2):
        with pytest.raises(Refused, match="this session was answered before"):
            endpoints[0].handle(*kept["seal"])
    assert len(endpoints[0].ledger) == before == 2


def test_a_member_refuses_less_noise_than_its_roster_says(tmp_path: Path) -> None:
    federation, channel = held_vote(tmp_path)
    with pytest.raises(Refused, match=r"noise of 12 squared .*; this client adds 12\.5 at least"):
        replace(federation, variance=96.0).sum(BALLOT, "vote")
    assert all(len(Ledger(folder / LEDGER)) == 1 for folder in channel.folders)
