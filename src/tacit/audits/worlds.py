"""What an audit of a method consists of: two worlds, a claim from the ledger, and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tacit.federation import Channel
from tacit.privacy.accounting import Guarantee, spent
from tacit.privacy.events import Event, compose, from_json, to_json
from tacit.privacy.ledger import Ledger
from tacit.privacy.skellam import FloatArray

World = Literal["A", "B"]
DELTA = 1e-5
"""At which methods are calibrated."""
VICTIM = 0
"""The client that is replaced, or whose record is."""
LOSS = "likelihood ratio"
"""The number that every audit has: log likelihood of the world A over that of B, by the claim."""
HOLES = "holes in the noise"
"""What the last digits of floating-point noise may give away."""
Numbers = Mapping[str, FloatArray]
"""One number a run, for each way of telling the worlds apart."""
WHOLE, PART = "the whole federation", "the client's bound and noise"
TRAINING = "the whole training"


@dataclass(frozen=True)
class Material:
    """What a first, real run of a method left: charged events, and the questions to ask again.

    Attributes:
        charged: for each ledger, the events that were charged to it.
        questions: what the clients received, as bytes; empty where nobody was asked.
    """

    charged: tuple[Event, ...]
    questions: tuple[bytes, ...] = ()

    def claim(self, delta: float) -> Guarantee:
        """What the ledgers say at this delta; if they differ, the boldest of them."""
        found = [spent(event, delta) for event in self.charged]
        return min(found, key=lambda guarantee: guarantee.epsilon)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the journal."""
        return {
            "charged": [to_json(event) for event in self.charged],
            "questions": [question.hex() for question in self.questions],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Material:
        """What :meth:`to_json` wrote."""
        return cls(
            tuple(from_json(event) for event in data["charged"]),
            tuple(bytes.fromhex(question) for question in data["questions"]),
        )


def charged_to(*ledgers: Ledger) -> tuple[Event, ...]:
    """Everything that each ledger was charged with."""
    return tuple(compose(charge.event for charge in ledger.counting()) for ledger in ledgers)


@dataclass
class Listening:
    """A channel that keeps what the victim was asked at one stage."""

    inner: Channel
    stage: str
    questions: list[bytes]

    @property
    def clients(self) -> Sequence[int]:
        return self.inner.clients

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if stage == self.stage:
            self.questions.append(requests[VICTIM])
        return self.inner.ask(stage, requests)


@dataclass(frozen=True)
class Sizes:
    """How many runs a world has: of the fast path, and of the whole federation."""

    runs: int
    whole: int = 0


class Audit(Protocol):
    """A method under audit.

    ``A`` and ``B`` are neighbours: one client, or one record, is replaced, and the pair is the
    worst that the bound of the answers admits (or near it; any pair gives a true bound).
    """

    @property
    def name(self) -> str:
        """How the command calls it."""

    @property
    def worlds(self) -> str:
        """In which way the two worlds differ, in one sentence."""

    @property
    def unit(self) -> str:
        """Whom the guarantee protects, so what is replaced: a client or a record."""

    @property
    def sizes(self) -> Mapping[str, Sizes]:
        """Runs a world, ``full`` and ``quick``."""

    @property
    def path(self) -> str:
        """What the many runs go through."""

    @property
    def block(self) -> int:
        """How many of those runs are done at once."""

    @property
    def holes(self) -> bool:
        """Whether runs also tell :data:`HOLES`."""

    def material(self, epsilon: float) -> Material:
        """One real run at this budget, and what it left."""

    def claimed_losses(self, material: Material, epsilon: float, count: int) -> FloatArray:
        """Likelihood ratios in the world A under the noise that the method has at this budget.

        From a generator with a seed. Not from what was charged: a charge may be missing.
        """

    def runs(self, material: Material, epsilon: float, world: World, count: int) -> Numbers:
        """So many independent runs of one world."""


Progress = Callable[[int, int], None]
