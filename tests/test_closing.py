"""What a killed run asked and nobody answered: given back with everybody's word, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from tacit.closing import closed, not_closed
from tacit.endpoint import VERSION, Close, Endpoint, heading_of
from tacit.federation import CLOSE, EVALUATE, Federation, LocalChannel, kind_of_piece
from tacit.journal import Journal
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import Composed
from tacit.privacy.ledger import Ledger, LedgerError
from tacit.query import Ballot
from tacit.secure.protocol import Refused, TooFewClients
from tacit.secure.roster import Identity, Roster
from tacit.sessions import MOST_UNOPENED
from tacit.states import StatesInMemory
from tests.federations import BUDGET, channel, federation, likes

BALLOT = Ballot(tuple({"x": place / 9} for place in range(10)), votes=2)
ONE = spent(BALLOT.bound.release(139.0), BUDGET.delta)
STAGES = ("share", "deliver", "seal", "confirm", "open")


class Killed(BaseException):
    """The server's process ends here."""


@dataclass
class Dying(LocalChannel):
    """A network whose server dies when a stage has been asked, or just before; nodes live on."""

    stage: str = ""
    before: bool = False
    late: dict[int, bytes] = field(default_factory=dict)
    """Requests of that stage, which are still on their way."""

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if stage == self.stage:
            self.stage = ""
            if not self.before:
                super().ask(stage, requests)
            self.late = dict(requests)
            raise Killed
        return super().ask(stage, requests)


def killed_run(
    tmp_path: Path, stage: str, *, before: bool = False, roster: bool = True, prepaid: int = 0
) -> tuple[Federation, Dying]:
    """A run that was killed at a stage, as the process finds it that goes on with it."""
    built = federation([likes(0.5)] * 5, dropout=0, roster=roster)
    network = Dying(channel(built).endpoints, stage=stage, before=before)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", "clinics", Budget(3.0, 1e-5))
    dying = replace(
        built,
        channel=network,
        ledger=ledger,
        journal=Journal(tmp_path, {"journal": "run"}, kind_of_piece),
    )
    if prepaid:
        dying.prepay({"votes": Composed((BALLOT.bound.release(139.0),) * prepaid)})
    with pytest.raises(Killed):
        dying.sum(BALLOT, "vote")
    return again(dying, tmp_path), network


def again(dying: Federation, tmp_path: Path) -> Federation:
    """Another process: it has the ledger, the journal and the network, and nothing else."""
    return replace(
        dying,
        ledger=Ledger(tmp_path / "ledger.sqlite"),
        journal=Journal(tmp_path, {"journal": "run"}, kind_of_piece),
        turnouts=[],
        prepaid=[],
        prepays=False,
        costs={},
    )


def states(built: Federation) -> list[str]:
    return [charge.state for charge in built.ledger.charges()]


def spent_by_clients(network: LocalChannel) -> set[int]:
    return {len(endpoint.ledger) for endpoint in network.endpoints}


@pytest.mark.parametrize(
    ("stage", "before"),
    [(EVALUATE, True), (EVALUATE, False), ("share", False), ("deliver", False)],
)
def test_a_kill_before_anything_is_sealed_costs_nothing(
    tmp_path: Path, stage: str, before: bool
) -> None:
    resumed, network = killed_run(tmp_path, stage, before=before)
    assert states(resumed) == ["asked"]
    assert resumed.ledger.total() == ONE, "until everybody signed, it counts as spent"
    with resumed.held():
        assert states(resumed) == ["closed"]
        assert resumed.ledger.total().epsilon == 0
        assert resumed.sum(BALLOT, "vote").answered == 5
    assert resumed.ledger.total() == ONE
    assert states(resumed) == ["closed", "sealed"]
    assert spent_by_clients(network) == {1}
    assert resumed.ledger.verify() == []


@pytest.mark.parametrize(("stage", "before"), [("seal", True), *((s, False) for s in STAGES[2:])])
def test_what_may_have_been_sealed_stays_spent(tmp_path: Path, stage: str, before: bool) -> None:
    resumed, network = killed_run(tmp_path, stage, before=before)
    assert states(resumed) == ["sealed"]
    assert resumed.settle() == 0
    assert CLOSE not in resumed.costs, "nobody is even asked"
    resumed.sum(BALLOT, "vote")
    assert resumed.ledger.total() == spent(
        Composed((BALLOT.bound.release(139.0),) * 2), BUDGET.delta
    )
    assert spent_by_clients(network) == ({1} if before else {2})


def test_one_silent_client_keeps_a_charge_spent_until_it_is_back(tmp_path: Path) -> None:
    resumed, network = killed_run(tmp_path, "share")
    network._gone.add(3)
    assert resumed.settle() == 0
    assert states(resumed) == ["asked"]
    network._gone.clear()
    assert resumed.settle() == 1
    assert states(resumed) == ["closed"]


def test_without_a_roster_nobody_can_sign_so_it_stays_spent(tmp_path: Path) -> None:
    resumed, _ = killed_run(tmp_path, EVALUATE, roster=False)
    assert resumed.settle() == 0
    assert states(resumed) == ["asked"]


def test_signatures_of_another_roster_give_nothing_back(tmp_path: Path) -> None:
    """A member that was replaced may have answered; its successor cannot speak for it."""
    resumed, network = killed_run(tmp_path, "share")
    successor = Identity.new()
    assert resumed.roster is not None
    changed = Roster((*resumed.roster.keys[:-1], successor.public_key))
    endpoints = [replace(endpoint, roster=changed) for endpoint in network.endpoints]
    endpoints[-1] = replace(endpoints[-1], identity=successor)
    other = replace(resumed, roster=changed, channel=LocalChannel(endpoints))
    assert other.settle() == 0
    assert states(other) == ["asked"]


def test_a_closed_session_is_refused_whatever_comes_late(tmp_path: Path) -> None:
    """The question, the next stage, and the stage at which the server died, all from before."""
    resumed, network = killed_run(tmp_path, "deliver", before=True)
    held = [dict(states.kept) for states in network._states.values()]
    resumed.settle()
    for client, request in network.late.items():
        endpoint = network.endpoints[client]
        with pytest.raises(Refused, match="this sum is over"):
            endpoint.answer(network._states[client], request)
        old = StatesInMemory(dict(held[client]))  # put back, as by a power cut
        endpoint.answer(old, request)  # only a receipt for shares: nothing of a vector
    assert spent_by_clients(network) == {0}


@pytest.mark.parametrize("lost", [True, False])
def test_a_client_that_signed_seals_nothing_even_from_an_old_state(
    tmp_path: Path, lost: bool
) -> None:
    resumed, network = killed_run(tmp_path, "seal", before=True)
    before = [dict(one.kept) for one in network._states.values()]
    session = heading_of(network.late[0]).session
    request = msgspec.msgpack.encode(Close(VERSION, bytes.fromhex(session)))
    for client, endpoint in enumerate(network.endpoints):
        endpoint.answer(network._states[client], request)
        old = StatesInMemory({} if lost else dict(before[client]))
        with pytest.raises(Refused, match="no sum is under way" if lost else "answered before"):
            endpoint.answer(old, network.late[client])
    assert spent_by_clients(network) == {0}
    assert states(resumed) == ["sealed"]


def test_a_client_that_answered_signs_nothing(tmp_path: Path) -> None:
    resumed, network = killed_run(tmp_path, "seal")
    session = heading_of(network.late[0]).session
    request = msgspec.msgpack.encode(Close(VERSION, bytes.fromhex(session)))
    for client, endpoint in enumerate(network.endpoints):
        for known in (network._states[client], StatesInMemory()):
            with pytest.raises(Refused, match="answered before"):
                endpoint.answer(known, request)
    assert states(resumed) == ["sealed"]


def test_a_lost_signature_comes_again_and_is_the_same(tmp_path: Path) -> None:
    resumed, network = killed_run(tmp_path, "share")
    (charge,) = resumed.ledger.charges()
    request = msgspec.msgpack.encode(Close(VERSION, bytes.fromhex(charge.session)))
    endpoint, known = network.endpoints[0], network._states[0]
    first = endpoint.answer(known, request)
    assert endpoint.answer(known, request) == first
    assert endpoint.answer(StatesInMemory(), request) == first, "its last reply was removed"
    assert endpoint.identity is not None
    assert endpoint.roster is not None
    assert first == closed(endpoint.identity, endpoint.roster, 0, bytes.fromhex(charge.session))


def test_signatures_are_of_one_client_one_session_and_one_roster() -> None:
    anna, ben, cleo = (Identity.new() for _ in range(3))
    roster = Roster((anna.public_key, ben.public_key))
    other = Roster((anna.public_key, cleo.public_key))
    signed = {
        client: closed(one, roster, client, b"session") for client, one in enumerate((anna, ben))
    }
    assert not_closed(roster, b"session", signed) == []
    assert not_closed(roster, b"another", signed) == [0, 1]
    assert not_closed(other, b"session", signed) == [0, 1]
    assert not_closed(roster, b"session", {0: signed[1], 1: signed[0]}) == [0, 1]
    assert not_closed(roster, b"session", {**signed, 1: b""}) == [1]


def test_a_server_can_close_so_many_unknown_sessions_a_day() -> None:
    endpoint = channel(federation([likes(0.5)] * 5)).endpoints[0]

    def close(number: int) -> bytes:
        request = msgspec.msgpack.encode(Close(VERSION, number.to_bytes(32, "big")))
        return endpoint.answer(StatesInMemory(), request)

    for number in range(MOST_UNOPENED):
        close(number)
    with pytest.raises(Refused, match="that is the most"):
        close(MOST_UNOPENED)
    close(0)


def test_a_client_without_a_roster_signs_nothing() -> None:
    endpoint: Endpoint = channel(federation([likes(0.5)] * 5, roster=False)).endpoints[0]
    with pytest.raises(Refused, match="only a member of a roster"):
        endpoint.handle(b"", msgspec.msgpack.encode(Close(VERSION, bytes(32))))


def test_a_sum_that_is_given_up_while_everybody_is_there_costs_nothing() -> None:
    """Here most refuse the next stage, so that too few are left; then all sign."""
    built = federation([likes(0.5)] * 5, dropout=0)

    class Mute(LocalChannel):
        def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            return {} if stage == "share" else super().ask(stage, requests)

    given_up = replace(built, channel=Mute(channel(built).endpoints))
    with pytest.raises(TooFewClients):
        given_up.sum(BALLOT, "vote")
    assert states(given_up) == ["closed"]
    assert given_up.ledger.total().epsilon == 0


# Prepaid lines, with and without a journal ----------------------------------------------------


def test_prepaid_lines_are_as_many_as_were_declared_after_every_kill(tmp_path: Path) -> None:
    resumed, network = killed_run(tmp_path, "share", prepaid=2)
    for stage in (EVALUATE, "deliver"):
        with resumed.held():
            resumed.prepay({"votes": Composed((BALLOT.bound.release(139.0),) * 2)})
            assert len(resumed.ledger.counting()) == 2
            network.stage = stage
            with pytest.raises(Killed):
                resumed.sum(BALLOT, "vote")
        resumed = again(resumed, tmp_path)
    with resumed.held():
        resumed.prepay({"votes": Composed((BALLOT.bound.release(139.0),) * 2)})
        for _ in range(2):
            resumed.sum(BALLOT, "vote")
        assert resumed.prepaid == []
    assert [charge.state for charge in resumed.ledger.counting()] == ["sealed"] * 2


def test_with_its_journal_lost_a_run_pays_for_what_it_asks_again(tmp_path: Path) -> None:
    """Four sums for two charges: prepaid lines counted as unused, since no journal named them."""
    votes = {"votes": Composed((BALLOT.bound.release(139.0),) * 2)}
    budget = Budget(3.0, 1e-5)
    built = federation([likes(0.5)] * 5, dropout=0, budget=budget)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", "clinics", budget)
    for folder in ("one", "two"):
        run = replace(
            built,
            ledger=ledger,
            journal=Journal(tmp_path / folder, {"journal": "run"}, kind_of_piece),
            turnouts=[],
            prepaid=[],
            prepays=False,
        )
        run.prepay(votes)
        for _ in range(2):
            run.sum(BALLOT, "vote")
    charges = ledger.charges()
    assert len(charges) == 4, "as many as sums were opened"
    assert {charge.state for charge in charges} == {"sealed"}
    assert len({charge.session for charge in charges}) == 4


def test_two_resumers_at_once_are_one_too_many(tmp_path: Path) -> None:
    resumed, _ = killed_run(tmp_path, "share")
    rival = again(resumed, tmp_path)
    with resumed.held():
        with pytest.raises(LedgerError, match="the run 'run' is under way"), rival.held():
            pass
        assert resumed.sum(BALLOT, "vote").answered == 5
    with rival.held():
        assert rival.sum(BALLOT, "vote").answered == 5, "from the journal, or paid for"
    assert len(rival.ledger.counting()) in (1, 2)
