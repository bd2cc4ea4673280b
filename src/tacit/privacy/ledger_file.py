"""The SQLite file of a ledger: its schema, its lines, and transactions that hold or did not happen.

Every transaction takes the write lock first and commits with full synchronisation, so two processes
cannot write together and a crash at any moment loses no committed line. Triggers refuse changes to
lines. The schema is digested into the first line, so a file without its triggers is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tacit.locks import real
from tacit.privacy.ledger_lines import LedgerError, Line, printable
from tacit.privacy.ledger_locks import check_locks, look, turn

APPLICATION, FORMAT = 0x54616369, 2
_LOCK_SECONDS = 600.0
_APPEND_ONLY = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
_SCHEMA = (
    (
        "table",
        "line",
        "CREATE TABLE line (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, "
        "digest TEXT NOT NULL)",
    ),
    (
        "trigger",
        "line_is_never_changed",
        f"CREATE TRIGGER line_is_never_changed BEFORE UPDATE ON line {_APPEND_ONLY}",
    ),
    (
        "trigger",
        "line_is_never_removed",
        f"CREATE TRIGGER line_is_never_removed BEFORE DELETE ON line {_APPEND_ONLY}",
    ),
)
SCHEMA = hashlib.sha256(json.dumps([FORMAT, *_SCHEMA]).encode()).hexdigest()
"""Of this version's schema; every ledger's first line holds it."""


class LedgerFile:
    """An open file, or a ledger in memory."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, on_disk: bool) -> None:
        self.path, self.connection, self.on_disk = path, connection, on_disk
        self._sound = False
        self._inode = _inode(path) if on_disk else None

    @classmethod
    def open(cls, path: Path) -> LedgerFile:
        """An existing file, if it is a ledger of this format."""
        check_locks(path)
        with failing(path, "cannot be read as a ledger"):
            connection = _connect(path)
            application, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
        if application != APPLICATION:
            raise LedgerError(f"{path} is not a Tacit ledger; nothing was read or written")
        if version != FORMAT:
            older = "made before lines recorded what happened to a charge" if version == 1 else ""
            raise LedgerError(
                f"{path} has ledger format {version}{f', {older}' if older else ''}; this version "
                f"of Tacit reads {FORMAT}: keep the file as a record, create a new ledger, and "
                "give it only the budget that the old one has left"
            )
        return cls(path, connection, on_disk=True)

    @classmethod
    def in_memory(cls) -> LedgerFile:
        """One that ends with the process."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _prepare(connection)
        return cls(Path(":memory:"), connection, on_disk=False)

    @classmethod
    def draft(cls, path: Path) -> LedgerFile:
        """A new file, to be linked to its final name when it has its first line."""
        check_locks(path)
        # Built aside, then linked: at no moment is there half a ledger under the final name.
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        connection = _connect(draft)
        _prepare(connection)
        return cls(draft, connection, on_disk=True)

    def finish(self, path: Path) -> None:
        """Give a draft its final name."""
        self.connection.close()
        try:
            os.link(self.path, path)  # unlike a rename, refuses to replace what a rival just made
        except FileExistsError:
            raise LedgerError(f"{path} exists already; open it instead") from None
        finally:
            self.path.unlink()
        _sync_folder(path.parent)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, when it is this process's turn, with the write lock from the start."""
        with turn(self.path) if self.on_disk else nullcontext(), self._begun():
            if self.on_disk and _inode(self.path) != self._inode:
                raise LedgerError(
                    f"{self.path} was replaced while it was open, so nothing may be asked: begin "
                    "again with the file that is there now"
                )
            yield

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Nobody writes in this block; it must not be within a transaction of this file."""
        with look(self.path) if self.on_disk else nullcontext():
            yield

    def append(self, line: Line) -> None:
        """Write a line, within a transaction."""
        values = line.number, line.kind, line.body, line.digest
        self.connection.execute("INSERT INTO line VALUES (?, ?, ?, ?)", values)

    def lines(self, start: int | None) -> list[Line]:
        """All lines from this number on, or really all."""
        which, numbers = ("", ()) if start is None else (" WHERE number >= ?", (start,))
        with failing(self.path, "cannot be read"):
            rows = self.connection.execute(
                f"SELECT number, kind, body, digest FROM line{which} ORDER BY number",  # noqa: S608
                numbers,
            ).fetchall()  # at once: an open query would keep others from committing
        return [Line(*row) for row in rows]

    def unsound(self) -> str:
        """What is wrong with the file around the lines, if anything."""
        with failing(self.path, "cannot be read"):
            read = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid"
            expected = [(kind, name, "line", sql) for kind, name, sql in _SCHEMA]
            if self.connection.execute(read).fetchall() != expected:
                return "the file's tables or triggers are not those of a ledger"
            if not self._sound:
                told = self.connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if told != "ok":
                    return f"the file is damaged ({printable(told)})"
                self._sound = True
        return ""

    @contextmanager
    def _begun(self) -> Iterator[None]:
        connection = self.connection
        with failing(self.path, "could not be written, so nothing may be asked"):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


@contextmanager
def failing(path: Path, how: str) -> Iterator[None]:
    """SQLite's errors as a sentence about the ledger."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:  # damage may be no text
        passing = isinstance(error, sqlite3.OperationalError)  # such as a lock or a full disk
        remedy = "" if passing else "; put the ledger back from a copy"
        raise LedgerError(f"{path} {how}: {printable(error)}{remedy}") from None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path) -> sqlite3.Connection:
    address = f"{real(path).as_uri()}?mode=rw"  # an existing file only
    connection = sqlite3.connect(address, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
    # A rollback journal with EXTRA syncs the file, the journal and its removal: what COMMIT
    # reported survives a power cut, not only a kill.
    connection.execute("PRAGMA synchronous = EXTRA")
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for _, _, statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
