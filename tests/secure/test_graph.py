from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, combinations, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from tacit.privacy.mechanisms import Participation
from tacit.secure import crypto, graph
from tacit.secure.graph import Wiring, neighbours, ring, wiring
from tacit.secure.messages import Advert, Setup, Shared, Shares
from tacit.secure.setup import Members, packed
from tests.randomness import FALSE_ALARM
from tests.secure.driver import Rehearsal, round_of

FEDERATIONS = [
    (257, 0.1, 0.0),
    (257, 0.0, 0.0),
    (300, 0.1, 0.1),
    (300, 0.2, 0.1),
    (300, 0.1, 0.2),
    (400, 0.2, 0.2),
    (400, 0.3, 0.1),
    (1000, 0.0, 0.0),
    (1000, 0.1, 0.1),
    (1000, 0.2, 0.0),
    (2000, 0.3, 0.1),
    (2000, 0.1, 0.2),
    (3000, 0.1, 0.0),
    (3000, 0.02, 0.1),
]


@pytest.mark.parametrize(
    ("clients", "dropout", "colluding", "reach", "hidden"),
    [
        (257, 0.1, 0.0, 43, 26),
        (300, 0.1, 0.1, 49, 30),
        (300, 0.1, 0.2, 80, 57),
        (1000, 0.1, 0.0, 79, 52),
        (1000, 0.1, 0.1, 79, 52),
        (1000, 0.2, 0.1, 107, 59),
        (3000, 0.1, 0.1, 90, 59),
    ],
)
def test_wirings_that_we_state(
    clients: int, dropout: float, colluding: float, reach: int, hidden: int
) -> None:
    found = wiring(Participation(clients, dropout, colluding), clients)
    assert found == Wiring(2 * reach, 2 * hidden + 1, reach, hidden)


@pytest.mark.parametrize(
    ("clients", "colluding", "share_threshold"),
    [(2, 0.0, 2), (3, 0.0, 2), (10, 0.0, 6), (10, 0.25, 7), (64, 0.25, 41), (256, 0.1, 141)],
)
def test_up_to_256_everyone_is_a_neighbour_and_a_majority_recovers(
    clients: int, colluding: float, share_threshold: int
) -> None:
    participation = Participation(clients, 0.1, colluding)
    found = wiring(participation, clients)
    assert found == Wiring(clients - 1, share_threshold)
    assert not found.thin(range(clients), ()), "nothing can be cut where all are linked"
    assert 2 * (share_threshold - 1) <= clients + participation.colluding < 2 * share_threshold


def test_a_large_federation_of_which_few_came_is_complete_too() -> None:
    participation = Participation(400, dropout=0.4)
    assert wiring(participation, 256) == Wiring(255, 201)
    assert wiring(participation, 257).degree < 256


def test_where_no_ring_would_do_everyone_is_a_neighbour() -> None:
    participation = Participation(300, dropout=0.3, colluding=0.3)
    assert wiring(participation, 300) == Wiring(299, 196)
    assert not any(suffices(participation, 300, reach) for reach in range(2, 149))


def chances(members: int, marked: int, drawn: int) -> list[Fraction]:
    """At place k: the chance that at least k of ``drawn`` members are marked. Exact."""
    ways = [comb(marked, k) * comb(members - marked, drawn - k) for k in range(drawn + 1)]
    at_least = [0, *accumulate(reversed(ways))][::-1]
    return [Fraction(one, comb(members, drawn)) for one in at_least]


def suffices(participation: Participation, members: int, reach: int) -> list[int]:
    """All numbers of hidden colluders with which both promises hold, from the definitions."""
    n = participation.clients
    colluding = max(participation.colluding, -(-n // 10))
    missing = max(members - participation.threshold, 0)
    crowded, lost = chances(members, colluding, reach), chances(members, missing, reach)
    return [
        hidden
        for hidden in range(reach)
        if members * crowded[hidden + 1] < Fraction(1, 2**120)
        and members * lost[reach - hidden] < Fraction(1, 2**20)
    ]


@pytest.mark.parametrize(("clients", "dropout", "colluding"), FEDERATIONS)
@pytest.mark.parametrize("came", [1.0, 0.95])
def test_failures_stay_below_what_is_promised_and_no_smaller_reach_would_do(
    clients: int, dropout: float, colluding: float, came: float
) -> None:
    participation = Participation(clients, dropout, colluding)
    members = max(int(came * clients), participation.threshold, 257)
    found = wiring(participation, members)
    assert 0 <= found.hidden < found.reach
    assert found.degree == 2 * found.reach < members - 1
    assert found.share_threshold == 2 * found.hidden + 1
    assert found.hidden in suffices(participation, members, found.reach)
    assert not any(suffices(participation, members, reach) for reach in range(1, found.reach))


@settings(deadline=None)
@given(data=st.data(), members=st.integers(1, 400))
def test_tails_are_those_of_exact_arithmetic(data: st.DataObject, members: int) -> None:
    marked = data.draw(st.integers(0, members))
    drawn = data.draw(st.integers(0, members))
    least = data.draw(st.integers(0, drawn + 1))
    exact = float(chances(members, marked, drawn)[least])
    assert graph._tail(members, marked, drawn, least) == pytest.approx(exact, rel=1e-9, abs=1e-190)


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


def windows(order: Sequence[int], reach: int) -> Iterator[set[int]]:
    """Any ``reach`` consecutive places."""
    for start in range(len(order)):
        yield {order[(start + step) % len(order)] for step in range(reach)}


@settings(deadline=None)
@given(data=st.data(), size=st.integers(5, 40))
def test_thin_is_what_counting_every_window_finds(data: st.DataObject, size: int) -> None:
    order = data.draw(st.permutations(range(size)))
    reach = data.draw(st.integers(1, size - 1))
    hidden = data.draw(st.integers(0, reach))
    present = data.draw(st.sets(st.integers(0, size + 5)))
    wired = Wiring(2 * reach, 2 * hidden + 1, reach, hidden)
    counted = min(len(window & present) for window in windows(order, reach)) <= hidden
    assert wired.thin(order, present) == counted
    assert wired.thin(order, sorted(present)) == counted
    everybody = set(order)
    assert wired.thin(order, everybody) == (reach <= hidden)


@pytest.mark.parametrize("start", range(12))
def test_one_thin_window_is_found_wherever_it_is(start: int) -> None:
    """Two of five are present, and both its ends are gone, so every other window has more."""
    order, wired = tuple(range(12)), Wiring(10, 5, reach=5, hidden=2)
    gone = {(start + step) % 12 for step in (0, 2, 4)}
    present = set(order) - gone
    assert [len(window & present) for window in windows(order, 5)].count(2) == 1
    assert wired.thin(order, present)
    assert not wired.thin(order, present | {(start + 2) % 12})


def is_connected(among: Collection[int], near: dict[int, set[int]]) -> bool:
    left = set(among)
    frontier = {min(left)} if left else set()
    while frontier:
        left -= frontier
        frontier = {other for me in frontier for other in near[me] & left}
    return not left


@settings(deadline=None, max_examples=200)
@given(
    size=st.integers(20, 60),
    reach=st.integers(2, 8),
    hidden=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    colludes=st.floats(0, 1),
    drops=st.floats(0, 1),
)
def test_no_choice_of_survivors_that_clients_accept_cuts_the_ring(
    size: int, reach: int, hidden: int, seed: int, colludes: float, drops: float
) -> None:
    """Colluders and drop-outs are added as long as the rules allow, wherever that hurts most.

    So most choices are maximal: with one more colluder a window would have too many of them, with
    one drop-out more it would be thin.
    """
    hidden = min(hidden, reach - 1)
    random = np.random.default_rng(seed)
    order = tuple(int(place) for place in random.permutation(size))
    wired = Wiring(2 * reach, 2 * hidden + 1, reach, hidden)
    near = {me: set(neighbours(order, wired.degree, me)) for me in order}
    colluders: set[int] = set()
    for client in random.permutation(size)[: int(colludes * size)].tolist():
        if all(len(w & {*colluders, client}) <= hidden for w in windows(order, reach)):
            colluders.add(client)
    survivors = set(order)
    start = int(random.integers(size))  # a server drops honest clients of one stretch first
    for client in (*order[start:], *order[:start])[: int(drops * size)]:
        if client not in colluders and not wired.thin(order, survivors - {client}):
            survivors.remove(client)
    assert is_connected(survivors - colluders, near)
    assert survivors - colluders
    for client in order:
        assert len(near[client] & colluders) <= 2 * hidden < wired.share_threshold
        assert len(near[client] & survivors) >= wired.share_threshold, "so every secret opens"


def test_in_a_small_ring_every_choice_that_is_not_thin_stays_connected_and_thin_ones_are_cut() -> (
    None
):
    """Exhaustive: everybody is honest, a colluder or gone; 10 places, windows of 3, 1 hidden."""
    size, reach, hidden = 10, 3, 1
    order = tuple(range(size))
    wired = Wiring(2 * reach, 2 * hidden + 1, reach, hidden)
    near = {me: set(neighbours(order, wired.degree, me)) for me in order}
    all_windows = [sorted(window) for window in windows(order, reach)]
    accepted = cut_thin = cut_crowded = 0
    for roles in product("hcg", repeat=size):
        honest = [me for me in order if roles[me] == "h"]
        crowded = any(sum(roles[c] == "c" for c in w) > hidden for w in all_windows)
        thin = any(sum(roles[c] != "g" for c in w) <= hidden for w in all_windows)
        if crowded and thin:
            continue
        connected = is_connected(honest, near)
        accepted += not crowded and not thin
        cut_thin += thin and not connected
        cut_crowded += crowded and not connected
        assert connected or crowded or thin
    assert accepted > 1000
    assert cut_thin, "as a control: where a window is thin, the ring can be cut"
    assert cut_crowded, "and where colluders crowd, too"


def test_one_thin_window_more_than_allowed_is_all_that_a_cut_needs() -> None:
    """The control at a size that is used: two windows without an honest survivor cut a stretch."""
    participation = Participation(1000, dropout=0.2)
    wired, order = wiring(participation, 1000), tuple(range(1000))
    near = {me: set(neighbours(order, wired.degree, me)) for me in order}
    for gap, connected in ((wired.reach - 1, True), (wired.reach, False)):
        gone = {*range(gap), *range(gap + 20, 2 * gap + 20)}
        survivors = set(order) - gone
        assert is_connected(survivors, near) == connected
        assert wired.thin(order, survivors)


def members_of(keys: dict[int, tuple[bytes, bytes]], session: bytes = b"one") -> Members:
    adverts = {client: Advert(client, *pair, b"") for client, pair in keys.items()}
    around = round_of(300, session=session)
    return Members.of(around, packed(adverts), adverts)


def test_order_depends_on_every_key_and_on_the_session() -> None:
    keys = {client: (crypto.fresh(), crypto.fresh()) for client in range(300)}

    def order(**changed: tuple[bytes, bytes]) -> tuple[int, ...]:
        return members_of({**keys, **{int(c[1:]): pair for c, pair in changed.items()}}).order

    assert order() == order(), "and on nothing else"
    flipped = {c: (bytes([one[0] ^ 1]) + one[1:], two) for c, (one, two) in keys.items()}
    swapped = {c: (one, bytes([two[0] ^ 1]) + two[1:]) for c, (one, two) in keys.items()}
    others = {order(**{f"c{c}": pair}) for kind in (flipped, swapped) for c, pair in kind.items()}
    others |= {order(), members_of(keys, session=b"two").order}
    assert len(others) == 602
    fewer = {members_of({c: keys[c] for c in keys if c != gone}).order for gone in range(5)}
    without = {tuple(c for c in order() if c != gone) for gone in range(5)}
    assert not fewer & without, "another list of keys is another draw"


@pytest.mark.usefixtures("small_rings")
def test_everyone_derives_the_same_graph() -> None:
    rehearsal = Rehearsal(round_of(40, dropout=0.2))
    rehearsal.total()
    setup = rehearsal.asked(Setup, "share", 0)
    assert {rehearsal.asked(Setup, "share", client) for client in range(40)} == {setup}
    assert len({rehearsal.kept(Shared, "share", client).order for client in range(40)}) == 1
    near = {c: set(rehearsal.answered(Shares, "share", c).boxes) for c in range(40)}
    degree = wiring(rehearsal.around.participation, 40).degree
    assert {len(others) for others in near.values()} == {degree}
    assert degree < 39
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


@pytest.mark.usefixtures("small_rings")
@pytest.mark.parametrize(
    ("clients", "dropout", "colluding"), [(60, 0.2, 0.1), (100, 0.3, 0.1), (100, 0.1, 0.2)]
)
def test_windows_are_as_seldom_crowded_or_thin_as_is_promised(
    clients: int, dropout: float, colluding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises that can be seen to fail, of 2^-6 each, over many random orders.

    A binomial test with a false-alarm rate of 1e-6 each. As a control, two colluders less to hide
    or two survivors more to demand, and the same count goes beyond what is promised.
    """
    draws, promised = 3000, 2.0**-6
    monkeypatch.setattr(graph, "PRIVACY_FAILURE", promised)
    monkeypatch.setattr(graph, "OPENING_FAILURE", promised)
    participation = Participation(clients, dropout, colluding)
    wired = wiring(participation, clients)
    assert wired.reach, "a ring"
    bad = participation.colluding
    gone = range(bad, bad + clients - participation.threshold)
    most_colluders, fewest_survivors = [], []
    for _ in range(draws):
        order = np.array(ring(secrets.token_bytes(32), tuple(range(clients))))
        most_colluders.append(fullest(order < bad, wired.reach))
        lost = fullest((order >= gone.start) & (order < gone.stop), wired.reach)
        fewest_survivors.append(wired.reach - lost)
    crowded = np.array(most_colluders) > wired.hidden
    thin = np.array(fewest_survivors) <= wired.hidden
    for failed in (crowded, thin):
        assert binom.sf(failed.sum() - 1, draws, promised) > FALSE_ALARM
    for failed in (
        np.array(most_colluders) > wired.hidden - 2,
        np.array(fewest_survivors) <= wired.hidden + 2,
    ):
        assert binom.sf(failed.sum() - 1, draws, promised) < FALSE_ALARM


def fullest(marked: np.ndarray[tuple[int], np.dtype[np.bool_]], reach: int) -> int:
    """How many of the marked the fullest window has."""
    before = np.concatenate([[0], np.cumsum(np.concatenate([marked, marked[:reach]]))])
    return int((before[reach:] - before[:-reach]).max())
