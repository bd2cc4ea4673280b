from __future__ import annotations

import pytest

from tacit.plan import load_plan
from tacit.terminal import print_outlook

ENCRYPTED = ("search.mode=encrypted", "federation.secure=encrypted", "privacy.dropout=0")


@pytest.mark.parametrize(
    ("changes", "said", "warned"),
    [
        (("federation.clients=8",), "noise moves each number by about", "little of the mean"),
        (("privacy.epsilon=8",), "noise moves each number by about 2.3 % of its axis", ""),
        (("search.strategy=dbscan",), "is dense if", "the noise is too strong for so few clients"),
        (
            ("search.strategy=dbscan", *ENCRYPTED, "privacy.epsilon=inf", "federation.clients=5"),
            "a cell is dense if 6 of the 5 clients find it promising",
            "no cell can be dense; lower search.min_points, or have more clients",
        ),
        ((*ENCRYPTED, "privacy.epsilon=inf"), "ε = ∞: nothing is protected by noise", ""),
    ],
)
def test_the_outlook_tells_whether_combining_can_work(
    changes: tuple[str, ...], said: str, warned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_outlook(load_plan(None, ["search.method=combine", "search.strategy=mean", *changes]))
    words = " ".join(capsys.readouterr().out.split())
    assert said in words
    assert warned in words
    assert ("Warning" in words) == bool(warned)
