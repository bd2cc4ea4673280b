from __future__ import annotations

import secrets
from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.secure import shamir

SECRETS = st.binary(min_size=32, max_size=32)


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
    assert shamir.PRIME > 2**256
    assert is_prime(shamir.PRIME)
    assert not any(is_prime(number) for number in range(2**256 + 1, shamir.PRIME, 2))


@settings(deadline=None)
@given(secret=SECRETS, data=st.data())
def test_any_threshold_of_the_holders_recover_the_secret(
    secret: bytes, data: st.DataObject
) -> None:
    holders = data.draw(st.lists(st.integers(0, 10**7), min_size=1, max_size=12, unique=True))
    threshold = data.draw(st.integers(1, len(holders)))
    shares = shamir.split(secret, holders, threshold)
    assert shares.keys() == set(holders)
    assert {len(share) for share in shares.values()} == {shamir.SHARE_BYTES}
    chosen = data.draw(st.permutations(holders))
    for count in (threshold, len(holders)):
        assert shamir.recover({h: shares[h] for h in chosen[:count]}, threshold) == secret
    with pytest.raises(ValueError, match=f"found {threshold - 1} shares; {threshold} are needed"):
        shamir.recover({holder: shares[holder] for holder in chosen[: threshold - 1]}, threshold)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets_come_back(secret: bytes) -> None:
    shares = shamir.split(secret, range(5), 3)
    for chosen in combinations(range(5), 3):
        assert shamir.recover({holder: shares[holder] for holder in chosen}, 3) == secret


def test_too_low_a_threshold_gives_another_secret() -> None:
    secret = secrets.token_bytes(32)
    shares = shamir.split(secret, range(7), 4)
    few = {holder: shares[holder] for holder in range(3)}
    assert shamir.recover(few, 3) != secret


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_fewer_shares_than_the_threshold_have_one_distribution_for_all_secrets(
    threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact secrecy: all polynomials over a small field, counted."""
    prime, holders = 11, (0, 1, 4, 6)
    script: list[int] = []

    def scripted(bound: int) -> int:
        assert bound == prime, "coefficients are uniform below the prime, not below anything else"
        return script.pop()

    monkeypatch.setattr(shamir, "PRIME", prime)
    monkeypatch.setattr(shamir, "randbelow", scripted)
    seen: dict[tuple[int, ...], list[Counter[tuple[bytes, ...]]]] = {}
    for secret in range(prime):
        views = {few: Counter[tuple[bytes, ...]]() for few in combinations(holders, threshold - 1)}
        for coefficients in product(range(prime), repeat=threshold - 1):
            script[:] = coefficients
            shares = shamir.split(secret.to_bytes(32, "big"), holders, threshold)
            assert not script, "one random coefficient for every share that must not suffice"
            for few, counts in views.items():
                counts[tuple(shares[holder] for holder in few)] += 1
        for few, counts in views.items():
            seen.setdefault(few, []).append(counts)
    for distributions in seen.values():
        assert len(distributions[0]) == prime ** (threshold - 1), "jointly uniform"
        assert all(counts == distributions[0] for counts in distributions)


@settings(deadline=None)
@given(secret=SECRETS, shift=st.integers(1, shamir.PRIME - 1), data=st.data())
def test_one_altered_share_is_noticed_with_one_spare(
    secret: bytes, shift: int, data: st.DataObject
) -> None:
    holders = sorted(data.draw(st.sets(st.integers(0, 300), min_size=2, max_size=9)))
    threshold = len(holders) - 1
    shares = shamir.split(secret, holders, threshold)
    altered = data.draw(st.sampled_from(holders))
    value = (int.from_bytes(shares[altered], "big") + shift) % shamir.PRIME
    shares[altered] = value.to_bytes(33, "big")
    with pytest.raises(ValueError, match="the shares do not belong to one secret"):
        shamir.recover(shares, threshold)


def test_one_altered_share_is_noticed_whatever_the_holders() -> None:
    """Eight of ten hold shares, two more than needed: 3's weight is the same in both sets."""
    holders = (1, 2, 3, 4, 5, 6, 8, 9)
    shares = shamir.split(bytes(32), holders, 6)
    shares[3] = secrets.token_bytes(32)
    with pytest.raises(ValueError, match="the shares do not belong to one secret"):
        shamir.recover(shares, 6)


def test_two_altered_shares_are_noticed_with_four_spares() -> None:
    """Two holders who conspire against any one equation that true shares fulfil."""
    holders, prime = tuple(range(10)), shamir.PRIME
    first, last = shamir._lagrange(holders[:6]), shamir._lagrange(holders[-6:])
    dual = [1] * 10
    for holder, other in product(holders, holders):
        if holder != other:
            dual[holder] = dual[holder] * pow(holder - other, -1, prime) % prime
    equations = [[dual[holder] * (holder + 1) ** power for holder in holders] for power in range(4)]
    equations.append([*first, 0, 0, 0, 0])
    equations[-1][4:] = [a - b for a, b in zip(equations[-1][4:], last, strict=True)]
    for equation in equations:
        shares = shamir.split(bytes(32), holders, 6)
        values = [int.from_bytes(shares[holder], "big") for holder in holders]
        values[4], values[5] = values[4] + equation[5], values[5] - equation[4]
        assert sum(a * b for a, b in zip(equation, values, strict=True)) % prime == 0
        altered = {holder: (values[holder] % prime).to_bytes(33, "big") for holder in holders}
        with pytest.raises(ValueError, match="the shares do not belong to one secret"):
            shamir.recover(altered, 6)


def test_a_value_beyond_32_bytes_is_no_secret() -> None:
    beyond = (2**256).to_bytes(33, "big")
    with pytest.raises(ValueError, match="the shares do not belong to one secret"):
        shamir.recover({0: beyond, 5: beyond}, threshold=1)


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
        shamir.split(secret, holders, threshold)
