"""One client whose answers in clear are not what was asked for: left out, counted, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.arrays import Array, Arrays, mean_of_models
from tacit.charged_questions import ChargedQuestions
from tacit.endpoint import AskInClear, AskSum, Continue, Endpoint, encode
from tacit.federation import EvaluationFailed, Federation
from tacit.privacy.accounting import Budget
from tacit.query import LocalTraining
from tacit.secure.protocol import TooFewClients
from tacit.space import Config
from tacit.training import federated_average
from tacit.tuners.adaptive import AdaptiveRate
from tacit.tuners.bandit import Bandit
from tacit.tuners.baselines import Opt
from tacit.tuners.combine import Combine
from tacit.tuners.fedex import FedEx
from tacit.tuners.flora import Flora
from tacit.tuners.tuner import Tuner, noise_for
from tacit.tuning import conclude
from tests.federations import channel, federation
from tests.test_contracts import SPACE, STAGE, TASK, learner, named

CLIENTS, LIAR = 6, 2
INFINITE = Budget(math.inf, 1e-5)
METHODS: list[Tuner] = [
    Opt(TASK.initial, rounds=2, epochs=1, candidates=6),
    Bandit(TASK.initial, STAGE, candidates=6, mode="clear"),
    FedEx(TASK.initial, rounds=3, candidates=5, mode="clear"),
    FedEx(TASK.initial, rounds=3, candidates=5, mode="rewards-only"),
    AdaptiveRate(TASK.initial, rounds=3, mode="clear"),
    Combine("mean", "clear", candidates=12),
    Combine("dbscan", "clear", candidates=6, sampling="tpe"),
    Flora("sgm", "clear", candidates=12),
]
"""Together they ask every question in clear that there is."""

Lie = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Lying(Endpoint):
    """Answers sums as it should, and questions in clear as it likes."""

    lie: Lie = lambda reply: reply

    def handle(self, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        state, reply = super().handle(state, request)
        message = msgspec.msgpack.decode(request, type=AskSum | Continue | AskInClear)
        return state, self.lie(reply) if isinstance(message, AskInClear) else reply


def with_liars(lie: Lie, *liars: int, variance: float = 1.0, **more: Any) -> Federation:
    """Six real clients, of whom two may be missing."""
    clients = [learner(number) for number in range(CLIENTS)]
    built = federation(clients, variance, budget=INFINITE, dropout=0.35, trains=True, **more)
    local = channel(built)
    endpoints = list(local.endpoints)
    for liar in liars:
        endpoints[liar] = Lying(**vars(endpoints[liar]), lie=lie)
    local.endpoints = endpoints
    return built


def of_arrays(change: Callable[[list[Array]], Any]) -> Lie:
    """Another list of arrays."""
    return lambda reply: encode(change(list(msgspec.msgpack.decode(reply, type=Arrays))))


def of_last(change: Callable[[Array], Array]) -> Lie:
    """Another last array."""
    return of_arrays(lambda arrays: [*arrays[:-1], change(arrays[-1])])


def filled(value: float, kind: str = "") -> Lie:
    """Every number of every array is this."""

    def full(array: Array) -> Array:
        return Array.of(np.full(array.shape, value, kind or array.kind))

    return of_arrays(lambda arrays: list(map(full, arrays)))


UNUSABLE: dict[str, tuple[Lie, str]] = {
    "nothing": (lambda _reply: b"", "it cannot be read"),
    "garbage": (lambda _reply: b"\xc1", "it cannot be read"),
    "cut short": (lambda reply: reply[:-1], "it cannot be read"),
    "a text": (lambda _reply: encode("0.93"), "it cannot be read"),
    "a bad text": (lambda _reply: b"\x91\x93\xa2\xff\xfe\x90\xc4\x00", "it cannot be read"),
    "nested": (lambda _reply: b"\x91" * 100_000, "it cannot be read"),
    "no arrays": (of_arrays(lambda _arrays: []), "another number of arrays"),
    "an array more": (of_arrays(lambda a: [*a, a[0]]), "another number of arrays"),
    "an array less": (of_arrays(lambda a: a[1:]), "another number of arrays"),
    "another order of axes": (
        of_last(lambda a: Array(a.kind, (1, *a.shape), a.data)),
        "another shape",
    ),
    "a giant shape": (of_last(lambda a: Array(a.kind, (2**62,), a.data)), "another shape"),
    "a negative shape": (of_last(lambda a: Array(a.kind, (-1,), a.data)), "another shape"),
    "missing bytes": (of_last(lambda a: Array(a.kind, a.shape, a.data[:-1])), "do not fit"),
    "no bytes": (of_last(lambda a: Array(a.kind, a.shape, b"")), "do not fit"),
    "bytes too many": (of_last(lambda a: Array(a.kind, a.shape, a.data * 2)), "do not fit"),
    "whole numbers": (
        of_last(lambda a: Array.of(np.ones(a.shape, np.int64))),
        "another kind",
    ),
    "objects": (of_last(lambda a: Array("|O", a.shape, a.data)), "another kind"),
    "no number": (filled(math.nan), "not finite"),
    "infinity": (filled(math.inf), "not finite"),
    "less than any number": (filled(-math.inf), "not finite"),
    "more than single precision": (filled(1e300, "<f8"), "not finite"),
}


@pytest.mark.parametrize("method", METHODS, ids=named)
@pytest.mark.parametrize("name", UNUSABLE)
def test_an_answer_that_cannot_be_used_is_left_out_and_counted(method: Tuner, name: str) -> None:
    lie, why = UNUSABLE[name]
    built = with_liars(lie, LIAR, variance=noise_for(method, SPACE, INFINITE))
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(5))
    SPACE.encode(outcome.config)
    for array in outcome.weights or ():
        assert np.isfinite(array).all()
    (reason,) = built.unusable
    assert why in reason
    asked = built.unusable[reason]
    assert [answered for _, answered in built.turnouts].count(CLIENTS - 1) == asked
    result = conclude(method, outcome, built, INFINITE)
    assert result.clients.answered == CLIENTS - 1
    assert f"{asked} answer(s) in clear could not be used" in result.note
    assert why in result.note


@pytest.mark.parametrize("name", UNUSABLE)
def test_with_too_few_that_can_be_used_the_run_ends_with_a_sentence(name: str) -> None:
    lie, why = UNUSABLE[name]
    built = with_liars(lie, 0, 3, 4)
    with pytest.raises(TooFewClients, match=f"only 3 answers .* 'train' can be used; 4 .*{why}"):
        training(built)


@pytest.mark.parametrize("value", [3e38, -3e38, 1e30, 0.0])
@pytest.mark.parametrize("method", METHODS, ids=named)
def test_a_finite_lie_crashes_nothing(method: Tuner, value: float) -> None:
    """In clear nothing bounds an answer: such a lie moves a choice, and can spoil a training.

    The others' models then diverge, and the run ends with a sentence.
    """
    built = with_liars(filled(value), LIAR, variance=noise_for(method, SPACE, INFINITE))
    with suppress(TooFewClients, EvaluationFailed):
        SPACE.encode(method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(5)).config)


def training(built: Federation, *configs: Config, rounds: int = 1) -> Any:
    """The training that follows a choice."""
    chosen = configs or ({"learning_rate": 0.1},)
    start = TASK.initial(len(chosen))
    return federated_average(lambda q: built.collect(q, "train"), chosen, start, rounds, 1)


def test_the_training_that_follows_is_that_of_the_others() -> None:
    spoiled = training(with_liars(filled(math.nan), LIAR), rounds=3)
    alone = with_liars(filled(0.0))
    local = channel(alone)
    local.drops = {LIAR: "train"}
    for found, expected in zip(spoiled, training(alone, rounds=3), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_client_without_numbers_for_one_candidate_costs_the_others_nothing() -> None:
    """It cannot rule a candidate out by saying that it diverged there."""

    def first_diverged(array: Array) -> Array:
        changed = array.numpy().copy()
        changed[0] = math.nan
        return Array.of(changed)

    lie = of_arrays(lambda arrays: list(map(first_diverged, arrays)))
    configs: tuple[Config, ...] = ({"learning_rate": 0.1}, {"learning_rate": 0.3})
    found = training(with_liars(lie, LIAR), *configs)
    assert all(np.isfinite(array).all() for array in found)
    without = with_liars(lie)
    channel(without).drops = {LIAR: "train"}
    honest, everybody = training(without, *configs), training(with_liars(lie), *configs)
    for some, five, six in zip(found, honest, everybody, strict=True):
        np.testing.assert_array_equal(some[0], five[0])
        np.testing.assert_array_equal(some[1], six[1])


def test_one_client_without_numbers_for_one_of_several_models_poisons_no_mean() -> None:
    """A tuner may average several models at once; those that come with Tacit average one."""

    def first_diverged(array: Array) -> Array:
        changed = array.numpy().copy()
        changed[0] = math.nan
        return Array.of(changed)

    built = with_liars(of_arrays(lambda arrays: list(map(first_diverged, arrays))), LIAR)
    configs: tuple[Config, ...] = ({"learning_rate": 0.1}, {"learning_rate": 0.3})
    weights = tuple(map(Array.of, TASK.initial(2)))
    mean = built.average(LocalTraining(configs, weights, 1, 1), "training 1")
    assert all(np.isfinite(array).all() for array in mean)


def test_a_candidate_that_diverges_on_most_clients_has_diverged() -> None:
    good, bad = (np.full((1, 2), value, np.float32) for value in (1.0, math.nan))
    for diverged, mean in ((2, 1.0), (3, math.nan), (5, math.nan)):
        answers = [(Array.of(bad),)] * diverged + [(Array.of(good),)] * 3
        (found,) = mean_of_models(answers)
        np.testing.assert_array_equal(found, np.full((1, 2), mean, np.float32))


shapes = st.lists(st.integers(-3, 2**63 - 1), max_size=4).map(tuple)
kinds = st.sampled_from(["<f4", "<f8", "<i8", "|O", "", "<f2"])
arrays = st.builds(Array, kinds, shapes, st.binary(max_size=64))


@given(st.lists(arrays, max_size=3).map(tuple) | st.tuples(arrays))
def test_whatever_arrays_come_they_are_used_or_named(answer: Arrays) -> None:
    start = (Array.of(np.zeros((1, 2), np.float32)),)
    query = LocalTraining(({},), start, 1, 0)
    if query.unfit(answer):
        return
    (array,) = answer
    assert array.numpy().shape == (1, 2)
    assert np.isfinite(array.numpy().astype(np.float32)).all()


@given(arrays)
def test_an_array_is_read_as_what_it_says_or_refused(array: Array) -> None:
    try:
        found = array.numpy()
    except ValueError:
        return
    assert found.shape == array.shape
    assert found.tobytes() == array.data
