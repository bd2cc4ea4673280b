"""A server that tells one client another story than its neighbours, with colluders to help it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tacit.secure.graph import wiring
from tacit.secure.messages import Delivery, Shares, pack, unpack_reply, unpack_request
from tacit.secure.protocol import TooFewClients
from tests.secure.driver import Rehearsal, round_of

CLIENTS = 250
COLLUDERS = set(range(0, CLIENTS, 10))


@dataclass
class LyingServer:
    """Cuts one victim off from all honest neighbours.

    Some of them it leaves out of the sharers that it names to the victim, so that no mask is shared
    with those; the others it declares dropped out, so that their masks open. The victim still sees
    as many neighbours as recover a secret, some of them colluders, whose masks the server knows.
    """

    rehearsal: Rehearsal
    victim: int = -1
    withheld: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)

    def choose(self) -> None:
        near = {
            exchange.client: set(shares.boxes)
            for exchange in self.rehearsal.exchanges
            if exchange.stage == "share" and (shares := unpack_reply(Shares, exchange.reply))
        }
        wired = wiring(self.rehearsal.around.participation, CLIENTS)
        enough = 2 * wired.share_threshold - wired.degree
        self.victim = next(
            client
            for client in sorted(near.keys() - COLLUDERS)
            if len(near[client] & COLLUDERS) >= enough
        )
        honest = sorted(near[self.victim] - COLLUDERS)
        half = wired.degree - wired.share_threshold
        self.dropped, self.withheld = set(honest[:half]), set(honest[half : 2 * half])

    def request(self, stage: str, client: int, request: bytes) -> bytes:
        if stage != "seal":
            return request
        if self.victim < 0:
            self.choose()
        if client != self.victim:
            return request
        delivery = unpack_request(request)
        assert isinstance(delivery, Delivery)
        return pack(
            Delivery(
                tuple(other for other in delivery.sharers if other not in self.withheld),
                {o: box for o, box in delivery.boxes.items() if o not in self.withheld},
            )
        )

    def reply(self, stage: str, client: int, reply: bytes) -> bytes:
        return b"" if stage == "seal" and client in self.dropped else reply


def test_nobody_is_opened_who_was_told_of_other_sharers() -> None:
    """The victim seals; its neighbours see that it signed other sharers, and nothing opens.

    The server itself would leave such a reply out, so it is made to trust everybody here.
    """
    rehearsal = Rehearsal(round_of(CLIENTS, 0.1, 0.1), with_roster=True)
    server = LyingServer(rehearsal)
    rehearsal.tamper_request, rehearsal.tamper_reply = server.request, server.reply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.secure.opening.MaskedSum._is_sealed", lambda *_: bool(_[-1].vector))
        with pytest.raises(TooFewClients, match="at the stage 'confirm'"):
            rehearsal.total()
    assert server.victim >= 0
    assert any("did not sign the same sharers" in str(why) for why in rehearsal.refusals.values())
    assert not rehearsal.opened()
