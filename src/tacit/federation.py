"""A federation's server side: charge the ledger, ask through a channel, open the total.

The clients' side is :class:`tacit.endpoint.Endpoint`. A :class:`Channel` between them may lose
messages and clients but not the order; :class:`LocalChannel` keeps everybody in this process.
"""

from __future__ import annotations

import json
import math
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_bytes
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.arrays import (
    OTHER_KIND,
    OTHER_NUMBER,
    OTHER_SHAPE,
    OTHER_SIZE,
    UNREADABLE,
    Array,
    Arrays,
    mean_of,
    mean_of_models,
)
from tacit.closing import not_closed
from tacit.combining import EXACT_STEPS, STEPS
from tacit.endpoint import (
    SESSION_BYTES,
    VERSION,
    AskInClear,
    AskSum,
    Close,
    Continue,
    Endpoint,
    encode,
)
from tacit.files import json_text
from tacit.journal import Journal, Piece, Row, array, check_piece, unusable
from tacit.plausible import check_reached, check_sum
from tacit.privacy.accounting import spent
from tacit.privacy.bounds import Bound
from tacit.privacy.events import Composed, Event, Unprotected, compose, covers, releases
from tacit.privacy.ledger import BudgetExceeded, Charge, Ledger
from tacit.privacy.mechanisms import Participation, mechanism_of
from tacit.privacy.skellam import IntArray
from tacit.query import InClear, LocalTraining, Sums
from tacit.secure.crypto import KEY_BYTES, derive, digest
from tacit.secure.encrypted import EncryptedSum
from tacit.secure.opening import MaskedSum
from tacit.secure.plain import PlainSum
from tacit.secure.protocol import (
    ENCRYPTED,
    MASKS,
    PLAIN,
    Ask,
    Fault,
    Refused,
    Round,
    SecureSum,
    SpoiledSum,
    TooFewClients,
    Total,
)
from tacit.secure.roster import Identity, Roster
from tacit.sgd import Weights
from tacit.space import Config
from tacit.states import StatesInMemory
from tacit.task import Client
from tacit.transcripts import ClosedRecord, Record

EVALUATE = "evaluate"
CLOSE = "close"
MEMBERS = "members"
"""What the journal of a run in one process calls the seed of its simulated members' keys."""
SIMULATED = "a simulation: one process plays the server and all clients, and holds every key"
ONE_HOLDER = "one holder of data trained on its own records; no client was asked"
BoolArray = npt.NDArray[np.bool_]
_Entry = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Clients = tuple[Annotated[int, Meta(ge=1, le=2**31)], Annotated[int, Meta(ge=1, le=2**31)]]
_OF_ANOTHER_FORM = (OTHER_NUMBER, OTHER_KIND, OTHER_SHAPE, OTHER_SIZE)
Progress = Callable[[str, int, int], None]
"""Called with a stage, how many clients are through it, and how many there are."""


class EvaluationFailed(Exception):
    """Every simulated client failed, which is a mistake in the task rather than bad luck."""


class EngineFailed(Exception):
    """The engine that carries the messages did not do its work; the text says what it said."""


class TooFewUsable(TooFewClients):
    """Clients answered in clear, and too few of the answers were of any use."""

    def __init__(self, stage: str, usable: int, needed: int, reasons: Counter[str]) -> None:
        Exception.__init__(
            self,
            f"only {usable} answers at the stage {stage!r} can be used; {needed} are needed "
            f"({in_words(reasons)}), so the run was given up: look at the clients, and where "
            "numbers are not finite, try a smaller learning rate",
        )


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
        self._states = {client: StatesInMemory() for client in self.clients}
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
                    endpoint, states = self.endpoints[client], self._states[client]
                    replies[client] = endpoint.answer(states, request)
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
    """What one stage took: requests to everybody, seconds on the wall, bytes of all together."""

    exchanges: int = 0
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
    variance: float
    """Of the noise in each entry, as its question asked for it."""


@dataclass(frozen=True)
class RoundNote:
    """One round of a method that trains; everything in it is public.

    ``reward`` is the noisy mean that the round opened, if it did; ``epsilon`` what the run has cost
    so far.
    """

    number: int
    what: str
    config: Config
    reward: float | None
    epsilon: float

    def to_json(self) -> str:
        """One line of text."""
        return json_text(asdict(self), indent=None)

    @classmethod
    def from_json(cls, text: str) -> RoundNote:
        """The note of such a line."""
        found = json.loads(text)
        return cls(**{**found, "epsilon": float(found["epsilon"])})


class _Opened(Row):
    """A sum in the journal."""

    asks: str
    line: str
    clients: _Clients
    value: list[_Entry]


class _Averaged(Row):
    """A mean in the journal: of each array its kind, its shape and its bytes."""

    asks: str
    line: str
    clients: _Clients
    arrays: list[tuple[str, tuple[int, ...], str]]


class _Noted(msgspec.Struct):
    """What both have."""

    line: str


def kind_of_piece(piece: Piece) -> Any:
    """Of the journal of a run: what was opened has numbers, everything else is a name."""
    return _Noted if isinstance(piece, int) else str


Watch = Callable[[RoundNote], None]
"""Called when a round is over."""


@dataclass
class Federation:
    """The server's side. ``variance`` is the noise that one release needs under the budget.

    An opened total is public, so it may be written to a ``journal`` and, after a kill, read from
    there by a run of the same name: that costs nothing. What was charged but never opened is asked
    and charged anew.
    """

    channel: Channel
    secure: SecureSum
    ledger: Ledger
    participation: Participation
    run: str
    variance: float = 0.0
    roster: Roster | None = None
    """Whose members sign; without it, nobody's word counts but the server's."""
    deadline: float = math.inf
    setting: str = SIMULATED
    record_level: bool = False
    """Whether guarantees may be about single records instead of clients."""
    follows: str = ""
    """What happens next that no epsilon of ours covers."""
    journal: Journal | None = None
    costs: dict[str, StageCost] = field(default_factory=dict)
    turnouts: list[tuple[int, int]] = field(default_factory=list)
    """How many clients each charged question asked, and how many answers it used."""
    rounds: list[RoundNote] = field(default_factory=list)
    """What methods that train told of their rounds."""
    watch: Watch = lambda _note: None
    transcripts: Path | None = None
    """A folder for what was signed during every sum, so that anybody can compute it again.

    Of a sum that stayed closed it gets the evidence against whoever misbehaved.
    """
    unkept: int = 0
    """Transcripts that were too large to keep."""
    faults: dict[Fault, None] = field(default_factory=dict)
    """Who misbehaved, in the order in which it was found."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Why answers in clear were left out, and how many; see :meth:`collect`."""
    prepaid: list[Charge] = field(default_factory=list)
    """Lines that were charged for questions that may yet be asked; see :meth:`prepay`."""
    prepays: bool = False
    """Whether all questions were charged before the first."""
    shortened: bool = False
    """Whether the run had to end early, since it was cut off before and paid for rounds twice."""

    def sum(self, query: Sums, label: str) -> Sum:
        """Charge, ask, open.

        Raises:
            BudgetExceeded: before anyone was asked.
            TooFewClients: when too many dropped out; what was charged stays charged.
            SpoiledSum: when what clients shared does not fit together, or the opened sum is none
                that valid answers and their noise give (:mod:`tacit.plausible`); likewise.
        """
        return self._opened(query, label)

    @property
    def steps(self) -> int:
        """How finely fractions are counted in sums: finer than the noise would be no use."""
        return STEPS if self.variance else EXACT_STEPS

    def check(self, event: Event) -> None:
        """Refuse questions of which not all can be afforded, before the first is asked.

        A run that goes on was looked at when it began, unless all that it paid for was closed.
        """
        if all(charge.state == "closed" for charge in self._own_charges()):
            self.ledger.check(event, "all questions of this run")

    def prepay(self, events: Mapping[str, Event]) -> None:
        """Charge for everything that may be asked, by name, before the first question.

        A line each release, all of them or none; a question takes its line when it is asked. What
        is never asked stays paid: how many questions there are may then depend on answers. Within
        what is prepaid, nothing more is: a method among others finds its lines.

        A run that goes on has its lines from the ledger, which also knows whose questions went out:
        those are spent, opened or not, whatever the journal says. Lines that were closed count no
        longer, and are charged again. If the ledger never held all of what is declared now, the
        run did not pay in this way, and everything is charged.

        Raises:
            BudgetExceeded: before anything is charged.
        """
        if self.prepays:
            return
        if self.turnouts:
            raise ValueError(
                f"{len(self.turnouts)} questions were asked before everything was paid for; "
                "allowed is to prepay before the first"
            )
        declared, own = releases(Composed(tuple(events.values()))), self._own_charges()
        if declared <= releases(compose(charge.event for charge in own)):
            counting = (charge.event for charge in own if charge.state != "closed")
            unpaid = declared - releases(compose(counting))  # what was closed is paid for again
        else:
            unpaid = declared
        asked = []
        for name in events:
            for one in releases(events[name]).elements():
                if unpaid[one]:
                    unpaid[one] -= 1
                    asked.append((name, one))
        self.ledger.charge_all(asked, self.run)
        self.prepaid = [charge for charge in self._own_charges() if charge.state == "charged"]
        self.prepays = True

    def _own_charges(self) -> list[Charge]:
        return [charge for charge in self.ledger.charges() if charge.run == self.run]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Carry out the run in this process only, after :meth:`settle`.

        Raises:
            LedgerError: when another process is carrying out the run.
        """
        with self.ledger.hold(self.run):
            self.settle()
            yield

    def settle(self) -> int:
        """Have what a killed run asked, and nobody answered, signed off; how much of it was.

        A charge whose question went out counts as spent, unless every member that was asked signs
        that it released nothing and never will (:mod:`tacit.closing`).
        """
        open_ended = [charge for charge in self._own_charges() if charge.state == "asked"]
        return sum(self._closed(charge) for charge in open_ended)

    def _closed(self, charge: Charge) -> bool:
        """Ask everybody to close a session; whether all did."""
        if self.roster is None or charge.roster != self.roster.digest.hex():
            return False
        session = bytes.fromhex(charge.session)
        request = encode(Close(VERSION, session))
        replies = self._ask(CLOSE, dict.fromkeys(self.channel.clients, request))
        if not_closed(self.roster, session, replies):
            return False
        signatures = {str(client): reply.hex() for client, reply in replies.items()}
        self.ledger.close(charge.session, {"signatures": signatures})
        return True

    def spend(self, event: Event, label: str) -> Charge:
        """Charge for something that is released in any case; nothing else takes its line."""
        return self._reserved(event, label, token_bytes(SESSION_BYTES), sealed=True)

    def _reserved(
        self, event: Event, label: str, session: bytes, *, sealed: bool = False
    ) -> Charge:
        """The line that pays for a session's question, from what was prepaid or new.

        Best the line of this very release; otherwise one of a release that reveals no less. It is
        on record, before anybody is asked, that this session asks on it.
        """
        same = (charge for charge in self.prepaid if charge.event == event)
        larger = (charge for charge in self.prepaid if covers(charge.event, event))
        charge = next(same, None) or next(larger, None)
        named, roster = session.hex(), self.roster.digest.hex() if self.roster else ""
        if charge is None:
            charge = self.ledger.charge_and_ask(event, label, self.run, named, roster)
        else:
            self.ledger.ask(charge, named, roster)
            self.prepaid.remove(charge)
        if sealed:
            self.ledger.seal(named)
        return charge

    def event_of(self, *bounds: Bound) -> Event:
        """What sums with these bounds cost together."""
        asked = (mechanism_of(bound, self.participation, self.variance) for bound in bounds)
        return Composed(tuple(mechanism.event for mechanism in asked))

    @contextmanager
    def while_affordable(self) -> Iterator[None]:
        """Rounds until the budget is spent.

        A run that was cut off within a round has paid for it; when it goes on, the round is paid
        for again, and the last one is not held. What stops is public: the ledger alone decides.
        """
        try:
            yield
        except BudgetExceeded:
            if not self._lost():
                raise
            self.shortened = True

    def _lost(self) -> set[str]:
        """Lines that were charged before a kill, and never opened."""
        if not self.journal or not self.turnouts:
            return set()
        asked = {c.digest for c in self._own_charges() if c.state in ("asked", "sealed")}
        opened = (self.journal.pieces.get(place) for place in range(len(self.turnouts)))
        return asked - {noted["line"] for noted in opened if noted}

    def reached(self, query: Sums, at_least: int, label: str) -> BoolArray:
        """Which entries of the sum reach a threshold, which is raised by what noise alone reaches.

        A secure sum that can opens just that; any other opens the sum, and it is compared here.
        Either costs what the sum costs. Noise would carry empty entries over a low threshold: it is
        raised so far that one of them does so in at most one of twenty sums.
        """
        threshold = at_least + noise_margin(query.bound, self.participation, self.variance)
        if self.secure.opens_thresholds:
            return self._opened(query, label, threshold).value.astype(np.bool_)
        return self._opened(query, label).value >= threshold

    def _opened(self, query: Sums, label: str, at_least: int | None = None) -> Sum:
        place, asks = len(self.turnouts), self._digest(query, label, at_least)
        mechanism = mechanism_of(query.bound, self.participation, self.variance)
        length = query.bound.length
        known = self._recalled(place, asks, length, mechanism.share_variance)
        if known:
            self.turnouts.append((known.asked, known.answered))
            return known
        if not self.variance and self.secure.name != ENCRYPTED:
            raise ValueError(
                f"the sums are {self.secure.name!r} and would have no noise; allowed is that with "
                f"{ENCRYPTED!r} sums only: give a finite epsilon"
            )
        session = token_bytes(SESSION_BYTES)
        self.secure.check(Round.of(session, mechanism, at_least=at_least))
        charge = self._reserved(mechanism.event, label, session)
        question = encode(self._question(session, charge, query, at_least))
        clients = list(self.channel.clients)
        first = self._ask(EVALUATE, dict.fromkeys(clients, question))

        def carry(stage: str, bodies: Mapping[int, bytes]) -> Mapping[int, bytes]:
            if stage == self.secure.sealing:
                self.ledger.seal(session.hex())
            once = {id(body): encode(Continue(VERSION, session, body)) for body in bodies.values()}
            return self._ask(stage, {client: once[id(body)] for client, body in bodies.items()})

        around = Round.of(session, mechanism, digest(b"question", question), at_least)
        try:
            total = self._total(around, first, carry)
        except (TooFewClients, SpoiledSum) as error:
            self._keep(ClosedRecord(question, error.evidence), charge)
            # If it was given up before anything was sealed, and all are there, all sign so.
            if len(first) == self.participation.clients:
                self.settle()
            raise
        self._keep(Record(question, total.transcript, total.value.tolist()), charge)
        members, share = len(total.survivors), mechanism.share_variance
        if at_least is None:
            check_sum(total.value, query.bound, members, share)
        else:  # each entry is opened as 0 or 1, whatever was added
            check_reached(int(total.value.sum()), at_least, query.bound, members, share)
        noise = mechanism.share_variance * len(total.survivors)
        opened = Sum(total.value, len(clients), len(total.survivors), charge, noise)
        if self.journal:
            self.journal.add(place, _line(opened, asks))
        self.turnouts.append((opened.asked, opened.answered))
        return opened

    def _total(self, around: Round, first: Mapping[int, bytes], carry: Ask) -> Total:
        """Open the sum, and remember who misbehaved even if it stays closed."""
        try:
            total = self.secure.total(around, first, carry)
        except (TooFewClients, SpoiledSum) as error:
            self.faults |= dict.fromkeys(error.faults)
            raise
        self.faults |= dict.fromkeys(total.faults)
        return total

    def _keep(self, record: Record | ClosedRecord, charge: Charge) -> None:
        if self.transcripts and record.transcript:
            self.unkept += not record.keep(self.transcripts, charge.digest)

    def tell(self, what: str, config: Config, reward: float | None = None) -> None:
        """A round is over: for tables, logs and reports."""
        counting = (charge.event for charge in self._own_charges() if charge.state != "closed")
        epsilon = spent(compose(counting), self.ledger.budget.delta).epsilon
        self.rounds.append(RoundNote(len(self.rounds) + 1, what, config, reward, epsilon))
        self.watch(self.rounds[-1])

    def gather(self, query: InClear, label: str) -> list[Arrays]:
        """Everybody's answer in clear: for published baselines; books an infinite epsilon."""
        self.spend(Unprotected(type(query).__name__), label)
        answers = self.collect(query, stage=label)
        self.turnouts.append((len(self.channel.clients), len(answers)))
        return answers

    def average(self, query: InClear, label: str) -> Weights:
        """The mean of everybody's answers in clear; books an infinite epsilon, once a round.

        Weights trained by DP-SGD cost a finite one for single records, if the federation agreed to
        count those. The mean is written to the journal like an opened total.
        """
        place, asks = len(self.turnouts), self._digest(query, label, None)
        noted: dict[str, Any] | None = self._noted(place, asks, _Averaged)
        if noted is None:
            event: Event = Unprotected(type(query).__name__)
            if isinstance(query, LocalTraining) and self.record_level:
                event = query.event
            charge = self.spend(event, label)
            answers = self.collect(query, stage=label.split()[0])
            models = isinstance(query, LocalTraining)  # one of several may not be finite
            mean = (mean_of_models if models else mean_of)(answers)
            noted = {
                "asks": asks,
                "line": charge.digest,
                "clients": [len(self.channel.clients), len(answers)],
                "arrays": [_text_of(Array.of(array)) for array in mean],
            }
            if self.journal:
                self.journal.add(place, noted)
        elif self.journal:
            self._check_mean(self.journal, place, noted, query)
        asked, answered = noted["clients"]
        self.turnouts.append((asked, answered))
        return tuple(_array_of(text).numpy() for text in noted["arrays"])

    def _check_mean(
        self, journal: Journal, place: int, noted: Mapping[str, Any], query: InClear
    ) -> None:
        """Refuse a mean out of the journal that cannot be one of answers to the question."""
        try:
            mean = tuple(_array_of(text) for text in noted["arrays"])
            why = query.unfit(mean)
        except ValueError as error:
            raise unusable(journal.path, place, str(error)) from None
        if why in _OF_ANOTHER_FORM:
            raise unusable(journal.path, place, why)

    def collect(self, query: InClear, stage: str) -> list[Arrays]:
        """Answers in clear without a charge: for the training that follows a choice.

        No tuner can call this (:mod:`tacit.charged_questions`).

        Every answer is checked by itself against what the question expects. One that is malformed,
        of another shape or not finite is left out and counted: it costs its client its place in
        this question, and nobody else anything.

        Raises:
            TooFewClients: when fewer than the threshold answered, or can be used.
        """
        session = token_bytes(SESSION_BYTES)
        request = encode(AskInClear(VERSION, session, query))
        replies = self._ask(stage, dict.fromkeys(self.channel.clients, request))
        needed, reasons = self.participation.threshold, Counter[str]()
        if len(replies) < needed:
            raise TooFewClients(stage, len(replies), needed)
        usable: list[Arrays] = []
        for reply in replies.values():
            answer, why = _read(query, reply)
            if why:
                reasons[why] += 1
            else:
                usable.append(answer)
        self.unusable += reasons
        if len(usable) < needed:
            raise TooFewUsable(stage, len(usable), needed, reasons)
        return usable

    def _question(
        self, session: bytes, charge: Charge, query: Sums, at_least: int | None
    ) -> AskSum:
        return AskSum(
            version=VERSION,
            session=session,
            secure=self.secure.name,
            clients=self.participation.clients,
            dropout=self.participation.dropout,
            colluding=self.participation.colluding,
            variance=self.variance,
            deadline=self.deadline,
            line=bytes.fromhex(charge.digest),
            at_least=at_least,
            query=query,
        )

    def _digest(self, query: Sums | InClear, label: str, at_least: int | None) -> str:
        terms = f"{label} {self.participation} {self.variance!r}"
        if at_least is not None:
            terms += f" at least {at_least}"
        return digest(b"asked", terms.encode(), encode(query)).hex()

    def _recalled(self, place: int, asks: str, length: int, share_variance: float) -> Sum | None:
        """The total that a killed run of this name opened at this place, if it did."""
        noted = self._noted(place, asks, _Opened)
        if noted is None or self.journal is None:
            return None
        check_piece(self.journal.path, place, noted["value"], array(int, length))
        charge = next(c for c in self.ledger.charges() if c.digest == noted["line"])
        asked, answered = noted["clients"]
        value = np.array(noted["value"], dtype=np.int64)
        return Sum(value, asked, answered, charge, share_variance * answered)

    def _noted(self, place: int, asks: str, kind: type[Row]) -> dict[str, Any] | None:
        """What the journal holds for this place, if it is an answer to this question."""
        if self.journal is None or place not in self.journal.pieces:
            return None
        noted: dict[str, Any] = self.journal.pieces[place]
        check_piece(self.journal.path, place, noted, kind)
        if noted["asks"] != asks:
            raise ValueError(
                f"the run {self.run!r} asked another question before it was ended; with another "
                "plan, budget or seed, begin a new run"
            )
        if all(charge.digest != noted["line"] for charge in self.ledger.charges()):
            raise ValueError(
                f"the ledger does not hold the charge of the run {self.run!r}; give it its own"
            )
        return noted

    def _ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        cost = self.costs.setdefault(stage, StageCost())
        start = time.perf_counter()
        replies = self.channel.ask(stage, requests)
        cost.exchanges += 1
        cost.seconds += time.perf_counter() - start
        cost.down += sum(map(len, requests.values()))
        cost.up += sum(map(len, replies.values()))
        return replies


def in_words(reasons: Counter[str]) -> str:
    """How many answers were left out for which reason.

    >>> in_words(Counter({"another number of arrays": 2, "it cannot be read": 1}))
    '2: another number of arrays; 1: it cannot be read'
    """
    return "; ".join(f"{times}: {reason}" for reason, times in reasons.items())


def _read(query: InClear, reply: bytes) -> tuple[Arrays, str]:
    """An answer in clear, and why it cannot be used, if so."""
    try:
        answer = msgspec.msgpack.decode(reply, type=Arrays)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return (), UNREADABLE
    return answer, query.unfit(answer)


def noise_margin(bound: Bound, participation: Participation, variance: float) -> int:
    """What noise alone reaches in any entry of a sum, in at most one of twenty sums."""
    from scipy.special import ndtri

    delivered = mechanism_of(bound, participation, variance).delivered_variance
    return math.ceil(-float(ndtri(0.05 / bound.length)) * math.sqrt(delivered))


def secure_sum(name: str, roster: Roster | None) -> SecureSum:
    """The server's half of the secure sum of this name."""
    sums: dict[str, SecureSum] = {
        MASKS: MaskedSum(roster),
        PLAIN: PlainSum(),
        ENCRYPTED: EncryptedSum(),
    }
    return sums[name]


def _text_of(array: Array) -> list[Any]:
    return [array.kind, list(array.shape), b64encode(array.data).decode()]


def _array_of(text: Sequence[Any]) -> Array:
    kind, shape, data = text
    return Array(kind, tuple(shape), b64decode(data))


def _line(opened: Sum, asks: str) -> dict[str, Any]:
    """An opened total as a line of a journal."""
    return {
        "asks": asks,
        "line": opened.charge.digest,
        "clients": [opened.asked, opened.answered],
        "value": opened.value.tolist(),
    }


def local_federation(
    clients: Sequence[Client],
    participation: Participation,
    ledger: Ledger,
    run: str,
    variance: float,
    *,
    secure: str = MASKS,
    roster: bool = True,
    deadline: float = math.inf,
    trains: bool = False,
    record_level: bool = False,
    drops: Mapping[int, str] | None = None,
    progress: Progress | None = None,
    journal: Journal | None = None,
) -> Federation:
    """A federation in one process: real keys, real masks, one place.

    Every simulated client gets a ledger of its own with the federation's budget, in memory, because
    such clients end with the process.
    """
    if len(clients) != participation.clients:
        raise ValueError(f"found {len(clients)} clients; planned are {participation.clients}")
    identities = _signing_keys(len(clients), journal) if roster else []
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
            trains=trains,
            record_level=record_level,
            on_abstention=abstentions.append,
        )
        for number, client in enumerate(clients)
    ]
    channel = LocalChannel(endpoints, drops or {}, progress or (lambda *_: None), abstentions)
    return Federation(
        channel,
        secure_sum(secure, listed),
        ledger,
        participation,
        run,
        variance,
        roster=listed,
        deadline=deadline,
        record_level=record_level,
        journal=journal,
    )


def _signing_keys(clients: int, journal: Journal | None) -> list[Identity]:
    """The keys with which simulated members sign, the same ones when a run goes on.

    A process that goes on plays the members of the process that was killed. So it can truthfully
    sign what they would: of a charge whose sealing is not on record, no answer left. Their seed is
    in the journal. They protect nobody from this process, which plays all of them.
    """
    seed = journal.pieces.get(MEMBERS) if journal else None
    if seed is None:
        seed = token_bytes(KEY_BYTES).hex()
        if journal:
            journal.add(MEMBERS, seed)
    try:
        secret = bytes.fromhex(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"the journal in {journal.path.parent if journal else 'memory'} has no readable "
            f"{MEMBERS!r}; take the file from a copy"
        ) from None
    return [
        Identity(derive(secret, b"simulated member", str(number).encode()))
        for number in range(clients)
    ]


def lone_holder(
    ledger: Ledger, run: str, variance: float, journal: Journal | None = None
) -> Federation:
    """For methods in which one holder of data asks nobody."""
    channel = LocalChannel([], {}, lambda *_: None, [])
    return Federation(
        channel,
        secure_sum(PLAIN, None),
        ledger,
        Participation(2, 0.0),
        run,
        variance,
        setting=ONE_HOLDER,
        record_level=True,
        journal=journal,
    )
