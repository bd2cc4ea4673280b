from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.combining import LocalFindings
from tacit.endpoint import SESSION_BYTES, VERSION, AskInClear, AskSum, Continue
from tacit.federation import EvaluationFailed, LocalChannel, kind_of_piece, local_federation
from tacit.journal import Journal
from tacit.local_search import LocalSearch
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.ledger import BudgetExceeded
from tacit.privacy.mechanisms import NoiseShare, Participation, SkellamMechanism
from tacit.query import Ballot, InClear, LocalTraining
from tacit.secure.opening import upload_bytes
from tacit.secure.protocol import Refused, TooFewClients
from tacit.space import Config, Float, Space
from tacit.task import FunctionClient
from tests.federations import BUDGET, Unreachable, channel, federation, likes
from tests.randomness import fits_skellam

CANDIDATES: tuple[Config, ...] = tuple({"x": i / 9} for i in range(10))
BALLOT = Ballot(CANDIDATES, votes=2)
FINDINGS = LocalFindings(LocalSearch(Space({"x": Float(0.0, 1.0)}).to_json(), trials=5))
encode = msgspec.msgpack.encode


def request(ballot: Ballot = BALLOT, session: bytes = b"s", **changes: object) -> bytes:
    asked = AskSum(
        version=VERSION,
        session=session * SESSION_BYTES,
        secure="masks",
        clients=5,
        dropout=0,
        colluding=0,
        variance=139.0,
        deadline=math.inf,
        line=bytes(32),
        at_least=None,
        query=ballot,
    )
    return encode(msgspec.structs.replace(asked, **changes))


@pytest.mark.parametrize("roster", [True, False])
def test_the_opened_sum_is_the_votes_plus_skellam_noise_of_the_survivors(roster: bool) -> None:
    """Through the whole client path, with drop-outs: chi-square, false-alarm rate 1e-6."""
    dropped = {3: "seal", 7: "share", 11: "confirm", 12: "open"}
    ballot = Ballot(tuple({"x": i / 499} for i in range(500)), votes=2)
    repetitions, variance, noise = 10, 40.0, []
    clients = [likes(0.31 + 0.001 * i) for i in range(20)]
    survivors = [c for i, c in enumerate(clients) if dropped.get(i) not in ("seal", "share")]
    true = np.sum([ballot.answer(client) for client in survivors], axis=0)
    for _ in range(repetitions):
        built = federation(
            clients, variance, budget=Budget(30.0, 1e-5), dropout=0.2, roster=roster, drops=dropped
        )
        tally = built.sum(ballot, "vote")
        assert (tally.asked, tally.answered) == (20, 18)
        noise.append(tally.value - true)
    share = SkellamMechanism(ballot.bound, built.participation, variance).share_variance
    assert fits_skellam(np.concatenate(noise), 18 * share)


def test_a_question_beyond_the_budget_is_refused_before_anyone_is_asked() -> None:
    built = federation([likes(0.5)] * 5, variance=1.0)
    with pytest.raises(BudgetExceeded):
        replace(built, channel=Unreachable(5)).sum(BALLOT, "vote")
    with pytest.raises(BudgetExceeded):
        replace(built, channel=Unreachable(5)).gather(FINDINGS, "winners")
    assert len(built.ledger) == 0


def test_the_federation_is_charged_before_it_asks_and_stays_charged() -> None:
    built = federation([likes(0.5)] * 5, drops=dict.fromkeys(range(3), "share"))
    with pytest.raises(TooFewClients, match="only 2 clients answered at the stage 'share'; 5"):
        built.sum(BALLOT, "vote")
    assert len(built.ledger) == 1


def test_a_client_charges_itself_before_its_sealed_vector_leaves_and_not_earlier() -> None:
    built = federation([likes(0.5)] * 5)
    spent_when_asked: dict[str, set[int]] = {}
    inner = channel(built)

    class Watching(LocalChannel):
        def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            replies = super().ask(stage, requests)
            spent_when_asked[stage] = {len(endpoint.ledger) for endpoint in self.endpoints}
            return replies

    replace(built, channel=Watching(inner.endpoints)).sum(BALLOT, "vote")
    assert spent_when_asked["evaluate"] == spent_when_asked["share"] == {0}
    assert spent_when_asked["seal"] == spent_when_asked["open"] == {1}


def test_a_client_refuses_what_its_own_ledger_cannot_pay() -> None:
    endpoint = channel(federation([likes(0.5)] * 5)).endpoints[0]
    with pytest.raises(Refused, match="own budget"):
        endpoint.handle(b"", request(variance=1.0))
    assert len(endpoint.ledger) == 0


def test_a_client_refuses_a_session_that_it_answered_before() -> None:
    endpoint = channel(federation([likes(0.5)] * 5, budget=Budget(30.0, 1e-5))).endpoints[0]
    session = b"s" * SESSION_BYTES
    endpoint.ledger.charge(BALLOT.bound.release(139.0), "answer", run=session.hex())
    with pytest.raises(Refused, match="answered before"):
        endpoint.handle(b"", request())
    endpoint.handle(b"", request(session=b"t"))


def test_a_client_pays_from_its_own_ledger_over_several_rounds() -> None:
    built = federation([likes(0.5)] * 5, budget=Budget(30.0, 1e-5))
    poor = channel(built).endpoints[2]
    poor.ledger.amend(BUDGET, "this client is careful")
    ballot = Ballot(CANDIDATES, votes=5)
    built.sum(ballot, "vote")
    with pytest.raises(TooFewClients):  # with five clients nobody may be missing
        built.sum(ballot, "vote")
    assert len(poor.ledger) == 1
    assert any("own budget" in reason for reason in channel(built).refusals)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "cannot be read"),
        (b"\xc1", "cannot be read"),
        (encode([9, VERSION, b"s" * SESSION_BYTES, b""]), "cannot be read"),
        (encode([1, VERSION, b"s" * SESSION_BYTES, "masks", "much", []]), "cannot be read"),
        (
            encode(Continue(VERSION + 1, b"s" * SESSION_BYTES, b"")),
            f"version {VERSION + 1}; this client has {VERSION}",
        ),
        (
            # A question as version 3 asked it, when drop-out and colluding were fractions.
            request(version=3, dropout=0.2, colluding=0.1),
            f"the message has version 3; this client has {VERSION}",
        ),
        (encode([2, 3, b"s" * SESSION_BYTES]), f"version 3; this client has {VERSION}"),
        (encode(Continue(VERSION, b"s", b"")), "32 bytes"),
        (encode(Continue(VERSION, b"s" * SESSION_BYTES, b"")), "no sum is under way"),
        (request(secure="plain"), "this client takes 'masks'"),
        (
            request(clients=6),
            "for 6 clients of .* this client knows of 5 clients",
        ),
        (request(dropout=1), "for 5 clients of which 1 may drop out"),
        (request(colluding=1), "and 1 collude"),
        (request(dropout=4), "of 5 clients 4 may be missing and 1 may know"),
        (request(dropout=-1), "dropout is -1; allowed is a count"),
        (request(dropout=0.1), "cannot be read"),
        (request(colluding="1/5"), "cannot be read"),
        (request(clients=1), "clients is 1; allowed is 2"),
        (request(line=b"short"), "digest has 32 bytes, not 5"),
        (request(deadline=0.0), "deadline is 0.0"),
        (request(deadline=math.nan), "deadline is nan"),
        (request(variance=math.inf), "variance"),
        (request(variance=-1.0), "variance"),
        (request(variance=math.nan), "variance"),
        (request(Ballot(CANDIDATES, votes=10)), "votes is 10 of 10"),
        (request(Ballot((), votes=1)), "candidates is 0"),
        (encode(AskInClear(VERSION, b"s" * SESSION_BYTES, FINDINGS)), "own budget"),
        (
            encode(AskInClear(VERSION, b"s" * SESSION_BYTES, LocalTraining(CANDIDATES, (), 1, 0))),
            "own budget",
        ),
    ],
)
def test_a_client_refuses_messages_that_it_must_not_answer(message: bytes, reason: str) -> None:
    endpoint = channel(federation([likes(0.5)] * 5)).endpoints[0]
    with pytest.raises(Refused, match=reason):
        endpoint.handle(b"", message)


def test_a_message_of_another_session_is_refused() -> None:
    endpoint = channel(federation([likes(0.5)] * 5)).endpoints[0]
    state, _ = endpoint.handle(b"", request())
    with pytest.raises(Refused, match="another session"):
        endpoint.handle(state, encode(Continue(VERSION, b"t" * SESSION_BYTES, b"")))


def failing(config: Config) -> float:
    raise RuntimeError(f"no data for {config}")


def nothing(config: Config) -> float:
    return math.nan * float(config["x"])


def slow(config: Config) -> float:
    time.sleep(5.0)
    return float(config["x"])


@pytest.mark.parametrize("broken", [failing, nothing, slow])
def test_a_client_that_cannot_answer_abstains_unnoticed(broken: object) -> None:
    assert callable(broken)
    clients = [likes(0.0)] * 4 + [FunctionClient(broken)]
    built = federation(clients, dropout=0.0, deadline=1.0)
    tally = built.sum(BALLOT, "vote")
    assert (tally.asked, tally.answered) == (5, 5)
    assert not channel(built).refusals
    assert len(channel(built).abstentions) == 1


def test_an_abstention_is_a_valid_ballot_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    noised: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    real = NoiseShare.added_to

    def watched(
        self: NoiseShare, answer: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        noised.append(answer)
        return real(self, answer)

    monkeypatch.setattr(NoiseShare, "added_to", watched)
    endpoint = channel(federation([FunctionClient(failing)] * 5)).endpoints[0]
    for _ in range(50):
        endpoint.handle(b"", request())
    assert all(TopVotes(10, 2).admits(answer) for answer in noised)
    assert len({answer.tobytes() for answer in noised}) > 10


def test_an_answer_outside_its_bound_becomes_an_abstention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Raising would make a drop-out that depends on the data."""
    monkeypatch.setattr(Ballot, "answer", lambda _self, _client: np.full(10, 5, dtype=np.int64))
    built = federation([likes(0.5)] * 5)
    channel(built).abstentions.append(ValueError("keeps the simulation from giving up"))
    assert built.sum(BALLOT, "vote").answered == 5
    assert len(channel(built).abstentions) == 6


def test_a_mistake_of_all_clients_is_reported() -> None:
    with pytest.raises(EvaluationFailed, match="no data for"):
        federation([FunctionClient(failing)] * 5).sum(BALLOT, "vote")


def test_answers_in_clear_need_an_infinite_budget_on_both_sides() -> None:
    built = federation([likes(0.5)] * 5, budget=Budget(math.inf, 1e-5))
    answers = built.gather(FINDINGS, "winners")
    assert len(answers) == 5
    assert built.ledger.total().epsilon == math.inf
    assert channel(built).endpoints[0].ledger.total().epsilon == math.inf


def test_training_is_answered_only_by_clients_that_agreed_to_train() -> None:
    query: InClear = LocalTraining(CANDIDATES, (), 1, 0)
    built = federation([likes(0.5)] * 5)
    with pytest.raises(TooFewClients):
        built.collect(query, "train")
    assert len(built.ledger) == 0


def test_time_and_bytes_are_counted_by_stage() -> None:
    built = federation([likes(0.5)] * 5)
    built.sum(BALLOT, "vote")
    assert list(built.costs) == ["evaluate", "share", "deliver", "seal", "confirm", "open"]
    for cost in built.costs.values():
        assert cost.seconds > 0
        assert cost.up > 0
        assert cost.down > 0


def test_the_number_of_clients_must_be_the_planned_one() -> None:
    built = federation([likes(0.5)] * 5)
    with pytest.raises(ValueError, match="found 5 clients; planned are 6"):
        local_federation([likes(0.5)] * 5, Participation(6), built.ledger, "run", 1.0)


@pytest.mark.parametrize("clients", [6, 70])
def test_uploads_are_as_large_as_the_plan_says(clients: int) -> None:
    built = federation([likes(0.5)] * clients)
    built.sum(BALLOT, "vote")
    measured = sum(cost.up for cost in built.costs.values()) / clients
    planned = upload_bytes(built.participation, len(CANDIDATES), 32)
    assert 0.95 * planned <= measured <= planned


@pytest.mark.parametrize("roster", [True, False])
def test_a_server_cannot_ask_others_for_less_noise(roster: bool) -> None:
    """Client 0 would rely on noise that the others were never asked for."""
    built = federation([likes(0.5)] * 5, 139.0, budget=Budget(30.0, 1e-5), roster=roster)
    inner = channel(built)

    class Lying(LocalChannel):
        def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            altered = dict(requests)
            if stage == "evaluate":
                honest = msgspec.msgpack.decode(requests[0], type=AskSum)
                less = encode(msgspec.structs.replace(honest, variance=10.0))
                altered = {client: less if client else requests[0] for client in requests}
            return super().ask(stage, altered)

    lying = Lying(inner.endpoints)
    with pytest.raises(TooFewClients):
        replace(built, channel=lying).sum(BALLOT, "vote")
    assert all(len(endpoint.ledger) == 0 for endpoint in inner.endpoints)


def test_a_prepaid_line_pays_for_one_question() -> None:
    built = federation([likes(0.5)] * 5, budget=Budget(3.0, 1e-5))
    built.prepay({"vote": TopVotes(10, 2).release(139.0)})
    assert [charge.label for charge in built.ledger.charges()] == ["vote"]
    first = built.sum(BALLOT, "first")
    assert first.charge.digest == built.ledger.charges()[0].digest
    second = built.sum(BALLOT, "second")
    assert [charge.label for charge in built.ledger.charges()] == ["vote", "second"]
    assert second.charge.digest != first.charge.digest


def test_a_prepaid_question_that_was_cut_off_is_paid_for_again(tmp_path: Path) -> None:
    members, journal = [likes(0.5)] * 5, Journal(tmp_path, {"a": "test"}, kind_of_piece)
    built = federation(members, budget=Budget(3.0, 1e-5))
    built.journal, ledger = journal, built.ledger
    built.prepay({"vote": TopVotes(10, 2).release(139.0)})
    built.channel = Unreachable(5)
    with pytest.raises(AssertionError):
        built.sum(BALLOT, "vote")
    again = federation(members, budget=Budget(3.0, 1e-5))
    again.journal, again.ledger = Journal(tmp_path, {"a": "test"}, kind_of_piece), ledger
    again.prepay({"vote": TopVotes(10, 2).release(139.0)})
    assert len(ledger) == 1  # the run is known: what it prepaid is not prepaid twice
    again.sum(BALLOT, "vote")
    assert len(ledger) == 2  # but that question was out


def test_a_state_of_another_version_is_as_good_as_none() -> None:
    """As after an update between two stages: the old sum is lost, a new question is answered."""
    endpoint = channel(federation([likes(0.5)] * 5)).endpoints[0]
    old = encode([b"question", 3, b"state of a sum"])
    with pytest.raises(Refused, match="no sum is under way"):
        endpoint.handle(old, encode(Continue(VERSION, b"s" * SESSION_BYTES, b"")))
    state, reply = endpoint.handle(old, request())
    assert state
    assert reply
