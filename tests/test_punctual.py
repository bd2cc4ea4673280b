"""Replies that leave on time, whatever the client's own code does."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit import endpoint
from tacit.endpoint import Endpoint
from tacit.privacy.bounds import TopVotes
from tacit.privacy.mechanisms import NoiseShare, OutOfBounds
from tacit.privacy.skellam import IntArray, SamplingTable
from tacit.punctual import Unanswered, evaluated
from tacit.secure.protocol import Refused
from tacit.space import Config
from tacit.task import FunctionClient
from tests.federations import channel, federation, likes
from tests.test_federation import request

DEADLINE = 0.5
HELD = 12 * DEADLINE
"""How long the client's code would take: the reply of a late client comes that much later."""
LATER = 600.0
"""Seconds that no evaluation of these tests takes."""
ANSWER = np.arange(3, dtype=np.int64)
DESCRIPTORS: set[Path] = set()
"""What this process had open before it evaluated."""


def soon(seconds: float = LATER) -> float:
    return time.monotonic() + seconds


def hold_the_interpreter(seconds: float) -> None:
    """What a long call of C does: nothing else in the process runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(1e6 * seconds))


def test_the_reply_does_not_wait_for_code_that_holds_the_interpreter(tmp_path: Path) -> None:
    finished = tmp_path / "finished"

    def slow(config: Config) -> float:
        if not config["x"]:
            hold_the_interpreter(HELD)
            finished.touch()
        return float(config["x"])

    reasons: list[Exception] = []
    one = replace(alone(slow), on_abstention=reasons.append)
    _, reply = one.handle(b"", request(deadline=DEADLINE))
    assert reply
    assert not finished.exists(), "the reply left after the client's code had ended"
    assert [type(reason) for reason in reasons] == [TimeoutError]


def alone(score: Callable[[Config], float]) -> Endpoint:
    """An endpoint that answers on time."""
    one = channel(federation([likes(0.5)] * 5)).endpoints[0]
    return replace(one, client=FunctionClient(score), punctual=True)


def at_once(config: Config) -> float:
    return float(config["x"])


def never(_config: Config) -> float:
    time.sleep(LATER)
    return 0.0


@pytest.fixture
def slow_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing noise takes nearly half of the deadline, as it does for a large model."""
    real = SamplingTable.draw

    def draw(self: SamplingTable, count: int) -> IntArray:
        time.sleep(0.45 * DEADLINE)
        return real(self, count)

    monkeypatch.setattr(SamplingTable, "draw", draw)


def seconds(score: Callable[[Config], float], number: int) -> float:
    one, begun = alone(score), time.monotonic()
    one.handle(b"", request(session=bytes([number]), deadline=DEADLINE))
    return time.monotonic() - begun


@pytest.mark.usefixtures("slow_noise")
def test_an_answer_that_does_not_come_makes_no_reply_later() -> None:
    """It came a third of the deadline later when noise was drawn after the evaluation.

    The least of some times, which a busy machine does not lengthen.
    """
    early, late = (min(seconds(score, n) for n in range(4)) for score in (at_once, never))
    assert late < 1.15 * early


@pytest.mark.parametrize("score", [at_once, never])
def test_nothing_is_drawn_after_the_evaluation(
    score: Callable[[Config], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    draw = SamplingTable.draw

    def drawn(self: SamplingTable, count: int) -> IntArray:
        done.append("noise")
        return draw(self, count)

    def evaluated_here(code: Callable[[], IntArray], until: float, length: int) -> IntArray:
        done.append("evaluation")
        return evaluated(code, until, length)

    monkeypatch.setattr(SamplingTable, "draw", drawn)
    monkeypatch.setattr(endpoint, "evaluated", evaluated_here)
    seconds(score, 0)
    assert done == ["noise", "evaluation"]


def test_what_follows_an_evaluation_begins_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Signing and packing is the same work at the same time, whether there was an answer or not."""
    began: list[float] = []
    real = NoiseShare.added_to

    def added_to(self: NoiseShare, answer: IntArray) -> IntArray:
        began.append(time.monotonic())
        return real(self, answer)

    monkeypatch.setattr(NoiseShare, "added_to", added_to)
    shares = []
    for score in (at_once, never):
        found = []
        for number in range(4):
            begun = time.monotonic()
            seconds(score, number)
            found.append(began[-1] - begun)
        shares.append(min(found))
    early, late = shares
    assert early == pytest.approx(late, rel=0.15)


@pytest.mark.usefixtures("slow_noise")
def test_a_deadline_that_is_too_short_for_noise_and_keys_is_refused() -> None:
    with pytest.raises(Refused, match=r"needs more than .* s for noise and keys .*: set a longer"):
        alone(at_once).handle(b"", request(deadline=DEADLINE / 4))


def test_noise_protects_one_answer() -> None:
    share = NoiseShare(TopVotes(3, 1), ANSWER)
    vote = np.array([0, 1, 0])
    with pytest.raises(OutOfBounds):
        share.added_to(np.array([2, 2, 2]))
    assert share.added_to(vote).tolist() == [0, 2, 2]
    with pytest.raises(RuntimeError, match="draw new noise"):
        share.added_to(vote)


def children() -> set[str]:
    """The number of every child of this process, zombies too."""
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal():
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    found.add(folder.name)
    return found


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether something comes true within a minute; a killed process ends a moment later."""
    end = soon(60.0)
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def descriptors() -> set[Path]:
    """What is open in this process."""
    return set(Path("/proc/self/fd").iterdir())


def sleep_for_ever() -> IntArray:
    while True:
        time.sleep(1.0)


def deaf() -> IntArray:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return sleep_for_ever()


def leave_the_group() -> IntArray:
    os.setpgid(0, os.getpgid(os.getppid()))
    return sleep_for_ever()


def flood() -> IntArray:
    """Junk without end into the pipe that nobody but the new process writes to."""
    for new in descriptors() - DESCRIPTORS:
        with contextlib.suppress(OSError):
            while "pipe" in str(new.readlink()):
                os.write(int(new.name), b"\xff" * 4096)
    return ANSWER


def crash() -> IntArray:
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)
    return ANSWER


def leave(code: int) -> IntArray:
    os._exit(code)


def raises(error: BaseException) -> IntArray:
    raise error


def test_an_answer_comes_back_as_it_was() -> None:
    for answer in (ANSWER, np.array([-(2**63), 2**63 - 1]), np.empty(0, np.int64)):
        found = evaluated(lambda answer=answer: answer, soon(), len(answer))  # type: ignore[misc]
        assert np.array_equal(found, answer)
        assert found.dtype == np.int64
    large = np.arange(300_000)  # more than a pipe holds
    assert np.array_equal(evaluated(lambda: large, soon(), len(large)), large)


@pytest.mark.parametrize(
    ("evaluate", "reason"),
    [
        (sleep_for_ever, "took longer"),
        (lambda: hold_the_interpreter(30.0), "took longer"),
        (deaf, "took longer"),
        (leave_the_group, "took longer"),
        (flood, "sent something else than an answer"),
        (crash, "ended without an answer"),
        (lambda: leave(0), "ended without an answer"),
        (lambda: leave(3), "ended without an answer"),
        (lambda: raises(ZeroDivisionError("patient 7")), "^ZeroDivisionError$"),
        (lambda: raises(SystemExit("patient 7")), "^SystemExit$"),
        (lambda: raises(KeyboardInterrupt()), "^KeyboardInterrupt$"),
        (lambda: np.zeros(3), "^TypeError$"),
        (lambda: np.zeros((3, 1), np.int64), "^TypeError$"),
        (lambda: "no array", "^TypeError$"),
        (lambda: np.zeros(9, np.int64), "sent something else than an answer"),
    ],
)
def test_whatever_the_code_does_there_is_a_reason_and_nothing_is_left(
    evaluate: Callable[[], IntArray], reason: str
) -> None:
    before = children()
    DESCRIPTORS.clear()
    DESCRIPTORS.update(descriptors())
    with pytest.raises((Unanswered, TimeoutError), match=reason) as failed:
        evaluated(evaluate, soon(DEADLINE if reason == "took longer" else LATER), 3)
    assert "patient 7" not in repr(failed.value)
    assert failed.value.__cause__ is None
    assert eventually(lambda: children() <= before)
    assert descriptors() <= DESCRIPTORS, "of those that were open, garbage may have been collected"


def test_children_of_the_code_end_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def with_a_child(answers: bool) -> IntArray:
        if not (child := os.fork()):
            time.sleep(LATER)
        file.write_text(str(child))
        return ANSWER if answers else sleep_for_ever()

    def is_gone() -> bool:
        stat = Path("/proc") / file.read_text() / "stat"
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    assert np.array_equal(evaluated(lambda: with_a_child(True), soon(), 3), ANSWER)
    assert eventually(is_gone)
    with pytest.raises(TimeoutError):
        evaluated(lambda: with_a_child(False), soon(1.0), 3)
    assert eventually(is_gone)


def test_a_child_that_comes_back_instead_does_not_answer_too() -> None:
    def both() -> IntArray:
        return np.full(3, 1 if os.fork() else 2)

    assert evaluated(both, soon(), 3).tolist() == [1, 1, 1]


def test_nothing_is_begun_when_the_time_is_up(tmp_path: Path) -> None:
    def note() -> IntArray:
        (tmp_path / "begun").touch()
        return ANSWER

    with pytest.raises(TimeoutError):
        evaluated(note, time.monotonic(), 3)
    assert not list(tmp_path.iterdir())


def test_the_code_runs_in_a_process_of_its_own() -> None:
    mine = os.getpid(), os.getpgrp()
    found = evaluated(
        lambda: np.array([os.getppid(), os.getpid() == os.getpgrp(), os.getpgrp()]), soon(), 3
    )
    assert found[0] == mine[0]
    assert found[1]
    assert found[2] != mine[1]


def test_what_was_about_to_be_printed_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anything run that waits for the end of this process."""
    log = tmp_path / "log"

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")

    def speaks() -> IntArray:
        say("from the code")
        return ANSWER

    with log.open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        atexit.register(say, "at the end")
        try:
            say("before")
            evaluated(speaks, soon(), 3)
        finally:
            atexit.unregister(say)
        say("after")
    assert log.read_text().splitlines() == ["before", "from the code", "after"]


def test_random_numbers_of_this_process_are_untouched() -> None:
    rng = np.random.default_rng(0)
    evaluated(lambda: rng.integers(0, 9, 3), soon(), 3)
    assert rng.integers(0, 9, 3).tolist() == np.random.default_rng(0).integers(0, 9, 3).tolist()


def test_several_threads_may_evaluate_at_once() -> None:
    found: dict[int, IntArray] = {}

    def one(number: int) -> None:
        found[number] = evaluated(lambda: np.full(3, number), soon(), 3)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: set(answer.tolist()) for number, answer in found.items()} == {
        number: {number} for number in range(8)
    }


def test_code_that_computes_in_parallel_ends_although_this_process_did_so_before() -> None:
    """GNU OpenMP waits for ever, in a forked process, for the threads that its parent had."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def trains() -> IntArray:
        layer = torch.nn.Linear(300, 300)
        layer(torch.ones(600, 300)).sum().backward()
        assert torch.get_num_threads() == 2
        return np.array([int((torch.ones(600, 600) @ torch.ones(600, 600))[0, 0])])

    try:
        assert trains().tolist() == [600]
        assert evaluated(trains, soon(), 1).tolist() == [600]
    finally:
        torch.set_num_threads(before)


def test_without_a_deadline_the_code_runs_here() -> None:
    seen: list[int] = []

    def score(config: Config) -> float:
        seen.append(os.getpid())
        return float(config["x"])

    one = channel(federation([FunctionClient(score)] * 5)).endpoints[0]
    one.handle(b"", request(deadline=math.inf))
    assert set(seen) == {os.getpid()}
