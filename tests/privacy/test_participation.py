"""How many clients' noise is counted on, attacked by those who know some of it."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import pytest

from tacit.privacy.accounting import Budget, spent
from tacit.privacy.bounds import TopVotes
from tacit.privacy.mechanisms import NoiseShare, Participation, SkellamMechanism
from tacit.privacy.skellam import IntArray
from tacit.query import Ballot
from tests.federations import federation, likes
from tests.randomness import fits_skellam

BUDGET = Budget(1.0, 1e-5)
BALLOT = TopVotes(100, 5)


def test_a_count_may_be_written_in_every_way() -> None:
    """Every k of up to 200 clients; as floats, 47 % of k / n are a hair below k / n."""
    for clients in range(2, 201):
        for count in range(clients - 1):
            exact = Fraction(count, clients)
            written = (count, exact, count / clients, str(count), str(exact), f"{count}/{clients}")
            found = {Participation(clients, value, 0) for value in written}
            assert found == {Participation(clients, count, 0)}, (count, clients)
            found = {Participation(clients, 0, value) for value in written}
            assert found == {Participation(clients, 0, count)}, (count, clients)


def test_of_a_fraction_whole_clients_are_counted() -> None:
    assert Participation(50, 0.119, "0.07") == Participation(50, 5, 3)
    assert Participation(10, 0.1, 0.3) == Participation(10, 1, 3), "0.3 is less than 3/10"
    assert Participation(50).dropout == 5
    assert Participation(7, Fraction(3, 10), " 2 ") == Participation(7, 2, 2)
    assert Participation(10_000_000, 3_333_333 / 10_000_000, 1 / 3).dropout == 3_333_333


@pytest.mark.parametrize(
    "value",
    [
        *(True, False, None, [2], 1j),
        *(-1, -0.1, "-1", Fraction(-1, 3), 1.0, 1.2, "1.0", "6/6", Fraction(1)),
        *(math.nan, math.inf, -math.inf, "nan", "inf", "", "a third", "1/0"),
    ],
    ids=repr,
)
def test_neither_a_count_nor_a_fraction_is_refused_by_name(value: Any) -> None:
    allowed = "allowed is a count of clients such as 2, or a fraction of them from 0 up to"
    with pytest.raises(ValueError, match=re.escape(f"dropout is {value!r}; {allowed}")):
        Participation(6, value)
    with pytest.raises(ValueError, match=re.escape(f"colluding is {value!r}; {allowed}")):
        Participation(6, 0, value)


@pytest.mark.parametrize(
    ("dropout", "colluding", "missing", "known"),
    [(5, 0, 5, 1), (6, 0, 6, 1), (0, 6, 0, 6), (3, 3, 3, 3), ("1/2", 0.5, 3, 3), (0.99, 1, 5, 1)],
)
def test_a_plan_without_an_honest_other_is_refused(
    dropout: Any, colluding: Any, missing: int, known: int
) -> None:
    reason = f"of 6 clients {missing} may be missing and {known} may know their own noise; togeth"
    with pytest.raises(ValueError, match=reason):
        Participation(6, dropout, colluding)


def epsilon_left(mechanism: SkellamMechanism, absent: int, known: int) -> float:
    """What a sum without the ``absent`` costs against those who take off the ``known`` shares."""
    left = mechanism.share_variance * (mechanism.participation.clients - absent - known)
    return spent(mechanism.bound.release(left), BUDGET.delta).epsilon


@pytest.mark.parametrize("colluding", [2 / 6, Fraction(1, 3), 2, "1/3"], ids=repr)
def test_two_colluders_of_six_given_as_a_third_learn_no_more_than_planned(colluding: Any) -> None:
    """A third as a float is a hair less than a third, and 2/3 of 6 a hair more than 4."""
    mechanism = SkellamMechanism.calibrated(BALLOT, Participation(6, 0.0, colluding), BUDGET)
    assert epsilon_left(mechanism, absent=0, known=2) <= BUDGET.epsilon


def test_every_small_plan_leaves_the_required_noise_to_its_colluders() -> None:
    required = 50.0
    for clients in range(3, 25):
        for absent in range(min(clients - 2, 8) + 1):
            for known in range(clients - absent):
                planned = Participation(clients, absent / clients, known / clients)
                share = Fraction(SkellamMechanism(BALLOT, planned, required).share_variance)
                others = clients - absent - max(known, 1)
                assert share * others >= Fraction(required), (clients, absent, known)


def test_a_curious_participant_among_four_learns_no_more_than_planned() -> None:
    """One of four drops out, as planned, and one of the three others takes off its own noise."""
    mechanism = SkellamMechanism.calibrated(BALLOT, Participation(4, 0.25), BUDGET)
    assert epsilon_left(mechanism, absent=1, known=1) <= BUDGET.epsilon


def test_what_a_curious_participant_cannot_take_off_is_the_required_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a real masked sum of four, of which one drops out. False-alarm rate 1e-6."""
    answers: list[tuple[IntArray, IntArray]] = []
    add = NoiseShare.added_to

    def noted(self: NoiseShare, answer: IntArray) -> IntArray:
        noisy = add(self, answer)
        answers.append((answer, noisy))
        return noisy

    monkeypatch.setattr(NoiseShare, "added_to", noted)
    question = Ballot(tuple({"x": i / 4000} for i in range(4000)), votes=5)
    built = federation(
        [likes(0.5)] * 4, 20.0, budget=Budget(30.0, 1e-5), dropout=0.25, drops={3: "share"}
    )
    opened = built.sum(question, "vote")
    assert (opened.asked, opened.answered) == (4, 3)
    votes, sent = answers[0]
    known = sent + 2 * votes  # all have the same taste, so all their votes are the same
    assert fits_skellam(opened.value - known, 20.0)
