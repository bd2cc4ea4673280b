"""Without Flower, Tacit says how to get it; everything else works."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["flwr"] = None
import tacit, tacit.cli
try:
    import tacit.flower
except ImportError as error:
    print(error)
"""


def test_missing_flower_is_named_with_its_remedy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "Flower is not installed; allowed is flwr 1.41: pip install 'tacit[flower]'\n"
    )
