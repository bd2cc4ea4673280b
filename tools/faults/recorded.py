"""Valid messages of every kind, recorded from federations in which nothing goes wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as altered

from tacit.arrays import Array
from tacit.combining import (
    CellCounts,
    ClusterSums,
    Kept,
    LocalBest,
    LocalFindings,
    LossSums,
    SurfaceSums,
)
from tacit.endpoint import VERSION, AskInClear, AskSum, Close, Endpoint, encode
from tacit.federation import Federation, LocalChannel, local_federation
from tacit.local_search import LocalSearch
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Mechanism, Participation
from tacit.query import Ballot, InClear, LocalTraining, LocalValidation, Sums
from tacit.rewards import LocalRewards, LocalSampled, Rewards, SampledLoss, SampledUpdate
from tacit.secure.crypto import fresh
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import Advertised, Setup, Shared, Shares
from tacit.secure.protocol import Ask, Participant, Round, SpoiledSum, Total
from tacit.space import Config, Float, Space
from tacit.updates import PrivateUpdate
from tools.faults.federations import Watched
from tools.faults.members import BALLOT, VARIANCE, likes

CLIENTS = 4
BUDGET = Budget(30.0, 1e-5)
_SPACE = Space({"x": Float(0.0, 1.0)})
_SEARCH = LocalSearch(_SPACE.to_json(), trials=8)
_CONFIGS: tuple[Config, ...] = ({"x": 0.1}, {"x": 0.9})
_WEIGHTS = (Array.of(np.zeros((1, 3), np.float32)),)
SUMS: tuple[Sums, ...] = (
    BALLOT,
    Ballot(BALLOT.candidates, votes=2, kind="borda", count_abstentions=True),
    LocalBest(_SEARCH),
    CellCounts(_SEARCH, Kept()),
    ClusterSums(_SEARCH, Kept(), (1, 2)),
    LossSums(_SEARCH),
    SurfaceSums(_SEARCH, _CONFIGS),
    PrivateUpdate(_CONFIGS[0], _WEIGHTS, 1, 1, 1.0, 32, 1),
    Rewards(_CONFIGS, _WEIGHTS, 1, 1, 1.0),
    SampledLoss(_CONFIGS, (0.5, 0.5), _WEIGHTS, 1, 1, 1.0, 0.0),
    SampledUpdate(_CONFIGS, (0.5, 0.5), _WEIGHTS, 1, 1, 1.0, 1.0, 0.0, 32, 1),
)
IN_CLEAR: tuple[InClear, ...] = (
    LocalFindings(_SEARCH),
    LocalTraining(_CONFIGS, _WEIGHTS, 1, 1),
    LocalValidation(_WEIGHTS),
    LocalRewards(_CONFIGS, _WEIGHTS, 1, 1),
    LocalSampled(_CONFIGS, (0.5, 0.5), _WEIGHTS, 1, 1),
)


@dataclass(frozen=True)
class Exchange:
    """A request to one client, its state before, and its reply."""

    stage: str
    client: int
    before: Mapping[str, bytes]
    request: bytes
    reply: bytes


@dataclass
class Recorder(LocalChannel):
    """Keeps everything that is said."""

    exchanges: list[Exchange] = field(default_factory=list)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        before = {client: dict(self._states[client].kept) for client in requests}
        replies = super().ask(stage, requests)
        for client, reply in replies.items():
            self.exchanges.append(Exchange(stage, client, before[client], requests[client], reply))
        return replies


@dataclass
class Rounds(Watched):
    """A secure sum that remembers what it was asked too."""

    rounds: list[tuple[Round, Mapping[int, bytes]]] = field(default_factory=list)

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        self.rounds.append((around, dict(first)))
        return super().total(around, first, ask)


@dataclass(frozen=True)
class Conversation:
    """One federation that was asked some sums, and all that was said."""

    federation: Federation
    recorder: Recorder
    secure: Rounds

    @property
    def endpoint(self) -> Endpoint:
        """Client 0, before it was asked anything."""
        return replace(
            self.recorder.endpoints[0],
            ledger=Ledger.in_memory("client-0", BUDGET),
            on_release=lambda _receipt: None,
        )

    def requests(self) -> list[Exchange]:
        """All requests to client 0, and requests that no sum has."""
        own = [one for one in self.recorder.exchanges if one.client == 0]
        session = bytes(range(32))
        others = [encode(AskInClear(VERSION, session, query)) for query in IN_CLEAR]
        others.append(encode(Close(VERSION, session)))
        asked = own[0].before
        return [*own, *(Exchange("other", 0, asked, request, b"") for request in others)]


def conversation(folder: Path, queries: tuple[Sums, ...] = SUMS) -> Conversation:
    """Ask one sum after the other; receipts and transcripts are kept in the folder."""
    built = local_federation(
        [likes(0.05 + client / 10) for client in range(CLIENTS)],
        Participation(CLIENTS, dropout=0),
        Ledger.create(folder / "server.sqlite", "clinics", Budget(math.inf, 1e-5)),
        run="votes",
        variance=VARIANCE * 100,
    )
    if not isinstance(built.channel, LocalChannel):
        raise TypeError("a local federation has a local channel")
    endpoints = [
        replace(
            endpoint,
            ledger=Ledger.in_memory("client", Budget(math.inf, 1e-5)),
            on_release=lambda receipt: receipt.keep(folder / "receipts"),
        )
        for endpoint in built.channel.endpoints
    ]
    recorder, secure = Recorder(endpoints), Rounds(built.secure)
    federation = replace(built, channel=recorder, secure=secure, transcripts=folder / "transcripts")
    for query in queries:
        federation.sum(query, type(query).__name__)
    return Conversation(federation, recorder, secure)


class TwoKeys(MaskedParticipant):
    """A client that shares another mask key than it advertised."""

    def _share(self, state: Advertised, request: Setup) -> tuple[Shared, Shares]:
        return super()._share(altered(state, mask_secret=fresh()), request)


class _Spoiler(Endpoint):
    def _participant(self, asked: AskSum, question: bytes, mechanism: Mechanism) -> Participant:
        made = super()._participant(asked, question, mechanism)
        if not isinstance(made, MaskedParticipant):
            raise TypeError("only masked sums are spoiled so")
        return TwoKeys(made.around, made.me, made.identity, made.roster)


def spoiled(folder: Path) -> Federation:
    """Client 2 of six shares another key, and vanishes once its shares are out: nothing opens.

    Evidence against it is kept in the folder's ``transcripts``.
    """
    ledger = Ledger.create(folder / "server.sqlite", "clinics", BUDGET)
    built = local_federation(
        [likes(0.5)] * 6, Participation(6, dropout=2), ledger, run="votes", variance=VARIANCE
    )
    if not isinstance(built.channel, LocalChannel):
        raise TypeError("a local federation has a local channel")
    endpoints = list(built.channel.endpoints)
    endpoints[2] = _Spoiler(
        **{one.name: getattr(endpoints[2], one.name) for one in fields(Endpoint)}
    )
    channel = LocalChannel(endpoints, drops={2: "seal"})
    federation = replace(built, channel=channel, transcripts=folder / "transcripts")
    try:
        federation.sum(BALLOT, "vote")
    except SpoiledSum:
        return federation
    raise ValueError("the sum opened although a key is missing")
