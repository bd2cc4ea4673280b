"""Small spaces, and points in them."""

from __future__ import annotations

import numpy as np

from tacit.space import Choice, Config, Float, FloatArray, Int, Space

SPACE = Space(
    {
        "rate": Float(1e-4, 1.0, log=True),
        "layers": Int(1, 5),
        "optimizer": Choice(["sgd", "adam", "adagrad"]),
    }
)
SQUARE = Space({"rate": Float(0.0, 1.0), "momentum": Float(0.0, 1.0)})
LINE = Space({"rate": Float(0.0, 1.0)})


def points_of(space: Space, count: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    drawn = [space.decode(point) for point in rng.random((count, len(space.dimensions)))]
    return np.array([space.encode(config) for config in drawn])


def encoded(*configs: Config) -> FloatArray:
    return np.array([SPACE.encode(config) for config in configs])


def on_a_line(*coordinates: float) -> FloatArray:
    return np.array(coordinates)[:, None]
