"""Broken privacy must not pass: every sabotage makes the test named for it fail.

That each of those tests passes without sabotage is seen where it stands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sabotage import SABOTAGES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_noticed(name: str) -> None:
    _, test = SABOTAGES[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", "tests.sabotage", f"tests/{test}"]
    sabotaged = subprocess.run(
        [*command, "--sabotage", name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert sabotaged.returncode == 1, sabotaged.stdout
    assert f"FAILED tests/{test}" in sabotaged.stdout
