from __future__ import annotations

from itertools import count
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from tacit.secure import multiparty, ring
from tacit.secure.bfv import (
    FirstShare,
    FirstTotal,
    OpeningRequest,
    Parameters,
)
from tacit.secure.multiparty import Party, Server
from tacit.secure.ring import Integers, Level, Residues, add, negate
from tests.secure.sessions import FOUR, a_request, lifted, two_parties

pytest.importorskip("seal")

FALSE_ALARM = 1e-7


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


def flooding_of(party: Party, request: OpeningRequest) -> npt.NDArray[np.float64]:
    level = party.parameters.ring.opening
    product = level.coefficients_times(request.residues, party._secret_ntt[: len(level.primes)])
    share = party.opening_share(request).residues
    return lifted(add(level.primes, share, negate(level.primes, product))[0], level.primes)


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
