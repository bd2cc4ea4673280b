from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tacit"
LAYERS = (
    ("cores", "locks"),
    ("files",),
    (
        "arrays",
        "certainty",
        "flower_project",
        "journal",
        "keeping",
        "one_writer",
        "packed_arrays",
        "printing",
        "privacy.clipped_sum",
        "privacy.rounded_normal",
        "privacy.skellam",
        "secure.ring",
        "space",
        "wording",
    ),
    (
        "display",
        "optima",
        "page",
        "privacy.losses",
        "privacy.random_stopping",
        "punctual",
        "secure.bfv",
        "smoothing",
        "surfaces",
    ),
    ("cells", "deciding", "privacy.sampled_gaussian", "secure.circuit"),
    ("secure.multiparty",),
    ("privacy.events",),
    ("privacy.bounds", "privacy.noise_lattice"),
    ("privacy.accounting",),
    (
        "abstentions",
        "privacy.filters",
        "privacy.ledger_lines",
        "privacy.ledger_totals",
        "privacy.mechanisms",
    ),
    ("privacy.ledger_history", "privacy.ledger_locks"),
    ("privacy.ledger_file",),
    ("privacy.ledger_verify",),
    ("privacy.audit", "privacy.ledger", "secure.crypto", "secure.graph", "secure.roster"),
    ("privacy.quoting", "receipts", "secure.protocol", "secure.shamir"),
    ("plausible", "secure.messages", "secure.plain"),
    ("closing", "flower.wire", "secure.encrypted", "secure.setup", "sessions"),
    ("secure.evidence", "secure.masks", "states"),
    ("secure.transcript",),
    ("secure.opening",),
    ("privacy.planner", "privacy.selection"),
    (
        "data.examples",
        "domains",
        "settings",
        "halving",
        "networks",
        "seeded_dropout",
    ),
    (
        "data.formats",
        "data.folders",
        "data.holdings",
        "data.skews",
        "lots",
        "sgd",
        "workers",
    ),
    (
        "data.fetching",
        "data.images",
        "data.own_files",
        "data.partitions",
        "data.picture",
        "data.tabular",
    ),
    ("data.sources", "dense", "dp_training", "modules", "rules", "sklearn_task"),
    ("supernet", "task"),
    ("local_search", "result", "updates"),
    ("combining", "result_files", "rewards", "ways"),
    ("query",),
    ("torch_task",),
    ("grids", "simulation"),
    ("endpoint", "membership"),
    ("transcripts",),
    ("federation", "flower.client"),
    ("charged_questions",),
    ("flower.channel", "flower.processes", "training"),
    ("tables",),
    ("table_maker",),
    ("tuners.modes", "tuners.tuner"),
    (
        "tuners.adaptive",
        "tuners.bandit",
        "tuners.baselines",
        "tuners.combine",
        "tuners.fedex",
        "tuners.flora",
        "tuners.selection",
        "tuners.voting",
    ),
    ("strategy", "tuners.nas", "tuners.side_by_side", "tuners.together"),
    ("oracles", "plan", "statement", "tuning"),
    ("pareto", "standing"),
    ("comparison", "report"),
    ("pareto_page", "pareto_plan"),
    ("pareto_job",),
    ("flower.server", "job"),
    ("contenders", "flower.comparing", "flower.simulation", "runs"),
    ("audits.worlds", "compare", "studies"),
    ("audits.records", "audits.sums"),
    ("audits.auditing",),
    ("compare_tables",),
    (
        "bench.ballots_figures",
        "bench.claims",
        "bench.combine_figures",
        "bench.cost_figures",
        "bench.dp_hype_figures",
        "bench.feathers_runs",
        "bench.flower_app",
        "bench.pareto_figures",
        "bench.pieces",
        "bench.plain_loop",
        "bench.training_figures",
    ),
    (
        "bench.adaptive",
        "bench.averaging",
        "bench.ballots",
        "bench.combine",
        "bench.dp_hype",
        "bench.encrypted",
        "bench.feathers",
        "bench.flower",
        "bench.ledger",
        "bench.noise",
        "bench.pareto",
        "bench.scaling",
        "bench.selection",
        "bench.secure_sum",
        "bench.speed",
        "bench.terminal",
        "bench.votes",
        "terminal",
    ),
    ("bench.pages", "checkup", "commands.completion", "compare_page"),
    ("commands.options",),
    ("commands.running",),
    (
        "commands.data",
        "commands.ledger",
        "commands.pareto",
        "commands.price",
        "commands.roster",
        "commands.runs",
        "commands.tables",
    ),
    ("commands.audit", "commands.bench", "commands.compare"),
    ("cli",),
    ("__main__",),
)
"""Each module imports from earlier layers only."""
HEAVY = (
    "dp_accounting",
    "scipy.stats",
    "sklearn",
    "torch",
    "flwr",
    "plotly",
    "mpmath",
    "optuna",
    "seal",
)


def modules() -> dict[str, Path]:
    paths = (path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in paths}


def tacit_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit."):
            inside = (node.module or "").removeprefix("tacit.")
            known = modules()
            found |= {inside} if inside in known else {f"{inside}.{n.name}" for n in node.names}
    return found


def test_every_module_has_a_layer() -> None:
    assert sorted(modules()) == sorted(name for layer in LAYERS for name in layer)


@pytest.mark.parametrize("name", modules())
def test_imports_go_one_way(name: str) -> None:
    depth = next(i for i, layer in enumerate(LAYERS) if name in layer)
    allowed = {module for layer in LAYERS[:depth] for module in layer}
    assert tacit_imports(modules()[name]) <= allowed


@pytest.mark.parametrize("name", ["tacit", "tacit.cli", "tacit.bench.votes"])
def test_importing_loads_nothing_heavy(name: str) -> None:
    script = f"import sys, {name}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [module for module in HEAVY if module in loaded] == []
