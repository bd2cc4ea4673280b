"""Keys of plans: what is allowed for each, and how files and ``key=value`` changes are read.

An error names the key, the value found and what is allowed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, TypeVar

from tacit.privacy.mechanisms import SOME_CLIENTS, SomeClients, some_clients

Section = TypeVar("Section")
_MOST = 2**20
"""Bytes of a plan."""


def one_of(default: str, options: Sequence[str]) -> Any:
    """A word out of some."""
    allowed = " or ".join(repr(option) for option in options)
    metadata = {"ok": lambda v: v in options, "allowed": allowed, "words": tuple(options)}
    return field(default=default, metadata=metadata)


def allowed_words(entry: Field[Any]) -> tuple[str, ...]:
    """The words that a key allows, if it takes one of some."""
    if isinstance(entry.default, bool):
        return ("true", "false")
    words: tuple[str, ...] = entry.metadata.get("words", ())
    return words


def whole(default: int, least: int, most: int) -> Any:
    """A whole number between two others."""
    allowed = f"a whole number from {least} to {most}"
    return field(default=default, metadata={"ok": lambda v: least <= v <= most, "allowed": allowed})


def number(default: float, least: float, most: float, also: str = "") -> Any:
    """A number between two others."""

    def ok(value: float) -> bool:
        return least <= value <= most or (bool(also) and value == math.inf)

    allowed = f"a number from {least:g} to {most:g}{also}"
    return field(default=default, metadata={"ok": ok, "allowed": allowed})


def some_of_the_clients(default: SomeClients) -> Any:
    """A count of clients or a fraction of them, kept as it was written."""

    def ok(value: SomeClients) -> bool:
        try:
            some_clients("", value)
        except ValueError:
            return False
        return True

    types = (int, float, str)
    return field(default=default, metadata={"ok": ok, "allowed": SOME_CLIENTS, "types": types})


def widths(default: tuple[int, ...]) -> Any:
    """A list of layers' widths."""

    def ok(value: tuple[int, ...]) -> bool:
        return all(type(width) is int and 1 <= width <= 4096 for width in value)

    allowed = "a list of whole numbers from 1 to 4096"
    return field(default=default, metadata={"ok": ok, "allowed": allowed})


def text(default: str, allowed: str) -> Any:
    """Any text."""
    return field(default=default, metadata={"ok": lambda _value: True, "allowed": allowed})


def flag(default: bool) -> Any:
    """True or false."""
    return field(default=default, metadata={"ok": lambda _value: True, "allowed": "true or false"})


def flag_or(word: str) -> Any:
    """True, false, or a word that leaves it to us, which is the default."""
    return field(
        default=word,
        metadata={
            "ok": lambda v: v in (True, False, word),
            "allowed": f"true, false or {word!r}",
            "types": (bool, str),
            "words": (word, "true", "false"),
        },
    )


def read_table(path: Path) -> dict[str, Any]:
    """What a TOML file holds."""
    try:
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has {path.stat().st_size} bytes; allowed are {_MOST}")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is not a TOML file: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def with_value(table: Mapping[str, Any], names: Sequence[str], value: Any) -> dict[str, Any]:
    """A table with one value changed, by the names of the tables it lies in and its own."""
    first, *rest = names
    if not rest:
        return {**table, first: value}
    inner = table.get(first, {})
    return {**table, first: with_value(inner if isinstance(inner, Mapping) else {}, rest, value)}


def _value(text: str) -> Any:
    """A TOML value; what is none, like a bare word, is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_section(name: str, section: type[Section], table: Mapping[str, Any]) -> Section:
    """One section of a table, every key checked; what is left out has its default."""
    known = {entry.name: entry for entry in fields(section)}  # type: ignore[arg-type]
    values = table.get(name, {})
    for key in values:
        if key not in known:
            raise ValueError(f"{name}.{key} is not a key; allowed are {', '.join(known)}")
    return section(**{key: _checked(name, known[key], value) for key, value in values.items()})


def _checked(section: str, entry: Field[Any], value: Any) -> Any:
    found, types = value, entry.metadata.get("types", (type(entry.default),))
    if type(value) is int and int not in types and float in types:
        found = float(value)
    if isinstance(entry.default, tuple) and isinstance(value, list):
        found = tuple(value)
    if type(found) not in types or not entry.metadata["ok"](found):
        raise ValueError(
            f"{section}.{entry.name} is {value!r}; allowed is {entry.metadata['allowed']}"
        )
    return found


def changed_table(table: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A table with ``section.key=value`` changes."""
    table = dict(table)
    for change in changes:
        key, separator, text = change.partition("=")
        names = key.strip().split(".")
        if not separator or len(names) < 2 or not all(names):
            raise ValueError(f"--set {change!r}; allowed is section.key=value")
        table = with_value(table, names, _value(text.strip()))
    return table
