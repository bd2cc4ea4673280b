"""Losses together are their convolution, whatever was composed before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tacit.privacy import losses
from tacit.privacy.events import SkellamRelease
from tacit.privacy.losses import Losses, composed

INTERVAL = 0.01


def parts(*variances: float) -> list[Losses]:
    releases = [SkellamRelease(((2, 1),), variance) for variance in variances]
    return [next(release.plds(1, INTERVAL))[0] for release in releases]


def convolved(listed: Sequence[tuple[Losses, int]]) -> Losses:
    """One after another, without transforms."""
    masses, lowest = np.ones(1), 0
    for part, times in listed:
        for _ in range(times):
            masses, lowest = np.convolve(masses, part.masses), lowest + part.lowest
    return Losses(lowest, masses, 0.0, INTERVAL)


@pytest.mark.parametrize("times", [(1, 1, 1), (40, 3, 1), (2, 70, 9)])
def test_a_composition_is_the_convolution_of_its_parts(times: tuple[int, int, int]) -> None:
    listed = list(zip(parts(30.0, 90.0, 400.0), times, strict=True))
    found, truth = composed(listed), convolved(listed)
    for delta in (1e-3, 1e-6, 1e-9):
        assert found.get_epsilon_for_delta(delta) == pytest.approx(
            truth.get_epsilon_for_delta(delta), rel=1e-5
        )
    whole = np.zeros(len(truth.masses))
    start = found.lowest - truth.lowest
    whole[start : start + len(found.masses)] = found.masses
    assert np.abs(whole - truth.masses).max() < 2e-15
    assert found.infinite + found.masses.sum() >= 1 - 1e-12


def test_what_was_composed_before_changes_nothing() -> None:
    """Kept are fewer frequencies than others may need, and those of other lengths."""
    variances = (30.0, 90.0, 400.0)
    known = parts(*variances)
    for times in ((1, 1, 1), (500, 1, 1), (1, 500, 2), (3, 1, 500), (2, 2, 2), (1, 0, 0)) * 2:
        listed = [(part, n) for part, n in zip(known, times, strict=True) if n]
        fresh = [Losses(p.lowest, p.masses, p.infinite, p.interval) for p, _ in listed]
        anew = composed(zip(fresh, (n for _, n in listed), strict=True))
        found = composed(listed)
        assert found.lowest == anew.lowest
        assert np.abs(found.masses - anew.masses).max() < 1e-16


def test_what_is_kept_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = parts(90.0)
    for times in range(1, 60):
        composed([(part, 100 * times), (part, 1)])
    assert 0 < len(part._transforms) <= losses._MOST_KEPT
    assert len(part._generating) <= losses._MOST_KEPT
    monkeypatch.setattr(losses, "_LONGEST_KEPT", 3)
    part._transforms.clear()
    composed([(part, 100)])
    assert not part._transforms
