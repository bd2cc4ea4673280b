"""Begin a planned run or go on with one: what ``tacit tune`` and ``tacit runs resume`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tacit.commands.options import claim
from tacit.federation import Progress, Watch
from tacit.plan import TRAINING_METHODS, Plan, participation_of, settled
from tacit.printing import plain_console
from tacit.result import Result
from tacit.runs import FINISHED, Outstanding, Run, is_run, outstanding, run_in
from tacit.terminal import (
    interruptible,
    print_json,
    print_outlook,
    print_result,
    print_training_outlook,
    progress_bars,
    round_rows,
    stage_bars,
    working,
)
from tacit.wording import rounded_up


class _Engine(Protocol):
    """What carries out a plan."""

    def __call__(
        self, plan: Plan, out: Path, progress: Progress, watch: Watch, *, resume: bool
    ) -> Result: ...


def begin(plan: Plan, folder: Path, *, as_json: bool) -> None:
    """Say what is about to happen, do it, and say what came of it."""
    with working("deciding which vote to hold"):
        planned, strategy = settled(plan, participation_of(plan))
    if not as_json:
        print_outlook(planned, strategy)
        _print_training(planned)
    _carry_out(planned, folder, as_json=as_json, resume=False)


def go_on(run: Run, *, as_json: bool) -> None:
    """Finish a run; what that will be charged is said before anybody is asked."""
    console = plain_console(stderr=as_json, soft_wrap=True)
    if run.state == FINISHED and run.result is not None:
        console.print(f"{run.folder} is finished already; nothing is done, nothing is charged.")
        _print(run.result, run.folder, as_json=as_json)
        return
    claim(run.folder)  # what is read from here on, nobody else changes
    run = run_in(run.folder)
    with working("reading what was paid"):
        still = outstanding(run)
    if run.plan is None:  # outstanding() refused that
        return
    console.print(announcement(run, still))
    _carry_out(run.plan, run.folder, as_json=as_json, resume=True)


def announcement(run: Run, still: Outstanding) -> str:
    """What going on will cost, in one sentence."""
    unit = f"(per {still.total.unit}, {still.total.relation})"
    so_far = f"{run.opened} sum(s) are in the journal; charged so far: ε = "
    so_far += rounded_up(still.charged.epsilon)
    if still.free:
        return f"{so_far} {unit}. Going on charges nothing more."
    told = (
        f"{so_far}. Going on asks at most {still.questions} more question(s) and charges for them: "
        f"at most ε = {rounded_up(still.total.epsilon)} at δ = {still.total.delta:g} {unit} in all."
    )
    if still.affordable:
        return told
    return (
        f"{told} The ledger has less left, so rounds are left out or the run is refused; a larger "
        f"budget can be set, on record: tacit ledger amend {still.ledger}"
    )


def _carry_out(plan: Plan, folder: Path, *, as_json: bool, resume: bool) -> None:

    def hint() -> str:
        if not is_run(folder):
            return "Nobody was asked and nothing was charged."
        return (
            "What was charged stays charged, and what was opened is in the journal. Go on with: "
            f"tacit runs resume {folder}"
        )

    with interruptible(hint), progress_bars() as progress:
        result = _engine(plan.federation.engine)(
            plan, folder, stage_bars(progress), round_rows(progress), resume=resume
        )
    _print(result, folder, as_json=as_json)


def _print(result: Result, folder: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        print_result(result, folder)


def _print_training(planned: Plan) -> None:
    if planned.training.private or planned.search.method in TRAINING_METHODS:
        from tacit.job import method_of

        with working("sharing the budget"):
            method = method_of(planned)
        print_training_outlook(planned, method)


def _engine(name: str) -> _Engine:
    """What carries out a plan; each is imported only when it is asked for."""
    if name == "flower-simulation":
        from tacit.flower import simulation

        return simulation.run
    from tacit import job

    return job.run
