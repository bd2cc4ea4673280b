"""One client's side of a federation: it answers questions through its own noise and ledger.

It trusts its own configuration (how many clients there are, the roster, the least noise, its
ledger), not the wire, and it maps a state and a request to the next state and a reply, all bytes.
Each session has a state of its own (:mod:`tacit.states`), so several sums may be under way at once.
Requests are MessagePack arrays with a version; decoding checks every type and never runs code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct, structs

from tacit.closing import closed
from tacit.keeping import Unreadable
from tacit.privacy.accounting import spent
from tacit.privacy.events import Event, Unprotected
from tacit.privacy.ledger import BudgetExceeded, ChargedBefore, Ledger
from tacit.privacy.mechanisms import Mechanism, NoiseShare, Participation, check, mechanism_of
from tacit.privacy.skellam import IntArray
from tacit.punctual import evaluated
from tacit.query import InClear, LocalTraining, LocalValidation, SumQuery, Sums
from tacit.receipts import Receipt
from tacit.secure.crypto import DIGEST_BYTES, digest
from tacit.secure.encrypted import EncryptedParticipant
from tacit.secure.masks import MaskedParticipant
from tacit.secure.plain import PlainParticipant
from tacit.secure.protocol import ENCRYPTED, HIDING, MASKS, PLAIN, Participant, Refused, Round
from tacit.secure.roster import Identity, Roster
from tacit.sessions import ASKED_BEFORE, Sessions
from tacit.states import Finished, Heading, Kept, States, Waiting, from_bytes, to_bytes
from tacit.task import Client, NothingToSay

VERSION = 7
SESSION_BYTES = 32
LONGEST_DEADLINE = 86_400.0
FINISHING = 0.1
"""At least so much of the time until the first reply leaves is kept for what follows an evaluation,
and at least :data:`_ALLOWANCE` times as long as that took when it was tried before."""
_ALLOWANCE = 6.0


class AskSum(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A question whose answers will be summed; the reply opens the secure sum.

    ``line`` is the digest of the line that the server's ledger was charged with for this question:
    who signs a receipt for it pins that line, and all before it. With ``at_least``, the sum opens
    which entries reach that, and nothing else. A ``variance`` of 0 asks for no noise at all.
    ``dropout`` and ``colluding`` are counts of clients.
    """

    version: int
    session: bytes
    secure: str
    clients: int
    dropout: int
    colluding: int
    variance: float
    deadline: float
    line: bytes
    at_least: int | None
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


class Close(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """Asks for a signature that nothing was released in a session, and that nothing ever will be.

    The reply is the signature (:mod:`tacit.closing`).
    """

    version: int
    session: bytes


Message = AskSum | Continue | AskInClear | Close
_BEGINS = 1
"""The tag of a question that begins a sum."""

encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_questions: msgspec.msgpack.Decoder[AskSum] = msgspec.msgpack.Decoder(AskSum)
_raw: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])


def heading_of(request: bytes) -> Heading:
    """Which session a request is of, without a look at its content; or :class:`Refused`.

    Whoever keeps states finds the one of the session by this, before :meth:`Endpoint.handle`
    decodes the whole message.
    """
    try:
        tag, version, session, *_ = _raw.decode(request)
        found = msgspec.msgpack.decode(version, type=int)
        if found != VERSION:
            raise _other_version(found)
        kind = msgspec.msgpack.decode(tag, type=int)
        named = _checked_session(msgspec.msgpack.decode(session, type=bytes))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        _read(request)  # which says what is wrong
        raise Refused(f"the message cannot be read: {error}") from None
    return Heading(named.hex(), begins=kind == _BEGINS)


@dataclass(frozen=True)
class Endpoint:
    """One client's side, as the client itself configured it.

    *What leaves it.* A noisy vector is fixed before the first message of the secure sum and leaves
    only masked, once a session, after the client's own ledger was charged; an answer in clear
    leaves only if that ledger allows an infinite epsilon; trained weights leave only if the client
    agreed to train. A client whose evaluation fails, comes too late or has nothing to say casts a
    random valid answer with the same noise, so nobody can tell; and where there is a deadline, the
    first reply leaves exactly then, whatever the evaluation does: it has a process of its own,
    which is ended before (:mod:`tacit.punctual`).

    *Why the first reply is not late, or late for everybody.* Noise is drawn, and everything that
    follows the evaluation is tried on an abstention, before the evaluation begins. What follows is
    the same work for every answer and for none, and begins at the same time, long before the
    deadline by the measure of what the trial took. If a machine is too slow for that, its reply is
    late by as much whatever the data. A deadline that leaves no time for it is refused.

    ``participation`` None takes the server's word for how many clients there are and how many may
    drop out or collude; ``least_noise`` is the least variance this client will add, in squared
    distances of the worst pair of answers; ``secure`` is the kind of sum it takes, None for any
    that hides its answer.
    """

    number: int
    client: Client
    participation: Participation | None
    ledger: Ledger
    identity: Identity | None = None
    roster: Roster | None = None
    least_noise: float = 0.0
    secure: str | None = MASKS
    trains: bool = False
    record_level: bool = False
    """Whether weights trained by DP-SGD may leave, at what that costs for a single record."""
    punctual: bool = False
    """Whether the first reply waits for the deadline; with a roster there must be one then."""
    sessions: Sessions = field(default_factory=Sessions, repr=False)
    on_abstention: Callable[[Exception], None] = field(default=lambda _reason: None, repr=False)
    on_release: Callable[[Receipt], None] = field(default=lambda _receipt: None, repr=False)

    def answer(self, states: States, request: bytes) -> bytes:
        """The reply to a request, from the state of its session, which is kept before."""
        with states.open(heading_of(request)) as state:
            before = state.read()
            following, reply = self.handle(before, request)
            if following != before:
                state.write(following)
        return reply

    def handle(self, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        """The next state and the reply, or :class:`Refused`, which leaves everything as it was.

        ``state`` is that of the request's session (:func:`heading_of`), empty if there is none.
        """
        message, this = _read(request), _digest(request)
        kept = _known(state)
        if kept and kept.session != message.session:
            raise Refused("the message belongs to another session")
        if kept and kept.request == this:
            return state, kept.reply
        match message:
            case AskSum():
                return self._begin(kept, message, request)
            case Continue():
                following, reply = self._continue(kept, message, this)
            case Close():
                following, reply = self._close(kept, message, this)
            case AskInClear():
                return state, self._in_clear(message)
        return to_bytes(following), reply

    def _begin(self, kept: Kept | None, asked: AskSum, request: bytes) -> tuple[bytes, bytes]:
        begun = time.monotonic()
        if kept:
            raise Refused(ASKED_BEFORE)
        mechanism = self._accepted(asked)
        self.sessions.begin(asked.session.hex())
        question = _digest(request)
        participant = self._participant(asked, question, mechanism)

        def finished(noisy: IntArray) -> tuple[bytes, bytes]:
            step = participant.begin(noisy)
            waiting = Waiting(asked.session, request, step.state, question, step.reply)
            return to_bytes(waiting), step.reply

        share, stand_in = self._drawn(mechanism), mechanism.bound.abstention()
        if not self.punctual or math.isinf(asked.deadline):
            until = begun + asked.deadline
            return finished(share.added_to(self._answer(asked.query, stand_in, until)))
        tried = time.monotonic()
        finished(stand_in + stand_in)  # with keys of its own, and with no noise: it is thrown away
        now = time.monotonic()
        after = max(FINISHING * asked.deadline, _ALLOWANCE * (now - tried))
        left = begun + asked.deadline - after - now
        if left <= 0:
            raise Refused(
                f"the deadline is {asked.deadline:g} s; this client needs more than "
                f"{asked.deadline - left:.2g} s for noise and keys alone: set a longer deadline"
            )
        answer = self._answer(asked.query, stand_in, now + left)
        _wait(now + left + after / 2)  # an answer that came early waits for those that do not come
        following, reply = finished(share.added_to(answer))
        _wait(begun + asked.deadline)
        return following, reply

    def _accepted(self, asked: AskSum) -> Mechanism:
        """The noise for a question that this client is willing to answer, or :class:`Refused`."""
        taken = (self.secure,) if self.secure else HIDING
        if asked.secure not in taken:
            raise Refused(
                f"the sum would be {asked.secure!r}; this client takes "
                f"{' or '.join(map(repr, taken))}"
            )
        if len(asked.line) != DIGEST_BYTES:
            raise Refused(f"a ledger line's digest has {DIGEST_BYTES} bytes, not {len(asked.line)}")
        longest = LONGEST_DEADLINE if self.punctual and self.roster else math.inf
        if not 0 < asked.deadline <= longest:
            raise Refused(
                f"the deadline is {asked.deadline!r}; allowed is above 0 and up to {longest:g} s"
            )
        if self.ledger.knows(asked.session.hex()):
            raise Refused("this session was answered before")
        if not asked.variance and asked.secure != ENCRYPTED:
            raise Refused(f"a sum without noise is {ENCRYPTED!r} or not at all")
        if asked.at_least is not None and asked.secure != ENCRYPTED:
            raise Refused(f"only a sum of the kind {ENCRYPTED!r} opens what reaches a threshold")
        try:
            mechanism = self._mechanism(asked)
            if mechanism.share_noise < self.least_noise:
                raise Refused(
                    f"each client would add noise of {mechanism.share_noise:g} squared distances "
                    f"of answers; this client adds {self.least_noise:g} at least"
                )
            spent(mechanism.event, self.ledger.budget.delta)  # alone, as it will be recorded
            self.ledger.check(mechanism.event, "answer")
        except BudgetExceeded as error:
            raise Refused(f"this client's own budget: {error}") from None
        except (ValueError, ArithmeticError) as error:
            raise Refused(f"the question cannot be priced: {error}") from None
        return mechanism

    def _continue(self, kept: Kept | None, message: Continue, request: bytes) -> tuple[Kept, bytes]:
        if kept is None:
            raise Refused("no sum is under way")
        if isinstance(kept, Finished):
            raise Refused("this sum is over; it is answered once")
        try:
            asked, question = _questions.decode(kept.asked), _digest(kept.asked)
            if asked.session != kept.session:
                raise ValueError("the question is of another session")
            mechanism = self._mechanism(asked)
            participant = self._participant(asked, question, mechanism)
            step = participant.step(kept.sum_state, message.body)
        except (msgspec.DecodeError, RecursionError, ValueError):
            # Whoever may write the folder can forge a state whose digest fits.
            raise Refused("no sum is under way that can be gone on with") from None
        if step.releases:
            self._release(asked, question, mechanism, step.members)
        if step.finishes:
            self.sessions.finish(asked.session.hex())
            return Finished(asked.session, request, step.reply), step.reply
        following = structs.replace(kept, sum_state=step.state, request=request, reply=step.reply)
        return following, step.reply

    def _close(self, kept: Kept | None, message: Close, this: bytes) -> tuple[Kept, bytes]:
        """Sign that nothing of a session was released, after that was made sure of for ever.

        The secrets of a sum under way go with its state. A session that was never begun here
        counts as one of the day's, since it leaves a line in the ledger too.
        """
        if not self.identity or not self.roster:
            raise Refused("only a member of a roster closes a session")
        session = message.session.hex()
        if kept is None and not self.ledger.knows(session):
            self.sessions.count(session)
        if not self.ledger.bar(session):
            raise Refused("this session was answered before")
        reply = closed(self.identity, self.roster, self.number, message.session)
        return Finished(message.session, this, reply), reply

    def _release(
        self, asked: AskSum, question: bytes, mechanism: Mechanism, members: tuple[int, ...]
    ) -> None:
        """Charge before the vector leaves, once a session whatever became of the state."""
        session = asked.session.hex()
        try:
            self.ledger.charge(mechanism.event, "answer", run=session, once=True)
        except ChargedBefore:
            raise Refused("this session was answered before") from None
        except BudgetExceeded as error:
            raise Refused(f"this client's own budget: {error}") from None
        if self.identity and self.roster:
            self.on_release(
                Receipt.signed(
                    self.identity,
                    self.roster,
                    client=self.number,
                    session=session,
                    question=question.hex(),
                    line=asked.line.hex(),
                    event=mechanism.event,
                    left_out=sorted(set(range(asked.clients)) - set(members)) if members else [],
                )
            )

    def _in_clear(self, message: AskInClear) -> bytes:
        query = message.query
        if isinstance(query, LocalTraining | LocalValidation) and self.trains:
            return encode(query.answer(self.client))
        try:
            event: Event = Unprotected(type(query).__name__)
            if isinstance(query, LocalTraining) and self.record_level:
                event = query.event
            self.ledger.charge(event, "answer in clear", run=message.session.hex())
        except BudgetExceeded as error:
            raise Refused(f"this client's own budget: {error}") from None
        except (ValueError, ArithmeticError) as error:
            raise Refused(f"the question cannot be priced: {error}") from None
        try:
            return encode(query.answer(self.client))
        except NothingToSay:
            raise Refused("nothing to say") from None

    def _mechanism(self, asked: AskSum) -> Mechanism:
        try:
            said = Participation(asked.clients, asked.dropout, asked.colluding)
            if self.participation and self.participation != said:
                raise Refused(
                    f"the question is for {terms(said)}; this client knows of "
                    f"{terms(self.participation)}"
                )
            return mechanism_of(asked.query.bound, said, asked.variance)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _participant(self, asked: AskSum, question: bytes, mechanism: Mechanism) -> Participant:
        around = Round.of(asked.session, mechanism, question, asked.at_least)
        if asked.secure == ENCRYPTED:
            return EncryptedParticipant(around)
        if asked.secure == PLAIN:
            return PlainParticipant(around)
        return MaskedParticipant(around, self.number, self.identity, self.roster)

    def _drawn(self, mechanism: Mechanism) -> NoiseShare:
        """The noise of this client's answer."""
        return mechanism.draw()

    def _answer(self, query: SumQuery, stand_in: IntArray, until: float) -> IntArray:
        """The answer, or what stands in for it: whichever it is, it is noised in the same way."""
        try:
            if math.isinf(until):
                answer = query.answer(self.client)
            else:
                answer = evaluated(lambda: query.answer(self.client), until, len(stand_in))
            check(answer, query.bound)
        except Exception as error:  # whatever the user's code raises must not become a drop-out
            self.on_abstention(error)
            return stand_in
        return answer


def _wait(until: float) -> None:
    time.sleep(max(until - time.monotonic(), 0.0))


def _read(request: bytes) -> Message:
    """A whole message, or :class:`Refused`; of another version for that, whatever else differs."""
    try:
        message = _requests.decode(request)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        _check_version(request)
        raise Refused(f"the message cannot be read: {error}") from None
    if message.version != VERSION:
        raise _other_version(message.version)
    _checked_session(message.session)
    return message


def _checked_session(session: bytes) -> bytes:
    if len(session) != SESSION_BYTES:
        raise Refused(f"a session has {SESSION_BYTES} bytes, not {len(session)}")
    return session


def _digest(request: bytes) -> bytes:
    return digest(b"question", request)


def _known(state: bytes) -> Kept | None:
    """What is kept of the sum; what cannot be read is of one that cannot be gone on with."""
    try:
        return from_bytes(state) if state else None
    except Unreadable:
        return None


def _check_version(request: bytes) -> None:
    try:
        _tag, version, *_ = _raw.decode(request)
        found = msgspec.msgpack.decode(version, type=int)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return
    if found != VERSION:
        raise _other_version(found)


def _other_version(found: int) -> Refused:
    return Refused(f"the message has version {found}; this client has {VERSION}")


def terms(participation: Participation) -> str:
    """How many clients there are, in words."""
    return (
        f"{participation.clients} clients of which {participation.dropout} may drop out and "
        f"{participation.colluding} collude"
    )
