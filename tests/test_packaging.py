"""What is built is complete, and works where nothing else of the project is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import tacit
from tests.pages import ROOT

PARTS = ("benchmarks", "docs", "examples", "src", "tests", "tools")


def built(kind: str, source: Path, out: Path) -> Path:
    """A wheel or a source distribution of a folder, by setuptools as it is installed here."""
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source],
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files, apart from what builds, tests and editors left there."""
    copy = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    for name in PARTS:
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", checkout, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_file_of_the_package(wheel: Path, checkout: Path) -> None:
    source = checkout / "src"
    own = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and ".egg-info" not in str(path) and path.suffix != ".pyc"
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == own
    assert {"tacit/py.typed", "tacit/__main__.py", "tacit/flower_template/plan.toml"} < packed
    assert any(name.startswith("tacit/score_tables/") for name in packed)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    said = archive.read(metadata).decode()
    assert f"Version: {tacit.__version__}\n" in said
    assert "License-Expression: Apache-2.0\n" in said
    assert "Requires-Python: >=3.11\n" in said
    (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "tacit = tacit.cli:main" in archive.read(entry).decode()


def test_the_version_stands_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    assert version("tacit") == tacit.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == tacit.__version__


def test_the_citation_has_what_the_format_requires() -> None:
    """Citation File Format 1.2.0: four keys, and authors that are persons or have a name."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["cff-version"] == "1.2.0"
    assert found["authors"] == [{"name": "The Tacit developers"}]
    assert found["type"] == "software"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (found["license"], found["keywords"]) == (project["license"], project["keywords"])


def test_python_m_tacit_is_the_command() -> None:
    command = [sys.executable, "-m", "tacit", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"tacit {tacit.__version__}\n"


@pytest.mark.slow
def test_the_source_distribution_is_the_whole_project(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    archive = built("sdist", checkout, tmp_path / "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    for name in PARTS:
        own, copied = (
            {path.relative_to(base).as_posix() for path in (base / name).rglob("*")}
            for base in (checkout, unpacked)
        )
        assert {path for path in own - copied if ".egg-info" not in path} == set()
    for name in ("Makefile", "constraints.txt", "mkdocs.yml", "site_hooks.py", "CITATION.cff"):
        assert (unpacked / name).is_file()
    again = built("wheel", unpacked, tmp_path / "wheel")
    contents = [sorted(zipfile.ZipFile(path).namelist()) for path in (wheel, again)]
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    """Needs whatever packages pip is configured to find; only what ``dependencies`` names."""
    home = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean["TACIT_HOME"] = str(tmp_path / "home")

    def run(*command: object) -> str:
        words = [str(word) for word in command]
        return subprocess.run(
            words, capture_output=True, text=True, check=True, env=clean, cwd=tmp_path
        ).stdout

    python = home / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    assert tacit.__version__ in run(home / "bin" / "tacit", "--version")
    assert "Chance of a good pick" in run(
        *(python, "-m", "tacit", "plan", "--clients", "50", "--candidates", "20", "--votes", "2"),
        *("--epsilon", "1", "--delta", "1e-5"),
    )
    few = "[lambda c, b=b: abs(c['x'] - b / 20) for b in range(20)], {'x': tacit.Float(0.0, 1.0)}"
    script = f"import tacit; print(tacit.tune({few}, tacit.Vote(2, candidates=8)).privacy.epsilon)"
    assert 0.9 < float(run(python, "-c", script)) <= 1
    assert "adult-iid-n100" in run(python, "-m", "tacit", "tables", "list")
    run(python, "-m", "tacit", "new", "clinics")
    assert (tmp_path / "clinics" / "plan.toml").is_file()
