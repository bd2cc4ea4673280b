"""What fuzzing is aimed at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.faults.mutations import Mutation


@dataclass(frozen=True)
class Target:
    """Something that reads messages or files of one kind."""

    name: str
    bases: Sequence[bytes]
    """Valid ones."""
    mutations: Sequence[Mutation]
    attempt: Callable[[int, bytes, Path], str]
    """Reads an altered one, given which valid one it was and a folder; returns what is wrong."""
    allowed: tuple[type[Exception], ...]
    weight: int
