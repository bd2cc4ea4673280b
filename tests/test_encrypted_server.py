"""Encrypted sums under a server that does not follow the protocol: what it reads, and what we say.

A roster does not protect encrypted sums: clients encrypt under whatever public key they are sent.
The attack succeeds, and so no result, page or roster may claim that such a server is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tacit
from tacit.charged_questions import ChargedQuestions
from tacit.endpoint import AskSum, Continue, encode
from tacit.federation import EVALUATE, LocalChannel
from tacit.membership import new_key
from tacit.privacy.accounting import Budget
from tacit.privacy.mechanisms import mechanism_of
from tacit.query import Ballot
from tacit.report import write_run
from tacit.result import ENCRYPTED_SERVER, SIGNED_SERVER, Result
from tacit.secure.bfv import Ciphertext, PublicKey
from tacit.secure.crypto import digest
from tacit.secure.encrypted import Session
from tacit.secure.multiparty import Party, Server
from tacit.secure.protocol import Round
from tacit.statement import facts, quotable
from tacit.tuners.combine import Combine
from tacit.tuning import conclude
from tests.command_line import document
from tests.command_line import tacit as command
from tests.federations import SPACE, channel, federation, likes

pytest.importorskip("seal")

VICTIM = 1
BALLOT = Ballot(tuple({"x": i / 9} for i in range(10)), votes=2)
INFINITE = Budget(math.inf, 1e-5)


@dataclass
class KeySwapping(LocalChannel):
    """A server that gives one client a public key of its own, and passes on what it finds.

    It encrypts the ballot again under everybody's key, so that the sum opens as ever.
    """

    read: list[list[int]] = field(default_factory=list)
    """What the server reads of that client's answer."""

    def ask(self, stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        if stage == EVALUATE:
            self.session = _session(requests[VICTIM])
        if stage != "encrypt":
            return super().ask(stage, requests)
        sent = msgspec.msgpack.decode(requests[VICTIM], type=Continue)
        parameters = self.session.parameters
        everybodys = PublicKey.from_bytes(parameters, _only(sent.body))
        own, alone = Party.new(parameters, self.session.seed), Server(parameters, 1)
        swapped = _packed(alone.public_key([own.public_share()]).to_bytes())
        lie = encode(msgspec.structs.replace(sent, body=swapped))
        replies = dict(super().ask(stage, {**requests, VICTIM: lie}))
        prepared = alone.prepare(
            alone.sum([Ciphertext.from_bytes(parameters, _only(replies[VICTIM]))]), 1
        )
        ballot = alone.open(prepared, [own.opening_share(prepared.request)])
        ballot = ballot[: self.session.around.length]
        self.read.append(ballot.tolist())
        replies[VICTIM] = _packed(own.encrypt(everybodys, ballot).to_bytes())
        return replies


def _session(question: bytes) -> Session:
    """What anybody derives from the question, who sees it."""
    asked = msgspec.msgpack.decode(question, type=AskSum)
    terms = tacit.Participation(asked.clients, asked.dropout, asked.colluding)
    mechanism = mechanism_of(asked.query.bound, terms, asked.variance)
    return Session(Round.of(asked.session, mechanism, digest(b"question", question)))


def _only(body: bytes) -> bytes:
    (part,) = msgspec.msgpack.decode(body, type=tuple[bytes, ...])
    return part


def _packed(part: bytes) -> bytes:
    return encode([part])


@pytest.mark.parametrize("roster", [True, False])
def test_a_server_that_swaps_the_public_key_reads_a_ballot_and_nobody_notices(roster: bool) -> None:
    """The attack that the claims below are about; with a roster it works just the same."""
    built = federation(
        [likes(0.0), likes(0.5), likes(1.0)],
        0.0,
        budget=INFINITE,
        dropout=0.0,
        secure="encrypted",
        roster=roster,
    )
    built.channel = swapping = KeySwapping(channel(built).endpoints)
    opened = built.sum(BALLOT, "vote")
    assert swapping.read == [[0, 0, 0, 0, 1, 1, 0, 0, 0, 0]], "the victim's own votes"
    assert opened.value.tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1], "as if nothing had happened"
    assert not swapping.refusals


def encrypted_result(epsilon: float, *, roster: bool) -> Result:
    """A small run whose sums are encrypted."""
    method, budget = Combine("mean", "encrypted", candidates=12), Budget(epsilon, 1e-5)
    built = federation(
        [likes(0.3), likes(0.4), likes(0.5)],
        0.0 if math.isinf(epsilon) else 40.0,
        budget=budget,
        dropout=0.0,
        secure="encrypted",
        roster=roster,
    )
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    return conclude(method, outcome, built, budget)


@pytest.mark.parametrize("epsilon", [16.0, math.inf])
@pytest.mark.parametrize("roster", [True, False])
def test_no_result_or_page_of_an_encrypted_sum_claims_more(
    epsilon: float, roster: bool, tmp_path: Path
) -> None:
    result = encrypted_result(epsilon, roster=roster)
    assert result.privacy.server == ENCRYPTED_SERVER
    assert "honest-but-curious server" in ENCRYPTED_SERVER
    assert "a roster does not change that" in ENCRYPTED_SERVER
    write_run(result, "", tmp_path)
    plain, ledger = result.to_json(), result.ledger
    told = " ".join(
        [*quotable(plain, "", ledger), *facts(plain, "", ledger).values(), repr(result)]
    )
    pages = [path.read_text() for path in sorted(tmp_path.iterdir()) if path.suffix != ".toml"]
    assert len(pages) == 3
    for text in (told, *pages):
        assert SIGNED_SERVER not in text
        assert "deviate" not in text
        assert "genuine" not in text
        assert "clients held no roster" not in text
    if math.isfinite(epsilon):
        assert "The server must follow the protocol, with a roster or without" in told


def test_who_makes_a_roster_for_encrypted_sums_is_told(tmp_path: Path) -> None:
    keys = [tmp_path / name for name in ("anna", "ben")]
    for folder in keys:
        new_key(folder)
    said = {}
    for secure in ("masks", "encrypted"):
        roster = tmp_path / f"{secure}.toml"
        terms = ("--federation", "clinics", "--secure", secure)
        said[secure] = command("roster", "make", roster, *keys, *terms).stdout
        shown = document(command("roster", "check", roster, "--json"))["roster"]
        assert shown["secure"] == secure
        assert bool(shown["warning"]) == (secure == "encrypted")
        assert command("roster", "check", roster).stdout in said[secure]
    warning = "does not protect from a server that gives out a public key of its own"
    assert warning in said["encrypted"]
    assert warning not in said["masks"]


@pytest.mark.parametrize("page", ["combine", "flower", "privacy", "roster"])
def test_the_pages_say_so_too(page: str) -> None:
    text = (Path(__file__).parent.parent / "docs" / f"{page}.md").read_text()
    assert "A roster does not protect encrypted sums" in " ".join(text.split())
