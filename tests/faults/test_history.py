"""The independent look at what a trial left finds every kind of forged history."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.privacy.accounting import Budget
from tests.forgeries import chained_anew, edit
from tests.journals import rewrite
from tools.faults.history import breaches, given_up_for_nothing
from tools.faults.members import evidence, make_members, votes


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three members that voted twice."""
    place = tmp_path_factory.mktemp("honest")
    make_members(place, 3, 0, Budget(30.0, 1e-5))
    assert votes(place, 2, prepaid=False) == 0
    return place


@pytest.fixture
def place(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "place")
    return tmp_path / "place"


def test_nothing_is_wrong_with_an_honest_history(honest: Path) -> None:
    assert len(list(honest.glob("member-*/receipts/*.json"))) == 6
    assert breaches(evidence(honest)) == []


def _server(place: Path, *statements: str) -> None:
    edit(place / "server.sqlite", *statements)
    chained_anew(place / "server.sqlite")


_FIRST_SEALING = "number = (SELECT min(number) FROM line WHERE kind = 'sealing')"
_LAST_SEALING = "number = (SELECT max(number) FROM line WHERE kind = 'sealing')"
_NEXT = "(SELECT max(number) + 1 FROM line)"


def asked_twice(place: Path) -> None:
    body = f"json_set(body, '$.session', '{'ab' * 32}')"
    rows = f"SELECT {_NEXT}, kind, {body}, '' FROM line WHERE kind = 'asked' LIMIT 1"
    _server(place, f"INSERT INTO line {rows}")


def unsealed(place: Path) -> None:
    other = f"json_set(body, '$.session', '{'cd' * 32}')"
    _server(place, f"UPDATE line SET body = {other} WHERE {_FIRST_SEALING}")


def closed_after_it_was_answered(place: Path) -> None:
    proof = "json_set(body, '$.proof', json('{}'))"
    _server(place, f"UPDATE line SET kind = 'closed', body = {proof} WHERE {_FIRST_SEALING}")


def sealed_and_closed(place: Path) -> None:
    rows = f"SELECT {_NEXT}, 'closed', body, '' FROM line WHERE {_FIRST_SEALING}"
    _server(place, f"INSERT INTO line {rows}")


def budget_lowered(place: Path) -> None:
    _server(place, "UPDATE line SET body = json_set(body, '$.epsilon', 0.3) WHERE number = 1")


def total_understated(place: Path) -> None:
    body = "json_set(body, '$.total.epsilon', 0.01)"
    last = "(SELECT max(number) FROM line WHERE kind = 'charge')"
    _server(place, f"UPDATE line SET body = {body} WHERE number = {last}")


def altered(place: Path) -> None:
    body = "json_set(body, '$.label', 'another')"
    edit(place / "server.sqlite", f"UPDATE line SET body = {body} WHERE kind = 'charge'")


def newest_lines_gone(place: Path) -> None:
    edit(place / "server.sqlite", "DELETE FROM line WHERE number > 4")


def member_released_twice(place: Path) -> None:
    ledger = place / "member-01" / "ledger.sqlite"
    rows = f"SELECT {_NEXT}, kind, body, '' FROM line WHERE kind = 'charge' LIMIT 1"
    edit(ledger, f"INSERT INTO line {rows}")
    chained_anew(ledger)


def member_answered_nobody(place: Path) -> None:
    ledger = place / "member-01" / "ledger.sqlite"
    body = f"json_set(body, '$.run', '{'ef' * 32}')"
    edit(ledger, f"UPDATE line SET body = {body} WHERE number = 2")
    chained_anew(ledger)


def member_was_never_charged(place: Path) -> None:
    edit(place / "member-01" / "ledger.sqlite", "DELETE FROM line WHERE number = 3")


def _journal(place: Path, change: Callable[[dict[object, dict[str, object]]], object]) -> None:
    (journal,) = (place / "run").glob("journal-*.jsonl")
    rewrite(journal, change)


def two_sums_on_one_line(place: Path) -> None:
    _journal(place, lambda pieces: pieces[1].update(line=pieces[0]["line"]))


def more_sums_than_seals(place: Path) -> None:
    _journal(place, lambda pieces: pieces.update({2: pieces[1]}))


def sum_on_no_line(place: Path) -> None:
    _journal(place, lambda pieces: pieces[1].update(line="0" * 64))


def _receipt(place: Path, name: str, **changes: str) -> None:
    file = sorted(place.glob("member-00/receipts/*.json"))[0]
    told = json.loads(file.read_text())
    file.with_name(name).write_text(json.dumps({**told, **changes}))


def receipt_of_another_session(place: Path) -> None:
    _receipt(place, "client-0-other.json", session="0" * 64)


def receipt_of_another_line(place: Path) -> None:
    _receipt(place, "client-0-other.json", line="0" * 64)


def two_receipts(place: Path) -> None:
    _receipt(place, "client-0-again.json")


def _result(place: Path, *digests: str) -> None:
    lines = [{"number": 2, "digest": digest} for digest in digests]
    (place / "run" / "result.json").write_text("{}")
    (place / "run" / "ledger.json").write_text(json.dumps({"lines": lines}))


def result_on_no_line(place: Path) -> None:
    _result(place, "0" * 64)


def result_for_nothing(place: Path) -> None:
    _result(place)


FORGED: dict[Callable[[Path], None], str] = {
    asked_twice: "two questions were asked on one line",
    unsealed: "which no server sealed",
    closed_after_it_was_answered: "which was closed",
    sealed_and_closed: "was sealed and closed",
    budget_lowered: "above the budget of 0.3",
    total_understated: "records 0.01 in total",
    altered: "the chain breaks at line 2",
    newest_lines_gone: "which no server sealed",
    member_released_twice: "it released 2 times in the session",
    member_answered_nobody: "which no server sealed",
    member_was_never_charged: "has 3 answers, and the ledgers of 2 members have its line",
    two_sums_on_one_line: "2 sums were opened on one line",
    more_sums_than_seals: "3 sums were opened on 2 sealed lines",
    sum_on_no_line: "the sum 1 was opened, and its line is not sealed",
    receipt_of_another_session: "which no server sealed",
    receipt_of_another_line: "its line did not pay for its session",
    two_receipts: "client 0 has 2 receipts for one line",
    result_on_no_line: "the result rests on line 2, which is nowhere",
    result_for_nothing: "the result rests on no sealed line",
}


@pytest.mark.parametrize(
    ("forge", "found"), FORGED.items(), ids=lambda it: getattr(it, "__name__", "")
)
def test_a_forged_history_is_found(forge: Callable[[Path], None], found: str, place: Path) -> None:
    forge(place)
    told = breaches(evidence(place))
    assert any(found in one for one in told), told


def test_a_charge_that_counts_though_nothing_was_sealed_is_found(place: Path) -> None:
    assert given_up_for_nothing(evidence(place)) == []
    _server(place, f"DELETE FROM line WHERE {_LAST_SEALING}")
    (told,) = given_up_for_nothing(evidence(place))
    assert "was asked and never sealed, and it counts" in told


def test_a_charge_that_was_closed_does_not_count_any_more(place: Path) -> None:
    proof = "json_set(body, '$.proof', json('{}'))"
    _server(place, f"UPDATE line SET kind = 'closed', body = {proof} WHERE {_LAST_SEALING}")
    assert given_up_for_nothing(evidence(place)) == []


def test_a_ledger_that_does_not_verify_is_found(place: Path) -> None:
    altered(place)
    assert any(
        "does not verify" in one or "cannot be opened" in one for one in breaches(evidence(place))
    )
