"""``tacit data``: which data sets there are, how to get them, and who holds what of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from tacit.commands import completion
from tacit.commands.options import (
    Alpha,
    AsJson,
    Clients,
    DataDir,
    Noise,
    PartitionName,
    Percent,
    Similarity,
    Smallest,
    whole,
)
from tacit.data import sources
from tacit.data.folders import MissingData, locate
from tacit.data.holdings import label_counts, table
from tacit.data.partitions import deal, feature_noise, partition
from tacit.files import write_whole
from tacit.printing import plain_console, styled
from tacit.terminal import download_bars, print_json, stage_bars, working

app = typer.Typer(help="Data sets, and how they are dealt to clients.", no_args_is_help=True)

DataName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        autocompletion=completion.data_sets,
        help=f"One of {', '.join(sources.DATASETS)}.",
    ),
]
_CLIENTS_SHOWN = 20


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Every data set, whether it can be found here, and its licence.

    Example: tacit data list
    """
    found = []
    for name, source in sources.DATASETS.items():
        try:
            locate(source, data_dir)
            missing = None
        except MissingData as error:
            missing = str(error)
        found.append(
            {"name": name, "title": source.title, "licence": source.licence, "missing": missing}
        )
    if as_json:
        print_json({"data": found})
        return
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "here", "what", "licence"):
        shown.add_column(heading, no_wrap=heading in ("name", "here"))
    for row in found:
        here = "yes" if row["missing"] is None else "no"
        shown.add_row(row["name"], here, str(row["title"]), str(row["licence"]))
    console = plain_console()
    console.print(shown)
    console.print("`tacit data fetch NAME` gets one from its public source.")


@app.command()
def fetch(name: DataName, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Download a data set from its public source, check it, and keep it.

    Example: tacit data fetch mnist
    """
    with download_bars() as progress:
        folder = sources.fetch(name, stage_bars(progress), data_dir)
    if as_json:
        print_json({"data": name, "folder": str(folder)})
    else:
        typer.echo(f"{name} is in {folder}")


@app.command()
def show(
    name: DataName,
    partition_name: PartitionName = "iid",
    clients: Clients = 50,
    alpha: Alpha = 0.5,
    percent: Percent = 66.0,
    similarity: Similarity = 0.0,
    noise: Noise = 0.1,
    smallest: Smallest = 10,
    seed: Annotated[
        int, typer.Option(parser=whole, metavar="N", help="Seed of the partition.")
    ] = 1,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Where the picture goes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Deal a data set to clients, and draw who holds what.

    Example: tacit data show adult --partition dirichlet --alpha 0.5 --clients 50
    """
    from tacit.data.picture import render

    dealt = partition(
        partition_name,
        alpha=alpha,
        percent=percent,
        similarity=similarity,
        noise=noise,
        smallest=smallest,
    )
    with working(f"dealing {name}"):
        dataset = sources.load(name, data_dir)
        parts = deal(dataset, dealt, clients, np.random.default_rng(seed))
    counts, deviations = label_counts(parts, len(dataset.classes)), feature_noise(dealt, clients)
    path = out or Path("tacit-runs") / f"data-{name}-{partition_name}-{clients}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    with working("drawing"):
        write_whole(path, render(name, dataset.classes, counts, repr(dealt), deviations))
    held = table(dataset.classes, counts, deviations)
    if as_json:
        print_json(
            {
                "data": name,
                "train": len(dataset.train),
                "test": len(dataset.test),
                "shape": list(dataset.train.shape),
                "partition": repr(dealt),
                "seed": seed,
                "picture": str(path),
                **asdict(held),
            }
        )
        return
    console = plain_console()
    summary = held.summary
    console.print(
        styled(
            name,
            "bold",
            f": {len(dataset.train)} examples of shape {dataset.train.shape} dealt to {clients} "
            f"clients by {dealt!r}; {len(dataset.test)} test examples stay public",
        ),
        soft_wrap=True,
    )
    console.print(
        f"Sizes: smallest {summary.smallest}, median {summary.median:g}, largest "
        f"{summary.largest}. A client's most frequent label is {summary.largest_share:.0%} of its "
        f"examples; its labels lie {summary.distance:.2f} from the whole (0: iid).",
        soft_wrap=True,
    )
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("client", "examples", "most frequent label"):
        shown.add_column(heading, justify="right" if heading != "most frequent label" else "left")
    for holding in held.clients[:_CLIENTS_SHOWN]:
        most = int(np.argmax(holding.labels))
        label = f"{dataset.classes[most]} ({holding.labels[most]})" if holding.size else "none"
        shown.add_row(str(holding.client), str(holding.size), label)
    console.print(shown)
    if clients > _CLIENTS_SHOWN:
        console.print(f".. and {clients - _CLIENTS_SHOWN} more: see the picture, or --json.")
    console.print(f"Picture: {path}", soft_wrap=True)
