"""The ways in which a run is disturbed, and what must come of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tacit.membership import LEDGER, ROSTER, Membership, new_key
from tacit.privacy.accounting import Budget
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.secure.roster import Roster
from tests.flower.deployment import SUPERLINK, AppRun, Deployment, DeploymentFailed
from tools.deployment_trials.books import FEDERATION, evidence_of, problems_in_books
from tools.faults.history import breaches

APP = Path(__file__).parent / "app"
BUDGET = Budget(30.0, 1e-5)
NODES, DROPOUT = 3, 0.34
STAGES = ("evaluate", "share", "deliver", "seal", "confirm", "open")
TRAINING = "training"
RESULT = "result"
_ATTEMPTS = 3
_LONGEST = 300.0
_STOPPED_SECONDS = 30.0
_OTHER_ROSTER = "not signed by the client that the roster names"
_NAME = re.compile(r"tacit: run (\S+), results go to")
_FAILED = re.compile(r"Run \d+ did not complete \(finished:\w+\): (?P<why>.+)")


@dataclass
class Scene:
    """One trial: the deployment, what chance decides, and what happened, in order."""

    deployment: Deployment
    chance: Random
    events: list[str] = field(default_factory=list)

    @property
    def roster(self) -> Path:
        return self.deployment.folder / ROSTER

    def note(self, event: str) -> None:
        self.events.append(event)

    def run(self, resume: str = "", roster: Path | None = None, epsilon: float = 0.5) -> AppRun:
        """Begin a run, or go on with one."""
        return self.deployment.run(
            APP,
            tacit__federation__roster_file=str(roster or self.roster),
            tacit__run__resume=resume,
            tacit__privacy__epsilon=epsilon,
        )

    def pause(self, longest: float) -> None:
        time.sleep(self.chance.uniform(0.0, longest))

    def check_books(self, roster: Path | None = None) -> None:
        """What the books say of each other, and an independent look at all lines on disk."""
        problems = [
            *problems_in_books(self.deployment, roster or self.roster),
            *breaches(evidence_of(self.deployment)),
        ]
        if problems:
            raise DeploymentFailed("; ".join(problems))


@dataclass(frozen=True)
class Campaign:
    """``play`` returns :data:`RESULT`, or the sentence with which the run failed."""

    name: str
    play: Callable[[Scene], str]
    completes: bool = True
    """Whether its runs must end with a result: the budget allows for many lost questions."""
    shares_deployment: bool = True
    """Whether trials may follow each other on one deployment."""
    checks_books: bool = False
    """Whether it looks at the books itself, since rosters change on the way."""


def superlink_killed(scene: Scene) -> str:
    """The SuperLink is killed in the middle of a run and started again with its database."""
    run = scene.run()
    stage = scene.chance.choice((*STAGES, TRAINING))
    _reach(run, stage)
    scene.pause(3.0)
    scene.deployment.kill(SUPERLINK)
    scene.note(f"SuperLink killed at {_stage(run)}")
    scene.pause(3.0)
    scene.deployment.start(SUPERLINK)
    return _finish(scene, run, _name(run))


def nodes_killed(scene: Scene) -> str:
    """As many nodes as may drop out are killed at a random moment, and started again."""
    run = scene.run()
    _reach(run, scene.chance.choice(STAGES))
    scene.pause(4.0)
    name = scene.chance.choice(scene.deployment.names)
    scene.deployment.kill(name)
    scene.note(f"{name} killed at {_stage(run)}")
    scene.pause(5.0)
    scene.deployment.start(name)
    _must_complete(scene, run)
    scene.deployment.wait_for_node(name)
    return RESULT


def nodes_stopped(scene: Scene) -> str:
    """Some nodes, or all, do nothing for half a minute."""
    run = scene.run()
    _reach(run, scene.chance.choice(STAGES))
    scene.pause(4.0)
    names = scene.chance.sample(scene.deployment.names, scene.chance.randint(1, NODES))
    for name in names:
        scene.deployment.send(name, signal.SIGSTOP)
    scene.note(f"{', '.join(sorted(names))} stopped at {_stage(run)}")
    try:
        time.sleep(_STOPPED_SECONDS)
    finally:
        for name in names:
            scene.deployment.send(name, signal.SIGCONT)
    return _must_complete(scene, run)


def server_app_killed(scene: Scene) -> str:
    """The ServerApp is killed at every stage, one after the other, of one run that is resumed."""
    name = ""
    for stage in (*STAGES, TRAINING):
        for _attempt in range(_ATTEMPTS):
            run = scene.run(resume=name)
            reached = _reach(run, stage)
            name = _name(run) or name
            if reached:
                break
            scene.note(f"before {stage}: {_sentence(run)}")
        else:
            raise DeploymentFailed(f"{stage} was not reached: {_sentence(run)}")
        scene.pause(3.0)
        process = scene.deployment.server_app()
        if process is None:
            raise DeploymentFailed(f"no ServerApp was running at {_stage(run)}")
        os.kill(process, signal.SIGKILL)
        scene.note(f"ServerApp killed at {_stage(run)}")
        run.stop()
        scene.note(_sentence(run))
        scene.check_books()
    return _finish(scene, scene.run(resume=name), name)


def roster_changed(scene: Scene) -> str:
    """A member is replaced; one of the others still has the old roster, and is left out."""
    first = scene.run()
    _must_complete(scene, first)
    scene.check_books()
    deployment, nodes = scene.deployment, scene.deployment.folder / "nodes"
    for node in deployment.names:  # signed under the old roster, and looked at under it
        shutil.move(nodes / node / "receipts", nodes / node / "receipts-before")
    shutil.move(deployment.folder / "server" / "runs", deployment.folder / "server" / "runs-before")

    gone, newcomer, behind = "node-2", "node-3", scene.chance.choice(("node-0", "node-1"))
    roster = _replace_member(deployment, gone, newcomer)
    for node in {"node-0", "node-1", newcomer} - {behind}:
        shutil.copy(roster, nodes / node / ROSTER)
    if scene.chance.random() < 0.5:
        deployment.kill(gone)
        scene.note(f"{gone} left")
    else:
        scene.note(f"{gone} stays connected")
    scene.note(f"{behind} keeps the old roster")
    run = scene.run(roster=roster)
    _must_complete(scene, run)
    refusals = [line.partition("tacit: ")[2] for line in run.lines if "refused at" in line]
    scene.events.extend(refusals)
    answered = _result(scene, run)["clients"]["answered"]
    if answered != NODES - 1:
        raise DeploymentFailed(f"{answered} nodes are in the sum, and one has the old roster")
    if not any(_OTHER_ROSTER in refusal for refusal in refusals):
        raise DeploymentFailed(f"{behind} refused without saying why: {refusals}")
    scene.check_books(roster)
    return RESULT


def failure_noticed(scene: Scene) -> str:
    """A run fails, which `flwr run` may not say: our script says it, and why."""
    epsilon = scene.chance.uniform(31.0, 99.0)
    run = scene.run(epsilon=epsilon)
    why = _sentence(run)
    if f"privacy.epsilon is {epsilon}" not in why:
        raise DeploymentFailed(f"the reason of a run that failed was lost: {why}")
    return why


CAMPAIGNS = {
    "superlink": Campaign("the SuperLink killed and started again", superlink_killed),
    "nodes-killed": Campaign("nodes killed and started again", nodes_killed),
    "nodes-stopped": Campaign("nodes stopped for half a minute", nodes_stopped),
    "failure": Campaign("a run that failed is noticed", failure_noticed, completes=False),
    "server-app": Campaign(
        "the ServerApp killed at every stage and resumed",
        server_app_killed,
        shares_deployment=False,
    ),
    "roster": Campaign(
        "a member replaced between runs", roster_changed, shares_deployment=False, checks_books=True
    ),
}


def _reach(run: AppRun, stage: str) -> bool:
    """Wait until a stage has begun; False if the run ended before."""
    later = STAGES[STAGES.index(stage) :] if stage in STAGES else ()
    return run.wait_for([*(f"tacit: {one}: 0 of" for one in later), "[ROUND 1/1]"], _LONGEST)


def _stage(run: AppRun) -> str:
    """The stage that the log named last."""
    stages = re.findall(r"tacit: (\w+): \d+ of|(\[ROUND)", run.said)
    last: tuple[str, str] = stages[-1] if stages else ("the beginning", "")
    return last[0] or TRAINING


def _name(run: AppRun) -> str:
    match = _NAME.search(run.said)
    return match[1] if match else ""


def _sentence(run: AppRun) -> str:
    """Why a run failed, which the script must say in one sentence and with its exit code."""
    code = run.wait(_LONGEST)
    match = _FAILED.fullmatch(run.reason)
    if code == 0 or match is None or "Traceback" in match["why"]:
        raise DeploymentFailed(f"the script ended with {code} and said: {run.reason}")
    return match["why"]


def _must_complete(scene: Scene, run: AppRun) -> str:
    code = run.wait(_LONGEST)
    if code:
        raise DeploymentFailed(f"the run must complete and did not: {run.reason}")
    _result(scene, run)
    return RESULT


def _finish(scene: Scene, run: AppRun, name: str) -> str:
    """The run's result; if it failed, which a sentence must say, it is resumed."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            run = scene.run(resume=name)
        if run.wait(_LONGEST) == 0:
            _result(scene, run)
            return RESULT
        name = _name(run) or name
        scene.note(_sentence(run))
    raise DeploymentFailed(f"the run had no result after {_ATTEMPTS} attempts: {scene.events[-1]}")


def _result(scene: Scene, run: AppRun) -> dict[str, Any]:
    """What a run left in its folder."""
    path = scene.deployment.folder / "server" / "runs" / _name(run) / "result.json"
    if not path.exists():
        raise DeploymentFailed("the run completed and left no result")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _replace_member(deployment: Deployment, gone: str, newcomer: str) -> Path:
    """A newcomer with keys and a ledger of its own, and a roster with it instead of somebody."""
    nodes = deployment.folder / "nodes"
    before = Membership.load(deployment.folder / ROSTER)
    key = new_key(nodes / newcomer).public_key
    flower_key = nodes / newcomer / "flower-key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", flower_key], check=True
    )
    members = dict(zip(before.names, before.roster.keys, strict=True))
    del members[gone]
    members[newcomer] = key
    made = Membership(
        FEDERATION,
        tuple(members),
        Roster(tuple(members.values())),
        Participation(len(members), before.participation.dropout),
        before.least_noise,
    )
    roster = deployment.folder / "roster-2.toml"
    roster.write_text(made.to_toml())
    Ledger.create(nodes / newcomer / LEDGER, FEDERATION, BUDGET)
    subprocess.run(
        ["flwr", "supernode", "register", f"{flower_key}.pub", "deployed", "--name", newcomer],
        env=deployment.variables,
        check=True,
        capture_output=True,
        timeout=60,
    )
    shutil.copy(roster, nodes / newcomer / ROSTER)
    deployment.start(newcomer)
    return roster
