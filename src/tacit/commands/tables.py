"""``tacit tables``: clients' scores and federated accuracies, computed once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tacit.commands import completion
from tacit.commands.options import (
    Alpha,
    AsJson,
    Batch,
    Clients,
    DataDir,
    DataName,
    Epochs,
    ExampleCount,
    Folds,
    GridName,
    NetworkName,
    Noise,
    PartitionName,
    Percent,
    Rounds,
    Seeds,
    Similarity,
    Smallest,
    TestCount,
    claim,
    filling,
)
from tacit.printing import plain_console, styled
from tacit.table_maker import make
from tacit.tables import Recipe, ScoreTable, shipped
from tacit.terminal import counting_bar, print_json

app = typer.Typer(help="Score tables: training done once, for all.", no_args_is_help=True)

FOLDER = Path("tacit-runs/tables")
Folder = Annotated[Path, typer.Option(help="Folder for tables made here.")]


@app.command("make")
def make_(
    data: DataName = "digits",
    partition_name: PartitionName = "iid",
    clients: Clients = 50,
    alpha: Alpha = 0.5,
    percent: Percent = 66.0,
    similarity: Similarity = 0.0,
    noise: Noise = 0.1,
    smallest: Smallest = 10,
    grid: GridName = "dp-hype-table",
    network: NetworkName = "",
    examples: ExampleCount = 0,
    test_examples: TestCount = 0,
    batch: Batch = 64,
    epochs: Epochs = 5,
    rounds: Rounds = 5,
    seeds: Seeds = 3,
    folds: Folds = 1,
    data_dir: DataDir = None,
    out: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Train all candidates on all clients, and federated, on all cores. Continues after a kill.

    Example: tacit tables make --data adult --partition dirichlet --alpha 0.5 --clients 100
    """
    recipe = Recipe(
        data,
        partition_name,
        clients,
        alpha,
        percent,
        similarity,
        noise,
        smallest,
        grid,
        network,
        examples,
        test_examples,
        batch=batch,
        epochs=epochs,
        rounds=rounds,
        seeds=seeds,
        folds=folds,
    )
    with filling(out, "Go on with the same command"):
        table = make_table(recipe, data_dir, out)
    path = out / f"{recipe.name}.npz"
    if as_json:
        print_json({**summary(table), "file": str(path)})
    else:
        _print(table, path)


def make_table(recipe: Recipe, data_dir: Path | None, out: Path) -> ScoreTable:
    """Make a table with a progress bar, and save it."""
    claim(out)
    with counting_bar(f"training for {recipe.name}") as progress:
        table = make(recipe, data_dir, out / "unfinished", progress)
    table.save(out / f"{recipe.name}.npz")
    return table


_LIST_WIDTH = 110


@app.command("list")
def list_(out: Folder = FOLDER, as_json: AsJson = False) -> None:
    """The tables that come with Tacit, and those made here.

    Example: tacit tables list
    """
    made = {path.stem: path for path in sorted(out.glob("*.npz"))}
    tables = {**shipped(), **made}
    rows = [{**summary(ScoreTable.load(path)), "file": str(path)} for path in tables.values()]
    if as_json:
        print_json({"tables": rows})
        return
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "clients", "candidates", "seeds", "best", "mean", "from"):
        numeric = heading not in ("table", "from")
        shown.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["table"],
            str(row["clients"]),
            str(row["candidates"]),
            str(row["seeds"]),
            f"{row['best_accuracy']:.1%}",
            f"{row['mean_accuracy']:.1%}",
            "here" if row["table"] in made else "Tacit",
        )
    console = plain_console()
    console.width = max(console.width, _LIST_WIDTH)  # better wrapped by the terminal than cut
    console.print(shown)


@app.command("show")
def show(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=completion.table_names,
            help="A name from the list, or a file.",
        ),
    ],
    out: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """The recipe of a table, what it took, and its best candidates.

    Example: tacit tables show digits-iid-n50
    """
    here = out / f"{table}.npz"
    path: str | Path = here if here.exists() else table
    found = ScoreTable.load(path)
    if as_json:
        print_json(
            {
                **summary(found),
                "recipe": asdict(found.recipe),
                "made": dict(found.made),
                "accuracy": found.accuracy.tolist(),
                "candidate_list": list(found.candidates),
            }
        )
    else:
        _print(found, path)


def summary(table: ScoreTable) -> dict[str, Any]:
    """One line about a table."""
    seeds, clients, candidates = table.losses.shape
    return {
        "table": table.name,
        "clients": clients,
        "candidates": candidates,
        "seeds": seeds,
        "best_accuracy": float(table.accuracy.max(axis=1).mean()),
        "mean_accuracy": float(table.accuracy.mean()),
    }


def _print(table: ScoreTable, path: str | Path) -> None:
    console = plain_console()
    about, recipe = summary(table), table.recipe
    console.print(
        styled(
            table.name,
            "bold",
            f": {about['clients']} clients x {about['candidates']} candidates ({recipe.grid}) x "
            f"{about['seeds']} seeds; {recipe.epochs} local epochs, {recipe.rounds} rounds, batch "
            f"{recipe.batch}",
        ),
        soft_wrap=True,
    )
    made = table.made
    most = made.get("peak_megabytes_a_core")  # unknown where a table was put together from others
    memory = "" if most is None else f", at most {most:.0f} MB a core"
    console.print(
        f"Trained in {made['core_seconds']:.0f} s of processor time{memory}: "
        f"{'; '.join(made['ways'])}",
        soft_wrap=True,
    )
    first_choices = np.sum(
        [
            np.bincount(table.scores(seed).argmin(axis=1), minlength=len(table.candidates))
            for seed in range(about["seeds"])
        ],
        axis=0,
    )
    shown = Table(box=None, padding=(0, 2, 0, 0))
    names = list(table.candidates[0])
    for heading in ("test accuracy", "first choice of", *names):
        shown.add_column(heading, justify="right")
    for place in np.argsort(-table.accuracy.mean(axis=0))[:10]:
        config = table.candidates[place]
        shown.add_row(
            f"{table.accuracy[:, place].mean():.1%}",
            f"{first_choices[place]} clients",
            *(f"{config[name]:g}" for name in names),
        )
    console.print(shown)
    console.print(f"File: {path}", soft_wrap=True)
