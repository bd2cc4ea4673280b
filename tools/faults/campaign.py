"""A campaign is many trials of one kind; trials are played by forked processes, one a core.

A trial is a seed and an empty folder. Whoever plays it may be killed, hang or crash: then the trial
counts as failed and the others go on. Processes are forked after everything is imported and warm,
so that a trial costs what it does and no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """What came of a trial, or of a batch of them."""

    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """What happened how often; for the table."""


Play = Callable[[int, Path], Outcome]
"""Plays the trial of a seed in an empty folder."""


@dataclass(frozen=True)
class Ready:
    """What is needed to play trials."""

    play: Play
    most: int | None = None
    """How many different trials there are, if that is not without end."""


@dataclass(frozen=True)
class Campaign:
    """Trials of one kind."""

    name: str
    what: str
    """One sentence for the table."""
    full: int
    """How many trials."""
    quick: int
    prepare: Callable[[Path, Sequence[int]], Ready]
    """Makes what the trials of some seeds need, in a folder, and warms up; before any fork."""
    batch: int = 1
    """How many trials are played at once: where one takes hardly any time."""
    unavailable: Callable[[], str] = lambda: ""
    """Why it cannot be carried out here, or nothing."""
    longest: float = 120.0
    """Seconds after which a batch counts as hanging."""

    def pieces(self, trials: int) -> range:
        """The batches that so many trials are played in."""
        return range(-(-trials // self.batch))


@dataclass
class _Player:
    process: int
    pipe: int
    waiting: list[int]
    since: float
    heard: bytes = b""


@contextlib.contextmanager
def prepared(campaign: Campaign, scratch: Path, seeds: Sequence[int]) -> Iterator[Ready]:
    """Make what trials of these seeds need, and remove it after them."""
    folder = scratch / campaign.name
    folder.mkdir()
    try:
        yield campaign.prepare(folder, seeds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def played(
    campaign: Campaign,
    play: Play,
    pieces: Sequence[int],
    seed: int,
    scratch: Path,
    processes: int,
    until: float,
) -> Iterator[tuple[int, Outcome]]:
    """Outcomes by piece as they come; those that are missing when the time is over are not played.

    The seed of a piece is ``seed + piece``.
    """
    shares = [list(pieces[start::processes]) for start in range(processes)]
    players = [_begun(campaign, play, share, seed, scratch) for share in shares if share]
    try:
        while players:
            ready, _, _ = select.select([player.pipe for player in players], [], [], 0.5)
            for player in list(players):
                if player.pipe in ready:
                    data = os.read(player.pipe, 1 << 16)
                    yield from _told(player, data)
                    if not data:
                        players.remove(player)
                        os.close(player.pipe)
                        _, status = os.waitpid(player.process, 0)
                        if player.waiting:
                            lost = player.waiting.pop(0)
                            yield lost, Outcome([f"whoever played it ended with status {status}"])
                            if player.waiting:
                                players.append(
                                    _begun(campaign, play, player.waiting, seed, scratch)
                                )
                elif time.monotonic() - player.since > campaign.longest:
                    os.killpg(player.process, signal.SIGKILL)  # its end is noted as any other
                    player.since = time.monotonic()
            if time.monotonic() > until:
                return
    finally:
        for player in players:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(player.process, signal.SIGKILL)
            os.close(player.pipe)
            os.waitpid(player.process, 0)


def _told(player: _Player, data: bytes) -> Iterator[tuple[int, Outcome]]:
    *lines, player.heard = (player.heard + data).split(b"\n")
    for line in lines:
        piece, failures, counts = json.loads(line)
        player.waiting.remove(piece)
        player.since = time.monotonic()
        yield piece, Outcome(failures, Counter(counts))


def _begun(
    campaign: Campaign, play: Play, pieces: Sequence[int], seed: int, scratch: Path
) -> _Player:
    """A process that plays some pieces, one after the other."""
    reader, writer = os.pipe()
    process = forked()
    if process == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(reader)
            for piece in pieces:
                outcome = _played(campaign, play, piece, seed, scratch)
                line = json.dumps([piece, outcome.failures, outcome.counts]).encode() + b"\n"
                while line:
                    line = line[os.write(writer, line) :]
            status = 0
        finally:
            os._exit(status)
    with contextlib.suppress(OSError):  # whichever of the two comes first
        os.setpgid(process, process)
    os.close(writer)
    return _Player(process, reader, list(pieces), time.monotonic())


def _played(campaign: Campaign, play: Play, piece: int, seed: int, scratch: Path) -> Outcome:
    folder = scratch / f"{campaign.name}-{piece}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        outcome = play(seed + piece, folder)
    except Exception:
        told = traceback.format_exc().strip().splitlines()
        outcome = Outcome([f"the trial itself failed: {' | '.join(told[-6:])}"])
    shutil.rmtree(folder, ignore_errors=True)
    outcome.failures = [f"seed {seed + piece}: {failure}" for failure in outcome.failures]
    return outcome


def forked() -> int:
    """``os.fork``; newer Pythons warn of threads, and ours are idle pools."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
