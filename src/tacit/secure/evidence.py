"""Proofs that a client misbehaved in a masked sum, which anybody with the roster can check.

Each holds what the parties signed, and finds from that alone who is at fault: the dealer, or who
accuses it. Without a roster there are no signatures, and the finding is the server's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from tacit.secure import crypto, shamir
from tacit.secure.messages import Opened, Shares, unpack_reply
from tacit.secure.protocol import Fault
from tacit.secure.roster import Roster
from tacit.secure.setup import (
    Members,
    box_context,
    complaint_text,
    dealing_digest,
    dealing_text,
    opened_text,
    parcel_digest,
    parcel_for,
    publics,
    seed_hash,
    shares_in,
)

BAD_PARCEL = "dealt shares that do not fit what it published"
NO_CAUSE = "complained about a neighbour's shares without cause"
OTHER_SHARE = "returned other shares than it was dealt"
BAD_SHARE = "dealt a share that fits no other one"
OTHER_SEED = "shared another seed than it published a hash of"
OTHER_KEY = "shared another key than it advertised"


@dataclass(frozen=True)
class Case:
    """What both sides of an accusation agreed on before."""

    members: Members
    roster: Roster | None
    final: bytes = b""

    def dealing(self, dealer: int, shares: bytes) -> Shares:
        """What a dealer signed; a ValueError if it did not."""
        found = unpack_reply(Shares, shares)
        if found is None or not is_dealing(self.members, self.roster, dealer, found):
            raise ValueError(f"client {dealer} signed no such dealing")
        return found

    def confirms(self, client: int, text: bytes, signature: bytes) -> bool:
        """Whether a client signed a text; without a roster nobody signs."""
        return self.roster is None or self.roster.confirms(client, text, signature)


class _Evidence(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who dealt, to whom, and the dealing as it was sent."""

    dealer: int
    holder: int
    shares: bytes


class BadParcel(_Evidence, frozen=True, tag=1):
    """A complaint, and the secret with which the dealer had sealed the box."""

    complaint: bytes
    once: bytes

    def fault(self, case: Case) -> Fault:
        """Who is at fault; a ValueError if nobody is."""
        setup, shares = case.members.digest, case.dealing(self.dealer, self.shares)
        public = publics(setup, self.dealer, shares)
        expected = public[0].expected(self.holder), public[1].expected(self.holder)
        parcel = parcel_for(public, self.holder, shares.boxes[self.holder], expected)
        text = complaint_text(setup, self.dealer, self.holder, parcel_digest(parcel))
        if not case.confirms(self.holder, text, self.complaint):
            raise ValueError(f"client {self.holder} did not complain about that")
        receiver = case.members.adverts[self.holder].box_key
        context = box_context(setup, self.dealer, self.holder)
        try:
            inside = crypto.reopen(self.once, receiver, parcel.box, context)
        except ValueError:
            return Fault(self.dealer, BAD_PARCEL)
        if shares_in(inside, parcel, setup, self.dealer, self.holder) is None:
            return Fault(self.dealer, BAD_PARCEL)
        return Fault(self.holder, NO_CAUSE)


class FalseShare(_Evidence, frozen=True, tag=2):
    """A reply with a share that is not right."""

    opened: bytes

    def fault(self, case: Case) -> Fault:
        """Who is at fault; a ValueError if nobody is."""
        opened = unpack_reply(Opened, self.opened)
        if opened is None or not is_opened(case, self.holder, opened):
            raise ValueError(f"client {self.holder} signed no such shares")
        shares = case.dealing(self.dealer, self.shares)
        public = publics(case.members.digest, self.dealer, shares)
        for one, given in zip(public, (opened.self_shares, opened.key_shares), strict=True):
            share = given.get(self.dealer)
            if share is not None and not shamir.is_right(one, self.holder, share):
                if one.has_hash(self.holder, share):
                    return Fault(self.dealer, BAD_SHARE)
                return Fault(self.holder, OTHER_SHARE)
        raise ValueError(f"the shares of client {self.holder} are right")


class FalseSecret(_Evidence, frozen=True, tag=3):
    """Right shares of a secret that is not what its dealer said it was."""

    place: int
    """0 for the self seed, 1 for the mask key."""
    pieces: dict[int, bytes]

    def fault(self, case: Case) -> Fault:
        """Who is at fault; a ValueError if nobody is."""
        shares = case.dealing(self.dealer, self.shares)
        public = publics(case.members.digest, self.dealer, shares)[self.place]
        if not all(shamir.is_right(public, *piece) for piece in self.pieces.items()):
            raise ValueError("a share is not right")
        if is_secret(case.members, self.dealer, public, self.place, self.pieces):
            raise ValueError("the secret is what its dealer said")
        return Fault(self.dealer, (OTHER_SEED, OTHER_KEY)[self.place])


Evidence = BadParcel | FalseShare | FalseSecret


def is_dealing(members: Members, roster: Roster | None, dealer: int, shares: Shares) -> bool:
    """Whether a dealer dealt to exactly its neighbours and itself, and signed it."""
    near = members.near(dealer)
    if shares.boxes.keys() != set(near):
        return False
    setup, threshold = members.digest, members.wired.share_threshold
    if not all(one.fits(threshold, (*near, dealer)) for one in publics(setup, dealer, shares)):
        return False
    text = dealing_text(setup, dealer, seed_hash(shares), dealing_digest(shares))
    return roster is None or roster.confirms(dealer, text, shares.signature)


def is_opened(case: Case, holder: int, opened: Opened) -> bool:
    """Whether a holder signed the shares it gives back."""
    text = opened_text(case.final, holder, opened.self_shares, opened.key_shares)
    return case.confirms(holder, text, opened.signature)


def is_secret(
    members: Members, dealer: int, public: shamir.Public, place: int, pieces: Mapping[int, bytes]
) -> bool:
    """Whether right shares are of the secret that their dealer spoke of."""
    try:
        secret = public.recover(pieces)
    except ValueError:
        return False
    if place:
        return crypto.public_key(secret) == members.adverts[dealer].mask_key
    return public.has_hash(
        shamir.SECRET, shamir.as_bytes(int.from_bytes(secret, "big")) + public.salt(secret)
    )
