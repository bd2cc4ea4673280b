"""The server's half of the masked sum: it carries messages, adds up, and opens the total.

The protocol and what it protects stand in :mod:`tacit.secure.masks`. Nothing here is secret, and a
server that runs other code than this learns no more: all protection lies with the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from tacit.privacy.mechanisms import Participation
from tacit.secure import crypto, shamir
from tacit.secure.graph import COMPLETE_UP_TO, neighbours, ring, wiring
from tacit.secure.masks import MOST_ATTEMPTS
from tacit.secure.messages import (
    Advert,
    Adverts,
    Again,
    Confirmation,
    Delivery,
    Opened,
    Opening,
    Reply,
    Request,
    Reveal,
    Sealed,
    Setup,
    Shares,
    Survivors,
    pack,
    unpack_reply,
)
from tacit.secure.protocol import Ask, Round, SpoiledSum, TooFewClients, Total
from tacit.secure.roster import SIGNATURE_BYTES, Roster
from tacit.secure.setup import (
    Members,
    commit,
    expanded,
    is_signed,
    joint_seed,
    own_mask,
    packed,
    setup_digest,
    sharers_text,
    survivors_text,
    usable,
)

ReplyType = TypeVar("ReplyType")


@dataclass(frozen=True)
class MaskedSum:
    """The server's half; it holds no secret, so any client could take its part.

    With a roster it leaves out whoever does not sign properly, before others would refuse.
    """

    roster: Roster | None = None
    name = "masks"
    opens_thresholds = False

    def check(self, around: Round) -> None:
        """It carries any."""

    def total(self, around: Round, first: Mapping[int, bytes], ask: Ask) -> Total:
        """Open the sum, or raise :class:`TooFewClients`; nothing else is ever learned."""
        asking = _Asking(around, ask)
        adverts, attempt = self._valid_adverts(around, 0, first), 0
        reveals: dict[int, bytes] = {}
        while around.draws_graph:
            request = Adverts(packed(adverts))
            answered = asking.replies(
                "reveal",
                dict.fromkeys(adverts, request),
                Reveal,
                partial(_reveals, adverts),
            )
            reveals = {client: reply.randomness for client, reply in answered.items()}
            if reveals.keys() == adverts.keys():
                break
            attempt += 1
            if attempt == MOST_ATTEMPTS:
                raise TooFewClients("reveal", len(reveals), len(adverts))
            again = ask("advertise", dict.fromkeys(reveals, pack(Again(attempt))))
            asked = {client: reply for client, reply in again.items() if client in reveals}
            adverts = self._valid_adverts(around, attempt, asked)
        return self._open(around, asking, adverts, reveals)

    def _open(
        self, around: Round, asking: _Asking, adverts: dict[int, Advert], reveals: dict[int, bytes]
    ) -> Total:
        members = Members.of(packed(adverts), adverts)
        drawn = tuple(reveals[client] for client in members.clients) if reveals else ()
        seed = joint_seed(members, drawn, draws_graph=around.draws_graph)
        wired = wiring(around.participation, len(members.clients))
        order = ring(seed, members.clients)
        near = {client: neighbours(order, wired.degree, client) for client in members.clients}

        setup, setup_seen = Setup(packed(adverts), drawn), setup_digest(members, seed)
        shares = asking.replies(
            "share",
            dict.fromkeys(members.clients, setup),
            Shares,
            lambda client, reply: set(reply.boxes) == set(near[client]),
        )
        sharers = tuple(sorted(shares))
        deliveries = {
            client: Delivery(
                sharers,
                {other: shares[other].boxes[client] for other in near[client] if other in shares},
            )
            for client in shares
        }
        sealed = asking.replies(
            "seal",
            deliveries,
            Sealed,
            partial(self._is_sealed, around, sharers_text(around, setup_seen, sharers)),
        )
        survivors = tuple(sorted(sealed))
        signatures: dict[int, bytes] = {}
        if self.roster:
            text = survivors_text(around, setup_seen, sharers, survivors)
            requests = {
                client: Survivors(
                    survivors,
                    {other: sealed[other].signature for other in near[client] if other in sealed},
                )
                for client in survivors
            }
            confirmed = asking.replies(
                "confirm", requests, Confirmation, partial(self._is_confirmed, text)
            )
            signatures = {client: reply.signature for client, reply in confirmed.items()}
        opening = Opening(survivors, signatures)
        opened = asking.replies(
            "open", dict.fromkeys(signatures or survivors, opening), Opened, least=1
        )
        self_shares = {holder: reply.self_shares for holder, reply in opened.items()}
        key_shares = {holder: reply.key_shares for holder, reply in opened.items()}

        value = np.zeros(around.length, around.word)
        for reply in sealed.values():
            value = value + np.frombuffer(reply.vector, around.word)
        for client in survivors:
            holders = (client, *near[client])
            secret = _recovered(client, holders, self_shares, wired.share_threshold)
            value = value - own_mask(around, secret)
        for client in sorted(shares.keys() - sealed.keys()):
            secret = _recovered(client, near[client], key_shares, wired.share_threshold)
            if crypto.public_key(secret) != adverts[client].mask_key:
                raise SpoiledSum
            others = [other for other in near[client] if other in sealed]
            agreements = crypto.agree(secret, *(adverts[other].mask_key for other in others))
            for other, agreed in zip(others, agreements, strict=True):
                mask = expanded(around, crypto.derive(agreed, b"mask", around.session))
                value = value - mask if other < client else value + mask
        return Total(around.integers(value.tobytes()), survivors)

    def _is_sealed(self, around: Round, text: bytes, client: int, reply: Sealed) -> bool:
        signed = self.roster is None or self.roster.confirms(client, text, reply.signature)
        return signed and len(reply.vector) == around.vector_bytes

    def _is_confirmed(self, text: bytes, client: int, reply: Confirmation) -> bool:
        return self.roster is not None and self.roster.confirms(client, text, reply.signature)

    def _valid_adverts(
        self, around: Round, attempt: int, replies: Mapping[int, bytes]
    ) -> dict[int, Advert]:
        found = {client: unpack_reply(Advert, reply) for client, reply in sorted(replies.items())}
        adverts = {
            client: advert
            for client, advert in found.items()
            if advert is not None
            and advert.client == client < around.participation.clients
            and (self.roster is None or is_signed(around, attempt, advert, self.roster))
        }
        accepted = usable(adverts, around)
        if len(accepted) < around.threshold:
            raise TooFewClients("advertise", len(accepted), around.threshold)
        return accepted


@dataclass(frozen=True)
class _Asking:
    """Typed questions: a malformed or invalid reply counts as none."""

    around: Round
    ask: Ask

    def replies(
        self,
        stage: str,
        requests: Mapping[int, Request],
        kind: type[ReplyType],
        valid: Callable[[int, ReplyType], bool] = lambda _client, _reply: True,
        least: int | None = None,
    ) -> dict[int, ReplyType]:
        """Valid replies, at least as many as the round's threshold unless ``least`` is given."""
        once = {id(request): pack(request) for request in requests.values()}
        raw = self.ask(stage, {c: once[id(request)] for c, request in requests.items()})
        found = {client: unpack_reply(kind, reply) for client, reply in sorted(raw.items())}
        accepted = {
            client: reply
            for client, reply in found.items()
            if reply is not None and client in requests and valid(client, reply)
        }
        needed = self.around.threshold if least is None else least
        if len(accepted) < needed:
            raise TooFewClients(stage, len(accepted), needed)
        return accepted


def _reveals(adverts: Mapping[int, Advert], client: int, reply: Reveal) -> bool:
    return commit(reply.randomness) == adverts[client].commitment


def _recovered(
    client: int,
    holders: Sequence[int],
    shares: Mapping[int, Mapping[int, bytes]],
    share_threshold: int,
) -> bytes:
    given = {
        holder: shares[holder][client]
        for holder in holders
        if holder in shares and client in shares[holder]
    }
    if len(given) < share_threshold:
        raise TooFewClients("open", len(given), share_threshold)
    try:
        return shamir.recover(given, share_threshold)
    except ValueError:
        raise SpoiledSum from None


def upload_bytes(participation: Participation, length: int, bits: int) -> int:
    """The most one client sends for one sum, with a roster and everybody present.

    Measured on messages of the real form; numbers of clients take the most bytes they can.
    """
    wired = wiring(participation, participation.clients)
    highest = range(participation.clients - 1, participation.clients - 1 - wired.degree, -1)
    key, share = bytes(crypto.KEY_BYTES), bytes(shamir.SHARE_BYTES)
    graph = participation.clients > COMPLETE_UP_TO
    me, signature = participation.clients - 1, bytes(SIGNATURE_BYTES)
    box = bytes(2 * shamir.SHARE_BYTES + crypto.BOX_OVERHEAD)
    replies: list[Reply] = [
        Advert(me, key, key, key if graph else b"", signature),
        *([Reveal(key)] if graph else []),
        Shares(dict.fromkeys(highest, box)),
        Sealed(bytes(length * bits // 8), signature),
        Confirmation(signature),
        Opened(dict.fromkeys((me + 1, *highest), share), {}),
    ]
    return sum(len(pack(reply)) for reply in replies)
