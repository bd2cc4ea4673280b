"""What somebody who may write a ledger's file can do to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tacit.privacy.ledger_lines import digest


def edit(ledger: Path, *statements: str) -> None:
    """Carry out SQL that the ledger's own triggers would refuse."""
    connection = sqlite3.connect(ledger)
    triggers = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
    ).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'line'").fetchone():
        for _, sql in triggers:
            connection.execute(sql)
    connection.commit()
    connection.close()


def chained_anew(ledger: Path) -> None:
    """Make the digests of all lines fit what the lines say now."""
    connection = sqlite3.connect(ledger)
    lines = connection.execute("SELECT number, kind, body FROM line ORDER BY number").fetchall()
    connection.close()
    tip, statements = "", []
    for number, kind, body in lines:
        tip = digest(tip, number, kind, body)
        statements.append(f"UPDATE line SET digest = '{tip}' WHERE number = {number}")
    edit(ledger, *statements)
