"""What nobody charged ends ``tacit audit`` with a sentence and its exit code, however gross it is.

A run that nothing is wrong with fails by chance with probability at most 1e-6 (``ERROR``). One
without a charge shows an epsilon of 0.3 or more, six deviations from nothing, and fails whatever it
shows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tacit import __version__
from tacit.audits.auditing import code
from tacit.cli import main
from tests.command_line import in_process
from tests.forked import forked

RUNS = {"vote": 5_000, "selection": 2_500, "front": 100, "record": 1_000}
"""So many that much more than nothing is shown."""


def asked(method: str, runs: int, folder: Path) -> list[str]:
    return ["audit", method, "--runs", str(runs), "--out", str(folder / "audit")]


@pytest.mark.parametrize("method", RUNS)
def test_the_command_finds_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in this process, where a sabotage has its effect."""
    monkeypatch.setenv("TACIT_CORES", "1")
    done = in_process(*asked(method, 20, tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def broken(arguments: Sequence[str]) -> None:
    """The command line with a sabotage, whose name comes first."""
    from tests.sabotage import SABOTAGES

    name, *others = arguments
    SABOTAGES[name][0]()
    sys.argv = ["tacit", *others]
    main()


@pytest.mark.parametrize("method", RUNS)
def test_a_forgotten_charge_is_said_and_not_a_crash(method: str, tmp_path: Path) -> None:
    """A sabotage must make the test above fail; a crash would do that too."""
    environment = {**os.environ, "TACIT_CORES": "1"}
    arguments = [f"{method}_not_charged", *asked(method, RUNS[method], tmp_path)]
    done = forked(broken, arguments, tmp_path, environment)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    told = json.loads((tmp_path / "audit" / "audit.json").read_text())
    (finding,) = told["methods"]
    assert (told["versions"]["tacit"], told["code"]) == (__version__, code())
    assert finding["tightness"] is None
    assert {point["claimed"] for point in finding["curve"]} == {0.0}
    assert finding["curve"][0]["audited"] > 0
    sentences = done.stderr.replace("\n", " ")
    assert f"tacit: {method}: a ledger was charged nothing for what was released" in sentences
    assert f"{method}: epsilon is at least " in sentences
    assert "Nothing was charged, so nothing is claimed" in " ".join(done.stdout.split())
