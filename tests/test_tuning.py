from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.arrays import Array
from tacit.charged_questions import ChargedQuestions
from tacit.privacy.ledger import BudgetExceeded, Ledger, ledger_path
from tacit.result import COVERS, COVERS_NOTHING, CURIOUS_SERVER, OPEN_SERVER, SIGNED_SERVER
from tacit.sgd import Weights
from tacit.space import Config
from tacit.training import federated_average
from tacit.tuners.tuner import noise_for
from tacit.tuning import conclude
from tests.federations import BUDGET, SPACE, federation, likes
from tests.test_contracts import TASK, learner


def loss(config: Config) -> float:
    return abs(float(config["x"]) - 0.7)


def test_the_short_form_of_the_readme_works() -> None:
    result = tacit.tune(
        [loss] * 60,
        {"x": tacit.Float(0.0, 1.0)},
        method=tacit.Vote(votes=5, candidates=20),
        budget=tacit.Budget(1.0, 1e-5),
        seed=1,
    )
    best = sorted(result.candidates, key=loss)[:5]
    assert result.config in best  # 60 votes against noise of deviation 12.4
    assert result.privacy.epsilon <= 1.0
    assert result.clients.asked == result.clients.answered == 60


def test_the_result_holds_what_the_documentation_promises() -> None:
    found = tacit.tune([loss] * 10, SPACE, tacit.Vote(votes=2, candidates=8), seed=1).to_json()
    assert list(found) == [
        "method",
        "config",
        "candidates",
        "tally",
        "run_off",
        "clients",
        "abstentions",
        "privacy",
        "accuracy",
        "note",
        "seconds",
        "bytes",
        "exchanges",
        "faults",
        "evaluation",
        "architecture",
        "rounds",
        "versions",
    ]
    assert found["versions"]["tacit"] == tacit.__version__
    assert found["evaluation"] is None, "clients do not tell how they train"
    assert found["clients"] == {"planned": 10, "asked": 10, "answered": 10, "dropped": 0}
    assert len(found["tally"]) == len(found["candidates"]) == 8
    privacy = found["privacy"]
    assert privacy["unit"] == "client"
    assert privacy["relation"] == "replace-one"
    assert privacy["mechanism"] == "skellam"
    assert privacy["epsilon"] <= 1.0
    assert privacy["delivered_variance"] >= privacy["required_variance"]
    assert privacy["covers"] == COVERS
    assert privacy["server"] == SIGNED_SERVER
    assert found["seconds"].keys() == found["bytes"].keys()


def test_delivered_noise_is_that_of_the_survivors() -> None:
    clients = [likes(0.5)] * 20
    method = tacit.Vote(votes=2, candidates=8)
    variance = noise_for(method, SPACE, BUDGET)
    built = federation(clients, variance, drops={1: "seal", 2: "evaluate"})
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    result = conclude(method, outcome, built, BUDGET)
    assert (result.clients.asked, result.clients.answered) == (20, 18)
    assert result.privacy.delivered_variance == pytest.approx(variance * 18 / 17)


@pytest.mark.parametrize(
    ("secure", "roster", "server"),
    [
        ("masks", True, SIGNED_SERVER),
        ("masks", False, CURIOUS_SERVER),
        ("plain", True, OPEN_SERVER),
    ],
)
def test_the_result_says_against_which_server_it_holds(
    secure: str, roster: bool, server: str
) -> None:
    built = federation([likes(0.5)] * 6, secure=secure, roster=roster)
    method = tacit.Vote(votes=2, candidates=8)
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    assert conclude(method, outcome, built, BUDGET).privacy.server == server


def test_a_named_federation_pays_from_its_lifetime_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path))
    method = tacit.Vote(votes=2, candidates=8)
    tacit.tune([loss] * 10, SPACE, method, federation="hospitals")
    with pytest.raises(BudgetExceeded, match="'vote' would bring epsilon to 1"):
        tacit.tune([loss] * 10, SPACE, method, federation="hospitals")
    assert len(Ledger(ledger_path("hospitals"))) == 1


def test_without_a_name_every_call_stands_alone() -> None:
    for _ in range(2):
        tacit.tune([loss] * 10, SPACE, tacit.Vote(votes=2, candidates=8))


def test_methods_in_clear_need_an_infinite_budget_and_say_so() -> None:
    method = tacit.Combine("mean", "clear", candidates=16, sampling="sobol")
    with pytest.raises(ValueError, match="'combine' sends answers in clear"):
        tacit.tune([loss] * 10, SPACE, method)
    result = tacit.tune([loss] * 10, SPACE, method, tacit.Budget(math.inf, 1e-5), seed=1)
    assert result.privacy.epsilon == math.inf
    assert result.privacy.covers == COVERS_NOTHING
    assert result.privacy.mechanism == "none"
    best = min(result.candidates, key=loss)
    assert result.config["x"] == pytest.approx(best["x"])


def test_the_mean_of_winners_is_taken_in_the_logarithm_on_such_axes() -> None:
    def near(best: float) -> object:
        return lambda config: abs(math.log10(config["rate"]) - best)

    space = {"rate": tacit.Float(1e-4, 1.0, log=True)}
    clients = [near(-3.0), near(-1.0)] * 3
    method = tacit.Combine("mean", "clear", candidates=5)
    result = tacit.tune(clients, space, method, tacit.Budget(math.inf, 1e-5))  # type: ignore[arg-type]
    assert result.config["rate"] == pytest.approx(1e-2)


def test_a_guess_asks_nobody_and_costs_nothing() -> None:
    result = tacit.tune([loss] * 10, SPACE, tacit.RandomGuess(candidates=16))
    assert result.privacy.epsilon == 0
    assert result.clients.asked == 0
    assert result.seconds == {}


def test_a_guess_is_uniform() -> None:
    method = tacit.RandomGuess(candidates=4, sampling="grid")
    built = federation([likes(0.5)] * 3)
    rng = np.random.default_rng(0)
    found = [method.tune(ChargedQuestions(built), SPACE, rng).config["x"] for _ in range(400)]
    assert set(found) == {0.0, 1 / 3, 2 / 3, 1.0}
    assert all(60 < found.count(value) < 140 for value in set(found))


def test_opt_finds_the_candidate_whose_federated_model_is_best() -> None:
    space = tacit.Space({"learning_rate": tacit.Choice([1e-6, 1e-5, 0.5])})
    method = tacit.Opt(TASK.initial, 3, 3, 3, "grid")
    clients = [learner(number) for number in range(6)]
    result = tacit.tune(clients, space, method, tacit.Budget(math.inf, 1e-5))
    assert result.config == {"learning_rate": 0.5}
    assert result.privacy.epsilon == math.inf
    assert (result.clients.asked, result.clients.answered) == (6, 6)


def test_averaging_all_candidates_at_once_equals_averaging_each_alone() -> None:
    configs: list[Config] = [{"learning_rate": 0.5}, {"learning_rate": 0.05, "momentum": 0.9}]
    built = federation([learner(number) for number in range(4)], dropout=0.0, trains=True)

    def average(chosen: list[Config]) -> Weights:
        start = TASK.initial(len(chosen))
        return federated_average(lambda q: built.collect(q, "train"), chosen, start, 3, 2)

    together = average(configs)
    for index, config in enumerate(configs):
        for stacked, alone in zip(together, average([config]), strict=True):
            np.testing.assert_allclose(stacked[index], alone[0], rtol=1e-4, atol=1e-6)


def test_federated_averaging_learns() -> None:
    built = federation([learner(number) for number in range(4)], dropout=0.0, trains=True)
    start = TASK.initial(1)
    weights = federated_average(
        lambda q: built.collect(q, "train"), [{"learning_rate": 0.5}], start, 5, 5
    )
    test = learner(99).train_examples
    assert TASK.accuracies(weights, test)[0] > max(0.8, TASK.accuracies(start, test)[0])


def test_the_server_moves_towards_the_average_as_it_was_told() -> None:
    """FedAvgM, step by step, against the rule written out."""
    configs: list[Config] = [
        {"learning_rate": 0.5},
        {"learning_rate": 0.5, "server_learning_rate": 0.3, "server_momentum": 0.9},
    ]
    built = federation([learner(number) for number in range(4)], dropout=0.0, trains=True)

    def average(chosen: list[Config], start: Weights, rounds: int) -> Weights:
        return federated_average(lambda q: built.collect(q, "train"), chosen, start, rounds, 1)

    start = TASK.initial(1)
    first = average(configs[:1], start, 1)
    velocity = [new - old for new, old in zip(first, start, strict=True)]
    moved = tuple(old + np.float32(0.3) * v for old, v in zip(start, velocity, strict=True))
    once = average(configs, TASK.initial(2), 1)
    for both, taken, followed in zip(once, first, moved, strict=True):
        assert np.array_equal(both[0], taken[0]), "rate 1 and momentum 0 is the average itself"
        np.testing.assert_allclose(both[1], followed[0], rtol=1e-5, atol=1e-6)


def test_running_statistics_are_averaged_whatever_the_servers_rate() -> None:
    start: Weights = (np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32))
    told = (np.ones((1, 2), np.float32), np.full((1, 2), 5.0, np.float32))
    config: Config = {"server_learning_rate": 0.5}
    answers = [tuple(map(Array.of, told))] * 3
    found = federated_average(lambda _query: answers, [config], start, 1, 1, trained=1)
    assert found[0].tolist() == [[0.5, 0.5]]
    assert found[1].tolist() == [[5.0, 5.0]]


def test_a_client_that_trains_alone_takes_the_servers_values_for_its_own() -> None:
    own, servers = (
        learner(1).score_many([{f"{prefix}learning_rate": 0.3, f"{prefix}momentum": 0.5}])
        for prefix in ("", "server_")
    )
    assert own == servers


def test_a_small_space_is_searched_whole() -> None:
    space = {"x": tacit.Choice([0.1, 0.7, 0.9])}
    result = tacit.tune([loss] * 40, space, tacit.Vote(votes=1))
    assert len(result.candidates) == 3
    assert result.config == {"x": 0.7}  # 40 votes against noise of deviation 5.4


def test_a_result_shows_itself_in_one_line_and_escaped_in_a_notebook() -> None:
    method = tacit.Vote(votes=5, candidates=20)
    result = tacit.tune([loss] * 20, {"x": tacit.Float(0.0, 1.0)}, method, seed=1)
    assert repr(result).startswith("<Result of 'vote': chosen x = ")
    assert len(repr(result)) < 300
    assert f"ε = {math.ceil(result.privacy.epsilon * 1e4) / 1e4:g} at δ = 1e-05" in repr(result)
    unlikely = replace(result, config={"x": "<b>"})
    assert "<td>x = &lt;b&gt;</td>" in unlikely._repr_html_()
