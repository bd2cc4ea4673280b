from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tacit import compare, compare_tables
from tacit.compare import Memory, held
from tacit.compare_page import (
    ALL_PRIVATE,
    PRIVATE,
    cells,
    columns,
    figure,
    kind,
    notes,
    ordered,
    page,
)
from tacit.contenders import CONTENDERS, chosen
from tacit.plan import Plan, load_plan
from tacit.privacy.accounting import Budget
from tacit.tables import ScoreTable

TINY = (
    "federation.clients=8",
    "search.candidates=6",
    "search.votes=2",
    "task.score_epochs=1",
    "task.train_rounds=1",
    "task.train_epochs=1",
    "task.hidden=[]",
)
FEW = "vote-published,combine-mean,combine-median,fedex,random-guess,opt"


def quiet(*_: Any) -> None:
    """Nobody watches."""


def tiny(*changes: str) -> Plan:
    return load_plan(None, [*TINY, *changes])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compare")
    return compare.run(tiny(), chosen(FEW), 2, folder, quiet, quiet)


def test_every_method_keeps_to_the_budget_and_references_are_infinite(
    found: dict[str, Any],
) -> None:
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["vote-published", "combine-mean", "fedex", "random-guess", "opt"]
    for name in ("vote-published", "combine-mean", "fedex"):
        assert 0.5 < rows[name]["epsilon"] <= 1
    assert rows["random-guess"]["epsilon"] == 0
    assert math.isinf(rows["opt"]["epsilon"])
    assert [rows[n]["covers"] for n in rows] == [
        *("choice", "choice", "choice and training", "choice", "nothing"),
    ]
    for row in rows.values():
        assert len(row["accuracies"]) == 2
        assert row["accuracy"] == pytest.approx(sum(row["accuracies"]) / 2)
        assert row["standard_error"] == pytest.approx(
            abs(row["accuracies"][0] - row["accuracies"][1]) / 2
        )
        assert row["bytes_per_client"] > 0
        assert row["exchanges"] > 0
        assert row["seconds"] > 0


def test_who_is_left_out_is_told_why(found: dict[str, Any]) -> None:
    assert list(found["not_compared"]) == ["combine-median"]
    assert "a median is not a function of sums" in found["not_compared"]["combine-median"]


def test_the_price_of_publishing_all_is_their_composition(found: dict[str, Any]) -> None:
    together = found["together"]
    assert together["methods"] == ["vote-published", "combine-mean", "fedex", "random-guess"]
    alone = [row["epsilon"] for row in found["rows"] if not row["reference"]]
    assert max(alone) < together["epsilon"] < sum(alone)
    assert f"{together['epsilon']:.2f}"[:3] in " ".join(notes(found))
    assert "epsilons are per method" in " ".join(notes(found))


def test_methods_choose_among_the_same_candidates_and_clients_score_them_once() -> None:
    plan, memory = tiny(), Memory()
    first = held(CONTENDERS["vote-published"], plan, 1, memory, quiet)
    assert memory.recalled == 0
    assert len(memory.known) == 8
    second = held(CONTENDERS["combine-best-mean"], plan, 1, memory, quiet)
    assert len(memory.known) == 8  # the very same questions
    trained = sum(seconds for _, seconds in memory.known.values())
    assert memory.recalled == pytest.approx(trained)
    assert second["seconds"] > trained  # what was remembered counts for both
    assert first["seconds"] > trained


def test_a_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    once = compare.run(tiny(), chosen("vote-published"), 1, tmp_path, quiet, quiet)
    heard: list[str] = []

    def stage(name: str, *_: int) -> None:
        heard.append(name)

    again = compare.run(tiny(), chosen("vote-published"), 1, tmp_path, quiet, stage)
    assert heard == []  # nobody was asked
    assert again["rows"] == once["rows"]
    more = compare.run(tiny(), chosen("vote-published,random-guess"), 1, tmp_path, quiet, stage)
    assert more["rows"][0] == once["rows"][0]
    assert set(heard) == {"train"}
    with pytest.raises(ValueError, match="holds another comparison"):
        compare.run(tiny("search.seed=2"), chosen("opt"), 1, tmp_path, quiet, quiet)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("federation.engine=flower-simulation", "every method is charged for"),
        ("federation.roster_file=roster.toml", "simulates its clients in this process"),
        ("task.train_rounds=0", "allowed for a comparison is 1 and above"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        compare.run(tiny(change), chosen("vote"), 1, tmp_path, quiet, quiet)


def test_a_named_federation_is_not_charged_for_a_simulation() -> None:
    plan = CONTENDERS["vote"].plan(tiny("federation.name=clinics"), seed=3)
    assert plan.federation.name == ""
    assert plan.search.seed == 3


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("feathers", (), "allowed with search.method 'feathers' is 'cells'"),
        ("bandit", ("task.network=cells", "search.method=feathers"), "task.network is 'cells'"),
        ("combine-dbscan", ("task.score=loss",), "compares accuracies"),
        ("selection", (), "one holder of all the data"),
        ("vote", ("search.sampling=tpe", "search.method=combine"), "search.sampling is 'tpe'"),
    ],
)
def test_whether_a_method_applies_is_said_by_the_plan(
    name: str, changes: tuple[str, ...], reason: str
) -> None:
    fit, unfit = compare.applicable(load_plan(None, changes), [CONTENDERS[name]])
    assert fit == []
    assert reason in unfit[name]


def test_a_search_for_architectures_compares_what_searches_them() -> None:
    plan = load_plan(None, ["task.network=cells", "search.method=feathers"])
    fit = {one.name for one in compare.applicable(plan, chosen(""))[0]}
    assert {"feathers", "darts"} <= fit
    assert not fit & {"bandit", "fedex", "adaptive"}


def test_without_encryption_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.contenders.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'tacit\[encrypted\]'"):
        CONTENDERS["combine-mean-encrypted"].plan(tiny(), 1)


def test_encrypted_sums_go_through_real_encryption() -> None:
    pytest.importorskip("seal")
    found = held(CONTENDERS["combine-mean-encrypted"], tiny(), 1, Memory(), quiet)
    assert 0.5 < found["epsilon"] <= 1
    plain = held(CONTENDERS["combine-mean"], tiny(), 1, Memory(), quiet)
    assert found["bytes_per_client"] > 2 * plain["bytes_per_client"]


def test_the_page_shows_every_method_and_escapes(found: dict[str, Any]) -> None:
    hostile = {**found, "not_compared": {"<script>alert(1)</script>": "<b>"}}
    html = page(hostile)
    assert "<script>alert(1)" not in html
    for row in found["rows"]:
        assert row["method"] in html
    assert len(cells(found)) == len(found["rows"])
    assert all(len(line) == len(columns(found)) for line in cells(found))
    assert ordered(found)[-1]["method"] == "opt"
    assert {PRIVATE, ALL_PRIVATE} <= {kind(row) for row in found["rows"]}
    panels = figure(found)
    assert {trace.name for trace in panels.data} == {kind(row) for row in found["rows"]}
    assert panels.layout.xaxis2.type == "log"


@pytest.fixture(scope="module")
def on_table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    table = ScoreTable.load("digits-iid-n50")
    wanted = chosen("vote-published,combine-mean,combine-mean-encrypted,bandit,random-guess,opt")
    folder = tmp_path_factory.mktemp("table")
    return compare_tables.run(table, wanted, Budget(8.0, 1e-5), 3, folder, quiet)


def test_a_table_tells_regret_without_training(on_table: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in on_table["rows"]}
    table = ScoreTable.load("digits-iid-n50")
    assert list(rows) == ["vote-published", "combine-mean", "random-guess", "opt"]
    best = table.accuracy.max(axis=1)
    for row in rows.values():
        regrets = [most - a for most, a in zip(best, row["accuracies"], strict=True)]
        assert row["regret"] == pytest.approx(sum(regrets) / 3)
        assert row["regret"] >= 0
        assert row["seconds"] is None
    chosen_by_clients = table.validation_accuracy.argmax(axis=1)
    assert rows["opt"]["accuracies"] == [
        table.accuracy[seed, place] for seed, place in enumerate(chosen_by_clients)
    ]
    # At epsilon 8 noise has a deviation of about 2 votes, and the best have 20 and more.
    assert rows["vote-published"]["regret"] < 0.1
    assert 7 < rows["vote-published"]["epsilon"] <= 8


def test_what_a_table_cannot_tell_is_left_out_with_the_reason(on_table: dict[str, Any]) -> None:
    assert "not their course" in on_table["not_compared"]["bandit"]
    assert "those of combine-mean" in on_table["not_compared"]["combine-mean-encrypted"]
    assert "lost against the best" in columns(on_table)
    assert "nothing was trained here" in " ".join(notes(on_table))
