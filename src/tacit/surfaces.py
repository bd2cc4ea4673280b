"""FLoRA's loss surfaces: what the clients' losses say about every point of a grid.

Zhou, Ram, Salonidis, Baracaldo, Samulowitz and Ludwig, "Single-shot General Hyper-parameter
Optimization for Federated Learning" (ICLR 2023), with the regressors that PrivTuna (2024, section
IV-C3) compares with: random forests with scikit-learn's defaults, and a Gaussian process. Each
function takes every party's (points, losses) and returns one number per point of the grid; the
smallest is the choice. We differ in explicit seeds, and in two surfaces that need only the mean
loss of each point over the parties, which a sum over the parties gives.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tacit.space import FloatArray

Party = tuple[FloatArray, FloatArray]
"""(m, axes) points and their (m,) losses; each party may have its own points."""


def sgm(parties: Sequence[Party], grid: FloatArray, *, seed: int) -> FloatArray:
    """Single global model: one forest on the pairs of all parties.

    >>> points = np.array([[0.0], [0.5], [1.0]])
    >>> parties = [(points, np.array([0.9, 0.2, 0.8])), (points, np.array([0.7, 0.1, 0.9]))]
    >>> int(sgm(parties, points, seed=0).argmin())
    1
    """
    points, losses = _merged(parties)
    return _forest(points, losses, grid, np.random.RandomState(seed))


def sgm_u(
    parties: Sequence[Party], grid: FloatArray, *, caution: float = 0.1, noise: float = 1e-10
) -> FloatArray:
    """Single global model with uncertainty: a Gaussian process on the pairs of all parties.

    Pairs of the same point are replaced by their mean, which changes nothing but the time it takes:
    see :func:`sgm_u_of_means`, which also explains ``caution`` and ``noise``. The default noise is
    scikit-learn's. It says that losses are exact, so the surface runs through the mean loss of
    every point seen, with hardly any uncertainty there: among such points the choice is the
    smallest mean.
    """
    points, losses = _merged(parties)
    distinct, which, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    means = np.bincount(which.ravel(), losses) / counts
    return sgm_u_of_means(distinct, means, grid, parties=counts, noise=noise, caution=caution)


def local_models(parties: Sequence[Party], grid: FloatArray, *, seed: int) -> FloatArray:
    """(parties, grid): one forest each, all from one stream of randomness, party after party.

    This is what takes the time in :func:`mplm` and :func:`aplm`; for both, take its maximum and
    mean yourself.
    """
    _merged(parties)
    rng = np.random.RandomState(seed)
    return np.array([_forest(points, losses, grid, rng) for points, losses in parties])


def mplm(parties: Sequence[Party], grid: FloatArray, *, seed: int) -> FloatArray:
    """Maximum of per-party local models: at every point, the party that loses most."""
    return np.asarray(np.max(local_models(parties, grid, seed=seed), axis=0))


def aplm(parties: Sequence[Party], grid: FloatArray, *, seed: int) -> FloatArray:
    """Average of per-party local models."""
    return np.asarray(np.mean(local_models(parties, grid, seed=seed), axis=0))


def sgm_of_means(
    points: FloatArray, mean_losses: FloatArray, grid: FloatArray, *, seed: int
) -> FloatArray:
    """One forest on the mean loss of every point, for parties that all score the same points.

    A tree cannot separate pairs of the same point. The squared error of a split is therefore that
    of the N parties around their mean, the same for every split, plus N times that of the means:
    without bootstrap, trees on means and on all pairs split alike and predict the same. With it,
    they differ. A sample of all pairs contains nearly every point, under random weights; a sample
    of the means lacks about 37 % of the points, so its trees are less deep and the surface is
    smoother than :func:`sgm`.
    """
    points, mean_losses = _checked(points, mean_losses)
    return _forest(points, mean_losses, grid, np.random.RandomState(seed))


def sgm_u_of_means(
    points: FloatArray,
    mean_losses: FloatArray,
    grid: FloatArray,
    *,
    parties: npt.ArrayLike,
    noise: float,
    caution: float = 0.1,
) -> FloatArray:
    """The surface of :func:`sgm_u`, exactly, from the mean loss of every point.

    If N observations of a point are its value plus independent Gaussian noise of variance s², their
    density is that of their mean, which is the value plus noise of variance s² / N, times that of
    the deviations from it, in which neither the value nor the kernel occurs. So the posterior and
    the best kernel, the one of highest marginal likelihood, are those of the means.

    The kernel is a constant times a radial basis function whose length starts at 10; both are
    fitted. There are no random restarts, so nothing is random.

    Args:
        points: (m, axes), all different.
        mean_losses: (m,)
        grid: (g, axes): where the surface is wanted.
        parties: how many losses each mean is of, N: one number, or one per point.
        noise: the variance of a single loss, s². If means carry noise of their own, of variance v,
            add N v.
        caution: FLoRA's alpha, how many standard deviations the surface lies above the prediction.
    """
    points, mean_losses = _checked(points, mean_losses)
    counts = np.broadcast_to(np.asarray(parties, dtype=np.float64), mean_losses.shape)
    if not (noise > 0 and (counts > 0).all()):
        raise ValueError(f"noise is {noise} of {parties!r} parties; allowed are numbers above 0")
    variance = noise / counts
    unstable = ValueError(
        f"the smallest variance of a mean is {variance.min():.3g}; allowed is more, as the "
        "Gaussian process of these points has no stable solution: raise noise"
    )
    if variance.min() < np.finfo(np.float64).eps:
        # Beside a kernel of about 1 it would be rounded away; whether that is noticed further down
        # depends on the processor.
        raise unstable
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    model = GaussianProcessRegressor(ConstantKernel() * RBF(10), alpha=variance)
    with warnings.catch_warnings():
        # A flat or rough surface puts the kernel at its bounds, which is an answer.
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            predicted, deviation = model.fit(points, mean_losses).predict(grid, return_std=True)
        except np.linalg.LinAlgError:
            raise unstable from None
    return np.asarray(predicted + caution * deviation, dtype=np.float64)


def _forest(
    points: FloatArray, losses: FloatArray, grid: FloatArray, rng: np.random.RandomState
) -> FloatArray:
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(random_state=rng).fit(points, losses)
    return np.asarray(model.predict(grid), dtype=np.float64)


def _merged(parties: Sequence[Party]) -> Party:
    if not parties:
        raise ValueError("there are 0 parties; at least 1 is needed")
    checked = [_checked(points, losses) for points, losses in parties]
    points, losses = zip(*checked, strict=True)
    if len(axes := {found.shape[1] for found in points}) > 1:
        raise ValueError(f"parties have points of {sorted(axes)} axes; allowed is one number")
    return np.concatenate(points), np.concatenate(losses)


def _checked(points: FloatArray, losses: FloatArray) -> Party:
    points, losses = np.asarray(points, np.float64), np.asarray(losses, np.float64)
    if points.ndim != 2 or losses.shape != points.shape[:1] or not len(losses):
        found = f"points and losses have shapes {points.shape} and {losses.shape}"
        raise ValueError(f"{found}; allowed are (m, axes) and (m,) with m at least 1")
    if not np.isfinite(losses).all():
        found = f"losses has {np.sum(~np.isfinite(losses))} of {len(losses)} that are not finite"
        raise ValueError(f"{found}; allowed are numbers: leave diverged ones out, or bound them")
    return points, losses
