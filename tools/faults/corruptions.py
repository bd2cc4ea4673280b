"""Ledgers with damaged files: each is refused, or says what it always said.

A file is damaged in one of eight ways, with or without a journal of a transaction that a kill cut
short beside it. Then everything is asked of it. Nothing may be charged to a ledger that does not
verify, and no error may be another than :class:`tacit.privacy.ledger.LedgerError`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tacit.privacy.accounting import Budget
from tacit.privacy.events import Event
from tacit.privacy.ledger import BudgetExceeded, Ledger, LedgerError
from tools.faults.campaign import Campaign, Outcome, Ready, forked
from tools.faults.members import BALLOT, VARIANCE

PAGE = 4096
_NAME = "ledger.sqlite"
_JOURNAL = f"{_NAME}-journal"
Damage = Callable[[bytes, random.Random], bytes]


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _zeroed(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.choice((1, 16, 512, PAGE))
    return data[:start] + bytes(len(data[start : start + size])) + data[start + size :]


def _inserted(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.randbytes(chance.choice((1, 7, 100, PAGE))) + data[place:]


def _cut(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + data[place + chance.choice((1, 7, 100, PAGE)) :]


def _shortened(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _page_zeroed(data: bytes, chance: random.Random) -> bytes:
    start = PAGE * chance.randrange(len(data) // PAGE)
    return data[:start] + bytes(PAGE) + data[start + PAGE :]


def _pages_swapped(data: bytes, chance: random.Random) -> bytes:
    pages = [data[start : start + PAGE] for start in range(0, len(data), PAGE)]
    one, other = chance.randrange(len(pages)), chance.randrange(len(pages))
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def _overwritten(data: bytes, chance: random.Random) -> bytes:
    """A character of a line becomes another one that may stand there."""
    places = [place for place, byte in enumerate(data) if chr(byte) in "0123456789abcdef"]
    place = chance.choice(places)
    return data[:place] + chance.choice("0123456789abcdef").encode() + data[place + 1 :]


_DAMAGES: tuple[Damage, ...] = (
    _flipped,
    _zeroed,
    _inserted,
    _cut,
    _shortened,
    _page_zeroed,
    _pages_swapped,
    _overwritten,
)


def corrupted(prepared: Path, _seeds: Sequence[int]) -> Ready:
    """Trials on copies of one ledger with lines of every kind."""
    path = prepared / _NAME
    event = BALLOT.bound.release(VARIANCE)
    _fill(path, event)
    told = {_says(Ledger(path))}
    hot = prepared / "hot"
    hot.mkdir()
    _killed_while_charging(path, hot, event)

    def play(seed: int, folder: Path) -> Outcome:
        chance = random.Random(f"corruptions {seed}")
        with_journal = chance.random() < 0.3
        source = hot if with_journal else prepared
        for name in (_NAME, _JOURNAL) if with_journal else (_NAME,):
            shutil.copy(source / name, folder / name)
        outcome = Outcome()
        damage = chance.choice(_DAMAGES)
        name = chance.choice((_NAME, _JOURNAL)) if with_journal else _NAME
        if chance.random() < 0.05:
            name, damage = _JOURNAL, lambda _data, dice: dice.randbytes(2000)
            (folder / name).touch()
        damaged = damage((folder / name).read_bytes(), chance)
        (folder / name).write_bytes(damaged)
        try:
            problem = _looked_at(folder / _NAME, told, event, outcome)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            outcome.failures.append(f"{name}, {damage.__name__.strip('_')}: {problem}")
        return outcome

    return Ready(play)


def _fill(path: Path, event: Event) -> None:
    """A ledger with a line of every kind."""
    ledger = Ledger.create(path, "clinics", Budget(12.0, 1e-5))
    for number in range(12):
        charge = ledger.charge(event, f"vote {number}", "run")
        session = f"{number:064x}"
        if number % 4 == 0:
            ledger.ask(charge, session)
            ledger.seal(session)
        elif number % 4 == 1:
            ledger.ask(charge, session)
            ledger.close(session, {"signatures": {"0": "00" * 64}})
        elif number % 4 == 2:
            ledger.take(charge, number)
    ledger.bar("f" * 64)
    ledger.amend(Budget(15.0, 1e-5), "a second year")
    ledger.charge(event, "vote", "after the amendment")


def _killed_while_charging(path: Path, hot: Path, event: Event) -> None:
    """A copy as a kill leaves it between two writes of a transaction: with a journal beside it."""
    shutil.copy(path, hot / _NAME)
    process = forked()
    if process == 0:
        connection = sqlite3.connect(hot / _NAME, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("PRAGMA cache_spill = 1")
        connection.execute("BEGIN IMMEDIATE")
        last = connection.execute("SELECT max(number) FROM line").fetchone()[0]
        for number in range(1, 40):  # more than the cache holds, so that pages are in the file
            connection.execute(
                "INSERT INTO line VALUES (?, ?, ?, ?)",
                (last + number, "charge", repr(event) * 20, "0" * 64),
            )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    if not (hot / _JOURNAL).stat().st_size:
        raise RuntimeError("the kill left no journal")


def _says(ledger: Ledger) -> tuple[Any, ...]:
    """Everything that a ledger says."""
    return (
        ledger.federation,
        ledger.budget,
        repr(ledger.budgets()),
        repr(ledger.charges()),
        repr(ledger.total()),
    )


def _looked_at(path: Path, told: set[tuple[Any, ...]], event: Event, outcome: Outcome) -> str:
    """What is wrong with how a damaged ledger behaves, or nothing."""
    try:
        ledger = Ledger(path)
        problems = ledger.verify()
        says = _says(ledger)
    except LedgerError:
        outcome.counts["refused"] += 1
        with suppress(LedgerError):
            Ledger(path).charge(event, "vote", "after the damage")
            return "it was refused, and then charged"
        return ""
    if problems:
        outcome.counts["does not verify"] += 1
        with suppress(LedgerError, BudgetExceeded):
            ledger.charge(event, "vote", "after the damage")
            return f"it does not verify ({problems[0].found}), and was charged"
        return ""
    outcome.counts["as it was"] += 1
    if says not in told:
        return "nothing is wrong with it, and it says something else than before"
    ledger.charge(event, "vote", "after the damage")
    found = Ledger(path).verify()
    return f"it does not verify after a charge: {found[0].found}" if found else ""


CORRUPTIONS = Campaign(
    "corruptions",
    "A ledger's file, or the journal beside it, is damaged.",
    full=1200,
    quick=200,
    prepare=corrupted,
)
