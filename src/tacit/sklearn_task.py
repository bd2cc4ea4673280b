"""Any scikit-learn classifier as a task: a configuration sets parameters of the estimator.

An estimator is a black box, so its candidates are fitted one by one: the first few where we are,
to see how long they take, and the rest on all cores if that is worth starting processes for
(joblib's, which scikit-learn itself uses and which keep BLAS to one thread each).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.cores import cores
from tacit.data.examples import Examples, cross_validation
from tacit.halving import LOCAL_SEARCHES, Floats, Indices, successive_halving
from tacit.space import Config

METRICS = ("error", "loss")

_WORTH_PROCESSES = 2.0  # seconds of fitting that are still ahead
_EFFORT = 5


@dataclass(frozen=True, eq=False)
class SklearnTask:
    """Classification by a scikit-learn estimator or pipeline.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from tacit.data.examples import split_validation
    >>> from tacit.data.sources import digits
    >>> task = SklearnTask(LogisticRegression(max_iter=50))
    >>> own = split_validation(digits().train.take(np.arange(80)), 0.25, key=7)
    >>> scores = task.client(*own, seed=7).score_many([{"C": 1.0}, {"C": 1e-9}])
    >>> bool(scores[0] < scores[1])
    True
    >>> task.check({"c": 1.0})
    Traceback (most recent call last):
        ...
    ValueError: 'c' is no parameter of LogisticRegression; allowed are C, class_weight, dual, \
fit_intercept, intercept_scaling, l1_ratio, max_iter, n_jobs, penalty, random_state, solver, tol, \
verbose, warm_start

    Args:
        estimator: a template, which is cloned and never fitted itself.
        metric: the validation ``error``, or the ``loss`` (log loss, which needs
            ``predict_proba``).
        local: ``full``, or ``halving``: candidates are first compared on fewer training examples.
    """

    estimator: Any
    metric: str = "error"
    local: str = "full"
    _used: set[str] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("metric", self.metric, METRICS),
            ("local", self.local, LOCAL_SEARCHES),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        if self.metric == "loss" and not hasattr(self.estimator, "predict_proba"):
            raise ValueError(
                f"metric is 'loss', but {type(self.estimator).__name__} has no predict_proba; "
                "allowed is 'error'"
            )

    def client(self, train: Examples, validation: Examples, seed: int) -> SklearnClient:
        """A client that holds these examples; ``seed`` is its own, for what has no seed yet."""
        return SklearnClient(self, train.flat(), validation.flat(), seed)

    def check(self, config: Config) -> None:
        """Refuse a configuration with parameters that the estimator does not have."""
        known = self.estimator.get_params(deep=True)
        for name in config:
            if name not in known:
                raise ValueError(
                    f"{name!r} is no parameter of {type(self.estimator).__name__}; allowed are "
                    f"{', '.join(sorted(known))}"
                )

    def report(self) -> dict[str, Any]:
        """How candidates were fitted."""
        return {"local": self.local, "ways": sorted(self._used)}


@dataclass(frozen=True, eq=False)
class SklearnClient:
    """A client of a :class:`SklearnTask`.

    A candidate that cannot be fitted gets no score (NaN); if none can, the first reason is raised.
    """

    task: SklearnTask
    train_examples: Examples
    validation: Examples
    seed: int

    def score(self, config: Config) -> float:
        """How bad the fitted estimator is on the validation examples; lower is better."""
        return float(self.score_many([config])[0])

    def score_many(self, configs: Sequence[Config]) -> Floats:
        """One score a configuration."""
        return self.cross_validate(configs, folds=1)

    def cross_validate(self, configs: Sequence[Config], folds: int) -> Floats:
        """The same as means over so many fits, each held against other examples.

        A fold that fits no candidate at all, for want of a class perhaps, does not count.
        """
        for config in configs:
            self.task.check(config)
        parts = cross_validation(self.train_examples, self.validation, folds, self.seed)
        everyone = [SklearnClient(self.task, *part, self.seed) for part in parts]

        def advance(some: Indices, until: int) -> Floats:
            return _mean_score(everyone, [configs[place] for place in some], until / _EFFORT)

        if self.task.local == "halving":
            ahead = np.ones(len(configs))
            held_out = sum(len(one.validation) for one in everyone)
            examples = held_out if self.task.metric == "error" else None
            return successive_halving(
                len(configs), _EFFORT, advance, lambda _until: ahead, examples
            )
        return advance(np.arange(len(configs)), _EFFORT)

    def _fit(self, configs: Sequence[Config], share: float) -> Floats:
        order = np.random.default_rng(self.seed).permutation(len(self.train_examples))
        some = np.sort(order[: math.ceil(share * len(order))])
        given = (self.task.estimator, self.train_examples.take(some), self.validation)
        from threadpoolctl import threadpool_limits

        found: list[float | Exception] = []
        begin = time.perf_counter()
        processes = 1
        with threadpool_limits(1):  # small matrices: BLAS's threads would only wait
            for done, config in enumerate(configs):
                if done == 1:  # the first one may have loaded libraries
                    begin = time.perf_counter()
                left = len(configs) - done
                ahead = (time.perf_counter() - begin) * left / max(done - 1, 1)
                processes = min(cores(), left)
                if done > 1 and processes > 1 and ahead > _WORTH_PROCESSES:
                    break
                found.append(_score(*given, config, self.task.metric, self.seed))
        rest = configs[len(found) :]
        if rest:
            from joblib import Parallel, delayed

            pool = Parallel(n_jobs=processes, backend="loky", inner_max_num_threads=1)
            found += pool(
                delayed(_score)(*given, config, self.task.metric, self.seed) for config in rest
            )
        way = f"one candidate a core, on {processes} cores" if rest else "one after the other"
        self.task._used.add(way)
        failures = [score for score in found if isinstance(score, Exception)]
        if len(failures) == len(found) and share == 1 and failures:
            raise failures[0]
        return np.array([math.nan if isinstance(score, Exception) else score for score in found])


def _mean_score(
    clients: Sequence[SklearnClient], configs: Sequence[Config], share: float
) -> Floats:
    """Of all that can fit anything; if nobody can, the first reason is raised."""
    found, reasons = [], []
    for client in clients:
        try:
            found.append(client._fit(configs, share))
        except (ValueError, ArithmeticError) as error:
            reasons.append(error)
    if not found:
        raise reasons[0]
    usable = [scores for scores in found if not np.isnan(scores).all()]
    return np.asarray(np.mean(usable or found, axis=0))


def _score(
    template: Any,
    train: Examples,
    validation: Examples,
    config: Config,
    metric: str,
    seed: int,
) -> float | Exception:
    """The score of one candidate, or why there is none."""
    from sklearn.base import clone
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import log_loss

    estimator = clone(template)
    open_seeds = (n for n, v in estimator.get_params().items() if v is None)
    seeded = {name: seed for name in open_seeds if name.endswith("random_state")}
    try:
        estimator.set_params(**{**seeded, **config})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.fit(train.features, train.labels)
            if metric == "error":
                return float(np.mean(estimator.predict(validation.features) != validation.labels))
            known = estimator.predict_proba(validation.features)
    except (ValueError, ArithmeticError) as error:
        return error
    chances = np.full(
        (len(validation), 1 + max(validation.labels.max(), max(estimator.classes_))), 0.0
    )
    known = np.asarray(known, np.float64)
    chances[:, estimator.classes_] = known / known.sum(axis=1, keepdims=True)  # 1 to the last digit
    return float(log_loss(validation.labels, chances, labels=np.arange(chances.shape[1])))
