"""What a data set's files are, and where they are looked for.

In this order: the folder that was named (``--data-dir``), or else the one of the environment
variable ``TACIT_DATA``; the cache, which ``tacit data fetch`` fills; a folder of the system, where
a package installs the data set. All files come from one of these folders, never mixed, since one
may hold a subset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tacit.data.examples import Dataset

VARIABLE = "TACIT_DATA"


class MissingData(ValueError):
    """A data set's files are in none of the places where they were looked for."""


@dataclass(frozen=True)
class DataFile:
    """A file of a data set: where it may lie in a folder, and where it is published.

    ``paths`` are relative to the folder, the preferred one first. ``md5`` is the checksum of what
    ``url`` gives, which may be an archive that holds several files of the data set.
    """

    name: str
    paths: tuple[str, ...]
    url: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Source:
    """A data set: who made it, on which terms, which files it has, how they are got and read.

    ``by_hand`` completes the sentence "or ..." for somebody who cannot or will not fetch.
    ``installed`` are folders where a package of the system puts the files.
    """

    name: str
    title: str
    citation: str
    licence: str
    files: tuple[DataFile, ...]
    by_hand: str
    read: Callable[[Mapping[str, Path]], Dataset]
    installed: tuple[Path, ...] = ()

    @property
    def fetchable(self) -> bool:
        """Whether every file is published where anybody may download it."""
        return bool(self.files) and all(file.url and file.md5 for file in self.files)

    def load(self, folder: Path | None = None) -> Dataset:
        """The data set, from files in this folder or in one of the usual places."""
        return self.read(locate(self, folder))


def cache_folder() -> Path:
    """Where fetched files are kept: ``$XDG_CACHE_HOME/tacit/data``, or under ``~/.cache``."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path.home() / ".cache"  # as the standard says
    return base / "tacit" / "data"


def locate(source: Source, folder: Path | None = None) -> dict[str, Path]:
    """Where each file of a data set lies, by the file's name.

    A named folder has to exist, as falling back on another one would hide a typing error.
    """
    if not source.files:
        return {}
    best: dict[str, Path] = {}
    places = _places(source, folder)
    for place in places:
        found = {file.name: path for file in source.files if (path := _find(file, place))}
        if len(found) == len(source.files):
            return found
        best = max(best, found, key=len)
    raise MissingData(_missing(source, places, best))


def _places(source: Source, folder: Path | None) -> dict[Path, str]:
    """The folders to look in, with what to call them."""
    places = {}
    from_environment = os.environ.get(VARIABLE)
    if folder is not None:
        places[folder] = "--data-dir"
    elif from_environment:
        places[Path(from_environment).expanduser()] = VARIABLE
    for named, origin in places.items():
        if not named.is_dir():
            raise MissingData(
                f"{named} ({origin}) is no folder; allowed is one that holds the files of "
                f"{source.name}, or none to look in {cache_folder()}"
            )
    places[cache_folder()] = "the cache"
    places |= dict.fromkeys(source.installed, "installed by a package")
    return places


def _find(file: DataFile, folder: Path) -> Path | None:
    candidates = (path for relative in file.paths for path in _readings(folder, relative))
    return next((path for path in candidates if path.exists()), None)


def _readings(folder: Path, relative: str) -> Iterator[Path]:
    """Below the folder, or in it if the folder is itself a part of the relative path.

    So both a folder with ``mnist/train-labels-idx1-ubyte`` and that ``mnist`` may be named, but no
    other folder with this file: Fashion-MNIST gives its files the same names.
    """
    parts, above = PurePosixPath(relative).parts, folder.absolute().parts
    for shared in range(len(parts) + 1):
        if parts[:shared] == above[len(above) - shared :]:
            yield folder.joinpath(*parts[shared:])


def _missing(source: Source, places: Mapping[Path, str], found: Mapping[str, Path]) -> str:
    first, *others = (file for file in source.files if file.name not in found)
    more = f" and {len(others)} more of its files" if others else ""
    beside = f", though there is {next(iter(found.values()))}" if found else ""
    looked = ", ".join(f"{folder} ({origin})" for folder, origin in places.items())
    fetch = f"run `tacit data fetch {source.name}`, or " if source.fetchable else ""
    return (
        f"{source.name} lacks {first.name}{more}{beside}. Looked in {looked}, for "
        f"{first.paths[0]} and other usual layouts. To get it, {fetch}{source.by_hand} and name "
        f"the folder with --data-dir or {VARIABLE}"
    )
