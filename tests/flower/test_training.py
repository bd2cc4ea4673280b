"""Methods that train, given to ``tacit.flower.tune`` as they are given to ``tacit.tune``."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

import tacit.flower
from tacit.arrays import Array
from tacit.endpoint import encode
from tacit.flower.client import MakeClient
from tacit.flower.wire import Envelope, read
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.privacy.mechanisms import Participation
from tacit.result import COVERS_TRAINING, Turnout
from tacit.secure.protocol import TooFewClients
from tacit.space import Float, Space
from tacit.training import PrivateAveraging
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.bandit import Bandit, Stage
from tacit.tuners.fedex import FedEx
from tacit.tuners.nas import Feathers
from tacit.tuners.together import Together
from tacit.tuners.tuner import Tuner
from tacit.tuners.voting import Vote
from tests.flower.clinics import AMPLE, NAME, Clinics
from tests.flower.grids import InProcessGrid, grid_of, server_context
from tests.flower.grids import node as answering
from tests.test_contracts import PRIVATE, TASK, learner, searcher

NODES = 5
BUDGET = Budget(8.0, 1e-5)
SPACE = Space({"learning_rate": Float(1e-3, 1.0, log=True)})
METHODS: list[Tuner] = [
    Bandit(TASK.initial, Stage(phases=1, drawn=2, most_rounds=1, train_rounds=2), candidates=4),
    FedEx(TASK.initial, rounds=2, candidates=3),
    AdaptiveRate(TASK.initial, rounds=2),
    Together.planned(
        Vote(votes=2, candidates=6),
        SPACE,
        PrivateAveraging(2, 1),
        TASK.initial(1),
        BUDGET,
        Participation(NODES, 0.0),
    ),
    *(method for method in PRIVATE if isinstance(method, Feathers)),
]


def node(method: Tuner, number: int) -> MakeClient:
    make = searcher if isinstance(method, Feathers) else learner
    return lambda _context: make(number)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_methods_that_train_run_over_flower_unchanged(method: Tuner) -> None:
    grid = grid_of([node(method, number) for number in range(NODES)])
    context = server_context(federation__name=NAME, federation__clients=NODES, privacy__dropout=0.0)
    result = tacit.flower.tune(grid, context, space=SPACE, method=method, budget=BUDGET)
    assert result.weights is not None
    assert all(np.isfinite(array).all() for array in result.weights)
    assert 7.5 < result.privacy.epsilon <= 8
    assert result.privacy.covers == COVERS_TRAINING
    assert result.rounds[-1]["epsilon"] == pytest.approx(result.privacy.epsilon)
    assert len(result.rounds) >= 2
    assert not math.isinf(result.rounds[0]["epsilon"])


AT_RECORD_LEVEL: list[Tuner] = [
    Bandit(TASK.initial, Stage(phases=1, drawn=2, most_rounds=1, train_rounds=2), 4, mode="record"),
    FedEx(TASK.initial, rounds=2, candidates=3, mode="record"),
    AdaptiveRate(TASK.initial, rounds=2, mode="record"),
]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("method", AT_RECORD_LEVEL, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("agreed", [True, False])
def test_records_are_counted_over_flower_if_the_nodes_agreed(method: Tuner, agreed: bool) -> None:
    nodes = {
        100 + number: answering(node(method, number), number, record_level=agreed)
        for number in range(NODES)
    }
    context = server_context(federation__name=NAME, federation__clients=NODES, privacy__dropout=0.0)
    asked = partial(
        tacit.flower.tune,
        InProcessGrid(nodes),
        context,
        space=SPACE,
        method=method,
        budget=BUDGET,
    )
    if not agreed:
        with pytest.raises(TooFewClients):
            asked()
        return
    result = asked()
    assert 7.5 < result.privacy.epsilon <= 8
    assert result.privacy.guarantee.unit == "record"
    assert result.weights is not None


LEARNED = (*TASK.initial(1), np.ones((1, 1), np.float32))
"""The shapes of what this method's clients send: a model, and the logarithm of its rate."""
LIES = {
    "garbage": b"\xc1",
    "another shape": encode((Array.of(np.zeros((1, 3), np.float32)),)),
    "not finite": encode(tuple(Array.of(array * np.float32(math.nan)) for array in LEARNED)),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", LIES)
def test_a_node_whose_answer_in_clear_is_no_use_is_left_out_and_counted(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    method = AT_RECORD_LEVEL[-1]
    nodes = {
        100 + number: answering(node(method, number), number, record_level=True)
        for number in range(NODES)
    }
    grid = InProcessGrid(nodes)

    def lie(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id != 102:
            return reply
        return Message(Envelope(read(reply.content).client, LIES[name]).record(), reply_to=request)

    grid.alter_reply = lie
    context = server_context(federation__name=NAME, federation__clients=NODES, privacy__dropout=0.4)
    result = tacit.flower.tune(grid, context, space=SPACE, method=method, budget=BUDGET)
    assert result.clients == Turnout(5, 4)
    assert result.weights is not None
    assert all(np.isfinite(array).all() for array in result.weights)
    assert "2 answer(s) in clear could not be used and were left out" in result.note
    assert "tacit: 2 answer(s) in clear were left out: " in caplog.text


@pytest.mark.usefixtures("at_once")
def test_with_a_roster_an_outsider_trains_for_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would train, and stands first; the members are found by their signatures all the same."""
    method = AT_RECORD_LEVEL[-1]
    clinics = Clinics.found(tmp_path)
    Ledger.create(ledger_path(NAME), NAME, AMPLE)
    folders = [None, *reversed(clinics.folders)]
    nodes = {
        100 + number: answering(node(method, number), number, folder, record_level=True)
        for number, folder in enumerate(folders)
    }
    context = server_context(federation__roster_file=str(clinics.roster_file))
    result = tacit.flower.tune(
        InProcessGrid(nodes), context, space=SPACE, method=method, budget=BUDGET
    )
    assert result.clients == Turnout(5, 5)
    assert clinics.spent() == [2] * 5
    assert "refused at training: the reply is not signed by the member that it names" in caplog.text
