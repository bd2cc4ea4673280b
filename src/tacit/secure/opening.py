"""The server's half of the masked sum: it carries messages, adds up, and opens the total.

The protocol and what it protects stand in :mod:`tacit.secure.masks`. Nothing here is secret, and a
server that runs other code than this learns no more: all protection lies with the clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tacit.privacy.mechanisms import Participation
from tacit.secure import crypto, shamir
from tacit.secure.evidence import (
    BadParcel,
    Case,
    Evidence,
    FalseSecret,
    FalseShare,
    is_dealing,
    is_explained,
    is_opened,
    is_secret,
    parcel_of,
)
from tacit.secure.graph import wiring
from tacit.secure.messages import (
    Advert,
    Complaints,
    Confirmation,
    Delivery,
    Explained,
    Final,
    Opened,
    Opening,
    Received,
    Reply,
    Request,
    Sealed,
    Setup,
    Shares,
    Survivors,
    pack,
    unpack_reply,
)
from tacit.secure.protocol import (
    MASKS,
    Ask,
    Fault,
    Round,
    SpoiledSum,
    ThinRing,
    TooFewClients,
    Total,
)
from tacit.secure.roster import SIGNATURE_BYTES, Roster
from tacit.secure.setup import (
    Dealt,
    Members,
    complaint_text,
    final_digest,
    is_signed,
    packed,
    parcel_digest,
    publics,
    received_text,
    sealed_text,
    signed_dealing,
    sum_digest,
    survivors_text,
    usable,
    vector_digest,
)
from tacit.secure.transcript import VERSION, Closed, Seal, Seed, Transcript, opened_sum

ReplyType = TypeVar("ReplyType")
UNSETTLED = (
    "client %d answered no complaint about its shares by %s: nobody can tell who is at fault, so "
    "it counts as a drop-out and is not named"
)


@dataclass(frozen=True)
class MaskedSum:
    """The server's half; it holds no secret, so any client could take its part.

    With a roster it leaves out whoever does not sign properly, before others would refuse.
    """

    roster: Roster | None = None
    name = MASKS
    sealing = "seal"
    opens_thresholds = False

    def check(self, around: Round) -> None:
        """It carries any."""

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        """Open the sum, or raise :class:`TooFewClients`; nothing else is ever learned."""
        adverts = self._valid_adverts(around, first)
        members = Members.of(around, packed(adverts), adverts)
        return _Session(around, members, self.roster, ask).total()

    def _valid_adverts(self, around: Round, replies: Mapping[int, bytes]) -> dict[int, Advert]:
        found = {client: unpack_reply(Advert, reply) for client, reply in sorted(replies.items())}
        adverts = {
            client: advert
            for client, advert in found.items()
            if advert is not None
            and len(advert.signature) <= SIGNATURE_BYTES
            and advert.client == client in range(around.participation.clients)
            and (self.roster is None or is_signed(around, advert, self.roster))
        }
        accepted = usable(adverts)
        if len(accepted) < around.threshold:
            raise TooFewClients("advertise", len(accepted), around.threshold)
        return accepted


@dataclass
class _Session:
    """One sum from the adverts on: a malformed or invalid reply counts as none."""

    around: Round
    members: Members
    roster: Roster | None
    ask: Ask
    evidence: dict[Fault, Evidence] = field(default_factory=dict)
    """Who misbehaved, and what shows it."""
    final: tuple[int, ...] = ()
    """The members of the sum, once they are settled."""

    def total(self) -> Total:
        """Through all stages; if the sum stays closed, the error has the evidence."""
        try:
            return self._through()
        except (TooFewClients, SpoiledSum) as error:
            if self.roster and self.evidence:
                found = list(self.evidence.values())
                closed = Closed(VERSION, packed(self.members.adverts), self.final, found)
                error.evidence = closed.to_bytes()
            raise

    def _through(self) -> Total:
        members = self.members
        shares = self._shared()
        dealt = {client: publics(members.digest, client, one) for client, one in shares.items()}
        final = self.final = self._settled(shares, dealt)
        sealed = self._sealed(final)
        survivors = tuple(sorted(sealed))
        confirmations = self._confirmed(final, sealed, shares) if self.roster else {}
        opened = self._opened(final, survivors, confirmations)
        missing = [client for client in final if client not in sealed]
        seeds = self._secrets(0, survivors, shares, dealt, opened)
        keys = self._secrets(1, missing, shares, dealt, opened)
        vectors = {client: reply.vector for client, reply in sealed.items()}
        value = opened_sum(self.around, members, final, vectors, seeds, keys)
        transcript = Transcript(
            VERSION,
            packed(members.adverts),
            final,
            {client: Seal(reply.vector, reply.signature) for client, reply in sealed.items()},
            confirmations,
            {
                client: _with_proof(seed, dealt[client][0], shares[client])
                for client, seed in seeds.items()
            },
            keys,
            list(self.evidence.values()),
        )
        kept = transcript.to_bytes() if self.roster else b""
        return Total(value, survivors, tuple(self.evidence), kept)

    def _shared(self) -> dict[int, Shares]:
        setup = Setup(packed(self.members.adverts))
        return self._replies(
            "share",
            dict.fromkeys(sorted(self.members.adverts), setup),
            Shares,
            partial(is_dealing, self.members, self.roster),
        )

    def _settled(
        self, shares: Mapping[int, Shares], dealt: Mapping[int, Sequence[shamir.Public]]
    ) -> tuple[int, ...]:
        """The final list: who got its parcels, without those whose shares were not in order."""
        sharers = tuple(sorted(shares))
        deliveries = {
            holder: Delivery(
                sharers,
                {
                    dealer: parcel_of(dealt[dealer], holder, shares[dealer])
                    for dealer in self.members.near(holder)
                    if dealer in shares
                },
            )
            for holder in sharers
        }

        digests = {
            holder: {dealer: parcel_digest(parcel) for dealer, parcel in delivery.parcels.items()}
            for holder, delivery in deliveries.items()
        }

        def signed(holder: int, reply: Received) -> bool:
            setup, found = self.members.digest, digests[holder]
            return (
                self._confirms(holder, received_text(setup, holder, found), reply.signature)
                and reply.complaints.keys() <= found.keys()
                and all(
                    self._confirms(
                        holder, complaint_text(setup, dealer, holder, found[dealer]), signature
                    )
                    for dealer, signature in reply.complaints.items()
                )
            )

        received = self._replies("deliver", deliveries, Received, signed)
        self._receipts = {
            holder: (digests[holder], reply.signature) for holder, reply in received.items()
        }
        complaints: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        for holder, reply in received.items():
            for dealer, signature in reply.complaints.items():
                complaints.setdefault(dealer, {})[holder] = digests[holder][dealer], signature
        unsettled = self._judged(shares, complaints)
        guilty = {fault.client for fault in self.evidence}
        final = tuple(sorted(received.keys() - guilty - unsettled))
        self._check_enough("deliver", final)
        return final

    def _judged(
        self,
        shares: Mapping[int, Shares],
        complaints: Mapping[int, Mapping[int, tuple[bytes, bytes]]],
    ) -> set[int]:
        """Name who is at fault for every complaint: the dealer shows what it had sealed.

        Returns the dealers that did not. They are not named: an honest one's answer may have been
        lost, or held back by whoever complained about it without cause.
        """
        if not complaints:
            return set()
        # No more than a dealer can answer without giving its secrets away; one that is upheld does.
        most = self.members.wired.share_threshold - 1
        requests = {
            dealer: Complaints(dict(list(about.items())[:most]))
            for dealer, about in complaints.items()
        }
        case = Case(self.members, self.roster)
        explained = self._replies(
            "explain", requests, Explained, partial(is_explained, case), least=0
        )
        unsettled = set()
        for dealer, request in requests.items():
            answer = explained.get(dealer, Explained({}, b""))
            silent = sorted(request.complaints.keys() - answer.secrets.keys())
            if silent:
                unsettled.add(dealer)
                accusers = ", ".join(f"client {holder}" for holder in silent)
                logging.getLogger("tacit").warning(UNSETTLED, dealer, accusers)
            for holder, (_, signature) in request.complaints.items():
                if holder in answer.secrets:
                    dealing = pack(shares[dealer])
                    one = BadParcel(dealer, holder, dealing, signature, pack(answer))
                    self.evidence.setdefault(one.fault(case), one)
        return unsettled

    def _sealed(self, final: tuple[int, ...]) -> dict[int, Sealed]:
        bound = final_digest(self.members.digest, final)

        def valid(client: int, reply: Sealed) -> bool:
            text = sealed_text(bound, client, vector_digest(reply.vector))
            return len(reply.vector) == self.around.vector_bytes and self._confirms(
                client, text, reply.signature
            )

        return self._replies("seal", dict.fromkeys(final, Final(final)), Sealed, valid)

    def _confirmed(
        self, final: tuple[int, ...], sealed: Mapping[int, Sealed], shares: Mapping[int, Shares]
    ) -> dict[int, bytes]:
        survivors, setup = tuple(sorted(sealed)), self.members.digest
        contents = sum_digest(
            {client: sealed[client].vector for client in survivors},
            {client: signed_dealing(setup, client, shares[client]) for client in survivors},
        )
        text = survivors_text(final_digest(setup, final), survivors, contents)
        seals = {
            client: (vector_digest(reply.vector), reply.signature)
            for client, reply in sealed.items()
        }
        requests = {
            client: Survivors(
                survivors,
                {other: seals[other] for other in self.members.near(client) if other in seals},
                contents,
            )
            for client in survivors
        }
        replies = self._replies(
            "confirm",
            requests,
            Confirmation,
            lambda client, reply: self._confirms(client, text, reply.signature),
        )
        return {client: reply.signature for client, reply in replies.items()}

    def _opened(
        self,
        final: tuple[int, ...],
        survivors: tuple[int, ...],
        confirmations: Mapping[int, bytes],
    ) -> dict[int, Opened]:
        self._case = Case(self.members, self.roster, final_digest(self.members.digest, final))
        opening = Opening(survivors, dict(confirmations))
        return self._replies(
            "open",
            dict.fromkeys(confirmations or survivors, opening),
            Opened,
            partial(is_opened, self._case),
            least=1,
        )

    def _secrets(
        self,
        place: int,
        clients: Sequence[int],
        shares: Mapping[int, Shares],
        dealt: Mapping[int, Sequence[shamir.Public]],
        opened: Mapping[int, Opened],
    ) -> dict[int, bytes]:
        """The self seeds (place 0) or mask keys (place 1) of some clients, from right shares."""
        found = {}
        for client in clients:
            public, right = dealt[client][place], {}
            for holder in (client, *self.members.near(client)):
                reply = opened.get(holder)
                if reply is None:
                    continue
                share = (reply.self_shares, reply.key_shares)[place].get(client)
                if share is None:
                    continue
                if shamir.is_right(public, holder, share):
                    right[holder] = share
                else:
                    dealing, opening = pack(shares[client]), pack(reply)
                    receipt = self._receipts[holder]
                    self._accuse(FalseShare(client, holder, dealing, opening, *receipt))
            if len(right) < public.threshold:
                raise TooFewClients("open", len(right), public.threshold, tuple(self.evidence))
            if not is_secret(self.members, client, public, place, right):
                self._accuse(FalseSecret(client, client, pack(shares[client]), place, right))
                if place:
                    raise SpoiledSum(tuple(self.evidence))
            found[client] = public.recover(right)
        return found

    def _accuse(self, one: Evidence) -> None:
        self.evidence.setdefault(one.fault(self._case), one)

    def _confirms(self, client: int, text: bytes, signature: bytes) -> bool:
        if self.roster is None:
            return len(signature) <= SIGNATURE_BYTES  # it is carried to others
        return self.roster.confirms(client, text, signature)

    def _check_enough(self, stage: str, clients: Collection[int]) -> None:
        if len(clients) < self.around.threshold:
            raise TooFewClients(stage, len(clients), self.around.threshold, tuple(self.evidence))
        if self.members.wired.thin(self.members.order, clients):
            raise ThinRing(stage, len(clients), tuple(self.evidence))

    def _replies(
        self,
        stage: str,
        requests: Mapping[int, Request],
        kind: type[ReplyType],
        valid: Callable[[int, ReplyType], bool] = lambda _client, _reply: True,
        least: int | None = None,
    ) -> dict[int, ReplyType]:
        """Valid replies, as many as the round needs unless ``least`` is given."""
        once = {id(request): pack(request) for request in requests.values()}
        raw = self.ask(stage, {c: once[id(request)] for c, request in requests.items()})
        found = {client: unpack_reply(kind, reply) for client, reply in sorted(raw.items())}
        accepted = {
            client: reply
            for client, reply in found.items()
            if reply is not None and client in requests and valid(client, reply)
        }
        if least is None:
            self._check_enough(stage, accepted)
        elif len(accepted) < least:
            raise TooFewClients(stage, len(accepted), least, tuple(self.evidence))
        return accepted


def _with_proof(seed: bytes, public: shamir.Public, shares: Shares) -> Seed:
    """A seed, and what shows anybody that it is the one that was dealt."""
    dealt = Dealt.of(shares)
    rest = dealt.holders, dealt.at_zero, dealt.everything
    return Seed(seed, public.salt(seed), *rest, shares.signature)


def upload_bytes(participation: Participation, length: int, bits: int) -> int:
    """The most one client sends for one sum, with a roster and everybody present.

    Measured on messages of the real form; numbers of clients take the most bytes they can.
    """
    wired = wiring(participation, participation.clients)
    highest = range(participation.clients - 1, participation.clients - 1 - wired.degree, -1)
    me, signature = participation.clients - 1, bytes(SIGNATURE_BYTES)
    key, share = bytes(crypto.KEY_BYTES), bytes(shamir.SHARE_BYTES)
    box, proof = bytes(2 * len(share) + crypto.BOX_OVERHEAD), wired.share_threshold
    hashes = bytes(crypto.DIGEST_BYTES), bytes(crypto.DIGEST_BYTES)
    proofs = bytes(proof * shamir.NUMBER_BYTES), bytes(proof * shamir.NUMBER_BYTES)
    replies: list[Reply] = [
        Advert(me, key, key, signature),
        Shares(
            dict.fromkeys(highest, box),
            dict.fromkeys((shamir.SECRET, me + 1, *highest), hashes),
            proofs,
            signature,
        ),
        Received({}, signature),
        Sealed(bytes(length * bits // 8), signature),
        Confirmation(signature),
        Opened(dict.fromkeys((me + 1, *highest), share), {}, signature),
    ]
    return sum(len(pack(reply)) for reply in replies)
