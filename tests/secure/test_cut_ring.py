"""A server that knows the ring drops the clients that cut a stretch out of it.

All within the planned drop-outs: it lets the honest clients of two windows vanish, one on each side
of the stretch. The masks that the stretch has left are with drop-outs, whose keys open, and with
colluders, who tell. So the stretch's sum would open by itself, with a fraction of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_bytes

import pytest

from tacit.endpoint import VERSION, AskSum, Continue, Endpoint, encode
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.secure.graph import Wiring
from tacit.secure.masks import MaskedParticipant
from tacit.secure.messages import Advert, Sealed, Setup, Shared, pack, unpack_reply
from tacit.secure.protocol import Refused, TooFewClients
from tacit.secure.setup import Members, checked_members, final_digest, packed, pair_mask
from tacit.secure.transcript import Transcript, opened_sum
from tacit.sessions import DAY, MOST_UNOPENED, Sessions
from tests.federations import channel, federation, likes
from tests.secure.driver import Rehearsal, round_of

CLIENTS, DROPOUT, COLLUDING = 100, 0.3, 0.1
COLLUDERS = frozenset(range(0, CLIENTS, 10))


class Obedient(MaskedParticipant):
    """A colluder: it takes any list that the server names."""

    def _check_enough(self, *_terms: object) -> None:
        pass


@dataclass
class CuttingServer(Rehearsal):
    """It looks at the order, and drops whom it likes from a stage on."""

    when: str = "seal"
    stretch: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for colluder in COLLUDERS:
            one = self.participants[colluder]
            self.participants[colluder] = Obedient(one.around, one.me, one.identity, one.roster)

    @property
    def members(self) -> Members:
        return checked_members(self.asked(Setup, "share", 0).adverts, self.around, self.roster)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        replies = super().ask(stage, requests)
        if stage == "advertise":
            found = {client: unpack_reply(Advert, reply) for client, reply in replies.items()}
            adverts = {client: advert for client, advert in found.items() if advert}
            self.choose(Members.of(self.around, packed(adverts), adverts))
        return replies

    def choose(self, members: Members) -> None:
        """The cut that costs the fewest drop-outs.

        The stretch is so long that its clients alone recover their secrets.
        """
        reach, length = members.wired.reach, members.wired.share_threshold

        def places(first: int, count: int) -> list[int]:
            order = members.order
            return [order[(first + step) % len(order)] for step in range(count)]

        def lost(first: int) -> set[int]:
            around = places(first, reach) + places(first + reach + length, reach)
            return set(around) - COLLUDERS

        first = min(range(CLIENTS), key=lambda first: len(lost(first)))
        self.stretch = places(first + reach, length)
        self.dropouts = dict.fromkeys(lost(first), self.when)

    def stretch_sum(self, transcript: Transcript) -> IntArray:
        """What server and colluders find out about the stretch once the whole sum was opened."""
        opened = opened_sum(
            self.around,
            self.members,
            transcript.members,
            {c: self.answered(Sealed, "seal", c).vector for c in self.stretch},
            {c: transcript.seeds[c].seed for c in self.stretch},
            transcript.keys,
        )
        final = final_digest(self.members.digest, transcript.members)
        for colluder in COLLUDERS - set(self.stretch):
            keys = self.kept(Shared, "share", colluder).pair_keys
            for client in keys.keys() & set(self.stretch):
                mask = self.around.integers(pair_mask(self.around, final, keys[client]).tobytes())
                opened = opened - mask if client < colluder else opened + mask
        return self.around.integers(self.around.residues(opened))


pytestmark = pytest.mark.usefixtures("small_rings")


def cutting(patch: pytest.MonkeyPatch, when: str = "seal", roster: bool = True) -> CuttingServer:
    """A server that does not look itself whether a list is thin."""
    patch.setattr("tacit.secure.opening._Session._check_enough", lambda *_: None)
    around = round_of(CLIENTS, DROPOUT, COLLUDING)
    return CuttingServer(around, with_roster=roster, when=when)


@pytest.mark.parametrize(
    ("when", "refused", "name", "roster"),
    [
        ("share", "deliver", "sharers", True),
        ("deliver", "seal", "members", True),
        ("seal", "confirm", "survivors", True),
        ("seal", "open", "survivors", False),
    ],
)
def test_clients_refuse_lists_that_would_cut_a_stretch_out_of_the_ring(
    when: str, refused: str, name: str, roster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every honest client sees it, at whatever stage it happens; nothing opens."""
    server = cutting(monkeypatch, when, roster)
    with pytest.raises(TooFewClients):
        server.total()
    wired = server.members.wired
    assert 0 < len(server.dropouts) <= server.around.participation.dropout
    honest = set(range(CLIENTS)) - COLLUDERS - server.dropouts.keys()
    assert len(honest | COLLUDERS) >= server.around.threshold
    told = (
        f"{refused}: some {wired.reach} places in a row hold {wired.hidden} {name} or fewer, who "
        "might all collude, so that a part of the ring could be opened by itself"
    )
    found = {client: why for client, why in server.refusals.items() if client not in COLLUDERS}
    assert found == dict.fromkeys(honest, told)
    assert not server.opened().keys() & honest
    released = {e.client for e in server.exchanges if e.releases}
    assert released & honest == (honest if when == "seal" else set())


def test_without_the_check_the_stretch_opens_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: this is what clients refuse. It opened 11 clients' sum instead of 70 clients'.

    The drop-outs are within what was planned, and all other checks of the protocol pass.
    """
    monkeypatch.setattr(Wiring, "thin", lambda *_: False)
    server = cutting(monkeypatch)
    total = server.total()
    assert not server.refusals
    assert len(server.dropouts) <= server.around.participation.dropout
    assert set(server.stretch) <= set(total.survivors)
    found = server.stretch_sum(Transcript.from_bytes(total.transcript))
    assert found.tolist() == server.sum_of(tuple(server.stretch))
    assert len(server.stretch) < server.around.participation.guaranteed / 5


class SparingServer(CuttingServer):
    """It drops as many, but every third place only."""

    def choose(self, members: Members) -> None:
        self.dropouts = dict.fromkeys(set(members.order[:90:3]) - COLLUDERS, self.when)


@pytest.mark.parametrize("when", ["share", "deliver", "seal"])
def test_as_many_drop_outs_all_around_the_ring_are_taken(when: str) -> None:
    server = SparingServer(round_of(CLIENTS, DROPOUT, COLLUDING), with_roster=True, when=when)
    total = server.total()
    assert len(total.survivors) <= CLIENTS - 20
    assert total.value.tolist() == server.sum_of(total.survivors)
    assert not server.refusals


def begun(endpoints: Sequence[Endpoint]) -> tuple[list[bytes], list[str]]:
    """A server begins a sum, has all secrets shared, sees the order, and gives it up."""
    session = token_bytes(32)
    asked = AskSum(
        version=VERSION,
        session=session,
        secure="masks",
        clients=len(endpoints),
        dropout=0,
        colluding=0,
        variance=139.0,
        deadline=math.inf,
        line=bytes(32),
        at_least=None,
        query=Ballot(({"x": 0.0}, {"x": 1.0}), 1),
    )
    states, replies, refusals = {}, {}, []
    for endpoint in endpoints:
        try:
            states[endpoint.number], replies[endpoint.number] = endpoint.handle(b"", encode(asked))
        except Refused as reason:
            refusals.append(str(reason))
    found = {client: unpack_reply(Advert, reply) for client, reply in replies.items()}
    setup = packed({client: advert for client, advert in found.items() if advert})
    shares = []
    for client, state in states.items():
        following, reply = endpoints[client].handle(
            state, encode(Continue(VERSION, session, pack(Setup(setup))))
        )
        shares.append(reply)
        fewer = encode(Continue(VERSION, session, pack(Setup(setup[:-1]))))
        with pytest.raises(Refused, match="'Setup' does not follow 'Shared'"):
            endpoints[client].handle(following, fewer)
    return shares, refusals


def test_a_server_that_draws_the_order_again_and_again_is_stopped_by_every_client() -> None:
    """One order a session, and so many sessions a day that never open."""
    now = 1e9
    built = channel(federation([likes(0.5)] * 3, dropout=0)).endpoints
    endpoints = [replace(one, sessions=Sessions(clock=lambda: now)) for one in built]
    drawn = set()
    for _ in range(MOST_UNOPENED):
        shares, refusals = begun(endpoints)
        assert (len(shares), refusals) == (3, [])
        drawn.update(shares)
    assert len(drawn) == 3 * MOST_UNOPENED
    for later in (0.0, DAY / 2, DAY - 1):
        now = 1e9 + later
        shares, refusals = begun(endpoints)
        assert not shares
        assert len(refusals) == 3
        assert all("32 sums were begun and not opened within a day" in why for why in refusals)
    now = 1e9 + DAY
    assert len(begun(endpoints)[0]) == 3
