"""``tacit new``: a complete Flower project that tunes and then trains."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from tacit.files import write_whole
from tacit.locks import real


def write_project(folder: Path) -> list[Path]:
    """Write the project, named after its folder, and return its files; nothing is overwritten."""
    name = re.sub(r"[^a-z0-9]+", "-", real(folder).name.lower()).strip("-")
    package = name.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package) or len(name) > 32:
        raise ValueError(
            f"{real(folder).name!r} cannot name a project; allowed is a folder whose name "
            "begins with a letter and has at most 32 letters, digits and dashes"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; allowed is a new or empty folder")
    words = {"{{name}}": name, "{{package}}": package, "{{publisher}}": "me"}
    template = files("tacit") / "flower_template"
    written = []
    for path, text in sorted(_texts(template)):
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        target = folder / path.replace("app/", f"{package}/", 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
        written.append(target)
    return written


def _texts(place: Traversable, above: str = "") -> list[tuple[str, str]]:
    found = []
    for entry in place.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found += _texts(entry, f"{above}{entry.name}/")
        elif entry.name.endswith((".py.txt", ".toml", ".md")):
            found.append((above + entry.name.removesuffix(".txt"), entry.read_text()))
    return found
