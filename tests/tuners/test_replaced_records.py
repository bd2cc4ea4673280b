"""An attacker's program against the claim of a selection about one record.

It knows the key, the number of records and how both become a split; it chooses what stands at which
position so that every position that is in the training part of one federation only pulls the same
weight the same way, and guesses from the released weight which federation it was.

*False alarms.* Both error rates have Clopper-Pearson bounds that fail with probability 5e-7 each,
so that an audited epsilon exceeds a true one with probability at most 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from tacit.data.examples import Examples, split_validation
from tacit.dp_training import Recipe
from tacit.privacy.accounting import Budget
from tacit.privacy.selection import Runs
from tacit.space import Float, Space
from tacit.tuners.selection import Selection
from tacit.tuning import tune

Split = Callable[[Examples], tuple[Examples, Examples]]
COUNT, TIMES, FAILS = 800, 250, 5e-7
CLAIMED = Budget(1.0, 1e-5)
SPACE = Space({"learning_rate": Float(0.5, 1.0)})


def by_position(examples: Examples) -> tuple[Examples, Examples]:
    return split_validation(examples, 0.25, key=0)


def by_permutation(examples: Examples) -> tuple[Examples, Examples]:
    """A seeded permutation, which deals all records anew when there is one more."""
    order = np.random.default_rng(3).permutation(len(examples))
    held_out = round(0.25 * len(examples))
    return examples.take(np.sort(order[held_out:])), examples.take(np.sort(order[:held_out]))


def training_positions(split: Split, count: int) -> set[int]:
    positions = np.arange(count)
    return set(split(Examples(np.zeros((count, 1), np.float32), positions))[0].labels.tolist())


def records(pulls: npt.NDArray[np.int64]) -> Examples:
    """Where it is 1 or -1, a record that pulls the only weight up or down; elsewhere, one at 0."""
    labels = np.where(pulls == 0, np.arange(len(pulls)) % 2, pulls > 0)
    return Examples(np.abs(pulls)[:, None].astype(np.float32), labels.astype(np.int64))


def guessed_up(split: Split, examples: Examples) -> int:
    """In how many of the runs the weight that a selection releases is above 0."""
    train, validation = split(examples)
    method = Selection(Recipe(lot=60, steps=20), train, validation, 2, Runs(1.5, 1.0), candidates=2)
    released = [tune([], SPACE, method, CLAIMED).weights for _ in range(TIMES)]
    return sum(one is not None and float(one[0][0, 1, 0]) > 0 for one in released)


def audited(split: Split, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    """What epsilon is at least, if nothing failed."""
    right, wrong = guessed_up(split, records(one)), guessed_up(split, records(other))
    often = float(beta.ppf(FAILS, right, TIMES - right + 1)) if right else 0.0
    seldom = float(beta.ppf(1 - FAILS, wrong + 1, TIMES - wrong)) if wrong < TIMES else 1.0
    return math.log(max((often - CLAIMED.delta) / seldom, 1e-9))


def test_one_record_more_tells_itself_where_all_are_dealt_anew() -> None:
    """The program has the power to find what it is for: claimed is 1.

    The weight is at least 2.5 deviations from 0 in either federation, so that more than 11 of 250
    guesses are wrong with probability below 1e-7; with 11 in both, the bound is above 1.8. With
    none it is 2.8.
    """
    before, after = (training_positions(by_permutation, count) for count in (COUNT, COUNT + 1))
    pulls = np.zeros(COUNT + 1, np.int64)
    pulls[list(before - after)], pulls[list(after - before)] = 1, -1
    assert (len(before - after), len(after - before)) == (82, 83)
    assert audited(by_permutation, pulls[:-1], pulls) > 1.8


def test_a_replaced_record_does_not_tell_itself() -> None:
    """The same program finds nothing: one record pulls up or down, and all others do not pull.

    Its bound would be below the claim even if the claim were exact. This says that the program does
    not cry wolf, no more: others that changed sides would not show here. That they do not change
    sides is tested by ``test_replacing_a_unit_leaves_all_others_where_they_are``.
    """
    at = min(training_positions(by_position, COUNT))
    one, other = np.zeros((2, COUNT), np.int64)
    one[at], other[at] = 1, -1
    assert audited(by_position, one, other) < CLAIMED.epsilon
