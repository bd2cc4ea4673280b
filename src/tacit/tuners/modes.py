"""What leaves the clients: everything (clear), noisy sums (dp), or those under encryption."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.combining import LocalFindings
from tacit.federation import Federation
from tacit.local_search import Findings, LocalSearch

MODES = ("clear", "dp", "encrypted")


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


def check_federation(mode: str, federation: Federation) -> None:
    """Refuse a federation whose sums are not those of the mode."""
    sums = federation.secure.name
    if mode != "clear" and (mode == "encrypted") != (sums == "encrypted"):
        raise ValueError(
            f"the mode is {mode!r}, but the federation's sums are {sums!r}; allowed are the mode "
            "'encrypted' with sums 'encrypted', and the mode 'dp' with sums 'masks'"
        )


def gathered(federation: Federation, search: LocalSearch) -> list[Findings]:
    """Everything that the clients found, in clear."""
    answers = federation.gather(LocalFindings(search), "local findings")
    return [Findings(points.numpy(), scores.numpy()) for points, scores in answers]
