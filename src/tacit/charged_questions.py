"""What a tuner may do with a federation: a few verbs, each of which says what it charges.

A tuner is code that anybody may write. It gets a :class:`ChargedQuestions` instead of the server's
:class:`~tacit.federation.Federation`, which can also read ledgers, reach clients by the channel,
change the noise, and collect answers in the clear without a charge (for the training that follows a
choice). Python hides nothing from code that reads private attributes or frames. So this keeps a
tuner from seeing by mistake, or by a call that looks harmless, what nobody paid for; it does not
stop a program that attacks its own interpreter. Clients, who run elsewhere, trust only their own
ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TypeVar, final, get_args

import msgspec

from tacit.arrays import Arrays
from tacit.endpoint import encode
from tacit.federation import BoolArray, Federation, Sum
from tacit.privacy.bounds import Bound
from tacit.privacy.events import (
    ABOUT_RECORDS,
    CLIENT,
    Event,
    from_json,
    releases,
    to_json,
)
from tacit.query import InClear, Sums
from tacit.sgd import Weights
from tacit.space import Config

Question = TypeVar("Question")
_sums: msgspec.msgpack.Decoder[Sums] = msgspec.msgpack.Decoder(Sums)
_in_clear: msgspec.msgpack.Decoder[InClear] = msgspec.msgpack.Decoder(InClear)


@final
class ChargedQuestions:
    """All that a tuner sees of a federation.

    *Why nothing is free.* What comes from clients comes through :meth:`sum`, :meth:`reached`,
    :meth:`gather` or :meth:`average`. Each writes to the ledger before anybody is asked, or raises
    :class:`~tacit.privacy.ledger.BudgetExceeded`. What is written follows from the question and
    from noise that a tuner cannot change. A question must be of a class that clients know, and is
    decoded from its own bytes before it is priced and sent. So the price is that of the question
    which clients read: a subclass, of the question or of anything in it, could declare a smaller
    bound or more noise than clients keep to, and none survives the bytes. Likewise an event is
    priced as a ledger's line gives it back. The other verbs and numbers tell what was public before
    the run, or decided by the ledger alone.

    >>> from tacit.federation import local_federation
    >>> from tacit.privacy.accounting import Budget
    >>> from tacit.privacy.ledger import Ledger
    >>> from tacit.privacy.mechanisms import Participation
    >>> from tacit.query import Ballot
    >>> from tacit.task import FunctionClient
    >>> clients = [FunctionClient(lambda config: config["x"]) for _ in range(5)]
    >>> ledger = Ledger.in_memory("clinics", Budget(1.0, 1e-5))
    >>> built = local_federation(clients, Participation(5), ledger, "run", variance=60.0)
    >>> questions = ChargedQuestions(built)
    >>> questions.sum(Ballot(({"x": 0.1}, {"x": 0.9}), votes=1), label="vote").answered
    5
    >>> [charge.label for charge in ledger.charges()]
    ['vote']
    >>> questions.ledger
    Traceback (most recent call last):
        ...
    AttributeError: 'ChargedQuestions' object has no attribute 'ledger'
    """

    __slots__ = ("_federation",)

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def sum(self, query: Sums, label: str) -> Sum:
        """The noisy sum of everybody's answers. Charges the release of its bound, under its noise.

        Raises:
            BudgetExceeded: before anyone was asked.
            TooFewClients: when too many dropped out; what was charged stays charged.
            SpoiledSum: when the opened sum is none that valid answers give; likewise.
        """
        return self._federation.sum(_as_clients_read(query, _sums), label)

    def reached(self, query: Sums, at_least: int, label: str) -> BoolArray:
        """Which entries of the sum reach a threshold, raised by what noise alone reaches.

        Charges what :meth:`sum` charges, whether or not the secure sum opens more than this.
        """
        return self._federation.reached(_as_clients_read(query, _sums), at_least, label)

    def gather(self, query: InClear, label: str) -> list[Arrays]:
        """Everybody's answer in the clear. Charges an infinite epsilon."""
        return self._federation.gather(_as_clients_read(query, _in_clear), label)

    def average(self, query: InClear, label: str) -> Weights:
        """The mean of everybody's answers in the clear. Charges an infinite epsilon.

        Weights trained by DP-SGD charge what their steps cost a single record, if that is the unit.
        """
        return self._federation.average(_as_clients_read(query, _in_clear), label)

    def charge(self, event: Event, label: str) -> None:
        """Charges this event, for what the method itself does with data that it holds.

        Raises:
            BudgetExceeded: then the method must not do it.
        """
        self._federation.spend(self._allowed(event), label)

    def prepay(self, events: Mapping[str, Event]) -> None:
        """Charges these events by name, all or none, before the first question.

        Questions then take their lines; what is never asked stays charged.

        Raises:
            BudgetExceeded: before anything is charged.
        """
        self._federation.prepay({name: self._allowed(events[name]) for name in events})

    def _allowed(self, event: Event) -> Event:
        """The event as ledgers read it, without prices of the tuner's own; its unit is checked."""
        event = from_json(to_json(event))
        for release in releases(event):
            if isinstance(release, ABOUT_RECORDS) and not self._federation.record_level:
                raise ValueError(
                    f"a {type(release).__name__} protects single records; allowed in a method with "
                    f"the unit {CLIENT!r} are releases that protect clients"
                )
        return event

    def check(self, event: Event) -> None:
        """Refuse questions of which not all can be afforded, before the first. Charges nothing.

        Raises:
            BudgetExceeded: the ledger has less left than this event costs.
        """
        self._federation.check(event)

    def check_sums(self, *bounds: Bound) -> None:
        """The same for sums with these bounds, under the noise of this run. Charges nothing."""
        self._federation.check(self._federation.event_of(*bounds))

    def while_affordable(self) -> WhileAffordable:
        """A ``with`` block of rounds that ends when the budget does. Charges nothing.

        Only a run that was cut off, and paid for a round twice, ends early; any other raises
        :class:`~tacit.privacy.ledger.BudgetExceeded` as usual.
        """
        return WhileAffordable(self._federation)

    def tell(self, what: str, config: Config, reward: float | None = None) -> None:
        """Note that a round is over, for tables, logs and reports. Charges nothing."""
        self._federation.tell(what, config, reward)

    @property
    def variance(self) -> float:
        """The noise that a release needs under the budget: public, and fixed before the run."""
        return self._federation.variance

    @property
    def delta(self) -> float:
        """That of the federation's budget."""
        return self._federation.ledger.budget.delta

    @property
    def steps(self) -> int:
        """How finely fractions are counted in sums: finer than the noise would be no use."""
        return self._federation.steps

    @property
    def secure(self) -> str:
        """The name of the secure sum."""
        return self._federation.secure.name

    @property
    def run(self) -> str:
        """The name of this run."""
        return self._federation.run


@final
class WhileAffordable:
    """The block of :meth:`ChargedQuestions.while_affordable`.

    A class, since a generator's context manager would have the federation among its attributes.
    """

    __slots__ = ("_block",)

    def __init__(self, federation: Federation) -> None:
        self._block = federation.while_affordable()

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)


def _as_clients_read(query: Question, decoder: msgspec.msgpack.Decoder[Question]) -> Question:
    """The question that clients will decode: without classes, and so prices, of the tuner's own.

    Clients read the same types by the same library, and encoding what was decoded gives the same
    bytes.
    """
    allowed = get_args(decoder.type)
    if type(query) not in allowed:
        names = ", ".join(kind.__name__ for kind in allowed)
        raise TypeError(f"the question is a {type(query).__name__}; allowed here are {names}")
    try:
        return decoder.decode(encode(query))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(
            f"clients could not read the question, a {type(query).__name__}: {error}; give its "
            "fields values of the types that they declare"
        ) from None
