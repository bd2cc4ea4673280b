from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.partitions import dirichlet, iid
from tacit.data.sources import IntArray, digits

Partition = Callable[[IntArray, int, np.random.Generator], list[IntArray]]


def skewed(alpha: float) -> Partition:
    return lambda labels, clients, rng: dirichlet(labels, clients, alpha, rng)


PARTITIONS = [
    pytest.param(iid, id="iid"),
    *(pytest.param(skewed(alpha), id=f"dirichlet {alpha:g}") for alpha in (30.0, 5.0, 0.5, 0.01)),
]


def check_complete(parts: list[IntArray], count: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_digits_go_to_fifty_clients_completely(partition: Partition) -> None:
    labels = digits().train.labels
    parts = partition(labels, 50, np.random.default_rng(0))
    assert len(parts) == 50
    check_complete(parts, len(labels))
    assert min(map(len, parts)) >= 10


@pytest.mark.parametrize("partition", PARTITIONS)
def test_parts_depend_on_the_seed_only(partition: Partition) -> None:
    labels = np.arange(300) % 7
    first, again, other = (partition(labels, 9, np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(
    labels=st.lists(st.integers(0, 4), max_size=80),
    clients=st.integers(1, 12),
    alpha=st.floats(1e-300, 1e100),
    smallest=st.integers(0, 12),
    seed=st.integers(0, 2**32),
)
def test_every_example_goes_to_one_client_and_the_minimum_is_kept(
    labels: list[int], clients: int, alpha: float, smallest: int, seed: int
) -> None:
    """Small clients included: with many of these settings all examples are needed."""
    array, rng = np.array(labels, dtype=np.int64), np.random.default_rng(seed)
    if clients * smallest > len(labels):
        with pytest.raises(ValueError, match=f"clients is {clients} with at least {smallest}"):
            dirichlet(array, clients, alpha, rng, smallest)
        return
    parts = dirichlet(array, clients, alpha, rng, smallest)
    assert len(parts) == clients
    check_complete(parts, len(labels))
    assert min(map(len, parts)) >= smallest


@given(count=st.integers(1, 60), data=st.data())
def test_iid_parts_are_of_equal_size(count: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, count))
    parts = iid(np.zeros(count, dtype=np.int64), clients, np.random.default_rng(0))
    check_complete(parts, count)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_minimum_that_the_draw_keeps_moves_nothing() -> None:
    labels = np.arange(1000) % 10
    without = dirichlet(labels, 10, 30.0, np.random.default_rng(0), smallest=0)
    smallest = min(map(len, without))
    assert smallest > 10
    kept = dirichlet(labels, 10, 30.0, np.random.default_rng(0), smallest)
    assert all(np.array_equal(a, b) for a, b in zip(without, kept, strict=True))


def test_only_clients_above_the_minimum_give_examples_away() -> None:
    labels = np.arange(600) % 10
    drawn = dirichlet(labels, 20, 0.2, np.random.default_rng(0), smallest=0)
    filled = dirichlet(labels, 20, 0.2, np.random.default_rng(0), smallest=20)
    assert min(map(len, drawn)) < 20
    for before, after in zip(drawn, filled, strict=True):
        if len(before) <= 20:
            assert len(after) == 20
            assert set(before) <= set(after)
        else:
            assert 20 <= len(after) <= len(before)
            assert set(after) <= set(before)


def test_a_smaller_alpha_skews_labels_more() -> None:
    labels = np.arange(4000) % 10

    def skew(parts: list[IntArray]) -> float:
        """Mean share of a client's most frequent label; 0.1 would be no skew at all."""
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    rng = np.random.default_rng(0)
    mild, middle, strong = (skew(dirichlet(labels, 20, alpha, rng)) for alpha in (30.0, 5.0, 0.5))
    assert skew(iid(labels, 20, rng)) < middle < strong
    assert mild < middle
    assert strong > 0.3


def test_no_place_in_the_order_is_favoured() -> None:
    """Cutting shares off instead of rounding would give the last client 5 examples more.

    Rounding gives it 0.2 more, and the mean of 400 sizes has a standard error of 0.06 (measured).
    """
    labels = np.arange(1000) % 10
    rng = np.random.default_rng(0)
    sizes = [len(dirichlet(labels, 50, 30.0, rng, smallest=0)[-1]) for _ in range(400)]
    assert abs(np.mean(sizes) - 20) < 1


@pytest.mark.parametrize(
    ("clients", "alpha", "smallest", "reason"),
    [
        (0, 1.0, 10, "clients is 0; allowed is 1 and above"),
        (11, 1.0, 10, "clients is 11 with at least 10 examples each; allowed is 1 to 10"),
        (5, 0.0, 10, "alpha is 0.0; allowed is above 0"),
        (5, -1.0, 10, "alpha is -1.0; allowed is above 0"),
        (5, float("nan"), 10, "alpha is nan; allowed is above 0"),
        (5, float("inf"), 10, r"alpha is inf; allowed is above 0 and at most 1e\+100"),
        (5, 1.0, -1, "smallest is -1; allowed is 0 and above"),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(
    clients: int, alpha: float, smallest: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        dirichlet(np.zeros(100, np.int64), clients, alpha, np.random.default_rng(0), smallest)


@pytest.mark.parametrize("clients", [0, 4])
def test_iid_refuses_clients_without_examples(clients: int) -> None:
    with pytest.raises(ValueError, match=f"clients is {clients}"):
        iid(np.zeros(3, np.int64), clients, np.random.default_rng(0))
