"""The plan of a front: a TOML file with three sections, every key checked and explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.data.examples import Dataset
from tacit.data.sources import DATASETS, load
from tacit.domains import PAPERS, Domain, any_data
from tacit.dp_training import OPTIMISERS, SAMPLINGS
from tacit.oracles import (
    MODELS,
    PERTURBATIONS,
    TUNERS,
    DpTraining,
    Oracle,
    OutputPerturbation,
    SparseVector,
    TunerOracle,
)
from tacit.pareto import GRID, HVPOI, NEHVI, RANDOM
from tacit.privacy.accounting import LARGEST_DELTA, LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON
from tacit.settings import (
    changed_table,
    flag,
    number,
    one_of,
    read_section,
    read_table,
    text,
    whole,
    widths,
)
from tacit.space import Choice, Space
from tacit.tables import ScoreTable

KINDS = ("dp-training", "output-perturbation", "sparse-vector", "tuner")
THIRD = ("none", "seconds", "epochs", "parameters")


@dataclass(frozen=True)
class OracleTerms:
    """Which family of private algorithms."""

    kind: str = one_of("dp-training", KINDS)
    data: str = one_of("digits", tuple(DATASETS))
    data_dir: str = text("", "the folder that holds the data, or nothing")
    examples: int = whole(0, 0, 10_000_000)
    model: str = one_of("logreg", (*MODELS, "any"))
    optimiser: str = one_of("sgd", (*OPTIMISERS, "any"))
    sampling: str = one_of("fixed", SAMPLINGS)
    hidden: tuple[int, ...] = widths(())
    delta: float = number(1e-6, LEAST_DELTA, LARGEST_DELTA)
    replications: int = whole(5, 2, 10_000)
    tuner: str = one_of("vote", (*TUNERS, "any"))
    table: str = text("adult-iid-n100", "the name or the path of a score table")


@dataclass(frozen=True)
class FrontTerms:
    """How the front is searched."""

    acquisition: str = one_of(NEHVI, (NEHVI, HVPOI, RANDOM, GRID))
    first: int = whole(16, 4, 100_000)
    points: int = whole(64, 1, 100_000)
    batch: int = whole(2, 1, 64)
    third: str = one_of("none", THIRD)
    private: bool = flag(False)
    score_noise: float = number(0.01, 1e-6, 1.0)
    epsilon: float = number(10.0, LEAST_EPSILON, LARGEST_EPSILON)
    ledger: str = text("", "the name of a lifetime ledger, or nothing for one of this front")
    seed: int = whole(1, 0, 2**63 - 1)


@dataclass(frozen=True)
class ParetoPlan:
    """A complete plan; without a space it is the paper's domain for the data."""

    oracle: OracleTerms
    front: FrontTerms
    space: Space | None = None

    def to_json(self) -> dict[str, Any]:
        """Every key with its value, as in the TOML file."""
        tables = {"oracle": asdict(self.oracle), "front": asdict(self.front)}
        tables["oracle"]["hidden"] = list(self.oracle.hidden)
        return tables | ({"space": self.space.to_json()} if self.space else {})

    def to_toml(self) -> str:
        """The plan as a file that runs again."""
        import tomli_w

        return tomli_w.dumps(self.to_json())


def read_pareto_plan(table: Mapping[str, Any]) -> ParetoPlan:
    """A plan from a table of sections, all of them optional.

    >>> read_pareto_plan({"front": {"first": 3}})
    Traceback (most recent call last):
        ...
    ValueError: front.first is 3; allowed is a whole number from 4 to 100000
    """
    for name in table:
        if name not in ("oracle", "front", "space"):
            raise ValueError(f"[{name}] is not a section; allowed are oracle, front, space")
    space = Space.from_json(table["space"]) if "space" in table else None
    plan = ParetoPlan(
        read_section("oracle", OracleTerms, table), read_section("front", FrontTerms, table), space
    )
    if space is not None and plan.oracle.kind not in ("dp-training", "output-perturbation"):
        raise ValueError(
            f"a space is given with oracle.kind {plan.oracle.kind!r}; allowed is none: it has its "
            "own"
        )
    if plan.front.third in ("epochs", "parameters") and plan.oracle.kind != "dp-training":
        raise ValueError(
            f"front.third is {plan.front.third!r}; allowed with oracle.kind {plan.oracle.kind!r} "
            "is 'none' or 'seconds'"
        )
    if plan.front.private and plan.front.third == "seconds":
        raise ValueError(
            "front.third is 'seconds'; allowed for a private front is what does not depend on the "
            "data: 'none', 'epochs' or 'parameters'"
        )
    return plan


def load_pareto_plan(path: Path | None, changes: Sequence[str]) -> ParetoPlan:
    """A plan from a file, or the default one, with ``key=value`` changes on top."""
    return read_pareto_plan(changed_table({} if path is None else read_table(path), changes))


def oracle_of(plan: ParetoPlan) -> Oracle:
    """The family of algorithms that a plan names."""
    terms = plan.oracle
    if terms.kind == "sparse-vector":
        return SparseVector(replications=terms.replications)
    if terms.kind == "tuner":
        table = ScoreTable.load(terms.table)
        return TunerOracle(table, terms.tuner, terms.delta, terms.replications)
    data = load(terms.data, Path(terms.data_dir) if terms.data_dir else None)
    data = data.some(terms.examples)
    if terms.kind == "output-perturbation":
        if len(data.classes) != 2:
            raise ValueError(
                f"oracle.data {terms.data!r} has {len(data.classes)} classes; allowed with "
                "oracle.kind 'output-perturbation' are two"
            )
        return OutputPerturbation.of(
            data,
            delta=terms.delta,
            replications=terms.replications,
            secret=plan.front.private,
            space=plan.space or PERTURBATIONS,
        )
    return DpTraining.of(
        data,
        domain=Domain(plan.space) if plan.space else domain_of(terms, data),
        model="logreg" if terms.model == "any" else terms.model,
        optimiser="sgd" if terms.optimiser == "any" else terms.optimiser,
        sampling=terms.sampling,
        delta=terms.delta,
        replications=terms.replications,
        hidden=terms.hidden or None,
        secret=plan.front.private,
    )


def domain_of(terms: OracleTerms, data: Dataset) -> Domain:
    """That of the data, with model and optimiser among the settings where either may be any."""
    domain = PAPERS.get(terms.data, any_data(data.train.units))
    if terms.model == "any":
        linear = [name for name, (_, hidden) in MODELS.items() if not hidden]
        domain = domain.having(model=Choice(linear))
    if terms.optimiser == "any":
        domain = domain.having(optimiser=Choice(list(OPTIMISERS)))
    return domain
