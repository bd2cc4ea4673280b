from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.grids import GRIDS
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import BordaVotes
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.space import Choice, Float, Space
from tacit.strategy import Family, choose, describe, kinds, normal_noise, weights_of
from tacit.tuners.voting import RunOff, Vote

GRID = GRIDS["dp-hype-table"]
EVERYBODY = Participation(50, dropout=0.0)


@pytest.fixture(scope="module")
def family() -> Family:
    candidates = GRID.candidates(100, "grid")
    return Family.drawn(GRID, candidates, 50, surfaces=24)


def test_the_menu_begins_with_the_published_vote_and_only_has_what_is_possible() -> None:
    menu = kinds(100)
    assert menu[0] == Vote(5, 100)
    for count in (2, 3, 5, 8, 40):
        for vote in kinds(count):
            vote.event(Space({"x": Float(0.0, 1.0)}), 1.0)


def test_without_noise_and_disagreement_the_best_wins(family: Family) -> None:
    same = np.argsort(np.argsort(-family.values, axis=1), axis=1)[:, None, :]
    agreed = Family(family.space, family.candidates, family.values, same)
    for vote in kinds(100):
        if vote.ballot == "borda" and not vote.smooth:
            assert agreed.loss(vote, EVERYBODY, Budget(30.0, 1e-5)) == pytest.approx(0, abs=0.02)


def test_more_budget_loses_less(family: Family) -> None:
    for vote in (kinds(100)[0], Vote(10, ballot="borda", smooth=True, run_off=RunOff())):
        little, much = (family.loss(vote, EVERYBODY, Budget(e, 1e-5)) for e in (0.1, 3.0))
        assert much < little


def test_the_noise_is_that_of_the_mechanism_within_a_few_parts_of_a_hundred() -> None:
    budget, vote = Budget(0.5, 1e-5), Vote(10, ballot="borda")
    exact = SkellamMechanism.calibrated(BordaVotes(100, 10), Participation(50), budget)
    found, _ = normal_noise(vote, 100, Participation(50), budget)
    assert found.deviation == pytest.approx(math.sqrt(exact.delivered_variance), rel=0.03)


def test_tallies_are_the_ballots_of_all_clients(family: Family) -> None:
    weights = weights_of(Vote(3, ballot="borda"))
    tallies = family._tallies(weights, 50)
    assert tallies.sum(axis=1) == pytest.approx(np.full(24, 50 * 6.0))
    first = family.ranks[0, :, 7]
    assert tallies[0, 7] == pytest.approx(np.maximum(3 - first, 0).sum())


def test_what_is_chosen_beats_the_published_vote_and_says_why() -> None:
    found = choose(GRID, Participation(50), Budget(0.5, 1e-5), 100, "grid")
    assert found.loss < 0.7 * found.published
    assert found.vote.candidates == 100
    assert found.vote.sampling == "grid"
    assert found.why.count(". ") == 1
    assert describe(found.vote) in found.why


def test_the_same_numbers_choose_the_same() -> None:
    space = Space({"net": Choice(["a", "b", "c", "d"])})
    one, other = (choose(space, Participation(9), Budget(1.0, 1e-5), 4, "grid") for _ in "ab")
    assert one == other
