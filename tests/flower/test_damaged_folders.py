"""Whatever is damaged in a node's folder: one sentence at home, none of it to the server."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Message

from tacit.federation import Federation
from tacit.flower.wire import Envelope, read
from tacit.membership import KEY, LEDGER, RECEIPTS, ROSTER, SESSIONS, STATES
from tacit.secure.protocol import Refused
from tests.flower.clinics import Clinics
from tests.flower.grids import InProcessGrid, session_of
from tests.flower.lies import BALLOT, federation, six_clinics

pytestmark = pytest.mark.usefixtures("at_once")

PLAIN = "this client's own folder is not in order"
ROUNDS = 150


@pytest.fixture
def clinics(tmp_path: Path) -> Clinics:
    return six_clinics(tmp_path)


def voted(clinics: Clinics) -> tuple[InProcessGrid, Federation]:
    grid = clinics.grid()
    built = federation(clinics, grid)
    built.sum(BALLOT, "vote")
    return grid, built


def altered(rng: random.Random, whole: bytes) -> bytes:
    """A file after something happened to it."""
    data = bytearray(whole)
    start = rng.randrange(len(data))
    size = rng.choice((1, 3, 40))
    match rng.randrange(6):
        case 0:
            return bytes(data[:start])
        case 1:
            del data[start : start + size]
        case 2:
            data[start:start] = rng.randbytes(size)
        case 3:
            data[start : start + size] = bytes(size)
        case 4:
            data[start : start + size] = bytes(rng.choices(b'0123456789="[]{}.,eE-\n', k=size))
        case 5:
            data[start:start] = rng.choice((b"9" * 400, b"[" * 3000, b"1e999", b"\n[members]\n"))
    return bytes(data)


def told(grid: InProcessGrid, message: Message) -> str:
    """Why node 102 refuses a message, or nothing if it answers; it never raises."""
    reply = grid.nodes[102].handle(message)
    assert not reply.has_error(), reply.error
    try:
        read(reply.content)
    except Refused as reason:
        return str(reason)
    return ""


@pytest.mark.parametrize("name", [ROSTER, KEY, LEDGER])
def test_a_damaged_file_is_named_at_home_and_not_to_the_server(
    clinics: Clinics, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid, _ = voted(clinics)
    question, file = grid.asked("evaluate", 102), clinics.folders[2] / name
    usual = told(grid, question)
    assert usual == "this session was asked before"
    whole, rng = file.read_bytes(), random.Random(3)
    refused = 0
    for _ in range(ROUNDS):
        file.write_bytes(altered(rng, whole))
        caplog.clear()
        reason = told(grid, question)
        lines = [line for line in caplog.messages if "not in order" in line]
        assert "Traceback" not in caplog.text
        if reason == PLAIN:
            refused += 1
            assert len(lines) == 1
            assert str(file) in lines[0] or "roster" in lines[0]
            assert "\n" not in lines[0].strip()
        else:  # what was altered means nothing, or is not looked at
            assert not lines
            assert reason.startswith(("this session was a", "the question is for", "each client"))
    assert refused > ROUNDS / 4
    file.write_bytes(whole)
    assert told(grid, question) == usual


def put_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("junk")


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def close(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to("/dev/null")


IN_THE_WAY: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a file for the receipts": (RECEIPTS, put_file),
    "a device for the receipts": (RECEIPTS, close),
    "a file for the states": (STATES, put_file),
    "a folder for the roster": (ROSTER, put_folder),
    "a folder for the key": (KEY, put_folder),
    "a folder for the ledger": (LEDGER, put_folder),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_stands_in_the_way_of_a_file_is_named_and_nothing_is_charged(
    clinics: Clinics, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid, built = voted(clinics)
    name, put = IN_THE_WAY[what]
    put(clinics.folders[2] / name)
    caplog.clear()
    built.sum(BALLOT, "another vote")
    lines = [line for line in caplog.messages if "not in order" in line]
    assert lines
    assert all(str(clinics.folders[2] / name) in line for line in lines)
    said = {str(m.content["tacit"].get("no")) for m in grid.said if "no" in m.content["tacit"]}
    assert said == {PLAIN}
    assert clinics.spent_of([0, 1, 3, 4, 5]) == [2] * 5
    if name != LEDGER:
        assert clinics.spent_of([2]) == [1]


def test_damaged_receipts_are_none_of_a_nodes_business(clinics: Clinics) -> None:
    _, built = voted(clinics)
    for receipt in (clinics.folders[2] / RECEIPTS).iterdir():
        receipt.write_bytes(b"\xff{")
    total = built.sum(BALLOT, "another vote")
    assert total.answered == 6


@pytest.mark.parametrize("name", [SESSIONS, STATES])
def test_a_damaged_list_or_state_costs_its_own_sum_only(
    clinics: Clinics, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid, built = voted(clinics)
    file, final = clinics.folders[2] / name, grid.asked("open", 102)
    if name == STATES:
        file = file / session_of(final).hex()
    for junk in (b"", b"junk", file.read_bytes()[:-1]):
        file.write_bytes(junk)
        caplog.clear()
        total = built.sum(BALLOT, "another vote")
        assert total.answered == 6
        told(grid, final)  # of the old sum: its own message looks at all of its state
        (line,) = [line for line in caplog.messages if "unreadable" in line]
        assert str(file) in line
    assert told(grid, Message(Envelope(2, b"\xc1").record(), 102, "query.tacit")).startswith(
        "the message cannot be read"
    )
