"""What may be set in private training, and how an expert draws settings at random.

Avent et al., "Automatic Discovery of Privacy-Utility Pareto Fronts" (2020): domains in Table 1, on
logarithmic scales here; distributions of random search in Tables 3 (MNIST) and 4 (Adult), which the
authors made as favourable to random search as they could. For other data there is a domain that
reaches an epsilon below one on a thousand records, drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.space import Choice, Config, Dimension, Float, Int, Space

Draw = Callable[[np.random.Generator, Int | Float], float]
_MOST_TRIES = 10_000


@dataclass(frozen=True)
class Domain:
    """A space, and how some of its axes are drawn; the others uniformly, on the axis' own scale.

    >>> domain = any_data(1000)
    >>> sorted(domain.draw(np.random.default_rng(0)))
    ['clip', 'epochs', 'learning_rate', 'lot', 'noise_variance']
    """

    space: Space
    draws: Mapping[str, Draw] = field(default_factory=dict)

    def draw(self, rng: np.random.Generator) -> Config:
        """Settings at random; what falls outside an axis is drawn again."""
        found = dict(self.space.decode(rng.random(len(self.space.dimensions))))
        for name, how in self.draws.items():
            axis = self.space.dimensions[name]
            if not isinstance(axis, Choice):
                found[name] = _inside(name, axis, how, rng)
        return found

    def having(self, **axes: Dimension) -> Domain:
        """The same with other axes, or more."""
        return replace(self, space=Space({**self.space.dimensions, **axes}))

    def within(self, records: int) -> Domain:
        """No lot larger than the data."""
        lots = self.space.dimensions["lot"]
        if isinstance(lots, Int) and lots.high > records:
            return self.having(lot=Int(min(lots.low, records), records, log=lots.log))
        return self


def _inside(name: str, axis: Int | Float, how: Draw, rng: np.random.Generator) -> float | int:
    for _ in range(_MOST_TRIES):
        value = how(rng, axis)
        if axis.low <= value <= axis.high:
            return round(value) if isinstance(axis, Int) else float(value)
    raise ValueError(
        f"{name} is from {axis.low:g} to {axis.high:g}, where its distribution hardly ever falls; "
        "allowed is a range that it reaches"
    )


def _uniform(rng: np.random.Generator, axis: Int | Float) -> float:
    return float(rng.integers(int(axis.low), int(axis.high) + 1))


def _shifted(shift: float, mean: float) -> Draw:
    """An exponential distribution from ``shift`` on."""
    return lambda rng, _: shift + rng.exponential(mean)


ADULT = Domain(
    Space(
        {
            "epochs": Int(1, 64),
            "lot": Int(8, 512, log=True),
            "learning_rate": Float(5e-4, 5e-2, log=True),
            "noise_variance": Float(0.1, 16.0, log=True),
            "clip": Float(0.1, 4.0, log=True),
        }
    ),
    {
        "epochs": _uniform,
        "lot": lambda rng, _: rng.normal(128, 64),
        "learning_rate": _shifted(1e-3, 0.1),
        "noise_variance": _shifted(0.1, 10.0),
        "clip": _shifted(0.1, 10.0),
    },
)
MNIST = Domain(
    Space(
        {
            "epochs": Int(1, 400, log=True),
            "lot": Int(16, 4000, log=True),
            "learning_rate": Float(1e-3, 5e-1, log=True),
            "noise_variance": Float(0.1, 16.0, log=True),
            "clip": Float(0.1, 12.0, log=True),
        }
    ),
    {
        "epochs": _uniform,
        "lot": lambda rng, _: rng.normal(800, 800),
        "learning_rate": _shifted(1e-3, 0.1),
        "noise_variance": _shifted(0.1, 2.0),
        "clip": _shifted(0.1, 2.0),
    },
)
PAPERS: Mapping[str, Domain] = {"adult": ADULT, "mnist": MNIST, "fashion-mnist": MNIST}
"""By data set."""


def any_data(records: int) -> Domain:
    """For data that the paper does not have: a private run must be among them."""
    return Domain(
        Space(
            {
                "epochs": Int(1, 64, log=True),
                "lot": Int(8, 512, log=True),
                "learning_rate": Float(1e-3, 5.0, log=True),
                "noise_variance": Float(0.1, 64.0, log=True),
                "clip": Float(0.1, 4.0, log=True),
            }
        )
    ).within(max(8, records // 4))
