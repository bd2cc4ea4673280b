from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.examples import IntArray
from tacit.data.skews import (
    ADADP_PAIRS,
    ClassPairs,
    Dirichlet,
    DominantLabel,
    FeatureSkew,
    Iid,
    Partition,
    QuantitySkew,
)
from tacit.data.sources import digits

Rule = Iid | Dirichlet | QuantitySkew | DominantLabel | ClassPairs | FeatureSkew

RULES: list[Rule] = [
    Iid(),
    FeatureSkew(0.1),
    *(Dirichlet(alpha) for alpha in (1e6, 30.0, 5.0, 0.5, 1e-3)),
    *(QuantitySkew(alpha) for alpha in (1e6, 2.0, 0.1, 1e-3)),
    *(DominantLabel(percent, smallest=2) for percent in (0.0, 66.0, 90.0)),
    *(ClassPairs(similarity) for similarity in (0.0, 0.33, 1.0)),
]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=repr)
FEW = settings(derandomize=True, deadline=None, max_examples=200)

minima = st.integers(0, 12)
alphas = st.floats(1e-300, 1e100)
rules = st.one_of(
    st.builds(Iid, minima),
    st.builds(FeatureSkew, st.floats(0, 1), minima),
    st.builds(Dirichlet, alphas, minima),
    st.builds(QuantitySkew, alphas, minima),
    st.builds(DominantLabel, st.floats(0, 100), minima),
    st.builds(ClassPairs, st.floats(0, 1), st.just(()) | st.just(((4, 0), (1, 2, 3))), minima),
)


def counts(rule: Partition, labels: IntArray, clients: int, seed: int = 0) -> list[list[int]]:
    parts = rule.deal(labels, clients, np.random.default_rng(seed))
    check_complete(parts, clients, len(labels))
    return [np.bincount(labels[part], minlength=labels.max() + 1).tolist() for part in parts]


def check_complete(parts: list[IntArray], clients: int, count: int) -> None:
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


def repeated(*sizes: int) -> IntArray:
    """So many examples of label 0, of label 1, and so on."""
    return np.repeat(np.arange(len(sizes)), sizes)


@EVERY_RULE
@pytest.mark.parametrize("clients", [1, 7, 50])
def test_digits_are_dealt_completely(rule: Partition, clients: int) -> None:
    labels = digits().train.labels
    parts = rule.deal(labels, clients, np.random.default_rng(0))
    check_complete(parts, clients, len(labels))
    assert min(map(len, parts)) >= (2 if isinstance(rule, DominantLabel) else 10)


@EVERY_RULE
def test_parts_depend_on_the_seed_only(rule: Partition) -> None:
    labels = np.arange(300) % 7
    first, again, other = (rule.deal(labels, 9, np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@FEW
@given(
    rule=rules,
    labels=st.lists(st.integers(0, 4), max_size=80),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_every_example_goes_to_one_client_and_the_minimum_is_kept_or_refused(
    rule: Rule, labels: list[int], clients: int, seed: int
) -> None:
    """Small clients included: with many of these settings all examples are needed."""
    array = np.array(labels, dtype=np.int64)
    smallest = rule.smallest

    def expected_refusal() -> str | None:
        if clients * smallest > len(labels):
            return f"^clients is {clients} with at least {smallest} examples each; allowed is"
        free = replace(rule, smallest=0).deal(array, clients, np.random.default_rng(seed))
        check_complete(free, clients, len(labels))
        fewest = min(map(len, free))
        exact = isinstance(rule, DominantLabel | ClassPairs)
        if exact and fewest < smallest:
            return f"^smallest is {smallest}; allowed is 0 to {fewest}, "
        return None

    reason = expected_refusal()
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            rule.deal(array, clients, np.random.default_rng(seed))
        return
    parts = rule.deal(array, clients, np.random.default_rng(seed))
    check_complete(parts, clients, len(labels))
    assert min(map(len, parts)) >= smallest


@FEW
@given(count=st.integers(1, 60), data=st.data())
def test_iid_parts_are_of_equal_size(count: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, count))
    sizes = [sum(row) for row in counts(Iid(), np.zeros(count, dtype=np.int64), clients)]
    assert max(sizes) - min(sizes) <= 1


def test_a_minimum_that_the_draw_keeps_moves_nothing() -> None:
    labels = np.arange(1000) % 10
    without = Dirichlet(30.0, smallest=0).deal(labels, 10, np.random.default_rng(0))
    smallest = min(map(len, without))
    assert smallest > 10
    kept = Dirichlet(30.0, smallest).deal(labels, 10, np.random.default_rng(0))
    assert all(np.array_equal(a, b) for a, b in zip(without, kept, strict=True))


@pytest.mark.parametrize("kind", [Dirichlet, QuantitySkew])
def test_only_clients_above_the_minimum_give_examples_away(
    kind: type[Dirichlet] | type[QuantitySkew],
) -> None:
    labels = np.arange(600) % 10
    drawn = kind(0.2, smallest=0).deal(labels, 20, np.random.default_rng(0))
    filled = kind(0.2, smallest=20).deal(labels, 20, np.random.default_rng(0))
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

    def skew(rule: Partition) -> float:
        """Mean share of a client's most frequent label; 0.1 would be no skew at all."""
        return float(np.mean([max(row) / sum(row) for row in counts(rule, labels, 20)]))

    mild, middle, strong = (skew(Dirichlet(alpha)) for alpha in (30.0, 5.0, 0.5))
    assert skew(Iid()) < middle < strong
    assert mild < middle
    assert strong > 0.3


def test_no_place_in_the_order_is_favoured() -> None:
    """Cutting shares off instead of rounding would give the last client 5 examples more.

    Rounding gives it 0.2 more, and the mean of 400 sizes has a standard error of 0.06 (measured).
    """
    labels = np.arange(1000) % 10
    rng = np.random.default_rng(0)
    sizes = [len(Dirichlet(30.0, smallest=0).deal(labels, 50, rng)[-1]) for _ in range(400)]
    assert abs(np.mean(sizes) - 20) < 1


def test_a_huge_alpha_splits_every_label_evenly_and_a_tiny_one_gives_it_to_one_client() -> None:
    """With 1e6 a share of 1/4 has a deviation of 2e-4, so 100 examples split 25 : 25 : 25 : 25.

    With 1e-3 about one label in a hundred is split at all.
    """
    labels = np.arange(1000) % 10
    assert counts(Dirichlet(1e6), labels, 4) == [[25] * 10] * 4
    tiny = np.array(counts(Dirichlet(1e-3, smallest=0), labels, 4))
    assert tiny.max(axis=0).sum() > 950


def test_quantity_skew_is_in_sizes_and_not_in_labels() -> None:
    """A part of 100 examples or more has half its labels 1, give or take 5 deviations of 0.05."""
    labels = np.arange(4000) % 2
    rows = np.array(counts(QuantitySkew(0.4), labels, 20))
    sizes = rows.sum(axis=1)
    assert sizes.min() == 10
    assert sizes.max() > 600
    large = sizes >= 100
    assert (abs(rows[large, 1] / sizes[large] - 0.5) < 0.25).all()
    assert {sum(row) for row in counts(QuantitySkew(1e6), labels, 20)} <= {198, 199, 200, 201, 202}
    assert sorted(sum(row) for row in counts(QuantitySkew(1e-3, 0), labels, 3)) == [0, 0, 4000]


@pytest.mark.parametrize(
    ("percent", "sizes", "expected"),
    [
        pytest.param(66.0, (50, 50), [[33, 17], [17, 33]], id="as many labels as clients"),
        pytest.param(66.0, (10, 7, 5), [[7, 2, 3], [3, 5, 2]], id="more labels than clients"),
        pytest.param(
            50.0, (50, 50), [[25, 8], [9, 25], [8, 9], [8, 8]], id="more clients than labels"
        ),
        pytest.param(50.0, (5, 7), [[2, 3], [3, 4]], id="halves to the even number"),
        pytest.param(100.0, (9, 8, 7, 6), [[9, 0, 7, 0], [0, 8, 0, 6]], id="all of it"),
        pytest.param(0.0, (9, 8), [[0, 8], [9, 0]], id="none of it"),
        pytest.param(66.0, (9, 8, 7), [[9, 8, 7]], id="one client"),
        pytest.param(100.0, (4, 3), [[4, 0], [0, 3], [0, 0]], id="nothing left for the third"),
    ],
)
def test_a_dominant_label_is_dealt_in_exact_counts(
    percent: float, sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    rule = DominantLabel(percent, smallest=0)
    assert counts(rule, repeated(*sizes), len(expected)) == expected


@FEW
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    clients=st.integers(2, 9),
    percent=st.floats(0, 100),
)
def test_a_label_that_is_not_held_is_spread_evenly(
    sizes: list[int], clients: int, percent: float
) -> None:
    rows = np.array(counts(DominantLabel(percent, smallest=0), repeated(*sizes), clients))
    for label, size in enumerate(sizes):
        holder = label % clients
        assert rows[holder, label] == round(percent * size / 100)
        others = np.delete(rows[:, label], holder)
        assert others.max() - others.min() <= 1


def test_left_overs_of_many_small_labels_reach_every_client() -> None:
    """Of each label one example is left for 9 clients: going in turn, nobody gets two more."""
    rows = np.array(counts(DominantLabel(90.0, smallest=0), repeated(*[10] * 40), 10))
    spread = rows.sum(axis=1) - 4 * 9
    assert spread.sum() == 40
    assert spread.max() - spread.min() <= 2


def test_labels_that_are_missing_or_large_do_not_matter() -> None:
    labels = repeated(6, 6, 6) * 40 + 7
    parts = DominantLabel(50.0, smallest=0).deal(labels, 3, np.random.default_rng(0))
    held = [[int((labels[part] == label).sum()) for label in (7, 47, 87)] for part in parts]
    assert [row[i] for i, row in enumerate(held)] == [3, 3, 3]
    parts = ClassPairs(smallest=0).deal(labels, 2, np.random.default_rng(0))
    assert [np.unique(labels[part]).tolist() for part in parts] == [[7, 47], [87]]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param((4, 5, 6, 7), [[4, 5, 0, 0], [0, 0, 6, 7]], id="a client for each pair"),
        pytest.param(
            (10, 10, 10, 10),
            [[4, 3, 0, 0], [0, 0, 5, 5], [3, 4, 0, 0], [0, 0, 5, 5], [3, 3, 0, 0]],
            id="more clients than pairs",
        ),
        pytest.param(
            (2, 2, 2, 2, 2, 2), [[2, 2, 0, 0, 2, 2], [0, 0, 2, 2, 0, 0]], id="fewer clients"
        ),
        pytest.param((3, 3, 3), [[3, 3, 0], [0, 0, 3]], id="an odd label is alone"),
        pytest.param((3, 4, 5), [[3, 4, 5]], id="one client"),
    ],
)
def test_class_pairs_are_dealt_in_exact_counts(
    sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    assert counts(ClassPairs(smallest=0), repeated(*sizes), len(expected)) == expected


def test_adadp_s_five_clients_hold_two_classes_of_cifar_10_each() -> None:
    classes = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )
    rows = counts(ClassPairs(pairs=ADADP_PAIRS), repeated(*[20] * 10), 5)
    assert [{classes[label] for label in np.flatnonzero(row)} for row in rows] == [
        {"automobile", "truck"},
        {"airplane", "ship"},
        {"cat", "dog"},
        {"bird", "frog"},
        {"deer", "horse"},
    ]
    assert {sum(row) for row in rows} == {40}


def test_similarity_leaves_the_rest_of_each_pair_where_it_was() -> None:
    """Of 100 examples 33 are dealt at random: a client keeps 2 x 67 and gets 66 of any.

    Of those 66 about 53 are of foreign labels, with a deviation of 3.
    """
    labels = repeated(*[100] * 10)
    rows = np.array(counts(ClassPairs(0.33), labels, 5))
    assert rows.sum(axis=1).tolist() == [200] * 5
    assert all((rows[client, 2 * client : 2 * client + 2] >= 67).all() for client in range(5))
    assert abs(rows[0, 2:].sum() - 53) < 13


def test_similarity_one_is_iid() -> None:
    """A label's count is about hypergeometric, 20 with a deviation of 3.8: 50 of them stay in 5."""
    rows = np.array(counts(ClassPairs(1.0), repeated(*[100] * 10), 5))
    assert rows.sum(axis=1).tolist() == [200] * 5
    assert (abs(rows - 20) <= 19).all()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Dirichlet(0.0), "alpha is 0.0; allowed is above 0"),
        (lambda: Dirichlet(-1.0), "alpha is -1.0; allowed is above 0"),
        (lambda: QuantitySkew(float("nan")), "alpha is nan; allowed is above 0"),
        (
            lambda: QuantitySkew(float("inf")),
            r"alpha is inf; allowed is above 0 and at most 1e\+100",
        ),
        (lambda: Dirichlet(1.0, -1), "smallest is -1; allowed is 0 and above"),
        (lambda: Iid(-1), "smallest is -1; allowed is 0 and above"),
        (lambda: DominantLabel(100.1), "percent is 100.1; allowed is 0 to 100"),
        (lambda: DominantLabel(float("nan")), "percent is nan; allowed is 0 to 100"),
        (lambda: ClassPairs(33), "similarity is 33; allowed is 0 to 1"),
        (lambda: ClassPairs(pairs=((0, 1), (1, 2))), "pairs name the label 1 twice; allowed is"),
        (lambda: FeatureSkew(-0.1), "noise is -0.1; allowed is 0 to 1e"),
        (lambda: FeatureSkew(float("inf")), r"noise is inf; allowed is 0 to 1e\+06"),
    ],
)
def test_impossible_parameters_are_refused_with_the_reason(make: type, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        make()


@pytest.mark.parametrize(
    ("rule", "clients", "reason"),
    [
        (Iid(), 0, "clients is 0; allowed is 1 and above"),
        (Iid(), 101, "clients is 101 with at least 1 examples each; allowed is 1 to 100"),
        (Dirichlet(1.0), 11, "clients is 11 with at least 10 examples each; allowed is 1 to 10"),
        (
            DominantLabel(90.0, 5),
            4,
            "smallest is 5; allowed is 0 to 3, which is what the smallest of 4 clients holds with "
            "percent 90: lower it, or have fewer clients",
        ),
        (ClassPairs(0.1, ((0, 1),)), 3, "pairs lack the label 2; allowed is to name every one"),
        (
            ClassPairs(0.1, ((0, 1, 2), (7,)), 9),
            2,
            "smallest is 9; allowed is 0 to 5, which is what the smallest of 2 clients holds with "
            "2 pairs",
        ),
    ],
)
def test_impossible_deals_are_refused_with_the_reason(
    rule: Partition, clients: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        rule.deal(repeated(40, 40, 20), clients, np.random.default_rng(0))


def test_labels_must_be_a_plain_list() -> None:
    with pytest.raises(ValueError, match=r"labels has shape \(2, 2\); allowed is \(n,\)"):
        Iid().deal(np.zeros((2, 2), dtype=np.int64), 1, np.random.default_rng(0))
