"""What every secure sum is: a client's half of explicit steps, and a server's half that asks.

The client's half is pure. It maps a state and a request to the next state and a reply, all of them
bytes, so any channel can carry it and any store can keep it. A step says whether its reply releases
the vector, so that the caller can charge its ledger before the reply leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tacit.privacy.mechanisms import Mechanism, Participation
from tacit.privacy.skellam import IntArray, reach
from tacit.secure.crypto import digest

WRAP_CHANCE = 2.0**-60
MASKS, ENCRYPTED, PLAIN = "masks", "encrypted", "plain"
HIDING = (MASKS, ENCRYPTED)
"""Sums in which the server does not see a single answer."""

Ask = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]
"""Carry one request to each of some clients, at a named stage; whoever is missing dropped out."""


class Refused(Exception):
    """A client does not take this step; the reason tells nothing about its data."""


@dataclass(frozen=True)
class Fault:
    """What a client did that no client does which follows the protocol."""

    client: int
    what: str

    def __str__(self) -> str:
        """A sentence."""
        return f"client {self.client} {self.what}"


class TooFewClients(Exception):
    """The sum was given up, and nothing was released."""

    faults: tuple[Fault, ...] = ()
    evidence: bytes = b""
    """With what was signed on the way anybody can see that; empty without faults or a roster."""

    def __init__(
        self, stage: str, answered: int, needed: int, faults: Sequence[Fault] = ()
    ) -> None:
        super().__init__(
            f"only {answered} clients answered at the stage {stage!r}; {needed} are needed, so the "
            "run was given up and nothing was released: ask again when more clients are there, or "
            f"plan with a larger drop-out{_named(faults)}"
        )
        self.faults = tuple(faults)


class ThinRing(TooFewClients):
    """Enough clients answered, but too few of those that stand next to each other."""

    def __init__(self, stage: str, answered: int, faults: Sequence[Fault] = ()) -> None:
        Exception.__init__(
            self,
            f"{answered} clients answered at the stage {stage!r}, but too few of those that stand "
            "next to each other on the ring, so the run was given up and nothing was released: ask "
            f"again, with other keys they stand elsewhere{_named(faults)}",
        )
        self.faults = tuple(faults)


class SpoiledSum(Exception):
    """What some client shared does not fit together; the sum stays closed."""

    faults: tuple[Fault, ...] = ()
    evidence: bytes = b""
    """As of :class:`TooFewClients`."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        super().__init__(
            "what some client shared does not fit together, so the sum cannot be opened and "
            f"nothing was released: a client is faulty or hostile; ask again without it"
            f"{_named(faults)}"
        )
        self.faults = tuple(faults)


def _named(faults: Sequence[Fault]) -> str:
    return f" ({'; '.join(map(str, faults))})" if faults else ""


@dataclass(frozen=True)
class Round:
    """What both sides know about one sum, each from its own configuration.

    ``bits`` is 32 or 64: the least in which the sum wraps with a chance below 2^-60. Noise is never
    clipped to fit. ``question`` is a digest of what was asked and of the noise it asked for: it is
    bound into every signature and sealed box, so that nobody can be told another noise than others.
    """

    session: bytes
    participation: Participation
    length: int
    bits: int
    question: bytes = b""
    sparse: tuple[int, int] | None = None
    """Where only this is to open of each entry: whether it lies outside these bounds (both
    included), which the noise keeps it above, so that outside means above."""

    @classmethod
    def of(
        cls,
        session: bytes,
        mechanism: Mechanism,
        question: bytes = b"",
        at_least: int | None = None,
    ) -> Round:
        """The round for the sum that a mechanism protects, or for what reaches ``at_least``."""
        return cls(
            session,
            mechanism.participation,
            mechanism.bound.length,
            modulus_bits(mechanism),
            question,
            None if at_least is None else (lowest(mechanism), at_least - 1),
        )

    @property
    def threshold(self) -> int:
        """The fewest survivors whose sum may open."""
        return self.participation.threshold

    @property
    def word(self) -> np.dtype[Any]:
        """Unsigned, little-endian; NumPy's arithmetic on it is modulo 2^bits."""
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def vector_bytes(self) -> int:
        """The size of one sealed vector."""
        return self.length * self.bits // 8

    def residues(self, vector: IntArray) -> bytes:
        """Integers as residues modulo 2^bits."""
        if vector.shape != (self.length,):
            raise ValueError(f"the vector has shape {vector.shape}; allowed is ({self.length},)")
        return vector.astype(self.word).tobytes()

    def integers(self, residues: bytes) -> IntArray:
        """The integers nearest to zero with these residues."""
        return np.frombuffer(residues, f"<i{self.bits // 8}").astype(np.int64)

    def describe(self) -> bytes:
        """Everything that signatures bind a message to."""
        p = self.participation
        numbers = f"{p.clients} {p.dropout!r} {p.colluding!r} {self.length} {self.bits}"
        if self.sparse:
            numbers += f" {self.sparse}"
        return digest(b"round", numbers.encode(), self.session, self.question)


@dataclass(frozen=True)
class Step:
    """What a client's step comes to."""

    state: bytes
    reply: bytes
    releases: bool = False
    """Whether the vector leaves with this reply."""
    finishes: bool = False
    """Whether this was the client's last step, with which the sum opens."""
    members: tuple[int, ...] = ()
    """Whose vectors the reply adds up with, if it releases one and the protocol knows."""


@dataclass(frozen=True)
class Total:
    """An opened sum, whose vectors are in it, and who misbehaved on the way."""

    value: IntArray
    survivors: tuple[int, ...]
    faults: tuple[Fault, ...] = ()
    transcript: bytes = b""
    """With what was signed on the way anybody can compute the sum again; empty without a roster."""


class Participant(Protocol):
    """The client's half."""

    def begin(self, vector: IntArray) -> Step:
        """Fix the vector, which carries its noise already."""

    def step(self, state: bytes, request: bytes) -> Step:
        """Answer one request, or raise :class:`Refused` and leave everything as it was."""


class SecureSum(Protocol):
    """The server's half."""

    @property
    def name(self) -> str:
        """How plans and messages call it."""

    @property
    def sealing(self) -> str:
        """The stage at which answers leave the clients; before it nothing of them does."""

    @property
    def opens_thresholds(self) -> bool:
        """Whether it can open which entries reach a threshold, and nothing else of them."""

    def check(self, around: Round) -> None:
        """Refuse a round that cannot be carried, before anything is charged for it."""

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        """Open the sum from the clients' first replies and further questions.

        Of a round with ``sparse`` bounds, the value is 1 where an entry lies outside and 0 inside.

        Raises:
            TooFewClients: when fewer than the round's threshold are left; nothing was released.
            SpoiledSum: when what clients shared does not fit together; nothing was released.
        """


def modulus_bits(mechanism: Mechanism) -> int:
    """32 or 64: whichever first holds the sum with all its noise except with chance 2^-60."""
    largest = mechanism.participation.clients * mechanism.bound.largest + _noise_reach(mechanism)
    for bits in (32, 64):
        if largest < 2 ** (bits - 1):
            return bits
    raise ValueError(
        f"the sum can reach {largest}, beyond 64 bits; use a coarser quantisation or fewer clients"
    )


def lowest(mechanism: Mechanism) -> int:
    """What no entry of a sum of marks falls below, except with chance 2^-60."""
    return -_noise_reach(mechanism)


def _noise_reach(mechanism: Mechanism) -> int:
    """How far the noise of a sum goes to either side, except with chance 2^-60."""
    if not mechanism.delivered_variance:
        return 0
    log_chance = math.log(WRAP_CHANCE / (2 * mechanism.bound.length))
    return reach(mechanism.delivered_variance, log_chance)
