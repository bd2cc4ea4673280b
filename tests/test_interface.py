"""The public interface is listed on one page, and every part of it shows itself."""

from __future__ import annotations

import inspect
import re

import pytest

import tacit
import tacit.flower
from tests.pages import ROOT

PUBLIC = {
    **{name: getattr(tacit, name) for name in tacit.__all__},
    **{f"tacit.flower.{name}": getattr(tacit.flower, name) for name in tacit.flower.__all__},
}


def test_the_page_lists_what_is_public() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^\| `([\w.]+)` \| \S.* \|$", page, re.MULTILINE)
    assert sorted(listed) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_has_a_doctest(name: str) -> None:
    found = inspect.getdoc(PUBLIC[name]) or ""
    assert re.search(r"^>>> ", found, re.MULTILINE), f"{name} has no example in its docstring"
