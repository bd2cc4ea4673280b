from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.skellam import IntArray
from tacit.secure.plain import PlainParticipant, PlainSum
from tacit.secure.protocol import Refused, Round, TooFewClients, Total
from tests.secure.driver import Rehearsal, round_of, vectors_of


def plain_total(
    around: Round, vectors: IntArray, silent: set[int], junk: dict[int, bytes]
) -> Total:
    participant = PlainParticipant(around)
    states = {client: participant.begin(vector) for client, vector in enumerate(vectors)}

    def ask(stage: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        assert stage == "seal"
        steps = {
            client: participant.step(states[client].state, request)
            for client, request in requests.items()
            if client not in silent
        }
        assert all(step.releases for step in steps.values())
        return {client: step.reply for client, step in steps.items()} | junk

    first = {client: step.reply for client, step in states.items()}
    return PlainSum().total(around, first, ask)


@settings(deadline=None, max_examples=20)
@given(
    silent=st.sets(st.integers(0, 6), max_size=2),
    bits=st.sampled_from([32, 64]),
    seed=st.integers(0, 2**32),
)
def test_plain_and_masked_sums_agree(silent: set[int], bits: int, seed: int) -> None:
    around = round_of(7, dropout=0.3, bits=bits)
    vectors = vectors_of(around, seed)
    found = plain_total(around, vectors, silent, {})
    masked = Rehearsal(around, vectors, dropouts=dict.fromkeys(silent, "seal")).total()
    assert found.survivors == masked.survivors
    assert (
        found.value.tolist()
        == masked.value.tolist()
        == vectors[list(found.survivors)].sum(0).tolist()
    )


def test_exactly_the_threshold_opens_and_one_below_does_not() -> None:
    """Of 7 clients with drop-out 0.3 there must be 5."""
    around = round_of(7, dropout=0.3)
    vectors = vectors_of(around)
    assert plain_total(around, vectors, {0, 1}, {}).survivors == (2, 3, 4, 5, 6)
    with pytest.raises(TooFewClients, match="only 4 clients answered at the stage 'seal'; 5"):
        plain_total(around, vectors, {0, 1, 2}, {})


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(19), bytes(21)])
def test_a_reply_of_another_length_counts_as_a_drop_out(junk: bytes) -> None:
    around = round_of(7, dropout=0.3)
    vectors = vectors_of(around)
    total = plain_total(around, vectors, set(), {3: junk})
    assert total.survivors == (0, 1, 2, 4, 5, 6)
    assert total.value.tolist() == np.delete(vectors, 3, axis=0).sum(0).tolist()


def test_a_vector_is_sent_once_and_when_asked_for() -> None:
    around = round_of(3)
    participant = PlainParticipant(around)
    begun = participant.begin(np.arange(5))
    assert not begun.releases
    assert begun.reply == b"", "nothing of the vector leaves before it is asked for"
    for request in (b"", b"sent", b"SEND", b"send "):
        with pytest.raises(Refused):
            participant.step(begun.state, request)
    sent = participant.step(begun.state, b"send")
    assert sent.releases
    assert around.integers(sent.reply).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(Refused, match="the vector is sent once"):
        participant.step(sent.state, b"send")


def test_any_vector_can_be_sent() -> None:
    around = round_of(3, length=1)
    participant = PlainParticipant(around)
    begun = participant.begin(np.array([int.from_bytes(b"sent", "little")]))
    assert participant.step(begun.state, b"send").releases
