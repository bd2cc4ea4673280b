"""A pytest plugin that breaks Tacit in one named way: ``pytest -p tests.sabotage --sabotage NAME``.

``test_sabotage.py`` uses it to show that each kind of broken privacy makes a named test fail.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from tacit import (
    dp_training,
    endpoint,
    federation,
    membership,
    oracles,
    query,
    result,
    sessions,
    tuning,
    updates,
)
from tacit.arrays import Arrays
from tacit.privacy import accounting, bounds, events, ledger, mechanisms
from tacit.secure import (
    crypto,
    evidence,
    graph,
    masks,
    messages,
    multiparty,
    opening,
    protocol,
    ring,
    setup,
    shamir,
    transcript,
)
from tacit.tuners import selection


def halved_variance() -> None:
    """Clients add half of the noise that the event declares."""
    real = vars(mechanisms.SkellamMechanism)["share_variance"].func
    halved = property(lambda self: real(self) / 2)
    setattr(mechanisms.SkellamMechanism, "share_variance", halved)  # noqa: B010


def colluders_rounded_down() -> None:
    """Of a fraction of the clients whole ones are counted without care for how floats round."""

    def careless(name: str, value: mechanisms.SomeClients, clients: int) -> int:
        found = mechanisms.some_clients(name, value)
        return found if isinstance(found, int) else math.floor(found * clients)

    setattr(mechanisms, "_counted", careless)  # noqa: B010


def own_noise_counted_on() -> None:
    """What a client knows, its own noise, is counted on to protect the others from it."""

    def guaranteed(self: mechanisms.Participation) -> int:
        return min(self.clients - self.dropout - self.colluding, self.clients - 1)

    setattr(mechanisms.Participation, "guaranteed", property(guaranteed))  # noqa: B010


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

    def nothing(around: protocol.Round, _final: bytes, _key: bytes) -> npt.NDArray[Any]:
        return np.zeros(around.length, around.word)

    for module in (masks, transcript):
        setattr(module, "pair_mask", nothing)  # noqa: B010


def reused_box_secret() -> None:
    """A client seals all its boxes with one secret."""

    def same(_self: masks.MaskedParticipant, box_seed: bytes, _other: int) -> bytes:
        return crypto.derive(box_seed, b"once", b"")

    setattr(masks.MaskedParticipant, "_once", same)  # noqa: B010


def unbound_masks() -> None:
    """Masks come from agreed secrets alone, whoever advertised the keys and whatever is summed."""

    def agreed_only(_setup: bytes, _one: object, _other: object, agreed: bytes) -> bytes:
        return crypto.derive(agreed, b"pair", b"")

    for module in (masks, transcript):
        setattr(module, "pair_key", agreed_only)  # noqa: B010


def unsigned_explanations() -> None:
    """Anybody can say in a dealer's name what it sealed a box with."""
    setattr(evidence, "is_explained", lambda *_: True)  # noqa: B010


def unsigned_receipts() -> None:
    """Who returns a share is believed to have got it from whoever dealt that share."""
    setattr(evidence, "is_received", lambda *_: True)  # noqa: B010


def hasty_evidence() -> None:
    """A secret that cannot be recovered from the shares at hand counts as false."""
    setattr(evidence, "tell_a_secret", lambda *_: True)  # noqa: B010


def short_seed() -> None:
    """Masks come from 28 bits, as Flower's SecAgg+ draws them."""
    real = crypto.derive

    def cut(secret: bytes, purpose: bytes, context: bytes) -> bytes:
        whole = int.from_bytes(real(secret, purpose, context), "big")
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


def unchecked_sums() -> None:
    """Whatever a sum opens to is used."""
    setattr(federation, "check_sum", lambda *_: None)  # noqa: B010


def poisoned_means() -> None:
    """Whatever comes in clear is averaged."""

    def unchecked(_query: query.InClear, reply: bytes) -> tuple[Arrays, str]:
        return msgspec.msgpack.decode(reply, type=Arrays), ""

    setattr(federation, "_read", unchecked)  # noqa: B010


def overstated_encryption() -> None:
    """Results of encrypted sums claim that a server may deviate from the protocol."""
    setattr(tuning, "ENCRYPTED_SERVER", result.SIGNED_SERVER)  # noqa: B010


def claims_before_signatures() -> None:
    """On Flower, whoever names a member's number is believed."""
    from tacit.flower import wire

    setattr(wire.Envelope, "is_signed", lambda *_: True)  # noqa: B010


def unsigned_vectors() -> None:
    """A client's signature says who is in the sum, and not which vector it sealed."""
    for module in (masks, opening, transcript):
        setattr(module, "vector_digest", lambda _vector: b"any")  # noqa: B010


def gullible_receivers() -> None:
    """Clients keep whatever shares they are dealt."""

    def taken(text: bytes, *_: object) -> tuple[bytes, bytes]:
        return text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :]

    for module in (masks, evidence):
        setattr(module, "shares_in", taken)  # noqa: B010


def unchecked_shares() -> None:
    """Shares that come back are taken for what was dealt."""
    setattr(shamir, "is_right", lambda *_: True)  # noqa: B010


def obliging_dealer() -> None:
    """A dealer explains whatever somebody complains about."""
    real = masks.MaskedParticipant._explain

    def explain(
        self: masks.MaskedParticipant, state: messages.Delivered, request: messages.Complaints
    ) -> tuple[messages.Delivered, messages.Explained]:
        found = {holder: parcel for holder, (parcel, _) in request.complaints.items()}
        shared = structs.replace(state.shared, parcels={**state.shared.parcels, **found})
        return real(self, structs.replace(state, shared=shared), request)

    setattr(masks.MaskedParticipant, "_explain", explain)  # noqa: B010


def forgotten_reply() -> None:
    """A request whose reply was lost is refused when it comes again."""
    real = endpoint.Endpoint.handle

    def handle(self: endpoint.Endpoint, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        waiting = endpoint._waiting(state)
        kept = structs.replace(waiting, request=b"") if waiting else None
        return real(self, endpoint.encode(kept) if kept else state, request)

    setattr(endpoint.Endpoint, "handle", handle)  # noqa: B010


def ring_unchecked() -> None:
    """Clients take any list of survivors that is long enough, wherever the ring is thin."""
    setattr(graph.Wiring, "thin", lambda *_: False)  # noqa: B010


def lists_unbound() -> None:
    """Masks and signatures are for the session, not for the final list of members."""
    for module in (masks, opening):
        setattr(module, "final_digest", lambda setup, _members: setup)  # noqa: B010


def shares_unproven() -> None:
    """A share with its hash is taken for right, on whatever polynomial it lies."""
    setattr(shamir, "fits", lambda *_: True)  # noqa: B010


def endless_draws() -> None:
    """A server may begin sums, look at the order and give them up as often as it likes."""
    setattr(sessions.Sessions, "begin", lambda *_: None)  # noqa: B010


SABOTAGES: dict[str, tuple[Callable[[], None], str]] = {
    function.__name__: (function, test)
    for function, test in (
        (
            halved_variance,
            "privacy/test_mechanisms.py::test_guaranteed_survivors_alone_deliver_the_required_noise",
        ),
        (
            colluders_rounded_down,
            "privacy/test_participation.py::"
            "test_every_small_plan_leaves_the_required_noise_to_its_colluders",
        ),
        (
            own_noise_counted_on,
            "privacy/test_participation.py::"
            "test_a_curious_participant_among_four_learns_no_more_than_planned",
        ),
        (unenforced_bound, "privacy/test_mechanisms.py::test_noise_is_refused_outside_the_bound"),
        (refund, "privacy/test_ledger.py::test_a_failed_question_stays_paid"),
        (composed_once, "privacy/test_accounting.py::test_repeating_costs_as_often"),
        (missing_mask, "secure/test_masks.py::test_every_pair_of_neighbours_shares_a_mask"),
        (reused_box_secret, "secure/test_masks.py::test_no_box_key_is_used_twice"),
        (
            unsigned_explanations,
            "secure/test_transcript.py::"
            "test_a_dealer_cannot_be_framed_with_another_secret_of_its_box",
        ),
        (
            unsigned_receipts,
            "secure/test_transcript.py::"
            "test_a_holder_cannot_be_framed_by_a_server_that_deals_in_anothers_name",
        ),
        (
            hasty_evidence,
            "secure/test_transcript.py::"
            "test_a_dealer_cannot_be_framed_with_too_few_shares_of_its_secret",
        ),
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
            unchecked_sums,
            "test_plausible.py::"
            "test_what_no_valid_ballots_give_is_reported_and_chooses_nothing[a million for one]",
        ),
        (
            poisoned_means,
            "test_answers_in_clear.py::"
            "test_an_answer_that_cannot_be_used_is_left_out_and_counted[no number-adaptive-clear]",
        ),
        (
            overstated_encryption,
            "test_encrypted_server.py::"
            "test_no_result_or_page_of_an_encrypted_sum_claims_more[True-16.0]",
        ),
        (
            claims_before_signatures,
            "flower/test_members.py::"
            "test_an_outsider_that_names_a_members_number_costs_nobody_anything"
            "[True-another federation's]",
        ),
        (
            evaluation_in_the_process,
            "test_punctual.py::test_the_reply_does_not_wait_for_code_that_holds_the_interpreter",
        ),
        (
            unbound_masks,
            "secure/test_hostile.py::test_a_copied_key_takes_no_mask_off_anybody"
            "[3-1-plus_a_point_of_order_two]",
        ),
        (
            unsigned_vectors,
            "secure/test_hostile.py::test_one_flipped_bit_of_a_sealed_vector_is_noticed",
        ),
        (
            gullible_receivers,
            "secure/test_hostile.py::"
            "test_a_bad_dealer_is_named_and_left_out_before_anybody_is_charged"
            "[other shares for one-True-True]",
        ),
        (
            unchecked_shares,
            "secure/test_hostile.py::"
            "test_holders_that_return_other_shares_are_named_and_the_sum_opens[liars0-True]",
        ),
        (
            obliging_dealer,
            "secure/test_hostile.py::"
            "test_a_server_cannot_collect_shares_by_having_honest_clients_complain_about_forgeries",
        ),
        (
            forgotten_reply,
            "flower/test_failures.py::test_a_message_that_is_lost_comes_again[seal-reply]",
        ),
        (
            endless_pricing,
            "test_small_questions.py::"
            "test_a_question_is_refused_or_priced_with_little_work[many ranks, much noise]",
        ),
        (
            ring_unchecked,
            "secure/test_cut_ring.py::"
            "test_clients_refuse_lists_that_would_cut_a_stretch_out_of_the_ring"
            "[seal-confirm-survivors-True]",
        ),
        (
            lists_unbound,
            "secure/test_lying_server.py::test_nobody_is_opened_who_was_told_of_other_members"
            "[False-ring]",
        ),
        (
            shares_unproven,
            "secure/test_shamir.py::"
            "test_a_dealer_of_shares_that_fit_no_polynomial_cannot_make_them_all_right"
            "[one more degree]",
        ),
        (
            endless_draws,
            "secure/test_cut_ring.py::"
            "test_a_server_that_draws_the_order_again_and_again_is_stopped_by_every_client",
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
