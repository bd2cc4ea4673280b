from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count
from math import ceil, log2, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from tacit.secure import multiparty, ring
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
from tacit.secure.circuit import (
    TAIL,
    Circuit,
    Encrypted,
    Noise,
    check,
    for_dense_test,
    opening_noise,
)
from tacit.secure.multiparty import Party, Prepared, Server
from tacit.secure.ring import WORD, Integers, Level, Residues, add, negate

pytest.importorskip("seal")

FALSE_ALARM = 1e-7
FOUR = Parameters(14, (60,) * 6)
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


@dataclass
class Session:
    """All parties and the server in one process, with their keys."""

    server: Server
    parties: list[Party]
    public_key: PublicKey

    @classmethod
    def begin(cls, parameters: Parameters, parties: int, *, products: bool = True) -> Session:
        seed = secrets.token_bytes(32)
        everybody = [Party.new(parameters, seed) for _ in range(parties)]
        server = Server(parameters, parties)
        session = cls(server, everybody, server.public_key([p.public_share() for p in everybody]))
        if products:
            total = server.relinearisation_total([p.relinearisation_first() for p in everybody])
            second = [party.relinearisation_second(total) for party in everybody]
            server.use(server.relinearisation_key(total, second))
        return session

    def sum(self, values: Integers) -> Encrypted:
        pairs = zip(self.parties, values, strict=True)
        return self.server.sum([party.encrypt(self.public_key, row) for party, row in pairs])

    def mask(self) -> Encrypted:
        return self.server.sum([party.encrypt_mask(self.public_key) for party in self.parties])

    def shares(self, prepared: Prepared) -> list[OpeningShare]:
        return [party.opening_share(prepared.request) for party in self.parties]

    def open(self, encrypted: Encrypted) -> Integers:
        prepared = self.server.prepare(encrypted)
        return self.server.open(prepared, self.shares(prepared))

    def split(self, totals: Integers) -> Integers:
        """Rows for every party that add up to the totals."""
        rng = np.random.default_rng(7)
        rows = rng.integers(-50, 51, (len(self.parties), totals.size))
        rows[0] += totals - rows.sum(0)
        return rows

    def noise_of(self, encrypted: Encrypted) -> npt.NDArray[np.float64]:
        """The true noise: t (c0 + c1 s) = q m + t e, and q m vanishes modulo q."""
        parameters = self.server.parameters
        level = parameters.ring.level(encrypted.primes)
        constant, linear = level.save(encrypted.ciphertext)
        secret = reduce(
            lambda a, b: add(level.primes, a, b),
            [party._secret_ntt[: len(level.primes)] for party in self.parties],
        )
        noisy = add(level.primes, constant, level.coefficients_times(linear[None], secret)[0])
        modulus = parameters.ring.plain_modulus
        return lifted(noisy, level.primes, times=modulus) / modulus


@pytest.fixture(scope="module")
def four() -> Session:
    """Ten parties that can test for four sparse numbers."""
    return Session.begin(FOUR, 10)


@pytest.fixture(scope="module")
def two() -> Session:
    return Session.begin(SUMS, 2, products=False)


@pytest.fixture(scope="module")
def hundred() -> Session:
    return Session.begin(SUMS, 100, products=False)


def lifted(residues: Residues, primes: tuple[int, ...], times: int = 1) -> npt.NDArray[np.float64]:
    """The integers between -q/2 and q/2 with these residues, by the Chinese remainder theorem."""
    q = reduce(lambda a, b: a * b, primes)
    total = np.zeros(residues.shape[-1], object)
    for row, prime in zip(residues, primes, strict=True):
        total += row.astype(object) * (q // prime * pow(q // prime, -1, prime) * times % q)
    total %= q
    return np.where(total > q // 2, total - q, total).astype(np.float64)


# What every share must carry. A correctness test cannot see noise that is missing.


def errors_of(parameters: Parameters, noise: Residues) -> Integers:
    """Polynomials in NTT form as small integers, the same modulo every prime."""
    if not noise.any():
        return np.zeros((len(noise), parameters.degree), np.int64)
    primes = np.array(parameters.ring.primes, np.int64)[:, None]
    residues = parameters.ring.key.from_ntt(noise).astype(np.int64)
    signed = np.where(residues > primes // 2, residues - primes, residues)
    assert (signed == signed[:, :1]).all(), "not a small polynomial"
    errors: Integers = signed[:, 0]
    return errors


def check_errors(errors: Integers, terms: int = 1) -> None:
    """Standard deviation within more than five of its own, bounded, and every polynomial fresh."""
    for one in errors:
        assert abs(one.std() - sqrt(10.5 * terms)) < 0.1 * sqrt(terms), "errors of wrong size"
        assert abs(one).max() <= 21 * terms, "errors beyond their bound"
        assert abs(one.mean()) < 6 * sqrt(10.5 * terms / one.size), "errors off centre"
    for place, one in enumerate(errors):
        for other in errors[:place]:
            correlation = np.corrcoef(one, other)[0, 1]
            assert abs(correlation) < 6 / sqrt(one.size), "errors used twice"


def check_flooding(noise: npt.NDArray[np.float64], bits: int) -> None:
    """Range, variance, and the largest gap to a uniform distribution (false alarms 1e-6)."""
    scaled = np.sort(noise) / 2.0**bits
    assert scaled[0] >= -1, "flooding too wide"
    assert scaled[-1] < 1, "flooding too wide"
    assert min(-scaled[0], scaled[-1]) > 0.99, "flooding too narrow"
    assert abs(scaled.std() * sqrt(3) - 1) < 0.03, "flooding of wrong variance"
    gap = abs(scaled - np.linspace(-1, 1, scaled.size)).max() / 2
    assert gap < 2.7 / sqrt(scaled.size), "flooding is not uniform"


def public_errors(parameters: Parameters, *parties: Party) -> Integers:
    level = parameters.ring.key
    shares = [party.public_share().residues for party in parties]
    products = [level.times(p._points(0, 1), p._secret_ntt) for p in parties]
    return errors_of(
        parameters, add(level.primes, np.concatenate(shares), np.concatenate(products))
    )


def first_errors(party: Party, share: FirstShare) -> Integers:
    """h0 + a_j u - w_j s and h1 - a_j s."""
    level, k = party.parameters.ring.key, party.parameters.data_primes
    points = party._points(1, k + 1)
    assert party._ephemeral is not None
    hidden = level.times(points, level.to_ntt(-party._ephemeral))
    special = party._special_secret()
    for j, prime in enumerate(level.primes[:k]):
        hidden[j, j : j + 1] = add([prime], hidden[j, j : j + 1], special[j : j + 1])
    plain = np.concatenate([hidden, level.times(points, party._secret_ntt)])
    return errors_of(
        party.parameters, add(level.primes, share.residues, negate(level.primes, plain))
    )


def second_errors(party: Party, total: FirstTotal) -> Integers:
    """The share minus s H0 + (u - s) H1."""
    level, k = party.parameters.ring.key, party.parameters.data_primes
    assert party._ephemeral is not None
    difference = level.to_ntt(party._ephemeral - party._secret)
    share = party.relinearisation_second(total).residues
    plain = add(
        level.primes,
        level.times(total.residues[:k], party._secret_ntt),
        level.times(total.residues[k:], difference),
    )
    return errors_of(party.parameters, add(level.primes, share, negate(level.primes, plain)))


def a_request(parameters: Parameters) -> OpeningRequest:
    primes = parameters.ring.opening.primes
    drawn = [ring.uniform(prime, parameters.degree) for prime in primes]
    return OpeningRequest(parameters, np.array([drawn]))


def flooding_of(party: Party, request: OpeningRequest) -> npt.NDArray[np.float64]:
    level = party.parameters.ring.opening
    product = level.coefficients_times(request.residues, party._secret_ntt[: len(level.primes)])
    share = party.opening_share(request).residues
    return lifted(add(level.primes, share, negate(level.primes, product))[0], level.primes)


def two_parties(parameters: Parameters) -> tuple[Party, Party]:
    seed = secrets.token_bytes(32)
    return Party.new(parameters, seed), Party.new(parameters, seed)


def test_public_shares_carry_errors() -> None:
    check_errors(public_errors(FOUR, *two_parties(FOUR)))


def test_relinearisation_shares_carry_errors_and_the_ephemeral_secret_is_erased() -> None:
    one, other = two_parties(FOUR)
    shares = [one.relinearisation_first(), other.relinearisation_first()]
    check_errors(first_errors(one, shares[0]))
    total = Server(FOUR, 2).relinearisation_total(shares)
    erased = np.asarray(other._ephemeral).astype(np.int8).tobytes()
    assert len(erased) == FOUR.degree
    assert erased in other.to_bytes(), "as a control"
    check_errors(second_errors(one, total), terms=2)
    check_errors(second_errors(other, total), terms=2)
    assert one._ephemeral is None
    assert other._ephemeral is None
    assert erased not in other.to_bytes()
    with pytest.raises(ValueError, match="is made only once"):
        one.relinearisation_second(total)


def test_opening_shares_are_flooded_afresh() -> None:
    party, _ = two_parties(FOUR)
    request = a_request(FOUR)
    floods = [flooding_of(party, request) for _ in range(2)]
    for flood in floods:
        check_flooding(flood, FOUR.flooding_bits)
    assert abs(np.corrcoef(floods[0], floods[1])[0, 1]) < 6 / sqrt(FOUR.degree)


def noiseless_samples(
    level: Level, *products: tuple[Residues, Residues], out: Residues | None = None
) -> Residues:
    """Points times secrets, and no error."""
    answer = add(level.primes, *(level.times(points, secret) for points, secret in products))
    if out is not None:
        out[:] = answer
    return answer


def test_missing_errors_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Level, "samples", noiseless_samples)
    one, other = two_parties(FOUR)
    with pytest.raises(AssertionError, match="errors of wrong size"):
        check_errors(public_errors(FOUR, one))
    share = one.relinearisation_first()
    with pytest.raises(AssertionError, match="errors of wrong size"):
        check_errors(first_errors(one, share))
    total = Server(FOUR, 2).relinearisation_total([share, other.relinearisation_first()])
    with pytest.raises(AssertionError, match="errors of wrong size"):
        check_errors(second_errors(one, total), terms=2)


def test_an_error_left_out_of_the_second_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share should carry two errors; with one it is too small by a factor of sqrt(2)."""
    one, other = two_parties(FOUR)
    shares = [one.relinearisation_first(), other.relinearisation_first()]
    total = Server(FOUR, 2).relinearisation_total(shares)
    honest, calls = ring.error, count()
    monkeypatch.setattr(ring, "error", lambda c, d: honest(c, d) * (next(calls) % 2))
    with pytest.raises(AssertionError, match="errors of wrong size"):
        check_errors(second_errors(one, total), terms=2)


def test_errors_used_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    same = ring.error(1, FOUR.degree)
    monkeypatch.setattr(ring, "error", lambda count, _: np.repeat(same, count, 0))
    one, other = two_parties(FOUR)
    with pytest.raises(AssertionError, match="errors used twice"):
        check_errors(public_errors(FOUR, one, other))
    with pytest.raises(AssertionError, match="errors used twice"):
        check_errors(first_errors(one, one.relinearisation_first()))


@pytest.mark.parametrize("short", [1, 3, 16])
def test_flooding_that_is_short_by_some_bits_is_caught(
    monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    honest = ring.flooding
    monkeypatch.setattr(multiparty, "flooding", lambda n, bits, q: honest(n, bits - short, q))
    party, _ = two_parties(FOUR)
    with pytest.raises(AssertionError, match="flooding too narrow"):
        check_flooding(flooding_of(party, a_request(FOUR)), FOUR.flooding_bits)


def test_flooding_used_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    same = ring.flooding(FOUR.degree, FOUR.flooding_bits, FOUR.ring.opening.primes)
    monkeypatch.setattr(multiparty, "flooding", lambda *_: same)
    party, _ = two_parties(FOUR)
    floods = [flooding_of(party, a_request(FOUR)) for _ in range(2)]
    check_flooding(floods[0], FOUR.flooding_bits)
    assert np.corrcoef(floods[0], floods[1])[0, 1] > 0.99


def test_secrets_are_ternary_and_differ() -> None:
    """Both parties' secrets and their ephemeral ones."""
    parties = two_parties(FOUR)
    for party in parties:
        party.relinearisation_first()
    drawn = [np.asarray(s) for party in parties for s in (party._secret, party._ephemeral)]
    for place, one in enumerate(drawn):
        counts = np.bincount(one + 1, minlength=3)
        expected = FOUR.degree / 3
        assert chi2.sf(((counts - expected) ** 2 / expected).sum(), 2) > FALSE_ALARM
        for other in drawn[:place]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 6 / sqrt(FOUR.degree)


def test_the_ephemeral_secret_does_not_follow_from_the_secret() -> None:
    saved = two_parties(FOUR)[0].to_bytes()
    twins = [Party.from_bytes(FOUR, saved) for _ in range(2)]
    for twin in twins:
        twin.relinearisation_first()
    one, other = (np.asarray(twin._ephemeral) for twin in twins)
    assert abs(np.corrcoef(one, other)[0, 1]) < 6 / sqrt(FOUR.degree)


def test_no_share_of_the_same_point_is_made_twice() -> None:
    party, _ = two_parties(FOUR)
    party.public_share()
    party.relinearisation_first()
    restored = Party.from_bytes(FOUR, party.to_bytes())
    for one in (party, restored):
        with pytest.raises(ValueError, match="the share PUBLIC was made already"):
            one.public_share()
        with pytest.raises(ValueError, match="the share FIRST was made already"):
            one.relinearisation_first()


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


def uniform_p_value(signed: Integers, modulus: int) -> float:
    bins = ((signed % modulus) / modulus * 64).astype(np.int64)
    observed = np.bincount(bins, minlength=64)
    expected = signed.size / 64
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), 63))


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


def test_a_party_comes_back_from_its_bytes() -> None:
    one, other = two_parties(FOUR)
    shares = [one.relinearisation_first(), other.relinearisation_first()]
    total = Server(FOUR, 2).relinearisation_total(shares)
    restored = Party.from_bytes(FOUR, one.to_bytes())
    assert restored.to_bytes() == one.to_bytes()
    assert restored.seed == one.seed
    check_errors(second_errors(restored, total), terms=2)
    done = Party.from_bytes(FOUR, restored.to_bytes())
    with pytest.raises(ValueError, match="is made only once"):
        done.relinearisation_second(total)


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
