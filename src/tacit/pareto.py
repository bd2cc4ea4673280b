"""The privacy-utility front of a private algorithm, by Bayesian optimisation.

Avent et al., "Automatic Discovery of Privacy-Utility Pareto Fronts" (2020), Algorithm 2 (DPareto):
some settings at random; then again and again Gaussian processes on log epsilon and on the logit of
the error, and the settings that promise most. ``hvpoi`` is the paper's acquisition, the probability
of improving the front times the hypervolume that the predicted mean would add; ``nehvi`` is
BoTorch's noisy expected hypervolume improvement (Daulton, Balandat and Bakshy 2021), which knows
that errors are measured with noise and proposes several settings at a time; ``random`` draws as
the paper's experts do, ``grid`` crosses levels.

How we differ: both acquisitions are maximised over some thousand members of the space, drawn afresh
and around the front, so that whole numbers and choices need no rounding; kernels are fitted again
when there is a fifth more data, not after every point; errors have their measured variance; a third
objective may be added. And two things that the paper leaves open: :func:`suggest` reads settings
for a wished epsilon or error off the fitted model, with its uncertainty; and batches.

Hypervolumes are those of the paper: of the region that the front dominates, up to an epsilon of 10
and an error of 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta

from tacit.cores import import_torch
from tacit.journal import Number, Row
from tacit.oracles import Oracle
from tacit.privacy.skellam import FloatArray
from tacit.space import Config, Space

if TYPE_CHECKING:
    from botorch.models.model_list_gp_regression import ModelListGP
    from torch import Tensor

HVPOI, NEHVI, RANDOM, GRID = ACQUISITIONS = ("hvpoi", "nehvi", "random", "grid")
ANTI_IDEAL = (10.0, 1.0)
"""Epsilon and error beyond which nothing counts."""
_CANDIDATES, _NEAR, _PROMISING, _GROUP = 1024, 512, 128, 64
_LEAST_ERROR = 1e-4
_AT_AN_END = 0.1
"""The share of coordinates that are tried at an end of their axis."""
_ASKED = 50
"""How often the privacy oracle is asked about settings that nobody evaluated."""
_LIKELY = 1.28
"""Standard deviations that nine in ten stay below."""


@dataclass(frozen=True)
class Point:
    """Settings, what they cost and how they did."""

    config: Config
    epsilon: float
    errors: tuple[float, ...]
    seconds: float = 0.0
    extra: float | None = None
    """The third objective, if there is one."""

    @property
    def error(self) -> float:
        """The mean over replications."""
        return float(np.mean(self.errors))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "config": self.config,
            "epsilon": self.epsilon,
            "errors": list(self.errors),
            "seconds": self.seconds,
            "extra": self.extra,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Point:
        """From plain data."""
        return cls(**{**found, "errors": tuple(found["errors"])})


class SavedPoint(Row):
    """What :meth:`Point.to_json` writes."""

    config: dict[str, bool | int | float | str]
    epsilon: Annotated[float, Meta(ge=0)]
    errors: Annotated[list[Number], Meta(min_length=1)]
    seconds: Number
    extra: Number | None


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, by epsilon."""
    values = np.array([(p.epsilon, p.error, p.extra or 0.0) for p in points])
    kept = [
        place
        for place, value in enumerate(values)
        if not ((values <= value).all(axis=1) & (values < value).any(axis=1)).any()
    ]
    unique = {tuple(values[place]): place for place in reversed(kept)}
    return sorted((points[place] for place in unique.values()), key=lambda p: (p.epsilon, p.error))


def hypervolume(points: Sequence[Point], anti_ideal: tuple[float, float] = ANTI_IDEAL) -> float:
    """The area that a front dominates, below the anti-ideal point.

    >>> hypervolume([Point({}, 1.0, (0.5,)), Point({}, 4.0, (0.25,))])
    6.0
    """
    return area([(p.epsilon, p.error) for p in points], anti_ideal)


def area(pairs: Sequence[tuple[float, float]], anti_ideal: tuple[float, float]) -> float:
    """The dominated area of pairs, both to be small."""
    total, ceiling = 0.0, anti_ideal[1]
    for epsilon, error in sorted(pairs):
        if epsilon < anti_ideal[0] and error < ceiling:
            total += (anti_ideal[0] - epsilon) * (ceiling - error)
            ceiling = error
    return total


@dataclass
class Front:
    """A search for a front: what was evaluated so far, and what to evaluate next.

    Args:
        oracle: the family of algorithms.
        acquisition: one of :data:`ACQUISITIONS`.
        first: settings at random before the first model.
        seed: of candidates, not of any noise that is released.
        third: a third objective to be small, of a point.
    """

    oracle: Oracle
    acquisition: str = NEHVI
    first: int = 16
    seed: int = 0
    third: Callable[[Point], float] | None = None
    points: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.acquisition not in ACQUISITIONS:
            raise ValueError(
                f"acquisition is {self.acquisition!r}; allowed are {', '.join(ACQUISITIONS)}"
            )
        self._fitted: _Fitted | None = None

    @property
    def space(self) -> Space:
        """What may be set."""
        return self.oracle.space

    def propose(self, batch: int = 1) -> list[Config]:
        """The next settings: some at random first, then where the front may grow."""
        rng = np.random.default_rng((self.seed, len(self.points)))
        missing = self.first - len(self.points)
        if missing > 0 or self.acquisition == RANDOM:
            some = batch if self.acquisition == RANDOM else min(batch, missing)
            return [self.oracle.draw(rng) for _ in range(some)]
        if self.acquisition == GRID:
            raise ValueError("a grid is evaluated as a whole: see grid()")
        encoded, model = self.candidates(rng), self.model()
        chosen = (
            _by_poi(self.points, model, encoded, batch)
            if self.acquisition == HVPOI
            else _by_nehvi(self.space, self.points, model, encoded, batch)
        )
        return [self.space.decode(encoded[place]) for place in chosen]

    def tell(self, config: Config, seed: int, evaluated: Point | None = None) -> Point:
        """Evaluate settings, or take what somebody else evaluated."""
        point = evaluated or evaluate(self.oracle, config, seed, self.third)
        self.points.append(point)
        return point

    def model(self) -> _Fitted:
        """Gaussian processes on what is known; kernels are fitted anew at a fifth more data."""
        known = self._fitted
        if known is None or len(self.points) > 1.2 * known.fitted_at:
            self._fitted = _Fitted.of(self.space, self.points, None)
        elif len(self.points) > known.count:
            self._fitted = _Fitted.of(self.space, self.points, known)
        if self._fitted is None:
            raise RuntimeError("there is always a model by now")
        return self._fitted

    def candidates(self, rng: np.random.Generator) -> FloatArray:
        """Members of the space at random, and near the front; encoded, as whole rows.

        Members that were evaluated are left out, unless there are no others.
        """
        size = len(self.space.dimensions)
        anywhere = rng.random((_CANDIDATES, size))
        at_an_end = rng.random(anywhere.shape) < _AT_AN_END  # where fronts often are
        anywhere = np.where(at_an_end, np.rint(anywhere), anywhere)
        best = _encoded(self.space, front(self.points))
        around = best[rng.integers(len(best), size=_NEAR)]
        spread = rng.choice([0.02, 0.1, 0.3], size=(_NEAR, 1))
        moved = rng.random(around.shape) < max(0.5, 1.5 / size)
        near = np.clip(around + spread * moved * rng.normal(size=around.shape), 0, 1)
        rows = self.space.nearest(np.concatenate([anywhere, near]))
        found = dict(zip(_keys(rows), rows, strict=True))
        fresh = found.keys() - set(_keys(_encoded(self.space, self.points)))
        return np.array([row for key, row in found.items() if key in fresh or not fresh])


def _encoded(space: Space, points: Sequence[Point]) -> FloatArray:
    return np.array([space.encode(point.config) for point in points])


def _keys(rows: FloatArray) -> list[bytes]:
    """The same for rows that differ by rounding alone."""
    return [row.tobytes() for row in rows.round(12) + 0.0]


def grid(oracle: Oracle, count: int) -> list[Config]:
    """Settings on a grid, at most so many."""
    return list(oracle.space.candidates(count, "grid"))


def evaluate(
    oracle: Oracle, config: Config, seed: int, third: Callable[[Point], float] | None = None
) -> Point:
    """One point: both oracles, and how long they took."""
    import time

    begin = time.perf_counter()
    epsilon, errors = oracle.epsilon(config), oracle.errors(config, seed)
    seconds = time.perf_counter() - begin
    point = Point(dict(config), float(epsilon), tuple(map(float, errors)), seconds)
    return point if third is None else replace(point, extra=float(third(point)))


# Models


def _import_botorch() -> Any:
    """Torch, with BoTorch at hand, whose import warns about torch's own future."""
    torch = import_torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import botorch  # noqa: F401
    except ImportError:
        raise ImportError(
            "a front is searched with BoTorch, which is not installed; install it with "
            "`pip install 'tacit[pareto]'`"
        ) from None
    return torch


@dataclass
class _Fitted:
    """Gaussian processes on log epsilon and the logit of the error (and the third's logarithm)."""

    model: ModelListGP
    fitted_at: int
    count: int

    @classmethod
    def of(cls, space: Space, points: Sequence[Point], before: _Fitted | None) -> _Fitted:
        torch = _import_botorch()
        from botorch.models.model_list_gp_regression import ModelListGP

        inputs = torch.tensor(_encoded(space, points))
        targets, variances = transformed(points)
        parts = []
        for place in range(targets.shape[1]):
            own = None if before is None else before.model.models[place]
            parts.append(
                _process(
                    inputs,
                    torch.tensor(targets[:, place : place + 1]),
                    torch.tensor(variances[:, place : place + 1]),
                    own,
                )
            )
        at = len(points) if before is None else before.fitted_at
        return cls(ModelListGP(*parts), at, len(points))

    def predict(self, encoded: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means and standard deviations of the transformed objectives, (points, objectives)."""
        torch = import_torch()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # In groups, since a joint posterior of thousands spends its time on covariances.
            groups = np.resize(encoded, (-(-len(encoded) // _GROUP), _GROUP, encoded.shape[1]))
            found = self.model.posterior(torch.tensor(groups))
            means, deviations = (
                part.numpy().reshape(-1, part.shape[-1])[: len(encoded)]
                for part in (found.mean, found.variance.clamp(min=1e-12).sqrt())
            )
            return means, deviations


def transformed(points: Sequence[Point]) -> tuple[FloatArray, FloatArray]:
    """Log epsilon and the logit of the error, both to be small, and their variances."""
    epsilon = np.log(np.maximum([p.epsilon for p in points], 1e-6))
    error = np.clip([p.error for p in points], _LEAST_ERROR, 1 - _LEAST_ERROR)
    spread = np.array([np.var(p.errors) / len(p.errors) for p in points])
    slope = 1 / (error * (1 - error))
    columns = [epsilon, np.log(error / (1 - error))]
    variances = [np.full(len(points), 1e-6), np.maximum(spread * slope**2, 1e-6)]
    if points[0].extra is not None:
        columns.append(np.log(np.maximum([p.extra or 0.0 for p in points], 1e-9)))
        variances.append(np.full(len(points), 1e-6))
    return np.stack(columns, axis=1), np.stack(variances, axis=1)


def _process(inputs: Tensor, targets: Tensor, variances: Tensor, before: Any) -> Any:
    """A Matérn 5/2 process with a length for every dimension; fitted, or with a known kernel."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms.outcome import Standardize
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from gpytorch.priors import GammaPrior, LogNormalPrior

    size = inputs.shape[1]
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, ard_num_dims=size, lengthscale_prior=LogNormalPrior(0.0, 1.0)),
        outputscale_prior=GammaPrior(2.0, 0.5),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = SingleTaskGP(
            inputs, targets, variances, covar_module=kernel, outcome_transform=Standardize(1)
        )
        if before is not None:
            process.covar_module.load_state_dict(before.covar_module.state_dict())
            process.mean_module.load_state_dict(before.mean_module.state_dict())
            process.eval()
            return process
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(process.likelihood, process),
            optimizer_kwargs={"options": {"maxiter": 60}},
        )
    return process


# Acquisitions


def _by_poi(points: Sequence[Point], fitted: _Fitted, encoded: FloatArray, batch: int) -> list[int]:
    """HVPoI: the paper's product. A batch pretends that what it chose came out as predicted."""
    means, deviations = fitted.predict(encoded)
    pairs = [(p.epsilon, p.error) for p in front(points)]
    chosen: list[int] = []
    for _ in range(min(batch, len(encoded))):
        value = poi(pairs, means[:, :2], deviations[:, :2]) * gains(pairs, means[:, :2])
        if not value.max() > 0:  # nothing improves: where the model knows least
            value = deviations[:, :2].sum(axis=1)
        value[chosen] = -1.0
        place = int(np.argmax(value))
        chosen.append(place)
        pairs.append(_pair(means[place]))
    return chosen


def poi(
    pairs: Sequence[tuple[float, float]], means: FloatArray, deviations: FloatArray
) -> FloatArray:
    """The probability that a point adds hypervolume, in closed form over strips of epsilon.

    That is: no other dominates it, and its epsilon is below the anti-ideal one.
    """
    from scipy.special import ndtr

    steps = [step for step in stairs(pairs) if step[0] < ANTI_IDEAL[0]]
    edges = np.log([*(max(epsilon, 1e-6) for epsilon, _ in steps), ANTI_IDEAL[0]])
    ceilings = [logit(error) for _, error in steps]
    left = ndtr((edges[None, :] - means[:, :1]) / deviations[:, :1])
    strips = np.diff(np.concatenate([np.zeros((len(means), 1)), left], axis=1))
    below = ndtr((np.array(ceilings)[None, :] - means[:, 1:2]) / deviations[:, 1:2])
    chances = np.concatenate([np.ones((len(means), 1)), below], axis=1)
    return np.asarray((strips * chances).sum(axis=1), dtype=np.float64)


def gains(pairs: Sequence[tuple[float, float]], means: FloatArray) -> FloatArray:
    """How much hypervolume the predicted means would add."""
    steps = stairs(pairs)
    begins = np.array([0.0, *(epsilon for epsilon, _ in steps)])
    heights = np.array([ANTI_IDEAL[1], *(error for _, error in steps)])
    ends = np.minimum([*begins[1:], math.inf], ANTI_IDEAL[0])
    epsilon, error = np.exp(means[:, :1]), 1 / (1 + np.exp(-means[:, 1:2]))
    widths = np.maximum(ends[None, :] - np.maximum(begins[None, :], epsilon), 0.0)
    found = widths * np.maximum(np.minimum(heights, ANTI_IDEAL[1])[None, :] - error, 0.0)
    return np.asarray(found.sum(axis=1), dtype=np.float64)


def stairs(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What no other pair dominates, by epsilon: errors fall.

    >>> stairs([(1.0, 0.5), (2.0, 0.6), (3.0, 0.1)])
    [(1.0, 0.5), (3.0, 0.1)]
    """
    found: list[tuple[float, float]] = []
    for epsilon, error in sorted(pairs):
        if not found or error < found[-1][1]:
            found.append((epsilon, error))
    return found


def _pair(mean: FloatArray) -> tuple[float, float]:
    return float(np.exp(mean[0])), float(1 / (1 + np.exp(-mean[1])))


def logit(error: float) -> float:
    """Of an error kept away from 0 and 1.

    >>> logit(0.5)
    0.0
    """
    kept = min(max(error, _LEAST_ERROR), 1 - _LEAST_ERROR)
    return math.log(kept / (1 - kept))


def _by_nehvi(
    space: Space, points: Sequence[Point], fitted: _Fitted, encoded: FloatArray, batch: int
) -> list[int]:
    """Noisy expected hypervolume improvement, of epsilon and the error themselves.

    The processes know their logarithm and logit; samples are turned back, since improvements are
    counted on the scale of the hypervolume. A third objective stays a logarithm.
    """
    torch = import_torch()
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
    from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
    from botorch.sampling.normal import SobolQMCNormalSampler

    targets, _ = transformed(points)
    worst = [*ANTI_IDEAL]
    if targets.shape[1] > 2:
        worst.append(float(targets[:, 2].max()) + 0.1)

    def turned_back(samples: Tensor, X: Tensor | None = None) -> Tensor:  # noqa: N803
        del X
        objectives = samples[..., :1].exp(), samples[..., 1:2].sigmoid(), samples[..., 2:]
        found: Tensor = -torch.cat(objectives, dim=-1)
        return found

    means, deviations = fitted.predict(encoded)
    best = front(points)
    promising = np.argsort(
        -poi([(p.epsilon, p.error) for p in best], means[:, :2], deviations[:, :2])
    )[:_PROMISING]
    known = torch.tensor(_encoded(space, best))
    chosen: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(min(batch, len(promising))):
            pending = torch.tensor(encoded[chosen]) if chosen else None
            acquisition = qLogNoisyExpectedHypervolumeImprovement(
                fitted.model,
                ref_point=[-value for value in worst],
                X_baseline=known,
                sampler=SobolQMCNormalSampler(torch.Size([32]), seed=0),
                objective=GenericMCMultiOutputObjective(turned_back),
                X_pending=pending,
                cache_root=False,
            )
            with torch.no_grad():
                value = acquisition(torch.tensor(encoded[promising])[:, None, :]).numpy()
            value[[int(np.flatnonzero(promising == place)[0]) for place in chosen]] = -np.inf
            chosen.append(int(promising[int(np.argmax(value))]))
    return chosen


# Reading the front


@dataclass(frozen=True)
class Suggestion:
    """Settings for a wish, what they cost exactly, and what the model expects of them."""

    config: Config
    epsilon: float
    error: float
    low: float
    high: float
    """Between these the mean error lies with 95 % probability, if the model is right."""
    delta: float
    protects: str


def suggest(
    search: Front, *, epsilon: float | None = None, error: float | None = None
) -> Suggestion:
    """Settings for a wished epsilon, or a wished error, that nobody need have tried.

    The epsilon told is the privacy oracle's and never above the one wished for; the error is the
    model's, with its interval. For a wished error it is the cheapest of what reaches it with a
    probability of nine in ten.
    """
    if (epsilon is None) == (error is None):
        raise ValueError("found both or neither of epsilon and error; allowed is one of them")
    rng = np.random.default_rng(search.seed)
    fresh = np.concatenate([search.candidates(rng) for _ in range(4)])
    encoded = np.concatenate([fresh, _encoded(search.space, front(search.points))])
    means, deviations = search.model().predict(encoded)
    if epsilon is not None:
        near = means[:, 0] <= math.log(epsilon) + 2 * deviations[:, 0] + 0.02
        order = np.argsort(np.where(near, means[:, 1], np.inf))
        promising = list(map(int, order[: min(_ASKED, int(near.sum()))]))
        evaluated = [int(place) for place in order if place >= len(fresh)]
        fits = _cheap_enough(search, encoded, [*promising, *evaluated], epsilon)
    else:
        good = means[:, 1] + _LIKELY * deviations[:, 1] <= logit(float(error or 0.0))
        order = np.argsort(np.where(good, means[:, 0], np.inf))
        fits = int(order[0]) if good.any() else None
    if fits is None:
        wished = f"epsilon {epsilon:g}" if epsilon is not None else f"error {error:g}"
        raise ValueError(
            f"nothing is known that reaches {wished}; allowed is what the front reaches, from "
            f"{min(p.epsilon for p in search.points):.3g} in epsilon and "
            f"{min(p.error for p in search.points):.3g} in error on: wish for more, or go on"
        )
    place = fits
    spread = 1.96 * deviations[place, 1]
    low, middle, high = (
        float(1 / (1 + math.exp(-(means[place, 1] + shift)))) for shift in (-spread, 0.0, spread)
    )
    config, oracle = search.space.decode(encoded[place]), search.oracle
    cost = float(oracle.epsilon(config))
    return Suggestion(config, cost, middle, low, high, oracle.delta, oracle.protects)


def _cheap_enough(
    search: Front, encoded: FloatArray, order: Sequence[int], epsilon: float
) -> int | None:
    """The first that the privacy oracle admits: epsilon is known exactly, so it is asked."""
    for place in order:
        if search.oracle.epsilon(search.space.decode(encoded[place])) <= epsilon:
            return place
    return None
