"""Sessions that several tests share; making keys takes a while."""

from __future__ import annotations

import pytest

from tacit.secure.bfv import SUMS
from tests.secure.sessions import FOUR, Session


@pytest.fixture(scope="session")
def four() -> Session:
    """Ten parties that can test for four sparse numbers."""
    return Session.begin(FOUR, 10)


@pytest.fixture(scope="session")
def two() -> Session:
    return Session.begin(SUMS, 2, products=False)


@pytest.fixture(scope="session")
def hundred() -> Session:
    return Session.begin(SUMS, 100, products=False)
