"""What travels in a Flower message: one record of plain values around Tacit's own bytes.

A message of type ``query.tacit`` holds one ConfigRecord called ``tacit``:

=============  =======  ==========================================================================
``wire``       int      the version of this envelope, 2
``client``     int      request: the number the server gives the client, used without a roster;
                        reply: the number the client goes by (with a roster, its own)
``body``       bytes    a request or a reply (:mod:`tacit.endpoint`, :mod:`tacit.secure.messages`)
``signature``  bytes    reply of a member of a roster: Ed25519 over the request's body, the reply's
                        body and the number
``no``         str      reply instead of ``body``: why the client does not answer
=============  =======  ==========================================================================

With a roster, a reply counts only if the member whose number it names signed it for the request it
replies to: an outsider can name any number, but cannot sign for it. A refusal says nothing that
counts, so it is not signed.

The body is MessagePack, decoded into fixed types; nothing is ever unpickled. What is malformed, of
another version or too large is refused with a reason on the client, and counts as no reply on the
server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict

from tacit.secure.crypto import digest
from tacit.secure.protocol import Refused
from tacit.secure.roster import SIGNATURE_BYTES, Identity, Roster

WIRE = 2
MESSAGE_TYPE = "query.tacit"
ACTION = "tacit"
RECORD = "tacit"
LARGEST_BODY = 256 * 2**20
"""Bytes; weights of a model in training are the largest that travel."""
LONGEST_REASON = 300
_WHOLE = {"wire", "client", "body"}


@dataclass(frozen=True)
class Envelope:
    """A request, or a reply that is not a refusal."""

    client: int
    body: bytes
    signature: bytes = b""
    """Of the member whose number this is, in a reply to a federation with a roster."""

    def signed(self, identity: Identity, request: Envelope) -> Envelope:
        """This reply, signed for the request it replies to."""
        return replace(self, signature=identity.sign(self._text(request)))

    def is_signed(self, roster: Roster, request: Envelope) -> bool:
        """Whether the member of this number signed this as the reply to this request."""
        return roster.confirms(self.client, self._text(request), self.signature)

    def _text(self, request: Envelope) -> bytes:
        number = self.client.to_bytes(8, "big")
        return digest(b"reply", request.body, self.body, number)

    def record(self) -> RecordDict:
        """As the content of a message."""
        record = ConfigRecord({"wire": WIRE, "client": self.client, "body": self.body})
        if self.signature:
            record["signature"] = self.signature
        return RecordDict({RECORD: record})


def refusal(reason: str) -> RecordDict:
    """A refusal as the content of a message."""
    return RecordDict({RECORD: ConfigRecord({"wire": WIRE, "no": reason[:LONGEST_REASON]})})


def read(content: RecordDict) -> Envelope:
    """An envelope, or :class:`Refused` with the sender's or our own reason."""
    if set(content) != {RECORD} or not isinstance(content[RECORD], ConfigRecord):
        raise Refused(f"the message does not hold one record {RECORD!r} and nothing else")
    record = content[RECORD]
    version = record.get("wire")
    if type(version) is not int or version != WIRE:
        raise Refused(
            f"the envelope has version {_shown(version)}; allowed is {WIRE}: the server and all "
            "nodes need the same version of Tacit"
        )
    reason = record.get("no")
    if isinstance(reason, str):
        raise Refused(_printable(reason))
    client, body, signature = (record.get(name) for name in ("client", "body", "signature"))
    if set(record) - {"signature"} != _WHOLE or type(client) is not int or client < 0:
        raise Refused("the envelope does not hold a client's number and a body")
    if type(body) is not bytes:
        raise Refused("the envelope's body is not bytes")
    if len(body) > LARGEST_BODY:
        raise Refused(f"the body has {len(body)} bytes; allowed are {LARGEST_BODY}")
    if "signature" not in record:
        return Envelope(client, body)
    if type(signature) is not bytes or len(signature) != SIGNATURE_BYTES:
        raise Refused(f"the envelope's signature is not {SIGNATURE_BYTES} bytes")
    return Envelope(client, body, signature)


def _shown(version: object) -> str:
    return str(version) if type(version) is int else "of another kind"


def _printable(text: str) -> str:
    """A stranger's sentence, without what could disturb a terminal or a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_REASON])
