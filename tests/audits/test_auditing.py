"""Small audits of every method.

Each may fail by chance, if all claims are true, with probability at most 1e-6 (``ERROR``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tacit import rules
from tacit.audits import auditing
from tacit.audits.auditing import AUDITS, ERROR, Finding, chosen, run
from tacit.audits.worlds import Sizes
from tacit.privacy.rounded_normal import rounded_normal

SMALL = {
    **dict.fromkeys(("vote", "auto", "averaging", "rewards", "fedex", "cells"), Sizes(20_000, 10)),
    **dict.fromkeys(("dp-sgd", "dp-sgd-steps"), Sizes(20_000)),
    "selection": Sizes(3_000),
    "front": Sizes(200),
    "record": Sizes(150),
}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_CORES", "1")


def audited(method: str, folder: Path, sizes: Sizes | None = None) -> Finding:
    (finding,) = run([method], 3.0, sizes or SMALL[method], folder, lambda *_: None)
    return finding


def test_every_method_is_audited_here() -> None:
    assert set(SMALL) == set(AUDITS) == set(chosen(None))
    assert ERROR <= 1e-6


def claimable(method: str) -> float:
    """The most that a method may be charged for at epsilon 3: a front has 16 folders to pay."""
    return 16.0 if method == "front" else 3.0


@pytest.mark.parametrize("method", SMALL)
def test_an_audit_finds_nothing(method: str, tmp_path: Path) -> None:
    finding = audited(method, tmp_path)
    assert finding.failures == []
    assert finding.curve[0].delta == 1e-5
    assert finding.curve[0].claimed <= claimable(method)


def test_a_claim_of_nothing_is_a_failure_whatever_the_runs_show(tmp_path: Path) -> None:
    finding = audited("record", tmp_path, Sizes(1))
    nothing = tuple(replace(point, claimed=0.0, audited=0.0) for point in finding.curve)
    uncharged = replace(finding, curve=nothing)
    assert finding.failures == []
    assert len(uncharged.failures) == 1
    assert uncharged.tightness == math.inf
    assert uncharged.to_json()["tightness"] is None


@pytest.mark.parametrize(
    ("method", "least"),
    [("vote", 0.4), ("auto", 0.35), ("averaging", 0.3), ("rewards", 0.35), ("fedex", 0.3)],
)
def test_an_audit_would_find_something(method: str, least: float, tmp_path: Path) -> None:
    """A bound far below the claim would also pass for a method that has too little noise.

    With 100,000 runs the bounds lie at 0.46 to 0.59, with a deviation of about 0.02, so that a
    false alarm is five deviations away.
    """
    assert audited(method, tmp_path, Sizes(100_000)).tightness > least


@pytest.mark.parametrize("method", ["vote", "averaging", "rewards"])
def test_the_quick_size_notices_the_noise_of_endpoints(method: str, tmp_path: Path) -> None:
    """So many whole runs as ``--quick`` has: half the noise that endpoints add has to be seen."""
    whole = AUDITS[method].sizes["quick"].whole
    assert audited(method, tmp_path, Sizes(1_000, whole)).failures == []


@pytest.mark.slow
def test_the_quick_size_notices_half_of_the_noise_in_a_clients_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is about 0.88 at delta 0.1, with a deviation of about 0.04; 0.63 is claimed."""
    monkeypatch.setattr(
        rules, "rounded_normal", lambda own, shape: rounded_normal(own / math.sqrt(2), shape)
    )
    assert audited("record", tmp_path, AUDITS["record"].sizes["quick"]).failures != []


class Killed(Exception):
    pass


FOUR_PIECES = Sizes(1_000, 30)


def killed_audit(folder: Path) -> None:
    """An audit of votes that ends after the second of its four pieces."""

    def kill(done: int, _total: int) -> None:
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        run(["vote"], 3.0, FOUR_PIECES, folder, kill)


def test_an_audit_goes_on_after_a_kill_and_begins_anew_when_it_was_finished(
    tmp_path: Path,
) -> None:
    killed_audit(tmp_path)
    (journal,) = tmp_path.glob("journal-*.jsonl")
    lines = journal.read_text().splitlines()
    seen: list[int] = []
    run(["vote"], 3.0, FOUR_PIECES, tmp_path, lambda done, _total: seen.append(done))
    assert len(lines) == 3, "the plan and two pieces"
    assert seen[-1] == 4
    assert not journal.exists()


def test_a_killed_audit_does_not_go_on_with_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_audit(tmp_path)
    monkeypatch.setattr(auditing, "code", lambda: "other code")
    run(["vote"], 3.0, FOUR_PIECES, tmp_path, lambda *_: None)
    (journal,) = tmp_path.glob("journal-*.jsonl")
    assert len(journal.read_text().splitlines()) == 3, "the first one's, as it was left"


def test_every_process_counts_the_same_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_CORES", "2")
    finding = audited("vote", tmp_path, Sizes(2_000, 10))
    assert finding.runs == {"the client's bound and noise": 2_000, "the whole federation": 10}
    assert finding.failures == []
