"""Messages and files that are almost right, by the hundred thousand.

Each is a recorded one of which something is altered: bytes, or values in what they encode, also
with a checksum that fits again. What reads it may do nothing but what it does with a valid one, or
raise what it says that it raises. The work is counted in calls of functions, so that no small
message keeps anybody busy; a slow machine does not count. A ledger changes only if something is
released, in exactly one line.
"""

from __future__ import annotations

import random
import re
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from tools.faults.campaign import Campaign, Outcome, Ready
from tools.faults.fuzz_files import file_targets
from tools.faults.fuzz_messages import message_targets
from tools.faults.recorded import conversation
from tools.faults.target import Target

BATCH = 500
MOST_CALLS = 2_000_000
"""Of functions, for one message; what costs most, a price that nobody asked for before, takes a
quarter of a million."""
MOST_SECONDS = 20.0
"""Of processor time, for one message: what is not counted in calls must end too."""
MOST_MEMORY = 4 * 2**30
"""Bytes beyond what the process has when it begins."""


class _Meter:
    """Counts calls of functions."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> _Meter:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1


def fuzzed(prepared: Path, _seeds: Sequence[int]) -> Ready:
    """Batches of messages of all kinds."""
    talk = conversation(prepared)
    targets = [*message_targets(talk), *file_targets(talk, prepared)]
    weights = [target.weight for target in targets]
    for target in targets:
        for base, data in enumerate(target.bases):
            place = prepared / "place"
            place.mkdir(exist_ok=True)
            with suppress(*target.allowed):
                wrong = target.attempt(base, data, place)
                if wrong:
                    raise RuntimeError(f"{target.name}: a valid one is wrong: {wrong}")

    def play(seed: int, folder: Path) -> Outcome:
        _limit_memory()
        chance = random.Random(f"fuzz {seed}")
        outcome = Outcome()
        for number in range(BATCH):
            target = chance.choices(targets, weights)[0]
            base = chance.randrange(len(target.bases))
            mutation = chance.choice(target.mutations)
            data = mutation(target.bases[base], chance)
            wrong, how, calls = _attempted(target, base, data, folder)
            outcome.counts[f"{target.name}: {how}"] += 1
            outcome.counts["calls"] += calls
            if wrong:
                about = f"{target.name}, message {number}, {mutation.__name__} of {base}"
                outcome.failures.append(f"{about}: {wrong}; {data[:200]!r}")
        return outcome

    return Ready(play)


def _attempted(target: Target, base: int, data: bytes, folder: Path) -> tuple[str, str, int]:
    """What is wrong, whether it was taken, and how many calls that took."""
    begun = time.process_time()
    wrong, how = "", "taken"
    with _Meter() as meter:
        try:
            wrong = target.attempt(base, data, folder)
        except target.allowed:
            how = "refused"
        except Exception as error:
            wrong, how = f"{type(error).__name__}: {error}", "failed"
    if meter.calls > MOST_CALLS + 10 * len(data):
        wrong = wrong or f"it took {meter.calls} calls"
    seconds = time.process_time() - begun
    if seconds > MOST_SECONDS:
        wrong = wrong or f"it took {seconds:.0f} s and {meter.calls} calls"
    return wrong, how, meter.calls


def _limit_memory() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        return
    found = re.search(r"VmSize:\s+(\d+) kB", status.read_text())
    if found:
        most = int(found[1]) * 1024 + MOST_MEMORY
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


FUZZ = Campaign(
    "fuzz",
    "A message or a file of any kind is altered.",
    full=100_000,
    quick=5_000,
    prepare=fuzzed,
    batch=BATCH,
    longest=600.0,
)
