"""Planned searches for a front, by the command."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import pareto_job, pareto_plan
from tacit.data.examples import Dataset, Examples
from tacit.oracles import TUNERS, DpTraining, OutputPerturbation, TunerOracle
from tacit.pareto import Point
from tacit.pareto_job import _noisy, private_event, run, suggest
from tacit.pareto_plan import load_pareto_plan, oracle_of
from tacit.privacy.accounting import spent
from tacit.privacy.events import Scored, compose, releases
from tacit.privacy.ledger import BudgetExceeded, Ledger, ledger_path
from tacit.space import Config
from tacit.tables import ScoreTable
from tests.command_line import document, refusal, tacit

SMALL = (
    *("oracle.kind=sparse-vector", "oracle.replications=20"),
    *("front.first=8", "front.points=4"),
)
DIGITS = (
    *("oracle.sampling=poisson", "oracle.examples=300", "oracle.replications=2"),
    *("front.first=4", "front.points=2", "front.batch=1"),
)
NOISY = """
[oracle]
delta = 1e-5
[space]
epochs = { low = 1, high = 2, int = true }
lot = { low = 16, high = 32, int = true }
learning_rate = { low = 0.01, high = 1.0, log = true }
noise_variance = { low = 16.0, high = 64.0, log = true }
clip = { low = 0.5, high = 1.0 }
"""


def options(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def searched(out: Path, *changes: str, plan: Path | None = None) -> dict[str, Any]:
    return run(load_pareto_plan(plan, changes), out, lambda *_: None)


def test_a_front_is_searched_shown_and_read(tmp_path: Path) -> None:
    out = tmp_path / "front"
    found = document(tacit("pareto", *options(*SMALL), "--out", out, "--json"))
    assert len(found["points"]) == 12
    epsilons = [row["epsilon"] for row in found["front"]]
    assert epsilons == sorted(epsilons)
    assert "for those who may see the data" in found["who_may_see_it"]
    page = (out / "front.html").read_text()
    assert "Who may see this page" in page
    assert "best to worst replication" in page
    wish = suggest(out, epsilon=5.0, error=None)
    assert wish.epsilon <= 5
    assert wish.low <= wish.error <= wish.high
    with pytest.raises(ValueError, match="nothing is known that reaches epsilon"):
        suggest(out, epsilon=1e-4, error=None)
    shown = tacit("pareto", "suggest", out, "--epsilon", 5)
    assert "with 95 % probability" in " ".join(shown.stdout.split())
    for option, allowed in (("--accuracy", "above 0, up to 1"), ("--epsilon", "above 0")):
        for wrong in (-1, 0, "nan"):
            told = refusal(tacit("pareto", "suggest", out, option, wrong))
            assert f"{option} is {wrong}; allowed is a number {allowed}" in told
    assert "--accuracy is 2" in refusal(tacit("pareto", "suggest", out, "--accuracy", 2))


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "front"
    command = [sys.executable, "-c", "from tacit.cli import main; main()", "pareto"]
    process = subprocess.Popen([*command, *options(*SMALL), "--out", str(out)])
    limit = time.monotonic() + 120

    def done() -> list[str]:
        return [line for p in out.glob("journal-*.jsonl") for line in p.read_text().splitlines()]

    while len(done()) < 3 and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [json.loads(line)[1] for line in done()]
    found = tacit("pareto", *options(*SMALL), "--out", out)
    assert "Hypervolume" in found.stdout
    points = json.loads((out / "front.json").read_text())["points"]
    assert points[: len(before)] == before
    assert len(points) == 12


@pytest.mark.parametrize("acquisition", ["grid", "random", "hvpoi"])
def test_grid_and_chance_beside_the_model(tmp_path: Path, acquisition: str) -> None:
    found = searched(tmp_path, *SMALL, f"front.acquisition={acquisition}", "front.batch=1")
    assert 0 < len(found["points"]) <= 12


def test_our_own_tuners_are_a_family_too(tmp_path: Path) -> None:
    """Each runs as it is, on a table's clients; a vote with little noise is near the best."""
    table = ScoreTable.load("digits-iid-n50")
    oracle = TunerOracle(table, replications=1)
    best = 1 - table.accuracy[0].max()
    for tuner in TUNERS:
        (error,) = oracle.errors({"tuner": tuner, "votes": 5, "epsilon": 10.0}, 0)
        assert best <= error <= best + (0.05 if tuner == "vote" else 1.0)
    terms = ("oracle.kind=tuner", "oracle.table=digits-iid-n50", "oracle.replications=2")
    sizes = ("front.first=4", "front.points=1", "front.batch=1", "front.acquisition=random")
    found = searched(tmp_path, *terms, *sizes)
    assert found["name"] == "tuner vote"
    assert {"votes", "epsilon"} == set(found["points"][0]["config"])


def test_model_and_optimiser_are_chosen_together(tmp_path: Path) -> None:
    both = ("oracle.model=any", "oracle.optimiser=any")
    found = searched(tmp_path, *DIGITS, *both, "front.third=epochs", "front.acquisition=hvpoi")
    assert {"model", "optimiser"} <= set(found["points"][0]["config"])
    assert found["points"][0]["extra"] == found["points"][0]["config"]["epochs"]
    assert ">epochs</button>" in (tmp_path / "front.html").read_text()


def test_a_private_front_is_charged_before_it_is_measured(tmp_path: Path) -> None:
    private = (*DIGITS, "front.acquisition=random", "front.private=true")
    with pytest.raises(ValueError, match="allowed for a private front is 'random' or 'grid'"):
        searched(tmp_path / "a", *DIGITS, "front.private=true")
    with pytest.raises(BudgetExceeded, match=r"above the budget of 0\.01"):
        searched(tmp_path / "b", *private, "front.epsilon=0.01")
    assert not list((tmp_path / "b").glob("journal-*"))
    plan = tmp_path / "plan.toml"
    plan.write_text(NOISY)
    command = ("pareto", plan, *options(*private[:-1]), "--private-front", "--out", tmp_path / "c")
    found = document(tacit(*command, "--json"))
    assert 0 < found["price"]["epsilon"] <= 10
    assert all(len(row["errors"]) == 1 for row in found["points"])
    assert "for anybody, at a price of" in found["who_may_see_it"]
    ledger = Ledger(tmp_path / "c" / "ledger.sqlite")
    assert ledger.total().epsilon == pytest.approx(found["price"]["epsilon"])


class Watched:
    """Private fronts of six points on one lifetime ledger, and how many points were measured."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.measured, self.killed_at = folder, 0, 0
        monkeypatch.setenv("TACIT_HOME", str(folder / "home"))
        plan = folder / "plan.toml"
        plan.write_text(NOISY)
        terms = ("front.acquisition=random", "front.private=true", "front.epsilon=30")
        self.plan = load_pareto_plan(plan, (*DIGITS, *terms, "front.ledger=lifetime"))
        real = pareto_job._evaluated

        def counted(*arguments: Any) -> Point:
            self.measured += 1
            if self.measured == self.killed_at:
                raise KeyboardInterrupt
            return real(*arguments)

        monkeypatch.setattr(pareto_job, "_evaluated", counted)

    def run(self, name: str) -> dict[str, Any]:
        return run(self.plan, self.folder / name, lambda *_: None)

    def killed(self, name: str, at: int) -> None:
        """Run into a kill while this point, counted from one, is measured."""
        self.killed_at = self.measured + at
        with pytest.raises(KeyboardInterrupt):
            self.run(name)
        self.killed_at = 0

    def charged(self) -> int:
        charges = Ledger(ledger_path("lifetime")).charges()
        return releases(compose(charge.event for charge in charges)).total()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def test_a_private_front_is_charged_in_every_folder(watched: Watched) -> None:
    """One plan, one ledger and three folders are three releases; to look again is free."""
    first = watched.run("a")
    alone = Ledger(ledger_path("lifetime")).total().epsilon
    assert first["price"]["epsilon"] == pytest.approx(alone)
    watched.run("b")
    third = watched.run("c")
    assert watched.charged() == watched.measured == 18
    assert Ledger(ledger_path("lifetime")).total().epsilon > 1.4 * alone
    assert third["price"] == first["price"]
    assert watched.run("a")["points"] == first["points"]
    assert watched.charged() == watched.measured == 18


def test_a_killed_private_front_pays_again_for_the_points_it_lost(watched: Watched) -> None:
    watched.killed("a", at=4)
    found = watched.run("a")
    assert watched.measured == 4 + 3
    assert watched.charged() == 6 + 1
    lines = Ledger(ledger_path("lifetime")).charges()
    assert [charge.label for charge in lines] == ["front", "front: points measured again"]
    assert len({charge.run for charge in lines}) == 1
    assert found["price"]["epsilon"] == pytest.approx(lines[-1].total.epsilon)


def test_copies_of_a_private_front_do_not_share_a_charge(watched: Watched) -> None:
    """A folder copied after its charge: whoever measures a point second pays for it."""
    watched.killed("a", at=1)
    assert watched.charged() == 6
    for copy in ("b", "c"):
        shutil.copytree(watched.folder / "a", watched.folder / copy)
    fronts = [watched.run(name)["points"] for name in ("b", "a", "c")]
    assert fronts[0] != fronts[1] != fronts[2]
    assert watched.measured == 1 + 3 * 6
    assert watched.charged() == watched.measured


def test_a_private_front_without_its_journal_is_charged_anew(watched: Watched) -> None:
    watched.killed("a", at=3)
    (journal,) = (watched.folder / "a").glob("journal-*")
    journal.unlink()
    watched.run("a")
    assert watched.measured == 3 + 6
    assert watched.charged() == 2 * 6


def test_a_private_front_on_other_data_is_charged_anew(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that shrank under the same plan: a record is in more lots than the old line paid for."""
    watched.killed("a", at=1)
    smaller = replace(watched.plan, oracle=replace(watched.plan.oracle, examples=200))
    monkeypatch.setattr(pareto_job, "oracle_of", lambda _plan: oracle_of(smaller))
    watched.run("a")
    first, second = (charge.event for charge in Ledger(ledger_path("lifetime")).charges())
    assert [releases(event).total() for event in (first, second)] == [6, 6]
    before, after = (releases(event).keys() for event in (first, second))
    assert not before & after


def test_the_price_counts_every_training_and_every_score() -> None:
    changes = ["oracle.sampling=poisson", "oracle.examples=300", "oracle.replications=2"]
    plan = load_pareto_plan(None, [*changes, "oracle.delta=1e-5"])
    oracle = oracle_of(plan)
    assert isinstance(oracle, DpTraining)
    config: Config = {
        "epochs": 2,
        "lot": 30,
        "learning_rate": 0.1,
        "noise_variance": 16.0,
        "clip": 1.0,
    }
    one, two = (spent(private_event(plan, oracle, [config] * n), 1e-5).epsilon for n in (1, 2))
    assert 0 < one < two < 2 * one
    (scored,) = releases(private_event(plan, oracle, [config]))
    assert isinstance(scored, Scored)
    assert scored.steps == 2 * 10 * 2
    assert scored.score_noise == pytest.approx(0.01 * len(oracle.test))


def test_a_private_front_has_noise_that_no_seed_tells() -> None:
    terms = ["oracle.sampling=poisson", "oracle.examples=200", "front.acquisition=random"]
    config: Config = {
        "epochs": 1,
        "lot": 20,
        "learning_rate": 0.5,
        "noise_variance": 16.0,
        "clip": 1.0,
    }
    plain, private = (
        oracle_of(load_pareto_plan(None, [*terms, f"front.private={secret}"]))
        for secret in ("false", "true")
    )
    assert (plain.errors(config, 7) == plain.errors(config, 7)).all()
    assert (private.errors(config, 7) != private.errors(config, 7)).any()


def test_a_private_front_of_perturbed_weights_is_charged_and_no_seed_tells_its_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32)
    rows = Examples(features, (features[:, 0] > 0).astype(np.int64))
    data = Dataset("toy", rows, rows, ("no", "yes"))
    monkeypatch.setattr(pareto_plan, "load", lambda *_: data)
    terms = (
        *("oracle.kind=output-perturbation", "oracle.replications=3", "front.batch=1"),
        *("front.first=4", "front.points=2", "front.acquisition=random"),
    )
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "[space]\nregularisation = { low = 0.1, high = 0.2 }\nsigma = { low = 2.0, high = 3.0 }\n"
    )
    made: list[OutputPerturbation] = []
    real = OutputPerturbation.errors

    def watched(oracle: OutputPerturbation, config: Config, seed: int) -> Any:
        made.append(oracle)
        return real(oracle, config, seed)

    monkeypatch.setattr(OutputPerturbation, "errors", watched)
    found = searched(tmp_path / "a", *terms, "front.private=true", plan=plan)
    assert len(made) == len(found["points"]) == 6
    assert all(oracle.secret for oracle in made)
    assert all(len(point["errors"]) == 1 for point in found["points"])
    ledger = Ledger(tmp_path / "a" / "ledger.sqlite")
    counts = releases(compose(charge.event for charge in ledger.charges()))
    paid = {(event.rate, event.steps) for event in counts if isinstance(event, Scored)}
    assert (paid, counts.total()) == ({(1.0, 3)}, 6)
    assert ledger.total().epsilon > max(point["epsilon"] for point in found["points"])
    plain = oracle_of(load_pareto_plan(plan, terms))
    assert isinstance(plain, OutputPerturbation)
    assert not plain.secret


def test_a_released_error_has_the_noise_that_is_charged_in_whole_steps() -> None:
    """Two replications on a hundred rows: steps of 1/200. False alarms: below one in a million."""
    rows = Examples(np.zeros((100, 2), np.float32), np.zeros(100, np.int64))
    oracle = DpTraining(rows, rows, 2, replications=2)
    point = Point({"lot": 1}, 1.0, (0.43, 0.55), 3.0)
    found = np.array([_noisy(point, oracle, 0.05).errors for _ in range(4000)])
    assert found.shape == (4000, 1)
    np.testing.assert_allclose(200 * found, np.rint(200 * found), atol=1e-9)
    assert found.std() == pytest.approx(0.05, rel=5.4 / np.sqrt(2 * 4000))
    assert found.mean() == pytest.approx(0.49, abs=5.4 * 0.05 / np.sqrt(4000))


def test_a_private_front_refuses_test_rows_that_belong_together() -> None:
    plan = load_pareto_plan(None, ["oracle.sampling=poisson", "oracle.examples=300"])
    oracle = oracle_of(plan)
    assert isinstance(oracle, DpTraining)
    grouped = replace(oracle.test, groups=np.zeros(len(oracle.test), np.int64))
    with pytest.raises(ValueError, match="test data in which every row stands alone"):
        private_event(plan, replace(oracle, test=grouped), [])


def test_wrong_plans_are_refused(tmp_path: Path) -> None:
    wrong = tacit("pareto", "--set", "oracle.kind=ridge", folder=tmp_path)
    assert "oracle.kind is 'ridge'; allowed is 'dp-training' or" in refusal(wrong)
    missing = tacit("pareto", tmp_path / "nothing.toml")
    assert missing.returncode == 2
    with pytest.raises(ValueError, match=r"holds no front \(front\.json is missing\)"):
        suggest(tmp_path, epsilon=1.0, error=None)
    space = tmp_path / "plan.toml"
    space.write_text("[oracle]\nkind = 'sparse-vector'\n[space]\nx = { low = 0.0, high = 1.0 }\n")
    with pytest.raises(ValueError, match="it has its own"):
        load_pareto_plan(space, ())
    with pytest.raises(
        ValueError, match=r"with oracle\.kind 'sparse-vector' is 'none' or 'seconds'"
    ):
        load_pareto_plan(None, (*SMALL, "front.third=parameters"))
    with pytest.raises(ValueError, match="allowed for a private front is what does not depend on"):
        load_pareto_plan(None, (*DIGITS, "front.third=seconds", "front.private=true"))
