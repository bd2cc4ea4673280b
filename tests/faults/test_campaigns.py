"""Campaigns find what is wrong, go on after a kill, and find nothing wrong with Tacit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.endpoint import Endpoint
from tacit.job import run as carry_out
from tacit.journal import each, read_journal
from tacit.plan import load_plan
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation
from tacit.secure.protocol import Refused, TooFewClients, Total
from tacit.tables import shipped
from tools.faults import corruptions, deployment, federations, fuzz, fuzz_files, running
from tools.faults.campaign import Campaign, Outcome, Ready, played
from tools.faults.children import Child
from tools.faults.fuzz_messages import WatchedClient
from tools.faults.members import BALLOT, VARIANCE
from tools.faults.mutations import Mutation, bytewise, in_arrays, in_journal
from tools.faults.recorded import conversation
from tools.faults.running import CAMPAIGNS, Wanted, carried_out
from tools.faults.target import Target

ROOT = Path(__file__).parent.parent.parent
FIVE = {"kill-random", "kill-at-every-write", "corruptions", "fuzz", "federations"}


def table(folder: Path, *options: str) -> dict[str, Any]:
    """What the command prints."""
    command = [sys.executable, "-m", "tools.faults", "--json", "--out", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any], names: set[str]) -> None:
    rows = {row["campaign"]: row for row in found["campaigns"]}
    assert rows.keys() == names
    for row in rows.values():
        if row["campaign"] == "kill-at-every-write" and "no C compiler" in row.get("not_run", ""):
            continue
        assert row["failures"] == 0, row["found"]
        assert row["trials"] > 0
        assert row["first_seed"] == found["seed"]


def test_a_few_trials_of_every_campaign_find_nothing(tmp_path: Path) -> None:
    check(table(tmp_path, "--trials", "2", "--only", ",".join(FIVE)), FIVE)


@pytest.mark.slow
def test_the_quick_campaigns_find_nothing(tmp_path: Path) -> None:
    check(table(tmp_path, "--quick", "--minutes", "20", "--only", ",".join(FIVE)), FIVE)


def test_whatever_goes_wrong_in_a_federation_is_paid_and_noted(tmp_path: Path) -> None:
    play = federations.federated(tmp_path, range(5)).play
    found: Counter[str] = Counter()
    for seed in (1, 2, 4, 7, 9):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = play(seed, folder)
        assert outcome.failures == []
        found += outcome.counts
    assert found["opened"] > 0


# What a campaign does with trials ---------------------------------------------------------------


def fake(play: Callable[[int, Path], Outcome], **changes: Any) -> Campaign:
    def prepare(_folder: Path, _seeds: Sequence[int]) -> Ready:
        return Ready(play)

    return replace(Campaign("fake", "A fake.", 6, 6, prepare), **changes)


def outcomes(
    campaign: Campaign, play: Callable[[int, Path], Outcome], tmp_path: Path
) -> dict[int, str]:
    found = played(campaign, play, range(6), 10, tmp_path, 2, time.monotonic() + 60)
    return {piece: "; ".join(outcome.failures) for piece, outcome in found}


def test_a_trial_that_ends_its_process_fails_and_the_others_go_on(tmp_path: Path) -> None:
    def play(seed: int, _folder: Path) -> Outcome:
        if seed == 12:
            os._exit(3)
        if seed == 13:
            raise KeyError("lost")
        return Outcome()

    found = outcomes(fake(play), play, tmp_path)
    assert found.keys() == set(range(6))
    assert "ended with status 768" in found.pop(2)
    assert "KeyError: 'lost'" in found.pop(3)
    assert set(found.values()) == {""}


def test_a_trial_that_hangs_fails_and_the_others_go_on(tmp_path: Path) -> None:
    def play(seed: int, _folder: Path) -> Outcome:
        while seed == 11:
            time.sleep(1)
        return Outcome()

    found = outcomes(fake(play, longest=0.5), play, tmp_path)
    assert found.keys() == set(range(6))
    assert "ended with status 9" in found.pop(1)
    assert set(found.values()) == {""}


def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    def wanted(trials: int) -> Wanted:
        return Wanted(["corruptions"], trials, False, 7, tmp_path, 2, 60.0)

    (row,) = carried_out(wanted(3))["campaigns"]
    assert (row["trials"], row["failures"], row["last_seed"]) == (3, 0, 9)
    (journal,) = tmp_path.glob("journal-*.jsonl")
    before = journal.read_bytes()
    (row,) = carried_out(wanted(5))["campaigns"]
    assert row["trials"] == 5
    assert journal.read_bytes().startswith(before)
    pieces = read_journal(journal, each(Any))[0]
    assert {name for name in pieces if str(name)[-1].isdigit()} == {
        f"corruptions {number}" for number in range(5)
    }
    assert pieces["corruptions: planned"] == 5


def test_a_campaign_that_is_killed_goes_on(tmp_path: Path) -> None:
    wanted = Wanted(["corruptions"], 300, False, 1, tmp_path / "out", 2, 60.0)
    child = Child(lambda: len(carried_out(wanted)) and 0, tmp_path / "said")
    assert child.killed_after(1.0).wrong == ""
    before = [file.read_bytes() for file in wanted.out.glob("journal-*.jsonl")]
    (row,) = carried_out(wanted)["campaigns"]
    assert (row["trials"], row["failures"]) == (300, 0)
    for data in before:
        (journal,) = wanted.out.glob("journal-*.jsonl")
        assert journal.read_bytes().startswith(data[: data.rfind(b"\n") + 1])


def test_trials_that_do_not_fit_in_the_time_are_missing_from_the_table(tmp_path: Path) -> None:
    found = carried_out(Wanted(["corruptions"], 4000, False, 1, tmp_path, 2, 0.5))
    (row,) = found["campaigns"]
    assert row["trials"] < row["planned"] == 4000
    assert running.as_text(found)[0].startswith(f"corruptions  {row['trials']} of 4000 trials, 0")


def test_campaigns_that_cannot_be_carried_out_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = CAMPAIGNS["kill-at-every-write"]
    monkeypatch.setitem(
        CAMPAIGNS, campaign.name, replace(campaign, unavailable=lambda: "no C compiler")
    )
    monkeypatch.setattr(deployment, "unavailable", lambda: "Flower is not installed")
    found = carried_out(Wanted([campaign.name, "deployment"], 1, False, 1, tmp_path, 2, 60.0))
    assert running.as_text(found) == [
        "kill-at-every-write  not run: no C compiler",
        "deployment           not run: Flower is not installed",
    ]


def trials_of_deployments(table: Path, ended: Mapping[str, Sequence[str]]) -> None:
    """A table as ``tools.deployment_trials`` writes it: how the trials of some kinds ended."""
    trials = [
        {"campaign": kind, "seed": seed, "ended": end, "problem": "", "seconds": 9.0, "events": []}
        for kind, ends in ended.items()
        for seed, end in enumerate(ends, start=5)
    ]
    table.write_text(json.dumps({"trials": trials}))


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A program that is run in place of the trials of deployments."""
    pytest.importorskip("flwr")

    def run(program: str) -> None:
        monkeypatch.setattr(
            deployment, "_command", lambda *_: [sys.executable, "-c", dedent(program)]
        )

    return run


def test_a_run_of_a_deployment_that_had_no_result_failed(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    table = tmp_path / "deployment.json"
    refused = "the budget is spent"
    trials_of_deployments(
        table, {"superlink": ["result", refused], "failure": [refused] * 2, "roster": ["result"]}
    )
    rows = {row["campaign"]: row for row in deployment.rows(table, 2, 5)}
    told = {name: (row["trials"], row["planned"], row["failures"]) for name, row in rows.items()}
    assert told == {
        "deployment: superlink": (2, 2, 1),
        "deployment: nodes-killed": (0, 2, 0),
        "deployment: nodes-stopped": (0, 2, 0),
        "deployment: failure": (2, 2, 0),
        "deployment: server-app": (0, 2, 0),
        "deployment: roster": (1, 2, 0),
    }
    superlink = rows["deployment: superlink"]
    assert superlink["found"] == [f"seed 6: the run had no result: {refused}"]
    assert superlink["counts"] == {"results": 1}
    assert deployment.rows(table, 1, 5)[0]["trials"] == 1


def test_campaigns_are_recorded_one_after_the_other(
    tmp_path: Path, instead: Callable[[str], None]
) -> None:
    def wanted(*names: str) -> Wanted:
        return Wanted(names, 2, False, 5, tmp_path, 2, 60.0)

    instead("pass")
    first = carried_out(wanted("corruptions"))["campaigns"]
    trials_of_deployments(tmp_path / "deployment.json", {"superlink": ["result"] * 2})
    both = carried_out(wanted("deployment"))["campaigns"]
    assert both[0] == first[0]
    assert [row["trials"] for row in both] == [2, 2, 0, 0, 0, 0, 0]
    again = carried_out(wanted("corruptions"))["campaigns"]
    assert again == both
    assert json.loads((tmp_path / "faults.json").read_text())["campaigns"] == both


def test_a_deployment_without_trials_is_a_failure(
    tmp_path: Path, instead: Callable[[str], None]
) -> None:
    instead("raise SystemExit(3)")
    *_, row = carried_out(Wanted(["deployment"], 1, False, 5, tmp_path, 2, 60.0))["campaigns"]
    assert (row["failures"], row["found"]) == (1, ["the trials ended with 3"])


DEPLOYING = """
    import os, pathlib, signal, subprocess, sys, time
    place = pathlib.Path(os.environ["TMPDIR"])
    forgotten = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (place / "number").write_text(str(forgotten.pid))
    (place / "number").rename(place / "begun")
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        time.sleep(600)
    finally:
        time.sleep(1)
        (place.parent / "stopped").touch()
    """
"""Something that takes a second to stop what it began, and overlooks a part."""


def test_a_deployment_is_stopped_when_the_time_is_over(
    tmp_path: Path, instead: Callable[[str], None]
) -> None:
    instead(DEPLOYING)
    place = tmp_path / "place"
    until = time.monotonic() + 3
    assert deployment.play(1, 1, tmp_path / "table.json", place, until) == ""
    assert (tmp_path / "stopped").exists()
    assert not place.exists()


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_of_a_deployment_runs_on(how: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    program = f"""
        import pathlib, signal, sys, time
        from tools.faults import deployment
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        deployment._command = lambda *_: [sys.executable, "-c", {dedent(DEPLOYING)!r}]
        place = pathlib.Path({str(place)!r})
        deployment.play(1, 1, place, place, time.monotonic() + 600)
        """
    playing = subprocess.Popen([sys.executable, "-c", dedent(program)], cwd=ROOT)
    begun = place / "begun"
    while not begun.exists():
        assert playing.poll() is None
        time.sleep(0.05)
    forgotten = int(begun.read_text())
    playing.send_signal(getattr(signal, how))
    playing.wait()
    assert (tmp_path / "stopped").exists() == (how != "SIGKILL")
    if how == "SIGKILL":  # whoever goes on ends it
        deployment._clear(place)
    while Path(f"/proc/{forgotten}/stat").exists():
        if Path(f"/proc/{forgotten}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    assert not place.exists()


def test_the_table_of_a_page_is_written_anew(tmp_path: Path) -> None:
    row = {"campaign": "corruptions", "trials": 1200, "failures": 0}
    table = {"campaigns": [row, {"campaign": "deployment", "trials": 0, "not_run": "why"}]}
    head = "| campaign | trials | failures |\n|---|---|---|\n"
    page = f"Before.\n\n{head}| `old` | 1 | 0 |\n| `other` | 1 | 0 |\n\nAfter.\n"
    told = f"Before.\n\n{head}| `corruptions` | 1,200 | 0 |\n\nAfter.\n"
    assert running.paged(page, table) == running.paged(told, table) == told
    (tmp_path / "page.md").write_text("No table.")
    refused = CliRunner().invoke(running.app, ["--page", str(tmp_path / "page.md")])
    assert refused.exit_code == 2
    assert "has no table that begins with | campaign | trials | failures |" in refused.output


def test_a_killed_child_is_told_from_one_that_was_refused_or_failed(tmp_path: Path) -> None:
    def refused() -> int:
        sys.stdout.write("tacit: 'vote' would bring epsilon to 4, above the\nbudget of 1\n")
        return 2

    def failing() -> int:
        raise KeyError("lost")

    ended = Child(refused, tmp_path / "said").ended()
    assert (ended.refused, ended.wrong) == (True, "")
    assert "KeyError: 'lost'" in Child(failing, tmp_path / "said").ended().wrong
    assert "it ended with 2" in Child(lambda: 2, tmp_path / "said").ended().wrong
    ended = Child(lambda: signal.pause() or 0, tmp_path / "said").killed_after(0.05)  # type: ignore[func-returns-value]
    assert (ended.killed, ended.wrong) == (True, "")


# What campaigns would find ----------------------------------------------------------------------


def target(attempt: Callable[[], str]) -> Target:
    return Target(
        "fake", [b"x"], (bytewise,), lambda _base, _data, _folder: attempt(), (Refused,), 1
    )


def test_fuzzing_finds_other_exceptions_and_too_much_work(tmp_path: Path) -> None:
    def undeclared() -> str:
        raise KeyError("lost")

    def refusing() -> str:
        raise Refused("no")

    def endless() -> str:
        for _ in range(fuzz.MOST_CALLS):
            len("")
        return ""

    found = [
        fuzz._attempted(target(one), 0, b"", tmp_path) for one in (undeclared, refusing, endless)
    ]
    assert [how for _, how, _ in found] == ["failed", "refused", "taken"]
    assert found[0][0] == "KeyError: 'lost'"
    assert found[1][0] == ""
    assert found[2][0].startswith("it took 2000")


def refusals(
    mutation: Mutation, base: bytes, read: Callable[[bytes], object], many: int
) -> list[str]:
    """Why altered files were refused, one by one; anything but a ValueError is a failure."""
    said = []
    for seed in range(many):
        data = mutation(base, random.Random(seed))
        try:
            read(data)
        except ValueError as error:
            said.append(str(error))
    return said


def test_altered_journals_with_fitting_checksums_are_gone_on_with(tmp_path: Path) -> None:
    run = tmp_path / "run"
    carry_out(load_plan(None, fuzz_files._TINY), run, lambda *_: None, lambda _: None)
    journals = fuzz_files._Journals.written(run, tmp_path)
    charged = len(journals.ledger)
    for base, data in enumerate(journals.bases):
        journals.attempt(base, data, tmp_path)
        assert len(journals.ledger) == charged, "valid ones are not asked again"
        said = refusals(in_journal, data, partial(journals.attempt, base, folder=tmp_path), 60)
        assert any("is no result of this work" in one for one in said)
        assert not any("cannot be read" in one for one in said), "all checksums fit"


def test_altered_arrays_reach_what_reads_a_table(tmp_path: Path) -> None:
    table, path = min(shipped().values(), key=lambda one: one.stat().st_size), tmp_path / "t.npz"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        fuzz_files._table_used(path)

    said = refusals(in_arrays, table.read_bytes(), read, 100)
    for reason in ("has shape", "planes of bytes", "is missing", "`$.", "not between 0 and 1"):
        assert any(reason in one for one in said), (reason, said)


def test_fuzzing_finds_a_ledger_that_changes_without_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation(tmp_path, (BALLOT,))
    first, sealing = [one for one in talk.requests() if one.stage in ("evaluate", "seal")]
    client = WatchedClient(talk.endpoint)
    assert client.asked(sealing.before, sealing.request) == ""
    real = Endpoint.handle

    def careless(self: Endpoint, state: bytes, request: bytes) -> tuple[bytes, bytes]:
        self.ledger.charge(BALLOT.bound.release(VARIANCE), "answer", "another")
        return real(self, state, request)

    monkeypatch.setattr(Endpoint, "handle", careless)
    assert "led to the lines" in client.asked(first.before, first.request)
    assert "and the ledger has new lines" in client.asked({}, sealing.request)
    monkeypatch.setattr(Endpoint, "handle", real)
    monkeypatch.setattr(Endpoint, "_release", lambda *_: None)
    assert "the ledger has no line" in client.asked(sealing.before, sealing.request)


def test_the_corruption_campaign_finds_a_ledger_that_believes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prepared").mkdir()
    play = corruptions.corrupted(tmp_path / "prepared", []).play
    monkeypatch.setattr(Ledger, "verify", lambda _self: [])
    monkeypatch.setattr("tacit.privacy.ledger_history.History.check_link", lambda *_: None)
    failures = []
    for seed in range(60):
        folder = tmp_path / str(seed)
        folder.mkdir()
        failures += play(seed, folder).failures
    assert any("says something else than before" in one for one in failures), failures


def test_a_federation_that_gives_up_early_or_opens_another_sum_is_found(tmp_path: Path) -> None:
    chance = random.Random(1)
    plan = replace(
        federations._Plan.drawn(chance),
        participation=Participation(5, 1),
        secure="masks",
        roster=True,
        loss=0.0,
        drops={},
        garbled={},
        dealers=[],
        bests=[0.1, 0.3, 0.5, 0.7, 0.9],
    )
    built, channel, watched = federations._built(plan, chance, tmp_path)
    with built.held():
        answered = built.sum(BALLOT, "vote").answered
    session, total = watched.opened[0]

    def found(total: Total, answered: int = answered) -> list[str]:
        return federations._opened(plan, channel, built, session, total, answered)

    assert found(total) == []
    assert "standard deviations off" in found(replace(total, value=total.value + 10_000))[0]
    assert "which are too few" in " ".join(found(replace(total, survivors=(0, 1))))
    assert "4 answers are said" in found(total, 4)[0]
    ended = TooFewClients("seal", 3, 4)
    assert (
        "given up with 0 missing, of which 1 may be"
        in federations._given_up(plan, channel, ended)[0]
    )
    channel.missing |= {1, 2}
    assert federations._given_up(plan, channel, ended) == []
