"""Thirty clients agree on an SVM's parameters; each then fits its own model with them."""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC

import tacit
from tacit.data import Examples, deal, load, partition, split_validation

PIPELINE = make_pipeline(MinMaxScaler(), SVC())
SPACE = {
    "svc__C": tacit.Float(1e-2, 1e3, log=True),
    "svc__gamma": tacit.Float(1e-4, 1e1, log=True),
}


def own_accuracy(config: dict[str, float], parts: list[Examples], test: Examples) -> float:
    """How good the clients' own models are on public test data, a mean over clients."""
    fitted = (clone(PIPELINE).set_params(**config).fit(p.features, p.labels) for p in parts)
    return float(np.mean([model.score(test.features, test.labels) for model in fitted]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=30)
    options.add_argument("--candidates", type=int, default=24)
    options.add_argument("--epsilon", type=float, default=2.0)
    chosen = options.parse_args()

    data = load("digits")
    parts = deal(data, partition("iid"), chosen.clients, np.random.default_rng(1))
    task = tacit.SklearnTask(PIPELINE)
    clients = [
        task.client(*split_validation(part, 0.3, key=number), seed=number)
        for number, part in enumerate(parts)
    ]
    result = tacit.tune(
        clients,
        SPACE,
        tacit.Vote(votes=3, candidates=chosen.candidates, ballot="borda"),
        tacit.Budget(chosen.epsilon, 1e-5),
        seed=1,
    )
    test = data.standardise(data.test).flat()
    print("chosen:", {name: f"{value:.3g}" for name, value in result.config.items()})
    print(f"price: epsilon {result.privacy.epsilon} at delta 1e-5, per client")
    own = [part.flat() for part in parts]
    print(f"accuracy with it: {own_accuracy(result.config, own, test):.3f}")
    print(f"accuracy with scikit-learn's defaults: {own_accuracy({}, own, test):.3f}")


if __name__ == "__main__":
    main()
