"""A tuner sees nothing that was not charged: malicious tuners try every door they could find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from tacit import job
from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.combining import CellCounts, Kept
from tacit.endpoint import Endpoint
from tacit.federation import Federation, LocalChannel
from tacit.journal import Journal
from tacit.local_search import LocalSearch
from tacit.plan import load_plan
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import (
    Composed,
    Event,
    SampledGaussian,
    SkellamRelease,
    Unprotected,
)
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.query import Ballot, LocalTraining, LocalValidation
from tacit.rules import DpSgd
from tacit.secure.protocol import SecureSum
from tacit.secure.roster import Identity
from tacit.space import Config, Float, Space
from tacit.task import FunctionClient
from tacit.tuners.tuner import Outcome
from tests.federations import Unreachable, channel, federation

TINY = (
    "federation.clients=8",
    "search.candidates=6",
    "task.score_epochs=1",
    "task.train_rounds=1",
    "task.train_epochs=1",
    "task.hidden=[]",
)
START = (np.zeros((1, 10, 64), np.float32), np.zeros((1, 10), np.float32))
ACCURACY = LocalValidation(tuple(map(Array.of, START)))


@dataclass(frozen=True)
class Malicious:
    """A tuner that claims to ask nobody, and takes what it can."""

    attack: Callable[[Any], Any]
    seen: list[Any] = field(default_factory=list)
    name = "malicious"
    unit = "client"

    def event(self, space: Space, variance: float) -> Event:
        del space, variance
        return Composed(())

    def tune(self, questions: Any, space: Space, rng: np.random.Generator) -> Outcome:
        try:
            self.seen.append(self.attack(questions))
        except AttributeError as error:
            self.seen.append(error)
        candidates = space.candidates(6, "random", rng)
        return Outcome(candidates[0], candidates)


DOORS: dict[str, Callable[[Any], Any]] = {
    "answers without a charge": lambda it: it.collect(ACCURACY, "train"),
    "the channel": lambda it: it.channel.ask("evaluate", {}),
    "a client's data": lambda it: it.channel.endpoints[0].client.validation,
    "the ledger": lambda it: it.ledger.path,
    "the secure sum": lambda it: it.secure.total,
    "the journal": lambda it: it.journal.pieces,
    "the transcripts": lambda it: it.transcripts,
    "less noise": lambda it: setattr(it, "variance", 1e-9),
    "another unit": lambda it: setattr(it, "record_level", True),
    "another attribute": lambda it: setattr(it, "mine", 1),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_tuner_finds_every_other_door_closed(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients agreed to train in the clear after the choice, so they would answer."""
    tuner = Malicious(DOORS[door])
    monkeypatch.setattr(job, "tuner", lambda *_: tuner)
    quiet: Any = lambda *_: None  # noqa: E731
    result = job.run(load_plan(None, TINY), tmp_path / "run", quiet, quiet)
    assert [type(seen) for seen in tuner.seen] == [AttributeError]
    assert result.privacy.epsilon == 0
    assert math.isfinite(result.accuracy or math.nan)


CANDIDATES: tuple[Config, ...] = ({"x": 0.1}, {"x": 0.5}, {"x": 0.9})
BALLOT = Ballot(CANDIDATES, 1)
MODEL = (Array.of(np.zeros((1, 3), np.float32)),)
TRAINING = LocalTraining(({"x": 0.1},), MODEL, 1, 1)


@dataclass(frozen=True)
class Willing(FunctionClient):
    """A client that has an answer to every question."""

    def train_many(self, _configs: Any, weights: Any, *_more: Any, **_others: Any) -> Any:
        return tuple(array + 1 for array in weights)

    def validate_many(self, weights: Any) -> Any:
        return np.full(len(weights[0]), 0.75, np.float32)

    def train_by(self, _rule: Any, configs: Any, weights: Any, *_more: Any) -> Any:
        return self.train_many(configs, weights)

    def losses_many(self, _configs: Any, weights: Any) -> Any:
        return np.full(len(weights[0]), 0.25)


def willing(epsilon: float = math.inf, *, record_level: bool = False) -> Federation:
    clients = [Willing(lambda config: float(config["x"])) for _ in range(5)]
    budget, trains = Budget(epsilon, 1e-5), not record_level  # who trains for free charges nothing
    return federation(clients, 20.0, budget=budget, trains=trains, record_level=record_level)


ASKED: dict[str, tuple[Callable[[ChargedQuestions], Any], Event]] = {
    "sum": (lambda ask: ask.sum(BALLOT, "any"), SkellamRelease(((1, 2),), 20.0)),
    "reached": (lambda ask: ask.reached(BALLOT, 1, "any"), SkellamRelease(((1, 2),), 20.0)),
    "gather": (lambda ask: ask.gather(ACCURACY, "any"), Unprotected("LocalValidation")),
    "average": (lambda ask: ask.average(TRAINING, "any"), Unprotected("LocalTraining")),
    "prepay": (lambda ask: ask.prepay({"any": Unprotected("own")}), Unprotected("own")),
    "charge": (lambda ask: ask.charge(Unprotected("own"), "any"), Unprotected("own")),
}
FREE: dict[str, Callable[[ChargedQuestions], Any]] = {
    "check": lambda ask: ask.check(Unprotected("all")),
    "check_sums": lambda ask: ask.check_sums(BALLOT.bound),
    "tell": lambda ask: ask.tell("training", {}),
    "while_affordable": lambda ask: ask.while_affordable(),
}
NUMBERS = {"delta", "run", "secure", "steps", "variance"}


def test_every_verb_is_known_to_these_tests() -> None:
    public = {name for name in dir(ChargedQuestions) if not name.startswith("_")}
    assert public == {*ASKED, *FREE, *NUMBERS}


@pytest.mark.parametrize("verb", ASKED)
def test_a_verb_that_tells_of_clients_is_charged(verb: str) -> None:
    ask, event = ASKED[verb]
    built = willing()
    ask(ChargedQuestions(built))
    assert [charge.event for charge in built.ledger.charges()] == [event]


@pytest.mark.parametrize("verb", ASKED)
def test_a_verb_that_cannot_be_paid_asks_nobody(verb: str) -> None:
    ask, _event = ASKED[verb]
    built = willing(0.001)
    built.channel = Unreachable(5)
    with pytest.raises(BudgetExceeded):
        ask(ChargedQuestions(built))


@pytest.mark.parametrize("verb", FREE)
def test_a_verb_that_costs_nothing_asks_nobody(verb: str) -> None:
    built = willing()
    built.channel = Unreachable(5)
    FREE[verb](ChargedQuestions(built))
    assert len(built.ledger) == 0


class Cheaper(Ballot, frozen=True, tag="ballot"):
    """The same on the wire, with a bound of the tuner's own."""

    @property
    def bound(self) -> TopVotes:
        return TopVotes(len(self.candidates), 1, unit=50)


class Prettier(LocalValidation, frozen=True, tag="validation"):
    """The same on the wire."""


class Louder(DpSgd, frozen=True, tag="dp-sgd"):
    """The same on the wire, with noise of the tuner's own."""

    @property  # type: ignore[misc]
    def noise(self) -> float:
        return 50.0


class Fewer(Kept, frozen=True):
    """The same on the wire, with a worst pair of the tuner's own."""

    @property  # type: ignore[misc]
    def points(self) -> int:
        return 1


class Quieter(SkellamRelease):
    """The same in a ledger, at a price of the tuner's own."""

    def plds(self, *terms: Any) -> Any:
        return SkellamRelease(self.shifts, 5000.0).plds(*terms)

    def entries(self, *terms: Any) -> Any:
        return SkellamRelease(self.shifts, 5000.0).entries(*terms)

    def rdp(self, *terms: Any) -> Any:
        return SkellamRelease(self.shifts, 5000.0).rdp(*terms)


VOTES = SkellamRelease(((1, 2),), 20.0)
CELLS_PRICE = SkellamRelease(((1, 7),), 20.0)
CELLS = CellCounts(LocalSearch(Space({"x": Float(0.0, 1.0)}).to_json()), Fewer(points=10))
NOISY = LocalTraining(({"x": 0.1},), MODEL, 1, 1, Louder(0.25, 2, 1.0, noise=2.0, batch=16))


def prepaid(ask: ChargedQuestions) -> None:
    ask.prepay({"vote": Quieter(VOTES.shifts, VOTES.variance)})
    ask.sum(BALLOT, "vote")


OWN_PRICES: dict[str, tuple[Callable[[Any], Any], Event | None]] = {
    "votes": (lambda ask: ask.sum(Cheaper(CANDIDATES, 2), "vote"), None),
    "thresholds": (lambda ask: ask.reached(Cheaper(CANDIDATES, 2), 1, "vote"), None),
    "answers": (lambda ask: ask.gather(Prettier(MODEL), "any"), None),
    "means": (lambda ask: ask.average(Prettier(MODEL), "any"), None),
    "a sum as a mean": (lambda ask: ask.average(BALLOT, "any"), None),
    "an answer as a sum": (lambda ask: ask.sum(ACCURACY, "any"), None),
    "the rule of a training": (
        lambda ask: ask.average(NOISY, "training"),
        SampledGaussian(0.25, 2.0, 2),
    ),
    "the cells of a count": (lambda ask: ask.sum(CELLS, "cells"), CELLS_PRICE),
    "the cells of a threshold": (lambda ask: ask.reached(CELLS, 1, "cells"), CELLS_PRICE),
    "votes paid beforehand": (prepaid, VOTES),
}
"""What a tuner asks, and what all ledgers are charged with; nothing where it is refused."""


@pytest.mark.parametrize("what", OWN_PRICES)
def test_a_tuner_cannot_bring_its_own_price(what: str) -> None:
    """A subclass looks the same on the wire, and would tell the server another price.

    One is refused in place of a question; within a question, or an event, it counts for nothing.
    """
    ask, event = OWN_PRICES[what]
    built = willing(record_level=True)
    if event is None:
        refused = r"the question is a \w+; allowed here are (Ball|Local)"
        with pytest.raises(TypeError, match=refused):
            ask(ChargedQuestions(built))
        assert len(built.ledger) == 0
        return
    ask(ChargedQuestions(built))
    ledgers = [built.ledger, *(endpoint.ledger for endpoint in channel(built).endpoints)]
    charged = [charge for ledger in ledgers for charge in ledger.charges()]
    assert [charge.event for charge in charged] == [event] * 6
    assert {charge.total.epsilon for charge in charged} == {spent(event, 1e-5).epsilon}


def test_a_question_that_clients_could_not_read_is_refused_before_anybody_is_charged() -> None:
    built = willing()
    with pytest.raises(ValueError, match=r"clients could not read the question, a Ballot: .*float"):
        ChargedQuestions(built).sum(Ballot(CANDIDATES, 1.5), "vote")  # type: ignore[arg-type]
    assert len(built.ledger) == 0


HIDDEN = (Federation, Ledger, Endpoint, LocalChannel, Unreachable, SecureSum, Journal, Identity)


def hidden(thing: Any) -> bool:
    """Whether it is something that a tuner must not hold; SecureSum is a protocol."""
    kinds = tuple(kind for kind in HIDDEN if kind is not SecureSum)
    return isinstance(thing, kinds) or (hasattr(thing, "total") and hasattr(thing, "check"))


def reachable(thing: Any, path: str, known: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Everything that public attributes and items lead to, through containers and our classes."""
    if id(thing) in known:
        return
    known[id(thing)] = thing  # kept alive, so that its number is not given to another
    yield path, thing
    if isinstance(thing, Mapping):
        items: Iterable[tuple[str, Any]] = ((f"{path}[{key}]", thing[key]) for key in thing)
    elif isinstance(thing, list | tuple):
        items = ((f"{path}[{place}]", item) for place, item in enumerate(thing))
    elif type(thing).__module__.split(".")[0] in ("tacit", "contextlib"):
        names = (name for name in dir(thing) if not name.startswith("_"))
        items = ((f"{path}.{name}", getattr(thing, name, None)) for name in names)
    else:
        items = ()
    for where, item in items:
        yield from reachable(item, where, known)


def mentioned(annotation: Any, known: set[Any]) -> Iterator[Any]:
    """Every class that a type names, and those that its public parts name."""
    for part in get_args(annotation):
        yield from mentioned(part, known)
    ours = isinstance(annotation, type) and annotation.__module__.startswith("tacit")
    if not ours or annotation in known:
        return
    known.add(annotation)
    yield annotation
    if is_dataclass(annotation):
        for name, hint in get_type_hints(annotation).items():
            if not name.startswith("_"):
                yield from mentioned(hint, known)


def test_nothing_of_the_server_is_reachable_from_what_a_tuner_holds() -> None:
    built = willing()
    questions = ChargedQuestions(built)
    prepaid = ASKED["prepay"][0](questions)
    others = {name: ask for name, (ask, _event) in ASKED.items() if name != "prepay"}
    returned = {"prepay": prepaid} | {name: ask(questions) for name, ask in others.items()}
    returned |= {name: ask(questions) for name, ask in FREE.items()}
    kept = id(built)
    for start, thing in {"questions": questions, **returned}.items():
        for path, found in reachable(thing, start, {}):
            assert not hidden(found), path
            assert id(found) != kept, path


def test_the_walk_notices_what_is_hidden() -> None:
    found = [path for path, thing in reachable(willing(), "it", {}) if hidden(thing)]
    assert {"it", "it.channel", "it.ledger", "it.secure"} <= set(found)
    generated = dict(reachable(willing().while_affordable(), "it", {}))
    assert any(hidden(thing) for thing in generated.values())


def test_no_verb_promises_anything_of_the_server() -> None:
    verbs = [getattr(ChargedQuestions, name) for name in (*ASKED, *FREE)]
    verbs += [getattr(ChargedQuestions, name).fget for name in NUMBERS]
    classes: set[Any] = set()
    for verb in verbs:
        list(mentioned(get_type_hints(verb)["return"], classes))
    assert {kind.__name__ for kind in classes} >= {"Sum", "Charge", "Array", "WhileAffordable"}
    assert not [kind for kind in classes if kind in HIDDEN]
