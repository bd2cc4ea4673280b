"""Votes of members that hold a roster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Message

from tacit.flower.wire import Envelope, read
from tacit.membership import KEY, LEDGER, ROSTER, read_key
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.privacy.mechanisms import Participation, least_noise
from tacit.receipts import check_receipts, read_receipts
from tacit.result import SIGNED_SERVER, Turnout
from tacit.secure.protocol import TooFewClients
from tests.flower.clinics import NAME, Clinics
from tests.flower.grids import grid_of, vote, voters

pytestmark = pytest.mark.usefixtures("at_once")


def test_with_a_roster_the_server_may_deviate(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    result = clinics.vote(grid)
    assert result.privacy.server == SIGNED_SERVER
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(grid.nodes)
    assert clinics.spent() == [1] * 5


@pytest.mark.parametrize("ballot", ["auto", "borda"])
def test_members_that_insist_on_noise_hold_a_vote_of_any_kind(
    tmp_path: Path, ballot: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their roster names the least noise that a budget of three leaves a single answer."""
    least = least_noise(Participation(5, 0.4), Budget(3.0, 1e-5))
    clinics = Clinics.found(tmp_path, least_noise=least)
    more = {"search__finalists": 2} if ballot == "borda" else {}
    with caplog.at_level("INFO", logger="flwr"):
        result = clinics.vote(clinics.grid(), search__ballot=ballot, **more)
    assert ("made-up surfaces" in caplog.text) == (ballot == "auto")
    assert 0 < result.privacy.epsilon <= 3
    assert clinics.spent() == [1 if result.run_off is None else 2] * 5
    if ballot == "borda":
        assert result.run_off is not None
        assert result.config in result.run_off["candidates"]


def test_every_member_keeps_a_receipt_that_fits_the_ledger(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    clinics.vote(clinics.grid())
    receipts = read_receipts([folder / "receipts" for folder in clinics.folders])
    ledger = Ledger(ledger_path(NAME))
    assert len(receipts) == 5
    assert check_receipts(receipts, ledger, clinics.membership.roster) == []


def test_members_go_by_their_own_numbers_whatever_their_nodes_are_called(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    grid = grid_of(voters(5), list(reversed(clinics.folders)))
    result = clinics.vote(grid)
    assert result.tally == grid.sum_of(grid.nodes)
    for node, number in zip(grid.nodes, (4, 3, 2, 1, 0), strict=True):
        request, reply = (
            next(m for m in messages if node in (m.metadata.dst_node_id, m.metadata.src_node_id))
            for messages in (grid.seen, grid.said)
        )
        assert reply.content["tacit"]["client"] == number
        assert request.content["tacit"]["client"] not in range(5), "strangers are no members"


def test_an_outsider_that_repeats_a_members_signed_reply_costs_nobody_anything(
    tmp_path: Path,
) -> None:
    """Whoever hears a member's first reply can send it again, byte for byte, as its own."""
    clinics = Clinics.found(tmp_path / "members")
    outsiders = Clinics.found(tmp_path / "others")
    grid = grid_of(voters(6), [*clinics.folders, outsiders.folders[2]])
    member, outsider = list(grid.nodes)[1], list(grid.nodes)[5]
    heard: list[Message] = []

    def repeat(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id == member and not heard:
            heard.append(reply)
        if request.metadata.dst_node_id != outsider or not heard:
            return reply
        return Message(read(heard[0].content).record(), reply_to=request)

    grid.alter_reply = repeat
    assert clinics.vote(grid).clients == Turnout(5, 5)
    assert heard


def test_two_copies_of_one_folder_are_both_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both sign with the member's own key, so nobody can tell which one is the member."""
    clinics = Clinics.found(tmp_path / "members")
    copy = shutil.copytree(clinics.folders[2], tmp_path / "copy")
    grid = grid_of(voters(6), [*clinics.folders, copy])
    result = clinics.vote(grid)
    assert result.clients == Turnout(5, 4)
    assert result.tally == grid.sum_of([100, 101, 103, 104])
    assert clinics.spent() == [1, 1, 0, 1, 1]
    assert "2 node(s) refused at evaluate: several nodes answer as one member" in caplog.text


def unsigned(request: Message, reply: Message, _outsiders: Clinics) -> Message:
    """As a node without a key would write it."""
    return Message(Envelope(2, read(reply.content).body).record(), reply_to=request)


def of_another_key(request: Message, reply: Message, outsiders: Clinics) -> Message:
    """Everything as it should be, but with a key that the roster does not list."""
    named = Envelope(2, read(reply.content).body)
    identity = read_key(outsiders.folders[2] / KEY)
    return Message(named.signed(identity, read(request.content)).record(), reply_to=request)


OUTSIDERS: dict[str, Callable[[Message, Message, Clinics], Message]] = {
    "another federation's": lambda _request, reply, _outsiders: reply,
    "without a signature": unsigned,
    "with another key": of_another_key,
}


@pytest.mark.parametrize("kind", OUTSIDERS)
@pytest.mark.parametrize("first", [True, False])
def test_an_outsider_that_names_a_members_number_costs_nobody_anything(
    tmp_path: Path, kind: str, first: bool
) -> None:
    clinics = Clinics.found(tmp_path / "members")
    outsiders = Clinics.found(tmp_path / "others")
    rival = outsiders.folders[2]
    folders = [rival, *clinics.folders] if first else [*clinics.folders, rival]
    grid = grid_of(voters(6), folders)
    outside = 100 if first else 105

    def claim(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id != outside:
            return reply
        return OUTSIDERS[kind](request, reply, outsiders)

    grid.alter_reply = claim
    result = clinics.vote(grid)
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(node for node in grid.nodes if node != outside)
    assert clinics.spent() == [1] * 5
    assert outsiders.spent() == [0] * 5


@pytest.mark.parametrize("strangers_first", [True, False])
def test_who_is_not_on_the_roster_is_left_out(tmp_path: Path, strangers_first: bool) -> None:
    """Nor does such a node cost a member its place: it goes by a number that nobody has."""
    clinics = Clinics.found(tmp_path)
    folders = [None, *clinics.folders] if strangers_first else [*clinics.folders, None]
    grid = grid_of(voters(6), folders)
    result = clinics.vote(grid)
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(n for n, node in grid.nodes.items() if node.folder)


def test_a_roster_and_a_number_of_clients_must_agree(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    with pytest.raises(ValueError, match="6 clients are planned and 5 are on the roster"):
        clinics.vote(grid, federation__clients=6)
    assert not grid.seen


def test_members_open_nothing_for_a_server_without_the_roster(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    with pytest.raises(TooFewClients, match="'open'"):
        vote(grid, federation__name=NAME, privacy__dropout=0.4)
    refused = [m.content["tacit"]["no"] for m in grid.said if "no" in m.content["tacit"]]
    assert len(refused) == 5
    assert all("'Opening' does not follow 'Masked'" in str(reason) for reason in refused)


def test_a_member_whose_roster_is_gone_does_not_take_the_servers_word(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    for folder in clinics.folders:
        (folder / ROSTER).unlink()
    with pytest.raises(TooFewClients, match="only 0 clients answered at the stage 'advertise'"):
        vote(clinics.grid(), federation__name=NAME)
    assert clinics.spent() == [0] * 5


def test_a_folder_with_a_ledger_alone_still_keeps_its_own_budget(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path, budget=Budget(3.0, 1e-5))
    for folder in clinics.folders:
        (folder / ROSTER).unlink()
        (folder / KEY).unlink()
    Ledger.create(ledger_path(NAME), NAME, Budget(9.0, 1e-5))
    grid = clinics.grid()
    vote(grid, federation__name=NAME)
    with pytest.raises(TooFewClients):
        vote(grid, federation__name=NAME)
    assert "own budget" in str(grid.said[-1].content["tacit"]["no"])
    assert clinics.spent() == [1] * 5


def test_a_node_whose_folder_is_broken_says_why_only_at_home(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path or a key in an error message is nobody else's business."""
    clinics = Clinics.found(tmp_path)
    (clinics.folders[1] / LEDGER).write_bytes(b"no ledger")
    (clinics.folders[3] / ROSTER).write_text("federation = 3")
    grid = clinics.grid()
    assert clinics.vote(grid).clients == Turnout(5, 3)
    refused = {str(m.content["tacit"]["no"]) for m in grid.said if "no" in m.content["tacit"]}
    assert refused == {"this client's own folder is not in order"}
    assert "ledger.sqlite cannot be read as a ledger" in caplog.text
    assert "roster.toml: " in caplog.text
