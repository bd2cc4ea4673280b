"""Nodes that fail, in every way and at every stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from tacit.flower import wire
from tacit.flower.wire import ACTION, Envelope, read
from tacit.membership import KEY, read_key
from tacit.result import Turnout
from tacit.secure.protocol import TooFewClients
from tests.flower.clinics import NAME, Clinics, charges
from tests.flower.grids import (
    EARLY,
    STAGES,
    InProcessGrid,
    grid_of,
    is_for,
    session_of,
    vote,
    voters,
)

pytestmark = pytest.mark.usefixtures("at_once")

LARGEST = 20_000
"""Bytes of a body, here; no message of five nodes comes near."""


@pytest.fixture(autouse=True)
def small_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGEST_BODY", LARGEST)


Failure = Callable[[InProcessGrid, list[int], str], None]
"""Makes some nodes of a grid fail at a stage."""


def silent(grid: InProcessGrid, nodes: list[int], stage: str) -> None:
    grid.silent = dict.fromkeys(nodes, stage)


def replying(make: Callable[[Message, Message], Message]) -> Failure:
    """Instead of the node's reply, what is made of it."""

    def fail(grid: InProcessGrid, nodes: list[int], stage: str) -> None:
        def alter(request: Message, reply: Message) -> Message:
            hit = any(is_for(request, stage, node) for node in nodes)
            return make(request, reply) if hit else reply

        grid.alter_reply = alter

    return fail


def raising(grid: InProcessGrid, nodes: list[int], stage: str) -> None:
    app = ClientApp()

    @app.query(ACTION)
    def handle(_message: Message, _context: object) -> Message:
        raise RuntimeError("out of memory")

    def alter(message: Message) -> Message:
        for node in nodes:
            if is_for(message, stage, node):
                grid.nodes[node].app = app
        return message

    grid.alter = alter


def saying(body: bytes) -> Failure:
    """Its own number, and then this, signed by whoever has a key."""

    def fail(grid: InProcessGrid, nodes: list[int], stage: str) -> None:
        def make(request: Message, reply: Message) -> Message:
            said = Envelope(read(reply.content).client, body)
            folder = grid.nodes[request.metadata.dst_node_id].folder
            if folder:
                said = said.signed(read_key(folder / KEY), read(request.content))
            return Message(said.record(), reply_to=request)

        replying(make)(grid, nodes, stage)

    return fail


def unsigned(request: Message, reply: Message) -> Message:
    """What the node said, without its word that it said so."""
    said = read(reply.content)
    return Message(Envelope(said.client, said.body).record(), reply_to=request)


def signed_for_another(request: Message, reply: Message) -> Message:
    """One bit of what the node said is turned, after it was signed."""
    said = read(reply.content)
    turned = said.body[:-1] + bytes([said.body[-1] ^ 1])
    return Message(Envelope(said.client, turned, said.signature).record(), reply_to=request)


DROPPING: dict[str, Failure] = {
    "silent": silent,
    "lost": replying(lambda request, _: Message(Error(3, "not reachable"), reply_to=request)),
    "raising": raising,
    "garbage": saying(b"\xc1 no message at all"),
    "empty": saying(b""),
    "oversize": saying(bytes(LARGEST + 1)),
    "unsigned": replying(unsigned),
    "signed for another": replying(signed_for_another),
}
"""Whoever fails like this is missing from the stage on, or from this stage."""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", DROPPING)
def test_the_others_sum_opens_while_enough_are_left(tmp_path: Path, kind: str, stage: str) -> None:
    """Five of which three must be there, and two fail."""
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    DROPPING[kind](grid, [101, 103], stage)
    result = clinics.vote(grid)
    survivors = [100, 102, 104] if stage in EARLY else list(grid.nodes)
    assert result.clients == Turnout(5, len(survivors))
    assert result.tally == grid.sum_of(survivors)
    assert charges() == 1


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", DROPPING)
def test_nothing_opens_when_too_few_are_left(
    tmp_path: Path, tacit_home: Path, kind: str, stage: str
) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    DROPPING[kind](grid, [101, 102, 103], stage)
    named = "advertise" if stage == "evaluate" else stage
    with pytest.raises(TooFewClients, match=f"only 2 clients answered at the stage '{named}'; 3"):
        clinics.vote(grid)
    (run,) = (tacit_home / "runs").iterdir()
    assert not list(run.iterdir()), "nothing was released, nothing was noted"
    assert charges() == 1
    assert max(clinics.spent()) == (0 if stage in ("evaluate", "share", "deliver") else 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_restarted_member_goes_on_with_its_folder(tmp_path: Path, stage: str) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    restart(grid, 102, stage)
    assert clinics.vote(grid).tally == grid.sum_of(grid.nodes)


@pytest.mark.parametrize("stage", ["share", "seal", "open"])
def test_a_restarted_node_goes_on_with_the_folder_that_it_made(stage: str) -> None:
    grid = grid_of(voters(5))
    restart(grid, 102, stage)
    result = vote(grid, federation__name=NAME, privacy__dropout=0.4)
    assert result.tally == grid.sum_of(grid.nodes)


@pytest.mark.parametrize("stage", ["share", "seal", "open"])
def test_a_simulated_node_that_forgot_drops_out(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.flower.client.simulated", lambda: True)
    grid = grid_of(voters(5))
    restart(grid, 102, stage)
    result = vote(grid, federation__name=NAME, privacy__dropout=0.4)
    assert result.tally == grid.sum_of(n for n in grid.nodes if n != 102 or stage not in EARLY)
    reasons = [m.content["tacit"]["no"] for m in grid.said if "no" in m.content["tacit"]]
    assert "no sum is under way" in reasons


def restart(grid: InProcessGrid, node: int, stage: str) -> None:
    def alter(message: Message) -> Message:
        if is_for(message, stage, node):
            grid.nodes[node].restart()
        return message

    grid.alter = alter


@pytest.mark.parametrize("roster", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a_message_that_comes_twice_is_answered_alike_and_changes_nothing(
    tmp_path: Path, stage: str, roster: bool
) -> None:
    clinics = Clinics.found(tmp_path) if roster else None
    grid = clinics.grid() if clinics else grid_of(voters(5))
    replayed = 0

    def replay(request: Message, reply: Message) -> Message:
        nonlocal replayed
        if is_for(request, stage, 102):
            session = session_of(request)
            before = grid.nodes[102].state(session)
            again = read(grid.nodes[102].handle(request).content)
            assert again == read(reply.content)
            assert grid.nodes[102].state(session) == before
            replayed += 1
        return reply

    grid.alter_reply = replay
    result = clinics.vote(grid) if clinics else vote(grid, federation__name=NAME)
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(grid.nodes)
    assert replayed == (0 if stage == "confirm" and not roster else 1)
    if clinics:
        assert clinics.spent() == [1] * 5


@pytest.mark.parametrize("way", ["request", "reply", "expired"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_message_that_is_lost_comes_again(
    tmp_path: Path, stage: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may be missing here: one lost message of each stage costs nobody its vote."""
    monkeypatch.setattr("tacit.flower.channel._LOOK_SECONDS", 3600.0)
    clinics = Clinics.found(tmp_path, dropout=0)
    grid = clinics.grid()
    lost: list[Message] = []

    def lose(message: Message) -> bool:
        hit = is_for(message, stage, 102) and not lost
        lost.extend([message] if hit else [])
        return hit

    if way == "request":
        grid.alter = lambda message: None if lose(message) else message
    elif way == "expired":  # as Flower says it of a node that was away for too long
        error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "no reply in time")
        grid.alter_reply = lambda request, reply: (
            Message(error, reply_to=request) if lose(request) else reply
        )
    else:
        grid.alter_reply = lambda request, reply: None if lose(request) else reply
    result = clinics.vote(grid, federation__timeout=1.0)
    assert len(lost) == 1
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(grid.nodes)
    assert clinics.spent() == [1] * 5


def test_a_node_that_is_there_but_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tacit.flower.channel._LOOK_SECONDS", 3600.0)
    grid = grid_of(voters(3))
    grid.alter = lambda message: None if is_for(message, "share", 101) else message
    settings = {"federation__timeout": 1.0, "privacy__dropout": 0.34}
    result = vote(grid, federation__name=NAME, **settings)
    assert result.clients == Turnout(3, 2)
    assert result.tally == grid.sum_of([100, 102])


def test_without_a_roster_nobody_takes_anothers_number() -> None:
    grid = grid_of(voters(5))

    def claim(request: Message, reply: Message) -> Message:
        if not is_for(request, "evaluate", 104):
            return reply
        return Message(Envelope(0, read(reply.content).body).record(), reply_to=request)

    grid.alter_reply = claim
    result = vote(grid, federation__name=NAME, privacy__dropout=0.4)
    assert result.tally == grid.sum_of([100, 101, 102, 103])
