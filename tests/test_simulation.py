from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.data.examples import Dataset, Examples
from tacit.data.skews import Dirichlet, FeatureSkew, Iid, Partition
from tacit.data.sources import digits
from tacit.networks import NETWORKS
from tacit.simulation import built_in_task, simulated_clients
from tacit.torch_task import TorchClient

PARTITIONS = {"iid": Iid(), "dirichlet": Dirichlet(alpha=0.5)}
partitions = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parallel test workers whose threads outnumber the cores wait more than they compute."""
    monkeypatch.setenv("TACIT_CORES", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def numbered(rows: int = 300) -> Dataset:
    """Every example carries its number: train has 0 and above, test is negative."""
    numbers = np.arange(rows, dtype=np.float32)
    labels = np.arange(rows) % 3
    return Dataset(
        "numbered",
        train=Examples(numbers[:, None], labels),
        test=Examples(-1 - numbers[:, None], labels),
        classes=("a", "b", "c"),
    )


def clients_of(
    dataset: Dataset, partition: Partition, count: int = 7, seed: int = 0
) -> list[TorchClient]:
    task = built_in_task(dataset, "dense", (4,), epochs=1, batch=16)
    return simulated_clients(dataset, partition, count, task, validation=0.2, seed=seed)


def rows(examples: Examples) -> list[float]:
    return [float(row) for row in examples.features[:, 0]]


@partitions
def test_every_example_of_train_is_in_one_place_and_those_of_test_in_none(
    partition: Partition,
) -> None:
    data = numbered()
    clients = clients_of(data, partition)
    assert len(clients) == 7
    held = [row for c in clients for part in (c.train_examples, c.validation) for row in rows(part)]
    assert sorted(held) == rows(data.train)
    for client in clients:
        for part in (client.train_examples, client.validation):
            assert part.labels.tolist() == [row % 3 for row in rows(part)]


def test_a_client_keeps_its_share_for_validation() -> None:
    for client in clients_of(numbered(), Iid(), count=3):
        assert len(client.train_examples) == 80
        assert len(client.validation) == 20


@partitions
def test_equal_seeds_give_equal_clients_and_others_others(partition: Partition) -> None:
    first, again, other = (clients_of(numbered(), partition, seed=seed) for seed in (4, 4, 5))
    for one, two in zip(first, again, strict=True):
        assert rows(one.train_examples) == rows(two.train_examples)
        assert rows(one.validation) == rows(two.validation)
        assert one.seed == two.seed
    assert [rows(c.train_examples) for c in first] != [rows(c.train_examples) for c in other]
    assert len({client.seed for client in first}) == len(first)


def test_clients_hold_standardised_features() -> None:
    centre, spread = np.full(1, 150, np.float32), np.full(1, 100, np.float32)
    data = replace(numbered(), centre=centre, spread=spread)
    clients = clients_of(data, Iid())
    held = [row for c in clients for part in (c.train_examples, c.validation) for row in rows(part)]
    np.testing.assert_allclose(sorted(held), (np.arange(300) - 150) / 100, rtol=1e-6)


def test_noise_of_a_feature_skew_comes_before_standardising() -> None:
    data = replace(numbered(), spread=np.full(1, 100, np.float32), bounds=(0.0, 299.0))
    clients = clients_of(data, FeatureSkew(noise=1000.0))
    held = [row for c in clients for part in (c.train_examples, c.validation) for row in rows(part)]
    assert min(held) == 0
    assert max(held) == np.float32(2.99)


def test_clients_of_one_task_score_and_train() -> None:
    data = digits()
    task = built_in_task(data, "dense", (16,), epochs=2, batch=16, metric="loss", start_seed=3)
    clients = simulated_clients(data, Iid(), 10, task, validation=0.25, seed=1)
    scores = np.array(
        [client.score_many([{"learning_rate": 0.3}, {"learning_rate": 1e-5}]) for client in clients]
    )
    assert (scores[:, 0] < scores[:, 1]).all()
    assert len(set(scores[:, 0])) == 10
    trained = clients[0].train_many([{"learning_rate": 0.3}], task.initial(1), 5, 0)
    assert task.accuracies(trained, data.test)[0] > 0.3


@pytest.mark.parametrize("name", ["dp-hype-mnist", "dp-hype-cifar", "mlp"])
def test_networks_come_by_name(name: str) -> None:
    data = digits()
    task = built_in_task(data, name, epochs=1, batch=16, start_seed=3)
    expected = NETWORKS[name].build((1, 8, 8), 10)
    shapes = [array.shape[1:] for array in task.initial(1)]
    assert shapes[: len(list(expected.parameters()))] == [p.shape for p in expected.parameters()]
    other = built_in_task(data, name, epochs=1, batch=16, start_seed=4)
    assert not np.array_equal(task.initial(1)[0], other.initial(1)[0])


def test_settings_reach_the_task() -> None:
    task = built_in_task(
        digits(), "dense", (8, 4), epochs=3, batch=9, metric="loss", local="halving", start_seed=5
    )
    found = (task.classes, task.epochs, task.batch, task.metric, task.local, task.start_seed)
    assert found == (10, 3, 9, "loss", "halving", 5)
    assert [array.shape[1:] for array in task.initial(1)[::2]] == [(8, 64), (4, 8), (10, 4)]
    task.check({"dropout": 0.5})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "privtuna-a",
            r"privtuna-a was asked for examples of shape \(1, 8, 8\); allowed are image",
        ),
        ("resnet", "no network is called 'resnet'; allowed are dp-hype-mnist"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_anything_trains(
    name: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        built_in_task(digits(), name, epochs=1, batch=16)
