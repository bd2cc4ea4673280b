"""A server that lies to members who hold a roster: every lie is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from msgspec.structs import replace

from tacit.combining import LocalFindings
from tacit.endpoint import AskInClear
from tacit.flower.wire import WIRE
from tacit.local_search import LocalSearch
from tacit.query import Ballot, LocalTraining
from tacit.secure.messages import (
    Advert,
    Delivery,
    Final,
    Opening,
    Setup,
    pack,
    unpack_adverts,
)
from tacit.secure.protocol import TooFewClients
from tacit.space import Float, Space
from tests.flower.clinics import Clinics
from tests.flower.grids import InProcessGrid
from tests.flower.lies import (
    BALLOT,
    Tell,
    asking,
    bury_5,
    carrying,
    federation,
    leave_out_5,
    refusals,
    six_clinics,
    telling,
    without_5,
)
from tests.secure.rounds import new_key

pytestmark = pytest.mark.usefixtures("at_once")

FINDINGS = LocalFindings(LocalSearch(Space({"x": Float(0.0, 1.0)}).to_json(), trials=5))
SOME, OTHERS = (100, 101, 102), (103, 104, 105)


@pytest.fixture
def clinics(tmp_path: Path) -> Clinics:
    return six_clinics(tmp_path)


@pytest.fixture
def gullible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own server would notice some of its lies by what comes back; this one does not look."""
    monkeypatch.setattr("tacit.flower.wire.Envelope.is_signed", lambda *_: True)
    monkeypatch.setattr("tacit.secure.opening.is_signed", lambda *_: True)
    monkeypatch.setattr("tacit.secure.opening._Session._confirms", lambda *_: True)


@dataclass(frozen=True)
class Lie:
    """What the server does to its messages, the stage at which it is refused, and why."""

    tell: Tell
    stage: str
    reason: str


def swap_keys(setup: Setup) -> Setup:
    adverts = list(unpack_adverts(setup.adverts))
    adverts[1] = replace(adverts[1], mask_key=new_key())
    return Setup(pack(tuple(adverts)))


def invent(client: int) -> Callable[[Setup], Setup]:
    """Another advert, with keys that the server made."""

    def change(setup: Setup) -> Setup:
        made = Advert(client, new_key(), new_key(), bytes(64))
        return Setup(pack((*unpack_adverts(setup.adverts), made)))

    return change


def invent_the_absent(grid: InProcessGrid) -> None:
    """In the name of a member that never answered."""
    grid.silent = {105: "evaluate"}
    telling("share", invent(5))(grid)


def open_both_lists(grid: InProcessGrid) -> None:
    """Each camp is shown the list that it confirmed, with the signatures of that camp only."""

    def fit(opening: Opening, camp: tuple[int, ...]) -> Opening:
        signed = {100 + c: signature for c, signature in opening.signatures.items()}
        told = {node - 100: signature for node, signature in signed.items() if node in camp}
        survivors = opening.clients if camp == OTHERS else opening.clients[:-1]
        return Opening(survivors, told)

    telling("confirm", bury_5, SOME)(grid)
    telling("open", lambda opening: fit(opening, SOME), SOME)(grid)
    telling("open", lambda opening: fit(opening, OTHERS), OTHERS)(grid)


def in_clear(query: Any) -> Tell:
    return asking(lambda question: AskInClear(question.version, question.session, query))


def another_envelope(message: Message) -> Message:
    record = message.content["tacit"]
    assert isinstance(record, ConfigRecord)
    message.content = RecordDict({"tacit": ConfigRecord({**record, "wire": WIRE + 1})})
    return message


NOT_SIGNED = "an advert is not signed by the client that the roster names"
SECOND_BALLOT = Ballot(BALLOT.candidates[::-1], 2)
LIES: dict[str, Lie] = {
    "swaps a client's keys": Lie(telling("share", swap_keys), "share", NOT_SIGNED),
    "leaves a client's keys out": Lie(
        telling("share", lambda s: Setup(pack(unpack_adverts(s.adverts)[1:]))),
        "share",
        "own keys were altered or left out",
    ),
    "invents a client beyond the roster": Lie(
        telling("share", invent(6)), "share", "not a sorted list of different clients"
    ),
    "invents an absent client": Lie(invent_the_absent, "share", NOT_SIGNED),
    "claims more clients": Lie(
        asking(lambda q: replace(q, clients=7)),
        "evaluate",
        "for 7 clients of .* this client knows of 6 clients",
    ),
    "shrinks the noise": Lie(
        asking(lambda q: replace(q, variance=q.variance / 2)),
        "evaluate",
        "would add noise of 0.21.* squared distances of answers; this client adds 0.431 at least",
    ),
    "tells some of other noise": Lie(
        asking(lambda q: replace(q, variance=2 * q.variance), SOME), "share", NOT_SIGNED
    ),
    "asks some another question": Lie(
        asking(lambda q: replace(q, query=SECOND_BALLOT), SOME), "share", NOT_SIGNED
    ),
    "lowers the threshold by drop-outs": Lie(
        asking(lambda q: replace(q, dropout=3)), "evaluate", "which 3 may drop out .* 1 may drop"
    ),
    "lowers the threshold by colluders": Lie(
        asking(lambda q: replace(q, colluding=0)), "evaluate", "and 0 collude; .* and 1 collude"
    ),
    "asks for winners in clear": Lie(in_clear(FINDINGS), "evaluate", "this client's own budget"),
    "asks for training in clear": Lie(
        in_clear(LocalTraining(BALLOT.candidates, (), 1, 0)),
        "evaluate",
        "this client's own budget",
    ),
    "asks without a deadline": Lie(
        asking(lambda q: replace(q, deadline=math.inf)),
        "evaluate",
        "the deadline is inf; allowed is above 0 and up to 86400 s",
    ),
    "asks for a plain sum": Lie(
        asking(lambda q: replace(q, secure="plain")), "evaluate", "this client takes 'masks'"
    ),
    "names no line of its ledger": Lie(
        asking(lambda q: replace(q, line=b"")), "evaluate", "digest has 32 bytes, not 0"
    ),
    "speaks another version": Lie(
        asking(lambda q: replace(q, version=q.version + 1)), "evaluate", "the message has version"
    ),
    "sends another envelope": Lie(
        carrying("evaluate", another_envelope), "evaluate", f"the envelope has version {WIRE + 1}"
    ),
    "shows different sharers": Lie(
        telling("deliver", leave_out_5, SOME),
        "seal",
        "members are not a sorted list of different clients of this round",
    ),
    "shows different members": Lie(
        telling("seal", without_5, (100,)),
        "confirm",
        "a surviving neighbour did not seal its vector for the same members",
    ),
    "leaves too many out": Lie(
        telling("seal", lambda final: Final(final.members[:4]), (100, 101, 102, 103)),
        "seal",
        "there are 4 members; below 5 the noise or the majority would not suffice",
    ),
    "withholds shares": Lie(
        telling("deliver", lambda d: Delivery(d.sharers, leave_out_5(d).parcels), SOME),
        "deliver",
        "shares of some neighbour were withheld",
    ),
    "shows different survivors": Lie(
        telling("confirm", bury_5, SOME),
        "open",
        "the survivors are not those that this client confirmed",
    ),
    "opens two lists of survivors": Lie(
        open_both_lists, "open", "3 clients signed the survivors; needed are 5"
    ),
    "opens without signatures": Lie(
        telling("open", lambda opening: Opening(opening.clients, {})),
        "open",
        "0 clients signed the survivors; needed are 5",
    ),
}
BEFORE_THE_SEAL = ("evaluate", "share", "deliver")


@pytest.mark.usefixtures("gullible")
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_by_name_and_nothing_opens(clinics: Clinics, name: str) -> None:
    lie, grid = LIES[name], clinics.grid()
    lie.tell(grid)
    built = federation(clinics, grid)
    with pytest.raises(TooFewClients):
        built.sum(BALLOT, "vote")
    told = [reason for reason in refusals(built) if reason.startswith(f"{lie.stage}: ")]
    assert any(re.search(lie.reason, reason) for reason in told), told
    assert not any(m.metadata.group_id == "open" and is_answer(m) for m in grid.said)
    if lie.stage in BEFORE_THE_SEAL:
        assert clinics.spent() == [0] * 6


def is_answer(message: Message) -> bool:
    return "body" in message.content["tacit"]


def test_the_same_messages_without_a_lie_open(clinics: Clinics) -> None:
    """So that the lies above are refused for what they are."""
    grid = clinics.grid()
    built = federation(clinics, grid)
    assert tuple(built.sum(BALLOT, "vote").value) == grid.sum_of(grid.nodes)
    assert not refusals(built)
    assert clinics.spent() == [1] * 6
