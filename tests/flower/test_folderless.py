"""Nodes that were given no folder."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import tacit.flower
from tacit.arrays import Array
from tacit.endpoint import SESSION_BYTES, VERSION, AskInClear, encode
from tacit.flower import client
from tacit.flower.wire import Envelope, read
from tacit.membership import LEDGER, new_key
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.query import LocalTraining
from tacit.result import Turnout
from tacit.rules import DpSgd
from tacit.secure.protocol import Refused, TooFewClients
from tests.flower.clinics import NAME, Clinics
from tests.flower.grids import RUN, InProcessGrid, Node, grid_of, node, vote, voters
from tests.flower.lies import reason_of
from tests.test_contracts import TASK, learner

pytestmark = pytest.mark.usefixtures("at_once")

RULE = DpSgd(rate=0.5, steps=2, clip=1.0, noise=1.0, batch=8)
TERMS = {"federation__name": NAME, "privacy__epsilon": 9.0}


@pytest.fixture(autouse=True)
def ample() -> None:
    """The server's own ledger would pay for all of it."""
    Ledger.create(ledger_path(NAME), NAME, Budget(30.0, 1e-5))


def restart(grid: InProcessGrid) -> None:
    for one in grid.nodes.values():
        one.restart()


def training(session: int) -> Message:
    """A model that is to be trained by DP-SGD, and sent in clear."""
    weights = tuple(map(Array.of, TASK.initial(1)))
    query = LocalTraining(({"learning_rate": 0.1},), weights, 1, 0, RULE)
    body = encode(AskInClear(VERSION, session.to_bytes(SESSION_BYTES), query))
    return Message(Envelope(0, body).record(), 100, "query.tacit")


def folders(home: Path) -> list[Path]:
    return sorted((home / "nodes").iterdir()) if (home / "nodes").exists() else []


def test_a_node_has_one_budget_and_not_one_for_every_run() -> None:
    grid = grid_of(voters(3))
    assert vote(grid, **TERMS).clients == Turnout(3, 3)
    restart(grid)
    with pytest.raises(TooFewClients):
        vote(grid, **TERMS)
    assert "own budget" in str(grid.said[-1].content["tacit"]["no"])


def test_models_of_dp_sgd_leave_until_the_budget_is_spent() -> None:
    trains = node(lambda _context: learner(0), 0, record_level=True)
    answered, reasons = 0, set()
    for session in range(12):
        trains.restart()
        try:
            answered += bool(read(trains.handle(training(session)).content).body)
        except Refused as refused:
            reasons.add(str(refused).partition(":")[0])
    assert 0 < answered < 12
    assert reasons == {"this client's own budget"}


def test_a_node_makes_its_folder_once_and_for_itself_alone(tacit_home: Path) -> None:
    grid = grid_of(voters(3))
    vote(grid, **TERMS)
    restart(grid)
    found = folders(tacit_home)
    assert len(found) == 3, "nodes with different configurations have different folders"
    for folder in found:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / LEDGER).stat().st_mode) == 0o600
        ledger = Ledger(folder / LEDGER)
        assert (len(ledger), ledger.budget) == (1, Budget(10.0, 1e-5))


def test_the_server_cannot_give_a_node_another_budget_with_another_number() -> None:
    """It hands out the numbers of nodes, and a node that connects again gets a new one."""
    grid = grid_of(voters(3))
    vote(grid, **TERMS)
    for one in grid.nodes.values():
        old = one.context
        one.context = Context(RUN + 1, old.node_id + 1000, old.node_config, RecordDict(), {})
    with pytest.raises(TooFewClients):
        vote(grid, **TERMS)


def configured(config: Mapping[str, object]) -> Node:
    one = node(voters(1)[0], 0)
    one.context = Context(RUN, 100, dict(config), RecordDict(), {})  # type: ignore[arg-type]
    return one


def test_a_node_names_its_own_budget_when_its_folder_is_made(tacit_home: Path) -> None:
    for epsilon in (2.5, 20):
        own = {"partition-id": 0, "tacit-epsilon": epsilon}
        reason_of(configured(own), training(0))
    (folder,) = folders(tacit_home)
    assert Ledger(folder / LEDGER).budget == Budget(2.5, 1e-5), "only an amendment changes it"


@pytest.mark.parametrize("epsilon", [0.0, -1, 1000, "much", True])
def test_a_budget_that_cannot_be_is_refused_and_named_at_home(
    epsilon: object, caplog: pytest.LogCaptureFixture, tacit_home: Path
) -> None:
    reason = reason_of(configured({"tacit-epsilon": epsilon}), training(0))
    assert reason == "this client's own folder is not in order"
    assert "epsilon is" in caplog.text
    assert not folders(tacit_home)


def test_where_the_folder_is_and_what_it_allows_is_said_at_home_once(
    caplog: pytest.LogCaptureFixture, tacit_home: Path
) -> None:
    one = configured({"partition-id": 7})
    for session in range(3):
        reason_of(one, training(session))
    (folder,) = folders(tacit_home)
    (said,) = [line for line in caplog.messages if "has no folder" in line]
    assert str(folder) in said
    assert "epsilon 10 " in said


def test_two_nodes_that_begin_together_have_one_ledger(
    monkeypatch: pytest.MonkeyPatch, tacit_home: Path
) -> None:
    create = Ledger.create

    def rival(path: Path, federation: str, budget: Budget) -> Ledger:
        create(path, federation, budget)  # between the look and the making
        return create(path, federation, budget)

    monkeypatch.setattr(Ledger, "create", rival)
    assert "own budget" in reason_of(configured({}), training(0))
    assert len(folders(tacit_home)) == 1


def test_a_home_that_cannot_be_written_stops_the_node(tacit_home: Path) -> None:
    (tacit_home / "nodes").write_text("no folder")
    reason = reason_of(configured({}), training(0))
    assert reason == "this client's own folder is not in order"


def test_a_simulated_node_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tacit_home: Path
) -> None:
    """One machine plays them all, and they end with their run."""
    monkeypatch.setattr(client, "simulated", lambda: True)
    grid = grid_of(voters(3))
    for _ in range(2):
        assert vote(grid, **TERMS).clients == Turnout(3, 3)
        restart(grid)
    assert not folders(tacit_home)


def demanding(folder: Path | None) -> Node:
    app = ClientApp()
    tacit.flower.answer(app, voters(1)[0], require_member=True)
    return Node(app, node(voters(1)[0], 0, folder).context)


def test_a_node_that_demands_a_roster_answers_nothing_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tacit_home: Path
) -> None:
    Ledger.create(tmp_path / "ledger-only" / LEDGER, NAME, Budget(3.0, 1e-5))
    for folder in (None, tmp_path / "ledger-only"):
        caplog.clear()
        client.say_once.cache_clear()
        for session in range(2):
            reason = reason_of(demanding(folder), training(session))
            assert reason == "this client answers only as a member with a roster"
        (said,) = [line for line in caplog.messages if "require_member" in line]
        assert "--node-config 'tacit=" in said
    assert not folders(tacit_home)


def test_a_node_that_demands_a_roster_answers_with_one(tmp_path: Path) -> None:
    clinics = Clinics.found(tmp_path)
    grid = clinics.grid()
    for one in grid.nodes.values():
        one.app = demanding(None).app
    assert clinics.vote(grid).clients == Turnout(5, 5)
    grid.nodes[102].context = node(voters(1)[0], 2).context
    assert clinics.vote(grid).clients == Turnout(5, 4)


def test_a_folder_that_was_named_is_not_made(tmp_path: Path) -> None:
    """A wrong path must not become a new budget."""
    reason = reason_of(configured({"tacit": str(tmp_path / "typo")}), training(0))
    assert reason == "this client's own folder is not in order"
    new_key(tmp_path / "key-only")
    reason = reason_of(configured({"tacit": str(tmp_path / "key-only")}), training(0))
    assert reason == "this client's own folder is not in order"
    assert not (tmp_path / "typo").exists()
