from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

import tacit
from tacit.combining import STEPS, LossSums
from tacit.local_search import LocalSearch
from tacit.privacy.accounting import Budget
from tacit.privacy.mechanisms import NoiseShare
from tacit.space import Config
from tacit.task import Client, FunctionClient
from tacit.tuners.flora import SURFACES, Flora

SPACE = tacit.Space({"x": tacit.Float(0.0, 1.0), "y": tacit.Float(0.0, 1.0)})
INFINITE = Budget(math.inf, 1e-5)


def likes(x: float, y: float) -> Client:
    def error(config: Config) -> float:
        return min(1.0, abs(float(config["x"]) - x) + abs(float(config["y"]) - y))

    return FunctionClient(error)


CLIENTS = [likes(0.2 + 0.02 * number, 0.7) for number in range(9)]


@pytest.mark.parametrize("mode", ["clear", "dp"])
@pytest.mark.parametrize("surface", [surface for surface in SURFACES if surface != "mplm"])
def test_every_surface_is_lowest_where_clients_lose_least(
    surface: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoiseShare, "added_to", lambda _self, answer: answer)
    budget = INFINITE if mode == "clear" else Budget(20.0, 1e-5)
    result = tacit.tune(CLIENTS, SPACE, Flora(surface, mode, candidates=25), budget, seed=1)
    assert result.config == {"x": 0.25, "y": 0.75}


def test_the_maximum_is_of_all_clients_models() -> None:
    clients = [likes(0.0, 0.5), likes(1.0, 0.5)]
    result = tacit.tune(clients, SPACE, Flora("mplm", "clear", candidates=25), INFINITE, seed=1)
    assert result.config["x"] == 0.5


def test_a_forest_in_clear_is_scikit_learns() -> None:
    result = tacit.tune(CLIENTS, SPACE, Flora("sgm", "clear", candidates=25), INFINITE, seed=4)
    seed = int(np.random.default_rng(4).integers(2**31))
    search = LocalSearch(SPACE.to_json(), "grid", 25, seed)
    found = [search.search(each) for each in CLIENTS]
    points, losses = (
        np.concatenate(part) for part in zip(*((f.points, f.scores) for f in found), strict=True)
    )
    grid = np.array([SPACE.encode(config) for config in search.candidates])
    forest = RandomForestRegressor(random_state=np.random.RandomState(seed)).fit(points, losses)
    assert result.config == search.candidates[int(np.argmin(forest.predict(grid)))]


def test_sums_of_losses_are_what_the_mean_loss_says() -> None:
    search = LocalSearch(SPACE.to_json(), "grid", 25, 0)
    query = LossSums(search, clip=100.0)
    total = np.sum([query.answer(each) for each in CLIENTS], axis=0) / (STEPS * len(CLIENTS))
    direct = np.mean([[each.score(c) for c in search.candidates] for each in CLIENTS], axis=0)
    assert total == pytest.approx(direct - direct.mean(), abs=0.5 / STEPS)


def test_sums_need_common_candidates() -> None:
    with pytest.raises(ValueError, match=r"same candidates.*or the surface 'aplm'"):
        Flora("sgm", "dp", sampling="tpe")
    Flora("aplm", "dp", sampling="tpe")
    Flora("sgm", "clear", sampling="tpe")


def test_a_length_that_clips_nothing_to_something_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clip is -1\.0; allowed is a finite number above 0"):
        Flora(clip=-1.0)


def test_own_candidates_are_modelled_on_a_common_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoiseShare, "added_to", lambda _self, answer: answer)
    tuner = Flora("aplm", "dp", candidates=16, sampling="tpe")
    result = tacit.tune(CLIENTS[:4], SPACE, tuner, Budget(20.0, 1e-5), seed=1)
    assert len(result.candidates) == 16
    assert result.config in result.candidates
