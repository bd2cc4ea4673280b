"""``tacit pareto``: which privacy buys which utility, and the settings for a wish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from tacit import pareto_job
from tacit.commands.options import AsJson, filling, fresh_folder, number
from tacit.pareto_plan import load_pareto_plan
from tacit.printing import plain_console
from tacit.terminal import print_json, progress_bars, working
from tacit.wording import rounded_up


class _RunsByDefault(TyperGroup):
    """``tacit pareto PLAN.toml`` is ``tacit pareto run PLAN.toml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunsByDefault,
    help="The privacy-utility front of a private algorithm: tacit pareto PLAN.toml.",
    no_args_is_help=True,
)


@app.command("run")
def run(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="PLAN.toml", help="The plan; default: all defaults.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a key of the plan."),
    ] = None,
    private_front: Annotated[
        bool,
        typer.Option(
            "--private-front", help="Add noise to every error, and say what the front costs."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; a killed search goes on in the same one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search the front of a family of private algorithms.

    Writes plan.toml, front.json and front.html to the folder, and continues after a kill if the
    folder is given again.

    Example: tacit pareto plan.toml --set front.points=64 --out tacit-runs/adult
    """
    wanted = [*(changes or []), *(["front.private=true"] if private_front else [])]
    plan = load_pareto_plan(plan_file, wanted)
    folder = out or fresh_folder("pareto")
    with filling(folder, f"Go on with the same command and --out {folder}"), _bar() as progress:
        result = pareto_job.run(plan, folder, progress)
    if as_json:
        print_json(result)
        return
    console = plain_console()
    console.print(_table(result["front"], result["third"]))
    console.print(
        f"ε at δ = {result['delta']:g}, {result['protects']}. "
        f"Hypervolume {result['hypervolume']:.4f} (up to ε = 10 and an error of 1), "
        f"{len(result['points'])} points"
    )
    console.print(f"Who may see it: {result['who_may_see_it']}", soft_wrap=True)
    console.print(f"Page: {folder / 'front.html'}", soft_wrap=True)


@app.command("suggest")
def suggest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A search that was finished.")],
    epsilon: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help="The most it may cost.")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help="What it should reach.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Settings for a wished epsilon or accuracy, read off the fitted model.

    Epsilon is exact; the error is the model's, with its 95 % interval.

    Example: tacit pareto suggest tacit-runs/adult --epsilon 0.7
    """
    for name, wish, most in (("epsilon", epsilon, math.inf), ("accuracy", accuracy, 1.0)):
        if wish is not None and not 0 < wish <= most:
            upper = "" if math.isinf(most) else f", up to {most:g}"
            raise ValueError(f"--{name} is {wish:g}; allowed is a number above 0{upper}")
    error = None if accuracy is None else 1 - accuracy
    with working("fitting the model"):
        found = pareto_job.suggest(folder, epsilon=epsilon, error=error)
    if as_json:
        print_json(asdict(found))
        return
    console = plain_console()
    for name, value in found.config.items():
        shown = f"{value:.6g}" if isinstance(value, float) else value
        console.print(f"  {name} = {shown}")
    console.print(
        f"ε = {rounded_up(found.epsilon)} at δ = {found.delta:g} ({found.protects}); accuracy "
        f"{1 - found.error:.3f} expected, between {1 - found.high:.3f} and {1 - found.low:.3f} "
        "with 95 % probability if the model is right"
    )


@contextmanager
def _bar() -> Iterator[pareto_job.Progress]:
    with progress_bars() as progress:
        bar = progress.add_task("points", total=None)

        def show(done: int, total: int, volume: float) -> None:
            words = f"points, hypervolume {volume:.4f}"
            progress.update(bar, completed=done, total=total, description=words)

        yield show


def _table(best: list[dict[str, Any]], third: str | None) -> Table:
    names = list(best[0]["config"])
    table = Table("ε", "Error", "Least to most", *([third] if third else []), *names)
    for row in best:
        errors = row["errors"]
        mean = sum(errors) / len(errors)
        values = (
            f"{value:.4g}" if isinstance(value, float) else str(value)
            for value in (row["config"][name] for name in names)
        )
        spread = f"{min(errors):.3f} to {max(errors):.3f}"
        extra = [f"{row['extra']:.4g}"] if third else []
        table.add_row(rounded_up(float(row["epsilon"])), f"{mean:.4f}", spread, *extra, *values)
    return table
