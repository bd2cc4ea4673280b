from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.charged_questions import ChargedQuestions
from tacit.data.examples import Examples, group_numbers
from tacit.dp_training import Recipe, Secret
from tacit.federation import ONE_HOLDER, Federation, lone_holder
from tacit.privacy.accounting import Budget, spent
from tacit.privacy.events import Repeated, Scored, Selected
from tacit.privacy.ledger import BudgetExceeded, Ledger
from tacit.privacy.selection import Runs, score_noise
from tacit.result import EVERY_RUN, RESULT_ONLY
from tacit.space import Float, Space
from tacit.tuners import selection
from tacit.tuners.selection import NO_RUN, Selection
from tacit.tuners.tuner import noise_for
from tacit.tuning import conclude, tune
from tests.command_line import document, refusal, tacit
from tests.federations import likes

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(300, 4)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int64)
TRAIN = Examples(FEATURES[:200], LABELS[:200])
VALIDATION = Examples(FEATURES[200:], LABELS[200:])
SPACE = Space({"learning_rate": Float(1e-9, 1.0, log=True)})
BUDGET = Budget(4.0, 1e-5)
METHOD = Selection(Recipe(lot=20, steps=30), TRAIN, VALIDATION, 2, Runs(5.0, 0.0), candidates=8)


def built(method: Selection) -> Federation:
    ledger = Ledger.in_memory("test", BUDGET)
    return lone_holder(ledger, "run", noise_for(method, SPACE, BUDGET))


@pytest.mark.parametrize("mode", selection.MODES)
def test_the_best_is_released_at_the_price_of_its_case(mode: str) -> None:
    method = replace(METHOD, mode=mode)
    run = built(method)
    outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    (charge,) = run.ledger.charges()
    total = run.ledger.total()
    assert 3.99 < total.epsilon <= 4.0
    assert (total.unit, total.relation) == ("record", "replace-one")
    assert outcome.weights is not None
    assert [array.shape for array in outcome.weights] == [(1, 2, 4), (1, 2)]
    result = conclude(method, outcome, run, BUDGET)
    if mode == "trusted":
        assert isinstance(charge.event, Selected)
        assert result.privacy.server == RESULT_ONLY
        assert "tells how many" in result.note
    else:
        assert isinstance(charge.event, Repeated)
        assert isinstance(charge.event.event, Scored)
        assert charge.event.times == 5
        assert result.privacy.server == EVERY_RUN


def test_it_runs_from_python_and_asks_nobody() -> None:
    result = tune([], SPACE, METHOD, BUDGET)
    assert 3.99 < result.privacy.epsilon <= 4.0
    assert result.privacy.setting == ONE_HOLDER
    assert result.clients.asked == 0
    with pytest.raises(ValueError, match="found 1 clients; allowed for a selection are none"):
        tune([likes(0.5)], SPACE, METHOD, BUDGET)


def test_the_rate_depends_on_groups_and_not_on_their_rows() -> None:
    """A patient with many visits, or with one, is in a lot with the same probability."""
    few, many = (
        Examples(FEATURES[:200], LABELS[:200], group_numbers(owners))
        for owners in (np.arange(200) % 50, np.minimum(np.arange(200), 49))
    )
    for rows in (few, many):
        method = replace(METHOD, recipe=Recipe(lot=5, steps=30), examples=rows)
        assert method.rate == 0.1
        event = method.event(SPACE, 4.0)
        assert isinstance(event, Selected)
        assert event.rate == 0.1


def test_watching_costs_more_noise() -> None:
    trusted, watched = (
        noise_for(replace(METHOD, mode=mode), SPACE, BUDGET) for mode in selection.MODES
    )
    assert watched > 1.3 * trusted


def test_nothing_tells_of_the_losers(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the result nor its rounds, costs or words depend on how many runs there were."""
    told = []
    for runs in (1.001, 60.0):
        method = replace(METHOD, runs=Runs(runs, 0.0))
        run = replace(built(METHOD), variance=4.0)
        run.ledger.amend(Budget(30.0, 1e-5), "to compare")
        outcome = method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
        shown = conclude(method, outcome, run, BUDGET).to_json()
        told.append({name: shown[name] for name in ("rounds", "seconds", "bytes", "note", "tally")})
    assert told[0] == told[1]
    assert capsys.readouterr().out == ""


def test_good_candidates_win_more_often_the_more_runs_there_are() -> None:
    """One of eight learning rates learns anything; the best of about sixty runs mostly has it.

    If it has in 95 % of the cases, 4 of 7 are missed once in 5000; single runs get as many once in
    200.
    """
    method = replace(METHOD, recipe=Recipe((16,), lot=20, steps=60), runs=Runs(60.0, math.inf))
    run = replace(built(method), variance=0.01)
    run.ledger.amend(Budget(math.inf, 1e-5), "to compare")
    outcomes = [
        method.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0)) for _ in range(7)
    ]
    assert sum(float(arm["learning_rate"]) > 0.01 for arm in outcomes[0].candidates) == 1
    assert sum(float(one.config["learning_rate"]) > 0.01 for one in outcomes) >= 4


def test_candidates_are_drawn_secretly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed, another draw: the order of runs must not be known."""
    monkeypatch.setattr(Runs, "draw", lambda _self: 1)
    run = replace(built(METHOD), variance=4.0)
    run.ledger.amend(Budget(math.inf, 1e-5), "to compare")
    drawn = {
        str(
            METHOD.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0)).config[
                "learning_rate"
            ]
        )
        for _ in range(12)
    }
    assert len(drawn) > 1


def test_a_poisson_number_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runs, "draw", lambda _self: 0)
    outcome = METHOD.tune(ChargedQuestions(built(METHOD)), SPACE, np.random.default_rng(0))
    assert outcome.weights is None
    assert outcome.note == NO_RUN


def test_it_is_charged_before_the_first_run_and_again_after_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(*_anything: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(selection, "train", killed)
    run = built(METHOD)
    with pytest.raises(KeyboardInterrupt):
        METHOD.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))
    assert len(run.ledger) == 1
    with pytest.raises(BudgetExceeded):
        METHOD.tune(ChargedQuestions(run), SPACE, np.random.default_rng(0))


VISITS = replace(VALIDATION, groups=np.arange(100) % 30)


@pytest.mark.parametrize("validation", [VALIDATION, VISITS], ids=["rows", "groups"])
def test_a_unit_of_the_validation_data_moves_a_score_by_at_most_one_count(
    validation: Examples,
) -> None:
    """All rows of a unit change their labels; a count is 1024 steps, and so is the most it adds."""
    models = METHOD.trained([{"learning_rate": 0.5}, {"learning_rate": 1e-9}], 0.1)
    before = selection._scores(models, validation)
    assert before.max() <= 1024 * validation.units
    own = np.arange(100) if validation.groups is None else validation.groups
    moved = []
    for unit in range(validation.units):
        labels = np.where(own == unit, 1 - validation.labels, validation.labels)
        after = selection._scores(models, replace(validation, labels=labels))
        moved.append(np.abs(after - before).max())
    assert max(moved) == 1024


def test_scores_have_the_noise_that_is_charged() -> None:
    asked = []

    class Listening(Secret):
        def rounded_normal(self, deviation: Any, shape: tuple[int, ...]) -> Any:
            if shape == (2,):
                asked.append(float(deviation))
            return super().rounded_normal(deviation, shape)

    method = replace(METHOD, validation=VISITS, chance=Listening())
    method._best(({"learning_rate": 0.5},), 2, 1.5)
    assert asked == [1024 * score_noise(0.1, 30, 1.5)]


def test_a_rate_is_that_of_groups() -> None:
    grouped = replace(TRAIN, groups=np.arange(200) % 50)
    assert replace(METHOD, examples=grouped).rate == 20 / 50


def test_refusals() -> None:
    with pytest.raises(ValueError, match="allowed are trusted and watched"):
        replace(METHOD, mode="dp")
    with pytest.raises(ValueError, match="allowed in a selection is 'poisson'"):
        replace(METHOD, recipe=Recipe(sampling="fixed"))
    other = Space({"learning_rate": Float(0.1, 1.0), "widths": Float(1, 2)})
    with pytest.raises(ValueError, match="the space has widths; allowed in a selection are"):
        METHOD.tune(ChargedQuestions(built(METHOD)), other, np.random.default_rng(0))


SMALL = (
    *("--set", "search.method=selection", "--set", "search.mode=trusted"),
    *("--set", "selection.steps=40", "--set", "selection.mean_runs=3"),
    *("--set", "privacy.epsilon=4", "--set", "task.hidden=[]", "--set", "federation.clients=3"),
)


def test_a_plan_runs(tmp_path: Path) -> None:
    done = tacit("tune", *SMALL, "--out", tmp_path / "run")
    assert "those who see this result alone" in " ".join(done.stdout.split())
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["accuracy"] > 0.2
    assert found["privacy"]["unit"] == "record"
    assert spent(Selected(0.1, 1.0, 1, 1.0, 3.0, 0.0), 1e-5).epsilon > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "replacing any one record" in page


def test_a_plan_that_cannot_be_is_refused(tmp_path: Path) -> None:
    wrong = tacit("tune", *SMALL, "--set", "search.mode=dp", "--out", tmp_path / "a")
    assert "allowed with search.method 'selection' is 'trusted' or 'watched'" in refusal(wrong)
    cells = tacit("tune", *SMALL, "--set", "task.network=dp-hype-mnist", "--out", tmp_path / "b")
    assert "one holder of data trains by itself" in refusal(cells)


def test_the_price_is_printed_before_anything_runs() -> None:
    options = ("--method", "selection", "--epsilon", 2, "--delta", 1e-5, "--mean-runs", 10)
    found = document(tacit("plan", *options, "--rate", 0.05, "--steps", 200, "--json"))
    assert 1.99 < found["epsilon"] <= 2
    assert found["single"] < found["epsilon"] < found["watched"]
    shown = tacit("plan", *options, "--rate", 0.05, "--steps", 200).stdout
    assert "10 runs expected" in " ".join(shown.split())
