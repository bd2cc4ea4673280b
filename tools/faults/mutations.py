"""What fuzzing does to messages and files: to their bytes, and to values in what they encode."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

import tacit
from tacit.journal import _seal as journal_seal

Mutation = Callable[[bytes, random.Random], bytes]

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
    0.0,
    -0.0,
    1e-300,
    5e-324,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "x" * 2000,
    "\x00",
    b"",
    b"x",
    bytes(32),
    bytes(64),
    [],
    [[]],
    {},
    {"": None},
    {0: b""},
)


def bytewise(data: bytes, chance: random.Random) -> bytes:
    """Bits flip, bytes are cut out, put in, doubled or replaced."""
    if not data:
        return chance.randbytes(chance.randrange(40))
    kind, place = chance.randrange(8), chance.randrange(len(data))
    some = chance.choice((1, 1, 2, 8, 32))
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + data[place + some :]
    if kind == 2:
        return data[:place] + chance.randbytes(some) + data[place:]
    if kind == 3:
        return data[:place] + data[place : place + some] * 2 + data[place + some :]
    if kind == 4:
        return chance.randbytes(chance.choice((0, 1, 16, len(data))))
    if kind == 5:
        return data + data[: chance.randrange(len(data) + 1)]
    changed = bytearray(data)
    for _ in range(some if kind == 6 else 1):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def in_msgpack(data: bytes, chance: random.Random) -> bytes:
    """A value is another one, of another type, gone or doubled; also within packed bytes."""
    try:
        return msgspec.msgpack.encode(_altered(msgspec.msgpack.decode(data), chance))
    except (msgspec.MsgspecError, RecursionError, TypeError, OverflowError, ValueError):
        return bytewise(data, chance)


def in_json(data: bytes, chance: random.Random) -> bytes:
    """The same in a document of JSON."""
    try:
        altered = _altered(json.loads(data), chance)
        return json.dumps(altered, default=lambda value: value.hex()).encode()
    except (RecursionError, TypeError, ValueError):
        return bytewise(data, chance)


def in_journal(data: bytes, chance: random.Random) -> bytes:
    """The same in what a piece of a journal came to, with a checksum that fits again."""
    *lines, rest = data.split(b"\n")
    place = chance.randrange(len(lines))
    piece, result, *_ = json.loads(lines[place])
    holder = _altered({"result": result}, chance)
    altered = holder.get("result") if isinstance(holder, dict) else holder
    told = json.dumps([piece, altered, tacit.__version__], default=lambda value: value.hex())
    begin = told[:-1].encode()
    lines[place] = begin + journal_seal(begin)
    return b"\n".join((*lines, rest))


def in_arrays(data: bytes, chance: random.Random) -> bytes:
    """An array of an npz file has other numbers, another shape or type, or another text."""
    with np.load(BytesIO(data)) as held:
        arrays = {name: held[name] for name in held.files}
    name = chance.choice(list(arrays))
    array, kind = arrays[name], chance.randrange(5)
    if array.dtype.kind == "U":
        altered = in_json(str(array).encode(), chance)
        arrays[name] = np.array(altered.decode("utf-8", "replace"))
    elif kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = array[: chance.randrange(4)] if chance.random() < 0.5 else array.reshape(-1)
    elif kind == 2:
        arrays[name] = array.astype(chance.choice(("U5", "i1", "c8", "b1", "f2", "f8", ">i8")))
    elif kind == 3:
        arrays[name] = np.zeros((0,) * array.ndim, array.dtype)
    else:
        odd = [one for one in ODD if isinstance(one, int | float)]
        arrays[name] = array.astype(np.float64)
        arrays[name].flat[chance.randrange(array.size)] = chance.choice(odd)
        with np.errstate(invalid="ignore"):
            arrays[name] = arrays[name].astype(array.dtype)
    made = BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


def in_lines(data: bytes, chance: random.Random) -> bytes:
    """A line is gone, doubled, moved, or its value is another one."""
    lines = data.splitlines(keepends=True) or [b""]
    place = chance.randrange(len(lines))
    line = lines.pop(place)
    kind = chance.randrange(4)
    if kind == 0:
        lines.insert(chance.randrange(len(lines) + 1), line)
    elif kind == 1:
        lines[place:place] = [line, line]
    elif kind == 2 and b"=" in line:
        value = json.dumps(chance.choice(ODD), default=lambda odd: odd.hex()).encode()
        lines.insert(place, line.partition(b"=")[0] + b"= " + value + b"\n")
    elif kind == 3:
        lines.insert(place, bytewise(line, chance))
    return b"".join(lines)


def _altered(value: Any, chance: random.Random) -> Any:
    places = list(_places(value))
    if not places or chance.random() < 0.02:
        return chance.choice(ODD)
    holder, key = chance.choice(places)
    found = holder[key]
    kind = chance.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, found)
    elif kind == 2 and isinstance(found, int | float):
        holder[key] = found + chance.choice((-1, 1, 0.5))
    elif kind in (3, 4) and isinstance(found, bytes):
        holder[key] = in_msgpack(found, chance) if kind == 3 else bytewise(found, chance)
    elif kind == 5 and isinstance(found, str):
        holder[key] = bytewise(found.encode(), chance).decode("utf-8", "replace")
    elif kind == 6:
        other, from_key = chance.choice(places)
        holder[key] = other[from_key] if not isinstance(other[from_key], list | dict) else []
    else:
        holder[key] = chance.choice(ODD)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder of a value, and the value's key in it."""
    if isinstance(value, dict):
        for key in list(value):
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield value, key
            yield from _places(inner)
