"""Closing a session: everybody who was asked signs that it released nothing and never will.

A server that is killed while clients evaluate has spent budget on a question that nobody answered.
It may have that back only if no answer can come any more, and it must not be the one who says so.
So it asks every client that was asked. A client bars the session in its own ledger first, in one
transaction that refuses if the session was charged there, which is always done before an answer
leaves (:class:`tacit.endpoint.Endpoint`). Then it signs.

*What the signatures show.* A client that follows the protocol and signed has released nothing in
this session, and refuses it for ever, whatever messages are still on their way and whatever becomes
of its states. If all clients signed, nothing of any honest client was or will be released, so the
charge bounds a release that does not exist. A client that is silent, that answered, or that is no
longer on the roster leaves the charge as it is: spent.
"""

from __future__ import annotations

from collections.abc import Mapping

from tacit.secure.crypto import digest
from tacit.secure.roster import Identity, Roster


def closed(identity: Identity, roster: Roster, client: int, session: bytes) -> bytes:
    """A client's signature that it released nothing in a session, and never will."""
    return identity.sign(_text(roster, client, session))


def not_closed(roster: Roster, session: bytes, signatures: Mapping[int, bytes]) -> list[int]:
    """The clients of a roster whose signature is missing or does not fit.

    >>> anna, ben = Identity.new(), Identity.new()
    >>> roster = Roster((anna.public_key, ben.public_key))
    >>> not_closed(roster, b"session", {0: closed(anna, roster, 0, b"session")})
    [1]
    """
    return [
        client
        for client in range(len(roster.keys))
        if not roster.confirms(client, _text(roster, client, session), signatures.get(client, b""))
    ]


def _text(roster: Roster, client: int, session: bytes) -> bytes:
    return digest(b"closed", roster.digest, client.to_bytes(8, "big"), session)
