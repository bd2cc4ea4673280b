"""The masked sum: sealed vectors look random one by one and add up to the total.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017), on
the sparse graph of Bell et al. (2020; :mod:`tacit.secure.graph`). Every client adds to its vector a
mask of its own and, for every neighbour, a mask they agreed on that one of them adds and the other
subtracts. Secrets are shared among the neighbours: of a survivor they give back its own mask, of a
drop-out its side of the agreed masks, never both, so that exactly the survivors' sum opens.

==========  ==================================  ================================================
stage       the server sends                    a client answers
==========  ==================================  ================================================
advertise   (the question)                      two X25519 keys, a signature
share       all adverts                         shares of its secrets, sealed to its neighbours,
                                                with a proof that they fit together, signed
deliver     who shared, the shares for it       a receipt, and complaints about shares that are
                                                not in order, signed
explain     complaints about a client, if any   what lets everybody look into those boxes, signed
seal        the final list of members           its masked vector, signed
confirm     survivors, a digest of their        (with a roster) a signature over both
            vectors, neighbours' signed ones
open        who survived, with signatures       shares: survivors' own masks, drop-outs' keys
==========  ==================================  ================================================

*What the server learns.* Let H be the honest survivors. A mask between two of H comes from a secret
that neither server nor colluders can recover, and the graph on H is connected, whoever vanishes. So
the sealed vectors of H are (pseudo-)random subject to their sum: a spanning tree of masks carries
any difference between two inputs of equal sum. The rest of the view does not depend on the vectors.
Hence the whole view can be rebuilt from the sum, and the vectors carry their noise before the
protocol starts, so the sum is what the accounting prices. Without a roster this holds against a
server that follows the protocol. With one, keys cannot be swapped, and a list of survivors opens
only when so many signed it that two such lists would share an honest signer; so one list at most
opens, and no secret of it opens twice. Masks are bound to both numbers, both public keys, the
question and the final list, so a key that somebody copied, another question or another list makes
another mask; and a client opens only survivors whose vectors were sealed for its own list.

*Who misbehaves is named.* Everybody checks the shares it gets before anything is sealed. A
complaint is settled by the dealer, who shows what it sealed by giving away the secret of that one
box, never one of a mask: so either the dealer or whoever complained without cause is left out, and
counts as a drop-out. A dealer whose answer does not come is left out too, but named by nobody: it
may be lost, and the complaint false. A dealer explains a parcel only if it is the one that it made,
so that a server cannot have honest clients complain about forgeries and collect shares; and honest
clients never complain about honest ones, so what is shown are shares that colluders hold anyway. A
share that comes back wrong names its holder, or the dealer that gave a wrong one to an accomplice.
*No honest client is named*, whoever colludes: each finding rests on what the named client signed.
An honest dealer signed one dealing whose shares fit together, and the true secret of a box that it
explains. An honest holder returns what it got, and signed at once what that was, so a dealing that
somebody else made up, or that its dealer signed in addition, is not the one of its receipt.

This file holds the client's half, :mod:`tacit.secure.opening` the server's. The client's half is
pure steps over explicit states; a request that comes too early, or of another session, finds none.
Written by hand because no library on PyPI sums integers this way without clipping them (Flower's
SecAgg+ also seeds its masks with 28 bits only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace as altered

from tacit.privacy.skellam import IntArray
from tacit.secure import crypto, shamir
from tacit.secure.graph import wiring
from tacit.secure.messages import (
    Advert,
    Advertised,
    Complaints,
    Confirmation,
    Confirmed,
    Delivered,
    Delivery,
    Done,
    Explained,
    Final,
    Masked,
    Opened,
    Opening,
    Parcel,
    Received,
    Reply,
    Request,
    Sealed,
    Setup,
    Shared,
    Shares,
    State,
    Survivors,
    pack,
    unpack_request,
    unpack_state,
)
from tacit.secure.protocol import Refused, Round, Step
from tacit.secure.roster import Identity, Roster
from tacit.secure.setup import (
    SECRETS,
    Members,
    advert_text,
    box_context,
    check_enough,
    checked_members,
    complaint_text,
    explained_text,
    final_digest,
    opened_text,
    own_mask,
    pair_key,
    pair_mask,
    parcel_digest,
    parcel_for,
    received_text,
    sealed_text,
    secret_context,
    shares_in,
    signed_dealing,
    survivors_text,
    vector_digest,
)


@dataclass(frozen=True)
class MaskedParticipant:
    """One client's half of one round, configured by the client itself, not by the wire."""

    around: Round
    me: int
    identity: Identity | None = None
    roster: Roster | None = None

    def begin(self, vector: IntArray) -> Step:
        """Fix the vector, which carries its noise already, and advertise keys."""
        box_secret, mask_secret = crypto.fresh(), crypto.fresh()
        keys = crypto.public_key(box_secret), crypto.public_key(mask_secret)
        advert = Advert(self.me, *keys, self._sign(advert_text(self.around, self.me, *keys)))
        state = Advertised(box_secret, mask_secret, advert, self.around.residues(vector))
        return Step(pack(state), pack(advert))

    def step(self, state: bytes, request: bytes) -> Step:
        """Answer one request, or raise :class:`Refused` and leave everything as it was."""
        following, reply = self._step(unpack_state(state), unpack_request(request))
        return Step(
            pack(following),
            pack(reply),
            releases=isinstance(reply, Sealed),
            finishes=isinstance(reply, Opened),
            members=following.members if isinstance(following, Masked) else (),
        )

    def _step(self, state: State, request: Request) -> tuple[State, Reply]:
        match state, request:
            case Advertised(), Setup():
                return self._share(state, request)
            case Shared(), Delivery():
                return self._receive(state, request)
            case Delivered(explained=False), Complaints():
                return self._explain(state, request)
            case Delivered(), Final():
                return self._seal(state, request)
            case Masked(), Survivors() if self.roster:
                return self._confirm(state, request)
            case Confirmed(), Opening():
                return self._open_confirmed(state, request)
            case Masked(), Opening() if not self.roster:
                self._check_survivors(state, request.clients)
                return Done(), self._opened(state, request.clients)
        raise Refused(
            f"the message {type(request).__name__!r} does not follow {type(state).__name__!r}; "
            "messages come in order"
        )

    def _share(self, state: Advertised, request: Setup) -> tuple[Shared, Shares]:
        members = checked_members(request.adverts, self.around, self.roster)
        if members.adverts.get(self.me) != state.advert:
            raise Refused("this client's own keys were altered or left out")
        setup, near, self_seed = members.digest, members.near(self.me), crypto.fresh()
        holders, threshold = (*near, self.me), members.wired.share_threshold
        dealt = [
            shamir.Dealing.of(secret, holders, threshold, secret_context(setup, self.me, name))
            for name, secret in zip(SECRETS, (self_seed, state.mask_secret), strict=True)
        ]
        own, box_seed = [dealing.shares[self.me] for dealing in dealt], crypto.fresh()
        boxes = {
            other: crypto.seal(
                self._once(box_seed, other),
                members.adverts[other].box_key,
                b"".join(dealing.shares[other] for dealing in dealt),
                box_context(setup, self.me, other),
            )
            for other in near
        }
        shared = Shared(
            setup_digest=setup,
            order=members.order,
            box_secret=state.box_secret,
            box_seed=box_seed,
            parcels={other: _parcel_digest(dealt, other, boxes[other]) for other in near},
            self_seed=self_seed,
            pair_keys=self._pair_keys(state.mask_secret, members, near),
            own_shares=(own[0], own[1]),
            vector=state.vector,
        )
        seed, key = (dealing.public for dealing in dealt)
        hashes = {holder: (seed.hashes[holder], key.hashes[holder]) for holder in seed.hashes}
        shares = Shares(boxes, hashes, (seed.proof, key.proof), b"")
        signature = self._sign(signed_dealing(setup, self.me, shares))
        return shared, altered(shares, signature=signature)

    def _receive(self, state: Shared, request: Delivery) -> tuple[Delivered, Received]:
        sharers = _checked_list("sharers", request.sharers, state.order, self.me)
        self._check_enough(state, "sharers", sharers)
        if request.parcels.keys() != state.pair_keys.keys() & set(sharers):
            raise Refused("shares of some neighbour were withheld, or came from no neighbour")
        held, complaints, digests = {self.me: state.own_shares}, {}, {}
        receiver = crypto.Receiver(state.box_secret)
        for dealer, parcel in request.parcels.items():
            found = digests[dealer] = parcel_digest(parcel)
            pair = self._shares_of(receiver, state.setup_digest, dealer, parcel)
            if pair is None:
                text = complaint_text(state.setup_digest, dealer, self.me, found)
                complaints[dealer] = self._sign(text)
            else:
                held[dealer] = pair
        signature = self._sign(received_text(state.setup_digest, self.me, digests))
        shared = altered(state, box_secret=b"")
        return Delivered(shared, sharers, held, explained=False), Received(complaints, signature)

    def _explain(self, state: Delivered, request: Complaints) -> tuple[Delivered, Explained]:
        shared, complaints = state.shared, request.complaints
        for holder, (found, signature) in complaints.items():
            if shared.parcels.get(holder) != found:
                raise Refused("a complaint is about a parcel that this client did not make")
            text = complaint_text(shared.setup_digest, self.me, holder, found)
            if self.roster and not self.roster.confirms(holder, text, signature):
                raise Refused("a complaint is not signed by the client that the roster names")
        threshold = wiring(self.around.participation, len(shared.order)).share_threshold
        if len(complaints) >= threshold:
            raise Refused(
                f"{len(complaints)} clients complain; with {threshold} shares this client's "
                "secrets would be known"
            )
        secrets = {holder: self._once(shared.box_seed, holder) for holder in complaints}
        signature = self._sign(explained_text(shared.setup_digest, self.me, secrets))
        shared = altered(shared, box_seed=b"", parcels={})
        explained = Explained(secrets, signature)
        return Delivered(shared, state.sharers, state.held, explained=True), explained

    def _seal(self, state: Delivered, request: Final) -> tuple[Masked, Sealed]:
        shared = state.shared
        members = _checked_list("members", request.members, state.sharers, self.me)
        self._check_enough(shared, "members", members)
        if not shared.pair_keys.keys() & set(members) <= state.held.keys():
            raise Refused("a member's shares were not in order, and it is in the sum all the same")
        final = final_digest(shared.setup_digest, members)
        masked = np.frombuffer(shared.vector, self.around.word) + own_mask(
            self.around, final, self.me, shared.self_seed
        )
        held = {self.me: state.held[self.me]}
        for other in shared.pair_keys.keys() & set(members):
            mask = pair_mask(self.around, final, shared.pair_keys[other])
            masked = masked + mask if self.me < other else masked - mask
            held[other] = state.held[other]
        vector = masked.tobytes()
        signature = self._sign(sealed_text(final, self.me, vector_digest(vector)))
        return Masked(shared.setup_digest, shared.order, members, held), Sealed(vector, signature)

    def _confirm(self, state: Masked, request: Survivors) -> tuple[Confirmed, Confirmation]:
        self._check_survivors(state, request.clients)
        if self.identity is None or self.roster is None:
            raise Refused("this client has no key to sign with, or no roster")
        near = state.held.keys() & set(request.clients) - {self.me}
        final = final_digest(state.setup_digest, state.members)
        if request.seals.keys() != near or not all(
            self.roster.confirms(client, sealed_text(final, client, vector), signature)
            for client, (vector, signature) in request.seals.items()
        ):
            # Whoever was told of other members has other masks, which nothing would cancel.
            raise Refused("a surviving neighbour did not seal its vector for the same members")
        text = survivors_text(final, request.clients, request.contents)
        confirmed = Confirmed(state, request.clients, request.contents)
        return confirmed, Confirmation(self.identity.sign(text))

    def _open_confirmed(self, state: Confirmed, request: Opening) -> tuple[Done, Opened]:
        if request.clients != state.survivors:
            raise Refused("the survivors are not those that this client confirmed")
        if not request.signatures.keys() <= set(state.survivors):
            raise Refused("a signature comes from a client that did not survive")
        masked = state.masked
        final = final_digest(masked.setup_digest, masked.members)
        text = survivors_text(final, state.survivors, state.contents)
        if self.roster is None or not all(
            self.roster.confirms(client, text, signature)
            for client, signature in request.signatures.items()
        ):
            raise Refused("a signature over the survivors does not belong to the roster's key")
        if len(request.signatures) < self.around.threshold:
            raise Refused(
                f"{len(request.signatures)} clients signed the survivors; needed are "
                f"{self.around.threshold}"
            )
        return Done(), self._opened(masked, state.survivors)

    def _opened(self, state: Masked, survivors: Sequence[int]) -> Opened:
        """One kind of share a client: the own mask of a survivor, the mask key of a drop-out."""
        alive = set(survivors)
        own = {client: held[0] for client, held in state.held.items() if client in alive}
        keys = {client: held[1] for client, held in state.held.items() if client not in alive}
        final = final_digest(state.setup_digest, state.members)
        return Opened(own, keys, self._sign(opened_text(final, self.me, own, keys)))

    def _check_survivors(self, state: Masked, survivors: tuple[int, ...]) -> None:
        _checked_list("survivors", survivors, state.members, self.me)
        self._check_enough(state, "survivors", survivors)

    def _check_enough(self, state: Shared | Masked, name: str, clients: tuple[int, ...]) -> None:
        wired = wiring(self.around.participation, len(state.order))
        check_enough(self.around, wired, state.order, name, clients)

    def _pair_keys(self, secret: bytes, members: Members, near: Sequence[int]) -> dict[int, bytes]:
        own = members.adverts[self.me]
        others = [members.adverts[other] for other in near]
        agreed = crypto.agree(secret, *(other.mask_key for other in others))
        return {
            other.client: pair_key(members.digest, own, other, one)
            for other, one in zip(others, agreed, strict=True)
        }

    def _shares_of(
        self, receiver: crypto.Receiver, setup: bytes, dealer: int, parcel: Parcel
    ) -> tuple[bytes, bytes] | None:
        """What a neighbour dealt to this client, unless it is not in order."""
        try:
            text = receiver.unseal(parcel.box, box_context(setup, dealer, self.me))
        except ValueError:
            return None
        return shares_in(text, parcel, setup, dealer, self.me)

    def _once(self, box_seed: bytes, other: int) -> bytes:
        """The secret of one box; it is the state's, so that a complaint can be answered later."""
        return crypto.derive(box_seed, b"once", str(other).encode())

    def _sign(self, text: bytes) -> bytes:
        return self.identity.sign(text) if self.identity else b""


def _parcel_digest(dealt: Sequence[shamir.Dealing], other: int, box: bytes) -> bytes:
    publics = [dealing.public for dealing in dealt]
    seed, key = (
        shamir.fitting(dealing.public.challenge, dealing.shares[other]) for dealing in dealt
    )
    return parcel_digest(parcel_for(publics, other, box, (seed, key)))


def _checked_list(
    name: str, clients: tuple[int, ...], among: Sequence[int], me: int
) -> tuple[int, ...]:
    if list(clients) != sorted(set(clients)) or not set(clients) <= set(among):
        raise Refused(f"the {name} are not a sorted list of different clients of this round")
    if me not in clients:
        raise Refused(f"the {name} lack this client, which did its part")
    return clients
