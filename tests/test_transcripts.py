"""Transcripts on disk: the sum is the one that was signed, asked and paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from tacit import transcripts
from tacit.endpoint import VERSION, AskSum, Endpoint
from tacit.federation import Federation, LocalChannel, local_federation
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.mechanisms import Mechanism, Participation, mechanism_of
from tacit.query import Ballot
from tacit.secure.crypto import digest
from tacit.secure.masks import MaskedParticipant
from tacit.secure.opening import MaskedSum
from tacit.secure.protocol import Participant, Round, SpoiledSum, TooFewClients
from tacit.secure.roster import Identity, Roster
from tacit.secure.transcript import Closed, Transcript
from tacit.transcripts import SUFFIX, ClosedRecord, Finding, Record, check_transcripts
from tests.federations import channel, likes
from tests.forgeries import edit
from tests.secure.rounds import Accuser
from tools.faults.recorded import spoiled

BALLOT = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
CLIENTS = 6
PLANNED = Participation(CLIENTS, dropout=2)


@dataclass(frozen=True)
class Voted:
    """A federation that voted, its ledger in a file, and its transcripts."""

    federation: Federation
    folder: Path
    roster: Roster

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.federation.ledger.path)

    @property
    def charges(self) -> dict[str, Charge]:
        return {charge.digest: charge for charge in self.ledger.intact()}

    def files(self) -> list[Path]:
        """In the order of the ledger's lines."""
        lines = [charge.digest[:32] for charge in self.ledger.charges()]
        found = [self.folder / f"{line}{SUFFIX}" for line in lines]
        assert set(found) == set(self.folder.iterdir())
        return found

    def records(self) -> list[Record]:
        return [Record.read(file) for file in self.files()]

    def is_found(self, record: Record, because: str, roster: Roster | None = None) -> None:
        with pytest.raises(ValueError, match=because):
            record.check(self.charges, roster or self.roster, PLANNED)


def voted(folder: Path, votes: int = 2) -> Voted:
    ledger = Ledger.create(folder / "server.sqlite", "clinics", Budget(30.0, 1e-5))
    built = local_federation(
        [likes(0.5)] * CLIENTS,
        PLANNED,
        ledger,
        run="run",
        variance=139.0,
        drops={4: "seal"},
    )
    built.transcripts = folder / "transcripts"
    assert isinstance(built.secure, MaskedSum)
    assert built.secure.roster
    for _ in range(votes):
        built.sum(BALLOT, "vote")
    return Voted(built, built.transcripts, built.secure.roster)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Voted:
    """Nobody may alter its files."""
    return voted(tmp_path_factory.mktemp("honest"))


def test_every_sum_is_kept_and_agrees_with_its_line(honest: Voted) -> None:
    assert len(honest.files()) == 2
    for record, expected in zip(honest.records(), honest.ledger.charges(), strict=True):
        charge, total = record.check(honest.charges, honest.roster, PLANNED)
        assert charge == expected
        assert total.value.tolist() == record.value
        assert total.survivors == (0, 1, 2, 3, 5)
    findings = check_transcripts([honest.folder], honest.ledger, honest.roster, PLANNED)
    expected_files = zip(honest.files(), (2, 5), strict=True)
    assert {finding.file: finding for finding in findings} == {
        str(file): Finding(str(file), line, survivors=5) for file, line in expected_files
    }


def test_files_and_folders_can_be_given_and_what_is_not_there_is_said(honest: Voted) -> None:
    one, two = honest.files()
    found = check_transcripts([two, one, one], honest.ledger, honest.roster, PLANNED)
    assert [finding.line for finding in found] == [5, 2, 2]
    found = check_transcripts([honest.folder.parent], honest.ledger, honest.roster, PLANNED)
    assert len(found) == 2, "below other folders"
    with pytest.raises(ValueError, match=r"no transcripts at .*none; allowed are a transcript, or"):
        check_transcripts([honest.folder / "none"], honest.ledger, honest.roster, PLANNED)


def test_without_a_roster_or_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "server.sqlite", "clinics", Budget(30.0, 1e-5))
    built = local_federation(
        [likes(0.5)] * 3, Participation(3), ledger, run="run", variance=139.0, roster=False
    )
    built.transcripts = tmp_path / "transcripts"
    built.sum(BALLOT, "vote")
    assert not built.transcripts.exists()


def test_what_is_too_large_is_not_kept_and_counted(
    honest: Voted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "LARGEST", 100)
    found = voted(tmp_path, votes=1)
    assert not found.folder.exists()
    assert found.federation.unkept == 1
    record = honest.records()[0]
    assert not record.keep(tmp_path, "line")


def test_a_record_comes_back_as_it_was_kept(honest: Voted, tmp_path: Path) -> None:
    record = honest.records()[0]
    assert record.keep(tmp_path / "new" / "folder", "0123456789" * 7)
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert file.name == f"01234567890123456789012345678901{SUFFIX}"
    assert Record.read(file) == record
    for junk in (b"", b"junk", file.read_bytes()[:-1], b"\x91" * 10**5):
        file.write_bytes(junk)
        with pytest.raises(ValueError, match="the file is no transcript"):
            Record.read(file)


def asked(record: Record) -> AskSum:
    return msgspec.msgpack.decode(record.question, type=AskSum)


def asking(record: Record, **changes: object) -> Record:
    question = msgspec.msgpack.encode(altered(asked(record), **changes))
    return altered(record, question=question)


def test_another_value_is_found(honest: Voted) -> None:
    record = honest.records()[0]
    more = [record.value[0] + 1, *record.value[1:]]
    for value in (more, record.value[:-1], [*record.value, 0], [], [2**63, *more[1:]]):
        honest.is_found(altered(record, value=value), "add up to another sum than was recorded")


def test_another_question_is_found(honest: Voted) -> None:
    """What every client signed is the digest of the question with all its numbers."""
    record, other = honest.records()
    unsigned = "not signed by the client that the roster names"
    assert asked(record).session != asked(other).session
    for wrong in (
        asking(record, session=b"another session"),
        asking(record, deadline=1.0),
        asking(record, line=asked(other).line),
        altered(record, question=other.question),
        altered(record, transcript=other.transcript),
    ):
        honest.is_found(wrong, unsigned)
    for wrong in (
        asking(record, variance=140.0),
        asking(record, variance=0.0),
        asking(record, query=Ballot(BALLOT.candidates, votes=1)),
    ):
        honest.is_found(wrong, "charged for another question or other noise")
    honest.is_found(asking(record, clients=7), "the question is for 7 clients of which 2 may drop")
    honest.is_found(asking(record, version=VERSION + 1), f"version {VERSION + 1}; this version")
    honest.is_found(altered(record, question=b"junk"), "the question cannot be read")
    honest.is_found(altered(record, transcript=b"junk"), "the transcript cannot be read")


def test_a_line_that_is_not_in_the_ledger_is_found(honest: Voted, tmp_path: Path) -> None:
    record = honest.records()[0]
    honest.is_found(asking(record, line=bytes(32)), "the ledger has no such line")
    with pytest.raises(ValueError, match="the ledger has no such line: it was removed or altered"):
        record.check({}, honest.roster, PLANNED)
    found = voted(tmp_path)
    edit(found.federation.ledger.path, "DELETE FROM line WHERE number = 3")
    first, second = sorted(
        check_transcripts([found.folder], found.ledger, found.roster, PLANNED),
        key=lambda finding: "no such line" in finding.problem,
    )
    assert "no such line" in second.problem
    assert "does not say that this session asked on line 2" in first.problem
    assert (first.line, second.line) == (None, None)


def test_a_second_session_on_one_line_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: a server asks twice under one charge and keeps both transcripts."""
    found = voted(tmp_path, votes=1)
    (charge,) = found.ledger.charges()
    monkeypatch.setattr(Federation, "_reserved", lambda *_, **__: charge)
    monkeypatch.setattr(found.federation.ledger, "seal", lambda _session: None)
    found.federation.transcripts = tmp_path / "again"
    found.federation.sum(BALLOT, "vote")
    first, second = (
        check_transcripts([folder], Ledger(found.ledger.path), found.roster, PLANNED)[0]
        for folder in (found.folder, tmp_path / "again")
    )
    assert (first.line, first.problem) == (2, "")
    assert "does not say that this session asked on line 2" in second.problem


def test_another_roster_is_found(honest: Voted) -> None:
    others = Roster(tuple(Identity.new().public_key for _ in range(CLIENTS)))
    honest.is_found(honest.records()[0], "not signed by the client that the roster", others)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_altered_bytes_of_a_file_are_found_or_change_nothing_that_counts(
    honest: Voted,
    data: st.DataObject,
) -> None:
    file = honest.files()[0]
    record, found = Record.read(file), bytearray(file.read_bytes())
    place = data.draw(st.integers(0, 400) | st.integers(0, len(found) - 1))
    found[place] ^= data.draw(st.integers(1, 255))
    copy = file.with_suffix(".altered")
    copy.write_bytes(found)
    (finding,) = check_transcripts([copy], honest.ledger, honest.roster, PLANNED)
    copy.unlink()
    if finding.problem:
        assert (finding.line, finding.survivors) == (None, 0)
        return
    assert (finding.line, finding.survivors, finding.faults) == (2, 5, ())
    assert msgspec.msgpack.decode(bytes(found), type=Record).value == record.value


class AccusingEndpoint(Endpoint):
    """A client that complains about client 5 without cause."""

    def _participant(self, asked: AskSum, question: bytes, mechanism: Mechanism) -> Participant:
        made = super()._participant(asked, question, mechanism)
        assert isinstance(made, MaskedParticipant)
        return Accuser(made.around, made.me, made.identity, made.roster)


def accused(folder: Path) -> Voted:
    """Client 2 misbehaves in the only vote."""
    found = voted(folder, votes=0)
    endpoints = list(channel(found.federation).endpoints)
    settings = {field.name: getattr(endpoints[2], field.name) for field in fields(endpoints[2])}
    endpoints[2] = AccusingEndpoint(**settings)
    replace(found.federation, channel=LocalChannel(endpoints)).sum(BALLOT, "vote")
    return found


def test_the_finding_names_who_misbehaved(tmp_path: Path) -> None:
    found = accused(tmp_path)
    (finding,) = check_transcripts([found.folder], found.ledger, found.roster, PLANNED)
    assert finding.faults == ("client 2 complained about a neighbour's shares without cause",)
    assert (finding.line, finding.survivors, finding.problem) == (2, 5, "")
    (record,) = found.records()
    assert len(Transcript.from_bytes(record.transcript).evidence) == 1


# Sums that stay closed.


@dataclass(frozen=True)
class Spoiled:
    """A vote that one member spoiled, after everybody was charged."""

    federation: Federation
    file: Path

    @classmethod
    def play(cls, folder: Path) -> Spoiled:
        played = spoiled(folder)
        (line,) = played.ledger.charges()
        assert line.state == "sealed", "everybody was charged"
        return cls(played, folder / "transcripts" / f"{line.digest[:32]}-closed{SUFFIX}")

    @property
    def roster(self) -> Roster:
        assert self.federation.roster
        return self.federation.roster

    def finding(self, file: Path | None = None, ledger: Ledger | None = None) -> Finding:
        paths = [file or self.file.parent]
        ledger = ledger or Ledger(self.federation.ledger.path)
        (found,) = check_transcripts(paths, ledger, self.roster, self.federation.participation)
        return found


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Spoiled:
    """Nobody may alter its file."""
    return Spoiled.play(tmp_path_factory.mktemp("closed"))


def test_who_spoiled_a_sum_is_proved_though_it_stays_closed(closed: Spoiled) -> None:
    guilty = "client 2 shared another key than it advertised"
    assert [str(fault) for fault in closed.federation.faults] == [guilty]
    assert closed.finding() == Finding(str(closed.file), 2, 0, (guilty,), closed=True)
    assert closed.finding(closed.file) == closed.finding()


def test_evidence_belongs_to_its_line_its_question_and_its_roster(
    closed: Spoiled, honest: Voted, tmp_path: Path
) -> None:
    record, copy = ClosedRecord.read(closed.file), tmp_path / f"copy{SUFFIX}"

    def problem(forged: ClosedRecord, ledger: Ledger | None = None) -> str:
        copy.write_bytes(msgspec.msgpack.encode(forged))
        found = closed.finding(copy, ledger)
        assert not found.faults, "nobody is named by evidence that does not stand up"
        return found.problem

    said = msgspec.msgpack.decode(record.question, type=AskSum)
    deadline = msgspec.msgpack.encode(altered(said, deadline=1.0))
    fewer = msgspec.msgpack.encode(altered(said, clients=5))
    assert "no such line" in problem(record, honest.ledger)
    assert "not signed by the client" in problem(altered(record, question=deadline))
    assert "is for 5 clients" in problem(altered(record, question=fewer))
    assert "cannot be read" in problem(altered(record, question=b"junk"))
    assert "cannot be read" in problem(altered(record, transcript=b"junk"))
    opened = honest.records()[0].transcript
    assert "cannot be read" in problem(altered(record, transcript=opened))
    without = altered(Closed.from_bytes(record.transcript), evidence=[])
    assert "no evidence" in problem(altered(record, transcript=without.to_bytes()))


def test_evidence_of_a_second_session_on_one_line_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Spoiled.play(tmp_path)
    (charge,) = found.federation.ledger.charges()
    monkeypatch.setattr(Federation, "_reserved", lambda *_, **__: charge)
    monkeypatch.setattr(found.federation.ledger, "seal", lambda _session: None)
    asked_anew = replace(channel(found.federation))
    again = replace(found.federation, channel=asked_anew, transcripts=tmp_path / "again")
    with pytest.raises(SpoiledSum):
        again.sum(BALLOT, "vote")
    assert found.finding().problem == ""
    assert "does not say that this session asked" in found.finding(tmp_path / "again").problem


def test_too_much_evidence_is_not_kept_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "LARGEST", 100)
    played = spoiled(tmp_path)
    assert (played.unkept, (tmp_path / "transcripts").exists()) == (1, False)


def test_a_sum_that_stays_closed_through_nobodys_fault_leaves_no_file(tmp_path: Path) -> None:
    found = voted(tmp_path, votes=0)
    channel(found.federation).drops = dict.fromkeys((0, 1, 2), "seal")
    with pytest.raises(TooFewClients):
        found.federation.sum(BALLOT, "vote")
    assert not found.folder.exists()
    assert found.federation.unkept == 0


def test_two_accomplices_cannot_pass_another_sum_off_as_the_federations(tmp_path: Path) -> None:
    """The attack: six members voted; server, member 0 and member 1 then vote again as if they were
    all, in the same session and on the same line, so that members' receipts fit as well."""
    found = voted(tmp_path, votes=1)
    (record,) = found.records()
    (file,) = found.files()
    asked = msgspec.msgpack.decode(record.question, type=AskSum)
    question = msgspec.msgpack.encode(altered(asked, clients=2, dropout=0, colluding=0))
    mechanism = mechanism_of(asked.query.bound, Participation(2, 0, 0), asked.variance)
    around = Round.of(asked.session, mechanism, digest(b"question", question))
    endpoints = channel(found.federation).endpoints
    players = [MaskedParticipant(around, n, endpoints[n].identity, found.roster) for n in (0, 1)]
    wanted = np.arange(10)
    steps = {n: one.begin(wanted * n) for n, one in enumerate(players)}
    states = {n: step.state for n, step in steps.items()}

    def ask(_stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        replies = {}
        for n, request in requests.items():
            step = players[n].step(states[n], request)
            states[n], replies[n] = step.state, step.reply
        return replies

    total = MaskedSum(found.roster).total(around, {n: s.reply for n, s in steps.items()}, ask)
    file.write_bytes(
        msgspec.msgpack.encode(Record(question, total.transcript, total.value.tolist()))
    )
    (finding,) = check_transcripts([file], found.ledger, found.roster, PLANNED)
    assert "is for 2 clients" in finding.problem, finding
