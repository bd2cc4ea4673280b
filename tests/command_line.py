"""The command line as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.forked import forked


def tacit(
    *arguments: object, folder: Path | None = None, **environment: str
) -> CompletedProcess[str]:
    return forked(_tacit, [*map(str, arguments)], folder, {**os.environ, **environment})


def _tacit(arguments: Sequence[str]) -> None:
    from tacit.cli import main

    sys.argv = ["tacit", *arguments]
    main()


def document(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def refusal(done: CompletedProcess[str]) -> str:
    """The one sentence of a command that was refused."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())
