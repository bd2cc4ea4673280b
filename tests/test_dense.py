from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tacit import dense
from tacit.data.sources import Examples, digits, split_validation
from tacit.dense import Dense, DenseClient, Weights, accuracies, check_config, losses, train

CONFIGS: Sequence[Mapping[str, Any]] = (
    {},
    {"learning_rate": 0.5},
    {"learning_rate": 0.2, "momentum": 0.9},
    {"learning_rate": 0.3, "decay": 0.5},
    {"learning_rate": 0.3, "decay": 0.0},
    {"learning_rate": 0.1, "weight_decay": 0.1},
    {"learning_rate": 0.2, "decay": 0.8, "momentum": 0.5, "weight_decay": 0.01},
)
DIVERGING = {"learning_rate": 1e30, "momentum": 0.9}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Parallel test workers whose threads outnumber the cores wait more than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def blobs(count: int, seed: int = 0) -> Examples:
    """Three classes in five dimensions that overlap a little."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = 2 * np.eye(3, 5)
    features = centres[labels] + rng.standard_normal((count, 5))
    return Examples(features.astype(np.float32), labels)


def plain_loop(
    weights: Weights,
    candidate: int,
    examples: Examples,
    config: Mapping[str, Any],
    epochs: int,
    batch: int,
    rng: np.random.Generator,
) -> torch.nn.Sequential:
    """One candidate trained the way torch's users do it."""
    layers: list[torch.nn.Module] = []
    for matrix, bias in zip(weights[::2], weights[1::2], strict=True):
        linear = torch.nn.Linear(matrix.shape[1], matrix.shape[2])
        linear.weight = torch.nn.Parameter(torch.tensor(matrix[candidate].T))
        linear.bias = torch.nn.Parameter(torch.tensor(bias[candidate, 0]))
        layers += [linear, torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=config.get("learning_rate", 0.1),
        momentum=config.get("momentum", 0.0),
        weight_decay=config.get("weight_decay", 0.0),
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, config.get("decay", 1.0))
    features, labels = torch.tensor(examples.features), torch.tensor(examples.labels)
    for _ in range(epochs):
        order = rng.permutation(len(examples))
        for start in range(0, len(examples), batch):
            rows = order[start : start + batch]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(features[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    return net


@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])
def test_training_together_equals_a_plain_loop_of_torch(hidden: tuple[int, ...]) -> None:
    """20 rows in batches of 8: the last batch is smaller."""
    examples, fresh = blobs(20), blobs(50, seed=1)
    start = Dense(5, hidden, 3).initial(len(CONFIGS), seed=3)
    trained = train(start, examples, CONFIGS, 4, 8, np.random.default_rng(5))
    together = losses(trained, fresh), accuracies(trained, fresh)
    for candidate, config in enumerate(CONFIGS):
        net = plain_loop(start, candidate, examples, config, 4, 8, np.random.default_rng(5))
        expected = [parameter.detach().numpy() for parameter in net.parameters()]
        for found, array in zip(trained, expected, strict=True):
            same_shape = found[candidate].T.reshape(array.shape)
            np.testing.assert_allclose(same_shape, array, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            logits = net(torch.tensor(fresh.features))
        labels = torch.tensor(fresh.labels)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        assert together[0][candidate] == pytest.approx(loss, rel=1e-4)
        assert together[1][candidate] == (logits.argmax(1) == labels).double().mean().item()


def test_every_hyperparameter_matters_in_the_comparison() -> None:
    start = Dense(5, (6,), 3).initial(len(CONFIGS), 3)
    trained = train(start, blobs(20), CONFIGS, 4, 8, np.random.default_rng(5))
    assert len(set(losses(trained, blobs(50, seed=1)).round(4))) == len(CONFIGS)


def test_candidates_start_from_one_draw_of_torchs_default() -> None:
    start = Dense(400, (300,), 10).initial(3, seed=1)
    for array, fan_in in zip(start, (400, 400, 300, 300), strict=True):
        assert array.dtype == np.float32
        assert (array == array[:1]).all()
        assert np.abs(array).max() <= fan_in**-0.5
    assert start[0][0].std() == pytest.approx(400**-0.5 / 3**0.5, rel=0.01)
    again, other = Dense(400, (300,), 10).initial(1, 1), Dense(400, (300,), 10).initial(1, 2)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(start, again, strict=True))
    assert not any(np.array_equal(a[0], b[0]) for a, b in zip(start, other, strict=True))


def test_training_leaves_its_input_alone_even_if_read_only() -> None:
    examples, start = blobs(20), Dense(5, (6,), 3).initial(2, 0)
    copies = [array.copy() for array in start]
    for array in start:
        array.setflags(write=False)
    examples.features.setflags(write=False)
    examples.labels.setflags(write=False)
    trained = train(start, examples, [{}, {"momentum": 0.9}], 2, 8, np.random.default_rng(0))
    for given, copy, new in zip(start, copies, trained, strict=True):
        assert np.array_equal(given, copy)
        assert not np.array_equal(new, copy)
        assert not np.shares_memory(new, given)


@pytest.mark.parametrize("config", [DIVERGING, {"learning_rate": 1e300, "decay": 1e200}])
def test_a_diverging_candidate_disturbs_nobody(config: Mapping[str, Any]) -> None:
    examples, net = blobs(40), Dense(5, (6,), 3)
    alone = train(net.initial(1, 0), examples, [{}], 6, 8, np.random.default_rng(0))
    among = train(net.initial(3, 0), examples, [config, {}, config], 6, 8, np.random.default_rng(0))
    for single, stacked in zip(alone, among, strict=True):
        np.testing.assert_allclose(stacked[1], single[0], rtol=1e-5, atol=1e-6)
    assert not all(np.isfinite(array[[0, 2]]).all() for array in among)
    assert losses(among, examples)[[0, 2]].tolist() == [np.inf, np.inf]
    assert accuracies(among, examples)[[0, 2]].tolist() == [0.0, 0.0]
    assert np.isfinite(losses(among, examples)[1])
    assert accuracies(among, examples)[1] > 0.5


def test_a_net_with_a_single_broken_output_has_diverged() -> None:
    weights = Dense(5, (), 3).initial(2, 0)
    weights[1][0, 0, 2] = -np.inf
    examples = Examples(np.zeros((4, 5), np.float32), np.zeros(4, np.int64))
    sound = float(weights[1][1, 0].argmax() == 0)
    assert accuracies(weights, examples).tolist() == [0.0, sound]
    assert losses(weights, examples)[0] == np.inf


def test_evaluation_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, examples = Dense(5, (6,), 3).initial(2, 0), blobs(50)
    whole = losses(weights, examples), accuracies(weights, examples)
    monkeypatch.setattr(dense, "_ROWS_AT_ONCE", 7)
    np.testing.assert_allclose(losses(weights, examples), whole[0], rtol=1e-6)
    np.testing.assert_allclose(accuracies(weights, examples), whole[1])


def digits_client(seed: int = 7, start_seed: int = 0) -> DenseClient:
    own = digits().train.take(np.arange(200))
    parts = split_validation(own, 0.2, np.random.default_rng(0))
    return DenseClient(*parts, Dense(64, (32,), 10), 5, 16, seed, start_seed)


def test_a_good_learning_rate_beats_useless_ones_on_digits() -> None:
    client = digits_client()
    configs = [{"learning_rate": rate} for rate in (1e-5, 0.3, 1e30)]
    slow, good, diverged = client.score_many(configs)
    assert good < 1 < slow < diverged
    trained = client.train_many(configs, client.net.initial(3, 0), 5, 0)
    accuracy = client.validate_many(trained)
    assert accuracy[1] > 0.5 > accuracy[0]
    assert accuracy[2] == 0
    assert accuracies(trained, digits().test)[1] > 0.5


def test_a_score_does_not_depend_on_the_other_configurations() -> None:
    client = digits_client()
    scores = client.score_many(CONFIGS)
    assert scores.shape == (len(CONFIGS),)
    for config, score in zip(CONFIGS, scores, strict=True):
        assert client.score(config) == pytest.approx(score, rel=1e-4)
    assert client.score(CONFIGS[0]) == client.score_many([CONFIGS[0]])[0]
    assert client.score_many([]).shape == (0,)


def test_scores_are_the_validation_loss_after_local_training() -> None:
    client = digits_client()
    rng = np.random.default_rng([client.seed, 0])
    start = client.net.initial(1, client.start_seed)
    trained = train(start, client.train_examples, [{}], client.epochs, client.batch, rng)
    assert client.score({}) == losses(trained, client.validation)[0]


def test_own_seed_orders_the_batches_and_start_seed_draws_the_start() -> None:
    score = digits_client(seed=7).score({})
    assert digits_client(seed=7).score({}) == score
    assert digits_client(seed=8).score({}) != score
    assert digits_client(start_seed=1).score({}) != score


def test_rounds_continue_from_given_weights_in_a_new_order() -> None:
    client = digits_client()
    start = client.net.initial(1, 0)
    first, again, other = (client.train_many([{}], start, 1, number) for number in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    further = client.train_many([{}], first, 1, 2)
    assert losses(further, client.validation) < losses(first, client.validation)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dropout": 0.1}, "'dropout' is no hyperparameter of a dense net; allowed are learning_r"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1; allowed is a finite number of at least"),
        ({"momentum": float("nan")}, "momentum is nan; allowed is a finite number"),
        ({"decay": float("inf")}, "decay is inf; allowed is a finite number"),
        ({"weight_decay": "0.1"}, "weight_decay is '0.1'; allowed is a finite number"),
        ({"learning_rate": None}, "learning_rate is None; allowed is a finite number"),
    ],
)
def test_unusable_configurations_are_refused(config: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        digits_client().score(config)


def test_numbers_of_numpy_are_numbers() -> None:
    plain = {"learning_rate": 0.25, "momentum": 0}
    of_numpy = {"learning_rate": np.float32(0.25), "momentum": np.int64(0)}
    assert digits_client().score(plain) == digits_client().score(of_numpy)


def test_known_names_pass() -> None:
    check_config(dense.HYPERPARAMETERS)


def run_train(
    examples: Examples, configs: Sequence[Mapping[str, Any]], epochs: int, batch: int
) -> Weights:
    start = Dense(5, (6,), 3).initial(2, 0)
    return train(start, examples, configs, epochs, batch, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: run_train(blobs(9), [{}], 1, 4), "1 configurations for the weights of 2"),
        (lambda: run_train(blobs(9), [{}, {}], 0, 4), "epochs is 0; allowed is 1"),
        (lambda: run_train(blobs(9), [{}, {}], 1, 0), "batch is 0; allowed is 1"),
        (lambda: run_train(blobs(0), [{}, {}], 1, 4), "no examples; at least 1"),
        (lambda: run_train(digits().test, [{}, {}], 1, 4), "64 features; the net has 5 inputs"),
        (
            lambda: losses(Dense(64, (), 5).initial(1, 0), digits().test),
            "a label is 9; allowed is 0 to 4",
        ),
        (lambda: accuracies(Dense(5, (), 3).initial(1, 0), blobs(0)), "no examples"),
        (
            lambda: losses((np.zeros((1, 5, 3)), np.zeros((1, 1, 3))), blobs(5)),  # type: ignore[arg-type]
            "weights are of type float64; allowed is float32",
        ),
        (
            lambda: DenseClient(blobs(5), blobs(0), Dense(5, (), 3), 1, 1, 0),
            "no examples; at least 1",
        ),
        (
            lambda: DenseClient(blobs(5), blobs(5), Dense(6, (), 3), 1, 1, 0),
            "5 features; the net has 6 inputs",
        ),
        (
            lambda: DenseClient(blobs(5), blobs(5), Dense(5, (), 3), 0, 1, 0),
            "epochs is 0; allowed is 1",
        ),
        (lambda: Dense(5, (0,), 3), r"hidden layers \(0,\) .*allowed are at least 1, 1 each and 2"),
        (lambda: Dense(5, (), 3).initial(0, 0), "candidates is 0; allowed is 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    call: Callable[[], object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        call()


def test_importing_loads_no_torch() -> None:
    script = "import sys, tacit.dense; print({'torch', 'sklearn'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "set()", found.stderr


def test_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    client = digits_client()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'tacit\[torch\]'"):
        client.score({})


def test_small_steps_use_one_thread_and_give_the_others_back() -> None:
    seen = []
    real = torch.autograd.grad

    def watched(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return real(*arguments)

    torch.set_num_threads(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", watched)
        digits_client().score({"learning_rate": 0.1})
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
