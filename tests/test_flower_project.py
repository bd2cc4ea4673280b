from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import tacit
from tacit.flower_project import write_project
from tacit.plan import read_plan
from tacit.settings import read_table
from tests.command_line import document, in_process, refusal
from tests.command_line import tacit as command


def test_the_project_is_named_after_its_folder(tmp_path: Path) -> None:
    files = write_project(tmp_path / "My Clinics.2026")
    assert {file.relative_to(tmp_path / "My Clinics.2026").as_posix() for file in files} == {
        "README.md",
        "plan.toml",
        "pyproject.toml",
        "my_clinics_2026/__init__.py",
        "my_clinics_2026/client_app.py",
        "my_clinics_2026/server_app.py",
        "my_clinics_2026/task.py",
    }
    for file in files:
        assert "{{" not in file.read_text()
        if file.suffix == ".py":
            ast.parse(file.read_text())
    project = tomllib.loads((tmp_path / "My Clinics.2026" / "pyproject.toml").read_text())
    components = project["tool"]["flwr"]["app"]["components"]
    assert components["serverapp"] == "my_clinics_2026.server_app:app"


def test_its_plan_and_its_settings_are_a_plan(tmp_path: Path) -> None:
    write_project(tmp_path / "clinics")
    project = tomllib.loads((tmp_path / "clinics" / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]["config"]["tacit"]
    settings.pop("run")
    plan = read_plan({**read_table(tmp_path / "clinics" / "plan.toml"), **settings})
    assert plan.search.candidates == 50
    assert plan.federation.name == "clinics"


def test_flower_has_nothing_to_install_for_it(tmp_path: Path) -> None:
    """Flower installs an app's dependencies for every run, from wherever a registry has them."""
    write_project(tmp_path / "clinics")
    project = tomllib.loads((tmp_path / "clinics" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    assert "is not empty" in refusal(command("new", tmp_path))
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("name", ["2026", "class", "a" * 40, "---"])
def test_folders_that_cannot_name_a_project_are_refused(tmp_path: Path, name: str) -> None:
    assert "cannot name a project" in refusal(command("new", tmp_path / name))


def test_an_empty_folder_will_do_and_the_next_step_is_named(tmp_path: Path) -> None:
    (tmp_path / "clinics").mkdir()
    done = command("new", tmp_path / "clinics")
    assert done.returncode == 0
    assert "flwr run . --stream --federation-config" in done.stdout
    assert document(command("new", tmp_path / "other", "--json"))["folder"].endswith("other")


def test_a_loop_of_links_in_place_of_the_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for folder in ("loop", "loop/clinics"):
        said = refusal(in_process("new", folder, folder=tmp_path))
        assert said.startswith("tacit: loop")
    assert [entry.name for entry in tmp_path.iterdir()] == ["loop"]


def test_paths_are_resolved_where_loops_of_links_are_minded() -> None:
    """``Path.resolve`` raises a RuntimeError for a loop up to Python 3.12: a traceback."""
    minded = {"ledger_locks.py"}
    source = Path(tacit.__file__).parent
    found = [path.name for path in source.rglob("*.py") if ".resolve()" in path.read_text()]
    assert set(found) == minded
