"""Transcripts of sums on disk: what was asked, what was signed, and what came out.

A transcript begins with the question itself, whose digest is in every signature, and the question
names the line of the server's ledger that was charged for it. So whoever has the transcript, the
roster and the ledger can compute the opened sum again, and sees that it is the one that was paid
for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from tacit.endpoint import VERSION, AskSum, terms
from tacit.files import write_bytes
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.mechanisms import Participation, mechanism_of
from tacit.secure.crypto import digest
from tacit.secure.protocol import Round, Total
from tacit.secure.roster import Roster
from tacit.secure.transcript import Transcript

SUFFIX = ".transcript"
LARGEST = 256 * 2**20
"""Bytes; sums of large models are not kept beyond that."""


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="tacit 1"):
    """One sum."""

    question: bytes
    transcript: bytes
    value: list[int]

    def keep(self, folder: Path, line: str) -> bool:
        """Write it to a folder, whole or not at all; False if it is too large to keep."""
        if len(self.transcript) > LARGEST:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / f"{line[:32]}{SUFFIX}", msgspec.msgpack.encode(self))
        return True

    @classmethod
    def read(cls, path: Path) -> Record:
        """A file, or a ValueError."""
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the file is no transcript: {error}") from None

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
        around = Round.of(asked.session, mechanism, question, asked.at_least)
        total = Transcript.from_bytes(self.transcript).recompute(around, roster)
        if total.value.tolist() != self.value:
            raise ValueError("the signed vectors add up to another sum than was recorded")
        if charge.session != asked.session.hex():
            raise ValueError(
                f"the ledger does not say that this session asked on line {charge.number}"
            )
        return charge, total


@dataclass(frozen=True)
class Finding:
    """What the transcript of one sum says."""

    file: str
    line: int | None = None
    survivors: int = 0
    faults: tuple[str, ...] = ()
    problem: str = ""


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
                charge, total = Record.read(file).check(charges, roster, participation)
            except ValueError as error:
                findings.append(Finding(str(file), problem=str(error)))
                continue
            faults = tuple(map(str, total.faults))
            findings.append(Finding(str(file), charge.number, len(total.survivors), faults))
    return findings
