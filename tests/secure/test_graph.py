from __future__ import annotations

import secrets
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, hypergeom

from tacit.privacy.mechanisms import Participation
from tacit.secure import crypto
from tacit.secure.graph import Wiring, neighbours, ring, wiring
from tacit.secure.messages import Advert, Setup, Shares
from tacit.secure.protocol import Refused
from tacit.secure.setup import Members, commit, joint_seed, packed
from tests.randomness import FALSE_ALARM
from tests.secure.driver import Rehearsal, round_of

FEDERATIONS = [
    (70, 0.1, 0.0),
    (100, 0.1, 0.1),
    (100, 0.3, 0.0),
    (250, 0.1, 0.0),
    (250, 0.1, 0.25),
    (400, 0.2, 0.2),
    (1000, 0.0, 0.0),
    (1000, 0.1, 0.1),
    (1000, 0.2, 0.0),
    (2000, 0.3, 0.1),
]


@pytest.mark.parametrize(
    ("clients", "dropout", "degree"),
    [(250, 0.1, 36), (250, 0.2, 70), (1000, 0.1, 46), (1000, 0.2, 98)],
)
@pytest.mark.parametrize("colludes", [False, True])
def test_degrees_that_we_state(clients: int, dropout: float, degree: int, colludes: bool) -> None:
    participation = Participation(clients, dropout, dropout if colludes else 0.0)
    assert wiring(participation, clients).degree == degree


@pytest.mark.parametrize(
    ("clients", "colluding", "share_threshold"),
    [(2, 0.0, 2), (3, 0.0, 2), (10, 0.0, 6), (10, 0.25, 7), (63, 0.0, 32), (64, 0.25, 41)],
)
def test_up_to_64_everyone_is_a_neighbour_and_a_majority_recovers(
    clients: int, colluding: float, share_threshold: int
) -> None:
    participation = Participation(clients, 0.1, colluding)
    assert wiring(participation, clients) == Wiring(clients - 1, share_threshold)


def test_a_large_federation_of_which_few_came_is_complete_too() -> None:
    participation = Participation(100, dropout=0.4)
    assert wiring(participation, 64) == Wiring(63, 51)
    assert wiring(participation, 65).degree < 64


def failures(
    participation: Participation, members: int, degree: int, thresholds: range
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For every threshold the chances that privacy and that opening fail, from the definitions."""
    n, dropout, colluding = participation.clients, participation.dropout, participation.colluding
    dropped = members - max(n - dropout, (n + colluding) // 2 + 1)
    colluding = max(colluding, dropout, n // 10)
    lost_runs = Fraction(comb(colluding + dropped, degree), comb(members, degree))
    fewer = np.array(thresholds) - 1
    recovered = hypergeom.sf(fewer, members - 1, colluding, degree)
    unopened = hypergeom.cdf(fewer, members - 1, members - 1 - dropped, degree)
    return members * recovered + members**2 * float(lost_runs), members * unopened


@pytest.mark.parametrize(("clients", "dropout", "colluding"), FEDERATIONS)
@pytest.mark.parametrize("came", [1.0, 0.95])
def test_failures_stay_below_what_is_promised_and_no_smaller_degree_would_do(
    clients: int, dropout: float, colluding: float, came: float
) -> None:
    participation = Participation(clients, dropout, colluding)
    members = max(int(came * clients), participation.threshold)
    found = wiring(participation, members)
    assert found.degree % 2 == 0
    assert found.degree / 2 < found.share_threshold <= found.degree < members - 1

    for degree in range(2, found.degree + 1, 2):
        thresholds = range(degree // 2 + 1, degree + 1)
        privacy, opening = failures(participation, members, degree, thresholds)
        suffices = (privacy < 2.0**-40) & (opening < 2.0**-20)
        if degree < found.degree:
            assert not suffices.any()
        else:
            assert suffices[thresholds.index(found.share_threshold)]


@settings(deadline=None)
@given(
    members=st.sets(st.integers(0, 10**6), min_size=2, max_size=60),
    degree=st.integers(1, 40).map(lambda half: 2 * half),
    seed=st.binary(min_size=32, max_size=32),
)
def test_neighbours_are_mutual_equally_many_and_never_oneself(
    members: set[int], degree: int, seed: bytes
) -> None:
    order = ring(seed, tuple(sorted(members)))
    assert sorted(order) == sorted(members)
    near = {me: neighbours(order, degree, me) for me in members}
    for me, others in near.items():
        assert me not in others
        assert len(set(others)) == len(others) == min(degree, len(members) - 1)
        assert list(others) == sorted(others)
        assert all(me in near[other] for other in others)


def test_a_ring_without_long_runs_of_lost_clients_stays_connected() -> None:
    """The fact behind the bound: only two lost runs of ``degree / 2`` cut a ring. Exhaustive."""
    size, degree = 12, 4
    order = tuple(range(size))
    near = {me: set(neighbours(order, degree, me)) for me in order}
    cut_somewhere = False
    for lost in (set(chosen) for k in range(7) for chosen in combinations(order, k)):
        left = set(order) - lost
        reached, frontier = set[int](), {min(left)}
        while frontier:
            reached |= frontier
            frontier = {other for me in frontier for other in near[me] & left} - reached
        runs = [i for i in order if {i, (i + 1) % size} <= lost]
        two_runs = any(len({i, i + 1, j, j + 1}) == 4 for i, j in combinations(runs, 2))
        cut_somewhere |= reached != left
        assert reached == left or two_runs
    assert cut_somewhere


def committed(randomness: dict[int, bytes]) -> Members:
    adverts = {
        client: Advert(client, crypto.fresh(), crypto.fresh(), commit(part), b"")
        for client, part in randomness.items()
    }
    return Members.of(packed(adverts), adverts)


def test_order_depends_on_everyones_randomness() -> None:
    randomness = {client: crypto.fresh() for client in range(70)}

    def order(parts: dict[int, bytes]) -> tuple[int, ...]:
        members = committed(parts)
        seed = joint_seed(members, tuple(parts.values()), draws_graph=True)
        return ring(seed, members.clients)

    assert order(randomness) == order(dict(randomness)), "and on nothing else, keys included"
    others = {
        order({**randomness, client: bytes([part[0] ^ 1]) + part[1:]})
        for client, part in randomness.items()
    }
    assert len(others | {order(randomness)}) == 71


def test_randomness_other_than_committed_to_draws_no_graph() -> None:
    randomness = {client: crypto.fresh() for client in range(70)}
    members, parts = committed(randomness), tuple(randomness.values())
    swapped = (parts[1], parts[0], *parts[2:])
    for wrong in (swapped, parts[:-1], (*parts, bytes(32)), (), (b"", *parts[1:])):
        with pytest.raises(Refused, match="not what was committed to"):
            joint_seed(members, wrong, draws_graph=True)


def test_everyone_derives_the_same_graph() -> None:
    rehearsal = Rehearsal(round_of(70))
    rehearsal.total()
    setup = rehearsal.asked(Setup, "share", 0)
    assert {rehearsal.asked(Setup, "share", client) for client in range(70)} == {setup}
    near = {c: set(rehearsal.answered(Shares, "share", c).boxes) for c in range(70)}
    assert {len(others) for others in near.values()} == {16}
    assert all(me in near[other] for me, others in near.items() for other in others)


def test_neighbours_are_a_uniformly_random_subset() -> None:
    """Chi-square over all pairs of others that client 2 of 7 may get. False-alarm rate 1e-6."""
    members, draws = (0, 1, 2, 3, 4, 5, 6), 30_000
    pairs = list(combinations((0, 1, 3, 4, 5, 6), 2))
    found = dict.fromkeys(pairs, 0)
    for _ in range(draws):
        first, second = neighbours(ring(secrets.token_bytes(32), members), 2, 2)
        found[first, second] += 1
    expected = draws / len(pairs)
    statistic = sum((count - expected) ** 2 / expected for count in found.values())
    assert chi2.sf(statistic, len(pairs) - 1) > FALSE_ALARM


def test_everyone_is_equally_often_a_neighbour_in_a_large_graph() -> None:
    """Counts of draws without replacement, scaled to chi-square. False-alarm rate 1e-6."""
    clients, degree, draws = 100, 22, 3000
    counts = np.zeros(clients)
    for _ in range(draws):
        order = ring(secrets.token_bytes(32), tuple(range(clients)))
        counts[list(neighbours(order, degree, 0))] += 1
    others = clients - 1
    chance = degree / others
    spread = ((counts[1:] - draws * chance) ** 2).sum() / (draws * chance * (1 - chance))
    assert counts[0] == 0
    assert chi2.sf(spread * (others - 1) / others, others - 1) > FALSE_ALARM
