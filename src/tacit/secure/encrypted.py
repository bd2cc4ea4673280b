"""A secure sum under multiparty encryption: opens sums, or only which entries reach a threshold.

Who takes part needs no neighbours, no signatures and no secret shares; everybody is needed to the
end. Keys are made anew for every sum (:mod:`tacit.secure.multiparty`), in three stages:

=========  =======================================  =============================================
stage      the server sends                         a client replies
=========  =======================================  =============================================
evaluate   the question                             its share of the public key; for a threshold
                                                    also of the relinearisation key, first half
encrypt    the public key; the sum of first halves  its vector, encrypted; for a threshold also its
                                                    second half, and a secret mask, encrypted
open       one polynomial of what is to open        its share of the opening
=========  =======================================  =============================================

Each message is a MessagePack array of byte strings, and each of those has the versioned form that
:mod:`tacit.secure.bfv` documents.

*The claim.* Against honest-but-curious server and clients nothing is learned beyond the opened
outputs; N-1 colluding clients can subtract themselves from those outputs, therefore DP noise from
the clients is on by default and can be turned off. *Why.* A client's vector leaves it only as a
ciphertext under the sum of everybody's keys, and its opening share is made once, for one opening
(or as many as the vector has pieces). Whatever N-1 clients and the server hold is independent of
the remaining vector but for the opened outputs, up to 2^-40 for the flooding and the hardness of
ring-LWE. A threshold opens to 0 or to a uniform number, so it tells one bit an entry. A client that
vanishes at any stage ends the sum: without its share what is encrypted stays closed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from tacit.privacy.skellam import IntArray
from tacit.secure.bfv import (
    SUMS,
    Ciphertext,
    FirstShare,
    FirstTotal,
    Message,
    OpeningRequest,
    OpeningShare,
    Parameters,
    PublicKey,
    PublicShare,
    SecondShare,
)
from tacit.secure.circuit import MOST_FACTORS, check, for_dense_test
from tacit.secure.crypto import digest
from tacit.secure.multiparty import Party, Server
from tacit.secure.protocol import ENCRYPTED, Ask, Refused, Round, Step, TooFewClients, Total

Parts = tuple[memoryview, ...]
"""The parts of a message, which are megabytes: seen where they are, not copied."""
M = TypeVar("M", bound=Message)

_encode = msgspec.msgpack.Encoder().encode
_parts: msgspec.msgpack.Decoder[Parts] = msgspec.msgpack.Decoder(Parts)


class SomebodyMissing(TooFewClients):
    """A party disappeared, or sent what cannot be read; nothing was opened."""

    def __init__(self, stage: str, answered: int, needed: int) -> None:
        Exception.__init__(
            self,
            f"only {answered} of {needed} clients answered the stage {stage!r} properly; under "
            "multiparty encryption all of them are needed to the end, so the run was given up and "
            "nothing was opened: ask again when all are there, or take federation.secure = "
            "'masks', which survives drop-outs",
        )


@dataclass(frozen=True)
class Session:
    """What both sides derive from a round: parameters, common randomness, pieces of the vector."""

    around: Round

    def __post_init__(self) -> None:
        if self.around.participation.dropout:
            raise ValueError(
                f"{self.around.participation.dropout} may drop out; allowed under multiparty "
                "encryption are 0: without everybody nothing opens"
            )
        if self.around.bits > 32:
            raise ValueError(
                "a sum could exceed 31 bits; allowed under multiparty encryption is less: use a "
                "coarser quantisation"
            )
        if len(self.sparse or ()) > MOST_FACTORS:
            raise ValueError(
                f"the noise spreads counts over {len(self.sparse or ())} numbers below the "
                f"threshold; allowed under multiparty encryption are up to {MOST_FACTORS}: raise "
                "epsilon, let clients contribute fewer points, or take the mode 'dp'"
            )
        check(self.parameters, self.parties, self.pieces, len(self.sparse or ()))

    @property
    def parties(self) -> int:
        """How many clients there are."""
        return self.around.participation.clients

    @property
    def sparse(self) -> range | None:
        """The numbers below the threshold."""
        if self.around.sparse is None:
            return None
        first, last = self.around.sparse
        return range(first, last + 1)

    @property
    def parameters(self) -> Parameters:
        """The smallest that do."""
        return SUMS if self.sparse is None else for_dense_test(len(self.sparse), self.parties)

    @property
    def seed(self) -> bytes:
        """Where common reference polynomials come from; everybody derives it."""
        return digest(b"multiparty", self.around.describe())

    @property
    def pieces(self) -> int:
        """How many ciphertexts hold a vector."""
        return math.ceil(self.around.length / self.parameters.degree)

    def cut(self, vector: IntArray) -> list[IntArray]:
        """A vector in pieces of at most one slot each."""
        size = self.parameters.degree
        return [vector[start : start + size] for start in range(0, len(vector), size)]


class _Waiting(Struct, frozen=True, array_like=True, tag=1):
    """Key shares are out; the vector is fixed and waits."""

    party: bytes
    vector: bytes


class _Encrypted(Struct, frozen=True, array_like=True, tag=2):
    """The vector is out, encrypted; the party still holds its part of the key."""

    party: bytes


class _Done(Struct, frozen=True, array_like=True, tag=3):
    """Nothing is kept."""


_states: msgspec.msgpack.Decoder[_Waiting | _Encrypted | _Done] = msgspec.msgpack.Decoder(
    _Waiting | _Encrypted | _Done
)


@dataclass(frozen=True)
class EncryptedParticipant:
    """One client's half: key shares, then the encrypted vector, then one opening."""

    around: Round

    def begin(self, vector: IntArray) -> Step:
        """Fix the vector, and make keys."""
        session = self._session()
        party = Party.new(session.parameters, session.seed)
        shares: list[Message] = [party.public_share()]
        if session.sparse is not None:
            shares.append(party.relinearisation_first())
        state = _Waiting(party.to_bytes(), self.around.residues(vector))
        return Step(_encode(state), _packed(shares))

    def step(self, state: bytes, request: bytes) -> Step:
        """Encrypt, or open."""
        session, kept = self._session(), _states.decode(state)
        if isinstance(kept, _Waiting):
            return self._encrypt(session, kept, request)
        if isinstance(kept, _Encrypted):
            return self._open(session, kept, request)
        raise Refused("this sum was opened before")

    def _encrypt(self, session: Session, kept: _Waiting, request: bytes) -> Step:
        party = Party.from_bytes(session.parameters, kept.party)
        vector = self.around.integers(kept.vector)
        key = _given(PublicKey, session, request, 0)
        reply: list[Message] = [party.encrypt(key, piece) for piece in session.cut(vector)]
        if session.sparse is not None:
            total = _given(FirstTotal, session, request, 1)
            reply += [party.encrypt_mask(key) for _ in range(session.pieces)]
            reply.append(party.relinearisation_second(total))
        return Step(_encode(_Encrypted(party.to_bytes())), _packed(reply), releases=True)

    def _open(self, session: Session, kept: _Encrypted, request: bytes) -> Step:
        party = Party.from_bytes(session.parameters, kept.party)
        requests = [_given(OpeningRequest, session, request, i) for i in range(session.pieces)]
        reply = [party.opening_share(request) for request in requests]
        return Step(_encode(_Done()), _packed(reply), finishes=True)

    def _session(self) -> Session:
        try:
            return Session(self.around)
        except ValueError as error:
            raise Refused(str(error)) from None


@dataclass(frozen=True)
class EncryptedSum:
    """The server's half, which holds no secret."""

    name = ENCRYPTED
    sealing = "encrypt"
    opens_thresholds = True

    def check(self, around: Round) -> None:
        """Refuse what no parameters carry."""
        Session(around)

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        """Collect everybody's keys, ciphertexts and openings; whoever is missing ends it."""
        session = Session(around)
        server = Server(session.parameters, session.parties)
        keys = _Replies("evaluate", session, first)
        public = server.public_key(keys.column(PublicShare, 0))
        if session.sparse is None:
            sealed = keys.then("encrypt", ask, [public])
            opened = [server.sum(vectors) for vectors in sealed.ciphertexts()]
        else:
            halves = server.relinearisation_total(keys.column(FirstShare, 1))
            sealed = keys.then("encrypt", ask, [public, halves])
            ours = sealed.column(SecondShare, -1)
            server.use(server.relinearisation_key(halves, ours))
            sums = [server.sum(column) for column in sealed.ciphertexts(2)]
            pairs = zip(sums[: session.pieces], sums[session.pieces :], strict=True)
            opened = [server.dense_test(count, mask, session.sparse) for count, mask in pairs]
        prepared = [server.prepare(one, session.pieces) for one in opened]
        shares = sealed.then("open", ask, [one.request for one in prepared])
        slots = [
            server.open(one, shares.column(OpeningShare, place))
            for place, one in enumerate(prepared)
        ]
        value = np.concatenate(slots)[: around.length]
        if session.sparse is not None:
            value = (value != 0).astype(np.int64)
        return Total(value, tuple(sorted(first)))


@dataclass(frozen=True)
class _Replies:
    """What the clients replied at one stage; what cannot be read counts as missing."""

    stage: str
    session: Session
    replies: Mapping[int, bytes]

    def column(self, kind: type[M], place: int) -> list[M]:
        """Everybody's message of one kind, at one place of their replies."""
        found = []
        for reply in self.replies.values():
            try:
                found.append(kind.from_bytes(self.session.parameters, _parts.decode(reply)[place]))
            except (msgspec.DecodeError, IndexError, ValueError):
                continue
        if len(found) < self.session.parties:
            raise SomebodyMissing(self.stage, len(found), self.session.parties)
        return found

    def ciphertexts(self, vectors: int = 1) -> Iterator[list[Ciphertext]]:
        """Everybody's ciphertexts, piece after piece of vector after vector."""
        return (self.column(Ciphertext, place) for place in range(vectors * self.session.pieces))

    def then(self, stage: str, ask: Ask, request: Sequence[Message]) -> _Replies:
        """The next stage."""
        replies = ask(stage, dict.fromkeys(self.replies, _packed(request)))
        return _Replies(stage, self.session, replies)


def _packed(messages: Sequence[Message]) -> bytes:
    return _encode([message.to_bytes() for message in messages])


def _given(kind: type[M], session: Session, request: bytes, place: int) -> M:
    """A message of the server's, or a refusal."""
    try:
        return kind.from_bytes(session.parameters, _parts.decode(request)[place])
    except IndexError:
        raise Refused(f"the request lacks its {kind.__name__}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(f"the request cannot be read: {error}") from None
