"""Families of private algorithms: what they cost, against other accountants and by attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tacit import oracles
from tacit.data.examples import Dataset, Examples
from tacit.dp_training import Secret
from tacit.oracles import (
    LEVELS,
    DpTraining,
    OutputPerturbation,
    SparseVector,
    fixed_epsilon,
    poisson_epsilon,
)
from tacit.privacy.accounting import spent
from tacit.privacy.clipped_sum import grid_step
from tacit.privacy.events import SampledGaussian
from tacit.privacy.skellam import FloatArray, IntArray
from tacit.space import Config, Float, Space

SETTINGS = [(1000, 64, 1.0, 150), (32_561, 128, 0.7, 2000), (6000, 16, 4.0, 40), (500, 400, 2.0, 3)]


@pytest.mark.parametrize(("records", "lot", "noise", "steps"), SETTINGS)
def test_fixed_lots_cost_what_dp_accounting_says_by_hand(
    records: int, lot: int, noise: float, steps: int
) -> None:
    """Fewer orders than the accountant's own are never optimistic, and lose under 2 %."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
    from dp_accounting.dp_event import SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    one = SampledWithoutReplacementDpEvent(records, lot, GaussianDpEvent(noise))
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    by_hand = float(accountant.compose(SelfComposedDpEvent(one, steps)).get_epsilon(1e-6))
    found = fixed_epsilon(records, lot, noise, steps, 1e-6)
    assert by_hand * (1 - 1e-9) <= found <= 1.02 * by_hand


@pytest.mark.parametrize(("records", "lot", "noise", "steps"), SETTINGS)
def test_chance_lots_cost_what_dp_accounting_says_by_hand(
    records: int, lot: int, noise: float, steps: int
) -> None:
    """By its distributions, for a record that is replaced; more than one that is added costs."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant

    event = SelfComposedDpEvent(PoissonSampledDpEvent(lot / records, GaussianDpEvent(noise)), steps)
    found = poisson_epsilon(lot / records, noise, steps, 1e-6)
    replaced, added = (
        float(
            PLDAccountant(relation, value_discretization_interval=found / 5000)
            .compose(event)
            .get_epsilon(1e-6)
        )
        for relation in (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE)
    )
    assert added < found
    assert found == pytest.approx(replaced, rel=0.005)


def test_a_lot_of_everything_is_a_plain_gaussian() -> None:
    """One step on all records, replaced one: the exact Gaussian with sensitivity one is below."""
    from tacit.privacy.accounting import gaussian_epsilon

    exact = gaussian_epsilon(1 / 3.0**2, 1e-6)
    assert exact <= fixed_epsilon(100, 100, 3.0, 1, 1e-6) <= 1.3 * exact


def test_noise_is_paid_for_in_the_units_in_which_it_is_added() -> None:
    """Twice the clip where a record is replaced: as much again than where one comes or goes."""
    rows = Examples(np.zeros((400, 3), np.float32), np.arange(400) % 2)
    config: Config = {
        "epochs": 2,
        "lot": 20,
        "learning_rate": 0.1,
        "noise_variance": 4.0,
        "clip": 1.0,
    }
    fixed = DpTraining(rows, rows, 2)
    assert fixed.epsilon(config) == fixed_epsilon(400, 20, 2.0, 40, 1e-6)
    chance = replace(fixed, sampling="poisson")
    assert chance.epsilon(config) == poisson_epsilon(0.05, 2.0, 40, 1e-6)
    assert (fixed.protects, chance.protects) == (
        "per record, replace-one",
        "per record, replace-one",
    )


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_rates_and_steps_depend_on_groups_and_not_on_their_rows(sampling: str) -> None:
    rows = Examples(np.zeros((400, 3), np.float32), np.arange(400) % 2)
    grouped = Examples(
        np.zeros((900, 3), np.float32), np.arange(900) % 2, np.minimum(np.arange(900), 399)
    )
    data = [Dataset("toy", one, one, ("no", "yes")) for one in (rows, grouped)]
    alone, together = (DpTraining.of(one, sampling=sampling) for one in data)
    config: Config = {
        "epochs": 2,
        "lot": 20,
        "learning_rate": 0.1,
        "noise_variance": 4.0,
        "clip": 1.0,
    }
    assert together.steps(config) == alone.steps(config) == 40
    assert together.epsilon(config) == alone.epsilon(config)
    assert together.space == alone.space


def test_output_perturbation_refuses_groups() -> None:
    rows = Examples(np.eye(4, dtype=np.float32), np.arange(4) % 2, np.array([0, 0, 1, 1]))
    with pytest.raises(
        ValueError, match="allowed for output perturbation are examples in which every row"
    ):
        OutputPerturbation.of(Dataset("toy", rows, rows, ("no", "yes")))


def in_the_ball(seed: int, count: int = 40) -> tuple[FloatArray, IntArray]:
    """Rows of norm one, and labels that can be told from them."""
    rows = np.random.default_rng(seed).normal(size=(count, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, (rows[:, 0] > 0).astype(np.int64)


def moved_by_one(seed: int, row: Callable[[FloatArray], FloatArray], label: int | None) -> float:
    """By how much of what the proof says weights move, at most, when one row is replaced."""
    rows, labels = in_the_ball(seed)
    weights = oracles._trained(Examples(rows.astype(np.float32), labels), 5)
    found = []
    for place in np.random.default_rng((seed, 1)).integers(40, size=5):
        other, names = rows.copy(), labels.copy()
        other[place] = row(other[place])
        names[place] = names[place] if label is None else label
        moved = oracles._trained(Examples(other.astype(np.float32), names), 5)
        found.append((np.linalg.norm(weights - moved, axis=1) * LEVELS * 40 / 2).max())
    return float(np.max(found))


@pytest.mark.parametrize("seed", range(4))
def test_no_replaced_row_moves_the_perturbed_weights_by_more_than_is_paid_for(seed: int) -> None:
    """The worst rows that we know: opposite ones of norm one, at any place in the order."""
    assert 0.1 < moved_by_one(seed, np.negative, None) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("row", "label"),
    [
        (lambda row: -1000 * row, None),
        (lambda row: np.full_like(row, 3e38), None),
        (lambda row: np.full_like(row, np.nan), None),
        (lambda row: np.full_like(row, -np.inf), None),
        (lambda row: row, 7),
    ],
    ids=["1000 times longer", "as large as can be", "no number", "infinite", "of no class"],
)
def test_rows_beyond_every_bound_move_the_perturbed_weights_no_further(
    row: Callable[[FloatArray], FloatArray], label: int | None
) -> None:
    assert 0.01 < moved_by_one(5, row, label) <= 1 + 1e-9


def perturbation(replications: int = 50, *, secret: bool = True) -> OutputPerturbation:
    rows, labels = in_the_ball(6)
    examples = Examples(rows.astype(np.float32), labels)
    return OutputPerturbation(examples, examples, replications=replications, secret=secret)


PERTURBED: Config = {"regularisation": 0.01, "sigma": 2.0}


def test_noisy_weights_are_whole_steps_with_the_noise_that_is_charged() -> None:
    """False alarms: below one in a million, three weights and 4000 draws of each."""
    family = perturbation(4000)
    noisy = family.noisy_weights(PERTURBED, Secret())
    steps = noisy / float(grid_step(4 / (0.01 * 40), 3))
    assert (steps == np.rint(steps)).all()
    assert noisy.std(axis=0) == pytest.approx(2.0, rel=5.4 / np.sqrt(2 * 4000))
    exact = oracles._trained(family.examples, 10)[family._level(PERTURBED)]
    assert noisy.mean(axis=0) == pytest.approx(exact, abs=5.4 * 2.0 / np.sqrt(4000))


def test_the_noise_of_a_private_perturbation_comes_from_no_seed() -> None:
    assert (perturbation().errors(PERTURBED, 1) != perturbation().errors(PERTURBED, 1)).any()
    seeded = perturbation(secret=False)
    assert (seeded.errors(PERTURBED, 1) == seeded.errors(PERTURBED, 1)).all()


def test_released_perturbations_cost_what_the_exact_gaussian_costs() -> None:
    """A release for every replication, as if it were one with noise that much smaller."""
    family = perturbation(4)
    found = family.released(PERTURBED, 3.0)
    assert found.score_noise == 3.0
    training = SampledGaussian(found.rate, found.noise, found.steps)
    together = family.epsilon({**PERTURBED, "sigma": 1.0})
    assert spent(training, family.delta).epsilon == pytest.approx(together, rel=0.005)


def test_output_perturbation_refuses_settings_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"regularisation is 2; allowed is 0\.0001 to 1$"):
        perturbation().epsilon({**PERTURBED, "regularisation": 2.0})
    with pytest.raises(ValueError, match="sigma is 0; allowed is a finite number above 0"):
        perturbation().released({**PERTURBED, "sigma": 0.0}, 1.0)
    with pytest.raises(ValueError, match="the space has sigma; allowed for output perturbation"):
        replace(perturbation(), space=Space({"sigma": Float(1.0, 2.0)}))


def test_output_perturbation_refuses_more_rows_than_its_proof_allows() -> None:
    rows = Examples(np.zeros((2**20, 64), np.float32), np.zeros(2**20, np.int64))
    with pytest.raises(ValueError, match=r"up to 2\^50, for which the rounding of weights"):
        OutputPerturbation(rows, rows, epochs=11)


def test_output_perturbation_is_the_exact_gaussian() -> None:
    """Of what the weights move by, and a little more for the grid and for rounding."""
    from tacit.privacy.accounting import gaussian_epsilon

    rows = Examples(np.eye(50, dtype=np.float32), np.arange(50) % 2)
    family = OutputPerturbation(rows, rows)
    found = family.epsilon({"regularisation": 0.01, "sigma": 2.0})
    exact, more = (gaussian_epsilon((4 / (0.01 * 50) / s) ** 2, 1e-6) for s in (2.0, 1.998))
    assert exact < found < more


def test_output_perturbation_refuses_rows_that_belong_together() -> None:
    rows = Examples(np.eye(4, dtype=np.float32), np.arange(4) % 2, np.array([0, 0, 1, 2]))
    with pytest.raises(ValueError, match="allowed for output perturbation are examples in which"):
        OutputPerturbation(rows, rows)


def test_the_sparse_vector_technique_costs_the_sum_of_its_parts() -> None:
    """A threshold with noise ``b1``, and at most C answers with ``b2``, each moving by one."""
    for most, noise in ((1, 0.5), (10, 20.0), (30, 100.0)):
        first = noise / (1 + (2 * most) ** (1 / 3))
        second = noise - first
        by_parts = 1 / first + 2 * most / second
        assert SparseVector().epsilon({"C": most, "b": noise}) == pytest.approx(by_parts)


def test_the_sparse_vector_technique_finds_all_without_noise_and_nothing_with_much() -> None:
    family = SparseVector(replications=200)
    assert family.errors({"C": 10, "b": 0.01}, 0).max() == 0
    half = family.errors({"C": 5, "b": 0.01}, 0)
    assert half == pytest.approx(1 - 2 * 5 / 15)
    assert family.errors({"C": 10, "b": 100.0}, 0).mean() > 0.7
