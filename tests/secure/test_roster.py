from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.secure.roster import SIGNATURE_BYTES, Identity, Roster
from tests.secure.driver import identity, roster_of

ROSTER = roster_of(3)


@given(client=st.integers(0, 2), message=st.binary(max_size=100))
def test_a_signature_confirms_its_signer_and_no_other(client: int, message: bytes) -> None:
    signature = identity(client).sign(message)
    assert len(signature) == SIGNATURE_BYTES
    confirmed = [other for other in range(-2, 5) if ROSTER.confirms(other, message, signature)]
    assert confirmed == [client]


@given(message=st.binary(max_size=20), place=st.integers(0, 511))
def test_no_altered_signature_confirms(message: bytes, place: int) -> None:
    signature = int.from_bytes(identity(0).sign(message), "big") ^ (1 << place)
    assert not ROSTER.confirms(0, message, signature.to_bytes(64, "big"))


@given(message=st.binary(max_size=20), other=st.binary(max_size=20))
def test_a_signature_confirms_one_message_only(message: bytes, other: bytes) -> None:
    signature = identity(1).sign(message)
    assert ROSTER.confirms(1, other, signature) == (message == other)


@given(junk=st.binary(max_size=130))
def test_junk_is_no_signature(junk: bytes) -> None:
    assert not ROSTER.confirms(0, b"message", junk)


@pytest.mark.parametrize(
    "keys", [(bytes(32), bytes(32)), (bytes(31),), (b"",), (identity(0).public_key, bytes(33))]
)
def test_a_roster_lists_different_keys_of_32_bytes(keys: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="a roster lists different Ed25519 public keys"):
        Roster(keys)


def test_a_listed_key_that_is_no_key_confirms_nobody() -> None:
    assert not Roster((b"\xff" * 32,)).confirms(0, b"message", identity(0).sign(b"message"))


def test_fresh_identities_differ() -> None:
    assert len({Identity.new().secret for _ in range(50)}) == 50
    assert len({Identity.new().public_key for _ in range(50)}) == 50


def test_an_identity_never_shows_its_secret() -> None:
    anna = Identity.new()
    for shown in (repr(anna), str(anna), f"{anna}"):
        assert repr(anna.secret) not in shown
        assert anna.secret.hex() not in shown


def test_digest_names_the_whole_roster_in_its_order() -> None:
    keys = ROSTER.keys
    rosters = [ROSTER, Roster(keys[::-1]), Roster(keys[:2]), roster_of(4), roster_of(2)]
    assert len({roster.digest for roster in rosters}) == 4, "two of them list the same"
    assert ROSTER.digest == Roster(tuple(keys)).digest
