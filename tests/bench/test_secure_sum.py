from __future__ import annotations

from pathlib import Path

from tacit.bench import secure_sum
from tacit.journal import Journal


def quiet(_done: int, _total: int) -> None:
    pass


def test_every_size_is_measured_and_kept(tmp_path: Path) -> None:
    found = secure_sum.run((5, 70), tmp_path, quiet)
    small, large = found["points"]
    assert (small["clients"], small["degree"]) == (5, 4)
    assert (large["clients"], large["degree"]) == (70, 16)
    assert "reveal" in large["stages"]
    assert "reveal" not in small["stages"]
    assert 10 < small["peak_megabytes"] < 1000
    assert found["growth"] is None

    (journal,) = tmp_path.glob("journal-*.jsonl")
    journal.write_bytes(journal.read_bytes() + b'[250, {"clients"')  # killed while writing
    assert secure_sum.run((5, 70), tmp_path, quiet)["points"] == [small, large]


def test_growth_is_taken_between_the_large_sizes(tmp_path: Path) -> None:
    recipe = {"bench": "secure-sum", "candidates": 100, "votes": 5}
    journal = Journal(tmp_path, recipe)
    for clients, degree, seconds in ((250, 36, 2.0), (1000, 46, 16.0)):
        journal.add(clients, {"clients": clients, "degree": degree, "seconds": seconds})
    growth = secure_sum.run((250, 1000), tmp_path, quiet)["growth"]
    assert growth["seconds_ratio"] == 8.0
    assert growth["exponent"] == 1.5
    assert 5.0 < growth["n_log_n_ratio"] < 5.01
    assert 5.1 < growth["links_ratio"] < 5.12
