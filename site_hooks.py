"""What mkdocs needs beside its settings: pages nobody listed, and links that leave ``docs/``.

On the site a link to a file of the repository, such as a recorded benchmark, leads to a copy of
that file under ``repository/``, so that the site is complete in itself and has no dead ends.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
COPIES = "repository"
LAST_SECTION = "Reference"
LINK = re.compile(r"(?<=\]\()([^)#:]+)(?=[)#])")
"""The target of a link, without its anchor; addresses of the web have a colon."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages that the navigation does not list to its last section."""
    docs = Path(config.docs_dir)
    listed = set(_listed(config.nav))
    found = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    (section,) = (part for part in config.nav or [] if LAST_SECTION in part)
    section[LAST_SECTION] += [page for page in found if page not in listed]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a copy of every file of the repository that a page, or such a copy, links to."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for link in LINK.findall(_source(page, config).read_text()):
            place = _place(page, link)
            if place.startswith(COPIES) and files.get_file_from_path(place) is None:
                source = _source(place, config)
                files.append(File.generated(config, place, abs_src_path=str(source)))
                if place.endswith(".md"):
                    waiting.append(place)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave ``docs/`` to the copies."""
    del config, files
    own = page.file.src_uri

    def turned(found: re.Match[str]) -> str:
        return posixpath.relpath(_place(own, found[0]), posixpath.dirname(own) or ".")

    return LINK.sub(turned, markdown)


def _listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif nav:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(part)


def _place(page: str, link: str) -> str:
    """Where on the site a link of a page leads: among the pages, or among the copies."""
    inside = page.removeprefix(f"{COPIES}/") if page.startswith(COPIES) else f"docs/{page}"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(inside), link))
    return target.removeprefix("docs/") if target.startswith("docs/") else f"{COPIES}/{target}"


def _source(place: str, config: MkDocsConfig) -> Path:
    if place.startswith(f"{COPIES}/"):
        return ROOT / place.removeprefix(f"{COPIES}/")
    return Path(config.docs_dir) / place
