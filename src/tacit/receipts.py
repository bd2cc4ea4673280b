"""Receipts: a client's signed word on what it took part in.

A receipt names the question, the noise it was priced with, and the line of the server's ledger that
was charged for it. The lines of a ledger are chained by SHA-256, so a receipt pins its line and all
before it: a server that drops, edits or cheapens a line, or asks twice under one, no longer fits
the clients' receipts. That is checked offline, with the roster, by whoever collects both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from tacit.files import json_text, write_whole
from tacit.privacy.events import Event, to_json
from tacit.privacy.ledger import Charge, Ledger
from tacit.secure.crypto import digest
from tacit.secure.roster import Identity, Roster


class Receipt(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a client took part in, signed with the key that the roster lists; digests are hex."""

    roster: str
    client: int
    session: str
    question: str
    line: str
    event: dict[str, Any]
    time: str
    signature: str = ""
    left_out: list[int] = []
    """Clients that were not in the sum when this one answered: they were silent or misbehaved."""

    @classmethod
    def signed(
        cls,
        identity: Identity,
        roster: Roster,
        *,
        client: int,
        session: str,
        question: str,
        line: str,
        event: Event,
        left_out: Sequence[int] = (),
    ) -> Receipt:
        """A receipt of now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        draft = cls(
            roster.digest.hex(),
            client,
            session,
            question,
            line,
            to_json(event),
            now,
            left_out=list(left_out),
        )
        return msgspec.structs.replace(draft, signature=identity.sign(draft.text).hex())

    @property
    def text(self) -> bytes:
        """What is signed: everything but the signature."""
        told = msgspec.to_builtins(msgspec.structs.replace(self, signature=""))
        return digest(b"receipt", json.dumps(told, sort_keys=True).encode())

    def is_signed(self, roster: Roster) -> bool:
        """Whether the roster's client of this number signed it."""
        try:
            signature = bytes.fromhex(self.signature)
        except ValueError:
            return False
        if signature.hex() != self.signature:  # one spelling, so that no character may change
            return False
        return self.roster == roster.digest.hex() and roster.confirms(
            self.client, self.text, signature
        )

    def keep(self, folder: Path) -> None:
        """Write it to a client's folder of receipts, whole or not at all.

        The server picks sessions, so the whole of it is in the name: with a part of it, a second
        session that begins alike would replace the first one's receipt.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            folder / f"client-{self.client}-{self.session}.json",
            json_text(msgspec.to_builtins(self)) + "\n",
        )


Receipts: TypeAlias = Mapping[str, Receipt | None]
"""Receipts by file name; None stands for what is no receipt."""


@dataclass(frozen=True)
class Disagreement:
    """A receipt that does not fit the ledger, the roster or the other receipts."""

    file: str
    found: str


def read_receipts(paths: Iterable[Path]) -> dict[str, Receipt | None]:
    """Receipts by file name; a folder stands for all JSON files below, None for no receipt."""
    found: dict[str, Receipt | None] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"no receipts at {path}; allowed are a receipt, or a folder of receipts"
            )
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        found |= {str(file): _read(file) for file in files if file.is_file()}
    return found


def check_receipts(receipts: Receipts, ledger: Ledger, roster: Roster) -> list[Disagreement]:
    """Whatever receipts and ledger do not agree on; an empty list means they agree on all.

    Only lines whose chain of digests is whole count as the ledger's. A line stands for one session:
    the one that most receipts name, since any client can sign that there was another.
    """
    charges = {charge.digest: charge for charge in ledger.intact()}
    fitting: dict[str, Receipt] = {}
    problems: list[Disagreement] = []
    for file, receipt in receipts.items():
        found = _misfit(receipt, charges, roster)
        if found:
            problems.append(Disagreement(file, found))
        elif receipt:
            fitting[file] = receipt
    for pinned, charge in charges.items():
        of_line = {file: one for file, one in fitting.items() if one.line == pinned}
        problems += _repeats(of_line, charge.number)
    return problems


def count_by_line(
    receipts: Receipts, problems: Iterable[Disagreement], ledger: Ledger
) -> dict[int, int]:
    """For every charge, by its line's number, how many clients' receipts agree with it."""
    odd = {problem.file for problem in problems}
    signers = {
        (receipt.line, receipt.client)
        for file, receipt in receipts.items()
        if receipt and file not in odd
    }
    counts = Counter(line for line, _client in signers)
    return {charge.number: counts[charge.digest] for charge in ledger.intact()}


def left_out_by_line(
    receipts: Receipts, problems: Iterable[Disagreement], ledger: Ledger
) -> dict[int, list[int]]:
    """For every charge, by its line's number, whom the receipts that agree with it leave out."""
    odd = {problem.file for problem in problems}
    missing: dict[str, set[int]] = {}
    for file, receipt in receipts.items():
        if receipt and file not in odd:
            missing.setdefault(receipt.line, set()).update(receipt.left_out)
    named = ((charge.number, missing.get(charge.digest)) for charge in ledger.intact())
    return {number: sorted(found) for number, found in named if found}


def _read(file: Path) -> Receipt | None:
    try:
        receipt = msgspec.json.decode(file.read_bytes(), type=Receipt)
        receipt.text  # noqa: B018  # fails on what is nested too deeply to be signed
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return receipt


def _misfit(receipt: Receipt | None, charges: Mapping[str, Charge], roster: Roster) -> str:
    """What is wrong with one receipt, if anything."""
    if receipt is None:
        return "the file cannot be read as a receipt"
    if not receipt.is_signed(roster):
        return f"not signed by client {receipt.client} of this roster"
    if receipt.line not in charges:
        return "the ledger has no such line: it was removed or altered"
    if charges[receipt.line].state == "closed":
        return "the ledger closed this line as never answered, and counts it no longer"
    charged = json.loads(json.dumps(to_json(charges[receipt.line].event)))
    if receipt.event != charged:
        return "the ledger was charged for another question or other noise"
    return ""


def _repeats(receipts: Mapping[str, Receipt], line: int) -> list[Disagreement]:
    """Receipts of one line that name another session or question than most; copies are fine."""
    asked = dict.fromkeys((one.client, one.session, one.question) for one in receipts.values())
    times = Counter(client for client, _session, _question in asked)
    rounds = Counter((session, question) for _client, session, question in asked)
    usual = max(rounds, key=lambda one: rounds[one], default=None)
    return [
        Disagreement(
            file,
            f"client {one.client} answered twice for line {line}: the server asked twice under "
            "one charge"
            if times[one.client] > 1
            else f"client {one.client} answered another session for line {line} than others did: "
            "the server asked twice under one charge",
        )
        for file, one in receipts.items()
        if (one.session, one.question) != usual
    ]
