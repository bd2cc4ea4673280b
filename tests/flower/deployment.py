"""A deployment on this machine by ``examples/deploy/up.sh``, for tests and trials."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tacit.flower.processes import environment, free_port

SCRIPTS = Path(__file__).parent.parent.parent / "examples" / "deploy"
SUPERLINK = "superlink"
_STARTING, _LET_IN = "Starting Flower SuperNode", "SuperNode ID:"
_RUN = re.compile(r"Successfully started run (\d+)")


class DeploymentFailed(Exception):
    """Something that must happen did not, within its time; the text says what."""


@dataclass(frozen=True)
class Deployment:
    """What ``up.sh`` made in a folder."""

    folder: Path
    nodes: int

    @property
    def variables(self) -> dict[str, str]:
        return {
            **environment(self.folder / "flower"),
            "TACIT_HOME": str(self.folder / "server"),
            "OMP_NUM_THREADS": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        }

    @property
    def names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]

    def script(self, name: str, *arguments: object) -> None:
        """Run one of the example's scripts for this deployment, or fail with what it said."""
        done = subprocess.run(
            [SCRIPTS / name, self.folder, *map(str, arguments)],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode:
            raise DeploymentFailed(f"{name} ended with {done.returncode}: {done.stderr.strip()}")

    def start(self, name: str) -> None:
        """Start the SuperLink or a node that was killed."""
        self.script("start.sh", name)

    def pid(self, name: str) -> int:
        return int((self.folder / "logs" / f"{name}.pid").read_text())

    def send(self, name: str, signal_number: int) -> None:
        """A signal to the SuperLink or a node, and to all processes of its group."""
        os.killpg(self.pid(name), signal_number)

    def wait_for_node(self, name: str, seconds: float = 150.0) -> None:
        """Wait until a node that was started has been let in by the SuperLink."""
        log = self.folder / "logs" / f"{name}.log"

        def is_in() -> bool:
            _before, _start, since = log.read_text(errors="replace").rpartition(_STARTING)
            return _LET_IN in since

        _wait(is_in, seconds, f"{name} was not let in within {seconds:g} s of its start")

    def kill(self, name: str) -> None:
        """End it without warning, and wait until it is gone."""
        pid = self.pid(name)
        self.send(name, signal.SIGKILL)
        _wait(lambda: not _is_alive(pid), 10.0, f"{name} did not end")

    def server_app(self) -> int | None:
        """The process of the ServerApp, if one is running."""
        for pid in self.processes():
            command = _read(pid, "cmdline").split(b"\0")
            if any(part.endswith(b"/flwr-serverapp") for part in command[:2]):
                return pid
        return None

    def processes(self) -> list[int]:
        """All that runs for this deployment, by the home of Flower in its environment."""
        mark = f"FLWR_HOME={self.folder / 'flower'}".encode()
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [
            pid
            for pid in numbers
            if pid != os.getpid() and mark in _read(pid, "environ").split(b"\0") and _is_alive(pid)
        ]

    def run(self, app: Path, **config: str | float) -> AppRun:
        """Begin a run of an app by ``run.sh``; ``__`` in a setting's name stands for a dot."""
        options = [f"{key.replace('__', '.')}={_toml(value)}" for key, value in config.items()]
        command = [str(SCRIPTS / "run.sh"), str(self.folder), str(app)]
        if options:
            command += ["--run-config", " ".join(options)]
        started = subprocess.Popen(
            command,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        return AppRun(self, started)

    def stop_everything(self) -> list[str]:
        """Stop it all; names what ``down.sh`` had left running and had to be killed."""
        with suppress(DeploymentFailed):
            self.script("down.sh")
        with suppress(DeploymentFailed):
            _wait(lambda: not self.processes(), 5.0, "")
        left = {pid: _read(pid, "cmdline").replace(b"\0", b" ") for pid in self.processes()}
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [command.decode(errors="replace").strip() for command in left.values()]


@dataclass
class AppRun:
    """One run of an app, whose log is read while it goes on."""

    deployment: Deployment
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as log:
            for line in log:
                with self._news:
                    self.lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    @property
    def number(self) -> str:
        """Flower's number of the run."""
        match = _RUN.search(self.said)
        if match is None:
            raise DeploymentFailed(f"the run was not started: {self.reason}")
        return match[1]

    @property
    def reason(self) -> str:
        """The last line that was said: how the run ended."""
        return self.lines[-1] if self.lines else "nothing was said"

    def wait_for(self, texts: Collection[str], seconds: float) -> bool:
        """Wait until the log says one of these; False if the run ended without that."""
        until = time.monotonic() + seconds
        with self._news:
            while not any(text in self.said for text in texts):
                if not self._reader.is_alive():
                    return False
                if time.monotonic() > until:
                    raise DeploymentFailed(
                        f"{seconds:g} s passed without any of {texts}: {self.reason}"
                    )
                self._news.wait(0.5)
        return True

    def wait(self, seconds: float) -> int:
        """Wait until the run has ended; its exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.close()
            message = f"the run had not ended after {seconds:g} s: {self.reason}"
            raise DeploymentFailed(message) from None
        self._reader.join(10.0)
        return code

    def stop(self) -> None:
        """Ask the SuperLink to end the run."""
        subprocess.run(
            ["flwr", "stop", self.number, "deployed"],
            env=self.deployment.variables,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        """End the script and ``flwr run``, if they still run."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def deployed(
    folder: Path, nodes: int, dropout: float, epsilon: float = 10.0
) -> Iterator[Deployment]:
    """A SuperLink and some nodes on free ports, stopped at the end whatever happens."""
    deployment = Deployment(folder, nodes)
    numbers = {
        "NODES": str(nodes),
        "PORT": str(free_port()),
        "NODE_PORT": str(_free_range(nodes)),
        "DROPOUT": str(dropout),
        "EPSILON": str(epsilon),
    }
    variables = {**deployment.variables, **numbers, "PYTHON": sys.executable}
    try:
        subprocess.run(
            [SCRIPTS / "up.sh", folder],
            env=variables,
            check=True,
            timeout=600,
            stdout=subprocess.DEVNULL,
        )
        yield deployment
    finally:
        left = deployment.stop_everything()
    if left:
        raise DeploymentFailed(f"down.sh left running: {'; '.join(left)}")


def _free_range(size: int) -> int:
    """The first of some ports in a row; the nodes listen there on the loopback only."""
    for _ in range(50):
        first = free_port()
        if first + size < 65_000:
            return first
    raise AssertionError("no ports are free")


def _toml(value: str | float) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it ended, or belongs to somebody else
        return b""


def _is_alive(pid: int) -> bool:
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X")


def _wait(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise DeploymentFailed(otherwise)
        time.sleep(0.05)
