"""A run's released tally as an Optuna study, so that Optuna's own tools and dashboard show it.

What leaves a federation is one noisy count a candidate, nothing else: so a trial's value is a noisy
number of votes, not a score, and the study says so. Nothing is charged: the tally is public.
"""

from __future__ import annotations

from typing import Any

from tacit.result import Result
from tacit.runs import Run

VALUES = (
    "noisy votes: the tally as it was released under differential privacy; not an accuracy, and "
    "differences within a few sigma are noise"
)


def export(run: Run, storage: str, name: str) -> dict[str, Any]:
    """Write every candidate as a completed trial, and mark the chosen one; says what was written.

    Args:
        run: a run that released a tally.
        storage: where studies live, as Optuna takes it: ``sqlite:///study.db``.
        name: of the new study.
    """
    optuna = _import_optuna()
    result, space = run.result, run.plan.space if run.plan else None
    if result is None:
        raise ValueError(
            f"{run.folder} is {run.state}; allowed is a run that chose: tacit runs resume "
            f"{run.folder}"
        )
    if result.tally is None or space is None:
        raise ValueError(
            f"{run.folder} released no tally over candidates (its method is {result.method!r}), so "
            "there is no value for a trial; allowed are runs of 'vote' with a plan"
        )
    axes = space.to_optuna()
    finals = _run_off(result)
    trials = []
    for candidate, votes in zip(result.candidates, result.tally, strict=True):
        marks = {"chosen": candidate == result.config, **finals.get(repr(candidate), {})}
        try:
            trial = optuna.trial.create_trial(
                params=candidate, distributions=axes, value=float(votes), user_attrs=marks
            )
        except ValueError as error:
            raise ValueError(
                f"{run.folder}: a candidate is outside the space of the plan ({error}); "
                "take both files from one run"
            ) from None
        trials.append(trial)
    study = _new_study(optuna, storage, name)  # when nothing can go wrong any more
    for key, value in _about(run, result).items():
        study.set_user_attr(key, value)
    study.add_trials(trials)
    return {
        "storage": storage,
        "study": name,
        "trials": len(trials),
        "chosen": result.config,
        "values": VALUES,
    }


def _new_study(optuna: Any, storage: str, name: str) -> Any:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return optuna.create_study(storage=storage, study_name=name, direction="maximize")
    except optuna.exceptions.DuplicatedStudyError:
        raise ValueError(
            f"{storage} has a study {name!r} already; allowed is another --name"
        ) from None
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(
            f"the storage {storage!r} cannot be opened: {said}; allowed is what Optuna takes, such "
            "as sqlite:///study.db"
        ) from None


def _about(run: Run, result: Result) -> dict[str, Any]:
    guarantee = result.privacy.guarantee
    return {
        "tacit": run.name,
        "values": VALUES,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "protects": f"per {guarantee.unit}, {guarantee.relation}",
        "noise_variance": result.privacy.delivered_variance,
        "accuracy_of_the_chosen": result.accuracy,
    }


def _run_off(result: Result) -> dict[str, dict[str, int]]:
    """The second vote's counts, by candidate."""
    if result.run_off is None:
        return {}
    pairs = zip(result.run_off["candidates"], result.run_off["tally"], strict=True)
    return {repr(candidate): {"run_off_votes": votes} for candidate, votes in pairs}


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "exporting to a study needs Optuna: pip install 'tacit[optuna]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
