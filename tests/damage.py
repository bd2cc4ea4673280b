"""What may happen to a file, by accident or by an attacker; seeded."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.faults.mutations import in_arrays, in_journal

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**40,
    2**63,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "inf",
    "[/x]",
    "\\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    {"": None},
)
"""Values that somebody did not think of."""


def truncated(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def flipped(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 3, 20))):
        changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def inserted(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data) + 1)
    return data[:place] + dice.randbytes(dice.choice((1, 2, 100))) + data[place:]


def cut(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data))
    return data[:place] + data[place + dice.randrange(1, 50) :]


def doubled(data: bytes, _dice: random.Random) -> bytes:
    return data + data


def zeroed(data: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(data))
    return data[:place] + bytes(len(data) - place)


def empty(_data: bytes, _dice: random.Random) -> bytes:
    return b""


def other_encoding(data: bytes, dice: random.Random) -> bytes:
    text = data.decode("latin-1")
    return text.encode(dice.choice(("utf-16", "utf-32"))) if dice.random() < 0.7 else b"\xff" + data


def nested(data: bytes, dice: random.Random) -> bytes:
    return dice.choice((b"[", b'{"a":', b"x = [" + b"[")) * 100_000 + data[:10]


def swapped(data: bytes, dice: random.Random) -> bytes:
    """One value of a JSON document is another one; other files lose a line."""
    try:
        document = json.loads(data)
    except ValueError:
        lines = data.splitlines(keepends=True)
        lines[dice.randrange(len(lines))] = str(dice.choice(ODD)).encode("utf-8", "replace") + b"\n"
        return b"".join(lines)
    places = list(_places(document))
    if not places:
        return json.dumps(dice.choice(ODD)).encode()
    holder, key = dice.choice(places)
    if dice.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = dice.choice(ODD)
    return json.dumps(document).replace("\\\\ud800", "\\ud800").encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder of a value, and the value's key in it."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    return [(value, key) for key in keys] + [p for key in keys for p in _places(value[key])]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    truncated,
    flipped,
    inserted,
    cut,
    doubled,
    zeroed,
    empty,
    other_encoding,
    nested,
    swapped,
    swapped,
    swapped,
    swapped,
)


FITTING: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".jsonl": in_journal,
    ".npz": in_arrays,
}
"""Other values in a file whose checksums fit again."""


def damage(path: Path, seed: int) -> str:
    """Damage a file; what was done. In its place, the first seeds put a folder and a loop."""
    dice = random.Random(seed)
    if seed == 0 or dice.random() < 0.02:
        path.unlink()
        path.mkdir()
        return "folder"
    if seed == 1 or dice.random() < 0.02:
        path.unlink()
        path.symlink_to(path)
        return "loop"
    done = dice.choice(DAMAGES)
    if seed > 1 and seed % 2:  # every other seed, where there are checksums to fit
        done = FITTING.get(path.suffix, done)
    path.write_bytes(done(path.read_bytes(), dice))
    return done.__name__


def restore(whole: Path, path: Path) -> None:
    """Undo it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    shutil.copy2(whole, path)
