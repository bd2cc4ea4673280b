from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from scipy.stats import kstest
from torch import nn

from tacit import rules
from tacit.data.examples import Examples
from tacit.lots import poisson_sample
from tacit.modules import draw
from tacit.networks import dense
from tacit.privacy.clipped_sum import MARGIN, charged_sensitivity, grid_step
from tacit.privacy.rounded_normal import rounded_normal
from tacit.rules import Adaptive, Bilevel, DpSgd, train_by
from tacit.sgd import Weights
from tacit.space import Config
from tacit.supernet import table_cells

ROWS = 24
RNG = np.random.default_rng(3)
FEATURES = RNG.normal(size=(ROWS, 4)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.int64)
TRAIN, VALIDATION = (
    Examples(FEATURES[part], LABELS[part]) for part in (slice(0, 16), slice(16, 24))
)
NET = draw(lambda: dense((4,), 2, hidden=(3,)), 0)


def weights_of(module: nn.Module, *more: float) -> Weights:
    own = tuple(p.detach().numpy()[None].copy() for p in module.parameters())
    return (*own, *(np.full((1, 1), number, np.float32) for number in more))


def trained(
    rule: Any, *, config: Any = None, epochs: int = 1, rate: float | None = None
) -> Weights:
    more = () if rate is None else (math.log(rate),)
    return train_by(
        rule,
        NET,
        weights_of(NET, *more),
        config or {"learning_rate": 0.1},
        TRAIN,
        VALIDATION,
        epochs,
        8,
        (1, 2),
    )


def vector(weights: Weights) -> Any:
    return np.concatenate([array.ravel() for array in weights])


# Adaptive learning rates


def by_hand(rule: Adaptive, rate: float, epochs: int) -> tuple[Any, float]:
    """Algorithm 1 with autograd on a module, batch by batch."""
    module = draw(lambda: dense((4,), 2, hidden=(3,)), 0)
    batches = []
    for epoch in range(epochs):
        order = np.random.default_rng((1, 2, epoch)).permutation(16)
        batches += [order[:8], order[8:]]

    def slope(at: torch.Tensor, rows: Any) -> torch.Tensor:
        torch.nn.utils.vector_to_parameters(at, module.parameters())
        module.zero_grad()
        loss = nn.functional.cross_entropy(
            module(torch.tensor(TRAIN.features[rows])), torch.tensor(TRAIN.labels[rows])
        )
        torch.autograd.backward(loss)
        return torch.cat([p.grad.ravel() for p in module.parameters() if p.grad is not None])

    here = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        pull = slope(here, first)
        half, full = here - rate / 2 * pull, here - rate * pull
        twice = half - rate / 2 * slope(half, second)
        error = float(((full - twice) / full.abs().clamp(min=1)).norm())
        if error <= rule.tolerance:
            here = twice
        ratio = rule.tolerance / error
        ratio = ratio if rule.printed else math.sqrt(ratio)
        rate *= min(max(ratio, rule.slowest), rule.fastest)
    return here.numpy(), rate


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize(("rate", "tolerance"), [(0.1, 1.0), (5.0, 0.05), (0.7, 0.1)])
def test_algorithm_1_by_hand(printed: bool, rate: float, tolerance: float) -> None:
    rule = Adaptive(tolerance, printed=printed)
    *found, log_rate = trained(rule, epochs=6, rate=rate)
    expected, last = by_hand(rule, rate, epochs=6)
    np.testing.assert_allclose(vector(tuple(found)), expected, atol=2e-5)
    assert math.exp(log_rate.item()) == pytest.approx(last, rel=1e-4)


def test_the_printed_factor_and_the_authors_root_differ() -> None:
    """Between the bounds: tolerance over error is 1.06 to one, its root 1.03."""
    rates = {}
    for printed in (False, True):
        rule = Adaptive(1e-3, slowest=0.01, fastest=100.0, printed=printed)
        rates[printed] = trained(rule, epochs=1, rate=0.05)[-1].item() - math.log(0.05)
    assert rates[True] == pytest.approx(2 * rates[False], rel=1e-5)


def test_a_step_beyond_the_tolerance_is_discarded() -> None:
    *found, log_rate = trained(Adaptive(1e-9), epochs=3, rate=10.0)
    np.testing.assert_array_equal(vector(tuple(found)), vector(weights_of(NET)))
    assert math.exp(log_rate.item()) == pytest.approx(10 * 0.9**3, rel=1e-5)


def test_a_diverging_rate_comes_down_by_itself() -> None:
    *found, log_rate = trained(Adaptive(), epochs=3, rate=1e30)
    assert np.isfinite(vector(tuple(found))).all()
    assert log_rate.item() == pytest.approx(math.log(1e30) + 3 * math.log(0.9), rel=1e-5)


def test_a_tiny_rate_grows() -> None:
    *_, log_rate = trained(Adaptive(), epochs=30, rate=1e-6)
    assert log_rate.item() == pytest.approx(math.log(1e-6) + 30 * math.log(1.1), rel=1e-4)


# DP-SGD


def test_clipped_sums_are_those_of_opacus() -> None:
    """Every record in the step, no noise to speak of: one step of Opacus' own optimizer."""
    opacus = pytest.importorskip("opacus")
    rule = DpSgd(rate=1.0, steps=1, clip=0.05, noise=1e-12, batch=16)
    found = vector(trained(rule, config={"learning_rate": 1.0}))
    module = opacus.GradSampleModule(draw(lambda: dense((4,), 2, hidden=(3,)), 0))
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.05,
        expected_batch_size=16,
    )
    logits = module(torch.tensor(TRAIN.features, requires_grad=True))
    torch.autograd.backward(nn.functional.cross_entropy(logits, torch.tensor(TRAIN.labels)))
    optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    plain = trained(structs.replace(rule, clip=1e6), config={"learning_rate": 1.0})
    assert np.abs(vector(plain) - expected).max() > 1e-3


def test_noise_has_the_size_that_is_paid_for() -> None:
    rule = DpSgd(rate=1e-9, steps=400, clip=2.0, noise=3.0, batch=5)
    walked = vector(trained(rule, config={"learning_rate": 1.0})) - vector(weights_of(NET))
    charged = float(charged_sensitivity(2.0, walked.size))
    deviation = charged * 3.0 / 5 * math.sqrt(400)
    assert kstest(walked / deviation, "norm").pvalue > 1e-6


def test_noise_is_in_units_of_the_charged_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the clip, by which a sum moves only if nothing is rounded."""
    asked: list[float] = []

    def recorded(deviation: Any, shape: tuple[int, ...]) -> Any:
        asked.append(float(deviation))
        return rounded_normal(deviation, shape)

    monkeypatch.setattr("tacit.rules.rounded_normal", recorded)
    gradient_of(TRAIN, noise=3.0)
    count = sum(p.numel() for p in NET.parameters())
    step = float(grid_step(0.1, count))
    charged = 0.1 * (1 + MARGIN) + step * math.sqrt(count)
    assert len(asked) == len(list(NET.parameters()))
    assert asked == pytest.approx([3.0 * charged / step] * len(asked), rel=1e-12)


def test_one_record_moves_a_step_by_no_more_than_the_clip() -> None:
    """With and without the last record, whatever it is: an attack on what the noise relies on."""
    rule = DpSgd(rate=1.0, steps=1, clip=0.1, noise=1e-12, batch=1)
    for outlier in (0.0, 1e3, 1e20, np.nan, np.inf):
        moved = []
        for rows in (16, 15):
            features = TRAIN.features.copy()
            features[15] = outlier
            examples = Examples(features[:rows], TRAIN.labels[:rows])
            moved.append(
                vector(
                    train_by(
                        rule,
                        NET,
                        weights_of(NET),
                        {"learning_rate": 1.0},
                        examples,
                        VALIDATION,
                        1,
                        8,
                        (0,),
                    )
                )
            )
        assert np.linalg.norm(moved[0] - moved[1]) <= 0.1 * (1 + 1e-4)


def test_samples_are_fresh_and_right() -> None:
    sizes = [len(poisson_sample(1000, 0.3)) for _ in range(300)]
    assert abs(np.mean(sizes) - 300) < 6 * math.sqrt(210 / 300)
    assert np.var(sizes) == pytest.approx(210, rel=0.5)
    assert poisson_sample(1000, 0.3).tolist() != poisson_sample(1000, 0.3).tolist()


GROUPS = np.arange(16) % 4


def gradient_of(examples: Examples, *, noise: float = 1e-12) -> Any:
    """The sum of all units' clipped gradients."""
    rule = DpSgd(rate=1.0, steps=1, clip=0.1, noise=noise, batch=1)
    model = rules._Model(NET, examples, 8)
    slope = model.private_at(rule, {n: p.detach() for n, p in NET.named_parameters()})
    return np.concatenate([part.double().numpy().ravel() for part in slope.values()])


def test_a_group_moves_a_gradient_as_a_single_record_may() -> None:
    """All rows of a group point the same way, as far as they can."""
    features, labels = TRAIN.features.copy(), TRAIN.labels.copy()
    features[GROUPS == 2], labels[GROUPS == 2] = -50.0, 1
    grouped = Examples(features, labels, GROUPS)
    charged = float(charged_sensitivity(0.1, sum(p.numel() for p in NET.parameters())))
    alone = grouped.take(np.flatnonzero(GROUPS == 2))
    assert 0.09 < np.linalg.norm(gradient_of(alone)) <= charged
    without = grouped.take(np.flatnonzero(GROUPS != 2))
    assert np.linalg.norm(gradient_of(grouped) - gradient_of(without)) <= charged
    rows = [gradient_of(TRAIN.take(np.array([row]))) for row in range(16)]
    np.testing.assert_allclose(
        gradient_of(Examples(TRAIN.features, TRAIN.labels, GROUPS)), sum(rows) / 4, atol=1e-4
    )


def of_each_row(
    monkeypatch: pytest.MonkeyPatch, examples: Examples, lot: Any = None
) -> list[tuple[Any, Any]]:
    """Weights and gradients of single rows, call by call, before they are clipped."""
    found: list[tuple[Any, Any]] = []

    def recorded(gradients: Any, weights: Any, clip: float) -> Any:
        found.append((weights, torch.cat(list(gradients), dim=1).numpy()))
        return totals(gradients, weights, clip)

    totals = rules._clipped_totals
    with monkeypatch.context() as patched:
        patched.setattr(rules, "_clipped_totals", recorded)
        if lot is not None:
            patched.setattr(rules, "poisson_sample", lambda *_: np.array(lot))
        gradient_of(examples)
    return found


def test_arrays_have_the_same_shape_whoever_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that stand alone are at random places of one array, as :mod:`tacit.lots` proves."""
    many = Examples(np.tile(FEATURES, (10, 1)), np.tile(LABELS, 10))
    shapes, places = set(), set()
    for size in (1, 3, 200):
        for _ in range(5):
            ((weights, gradients),) = of_each_row(monkeypatch, many, range(size))
            assert np.count_nonzero(weights) == size
            shapes.add(gradients.shape)
            places.add(tuple(np.flatnonzero(weights)))
    assert len(shapes) == 1
    assert len(places) > 10


@pytest.mark.parametrize("victim", [0, 3])
def test_a_group_with_more_rows_changes_no_bit_of_what_others_add(
    monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    """Replaced by groups of one, three, and sixty rows, and not in the lot at all."""
    sizes, found, shapes = [2, 1, 5, 1, 70, 3], [], set()
    for rows in (1, 3, 60):
        own = [*sizes[:victim], rows, *sizes[victim + 1 :]]
        groups = np.repeat(np.arange(6), own)
        features = np.concatenate(
            [
                np.random.default_rng((unit, unit == victim and size)).normal(size=(size, 4))
                for unit, size in enumerate(own)
            ]
        ).astype(np.float32)
        examples = Examples(features, groups % 2, groups)
        others = [unit for unit in range(6) if unit != victim]
        for lot in (range(6), others):
            parts = of_each_row(monkeypatch, examples, lot)
            shapes |= {gradients.shape for _, gradients in parts}
            found.append(
                sorted(
                    gradient.tobytes()
                    for weights, gradients in parts
                    for weight, gradient in zip(weights, gradients, strict=True)
                    if weight > 0
                )
            )
            if victim not in lot:
                expected = sum(own) - rows
                assert len(found[-1]) == expected
    assert len(shapes) == 1
    without = set(found[1])
    assert all(without <= set(one) for one in found)
    assert found[1] == found[3] == found[5]


def test_records_are_drawn_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def second(count: int, rate: float) -> Any:
        del rate
        asked.append(count)
        return np.array([1])

    monkeypatch.setattr("tacit.rules.poisson_sample", second)
    grouped = Examples(TRAIN.features, TRAIN.labels, GROUPS)
    drawn = gradient_of(grouped)
    monkeypatch.undo()
    assert asked == [4]
    np.testing.assert_allclose(
        drawn, gradient_of(grouped.take(np.flatnonzero(GROUPS == 1))), atol=1e-7
    )


def test_a_gradient_is_a_whole_number_of_steps() -> None:
    """So no last bit tells what the noise was added to."""
    step = float(grid_step(0.1, sum(p.numel() for p in NET.parameters())))
    steps = gradient_of(TRAIN, noise=3.0) / step
    np.testing.assert_array_equal(steps, np.rint(steps))


def test_both_half_steps_draw_private_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(count: int, rate: float) -> Any:
        drawn.append(count)
        return poisson_sample(count, rate)

    monkeypatch.setattr("tacit.rules.poisson_sample", counted)
    private = DpSgd(rate=0.5, steps=6, clip=1.0, noise=1.0, batch=8)
    trained(Adaptive(private=private), rate=0.1)
    assert len(drawn) == 6


# Architecture and weights in turn


CELLS = draw(lambda: table_cells((4,), 2, width=4, cells=1, nodes=2), 1)


def searched(rule: Bilevel, **config: Any) -> dict[str, Any]:
    names = [name for name, _ in CELLS.named_parameters()]
    found = train_by(rule, CELLS, weights_of(CELLS), config, TRAIN, VALIDATION, 2, 8, (5,))
    before = weights_of(CELLS)
    return {
        name: float(np.abs(new - old).max())
        for name, new, old in zip(names, found, before, strict=True)
    }


@pytest.mark.parametrize("rule", [Bilevel(), Bilevel(lookahead=False), Bilevel(adam=True)])
def test_both_kinds_of_parameters_move_by_their_own_rate(rule: Bilevel) -> None:
    rates = {"learning_rate": 0.1, "architecture_learning_rate": 0.1}
    moved = searched(rule, **rates)
    assert moved["architecture_normal"] > 0
    assert max(moved.values()) > 0
    fixed = searched(rule, **{**rates, "architecture_learning_rate": 0.0})
    assert fixed["architecture_normal"] == 0
    assert max(fixed.values()) > 0
    still = searched(rule, **{**rates, "learning_rate": 0.0})
    assert still.pop("architecture_normal") > 0
    assert max(still.values()) == 0


def test_the_architecture_follows_validation_data_only() -> None:
    """With the training data of no use and a rate of zero, it moves as the validation data say."""
    names = [name for name, _ in CELLS.named_parameters()]
    config: Config = {"learning_rate": 0.0, "architecture_learning_rate": 1.0}
    flipped = Examples(TRAIN.features, 1 - TRAIN.labels)
    found = [
        dict(
            zip(
                names,
                train_by(
                    Bilevel(), CELLS, weights_of(CELLS), config, train, VALIDATION, 1, 8, (5,)
                ),
                strict=True,
            )
        )["architecture_normal"]
        for train in (TRAIN, flipped)
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_private_search_touches_each_kind_of_record_as_often_as_it_pays() -> None:
    private = DpSgd(rate=0.5, steps=3, clip=1.0, noise=0.5, batch=8)
    moved = searched(Bilevel(private=private), learning_rate=0.1, architecture_learning_rate=0.1)
    assert all(distance > 0 for distance in moved.values())
