from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import ceil, log2, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tacit.secure.bfv import (
    SUMS,
    Parameters,
)
from tacit.secure.circuit import (
    TAIL,
    Circuit,
    Encrypted,
    Noise,
    check,
    for_dense_test,
    opening_noise,
)
from tacit.secure.multiparty import Server
from tests.secure.sessions import FOUR, Session, uniform_p_value

pytest.importorskip("seal")

FALSE_ALARM = 1e-7


# Exactness.


@pytest.mark.parametrize("key_set", range(5))
def test_dense_masks_are_exact_with_ties(key_set: int) -> None:
    """Every slot; half of the counts exactly at the threshold of 4 or one below."""
    session = Session.begin(FOUR, 3)
    rng = np.random.default_rng(key_set)
    counts = rng.integers(-2, 9, FOUR.degree)
    counts[::2] = rng.integers(3, 5, FOUR.degree // 2)
    test = session.server.dense_test(session.sum(session.split(counts)), session.mask(), range(4))
    opened = session.open(test)
    assert ((opened == 0) == ((counts >= 0) & (counts < 4))).all()
    assert uniform_p_value(opened[opened != 0], FOUR.ring.plain_modulus) > FALSE_ALARM


@pytest.mark.parametrize("sparse", [range(1), range(2), range(-1, 2), range(4)])
def test_ten_parties_test_small_ranges_exactly(four: Session, sparse: range) -> None:
    counts = np.arange(FOUR.degree) % 11 - 4
    test = four.server.dense_test(four.sum(four.split(counts)), four.mask(), sparse)
    opened = four.open(test)
    assert ((opened == 0) == np.isin(counts, sparse)).all()


def test_parties_that_hold_nothing_open_to_sparse(four: Session) -> None:
    nothing = np.zeros((10, 5), np.int64)
    test = four.server.dense_test(four.sum(nothing), four.mask(), range(4))
    assert not four.open(test).any()


def test_ranges_of_eight_are_exact() -> None:
    session = Session.begin(for_dense_test(8, 2), 2)
    counts = np.arange(1000) % 13 - 2
    test = session.server.dense_test(session.sum(session.split(counts)), session.mask(), range(8))
    opened = session.open(test)[:1000]
    assert ((opened == 0) == ((counts >= 0) & (counts < 8))).all()
    assert abs(session.noise_of(session.server._circuit.switched(test, 2))).max() < bound(test, 2)


def bound(encrypted: Encrypted, parties: int) -> float:
    parameters = for_dense_test(8, parties)
    low = Circuit(Noise(parameters, parties)).switched(encrypted, parameters.opening_primes)
    return TAIL * low.noise


@pytest.mark.parametrize(
    "sparse", [range(-6, 11), pytest.param(range(-100, 200), marks=pytest.mark.slow)]
)
def test_large_ranges_with_negative_counts_are_exact(sparse: range) -> None:
    """By Paterson and Stockmeyer; every number of the range, and three more on both sides."""
    parties = 2
    parameters = for_dense_test(len(sparse), parties)
    session = Session.begin(parameters, parties)
    counts = np.arange(parameters.degree) % (len(sparse) + 6) + sparse[0] - 3
    test = session.server.dense_test(session.sum(session.split(counts)), session.mask(), sparse)
    low = session.server._circuit.switched(test, parameters.opening_primes)
    noise = opening_noise(parameters, parties, len(sparse))
    assert abs(session.noise_of(low)).max() < noise
    assert ((session.open(test) == 0) == np.isin(counts, sparse)).all()


class PlainRing:
    """SEAL's calls on bare integers, counting products."""

    plain_modulus = 2**40 - 87

    def __init__(self) -> None:
        self.evaluator, self.products = self, 0

    def level(self, primes: int) -> Any:
        return SimpleNamespace(parms_id=primes)

    def constant(self, number: int) -> int:
        return number % self.plain_modulus

    def mod_switch_to(self, one: int, _: int) -> int:
        return one

    def add(self, one: int, other: int) -> int:
        return (one + other) % self.plain_modulus

    def multiply_plain(self, one: int, other: int) -> int:
        assert other, "SEAL refuses a product with zero"
        return one * other % self.plain_modulus

    def multiply(self, one: int, other: int) -> int:
        self.products += 1
        return one * other % self.plain_modulus

    def square(self, one: int) -> int:
        return self.multiply(one, one)

    def relinearize_inplace(self, one: int, key: None) -> None:
        pass

    add_plain = add


@pytest.mark.parametrize("first", [-150, -7, 0])
def test_the_circuit_multiplies_all_factors_with_few_products(first: int) -> None:
    parameters = Parameters(15, (60,) * 14)
    for length in (*range(1, 70), 127, 128, 129, 150, 255, 256, 257, 299, 300, 320):
        sparse = range(first, first + length)
        plain: Any = PlainRing()
        circuit = Circuit(Noise(parameters, 10), plain)
        for x in (first - 1, first, first + length // 2, first + length - 1, first + length, 1000):
            plain.products = 0
            found = circuit.dense_test(circuit.fresh(10, x), circuit.fresh(10, 12345), sparse)
            expected = reduce(lambda a, j: a * (x - j) % plain.plain_modulus, sparse, 12345)
            assert found.ciphertext == expected
        assert plain.products <= 2 * sqrt(length) + log2(length) + 1


@pytest.mark.parametrize("name", ["two", "hundred"])
def test_sums_are_exact(name: str, request: pytest.FixtureRequest) -> None:
    session: Session = request.getfixturevalue(name)
    values = np.random.default_rng(3).integers(-(2**32), 2**32, (len(session.parties), SUMS.degree))
    values[:, :3] = 0, -1, 1
    assert (session.open(session.sum(values)) == values.sum(0)).all()


def test_sums_of_ten_parties_are_exact_up_to_the_modulus(four: Session) -> None:
    most = FOUR.ring.plain_modulus // 2
    rows = np.zeros((10, 5), np.int64)
    rows[0] = most - 5, 5 - most, 3, -1, 17
    rows[9] = 5, -5, -3, 0, 0
    assert four.open(four.sum(rows))[:5].tolist() == [most, -most, 0, -1, 17]


def test_without_one_party_nothing_opens(hundred: Session) -> None:
    """99 shares leave numbers uniform modulo t: none is right, and half of the signs are."""
    values = np.random.default_rng(5).integers(-1000, 1000, (100, SUMS.degree))
    prepared = hundred.server.prepare(hundred.sum(values))
    shares = hundred.shares(prepared)
    with pytest.raises(ValueError, match="there are 99 shares; needed is one of each of 100"):
        hundred.server.open(prepared, shares[1:])
    opened = Server(SUMS, 99).open(prepared, shares[1:])
    assert not (opened == values.sum(0)).any(), "one is right with a chance of 2^-27"
    assert abs(((opened < 0) == (values.sum(0) < 0)).mean() - 0.5) < 3 / sqrt(SUMS.degree)
    assert uniform_p_value(opened, SUMS.ring.plain_modulus) > FALSE_ALARM
    assert (hundred.server.open(prepared, shares) == values.sum(0)).all(), "as a control"


# Noise and parameters.


def test_noise_stays_below_its_bound(four: Session, hundred: Session) -> None:
    total = hundred.sum(np.ones((100, SUMS.degree), np.int64))
    assert abs(hundred.noise_of(total)).max() < opening_noise(SUMS, 100)
    counts = four.sum(four.split(np.arange(FOUR.degree) % 9))
    test = four.server.dense_test(counts, four.mask(), range(4))
    low = four.server._circuit.switched(test, FOUR.opening_primes)
    assert abs(four.noise_of(low)).max() < opening_noise(FOUR, 10, 4)


class HeavyCircuit(Circuit):
    """Keeps every prime, so that the noise of a product is not hidden by rounding."""

    def _lightened(self, one: Encrypted) -> Encrypted:
        return one


def test_every_operation_bounds_its_noise_and_not_by_far(four: Session) -> None:
    """A product's bound may be high by 2^6, mostly for the peak of the secret."""
    server = four.server._circuit
    circuit = HeavyCircuit(server.noise, server.ring, server.relinearisation)
    x = four.sum(four.split(np.arange(FOUR.degree) % 9))
    y = four.mask()
    product, square = circuit.times(x, y), circuit.times(x, x)
    for name, result, slack in (
        ("fresh", x, 2),
        ("number plus", circuit.plus_number(x, -3), 2),
        ("number times", circuit.times_number(y, FOUR.ring.plain_modulus // 2), 2),
        ("sum", circuit.plus(x, y), 4),
        ("product", product, 2**6),
        ("square", square, 2**6),
        ("product of products", circuit.times(product, square), 2**12),
        ("switched", circuit.switched(x, 3), 2),
    ):
        measured = sqrt((four.noise_of(result) ** 2).mean())
        assert measured < result.noise < slack * measured, name


def test_named_parameters_hold_for_a_hundred_parties() -> None:
    check(SUMS, parties=100, openings=10)
    check(for_dense_test(4, 100), parties=100, factors=4)
    assert len(for_dense_test(4, 20).prime_bits) == 6
    assert for_dense_test(4, 10) == FOUR
    assert (for_dense_test(8, 10).degree_bits, len(for_dense_test(8, 10).prime_bits)) == (14, 7)
    for factors, parties in ((150, 10), (300, 10), (300, 100)):
        parameters = for_dense_test(factors, parties)
        check(parameters, parties, factors=factors)
        assert parameters.degree_bits == 15
        assert parameters.flooding_distance(opening_noise(parameters, parties, factors)) < 2**-40


@pytest.mark.parametrize("factors", [1, 4, 8, 300])
def test_chosen_rings_have_128_bits_of_security(factors: int) -> None:
    parameters = for_dense_test(factors, 10)
    assert sum(parameters.prime_bits) <= {14: 438, 15: 881}[parameters.degree_bits]
    assert parameters.ring.degree == parameters.degree


def test_parameters_below_128_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="SEAL refuses this ring"):
        _ = Parameters(13, (60,) * 4).ring


def test_flooding_that_hides_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match=r"flooding of 50 bits leaves a distance of 2\^-2\d\.\d"):
        check(replace(SUMS, flooding_bits=50), 10)
    with pytest.raises(ValueError, match="flooding of 62 bits"):
        check(replace(FOUR, flooding_bits=62), 10, factors=4)
    with pytest.raises(ValueError, match="flooding of 64 bits"):
        check(replace(SUMS, flooding_bits=64), 100)


def test_too_many_openings_or_products_are_refused() -> None:
    with pytest.raises(ValueError, match="over 1000 openings by 100 parties"):
        check(SUMS, 100, openings=1000)
    with pytest.raises(ValueError, match="leaves a distance of"):
        check(FOUR, 10, factors=8)
    with pytest.raises(ValueError, match="factors is 321; allowed is 1 to 320"):
        for_dense_test(321, 10)


def test_flooding_that_might_spoil_an_opening_is_refused() -> None:
    with pytest.raises(ValueError, match=r"flooding by 100 parties reaches 2\^79\.6"):
        check(replace(SUMS, flooding_bits=73), 100)
    check(replace(SUMS, flooding_bits=72), 100)
    assert ceil(log2(100)) + 72 == 79, "as a control: nearly all of the room of 2^79"


def test_the_server_refuses_to_prepare_what_is_not_hidden(two: Session) -> None:
    total = two.sum(np.zeros((2, 1), np.int64))
    with pytest.raises(ValueError, match="allowed is at most"):
        two.server.prepare(replace(total, noise=2.0**20))
    with pytest.raises(ValueError, match="over 1000000 openings"):
        two.server.prepare(total, openings=10**6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"degree_bits": 12}, "degree_bits is 12; allowed is 13 to 15"),
        ({"prime_bits": (60,)}, "the number of primes is 1; allowed is 2 to 16"),
        ({"prime_bits": (60, 61, 60)}, "the largest of prime_bits is 61; allowed is 40 to 60"),
        ({"plain_bits": 60}, "plain_bits is 60; allowed is 20 to 50"),
        ({"opening_primes": 3}, "opening_primes is 3; allowed is 1 to 2"),
    ],
)
def test_impossible_parameters_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SUMS, **change)
