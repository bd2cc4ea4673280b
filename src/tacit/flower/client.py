"""The client's side on Flower: a ClientApp that answers Tacit's questions.

A node's own configuration decides what it answers: ``--node-config 'tacit="/path/to/folder"'``
names a member's folder (:mod:`tacit.membership`). With a roster in it, the node goes by its own
number, its own list of peers, its own least noise and budget, and keeps its states and receipts
there. Without a folder it takes the server's word, which the result calls an honest-but-curious
server. It then makes a folder of its own, with a ledger and its states, below ``$TACIT_HOME``: were
its budget in memory, it would be a new one with every message, since Flower answers each in a new
process. A node that demands a roster (``require_member``) answers nothing without one.

Whatever happens, a node answers with a reply or a short reason that tells nothing about its data;
an exception would end the process, and Flower would send its text to the server.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from logging import ERROR, WARNING
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from tacit.endpoint import Endpoint
from tacit.flower.wire import ACTION, RECORD, Envelope, read, refusal
from tacit.keeping import FolderError
from tacit.membership import LEDGER, Member
from tacit.privacy.accounting import LARGEST_EPSILON, Budget
from tacit.privacy.ledger import Ledger, LedgerError, home
from tacit.privacy.skellam import FloatArray
from tacit.punctual import Unanswered
from tacit.rules import Rule
from tacit.secure.protocol import Refused
from tacit.sgd import Weights
from tacit.space import Config
from tacit.states import Heading, State, States, StatesInMemory
from tacit.task import Client, HoldsExamples, as_client, learner, losses, scores, trained

MEMBER = "tacit"
"""The key of ``--node-config`` that names a member's folder."""
EPSILON = "tacit-epsilon"
"""The key that names the budget of a node without one, when its own folder is made."""
OWN_BUDGET = Budget(10.0, 1e-5)
"""All that a node without a folder ever spends, unless it names another epsilon."""

Behind = Callable[[Context, int], tuple[Endpoint, Member | None]]
"""From a context and the number that the server gave the client."""
MakeClient = Callable[[Context], Client | Callable[[Config], float]]


def answer(
    app: ClientApp,
    client: MakeClient,
    *,
    trains: bool = False,
    record_level: bool = False,
    require_member: bool = False,
) -> None:
    """Let a ClientApp answer Tacit's questions beside whatever else it does.

    >>> app = ClientApp()
    >>> answer(app, lambda context: lambda config: (config["lr"] - 0.1) ** 2)

    Args:
        app: the ClientApp; it gets a handler for messages of the type ``query.tacit``.
        client: makes the client that scores configurations, from Flower's context; a plain function
            that returns a loss will do. It is called only when something is to be scored.
        trains: whether this client also trains models in clear when Tacit's server asks it to;
            not needed when a strategy of Flower does the training.
        record_level: whether weights trained by DP-SGD may leave this client, at what that costs
            for a single record of it; for methods in the mode ``record``.
        require_member: whether to answer only from a member's folder with a roster in it. Without
            that the node takes the server's word, and keeps a budget of epsilon 10 (or
            ``tacit-epsilon`` of its ``--node-config``) in a folder of its own; simulated nodes
            keep nothing, since they end with their run.
    """

    @answer_as(app)
    def endpoint(context: Context, given: int) -> tuple[Endpoint, Member | None]:
        member = _member(context, require_member=require_member)
        endpoint = endpoint_of(member, _Lazy(client, context), given, trains=trains)
        return replace(endpoint, record_level=record_level), member


def _member(context: Context, *, require_member: bool) -> Member | None:
    """Who a node is: by the folder it names, or by one of its own; None if it is simulated."""
    folder = context.node_config.get(MEMBER)
    member = Member.load(Path(str(folder)), _said) if folder is not None else None
    if require_member and (member is None or member.membership is None):
        say_once(
            "tacit: this node has require_member set and no folder with a roster, so it answers "
            "nothing; start it with --node-config 'tacit=\"/path/to/folder\"'"
        )
        raise Refused("this client answers only as a member with a roster")
    return member if member or simulated() else own_member(context.node_config)


def own_member(config: Mapping[str, bool | float | int | str]) -> Member:
    """The folder of a node that names none: made when it is first needed, and lasting.

    It is called by the node's own configuration. The number of a node would not do: the server
    hands that out, and could give a node a new budget by giving it a new number.
    """
    named = {key: config[key] for key in sorted(config) if not key.startswith(MEMBER)}
    number = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
    folder = home() / "nodes" / number
    if not (folder / LEDGER).exists():
        epsilon = config.get(EPSILON, OWN_BUDGET.epsilon)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise ValueError(f"{EPSILON} is {epsilon!r}; allowed is a number")
        budget = Budget(float(epsilon), OWN_BUDGET.delta)
        with suppress(LedgerError):  # another process of this node made it just now
            Ledger.create(folder / LEDGER, f"node-{number}", budget)
    member = Member.load(folder, _said)
    say_once(
        f"tacit: this node has no folder, so it takes the server's word for who takes part; it "
        f"spends epsilon {member.ledger.budget.epsilon:g} at most, by the ledger in {folder}"
    )
    return member


def simulated() -> bool:
    """Whether Flower's simulation runs this: nodes are then actors of Ray."""
    ray = sys.modules.get("ray")
    return (
        ray is not None and ray.is_initialized() and bool(ray.get_runtime_context().get_actor_id())
    )


@cache
def say_once(text: str) -> None:
    """Into the node's own log, once a process."""
    log(WARNING, text)


def answer_as(app: ClientApp) -> Callable[[Behind], Behind]:
    """Let a ClientApp answer as the endpoint, and the member, that stand behind a context."""

    def decorated(behind: Behind) -> Behind:
        @app.query(ACTION)
        def handle(message: Message, context: Context) -> Message:
            try:
                content = _reply(message.content, context, behind)
            except Refused as reason:
                content = refusal(str(reason))
            except Exception as error:  # the text of it might tell something about the data
                content = refusal(f"the client could not answer ({type(error).__name__})")
            return Message(content, reply_to=message)

        return behind

    return decorated


def _reply(content: RecordDict, context: Context, behind: Behind) -> RecordDict:
    """The content of a reply, with the next state kept before it is returned."""
    request = read(content)
    try:
        endpoint, member = behind(context, request.client)
    except (ValueError, LedgerError, OSError) as error:
        raise _not_in_order(str(error)) from None
    endpoint = replace(endpoint, on_abstention=_told_at_home)
    states: States = member.states if member else _StatesInContext(context)
    try:
        body = endpoint.answer(states, request.body)
    except FolderError as error:
        raise _not_in_order(str(error)) from None
    except LedgerError as error:
        path, found = str(endpoint.ledger.path), str(error)
        raise _not_in_order(found if path in found else f"{path}: {found}") from None
    except sqlite3.Error as error:  # of the ledger, whose file is no database any more
        found = f"{endpoint.ledger.path} cannot be read ({type(error).__name__})"
        raise _not_in_order(f"{found}; look at it with: tacit roster check") from None
    reply = Envelope(endpoint.number, body)
    return (reply.signed(endpoint.identity, request) if endpoint.identity else reply).record()


def _not_in_order(sentence: str) -> Refused:
    """Say at home what is wrong with the folder, and to the server only that something is."""
    log(ERROR, "tacit: this node's own folder is not in order: %s", sentence)
    return Refused("this client's own folder is not in order")


def _said(sentence: str) -> None:
    log(WARNING, "%s", sentence)


def _told_at_home(error: Exception) -> None:
    """Only the kind of a failure, and only in the node's own log."""
    kind = str(error) if isinstance(error, Unanswered) else type(error).__name__
    log(WARNING, "tacit: this node could not score and casts a random vote (%s)", kind)


def endpoint_of(member: Member | None, client: Client, given: int, *, trains: bool) -> Endpoint:
    """The endpoint that a member's folder describes; for a simulated node, as the server says."""
    if member is None:
        # Sums only: an answer in clear costs more than any finite budget.
        ledger = Ledger.in_memory("no-folder", Budget(LARGEST_EPSILON, 1e-5))
        return Endpoint(given, client, None, ledger, secure=None, trains=trains, punctual=True)
    if member.membership is None or member.number is None:
        return Endpoint(
            given,
            client,
            None,
            member.ledger,
            secure=None,
            trains=trains,
            punctual=True,
            sessions=member.sessions,
        )
    return Endpoint(
        number=member.number,
        client=client,
        participation=member.membership.participation,
        ledger=member.ledger,
        identity=member.identity,
        roster=member.membership.roster,
        least_noise=member.membership.least_noise,
        secure=member.membership.secure,
        trains=trains,
        punctual=True,
        sessions=member.sessions,
        on_release=member.keep,
    )


@dataclass(frozen=True)
class _StatesInContext:
    """A simulated node's states in Flower's context, which ends with the run."""

    context: Context

    @contextmanager
    def open(self, heading: Heading) -> Iterator[State]:
        held = StatesInMemory(self._kept())
        before = dict(held.kept)
        with held.open(heading) as state:
            yield state
        if held.kept != before:
            sessions, states = list(held.kept), list(held.kept.values())
            self.context.state[RECORD] = ConfigRecord({"sessions": sessions, "states": states})

    def _kept(self) -> dict[str, bytes]:
        record = self.context.state.config_records.get(RECORD)
        if record is None:
            return {}
        sessions, states = record["sessions"], record["states"]
        if not isinstance(sessions, list) or not isinstance(states, list):
            return {}
        pairs = zip(sessions, states, strict=True)
        return {str(one): state for one, state in pairs if isinstance(state, bytes)}


@dataclass
class _Lazy:
    """A client that is made when it is first needed, where a failure is an abstention."""

    make: MakeClient
    context: Context

    @cached_property
    def made(self) -> Client:
        return as_client(self.make(self.context))

    @property
    def examples(self) -> int:
        if not isinstance(self.made, HoldsExamples):
            raise AttributeError("the client does not say how many examples it holds")
        return self.made.examples

    def score(self, config: Config) -> float:
        return self.made.score(config)

    def score_many(self, configs: Sequence[Config]) -> FloatArray:
        return scores(self.made, configs)

    def cross_validate(self, configs: Sequence[Config], folds: int) -> FloatArray:
        return scores(self.made, configs, folds)

    def train_many(
        self, configs: Sequence[Config], weights: Weights, epochs: int, round_number: int
    ) -> Weights:
        return learner(self.made).train_many(configs, weights, epochs, round_number)

    def validate_many(self, weights: Weights) -> FloatArray:
        return learner(self.made).validate_many(weights)

    def train_by(
        self,
        rule: Rule,
        configs: Sequence[Config],
        weights: Weights,
        epochs: int,
        round_number: int,
    ) -> Weights:
        return trained(self.made, rule, configs, weights, epochs, round_number)

    def losses_many(self, configs: Sequence[Config], weights: Weights) -> FloatArray:
        return losses(self.made, configs, weights)
