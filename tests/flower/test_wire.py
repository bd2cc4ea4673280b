from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from hypothesis import given
from hypothesis import strategies as st

from tacit.flower import wire
from tacit.flower.wire import LONGEST_REASON, MESSAGE_TYPE, RECORD, WIRE, Envelope, read, refusal
from tacit.secure.protocol import Refused
from tacit.secure.roster import Identity, Roster


def carried(content: RecordDict) -> RecordDict:
    """What arrives, after Flower's own serialization to bytes and back."""
    sent = message_to_proto(Message(content, 1, MESSAGE_TYPE)).SerializeToString()
    return message_from_proto(ProtoMessage.FromString(sent)).content


def recorded(**fields: Any) -> RecordDict:
    """A whole record with some fields replaced; None removes one."""
    whole = {"wire": WIRE, "client": 3, "body": b"body", **fields}
    return RecordDict(
        {RECORD: ConfigRecord({name: v for name, v in whole.items() if v is not None})}
    )


@pytest.mark.parametrize("body", [b"", b"body", bytes(range(256)) * 1000])
@pytest.mark.parametrize("client", [0, 3, 99_999])
def test_an_envelope_arrives_as_it_was_sent(client: int, body: bytes) -> None:
    for envelope in (Envelope(client, body), Envelope(client, body, bytes(64))):
        assert read(carried(envelope.record())) == envelope


def test_a_reply_is_signed_for_one_request_one_body_and_one_number() -> None:
    members = [Identity.new() for _ in range(3)]
    roster = Roster(tuple(member.public_key for member in members))
    request, reply = Envelope(9, b"question"), Envelope(1, b"answer")
    signed = reply.signed(members[1], request)
    assert signed.is_signed(roster, request)
    assert signed.is_signed(roster, Envelope(8, b"question")), "the given number is no member's"
    assert not signed.is_signed(roster, Envelope(9, b"another question"))
    assert not replace(signed, body=b"another answer").is_signed(roster, request)
    assert not replace(signed, client=2).is_signed(roster, request)
    assert not replace(signed, client=2**63 - 1).is_signed(roster, request)
    assert not reply.is_signed(roster, request)
    assert not reply.signed(members[2], request).is_signed(roster, request)


def test_a_refusal_arrives_with_its_reason() -> None:
    with pytest.raises(Refused, match=r"^this client is tired$"):
        read(carried(refusal("this client is tired")))


MALFORMED: dict[str, tuple[RecordDict, str]] = {
    "nothing": (RecordDict(), "one record 'tacit' and nothing else"),
    "another name": (
        RecordDict({"other": recorded()[RECORD]}),
        "one record 'tacit' and nothing else",
    ),
    "a record more": (
        RecordDict({RECORD: recorded()[RECORD], "more": ConfigRecord({})}),
        "one record 'tacit' and nothing else",
    ),
    "metrics": (
        RecordDict({RECORD: MetricRecord({"wire": WIRE, "client": 3})}),
        "one record 'tacit' and nothing else",
    ),
    "arrays": (RecordDict({RECORD: ArrayRecord()}), "one record 'tacit' and nothing else"),
    "no version": (recorded(wire=None), "version of another kind; allowed is 2"),
    "a later version": (recorded(wire=3), "version 3; allowed is 2"),
    "an earlier version": (
        recorded(wire=1),
        "version 1; allowed is 2: .* the same version",
    ),
    "a truth as version": (recorded(wire=True), "version of another kind"),
    "a number with a point as version": (recorded(wire=1.0), "version of another kind"),
    "a text as version": (recorded(wire="1"), "version of another kind"),
    "no client": (recorded(client=None), "a client's number and a body"),
    "a negative client": (recorded(client=-1), "a client's number and a body"),
    "a truth as client": (recorded(client=True), "a client's number and a body"),
    "a text as client": (recorded(client="3"), "a client's number and a body"),
    "many clients": (recorded(client=[1, 2]), "a client's number and a body"),
    "a field more": (recorded(more=1), "a client's number and a body"),
    "no body": (recorded(body=None), "a client's number and a body"),
    "a text as body": (recorded(body="body"), "body is not bytes"),
    "many bodies": (recorded(body=[b"a", b"b"]), "body is not bytes"),
    "a short signature": (recorded(signature=bytes(63)), "signature is not 64 bytes"),
    "an empty signature": (recorded(signature=b""), "signature is not 64 bytes"),
    "a text as signature": (recorded(signature="a" * 64), "signature is not 64 bytes"),
    "many signatures": (recorded(signature=[bytes(64)]), "signature is not 64 bytes"),
    "a refusal that is no text": (recorded(no=1, body=None), "a client's number and a body"),
    "a refusal with a body": (recorded(no="no"), "^no$"),
    "a refusal of another version": (recorded(no="no", wire=1), "version 1"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_envelope_is_refused_by_name(name: str) -> None:
    content, reason = MALFORMED[name]
    with pytest.raises(Refused, match=reason):
        read(carried(content))


def test_a_body_that_is_too_large_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGEST_BODY", 10)
    assert read(Envelope(0, bytes(10)).record()).body == bytes(10)
    with pytest.raises(Refused, match="the body has 11 bytes; allowed are 10"):
        read(Envelope(0, bytes(11)).record())


def test_a_strangers_reason_is_made_short_and_printable() -> None:
    rude = "\x1b[2Jred\nline\r\x00\u202e" + "a" * 10_000
    for content in (refusal(rude), recorded(no=rude)):
        with pytest.raises(Refused) as refused:
            read(content)
        reason = str(refused.value)
        assert reason.startswith("?[2Jred?line???aaa")
        assert reason.isprintable()
        assert len(reason) == LONGEST_REASON


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(), st.binary()
)
values = st.one_of(
    scalars,
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.text()),
    st.lists(st.binary()),
)
names = st.sampled_from(["wire", "client", "body", "signature", "no"]) | st.text(max_size=5)


@given(st.dictionaries(names, values | st.just(WIRE), max_size=5))
def test_whatever_a_record_holds_it_is_read_or_refused(fields: dict[str, Any]) -> None:
    with suppress(Refused):
        envelope = read(RecordDict({RECORD: ConfigRecord(fields)}))
        whole = {"wire": WIRE, "client": envelope.client, "body": envelope.body}
        assert fields == whole | ({"signature": envelope.signature} if envelope.signature else {})
