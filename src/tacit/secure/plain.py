"""The same sum without secrecy: for simulations and tests.

The server sees every noisy vector. What leaves a client is what leaves it under the masked sum, one
stage earlier and unmasked, so a single client has only its own share of the noise for protection:
reports say so, and a network channel must refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tacit.privacy.skellam import IntArray
from tacit.secure.protocol import Ask, Refused, Round, Step, TooFewClients, Total

_SEND, _SENT = b"send", b""


@dataclass(frozen=True)
class PlainParticipant:
    """One client's half: it says that it is ready, then sends its vector once."""

    around: Round

    def begin(self, vector: IntArray) -> Step:
        """Fix the vector."""
        return Step(state=self.around.residues(vector), reply=b"")

    def step(self, state: bytes, request: bytes) -> Step:
        """Send it."""
        if request != _SEND or state == _SENT:
            raise Refused("the vector is sent once, when it is asked for")
        return Step(state=_SENT, reply=state, releases=True, finishes=True)


@dataclass(frozen=True)
class PlainSum:
    """The server's half."""

    name = "plain"
    sealing = "seal"
    opens_thresholds = False

    def check(self, around: Round) -> None:
        """It carries any."""

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        """Add up what arrives."""
        sent = ask("seal", dict.fromkeys(first, _SEND))
        vectors = {c: reply for c, reply in sent.items() if len(reply) == around.vector_bytes}
        if len(vectors) < around.threshold:
            raise TooFewClients("seal", len(vectors), around.threshold)
        value = np.zeros(around.length, around.word)
        for vector in vectors.values():
            value = value + np.frombuffer(vector, around.word)
        return Total(around.integers(value.tobytes()), tuple(sorted(vectors)))
