"""Flower's own programs as child processes that end with us and call nobody at home."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.cores import cores
from tacit.federation import EngineFailed
from tacit.files import write_whole

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Telemetry and update checks of Flower and Ray, off."""
_STARTED = re.compile(r"Successfully started run (\d+)")
_COMPLETED = "finished:completed"
_START_SECONDS = 60.0
_END_SECONDS = 90.0
"""A ServerApp that vanished counts as failed after a minute."""
_ANSWER_SECONDS = 30.0
_STOP_SECONDS = 10.0


def environment(home: Path, **more: str) -> dict[str, str]:
    """For Flower's programs: a folder of ours as its home, and nobody called."""
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path, **more}


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(
    command: Sequence[str], variables: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, which is ended with all its children."""
    with log.open("ab") as out:
        started = subprocess.Popen(  # noqa: S603  # our own command
            [*_ends_with_us(), *command],
            env=variables,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        end(started)


def _ends_with_us() -> list[str]:
    """How to start a program that is ended even if this process is killed, where that is known."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def end(started: subprocess.Popen[bytes]) -> None:
    """Ask a process group to end, then make it."""
    for how, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _STOP_SECONDS)):
        try:
            os.killpg(started.pid, how)
        except ProcessLookupError:
            break
        try:
            started.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    started.wait()


@contextmanager
def simulating_superlink(home: Path, **variables: str) -> Iterator[None]:
    """A SuperLink for simulations on a free port of this machine, as a home's default."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        "flower-superlink",
        "--insecure",
        "--simulation",
        "--disable-runtime-dependency-installation",
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    log = home / "superlink.log"
    write_whole(
        home / "config.toml",
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n",
    )
    with process(command, environment(home, **variables), log) as started:
        wait_until_healthy(started, f"http://127.0.0.1:{port}/health", log)
        yield


def simulated_nodes(number: int) -> list[str]:
    """What ``flwr run`` is told about the nodes of a simulation: one core each, all cores used."""
    config = f"num-supernodes={number} client-resources-num-cpus=1 init-args-num-cpus={cores()}"
    return ["--federation-config", config]


def wait_until_healthy(started: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Wait for a SuperLink to answer, or raise :class:`EngineFailed`."""
    begun = time.monotonic()
    while time.monotonic() - begun < _START_SECONDS:
        if started.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=1.0):  # noqa: S310  # our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise EngineFailed(f"the SuperLink did not start; it said: {tail(log)}")


def run_app(
    app: Path,
    home: Path,
    *,
    options: Sequence[str] = (),
    line: Callable[[str], None] = lambda _line: None,
) -> None:
    """``flwr run`` on a home's default SuperLink, line by line, until the run has ended.

    Raises:
        EngineFailed: the run did not complete. ``flwr run`` ends with 0 also when a run failed, so
            the SuperLink is asked how it ended.
    """
    command = [*_ends_with_us(), "flwr", "run", str(app), "--stream", *options]
    said: list[str] = []
    with subprocess.Popen(  # noqa: S603  # our own command
        command,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            for text in started.stdout or ():
                said.append(text.rstrip())
                line(said[-1])
        except BaseException:
            os.killpg(started.pid, signal.SIGTERM)
            raise
    if started.returncode:
        raise EngineFailed(f"`flwr run` ended with {started.returncode}: {' | '.join(said[-8:])}")
    numbers = [found[1] for found in map(_STARTED.search, said) if found]
    if not numbers:
        raise EngineFailed(f"`flwr run` started no run: {' | '.join(said[-8:])}")
    status, details = _ending(numbers[0], home)
    if status != _COMPLETED:
        raise EngineFailed(f"the run ended as {status or 'unknown'}: {details}")


def _ending(run: str, home: Path) -> tuple[str, str]:
    """A run's status and what the SuperLink says of it; the log may end before the run does."""
    command = ["flwr", "ls", "--run-id", run, "--format", "json"]
    begun = time.monotonic()
    status = details = ""
    while not status.startswith("finished") and time.monotonic() - begun < _END_SECONDS:
        try:
            asked = subprocess.run(  # noqa: S603  # our own command
                command,
                env=environment(home),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_ANSWER_SECONDS,
            ).stdout
            (found,) = json.loads(asked)["runs"]
            status, details = str(found["status"]), str(found["status-details"])
        except subprocess.TimeoutExpired:
            details = "the SuperLink does not answer"
        except (KeyError, ValueError):
            details = " ".join(asked.split())
        if not status.startswith("finished"):
            time.sleep(0.5)
    return status, details


def write_app(place: Path, server: str, client: str, **config: Any) -> Path:
    """The project of a Flower app whose parts are importable already; its folder."""
    import tomli_w

    place.mkdir(parents=True, exist_ok=True)
    project = {
        "project": {
            "name": "tacit-app",
            "version": "1.0.0",
            "description": "An app that comes with Tacit.",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "tacit",
                    "components": {"serverapp": server, "clientapp": client},
                    "config": config,
                }
            }
        },
    }
    write_whole(place / "pyproject.toml", tomli_w.dumps(project))
    return place


def tail(log: Path, lines: int = 8) -> str:
    """The end of a log, on one line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return " | ".join(text.splitlines()[-lines:])
