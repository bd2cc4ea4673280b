"""The README's pictures, made anew: a terminal session, and the pages it leaves (`make pictures`).

Needs Debian's Chromium. Everything shown is what the commands print and write on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent.parent / "docs" / "assets"
SESSION = (
    "tacit plan --clients 50 --candidates 100 --epsilon 1 --delta 1e-5",
    "tacit tune --out tacit-runs/first",
    "tacit runs list",
)
COMPARISON = (
    "tacit compare --table mnist-iid-n100 --epsilon 0.5 --out compared "
    "--methods vote,vote-published,combine-mean,flora-sgm,random-guess,opt"
)
WIDTH = 118
PAGES = {"report": "tacit-runs/first/report.html", "compare": "compared/compare.html"}
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=8000",
    "--window-size=1100,1250",
)


def main() -> None:
    """Run the session in an empty folder, then draw it and the pages."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no browser: install Debian's chromium (`make browser`), or set CHROMIUM")
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        record(folder)
        run(COMPARISON, folder)
        for page, path in PAGES.items():
            for look, flags in {"light": [], "dark": ["--force-dark-mode"]}.items():
                picture = FOLDER / f"{page}-{look}.png"
                options = [*FLAGS, *flags, f"--user-data-dir={folder / look}"]
                where = (folder / path).as_uri()
                command = [chromium, *options, f"--screenshot={picture}", where]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def record(folder: Path) -> None:
    """What the session prints, as one picture that is text."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, highlight=False)
        for command in SESSION:
            console.print(Text(f"$ {command}", style="bold green"))
            console.print(Text.from_ansi(run(command, folder)))
        svg = console.export_svg(title="Tacit")
    (FOLDER / "session.svg").write_text(svg)


def run(command: str, folder: Path) -> str:
    """What a command prints, in an empty folder."""
    program, *options = command.split()
    found = Path(sys.executable).with_name(program)
    around = {**os.environ, "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        [found, *options], cwd=folder, env=around, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
