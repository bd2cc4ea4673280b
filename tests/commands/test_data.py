from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import document, refusal, tacit


def test_list_says_what_is_here_and_on_which_terms(tmp_path: Path) -> None:
    found = document(tacit("data", "list", "--json", XDG_CACHE_HOME=str(tmp_path), TACIT_DATA=""))
    by_name = {entry["name"]: entry for entry in found["data"]}
    assert list(by_name) == [
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar-10",
        "adult",
        "fraud",
        "emnist",
        "svhn",
    ]
    assert by_name["digits"]["missing"] is None
    assert "tacit data fetch adult" in by_name["adult"]["missing"]
    assert by_name["adult"]["licence"] == "CC BY 4.0"
    words = tacit("data", "list", XDG_CACHE_HOME=str(tmp_path), TACIT_DATA="").stdout
    assert "fashion-mnist" in words


def test_show_counts_and_draws_who_holds_what(tmp_path: Path) -> None:
    options = ("--partition", "dirichlet", "--alpha", "0.5", "--clients", "20")
    found = document(tacit("data", "show", "digits", *options, "--json", folder=tmp_path))
    assert found["summary"]["clients"] == len(found["clients"]) == 20
    assert sum(holding["size"] for holding in found["clients"]) == found["train"] == 1437
    assert found["summary"]["smallest"] >= 10
    assert found["summary"]["distance"] > 0.2
    picture = (tmp_path / found["picture"]).read_text()
    assert "Dirichlet(alpha=0.5" in picture
    again = document(tacit("data", "show", "digits", *options, "--json", folder=tmp_path))
    assert again == found
    other = document(
        tacit("data", "show", "digits", *options, "--seed", 2, "--json", folder=tmp_path)
    )
    assert other["clients"] != found["clients"]


def test_show_tells_people_the_same(tmp_path: Path) -> None:
    done = tacit("data", "show", "digits", "--clients", 30, "--out", tmp_path / "x.html")
    assert done.returncode == 0, done.stderr
    assert "1437 examples of shape (1, 8, 8) dealt to 30 clients by Iid(smallest=10)" in done.stdout
    assert ".. and 10 more" in done.stdout
    assert (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("show", "imagenet"), "no data set is called 'imagenet'; allowed are digits, mnist"),
        (("show", "digits", "--partition", "fair"), "partition is 'fair'; allowed are iid"),
        (("show", "digits", "--clients", "500"), "clients is 500 with at least 10 examples each"),
        (
            ("show", "digits", "--partition", "dirichlet", "--alpha", "0"),
            "alpha is 0.0; allowed is above 0",
        ),
        (("show", "digits", "--clients", "many"), "found 'many'; allowed is a whole number"),
        (("show", "adult"), "adult lacks adult.data and 1 more of its files. Looked in"),
        (("show", "adult", "--data-dir", "no-such-folder"), "no-such-folder (--data-dir) is no"),
        (("fetch", "digits"), "digits has no files to fetch: it comes with scikit-learn"),
        (("fetch", "imagenet"), "no data set is called 'imagenet'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_refused_with_the_reason(
    arguments: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    done = tacit("data", *arguments, folder=tmp_path, XDG_CACHE_HOME=str(tmp_path), TACIT_DATA="")
    assert reason in refusal(done).replace("│ ", "")
    assert not list(tmp_path.iterdir()), "nothing is left behind"
