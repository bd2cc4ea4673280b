"""Sessions that several tests share; making keys takes a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tacit.secure import graph
from tacit.secure.bfv import SUMS
from tacit.secure.setup import checked_members
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


@pytest.fixture
def small_rings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Federations beyond 16 clients stand in a ring, wired for far weaker promises than real ones.

    100 clients of which 30 may drop out and 10 collude are linked 15 places far, and a window may
    hide 5 colluders. So a server may drop all honest clients of two windows, and cut the ring.
    """
    monkeypatch.setattr(graph, "COMPLETE_UP_TO", 16)
    monkeypatch.setattr(graph, "PRIVACY_FAILURE", 2.0**-4)
    monkeypatch.setattr(graph, "OPENING_FAILURE", 2.0**-2)
    forget()
    yield
    forget()


def forget() -> None:
    """Nothing that was computed for other promises is used."""
    graph.wiring.cache_clear()
    checked_members.cache_clear()
