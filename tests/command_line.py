"""The command line as a user runs it: a process of its own."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
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


def in_process(*arguments: object, folder: Path) -> CompletedProcess[str]:
    """The same without a process: many commands in little time."""
    from tacit.cli import main

    out, err = io.StringIO(), io.StringIO()
    words, sys.argv = sys.argv, ["tacit", *map(str, arguments)]
    try:
        with chdir(folder), redirect_stdout(out), redirect_stderr(err):
            code = _ended(main)
    finally:
        sys.argv = words
    return CompletedProcess([*map(str, arguments)], code, out.getvalue(), err.getvalue())


def _ended(main: Callable[[], None]) -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


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
