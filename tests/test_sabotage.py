"""Broken privacy must not pass: every sabotage makes the test named for it fail.

That each of those tests passes without sabotage is seen where it stands.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forked import forked, pytest_main
from tests.sabotage import SABOTAGES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_noticed(name: str) -> None:
    _, test = SABOTAGES[name]
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.sabotage"]
    arguments += [f"tests/{test}", "--sabotage", name]
    sabotaged = forked(pytest_main, arguments, ROOT, os.environ)
    assert sabotaged.returncode == 1, sabotaged.stdout
    assert f"FAILED tests/{test}" in sabotaged.stdout
