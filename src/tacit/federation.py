"""A federation: questions go out, clients answer through noise and a secure sum, totals come back.

There are two sides. :class:`Endpoint` is one client's: it trusts its own configuration (how many
clients there are, the roster, its ledger), not the wire, and it maps a state and a request to the
next state and a reply, all bytes. :class:`Federation` is the server's: it charges the federation's
ledger, then asks through a :class:`Channel`, which may lose messages and clients but not the order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from tacit.privacy.events import Unprotected
from tacit.privacy.ledger import BudgetExceeded, Charge, Ledger
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.privacy.skellam import IntArray
from tacit.query import (
    Arrays,
    InClear,
    LocalTraining,
    LocalValidation,
    NothingToSay,
    SumQuery,
    Sums,
)
from tacit.secure.crypto import digest
from tacit.secure.masks import MaskedParticipant
from tacit.secure.opening import MaskedSum
from tacit.secure.plain import PlainParticipant, PlainSum
from tacit.secure.protocol import Participant, Refused, Round, SecureSum, TooFewClients
from tacit.secure.roster import Identity, Roster
from tacit.task import Client

VERSION = 1
SESSION_BYTES = 32
EVALUATE = "evaluate"
Progress = Callable[[str, int, int], None]
"""Called with a stage, how many clients are through it, and how many there are."""


class EvaluationFailed(Exception):
    """Every simulated client failed, which is a mistake in the task rather than bad luck."""


class AskSum(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A question whose answers will be summed; the reply opens the secure sum."""

    version: int
    session: bytes
    secure: str
    variance: float
    query: Sums


class Continue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A later stage of a secure sum."""

    version: int
    session: bytes
    body: bytes


class AskInClear(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """A question whose answer is sent as it is."""

    version: int
    session: bytes
    query: InClear


class Waiting(Struct, frozen=True, array_like=True):
    """An endpoint between two stages."""

    session: bytes
    question: bytes
    variance: float
    query: Sums
    sum_state: bytes


_encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[AskSum | Continue | AskInClear] = msgspec.msgpack.Decoder(
    AskSum | Continue | AskInClear
)


@dataclass(frozen=True)
class Endpoint:
    """One client's side, as the client itself configured it.

    *What leaves it.* A noisy vector is fixed before the first message of the secure sum and leaves
    only masked, after the client's own ledger was charged; an answer in clear leaves only if that
    ledger allows an infinite epsilon; trained weights leave only if the client agreed to train. A
    client whose evaluation fails, comes too late or has nothing to say casts a random valid answer
    with the same noise, so nobody can tell.
    """

    number: int
    client: Client
    participation: Participation
    ledger: Ledger
    identity: Identity | None = None
    roster: Roster | None = None
    secure: str = "masks"
    deadline: float | None = None
    trains: bool = False
    on_abstention: Callable[[Exception], None] = field(default=lambda _reason: None, repr=False)

    def handle(self, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        """The next state and the reply, or :class:`Refused`, which leaves everything as it was."""
        try:
            message = _requests.decode(request)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refused(f"the message cannot be read: {error}") from None
        if message.version != VERSION:
            raise Refused(f"the message has version {message.version}; this client has {VERSION}")
        if len(message.session) != SESSION_BYTES:
            raise Refused(f"a session has {SESSION_BYTES} bytes, not {len(message.session)}")
        match message:
            case AskSum():
                return self._begin(message, digest(b"question", request))
            case Continue():
                return self._continue(state, message)
            case AskInClear():
                return state, self._in_clear(message)

    def _begin(self, message: AskSum, question: bytes) -> tuple[bytes, bytes]:
        if message.secure != self.secure:
            raise Refused(f"the sum would be {message.secure!r}; this client takes {self.secure!r}")
        if self.ledger.knows(message.session.hex()):
            raise Refused("this session was answered before")
        mechanism = self._mechanism(message.query, message.variance)
        try:
            self.ledger.check(mechanism.event, "answer")
        except BudgetExceeded as error:
            raise Refused(f"this client's own budget: {error}") from None
        noisy = self._noisy_answer(message.query, mechanism)
        step = self._participant(message.session, question, mechanism).begin(noisy)
        waiting = Waiting(message.session, question, message.variance, message.query, step.state)
        return _encode(waiting), step.reply

    def _continue(self, state: bytes, message: Continue) -> tuple[bytes, bytes]:
        if not state:
            raise Refused("no sum is under way")
        waiting = msgspec.msgpack.decode(state, type=Waiting)
        if message.session != waiting.session:
            raise Refused("the message belongs to another session")
        mechanism = self._mechanism(waiting.query, waiting.variance)
        participant = self._participant(waiting.session, waiting.question, mechanism)
        step = participant.step(waiting.sum_state, message.body)
        if step.releases:
            try:
                self.ledger.charge(mechanism.event, "answer", run=waiting.session.hex())
            except BudgetExceeded as error:
                raise Refused(f"this client's own budget: {error}") from None
        return _encode(structs.replace(waiting, sum_state=step.state)), step.reply

    def _in_clear(self, message: AskInClear) -> bytes:
        query = message.query
        if isinstance(query, LocalTraining | LocalValidation) and self.trains:
            return _encode(query.answer(self.client))
        try:
            event = Unprotected(type(query).__name__)
            self.ledger.charge(event, "answer in clear", run=message.session.hex())
            return _encode(query.answer(self.client))
        except BudgetExceeded as error:
            raise Refused(f"this client's own budget: {error}") from None
        except NothingToSay:
            raise Refused("nothing to say") from None

    def _mechanism(self, query: SumQuery, variance: float) -> SkellamMechanism:
        try:
            return SkellamMechanism(query.bound, self.participation, variance)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _participant(
        self, session: bytes, question: bytes, mechanism: SkellamMechanism
    ) -> Participant:
        around = Round.of(session, mechanism, question)
        if self.secure == "plain":
            return PlainParticipant(around)
        return MaskedParticipant(around, self.number, self.identity, self.roster)

    def _noisy_answer(self, query: SumQuery, mechanism: SkellamMechanism) -> IntArray:
        """The answer, or an abstention: whichever it is, checked and noised in the same way."""
        try:
            return mechanism.perturb(self._in_time(lambda: query.answer(self.client)))
        except Exception as error:  # whatever the user's code raises must not become a drop-out
            self.on_abstention(error)
            return mechanism.perturb(mechanism.bound.abstention())

    def _in_time(self, evaluate: Callable[[], IntArray]) -> IntArray:
        if self.deadline is None:
            return evaluate()
        outcome: list[IntArray | Exception] = []

        def work() -> None:
            try:
                outcome.append(evaluate())
            except Exception as error:
                outcome.append(error)

        # A thread cannot be stopped; as a daemon it does not keep the process alive either.
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(self.deadline)
        if not outcome:
            raise TimeoutError(f"the evaluation took longer than {self.deadline:g} s")
        found = outcome[0]
        if isinstance(found, Exception):
            raise found
        return found


class Channel(Protocol):
    """How requests reach clients."""

    @property
    def clients(self) -> Sequence[int]:
        """Who can be asked."""

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """One request each; who does not answer, or refuses, is missing from the replies."""


@dataclass
class LocalChannel:
    """All clients in this process. ``drops`` makes some of them vanish from a named stage on.

    Only here, where all clients are simulated, may anyone notice that every one of them abstained.
    """

    endpoints: Sequence[Endpoint]
    drops: Mapping[int, str] = field(default_factory=dict)
    progress: Progress = lambda _stage, _done, _total: None
    abstentions: list[Exception] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._states = dict.fromkeys(self.clients, b"")
        self._gone: set[int] = set()

    @property
    def clients(self) -> Sequence[int]:
        return range(len(self.endpoints))

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        replies: dict[int, bytes] = {}
        self._gone |= {client for client, when in self.drops.items() if when == stage}
        for done, (client, request) in enumerate(requests.items(), start=1):
            if client not in self._gone:
                try:
                    state, reply = self.endpoints[client].handle(self._states[client], request)
                    self._states[client], replies[client] = state, reply
                except Refused as reason:
                    self.refusals[str(reason)] += 1
            self.progress(stage, done, len(requests))
        if stage == EVALUATE and len(self.abstentions) == len(self.endpoints):
            first = self.abstentions[0]
            raise EvaluationFailed(
                f"not one client could score the candidates; the first of them: {first!r}"
            ) from first
        return replies


@dataclass
class StageCost:
    """What one stage took: seconds on the wall, bytes of all clients together."""

    seconds: float = 0.0
    up: int = 0
    down: int = 0


@dataclass(frozen=True)
class Sum:
    """An opened total, how many clients are in it, and what it cost."""

    value: IntArray
    asked: int
    answered: int
    charge: Charge


@dataclass
class Federation:
    """The server's side. ``variance`` is the noise that one release needs under the budget."""

    channel: Channel
    secure: SecureSum
    ledger: Ledger
    participation: Participation
    run: str
    variance: float = 0.0
    signed: bool = False
    costs: dict[str, StageCost] = field(default_factory=dict)
    turnouts: list[tuple[int, int]] = field(default_factory=list)
    """How many clients each charged question asked, and how many answers it used."""

    def sum(self, query: Sums, label: str) -> Sum:
        """Charge, ask, open.

        Raises:
            BudgetExceeded: before anyone was asked.
            TooFewClients: when too many dropped out; what was charged stays charged.
            SpoiledSum: when what clients shared does not fit together; likewise.
        """
        mechanism = SkellamMechanism(query.bound, self.participation, self.variance)
        charge = self.ledger.charge(mechanism.event, label, self.run)
        session = token_bytes(SESSION_BYTES)
        question = _encode(AskSum(VERSION, session, self.secure.name, self.variance, query))
        clients = list(self.channel.clients)
        first = self._ask(EVALUATE, dict.fromkeys(clients, question))

        def carry(stage: str, bodies: Mapping[int, bytes]) -> Mapping[int, bytes]:
            once = {id(body): _encode(Continue(VERSION, session, body)) for body in bodies.values()}
            return self._ask(stage, {client: once[id(body)] for client, body in bodies.items()})

        around = Round.of(session, mechanism, digest(b"question", question))
        total = self.secure.total(around, first, carry)
        self.turnouts.append((len(clients), len(total.survivors)))
        return Sum(total.value, len(clients), len(total.survivors), charge)

    def gather(self, query: InClear, label: str) -> list[Arrays]:
        """Everybody's answer in clear: for published baselines; books an infinite epsilon."""
        self.ledger.charge(Unprotected(type(query).__name__), label, self.run)
        answers = self.collect(query, stage=label)
        self.turnouts.append((len(self.channel.clients), len(answers)))
        return answers

    def collect(self, query: InClear, stage: str) -> list[Arrays]:
        """Answers in clear without a charge: for the training that follows a choice."""
        session = token_bytes(SESSION_BYTES)
        request = _encode(AskInClear(VERSION, session, query))
        replies = self._ask(stage, dict.fromkeys(self.channel.clients, request))
        if len(replies) < self.participation.threshold:
            raise TooFewClients(stage, len(replies), self.participation.threshold)
        return [msgspec.msgpack.decode(reply, type=Arrays) for reply in replies.values()]

    def _ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        cost = self.costs.setdefault(stage, StageCost())
        start = time.perf_counter()
        replies = self.channel.ask(stage, requests)
        cost.seconds += time.perf_counter() - start
        cost.down += sum(map(len, requests.values()))
        cost.up += sum(map(len, replies.values()))
        return replies


def local_federation(
    clients: Sequence[Client],
    participation: Participation,
    ledger: Ledger,
    run: str,
    variance: float,
    *,
    secure: str = "masks",
    roster: bool = True,
    deadline: float | None = None,
    trains: bool = False,
    drops: Mapping[int, str] | None = None,
    progress: Progress | None = None,
) -> Federation:
    """A federation in one process: real keys, real masks, one place.

    Every simulated client gets a ledger of its own with the federation's budget, in memory, because
    such clients end with the process.
    """
    if len(clients) != participation.clients:
        raise ValueError(f"found {len(clients)} clients; planned are {participation.clients}")
    identities = [Identity.new() for _ in clients] if roster else []
    listed = Roster(tuple(identity.public_key for identity in identities)) if roster else None
    abstentions: list[Exception] = []
    endpoints = [
        Endpoint(
            number=number,
            client=client,
            participation=participation,
            ledger=Ledger.in_memory(f"client-{number}", ledger.budget),
            identity=identities[number] if roster else None,
            roster=listed,
            secure=secure,
            deadline=deadline,
            trains=trains,
            on_abstention=abstentions.append,
        )
        for number, client in enumerate(clients)
    ]
    channel = LocalChannel(endpoints, drops or {}, progress or (lambda *_: None), abstentions)
    sums: dict[str, SecureSum] = {"masks": MaskedSum(listed), "plain": PlainSum()}
    return Federation(channel, sums[secure], ledger, participation, run, variance, signed=roster)
