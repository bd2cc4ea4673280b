"""The papers' sets of candidates, by name.

DP-HYPE prints one list of learning rates in its Table III and runs another in its code; both are
here. Decay is the factor on the learning rate after every epoch, so that 0 means one epoch only.
PrivTuna (Table I) tunes the server's learning rate and momentum; its clients' are fixed at 0.01. On
subsets clients take far fewer steps a round than in the paper; with a rate of 0.1 their models move
about as far ("privtuna-iid-subset", "privtuna-skew-subset").
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tacit.space import Choice, Config, Space

_DECAY = Choice([0.0, 0.1, 0.25, 0.99, 1.0])
_MOMENTUM = Choice([0.0, 0.9])


def _dp_hype(rates: list[float]) -> Space:
    return Space({"learning_rate": Choice(rates), "decay": _DECAY, "momentum": _MOMENTUM})


def _privtuna(server: dict[str, list[float]], rate: float) -> Space:
    axes = {f"server_{name}": Choice(values) for name, values in server.items()}
    return Space({**axes, "learning_rate": Choice([rate]), "momentum": Choice([0.01])})


_IID = {
    "learning_rate": [0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5],
    "momentum": [0.0, 0.3, 0.6, 0.9, 0.92, 0.93, 0.95],
}
_SKEW = {
    "learning_rate": [0.01, 0.03, 0.05, 0.1, 0.3, 0.5],
    "momentum": [0.0, 0.3, 0.6, 0.9],
}


GRIDS: Mapping[str, Space] = MappingProxyType(
    {
        "dp-hype-table": _dp_hype([0.5, 0.1, 0.05, 1e-3, 5e-3, 1e-5, 1e-6, 5e-6, 5e-7, 1e-7]),
        "dp-hype-code": _dp_hype([0.5, 0.1, 0.05, 5e-4, 1e-4, 1e-6, 5e-7, 1e-7, 5e-8, 1e-8]),
        "privtuna-iid": _privtuna(_IID, 0.01),
        "privtuna-skew": _privtuna(_SKEW, 0.01),
        "privtuna-iid-subset": _privtuna(_IID, 0.1),
        "privtuna-skew-subset": _privtuna(_SKEW, 0.1),
    }
)
"""Every grid, by its name."""


def grid(name: str) -> tuple[Config, ...]:
    """All candidates of a grid.

    >>> len(grid("dp-hype-table")), grid("dp-hype-table")[0]
    (100, {'learning_rate': 0.5, 'decay': 0.0, 'momentum': 0.0})
    """
    if name not in GRIDS:
        raise ValueError(f"no grid is called {name!r}; allowed are {', '.join(GRIDS)}")
    import numpy as np

    space = GRIDS[name]
    return space.candidates(10**6, "grid", np.random.default_rng(0))
