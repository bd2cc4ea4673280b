"""The space of configurations: what may be tuned, and which candidates to try.

A space is a set of named, independent dimensions, as in Optuna: :class:`Float` is its
``FloatDistribution``, :class:`Int` its ``IntDistribution``, :class:`Choice` its
``CategoricalDistribution``, and a space converts from and to a dictionary of those. We differ in
three ways: there are no steps (write them as choices), no conditional dimensions, and no ``None``
among the choices, so that every space can be written in TOML. Optuna is needed only to convert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, product
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FloatArray = npt.NDArray[np.float64]
Value = bool | int | float | str
Config = dict[str, Value]
_Entry = TypeVar("_Entry")
_Converted = TypeVar("_Converted")

SAMPLINGS = ("sobol", "random", "grid")

_BATCHES = 8
"""How often ``count`` points are drawn, where duplicates need it, before the rest is listed."""


@dataclass(frozen=True)
class _Range:
    """Numbers between two bounds; a subclass says which."""

    low: float
    high: float
    log: bool = False
    kind: ClassVar[type[float]]
    noun: ClassVar[str]
    largest: ClassVar[float]

    def __post_init__(self) -> None:
        for bound in ("low", "high"):
            found = _plain(getattr(self, bound))
            if type(found) not in (int, self.kind) or not -self.largest <= found <= self.largest:
                allowed = f"{self.noun} from {-self.largest} to {self.largest}"
                raise ValueError(f"{bound} is {found!r}; allowed is {allowed}")
            object.__setattr__(self, bound, self.kind(found))
        if type(self.log) is not bool:
            raise ValueError(f"log is {self.log!r}; allowed is true or false")
        if self.low > self.high:
            raise ValueError(f"low is {self.low}; allowed is {self.noun} up to high, {self.high}")
        if self.log and self.low <= 0:
            allowed = f"{self.noun} above 0"
            raise ValueError(f"low is {self.low} on a logarithmic scale; allowed is {allowed}")

    def encode(self, value: Any) -> float:
        """Where a member lies between the bounds, from 0 to 1."""
        if type(value) not in (int, self.kind) or not self.low <= value <= self.high:
            allowed = f"{self.noun} from {self.low} to {self.high}"
            raise ValueError(f"found {value!r}; allowed is {allowed}")
        scale: Callable[[float], float] = math.log10 if self.log else float
        low, here, high = scale(self.low), scale(value), scale(self.high)
        return 0.0 if low == high else (here - low) / (high - low)

    def positions(self, column: FloatArray) -> FloatArray:
        """The numbers at some coordinates, members or not."""
        low, high = (math.log10(b) if self.log else float(b) for b in (self.low, self.high))
        inside = np.clip(low + np.clip(column, 0.0, 1.0) * (high - low), low, high)
        return np.asarray(10.0**inside if self.log else inside, dtype=np.float64)

    def coordinates(self, numbers: FloatArray) -> FloatArray:
        """What :meth:`encode` says of each of some members."""
        low, high = (math.log10(b) if self.log else float(b) for b in (self.low, self.high))
        here = np.log10(numbers) if self.log else numbers
        return np.zeros(len(here)) if low == high else (here - low) / (high - low)


@dataclass(frozen=True)
class Float(_Range):
    """A number from ``low`` to ``high``, uniform or, with ``log``, uniform in its logarithm.

    >>> Float(1e-4, 1.0, log=True).decode(0.5)
    0.01
    >>> Float(0.0, 1.0, log=True)
    Traceback (most recent call last):
        ...
    ValueError: low is 0.0 on a logarithmic scale; allowed is a number above 0
    """

    kind = float
    noun = "a number"
    largest = 1e300  # the difference of two bounds must not overflow

    @property
    def values(self) -> Sequence[float] | None:
        """All members, or None if they cannot be listed."""
        return (self.low,) if self.low == self.high else None

    def decode(self, coordinate: float) -> float:
        """The member nearest to a coordinate."""
        return _between(self.low, self.high, self.log, coordinate)

    def nearest(self, column: FloatArray) -> FloatArray:
        """The coordinates of the members nearest to some coordinates, all at once."""
        return np.clip(column, 0.0, 1.0) if self.low < self.high else np.zeros(len(column))

    def quantile(self, probability: float) -> float:
        """The member below which this much of the probability lies."""
        return self.decode(probability)

    def levels(self, count: int) -> Sequence[float]:
        """Members evenly spaced from bound to bound; a single one lies in the middle."""
        return list(dict.fromkeys(map(self.decode, _evenly(count))))


@dataclass(frozen=True)
class Int(_Range):
    """A whole number from ``low`` to ``high``, both included, all equally likely.

    With ``log``, a member is as likely as the unit around it is long in the logarithm.

    >>> Int(1, 100, log=True).levels(5)
    [1, 3, 10, 32, 100]
    """

    low: int
    high: int
    kind = int
    noun = "a whole number"
    largest = 2**40  # coordinates, also logarithmic ones, must tell neighbours apart

    @property
    def values(self) -> Sequence[int]:
        return range(self.low, self.high + 1)

    def decode(self, coordinate: float) -> int:
        position = _between(self.low, self.high, self.log, coordinate)
        neighbours = math.floor(position), math.ceil(position)
        return min(neighbours, key=lambda value: abs(self.encode(value) - coordinate))

    def nearest(self, column: FloatArray) -> FloatArray:
        position = self.positions(column)
        below, above = (
            self.coordinates(np.clip(rounded(position), self.low, self.high))
            for rounded in (np.floor, np.ceil)
        )
        return np.where(np.abs(below - column) <= np.abs(above - column), below, above)

    def quantile(self, probability: float) -> int:
        position = _between(self.low - 0.5, self.high + 0.5, self.log, probability)
        return min(max(math.floor(position + 0.5), self.low), self.high)

    def levels(self, count: int) -> Sequence[int]:
        levels = [self.low - 1]
        for index, coordinate in enumerate(_evenly(count), start=1):
            # In the logarithm, several coordinates can be nearest to the same small number.
            least, most = levels[-1] + 1, self.high - (count - index)
            levels.append(min(max(self.decode(coordinate), least), most))
        return levels[1:]


@dataclass(frozen=True)
class Choice:
    """One of a few options. Options of different type differ, also where Python has 1 == True.

    >>> Choice(["sgd", "adam"]).options
    ('sgd', 'adam')
    >>> Choice([1, True]) == Choice([1, 1.0])
    False
    >>> Choice(["sgd", None])
    Traceback (most recent call last):
        ...
    ValueError: choices has None; allowed are bool, str, int and finite float
    """

    options: Sequence[Value]

    def __post_init__(self) -> None:
        if not isinstance(self.options, list | tuple) or not self.options:
            raise ValueError(f"choices is {self.options!r}; allowed is a list of at least one")
        options = tuple(map(_plain, self.options))
        for option in options:
            finite = type(option) is not float or math.isfinite(option)
            if type(option) not in (bool, str, int, float) or not finite:
                allowed = "bool, str, int and finite float"
                raise ValueError(f"choices has {option!r}; allowed are {allowed}")
            if _typed(options).count((type(option), option)) > 1:
                raise ValueError(f"choices has {option!r} twice; allowed are distinct ones")
        object.__setattr__(self, "options", options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and _typed(self.options) == _typed(other.options)

    @property
    def values(self) -> Sequence[Value]:
        return self.options

    def encode(self, value: Any) -> float:
        if (type(value), value) not in _typed(self.options):
            allowed = ", ".join(map(repr, self.options))
            raise ValueError(f"found {value!r}; allowed is one of {allowed}")
        return _typed(self.options).index((type(value), value)) / max(len(self.options) - 1, 1)

    def decode(self, coordinate: float) -> Value:
        return self.options[round(min(max(coordinate, 0.0), 1.0) * (len(self.options) - 1))]

    def nearest(self, column: FloatArray) -> FloatArray:
        last = max(len(self.options) - 1, 1)
        return np.rint(np.clip(column, 0.0, 1.0) * (len(self.options) - 1)) / last

    def quantile(self, probability: float) -> Value:
        return self.options[min(int(probability * len(self.options)), len(self.options) - 1)]

    def levels(self, count: int) -> Sequence[Value]:
        return self.options[:count]


Dimension = Float | Int | Choice


@dataclass(frozen=True)
class Space:
    """Named dimensions, in the order of the coordinates.

    >>> space = Space({"rate": Float(1e-3, 1.0, log=True), "optimizer": Choice(["sgd", "adam"])})
    >>> space.candidates(4, "grid")[1:3]
    ({'rate': 0.001, 'optimizer': 'adam'}, {'rate': 1.0, 'optimizer': 'sgd'})
    >>> space.encode({"rate": 1.0, "optimizer": "sgd"}).tolist()
    [1.0, 0.0]
    >>> space.encode({"rate": 2.0, "optimizer": "sgd"})
    Traceback (most recent call last):
        ...
    ValueError: rate: found 2.0; allowed is a number from 0.001 to 1.0
    """

    dimensions: Mapping[str, Dimension]

    def __post_init__(self) -> None:
        if not isinstance(self.dimensions, Mapping) or not self.dimensions:
            allowed = "a mapping of at least one name to its Float, Int or Choice"
            raise ValueError(f"dimensions is {self.dimensions!r}; allowed is {allowed}")
        for name, dimension in self.dimensions.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"a dimension is named {name!r}; allowed is a non-empty string")
            if not isinstance(dimension, Dimension):
                raise ValueError(f"{name}: found {dimension!r}; allowed is a Float, Int or Choice")
        object.__setattr__(self, "dimensions", dict(self.dimensions))

    @property
    def size(self) -> int | None:
        """How many configurations there are, or None if a continuous dimension is among them."""
        return None if (values := self._values()) is None else math.prod(map(len, values))

    def count(self, most: int, sampling: str) -> int:
        """How many candidates there will be: a grid, or a small space, may have fewer."""
        if sampling == "grid":
            return math.prod(map(len, self._levels(most)))
        return most if self.size is None else min(most, self.size)

    def candidates(
        self, count: int, sampling: str = "sobol", rng: np.random.Generator | None = None
    ) -> tuple[Config, ...]:
        """Distinct configurations, spread over the space.

        Args:
            count: how many; fewer where the space has no more, or a grid does not fit exactly.
            sampling: ``"sobol"`` fills the space evenly (scrambled Sobol points), ``"random"``
                draws independently, ``"grid"`` crosses all choices with evenly spaced levels of
                the numbers, equally many each and one more on the first ones where that fits.
            rng: where chance comes from; the same seed gives the same candidates.
        """
        if type(count) is not int or count < 1:
            raise ValueError(f"count is {count!r}; allowed is a whole number of at least 1")
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling is {sampling!r}; allowed are {', '.join(SAMPLINGS)}")
        if sampling == "grid":
            return tuple(map(self._config, product(*self._levels(count))))
        count = self.count(count, sampling)
        rng = np.random.default_rng() if rng is None else rng
        found: dict[object, Config] = {}
        for config in chain(self._spread(count, sampling, rng), self._rest(count, rng)):
            found.setdefault(_typed(config.values()), config)
            if len(found) == count:
                return tuple(found.values())
        raise ValueError(
            f"count is {count}, but only {len(found)} distinct configurations were found between "
            "bounds this close; ask for fewer, or widen the bounds"
        )

    def encode(self, config: Mapping[str, Value]) -> FloatArray:
        """The point of the unit cube that stands for a configuration."""
        for name in [*config, *self.dimensions]:
            if name not in self.dimensions or name not in config:
                found = "missing" if name in self.dimensions else "unknown"
                raise ValueError(f"{name} is {found}; allowed are {', '.join(self.dimensions)}")
        pairs = {name: (axis, _plain(config[name])) for name, axis in self.dimensions.items()}
        point = _convert(pairs, lambda pair: pair[0].encode(pair[1]))
        return np.array(list(point.values()), dtype=np.float64)

    def decode(self, point: npt.ArrayLike) -> Config:
        """The configuration nearest to a point; a point outside the unit cube is moved into it."""
        coordinates = np.asarray(point, dtype=np.float64)
        if coordinates.shape != (len(self.dimensions),) or np.isnan(coordinates).any():
            allowed = f"{len(self.dimensions)} numbers, for {', '.join(self.dimensions)}"
            raise ValueError(f"point is {coordinates.tolist()}; allowed are {allowed}")
        pairs = zip(self.dimensions.values(), coordinates.tolist(), strict=True)
        return self._config(axis.decode(coordinate) for axis, coordinate in pairs)

    def nearest(self, points: npt.ArrayLike) -> FloatArray:
        """The points that stand for the configurations nearest to some points, all at once.

        >>> Space({"layers": Int(1, 3), "rate": Float(0.0, 1.0)}).nearest([[0.4, 0.4]]).tolist()
        [[0.5, 0.4]]
        """
        columns = np.asarray(points, dtype=np.float64).T
        axes = zip(self.dimensions.values(), columns, strict=True)
        return np.stack([axis.nearest(column) for axis, column in axes], axis=1)

    def to_json(self) -> dict[str, Any]:
        """The form of the space in JSON and TOML.

        >>> Space({"layers": Int(1, 3), "optimizer": Choice(["sgd", "adam"])}).to_json()
        {'layers': {'low': 1, 'high': 3, 'int': True}, 'optimizer': {'choices': ['sgd', 'adam']}}
        """
        return _convert(self.dimensions, _to_json)

    @classmethod
    def from_json(cls, table: Any) -> Space:
        """The space in the form of :meth:`to_json`; what it does not know, it refuses."""
        if not isinstance(table, Mapping):
            raise ValueError(f"space is {table!r}; allowed is a table of dimensions by name")
        return cls(_convert(table, _from_json))

    def to_optuna(self) -> dict[str, BaseDistribution]:
        """The same dimensions as Optuna's distributions."""
        return _convert(self.dimensions, partial(_to_optuna, _import_distributions()))

    @classmethod
    def from_optuna(cls, distributions: Mapping[str, BaseDistribution]) -> Space:
        """The space of these distributions of Optuna."""
        return cls(_convert(distributions, partial(_from_optuna, _import_distributions())))

    def _config(self, values: Iterable[Value]) -> Config:
        return dict(zip(self.dimensions, values, strict=True))

    def _values(self) -> list[Sequence[Value]] | None:
        values = [axis.values for axis in self.dimensions.values()]
        listed = [members for members in values if members is not None]
        return listed if len(listed) == len(values) else None

    def _levels(self, count: int) -> list[Sequence[Value]]:
        axes = list(self.dimensions.values())
        numbers = [len(axis.options) if isinstance(axis, Choice) else 1 for axis in axes]
        most = [count if axis.values is None else len(axis.values) for axis in axes]
        if math.prod(numbers) > count:
            raise ValueError(
                f"count is {count}, but a grid needs at least {math.prod(numbers)}, one for every "
                "combination of choices; raise count, or use sampling 'sobol' or 'random'"
            )
        for index in cycle(range(len(axes))):
            if numbers[index] < most[index]:
                if math.prod(numbers) // numbers[index] * (numbers[index] + 1) > count:
                    break
                numbers[index] += 1
            elif numbers == most:
                break
        return [axis.levels(number) for axis, number in zip(axes, numbers, strict=True)]

    def _spread(self, count: int, sampling: str, rng: np.random.Generator) -> Iterator[Config]:
        """Members at the points that ``sampling`` draws, duplicates included."""
        axes = list(self.dimensions.values())
        if sampling == "random":
            batches = (rng.random((count, len(axes))) for _ in range(_BATCHES))
        else:
            from scipy.stats import qmc

            engine = qmc.Sobol(len(axes), seed=rng)  # called `rng` only since SciPy 1.15
            power = 2 ** (count - 1).bit_length()  # SciPy warns of others: they are not balanced
            batches = (engine.random(power) for _ in range(_BATCHES))
        for point in chain.from_iterable(batch.tolist() for batch in batches):
            pairs = zip(axes, point, strict=True)
            yield self._config(axis.quantile(probability) for axis, probability in pairs)

    def _rest(self, count: int, rng: np.random.Generator) -> Iterator[Config]:
        """Members of a finite space, all in random order or, if it is large, drawn uniformly.

        Large is more than twice the count, so at least every second draw is a new member.
        """
        if (values := self._values()) is None:
            return
        if math.prod(map(len, values)) <= 2 * count:
            everything = list(product(*values))
            yield from (self._config(everything[i]) for i in rng.permutation(len(everything)))
        else:
            while True:
                yield self._config(members[int(rng.integers(len(members)))] for members in values)


def as_space(space: Space | Mapping[str, Dimension]) -> Space:
    """The space itself, or the space of these dimensions."""
    return space if isinstance(space, Space) else Space(space)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _typed(values: Iterable[object]) -> tuple[tuple[type, object], ...]:
    return tuple((type(value), value) for value in values)


def _between(low: float, high: float, log: bool, share: float) -> float:
    if not 0 < share < 1:
        return low if share <= 0 else high
    start, stop = (math.log10(low), math.log10(high)) if log else (low, high)
    value = start + (stop - start) * share
    return min(max(10**value if log else value, low), high)


def _evenly(count: int) -> list[float]:
    return [0.5] if count == 1 else [index / (count - 1) for index in range(count)]


def _convert(
    entries: Mapping[str, _Entry], convert: Callable[[_Entry], _Converted]
) -> dict[str, _Converted]:
    """Convert every entry; an error names the one it is about."""
    converted = {}
    for name, entry in entries.items():
        try:
            converted[name] = convert(entry)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return converted


def _to_json(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choice):
        return {"choices": list(dimension.options)}
    flags = {"log": dimension.log, "int": isinstance(dimension, Int)}
    raised = {name: True for name, flag in flags.items() if flag}
    return {"low": dimension.low, "high": dimension.high, **raised}


def _from_json(entry: Any) -> Dimension:
    if not isinstance(entry, Mapping):
        choices = f"{list(entry)}" if isinstance(entry, list | tuple) else "[..]"
        allowed = f"{{ low = .., high = .. }} or {{ choices = {choices} }}"
        raise ValueError(f"found {entry!r}; allowed is a table: write {allowed}")
    keys = ["choices"] if "choices" in entry else ["low", "high", "log", "int"]
    for key in entry:
        if key not in keys:
            raise ValueError(f"{key} is {entry[key]!r}; allowed keys are only {', '.join(keys)}")
    if "choices" in entry:
        return Choice(entry["choices"])
    for key in ("low", "high"):
        if key not in entry:
            raise ValueError(f"{key} is missing; allowed are low and high together, or choices")
    whole = entry.get("int", False)
    if type(whole) is not bool:
        raise ValueError(f"int is {whole!r}; allowed is true or false")
    return (Int if whole else Float)(entry["low"], entry["high"], entry.get("log", False))


def _import_distributions() -> Any:
    try:
        from optuna import distributions
    except ImportError as error:
        hint = "install optuna, e.g. pip install 'tacit[optuna]'"
        raise ImportError(f"optuna is missing; {hint}") from error
    return distributions


def _to_optuna(optuna: Any, dimension: Dimension) -> Any:
    if isinstance(dimension, Choice):
        if len(set(dimension.options)) < len(dimension.options):
            allowed = "options that differ in more than type, as Optuna has 1 == 1.0 == True"
            raise ValueError(f"choices is {list(dimension.options)}; allowed are {allowed}")
        return optuna.CategoricalDistribution(dimension.options)
    kind = optuna.IntDistribution if isinstance(dimension, Int) else optuna.FloatDistribution
    return kind(dimension.low, dimension.high, log=dimension.log)


def _from_optuna(optuna: Any, found: BaseDistribution) -> Dimension:
    match found:
        case optuna.CategoricalDistribution(choices=choices):
            return Choice(choices)
        case optuna.FloatDistribution(low=low, high=high, log=log, step=None):
            return Float(low, high, log)
        case optuna.IntDistribution(low=low, high=high, log=log, step=1):
            return Int(low, high, log)
    raise ValueError(
        f"found {found!r}; allowed are CategoricalDistribution, FloatDistribution with step None "
        "and IntDistribution with step 1: a space has no steps, write them as choices"
    )
