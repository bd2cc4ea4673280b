"""Encrypted sums over Flower's messages; a member's roster decides whether it takes part."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import tacit
import tacit.flower
from tacit.membership import ROSTER
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger, ledger_path
from tacit.result import ENCRYPTED_SERVER
from tacit.secure.encrypted import SomebodyMissing
from tests.federations import SPACE
from tests.flower.clinics import NAME, Clinics
from tests.flower.grids import InProcessGrid, generous, grid_of, server_context, voters

pytest.importorskip("seal")
pytestmark = pytest.mark.usefixtures("at_once")

SETTINGS = {
    "federation__name": NAME,
    "federation__secure": "encrypted",
    "federation__deadline": 30.0,
    "federation__wait": 0.0,
    "privacy__dropout": 0.0,
    "search__method": "combine",
    "search__mode": "encrypted",
    "search__sampling": "grid",
    "search__candidates": 11,
}


def tune(grid: InProcessGrid, **more: object) -> tacit.Result:
    return tacit.flower.tune(grid, server_context(**SETTINGS | more), space=SPACE)


@pytest.mark.parametrize("strategy", ["mean", "dbscan"])
def test_nodes_without_a_folder_combine_under_noise(strategy: str) -> None:
    terms = {"privacy__epsilon": 30.0, "search__points": 1}
    result = tune(generous(grid_of(voters(3))), search__strategy=strategy, **terms)
    assert result.privacy.server == ENCRYPTED_SERVER
    assert 0 < result.privacy.epsilon <= 30
    assert result.clients.answered == 3
    assert set(result.bytes) >= {"evaluate", "encrypt", "open"}


def test_a_node_that_goes_silent_ends_the_run(tmp_path: Path) -> None:
    del tmp_path
    grid = grid_of(voters(3))
    grid.silent = {101: "open"}
    with pytest.raises(SomebodyMissing, match="only 2 of 3 clients answered the stage 'open'"):
        tune(grid, search__strategy="mean", privacy__epsilon=8.0, federation__timeout=1.0)
    assert len(Ledger(ledger_path(NAME))) == 1, "what was charged stays charged"


def agreed(tmp_path: Path, secure: str, budget: Budget) -> Clinics:
    clinics = Clinics.found(tmp_path, 3, dropout=0.0, budget=budget)
    told = replace(clinics.membership, secure=secure).to_toml()
    for place in (*(folder / ROSTER for folder in clinics.folders), clinics.roster_file):
        place.write_text(told)
    Ledger.create(ledger_path(NAME), NAME, budget)
    return clinics


def test_members_take_part_if_their_roster_says_so_even_without_noise(tmp_path: Path) -> None:
    clinics = agreed(tmp_path, "encrypted", Budget(math.inf, 1e-5))
    result = tune(
        clinics.grid(),
        search__strategy="mean",
        privacy__epsilon=math.inf,
        federation__roster_file=str(clinics.roster_file),
    )
    assert result.config["x"] == pytest.approx(0.4667, abs=0.01)
    assert result.privacy.epsilon == math.inf
    assert clinics.spent() == [1, 1, 1]


def test_members_whose_roster_says_masks_refuse(tmp_path: Path) -> None:
    clinics = agreed(tmp_path, "masks", Budget(30.0, 1e-5))
    roster = {"federation__roster_file": str(clinics.roster_file)}
    with pytest.raises(SomebodyMissing, match="only 0 of 3"):
        tune(clinics.grid(), search__strategy="mean", privacy__epsilon=8.0, **roster)
    assert clinics.spent() == [0, 0, 0]


def test_members_with_a_finite_budget_refuse_a_sum_without_noise(tmp_path: Path) -> None:
    clinics = agreed(tmp_path, "encrypted", Budget(30.0, 1e-5))
    ledger_path(NAME).unlink()
    Ledger.create(ledger_path(NAME), NAME, Budget(math.inf, 1e-5))
    roster = {"federation__roster_file": str(clinics.roster_file)}
    with pytest.raises(SomebodyMissing, match="only 0 of 3"):
        tune(clinics.grid(), search__strategy="mean", privacy__epsilon=math.inf, **roster)
    assert clinics.spent() == [0, 0, 0]
