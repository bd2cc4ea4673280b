"""Whether a deployment's books agree, whatever was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tacit.job import kind_of_piece
from tacit.journal import read_journal
from tacit.membership import LEDGER, RECEIPTS
from tacit.privacy.ledger import Ledger
from tacit.receipts import Receipt, read_receipts
from tacit.transcripts import SUFFIX
from tests.flower.deployment import Deployment
from tools.faults.history import Evidence

FEDERATION = "clinics"


def server_ledger(deployment: Deployment) -> Path:
    """The ledger of the federation, beside its runs."""
    return deployment.folder / "server" / "ledgers" / f"{FEDERATION}.sqlite"


def evidence_of(deployment: Deployment) -> Evidence:
    """All that a deployment left on disk, also what a trial moved aside."""
    nodes, server = deployment.folder / "nodes", deployment.folder / "server"
    journals = server.glob("runs*/**/journal-*.jsonl")
    results = server.glob("runs*/**/result.json")
    return Evidence(
        servers=[server_ledger(deployment)],
        members=sorted(nodes.glob(f"*/{LEDGER}")),
        runs=sorted({file.parent for file in (*journals, *results)}),
        receipts=sorted(nodes.glob(f"*/{RECEIPTS}*")),
    )


def problems_in_books(deployment: Deployment, roster: Path) -> list[str]:
    """One sentence for whatever does not agree; none if everything does."""
    nodes = sorted(path for path in (deployment.folder / "nodes").iterdir() if path.is_dir())
    problems = []
    for node in nodes:
        ledger, receipts = Ledger(node / LEDGER), _receipts([node])
        problems += [f"{node.name}, line {one.number}: {one.found}" for one in ledger.verify()]
        lines = len(ledger.intact())
        if len(receipts) > lines:
            problems.append(f"{node.name} signed {len(receipts)} receipts for {lines} lines")
    return problems + _server_problems(deployment, nodes, roster)


def _server_problems(deployment: Deployment, nodes: list[Path], roster: Path) -> list[str]:
    ledger, runs = Ledger(server_ledger(deployment)), deployment.folder / "server" / "runs"
    lines = {charge.digest for charge in ledger.intact()}
    receipts = _receipts(nodes)
    sessions, signers = defaultdict(set), defaultdict(set)
    for receipt in receipts:
        sessions[receipt.line].add(receipt.session)
        signers[receipt.line].add(receipt.client)
    problems = [
        f"a line was asked by {len(asked)} sessions"
        for asked in sessions.values()
        if len(asked) > 1
    ]
    opened = _opened(runs)
    if len(opened) > len(lines):
        problems.append(f"{len(opened)} sums were opened and {len(lines)} lines charged")
    for line, answered in opened.items():
        if line not in lines:
            problems.append("a sum was opened whose line the ledger does not hold")
        if len(signers[line]) < answered:
            problems.append(f"{answered} clients are in a sum, {len(signers[line])} signed for it")
    return problems + _verified(deployment, nodes, roster, with_receipts=bool(receipts))


def _verified(
    deployment: Deployment, nodes: list[Path], roster: Path, *, with_receipts: bool
) -> list[str]:
    """What ``tacit ledger verify`` says of the server's ledger, receipts and transcripts."""
    command = [sys.executable, "-m", "tacit", "ledger", "verify", str(server_ledger(deployment))]
    runs = deployment.folder / "server" / "runs"
    transcripts = list(runs.rglob(f"*{SUFFIX}"))
    if with_receipts:
        folders = [node / RECEIPTS for node in nodes if (node / RECEIPTS).exists()]
        command += [part for folder in folders for part in ("--receipts", str(folder))]
    if transcripts:
        command += ["--transcript", str(runs)]
    if with_receipts or transcripts:
        command += ["--roster", str(roster)]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode == 0 and json.loads(done.stdout)["verified"]:
        return []
    said = " ".join((done.stdout + done.stderr).split())
    return [f"tacit ledger verify ended with {done.returncode}: {said}"]


def _receipts(nodes: list[Path]) -> list[Receipt]:
    folders = [node / RECEIPTS for node in nodes if (node / RECEIPTS).exists()]
    return [receipt for receipt in read_receipts(folders).values() if receipt is not None]


def _opened(runs: Path) -> dict[str, int]:
    """The line of every sum that was opened, and how many clients are in it."""
    journals = runs.rglob("journal-*.jsonl") if runs.exists() else ()
    pieces = [read_journal(journal, kind_of_piece)[0].items() for journal in journals]
    noted = [note for several in pieces for place, note in several if isinstance(place, int)]
    return {note["line"]: note["clients"][1] for note in noted}
