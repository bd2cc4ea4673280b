from __future__ import annotations

import numpy as np
import pytest

from tacit.deciding import AGREED, FAVOUR, LEVEL, final_winner, finalists, winner
from tacit.smoothing import Smoothed

TALLY = np.array([0.0, 1.0, 2.0, 9.0, 8.0])
PEAK_AT_0 = np.array([9.0, 8.0, 7.0, 0.0, 0.0])


def test_the_smoothed_peak_wins_if_structure_is_clear_and_the_largest_count_otherwise() -> None:
    assert winner(TALLY, None) == 3
    assert winner(TALLY, Smoothed(PEAK_AT_0, LEVEL)) == 0
    assert winner(TALLY, Smoothed(PEAK_AT_0, LEVEL + 0.01)) == 3


def test_half_of_the_finalists_come_from_either_tally_and_none_twice() -> None:
    assert finalists(TALLY, None, 3) == [3, 4, 2]
    assert finalists(TALLY, Smoothed(PEAK_AT_0, 0.5), 3) == [0, 1, 3]
    assert finalists(TALLY, Smoothed(TALLY, 0.5), 4) == [3, 4, 2, 1]


@pytest.mark.parametrize(
    ("counts", "chance", "wins"),
    [
        ([10.0, 9.9 + FAVOUR], 0.0, 0),  # so many deviations ahead, where structure is certain
        ([10.0, 10.1 + FAVOUR], 0.0, 1),
        ([10.0, 9.9 + FAVOUR / 2], 0.5, 0),
        ([10.0, 10.1 + FAVOUR / 2], 0.5, 1),
        ([10.0, 10.1], 1.0, 1),  # even, where nothing speaks for structure
        ([10.0, 9.9], 1.0, 0),
    ],
)
def test_a_smoothed_finalist_starts_ahead_by_what_the_first_tally_said(
    counts: list[float], chance: float, wins: int
) -> None:
    assert final_winner(np.array(counts), 0.5, TALLY, Smoothed(PEAK_AT_0, chance)) == wins


def test_the_leader_of_both_tallies_starts_further_ahead() -> None:
    agreed = Smoothed(TALLY, 1.0)
    assert final_winner(np.array([10.0, 10 + AGREED - 0.1]), 0.5, TALLY, agreed) == 0
    assert final_winner(np.array([10.0, 10 + AGREED + 0.1]), 0.5, TALLY, agreed) == 1


def test_without_smoothing_the_counts_alone_decide() -> None:
    assert final_winner(np.array([3.0, 4.0, 1.0]), 100.0, TALLY, None) == 1
