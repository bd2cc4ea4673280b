"""The Flower app of ``tacit bench flower``: empty messages, then one private vote, both timed.

In a simulation the clients' folders lie beside the run's; deployed nodes have their own.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from tacit.charged_questions import ChargedQuestions
from tacit.endpoint import Endpoint
from tacit.files import write_whole
from tacit.flower.channel import FlowerChannel
from tacit.flower.client import MEMBER, answer_as, endpoint_of
from tacit.flower.server import Settings
from tacit.flower.simulation import member_of
from tacit.flower.wire import Envelope, read
from tacit.membership import Member
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import Ledger
from tacit.space import Float, Space
from tacit.task import FunctionClient
from tacit.tuners.tuner import noise_for
from tacit.tuners.voting import Vote

CANDIDATES, VOTES = 50, 5
_SPACE = Space({"x": Float(0.0, 1.0)})
_EMPTY, _WARM = "query.empty", "query.warm"

client_app = ClientApp()


@client_app.query("empty")
def empty(message: Message, _context: Context) -> Message:
    """The same way there and back, with nothing in it."""
    return Message(Envelope(read(message.content).client, b"").record(), reply_to=message)


@client_app.query("warm")
def warm(message: Message, context: Context) -> Message:
    """Let a process that stays load what it needs, Flower's part and ours."""
    Ledger.in_memory("warm-up", Budget(1.0, 1e-5)).check(TopVotes(2, 1).release(1e6), "warm-up")
    return empty(message, context)


@answer_as(client_app)
def member(context: Context, given: int) -> tuple[Endpoint, Member | None]:
    """A client whose scores cost nothing."""
    own = context.node_config.get(MEMBER)
    folder = Path(str(context.run_config["folder"]))
    number = int(str(context.node_config.get("partition-id", given)))
    found = Member.load(Path(str(own))) if own else member_of(folder, number)
    client = FunctionClient(lambda config: abs(float(config["x"]) - 0.01 * number))
    return replace(endpoint_of(found, client, given, trains=False), punctual=bool(own)), found


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Warm up, send empty messages, vote; write down what it took."""
    config = context.run_config
    settings = Settings.of(config)
    budget = Budget(settings.plan.privacy.epsilon, settings.plan.privacy.delta)
    folder = Path(str(config["folder"]))
    federation = settings.federation(grid, budget, "bench", folder / "run")
    federation.variance = noise_for(Vote(VOTES, CANDIDATES), _SPACE, budget)
    channel = federation.channel
    if not isinstance(channel, FlowerChannel):
        raise TypeError(f"found a {type(channel).__name__}")
    seconds = empty_rounds(channel, int(str(config["rounds"])))
    begun = time.perf_counter()
    Vote(VOTES, CANDIDATES).tune(ChargedQuestions(federation), _SPACE, np.random.default_rng(1))
    found = {
        "empty_seconds": seconds,
        "vote_seconds": time.perf_counter() - begun,
        "nodes": len(channel.nodes),
        "stages": {
            stage: {**vars(cost), "messages": channel.messages[stage]}
            for stage, cost in federation.costs.items()
        },
    }
    write_whole(folder / "measured.json", json.dumps(found))


def empty_rounds(channel: FlowerChannel, rounds: int) -> list[float]:
    """Seconds of some rounds of empty messages to all nodes; warming up is not counted."""
    found = []
    for kind in (_WARM, *[_EMPTY] * rounds):
        plain = replace(channel, message_type=kind, roster=None)  # Flower alone, unsigned
        begun = time.perf_counter()
        answered = plain.ask("empty", dict.fromkeys(range(len(plain.nodes)), b""))
        if len(answered) != len(plain.nodes):
            raise RuntimeError(f"{len(answered)} of {len(plain.nodes)} nodes answered")
        found.append(time.perf_counter() - begun)
    return found[1:]
