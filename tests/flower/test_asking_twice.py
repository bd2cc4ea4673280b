"""A server that asks again: a second time, another list, or a node that forgot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from msgspec.structs import replace

from tacit.flower.wire import read
from tacit.membership import STATES
from tacit.privacy.accounting import Budget
from tacit.secure.messages import Opening
from tacit.secure.protocol import TooFewClients
from tacit.states import StateFile
from tests.flower.clinics import Clinics
from tests.flower.grids import STAGES, InProcessGrid, Node, is_for, session_of, stage_of
from tests.flower.lies import (
    BALLOT,
    altered,
    bury_5,
    federation,
    reason_of,
    refusals,
    six_clinics,
    without_5,
)

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture
def clinics(tmp_path: Path) -> Clinics:
    return six_clinics(tmp_path)


def same(request: Any) -> Any:
    return request


OVER = "this sum is over; it is answered once"
AGAIN: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "the question": ("evaluate", same, "this session was asked before"),
    "the shares": ("deliver", same, OVER),
    "the seal": ("seal", same, OVER),
    "a seal for others": ("seal", without_5, OVER),
    "other survivors": ("confirm", bury_5, OVER),
    "both kinds of shares of a client": (
        "open",
        lambda opening: Opening(opening.clients[:-1], opening.signatures),
        OVER,
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_second_request_is_refused_by_name(clinics: Clinics, name: str) -> None:
    stage, change, reason = AGAIN[name]
    grid = clinics.grid()
    federation(clinics, grid).sum(BALLOT, "vote")
    for number, node in grid.nodes.items():
        session = session_of(grid.asked(stage, number))
        before = node.state(session)
        assert reason in reason_of(node, altered(grid.asked(stage, number), change))
        assert node.state(session) == before
    assert clinics.spent() == [1] * 6


def test_an_old_question_is_refused_after_another_one(clinics: Clinics) -> None:
    grid = clinics.grid()
    built = federation(clinics, grid)
    built.sum(BALLOT, "vote")
    first = {number: grid.asked("evaluate", number) for number in grid.nodes}
    built.sum(BALLOT, "vote")
    for number, node in grid.nodes.items():
        assert reason_of(node, first[number]) == "this session was asked before"
        for file in (clinics.folders[number - 100] / STATES).iterdir():
            file.unlink()
        assert reason_of(node, first[number]) == "this session was answered before"
    assert clinics.spent() == [2] * 6


def test_a_whole_vote_beyond_the_members_own_budget_is_refused(tmp_path: Path) -> None:
    """Whatever the server's own ledger says."""
    clinics = six_clinics(tmp_path, Budget(3.1, 1e-5))
    grid = clinics.grid()
    built = federation(clinics, grid)
    built.sum(BALLOT, "vote")
    with pytest.raises(TooFewClients, match="only 0 clients answered at the stage 'advertise'"):
        built.sum(BALLOT, "vote")
    assert any("this client's own budget" in reason for reason in refusals(built))
    assert clinics.spent() == [1] * 6


def dies_after(grid: InProcessGrid, stage: str, then: Callable[[Node, Message], None]) -> None:
    """Node 102 ends when its reply has left, before Flower stored its context; then, restarted:"""
    victim = grid.nodes[102]
    contexts: list[Context] = []

    def alter(message: Message) -> Message:
        if is_for(message, stage, 102):
            contexts.append(copy.deepcopy(victim.context))
        return message

    def alter_reply(request: Message, reply: Message) -> Message:
        if is_for(request, stage, 102):
            victim.context = contexts[-1]
            then(victim, request)
        return reply

    grid.alter, grid.alter_reply = alter, alter_reply


ROLLED_BACK: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "another question": (
        "evaluate",
        lambda question: replace(question, variance=2 * question.variance),
        "this session was asked before",
    ),
    "a seal for others": ("seal", without_5, "'Final' does not follow 'Masked'"),
    "other survivors": ("confirm", bury_5, "'Survivors' does not follow 'Confirmed'"),
    "another opening": (
        "open",
        lambda opening: Opening(opening.clients, {}),
        OVER,
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_member_that_died_after_its_reply_left_gives_the_same_reply_again(
    clinics: Clinics, stage: str
) -> None:
    """Byte for byte, and charged once: a reply that was lost on the way can be asked for again."""
    grid = clinics.grid()
    replies: list[Message] = []
    dies_after(grid, stage, lambda node, told: replies.append(node.handle(told)))
    total = federation(clinics, grid).sum(BALLOT, "vote")
    (first,) = (m for m in grid.said if m.metadata.src_node_id == 102 and stage_of(m) == stage)
    (again,) = replies
    assert read(again.content) == read(first.content)
    assert tuple(total.value) == grid.sum_of(grid.nodes)
    assert clinics.spent() == [1] * 6


@pytest.mark.parametrize("name", ROLLED_BACK)
def test_a_member_that_died_before_flower_stored_its_context_does_not_answer_twice(
    clinics: Clinics, name: str
) -> None:
    """Its folder remembers, and it goes on where it was."""
    stage, change, reason = ROLLED_BACK[name]
    grid = clinics.grid()
    reasons: list[str] = []
    dies_after(
        grid, stage, lambda node, told: reasons.append(reason_of(node, altered(told, change)))
    )
    total = federation(clinics, grid).sum(BALLOT, "vote")
    assert [reason in found for found in reasons] == [True]
    assert tuple(total.value) == grid.sum_of(grid.nodes)
    assert clinics.spent() == [1] * 6


def test_a_member_whose_state_was_set_back_does_not_seal_twice(clinics: Clinics) -> None:
    """Of a backup that was restored, say: its ledger still knows the session."""
    grid = clinics.grid()
    folder = clinics.folders[2]
    shared: list[bytes] = []
    reasons: list[str] = []

    def alter(message: Message) -> Message:
        if is_for(message, "seal", 102):
            shared.append(grid.nodes[102].state(session_of(message)))
        return message

    def alter_reply(request: Message, reply: Message) -> Message:
        if is_for(request, "seal", 102):
            state = folder / STATES / session_of(request).hex()
            sealed = state.read_bytes()
            state.write_bytes(shared[0])
            for change in (same, without_5):
                reasons.append(reason_of(grid.nodes[102], altered(request, change)))
            state.write_bytes(sealed)
        return reply

    grid.alter, grid.alter_reply = alter, alter_reply
    federation(clinics, grid).sum(BALLOT, "vote")
    assert reasons == ["this session was answered before"] * 2
    assert clinics.spent() == [1] * 6


def test_a_member_that_dies_between_its_charge_and_its_state_never_seals(
    clinics: Clinics, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = clinics.grid()
    real = StateFile.write

    def full(self: StateFile, state: bytes) -> None:
        if self.path.parent.parent == clinics.folders[2] and clinics.spent()[2]:
            raise OSError("no space left on device")
        real(self, state)

    monkeypatch.setattr(StateFile, "write", full)
    total = federation(clinics, grid).sum(BALLOT, "vote")
    assert tuple(total.value) == grid.sum_of(n for n in grid.nodes if n != 102)
    monkeypatch.undo()
    refused = grid.nodes[102].handle(grid.asked("seal", 102))
    assert refused.content["tacit"]["no"] == "this session was answered before"
    assert clinics.spent() == [1] * 6


def test_a_member_answers_one_message_at_a_time(clinics: Clinics, tmp_path: Path) -> None:
    """Two at once could both start from one state."""
    grid = clinics.grid()
    noted = tmp_path / "reason"
    asked: list[Message] = []
    inner = grid.nodes[102]

    def client(_context: object) -> Any:
        noted.write_text(reason_of(inner, asked[0]))  # evaluated in another process
        raise RuntimeError("abstain")

    other = clinics.grid([client] * 6)
    inner.app = other.nodes[102].app

    def alter(message: Message) -> Message:
        if is_for(message, "evaluate", 102):
            asked.append(copy.deepcopy(message))
        return message

    grid.alter = alter
    federation(clinics, grid).sum(BALLOT, "vote")
    assert noted.read_text() == "this client is answering another message"
    assert all(read(reply.content).body for reply in grid.said)
