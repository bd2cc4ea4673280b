from __future__ import annotations

from pathlib import Path

import pytest

from tacit.secure.protocol import Refused
from tacit.sessions import DAY, MOST_UNOPENED, Sessions


def test_sums_that_never_opened_are_limited_to_so_many_a_day(tmp_path: Path) -> None:
    """Whoever reads the file again, as every message on Flower does, counts the same."""
    now = 1e9
    for number in range(MOST_UNOPENED):
        Sessions(tmp_path / "sessions", lambda: now).begin(str(number))
    with pytest.raises(Refused, match="32 sums were begun and not opened within a day"):
        Sessions(tmp_path / "sessions", lambda: now).begin("one more")
    Sessions(tmp_path / "sessions", lambda: now).finish("3")
    Sessions(tmp_path / "sessions", lambda: now).begin("one more")
    with pytest.raises(Refused):
        Sessions(tmp_path / "sessions", lambda: now).begin("another")
    Sessions(tmp_path / "sessions", lambda: now + DAY).begin("tomorrow")


def test_a_line_that_a_kill_cut_off_is_no_session_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    Sessions(path, lambda: 0.0).begin("one")
    path.write_bytes(path.read_bytes() + b'["two", 3')
    sessions = Sessions(path, lambda: 0.0)
    sessions.begin("three")
    assert sessions._unopened().keys() == {"one", "three"}
    assert path.stat().st_mode & 0o777 == 0o600
