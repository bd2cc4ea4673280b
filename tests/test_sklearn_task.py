from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from tacit import sklearn_task
from tacit.data.examples import Examples, cross_validation, split_validation
from tacit.sklearn_task import SklearnTask
from tacit.space import Config

STRENGTHS: Sequence[Config] = [{"C": strength} for strength in (1e-6, 0.01, 1.0, 100.0)]


def blobs(count: int, seed: int = 0, classes: int = 3) -> Examples:
    """Classes in five dimensions that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    features = 1.5 * np.eye(classes, 5)[labels] + rng.standard_normal((count, 5))
    return Examples(features.astype(np.float32), labels)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes at once, instead of after seconds of fitting."""
    monkeypatch.setattr(sklearn_task, "cores", lambda: 2)
    monkeypatch.setattr(sklearn_task, "_WORTH_PROCESSES", 0.0)


@pytest.mark.parametrize("metric", ["error", "loss"])
def test_scores_are_those_of_fitting_by_hand(metric: str) -> None:
    train, validation = blobs(60), blobs(80, seed=1)
    client = SklearnTask(LogisticRegression(), metric).client(train, validation, seed=0)
    scores = client.score_many(STRENGTHS)
    assert len(set(scores)) >= 3
    for config, score in zip(STRENGTHS, scores, strict=True):
        fitted = LogisticRegression(**config).fit(train.features, train.labels)
        by_hand = {
            "error": 1 - fitted.score(validation.features, validation.labels),
            "loss": log_loss(validation.labels, fitted.predict_proba(validation.features)),
        }
        assert score == pytest.approx(by_hand[metric])
        assert client.score(config) == score
    assert client.score_many([]).shape == (0,)


def test_cross_validated_scores_are_means_over_folds() -> None:
    train, validation = blobs(60), blobs(40, seed=1)
    client = SklearnTask(LogisticRegression()).client(train, validation, 0)
    once, thrice = client.score_many(STRENGTHS), client.cross_validate(STRENGTHS, 3)
    by_hand = [
        [
            1 - LogisticRegression(**config).fit(a.features, a.labels).score(b.features, b.labels)
            for config in STRENGTHS
        ]
        for a, b in cross_validation(train, validation, 3, seed=0)
    ]
    np.testing.assert_allclose(thrice, np.mean(by_hand, axis=0))
    np.testing.assert_allclose(once, by_hand[0])
    with pytest.raises(ValueError, match="folds is 0; allowed is 1 and above"):
        client.cross_validate(STRENGTHS, 0)


def test_folds_keep_groups_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a patient are all fitted or all scored: their first feature says whose they are."""
    owners = np.repeat(np.arange(25), 4)
    rows = blobs(100)
    features = rows.features.copy()
    features[:, 0] = owners
    visits = Examples(features, rows.labels, owners)
    client = SklearnTask(LogisticRegression()).client(*split_validation(visits, 0.2, 1), seed=0)
    seen = []

    def scored(_template: object, train: Examples, validation: Examples, *_more: object) -> float:
        seen.append(tuple(set(part.features[:, 0].tolist()) for part in (train, validation)))
        return 0.5

    monkeypatch.setattr(sklearn_task, "_score", scored)
    client.cross_validate(STRENGTHS[:1], 5)
    assert [len(train & validation) for train, validation in seen] == [0] * 5
    assert sorted(owner for _, held in seen for owner in held) == [*range(25)]


@pytest.mark.parametrize("local", ["full", "halving"])
def test_a_fold_that_nothing_can_be_fitted_on_does_not_count(local: str) -> None:
    """One client has a single example of the second class: where it is held out, nothing fits."""
    labels = np.array([0] * 9 + [1])
    features = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    everything = Examples(features + 3 * labels[:, None].astype(np.float32), labels)
    train, validation = everything.take(np.arange(2, 10)), everything.take(np.arange(2))
    client = SklearnTask(LogisticRegression(), local=local).client(train, validation, 0)
    folds = [*cross_validation(train, validation, 5, seed=0)]
    assert sum(len(set(a.labels)) == 1 for a, _ in folds) == 1
    found = client.cross_validate(STRENGTHS, 5)
    assert np.isfinite(found).all()
    few = np.arange(2)
    lonely = SklearnTask(LogisticRegression()).client(train.take(few), validation, 0)
    with pytest.raises(ValueError, match="at least 2 classes"):
        lonely.cross_validate(STRENGTHS, 2)


def test_images_are_fitted_as_lists_of_numbers() -> None:
    train, validation = blobs(60), blobs(80, seed=1)
    task = SklearnTask(LogisticRegression(), "loss")
    images = [Examples(e.features.reshape(-1, 1, 5, 1), e.labels) for e in (train, validation)]
    flat = task.client(train, validation, seed=0).score_many(STRENGTHS)
    assert task.client(images[0], images[1], seed=0).score_many(STRENGTHS).tolist() == flat.tolist()


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("where", ["training", "validation"])
def test_a_class_that_a_client_lacks_has_no_chance(missing: int, where: str) -> None:
    train, validation = blobs(60), blobs(40, seed=1)
    if where == "training":
        train = train.take(np.flatnonzero(train.labels != missing))
    else:
        validation = validation.take(np.flatnonzero(validation.labels != missing))
    score = SklearnTask(GaussianNB(), "loss").client(train, validation, seed=0).score({})
    fitted = GaussianNB().fit(train.features, train.labels)
    chances = np.full((len(validation), 3), np.finfo(np.float64).eps)
    chances[:, fitted.classes_] = fitted.predict_proba(validation.features)
    own = chances[np.arange(len(validation)), validation.labels]
    assert score == pytest.approx(-np.log(own).mean(), rel=1e-6)
    assert math.isfinite(score)


def test_probabilities_in_single_precision_are_probabilities() -> None:
    """Warnings are errors here, and log loss warns of chances that do not add up to 1."""
    train, validation = blobs(60), blobs(80, seed=1)
    task = SklearnTask(MLPClassifier((8,), max_iter=20), "loss")
    score = task.client(train, validation, seed=3).score({})
    fitted = MLPClassifier((8,), max_iter=20, random_state=3)
    with pytest.warns(match="Maximum iterations"):
        fitted.fit(train.features, train.labels)
    chances = fitted.predict_proba(validation.features)
    assert chances.dtype == np.float32
    own = chances[np.arange(len(validation)), validation.labels]
    assert score == pytest.approx(-np.log(own).mean(), rel=1e-5)


def test_a_candidate_that_cannot_be_fitted_gets_no_score() -> None:
    client = SklearnTask(LogisticRegression()).client(blobs(60), blobs(40, seed=1), seed=0)
    scores = client.score_many([{"C": -1.0}, {"C": 1.0}, {"solver": "magic"}])
    assert np.isnan(scores).tolist() == [True, False, True]
    assert scores[1] == client.score({"C": 1.0})


@pytest.mark.parametrize("local", ["full", "halving"])
def test_if_none_can_be_fitted_the_first_reason_is_raised(local: str) -> None:
    task = SklearnTask(LogisticRegression(), local=local)
    client = task.client(blobs(60), blobs(40, seed=1), seed=0)
    with pytest.raises(ValueError, match=r"'C' parameter .* Got -1.0 instead"):
        client.score_many([{"C": -1.0}, {"C": -2.0}, {"solver": "magic"}])


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("metric", ["error", "loss"])
def test_processes_give_the_same_scores_as_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    configs: list[Config] = [
        {"max_depth": depth, "min_samples_leaf": leaf, "max_features": features}
        for depth in (1, 4)
        for leaf in (1, -1)
        for features in (1, 3)
    ]
    task = SklearnTask(DecisionTreeClassifier(), metric)
    client = task.client(blobs(60), blobs(80, seed=1), seed=5)
    spread = client.score_many(configs)
    assert task.report() == {"local": "full", "ways": ["one candidate a core, on 2 cores"]}
    monkeypatch.setattr(sklearn_task, "_WORTH_PROCESSES", math.inf)
    assert np.array_equal(spread, client.score_many(configs), equal_nan=True)
    assert np.isnan(spread).tolist() == [False, False, True, True] * 2
    assert task.report()["ways"] == ["one after the other", "one candidate a core, on 2 cores"]


@pytest.mark.usefixtures("two_cores")
def test_if_all_fail_in_processes_the_first_reason_is_raised_too() -> None:
    client = SklearnTask(LogisticRegression()).client(blobs(60), blobs(40, seed=1), seed=0)
    with pytest.raises(ValueError, match=r"Got -1\.0 instead"):
        client.score_many([{"C": -1.0}, {"C": -2.0}, {"C": -3.0}])


@pytest.mark.parametrize(
    ("cores", "count"), [(1, 4), (8, 1), (2, 4)], ids=["one core", "one candidate", "soon done"]
)
def test_no_processes_where_they_are_not_worth_it(
    monkeypatch: pytest.MonkeyPatch, cores: int, count: int
) -> None:
    monkeypatch.setattr(sklearn_task, "cores", lambda: cores)
    monkeypatch.setattr(sklearn_task, "_WORTH_PROCESSES", 1e6 if cores == 2 else 0.0)
    task = SklearnTask(GaussianNB())
    task.client(blobs(60), blobs(40, seed=1), seed=0).score_many([{}] * count)
    assert task.report()["ways"] == ["one after the other"]


def test_halving_finds_the_best_and_compares_on_fewer_examples_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, validation = blobs(200), blobs(200, seed=1)
    configs: list[Config] = [{"C": 10.0 ** (number / 4 - 6)} for number in range(30)]
    fitted: dict[int, int] = {}
    real = sklearn_task._score

    def watched(template: Any, some: Examples, *given: Any) -> float | Exception:
        fitted[len(some)] = fitted.get(len(some), 0) + 1
        assert set(map(tuple, some.features)) <= set(map(tuple, train.features))
        return real(template, some, *given)

    monkeypatch.setattr(sklearn_task, "_score", watched)
    monkeypatch.setattr(sklearn_task, "cores", lambda: 1)
    halving, full = (
        SklearnTask(LogisticRegression(), "loss", local).client(train, validation, 0)
        for local in ("halving", "full")
    )
    found = halving.score_many(configs)
    assert fitted == {40: 30, 200: 10}
    expected = full.score_many(configs)
    assert expected.argsort().argsort()[found.argmin()] < 3
    assert found[found.argmin()] == expected[found.argmin()]
    assert (found == expected).sum() == 10


def test_halving_goes_on_where_few_examples_are_of_one_class() -> None:
    rows = np.flatnonzero(blobs(400).labels == 0)[:60].tolist()
    rows += np.flatnonzero(blobs(400).labels == 1)[:1].tolist()
    train = blobs(400).take(np.array(rows))
    client = SklearnTask(LogisticRegression(), local="halving").client(train, blobs(50), seed=0)
    assert np.isfinite(client.score_many(STRENGTHS)).all()


def test_parameters_of_a_pipeline_have_its_names() -> None:
    train, validation = blobs(60), blobs(80, seed=1)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    task = SklearnTask(pipeline, "loss")
    configs: list[Config] = [{"logisticregression__C": c["C"]} for c in STRENGTHS]
    scores = task.client(train, validation, seed=0).score_many(configs)
    for config, score in zip(STRENGTHS, scores, strict=True):
        fitted = make_pipeline(StandardScaler(), LogisticRegression(**config))
        fitted.fit(train.features, train.labels)
        expected = log_loss(validation.labels, fitted.predict_proba(validation.features))
        assert score == pytest.approx(expected)
    with pytest.raises(
        ValueError, match=r"'C' is no parameter of Pipeline; .*logisticregression__C"
    ):
        task.check({"C": 1.0})


def test_unknown_parameters_are_refused_and_the_allowed_ones_named() -> None:
    task = SklearnTask(GaussianNB())
    task.check({"var_smoothing": 1e-3})
    reason = "'alpha' is no parameter of GaussianNB; allowed are priors, var_smoothing"
    with pytest.raises(ValueError, match=reason):
        task.check({"var_smoothing": 1e-3, "alpha": 1})
    with pytest.raises(ValueError, match=reason):
        task.client(blobs(9), blobs(9), 0).score_many([{}, {"alpha": 1}])


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (RandomForestClassifier(n_estimators=3, max_depth=2), "random_state"),
        (
            make_pipeline(StandardScaler(), RandomForestClassifier(n_estimators=3, max_depth=2)),
            "randomforestclassifier__random_state",
        ),
    ],
    ids=["alone", "in a pipeline"],
)
def test_randomness_comes_from_the_clients_seed(estimator: Any, name: str) -> None:
    task = SklearnTask(estimator, "loss")
    first, again, other = (task.client(blobs(60), blobs(80, 1), s).score({}) for s in (1, 1, 2))
    assert first == again != other
    assert task.client(blobs(60), blobs(80, 1), 2).score({name: 1}) == first


def test_the_estimator_is_a_template_and_never_fitted() -> None:
    estimator = SGDClassifier()
    before = estimator.get_params()
    SklearnTask(estimator).client(blobs(60), blobs(40, 1), 0).score_many([{"alpha": 0.1}, {}])
    assert estimator.get_params() == before
    assert not hasattr(estimator, "coef_")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"metric": "accuracy"}, "metric is 'accuracy'; allowed are error, loss"),
        ({"local": "quick"}, "local is 'quick'; allowed are full, halving"),
        ({"metric": "loss"}, "Perceptron has no predict_proba; allowed is 'error'"),
    ],
    ids=["metric", "local", "chances"],
)
def test_unusable_settings_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SklearnTask(Perceptron(), **arguments)


def test_errors_of_other_kinds_are_not_swallowed() -> None:
    class Broken(DummyClassifier):  # type: ignore[misc]
        def fit(self, *_given: object) -> None:
            raise TypeError("a mistake in the estimator")

    with pytest.raises(TypeError, match="a mistake in the estimator"):
        SklearnTask(Broken()).client(blobs(9), blobs(9), 0).score({})


def test_importing_loads_no_sklearn() -> None:
    script = "import sys, tacit.sklearn_task; print({'sklearn', 'joblib'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "set()", found.stderr
