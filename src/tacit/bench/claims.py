"""What becomes of a paper's claim: an effect, its interval over seeds, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def claim(
    text: str,
    rows: Sequence[Mapping[str, Any]],
    effect: Callable[[Mapping[str, Any]], float],
    unit: str,
) -> dict[str, Any]:
    """One number a seed, and Student's interval of their mean; nothing where nothing was run."""
    from scipy.stats import t

    if not rows:
        return {}
    seeds = sorted({row["seed"] for row in rows})
    means = np.array([np.mean([effect(r) for r in rows if r["seed"] == seed]) for seed in seeds])
    reach = math.inf
    if len(means) > 1:
        reach = float(t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))
    low, high = float(means.mean()) - reach, float(means.mean()) + reach
    verdict = "reproduced" if low > 0 else "not reproduced"
    if len(means) == 1:
        verdict = "not judged: one seed"
    if high < 0:
        verdict = "not reproduced: the opposite holds"
    return {
        "claim": text,
        "effect": float(means.mean()),
        "unit": unit,
        "low": low if math.isfinite(low) else None,
        "high": high if math.isfinite(high) else None,
        "verdict": verdict,
    }
