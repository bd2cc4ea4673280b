"""Votes over a grid without a roster."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from flwr.app import Context, Message

from tacit.endpoint import AskSum
from tacit.flower import server
from tacit.flower.server import Settings
from tacit.flower.wire import read
from tacit.privacy.ledger import BudgetExceeded, Ledger, ledger_path
from tacit.privacy.mechanisms import NoiseShare
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.result import CURIOUS_SERVER, Turnout
from tacit.secure.protocol import TooFewClients
from tacit.space import Config
from tacit.task import Client, FunctionClient
from tests.federations import likes
from tests.flower.clinics import NAME, Clinics
from tests.flower.grids import (
    InProcessGrid,
    generous,
    grid_of,
    server_context,
    stage_of,
    vote,
    voters,
)

NAMED = {"federation__name": NAME}


def question(grid: InProcessGrid) -> AskSum:
    """What the first node was asked."""
    return msgspec.msgpack.decode(read(grid.seen[0].content).body, type=AskSum)


def unnoised(_self: NoiseShare, answer: IntArray) -> IntArray:
    return answer


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("roster", [True, False])
def test_the_tally_is_the_sum_of_all_votes(
    roster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoiseShare, "added_to", unnoised)
    if roster:
        clinics = Clinics.found(tmp_path)
        result = clinics.vote(clinics.grid())
    else:
        result = vote(grid_of(voters(5)), **NAMED)
    ballot = Ballot(result.candidates, votes=2)
    votes = [ballot.answer(likes(0.4 + 0.2 * i / 5)) for i in range(5)]
    assert result.tally == tuple(np.sum(votes, axis=0))
    assert result.tally[result.candidates.index(result.config)] == max(result.tally)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("folds", [1, 4])
def test_nodes_cross_validate_as_the_question_says(folds: int, tmp_path: Path) -> None:
    noted = tmp_path / "folds"
    noted.touch()

    class Careful(FunctionClient):
        def cross_validate(self, configs: Sequence[Config], folds: int) -> list[float]:
            with noted.open("a") as file:  # evaluations have a process each, and end with it
                file.write(f"{folds}\n")
            return [self.score(config) for config in configs]

    careful = Careful(lambda config: float(config["x"]))
    nodes = grid_of([lambda _context: careful] * 5)
    vote(nodes, search__ballot="top", search__folds=folds, **NAMED)
    assert noted.read_text().split() == ["4"] * 5 * (folds > 1)


@pytest.mark.usefixtures("at_once")
def test_without_a_roster_the_server_is_called_honest_but_curious(tacit_home: Path) -> None:
    grid = grid_of(voters(5))
    result = vote(grid, **NAMED)
    assert result.privacy.server == CURIOUS_SERVER == "honest-but-curious server"
    assert "deployment" in result.privacy.setting
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(grid.nodes)
    (run,) = (tacit_home / "runs").iterdir()
    assert {"result.json", "ledger.json", "report.html"} <= {file.name for file in run.iterdir()}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("epsilon", "level", "said"),
    [
        (0.1, "WARNING", "even if all clients agree, a good candidate wins only"),
        (20.0, "INFO", "tacit: if all agree, a good candidate wins 100.0 % of the time"),
    ],
)
def test_the_chance_of_a_good_choice_is_said_before_anybody_is_asked(
    caplog: pytest.LogCaptureFixture, epsilon: float, level: str, said: str
) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        vote(generous(grid_of(voters(5))), **NAMED, privacy__epsilon=epsilon)
    (chance,) = [record for record in caplog.records if "good candidate" in record.getMessage()]
    assert chance.levelname == level
    assert said in chance.getMessage()
    asked = [record for record in caplog.records if "evaluate" in record.getMessage()]
    assert caplog.records.index(chance) < caplog.records.index(asked[0])


@pytest.mark.usefixtures("at_once")
def test_settings_come_from_the_runs_configuration() -> None:
    grid = grid_of(voters(6))
    settings = {"search__votes": 3, "federation__clients": 5, "privacy__epsilon": 2.0}
    result = vote(grid, **NAMED, **settings)
    asked = question(grid)
    assert isinstance(asked.query, Ballot)
    assert (asked.query.votes, asked.clients, asked.deadline) == (3, 5, 30.0)
    assert 1.99 < result.privacy.epsilon <= 2.0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"search__vote": 3}, "search.vote is not a key; allowed are method"),
        ({"serch__votes": 3}, "serch.* is not a section"),
        ({"run__resumes": "x"}, "tacit.run.resumes is not a setting; allowed are out, resume"),
        ({"run__out": 3}, "tacit.run is .*; allowed are texts"),
        ({"run": 3}, "tacit.run is 3; allowed are texts"),
        ({"search": 3}, "search is 3; allowed is a section"),
        ({"search__votes": "three"}, "search.votes is 'three'"),
        ({"federation__clients": 1}, "federation.clients is 1"),
        ({"privacy__colluding": "most"}, "privacy.colluding is 'most'; allowed is a count"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_name(
    settings: Mapping[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings.of(server_context(**settings).run_config)


def test_another_method_is_not_replaced_by_a_vote() -> None:
    grid = grid_of(voters(3))
    with pytest.raises(ValueError, match=r"search\.method is 'random-guess'"):
        vote(grid, **NAMED, search__method="random-guess")
    assert not grid.seen


@pytest.mark.usefixtures("at_once")
def test_only_as_many_nodes_as_planned_are_asked() -> None:
    grid = grid_of(voters(6))
    assert vote(grid, **NAMED, federation__clients=4).clients == Turnout(4, 4)
    assert {message.metadata.dst_node_id for message in grid.seen} == {100, 101, 102, 103}


@pytest.mark.usefixtures("at_once")
def test_a_vote_begins_without_nodes_that_do_not_come() -> None:
    grid = grid_of(voters(5))
    result = vote(grid, **NAMED, federation__clients=6, privacy__dropout="1/6")
    assert result.clients == Turnout(6, 5)
    assert result.tally == grid.sum_of(grid.nodes)


@pytest.mark.usefixtures("at_once")
def test_a_vote_waits_for_nodes_that_come_late() -> None:
    grid = grid_of(voters(5))
    looks = iter(range(6))

    class Slow(InProcessGrid):
        def get_node_ids(self) -> list[int]:
            return list(self.nodes)[: next(looks, 5)]

    late = Slow(grid.nodes)
    settings = {"federation__clients": 5, "federation__wait": 60.0}
    assert vote(late, **NAMED, **settings).clients == Turnout(5, 5)


def test_too_few_nodes_are_refused_before_anything_is_charged() -> None:
    grid = grid_of(voters(3))
    with pytest.raises(TooFewClients, match="only 3 clients answered at the stage 'connect'; 6"):
        vote(grid, **NAMED, federation__clients=6)
    assert not grid.seen
    assert not ledger_path(NAME).exists()


def test_a_deployment_without_the_name_of_a_federation_is_refused() -> None:
    grid = grid_of(voters(3))
    with pytest.raises(ValueError, match=r"federation.name is empty.*set tacit.federation.name"):
        vote(grid)
    assert not grid.seen


@pytest.mark.usefixtures("at_once")
def test_a_vote_beyond_the_budget_is_refused_before_anyone_is_asked() -> None:
    grid = grid_of(voters(3))
    vote(grid, **NAMED)
    before = len(grid.seen)
    with pytest.raises(BudgetExceeded):
        vote(grid, **NAMED)
    assert len(grid.seen) == before
    assert len(Ledger(ledger_path(NAME))) == 1


def broken(_context: Context) -> Client:
    raise RuntimeError("there is no data here")


@pytest.mark.usefixtures("at_once")
def test_a_node_whose_client_cannot_be_made_abstains_unnoticed() -> None:
    grid = grid_of([*voters(4), broken])
    result = vote(grid, **NAMED)
    assert result.clients == Turnout(5, 5)
    assert result.tally == grid.sum_of(grid.nodes)
    assert all("body" in message.content["tacit"] for message in grid.said)


def test_no_first_answer_comes_before_the_deadline() -> None:
    grid = grid_of([*voters(2), broken])
    begun: dict[int, float] = {}
    took: dict[int, float] = {}

    def sent(message: Message) -> Message:
        begun[message.metadata.dst_node_id] = time.monotonic()
        return message

    def answered(request: Message, reply: Message) -> Message:
        if stage_of(request) == "evaluate":
            node = request.metadata.dst_node_id
            took[node] = time.monotonic() - begun[node]
        return reply

    grid.alter, grid.alter_reply = sent, answered
    vote(grid, **NAMED, federation__deadline=0.2)
    assert len(took) == 3
    assert min(took.values()) >= 0.2


def test_an_evaluation_slower_than_the_deadline_abstains_on_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each reply waits to be finished, and then for the deadline: neither was late."""
    waited: list[float] = []

    class Clock:
        monotonic = staticmethod(time.monotonic)
        sleep = staticmethod(waited.append)

    monkeypatch.setattr("tacit.endpoint.time", Clock)
    over = threading.Event()

    def slow(config: Config) -> float:
        over.wait(60.0)
        return float(config["x"])

    grid = grid_of([*voters(2), lambda _context: FunctionClient(slow)])
    try:
        result = vote(grid, **NAMED, federation__deadline=3.0)
        assert not over.is_set()
    finally:
        over.set()
    assert result.clients == Turnout(3, 3)
    assert result.tally == grid.sum_of(grid.nodes)
    assert len(waited) == 2 * 3
    assert min(waited) > 0


def test_a_log_line_tells_how_a_stage_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[object, ...]] = []
    monkeypatch.setattr(server, "log", lambda _level, *told: lines.append(told))
    progress = server.Progress(every=3600.0)
    for answered in range(11):
        progress.report("share", answered, 10, 1.0)
    assert [line[2] for line in lines] == [0, 10]
