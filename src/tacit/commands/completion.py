"""What the shell offers when TAB is pressed: names of what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

from tacit.data.partitions import PARTITIONS
from tacit.data.sources import DATASETS
from tacit.grids import GRIDS
from tacit.networks import NETWORKS
from tacit.plan import FederationTerms, PrivacyTerms, Rounds, Search, SelectionTerms, Task, Training
from tacit.runs import RUNS, is_run
from tacit.settings import allowed_words
from tacit.tables import shipped

Complete = Callable[[str], list[str]]
_SECTIONS = {
    "task": Task,
    "search": Search,
    "training": Training,
    "rounds": Rounds,
    "selection": SelectionTerms,
    "privacy": PrivacyTerms,
    "federation": FederationTerms,
}


def one_of(names: Iterable[str]) -> Complete:
    """Of these names, those that begin as typed.

    >>> one_of(["iid", "dirichlet"])("d")
    ['dirichlet']
    """
    known = list(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def several_of(names: Iterable[str]) -> Complete:
    """The same for the last of some names with commas between.

    >>> several_of(["vote", "opt"])("vote,o")
    ['vote,opt']
    """
    complete = one_of(names)

    def found(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [f"{before}{comma}{name}" for name in complete(last) if name not in taken]

    return found


data_sets = one_of(DATASETS)
partitions = one_of(PARTITIONS)
networks = one_of(NETWORKS)
grids = one_of(GRIDS)


def table_names(incomplete: str) -> list[str]:
    """Tables that come with Tacit, and those made here."""
    made = [path.stem for path in (RUNS / "tables").glob("*.npz")]
    return one_of(dict.fromkeys([*shipped(), *made]))(incomplete)


def run_folders(incomplete: str) -> list[str]:
    """Runs in ``tacit-runs``, by the names of their folders; and where a path is typed, there."""
    typed = Path(incomplete)
    if "/" in incomplete:
        parent = typed if incomplete.endswith("/") else typed.parent
        return one_of(str(path) for path in _below(parent) if is_run(path))(incomplete)
    return one_of(path.name for path in _below(RUNS) if is_run(path))(incomplete)


def plan_changes(incomplete: str) -> list[str]:
    """Keys of a plan, and after ``=`` the words that a key allows.

    >>> plan_changes("search.ball"), plan_changes("search.ballot=b")
    (['search.ballot='], ['search.ballot=borda'])
    """
    key, equals, word = incomplete.partition("=")
    if not equals:
        keys = (f"{s}.{entry.name}=" for s, kind in _SECTIONS.items() for entry in fields(kind))
        return one_of(keys)(incomplete)
    section, _, name = key.partition(".")
    kind = _SECTIONS.get(section)
    entries = {entry.name: entry for entry in fields(kind)} if kind else {}
    words = allowed_words(entries[name]) if name in entries else ()
    return [f"{key}={found}" for found in one_of(words)(word)]


def _below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
