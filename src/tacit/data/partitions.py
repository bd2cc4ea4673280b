"""Partitions by name, and a data set dealt to clients with one of them.

The rules are in :mod:`tacit.data.skews`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tacit.data.examples import Dataset, Examples, FloatArray
from tacit.data.skews import (
    ClassPairs,
    Dirichlet,
    DominantLabel,
    FeatureSkew,
    Iid,
    Pairs,
    Partition,
    QuantitySkew,
)

PARTITIONS: Mapping[str, type[Partition]] = MappingProxyType(
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "dominant-label": DominantLabel,
        "class-pairs": ClassPairs,
        "feature-skew": FeatureSkew,
        "quantity-skew": QuantitySkew,
    }
)


def partition(
    name: str,
    *,
    alpha: float = 0.5,
    percent: float = 66.0,
    similarity: float = 0.0,
    noise: float = 0.1,
    pairs: Pairs = (),
    smallest: int = 10,
) -> Partition:
    """The partition of this name in :data:`PARTITIONS`.

    Every partition keeps ``smallest``. Of the others it takes the parameters that it has and
    ignores the rest, unchecked: they come from one section of settings.

    >>> partition("class-pairs", similarity=0.33, alpha=-1)
    ClassPairs(similarity=0.33, pairs=(), smallest=10)
    >>> partition("class-pairs", similarity=33)
    Traceback (most recent call last):
        ...
    ValueError: similarity is 33; allowed is 0 to 1
    """
    match name:
        case "iid":
            return Iid(smallest)
        case "dirichlet":
            return Dirichlet(alpha, smallest)
        case "dominant-label":
            return DominantLabel(percent, smallest)
        case "class-pairs":
            return ClassPairs(similarity, pairs, smallest)
        case "feature-skew":
            return FeatureSkew(noise, smallest)
        case "quantity-skew":
            return QuantitySkew(alpha, smallest)
    raise ValueError(f"partition is {name!r}; allowed are {', '.join(PARTITIONS)}")


def feature_noise(partition: Partition, clients: int) -> FloatArray | None:
    """The standard deviation of the noise on each client's features; None where there is none."""
    return partition.deviations(clients) if isinstance(partition, FeatureSkew) else None


def deal(
    dataset: Dataset, partition: Partition, clients: int, rng: np.random.Generator
) -> list[Examples]:
    """Each client's training examples, standardised after the noise of a feature skew.

    Where rows belong together, whole groups are dealt, each with the label of its first row, and
    ``smallest`` counts groups. Dealing looks at labels: it makes up who holds what, and a guarantee
    about records begins with what each client holds afterwards.

    >>> rows = Examples(np.full((4, 2), 0.5, dtype=np.float32), np.array([0, 1, 0, 1]))
    >>> toy = Dataset("toy", train=rows, test=rows, classes=("no", "yes"), bounds=(0.0, 1.0))
    >>> [part.labels.tolist() for part in deal(toy, Iid(), 2, np.random.default_rng(0))]
    [[0, 0], [1, 1]]
    """
    whole = dataset.train
    places = partition.deal(whole.labels[whole.first_rows], clients, rng)
    noise = feature_noise(partition, clients)
    parts = []
    for client, part in enumerate(places):
        examples = whole.take_units(part)
        if noise is not None:
            examples = _noisy(examples, noise[client], dataset.bounds, rng)
        parts.append(dataset.standardise(examples))
    return parts


def _noisy(
    examples: Examples,
    deviation: np.float32,
    bounds: tuple[float, float] | None,
    rng: np.random.Generator,
) -> Examples:
    features = examples.features + deviation * rng.standard_normal(
        examples.features.shape, dtype=np.float32
    )
    clipped = features if bounds is None else features.clip(*bounds)
    return Examples(clipped, examples.labels, examples.groups)
