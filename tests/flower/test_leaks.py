"""Nothing about a client's data shows in messages, their sizes, logs, errors or files."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto, recorddict_to_proto

import tacit.flower
from tacit.endpoint import SESSION_BYTES, VERSION, AskInClear, encode
from tacit.flower.client import MakeClient
from tacit.flower.wire import MESSAGE_TYPE, Envelope
from tacit.query import InClear, LocalTraining, LocalValidation
from tacit.result import Result
from tacit.space import Config
from tests.flower.clinics import Clinics
from tests.flower.grids import InProcessGrid, Node, node, stage_of, voters

pytestmark = pytest.mark.usefixtures("at_once")

MARKER = "blood-group-AB-negative"


class Failing:
    """Everything it does tells of its data."""

    def score(self, config: Config) -> float:
        raise RuntimeError(f"{MARKER} of 31 patients at {config}")

    def train_many(self, *_args: object) -> object:
        raise ValueError(MARKER)

    def validate_many(self, _weights: object) -> object:
        raise KeyError(MARKER)

    def __repr__(self) -> str:
        return MARKER


def unmakeable(_context: Context) -> Failing:
    raise OSError(f"/data/{MARKER}.csv: no such file")


def enormous(_context: Context) -> object:
    return lambda config: 1e300 * float(config["x"])


def contrary(_context: Context) -> object:
    return lambda config: -1e-300 * float(config["x"])


def without_scores(_context: Context) -> object:
    return lambda _config: float("nan")


def talkative(_context: Context) -> object:
    return lambda _config: MARKER


UNLIKE: dict[str, object] = {
    "another taste": contrary,
    "enormous scores": enormous,
    "no scores": without_scores,
    "a text as score": talkative,
    "an exception": lambda _context: Failing(),
    "no data": unmakeable,
    "no client": lambda _context: MARKER,
}


@dataclass(frozen=True)
class Traces:
    """Whatever a vote left for others to look at."""

    result: Result
    grid: InProcessGrid
    lines: list[str]

    def sizes(self) -> list[tuple[str, int, int]]:
        """Of all messages: stage, node, bytes."""
        return [
            (stage_of(m), m.metadata.dst_node_id + m.metadata.src_node_id, size(m))
            for m in (*self.grid.seen, *self.grid.said)
        ]

    def progress(self) -> list[str]:
        """What the log tells of the nodes, without the seconds."""
        told = [line for line in self.lines if "nodes" in line or "node(s)" in line]
        return [re.sub(r"\d+ s$", "", line) for line in told]


def size(message: Message) -> int:
    return len(recorddict_to_proto(message.content).SerializeToString())


def traces(base: Path, third: object, caplog: pytest.LogCaptureFixture) -> Traces:
    """A vote of five, of which the third is like this."""
    clinics = Clinics.found(base)
    makes: list[MakeClient] = [*voters(5)]
    makes[2] = third  # type: ignore[call-overload]
    grid = clinics.grid(makes)
    caplog.clear()
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, logger="flwr"):
        result = clinics.vote(grid)
    return Traces(result, grid, [record.getMessage() for record in caplog.records])


@pytest.fixture
def usual(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Traces:
    return traces(tmp_path / "usual", voters(5)[2], caplog)


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_client_unlike_others_leaves_the_same_traces(
    kind: str,
    usual: Traces,
    tmp_path: Path,
    tacit_home: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    unlike = traces(tmp_path / "unlike", UNLIKE[kind], caplog)
    assert unlike.sizes() == usual.sizes()
    assert unlike.progress() == usual.progress()
    assert unlike.result.bytes == usual.result.bytes
    assert unlike.result.clients == usual.result.clients
    assert unlike.result.tally == unlike.grid.sum_of(unlike.grid.nodes)
    told = [*unlike.lines, *capfd.readouterr(), repr(unlike.result)]
    for text in (*map(str.encode, told), *carried(unlike.grid), *written(tacit_home, tmp_path)):
        assert MARKER.encode() not in text


def carried(grid: InProcessGrid) -> Iterator[bytes]:
    for message in (*grid.seen, *grid.said):
        yield message_to_proto(message).SerializeToString()


def written(*folders: Path) -> Iterator[bytes]:
    for folder in folders:
        for file in folder.rglob("*"):
            if file.is_file():
                yield file.read_bytes()


@pytest.mark.parametrize("query", [LocalTraining((), (), 1, 0), LocalValidation(())])
@pytest.mark.parametrize("trains", [True, False])
def test_a_client_that_fails_to_train_tells_what_failed_and_not_why(
    query: InClear, trains: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Training is asked in clear; the text of an exception is more than was asked for."""
    app = ClientApp()
    tacit.flower.answer(app, lambda _context: Failing(), trains=trains)
    plain = node(voters(1)[0], 0)
    request = encode(AskInClear(VERSION, bytes(SESSION_BYTES), query))
    message = Message(Envelope(0, request).record(), 100, MESSAGE_TYPE)
    reply = Node(app, plain.context).handle(message)
    reason = str(reply.content["tacit"]["no"])
    assert ("could not answer" if trains else "own budget") in reason
    assert MARKER not in "".join([repr(reply), *capfd.readouterr()])
