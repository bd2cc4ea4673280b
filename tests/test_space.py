from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tacit.space import SAMPLINGS, Choice, Config, Dimension, Float, Int, Space, Value, as_space

SPACE = Space(
    {
        "learning_rate": Float(1e-4, 1.0, log=True),
        "momentum": Float(0.0, 0.9),
        "layers": Int(1, 3),
        "width": Int(8, 512, log=True),
        "optimizer": Choice(["sgd", "adam"]),
    }
)

patient = settings(deadline=None)
"""The first Sobol point waits for an import."""


def floats(low: float, *, log: bool) -> st.SearchStrategy[Float]:
    bound = st.floats(low, 1e300)
    return st.builds(lambda a, b: Float(min(a, b), max(a, b), log), bound, bound)


def ints(low: int, high: int, *, log: bool) -> st.SearchStrategy[Int]:
    bound = st.integers(low, high)
    return st.builds(lambda a, b: Int(min(a, b), max(a, b), log), bound, bound)


all_floats = floats(-1e300, log=False) | floats(5e-324, log=True)
all_ints = ints(-(2**40), 2**40, log=False) | ints(1, 2**40, log=True)
small_ints = ints(-6, 6, log=False) | ints(1, 12, log=True)
values = (
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
choices = st.lists(values, min_size=1, max_size=6, unique_by=lambda v: (type(v), v)).map(
    lambda options: Choice(tuple(options))
)
dimensions = all_floats | all_ints | small_ints | choices
spaces = st.dictionaries(st.text(min_size=1), dimensions, min_size=1, max_size=5).map(Space)
finite_spaces = st.dictionaries(
    st.text(min_size=1), small_ints | choices, min_size=1, max_size=3
).map(Space)
roomy_spaces = st.lists(
    st.sampled_from(list(SPACE.dimensions.values())), min_size=0, max_size=3
).map(lambda extra: Space({"rate": Float(0.0, 1.0), **{str(i): d for i, d in enumerate(extra)}}))


def member(dimension: Dimension) -> st.SearchStrategy[Value]:
    match dimension:
        case Choice(options):
            return st.sampled_from(options)
        case Int(low, high):
            return st.integers(low, high)
        case Float(low, high):
            return st.floats(low, high)


def typed(configs: Iterable[Config]) -> list[tuple[tuple[str, type, Value], ...]]:
    return [tuple((name, type(v), v) for name, v in config.items()) for config in configs]


def assert_distinct_plain_members(space: Space, configs: tuple[Config, ...]) -> None:
    assert len(set(typed(configs))) == len(configs)
    for config in configs:
        assert list(config) == list(space.dimensions)
        assert {type(value) for value in config.values()} <= {bool, int, float, str}
        space.encode(config)


# Coordinates


@patient
@given(spaces, st.data())
def test_decoding_undoes_encoding(space: Space, data: st.DataObject) -> None:
    config = {name: data.draw(member(d)) for name, d in space.dimensions.items()}
    point = space.encode(config)
    assert point.shape == (len(config),)
    assert ((point >= 0) & (point <= 1)).all()
    back = space.decode(point)
    for name, dimension in space.dimensions.items():
        found, expected = back[name], config[name]
        if isinstance(dimension, Float):
            assert isinstance(found, float)
            assert isinstance(expected, float)
            assert dimension.low <= found <= dimension.high
            size = max(abs(dimension.low), abs(dimension.high))
            slack = 1e-11 * (expected if dimension.log else size) + 1e-322
            assert abs(found - expected) <= slack
        else:
            assert (type(found), found) == (type(expected), expected)


@patient
@given(spaces, st.data())
def test_every_point_stands_for_a_member(space: Space, data: st.DataObject) -> None:
    size = len(space.dimensions)
    point = data.draw(st.lists(st.floats(allow_nan=False), min_size=size, max_size=size))
    assert_distinct_plain_members(space, (space.decode(point),))
    assert space.decode(point) == space.decode(np.clip(point, 0, 1))


@patient
@given(small_ints | choices, st.floats(0, 1))
def test_decoding_finds_the_nearest_member(dimension: Int | Choice, coordinate: float) -> None:
    distances = [abs(dimension.encode(value) - coordinate) for value in dimension.values]
    found = abs(dimension.encode(dimension.decode(coordinate)) - coordinate)
    assert found == pytest.approx(min(distances), abs=1e-12)


@patient
@given(spaces, st.data())
def test_nearest_is_what_decoding_and_encoding_give(space: Space, data: st.DataObject) -> None:
    size = len(space.dimensions)
    rows = data.draw(st.lists(st.lists(st.floats(-1, 2), min_size=size, max_size=size), min_size=1))
    found = space.nearest(rows)
    for row, point in zip(rows, found, strict=True):
        inside = np.clip(row, 0, 1)
        one_by_one = space.encode(space.decode(row))
        assert np.abs(point - inside) == pytest.approx(np.abs(one_by_one - inside), abs=1e-9)
        np.testing.assert_allclose(space.encode(space.decode(point)), point, atol=1e-9)


def test_the_nearest_integer_is_nearest_on_the_scale_of_the_dimension() -> None:
    assert [Int(1, 2, log=True).decode(x) for x in (0.45, 0.55)] == [1, 2]
    assert 2**0.55 < 1.5, "on the linear scale 1 would be nearer"


def test_coordinates_follow_the_scale_of_each_dimension() -> None:
    config: Config = {
        "learning_rate": 0.01,
        "momentum": 0.45,
        "layers": 2,
        "width": 64,
        "optimizer": "adam",
    }
    assert SPACE.encode(config) == pytest.approx([0.5, 0.5, 0.5, 0.5, 1.0])


def test_a_dimension_of_one_value_lies_at_zero() -> None:
    space = Space({"a": Float(2.0, 2.0), "b": Int(3, 3, log=True), "c": Choice(["only"])})
    assert space.encode({"a": 2.0, "b": 3, "c": "only"}).tolist() == [0.0, 0.0, 0.0]
    assert space.decode([0.7, 0.7, 0.7]) == {"a": 2.0, "b": 3, "c": "only"}
    assert space.size == 1


def test_options_that_python_calls_equal_stay_apart() -> None:
    space = Space({"flag": Choice([True, 1, 1.0, "1"])})
    found = [space.decode(space.encode({"flag": v}))["flag"] for v in (True, 1, 1.0, "1")]
    assert [type(value) for value in found] == [bool, int, float, str]
    assert len(space.candidates(4, "random")) == 4
    assert Choice([1]) != Choice([True])
    assert Choice([1]) == Choice((1,))
    assert hash(Choice([1])) == hash(Choice((1,)))


def test_numpy_scalars_become_plain_values() -> None:
    levels = Choice(list(np.array([0.1, 0.2])))
    space = Space({"a": Float(np.float64(0), np.float64(1)), "b": levels})
    assert [type(option) for option in levels.options] == [float, float]
    assert space.encode({"a": np.float64(0.5), "b": np.float64(0.2)}).tolist() == [0.5, 1.0]
    assert json.loads(json.dumps(space.to_json())) == space.to_json()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layers": 4}, "layers: found 4; allowed is a whole number from 1 to 3"),
        ({"layers": 2.0}, "layers: found 2.0; allowed is a whole number"),
        ({"layers": True}, "layers: found True; allowed is a whole number"),
        ({"momentum": math.nan}, "momentum: found nan; allowed is a number from 0.0 to 0.9"),
        ({"momentum": "0.5"}, "momentum: found '0.5'; allowed is a number"),
        ({"optimizer": "lion"}, "optimizer: found 'lion'; allowed is one of 'sgd', 'adam'"),
        ({"dropout": 0.5}, "dropout is unknown; allowed are learning_rate, momentum, layers"),
    ],
)
def test_a_stranger_is_refused_by_name(change: Config, reason: str) -> None:
    config = SPACE.decode([0.5] * 5) | change
    with pytest.raises(ValueError, match=reason):
        SPACE.encode(config)


def test_a_missing_value_is_refused_by_name() -> None:
    config = SPACE.decode([0.5] * 5)
    del config["layers"]
    with pytest.raises(ValueError, match="layers is missing; allowed are learning_rate"):
        SPACE.encode(config)


@pytest.mark.parametrize("point", [[0.5] * 4, [[0.5] * 5], [0.5, 0.5, 0.5, 0.5, math.nan]])
def test_a_point_of_another_shape_is_refused(point: list[float]) -> None:
    with pytest.raises(ValueError, match=r"point is .*; allowed are 5 numbers, for learning_rate"):
        SPACE.decode(point)


# Candidates


@patient
@given(
    roomy_spaces, st.integers(1, 70), st.sampled_from(["sobol", "random"]), st.integers(0, 2**32)
)
def test_candidates_are_as_many_as_asked_and_distinct(
    space: Space, count: int, sampling: str, seed: int
) -> None:
    found = space.candidates(count, sampling, np.random.default_rng(seed))
    assert len(found) == count
    assert_distinct_plain_members(space, found)
    assert found == space.candidates(count, sampling, np.random.default_rng(seed))


@patient
@given(finite_spaces, st.sampled_from(["sobol", "random"]), st.data())
def test_a_finite_space_can_be_used_up(space: Space, sampling: str, data: st.DataObject) -> None:
    assert space.size is not None
    count = data.draw(st.integers(max(1, space.size - 3), space.size))
    found = space.candidates(count, sampling)
    assert len(found) == count
    assert_distinct_plain_members(space, found)


@pytest.mark.parametrize("sampling", ["sobol", "random"])
@pytest.mark.parametrize("high", [40, 10_000])
def test_rare_members_are_listed_when_points_no_longer_find_any(
    sampling: str, high: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.space._BATCHES", 0)
    space = Space({"rounds": Int(1, high), "cohort": Choice([10, 20])})
    found = space.candidates(60, sampling, np.random.default_rng(3))
    assert len(found) == 60
    assert_distinct_plain_members(space, found)
    assert found == space.candidates(60, sampling, np.random.default_rng(3))


def test_different_seeds_give_different_candidates() -> None:
    for sampling in ("sobol", "random"):
        first, second = (SPACE.candidates(8, sampling, np.random.default_rng(s)) for s in (1, 2))
        assert first != second


def test_sobol_candidates_are_balanced() -> None:
    """Of 2**m scrambled Sobol points, as many fall into each of 2**k cells of an axis."""
    found = SPACE.candidates(64, rng=np.random.default_rng(5))
    assert Counter(config["optimizer"] for config in found) == {"sgd": 32, "adam": 32}
    rates = [SPACE.encode(config)[0] for config in found]
    assert np.histogram(rates, bins=8, range=(0, 1))[0].tolist() == [8] * 8


@pytest.mark.parametrize(
    ("dimension", "share"),
    [
        (Int(1, 4), lambda _: 1 / 4),
        (Choice(["a", "b", "c"]), lambda _: 1 / 3),
        (Int(1, 6, log=True), lambda n: math.log((n + 0.5) / (n - 0.5)) / math.log(6.5 / 0.5)),
    ],
    ids=["int", "choice", "logarithmic int"],
)
def test_members_have_their_share_of_the_probability(dimension: Dimension, share: object) -> None:
    assert callable(share)
    steps = 6000
    found = Counter(dimension.quantile((step + 0.5) / steps) for step in range(steps))
    assert dimension.values is not None
    for value in dimension.values:
        assert found[value] / steps == pytest.approx(share(value), abs=2 / steps)


def test_magnitudes_of_a_logarithmic_float_are_equally_likely() -> None:
    dimension = Float(1e-4, 1.0, log=True)
    assert [dimension.quantile(p) for p in (0.0, 0.25, 0.5, 1.0)] == [1e-4, 1e-3, 1e-2, 1.0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_space_smaller_than_the_count_is_given_whole(sampling: str) -> None:
    space = Space({"layers": Int(1, 3), "optimizer": Choice(["sgd", "adam"])})
    assert space.size == space.count(7, sampling) == 6
    found = space.candidates(7, sampling)
    assert len(found) == 6
    assert_distinct_plain_members(space, found)


def test_bounds_with_hardly_a_float_between_them_are_refused() -> None:
    space = Space({"rate": Float(1.0, math.nextafter(1.0, 2.0))})
    assert space.size is None
    for sampling in ("sobol", "random"):
        with pytest.raises(ValueError, match=r"count is 3, but only [12] distinct .* widen"):
            space.candidates(3, sampling)
    assert len(space.candidates(3, "grid")) == 2


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "4"])
def test_a_count_that_is_no_whole_number_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=r"count is .*; allowed is a whole number of at least 1"):
        SPACE.candidates(count)


def test_an_unknown_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match="sampling is 'halton'; allowed are sobol, random, grid"):
        SPACE.candidates(4, "halton")


# Grids


@patient
@given(finite_spaces | roomy_spaces, st.integers(1, 300))
def test_a_grid_fits_and_wastes_little(space: Space, count: int) -> None:
    fewest = math.prod(len(d.options) for d in space.dimensions.values() if isinstance(d, Choice))
    if fewest > count:
        with pytest.raises(ValueError, match=f"count is {count}, but a grid .* least {fewest},"):
            space.candidates(count, "grid")
        return
    found = space.candidates(count, "grid")
    assert len(found) <= count
    assert_distinct_plain_members(space, found)
    assert len(found) == space.size or 2 * len(found) > count


@patient
@given(finite_spaces)
def test_a_grid_of_a_finite_space_is_all_of_it(space: Space) -> None:
    assert space.size is not None
    assert len(space.candidates(space.size + 5, "grid")) == space.size


@pytest.mark.parametrize(
    ("count", "levels"),
    [(1, (1, 1)), (3, (2, 1)), (4, (2, 2)), (8, (3, 2)), (9, (3, 3)), (11, (3, 3)), (12, (4, 3))],
)
def test_grid_levels_are_equal_and_the_first_axes_get_one_more(
    count: int, levels: tuple[int, int]
) -> None:
    space = Space({"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)})
    found = space.candidates(count, "grid")
    assert (len({c["a"] for c in found}), len({c["b"] for c in found})) == levels


def test_a_grid_is_in_lexicographic_order_and_includes_both_ends() -> None:
    space = Space({"c": Choice(["y", "x"]), "rate": Float(0.01, 1.0, log=True)})
    assert [tuple(config.values()) for config in space.candidates(7, "grid")] == [
        ("y", 0.01),
        ("y", 0.1),
        ("y", 1.0),
        ("x", 0.01),
        ("x", 0.1),
        ("x", 1.0),
    ]


def test_what_a_small_axis_cannot_take_goes_to_the_others() -> None:
    space = Space({"layers": Int(1, 2), "rate": Float(0.0, 1.0)})
    found = space.candidates(10, "grid")
    assert [config["rate"] for config in found[:5]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(found) == 10


@patient
@given(small_ints | all_ints, st.data())
def test_integer_levels_are_distinct_from_bound_to_bound(dim: Int, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 20)) if dim.low < dim.high else 1
    count = min(count, len(dim.values))
    levels = list(dim.levels(count))
    assert len(levels) == count
    assert levels == sorted(set(levels))
    assert count == 1 or (levels[0], levels[-1]) == (dim.low, dim.high)


def test_a_single_level_lies_in_the_middle() -> None:
    space = Space({"a": Float(0.01, 1.0, log=True), "b": Int(1, 3), "c": Choice([1, 2])})
    assert space.candidates(2, "grid") == ({"a": 0.1, "b": 2, "c": 1}, {"a": 0.1, "b": 2, "c": 2})


# JSON and TOML


@patient
@given(spaces)
def test_json_gives_the_space_back(space: Space) -> None:
    back = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert back == space
    assert list(back.dimensions) == list(space.dimensions)


def test_a_space_can_be_written_in_toml() -> None:
    text = """
    learning_rate = { low = 1e-4, high = 1, log = true }
    momentum = { low = 0, high = 0.9 }
    layers = { low = 1, high = 3, int = true }
    width = { low = 8, high = 512, int = true, log = true }
    optimizer = { choices = ["sgd", "adam"] }
    """
    assert Space.from_json(tomllib.loads(text)) == SPACE


def test_whole_bounds_are_a_float_unless_said_otherwise() -> None:
    space = Space.from_json({"rate": {"low": 0, "high": 1}})
    assert space.dimensions["rate"] == Float(0.0, 1.0)
    assert space.to_json() == {"rate": {"low": 0.0, "high": 1.0}}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"low": 0.0, "high": 1, "log": True}, "low is 0.0 on a log.*allowed is a number above 0"),
        ({"low": 2, "high": 1}, "low is 2.0; allowed is a number up to high, 1.0"),
        ({"low": True, "high": 1}, "low is True; allowed is a number from"),
        ({"low": "0", "high": 1}, "low is '0'; allowed is a number from"),
        ({"low": 0, "high": math.inf}, "high is inf; allowed is a number from"),
        ({"low": -1.7e308, "high": 1}, r"low is -1.7e\+308; allowed is a number from -1e\+300 to"),
        ({"low": math.nan, "high": 1}, "low is nan; allowed is a number from"),
        ({"low": 0, "high": 10**400}, "high is 10+; allowed is a number from"),
        ({"low": 0, "high": 1, "log": 1}, "log is 1; allowed is true or false"),
        ({"low": 1, "high": 2, "int": "yes"}, "int is 'yes'; allowed is true or false"),
        ({"low": 1, "high": 2.5, "int": True}, "high is 2.5; allowed is a whole number from"),
        ({"low": 0, "high": 2**41, "int": True}, "high is 2199023255552; allowed is a whole"),
        ({"low": 0, "high": 9, "int": True, "log": True}, "low is 0 on a log.*whole number above"),
        ({"low": 0}, "high is missing; allowed are low and high together"),
        ({}, "low is missing; allowed are low and high together"),
        ({"low": 0, "high": 1, "step": 0.1}, "step is 0.1; allowed keys are .*low, high, log, int"),
        ({"choices": [1], "low": 0}, "low is 0; allowed keys are only choices"),
        ({"choices": []}, r"choices is \[\]; allowed is a list of at least one"),
        ({"choices": "sgd"}, "choices is 'sgd'; allowed is a list"),
        ({"choices": ["sgd", "sgd"]}, "choices has 'sgd' twice; allowed are distinct"),
        ({"choices": [1, [2]]}, r"choices has \[2\]; allowed are bool, str, int and finite float"),
        ({"choices": [math.nan]}, "choices has nan; allowed are .* finite float"),
        (["sgd", "adam"], r"found .*; allowed is a table: .*choices = \['sgd', 'adam'\] }"),
        (3, r"found 3; allowed is a table: write { low = .., high = .. } or { choices"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_name(entry: object, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^knob: {reason}"):
        Space.from_json({"fine": {"choices": [1]}, "knob": entry})


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ([1], r"space is \[1\]; allowed is a table"),
        ({}, "dimensions is {}; allowed is a mapping of at least one"),
        ({"": {"choices": [1]}}, "a dimension is named ''; allowed is a non-empty string"),
    ],
)
def test_a_wrong_table_is_refused(table: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Space.from_json(table)


# Optuna


@patient
@given(spaces)
def test_optuna_gives_the_space_back_or_is_refused_for_equal_options(space: Space) -> None:
    options = [d.options for d in space.dimensions.values() if isinstance(d, Choice)]
    if any(len(set(group)) < len(group) for group in options):
        with pytest.raises(ValueError, match="options that differ in more than type"):
            space.to_optuna()
    else:
        assert Space.from_optuna(space.to_optuna()) == space


def test_distributions_of_optuna_come_back_as_they_were() -> None:
    distributions: dict[str, BaseDistribution] = {
        "learning_rate": FloatDistribution(1e-4, 1.0, log=True),
        "momentum": FloatDistribution(0.0, 0.9),
        "layers": IntDistribution(1, 3),
        "width": IntDistribution(8, 512, log=True),
        "optimizer": CategoricalDistribution(["sgd", "adam"]),
    }
    assert Space.from_optuna(distributions) == SPACE
    assert SPACE.to_optuna() == distributions


def test_optuna_accepts_our_candidates_as_trials() -> None:
    distributions = SPACE.to_optuna()
    for config in SPACE.candidates(16):
        trial = optuna.trial.create_trial(params=config, distributions=distributions, value=0.0)
        assert trial.params == config


@pytest.mark.parametrize(
    ("distribution", "reason"),
    [
        (FloatDistribution(0.0, 1.0, step=0.25), "found .*step=0.25.*; allowed .*no steps"),
        (IntDistribution(0, 10, step=5), "found .*step=5.*; allowed .*no steps"),
        (CategoricalDistribution(["sgd", None]), "choices has None; allowed are bool, str"),
        (IntDistribution(0, 2**60), "high is 1152921504606846976; allowed is a whole number"),
        (FloatDistribution(0.0, math.inf), "high is inf; allowed is a number"),
        ("uniform", "found 'uniform'; allowed are CategoricalDistribution"),
    ],
)
def test_what_a_space_cannot_say_is_refused(distribution: BaseDistribution, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^knob: {reason}"):
        Space.from_optuna({"knob": distribution})


def test_without_optuna_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for convert in (SPACE.to_optuna, lambda: Space.from_optuna({})):
        with pytest.raises(
            ImportError, match=r"install optuna, e.g. pip install 'tacit\[optuna\]'"
        ):
            convert()


# Spaces


def test_a_space_does_not_change_with_the_mapping_it_came_from() -> None:
    dimensions: dict[str, Dimension] = {"layers": Int(1, 3)}
    space = as_space(dimensions)
    dimensions["rate"] = Float(0.0, 1.0)
    assert list(space.dimensions) == ["layers"]
    assert as_space(space) is space


@pytest.mark.parametrize("dimension", [[1, 2], (0.0, 1.0), None, {"low": 0, "high": 1}])
def test_only_dimensions_make_a_space(dimension: Dimension) -> None:
    with pytest.raises(ValueError, match=r"layers: found .*; allowed is a Float, Int or Choice"):
        Space({"layers": dimension})


def test_importing_loads_neither_scipy_stats_nor_optuna() -> None:
    script = "import sys, tacit.space; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "tacit.space" in loaded
    assert not {"scipy.stats", "optuna"} & set(loaded)
