"""Commands as a user runs them, each in a process of its own, without loading libraries anew.

Loading torch, SciPy and dp-accounting takes seconds. A server process loads them once, does nothing
else, and forks: what it forks is as separate as a new process, with its own folder, environment,
output and exit code.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tacit.cli",
        "tacit.job",
        "dp_accounting.pld",
        "dp_accounting.rdp",
        "plotly.graph_objects",
        "pytest",
        "scipy.optimize",
        "scipy.stats",
        "sklearn.datasets",
        "torch",
    ]
)
Main = Callable[[Sequence[str]], object]


def forked(
    main: Main, arguments: Sequence[str], folder: Path | None, environment: Mapping[str, str]
) -> CompletedProcess[str]:
    """Run a function of a module as the main program, and wait for its end."""
    with tempfile.TemporaryDirectory() as kept:
        printed = [Path(kept) / name for name in ("stdout", "stderr")]
        process = _CONTEXT.Process(
            target=_child, args=(main, arguments, folder or Path.cwd(), dict(environment), printed)
        )
        process.start()
        process.join()
        code = process.exitcode
        process.close()
        return CompletedProcess(arguments, code or 0, *(path.read_text() for path in printed))


def pytest_main(arguments: Sequence[str]) -> int:
    """Pytest, in a module that imports no test: those must be imported by it."""
    import pytest

    return int(pytest.main(list(arguments)))


def _child(
    main: Main,
    arguments: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    printed: Sequence[Path],
) -> None:
    for number, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code = _code(main, arguments)
    # As any program ends: pools let go of their workers before anybody waits for those.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code(main: Main, arguments: Sequence[str]) -> int:
    try:
        found = main(arguments)
    except SystemExit as ended:
        found = ended.code
    except BaseException:
        traceback.print_exc()
        return 1
    if isinstance(found, str):
        sys.stderr.write(found + "\n")
        return 1
    return found if isinstance(found, int) else 0
