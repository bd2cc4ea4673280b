"""A pytest plugin that breaks Tacit in one named way: ``pytest -p tests.sabotage --sabotage NAME``.

``test_sabotage.py`` uses it to show that each kind of broken privacy makes a named test fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from tacit import (
    abstentions,
    charged_questions,
    closing,
    dp_training,
    endpoint,
    federation,
    files,
    journal,
    locks,
    lots,
    membership,
    oracles,
    pareto_job,
    query,
    result,
    rules,
    sessions,
    states,
    transcripts,
    tuning,
    updates,
)
from tacit.arrays import Arrays, mean_of
from tacit.audits import records, sums
from tacit.data import examples
from tacit.privacy import (
    accounting,
    bounds,
    clipped_sum,
    events,
    filters,
    ledger,
    ledger_file,
    ledger_history,
    ledger_lines,
    ledger_totals,
    losses,
    mechanisms,
    noise_lattice,
    rounded_normal,
)
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
from tacit.secure.roster import Roster
from tacit.tuners import selection
from tests.forgeries import edit


def no_lock_on_folders() -> None:
    """Whoever asks for the lock of a file has it."""
    setattr(locks, "try_lock", lambda _handle, *, shared=False: not shared)  # noqa: B010


def unsynced_files() -> None:
    """A file has its name before it is on disk."""
    setattr(files, "_sync", lambda _handle: None)  # noqa: B010


def living_drafts_removed() -> None:
    """A draft is cleared away whether or not its writer lives."""
    setattr(files, "_is_being_written", lambda _handle: False)  # noqa: B010


def believed_lines() -> None:
    """A line of a journal is believed whatever its checksum says."""
    real = journal._read

    def careless(line: bytes) -> tuple[journal.Piece, Any, str]:
        size = len(journal._seal(b""))
        return real(line[:-size] + journal._seal(line[:-size]))

    setattr(journal, "_read", careless)  # noqa: B010


def unsealed_questions() -> None:
    """Answers leave although the server's ledger does not say that they may."""
    setattr(ledger.Ledger, "seal", lambda _self, _session: None)  # noqa: B010


def free_releases() -> None:
    """A client's vector leaves, and nothing is written to the client's ledger."""
    setattr(endpoint.Endpoint, "_release", lambda *_: None)  # noqa: B010


def uncharged_door() -> None:
    """A tuner may collect answers in the clear as the server does, which is charged to nobody."""
    kind = charged_questions.ChargedQuestions
    door: Any = lambda self, query, stage: self._federation.collect(query, stage)  # noqa: E731
    setattr(kind, "collect", door)  # noqa: B010


def free_answers() -> None:
    """Answers in the clear are gathered, and nothing is written to the ledger."""

    def gather(self: federation.Federation, query: query.InClear, label: str) -> list[Arrays]:
        return self.collect(query, stage=label)

    setattr(federation.Federation, "gather", gather)  # noqa: B010


def prices_by_tuners() -> None:
    """Any class passes for a question, with the bound that its author gave it."""
    setattr(charged_questions, "_as_clients_read", lambda query, _decoder: query)  # noqa: B010


def prices_within_questions() -> None:
    """The class of a question is looked at, and those of its parts are not."""

    def outside_only(query: Any, decoder: Any) -> Any:
        if type(query) not in get_args(decoder.type):
            raise TypeError(f"the question is a {type(query).__name__}; allowed here are Ballots")
        return query

    setattr(charged_questions, "_as_clients_read", outside_only)  # noqa: B010


def prices_within_events() -> None:
    """An event that a tuner declares has the price that its class says."""
    setattr(charged_questions.ChargedQuestions, "_allowed", lambda _self, event: event)  # noqa: B010


def leaky_block() -> None:
    """The block of affordable rounds has the server's state among its attributes."""
    kind = charged_questions.ChargedQuestions
    block: Any = lambda self: self._federation.while_affordable()  # noqa: E731
    setattr(kind, "while_affordable", block)  # noqa: B010


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
        self: ledger.Ledger, event: events.Event, label: str, run: str, *, once: bool = False
    ) -> ledger.Charge:
        charge = real(self, event, label, run, once=once)
        edit(self.path, f"DELETE FROM line WHERE number = {charge.number}")
        return charge

    setattr(ledger.Ledger, "charge", charge_and_return)  # noqa: B010


def chain_not_looked_at() -> None:
    """Lines are read whatever their digests say."""
    setattr(ledger_history.History, "check_link", lambda _self, _line: None)  # noqa: B010


def locks_not_tried() -> None:
    """A ledger is opened wherever it is, whether locks keep anybody apart there or not."""
    setattr(ledger_file, "check_locks", lambda _path: None)  # noqa: B010


def understated_total() -> None:
    """The newest recorded total is believed."""
    setattr(ledger_history, "understated", lambda *_: None)  # noqa: B010


def optimistic_lines() -> None:
    """The straight line that stands for a Rényi curve is too low."""
    real = ledger_totals._straight

    def lower(release: events.SkellamRelease | events.SkellamNormRelease) -> tuple[float, float]:
        slope, _ = real(release)
        return slope / 2, 0.0

    setattr(ledger_totals, "_straight", lower)  # noqa: B010


def noise_rounded_up() -> None:
    """Many different releases are priced with more noise than they have."""
    real = noise_lattice._variance
    setattr(noise_lattice, "_place", cache(lambda v: math.ceil(math.log2(v) * 4096)))  # noqa: B010
    setattr(noise_lattice, "_variance", lambda place: real(place + 1))  # noqa: B010


def noise_rounded_to_its_own_lattice() -> None:
    """Places of a coarser lattice are no places of the finer ones."""
    real = noise_lattice._rounded
    setattr(  # noqa: B010
        noise_lattice, "_rounded", lambda shifts, place: real(shifts, place - place % 3)
    )


def frequencies_left_out() -> None:
    """Frequencies count for nothing that still carry mass."""
    real = losses._support
    setattr(losses, "_support", lambda sizes, _least: real(sizes, 1e-3))  # noqa: B010


def line_asked_twice() -> None:
    """A charge pays for the questions of any number of sessions."""
    setattr(ledger_history.History, "check_asking", lambda *_: None)  # noqa: B010


def closed_after_sealing() -> None:
    """A session whose answers may have left is closed all the same."""
    setattr(ledger_history.History, "check_closing", lambda *_: None)  # noqa: B010


def closed_and_counted() -> None:
    """A closed charge still counts."""
    setattr(ledger_totals.Spending, "remove", lambda *_: None)  # noqa: B010


def reserved_for_free() -> None:
    """A charge counts only when answers may leave."""
    readers = ledger_history._READERS

    def uncounted(self: ledger_history.History, line: ledger_lines.Line) -> None:
        readers["asked"](self, line)
        digest = ledger_lines.decoded(line, ledger_lines.AskedBody).line
        asked = self.charge_of(digest)
        assert asked
        self.spending.remove(asked.event)

    setattr(ledger_history, "_READERS", {**readers, "asked": uncounted})  # noqa: B010


def barred_and_charged() -> None:
    """A session that is never to be answered is charged."""
    setattr(ledger, "_admit", lambda *_, **__: None)  # noqa: B010
    setattr(ledger_history.History, "check_charge", lambda *_: None)  # noqa: B010


def run_held_twice() -> None:
    """Two processes go on with one run."""
    setattr(ledger, "hold", lambda *_: contextlib.nullcontext())  # noqa: B010


def line_used_twice() -> None:
    """A line that was prepaid pays for every question of its kind, and the ledger lets it."""
    real = federation.Federation._reserved

    def kept(
        self: federation.Federation,
        event: events.Event,
        label: str,
        session: bytes,
        *,
        sealed: bool = False,
    ) -> ledger.Charge:
        before = list(self.prepaid)
        charge = real(self, event, label, session, sealed=sealed)
        self.prepaid = before
        return charge

    setattr(federation.Federation, "_reserved", kept)  # noqa: B010
    forgotten_question()


def forgotten_question() -> None:
    """It is not on record that a prepaid question went out, so after a kill its line is unused."""
    setattr(ledger.Ledger, "ask", lambda *_: None)  # noqa: B010
    setattr(ledger.Ledger, "seal", lambda *_: None)  # noqa: B010


def given_back_by_most() -> None:
    """A charge is given back although a client did not sign."""
    real = closing.not_closed

    def most(roster: Roster, session: bytes, signatures: Mapping[int, bytes]) -> list[int]:
        missing = real(roster, session, signatures)
        return missing if len(missing) > 1 else []

    setattr(federation, "not_closed", most)  # noqa: B010


def given_back_by_others() -> None:
    """Members of any roster may sign for those who were asked."""
    real = ledger.Ledger.charges

    def anybodys(self: ledger.Ledger) -> list[ledger.Charge]:
        known = federation_roster[-1].hex() if federation_roster else ""
        return [dataclasses.replace(charge, roster=known) for charge in real(self)]

    federation_roster: list[bytes] = []
    settle = federation.Federation.settle

    def noting(self: federation.Federation) -> int:
        if self.roster:
            federation_roster.append(self.roster.digest)
        return settle(self)

    setattr(federation.Federation, "settle", noting)  # noqa: B010
    setattr(ledger.Ledger, "charges", anybodys)  # noqa: B010


def signed_without_barring() -> None:
    """A client signs that it released nothing, and does not see to it."""
    setattr(ledger.Ledger, "bar", lambda *_: True)  # noqa: B010


def sealed_unrecorded() -> None:
    """The server does not put on record that answers may leave from now on."""
    real = federation.Federation._opened

    def unrecorded(self: federation.Federation, *terms: Any) -> federation.Sum:
        seal = ledger.Ledger.seal
        setattr(ledger.Ledger, "seal", lambda *_: None)  # noqa: B010
        try:
            return real(self, *terms)
        finally:
            setattr(ledger.Ledger, "seal", seal)  # noqa: B010

    setattr(federation.Federation, "_opened", unrecorded)  # noqa: B010


def run_by_two() -> None:
    """Two processes carry out one run."""

    @contextmanager
    def free(_ledger: ledger.Ledger, _run: str) -> Iterator[None]:
        yield

    setattr(ledger.Ledger, "hold", free)  # noqa: B010


def composed_once() -> None:
    """A repeated event is priced as if it happened once."""
    real = events.releases

    def count_once(event: events.Event) -> Counter[events.Release]:
        return Counter(dict.fromkeys(real(event), 1))

    setattr(accounting, "releases", count_once)  # noqa: B010


def forgetful_filter() -> None:
    """A filter weighs each charge as if it were the first."""
    real = filters._gauges

    def alone(sequence: Sequence[events.Event], budget: accounting.Budget) -> list[float]:
        return [real([event], budget)[0] for event in sequence]

    setattr(filters, "_gauges", alone)  # noqa: B010


def undivided_ladder() -> None:
    """Every step of a ladder has the whole delta."""
    real = filters.split_ladder

    def whole(epsilons: Sequence[float], delta: float) -> tuple[accounting.Budget, ...]:
        return tuple(accounting.Budget(step.epsilon, delta) for step in real(epsilons, delta))

    setattr(filters, "split_ladder", whole)  # noqa: B010
    setattr(filters, "check_ladder", lambda _ladder, _budget: None)  # noqa: B010


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


def unbound_sums() -> None:
    """Survivors sign who is in a sum, and not which vectors."""
    for module in (masks, opening, transcript):
        setattr(module, "survivors_text", _names_only)  # noqa: B010


def _names_only(final: bytes, survivors: Sequence[int], _contents: bytes) -> bytes:
    return crypto.digest(b"survivors", final, repr(tuple(survivors)).encode())


def seeds_off_their_shares() -> None:
    """A seed whose hash was signed is believed, whatever its dealer shared."""
    setattr(transcript, "_is_shared", lambda *_: True)  # noqa: B010


def seeds_of_few_shares() -> None:
    """Any shares that recover a seed say which one it is, however many others could be shown."""
    setattr(shamir.Public, "tells", lambda *_: True)  # noqa: B010


def keys_of_two_secrets() -> None:
    """A secret is a drop-out's if it has its public key, also if another one has it too."""
    fits: Any = lambda secret, key: crypto.public_key(secret) == key  # noqa: E731
    setattr(crypto, "belongs", fits)  # noqa: B010


def silence_is_guilt() -> None:
    """A dealer whose answer to a complaint is lost is named as misbehaving."""
    real = opening._Session._judged

    def judged(self: Any, shares: Any, complaints: Any) -> set[int]:
        silent = real(self, shares, complaints)
        self.evidence |= {protocol.Fault(dealer, "was silent"): None for dealer in silent}
        return silent

    setattr(opening._Session, "_judged", judged)  # noqa: B010


def accusers_believed() -> None:
    """Whoever is complained about is at fault, whatever it shows."""

    def blamed(self: evidence.BadParcel, _case: evidence.Case) -> protocol.Fault:
        return protocol.Fault(self.dealer, evidence.BAD_PARCEL)

    setattr(evidence.BadParcel, "fault", blamed)  # noqa: B010


def any_public_key() -> None:
    """Public keys may have other spellings, and small order."""
    setattr(crypto, "is_public_key", lambda _key: True)  # noqa: B010


def any_key_of_a_drop_out() -> None:
    """What a drop-out's shares recover is taken for its mask key, whatever it advertised."""
    setattr(crypto, "belongs", lambda *_: True)  # noqa: B010


def unchecked_seeds() -> None:
    """A dealer may share another seed than it published the hash of, and is not named."""
    setattr(opening, "is_secret", lambda *_: True)  # noqa: B010


def unbound_dealings() -> None:
    """Survivors sign which vectors are in a sum, and not which dealings."""
    real = setup.sum_digest

    def vectors_only(vectors: Mapping[int, bytes], _dealings: Mapping[int, bytes]) -> bytes:
        return real(vectors, dict.fromkeys(vectors, b""))

    for module in (opening, transcript):
        setattr(module, "sum_digest", vectors_only)  # noqa: B010


def hasty_conviction() -> None:
    """A dealer is at fault for any right shares of its secret, also if the secret is right."""
    setattr(evidence, "is_secret", lambda *_: False)  # noqa: B010


def uncounted_clients() -> None:
    """A sum of any number of clients is opened, by the server and by the clients."""
    setattr(masks, "check_enough", lambda *_: None)  # noqa: B010
    setattr(opening._Session, "_check_enough", lambda *_: None)  # noqa: B010


def both_kinds_of_share() -> None:
    """A client gives what opens everybody's own mask and everybody's agreed masks."""

    def opened(
        self: masks.MaskedParticipant, state: messages.Masked, _survivors: Sequence[int]
    ) -> messages.Opened:
        own = {client: held[0] for client, held in state.held.items()}
        keys = {client: held[1] for client, held in state.held.items()}
        final = setup.final_digest(state.setup_digest, state.members)
        signature = self._sign(setup.opened_text(final, self.me, own, keys))
        return messages.Opened(own, keys, signature)

    setattr(masks.MaskedParticipant, "_opened", opened)  # noqa: B010


def endless_parts() -> None:
    """Boxes, shares and signatures of any length are carried to others."""
    setattr(evidence, "_are_small", lambda *_: True)  # noqa: B010
    for module in (opening, evidence):
        setattr(module, "SIGNATURE_BYTES", 2**30)  # noqa: B010


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

    def silent(self: mechanisms.SkellamMechanism) -> mechanisms.NoiseShare:
        return mechanisms.NoiseShare(self.bound, np.zeros(self.bound.length, np.int64))

    setattr(mechanisms.SkellamMechanism, "draw", silent)  # noqa: B010


def unchecked_keys() -> None:
    """Clients take anybody's keys for their neighbours': the server can swap them."""
    setattr(setup, "is_signed", lambda *_: True)  # noqa: B010


def low_threshold() -> None:
    """One survivor fewer than the noise needs may open."""
    real = vars(mechanisms.Participation)["threshold"].fget
    setattr(mechanisms.Participation, "threshold", property(lambda self: real(self) - 1))  # noqa: B010


def forgetful_client() -> None:
    """A client relies on its state alone to know what it answered."""
    real = ledger.Ledger.charge

    def charge_again(
        self: ledger.Ledger, event: events.Event, label: str, run: str, *, once: bool = False
    ) -> ledger.Charge:
        del once
        return real(self, event, label, run)

    setattr(ledger.Ledger, "knows", lambda _self, _run: False)  # noqa: B010
    setattr(ledger.Ledger, "charge", charge_again)  # noqa: B010


def unasked_deadline() -> None:
    """The first answer leaves as soon as it is ready."""
    setattr(time, "sleep", lambda _seconds: None)  # noqa: B010


def evaluation_in_the_process() -> None:
    """The client's code runs where the reply is made."""
    setattr(endpoint, "evaluated", lambda evaluate, _until, _length: evaluate())  # noqa: B010


def noise_after_the_evaluation() -> None:
    """Noise is drawn when the answer is there, or is known not to come."""

    class Late(mechanisms.NoiseShare):
        def __init__(self, mechanism: mechanisms.Mechanism) -> None:
            self.mechanism = mechanism

        def added_to(self, answer: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return self.mechanism.draw().added_to(answer)

    setattr(endpoint.Endpoint, "_drawn", lambda _self, mechanism: Late(mechanism))  # noqa: B010


def unfinished_answers() -> None:
    """What is left to do is begun at once by those that answered, and late by the others."""
    setattr(endpoint, "_wait", lambda _until: None)  # noqa: B010


def endless_pricing() -> None:
    """Whatever is asked is priced, however long that takes."""
    for module, name in ((accounting, "MOST_WORK"), (events, "MOST_DISTANCES")):
        setattr(module, name, float("inf"))


def fine_grids_for_steps() -> None:
    """Places of the grid of a step of DP-SGD count for nothing."""
    setattr(events, "_ENTRIES_PER_PLACE", 0)  # noqa: B010


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


def float_perturbation() -> None:
    """Noise on trained weights is of single precision, added to weights on no grid."""

    def normal(_self: Any, deviation: Any, shape: Any) -> Any:
        return deviation * np.random.default_rng().normal(size=shape).astype(np.float32)

    setattr(dp_training.Secret, "rounded_normal", normal)  # noqa: B010
    setattr(oracles, "snapped", lambda weights, grid: weights / grid)  # noqa: B010


def seeded_perturbation() -> None:
    """Noise on the weights of a private front comes from the plan's seed."""
    real = oracles.OutputPerturbation.of

    def seeded(data: Any, **more: Any) -> Any:
        return real(data, **{**more, "secret": False})

    setattr(oracles.OutputPerturbation, "of", seeded)  # noqa: B010


def long_rows() -> None:
    """Rows go into training with whatever norm and class they have."""
    setattr(oracles, "_bounded_rows", lambda data: data.features.astype(np.float64))  # noqa: B010


def float_noise() -> None:
    """Noise is floating-point, which does not stay on the grid."""

    def normal(deviation: Any, shape: Any) -> Any:
        return deviation * np.random.default_rng().normal(size=shape)

    setattr(rules, "rounded_normal", normal)  # noqa: B010


def quiet_front() -> None:
    """An error on a front has half of the noise that is charged."""

    def half(deviation: Any, shape: Any) -> Any:
        return rounded_normal.rounded_normal(deviation / 2, shape)

    setattr(pareto_job, "rounded_normal", half)  # noqa: B010


def points_taken_twice() -> None:
    """A front's line pays for a point as often as it is measured."""
    setattr(ledger.Ledger, "take", lambda _self, _charge, _part: True)  # noqa: B010


def front_charged_once() -> None:
    """A front is known by its plan, so that every folder goes on with the first one's charge."""
    points_taken_twice()
    setattr(pareto_job, "token_hex", lambda _size: "of the plan")  # noqa: B010


def front_on_any_line() -> None:
    """A front goes on with the first line of its run, whatever that line paid for."""
    real = ledger.Ledger.charges

    def alike(self: ledger.Ledger) -> list[ledger.Charge]:
        return [
            dataclasses.replace(charge, event=LikeAny(charge.event.events))
            if isinstance(charge.event, events.Composed)
            else charge
            for charge in real(self)
        ]

    class LikeAny(events.Composed):
        def __eq__(self, _other: object) -> bool:
            return True

        __hash__ = events.Composed.__hash__

    setattr(ledger.Ledger, "charges", alike)  # noqa: B010


def unsnapped_sum() -> None:
    """Noise is on the grid, the sum that it is added to is not."""
    setattr(dp_training, "snapped", lambda total, step: total / step)  # noqa: B010


def smaller_normal() -> None:
    """A rounded normal has 99 % of its deviation."""
    real = rounded_normal._from_words

    def smaller(words: Any, deviations: Any, error: float) -> Any:
        return real(words, 0.99 * deviations, error)

    setattr(rounded_normal, "_from_words", smaller)  # noqa: B010


def guessed_digits() -> None:
    """A draw that its first digits do not decide is not given any more."""
    setattr(rounded_normal, "_settled", lambda _d, candidates, *_: candidates[0])  # noqa: B010


def uncharged_grid() -> None:
    """Noise is in units of the clipping norm, as if sums were exact."""
    setattr(clipped_sum, "charged_sensitivity", lambda clip, _: 1.0 * clip)  # noqa: B010


def groups_cut() -> None:
    """A lot has one row of every group that is drawn."""
    setattr(lots.Units, "rows", lambda _self, units: units)  # noqa: B010


def heavy_groups() -> None:
    """Every row of a group weighs as much as one that stands alone."""
    real = lots.Units.__init__

    def heavy(self: lots.Units, examples: Any) -> None:
        real(self, examples)
        self.weights = np.ones(len(examples))

    setattr(lots.Units, "__init__", heavy)  # noqa: B010


def packed_rows() -> None:
    """Where a row stands, and in how large an array, depends on who else is in the lot."""
    setattr(dp_training.Secret, "placed", dp_training.Seeded.placed)  # noqa: B010


def uncharged_rounding() -> None:
    """A training's noise is in units of the clipping norm, as if its sums were exact."""
    setattr(dp_training, "charged_sensitivity", lambda clip, _: 1.0 * clip)  # noqa: B010


def uncharged_rounding_of_rules() -> None:
    """The same as :func:`uncharged_rounding`, in update rules."""
    setattr(rules, "charged_sensitivity", lambda clip, _: 1.0 * clip)  # noqa: B010


def packed_rows_of_rules() -> None:
    """The same as :func:`packed_rows`, in update rules."""
    setattr(rules, "scattered", lambda units, drawn, _rate: lots.packed(units, drawn))  # noqa: B010


def groups_in_one_array() -> None:
    """Rows of groups get random places in an array whose size depends on the rows of all groups."""

    def one_array(units: lots.Units, drawn: Any, _rate: float) -> Any:
        members = [units.rows(lot) for lot in drawn]
        shape = len(drawn), 1, len(units.weights)
        order = np.random.default_rng().permuted(
            np.tile(np.arange(shape[2]), (shape[0], 1)), axis=1
        )
        places = [own[: len(rows)] for own, rows in zip(order, members, strict=True)]
        return lots._placed(units, members, places, shape)

    for module in (dp_training, rules):
        setattr(module, "scattered", one_array)  # noqa: B010


def scores_in_one_array() -> None:
    """Where a row is scored, and beside how many others, depends on the rows of other groups."""

    def one_after_the_other(self: lots.Units, at_once: int) -> Any:
        for begin in range(0, len(self._groups), at_once):
            yield np.arange(begin, min(begin + at_once, len(self._groups)))[None]

    setattr(lots.Units, "every_row", one_after_the_other)  # noqa: B010


def known_order() -> None:
    """A selection tries the candidates in an order that everybody knows."""
    known = type("Known", (), {"randbelow": staticmethod(lambda _limit: 0)})
    setattr(selection, "secrets", known)  # noqa: B010


def split_by_content() -> None:
    """Which records validate is drawn with a seed that is computed from all records."""
    real = examples.split_validation

    def seeded(whole: examples.Examples, fraction: float, key: int | bytes) -> Any:
        return real(
            whole, fraction, repr(key).encode() + whole.features.tobytes() + whole.labels.tobytes()
        )

    setattr(examples, "split_validation", seeded)  # noqa: B010


def redealt_split() -> None:
    """A seeded permutation of all records: one record more deals all of them anew."""

    def permuted(count: int, _purpose: str, key: int | bytes) -> Any:
        seed = int.from_bytes(repr(key).encode(), "little")
        return np.random.default_rng(seed).permutation(count)

    setattr(examples, "_by_coin", permuted)  # noqa: B010


def groups_cut_in_two() -> None:
    """A split takes single rows, also where they belong together."""
    setattr(examples.Examples, "units", property(len))  # noqa: B010
    setattr(examples.Examples, "take_units", examples.Examples.take)  # noqa: B010


def rate_of_rows() -> None:
    """A sampling rate is computed from rows, of which a group may have many."""
    rate = property(lambda self: self.recipe.lot / len(self.examples))
    setattr(selection.Selection, "rate", rate)  # noqa: B010


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


def unchecked_thresholds() -> None:
    """Whatever reaches a threshold is used."""
    setattr(federation, "check_reached", lambda *_: None)  # noqa: B010


def transcripts_of_a_few() -> None:
    """A transcript may say itself how many members there are."""
    real = transcripts.Record.check

    def check(
        self: transcripts.Record, charges: dict[str, ledger.Charge], roster: Roster, _: Any
    ) -> Any:
        asked = msgspec.msgpack.decode(self.question, type=endpoint.AskSum)
        terms = (asked.clients, asked.dropout, asked.colluding)
        return real(self, charges, roster, mechanisms.Participation(*terms))

    setattr(transcripts.Record, "check", check)  # noqa: B010


def unkept_evidence() -> None:
    """Who spoiled a sum that stays closed is the server's word."""
    setattr(transcripts.ClosedRecord, "keep", lambda *_: True)  # noqa: B010


def unsigned_evidence() -> None:
    """Whoever keeps evidence of a closed sum need not show that anybody signed it."""
    real = transcript.Closed.case

    def case(self: transcript.Closed, around: protocol.Round, roster: Roster) -> evidence.Case:
        return dataclasses.replace(real(self, around, roster), roster=None)

    setattr(transcript.Closed, "case", case)  # noqa: B010


def rows_of_no_class_raise() -> None:
    """A row whose label is no class ends the training in which it is drawn."""

    def loss(model: Any, parameters: Any, features: Any, labels: Any) -> Any:
        import torch

        logits = torch.func.functional_call(model.template, parameters, (features,))
        return torch.nn.functional.cross_entropy(logits, labels)

    setattr(rules._Model, "loss", loss)  # noqa: B010


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
        kept = endpoint._known(state)
        told = states.to_bytes(structs.replace(kept, request=b"")) if kept else state
        return real(self, told, request)

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


def one_state_for_all() -> None:
    """A node has one state, which the message of any session reads and replaces."""
    real = states.StatesInFolder.open

    def shared(self: states.StatesInFolder, heading: states.Heading) -> Any:
        return real(self, dataclasses.replace(heading, session=bytes(32).hex()))

    setattr(states.StatesInFolder, "open", shared)  # noqa: B010
    believe_any_state()


def believe_any_state() -> None:
    """A state that cannot be read is left where it is, and counts as none."""

    def read(self: states.StateFile) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    setattr(states.StateFile, "read", read)  # noqa: B010


def session_begun_again() -> None:
    """A session whose state was removed before it opened is begun like a new one."""
    setattr(sessions.Sessions, "end", lambda *_: None)  # noqa: B010


def half_the_noise_for_an_audit() -> None:
    """The same as :func:`halved_variance`, which an audit of the vote has to notice by itself."""
    halved_variance()


def front_charged_once_for_an_audit() -> None:
    """The same as :func:`front_charged_once`, which an audit of the front has to notice."""
    front_charged_once()


def masked_without_noise() -> None:
    """Clients add no noise where a whole federation asks; alone, the mechanism is right."""
    setattr(endpoint.Endpoint, "_drawn", sums.Curious._drawn)  # noqa: B010


def half_the_noise_of_endpoints() -> None:
    """Clients add half of the noise where a whole federation asks; for audits it is all there."""

    def drawn(_self: Any, mechanism: mechanisms.SkellamMechanism) -> mechanisms.NoiseShare:
        return dataclasses.replace(mechanism, variance=mechanism.variance / 2).draw()

    real = sums.Curious._drawn
    setattr(endpoint.Endpoint, "_drawn", drawn)  # noqa: B010
    setattr(sums.Curious, "_drawn", real)  # noqa: B010


def half_the_noise_of_endpoints_for_runs() -> None:
    """The same, which ``tacit audit --runs N`` has to notice however small N is."""
    half_the_noise_of_endpoints()


def forgotten_charge() -> None:
    """The first vote is asked and opened, and never charged to the server's ledger."""
    real = federation.Federation._reserved

    def forgetful(
        self: federation.Federation,
        event: events.Event,
        label: str,
        session: bytes,
        *,
        sealed: bool = False,
    ) -> ledger.Charge:
        if label != "vote":
            return real(self, event, label, session, sealed=sealed)
        elsewhere = ledger.Ledger.in_memory("elsewhere", self.ledger.budget)
        charge = elsewhere.charge_and_ask(event, label, self.run, session.hex())
        seal = ledger.Ledger.seal

        def sealing(charged: ledger.Ledger, asked: str) -> None:
            seal(elsewhere if asked == session.hex() else charged, asked)

        setattr(ledger.Ledger, "seal", sealing)  # noqa: B010
        return charge

    setattr(federation.Federation, "_reserved", forgetful)  # noqa: B010


def vote_not_charged() -> None:
    """The same as :func:`forgotten_charge`, where there is no other charge."""
    forgotten_charge()


def selection_not_charged() -> None:
    """A selection is released, and what a method does with data that it holds costs nothing."""
    setattr(charged_questions.ChargedQuestions, "charge", lambda *_: None)  # noqa: B010


def front_not_charged() -> None:
    """A front is charged to a ledger that nobody keeps."""
    boundless = accounting.Budget(math.inf, 1e-5)
    elsewhere: Any = lambda federation, _: ledger.Ledger.in_memory(federation, boundless)  # noqa: E731
    setattr(ledger.Ledger, "of", elsewhere)  # noqa: B010


def record_not_charged() -> None:
    """Weights are collected and averaged, and nothing is written to the server's ledger."""

    def average(
        self: charged_questions.ChargedQuestions, query: query.InClear, label: str
    ) -> tuple[npt.NDArray[np.float32], ...]:
        return mean_of(self._federation.collect(query, stage=label.split()[0]))

    setattr(charged_questions.ChargedQuestions, "average", average)  # noqa: B010


def price_of_adding() -> None:
    """Steps of DP-SGD are priced as if a record could be added or removed, not replaced."""
    from dp_accounting.pld import privacy_loss_distribution

    def added(rate: float, noise: float, interval: float) -> Any:
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=interval
        )

    setattr(events, "replaced_pld", added)  # noqa: B010


def float_noise_for_an_audit() -> None:
    """DP-SGD adds single-precision noise to sums that are on no grid."""

    def normal(_self: Any, deviation: Any, shape: tuple[int, ...]) -> Any:
        grid = float(clipped_sum.grid_step(1.0, 2))
        noise = deviation * grid * np.random.default_rng().normal(size=shape)
        return noise.astype(np.float32).astype(np.float64) / grid

    setattr(dp_training.Secret, "rounded_normal", normal)  # noqa: B010
    setattr(dp_training, "snapped", lambda total, step: total / step)  # noqa: B010


def split_by_content_for_an_audit() -> None:
    """The same as :func:`split_by_content`, which an audit has to notice by itself."""
    split_by_content()
    setattr(records, "split_validation", examples.split_validation)  # noqa: B010


def unit_by_its_name() -> None:
    """Whom an epsilon is about is guessed from an attribute that happens to be called ``mode``."""

    def guessed(method: Any, _space: Any) -> str:
        return "record" if getattr(method, "mode", "") == "record" else "client"

    setattr(tuning, "unit_of", guessed)  # noqa: B010


def skipped_rounds_are_free() -> None:
    """Rounds are charged as they are asked, so that those that noise makes skip cost nothing."""
    setattr(federation.Federation, "prepay", lambda *_: None)  # noqa: B010


def marks_beyond_the_price() -> None:
    """Whoever abstains leaves marks twice as heavy as a ballot's weights, at the price of those."""
    kind = bounds.WithAbstentions
    real: Any = vars(kind)["marks"].fget
    heavy = property(lambda self: tuple(2 * weight for weight in real(self)))
    setattr(kind, "marks", heavy)  # noqa: B010


def abstains_unmarked() -> None:
    """Whoever abstains casts a random ballot, and leaves no mark."""

    def abstention(self: bounds.WithAbstentions) -> npt.NDArray[np.int64]:
        votes = self.ballots.abstention()
        return np.concatenate([votes, np.zeros(len(self.marks), dtype=np.int64)])

    setattr(bounds.WithAbstentions, "abstention", abstention)  # noqa: B010


def warning_never_comes() -> None:
    """However many abstained, it is never said that most did."""
    setattr(abstentions.Abstentions, "prevail", property(lambda _self: False))  # noqa: B010


def training_unpaid_if_it_is_not_held() -> None:
    """Training is charged as it is held, so that what is charged tells what a vote counted."""
    setattr(charged_questions.ChargedQuestions, "prepay", lambda *_: None)  # noqa: B010


SABOTAGES: dict[str, tuple[Callable[[], None], str]] = {
    function.__name__: (function, test)
    for function, test in (
        (
            unsealed_questions,
            "faults/test_campaigns.py::test_whatever_goes_wrong_in_a_federation_is_paid_and_noted",
        ),
        (
            free_releases,
            "faults/test_campaigns.py::test_whatever_goes_wrong_in_a_federation_is_paid_and_noted",
        ),
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
        (
            marks_beyond_the_price,
            "privacy/test_bounds.py::"
            "test_counted_abstentions_lie_no_further_apart_than_ballots"
            "[TopVotes(candidates=4, votes=2, unit=1)-range(0, 3)]",
        ),
        (
            abstains_unmarked,
            "test_abstentions.py::test_who_abstains_is_marked_and_who_votes_is_not",
        ),
        (
            warning_never_comes,
            "test_abstentions.py::test_a_deadline_that_everybody_misses_is_told",
        ),
        (
            training_unpaid_if_it_is_not_held,
            "test_abstentions.py::test_private_training_that_is_not_held_is_charged_all_the_same",
        ),
        (unenforced_bound, "privacy/test_mechanisms.py::test_noise_is_refused_outside_the_bound"),
        (refund, "privacy/test_ledger.py::test_a_failed_question_stays_paid"),
        (
            chain_not_looked_at,
            "privacy/test_ledger_faults.py::test_one_byte_does_not_turn_a_budget_of_one_into_nine",
        ),
        (
            locks_not_tried,
            "privacy/test_ledger_faults.py::"
            "test_where_the_newer_kind_of_lock_is_unknown_another_process_tries",
        ),
        (
            understated_total,
            "privacy/test_ledger.py::"
            "test_nothing_is_spent_where_the_newest_total_is_understated[0.99]",
        ),
        (
            optimistic_lines,
            "privacy/test_ledger_totals.py::test_the_straight_line_is_above_the_curve[release1]",
        ),
        (
            noise_rounded_up,
            "privacy/test_noise_lattice.py::"
            "test_no_noise_is_rounded_up_or_far_down_and_rounding_twice_changes_nothing",
        ),
        (
            noise_rounded_to_its_own_lattice,
            "privacy/test_noise_lattice.py::"
            "test_a_part_has_at_least_the_noise_that_it_has_in_the_whole",
        ),
        (
            frequencies_left_out,
            "privacy/test_losses.py::test_a_composition_is_the_convolution_of_its_parts[times0]",
        ),
        (
            line_asked_twice,
            "privacy/test_ledger_states.py::test_a_charge_pays_for_the_question_of_one_session",
        ),
        (
            closed_after_sealing,
            "privacy/test_ledger_states.py::test_a_charge_pays_for_the_question_of_one_session",
        ),
        (
            closed_and_counted,
            "privacy/test_ledger_states.py::"
            "test_a_closed_charge_counts_nowhere_and_is_never_asked_again",
        ),
        (
            reserved_for_free,
            "privacy/test_ledger_states.py::"
            "test_a_closed_charge_counts_nowhere_and_is_never_asked_again",
        ),
        (
            barred_and_charged,
            "privacy/test_ledger_states.py::"
            "test_a_barred_session_is_never_charged_and_a_charged_one_never_barred",
        ),
        (
            run_held_twice,
            "privacy/test_ledger_states.py::"
            "test_a_run_is_held_by_one_process_and_let_go_when_it_dies",
        ),
        (composed_once, "privacy/test_accounting.py::test_repeating_costs_as_often"),
        (
            forgetful_filter,
            "privacy/test_filters.py::test_no_adversary_within_the_filter_exceeds_its_budget",
        ),
        (
            undivided_ladder,
            "privacy/test_filters.py::test_the_steps_of_a_ladder_share_one_delta",
        ),
        (missing_mask, "secure/test_masks.py::test_every_pair_of_neighbours_shares_a_mask"),
        (reused_box_secret, "secure/test_masks.py::test_no_box_key_is_used_twice"),
        (
            unbound_sums,
            "secure/test_transcript.py::"
            "test_an_accomplice_cannot_sign_another_vector_once_the_sum_is_open",
        ),
        (
            seeds_off_their_shares,
            "secure/test_transcript.py::"
            "test_an_accomplice_with_two_seeds_cannot_choose_between_two_sums",
        ),
        (
            seeds_of_few_shares,
            "secure/test_transcript.py::"
            "test_a_seed_that_shares_do_not_tell_for_sure_is_not_taken_for_it",
        ),
        (
            keys_of_two_secrets,
            "secure/test_transcript.py::"
            "test_a_drop_out_with_two_keys_cannot_choose_between_two_sums",
        ),
        (
            silence_is_guilt,
            "secure/test_hostile.py::"
            "test_an_honest_dealer_is_not_named_if_its_answer_to_a_false_complaint_is_lost"
            "[lost-False]",
        ),
        (
            accusers_believed,
            "secure/test_hostile.py::"
            "test_whoever_complains_without_cause_is_left_out_instead_of_its_victim[True]",
        ),
        (
            any_public_key,
            "secure/test_hostile.py::test_a_copied_key_takes_no_mask_off_anybody"
            "[3-1-another_spelling]",
        ),
        (
            any_key_of_a_drop_out,
            "secure/test_hostile.py::test_a_drop_out_that_shared_another_key_is_named[True]",
        ),
        (
            unchecked_seeds,
            "secure/test_hostile.py::"
            "test_a_dealer_of_a_number_beyond_32_bytes_is_named_and_the_sum_opens",
        ),
        (
            unbound_dealings,
            "secure/test_transcript.py::"
            "test_an_accomplice_cannot_sign_another_dealing_once_the_sum_is_open",
        ),
        (
            hasty_conviction,
            "secure/test_transcript.py::test_no_evidence_about_honest_clients_stands_up[nobody]",
        ),
        (
            uncounted_clients,
            "secure/test_masks.py::test_below_the_threshold_nothing_opens_at_any_stage[seal-False]",
        ),
        (
            both_kinds_of_share,
            "secure/test_masks.py::test_no_client_gives_both_kinds_of_share_of_one_client",
        ),
        (
            endless_parts,
            "secure/test_hostile.py::test_a_member_without_a_roster_sends_nobody_more_than_is_read",
        ),
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
            split_by_content,
            "data/test_examples.py::test_replacing_a_unit_leaves_all_others_where_they_are",
        ),
        (redealt_split, "data/test_examples.py::test_one_unit_more_moves_at_most_one_other"),
        (
            groups_cut_in_two,
            "data/test_examples.py::"
            "test_both_parts_of_a_split_have_exactly_their_size_in_whole_groups",
        ),
        (
            rate_of_rows,
            "tuners/test_selection.py::test_the_rate_depends_on_groups_and_not_on_their_rows",
        ),
        (
            seeded_front,
            "test_pareto_job.py::test_a_private_front_has_noise_that_no_seed_tells",
        ),
        (
            front_charged_once,
            "test_pareto_job.py::test_a_private_front_is_charged_in_every_folder",
        ),
        (
            points_taken_twice,
            "test_pareto_job.py::test_copies_of_a_private_front_do_not_share_a_charge",
        ),
        (
            front_on_any_line,
            "test_pareto_job.py::test_a_private_front_on_other_data_is_charged_anew",
        ),
        (half_the_noise_for_an_audit, "audits/test_auditing.py::test_an_audit_finds_nothing[vote]"),
        (
            masked_without_noise,
            "audits/test_auditing.py::test_an_audit_finds_nothing[averaging]",
        ),
        (
            half_the_noise_of_endpoints,
            "audits/test_auditing.py::test_the_quick_size_notices_the_noise_of_endpoints[averaging]",
        ),
        (
            front_charged_once_for_an_audit,
            "audits/test_auditing.py::test_an_audit_finds_nothing[front]",
        ),
        (price_of_adding, "audits/test_auditing.py::test_an_audit_finds_nothing[dp-sgd-steps]"),
        (float_noise_for_an_audit, "audits/test_auditing.py::test_an_audit_finds_nothing[dp-sgd]"),
        (forgotten_charge, "audits/test_auditing.py::test_an_audit_finds_nothing[auto]"),
        (
            vote_not_charged,
            "audits/test_forgotten_charges.py::test_the_command_finds_nothing[vote]",
        ),
        (
            selection_not_charged,
            "audits/test_forgotten_charges.py::test_the_command_finds_nothing[selection]",
        ),
        (
            front_not_charged,
            "audits/test_forgotten_charges.py::test_the_command_finds_nothing[front]",
        ),
        (
            record_not_charged,
            "audits/test_forgotten_charges.py::test_the_command_finds_nothing[record]",
        ),
        (
            half_the_noise_of_endpoints_for_runs,
            "audits/test_forgotten_charges.py::test_the_command_finds_nothing[vote]",
        ),
        (
            split_by_content_for_an_audit,
            "audits/test_auditing.py::test_an_audit_finds_nothing[selection]",
        ),
        (
            unit_by_its_name,
            "test_units.py::test_a_mode_called_record_does_not_make_a_method_about_records",
        ),
        (
            skipped_rounds_are_free,
            "tuners/test_bandit.py::"
            "test_reward_rounds_that_are_skipped_are_charged_all_the_same[dp]",
        ),
        (line_used_twice, "test_federation.py::test_a_prepaid_line_pays_for_one_question"),
        (
            given_back_by_most,
            "test_closing.py::test_one_silent_client_keeps_a_charge_spent_until_it_is_back",
        ),
        (
            given_back_by_others,
            "test_closing.py::test_signatures_of_another_roster_give_nothing_back",
        ),
        (
            signed_without_barring,
            "test_closing.py::test_a_client_that_signed_seals_nothing_even_from_an_old_state[False]",
        ),
        (
            sealed_unrecorded,
            "test_closing.py::test_what_may_have_been_sealed_stays_spent[open-False]",
        ),
        (run_by_two, "test_closing.py::test_two_resumers_at_once_are_one_too_many"),
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
            unchecked_thresholds,
            "test_plausible.py::"
            "test_more_marks_than_valid_answers_have_spoil_what_reaches_a_threshold[100-True]",
        ),
        (
            transcripts_of_a_few,
            "test_transcripts.py::"
            "test_two_accomplices_cannot_pass_another_sum_off_as_the_federations",
        ),
        (
            unkept_evidence,
            "test_transcripts.py::test_who_spoiled_a_sum_is_proved_though_it_stays_closed",
        ),
        (
            unsigned_evidence,
            "secure/test_transcript.py::"
            "test_no_evidence_about_honest_clients_stands_up_in_a_closed_sum",
        ),
        (rows_of_no_class_raise, "test_labels_of_no_class.py::test_a_replaced_record_stops_nobody"),
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
            noise_after_the_evaluation,
            "test_punctual.py::test_nothing_is_drawn_after_the_evaluation[at_once]",
        ),
        (
            unfinished_answers,
            "test_punctual.py::test_what_follows_an_evaluation_begins_at_the_same_time",
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
            fine_grids_for_steps,
            "test_small_questions.py::"
            "test_a_question_in_clear_is_refused_or_priced_with_little_work[rare and large]",
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
            one_state_for_all,
            "test_states.py::"
            "test_two_runs_on_the_same_members_both_open_in_whatever_order_they_ask",
        ),
        (
            session_begun_again,
            "test_states.py::test_a_session_whose_state_was_removed_is_not_answered_again[seal]",
        ),
        (
            believe_any_state,
            "test_states.py::test_a_damaged_state_ends_its_own_sum_and_no_other[empty]",
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
        (
            float_perturbation,
            "test_oracles.py::test_noisy_weights_are_whole_steps_with_the_noise_that_is_charged",
        ),
        (
            seeded_perturbation,
            "test_pareto_job.py::"
            "test_a_private_front_of_perturbed_weights_is_charged_and_no_seed_tells_its_noise",
        ),
        (
            long_rows,
            "test_oracles.py::"
            "test_rows_beyond_every_bound_move_the_perturbed_weights_no_further[1000 times longer]",
        ),
        (float_noise, "test_rules.py::test_a_gradient_is_a_whole_number_of_steps"),
        (
            quiet_front,
            "test_pareto_job.py::"
            "test_a_released_error_has_the_noise_that_is_charged_in_whole_steps",
        ),
        (
            unsnapped_sum,
            "privacy/test_float_holes.py::test_a_released_model_has_no_holes[on_a_shifted_grid]",
        ),
        (
            smaller_normal,
            "privacy/test_rounded_normal.py::"
            "test_every_draw_is_in_the_cell_that_its_digits_say[1000000.0]",
        ),
        (
            guessed_digits,
            "privacy/test_rounded_normal.py::"
            "test_digits_that_decide_nothing_are_followed_by_more[1.0]",
        ),
        (
            uncharged_grid,
            "privacy/test_clipped_sum.py::"
            "test_the_grid_is_a_power_of_two_and_costs_little[1.0-106]",
        ),
        (groups_cut, "test_dp_training.py::test_a_lot_never_cuts_a_group_in_two[poisson-secret]"),
        (
            heavy_groups,
            "test_dp_training.py::test_a_group_moves_a_step_as_a_single_row_may[poisson]",
        ),
        (packed_rows, "test_lots.py::test_arrays_have_the_same_shape_whoever_is_in"),
        (packed_rows_of_rules, "test_rules.py::test_arrays_have_the_same_shape_whoever_is_in"),
        (
            groups_in_one_array,
            "test_dp_training.py::test_a_group_with_more_rows_moves_no_other[poisson]",
        ),
        (
            scores_in_one_array,
            "test_lots.py::test_a_group_with_more_rows_changes_no_answer_about_others[33]",
        ),
        (
            uncharged_rounding,
            "test_dp_training.py::test_noise_is_in_units_of_the_charged_sensitivity[fixed-2.0]",
        ),
        (
            uncharged_rounding_of_rules,
            "test_rules.py::test_noise_is_in_units_of_the_charged_sensitivity",
        ),
        (
            uncharged_door,
            "test_charged_questions.py::"
            "test_a_tuner_finds_every_other_door_closed[answers without a charge]",
        ),
        (
            free_answers,
            "test_contracts.py::TestEveryTuner::test_pays_for_every_question_before_it_is_asked"
            "[opt-sobol-6]",
        ),
        (
            prices_by_tuners,
            "test_charged_questions.py::test_a_tuner_cannot_bring_its_own_price[votes]",
        ),
        (
            prices_within_questions,
            "test_charged_questions.py::"
            "test_a_tuner_cannot_bring_its_own_price[the rule of a training]",
        ),
        (
            prices_within_events,
            "test_charged_questions.py::"
            "test_a_tuner_cannot_bring_its_own_price[votes paid beforehand]",
        ),
        (
            leaky_block,
            "test_charged_questions.py::"
            "test_nothing_of_the_server_is_reachable_from_what_a_tuner_holds",
        ),
        (
            no_lock_on_folders,
            "test_one_writer.py::"
            "test_a_second_writer_is_refused_with_the_folder_and_the_process_that_holds_it",
        ),
        (
            unsynced_files,
            "test_files.py::test_a_file_is_on_disk_before_it_has_its_name_and_the_name_after",
        ),
        (
            living_drafts_removed,
            "test_files.py::test_a_draft_that_a_living_process_writes_stays",
        ),
        (
            believed_lines,
            "test_journal.py::test_every_damage_in_a_whole_line_is_one_sentence",
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
