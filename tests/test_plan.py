from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from tacit.plan import load_plan, participation_of, read_plan, settled, voting, with_vote
from tacit.privacy.mechanisms import Participation
from tacit.space import Choice, Float
from tacit.tuners.voting import RunOff, Vote


def test_the_default_plan_is_the_main_job() -> None:
    plan = load_plan(None, [])
    assert (plan.federation.clients, plan.federation.partition, plan.federation.alpha) == (
        50,
        "dirichlet",
        5.0,
    )
    assert (plan.search.method, plan.search.candidates) == ("vote", 100)
    assert (plan.search.ballot, plan.search.votes) == ("auto", 0)
    assert (plan.privacy.epsilon, plan.privacy.delta) == (1.0, 1e-5)
    assert plan.task.data == "digits"
    assert plan.space.dimensions["learning_rate"] == Float(1e-4, 1.0, log=True)


def test_the_plan_as_run_runs_again() -> None:
    plan = load_plan(None, ["privacy.epsilon=inf", "search.method=opt", "task.hidden=[8, 4]"])
    assert read_plan(tomllib.loads(plan.to_toml())) == plan


def test_a_file_is_read_and_changed(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text("[space]\nmomentum = { choices = [0.0, 0.9] }\n[search]\nvotes = 1\n")
    plan = load_plan(file, ["search.candidates=2", "search.sampling=grid", "privacy.epsilon=2"])
    assert plan.space.dimensions == {"momentum": Choice([0.0, 0.9])}
    assert plan.search.votes == 1
    assert plan.privacy.epsilon == 2.0


def test_one_key_of_the_default_space_can_be_changed() -> None:
    plan = load_plan(None, ["space.momentum={choices=[0.0, 0.9]}", "space.decay.low=0.5"])
    assert plan.space.dimensions["momentum"] == Choice([0.0, 0.9])
    assert plan.space.dimensions["decay"] == Float(0.5, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("search.vote=5", "search.vote is not a key; allowed are method, candidates, sampling"),
        ("serach.votes=5", r"\[serach\] is not a section; allowed are task, space, search"),
        ("search.votes=five", "search.votes is 'five'; allowed is a whole number from 0"),
        ("search.votes=5.0", "search.votes is 5.0; allowed is a whole number from 0"),
        ("search.votes=-1", "search.votes is -1; allowed is a whole number from 0"),
        ("search.ballot=range", "search.ballot is 'range'; allowed is 'auto' or 'published' or"),
        ("search.smooth=true", "search.ballot is 'auto', search.smooth True and .* name a ballot"),
        ("search.finalists=4", "search.finalists 4; allowed with it are false and 0"),
        ("search.votes=true", "search.votes is True; allowed is a whole number"),
        ("search.votes=100", "search.votes is 100 of 100 candidates; allowed is 1 to 99"),
        ("search.method=borda", "search.method is 'borda'; allowed is 'vote' or 'combine'"),
        (
            "search.sampling=tpe",
            "search.sampling is 'tpe'; allowed with search.method 'vote' is 'so",
        ),
        ("federation.secure=encrypted", "privacy.dropout is 0.1; allowed with federation.secure"),
        (
            "space.server_momentum={low=0.0, high=0.9}",
            "server_momentum and momentum are both tuned",
        ),
        ("search.sampling=halton", "search.sampling is 'halton'; allowed is 'sobol' or"),
        ("privacy.epsilon=0", "privacy.epsilon is 0; allowed is a number from 0.001 to 30, or inf"),
        ("privacy.epsilon='1'", "privacy.epsilon is '1'; allowed is a number"),
        ("privacy.epsilon=nan", "privacy.epsilon is nan; allowed"),
        ("privacy.epsilon=inf", "privacy.epsilon is inf; allowed with search.method 'vote' is a"),
        ("privacy.delta=1", "privacy.delta is 1; allowed is a number from 1e-10 to 0.1"),
        ("privacy.dropout=1.0", "privacy.dropout is 1.0; allowed is a count of clients such as 2"),
        ("privacy.dropout=true", "privacy.dropout is True; allowed is a count of clients such as"),
        ("privacy.colluding=some", "privacy.colluding is 'some'; allowed is a count of clients"),
        ("privacy.colluding=-1", "privacy.colluding is -1; allowed is a count of clients"),
        (
            "privacy.colluding=45",
            "privacy: dropout is 0.1 and colluding 45: of 50 clients 5 may",
        ),
        ("federation.clients=1", "federation.clients is 1; allowed is a whole number from 2"),
        ("federation.roster=yes", "federation.roster is 'yes'; allowed is true or false"),
        ("federation.alpha=-1", "federation.alpha is -1; allowed is a number from 0.001"),
        ("task.hidden=[0]", r"task.hidden is \[0\]; allowed is a list of whole numbers"),
        ("task.hidden=32", "task.hidden is 32; allowed is a list of whole numbers"),
        (
            "task.data=cifar",
            "task.data is 'cifar'; allowed is 'digits' or 'mnist' or 'fashion-mnist'",
        ),
        (
            "task.network=lenet",
            "task.network is 'lenet'; allowed is 'dense' or 'cells' or 'dp-hype-mnist'",
        ),
        ("search.local=half", "search.local is 'half'; allowed is 'full' or 'halving'"),
        ("federation.partition=x", "federation.partition is 'x'; allowed is 'iid' or 'dirichlet'"),
        ("federation.percent=101", "federation.percent is 101; allowed is a number from 0 to 100"),
        ("space.dropout={low=0.0, high=1.0}", "space: dropout is 1.0; allowed is a number of at"),
        ("space.depth={low=1, high=3, int=true}", "space: 'depth' is no hyperparameter"),
        (
            "space.momentum={choices=['a', 'b']}",
            "space: momentum is 'a'; allowed is a finite number",
        ),
        ("space.momentum.low=-1.0", "space: momentum is -1.0; allowed is a finite number"),
        ("space.momentum.low=2.0", "space: momentum: low is 2.0; allowed is"),
        ("space.momentum.step=0.1", "space: momentum: step is 0.1; allowed keys"),
        ("space.momentum=[0.0, 0.9]", "space: momentum: found .*allowed is a table"),
        ("space=3", "allowed is section.key=value"),
        ("votes=3", "allowed is section.key=value"),
        ("search.votes", "allowed is section.key=value"),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_plan(None, [change])


def test_fractions_that_leave_nobody_are_refused() -> None:
    with pytest.raises(ValueError, match=r"privacy: .* 30 may be missing and 30 may know their"):
        load_plan(None, ["privacy.dropout=0.6", "privacy.colluding=0.6"])


@pytest.mark.parametrize("written", ["0.1", "5", "1/10", "'5'", "'1/10'"])
def test_drop_outs_are_a_count_or_a_fraction_and_stay_as_written(written: str) -> None:
    plan = load_plan(None, [f"privacy.dropout={written}", f"privacy.colluding={written}"])
    assert participation_of(plan) == Participation(50, 5, 5)
    again = read_plan(tomllib.loads(plan.to_toml()))
    assert again == plan
    assert type(again.privacy.dropout) is type(plan.privacy.dropout)


def test_a_section_must_be_a_table() -> None:
    with pytest.raises(ValueError, match=r"search is 3; allowed is a section of keys: \[search\]"):
        read_plan({"search": 3})


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text("[search\n")
    with pytest.raises(ValueError, match=r"plan.toml is not a TOML file"):
        load_plan(file, [])


def test_no_deadline_is_infinite() -> None:
    assert load_plan(None, []).federation.deadline == math.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["search.strategy=median"], "search: the strategy 'median' cannot be 'dp': a median is"),
        (
            ["search.method=flora", "search.surface=mplm"],
            "search: the surface 'mplm' cannot be 'dp'",
        ),
        (["search.mode=encrypted"], "search.mode is 'encrypted' and federation.secure is 'masks'"),
        (
            ["federation.secure=encrypted", "privacy.dropout=0"],
            "search.mode is 'dp' and federation.secure is 'encrypted'; allowed with it is",
        ),
        (["privacy.epsilon=inf"], "privacy.epsilon is inf; allowed with search.mode 'dp' is a num"),
        (["task.score=loss"], "task.score is 'loss'; allowed with search.strategy 'dbscan'"),
        (["search.sampling=cma"], "search.sampling is 'cma'; allowed is 'sobol' or"),
    ],
)
def test_combinations_that_cannot_be_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_plan(None, ["search.method=combine", *changes])


def test_the_servers_hyperparameters_can_be_tuned_alone_or_all_of_them_with_opt() -> None:
    fixed = ["space.momentum={choices=[0.5]}", "space.server_momentum={low=0.0, high=0.9}"]
    assert "server_momentum" in load_plan(None, fixed).space.dimensions
    both = ["search.method=opt", "privacy.epsilon=inf", "space.server_momentum={low=0.0, high=0.9}"]
    assert "momentum" in load_plan(None, both).space.dimensions


# Which vote is held


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["search.ballot=borda", "search.votes=51"], "ranked is 51 of 100 candidates; allowed"),
        (["search.ballot=top", "search.finalists=1"], "finalists is 1; allowed are at least 2"),
        (["search.ballot=top", "search.finalists=100"], "found 100 finalists of 100 candidates"),
        (["search.ballot=published", "search.smooth=true"], "search.ballot is 'published'"),
        (
            ["search.ballot=published", "search.folds=5"],
            "search.folds 5; allowed with it is 0 or 1",
        ),
    ],
)
def test_votes_that_cannot_be_held_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_plan(None, changes)


def test_published_is_the_papers_vote() -> None:
    plan = load_plan(None, ["search.ballot=published"])
    assert voting(plan) == Vote(5, 100, "sobol")
    assert settled(plan, participation_of(plan)) == (plan, None)


def test_what_is_left_to_us_is_settled_once_and_says_so_in_the_plan() -> None:
    plan = load_plan(None, ["privacy.epsilon=0.5"])
    with pytest.raises(ValueError, match="which vote is held was not decided yet"):
        voting(plan)
    found, strategy = settled(plan, participation_of(plan))
    assert strategy is not None
    assert voting(found) == strategy.vote
    assert settled(found, participation_of(found)) == (found, None)
    assert read_plan(tomllib.loads(found.to_toml())) == found
    assert voting(settled(plan, participation_of(plan))[0]) == strategy.vote


def test_a_wished_number_of_votes_is_kept() -> None:
    plan = load_plan(None, ["search.votes=7"])
    found, strategy = settled(plan, participation_of(plan))
    assert strategy is not None
    assert found.search.votes == strategy.vote.votes == 7


@pytest.mark.parametrize(("given", "found"), [(0, 5), (1, 1), (3, 3)])
def test_clients_cross_validate_unless_they_should_not(given: int, found: int) -> None:
    plan = load_plan(None, [f"search.folds={given}"])
    plan, strategy = settled(plan, participation_of(plan))
    assert strategy is not None
    assert voting(plan).folds == strategy.vote.folds == plan.search.folds == found


@pytest.mark.parametrize(
    "vote",
    [
        Vote(5),
        Vote(5, folds=5),
        Vote(10, ballot="borda"),
        Vote(3, smooth=True),
        Vote(20, ballot="borda", smooth=True, run_off=RunOff(4, 0.2)),
    ],
)
def test_every_vote_can_be_written_in_a_plan(vote: Vote) -> None:
    assert voting(with_vote(load_plan(None, []), vote)) == vote
