"""Gaussian noise and Poisson samples for DP-SGD, from the operating system's randomness.

Written by hand because torch and NumPy draw from seeded generators, and Opacus needs a package for
its secure mode that no longer installs. Floating-point noise can betray what it is added to through
its holes (Mironov 2012); as in Opacus's secure mode, the mean of several draws fills them (Holohan
and Braghin 2021). These draws stay inside a client, in the steps of its own training.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

_DRAWS = 4


def gaussian(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Standard normal numbers.

    >>> drawn = gaussian((100, 100))
    >>> bool(abs(drawn.mean()) < 0.06), bool(abs(drawn.std() - 1) < 0.05)
    (True, True)
    """
    from scipy.special import ndtri

    count = int(np.prod(shape, dtype=np.int64))
    words = np.frombuffer(secrets.token_bytes(8 * _DRAWS * count), dtype="<u8")
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    drawn = ndtri(uniform).reshape(_DRAWS, *shape).sum(axis=0) / np.sqrt(_DRAWS)
    return np.asarray(drawn, dtype=np.float32)


def poisson_sample(count: int, rate: float) -> npt.NDArray[np.int64]:
    """Each of ``count`` numbers with probability ``rate``, independently.

    >>> len(poisson_sample(1000, 1.0)), len(poisson_sample(1000, 0.0))
    (1000, 0)
    """
    words = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8")
    return np.flatnonzero(words < np.uint64(min(int(rate * 2.0**64), 2**64 - 1))).astype(np.int64)
