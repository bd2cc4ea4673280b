"""What somebody who may write a ledger's file can do to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def edit(ledger: Path, *statements: str) -> None:
    """Carry out SQL that the ledger's own triggers would refuse."""
    connection = sqlite3.connect(ledger)
    for (trigger,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
