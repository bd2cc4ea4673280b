"""A run is killed at every call that changes a file, in turn, and then goes on.

The calls are counted in a small library that is loaded before all others (``shim.c``), so it sees
those of Python, of SQLite and of every other library. It is compiled when it is needed.
"""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.faults.campaign import Campaign, Outcome, Ready
from tools.faults.children import Child
from tools.faults.history import breaches, given_up_for_nothing, lines_by_kind
from tools.faults.killed import KILLABLE, Killable, quietly
from tools.faults.members import AMPLE
from tools.faults.shim import unavailable


def killed_at_every_write(prepared: Path, _seeds: Sequence[int]) -> Ready:
    """A trial is a run, a call and a moment; there are as many as the runs make calls."""
    templates, calls = {}, {}
    for kind in KILLABLE:
        templates[kind.name] = prepared / kind.name
        templates[kind.name].mkdir()
        kind.make(templates[kind.name], AMPLE)
        calls[kind.name] = _calls(kind, templates[kind.name])
    plan = [
        (kind, call, half)
        for kind in KILLABLE
        for call, is_write in enumerate(calls[kind.name], start=1)
        for half in (False, True)[: 1 + is_write]
    ]

    def play(seed: int, folder: Path) -> Outcome:
        kind, call, half = plan[seed * _STRIDE % len(plan)]
        place = folder / "place"
        shutil.copytree(templates[kind.name], place)
        outcome = Outcome()
        work = partial(kind.go_on, place, "run")
        ended = Child(work, folder / "first.txt", partial(_arm, call, half=half)).ended()
        outcome.counts["kills"] += ended.killed
        about = f"{kind.name}, {'in' if half else 'before'} call {call}"
        if ended.wrong:
            outcome.failures.append(f"{about}: {ended.wrong}")
        outcome.failures += [f"{about}: {what}" for what in breaches(kind.evidence(place))]
        again = Child(work, folder / "second.txt").ended()
        if again.killed or again.code:
            outcome.failures.append(f"{about}, resumed: {again.wrong or again.said[-300:]}")
        left = kind.evidence(place)
        wrong = breaches(left) + given_up_for_nothing(left)
        outcome.failures += [f"{about}, resumed: {what}" for what in wrong]
        outcome.counts += lines_by_kind(left)
        return outcome

    return Ready(play, len(plan))


_STRIDE = 7919
"""Successive trials are far apart, so that a few of them are a sample of all; a prime."""


def _arm(call: int, *, half: bool) -> None:
    ctypes.CDLL(None).faults_arm(ctypes.c_long(call), int(half))


def _calls(kind: Killable, template: Path) -> list[bool]:
    """Which calls of a whole run that change files are writes.

    The run is done here first, so that all is warm.
    """
    library = ctypes.CDLL(None)
    library.faults_passed.restype = ctypes.c_long
    warm, counted = template.with_name("warm"), template.with_name("counted")
    shutil.copytree(template, warm)
    quietly(lambda: kind.go_on(warm, "run"))
    shutil.rmtree(warm)
    shutil.copytree(template, counted)

    def work() -> int:
        try:
            return kind.go_on(counted, "run")
        finally:
            passed = range(1, library.faults_passed() + 1)
            kinds = [bool(library.faults_is_write(ctypes.c_long(call))) for call in passed]
            (counted / "calls.json").write_text(json.dumps(kinds))

    ended = Child(work, counted / "said.txt", partial(_arm, 0, half=False)).ended()
    if ended.code:
        raise RuntimeError(f"{kind.name} does not run: {ended.said[-500:]}")
    calls: list[bool] = json.loads((counted / "calls.json").read_text())
    shutil.rmtree(counted)
    return calls


KILL_AT_EVERY_WRITE = Campaign(
    "kill-at-every-write",
    "A run of every kind is killed before, and in, every call that changes a file, and resumed.",
    full=_STRIDE - 1,  # more than there are calls
    quick=40,
    prepare=killed_at_every_write,
    unavailable=unavailable,
)
