"""A deployment on this machine by ``examples/deploy/up.sh``, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tacit.flower.processes import environment, free_port

SCRIPTS = Path(__file__).parent.parent.parent / "examples" / "deploy"


@dataclass(frozen=True)
class Deployment:
    folder: Path
    nodes: int

    @property
    def variables(self) -> dict[str, str]:
        return {
            **environment(self.folder / "flower"),
            "TACIT_HOME": str(self.folder / "server"),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pid(self, name: str) -> int:
        return int((self.folder / "logs" / f"{name}.pid").read_text())


@contextmanager
def deployed(folder: Path, nodes: int, dropout: float) -> Iterator[Deployment]:
    """A SuperLink and some nodes on free ports, stopped at the end whatever happens."""
    found = Deployment(folder, nodes)
    numbers = {
        "NODES": str(nodes),
        "PORT": str(free_port()),
        "NODE_PORT": str(_free_range(nodes)),
        "DROPOUT": str(dropout),
        "EPSILON": "10",
    }
    variables = {**found.variables, **numbers, "PYTHON": sys.executable}
    try:
        subprocess.run([SCRIPTS / "up.sh", folder], env=variables, check=True, timeout=600)
        yield found
    finally:
        subprocess.run([SCRIPTS / "down.sh", folder], env=os.environ, check=True, timeout=120)


def _free_range(size: int) -> int:
    """The first of some ports in a row; the test's nodes listen there on the loopback only."""
    for _ in range(50):
        first = free_port()
        if first + size < 65_000:
            return first
    raise AssertionError("no ports are free")
