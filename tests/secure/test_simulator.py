"""The server's whole view, rebuilt from the sum alone.

Every client computes on a random tape fixed beforehand, and the key streams come from an oracle
that can be reprogrammed key by key. Then what the server (with its colluders) sees under the true
vectors equals, byte for byte, what it sees under dummy vectors that depend on the honest survivors'
*sum* only, once the oracle is shifted at masks between two honest survivors: masks that neither the
server nor a colluder ever expands, and whose keys they cannot recover. Shifting is a bijection of
the oracle's outputs. So over a random oracle both views have one and the same distribution, and the
view tells nothing about the vectors but that sum. A sealed vector that comes too late to count is
in the view too, protected by its sender's own mask.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tacit.privacy.skellam import IntArray
from tacit.secure import crypto, shamir
from tacit.secure.graph import wiring
from tacit.secure.messages import Masked, Shared, unpack_state
from tacit.secure.protocol import Round, Total
from tests.secure.driver import Rehearsal, round_of, vectors_of

Words = npt.NDArray[Any]
Shifts = Mapping[bytes, Words]
"""By how much the oracle's answer at some keys is moved, modulo 2^bits."""

KEY_STREAM = crypto.expand
EARLY = ("advertise", "reveal", "share", "seal")


@dataclass
class Tapes:
    """One random tape a client, whatever its vector; the server has none."""

    seed: int
    speaker: int | None = None
    read: Counter[int] = field(default_factory=Counter)

    def speaking(self, client: int | None) -> None:
        self.speaker = client

    def token_bytes(self, size: int) -> bytes:
        assert self.speaker is not None, "the server needs no randomness"
        self.read[self.speaker] += 1
        place = f"{self.seed} {self.speaker} {self.read[self.speaker]}"
        return hashlib.shake_256(place.encode()).digest(size)

    def randbelow(self, bound: int) -> int:
        return int.from_bytes(self.token_bytes(48), "big") % bound


@dataclass
class Oracle:
    """The true key streams plus shifts; it remembers who asked for what."""

    tapes: Tapes
    around: Round
    shifts: Shifts
    asked: defaultdict[bytes, set[int | None]] = field(default_factory=lambda: defaultdict(set))

    def expand(self, key: bytes, size: int) -> bytes:
        self.asked[key].add(self.tapes.speaker)
        stream = KEY_STREAM(key, size)
        if key not in self.shifts:
            return stream
        moved: Words = np.frombuffer(stream, self.around.word) + self.shifts[key]
        return moved.tobytes()


@dataclass(frozen=True)
class Case:
    """Who drops out when, and who tells the server everything."""

    around: Round
    dropouts: Mapping[int, str] = field(default_factory=dict)
    colluders: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    """Honest clients whose sealed vectors reach the server after it gave them up."""
    with_roster: bool = False
    tapes: int = 0

    @property
    def survivors(self) -> list[int]:
        clients = range(self.around.participation.clients)
        gone = {client for client, stage in self.dropouts.items() if stage in EARLY}
        return [client for client in clients if client not in gone | set(self.late)]

    @property
    def honest(self) -> list[int]:
        """The honest survivors."""
        return [client for client in self.survivors if client not in self.colluders]

    def honest_sum(self, vectors: IntArray) -> IntArray:
        found: IntArray = vectors[self.honest].sum(axis=0)
        return found


@dataclass(frozen=True)
class Play:
    """One run: what the server and the colluders saw, and for the test alone what it rests on."""

    view: list[tuple[object, ...]]
    total: Total
    rehearsal: Rehearsal
    oracle: Oracle


def play(case: Case, vectors: IntArray, shifts: Shifts) -> Play:
    tapes = Tapes(case.tapes)
    oracle = Oracle(tapes, case.around, shifts)
    view: list[tuple[object, ...]] = []

    def delay(stage: str, client: int, reply: bytes) -> bytes:
        if stage == "seal" and client in case.late:
            view.append(("late", client, reply))
            return b""
        return reply

    rehearsal = Rehearsal(
        case.around,
        vectors,
        with_roster=case.with_roster,
        dropouts=case.dropouts,
        speaking=tapes.speaking,
        tamper_reply=delay,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crypto, "token_bytes", tapes.token_bytes)
        patch.setattr(shamir, "randbelow", tapes.randbelow)
        patch.setattr(crypto, "expand", oracle.expand)
        total = rehearsal.total()
    view += [(e.stage, e.client, e.request, e.reply) for e in rehearsal.exchanges]
    view += [
        (e.client, e.before, e.after) for e in rehearsal.exchanges if e.client in case.colluders
    ]
    view.append((total.survivors, total.value.tobytes()))
    assert list(total.survivors) == case.survivors
    assert not rehearsal.refusals
    return Play(view, total, rehearsal, oracle)


def dummies(case: Case, honest_sum: IntArray, colluders: Mapping[int, IntArray]) -> IntArray:
    """Vectors from the honest survivors' sum alone: all of it with one of them, and drop-outs 7."""
    vectors = np.full((case.around.participation.clients, case.around.length), 7)
    vectors[case.honest] = 0
    vectors[case.honest[-1]] = honest_sum
    for client, vector in colluders.items():
        vectors[client] = vector
    return vectors


def simulate(
    case: Case, honest_sum: IntArray, colluders: Mapping[int, IntArray], shifts: Shifts
) -> Play:
    """The simulator: it knows the sum and what the colluders know, and an oracle."""
    return play(case, dummies(case, honest_sum, colluders), shifts)


def spanning_tree(case: Case, real: Play) -> tuple[list[tuple[int, int]], dict[int, Shared]]:
    """Edges (child, parent) among honest survivors, breadth first; they must reach all of them."""
    shared = {client: real.rehearsal.kept(Shared, "share", client) for client in case.honest}
    reached, edges = [case.honest[0]], []
    for parent in reached:
        for child in sorted(shared[parent].mask_keys):
            if child in shared and child not in reached:
                reached.append(child)
                edges.append((child, parent))
    assert len(reached) == len(case.honest), "the graph of honest survivors is connected"
    return edges, shared


def shifts_between(
    case: Case, real: Play, vectors: IntArray, others: IntArray
) -> tuple[dict[bytes, Words], Words]:
    """Shifts along the tree that carry every difference to its root, and what remains there.

    Own masks of late clients are shifted by the whole difference.
    """
    edges, shared = spanning_tree(case, real)
    remaining = (vectors - others).astype(case.around.word)
    shifts = {}
    for client in case.late:
        seed = real.rehearsal.kept(Shared, "share", client).self_seed
        key = crypto.derive(seed, b"own mask", case.around.session)
        shifts[key] = remaining[client]
        assert real.oracle.asked[key] == {client}
    for child, parent in reversed(edges):
        key = shared[child].mask_keys[parent]
        assert key == shared[parent].mask_keys[child]
        shifts[key] = remaining[child] if child < parent else -remaining[child]
        remaining[parent] += remaining[child]
        endpoints = {child, parent}
        assert real.oracle.asked[key] == endpoints, "no server and no colluder expands this mask"
    return shifts, remaining[case.honest[0]]


CASES = {
    "everyone stays": Case(round_of(8, dropout=0.3)),
    "two clients": Case(round_of(2)),
    "drop-outs at share": Case(round_of(8, dropout=0.3), {0: "share", 5: "share"}),
    "drop-outs at seal": Case(round_of(8, dropout=0.3), {0: "seal", 7: "seal"}),
    "sealed too late": Case(round_of(8, dropout=0.3), {3: "seal"}, late=(6,)),
    "drop-outs at open": Case(round_of(8, dropout=0.3), {3: "open", 7: "open"}),
    "drop-outs everywhere, roster, 64 bits": Case(
        round_of(12, dropout=0.5, bits=64),
        {1: "advertise", 2: "share", 3: "seal", 4: "confirm", 5: "open"},
        with_roster=True,
    ),
    "colluders": Case(round_of(9, 0.3, colluding=0.3), colluders=(0, 8)),
    "colluders who drop out": Case(
        round_of(12, 0.3, colluding=0.3),
        {0: "seal", 3: "share", 6: "seal"},
        colluders=(3, 6, 11),
        with_roster=True,
    ),
    "a graph": Case(round_of(70), {20: "share", 21: "seal", 22: "open"}, colluders=(1, 2, 3)),
    "a graph drawn twice": Case(
        round_of(70, dropout=0.2, bits=64),
        {9: "advertise", 10: "reveal", 20: "share", 21: "seal", 30: "confirm", 40: "open"},
        colluders=(1, 21, 22),
        late=(50, 51),
        with_roster=True,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_whole_view_follows_from_the_sum(case: Case) -> None:
    vectors = vectors_of(case.around, seed=1)
    real = play(case, vectors, {})
    honest_sum = case.honest_sum(vectors)
    colluders = {client: vectors[client] for client in case.colluders}
    shifts, remainder = shifts_between(case, real, vectors, dummies(case, honest_sum, colluders))
    assert not remainder.any()
    simulated = simulate(case, honest_sum, colluders, shifts)
    assert simulated.view == real.view
    for key in shifts:
        assert simulated.oracle.asked[key] == real.oracle.asked[key]
    if len(case.honest) > 1:
        assert simulate(case, honest_sum, colluders, {}).view != real.view, "as a control"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shares_of_a_shifted_mask_never_reach_its_threshold(case: Case) -> None:
    """Nobody gives key shares of survivors away, and colluders hold too few themselves."""
    real = play(case, vectors_of(case.around), {})
    members = {e.client for e in real.rehearsal.exchanges if e.stage == "share"} | {
        client for client, stage in case.dropouts.items() if stage == "share"
    }
    threshold = wiring(case.around.participation, len(members)).share_threshold
    leaked: Counter[int] = Counter()
    for client in case.colluders:
        kept = [e.after for e in real.rehearsal.exchanges if e.client == client]
        states = [state for state in map(unpack_state, kept) if isinstance(state, Masked)]
        leaked.update(other for state in states for other in state.held)
    for reply in real.rehearsal.opened().values():
        leaked.update(reply.key_shares.keys() & set(case.honest))
    assert all(leaked[client] < threshold for client in case.honest)


@pytest.mark.parametrize("name", ["everyone stays", "colluders who drop out", "a graph"])
def test_no_shift_explains_another_sum(name: str) -> None:
    """The negative control: masks between survivors cancel, so the opened sum tells them apart."""
    case = CASES[name]
    vectors = vectors_of(case.around, seed=1)
    real = play(case, vectors, {})
    colluders = {client: vectors[client] for client in case.colluders}
    another = case.honest_sum(vectors)
    another[2] += 1
    shifts, remainder = shifts_between(case, real, vectors, dummies(case, another, colluders))
    assert remainder.astype(f"<i{case.around.bits // 8}").tolist() == [0, 0, -1, 0, 0]
    random = np.random.default_rng(0)
    arbitrary = {
        key: random.integers(0, 2**31, case.around.length).astype(case.around.word)
        for key in shifts
    }
    for oracle in (shifts, arbitrary, {}):
        simulated = simulate(case, another, colluders, oracle)
        assert simulated.total.survivors == real.total.survivors
        assert (simulated.total.value - real.total.value).tolist() == [0, 0, 1, 0, 0]
        assert simulated.view != real.view


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_vectors_of_drop_outs_are_nowhere_in_the_view(case: Case) -> None:
    """No shift is needed: the view is the same whatever they hold."""
    gone = sorted(set(case.dropouts) - set(case.survivors) - set(case.colluders))
    views = []
    for seed in (1, 2):
        vectors = vectors_of(case.around, seed=1)
        vectors[gone] = vectors_of(case.around, seed)[gone]
        views.append(play(case, vectors, {}).view)
    assert views[0] == views[1]


def test_views_on_different_tapes_share_no_message_but_the_survivors() -> None:
    """That views agree above is owed to the tapes, not to messages without randomness."""
    views = []
    for tapes in range(3):
        case = Case(round_of(8, dropout=0.3), {4: "seal"}, tapes=tapes)
        views.append(play(case, vectors_of(case.around), {}).view)
    for one, two in pairwise(views):
        for said, again in zip(one[:-1], two[:-1], strict=True):
            assert said[:2] == again[:2]
            assert said[3] != again[3]
        assert one[-1] == two[-1]
