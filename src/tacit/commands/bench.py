"""``tacit bench``: the papers' experiments, and our measurements.

Every command measures and ends with :func:`_finish`: it writes the result as JSON and as a page,
and prints tables, or the JSON. A new one needs its line in :data:`tacit.bench.pages.PAGES` and in
:data:`tacit.bench.terminal.PRINTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.bench import (
    adaptive,
    averaging,
    ballots,
    combine,
    dp_hype,
    dp_hype_figures,
    encrypted,
    feathers,
    feathers_runs,
    ledger,
    noise,
    pareto,
    scaling,
    selection,
    speed,
)
from tacit.bench import flower as flower_bench
from tacit.bench import secure_sum as secure_sum_bench
from tacit.bench import votes as votes_bench
from tacit.bench.pages import page_of, revived
from tacit.bench.pieces import Workplace
from tacit.bench.terminal import PRINTED
from tacit.commands.options import (
    Alpha,
    AsJson,
    Clients,
    DataDir,
    DataName,
    Epochs,
    ExampleCount,
    GridName,
    NetworkName,
    PartitionName,
    Rounds,
    Seeds,
    TestCount,
    filling,
    whole,
)
from tacit.commands.tables import make_table
from tacit.files import json_text, read_json, write_whole
from tacit.page import command_line, versions
from tacit.printing import plain_console
from tacit.tables import Recipe, ScoreTable, shipped
from tacit.terminal import counting_bar, print_json

Out = Annotated[Path, typer.Option(help="Folder for results, page and journal.")]

_GO_ON = "Go on with the same command"

app = typer.Typer(help="The papers' experiments, and our measurements.", no_args_is_help=True)


@app.command("votes")
def bench_votes(
    repetitions: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help=f"Simulated votes a point; default: the paper's {votes_bench.REPETITIONS}.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help=f"{votes_bench.QUICK_REPETITIONS} repetitions, in seconds."),
    ] = False,
    seed: Annotated[
        int, typer.Option(parser=whole, metavar="N", help="Seed of the simulation.")
    ] = 1,
    out: Out = Path("tacit-runs/bench-votes"),
    as_json: AsJson = False,
) -> None:
    """DP-HYPE's simulation (section V-B): success against spread, good and all candidates.

    Continues after a kill. Writes votes.json and votes.html to the folder.

    Example: tacit bench votes --quick
    """
    if quick and repetitions is not None:
        raise ValueError(f"found --quick and --repetitions {repetitions}; allowed is one of them")
    chosen = votes_bench.QUICK_REPETITIONS if quick else votes_bench.REPETITIONS
    with _bar("simulated votes", out) as progress:
        result = votes_bench.run(
            chosen if repetitions is None else repetitions, seed, out, progress
        )
    _finish(result, out, as_json=as_json)


@app.command("ballots")
def bench_ballots(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two tables, two epsilons, fewer draws.")
    ] = False,
    out: Out = Path("tacit-runs/bench-ballots"),
    as_json: AsJson = False,
) -> None:
    """Which vote picks best at the same epsilon and delta, on score tables and made-up surfaces.

    Continues after a kill. Writes ballots.json and ballots.html to the folder.

    Example: tacit bench ballots --quick
    """
    setup = ballots.QUICK if quick else ballots.Setup()
    with _place("pieces", None, out) as place:
        result = ballots.run(setup, place)
    _finish(result, out, as_json=as_json)


@app.command("secure-sum")
def bench_secure_sum(
    quick: Annotated[
        bool, typer.Option("--quick", help="Up to 100 clients only, in seconds.")
    ] = False,
    out: Out = Path("tacit-runs/bench-secure-sum"),
    as_json: AsJson = False,
) -> None:
    """Time, memory and bytes of the masked sum for 50 to 3000 clients, also when things go wrong.

    With lost messages and with a hostile member; and how many of many sums open in spite of loss.

    Continues after a kill. Writes secure-sum.json and secure-sum.html to the folder.

    Example: tacit bench secure-sum --quick
    """
    bench = secure_sum_bench
    sizes = bench.QUICK_SIZES if quick else bench.SIZES
    lossy = bench.QUICK_LOSSY_SUMS if quick else bench.LOSSY_SUMS
    with _bar("sums", out) as progress:
        result = bench.run(sizes, lossy, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("dp-hype")
def bench_dp_hype(
    data: DataName = "digits",
    clients: Clients = 50,
    partition_name: PartitionName = "iid",
    alpha: Alpha = 0.5,
    seeds: Seeds = 3,
    repeats: Annotated[
        int,
        typer.Option(parser=whole, metavar="N", help="Draws of noise a seed and epsilon."),
    ] = 1000,
    grid: GridName = "dp-hype-table",
    network: NetworkName = "",
    examples: ExampleCount = 0,
    test_examples: TestCount = 0,
    epochs: Epochs = 5,
    rounds: Rounds = 5,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train anew even if Tacit brings the score table.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="At most 10 clients, 120 examples, 200 test examples, 2 epochs; one round, "
            "one seed: a stated toy size.",
        ),
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-dp-hype"),
    as_json: AsJson = False,
) -> None:
    """DP-HYPE's experiments: OPT, RANDGUESS and the private vote by epsilon, on real data.

    Training comes from a score table: one that Tacit brings, or one that is made now and continued
    after a kill. Writes one JSON file a setting, and the figures of all settings in the folder.

    Example: tacit bench dp-hype --data adult --clients 100 --partition dirichlet --alpha 0.5
    """
    if quick:
        clients, seeds, epochs, rounds = min(clients, 10), 1, min(epochs, 2), 1
        examples, test_examples = min(examples or 120, 120), min(test_examples or 200, 200)
    recipe = Recipe(
        data,
        partition_name,
        clients,
        alpha,
        grid=grid,
        network=network,
        examples=examples,
        test_examples=test_examples,
        epochs=epochs,
        rounds=rounds,
        seeds=seeds,
    )
    with filling(out, _GO_ON):
        result = dp_hype.run(_table(recipe, data_dir, out, fresh=fresh), repeats)
    _finish(result, out, as_json=as_json, stem=recipe.name)


def _table(recipe: Recipe, data_dir: Path | None, out: Path, *, fresh: bool) -> ScoreTable:
    """The table of a recipe: shipped with enough seeds, made before, or made now."""
    made = out / "tables" / f"{recipe.name}.npz"
    places = [*([] if fresh else [shipped().get(recipe.name)]), made]
    for path in places:
        if path is not None and path.exists():
            table = ScoreTable.load(path)
            if table.recipe.seeds >= recipe.seeds:
                return table.first(recipe.seeds)
    return make_table(recipe, data_dir, out / "tables")


@app.command("combine")
def bench_combine(
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="NAME", help="Only these data sets; may be given several times."
        ),
    ] = None,
    seeds: Seeds = combine.SEEDS,
    full: Annotated[
        bool,
        typer.Option("--full", help="All examples and the paper's networks: days, not minutes."),
    ] = False,
    paper_rate: Annotated[
        bool,
        typer.Option(
            "--paper-rate", help="Clients' own rate 0.01, also on subsets; always with --full."
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A setting of each kind, on a part of the digits, 2 seeds."),
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-combine"),
    as_json: AsJson = False,
) -> None:
    """PrivTuna's measurements: combining local optima, against federated grid search and FLoRA.

    Continues after a kill. Writes combine.json and combine.html (the paper's Figures 2 to 8) to the
    folder.

    Example: tacit bench combine --data mnist --data digits --data-dir data
    """
    if quick and (full or data):
        raise ValueError("found --quick with --full or --data; allowed is one of them")
    subsets = {recipe.data: recipe for recipe in (combine.FULL if full else combine.SUBSETS)}
    for name in data or ():
        if name not in subsets:
            raise ValueError(f"--data is {name!r}; allowed are {', '.join(subsets)}")
    chosen = [recipe for name, recipe in subsets.items() if not data or name in data]
    wanted = combine.experiments(chosen, paper_rate=paper_rate or full)
    recipes = combine.quick() if quick else wanted
    if quick:
        seeds = min(seeds, 2)
    with _bar("pieces", out) as progress:
        result = combine.run(recipes, seeds, data_dir, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("encrypted")
def bench_encrypted(
    clients: Annotated[
        list[int] | None,
        typer.Option(
            "--clients",
            parser=whole,
            metavar="N",
            help="Numbers of parties; may be given several times; default: "
            f"{', '.join(map(str, encrypted.CLIENTS))}.",
        ),
    ] = None,
    more: Annotated[
        list[int] | None, typer.Argument(parser=whole, metavar="[N]...", help="Further numbers.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"{' and '.join(map(str, encrypted.QUICK_CLIENTS))} parties, no noise."
        ),
    ] = False,
    out: Out = Path("tacit-runs/bench-encrypted"),
    as_json: AsJson = False,
) -> None:
    """Multiparty encryption: time and bytes of PF-Mean and PF-DBSCAN, and of every operation.

    Continues after a kill. Writes encrypted.json and encrypted.html to the folder. Measure on a
    quiet machine.

    Example: tacit bench encrypted --clients 10 20 50
    """
    asked = [*(clients or ()), *(more or ())]
    if quick and asked:
        raise ValueError(f"found --quick and --clients {asked[0]}; allowed is one of them")
    if any(number < 2 for number in asked):
        raise ValueError(f"--clients is {min(asked)}; allowed is 2 and above")
    sizes = tuple(asked) or (encrypted.QUICK_CLIENTS if quick else encrypted.CLIENTS)
    with _bar("measurements", out) as progress:
        result = encrypted.run(sizes, not quick and not asked, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("averaging")
def bench_averaging(
    seeds: Seeds = averaging.SEEDS,
    quick: Annotated[
        bool, typer.Option("--quick", help="100 clients on digits, two epsilons, three rounds.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-averaging"),
    as_json: AsJson = False,
) -> None:
    """Private federated averaging: accuracy against epsilon, 100 and 1000 simulated clients.

    Continues after a kill. Writes averaging.json and averaging.html to the folder.

    Example: tacit bench averaging --quick
    """
    setup = averaging.QUICK if quick else averaging.Setup()
    with _place("trainings", data_dir, out) as place:
        result = averaging.run(setup, 1 if quick else seeds, place)
    _finish(result, out, as_json=as_json)


@app.command("adaptive")
def bench_adaptive(
    seeds: Seeds = adaptive.SEEDS,
    full: Annotated[
        bool,
        typer.Option("--full", help="The paper's network and rounds: days; not run here."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few hundred images, three rounds, two rates.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-adaptive"),
    as_json: AsJson = False,
) -> None:
    """Adaptive learning rates against constant ones and Adam, on CIFAR-10 with class pairs.

    Continues after a kill. Writes adaptive.json and adaptive.html to the folder.

    Example: tacit bench adaptive --quick
    """
    _one_of(quick=quick, full=full)
    setup = adaptive.QUICK if quick else adaptive.FULL if full else adaptive.Setup()
    with _place("trainings", data_dir, out) as place:
        result = adaptive.run(setup, 1 if quick else seeds, place)
    _finish(result, out, as_json=as_json)


@app.command("feathers")
def bench_feathers(
    seeds: Seeds = feathers.SEEDS,
    full: Annotated[
        bool,
        typer.Option("--full", help="All images, the paper's cells and rounds: not run here."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A hundred images, one cell, one round of everything.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-feathers"),
    as_json: AsJson = False,
) -> None:
    """FEATHERS against federated DARTS, FedEx and FedAvg; and F1 against epsilon on fraud data.

    Continues after a kill. Writes feathers.json and feathers.html to the folder.

    Example: tacit bench feathers --quick
    """
    _one_of(quick=quick, full=full)
    setup = feathers_runs.QUICK if quick else feathers_runs.FULL if full else feathers_runs.Setup()
    with _place("runs", data_dir, out) as place:
        result = feathers.run(setup, 1 if quick else seeds, place)
    _finish(result, out, as_json=as_json)


@app.command("selection")
def bench_selection(
    quick: Annotated[
        bool, typer.Option("--quick", help="Digits only, two settings, short runs.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-selection"),
    as_json: AsJson = False,
) -> None:
    """Private selection: accuracy and spread against the mean number of runs (Table 1).

    Continues after a kill. Writes selection.json and selection.html to the folder.

    Example: tacit bench selection --quick
    """
    setup = selection.QUICK if quick else selection.Setup()
    with _place("settings", data_dir, out) as place:
        result = selection.run(setup, place)
    _finish(result, out, as_json=as_json)


@app.command("pareto")
def bench_pareto(
    seeds: Seeds = pareto.SEEDS,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few points on a few hundred examples.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-pareto"),
    as_json: AsJson = False,
) -> None:
    """Privacy-utility fronts: a model's proposals against chance and a grid; what they cost.

    Continues after a kill. Writes pareto.json and pareto.html to the folder.

    Example: tacit bench pareto --quick
    """
    setup = pareto.QUICK if quick else pareto.Setup()
    with _place("searches", data_dir, out) as place:
        result = pareto.run(setup, 1 if quick else seeds, place)
    _finish(result, out, as_json=as_json)


@app.command("flower")
def bench_flower(
    quick: Annotated[
        bool, typer.Option("--quick", help="10 simulated clients only, instead of up to 250.")
    ] = False,
    deployed: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also measure the deployment in this folder (examples/deploy/up.sh); it is "
            "charged for one vote.",
        ),
    ] = None,
    out: Out = Path("tacit-runs/bench-flower"),
    as_json: AsJson = False,
) -> None:
    """Messages, bytes and seconds of a private vote over Flower, beside empty messages.

    Continues after a kill. Writes flower.json and flower.html to the folder. Measure on a quiet
    machine.

    Example: tacit bench flower --quick
    """
    sizes = flower_bench.QUICK_SIZES if quick else flower_bench.SIZES
    with _bar("sizes", out) as progress:
        result = flower_bench.run(sizes, deployed, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("speed")
def bench_speed(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repetitions, clients and steps.")
    ] = False,
    data_dir: DataDir = None,
    out: Out = Path("tacit-runs/bench-speed"),
    as_json: AsJson = False,
) -> None:
    """Scoring 100 candidates against a plain loop of torch or scikit-learn, in one run.

    Halving is measured on Adult and MNIST where they are found. Continues after a kill. Writes
    speed.json and speed.html to the folder. Measure on a quiet machine.

    Example: tacit bench speed --quick
    """
    with _bar("rows", out) as progress:
        result = speed.run(quick, data_dir, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("ledger")
def bench_ledger(
    quick: Annotated[bool, typer.Option("--quick", help="Short ledgers, fewer charges.")] = False,
    out: Out = Path("tacit-runs/bench-ledger"),
    as_json: AsJson = False,
) -> None:
    """What a ledger's length costs, and how long processes wait that charge it at once.

    Continues after a kill. Writes ledger.json and ledger.html to the folder. Measure on a quiet
    machine.

    Example: tacit bench ledger --quick
    """
    with _bar("ledgers", out) as progress:
        result = ledger.run(quick, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("noise")
def bench_noise(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps and repetitions.")] = False,
    out: Out = Path("tacit-runs/bench-noise"),
    as_json: AsJson = False,
) -> None:
    """What noise without holes costs a step of DP-SGD, against a whole step in single precision.

    Continues after a kill. Writes noise.json and noise.html to the folder. Measure on a quiet
    machine.

    Example: tacit bench noise --quick
    """
    with _bar("models", out) as progress:
        result = noise.run(quick, out, progress)
    _finish(result, out, as_json=as_json)


@app.command("scaling")
def bench_scaling(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes only.")] = False,
    out: Out = Path("tacit-runs/bench-scaling"),
    as_json: AsJson = False,
) -> None:
    """Time against candidates, clients and samples; memory against candidates.

    Continues after a kill. Writes scaling.json and scaling.html to the folder.

    Example: tacit bench scaling --quick
    """
    with _bar("points", out) as progress:
        result = scaling.run(quick, out, progress)
    _finish(result, out, as_json=as_json)


@contextmanager
def _place(unit: str, data_dir: Path | None, out: Path) -> Iterator[Workplace]:
    with _bar(unit, out) as progress:
        yield Workplace(data_dir, out, progress)


@contextmanager
def _bar(unit: str, out: Path) -> Iterator[Callable[[int, int], None]]:
    """Measuring in a folder that nobody else writes in, with a bar."""
    with filling(out, _GO_ON), counting_bar(unit) as progress:
        yield progress


def _one_of(**flags: bool) -> None:
    if sum(flags.values()) > 1:
        raise ValueError(f"found {' and '.join(f'--{name}' for name in flags)}; allowed is one")


def _finish(result: dict[str, Any], out: Path, *, as_json: bool, stem: str = "") -> None:
    """How every benchmark ends: JSON and a page in the folder, tables or JSON on the terminal.

    The file of the JSON is named by ``stem``, if one benchmark has several settings; the page then
    shows all that are in the folder.
    """
    name = result["bench"]
    command = command_line()
    result = {**result, "command": command, "versions": versions()}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / f"{stem or name}.json", json_text(result) + "\n")
    drawn = _recorded(name, out) if stem else ()
    write_whole(out / f"{name}.html", page_of(result, drawn))
    if as_json:
        print_json(result)
        return
    PRINTED[name](result)
    plain_console().print(f"Page: {out / f'{name}.html'}", soft_wrap=True)


def _recorded(name: str, out: Path) -> Sequence[dict[str, Any]]:
    """All settings of a benchmark that are in a folder."""
    found = []
    for path in sorted(out.glob("*.json")):
        result = read_json(path, "the result of a benchmark", dict[str, Any])
        if result.get("bench") == name:
            read_json(path, "a setting that is drawn", dp_hype_figures.Drawn)
            found.append(revived(result))
    return found
