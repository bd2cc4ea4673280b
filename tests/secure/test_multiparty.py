from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tacit.secure import ring
from tacit.secure.bfv import (
    SUMS,
    Ciphertext,
    FirstShare,
    FirstTotal,
    Message,
    OpeningRequest,
    OpeningShare,
    Parameters,
    PublicKey,
    PublicShare,
    RelinearisationKey,
    SecondShare,
)
from tacit.secure.multiparty import Party, Server
from tacit.secure.ring import WORD
from tests.secure.sessions import FOUR, Session, a_request, two_parties, uniform_p_value

pytest.importorskip("seal")

FALSE_ALARM = 1e-7


KINDS: tuple[type[Message], ...] = (
    PublicShare,
    PublicKey,
    FirstShare,
    FirstTotal,
    SecondShare,
    RelinearisationKey,
    Ciphertext,
    OpeningRequest,
    OpeningShare,
)


# Messages.


def sample(kind: type[Message], parameters: Parameters = SUMS) -> Message:
    polynomials, primes, degree = kind.shape(parameters)
    drawn = [ring.uniform(prime, degree) for prime in parameters.ring.primes[:primes]]
    return kind(parameters, np.array([drawn] * polynomials))


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_back(kind: type[Message]) -> None:
    message = sample(kind)
    data = message.to_bytes()
    shape = kind.shape(SUMS)
    assert data[:8] == b"TMHE" + struct.pack("<HH", 1, kind.kind)
    assert data[8:24] == SUMS.digest
    assert struct.unpack("<3Q", data[24:48]) == shape
    assert data[48:] == message.residues.astype("<u8").tobytes()
    assert (kind.from_bytes(SUMS, data).residues == message.residues).all()
    assert len({one.kind for one in KINDS}) == len(KINDS)


def spoiled(data: bytes) -> Iterator[tuple[bytes, str]]:
    yield b"", "is not one: 0 bytes"
    yield data[:47], "is not one: 47 bytes"
    yield b"X" + data[1:], "is not one"
    yield data[:-1], r"has \d+ bytes; allowed is \d+"
    yield data + b"\0", r"has \d+ bytes; allowed is \d+"
    yield data[:48], "has 48 bytes; allowed is"
    yield data[:4] + b"\2" + data[5:], "has version 2; allowed is 1"
    yield data[:6] + b"\x63" + data[7:], r"is of kind 99; allowed is \d"
    yield data[:8] + bytes(16) + data[24:], "was made with other parameters"
    yield data[:24] + struct.pack("<Q", 2**60) + data[32:], r"names the shape \(1152921504606846976"
    yield data[:-8] + b"\xff" * 8, r"holds the residue 18446744073709551615; allowed is less"


@pytest.mark.parametrize("kind", KINDS)
def test_malformed_messages_are_refused(kind: type[Message]) -> None:
    for data, reason in spoiled(sample(kind).to_bytes()):
        with pytest.raises(ValueError, match=f"^{kind.__name__} {reason}"):
            kind.from_bytes(SUMS, data)


def test_a_residue_equal_to_its_prime_is_refused() -> None:
    message = sample(Ciphertext)
    spoilt = message.residues.copy()
    spoilt[1, 1, 77] = SUMS.ring.primes[1]
    with pytest.raises(ValueError, match="allowed is less than its prime"):
        Ciphertext(SUMS, spoilt)
    with pytest.raises(ValueError, match=r"has shape \(1, 2, 8192\); allowed is \(2, 2, 8192\)"):
        Ciphertext(SUMS, spoilt[:1])
    with pytest.raises(ValueError, match="has numbers of type float64"):
        Ciphertext(SUMS, spoilt.astype(np.float64))


def test_a_polynomial_that_is_zero_is_refused() -> None:
    """SEAL would stop at it, and no honest message holds one."""
    for polynomial, prime in ((0, 0), (1, 1)):
        spoilt = sample(Ciphertext).residues.copy()
        spoilt[polynomial, prime] = 0
        with pytest.raises(ValueError, match="Ciphertext holds a polynomial that is zero"):
            Ciphertext(SUMS, spoilt)


def test_messages_of_other_parameters_are_refused(two: Session) -> None:
    other = replace(SUMS, flooding_bits=70)
    with pytest.raises(ValueError, match="OpeningRequest was made with"):
        two.parties[0].opening_share(a_request(other))
    with pytest.raises(ValueError, match="was made with other parameters"):
        Ciphertext.from_bytes(other, sample(Ciphertext).to_bytes())


def test_a_session_over_the_wire_opens_the_sum(two: Session) -> None:
    """Every message as bytes, and the parties saved in between."""
    key = PublicKey.from_bytes(SUMS, two.public_key.to_bytes())
    parties = [Party.from_bytes(SUMS, party.to_bytes()) for party in two.parties]
    sent = [parties[0].encrypt(key, [1, -2, 3]), parties[1].encrypt(key, [10, 20, -30])]
    total = two.server.sum([Ciphertext.from_bytes(SUMS, one.to_bytes()) for one in sent])
    prepared = two.server.prepare(total)
    request = OpeningRequest.from_bytes(SUMS, prepared.request.to_bytes())
    shares = [
        OpeningShare.from_bytes(SUMS, party.opening_share(request).to_bytes()) for party in parties
    ]
    assert two.server.open(prepared, shares)[:4].tolist() == [11, 18, -27, 0]


def test_malformed_parties_are_refused() -> None:
    data = two_parties(SUMS)[0].to_bytes()
    for spoilt, reason in (
        (data[:-1], "has 8271 bytes; allowed is 8272"),
        (data + bytes(3), "has 8275 bytes; allowed is 16464"),
        (data[:-1] + b"\2", "holds a secret outside of -1, 0, 1"),
        (data[:-1] + b"\x80", "holds a secret outside of -1, 0, 1"),
        (data[:32] + b"\2" + data[33:], "names a state"),
        (data[:32] + b"\x09" + data[33:], "names a state"),
        (data[:24] + b"\2" + data[25:], "names a state"),
        (data[:4] + b"\2" + data[5:], "has version 2"),
        (data[:6] + b"\1" + data[7:], "is of kind 1; allowed is 100"),
    ):
        with pytest.raises(ValueError, match=reason):
            Party.from_bytes(SUMS, spoilt)


def test_messages_hold_no_secret(four: Session) -> None:
    """Neither one's own nor the other's, in any form in which a party holds it."""
    parties = two_parties(FOUR)
    pieces = []
    for party in parties:
        forms = [
            party._secret.astype(np.int8),
            party._secret.astype("<i8"),
            *party._secret_ntt,
            *ring.residues_of(FOUR.ring.primes, party._secret),
        ]
        pieces += [form[:32].tobytes() for form in forms]
        assert any(piece in party.to_bytes() for piece in pieces), "as a control"
        assert "secret stays" in repr(party)
    first = [party.relinearisation_first() for party in parties]
    total = Server(FOUR, 2).relinearisation_total(first)
    request = a_request(FOUR)
    for party in parties:
        for message in (
            party.public_share(),
            party.relinearisation_second(total),
            party.encrypt(four.public_key, [1, 2, 3]),
            party.encrypt_mask(four.public_key),
            party.opening_share(request),
            *first,
        ):
            data = message.to_bytes()
            assert not any(piece in data for piece in pieces)


def test_a_ciphertext_is_two_fresh_polynomials_and_nothing_else(two: Session) -> None:
    party = two.parties[0]
    one, other = (party.encrypt(two.public_key, [5]) for _ in range(2))
    assert len(one.to_bytes()) == 48 + 8 * 2 * 2 * SUMS.degree
    assert (one.residues != other.residues).mean() > 0.999
    masks = [party.encrypt_mask(two.public_key).residues for _ in range(2)]
    assert (masks[0] != masks[1]).mean() > 0.999


def test_masks_are_uniform_and_differ(two: Session) -> None:
    opened = [two.open(two.mask()) for _ in range(2)]
    assert all(uniform_p_value(one, SUMS.ring.plain_modulus) > FALSE_ALARM for one in opened)
    assert not (opened[0] == opened[1]).any()


# Refusals.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"values have shape \(0,\)"),
        ([1.5], "type float64; allowed is a list of integers"),
        ([[1], [2]], r"values have shape \(2, 1\)"),
        ([2**39], r"values lie in 549755813888 \.\. 549755813888; allowed is -5497\d+ \.\. 5497"),
        ([0, -(2**63)], r"values lie in -9223372036854775808 \.\. 0"),
        (np.zeros(2**13 + 1, np.int64), "there are 8193 values; allowed are 8192"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    two: Session, values: npt.ArrayLike, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        two.parties[0].encrypt(two.public_key, values)


def test_the_server_refuses_what_it_cannot_compute(two: Session, four: Session) -> None:
    with pytest.raises(ValueError, match="there is no ciphertext to sum"):
        two.server.sum([])
    x = two.sum(np.zeros((2, 1), np.int64))
    with pytest.raises(ValueError, match="there is no relinearisation key"):
        two.server.dense_test(x, x, range(4))
    y = four.mask()
    for sparse in (range(0), range(0, 8, 2), range(400), range(3, 0, -1)):
        with pytest.raises(ValueError, match=r"allowed are 1 to 320 numbers in a row"):
            four.server.dense_test(y, y, sparse)
    with pytest.raises(ValueError, match="far below the modulus"):
        four.server.dense_test(y, y, range(2**39, 2**39 + 2))
    with pytest.raises(ValueError, match="parties is 0; allowed is at least 1"):
        Server(SUMS, 0)


def test_relinearisation_is_refused_out_of_order_or_for_sums() -> None:
    party, _ = two_parties(FOUR)
    with pytest.raises(ValueError, match="the second share follows the first one"):
        party.relinearisation_second(FirstTotal(FOUR, sample(FirstTotal, FOUR).residues))
    with pytest.raises(ValueError, match="is for sums, which need no relinearisation"):
        two_parties(SUMS)[0].relinearisation_first()


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_seeds_of_another_length_are_refused(seed: bytes) -> None:
    with pytest.raises(ValueError, match=f"the seed has {len(seed)} bytes; allowed is 32"):
        Party.new(SUMS, seed)


def test_residues_travel_little_endian() -> None:
    message = PublicKey(SUMS, np.full(PublicKey.shape(SUMS), 258, WORD))
    assert message.to_bytes()[48:56] == b"\2\1\0\0\0\0\0\0"
