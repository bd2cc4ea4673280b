"""``tacit bench noise``: a step with either noise, once each, and nothing measured twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.bench import noise
from tacit.bench.pages import page_of

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
        step = row["step_milliseconds"]
        before = step - row["noise_milliseconds"] + row["before_milliseconds"]
        assert row["ratio"] == pytest.approx(step / before)
        assert row["places"] >= 1
    assert "single-precision" in page_of({**result, "bench": "noise"})
