"""DP training of many models at once, against Opacus and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import dp_training
from tacit.data.examples import Examples
from tacit.dp_training import Models, Recipe, Run, Secret, Seeded, train
from tacit.lots import Units, scattered
from tacit.privacy.clipped_sum import MARGIN, charged_sensitivity, grid_step

RNG = np.random.default_rng(0)
ROWS = Examples(
    RNG.normal(size=(60, 5)).astype(np.float32), RNG.integers(0, 3, 60).astype(np.int64)
)
TWO = Examples(ROWS.features, (ROWS.features[:, 0] > 0).astype(np.int64))


class Everybody:
    """Lots of all examples, in order, and no noise: what is left is arithmetic."""

    def rounded_normal(self, deviation: Any, shape: tuple[int, ...]) -> Any:
        del deviation
        return np.zeros(shape, np.int64)

    def lots(self, runs: int, units: int, size: int) -> Any:
        return np.tile(np.arange(units)[:size], (runs, 1))

    def some(self, units: int, rate: float) -> Any:
        del rate
        return np.arange(units)

    def placed(self, units: Units, lots: Any, rate: float) -> Any:
        return scattered(units, lots, rate)


def sequential(models: Models, run: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for found in models.layers:
        layer = nn.Linear(found.shape[2] - 1, found.shape[1])
        own = torch.from_numpy(found[run].copy())
        layer.weight.data, layer.bias.data = own[:, :-1].clone(), own[:, -1].clone()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def opacus_sum(module: nn.Module, loss: Any, clip: float, examples: Examples) -> list[torch.Tensor]:
    """The sum of clipped gradients as Opacus' own optimiser makes it."""
    opacus = pytest.importorskip("opacus")
    wrapped = opacus.GradSampleModule(module, loss_reduction="sum")
    plain = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    optimizer = opacus.optimizers.DPOptimizer(
        plain, noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=1, loss_reduction="sum"
    )
    scores = wrapped(torch.tensor(examples.features, requires_grad=True))
    loss(scores, torch.from_numpy(examples.labels)).backward()
    optimizer.pre_step()
    return [parameter.grad for parameter in wrapped.parameters()]


def hinge(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    sign = 2.0 * labels[:, None] - 1.0
    return torch.clamp(1.0 - sign * scores, min=0).sum()


def binary(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(
        scores[:, 0], labels.float(), reduction="sum"
    )


@pytest.mark.parametrize(
    ("hidden", "loss", "examples", "classes", "reference"),
    [
        ((), "logistic", ROWS, 3, nn.CrossEntropyLoss(reduction="sum")),
        ((7,), "logistic", ROWS, 3, nn.CrossEntropyLoss(reduction="sum")),
        ((7, 4), "logistic", ROWS, 3, nn.CrossEntropyLoss(reduction="sum")),
        ((), "logistic", TWO, 2, binary),
        ((), "hinge", TWO, 2, hinge),
    ],
)
@pytest.mark.parametrize("clip", [0.3, 100.0])
def test_a_step_is_that_of_opacus(
    hidden: tuple[int, ...],
    loss: str,
    examples: Examples,
    classes: int,
    reference: Any,
    clip: float,
) -> None:
    recipe = Recipe(hidden, loss, lot=len(examples), steps=3)
    runs = [Run(0.5, 1.0, clip), Run(0.2, 1.0, clip)]
    start = train(recipe, [Run(0.5, 0.0, 1.0)] * 2, examples, classes, Seeded(1))
    after = train(replace(recipe, steps=1), runs, examples, classes, Everybody(), start)
    for number, run in enumerate(runs):
        sums = opacus_sum(sequential(start, number), reference, clip, examples)
        for place, (layer, before) in enumerate(zip(after.layers, start.layers, strict=True)):
            moved = torch.from_numpy(
                (before[number] - layer[number]) * len(examples) / run.learning_rate
            )
            torch.testing.assert_close(moved[:, :-1], sums[2 * place], rtol=2e-3, atol=2e-3)
            torch.testing.assert_close(moved[:, -1], sums[2 * place + 1], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("sampling", "unit"), [("poisson", 1.0), ("fixed", 2.0)])
def test_noise_has_the_size_that_is_paid_for(sampling: str, unit: float) -> None:
    """Of ten thousand numbers; the standard deviation is within five of its own."""
    wide = Examples(np.zeros((8, 2500), np.float32), np.arange(8) % 4)
    recipe = Recipe(lot=4, steps=1, sampling=sampling)
    for chance in (Secret(), Seeded(0)):
        models = train(recipe, [Run(1.0, 3.0, 0.5)], wide, 4, chance)
        deviation = float(models.layers[0].std())
        assert deviation == pytest.approx(unit * 3.0 * 0.5 / 4, rel=5 / np.sqrt(2 * 10_000))


@pytest.mark.parametrize(("sampling", "unit"), [("poisson", 1.0), ("fixed", 2.0)])
def test_noise_is_in_units_of_the_charged_sensitivity(sampling: str, unit: float) -> None:
    """Not of the clip, by which a sum moves only if nothing is rounded."""
    asked: list[Any] = []

    class Recorded(Secret):
        def rounded_normal(self, deviation: Any, shape: tuple[int, ...]) -> Any:
            asked.append(deviation)
            return super().rounded_normal(deviation, shape)

    runs = [Run(0.1, 3.0, 0.5), Run(0.1, 0.7, 2.0)]
    train(Recipe(lot=4, steps=1, sampling=sampling), runs, ROWS, 3, Recorded())
    (deviation,) = asked
    for run, found in zip(runs, deviation.ravel(), strict=True):
        charged = run.clip * (1 + MARGIN) + float(grid_step(run.clip, 18)) * np.sqrt(18)
        assert found == pytest.approx(
            unit * run.noise * charged / grid_step(run.clip, 18), rel=1e-12
        )


@pytest.mark.parametrize("size", [5, 10])
@pytest.mark.parametrize("chance", [Secret(), Seeded(3)], ids=["secret", "seeded"])
def test_lots_are_fair(chance: Any, size: int) -> None:
    """Each example is in as often as any other, within five standard deviations."""
    fixed, by_chance = np.zeros(40), np.zeros(40)
    for _ in range(2000):
        lot, other = chance.lots(2, 40, size)
        assert len(set(lot.tolist())) == len(set(other.tolist())) == size
        fixed[lot] += 1
        by_chance[chance.some(40, 0.25)] += 1
    for counts, rate in ((fixed, size / 40), (by_chance, 0.25)):
        assert np.abs(counts - 2000 * rate).max() < 5 * np.sqrt(2000 * rate * (1 - rate))


def test_one_record_moves_a_step_by_no_more_than_the_clip() -> None:
    recipe = Recipe(lot=60, steps=1)
    shifted = replace(ROWS, features=ROWS.features.copy())
    shifted.features[7] = 1e20
    moved = [
        train(recipe, [Run(60.0, 0.0, 0.5)], examples, 3, Everybody())
        for examples in (ROWS, shifted)
    ]
    squares = sum(
        float(np.square(a - b).sum()) for a, b in zip(moved[0].layers, moved[1].layers, strict=True)
    )
    assert 0 < np.sqrt(squares) <= 2 * 0.5


# Rows that belong together

GROUPED = replace(ROWS, groups=np.arange(60) % 15)
CLIP = 0.5
CHARGED = float(charged_sensitivity(CLIP, 18))


def step_of(examples: Examples, sampling: str = "poisson") -> Any:
    """The sum of all units' clipped gradients."""
    lot = examples.units
    recipe = Recipe(lot=lot, steps=1, sampling=sampling)
    (layer,) = train(recipe, [Run(lot, 0.0, CLIP)], examples, 3, Everybody()).layers
    return layer.ravel()


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_group_moves_a_step_as_a_single_row_may(sampling: str) -> None:
    """All four rows of a patient point the same way, as far as they can."""
    features, labels = 100 * ROWS.features, ROWS.labels.copy()
    features[3::15], labels[3::15] = 1e4, 2
    worst = Examples(features, labels, GROUPED.groups)
    other = replace(worst, features=features.copy(), labels=labels.copy())
    other.labels[3::15] = 0
    alone = worst.take(np.arange(3, 60, 15))
    assert alone.units == 1
    assert 0.9 * CLIP < np.linalg.norm(step_of(alone, sampling)) <= CHARGED
    moved = np.linalg.norm(step_of(worst, sampling) - step_of(other, sampling))
    assert CLIP < moved <= 2 * CHARGED
    without = worst.take(np.flatnonzero(np.arange(60) % 15 != 3))
    assert np.linalg.norm(step_of(worst, sampling) - step_of(without, sampling)) <= CHARGED


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_group_with_more_rows_moves_no_other(sampling: str) -> None:
    """All other rows are on a kink, where a last bit decides whether they have a gradient.

    The group itself is on the other side and moves a bias only, by the same with one row and with
    five. Where the size of arrays was that of the largest group, sums moved by up to nine clips.
    """
    width, units, rng = 40, 104, np.random.default_rng(1)
    recipe = Recipe((8,), "logistic", "sgd", sampling, units, 1)
    for _ in range(20):
        row, weights = rng.normal(size=(2, width)).astype(np.float32)
        bias = -np.dot(row.astype(np.float64), weights.astype(np.float64))
        first = np.tile(np.append(weights, bias).astype(np.float32), (1, 8, 1))
        last = np.zeros((1, 2, 9), np.float32)
        last[:, 0, :8], last[:, 1, :8] = 300, -300
        sums = []
        for rows in (1, 5):
            groups = np.concatenate([np.zeros(rows, np.int64), np.arange(1, units)])
            features = np.tile(row, (len(groups), 1))
            features[:rows] = -row
            whole = Examples(features, np.ones(len(groups), np.int64), groups)
            run = Run(float(units), 1e-9, 1.0)
            models = train(recipe, [run], whole, 2, Secret(), Models((first, last)))
            sums.append(np.concatenate([layer.ravel() for layer in models.layers]))
        np.testing.assert_array_equal(sums[0], sums[1])


def test_groups_of_one_change_nothing() -> None:
    alone = replace(ROWS, groups=np.arange(60))
    for sampling in ("poisson", "fixed"):
        recipe = Recipe(lot=20, steps=30, sampling=sampling)
        one, other = (train(recipe, [Run(0.5, 1.0, 1.0)], e, 3, Seeded(4)) for e in (ROWS, alone))
        np.testing.assert_allclose(one.layers[0], other.layers[0], atol=1e-3)


@pytest.mark.parametrize("chance", [Secret(), Seeded(3)], ids=["secret", "seeded"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_lot_never_cuts_a_group_in_two(chance: Any, sampling: str) -> None:
    """Lots are of groups: five on average, or exactly; within five standard deviations."""
    units = Units(GROUPED)
    counted = []
    for rows, weights in dp_training._lots(Recipe(sampling=sampling, lot=5), units, 200, 2, chance):
        assert weights is not None
        for own, weight in zip(rows, weights, strict=True):
            drawn = own[weight > 0]
            assert (weight[weight > 0] == 0.25).all()
            groups = np.unique(drawn % 15)
            np.testing.assert_array_equal(
                np.sort(drawn), np.flatnonzero(np.isin(np.arange(60) % 15, groups))
            )
            counted.append(len(groups))
    if sampling == "fixed":
        assert set(counted) == {5}
    else:
        assert abs(np.mean(counted) - 5) < 5 * np.sqrt(15 * (1 / 3) * (2 / 3) / 400)


def test_a_lot_has_no_more_units_than_there_are_groups() -> None:
    with pytest.raises(ValueError, match="allowed is 1 to the number of examples, 15, where"):
        train(Recipe(lot=16), [Run(0.1, 1.0, 1.0)], GROUPED, 3, Seeded(0))


def test_a_released_model_has_noise() -> None:
    with pytest.raises(ValueError, match=r"is 0.0; allowed is a number above 0"):
        train(Recipe(lot=5, steps=1), [Run(0.1, 0.0, 1.0)], ROWS, 3, Secret())


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("hidden", [(), (16,)])
def test_models_learn_and_more_noise_learns_less(optimiser: str, hidden: tuple[int, ...]) -> None:
    rate = 0.5 if optimiser == "sgd" else 0.05
    recipe = Recipe(hidden, optimiser=optimiser, lot=20, steps=150)
    models = train(recipe, [Run(rate, 0.3, 1.0), Run(rate, 300.0, 1.0)], TWO, 2, Seeded(0))
    little, much = models.wrong(TWO)
    assert little < 10
    assert little < much


def test_adam_takes_the_papers_steps() -> None:
    """The first step of Adam has the size of the learning rate, whatever the gradient."""
    models = train(
        Recipe(optimiser="adam", lot=60, steps=1), [Run(0.01, 0.0, 1.0)], TWO, 2, Everybody()
    )
    np.testing.assert_allclose(np.abs(models.one(0)[0][0, 1]), 0.01, rtol=1e-3)


@pytest.mark.parametrize(
    "wrong", [{"loss": "l1"}, {"optimiser": "lbfgs"}, {"sampling": "all"}, {"lot": 0}]
)
def test_wrong_recipes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Recipe(**wrong)


def test_a_lot_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed is 1 to the number of examples, 60"):
        train(Recipe(lot=61), [Run(0.1, 1.0, 1.0)], ROWS, 3, Seeded(0))
