from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from tacit.secure import ring
from tacit.secure.ring import WORD, Level, Residues, Ring, SealForm

pytest.importorskip("seal")

FALSE_ALARM = 1e-7
DEGREE = 2**13


@pytest.fixture(scope="module")
def small() -> Ring:
    return Ring(13, (60, 60, 60), 40, 2)


def uniform_p_value(values: Residues, bound: int) -> float:
    """Chi-square of 64 bins of equal width."""
    bins = (values.astype(np.float64) / bound * 64).astype(np.int64)
    counts = np.bincount(bins, minlength=64)
    expected = values.size / 64
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 63))


def slow_product(one: list[int], other: list[int], prime: int) -> list[int]:
    """Multiplication modulo X^n + 1 from the definition, for a polynomial with few terms."""
    product = np.zeros(len(one), object)
    for place, factor in enumerate(other):
        if factor:
            turned = np.roll(np.array(one, object), place)
            turned[:place] *= -1
            product += factor * turned
    return [int(value) % prime for value in product]


def test_errors_are_centred_binomial() -> None:
    errors = ring.error(8, DEGREE)
    assert errors.shape == (8, DEGREE)
    assert abs(errors).max() <= 21
    assert abs(errors.std() - 10.5**0.5) < 0.06, "six deviations of this statistic"
    assert abs(errors.mean()) < 6 * 3.24 / errors.size**0.5


def test_ternary_values_come_equally_often() -> None:
    counts = np.bincount(ring.ternary(3 * 2**15) + 1, minlength=3)
    assert chi2.sf(((counts - 2**15) ** 2 / 2**15).sum(), 2) > FALSE_ALARM
    assert counts.size == 3


def test_ternary_never_takes_a_rejected_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = b"\xff\x00\xff\x01\x02\xff"
    monkeypatch.setattr(os, "urandom", lambda count: (stream * count)[:count])
    assert ring.ternary(6).tolist() == [-1, 0, 1, -1, 0, 1]


@pytest.mark.parametrize("prime", [2**60 - 2**14 + 1, 2**40 - 87, 2**39 + 23])
def test_uniform_numbers_fill_their_range(prime: int) -> None:
    values = ring.uniform(prime, 2**16)
    assert values.max() < prime
    assert uniform_p_value(values, prime) > FALSE_ALARM


def test_flooding_fills_its_range_modulo_every_prime() -> None:
    primes = (2**60 - 2**14 + 1, 2**59 + 2**20 + 7)
    for bits in (3, 40, 57):
        first, second = ring.flooding(DEGREE, bits, primes).astype(np.int64)
        signed = np.where(first > primes[0] // 2, first - primes[0], first)
        assert (signed % primes[1] == second).all()
        assert -(2**bits) <= signed.min() < -0.75 * 2**bits
        assert 0.7 * 2**bits < signed.max() < 2**bits
        shifted = (signed + 2**bits).astype(np.uint64)
        if bits > 3:
            assert uniform_p_value(shifted, 2 ** (bits + 1)) > FALSE_ALARM


def test_wide_flooding_is_the_drawn_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against big integers: digits of four bits, the highest cut, minus 2^71."""
    drawn = os.urandom(18 * 4)
    monkeypatch.setattr(os, "urandom", lambda count: drawn[:count])
    primes = (2**60 - 2**14 + 1, 2**50 - 27)
    found = ring.flooding(4, 71, primes)
    for place in range(4):
        number = 0
        for digit in drawn[place::4]:
            number = 16 * number + digit % 16
        number = number % 2**72 - 2**71
        assert found[:, place].tolist() == [number % prime for prime in primes]


def test_flooding_refuses_primes_that_overflow() -> None:
    with pytest.raises(ValueError, match="the largest prime has 61 bits; allowed are 60"):
        ring.flooding(8, 64, [2**60 + 33])


def test_reference_polynomials_follow_from_the_seed_alone() -> None:
    primes = (2**60 - 2**14 + 1, 2**50 - 27)
    seed = bytes(range(32))
    found = ring.reference_polynomials(seed, 2, primes, 64)
    label = b"tacit 1 reference polynomial" + seed + struct.pack("<IQ", 1, primes[1])
    words = np.frombuffer(hashlib.shake_256(label).digest(8 * 200), WORD) & (2**50 - 1)
    assert found[1, 1].tolist() == words[words < primes[1]][:64].tolist()
    assert not (found[0] == found[1]).any()
    assert (ring.reference_polynomials(bytes(32), 1, primes, 64)[0] != found[0]).all()
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0, 0] = 1


def test_residues_add_and_negate() -> None:
    primes = (2**60 - 2**14 + 1, 97)
    one = np.array([ring.uniform(prime, 50) for prime in primes])
    other = np.array([ring.uniform(prime, 50) for prime in primes])
    one[:, 0] = 0
    total = ring.add(primes, one, other, other)
    for row, prime in enumerate(primes):
        pairs = zip(one[row].tolist(), other[row].tolist(), strict=True)
        assert total[row].tolist() == [(a + 2 * b) % prime for a, b in pairs]
    assert not ring.add(primes, one, ring.negate(primes, one)).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda good: good.astype(np.int64), "has numbers of type int64; allowed is uint64"),
        (lambda good: good[:1], r"has shape \(1, 3\); allowed is \(2, 3\)"),
        (lambda good: good + np.uint64(5), "holds the residue 5; allowed is less than its prime 5"),
    ],
)
def test_arrays_from_outside_are_checked(change: Callable[[Residues], Any], message: str) -> None:
    good = np.array([[0, 1, 4], [6, 0, 1]], WORD)
    assert ring.checked("it", good, (2, 3), [5, 7]) is good
    with pytest.raises(ValueError, match=f"it {message}"):
        ring.checked("it", change(good), (2, 3), [5, 7])


def test_products_are_those_of_the_ring(small: Ring) -> None:
    for level in (small.key, small.opening):
        point = np.array([ring.uniform(prime, DEGREE) for prime in level.primes])
        factor = np.zeros(DEGREE, np.int64)
        factor[[0, 5, DEGREE - 1]] = 1, -2, 3
        found = level.coefficients_times(point[None], level.to_ntt(factor))[0]
        for row, prime in enumerate(level.primes):
            expected = slow_product(point[row].tolist(), factor.tolist(), prime)
            assert found[row].tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_any_number_of_polynomials_is_lent(small: Ring, count: int) -> None:
    level = small.key
    points = np.array([[ring.uniform(p, DEGREE) for p in level.primes] for _ in range(count)])
    factor = level.to_ntt(ring.ternary(DEGREE))
    together = level.times(points, factor)
    apart = [level.times(point[None], factor)[0] for point in points]
    assert (together == np.stack(apart)).all()
    noise = ring.add(
        level.primes,
        level.samples((points, factor)),
        ring.negate(level.primes, together),
    )
    assert (level.from_ntt(noise)[0, 0] != 0).any()


def test_ternary_polynomials_survive_the_transform(small: Ring) -> None:
    secret = ring.ternary(DEGREE)
    back = small.key.from_ntt(small.key.to_ntt(secret)[None])[0]
    assert (back == ring.residues_of(small.primes, secret)).all()


def test_seal_refuses_residues_that_are_none(small: Ring) -> None:
    wrong = np.zeros((2, 2, DEGREE), WORD)
    wrong[1, 1, 3] = small.primes[1]
    with pytest.raises((RuntimeError, ValueError)):
        small.opening.load(wrong, ntt=False)


@pytest.mark.parametrize(
    "header",
    [b"\x5e\xa1\x10\x04\x01\x02\x00\x00", b"\x5e\xa1\x10\x03\x06\x00\x00\x00", b"TMHE\0\0\0\0"],
)
def test_a_seal_that_compresses_or_is_another_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match=f"SEAL writes the header {header.hex()}"):
        SealForm(header + bytes(80))


def test_a_ciphertext_of_another_length_is_refused(small: Ring) -> None:
    level: Level = small.opening
    saved = small.form.ciphertext(np.ones((2, 2, DEGREE), WORD), level.parms_id, ntt=False)
    assert (small.form.polynomials(saved) == 1).all()
    with pytest.raises(ValueError, match=f"a ciphertext of {len(saved) - 8} bytes; allowed is"):
        small.form.polynomials(saved[:-8])


@pytest.mark.parametrize(("bits", "primes"), [(13, 4), (14, 8), (15, 15)])
def test_rings_below_128_bits_are_refused(bits: int, primes: int) -> None:
    with pytest.raises(ValueError, match="SEAL refuses this ring"):
        Ring(bits, (60,) * primes, 40, 2)


def test_a_missing_seal_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seal", None)
    with pytest.raises(ImportError, match=r"pip install 'tacit\[encrypted\]'"):
        ring.import_seal()


def test_primes_are_just_below_powers_of_two(small: Ring) -> None:
    assert all(0 < 2**60 - prime < 2**40 for prime in small.primes)
    with pytest.raises(ValueError, match=r"allowed is just below 2\^60"):
        ring._check_near_powers((2**59 + 5,), (60,))
