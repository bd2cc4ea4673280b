"""The library that counts calls which change files (``shim.c``): compiled, and loaded first."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SHIM = "TACIT_FAULTS_SHIM"


def with_shim(arguments: Sequence[str]) -> None:
    """Begin this program again with the library loaded, unless that was done or cannot be."""
    if _SHIM in os.environ:
        shutil.rmtree(os.environ.pop(_SHIM))
        del os.environ["LD_PRELOAD"]  # it is loaded; what this program begins does not need it
        return
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return
    folder = tempfile.mkdtemp(prefix="tacit-faults-")
    library = f"{folder}/shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, str(source), "-ldl"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        shutil.rmtree(folder)
        return
    os.environ |= {_SHIM: folder, "LD_PRELOAD": library}
    os.execv(sys.executable, [sys.executable, "-m", "tools.faults", *arguments])  # noqa: S606


def unavailable() -> str:
    """Why calls cannot be counted here, or nothing."""
    try:
        ctypes.CDLL(None).faults_passed  # noqa: B018
    except AttributeError:
        return "no C compiler (cc) on Linux, which the library that counts calls needs"
    return ""
