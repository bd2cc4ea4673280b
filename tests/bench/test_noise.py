"""``tacit bench noise``: whole steps with either noise, and nothing measured twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.bench import noise
from tacit.bench.pages import page_of
from tacit.bench.plain_loop import random_examples
from tacit.cores import import_torch
from tacit.dp_training import Models

TINY = (
    noise.Model("stacked", (6,), (4,), 8, stacked=True, rows=60),
    noise.Model("torch", (6,), (), 8, rows=60),
    noise.Model("convolutional", (1, 28, 28), None, 4, rows=20),
)


def quiet(done: int, total: int) -> None:
    """No bar."""


def test_every_model_is_measured_once_also_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(noise, "MODELS", TINY)
    measured: list[str] = []
    original = noise.measured

    def stops(model: noise.Model, steps: int, repetitions: int) -> dict[str, Any]:
        if len(measured) == 1:
            measured.append("killed")
            raise KeyboardInterrupt
        measured.append(model.name)
        return original(model, steps, repetitions)

    monkeypatch.setattr(noise, "measured", stops)
    with pytest.raises(KeyboardInterrupt):
        noise.run(True, tmp_path, quiet)
    result = noise.run(True, tmp_path, quiet)
    assert measured == ["stacked", "killed", "torch", "convolutional"]
    assert [row["model"] for row in result["rows"]] == [model.name for model in TINY]
    for row in result["rows"]:
        assert row["ratio"] == row["step_milliseconds"] / row["before_milliseconds"]
        assert row["places"] >= 1
    assert "single precision" in page_of({**result, "bench": "noise"})


def arrays(trained: Any) -> list[Any]:
    layers = trained.layers if isinstance(trained, Models) else trained
    return [np.squeeze(layer) for layer in layers]


@pytest.mark.parametrize("model", TINY, ids=lambda model: model.name)
def test_both_steps_do_the_same_but_for_noise_and_rounding(
    model: noise.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hardly any noise, every row in every lot, and gradients beyond the clip."""
    monkeypatch.setattr(noise, "_NOISE", 1e-6)
    every = replace(model, lot=model.rows)
    import_torch().manual_seed(1)
    module = every.build()
    examples = random_examples(model.inputs, model.classes, model.rows, seed=1)
    ours, before = noise._both_trainings(every, module, examples, 3)
    start = arrays(
        noise._layers(module)
        if model.stacked
        else [one.detach().numpy().copy() for one in module.parameters()]
    )
    after, same = arrays(ours()), arrays(before())
    for first, one, other in zip(start, after, same, strict=True):
        moved = np.abs(one - first).max()
        assert moved > 1e-5
        np.testing.assert_allclose(one, other, rtol=0, atol=0.02 * moved)


def test_the_old_noise_is_drawn_with_the_deviation_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 2,650 weights, of one step of each kind. False alarms: below one in a million."""
    monkeypatch.setattr(noise, "_NOISE", 1000.0)
    for stacked in (True, False):
        model = noise.Model("linear", (264,), (), 10, stacked=stacked, rows=10)
        module = model.build()
        examples = random_examples(model.inputs, model.classes, model.rows, seed=1)
        _, before = noise._both_trainings(model, module, examples, 1)
        drawn = np.concatenate([layer.ravel() for layer in arrays(before())])
        assert drawn.std() == pytest.approx(0.1 * 1000 / 10, rel=0.08)
