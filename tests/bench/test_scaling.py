from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.bench import scaling

TINY = scaling.Setup(
    net=scaling.Net(6, (5,), 2, rows=20, epochs=1, batch=8),
    memory_net=scaling.Net(400, (300,), 10, rows=8, epochs=1, batch=8),
    candidates=(2, 4),
    plain=(2, 3),
    clients=(1, 2),
    samples=(8, 16),
    memory=(40,),
    usual_candidates=3,
    megabytes=4,
    repetitions=1,
)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share the machine; threads that wait for each other would take all of it."""
    monkeypatch.setenv("TACIT_CORES", "1")


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def test_every_curve_is_measured_and_fitted(tmp_path: Path) -> None:
    found = scaling.measure(TINY, tmp_path, quiet)
    json.dumps(found, allow_nan=False)
    assert [(point["curve"], point["size"]) for point in found["points"]] == TINY.points()
    for point in found["points"]:
        assert point[scaling.UNITS[point["curve"]]] > 0
    assert set(found["exponents"]) == set(scaling.UNITS)
    assert isinstance(found["exponents"]["candidates"], float)
    assert found["exponents"]["memory"] is None  # a single size

    memory, bounded = (p["megabytes"] for p in found["points"] if "megabytes" in p)
    weights = 40 * (400 * 300 + 300 * 10) * 4 / 2**20
    assert memory > 2 * weights  # the velocities are as large
    assert bounded < weights  # four megabytes hold two candidates
    assert len(scaling.figure(found).data) == len(scaling.UNITS)


def test_a_killed_run_measures_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, int]] = []

    def until_killed(curve: str, size: int, _setup: scaling.Setup) -> float:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append((curve, size))
        return 1.0

    monkeypatch.setattr(scaling, "_seconds", until_killed)
    with pytest.raises(KeyboardInterrupt):
        scaling.measure(TINY, tmp_path, quiet)
    assert measured == TINY.points()[:3]

    def later(curve: str, size: int, _setup: scaling.Setup) -> float:
        measured.append((curve, size))
        return 2.0

    monkeypatch.setattr(scaling, "_seconds", later)
    monkeypatch.setattr(scaling, "_megabytes", later)
    resumed = scaling.measure(TINY, tmp_path, quiet)
    assert measured == TINY.points()
    values = [point.get("seconds", point.get("megabytes")) for point in resumed["points"]]
    assert resumed["resumed"] == 3
    assert values == [1.0] * 3 + [2.0] * (len(values) - 3)
    assert scaling.measure(TINY, tmp_path, quiet)["points"] == resumed["points"]
    assert measured == TINY.points()


def test_growth_of_known_curves_is_found() -> None:
    assert scaling.exponent([10, 20, 40], [3.0, 6.0, 12.0]) == pytest.approx(1.0)
    assert scaling.exponent([10, 100], [5.0, 5.0]) == pytest.approx(0.0)
    assert scaling.exponent([10], [5.0]) is None


def known(setup: scaling.Setup) -> dict[str, Any]:
    points = [
        {"curve": curve, "size": size, scaling.UNITS[curve]: 0.01 * size}
        for curve, size in setup.points()
    ]
    return {
        "points": points,
        "exponents": dict.fromkeys(scaling.UNITS, 1.0),
        "candidates": 100,
        "megabytes": 64,
        "net": {"inputs": 105, "hidden": [64, 64], "classes": 2, "rows": 260},
        "memory_net": {"inputs": 784, "hidden": [256, 128], "classes": 10, "rows": 128},
    }


@pytest.mark.parametrize("setup", [scaling.FULL, scaling.QUICK])
def test_figure_has_four_logarithmic_panels_with_units(setup: scaling.Setup) -> None:
    plot = scaling.figure(known(setup))
    assert len(plot.data) == 6
    axes = [plot.layout[f"{axis}axis{number}"] for axis in "xy" for number in ("", 2, 3, 4)]
    assert {axis.type for axis in axes} == {"log"}
    assert [axis.title.text for axis in axes[:4]] == [
        "candidates",
        "clients",
        "samples a client",
        "candidates",
    ]
    assert [axis.title.text for axis in axes[4:]] == ["seconds"] * 3 + ["megabytes above the start"]
    assert list(axes[0].tickvals) == list(setup.candidates)
    assert [trace.name for trace in plot.data if trace.showlegend] == [
        "Tacit",
        "plain torch loop",
        "Tacit, bound of 64 MB",
    ]
    assert "105-64-64-2, 260 samples" in plot.layout.annotations[0].text


def test_run_takes_the_sizes_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "measure", lambda setup, *_: {"setup": setup})
    assert scaling.run(True, tmp_path, quiet)["setup"] == scaling.QUICK
    assert scaling.run(False, tmp_path, quiet)["setup"] == scaling.FULL
