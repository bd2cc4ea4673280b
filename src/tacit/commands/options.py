"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click
import typer

from tacit.commands import completion
from tacit.files import json_text
from tacit.one_writer import writing
from tacit.runs import RUNS
from tacit.terminal import interruptible


def whole(text: str) -> int:
    """A whole number, or an error that says what was found."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"found {text!r}; allowed is a whole number") from None


def number(text: str) -> float:
    """A number, or an error that says what was found."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"found {text!r}; allowed is a number") from None


def data_dir_change(folder: Path | None) -> list[str]:
    """``--data-dir`` as a change of a plan."""
    return [] if folder is None else [f"task.data_dir={json_text(str(folder))}"]


def fresh_folder(kind: str) -> Path:
    """A new folder for what a command is about to make."""
    return RUNS / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{kind}"


def claim(folder: Path) -> None:
    """Be the only process that writes in a folder until the command ends, if one is running."""
    command = click.get_current_context(silent=True)
    if command is not None:
        command.with_resource(writing(folder))


@contextmanager
def filling(folder: Path, go_on: str) -> Iterator[None]:
    """Work that leaves finished pieces in a folder; whoever interrupts it is told how to go on.

    A command keeps the folder until it ends, since it writes its results there too.
    """
    claim(folder)

    def hint() -> str:
        journals = [*folder.glob("journal-*.jsonl"), *folder.glob("**/unfinished/journal-*.jsonl")]
        if not any(path.stat().st_size for path in journals):
            return "Nothing was finished, so nothing is kept."
        return f"What was finished is kept in {folder}. {go_on}"

    with writing(folder), interruptible(hint):
        yield


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
PlanFile = Annotated[
    Path | None,
    typer.Argument(metavar="PLAN.toml", help="The plan; default: the digits example."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=completion.plan_changes,
        help="Change one key of the plan; repeatable.",
    ),
]
RunFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        autocompletion=completion.run_folders,
        help="The folder of a run, or its name in tacit-runs.",
    ),
]
LedgerFile = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger's file.")]
Epsilon = Annotated[
    float, typer.Option(parser=number, metavar="NUMBER", help="Largest epsilon, 0.001 to 30.")
]
Delta = Annotated[
    float,
    typer.Option(
        parser=number, metavar="NUMBER", help="Delta, 1e-10 to 0.1; below 1 / clients is usual."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Where the data lies; default: TACIT_DATA, then the cache of `tacit data fetch`.",
    ),
]
Clients = Annotated[
    int, typer.Option(parser=whole, metavar="N", help="How many clients the data is dealt to.")
]
PartitionName = Annotated[
    str,
    typer.Option(
        "--partition",
        autocompletion=completion.partitions,
        help="iid, dirichlet, dominant-label, class-pairs, feature-skew or quantity-skew.",
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        parser=number,
        metavar="NUMBER",
        help="Dirichlet concentration (dirichlet, quantity-skew): smaller is more skewed.",
    ),
]
Dropout = Annotated[
    str,
    typer.Option(
        metavar="COUNT|FRACTION", help="Clients that may drop out: 2 of them, or 0.1 or 1/3 of all."
    ),
]
Colluding = Annotated[
    str,
    typer.Option(
        metavar="COUNT|FRACTION",
        help="Clients that may tell others their noise: 2 of them, or 0.1 or 1/3 of all.",
    ),
]
Percent = Annotated[
    float,
    typer.Option(
        parser=number,
        metavar="NUMBER",
        help="Percent of a label that one client holds (dominant-label).",
    ),
]
Similarity = Annotated[
    float,
    typer.Option(
        parser=number, metavar="FRACTION", help="Fraction that is dealt iid (class-pairs)."
    ),
]
Noise = Annotated[
    float,
    typer.Option(
        parser=number,
        metavar="NUMBER",
        help="Standard deviation of the last client's noise (feature-skew).",
    ),
]
Smallest = Annotated[
    int, typer.Option(parser=whole, metavar="N", help="Fewest examples a client holds.")
]
DataName = Annotated[
    str,
    typer.Option(
        "--data",
        autocompletion=completion.data_sets,
        help="The data set; see `tacit data list`.",
    ),
]
GridName = Annotated[
    str,
    typer.Option(
        "--grid",
        autocompletion=completion.grids,
        help="dp-hype-table (the paper's Table III) or dp-hype-code.",
    ),
]
NetworkName = Annotated[
    str,
    typer.Option(
        "--network",
        autocompletion=completion.networks,
        help="A network by name; default: 64-64 for tables, 32 for digits, the MLP for images.",
    ),
]
ExampleCount = Annotated[
    int,
    typer.Option(
        "--examples", parser=whole, metavar="N", help="Training examples dealt out; 0: all."
    ),
]
TestCount = Annotated[
    int,
    typer.Option(
        "--test-examples", parser=whole, metavar="N", help="Test examples measured on; 0: all."
    ),
]
Batch = Annotated[int, typer.Option(parser=whole, metavar="N", help="Examples in a batch.")]
Epochs = Annotated[
    int, typer.Option(parser=whole, metavar="N", help="Local epochs, for a score and in a round.")
]
Rounds = Annotated[
    int, typer.Option(parser=whole, metavar="N", help="Rounds of federated averaging.")
]
Folds = Annotated[
    int,
    typer.Option(
        parser=whole, metavar="N", help="Folds of cross-validation for a client's scores."
    ),
]
Seeds = Annotated[int, typer.Option(parser=whole, metavar="N", help="How many training seeds.")]
