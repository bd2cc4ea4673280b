"""Broken privacy must not pass: every sabotage makes the test named for it fail.

That each of those tests passes without sabotage is seen where it stands.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.forked import forked, pytest_main
from tests.sabotage import SABOTAGES

ROOT = Path(__file__).parent.parent


def test_the_page_on_threats_says_how_many_of_its_tests_notice_a_sabotage() -> None:
    page = (ROOT / "docs" / "threats.md").read_text("utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", page))
    shown = {f"tests/{test}".partition("[")[0] for _, test in SABOTAGES.values()}
    named.discard("tests/test_sabotage.py::test_sabotage_is_noticed")
    counted = f"Of the {len(named)} tests that this page names, {len(named & shown)} are also shown"
    assert counted in " ".join(page.split())


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_noticed(name: str) -> None:
    _, test = SABOTAGES[name]
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.sabotage"]
    arguments += [f"tests/{test}", "--sabotage", name]
    sabotaged = forked(pytest_main, arguments, ROOT, os.environ)
    assert sabotaged.returncode == 1, sabotaged.stdout
    assert f"FAILED tests/{test}" in sabotaged.stdout
