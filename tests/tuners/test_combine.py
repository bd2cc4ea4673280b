from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import DBSCAN

import tacit
from tacit.cells import Cells
from tacit.charged_questions import ChargedQuestions
from tacit.combining import EXACT_STEPS, STEPS, CellCounts, ClusterSums, Kept, optima
from tacit.federation import Federation, kind_of_piece
from tacit.journal import Journal
from tacit.local_search import LocalSearch
from tacit.optima import promising
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.ledger import BudgetExceeded
from tacit.privacy.mechanisms import NoiseShare, Participation, SkellamMechanism
from tacit.secure.encrypted import SomebodyMissing
from tacit.space import Config
from tacit.task import Client, FunctionClient
from tacit.tuners.combine import (
    NO_CLUSTER,
    NO_DENSE_CELL,
    NO_POINTS,
    STRATEGIES,
    SUMMABLE,
    Combine,
)
from tacit.tuners.modes import MODES
from tacit.tuners.tuner import noise_for
from tests.federations import channel, federation

SPACE = tacit.Space({"x": tacit.Float(0.0, 1.0), "y": tacit.Float(0.0, 1.0)})
INFINITE = Budget(math.inf, 1e-5)
POSSIBLE = {(strategy, mode) for strategy in SUMMABLE for mode in MODES}
POSSIBLE |= {(strategy, "clear") for strategy in STRATEGIES}


def likes(x: float, y: float, least: float = 0.0) -> Client:
    def error(config: Config) -> float:
        return min(1.0, least + abs(float(config["x"]) - x) + abs(float(config["y"]) - y))

    return FunctionClient(error)


def crowd(clients: int, seed: int = 0) -> list[Client]:
    """Most like one corner, the others another one, which serves them less well."""
    rng = np.random.default_rng(seed)
    places = [(0.25, 0.65, 0.0) if number % 4 else (0.8, 0.2, 0.2) for number in range(clients)]
    return [likes(*(place + rng.normal(0, 0.03, 3) * (1, 1, 0))) for place in places]


def exact(
    clients: list[Client], tmp_path: Path, secure: str = "encrypted", **more: object
) -> Federation:
    built = federation(clients, 0.0, budget=INFINITE, dropout=0.0, secure=secure, **more)  # type: ignore[arg-type]
    return replace(built, journal=Journal(tmp_path, {}, kind_of_piece))


@pytest.mark.parametrize(("strategy", "mode"), list(product(STRATEGIES, MODES)))
def test_the_matrix_of_strategies_and_modes(strategy: str, mode: str) -> None:
    if (strategy, mode) in POSSIBLE:
        Combine(strategy, mode)
    else:
        with pytest.raises(ValueError, match=rf"'{strategy}' cannot be '{mode}': .* of sums"):
            Combine(strategy, mode)


def test_encrypted_clusters_are_those_of_the_plain_computation(tmp_path: Path) -> None:
    """PF-DBSCAN without noise opens the exact mask and exact sums, and nothing but those."""
    clients = crowd(6)
    built = exact(clients, tmp_path)
    outcome = Combine("dbscan", "encrypted", candidates=49).tune(
        ChargedQuestions(built), SPACE, np.random.default_rng(3)
    )
    assert built.journal is not None
    mask, sums = (np.array(built.journal.pieces[number]["value"]) for number in range(2))
    seed = int(np.random.default_rng(3).integers(2**31))
    search = LocalSearch(SPACE.to_json(), "grid", 49, seed)
    counts = np.sum([CellCounts(search, Kept()).answer(each) for each in clients], axis=0)
    assert (counts == 4).any(), "the test wants a tie"
    assert np.array_equal(mask, counts >= 4)
    query = ClusterSums(search, Kept(), tuple(map(int, np.flatnonzero(mask))), EXACT_STEPS)
    assert np.array_equal(sums, np.sum([query.answer(each) for each in clients], axis=0))
    assert abs(float(outcome.config["x"]) - 0.25) < 0.1
    assert abs(float(outcome.config["y"]) - 0.65) < 0.1
    assert built.ledger.total().epsilon == math.inf
    assert built.ledger.total().accounting == "none: sums were opened without noise"


def test_the_encrypted_mean_is_the_plain_one(tmp_path: Path) -> None:
    clients = crowd(4)
    tuner = Combine("mean", "encrypted", candidates=49)
    found = tuner.tune(
        ChargedQuestions(exact(clients, tmp_path)), SPACE, np.random.default_rng(1)
    ).config
    plain = tacit.tune(clients, SPACE, Combine("mean", "clear", candidates=49), INFINITE, seed=1)
    for axis in SPACE.dimensions:
        assert found[axis] == pytest.approx(plain.config[axis], abs=1 / EXACT_STEPS)


def test_without_noise_only_encrypted_sums_are_opened(tmp_path: Path) -> None:
    built = exact(crowd(4), tmp_path, secure="masks")
    with pytest.raises(ValueError, match="sums are 'masks' and would have no noise; allowed"):
        Combine("mean", "dp", candidates=9).tune(
            ChargedQuestions(built), SPACE, np.random.default_rng(0)
        )
    assert len(built.ledger) == 0


def test_a_client_with_a_finite_budget_gives_nothing_exact(tmp_path: Path) -> None:
    built = exact(crowd(3), tmp_path)
    own = channel(built).endpoints[1].ledger
    own.amend(Budget(8.0, 1e-5), "this client wants noise")
    with pytest.raises(SomebodyMissing, match="only 2 of 3"):
        Combine("mean", "encrypted", candidates=9).tune(
            ChargedQuestions(built), SPACE, np.random.default_rng(0)
        )
    assert any("own budget" in reason for reason in channel(built).refusals)


def test_modes_and_sums_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode is 'encrypted', but the federation's sums are 'mas"):
        Combine("mean", "encrypted").tune(
            ChargedQuestions(exact(crowd(3), tmp_path, secure="masks")),
            SPACE,
            np.random.default_rng(0),
        )
    with pytest.raises(ValueError, match="the mode is 'dp', but the federation's sums are 'encryp"):
        Combine("mean", "dp").tune(
            ChargedQuestions(exact(crowd(3), tmp_path)), SPACE, np.random.default_rng(0)
        )


def test_a_missing_party_ends_the_run_and_opens_nothing(tmp_path: Path) -> None:
    built = exact(crowd(3), tmp_path, drops={1: "open"})
    with pytest.raises(SomebodyMissing, match=r"stage 'open'.*nothing was opened"):
        Combine("dbscan", "encrypted", candidates=9).tune(
            ChargedQuestions(built), SPACE, np.random.default_rng(0)
        )
    assert built.journal is not None
    assert built.journal.pieces == {}


def test_what_cannot_be_afforded_whole_is_not_begun() -> None:
    tuner = Combine("dbscan", "dp", candidates=9)
    variance = noise_for(tuner, SPACE, Budget(1.0, 1e-5))
    first = CellCounts(LocalSearch(SPACE.to_json()), Kept()).bound.release(variance)
    assert spent(first, 1e-5).epsilon < 0.8
    built = federation(crowd(6), variance, budget=Budget(0.8, 1e-5))
    with pytest.raises(BudgetExceeded):
        tuner.tune(ChargedQuestions(built), SPACE, np.random.default_rng(0))
    assert len(built.ledger) == 0


@pytest.mark.parametrize("mode", ["clear", "dp"])
def test_dbscan_finds_where_most_clients_agree(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoiseShare, "added_to", lambda _self, answer: answer)
    budget = INFINITE if mode == "clear" else Budget(8.0, 1e-5)
    tuner = Combine("dbscan", mode, candidates=49, points=3)
    result = tacit.tune(crowd(60), SPACE, tuner, budget, seed=2)
    assert abs(float(result.config["x"]) - 0.25) < 0.15
    assert abs(float(result.config["y"]) - 0.65) < 0.15
    assert result.note == ""


def test_dbscan_in_clear_is_scikit_learns() -> None:
    clients = crowd(12)
    search = LocalSearch(SPACE.to_json(), "grid", 49, 0)
    kept = [promising(optima(search.search(each))) for each in clients]
    points = np.concatenate([one.points for one in kept])
    accuracies = np.concatenate([one.accuracies for one in kept])
    labels = DBSCAN(eps=0.3, min_samples=4).fit(points).labels_
    means = {label: accuracies[labels == label].mean() for label in set(labels) - {-1}}
    best = [label for label, value in means.items() if value >= max(means.values()) - 0.05]
    expected = points[np.isin(labels, best)].mean(axis=0)
    tuner = Combine("dbscan", "clear", candidates=49)
    found = tacit.tune(clients, SPACE, tuner, INFINITE, seed=0).config
    assert SPACE.encode(found) == pytest.approx(expected)


def test_no_dense_cell_and_no_cluster_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    hopeless: list[Client] = [FunctionClient(lambda config: 0.9 - 0.1 * config["x"])] * 6  # type: ignore[operator]
    clear = tacit.tune(hopeless, SPACE, Combine("dbscan", "clear", candidates=9), INFINITE)
    assert clear.note == NO_CLUSTER
    monkeypatch.setattr(NoiseShare, "added_to", lambda _self, answer: answer)
    scattered = [likes(x / 6, y / 6) for x in range(7) for y in range(7)]
    tuner = Combine("dbscan", "dp", candidates=49, points=1)
    assert tacit.tune(scattered, SPACE, tuner, Budget(20.0, 1e-5)).note == NO_DENSE_CELL
    built = federation(hopeless, 2000.0)
    outcome = Combine("dbscan", "dp", candidates=9).tune(
        ChargedQuestions(built), SPACE, np.random.default_rng(0)
    )
    assert outcome.note == NO_POINTS


def test_options_are_never_averaged_under_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoiseShare, "added_to", lambda _self, answer: answer)
    space = tacit.Space({"x": tacit.Float(0.0, 1.0), "kind": tacit.Choice(["a", "b", "c"])})

    def of(kind: str) -> Client:
        wrong = {"a": 0.6, "b": 0.6, "c": 0.6} | {kind: 0.0 if kind == "c" else 0.1}
        return FunctionClient(lambda c: min(1.0, wrong[str(c["kind"])] + abs(float(c["x"]) - 0.5)))

    clients = [of("a")] * 12 + [of("c")] * 18
    for strategy in SUMMABLE:
        tuner = Combine(strategy, "dp", candidates=30, points=2)
        result = tacit.tune(clients, space, tuner, Budget(8.0, 1e-5), seed=1)
        assert result.config["kind"] == "c"


def test_cells_are_public_whatever_the_clients_hold() -> None:
    assert Cells(SPACE).count == 49
    one, other = (Combine("dbscan", "dp").event(SPACE, 50.0) for _ in range(2))
    assert one == other


def test_the_error_of_the_mean_is_what_noise_does_to_it() -> None:
    variance, clients, there = 10.0, [likes(0.5, 0.5)] * 20, Participation(20, 0.0)
    method = Combine("mean", candidates=9)
    query = method._best(method._search(SPACE), STEPS)
    mechanism = SkellamMechanism(query.bound, there, variance)
    answer = query.answer(clients[0])
    sums = [np.sum([mechanism.perturb(answer) for _ in clients], axis=0) for _ in range(300)]
    spread = np.std([float(query.combined(total)["x"]) for total in sums])
    expected = method.mean_error(SPACE, there, variance)
    assert 0.07 < expected < 0.1
    assert expected / 1.25 < spread < expected * 1.25
