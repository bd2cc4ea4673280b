from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from tacit.secure import shamir
from tacit.secure.shamir import (
    NUMBER_BYTES,
    PRIME,
    SECRET,
    SHARE_BYTES,
    Dealing,
    Public,
    as_bytes,
    is_right,
)
from tests.randomness import FALSE_ALARM

SECRETS = st.binary(min_size=32, max_size=32)
CONTEXT = b"a context of the tests"
HOLDERS = (0, 2, 3, 7, 11, 12)


def is_prime(number: int) -> bool:
    """Miller and Rabin with 40 random bases: a composite passes with a chance below 4^-40."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        power = pow(2 + secrets.randbelow(number - 3), odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def test_modulus_is_the_smallest_prime_above_every_secret() -> None:
    assert PRIME > 2**256
    assert is_prime(PRIME)
    assert not any(is_prime(number) for number in range(2**256 + 1, PRIME, 2))


@settings(deadline=None)
@given(secret=SECRETS, data=st.data())
def test_any_threshold_of_the_holders_recover_the_secret(
    secret: bytes, data: st.DataObject
) -> None:
    holders = data.draw(st.lists(st.integers(0, 10**7), min_size=1, max_size=12, unique=True))
    threshold = data.draw(st.integers(1, len(holders)))
    dealt = Dealing.of(secret, holders, threshold, CONTEXT)
    public, shares = dealt.public, dealt.shares
    assert public.threshold == threshold
    assert public.fits(threshold, holders)
    assert shares.keys() == set(holders), "nobody holds the pair at 0"
    assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    assert all(is_right(public, holder, share) for holder, share in shares.items())
    chosen = data.draw(st.permutations(holders))
    for count in (threshold, len(holders)):
        assert public.recover({h: shares[h] for h in chosen[:count]}) == secret
    with pytest.raises(ValueError, match=f"found {threshold - 1} shares; {threshold} are needed"):
        public.recover({holder: shares[holder] for holder in chosen[: threshold - 1]})


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets_come_back(secret: bytes) -> None:
    dealt = Dealing.of(secret, range(5), 3, CONTEXT)
    for chosen in combinations(range(5), 3):
        assert dealt.public.recover({holder: dealt.shares[holder] for holder in chosen}) == secret


def test_a_shorter_proof_lowers_no_threshold() -> None:
    """It is another dealing: fewer shares give another number, and none of them is right."""
    secret = secrets.token_bytes(32)
    dealt = Dealing.of(secret, range(7), 4, CONTEXT)
    for proof in (dealt.public.proof[NUMBER_BYTES:], dealt.public.proof[:-NUMBER_BYTES]):
        public = Public(CONTEXT, dealt.public.hashes, proof)
        assert public.threshold == 3
        assert not public.fits(4, range(7))
        assert not any(is_right(public, holder, share) for holder, share in dealt.shares.items())
        few = {holder: dealt.shares[holder] for holder in range(3)}
        assert recovered(public, few) != int.from_bytes(secret, "big")


@pytest.mark.parametrize(
    ("threshold", "challenge"), [(1, 0), (1, 3), (2, 0), (2, 1), (2, 4), (3, 3)]
)
def test_fewer_shares_than_the_threshold_and_the_proof_have_one_distribution_for_all_secrets(
    threshold: int, challenge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact secrecy: all polynomials f and g over a small field, counted.

    Whatever the secret and the challenge, fewer pairs together with F take every value they can
    take equally often: the first numbers of the pairs and the coefficients of F are jointly
    uniform, and the second numbers follow from them. Hashes are left to the random oracle.
    """
    prime, holders = 5, (0, 1, 3)
    script: list[int] = []

    def scripted(bound: int) -> int:
        assert bound == prime, "coefficients are uniform below the prime, not below anything else"
        return script.pop()

    monkeypatch.setattr(shamir, "PRIME", prime)
    monkeypatch.setattr(shamir, "randbelow", scripted)
    monkeypatch.setattr(shamir, "_challenge", lambda *_: challenge)
    for secret in range(prime):
        views = {few: Counter[tuple[bytes, ...]]() for few in combinations(holders, threshold - 1)}
        proofs = Counter[bytes]()
        for coefficients in product(range(prime), repeat=2 * threshold - 1):
            script[:] = coefficients
            dealt = Dealing.of(secret.to_bytes(32, "big"), holders, threshold, CONTEXT)
            assert not script, "f has a random coefficient less than g, which hides its secret too"
            proofs[dealt.public.proof] += 1
            for few, counts in views.items():
                counts[(*(dealt.shares[holder] for holder in few), dealt.public.proof)] += 1
        assert set(proofs.values()) == {prime ** (threshold - 1)}
        assert len(proofs) == prime**threshold, "F is uniform whatever the secret"
        for counts in views.values():
            assert len(counts) == prime ** (2 * threshold - 1), "jointly uniform"
            assert set(counts.values()) == {1}


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_proof_is_uniform_whatever_the_secret(secret: bytes) -> None:
    """With real challenges: chi-square over every coefficient's top four bits.

    False-alarm rate 1e-6 for all of them together.
    """
    draws, threshold = 2000, 3
    proofs = [Dealing.of(secret, range(3), threshold, CONTEXT).public.proof for _ in range(draws)]
    for place in range(threshold):
        numbers = [
            int.from_bytes(proof[place * NUMBER_BYTES :][:NUMBER_BYTES], "big") for proof in proofs
        ]
        assert max(numbers) < PRIME
        cells = np.bincount([min(number >> 252, 15) for number in numbers], minlength=16)
        assert chisquare(cells).pvalue > FALSE_ALARM / threshold


@settings(deadline=None)
@given(data=st.data(), flip=st.integers(1, 255), place=st.integers(0, SHARE_BYTES - 1))
def test_a_share_with_one_byte_altered_is_not_right_and_names_its_holder(
    data: st.DataObject, flip: int, place: int
) -> None:
    dealt = Dealing.of(bytes(32), HOLDERS, 4, CONTEXT)
    holder = data.draw(st.sampled_from(HOLDERS))
    altered = bytearray(dealt.shares[holder])
    altered[place] ^= flip
    assert not is_right(dealt.public, holder, bytes(altered))
    assert not dealt.public.has_hash(holder, bytes(altered))
    assert is_right(dealt.public, holder, dealt.shares[holder])


@settings(deadline=None)
@given(shift=st.integers(1, PRIME - 1), holder=st.sampled_from(HOLDERS))
def test_a_share_that_still_fits_is_not_right_if_its_numbers_are_others(
    shift: int, holder: int
) -> None:
    """Every pair on one line fits F; only the hash tells them apart."""
    dealt = Dealing.of(bytes(32), HOLDERS, 4, CONTEXT)
    public = dealt.public
    f, g = numbers(dealt.shares[holder])
    moved = as_bytes((f + shift) % PRIME) + as_bytes((g - shift * public.challenge) % PRIME)
    assert shamir.fits(public.challenge, public.expected(holder), moved)
    assert not public.has_hash(holder, moved)
    assert not is_right(public, holder, moved)


def test_any_number_of_altered_shares_leaves_the_right_ones_and_they_recover() -> None:
    """Three liars among nine and as many right shares as the threshold: no spare is needed."""
    secret = secrets.token_bytes(32)
    dealt = Dealing.of(secret, range(9), 6, CONTEXT)
    lied = {holder: secrets.token_bytes(SHARE_BYTES) for holder in (0, 4, 8)}
    returned = {**dealt.shares, **lied}
    right = {h: share for h, share in returned.items() if is_right(dealt.public, h, share)}
    assert right.keys() == set(range(9)) - lied.keys()
    assert dealt.public.recover(right) == secret


@pytest.mark.parametrize("length", [0, 1, NUMBER_BYTES, SHARE_BYTES - 1, SHARE_BYTES + 1, 99])
def test_a_share_of_another_length_is_not_right_even_with_its_hash(length: int) -> None:
    """The dealer published the hash of just that, and an F that all the others fit."""
    pairs = honest_pairs(threshold=4)
    shares = {holder: as_bytes(f) + as_bytes(g) for holder, (f, g) in pairs.items()}
    shares[3] = shares[3].ljust(length, b"\0")[:length]
    public = published(shares, proof_through(shares, HOLDERS[:2] + HOLDERS[3:5]))
    assert public.has_hash(3, shares[3])
    assert not is_right(public, 3, shares[3])
    assert all(is_right(public, holder, shares[holder]) for holder in HOLDERS if holder != 3)


@pytest.mark.parametrize("which", [0, 1])
def test_numbers_from_the_prime_on_are_not_right_though_they_are_the_same_residues(
    which: int,
) -> None:
    """Else a share would have two spellings: a dealer that publishes the other one's hash."""
    pairs = honest_pairs(threshold=4)
    pairs[3][which] += PRIME
    shares = {holder: as_bytes(f) + as_bytes(g) for holder, (f, g) in pairs.items()}
    public = published(shares, proof_through(shares, HOLDERS[:2] + HOLDERS[3:5]))
    assert public.has_hash(3, shares[3])
    assert shamir.fitting(public.challenge, shares[3]) == public.expected(3)
    assert not is_right(public, 3, shares[3])
    assert all(is_right(public, holder, shares[holder]) for holder in HOLDERS if holder != 3)


Pairs = dict[int, list[int]]
"""By holder the numbers f(x) and g(x); at SECRET those at 0."""


def numbers(share: bytes) -> tuple[int, int]:
    return int.from_bytes(share[:NUMBER_BYTES], "big"), int.from_bytes(share[NUMBER_BYTES:], "big")


def polynomial(degree: int) -> Callable[[int], int]:
    """A random one; it sums plain powers, unlike the code under test."""
    coefficients = [secrets.randbelow(PRIME) for _ in range(degree + 1)]
    return lambda x: sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME


def honest_pairs(threshold: int) -> Pairs:
    f, g = polynomial(threshold - 1), polynomial(threshold - 1)
    return {holder: [f(holder + 1), g(holder + 1)] for holder in (SECRET, *HOLDERS)}


def published(shares: Mapping[int, bytes], proof: Callable[[int], bytes]) -> Public:
    """What a dealer publishes that is free to choose F once it knows the challenge."""
    hashes = {holder: shamir.share_hash(CONTEXT, holder, one) for holder, one in shares.items()}
    challenge = Public(CONTEXT, hashes, b"").challenge
    return Public(CONTEXT, hashes, proof(challenge))


def through(points: Mapping[int, int]) -> list[int]:
    """The coefficients, highest first, of the polynomial through these points (Newton's form)."""
    places, prime = list(points), shamir.PRIME
    column = [points[x] for x in places]
    found = [0]
    basis = [1]
    for k, x in enumerate(places):
        padded = [0] * (len(basis) - len(found)) + found
        found = [(a + column[k] * b) % prime for a, b in zip(padded, basis, strict=True)]
        basis = [(a - b * x) % prime for a, b in zip([*basis, 0], [0, *basis], strict=True)]
        for later in range(len(places) - 1, k, -1):
            gap = places[later] - places[later - k - 1]
            column[later] = (column[later] - column[later - 1]) * pow(gap, -1, prime) % prime
    return found


def proof_through(shares: Mapping[int, bytes], chosen: Sequence[int]) -> Callable[[int], bytes]:
    """The F that fits these shares."""

    def proof(challenge: int) -> bytes:
        points = {}
        for holder in chosen:
            f, g = numbers(shares[holder])
            points[holder + 1] = (g + challenge * f) % shamir.PRIME
        return b"".join(map(as_bytes, through(points)))

    return proof


def recovered(public: Public, shares: Mapping[int, bytes]) -> int:
    try:
        return int.from_bytes(public.recover(shares), "big")
    except ValueError:
        return -1


def off_polynomial(pairs: Pairs, how: str) -> Pairs:
    """Values of f that lie on no polynomial of degree below the threshold, 4."""
    found = {holder: list(pair) for holder, pair in pairs.items()}
    if how == "one value is another":
        found[7][0] = (found[7][0] + 1) % PRIME
    elif how == "the secret is another":
        found[SECRET][0] = (found[SECRET][0] + 1) % PRIME
    elif how == "one more degree":
        f = polynomial(4)
        for holder, pair in found.items():
            pair[0] = f(holder + 1)
    elif how == "f and g both one more degree":
        f, g = polynomial(4), polynomial(4)
        for holder, pair in found.items():
            pair[:] = f(holder + 1), g(holder + 1)
    elif how == "two halves with two secrets":
        f = polynomial(3)
        for holder in HOLDERS[3:]:
            found[holder][0] = f(holder + 1)
    elif how == "all at random":
        for pair in found.values():
            pair[:] = secrets.randbelow(PRIME), secrets.randbelow(PRIME)
    elif how == "for a challenge that it guesses":
        big_f, guess, f = polynomial(3), secrets.randbelow(PRIME), polynomial(4)
        for holder, pair in found.items():
            pair[0] = f(holder + 1)
            pair[1] = (big_f(holder + 1) - guess * pair[0]) % PRIME
    return found


CHEATS = [
    "one value is another",
    "the secret is another",
    "one more degree",
    "f and g both one more degree",
    "two halves with two secrets",
    "all at random",
    "for a challenge that it guesses",
]


@pytest.mark.parametrize("how", CHEATS)
def test_a_dealer_of_shares_that_fit_no_polynomial_cannot_make_them_all_right(how: str) -> None:
    """Whatever F it publishes once it knows the challenge.

    An F of the right degree that fits them all would be the one through any four of them; all
    choices of four are tried. Of those, four pairs are right, the hash of the others is still
    right, and so the dealer is named. Shares that are right always recover one secret.
    """
    threshold = 4
    pairs = off_polynomial(honest_pairs(threshold), how)
    shares = {holder: as_bytes(f) + as_bytes(g) for holder, (f, g) in pairs.items()}
    for chosen in combinations((SECRET, *HOLDERS), threshold):
        public = published(shares, proof_through(shares, chosen))
        assert public.fits(threshold, HOLDERS)
        right = {holder for holder in shares if is_right(public, holder, shares[holder])}
        assert set(chosen) <= right
        assert right < shares.keys()
        assert all(public.has_hash(holder, shares[holder]) for holder in shares.keys() - right)
        held = {holder: shares[holder] for holder in right - {SECRET}}
        secret = {
            recovered(public, {holder: held[holder] for holder in some})
            for some in combinations(sorted(held), threshold)
        }
        assert len(secret) <= 1


def test_honest_pairs_pass_the_same_trial() -> None:
    """The control: every four of them give the same F, and all are right."""
    pairs = honest_pairs(threshold=4)
    shares = {holder: as_bytes(f) + as_bytes(g) for holder, (f, g) in pairs.items()}
    proofs = set()
    for chosen in combinations((SECRET, *HOLDERS), 4):
        public = published(shares, proof_through(shares, chosen))
        proofs.add(public.proof)
        assert all(is_right(public, holder, share) for holder, share in shares.items())
    assert len(proofs) == 1


def constant(proof: bytes, _challenge: int) -> bytes:
    """An F that was chosen before the challenge was known."""
    return proof


def test_a_dealer_that_tries_many_salts_succeeds_in_a_small_field_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One challenge in ``prime`` lets a cheat pass: soon found if that is 31, never if 2^256.

    The cheat prepares F for a challenge that it guesses and tries salts until the hash agrees.
    2000 tries fail at 31 with a chance of (30/31)^2000, which is below 1e-28.
    """

    def tries_until_all_are_right(prime: int) -> int | None:
        monkeypatch.setattr(shamir, "PRIME", prime)
        for tried in range(2000):
            guess = 1 + secrets.randbelow(prime - 1)
            salts = {holder: secrets.randbelow(prime) for holder in (SECRET, *HOLDERS)}
            big_f = [secrets.randbelow(prime), secrets.randbelow(prime)]
            shares = {}
            for holder, g in salts.items():
                # any g, with the one f that fits; so f is as random as the salts are
                f = (big_f[0] * (holder + 1) + big_f[1] - g) * pow(guess, -1, prime) % prime
                shares[holder] = as_bytes(f) + as_bytes(g)
            public = published(shares, partial(constant, b"".join(map(as_bytes, big_f))))
            if all(is_right(public, holder, share) for holder, share in shares.items()):
                return tried
        return None

    assert tries_until_all_are_right(31) is not None
    assert tries_until_all_are_right(PRIME) is None


def test_the_hash_tells_whether_dealer_or_holder_is_at_fault() -> None:
    pairs = off_polynomial(honest_pairs(threshold=4), "one value is another")
    shares = {holder: as_bytes(f) + as_bytes(g) for holder, (f, g) in pairs.items()}
    public = published(shares, proof_through(shares, (SECRET, *HOLDERS[:3])))
    dealt, returned = shares[7], shares[2][:-1] + bytes([shares[2][-1] ^ 1])
    assert not is_right(public, 7, dealt)
    assert public.has_hash(7, dealt), "the dealer's own doing"
    assert not is_right(public, 2, returned)
    assert not public.has_hash(2, returned), "the holder's"
    assert not public.has_hash(99, dealt), "who holds no share has none that is right"


@settings(deadline=None)
@given(secret=SECRETS, other=SECRETS)
def test_the_salt_of_a_secret_opens_its_hash_and_no_other_secret_does(
    secret: bytes, other: bytes
) -> None:
    public = Dealing.of(secret, HOLDERS, 4, CONTEXT).public

    def opens(claimed: bytes) -> bool:
        number = as_bytes(int.from_bytes(claimed, "big"))
        return public.has_hash(SECRET, number + public.salt(claimed))

    assert opens(secret)
    assert opens(other) == (other == secret)


def test_shares_of_another_context_holder_or_secret_are_not_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if dealt from the same random numbers, so that all values are the same."""
    script: list[int] = []
    drawn = [secrets.randbelow(PRIME) for _ in range(7)]
    monkeypatch.setattr(shamir, "randbelow", lambda _bound: script.pop())

    def deal(secret: bytes, context: bytes) -> Dealing:
        script[:] = drawn
        return Dealing.of(secret, HOLDERS, 4, context)

    one, two = deal(bytes(32), b"one"), deal(bytes(32), b"two")
    assert one.shares == two.shares, "the same pairs"
    assert one.public.challenge != two.public.challenge
    assert not one.public.hashes.items() & two.public.hashes.items()
    assert all(is_right(one.public, holder, one.shares[holder]) for holder in HOLDERS)
    for public in (
        Public(b"two", one.public.hashes, one.public.proof),
        Public(b"one", two.public.hashes, one.public.proof),
        Public(b"one", one.public.hashes, two.public.proof),
    ):
        assert not any(is_right(public, holder, share) for holder, share in one.shares.items())
    assert not any(
        is_right(one.public, holder, one.shares[other])
        for holder, other in product(HOLDERS, HOLDERS)
        if holder != other
    )
    another = deal(b"\1" * 32, b"one")
    assert not any(is_right(one.public, holder, another.shares[holder]) for holder in HOLDERS)


def test_the_challenge_depends_on_every_hash_and_on_the_context() -> None:
    public = Dealing.of(bytes(32), HOLDERS, 4, CONTEXT).public
    challenges = {public.challenge, replace(public, context=b"another").challenge}
    for holder, one in public.hashes.items():
        altered = {**public.hashes, holder: bytes([one[0] ^ 1]) + one[1:]}
        challenges.add(replace(public, hashes=altered).challenge)
        fewer = {other: digest for other, digest in public.hashes.items() if other != holder}
        challenges.add(replace(public, hashes=fewer).challenge)
    assert len(challenges) == 2 + 2 * len(public.hashes)
    assert replace(public, proof=bytes(4 * NUMBER_BYTES)).challenge == public.challenge, "not on F"


def test_what_is_published_must_fit_threshold_and_holders() -> None:
    public = Dealing.of(bytes(32), HOLDERS, 4, CONTEXT).public
    hashes = dict(public.hashes)
    without = {holder: one for holder, one in hashes.items() if holder != SECRET}
    assert public.fits(4, HOLDERS)
    assert not public.fits(3, HOLDERS)
    assert not public.fits(5, HOLDERS)
    assert not public.fits(4, HOLDERS[1:])
    assert not public.fits(4, (*HOLDERS, 99))
    assert not replace(public, proof=public.proof + b"\0").fits(4, HOLDERS)
    assert not replace(public, hashes=without).fits(4, HOLDERS)
    assert not replace(public, hashes={**hashes, 3: hashes[3][1:]}).fits(4, HOLDERS)
    assert not replace(public, hashes={**hashes, 3: b""}).fits(4, HOLDERS)


def test_of_a_value_beyond_32_bytes_the_last_32_are_the_secret() -> None:
    """A dealer can share such a number, with shares that are right; it must not stop a sum."""
    f, g = polynomial(3), polynomial(3)
    shift = 2**256 - f(0)
    pairs = {
        holder: ((f(holder + 1) + shift) % PRIME, g(holder + 1)) for holder in (SECRET, *HOLDERS)
    }
    shares = {holder: as_bytes(f) + as_bytes(g) for holder, (f, g) in pairs.items()}
    public = published(shares, proof_through(shares, HOLDERS[:4]))
    assert all(is_right(public, holder, share) for holder, share in shares.items())
    recovered = public.recover({holder: shares[holder] for holder in HOLDERS})
    assert recovered == bytes(32)


@settings(deadline=None)
@given(
    coefficients=st.lists(st.integers(0, PRIME - 1), max_size=40),
    point=st.integers(0, 10**7 + 1),
)
def test_values_are_those_of_plain_arithmetic(coefficients: list[int], point: int) -> None:
    horner = 0
    for coefficient in coefficients:
        horner = (horner * point + coefficient) % PRIME
    assert shamir._value(coefficients, point) == horner


@pytest.mark.parametrize(
    ("secret", "holders", "threshold", "message"),
    [
        (bytes(31), range(3), 2, "the secret has 31 bytes; allowed is 32"),
        (bytes(33), range(3), 2, "the secret has 33 bytes; allowed is 32"),
        (bytes(32), range(3), 0, "threshold is 0; allowed is 1 to 3"),
        (bytes(32), range(3), 4, "threshold is 4; allowed is 1 to 3"),
        (bytes(32), (1, 2, 2), 2, "holders must be different numbers from 0 on"),
        (bytes(32), (-1, 2, 3), 2, "holders must be different numbers from 0 on"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    secret: bytes, holders: range | tuple[int, ...], threshold: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Dealing.of(secret, holders, threshold, CONTEXT)
