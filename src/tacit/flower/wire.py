"""What travels in a Flower message: one record of plain values around Tacit's own bytes.

A message of type ``query.tacit`` holds one ConfigRecord called ``tacit``:

=========  =======  ==============================================================================
``wire``   int      the version of this envelope, 1
``client`` int      request: the number the server gives the client, used without a roster;
                    reply: the number the client goes by (with a roster, its own)
``body``   bytes    a request or a reply (:mod:`tacit.endpoint`, :mod:`tacit.secure.messages`)
``no``     str      reply instead of ``body``: why the client does not answer
=========  =======  ==============================================================================

The body is MessagePack, decoded into fixed types; nothing is ever unpickled. What is malformed, of
another version or too large is refused with a reason on the client, and counts as no reply on the
server.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from tacit.secure.protocol import Refused

WIRE = 1
MESSAGE_TYPE = "query.tacit"
ACTION = "tacit"
RECORD = "tacit"
LARGEST_BODY = 256 * 2**20
"""Bytes; weights of a model in training are the largest that travel."""
LONGEST_REASON = 300


@dataclass(frozen=True)
class Envelope:
    """A request, or a reply that is not a refusal."""

    client: int
    body: bytes

    def record(self) -> RecordDict:
        """As the content of a message."""
        return RecordDict(
            {RECORD: ConfigRecord({"wire": WIRE, "client": self.client, "body": self.body})}
        )


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
        raise Refused(f"the envelope has version {_shown(version)}; allowed is {WIRE}")
    reason = record.get("no")
    if isinstance(reason, str):
        raise Refused(_printable(reason))
    client, body = record.get("client"), record.get("body")
    if set(record) != {"wire", "client", "body"} or type(client) is not int or client < 0:
        raise Refused("the envelope does not hold a client's number and a body")
    if type(body) is not bytes:
        raise Refused("the envelope's body is not bytes")
    if len(body) > LARGEST_BODY:
        raise Refused(f"the body has {len(body)} bytes; allowed are {LARGEST_BODY}")
    return Envelope(client, body)


def _shown(version: object) -> str:
    return str(version) if type(version) is int else "of another kind"


def _printable(text: str) -> str:
    """A stranger's sentence, without what could disturb a terminal or a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_REASON])
