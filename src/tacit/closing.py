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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tacit.privacy.ledger import Charge
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


@dataclass(frozen=True)
class ClosedLine:
    """A line that counts no longer, and what is wrong with the evidence for it."""

    number: int
    problem: str = ""
    """Empty if every member of the roster signed."""


def check_closed_lines(charges: Iterable[Charge], rosters: Iterable[Roster]) -> list[ClosedLine]:
    """For every closed charge: did all members who were asked sign that nothing was released?

    A line of a roster that is not given is a problem: whoever writes a ledger may invent members.
    """
    known = {roster.digest.hex(): roster for roster in rosters}
    return [_checked(charge, known) for charge in charges if charge.state == "closed"]


def _checked(charge: Charge, known: Mapping[str, Roster]) -> ClosedLine:
    if not charge.roster:
        return ClosedLine(charge.number, "closed without a roster, so nobody can have signed it")
    roster = known.get(charge.roster)
    if roster is None:
        return ClosedLine(
            charge.number,
            f"closed by members of another roster ({charge.roster[:16]}..): give that one too, if "
            "it was a roster of this federation",
        )
    try:
        signatures = {
            int(client): bytes.fromhex(signature)
            for client, signature in charge.evidence["signatures"].items()
        }
        session = bytes.fromhex(charge.session)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ClosedLine(charge.number, "closed with evidence that cannot be read")
    missing = not_closed(roster, session, signatures)
    if missing:
        named = ", ".join(map(str, missing))
        return ClosedLine(
            charge.number, f"closed without the signature of client {named}: it still counts"
        )
    return ClosedLine(charge.number)


def _text(roster: Roster, client: int, session: bytes) -> bytes:
    return digest(b"closed", roster.digest, client.to_bytes(8, "big"), session)
