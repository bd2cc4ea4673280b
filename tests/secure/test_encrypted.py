"""The secure sum under multiparty encryption: what opens, what ends it, and what leaves whom."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.privacy.bounds import Box, Marks
from tacit.privacy.mechanisms import NoNoise, Participation, SkellamMechanism, mechanism_of
from tacit.secure.bfv import HEADER
from tacit.secure.encrypted import EncryptedParticipant, EncryptedSum, SomebodyMissing
from tacit.secure.multiparty import SEED_BYTES
from tacit.secure.protocol import Refused, Round, Total

pytest.importorskip("seal")

SESSION = b"s" * 32
STAGES = ("evaluate", "encrypt", "open")


def sum_round(clients: int, length: int, variance: float = 0.0) -> Round:
    mechanism = mechanism_of(Box(length, 100), Participation(clients, dropout=0.0), variance)
    return Round.of(SESSION, mechanism)


def threshold_round(clients: int, length: int, at_least: int, variance: float = 0.0) -> Round:
    mechanism = mechanism_of(Marks(length, length), Participation(clients, dropout=0.0), variance)
    return Round.of(SESSION, mechanism, at_least=at_least)


class Parties:
    """Clients of one round with their states, and everything they sent and got."""

    def __init__(self, around: Round, vectors: Any) -> None:
        self.around = around
        begun = [EncryptedParticipant(around).begin(vector) for vector in vectors]
        self.states = {number: step.state for number, step in enumerate(begun)}
        self.first = {number: step.reply for number, step in enumerate(begun)}
        self.told: list[bytes] = list(self.first.values())
        self.stages = ["evaluate"]
        self.released: list[int] = []

    def total(
        self, absent: Mapping[int, str] | None = None, garbled: Mapping[int, str] | None = None
    ) -> Total:
        absent, garbled = absent or {}, garbled or {}

        def ask(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            self.stages.append(stage)
            replies = {}
            for number, request in requests.items():
                if absent.get(number) == stage:
                    continue
                step = EncryptedParticipant(self.around).step(self.states[number], request)
                self.states[number], replies[number] = step.state, step.reply
                self.released += [number] * step.releases
                if garbled.get(number) == stage:
                    replies[number] = replies[number][:-1]
            self.told += replies.values()
            return replies

        first = {n: reply for n, reply in self.first.items() if absent.get(n) != "evaluate"}
        return EncryptedSum().total(self.around, first, ask)


def test_a_vector_longer_than_one_ciphertext_opens_in_pieces() -> None:
    vectors = np.random.default_rng(0).integers(-100, 100, size=(2, 9000))
    total = Parties(sum_round(2, 9000), vectors).total()
    assert np.array_equal(total.value, vectors.sum(axis=0))


def test_a_threshold_opens_who_reaches_it_ties_included_and_nothing_else() -> None:
    counts = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 1], [1, 0, 0, 0, 1]])
    parties = Parties(threshold_round(3, 5, at_least=2), counts)
    assert parties.total().value.tolist() == [1, 1, 0, 0, 1]
    assert sorted(parties.released) == [0, 1, 2]


def test_a_threshold_holds_below_zero_where_noise_can_be() -> None:
    around = threshold_round(2, 4, at_least=3, variance=0.5)
    assert around.sparse is not None
    assert around.sparse[0] < -5
    vectors = np.array([[-3, 2, 1, around.sparse[0]], [0, 1, 1, 0]])
    assert Parties(around, vectors).total().value.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", ["absent", "garbled"])
@pytest.mark.parametrize("stage", ["encrypt", "open"])
def test_a_party_that_disappears_ends_the_run_and_nothing_opens(stage: str, kind: str) -> None:
    parties = Parties(sum_round(3, 4), np.ones((3, 4), dtype=np.int64))
    with pytest.raises(SomebodyMissing, match=f"only 2 of 3 clients answered the stage '{stage}'"):
        parties.total(**{kind: {1: stage}})
    assert parties.stages[-1] == stage


def test_nothing_is_asked_when_somebody_is_missing_from_the_start() -> None:
    parties = Parties(sum_round(3, 4), np.ones((3, 4), dtype=np.int64))
    with pytest.raises(SomebodyMissing, match="nothing was opened"):
        parties.total(absent={2: "evaluate"})
    assert parties.stages == ["evaluate"]
    assert parties.released == []


def test_a_sum_is_opened_once_and_then_no_key_is_left() -> None:
    requests: list[bytes] = []
    parties = Parties(sum_round(2, 4), np.ones((2, 4), dtype=np.int64))
    participant = EncryptedParticipant(parties.around)
    before = dict(parties.states)

    def ask(_stage: str, asked: Mapping[int, bytes]) -> Mapping[int, bytes]:
        requests.append(asked[0])
        replies = {}
        for number, request in asked.items():
            step = participant.step(parties.states[number], request)
            parties.states[number], replies[number] = step.state, step.reply
        return replies

    EncryptedSum().total(parties.around, parties.first, ask)
    with pytest.raises(Refused, match="opened before"):
        participant.step(parties.states[0], requests[-1])
    assert len(parties.states[0]) < 10 < len(before[0])


def encrypted_state() -> tuple[EncryptedParticipant, bytes, bytes]:
    """A participant that waits for the public key, and the reply that another one gave."""
    parties = Parties(sum_round(2, 4), np.ones((2, 4), dtype=np.int64))
    return EncryptedParticipant(parties.around), parties.states[0], parties.first[1]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (b"\xc1", "cannot be read"),
        (msgspec.msgpack.encode([]), "lacks its PublicKey"),
        (msgspec.msgpack.encode([b"short"]), "cannot be read: PublicKey"),
        (msgspec.msgpack.encode([b"x" * 500_000]), "cannot be read: PublicKey"),
        (msgspec.msgpack.encode([17]), "cannot be read"),
    ],
    ids=["no array", "nothing", "short", "oversized", "no bytes"],
)
def test_what_cannot_be_read_is_refused_and_changes_nothing(request_: bytes, reason: str) -> None:
    participant, state, _ = encrypted_state()
    with pytest.raises(Refused, match=reason):
        participant.step(state, request_)


def test_a_share_in_place_of_the_key_is_refused() -> None:
    participant, state, share = encrypted_state()
    with pytest.raises(Refused, match="kind"):
        participant.step(state, share)


def test_drop_outs_and_large_sums_are_refused_by_both_sides() -> None:
    may_drop = Round.of(SESSION, NoNoise(Box(4, 1), Participation(10, dropout=0.1)))
    huge = Round.of(SESSION, NoNoise(Box(4, 2**40), Participation(10, dropout=0.0)))
    for around, reason in ((may_drop, "1 may drop out; allowed"), (huge, "exceed 31 bits")):
        with pytest.raises(Refused, match=reason):
            EncryptedParticipant(around).begin(np.zeros(4, dtype=np.int64))
        with pytest.raises(ValueError, match=reason):
            EncryptedSum().total(around, {}, lambda _stage, _requests: {})


def test_a_range_too_wide_for_any_ring_is_refused() -> None:
    around = threshold_round(10, 4, at_least=5, variance=2000.0)
    with pytest.raises(Refused, match=r"spreads counts over 4.. numbers.*allowed.*up to 320"):
        EncryptedParticipant(around).begin(np.zeros(4, dtype=np.int64))


PARTY = """
import sys
from pathlib import Path
import numpy as np
from tacit.secure.bfv import HEADER
from tacit.secure.encrypted import EncryptedParticipant
from tests.secure.test_encrypted import threshold_round

folder, around = Path(sys.argv[1]), threshold_round(3, 5, at_least=2)
participant, state = EncryptedParticipant(around), folder / "state"
if state.exists():
    step = participant.step(state.read_bytes(), (folder / "request").read_bytes())
else:
    step = participant.begin(np.array(sys.argv[2].split(","), dtype=np.int64))
state.write_bytes(step.state)
(folder / "reply").write_bytes(step.reply)
"""


def secret_of(state: bytes) -> bytes:
    """A part of the secret key that the state of a party holds, as it is stored."""
    party: bytes = msgspec.msgpack.decode(state)[1]
    return party[HEADER.size + SEED_BYTES :][:256]


def as_words(secret: bytes) -> bytes:
    return np.frombuffer(secret, np.int8).astype("<i8").tobytes()


def test_every_party_is_a_process_and_nobody_else_has_its_key(tmp_path: Path) -> None:
    counts = ["1,1,1,0,0", "1,1,0,0,1", "1,0,0,0,1"]
    folders = [tmp_path / f"party-{number}" for number in range(3)]
    messages: list[bytes] = []

    def step(number: int, request: bytes | None) -> bytes:
        if request is None:
            folders[number].mkdir()
        else:
            (folders[number] / "request").write_bytes(request)
            messages.append(request)
        command = [sys.executable, "-c", PARTY, str(folders[number]), counts[number]]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
        messages.append((folders[number] / "reply").read_bytes())
        return messages[-1]

    first = {number: step(number, None) for number in range(3)}
    secrets = [secret_of((folder / "state").read_bytes()) for folder in folders]
    kept: list[dict[str, bytes]] = []

    def ask(_stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        replies = {number: step(number, request) for number, request in requests.items()}
        kept.extend({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
        return replies

    around = threshold_round(3, 5, at_least=2)
    assert EncryptedSum().total(around, first, ask).value.tolist() == [1, 1, 0, 0, 1]
    assert len(set(secrets)) == 3
    for number, secret in enumerate(secrets):
        assert secret in kept[number]["state"]  # it is found where it belongs
        for form in (secret, as_words(secret)):
            assert all(form not in message for message in messages)
            for place, files in enumerate(kept):
                if place % 3 != number:
                    assert all(form not in data for data in files.values())


def test_what_a_client_sends_is_noisy_before_it_is_encrypted() -> None:
    """The vector is fixed with its noise; encryption adds nothing to it and takes nothing away."""
    mechanism = SkellamMechanism(Box(4, 100), Participation(3, dropout=0.0), 50.0)
    vectors = [mechanism.perturb(np.full(4, 10)) for _ in range(3)]
    total = Parties(Round.of(SESSION, mechanism), vectors).total()
    assert np.array_equal(total.value, np.sum(vectors, axis=0))
