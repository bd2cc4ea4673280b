"""Proofs that a client misbehaved in a masked sum, which anybody with the roster can check.

Each holds what the parties signed, and finds from that alone who is at fault: the dealer, or who
accuses it. Without a roster there are no signatures, and the finding is the server's word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from tacit.secure import crypto, shamir
from tacit.secure.messages import Explained, Opened, Parcel, Shares, unpack_reply
from tacit.secure.protocol import Fault
from tacit.secure.roster import SIGNATURE_BYTES, Roster
from tacit.secure.setup import (
    SECRETS,
    Members,
    box_context,
    complaint_text,
    explained_text,
    opened_text,
    parcel_digest,
    parcel_for,
    publics,
    received_text,
    shares_in,
    signed_dealing,
)

_BOX_BYTES = len(SECRETS) * shamir.SHARE_BYTES + crypto.BOX_OVERHEAD

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
        if (
            found is None
            or dealer not in self.members.adverts
            or not is_dealing(self.members, self.roster, dealer, found)
        ):
            raise ValueError(f"client {dealer} signed no such dealing")
        return found

    def parcel(self, dealer: int, holder: int, shares: bytes) -> Parcel:
        """What a holder should have got of a dealing; a ValueError if it was dealt nothing."""
        found = self.dealing(dealer, shares)
        if holder not in found.boxes:
            raise ValueError(f"client {dealer} dealt nothing to client {holder}")
        return parcel_of(publics(self.members.digest, dealer, found), holder, found)

    def confirms(self, client: int, text: bytes, signature: bytes) -> bool:
        """Whether a client signed a text; without a roster nobody signs."""
        return self.roster is None or self.roster.confirms(client, text, signature)


class _Evidence(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who dealt, to whom, and the dealing as it was sent."""

    dealer: int
    holder: int
    shares: bytes


class BadParcel(_Evidence, frozen=True, tag=1):
    """A complaint, and the dealer's answer: the secret with which it had sealed the box.

    The dealer signed its answer. Otherwise whoever holds the evidence could put in another secret,
    with which no box opens, and an honest dealer would seem at fault.
    """

    complaint: bytes
    explained: bytes

    def fault(self, case: Case) -> Fault:
        """Who is at fault; a ValueError if nobody is."""
        setup, parcel = case.members.digest, case.parcel(self.dealer, self.holder, self.shares)
        text = complaint_text(setup, self.dealer, self.holder, parcel_digest(parcel))
        if not case.confirms(self.holder, text, self.complaint):
            raise ValueError(f"client {self.holder} did not complain about that")
        explained = unpack_reply(Explained, self.explained)
        if explained is None or not is_explained(case, self.dealer, explained):
            raise ValueError(f"client {self.dealer} signed no such explanation")
        if self.holder not in explained.secrets:
            raise ValueError(f"client {self.dealer} explained no box of client {self.holder}")
        receiver = case.members.adverts[self.holder].box_key
        context = box_context(setup, self.dealer, self.holder)
        try:
            once = explained.secrets[self.holder]
            inside = crypto.reopen(once, receiver, parcel.box, context)
        except ValueError:
            return Fault(self.dealer, BAD_PARCEL)
        if shares_in(inside, parcel, setup, self.dealer, self.holder) is None:
            return Fault(self.dealer, BAD_PARCEL)
        return Fault(self.holder, NO_CAUSE)


class FalseShare(_Evidence, frozen=True, tag=2):
    """A reply with a share that is not right.

    What the holder had signed when its parcels came shows that it got the one of this dealing.
    Otherwise a server could deal to it in the dealer's name, and it would seem at fault.
    """

    opened: bytes
    parcels: dict[int, bytes]
    """The digests of the parcels that the holder got, by dealer."""
    receipt: bytes
    """The holder's signature over them."""

    def fault(self, case: Case) -> Fault:
        """Who is at fault; a ValueError if nobody is."""
        opened = unpack_reply(Opened, self.opened)
        if opened is None or not is_opened(case, self.holder, opened):
            raise ValueError(f"client {self.holder} signed no such shares")
        if self.holder != self.dealer and not is_received(case, self):
            raise ValueError(f"client {self.holder} signed no receipt of these shares")
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
        if self.place not in range(len(SECRETS)):
            raise ValueError(f"a client has no secret number {self.place}")
        shares = case.dealing(self.dealer, self.shares)
        public = publics(case.members.digest, self.dealer, shares)[self.place]
        if not tell_a_secret(public, self.pieces):
            raise ValueError(f"a secret takes {public.threshold} right shares of its holders")
        if is_secret(case.members, self.dealer, public, self.place, self.pieces):
            raise ValueError("the secret is what its dealer said")
        return Fault(self.dealer, (OTHER_SEED, OTHER_KEY)[self.place])


Evidence = BadParcel | FalseShare | FalseSecret


def is_dealing(members: Members, roster: Roster | None, dealer: int, shares: Shares) -> bool:
    """Whether a dealer dealt to exactly its neighbours and itself, and signed it."""
    near = members.near(dealer)
    if shares.boxes.keys() != set(near):
        return False
    if any(len(box) != _BOX_BYTES for box in shares.boxes.values()):
        return False
    setup, threshold = members.digest, members.wired.share_threshold
    if not all(one.fits(threshold, (*near, dealer)) for one in publics(setup, dealer, shares)):
        return False
    if roster is None:
        return len(shares.signature) <= SIGNATURE_BYTES
    return roster.confirms(dealer, signed_dealing(setup, dealer, shares), shares.signature)


def parcel_of(public: Sequence[shamir.Public], holder: int, shares: Shares) -> Parcel:
    """What a holder gets of a dealing."""
    seed, key = public
    expected = seed.expected(holder), key.expected(holder)
    return parcel_for(public, holder, shares.boxes[holder], expected)


def is_explained(case: Case, dealer: int, explained: Explained) -> bool:
    """Whether a dealer signed the secrets of boxes that it gives away."""
    text = explained_text(case.members.digest, dealer, explained.secrets)
    return _are_small(case, explained.secrets, crypto.KEY_BYTES) and case.confirms(
        dealer, text, explained.signature
    )


def is_opened(case: Case, holder: int, opened: Opened) -> bool:
    """Whether a holder signed the shares it gives back."""
    text = opened_text(case.final, holder, opened.self_shares, opened.key_shares)
    return (
        _are_small(case, opened.self_shares, shamir.SHARE_BYTES)
        and _are_small(case, opened.key_shares, shamir.SHARE_BYTES)
        and case.confirms(holder, text, opened.signature)
    )


def _are_small(case: Case, parts: Mapping[int, bytes], largest: int) -> bool:
    """Whether parts that go into evidence are of members, and no longer than right ones are."""
    return parts.keys() <= case.members.adverts.keys() and all(
        len(part) <= largest for part in parts.values()
    )


def is_received(case: Case, share: FalseShare) -> bool:
    """Whether a holder signed that it got its parcel of exactly this dealing."""
    dealt = parcel_digest(case.parcel(share.dealer, share.holder, share.shares))
    text = received_text(case.members.digest, share.holder, share.parcels)
    return share.parcels.get(share.dealer) == dealt and case.confirms(
        share.holder, text, share.receipt
    )


def tell_a_secret(public: shamir.Public, pieces: Mapping[int, bytes]) -> bool:
    """Whether these are right shares of holders, and enough of them to say what the secret is."""
    return (
        len(pieces) >= public.threshold
        and shamir.SECRET not in pieces
        and all(shamir.is_right(public, *piece) for piece in pieces.items())
    )


def is_secret(
    members: Members, dealer: int, public: shamir.Public, place: int, pieces: Mapping[int, bytes]
) -> bool:
    """Whether right shares are of the secret that their dealer spoke of."""
    secret = public.recover(pieces)
    if place:
        return crypto.belongs(secret, members.adverts[dealer].mask_key)
    return public.has_hash(
        shamir.SECRET, shamir.as_bytes(int.from_bytes(secret, "big")) + public.salt(secret)
    )
