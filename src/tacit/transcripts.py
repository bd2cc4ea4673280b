"""Transcripts of sums on disk: what was asked, what was signed, and what came out.

A transcript begins with the question itself, whose digest is in every signature, and the question
names the line of the server's ledger that was charged for it. So whoever has the transcript, the
roster and the ledger can compute the opened sum again, and sees that it is the one that was paid
for. Of a sum that stayed closed there is a file too if somebody was at fault for it: it holds the
evidence, and nothing to compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import msgspec
from msgspec import Struct

from tacit.endpoint import VERSION, AskSum, terms
from tacit.files import write_bytes
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.mechanisms import Participation, mechanism_of
from tacit.secure.crypto import digest
from tacit.secure.protocol import Fault, Round, Total
from tacit.secure.roster import Roster
from tacit.secure.transcript import Closed, Transcript

SUFFIX = ".transcript"
LARGEST = 256 * 2**20
"""Bytes; sums of large models are not kept beyond that."""


class _Kept(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What was asked, and what was signed."""

    question: bytes
    transcript: bytes

    name: ClassVar[str] = "{}"

    def keep(self, folder: Path, line: str) -> bool:
        """Write it to a folder, whole or not at all; False if it is too large to keep."""
        if len(self.transcript) > LARGEST:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        name = self.name.format(line[:32])
        write_bytes(folder / f"{name}{SUFFIX}", msgspec.msgpack.encode(self))
        return True

    @classmethod
    def read(cls, path: Path) -> Self:
        """A file, or a ValueError."""
        return cast("Self", _decoded(path, cls))

    def _paid(
        self, charges: dict[str, Charge], participation: Participation
    ) -> tuple[Charge, Round]:
        """The line that paid for the question, and its round; see :meth:`Record.check`."""
        try:
            asked = msgspec.msgpack.decode(self.question, type=AskSum)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the question cannot be read: {error}") from None
        if asked.version != VERSION:
            raise ValueError(
                f"the question has version {asked.version}; this version of Tacit reads {VERSION}"
            )
        said = Participation(asked.clients, asked.dropout, asked.colluding)
        if said != participation:
            raise ValueError(
                f"the question is for {terms(said)}; the roster is of {terms(participation)}"
            )
        mechanism = mechanism_of(asked.query.bound, participation, asked.variance)
        charge = charges.get(asked.line.hex())
        if charge is None:
            raise ValueError("the ledger has no such line: it was removed or altered")
        if charge.event != mechanism.event:
            raise ValueError("the ledger was charged for another question or other noise")
        question = digest(b"question", self.question)
        return charge, Round.of(asked.session, mechanism, question, asked.at_least)


class Record(_Kept, frozen=True, tag="tacit 1"):
    """One sum."""

    value: list[int]

    def check(
        self, charges: dict[str, Charge], roster: Roster, participation: Participation
    ) -> tuple[Charge, Total]:
        """The line that paid for the sum, and the sum computed again; a ValueError if they differ.

        Args:
            charges: the lines of the server's ledger whose chain is whole, by digest.
            roster: whose keys signed.
            participation: how many members there are, and how many of them have to sign. The
                question does not say that to anybody but the members that it asked: a few
                accomplices could have been asked as if they were all.
        """
        charge, around = self._paid(charges, participation)
        total = Transcript.from_bytes(self.transcript).recompute(around, roster)
        if total.value.tolist() != self.value:
            raise ValueError("the signed vectors add up to another sum than was recorded")
        _check_session(charge, around)
        return charge, total


class ClosedRecord(_Kept, frozen=True, tag="tacit closed 1"):
    """The evidence against whoever misbehaved in a sum that stayed closed."""

    name = "{}-closed"

    def check(
        self, charges: dict[str, Charge], roster: Roster, participation: Participation
    ) -> tuple[Charge, tuple[Fault, ...]]:
        """The line that paid for the question, and who misbehaved; see :meth:`Record.check`."""
        charge, around = self._paid(charges, participation)
        faults = Closed.from_bytes(self.transcript).judged(around, roster)
        _check_session(charge, around)
        return charge, faults


def _check_session(charge: Charge, around: Round) -> None:
    if charge.session != around.session.hex():
        raise ValueError(f"the ledger does not say that this session asked on line {charge.number}")


def _decoded(path: Path, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the file is no transcript: {error}") from None


@dataclass(frozen=True)
class Finding:
    """What the transcript of one sum says."""

    file: str
    line: int | None = None
    survivors: int = 0
    faults: tuple[str, ...] = ()
    problem: str = ""
    closed: bool = False
    """Whether it holds evidence only, since the sum stayed closed."""


def check_transcripts(
    paths: Iterable[Path], ledger: Ledger, roster: Roster, participation: Participation
) -> list[Finding]:
    """One finding a transcript; a folder stands for all transcripts below."""
    charges = {charge.digest: charge for charge in ledger.intact()}
    findings = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"no transcripts at {path}; allowed are a transcript, or a folder")
        for file in sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]:
            try:
                findings.append(_finding(file, charges, roster, participation))
            except ValueError as error:
                findings.append(Finding(str(file), problem=str(error)))
    return findings


def _finding(
    file: Path, charges: dict[str, Charge], roster: Roster, participation: Participation
) -> Finding:
    record: Record | ClosedRecord = _decoded(file, Record | ClosedRecord)
    if isinstance(record, ClosedRecord):
        charge, faults = record.check(charges, roster, participation)
        return Finding(str(file), charge.number, faults=tuple(map(str, faults)), closed=True)
    charge, total = record.check(charges, roster, participation)
    return Finding(str(file), charge.number, len(total.survivors), tuple(map(str, total.faults)))
