"""A pytest plugin that breaks Tacit in one named way: ``pytest -p tests.sabotage --sabotage NAME``.

``test_sabotage.py`` uses it to show that each kind of broken privacy makes a named test fail.
"""

from __future__ import annotations

import dataclasses
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tacit import dp_training, endpoint, federation, membership, oracles, query, updates
from tacit.privacy import accounting, bounds, events, ledger, mechanisms
from tacit.secure import crypto, masks, multiparty, opening, protocol, ring, setup
from tacit.tuners import selection


def halved_variance() -> None:
    """Clients add half of the noise that the event declares."""
    real = vars(mechanisms.SkellamMechanism)["share_variance"].func
    halved = property(lambda self: real(self) / 2)
    setattr(mechanisms.SkellamMechanism, "share_variance", halved)  # noqa: B010


def unenforced_bound() -> None:
    """Any answer passes for a ballot."""
    setattr(bounds.TopVotes, "admits", lambda _self, _answer: True)  # noqa: B010


def refund() -> None:
    """A charge is taken back as soon as it is made."""
    real = ledger.Ledger.charge

    def charge_and_return(
        self: ledger.Ledger, event: events.Event, label: str, run: str
    ) -> ledger.Charge:
        charge = real(self, event, label, run)
        connection = sqlite3.connect(self.path)
        connection.execute("DROP TRIGGER IF EXISTS line_is_never_removed")
        connection.execute("DELETE FROM line WHERE number = ?", (charge.number,))
        connection.commit()
        connection.close()
        return charge

    setattr(ledger.Ledger, "charge", charge_and_return)  # noqa: B010


def line_used_twice() -> None:
    """A line that was prepaid pays for every question of its kind."""
    real = federation.Federation._charged

    def kept(self: federation.Federation, event: events.Event, label: str) -> ledger.Charge:
        before = list(self.prepaid)
        charge = real(self, event, label)
        self.prepaid = before
        return charge

    setattr(federation.Federation, "_charged", kept)  # noqa: B010


def forgotten_question() -> None:
    """A prepaid question that went out before a kill goes out again, on the same line."""
    real = federation.Federation._charged

    def unnoted(self: federation.Federation, event: events.Event, label: str) -> ledger.Charge:
        journal, self.journal = self.journal, None
        charge = real(self, event, label)
        self.journal = journal
        return charge

    setattr(federation.Federation, "_charged", unnoted)  # noqa: B010


def composed_once() -> None:
    """A repeated event is priced as if it happened once."""
    real = events.releases

    def count_once(event: events.Event) -> Counter[events.Release]:
        return Counter(dict.fromkeys(real(event), 1))

    setattr(accounting, "releases", count_once)  # noqa: B010


def missing_mask() -> None:
    """Neighbours agree on a mask and then leave it out, on both sides: the sum stays right."""

    def nothing(around: protocol.Round, _key: bytes) -> npt.NDArray[Any]:
        return np.zeros(around.length, around.word)

    for module in (masks, opening):
        setattr(module, "expanded", nothing)  # noqa: B010


def reused_nonce() -> None:
    """Every box is sealed under the same nonce."""
    real = secrets.token_bytes

    def stuck(size: int) -> bytes:
        return bytes(size) if size == crypto.NONCE_BYTES else real(size)

    setattr(crypto, "token_bytes", stuck)  # noqa: B010


def short_seed() -> None:
    """Masks come from 28 bits, as Flower's SecAgg+ draws them."""
    real = crypto.derive

    def cut(secret: bytes, purpose: bytes, session: bytes) -> bytes:
        whole = int.from_bytes(real(secret, purpose, session), "big")
        return (whole % 2**28).to_bytes(crypto.KEY_BYTES, "big")

    setattr(crypto, "derive", cut)  # noqa: B010


def noise_left_out() -> None:
    """Clients send their answers as they are."""
    setattr(mechanisms.SkellamMechanism, "perturb", lambda _self, answer: answer)  # noqa: B010


def unchecked_keys() -> None:
    """Clients take anybody's keys for their neighbours': the server can swap them."""
    setattr(setup, "is_signed", lambda *_: True)  # noqa: B010


def low_threshold() -> None:
    """One survivor fewer than the noise needs may open."""
    real = vars(mechanisms.Participation)["threshold"].fget
    setattr(mechanisms.Participation, "threshold", property(lambda self: real(self) - 1))  # noqa: B010


def forgetful_client() -> None:
    """A client relies on its state alone to know what it answered."""
    setattr(ledger.Ledger, "knows", lambda _self, _run: False)  # noqa: B010


def unasked_deadline() -> None:
    """The first answer leaves as soon as it is ready."""
    setattr(time, "sleep", lambda _seconds: None)  # noqa: B010


def evaluation_in_the_process() -> None:
    """The client's code runs where the reply is made."""
    setattr(endpoint, "evaluated", lambda evaluate, _until, _length: evaluate())  # noqa: B010


def endless_pricing() -> None:
    """Whatever is asked is priced, however long that takes."""
    for module, name in ((accounting, "MOST_WORK"), (events, "MOST_DISTANCES")):
        setattr(module, name, float("inf"))


def unlocked_folder() -> None:
    """Others may write to a member's folder."""
    setattr(membership, "exposures", lambda _folder: [])  # noqa: B010


def any_ledger() -> None:
    """A member spends from whatever ledger is in its folder."""
    setattr(membership.Member, "__post_init__", lambda _self: None)  # noqa: B010


def folderless_node() -> None:
    """A node without a folder has a new budget with every message."""
    from tacit.flower import client

    setattr(client, "own_member", lambda _config: None)  # noqa: B010


def budget_by_number() -> None:
    """A node's own folder is called as the server likes."""
    from tacit.flower import client

    real = client._member

    def by_number(context: Any, *, require_member: bool) -> Any:
        context.node_config["number"] = context.node_id
        return real(context, require_member=require_member)

    setattr(client, "_member", by_number)  # noqa: B010


def any_node_is_a_member() -> None:
    """A node that demands a roster answers without."""
    from tacit.flower import client

    real = client._member
    unasked = lambda context, **_: real(context, require_member=False)  # noqa: E731
    setattr(client, "_member", unasked)  # noqa: B010


def trusting_client() -> None:
    """A client believes whatever the server says about numbers, noise and the threshold."""
    begin = endpoint.Endpoint.handle

    def believing(self: endpoint.Endpoint, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        believes = dataclasses.replace(self, participation=None, least_noise=0.0)
        return begin(believes, state, request)

    setattr(endpoint.Endpoint, "handle", believing)  # noqa: B010


def missing_errors() -> None:
    """Shares of keys are products without the errors that hide them."""

    def exactly(level: ring.Level, *products: Any, out: Any = None) -> Any:
        answer = ring.add(level.primes, *(level.times(one, other) for one, other in products))
        if out is not None:
            out[:] = answer
        return answer

    setattr(ring.Level, "samples", exactly)  # noqa: B010


def short_flooding() -> None:
    """Opening shares hide the noise of a ciphertext behind eight bits less than they should."""
    real = ring.flooding
    setattr(multiparty, "flooding", lambda n, bits, primes: real(n, bits - 8, primes))  # noqa: B010


def reused_errors() -> None:
    """Every share of a key has the same errors."""
    setattr(ring, "error", cache(ring.error))  # noqa: B010


def free_exact_sums() -> None:
    """A sum without noise is booked as if it told nothing."""
    nothing = property(lambda _self: events.Composed(()))
    setattr(mechanisms.NoNoise, "event", nothing)  # noqa: B010


def unclipped_update() -> None:
    """Clients send their updates however long they are."""
    setattr(updates, "clipped", lambda vector, clip: vector / clip)  # noqa: B010


def careless_rounding() -> None:
    """Updates are rounded once, whatever their length is then."""

    def once(vector: npt.NDArray[np.float64], _norm: float) -> npt.NDArray[np.int64]:
        return np.ceil(vector).astype(np.int64)

    setattr(updates, "rounded", once)  # noqa: B010


def unpaid_scores() -> None:
    """The records on which the best model is decided pay nothing."""
    trained = events.Selected.rdp

    def without_scores(self: events.Selected, orders: Any) -> Any:
        return trained(dataclasses.replace(self, score_noise=1e9), orders)

    setattr(events.Selected, "rdp", without_scores)  # noqa: B010


def seeded_front() -> None:
    """A private front draws its noise from the plan's seed."""
    setattr(oracles, "Secret", lambda: dp_training.Seeded(0))  # noqa: B010


def known_order() -> None:
    """A selection tries the candidates in an order that everybody knows."""
    known = type("Known", (), {"randbelow": staticmethod(lambda _limit: 0)})
    setattr(selection, "secrets", known)  # noqa: B010


def unpaid_half_step() -> None:
    """An adaptive step draws two private gradients and pays for one."""
    real: property = vars(query.LocalTraining)["event"]

    def halved(self: query.LocalTraining) -> Any:
        event = real.__get__(self)
        if isinstance(event, events.SampledGaussian):
            return dataclasses.replace(event, steps=event.steps // 2)
        return event

    setattr(query.LocalTraining, "event", property(halved))  # noqa: B010


SABOTAGES: dict[str, tuple[Callable[[], None], str]] = {
    function.__name__: (function, test)
    for function, test in (
        (
            halved_variance,
            "privacy/test_mechanisms.py::test_guaranteed_survivors_alone_deliver_the_required_noise",
        ),
        (unenforced_bound, "privacy/test_mechanisms.py::test_noise_is_refused_outside_the_bound"),
        (refund, "privacy/test_ledger.py::test_a_failed_question_stays_paid"),
        (composed_once, "privacy/test_accounting.py::test_repeating_costs_as_often"),
        (missing_mask, "secure/test_masks.py::test_every_pair_of_neighbours_shares_a_mask"),
        (reused_nonce, "secure/test_masks.py::test_no_nonce_is_used_twice"),
        (short_seed, "secure/test_masks.py::test_masks_depend_on_every_bit_of_their_seed"),
        (
            noise_left_out,
            "test_federation.py::"
            "test_the_opened_sum_is_the_votes_plus_skellam_noise_of_the_survivors",
        ),
        (unchecked_keys, "secure/test_refusals.py::test_a_swapped_key_is_refused"),
        (
            low_threshold,
            "secure/test_masks.py::test_one_survivor_below_the_threshold_opens_nothing",
        ),
        (
            forgetful_client,
            "flower/test_asking_twice.py::"
            "test_a_member_whose_state_was_set_back_does_not_seal_twice",
        ),
        (missing_errors, "secure/test_shares.py::test_public_shares_carry_errors"),
        (short_flooding, "secure/test_shares.py::test_opening_shares_are_flooded_afresh"),
        (reused_errors, "secure/test_shares.py::test_public_shares_carry_errors"),
        (
            free_exact_sums,
            "tuners/test_combine.py::test_encrypted_clusters_are_those_of_the_plain_computation",
        ),
        (unclipped_update, "test_updates.py::test_every_answer_is_admitted"),
        (
            careless_rounding,
            "test_updates.py::test_rounded_vectors_stay_in_the_ball_and_next_to_the_truth",
        ),
        (
            unpaid_half_step,
            "tuners/test_adaptive.py::test_record_level_pays_for_both_half_steps",
        ),
        (
            unpaid_scores,
            "privacy/test_selection.py::test_never_cheaper_than_dp_accounting_says[poisson]",
        ),
        (
            seeded_front,
            "test_pareto_job.py::test_a_private_front_has_noise_that_no_seed_tells",
        ),
        (line_used_twice, "test_federation.py::test_a_prepaid_line_pays_for_one_question"),
        (
            forgotten_question,
            "test_federation.py::test_a_prepaid_question_that_was_cut_off_is_paid_for_again",
        ),
        (known_order, "tuners/test_selection.py::test_candidates_are_drawn_secretly"),
        (
            evaluation_in_the_process,
            "test_punctual.py::test_the_reply_does_not_wait_for_code_that_holds_the_interpreter",
        ),
        (
            endless_pricing,
            "test_small_questions.py::"
            "test_a_question_is_refused_or_priced_with_little_work[many ranks, much noise]",
        ),
        (
            unlocked_folder,
            "test_membership.py::test_a_file_that_others_can_reach_is_refused"
            "[ledger.sqlite-438-600]",
        ),
        (any_ledger, "test_membership.py::test_a_ledger_of_another_federation_is_refused"),
        (
            folderless_node,
            "flower/test_folderless.py::test_models_of_dp_sgd_leave_until_the_budget_is_spent",
        ),
        (
            budget_by_number,
            "flower/test_folderless.py::"
            "test_the_server_cannot_give_a_node_another_budget_with_another_number",
        ),
        (
            any_node_is_a_member,
            "flower/test_folderless.py::test_a_node_that_demands_a_roster_answers_nothing_without",
        ),
        (unasked_deadline, "flower/test_vote.py::test_no_first_answer_comes_before_the_deadline"),
        (
            trusting_client,
            "flower/test_malicious_server.py::"
            "test_a_lie_is_refused_by_name_and_nothing_opens[shrinks the noise]",
        ),
    )
}
"""What is broken, and the test that must notice."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sabotage", choices=sorted(SABOTAGES))


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--sabotage")
    if name:
        SABOTAGES[name][0]()
