from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tacit import federation as server
from tacit.federation import Federation, LocalChannel, local_federation
from tacit.privacy import ledger_lines as booked
from tacit.privacy.accounting import Budget
from tacit.privacy.events import Event
from tacit.privacy.ledger import Charge, Ledger, LedgerError
from tacit.privacy.mechanisms import Participation
from tacit.query import Ballot
from tacit.receipts import Receipt, check_receipts, count_by_line, read_receipts
from tacit.secure.roster import Identity, Roster
from tests.federations import channel, likes
from tests.forgeries import edit

BALLOT = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
BUDGET = Budget(30.0, 1e-5)
CLIENTS = 5


@dataclass(frozen=True)
class Held:
    """A federation whose clients keep receipts, and the server's ledger in a file."""

    federation: Federation
    receipts: Path
    roster: Roster

    @property
    def ledger(self) -> Path:
        return self.federation.ledger.path

    def identity(self, client: int) -> Identity:
        identity = channel(self.federation).endpoints[client].identity
        assert identity
        return identity

    def asked(self, ledger: Ledger) -> None:
        """One vote that the server books as it likes."""
        replace(self.federation, ledger=ledger).sum(BALLOT, "vote")

    def files(self) -> list[Path]:
        return sorted(self.receipts.iterdir())

    def found(self, ledger: Path | None = None, roster: Roster | None = None) -> list[str]:
        """What the audit says, without the names of files."""
        problems = check_receipts(
            read_receipts([self.receipts]), Ledger(ledger or self.ledger), roster or self.roster
        )
        return [problem.found for problem in problems]


def held(folder: Path, votes: int = 2) -> Held:
    ledger = Ledger.create(folder / "server.sqlite", "clinics", BUDGET)
    built = local_federation(
        [likes(0.5)] * CLIENTS, Participation(CLIENTS), ledger, run="run", variance=139.0
    )
    receipts = folder / "receipts"
    endpoints = [
        replace(endpoint, on_release=lambda receipt: receipt.keep(receipts))
        for endpoint in channel(built).endpoints
    ]
    roster = endpoints[0].roster
    assert roster
    for _ in range(votes):
        replace(built, channel=LocalChannel(endpoints)).sum(BALLOT, "vote")
    return Held(replace(built, channel=LocalChannel(endpoints)), receipts, roster)


@pytest.fixture
def honest(tmp_path: Path) -> Held:
    return held(tmp_path)


def rewritten(file: Path, **changes: object) -> Receipt:
    receipt = msgspec.json.decode(file.read_bytes(), type=Receipt)
    changed: Receipt = msgspec.structs.replace(receipt, **changes)
    file.write_bytes(msgspec.json.encode(changed))
    return changed


def test_honest_receipts_agree_with_the_ledger(honest: Held) -> None:
    receipts = read_receipts([honest.receipts])
    ledger = Ledger(honest.ledger)
    assert len(receipts) == 2 * CLIENTS
    assert ledger.verify() == []
    assert check_receipts(receipts, ledger, honest.roster) == []
    assert count_by_line(receipts, [], ledger) == {2: CLIENTS, 5: CLIENTS}


def test_a_receipt_is_whole_before_the_vector_leaves(tmp_path: Path) -> None:
    """Whoever cannot keep its receipt does not answer."""

    def full(_receipt: Receipt) -> None:
        raise OSError("no space left on device")

    honest = held(tmp_path, votes=0)
    endpoints = [replace(one, on_release=full) for one in channel(honest.federation).endpoints]
    with pytest.raises(OSError, match="no space"):
        replace(honest.federation, channel=LocalChannel(endpoints)).sum(BALLOT, "vote")


def test_a_charge_that_nobody_answered_has_no_receipts(honest: Held) -> None:
    ledger = Ledger(honest.ledger)
    ledger.charge(BALLOT.bound.release(139.0), "vote", run="nobody came")
    receipts = read_receipts([honest.receipts])
    assert check_receipts(receipts, ledger, honest.roster) == []
    assert count_by_line(receipts, [], ledger) == {2: CLIENTS, 5: CLIENTS, 8: 0}


def test_copies_of_a_receipt_are_no_problem_and_count_once(honest: Held) -> None:
    inside = honest.receipts / "from-client-0"
    inside.mkdir()
    for file in honest.files():
        if file.is_file():
            shutil.copy(file, inside)
    receipts = read_receipts([honest.receipts, *inside.iterdir()])
    ledger = Ledger(honest.ledger)
    assert len(receipts) == 4 * CLIENTS
    assert check_receipts(receipts, ledger, honest.roster) == []
    assert count_by_line(receipts, [], ledger) == {2: CLIENTS, 5: CLIENTS}


def test_dropping_the_newest_line_is_found_though_the_chain_is_whole(honest: Held) -> None:
    edit(honest.ledger, "DELETE FROM line WHERE number > 4")
    assert Ledger(honest.ledger).verify() == []
    assert honest.found() == ["the ledger has no such line: it was removed or altered"] * CLIENTS


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("UPDATE line SET body = replace(body, 'vote', 'veto') WHERE number = 5", 1),
        ("UPDATE line SET body = replace(body, 'vote', 'veto') WHERE number = 2", 2),
        ("UPDATE line SET body = replace(body, '139.0', '13900.0') WHERE number = 5", 1),
        ("UPDATE line SET body = replace(body, '30.0', '3.0') WHERE number = 1", 2),
        ("UPDATE line SET body = '{}' WHERE number = 5", 1),
        ("UPDATE line SET body = X'00' WHERE number = 5", 1),
        ("UPDATE line SET digest = X'00' WHERE number = 2", 2),
        ("DELETE FROM line WHERE number = 2", 2),
        ("DELETE FROM line", 2),
    ],
)
def test_an_edited_line_loses_its_receipts_and_all_after_it(
    honest: Held, statement: str, lost: int
) -> None:
    edit(honest.ledger, statement)
    told = "the ledger has no such line: it was removed or altered"
    assert honest.found() == [told] * lost * CLIENTS
    assert Ledger(honest.ledger).verify()


def test_a_ledger_written_anew_with_a_cheaper_event_is_found(honest: Held, tmp_path: Path) -> None:
    anew = Ledger.create(tmp_path / "anew.sqlite", "clinics", BUDGET)
    for _ in range(2):
        anew.charge(BALLOT.bound.release(1390.0), "vote", run="run")
    assert anew.verify() == []
    told = "the ledger has no such line: it was removed or altered"
    assert honest.found(anew.path) == [told] * 2 * CLIENTS


class Unasked(Ledger):
    """Books a charge, and neither who asks on it nor that answers may leave."""

    def charge_and_ask(
        self, event: Event, label: str, run: str, session: str, roster: str = ""
    ) -> Charge:
        del session, roster
        return self.charge(event, label, run)

    def seal(self, session: str) -> None:
        pass


def test_a_line_that_is_closed_although_clients_answered_is_found(tmp_path: Path) -> None:
    """A server that wants the price back cannot say that nothing was released."""
    honest = held(tmp_path, votes=0)
    honest.asked(Unasked(honest.ledger))
    ledger = Ledger(honest.ledger)
    ledger.ask(ledger.charges()[0], "a session of its own making")
    ledger.close("a session of its own making", {"refused": "everybody"})
    assert ledger.verify() == []
    told = "the ledger closed this line as never answered, and counts it no longer"
    assert honest.found() == [told] * CLIENTS


def test_a_server_that_books_less_than_it_asks_is_found(tmp_path: Path) -> None:
    class Cheap(Ledger):
        def charge_and_ask(
            self, event: Event, label: str, run: str, session: str, roster: str = ""
        ) -> Charge:
            assert event == BALLOT.bound.release(139.0)
            cheap = BALLOT.bound.release(1390.0)
            return super().charge_and_ask(cheap, label, run, session, roster)

    cheating = held(tmp_path, votes=0)
    cheating.asked(Cheap(cheating.ledger))
    assert Ledger(cheating.ledger).verify() == []
    told = "the ledger was charged for another question or other noise"
    assert cheating.found() == [told] * CLIENTS


class Once(Ledger):
    """Books the first question only, and shows its line for all."""

    def charge_and_ask(
        self, event: Event, label: str, run: str, session: str, roster: str = ""
    ) -> Charge:
        earlier = self.charges()
        if earlier:
            return earlier[-1]
        return super().charge_and_ask(event, label, run, session, roster)

    def seal(self, session: str) -> None:
        with suppress(LedgerError):
            super().seal(session)


def asked_twice_under_one_charge(folder: Path) -> Held:
    cheating = held(folder, votes=0)
    for _ in range(2):
        cheating.asked(Once(cheating.ledger))
    assert len(Ledger(cheating.ledger)) == 1
    assert Ledger(cheating.ledger).verify() == []
    return cheating


def test_a_server_that_asks_twice_under_one_charge_is_found(tmp_path: Path) -> None:
    cheating = asked_twice_under_one_charge(tmp_path)
    assert sorted(cheating.found()) == [
        f"client {client} answered twice for line 2: the server asked twice under one charge"
        for client in range(CLIENTS)
    ]


def test_asking_twice_is_found_even_if_no_client_shows_both_receipts(tmp_path: Path) -> None:
    cheating = asked_twice_under_one_charge(tmp_path)
    first, *_, last = {rewritten(file).session for file in cheating.files()}
    for file in cheating.files():
        receipt = rewritten(file)
        if receipt.session == (last if receipt.client < 4 else first):
            file.unlink()
    assert cheating.found() == [
        "client 4 answered another session for line 2 than others did: the server asked twice "
        "under one charge"
    ]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_server_that_keeps_two_copies_of_its_ledger_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Each copy books one of two votes; in the same second even their digests are equal."""
    cheating = held(tmp_path, votes=0)
    shutil.copy(cheating.ledger, tmp_path / "copy.sqlite")
    times = count()
    monkeypatch.setattr(booked, "now", lambda: "now" if at_once else f"{next(times)}")
    for ledger in (cheating.ledger, tmp_path / "copy.sqlite"):
        cheating.asked(Ledger(ledger))
    told = "answered twice for line 2" if at_once else "the ledger has no such line"
    for ledger in (cheating.ledger, tmp_path / "copy.sqlite"):
        assert Ledger(ledger).verify() == []
        found = cheating.found(ledger)
        assert len(found) == CLIENTS
        assert all(told in one for one in found)


def test_sessions_that_begin_alike_do_not_replace_each_others_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server picks the sessions: it must not be able to overwrite what speaks against it."""
    sessions = count()
    monkeypatch.setattr(server, "token_bytes", lambda size: next(sessions).to_bytes(size, "big"))
    assert len(held(tmp_path, votes=3).files()) == 3 * CLIENTS


@pytest.mark.parametrize("order", [None, (1, 0, 2, 3, 4), (0, 1, 2, 3)])
def test_another_roster_confirms_no_receipt(honest: Held, order: Sequence[int] | None) -> None:
    strangers = tuple(Identity.new().public_key for _ in range(CLIENTS))
    keys = strangers if order is None else tuple(honest.roster.keys[i] for i in order)
    found = honest.found(roster=Roster(keys))
    assert len(found) == 2 * CLIENTS
    assert {told.split(" by client ")[0] for told in found} == {"not signed"}


def test_a_forged_signature_is_found(honest: Held) -> None:
    file = honest.files()[0]
    receipt = rewritten(file)
    for signature in (
        honest.identity(1).sign(receipt.text).hex(),
        Identity.new().sign(receipt.text).hex(),
        bytes(64).hex(),
        receipt.signature[:-2],
        receipt.signature.upper(),
        f" {receipt.signature}",
        "no hex",
        "",
    ):
        rewritten(file, signature=signature)
        assert honest.found() == ["not signed by client 0 of this roster"]


@pytest.mark.parametrize("client", [-1, 1, CLIENTS, 10**30])
def test_nobody_can_be_named_as_the_signer_instead(honest: Held, client: int) -> None:
    rewritten(honest.files()[0], client=client)
    assert honest.found() == [f"not signed by client {client} of this roster"]


def test_one_altered_character_is_found_wherever_it_is(honest: Held, tmp_path: Path) -> None:
    text = honest.files()[0].read_text()
    altered = tmp_path / "altered"
    altered.mkdir()
    places = [place for place, character in enumerate(text) if not character.isspace()]
    for place in places:
        character = text[place]
        other = str((int(character) + 1) % 10) if character.isdigit() else "x"
        (altered / f"{place}.json").write_text(text[:place] + other + text[place + 1 :])
    problems = check_receipts(read_receipts([altered]), Ledger(honest.ledger), honest.roster)
    assert len(problems) == len(places) > 500


def test_a_receipt_of_another_session_is_found(honest: Held, tmp_path: Path) -> None:
    file, other = honest.files()[:2]
    receipt, second = rewritten(file), rewritten(other)
    assert (receipt.client, second.client) == (0, 0)

    rewritten(file, session=second.session)  # only its name
    assert honest.found() == ["not signed by client 0 of this roster"]

    signed = Receipt.signed(  # a client that says it was asked once more
        honest.identity(0),
        honest.roster,
        client=0,
        session="ab" * 32,
        question=receipt.question,
        line=receipt.line,
        event=BALLOT.bound.release(139.0),
    )
    file.write_bytes(msgspec.json.encode(receipt))
    signed.keep(honest.receipts)
    line = next(c.number for c in Ledger(honest.ledger).charges() if c.digest == receipt.line)
    (told,) = honest.found()
    assert told.startswith(f"client 0 answered twice for line {line}")

    (honest.receipts / f"client-0-{'ab' * 32}.json").unlink()
    elsewhere = Ledger.create(tmp_path / "elsewhere.sqlite", "clinics", Budget(29.0, 1e-5))
    honest.asked(elsewhere)  # the same clients, booked in another ledger
    assert honest.found() == ["the ledger has no such line: it was removed or altered"] * CLIENTS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "7",
        "no JSON",
        '{"client": "0"}',
        "[" * 100_000,
        '{"roster": "", "client": 0, "session": "", "question": "", "line": "", "time": "", '
        '"event": {}, "signature": "", "more": 1}',
    ],
)
def test_what_is_no_receipt_is_named(honest: Held, text: str) -> None:
    honest.files()[0].write_text(text)
    assert honest.found() == ["the file cannot be read as a receipt"]
    honest.files()[0].write_bytes(b"\xff" + text.encode())
    assert honest.found() == ["the file cannot be read as a receipt"]


@pytest.mark.parametrize("depth", [900, 990, 995, 1000, 1200])
def test_a_receipt_nested_deeply_is_refused_not_a_crash(honest: Held, depth: int) -> None:
    text = honest.files()[0].read_text().replace("139.0", "[" * depth + "]" * depth)
    honest.files()[0].write_text(text)
    (told,) = honest.found()
    assert "not signed" in told or "cannot be read" in told


@pytest.mark.parametrize("event", [{}, {"kind": "skellam"}, {"kind": 7, "shifts": [{}]}])
def test_a_client_that_signs_nonsense_is_found(honest: Held, event: dict[str, object]) -> None:
    file = honest.files()[0]
    draft = rewritten(file, event=event)
    rewritten(file, signature=honest.identity(0).sign(draft.text).hex())
    assert honest.found() == ["the ledger was charged for another question or other noise"]


def test_receipts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no receipts at .*missing; allowed are a receipt, or"):
        read_receipts([tmp_path / "missing"])
    assert read_receipts([tmp_path]) == {}
