"""Downloads of published files into the cache, each checked before it gets its name.

The standard library does it: one GET whose answer has a known checksum needs no client library.
The checksums are the published ones, and these are MD5: they find damage, while that nobody forged
a file rests on https.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from tacit.data.folders import VARIABLE, Source, cache_folder
from tacit.files import whole_file

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far, and how many there will be, if that is known."""

_CHUNK = 1 << 18
_TIMEOUT = 60.0
_SCHEMES = ("https://", "http://")


class FetchFailed(ValueError):
    """A data set that cannot be fetched, or a download that did not give the published file."""


def fetch_files(source: Source, progress: Progress, folder: Path | None = None) -> Path:
    """Download a data set's files into a folder of its name, in ``folder`` or in the cache.

    A file that is there already with the right checksum is left alone. A file gets its name only
    when it is whole, so an interrupted download leaves nothing that could be taken for it.
    """
    if not source.files:
        raise FetchFailed(f"{source.name} has no files to fetch: {source.by_hand}")
    if not source.fetchable:
        raise FetchFailed(
            f"{source.name} cannot be fetched: {source.by_hand} and name the folder with "
            f"--data-dir or {VARIABLE}"
        )
    target = (folder or cache_folder()) / source.name
    target.mkdir(parents=True, exist_ok=True)
    for url, md5 in dict.fromkeys((file.url, file.md5) for file in source.files):
        if url and md5:
            path = target / url.rpartition("/")[2]
            if not path.exists() or _md5(path) != md5:
                _download(url, md5, path, progress)
    return target


def _download(url: str, md5: str, path: Path, progress: Progress) -> None:
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with whole_file(path) as file:
        for chunk, total in _chunks(url):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(path.name, done, total)
        if digest.hexdigest() != md5:
            raise FetchFailed(
                f"{url} gave {done} bytes with the MD5 checksum {digest.hexdigest()}; expected is "
                f"{md5}. Nothing was kept: try again, and if it stays so, the file was replaced"
            )


def _chunks(url: str) -> Iterator[tuple[bytes, int | None]]:
    """The answer of a server in pieces, each with the announced length of the whole."""
    if not url.startswith(_SCHEMES):
        raise FetchFailed(f"{url} is no web address; allowed is {' and '.join(_SCHEMES)}")
    done, total = 0, None
    try:
        request = Request(url, headers={"User-Agent": "tacit"})  # noqa: S310
        with urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
            total = _length(response.headers.get("Content-Length"))
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                yield chunk, total
    except (OSError, HTTPException) as error:
        raise FetchFailed(f"{url}: {error}; check the network and try again") from None
    if total is not None and done != total:
        raise FetchFailed(f"{url} ended after {done} of {total} bytes; try again")


def _length(announced: str | None) -> int | None:
    return int(announced) if announced and announced.isdecimal() else None


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
