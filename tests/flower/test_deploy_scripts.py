"""What the scripts of `examples/deploy` do when programs end, with stand-ins for these."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flower.deployment import SCRIPTS, Deployment


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A folder as `up.sh` makes it, where SuperNodes are refused once and then stay."""
    program = tmp_path / "bin" / "flower-supernode"
    folder = tmp_path / "deployment"
    for place in (program.parent, folder / "logs", folder / "nodes" / "node-0"):
        place.mkdir(parents=True)
    (folder / "settings").write_text("nodes=1\nport=1\nnode_port=2\n")
    program.write_text(
        f"#!/bin/sh\ncd {tmp_path}\necho started\n"
        "if [ ! -f refused ]; then touch refused; exit 49; fi\n"
        "trap 'touch ended; exit 0' TERM\nsleep 600 &\nwait\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    yield Deployment(folder, nodes=1)
    subprocess.run([SCRIPTS / "down.sh", folder], check=True, timeout=60)


def start(deployment: Deployment, name: str = "node-0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "start.sh", deployment.folder, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def lines(deployment: Deployment, count: int) -> list[str]:
    """The node's log, as soon as it has so many lines."""
    log = deployment.folder / "logs" / "node-0.log"
    until = time.monotonic() + 60
    while len(log.read_text().splitlines()) < count and time.monotonic() < until:
        time.sleep(0.1)
    return log.read_text().splitlines()


def test_a_node_that_is_refused_is_started_again_until_it_stays(deployment: Deployment) -> None:
    assert start(deployment).returncode == 0
    assert lines(deployment, 3) == [
        "started",
        "It ended with 49 and is started again in 5 s.",
        "started",
    ]


def test_what_runs_already_is_not_started_again(deployment: Deployment) -> None:
    start(deployment)
    again = start(deployment)
    assert again.returncode == 2
    pid = deployment.pid("node-0")
    assert again.stderr == f"node-0 is running already, as process {pid}.\n"
    deployment.kill("node-0")
    assert start(deployment).returncode == 0
    assert deployment.pid("node-0") != pid


def test_what_there_is_not_is_refused(deployment: Deployment) -> None:
    for name, reason in (
        ("node-1", f"There is no node-1 in {deployment.folder}/nodes.\n"),
        ("server", "server is no part of a deployment; allowed are superlink and node-0, node-1"),
    ):
        done = start(deployment, name)
        assert done.returncode == 2
        assert done.stderr.startswith(reason)


def test_a_node_that_does_nothing_is_asked_to_end_too(deployment: Deployment) -> None:
    """A stopped process does not hear that until it goes on."""
    start(deployment)
    lines(deployment, 3)
    deployment.send("node-0", signal.SIGSTOP)
    subprocess.run([SCRIPTS / "down.sh", deployment.folder], check=True, timeout=60)
    assert (deployment.folder.parent / "ended").exists()
