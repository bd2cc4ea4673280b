"""What leaves the clients: everything (clear), noisy sums (dp), or those under encryption.

Methods that train while they tune have others beside (:data:`WHILE_TRAINING`). ``dp``: rewards and
updates are noisy secure sums, and the run has one epsilon, at the level of clients. ``record``:
rewards are such sums, weights are trained by DP-SGD on every client and averaged in clear; the
epsilon is about single records. ``rewards-only``: rewards have an epsilon of their own, but the
weights that clients send have none, so that the total is infinite. ``clear``: nothing is protected.
"""

from __future__ import annotations

from collections.abc import Mapping

from tacit.charged_questions import ChargedQuestions
from tacit.combining import LocalFindings
from tacit.local_search import Findings, LocalSearch
from tacit.privacy import events

MODES = ("clear", "dp", "encrypted")
PRIVATE, RECORD, REWARDS_ONLY, CLEAR = WHILE_TRAINING = ("dp", "record", "rewards-only", "clear")
REWARDS_ONLY_NOTE = (
    "rewards only: the epsilon of the rewards does not cover the weights, which left the clients "
    "in clear"
)


def unit_in(mode: str) -> str:
    """Whom the guarantee of a method that trains is about."""
    return events.RECORD if mode == RECORD else events.CLIENT


def check_training_mode(mode: str, allowed: tuple[str, ...] = WHILE_TRAINING) -> None:
    """Refuse a mode that there is not."""
    if mode not in allowed:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(allowed)}")


def check_mode(
    kind: str, name: str, names: tuple[str, ...], mode: str, not_sums: Mapping[str, str]
) -> None:
    """Refuse a strategy or a mode that there is not, or that do not go together."""
    for what, found, allowed in ((kind, name, names), ("mode", mode, MODES)):
        if found not in allowed:
            raise ValueError(f"the {what} is {found!r}; allowed are {', '.join(allowed)}")
    if mode != "clear" and name in not_sums:
        others = ", ".join(other for other in names if other not in not_sums)
        raise ValueError(
            f"the {kind} {name!r} cannot be {mode!r}: {not_sums[name]}; allowed is the mode "
            f"'clear', or instead of it {others}"
        )


def check_sums(mode: str, secure: str) -> None:
    """Refuse a federation whose secure sum is not the mode's."""
    if mode != "clear" and (mode == "encrypted") != (secure == "encrypted"):
        raise ValueError(
            f"the mode is {mode!r}, but the federation's sums are {secure!r}; allowed are the mode "
            "'encrypted' with sums 'encrypted', and the mode 'dp' with sums 'masks'"
        )


def gathered(questions: ChargedQuestions, search: LocalSearch) -> list[Findings]:
    """Everything that the clients found, in clear."""
    answers = questions.gather(LocalFindings(search), "local findings")
    return [Findings(points.numpy(), scores.numpy()) for points, scores in answers]
