"""What the README shows is what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_python_of_the_readme_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    assert names["noisy"] is not None


def test_plan_of_the_readme_is_what_the_command_prints() -> None:
    shown = re.search(r"\$ \S*tacit (plan .*?)\n(.*?)```", README, re.DOTALL)
    assert shown
    printed = subprocess.run(
        [sys.executable, "-c", "from tacit.cli import main; main()", *shown.group(1).split()],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "120"},
    ).stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines == shown.group(2).splitlines()


@pytest.mark.parametrize("target", re.findall(r"make ([\w-]+)", README))
def test_make_targets_of_the_readme_exist(target: str) -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
