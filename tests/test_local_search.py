from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from tacit.local_search import SAMPLERS, Findings, LocalSearch, check_sampler
from tacit.space import SAMPLINGS, Choice, Config, Float, Int, Space
from tacit.task import FunctionClient, NothingToSay

SPACE = Space({"x": Float(0.0, 1.0), "layers": Int(1, 4), "kind": Choice(["sgd", "adam"])})


def error(config: Config) -> float:
    wrong = 0.0 if config["kind"] == "adam" else 0.3
    return abs(float(config["x"]) - 0.7) + wrong + 0.01 * int(config["layers"])


def search(sampler: str, trials: int = 24) -> LocalSearch:
    return LocalSearch(SPACE.to_json(), sampler, trials, seed=3)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_finds_something_good_and_puts_the_best_first(sampler: str) -> None:
    found = search(sampler).search(FunctionClient(error))
    assert found.points.shape == (len(found.scores), 3)
    assert np.array_equal(found.scores, np.sort(found.scores))
    best = SPACE.decode(found.points[0])
    assert error(best) == pytest.approx(found.scores[0])
    assert error(best) < 0.3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_searches_alike(sampler: str) -> None:
    first, second = (search(sampler).search(FunctionClient(error)) for _ in range(2))
    assert np.array_equal(first.scores, second.scores)


def test_candidates_are_common_only_where_nobody_follows_its_own_scores() -> None:
    assert len(search("sobol").candidates) == 24
    with pytest.raises(ValueError, match="'tpe' every client tries candidates of its own; allowed"):
        search("tpe").candidates  # noqa: B018


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_what_cannot_be_scored_is_left_out(sampler: str) -> None:
    def sometimes(config: Config) -> float:
        return math.nan if config["kind"] == "sgd" else error(config)

    found = search(sampler).search(FunctionClient(sometimes))
    assert np.isfinite(found.scores).all()
    assert (found.points[:, 2] == 1.0).all()
    with pytest.raises(NothingToSay):
        search(sampler).search(FunctionClient(lambda _config: math.inf))


def test_accuracies_are_errors_turned_around_and_bounded() -> None:
    found = Findings(np.zeros((3, 1)), np.array([-0.5, 0.25, 7.0]))
    assert found.accuracies.tolist() == [1.0, 0.75, 0.0]


def test_a_client_searches_once_a_run_and_anew_in_the_next() -> None:
    asked: list[Config] = []

    def counting(config: Config) -> float:
        asked.append(config)
        return error(config)

    client = FunctionClient(counting)
    first = LocalSearch(SPACE.to_json(), "sobol", 8, run="monday")
    found = [first.findings(client) for _ in range(3)]
    assert len(asked) == 8
    assert found[0] is found[1] is found[2]
    LocalSearch(SPACE.to_json(), "sobol", 8, run="tuesday").findings(client)
    assert len(asked) == 16
    nameless = LocalSearch(SPACE.to_json(), "sobol", 8)
    for _ in range(2):
        nameless.findings(client)
    assert len(asked) == 32


def test_clients_that_cannot_be_remembered_search_again() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def score(self, config: Config) -> float:
            return error(config)

    search = LocalSearch(SPACE.to_json(), "grid", 8, run="monday")
    assert search.findings(Odd()).scores.shape == (8,)


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(ValueError, match="the sampler is 'cma'; allowed are sobol, random, grid"):
        check_sampler("cma")


def test_without_optuna_its_samplers_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'tacit\[optuna\]'; or search with sobol"):
        search("tpe").search(FunctionClient(error))
    for sampler in SAMPLINGS:
        search(sampler).search(FunctionClient(error))
