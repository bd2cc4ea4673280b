from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data.examples import (
    Dataset,
    Examples,
    client_key,
    cross_validation,
    group_numbers,
    split_validation,
)


def numbered(count: int) -> Examples:
    """Examples that carry their own number as their feature and label."""
    numbers = np.arange(count)
    return Examples(numbers.astype(np.float32).reshape(-1, 1), numbers)


FRACTIONS = st.floats(0, 1, exclude_min=True, exclude_max=True)
KEYS = st.integers(0, 2**32) | st.binary(max_size=40)


@st.composite
def grouped(draw: st.DrawFn, least: int = 2) -> Examples:
    """Numbered rows that stand alone or belong together, in any order of first appearance."""
    units = draw(st.integers(least, 40))
    if draw(st.booleans()):
        return numbered(units)
    rows = [*range(units), *draw(st.lists(st.integers(0, units - 1), max_size=40))]
    groups = group_numbers(np.array(draw(st.permutations(rows))))
    numbers = np.arange(len(groups))
    return Examples(numbers.astype(np.float32).reshape(-1, 1), numbers, groups)


def groups_of(examples: Examples) -> npt.NDArray[np.int64]:
    """The position of the unit that each row belongs to."""
    return np.arange(len(examples)) if examples.groups is None else examples.groups


def units_of(whole: Examples, part: Examples) -> list[int]:
    """Positions in the whole of the units of a part of it, whose labels number the rows."""
    positions: list[int] = np.unique(groups_of(whole)[part.labels]).tolist()
    return positions


def replaced(examples: Examples, position: int, rows: int, rng: np.random.Generator) -> Examples:
    """The same with other contents at a position: so many rows, and no number like any other."""
    groups = groups_of(examples)
    begin = int(np.argmax(groups == position))
    before, after = (
        part[groups[part] != position] for part in np.split(np.arange(len(examples)), [begin])
    )
    new = 1000 + rng.permutation(1000)[: rows if examples.groups is not None else 1]
    labels = np.concatenate([before, new, after])
    owners = np.concatenate([groups[before], np.full(len(new), position), groups[after]])
    return Examples(
        rng.normal(size=(len(labels), 1)).astype(np.float32),
        labels,
        None if examples.groups is None else owners,
    )


@given(examples=grouped(), fraction=FRACTIONS, key=KEYS)
def test_validation_split_deals_every_example_once(
    examples: Examples, fraction: float, key: int | bytes
) -> None:
    train, validation = split_validation(examples, fraction, key)
    assert sorted([*train.labels, *validation.labels]) == list(range(len(examples)))
    for part in (train, validation):
        assert np.array_equal(part.features[:, 0], part.labels), "rows keep their labels"


@given(examples=grouped(), fraction=FRACTIONS, key=KEYS)
def test_both_parts_of_a_split_have_exactly_their_size_in_whole_groups(
    examples: Examples, fraction: float, key: int | bytes
) -> None:
    train, validation = split_validation(examples, fraction, key)
    exact = min(max(round(fraction * examples.units), 1), examples.units - 1)
    assert (train.units, validation.units) == (examples.units - exact, exact)
    assert not set(units_of(examples, train)) & set(units_of(examples, validation))


@given(
    examples=grouped(),
    fraction=FRACTIONS,
    key=KEYS,
    place=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_replacing_a_unit_leaves_all_others_where_they_are(
    examples: Examples, fraction: float, key: int | bytes, place: int, rows: int, seed: int
) -> None:
    """Whatever it contains and however many rows it has, in the split and in every fold."""
    position = place % examples.units
    gone = set(np.flatnonzero(groups_of(examples) == position).tolist())
    other = replaced(examples, position, rows, np.random.default_rng(seed))
    sides = []
    for one, absent in ((examples, gone), (other, set(range(1000, 2000)))):
        parts = cross_validation(*split_validation(one, fraction, key), 4, seed=3)
        sides.append([[sorted(set(e.labels.tolist()) - absent) for e in both] for both in parts])
    assert sides[0] == sides[1]


@given(
    examples=grouped(), fraction=FRACTIONS, key=st.integers(0, 2**32), seed=st.integers(0, 2**32)
)
def test_which_positions_are_held_out_does_not_depend_on_contents(
    examples: Examples, fraction: float, key: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(examples))
    shuffled = Examples(examples.features[order], examples.labels[order], examples.groups)
    positions = [
        np.isin(one.labels, split_validation(one, fraction, key)[1].labels).tolist()
        for one in (examples, shuffled)
    ]
    assert positions[0] == positions[1]


@given(count=st.integers(2, 200), fraction=FRACTIONS, key=KEYS)
def test_one_unit_more_moves_at_most_one_other(
    count: int, fraction: float, key: int | bytes
) -> None:
    before, after = (
        set(split_validation(numbered(n), fraction, key)[1].labels.tolist())
        for n in (count, count + 1)
    )
    assert len((before ^ after) - {count}) <= 1


def test_validation_split_is_random_and_keyed() -> None:
    """Of 10,000 positions a fifth is held out, in each half about as many: 6 deviations of 20."""
    keys: tuple[int | bytes, ...] = (0, 0, 1, b"other")
    splits = [split_validation(numbered(10_000), 0.2, key)[1].labels for key in keys]
    assert splits[0].tolist() == splits[1].tolist()
    assert len({tuple(split.tolist()) for split in splits}) == 3
    for split in splits:
        assert abs(int((split < 5000).sum()) - 1000) < 6 * 20
    assert abs(len(set(splits[0].tolist()) & set(splits[2].tolist())) - 400) < 6 * 16


def test_the_coins_of_a_position_never_change() -> None:
    """Anybody who splits again, with another version perhaps, must get the same parts."""
    key = client_key(1, 23)
    assert split_validation(numbered(20), 0.25, key)[1].labels.tolist() == [7, 9, 14, 16, 18]


@given(
    examples=grouped(),
    fraction=st.floats(0.05, 0.9),
    folds=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_folds_hold_every_unit_out_equally_often(
    examples: Examples, fraction: float, folds: int, seed: int
) -> None:
    own = split_validation(examples, fraction, seed)
    parts = [*cross_validation(*own, folds, seed)]
    assert len(parts) == folds
    assert parts[0] == own
    held_out = np.zeros(examples.units, np.int64)
    for train, validation in parts:
        assert validation.units == own[1].units
        assert sorted([*train.labels, *validation.labels]) == list(range(len(examples)))
        for part in (train, validation):
            assert np.array_equal(part.features[:, 0], part.labels), "rows keep their labels"
        held = units_of(examples, validation)
        assert not set(held) & set(units_of(examples, train)), "no group is cut in two"
        held_out[held] += 1
    assert held_out.max() - held_out.min() <= 1


def test_five_folds_of_a_fifth_hold_every_group_out_once() -> None:
    groups = np.repeat(np.arange(20), np.arange(20) % 4 + 1)
    rows = np.arange(len(groups))
    patients = Examples(rows.astype(np.float32).reshape(-1, 1), rows, groups)
    folds = cross_validation(*split_validation(patients, 0.2, key=1), 5, seed=1)
    assert sorted(row for _, held in folds for row in held.labels) == rows.tolist()


@given(count=st.integers(20, 60), held=st.integers(1, 10), seed=st.integers(0, 2**32))
def test_one_unit_more_moves_at_most_one_into_a_fold_and_one_out(
    count: int, held: int, seed: int
) -> None:
    whole = numbered(count + 1 + held)
    validation = whole.take(np.arange(count + 1, count + 1 + held))
    before, after = (
        [set(part.labels.tolist()) for _, part in cross_validation(train, validation, 3, seed)]
        for train in (whole.take(np.arange(n)) for n in (count, count + 1))
    )
    for one, other in zip(before, after, strict=True):
        assert len(one - other) <= 1
        assert len(other - one) <= 1


def test_parts_of_which_one_has_groups_are_refused() -> None:
    alone, together = numbered(4), Examples(numbered(4).features, np.arange(4), np.arange(4))
    with pytest.raises(ValueError, match="allowed are groups in both or in neither"):
        list(cross_validation(alone, together, 2, seed=0))


def test_rows_of_one_group_cannot_be_split() -> None:
    visits = Examples(np.zeros((9, 1), np.float32), np.arange(9), np.zeros(9, np.int64))
    with pytest.raises(ValueError, match="has 1 groups; it needs at least 2"):
        split_validation(visits, 0.2, key=0)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_examples_cannot_be_split(count: int) -> None:
    with pytest.raises(ValueError, match=f"has {count} examples; it needs at least 2"):
        split_validation(numbered(count), 0.2, key=0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"fraction is .*; allowed is above 0 and below 1"):
        split_validation(numbered(10), fraction, key=0)


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (np.zeros((3, 2), np.float32), np.zeros(2, np.int64), r"\(3, 2\) and labels \(2,\)"),
        (np.zeros(3, np.float32), np.zeros(3, np.int64), r"\(3,\) and labels \(3,\)"),
        (np.zeros((3, 2)), np.zeros(3, np.int64), "float64 and labels of int64.*float32"),
        (np.zeros((3, 2), np.float32), np.zeros(3, np.int32), "labels of int32.*int64"),
        (np.zeros((1, 2), np.float32), np.array([-1]), "a label is -1; allowed is 0"),
    ],
    ids=["counts", "no rows", "float64", "int32", "negative"],
)
def test_malformed_examples_are_refused(
    features: np.ndarray, labels: np.ndarray, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Examples(features, labels)


def test_flat_rows_keep_their_order_and_labels() -> None:
    images = Examples(np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2), np.array([1, 0]))
    assert images.shape == (3, 2, 2)
    assert np.array_equal(images.flat().features, np.arange(24).reshape(2, 12))
    assert images.flat().labels.tolist() == [1, 0]


def test_standardising_uses_the_constants_of_each_channel() -> None:
    images = Examples(np.ones((5, 2, 4, 4), np.float32), np.zeros(5, np.int64))
    centre, spread = (np.array(pair, np.float32).reshape(2, 1, 1) for pair in ([1, 0], [2, 0.5]))
    data = Dataset("two channels", images, images, ("only",), centre, spread)
    standardised = data.standardise(images).features
    assert standardised.dtype == np.float32
    assert (standardised[:, 0] == 0).all()
    assert (standardised[:, 1] == 2).all()


def test_a_part_of_the_data_is_always_the_same() -> None:
    data = Dataset("numbers", numbered(50), numbered(20), ("only",))
    one, again = (data.some(30, 5) for _ in range(2))
    assert (len(one.train), len(one.test)) == (30, 5)
    assert one.train.labels.tolist() == again.train.labels.tolist()
    assert len(set(one.train.labels.tolist())) == 30
    assert data.some(0).train is data.train
    assert data.some(30, 5).train.labels.tolist() == data.some(30).train.labels.tolist()


def test_more_than_there_is_is_refused() -> None:
    data = Dataset("numbers", numbered(50), numbered(20), ("only",))
    with pytest.raises(ValueError, match="found 20 examples where 21 are asked for; allowed is"):
        data.some(50, 21)


def test_a_part_of_the_data_has_whole_groups() -> None:
    groups = np.repeat(np.arange(10), 3)
    visits = Examples(np.zeros((30, 1), np.float32), np.arange(30), groups)
    part = Dataset("visits", visits, visits, ("only",)).some(4).train
    assert part.units == 4
    assert len(part) == 12
    assert len(set((part.labels // 3).tolist())) == 4
    with pytest.raises(ValueError, match="found 10 groups where 11 are asked for"):
        Dataset("visits", visits, visits, ("only",)).some(11)
