from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.examples import Examples
from tacit.data.holdings import Holding, distances, label_counts, shares, table
from tacit.data.partitions import deal
from tacit.data.skews import ClassPairs, Iid
from tacit.data.sources import digits


def test_the_numbers_of_three_clients() -> None:
    """Everybody's labels are 1/2, 1/4, 1/4, so that the distances are 0, 1/2 and 1/2."""
    numbers = table(("a", "b", "c"), np.array([[4, 2, 2], [8, 0, 0], [0, 4, 4]]))
    assert numbers.classes == ("a", "b", "c")
    assert numbers.clients == (
        Holding(1, 8, (4, 2, 2), None),
        Holding(2, 8, (8, 0, 0), None),
        Holding(3, 8, (0, 4, 4), None),
    )
    summary = numbers.summary
    assert (summary.clients, summary.examples) == (3, 24)
    assert (summary.smallest, summary.median, summary.largest) == (8, 8.0, 8)
    assert summary.largest_share == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert summary.distance == pytest.approx(1 / 3)


def test_clients_without_examples_count_for_sizes_only() -> None:
    summary = table(("a", "b"), np.array([[0, 0], [2, 2], [6, 0]])).summary
    assert (summary.smallest, summary.median, summary.largest) == (0, 4.0, 6)
    assert summary.largest_share == 0.75
    assert summary.distance == pytest.approx((0.3 + 0.2) / 2)


def test_the_table_is_json() -> None:
    noise = np.array([0.5, 1.0], dtype=np.float32)
    written = json.loads(json.dumps(asdict(table(("a", "b"), np.array([[1, 2], [3, 4]]), noise))))
    assert written["clients"][1] == {"client": 2, "size": 7, "labels": [3, 4], "noise": 1.0}
    assert written["summary"]["examples"] == 10
    assert written["classes"] == ["a", "b"]


def test_class_pairs_of_digits_are_four_fifths_away_and_iid_parts_near() -> None:
    data = digits()
    far, near = (
        table(data.classes, label_counts(deal(data, rule, 5, np.random.default_rng(0)), 10)).summary
        for rule in (ClassPairs(), Iid())
    )
    assert far.distance == pytest.approx(0.8, abs=0.01)
    assert near.distance < 0.1
    assert far.examples == near.examples == len(data.train)


@settings(derandomize=True, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda classes: st.lists(
            st.lists(st.integers(0, 9), min_size=classes, max_size=classes), min_size=1, max_size=8
        )
    )
)
def test_shares_add_up_and_distances_lie_between_0_and_1(rows: list[list[int]]) -> None:
    counts = np.array(rows)
    if counts.sum() == 0:
        return
    held, apart, empty = shares(counts), distances(counts), counts.sum(axis=1) == 0
    assert np.array_equal(np.isnan(apart), empty)
    assert held[~empty].sum(axis=1) == pytest.approx(1)
    assert ((apart[~empty] >= 0) & (apart[~empty] < 1)).all()


def test_labels_are_counted_by_client() -> None:
    rows = np.zeros((2, 1), dtype=np.float32)
    parts = [Examples(rows, np.array(labels)) for labels in ([0, 2], [2, 2])]
    assert label_counts(parts, 4).tolist() == [[1, 0, 1, 0], [0, 0, 2, 0]]


@pytest.mark.parametrize(
    ("counts", "noise", "reason"),
    [
        ([[1, 2, 3]], None, r"counts has shape \(1, 3\); allowed is \(clients, 2\)"),
        ([1, 2], None, r"counts has shape \(2,\); allowed is \(clients, 2\)"),
        (np.zeros((0, 2)), None, r"counts has shape \(0, 2\); .* at least one client"),
        ([[0, 0]], None, "counts range from 0 to 0; allowed is 0 and above, with at least one"),
        ([[3, -1]], None, "counts range from -1 to 3"),
        ([[3, 1]], [0.1, 0.2], r"noise has shape \(2,\); allowed is \(1,\)"),
    ],
)
def test_counts_that_make_no_sense_are_refused(
    counts: list[list[int]], noise: list[float] | None, reason: str
) -> None:
    levels = None if noise is None else np.array(noise, dtype=np.float32)
    with pytest.raises(ValueError, match=f"^{reason}"):
        table(("a", "b"), np.array(counts, dtype=np.int64), levels)
