"""A server that tells one client another story than its neighbours, with colluders to help it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from tacit.privacy.skellam import IntArray
from tacit.secure import crypto
from tacit.secure.messages import (
    Advert,
    Delivered,
    Delivery,
    Final,
    Masked,
    Sealed,
    Setup,
    Shared,
    Shares,
    pack,
    unpack_reply,
    unpack_request,
)
from tacit.secure.protocol import Round, TooFewClients
from tacit.secure.setup import (
    Members,
    checked_members,
    final_digest,
    own_mask,
    packed,
    pair_key,
    pair_mask,
    publics,
)
from tests.secure.driver import Rehearsal, round_of

pytestmark = pytest.mark.usefixtures("small_rings")

RING = round_of(100, 0.3, 0.1)
COMPLETE = round_of(15, 0.4, 0.2)


@dataclass
class LyingServer(Rehearsal):
    """Cuts one victim off from its honest neighbours.

    Some of them it leaves out of the members that it names to the victim, so that no mask is shared
    with those; others it declares dropped out, so that their masks open. The victim still sees as
    many neighbours as its own rules demand, some of them colluders, whose masks the server knows.
    On a ring this cuts it off from all of them.
    """

    also_sharers: bool = False
    """Whether it lies from the sharers on, or about the final members only."""
    victim: int = -1
    withheld: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)

    @property
    def colluders(self) -> set[int]:
        clients, colluding = self.around.participation.clients, self.around.participation.colluding
        return set(range(0, clients, clients // colluding))

    @property
    def members(self) -> Members:
        return checked_members(self.asked(Setup, "share", 0).adverts, self.around, self.roster)

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        replies = super().ask(stage, requests)
        if stage == "advertise":
            found = {client: unpack_reply(Advert, reply) for client, reply in replies.items()}
            adverts = {client: advert for client, advert in found.items() if advert}
            self.choose(Members.of(self.around, packed(adverts), adverts))
        if stage == "seal":
            return {client: one for client, one in replies.items() if client not in self.dropped}
        return replies

    def choose(self, members: Members) -> None:
        """The victim with the most colluders around it; every other neighbour gets another fate.

        So no window of places is thin, neither of the victim's members nor of the survivors.
        """
        honest = set(members.order) - self.colluders
        self.victim = max(
            sorted(honest), key=lambda client: len(set(members.near(client)) & self.colluders)
        )
        near = set(members.near(self.victim)) & honest
        lost = [client for client in members.order if client in near]
        spare = len(members.order) - self.around.threshold
        self.dropped, self.withheld = set(lost[::2][:spare]), set(lost[1::2][:spare])

    def lie(self, _stage: str, client: int, request: bytes) -> bytes:
        if client != self.victim:
            return request
        message = unpack_request(request)
        if isinstance(message, Final):
            return pack(Final(tuple(c for c in message.members if c not in self.withheld)))
        if isinstance(message, Delivery) and self.also_sharers:
            sharers = tuple(c for c in message.sharers if c not in self.withheld)
            parcels = {c: one for c, one in message.parcels.items() if c not in self.withheld}
            return pack(Delivery(sharers, parcels))
        return request

    def told(self, place: int) -> dict[int, bytes]:
        """Shares of the victim's self seed (0) or mask key (1) that server and colluders have."""
        given = {
            holder: (reply.self_shares, reply.key_shares)[place]
            for holder, reply in self.opened().items()
        }
        shares = {
            holder: parts[self.victim] for holder, parts in given.items() if self.victim in parts
        }
        for colluder in self.colluders:
            held = self.kept(Delivered, "deliver", colluder).held
            if self.victim in held:
                shares[colluder] = held[self.victim][place]
        return shares

    def vector_of_the_victim(self) -> IntArray:
        """What is left of its sealed vector once every mask that the server knows is taken off."""
        members, setup = self.members, self.members.digest
        final = final_digest(setup, self.kept(Masked, "seal", self.victim).members)
        seed, _ = publics(setup, self.victim, self.answered(Shares, "share", self.victim))
        vector = np.frombuffer(self.answered(Sealed, "seal", self.victim).vector, self.around.word)
        vector = vector - own_mask(self.around, final, self.victim, seed.recover(self.told(0)))
        keys = {
            colluder: self.kept(Shared, "share", colluder).pair_keys[self.victim]
            for colluder in self.colluders & set(members.near(self.victim))
        }
        for client in self.dropped:
            _, public = publics(setup, client, self.answered(Shares, "share", client))
            given = {holder: reply.key_shares for holder, reply in self.opened().items()}
            shares = {holder: parts[client] for holder, parts in given.items() if client in parts}
            (agreed,) = crypto.agree(public.recover(shares), members.adverts[self.victim].mask_key)
            own = members.adverts[client]
            keys[client] = pair_key(setup, own, members.adverts[self.victim], agreed)
        for other, key in keys.items():
            mask = pair_mask(self.around, final, key)
            vector = vector - mask if self.victim < other else vector + mask
        return self.around.integers(vector.tobytes())


def lying(around: Round, *, also_sharers: bool, patch: pytest.MonkeyPatch) -> LyingServer:
    """The server would leave out who signs another list, so it is made to trust everybody."""
    patch.setattr("tacit.secure.opening._Session._confirms", lambda *_: True)
    server = LyingServer(around, with_roster=True, also_sharers=also_sharers)
    server.tamper_request = server.lie
    return server


@pytest.mark.parametrize("around", [RING, COMPLETE], ids=["ring", "complete"])
@pytest.mark.parametrize("also_sharers", [False, True])
def test_nobody_is_opened_who_was_told_of_other_members(
    around: Round, also_sharers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The victim seals; its neighbours see that it sealed for another list, and nothing opens."""
    server = lying(around, also_sharers=also_sharers, patch=monkeypatch)
    with pytest.raises(TooFewClients):
        server.total()
    assert server.exchange("seal", server.victim).releases
    near = set(server.members.near(server.victim))
    told = "confirm: a surviving neighbour did not seal its vector for the same members"
    refused = {client for client, why in server.refusals.items() if why == told}
    assert refused == near - server.dropped
    assert server.withheld <= refused
    assert server.victim in server.refusals
    assert not server.opened().keys() & near
    threshold = server.members.wired.share_threshold
    assert len(server.told(0)) < threshold
    assert len(server.told(1)) < threshold


@pytest.mark.parametrize("around", [RING, COMPLETE], ids=["ring", "complete"])
def test_masks_of_a_client_that_was_told_of_other_members_are_shared_with_nobody(
    around: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So whatever its neighbours seal and open, no mask of the victim cancels."""
    server = lying(around, also_sharers=False, patch=monkeypatch)
    with pytest.raises(TooFewClients):
        server.total()
    masked = server.kept(Masked, "seal", server.victim)
    keys = server.kept(Shared, "share", server.victim).pair_keys
    alone = final_digest(masked.setup_digest, masked.members)
    others = keys.keys() & {e.client for e in server.exchanges if e.stage == "seal"}
    assert others
    for other in others:
        theirs = server.kept(Masked, "seal", other)
        final = final_digest(theirs.setup_digest, theirs.members)
        assert server.kept(Shared, "share", other).pair_keys[server.victim] == keys[other]
        mask = pair_mask(around, alone, keys[other])
        assert (mask != pair_mask(around, final, keys[other])).any()


@pytest.mark.parametrize("around", [RING, COMPLETE], ids=["ring", "complete"])
def test_a_victim_that_is_given_up_after_it_sealed_stays_hidden_by_its_own_mask(
    around: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key opens, as a drop-out's; its seed does not, whatever list it sealed for."""
    server = lying(around, also_sharers=False, patch=monkeypatch)
    choose = server.choose

    def choose_and_give_up(members: Members) -> None:
        choose(members)
        server.dropped = {server.victim}

    monkeypatch.setattr(server, "choose", choose_and_give_up)
    total = server.total()
    assert server.victim not in total.survivors
    assert total.value.tolist() == server.sum_of(total.survivors)
    threshold = server.members.wired.share_threshold
    assert len(server.told(1)) >= threshold
    assert len(server.told(0)) < threshold
    assert server.exchange("seal", server.victim).releases


@pytest.mark.parametrize("also_sharers", [False, True])
def test_if_lists_were_not_bound_the_victim_would_be_read(
    also_sharers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with masks and signatures that forget the final list, the lie opens a vector.

    The server has dropped no more clients, and told of no fewer members, than was planned.
    """
    for module in ("masks", "opening", "transcript"):
        monkeypatch.setattr(f"tacit.secure.{module}.final_digest", lambda setup, _members: setup)
    monkeypatch.setattr(f"{__name__}.final_digest", lambda setup, _members: setup)
    server = lying(RING, also_sharers=also_sharers, patch=monkeypatch)
    server.total()
    assert server.refusals.keys() == {server.victim}, "for the list of survivors, too late"
    assert len(server.dropped | server.withheld) <= 2 * RING.participation.dropout
    assert server.vector_of_the_victim().tolist() == server.vectors[server.victim].tolist()
