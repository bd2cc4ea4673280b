"""The masked sum: sealed vectors look random one by one and add up to the total.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017), on
the sparse graph of Bell et al. (2020; :mod:`tacit.secure.graph`). Every client adds to its vector a
mask of its own and, for every neighbour, a mask they agreed on that one of them adds and the other
subtracts. Secrets are shared among the neighbours: of a survivor they give back its own mask, of a
drop-out its side of the agreed masks, never both, so that exactly the survivors' sum opens.

==========  ==================================  ================================================
stage       the server sends                    a client answers
==========  ==================================  ================================================
advertise   (the question)                      two X25519 keys, a commitment, a signature
reveal      all adverts (above 64 clients)      what it committed to: joint randomness
share       all adverts and reveals             shares of its secrets, sealed to its neighbours
seal        who shared, the shares for it       its masked vector, a signature over who shared
confirm     survivors, neighbours' signatures   (with a roster) a signature over that list
open        who survived, with signatures       shares: survivors' own masks, drop-outs' keys
==========  ==================================  ================================================

*What the server learns.* Let H be the honest survivors. A mask between two of H comes from a secret
that neither server nor colluders can recover, and the graph on H is connected. So the sealed
vectors of H are (pseudo-)random subject to their sum: a spanning tree of masks carries any
difference between two inputs of equal sum. The rest of the view does not depend on the vectors.
Hence the whole view can be rebuilt from the sum, and the vectors carry their noise before the
protocol starts, so the sum is what the accounting prices. Without a roster this holds against a
server that follows the protocol. With one, keys cannot be swapped, and a list of survivors opens
only when so many signed it that two such lists would share an honest signer; so one list at most
opens, and no secret of it opens twice. A survivor's own mask opens only at neighbours who saw its
signature over the same sharers as theirs, so nobody is opened who was made to leave masks out.
Above 64 clients one assumption about the server remains: it does not choose *who drops out* by the
graph. (The graph itself it can have redrawn three times at most, which multiplies the failure
chance by four.)

This file holds the client's half, :mod:`tacit.secure.opening` the server's. The client's half is
pure steps over explicit states; a request that comes twice, too early or for another session finds
no step. Written by hand because no library on PyPI sums integers this way without clipping them
(Flower's SecAgg+ also seeds its masks with 28 bits only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.privacy.skellam import IntArray
from tacit.secure import crypto, shamir
from tacit.secure.graph import neighbours, ring, wiring
from tacit.secure.messages import (
    Advert,
    Advertised,
    Adverts,
    Again,
    Confirmation,
    Confirmed,
    Delivery,
    Done,
    Masked,
    Opened,
    Opening,
    Reply,
    Request,
    Reveal,
    Revealed,
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
    Members,
    advert_text,
    checked_members,
    commit,
    expanded,
    joint_seed,
    own_mask,
    setup_digest,
    sharers_text,
    survivors_text,
)

MOST_ATTEMPTS = 4
"""How often a graph may be drawn in one session because a client did not reveal its part."""


@dataclass(frozen=True)
class MaskedParticipant:
    """One client's half of one round, configured by the client itself, not by the wire."""

    around: Round
    me: int
    identity: Identity | None = None
    roster: Roster | None = None

    def begin(self, vector: IntArray) -> Step:
        """Fix the vector, which carries its noise already, and advertise keys."""
        state, advert = self._advertise(0, self.around.residues(vector))
        return Step(pack(state), pack(advert))

    def step(self, state: bytes, request: bytes) -> Step:
        """Answer one request, or raise :class:`Refused` and leave everything as it was."""
        following, reply = self._step(unpack_state(state), unpack_request(request))
        return Step(pack(following), pack(reply), releases=isinstance(reply, Sealed))

    def _step(self, state: State, request: Request) -> tuple[State, Reply]:
        match state, request:
            case Advertised() | Revealed(), Again():
                return self._advertise_again(state, request)
            case Advertised(), Adverts():
                return self._reveal(state, request)
            case Advertised() | Revealed(), Setup():
                return self._share(state, request)
            case Shared(), Delivery():
                return self._seal(state, request)
            case Masked(), Survivors() if self.roster:
                return self._confirm(state, request)
            case Confirmed(), Opening():
                return self._open_confirmed(state, request)
            case Masked(), Opening() if not self.roster:
                self._check_survivors(state, request.clients)
                return Done(), _opened(state, request.clients)
        raise Refused(
            f"the message {type(request).__name__!r} does not follow {type(state).__name__!r}; "
            "messages come once and in order"
        )

    def _advertise(self, attempt: int, vector: bytes) -> tuple[Advertised, Advert]:
        cipher_secret, mask_secret = crypto.fresh(), crypto.fresh()
        randomness = crypto.fresh() if self.around.draws_graph else b""
        keys = crypto.public_key(cipher_secret), crypto.public_key(mask_secret)
        commitment = commit(randomness) if randomness else b""
        text = advert_text(self.around, attempt, self.me, *keys, commitment)
        signature = self.identity.sign(text) if self.identity else b""
        advert = Advert(self.me, *keys, commitment, signature)
        return Advertised(attempt, cipher_secret, mask_secret, randomness, advert, vector), advert

    def _advertise_again(
        self, state: Advertised | Revealed, request: Again
    ) -> tuple[Advertised, Advert]:
        before = state.advertised if isinstance(state, Revealed) else state
        if not self.around.draws_graph or not before.attempt < request.attempt < MOST_ATTEMPTS:
            raise Refused(
                f"attempt {request.attempt} of the set-up; allowed is one after {before.attempt} "
                f"and below {MOST_ATTEMPTS}"
            )
        return self._advertise(request.attempt, before.vector)

    def _reveal(self, state: Advertised, request: Adverts) -> tuple[Revealed, Reveal]:
        members = self._members(state, request.adverts)
        return Revealed(state, members.digest), Reveal(state.randomness)

    def _share(self, state: Advertised | Revealed, request: Setup) -> tuple[Shared, Shares]:
        keys = state.advertised if isinstance(state, Revealed) else state
        members = self._members(keys, request.adverts)
        if self.around.draws_graph and (
            not isinstance(state, Revealed) or state.adverts_digest != members.digest
        ):
            raise Refused("the adverts are not those for which the randomness was revealed")
        seed = joint_seed(members, request.reveals, draws_graph=self.around.draws_graph)
        wired = wiring(self.around.participation, len(members.clients))
        near = neighbours(ring(seed, members.clients), wired.degree, self.me)
        self_seed = crypto.fresh()
        holders = (*near, self.me)
        self_shares = shamir.split(self_seed, holders, wired.share_threshold)
        key_shares = shamir.split(keys.mask_secret, holders, wired.share_threshold)
        adverts = {other: members.adverts[other] for other in near}
        box_keys = self._agree(
            keys.cipher_secret, {other: a.cipher_key for other, a in adverts.items()}, b"box"
        )
        mask_keys = self._agree(
            keys.mask_secret, {other: a.mask_key for other, a in adverts.items()}, b"mask"
        )
        boxes = {
            other: crypto.seal(
                box_keys[other],
                self_shares[other] + key_shares[other],
                self._box_context(self.me, other),
            )
            for other in near
        }
        shared = Shared(
            setup_digest=setup_digest(members, seed),
            members=members.clients,
            share_threshold=wired.share_threshold,
            self_seed=self_seed,
            box_keys=box_keys,
            mask_keys=mask_keys,
            own_shares=(self_shares[self.me], key_shares[self.me]),
            vector=keys.vector,
        )
        return shared, Shares(boxes)

    def _seal(self, state: Shared, request: Delivery) -> tuple[Masked, Sealed]:
        sharers = _checked_list("sharers", request.sharers, state.members, self.me)
        self._check_enough("sharers", sharers)
        if request.boxes.keys() != state.box_keys.keys() & set(sharers):
            # Masks left out on purpose would cut the graph and open smaller sums.
            raise Refused("shares of some neighbour were withheld, or came from no neighbour")
        everyone_is_near = len(state.box_keys) == len(state.members) - 1
        if not everyone_is_near and len(request.boxes) < state.share_threshold:
            raise Refused(
                f"only {len(request.boxes)} neighbours shared; with fewer than "
                f"{state.share_threshold} all of them might collude"
            )
        held = {self.me: state.own_shares}
        for other, box in request.boxes.items():
            held[other] = self._unseal(state.box_keys[other], box, other)
        vector = np.frombuffer(state.vector, self.around.word)
        masked = vector + own_mask(self.around, state.self_seed)
        for other in request.boxes:
            mask = expanded(self.around, state.mask_keys[other])
            masked = masked + mask if self.me < other else masked - mask
        text = sharers_text(self.around, state.setup_digest, sharers)
        signature = self.identity.sign(text) if self.identity else b""
        return Masked(state.setup_digest, sharers, held), Sealed(masked.tobytes(), signature)

    def _confirm(self, state: Masked, request: Survivors) -> tuple[Confirmed, Confirmation]:
        self._check_survivors(state, request.clients)
        if self.identity is None or self.roster is None:
            raise Refused("this client has no key to sign with, or no roster")
        near = state.held.keys() & set(request.clients) - {self.me}
        told = sharers_text(self.around, state.setup_digest, state.sharers)
        if request.signatures.keys() != near or not all(
            self.roster.confirms(client, told, signature)
            for client, signature in request.signatures.items()
        ):
            # Whoever was told of other sharers left other masks out, and must not be opened.
            raise Refused("a surviving neighbour did not sign the same sharers")
        text = survivors_text(self.around, state.setup_digest, state.sharers, request.clients)
        return Confirmed(state, request.clients), Confirmation(self.identity.sign(text))

    def _open_confirmed(self, state: Confirmed, request: Opening) -> tuple[Done, Opened]:
        if request.clients != state.survivors:
            raise Refused("the survivors are not those that this client confirmed")
        if not request.signatures.keys() <= set(state.survivors):
            raise Refused("a signature comes from a client that did not survive")
        masked = state.masked
        text = survivors_text(self.around, masked.setup_digest, masked.sharers, state.survivors)
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
        return Done(), _opened(masked, state.survivors)

    def _check_survivors(self, state: Masked, survivors: tuple[int, ...]) -> None:
        self._check_enough(
            "survivors", _checked_list("survivors", survivors, state.sharers, self.me)
        )

    def _check_enough(self, name: str, clients: Sequence[int]) -> None:
        if len(clients) < self.around.threshold:
            raise Refused(
                f"there are {len(clients)} {name}; below {self.around.threshold} the noise or the "
                "majority would not suffice, so nothing opens"
            )

    def _members(self, state: Advertised, adverts: bytes) -> Members:
        members = checked_members(adverts, self.around, state.attempt, self.roster)
        if members.adverts.get(self.me) != state.advert:
            raise Refused("this client's own keys were altered or left out")
        return members

    def _agree(
        self, secret: bytes, publics: Mapping[int, bytes], purpose: bytes
    ) -> dict[int, bytes]:
        try:
            agreed = crypto.agree(secret, *publics.values())
        except ValueError:
            raise Refused("a client's public key is not a valid X25519 key") from None
        return {
            other: crypto.derive(one, purpose, self.around.session)
            for other, one in zip(publics, agreed, strict=True)
        }

    def _box_context(self, sender: int, receiver: int) -> bytes:
        return self.around.describe() + f" {sender} {receiver}".encode()

    def _unseal(self, key: bytes, box: bytes, sender: int) -> tuple[bytes, bytes]:
        try:
            text = crypto.unseal(key, box, self._box_context(sender, self.me))
        except ValueError as error:
            raise Refused(str(error)) from None
        if len(text) != 2 * shamir.SHARE_BYTES:
            raise Refused("a sealed box does not hold two shares")
        return text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :]


def _checked_list(
    name: str, clients: tuple[int, ...], among: Sequence[int], me: int
) -> tuple[int, ...]:
    if list(clients) != sorted(set(clients)) or not set(clients) <= set(among):
        raise Refused(f"the {name} are not a sorted list of different clients of this round")
    if me not in clients:
        raise Refused(f"the {name} lack this client, which did its part")
    return clients


def _opened(state: Masked, survivors: Sequence[int]) -> Opened:
    """One kind of share a client: the own mask of a survivor, the mask key of a drop-out."""
    alive = set(survivors)
    return Opened(
        self_shares={client: held[0] for client, held in state.held.items() if client in alive},
        key_shares={client: held[1] for client, held in state.held.items() if client not in alive},
    )
