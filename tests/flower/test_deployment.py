"""The real thing: a SuperLink and SuperNodes as processes, with TLS and node authentication."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from tacit.flower.processes import free_port, process
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tacit.space import Config
from tests.command_line import document, tacit
from tests.federations import likes
from tests.flower.deployment import AppRun, Deployment, deployed

REFUSED = "Failed to activate SuperNode"
CLIENT = """
from flwr.clientapp import ClientApp

import tacit.flower
from tacit.privacy.mechanisms import NoiseShare

# For this test alone: without noise the sum shows whether the protocol adds up.
NoiseShare.added_to = lambda self, answer: answer
app = ClientApp()


def client(context):
    best = (1 + context.node_config["partition-id"]) / 10
    return lambda config: abs(config["x"] - best)


tacit.flower.answer(app, client)
"""
SERVER = """
import json
from pathlib import Path

from flwr.serverapp import ServerApp

import tacit
import tacit.flower

app = ServerApp()


@app.main()
def main(grid, context):
    space, method = {"x": tacit.Float(0.0, 1.0)}, tacit.Vote(votes=5, candidates=50)
    result = tacit.flower.tune(grid, context, space=space, method=method)
    Path(context.run_config["answer"]).write_text(json.dumps(result.to_json()))
"""


def project(deployment: Deployment, answer: Path) -> Path:
    """A Flower app that votes and writes down the result."""
    folder = deployment.folder / "votes"
    (folder / "votes").mkdir(parents=True)
    (folder / "votes" / "__init__.py").touch()
    (folder / "votes" / "client_app.py").write_text(CLIENT)
    (folder / "votes" / "server_app.py").write_text(SERVER)
    settings = f"""
        [project]
        name = "votes"
        version = "1.0.0"
        description = ""
        license = "Apache-2.0"
        dependencies = []
        [tool.flwr.app]
        publisher = "tests"
        [tool.flwr.app.components]
        serverapp = "votes.server_app:app"
        clientapp = "votes.client_app:app"
        [tool.flwr.app.config]
        answer = {json.dumps(str(answer))}
        tacit.privacy.epsilon = 10.0
        tacit.federation.roster_file = {json.dumps(str(deployment.folder / "roster.toml"))}
        tacit.federation.deadline = 6.0
        tacit.federation.timeout = 120.0
    """
    (folder / "pyproject.toml").write_text(textwrap.dedent(settings))
    return folder


def true_tally(candidates: list[Config], clients: int) -> IntArray:
    """The votes of the first clients, without noise."""
    ballot = Ballot(tuple(candidates), votes=5)
    ballots = [ballot.answer(likes((1 + number) / 10)) for number in range(clients)]
    return np.asarray(np.sum(ballots, axis=0))


def unregistered(deployment: Deployment) -> str:
    """What a node says whose key the SuperLink does not know; it must not get in."""
    key = deployment.folder / "stranger"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key], check=True
    )
    config = (deployment.folder / "flower" / "config.toml").read_text()
    address = config.split('address = "')[1].split('"')[0]
    command = [
        "flower-supernode",
        f"--superlink={address}",
        f"--port={free_port()}",
        f"--root-certificates={deployment.folder / 'certificates' / 'ca.crt'}",
        f"--auth-supernode-private-key={key}",
    ]
    log = deployment.folder / "logs" / "stranger.log"
    with process(command, deployment.variables, log) as stranger:
        for _ in range(300):
            if stranger.poll() is not None or REFUSED in log.read_text():
                break
            time.sleep(0.2)
    return log.read_text()


def run_and_kill(deployment: Deployment, app: Path, stage: str, node: str) -> AppRun:
    """Run the app; as soon as everybody is through a stage, one node is killed."""
    run = deployment.run(app)
    assert run.wait_for([f"tacit: {stage}: {deployment.nodes} of {deployment.nodes}"], 300.0)
    deployment.kill(node)
    assert run.wait(600.0) == 0, run.said
    assert re.fullmatch(r"Run \d+ completed\.", run.reason)
    return run


def check(deployment: Deployment, tmp_path: Path) -> None:
    """One node dies in the middle; the others' sum opens, and everybody's books agree."""
    survivors = deployment.nodes - 1
    answer = tmp_path / "answer.json"
    run = run_and_kill(deployment, project(deployment, answer), "share", f"node-{survivors}")
    assert answer.exists(), run.said
    found = json.loads(answer.read_text())
    assert found["clients"] == {
        "planned": deployment.nodes,
        "asked": deployment.nodes,
        "answered": survivors,
        "dropped": 1,
    }
    assert found["tally"] == true_tally(found["candidates"], survivors).tolist()
    assert "may deviate from the protocol" in found["privacy"]["server"]
    assert "a deployment on Flower" in found["privacy"]["setting"]
    books = tacit(
        "ledger",
        "verify",
        deployment.folder / "server" / "ledgers" / "clinics.sqlite",
        *(
            part
            for number in range(survivors)
            for part in ("--receipts", deployment.folder / "nodes" / f"node-{number}" / "receipts")
        ),
        "--roster",
        deployment.folder / "roster.toml",
        "--json",
    )
    assert document(books)["receipts"]["checked"] == survivors


def test_three_nodes_one_killed_in_the_middle_and_a_stranger(tmp_path: Path) -> None:
    with deployed(tmp_path / "deployment", nodes=3, dropout=0.34) as deployment:
        said = unregistered(deployment)
        assert REFUSED in said, said
        check(deployment, tmp_path)


@pytest.mark.slow
def test_five_nodes(tmp_path: Path) -> None:
    with deployed(tmp_path / "deployment", nodes=5, dropout=0.2) as deployment:
        check(deployment, tmp_path)
