"""A pytest plugin that breaks Tacit in one named way: ``pytest -p tests.sabotage --sabotage NAME``.

``test_sabotage.py`` uses it to show that each kind of broken privacy makes a named test fail.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable

import pytest

from tacit.privacy import accounting, bounds, events, ledger, mechanisms


def halved_variance() -> None:
    """Clients add half of the noise that the event declares."""
    real = vars(mechanisms.SkellamMechanism)["share_variance"].func
    halved = property(lambda self: real(self) / 2)
    setattr(mechanisms.SkellamMechanism, "share_variance", halved)  # noqa: B010


def unenforced_bound() -> None:
    """Any answer passes for a ballot."""
    setattr(bounds.TopVotes, "admits", lambda _self, _answer: True)  # noqa: B010


def refund() -> None:
    """A charge is taken back as soon as it is made."""
    real = ledger.Ledger.charge

    def charge_and_return(
        self: ledger.Ledger, event: events.Event, label: str, run: str
    ) -> ledger.Charge:
        charge = real(self, event, label, run)
        connection = sqlite3.connect(self.path)
        connection.execute("DROP TRIGGER IF EXISTS line_is_never_removed")
        connection.execute("DELETE FROM line WHERE number = ?", (charge.number,))
        connection.commit()
        connection.close()
        return charge

    setattr(ledger.Ledger, "charge", charge_and_return)  # noqa: B010


def composed_once() -> None:
    """A repeated event is priced as if it happened once."""
    real = events.releases

    def count_once(event: events.Event) -> Counter[events.Release]:
        return Counter(dict.fromkeys(real(event), 1))

    setattr(accounting, "releases", count_once)  # noqa: B010


SABOTAGES: dict[str, tuple[Callable[[], None], str]] = {
    function.__name__: (function, test)
    for function, test in (
        (
            halved_variance,
            "test_mechanisms.py::test_guaranteed_survivors_alone_deliver_the_required_noise",
        ),
        (unenforced_bound, "test_mechanisms.py::test_noise_is_refused_outside_the_bound"),
        (refund, "test_ledger.py::test_a_failed_question_stays_paid"),
        (composed_once, "test_accounting.py::test_repeating_costs_as_often"),
    )
}
"""What is broken, and the test that must notice."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sabotage", choices=sorted(SABOTAGES))


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--sabotage")
    if name:
        SABOTAGES[name][0]()
