from __future__ import annotations

from pathlib import Path

from tacit.tables import ScoreTable, shipped
from tests.command_line import document, refusal, tacit

SMALL = [
    "--data",
    "digits",
    "--clients",
    "3",
    "--examples",
    "90",
    "--epochs",
    "1",
    "--rounds",
    "1",
    "--batch",
    "16",
    "--seeds",
    "1",
]


def test_a_table_is_made_listed_and_shown(tmp_path: Path) -> None:
    made = document(tacit("tables", "make", *SMALL, "--json", folder=tmp_path))
    name = made["table"]
    assert made["file"] == f"tacit-runs/tables/{name}.npz"
    assert ScoreTable.load(tmp_path / made["file"]).accuracy.shape == (1, 100)
    listed = document(tacit("tables", "list", "--json", folder=tmp_path))["tables"]
    assert {row["table"] for row in listed} == {name, *shipped()}
    shown = document(tacit("tables", "show", name, "--json", folder=tmp_path))
    assert shown["recipe"]["clients"] == 3
    assert len(shown["candidate_list"]) == 100
    words = tacit("tables", "show", name, folder=tmp_path).stdout
    assert "3 clients x 100 candidates (dp-hype-table) x 1 seeds" in words


def test_people_can_read_the_list(tmp_path: Path) -> None:
    done = tacit("tables", "list", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in shipped())


def test_wrong_input_is_refused_with_the_reason(tmp_path: Path) -> None:
    nothing = tacit("tables", "show", "adult", folder=tmp_path)
    assert "no table 'adult'; allowed are a file, or a name that `tacit tables list`" in refusal(
        nothing
    )
    toy = tacit("tables", "make", "--data", "digits", "--seeds", 0, folder=tmp_path)
    assert "seeds is 0; allowed is 1 and above" in refusal(toy)
    grid = tacit("tables", "make", "--grid", "mine", folder=tmp_path)
    assert "no grid is called 'mine'; allowed are dp-hype-table, dp-hype-code" in refusal(grid)
    assert not list(tmp_path.iterdir())
