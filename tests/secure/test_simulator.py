"""The server's whole view, rebuilt from the sum alone.

Every client computes on a random tape fixed beforehand, and the key streams come from an oracle
that can be reprogrammed key by key. Then what the server (with its colluders) sees under the true
vectors equals, byte for byte, what it sees under dummy vectors that depend on the honest survivors'
*sum* only, once the oracle is shifted at masks between two honest survivors: masks that neither the
server nor a colluder ever expands, and whose keys they cannot recover. Shifting is a bijection of
the oracle's outputs. So over a random oracle both views have one and the same distribution, and the
view tells nothing about the vectors but that sum. A sealed vector that comes too late to count is
in the view too, protected by its sender's own mask. So are colluders' states, the junk that they
deal, complaints with and without cause, and what dealers show to settle them.
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
from msgspec.structs import replace

from tacit.privacy.skellam import IntArray
from tacit.secure import crypto, shamir
from tacit.secure.evidence import BAD_PARCEL, NO_CAUSE
from tacit.secure.messages import (
    Delivered,
    Explained,
    Masked,
    Parcel,
    Received,
    Setup,
    Shared,
    Shares,
    pack,
    unpack_reply,
    unpack_state,
)
from tacit.secure.protocol import Fault, Round, Total
from tacit.secure.setup import (
    Members,
    box_context,
    checked_members,
    complaint_text,
    final_digest,
    parcel_digest,
    parcel_for,
    publics,
    signed_dealing,
)
from tests.secure.driver import Rehearsal, identity, round_of, vectors_of
from tests.secure.rounds import EARLY

pytestmark = pytest.mark.usefixtures("small_rings")

Words = npt.NDArray[Any]
Shifts = Mapping[bytes, Words]
"""By how much the oracle's answer at some keys is moved, modulo 2^bits."""

KEY_STREAM = crypto.expand


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
    junk: Mapping[int, int] = field(default_factory=dict)
    """Colluders that deal junk, and to how many honest neighbours."""
    slander: Mapping[int, int] = field(default_factory=dict)
    """Colluders that complain without cause, and about how many honest neighbours."""
    with_roster: bool = False
    tapes: int = 0

    @property
    def faults(self) -> set[Fault]:
        """Who is left out before anything is sealed, and why."""
        return {Fault(dealer, BAD_PARCEL) for dealer in self.junk} | {
            Fault(holder, NO_CAUSE) for holder in self.slander
        }

    @property
    def survivors(self) -> list[int]:
        clients = range(self.around.participation.clients)
        gone = {client for client, stage in self.dropouts.items() if stage in EARLY}
        gone |= {fault.client for fault in self.faults} | set(self.late)
        return [client for client in clients if client not in gone]

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


@dataclass(frozen=True)
class Hostile:
    """Colluders that deal junk or complain without cause; the server plays by the rules."""

    case: Case
    rehearsal: Rehearsal

    def members(self) -> Members:
        client = next(e.client for e in self.rehearsal.exchanges if e.stage == "share")
        adverts = self.rehearsal.asked(Setup, "share", client).adverts
        return checked_members(adverts, self.case.around, self.rehearsal.roster)

    def targets(self, client: int, count: int) -> list[int]:
        """Honest neighbours that stay."""
        near = set(self.members().near(client)) & set(self.case.honest)
        assert len(near) >= count
        return sorted(near)[:count]

    def signed(self, client: int, text: bytes) -> bytes:
        return identity(client).sign(text) if self.case.with_roster else b""

    def parcel(self, dealer: int, holder: int, shares: Shares) -> Parcel:
        public = publics(self.members().digest, dealer, shares)
        expected = public[0].expected(holder), public[1].expected(holder)
        return parcel_for(public, holder, shares.boxes[holder], expected)

    def dealt(self, dealer: int, reply: bytes) -> bytes:
        """The same dealing, but a box holds junk; the dealer keeps what it needs to explain."""
        shares, members = unpack_reply(Shares, reply), self.members()
        state = unpack_state(self.rehearsal.states[dealer])
        assert shares is not None
        assert isinstance(state, Shared)
        boxes, parcels = dict(shares.boxes), dict(state.parcels)
        for holder in self.targets(dealer, self.case.junk[dealer]):
            boxes[holder] = crypto.seal(
                crypto.derive(state.box_seed, b"once", str(holder).encode()),
                members.adverts[holder].box_key,
                bytes(2 * shamir.SHARE_BYTES),
                box_context(members.digest, dealer, holder),
            )
        altered = Shares(boxes, shares.hashes, shares.proofs, b"")
        for holder in boxes:
            parcels[holder] = parcel_digest(self.parcel(dealer, holder, altered))
        self.rehearsal.states[dealer] = pack(replace(state, parcels=parcels))
        text = signed_dealing(members.digest, dealer, altered)
        return pack(replace(altered, signature=self.signed(dealer, text)))

    def received(self, holder: int, reply: bytes) -> bytes:
        """Complaints about parcels that are in order."""
        received = unpack_reply(Received, reply)
        assert received is not None
        complaints = dict(received.complaints)
        for dealer in self.targets(holder, self.case.slander[holder]):
            shares = self.rehearsal.answered(Shares, "share", dealer)
            found = parcel_digest(self.parcel(dealer, holder, shares))
            text = complaint_text(self.members().digest, dealer, holder, found)
            complaints[dealer] = self.signed(holder, text)
        return pack(replace(received, complaints=complaints))


def play(case: Case, vectors: IntArray, shifts: Shifts) -> Play:
    tapes = Tapes(case.tapes)
    oracle = Oracle(tapes, case.around, shifts)
    view: list[tuple[object, ...]] = []
    rehearsal = Rehearsal(
        case.around,
        vectors,
        with_roster=case.with_roster,
        dropouts=case.dropouts,
        speaking=tapes.speaking,
    )
    hostile = Hostile(case, rehearsal)

    def altered(stage: str, client: int, reply: bytes) -> bytes:
        if stage == "seal" and client in case.late:
            view.append(("late", client, reply))
            return b""
        if stage == "share" and client in case.junk:
            return hostile.dealt(client, reply)
        if stage == "deliver" and client in case.slander:
            return hostile.received(client, reply)
        return reply

    rehearsal.tamper_reply = altered
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crypto, "token_bytes", tapes.token_bytes)
        patch.setattr(shamir, "randbelow", tapes.randbelow)
        patch.setattr(crypto, "expand", oracle.expand)
        total = rehearsal.total()
    view += [(e.stage, e.client, e.request, e.reply) for e in rehearsal.exchanges]
    view += [
        (e.client, e.before, e.after) for e in rehearsal.exchanges if e.client in case.colluders
    ]
    view.append((total.survivors, total.value.tobytes(), total.faults, total.transcript))
    assert list(total.survivors) == case.survivors
    assert set(total.faults) == case.faults
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
        for child in sorted(shared[parent].pair_keys):
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
    masked = real.rehearsal.kept(Masked, "seal", case.honest[0])
    final = final_digest(masked.setup_digest, masked.members)
    shifts = {}
    for client in case.late:
        seed = real.rehearsal.kept(Shared, "share", client).self_seed
        context = crypto.digest(b"own mask", final, str(client).encode())
        key = crypto.derive(seed, b"own mask", context)
        shifts[key] = remaining[client]
        assert real.oracle.asked[key] == {client}
    for child, parent in reversed(edges):
        pair_key = shared[child].pair_keys[parent]
        assert pair_key == shared[parent].pair_keys[child]
        key = crypto.derive(pair_key, b"mask", final)
        shifts[key] = remaining[child] if child < parent else -remaining[child]
        remaining[parent] += remaining[child]
        endpoints = {child, parent}
        assert real.oracle.asked[key] == endpoints, "no server and no colluder expands this mask"
    return shifts, remaining[case.honest[0]]


CASES = {
    "everyone stays": Case(round_of(8, dropout=0.3)),
    "two clients": Case(round_of(2)),
    "drop-outs at share": Case(round_of(8, dropout=0.3), {0: "share", 5: "share"}),
    "drop-outs at deliver": Case(round_of(8, dropout=0.3), {2: "deliver", 5: "deliver"}),
    "drop-outs at seal": Case(round_of(8, dropout=0.3), {0: "seal", 7: "seal"}),
    "sealed too late": Case(round_of(8, dropout=0.3), {3: "seal"}, late=(6,)),
    "drop-outs at open": Case(round_of(8, dropout=0.3), {3: "open", 7: "open"}),
    "drop-outs everywhere, roster, 64 bits": Case(
        round_of(14, dropout=0.5, bits=64),
        {1: "advertise", 2: "share", 3: "deliver", 4: "seal", 5: "confirm", 6: "open"},
        with_roster=True,
    ),
    "colluders": Case(round_of(9, 0.3, colluding=0.3), colluders=(0, 8)),
    "colluders who drop out": Case(
        round_of(12, 0.3, colluding=0.3),
        {0: "seal", 3: "share", 6: "seal"},
        colluders=(3, 6, 11),
        with_roster=True,
    ),
    "a junk dealer": Case(round_of(9, 0.3, colluding=0.3), colluders=(2, 8), junk={2: 3}),
    "complaints without cause": Case(
        round_of(9, 0.3, colluding=0.3),
        colluders=(4, 8),
        slander={4: 3, 8: 1},
        with_roster=True,
    ),
    "junk, slander, late and lost": Case(
        round_of(15, 0.4, colluding=0.2, bits=64),
        {0: "deliver", 9: "seal"},
        colluders=(3, 7),
        late=(5,),
        junk={3: 2},
        slander={7: 2},
        with_roster=True,
    ),
    "a ring": Case(
        round_of(40, dropout=0.2, colluding=0.1),
        {20: "share", 21: "deliver", 22: "seal", 23: "open"},
        colluders=(1, 2, 3),
    ),
    "a ring with everything": Case(
        round_of(40, dropout=0.3, colluding=0.1, bits=64),
        {9: "advertise", 10: "share", 20: "deliver", 21: "seal", 30: "confirm", 31: "open"},
        colluders=(1, 21, 22, 23),
        late=(35,),
        junk={22: 4},
        slander={23: 2},
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
    """Nobody gives such shares away, and colluders hold too few themselves.

    Of a survivor these are shares of its mask key, of a late client shares of its self seed. What
    dealers show to settle complaints counts too, and holds nothing that colluders did not hold.
    """
    real = play(case, vectors_of(case.around), {})
    rehearsal = real.rehearsal
    members = Hostile(case, rehearsal).members()
    shifted = dict.fromkeys(case.honest, 1) | dict.fromkeys(case.late, 0)
    seen: dict[int, set[bytes]] = {client: set() for client in shifted}
    for exchange in rehearsal.exchanges:
        state = unpack_state(exchange.after)
        if exchange.client in case.colluders and isinstance(state, Delivered):
            for dealer, pair in state.held.items():
                if dealer in shifted:
                    seen[dealer].add(pair[shifted[dealer]])
    told = {client: set(shares) for client, shares in seen.items()}
    for exchange in rehearsal.exchanges:
        if exchange.stage == "explain" and exchange.client in shifted:
            dealer = exchange.client
            secrets = rehearsal.answered(Explained, "explain", dealer).secrets
            for holder, once in secrets.items():
                inside = crypto.reopen(
                    once,
                    members.adverts[holder].box_key,
                    rehearsal.answered(Shares, "share", dealer).boxes[holder],
                    box_context(members.digest, dealer, holder),
                )
                pair = inside[: shamir.SHARE_BYTES], inside[shamir.SHARE_BYTES :]
                told[dealer].add(pair[shifted[dealer]])
    assert told == seen, "colluders held what was shown"
    explaining = {e.client for e in rehearsal.exchanges if e.stage == "explain"}
    assert bool(explaining & shifted.keys()) == bool(case.slander)
    assert case.junk.keys() <= explaining
    assert bool(members.wired.reach) == (case.around.participation.clients > 16)
    for reply in rehearsal.opened().values():
        given = reply.self_shares, reply.key_shares
        for client, kind in shifted.items():
            if client in given[kind]:
                told[client].add(given[kind][client])
    threshold = members.wired.share_threshold
    assert all(len(shares) < threshold for shares in told.values())
    neighbouring = {c: set(members.near(c)) & set(case.colluders) for c in shifted}
    assert {c: len(shares) for c, shares in told.items()} == {
        c: len([k for k in near if case.dropouts.get(k) not in ("advertise", "share", "deliver")])
        for c, near in neighbouring.items()
    }, "and this counted them all"


@pytest.mark.parametrize(
    "name", ["everyone stays", "colluders who drop out", "a junk dealer", "a ring"]
)
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
            if said[0] == "deliver":
                assert said[3] == again[3] == pack(Received({}, b"")), "nobody complains"
            else:
                assert said[3] != again[3]
        assert one[-1] == two[-1]
