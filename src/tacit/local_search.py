"""What a client does by itself before anybody is asked for anything: search its own best.

PrivTuna calls it local hyperparameter optimisation (LHO). With ``grid``, ``random`` and ``sobol``
all clients try the same public candidates; with a sampler of Optuna each goes where its own scores
lead. Nothing here leaves the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_bytes
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from msgspec import Struct

from tacit.privacy.skellam import FloatArray
from tacit.space import SAMPLINGS, Config, Space
from tacit.task import Client, NothingToSay, scores

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

OPTUNA_SAMPLERS = ("tpe", "gp", "nsga-ii")
SAMPLERS = (*SAMPLINGS, *OPTUNA_SAMPLERS)
MOST_TRIALS = 100_000
"""Candidates that all clients try: a small question must not ask for an endless answer."""


class LocalSearch(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to search, how, and how many configurations to try.

    ``space`` is in the form of :meth:`Space.to_json`; ``seed`` draws candidates, the same for all.
    A client searches once for all questions of a ``run``, as long as its process lives; where there
    is a deadline, once a question, since each then has a process of its own.
    """

    space: dict[str, Any]
    sampler: str = "grid"
    trials: int = 100
    seed: int = 0
    run: str = ""

    @property
    def where(self) -> Space:
        """The space itself."""
        return Space.from_json(self.space)

    @property
    def count(self) -> int:
        """How many candidates all clients try; a ValueError where each finds its own."""
        if self.sampler not in SAMPLINGS:
            raise ValueError(
                f"with the sampler {self.sampler!r} every client tries candidates of its own; "
                f"allowed where they must be common are {', '.join(SAMPLINGS)}"
            )
        if not 1 <= self.trials <= MOST_TRIALS:
            raise ValueError(f"trials is {self.trials}; allowed is 1 to {MOST_TRIALS}")
        return self.where.count(self.trials, self.sampler)

    @property
    def most(self) -> int:
        """How many configurations one client can have tried."""
        return self.count if self.sampler in SAMPLINGS else self.trials

    @property
    def candidates(self) -> tuple[Config, ...]:
        """What all clients try."""
        self.count  # noqa: B018  # refuses what cannot be
        rng = np.random.default_rng(self.seed)
        return self.where.candidates(self.trials, self.sampler, rng)

    def findings(self, client: Client) -> Findings:
        """What was found before in this run, or is found now."""
        asked = msgspec.msgpack.encode(self)
        try:
            known, found = _remembered.get(client, (b"", None))
        except TypeError:  # it cannot be a key
            return self.search(client)
        if found is None or known != asked or not self.run:
            found = self.search(client)
            _remembered[client] = asked, found
        return found

    def search(self, client: Client) -> Findings:
        """Search, or :class:`NothingToSay` where not one configuration could be scored."""
        if self.sampler in SAMPLINGS:
            configs: tuple[Config, ...] = self.candidates
            found = scores(client, configs)
        else:
            configs, found = self._with_optuna(client)
        return Findings.of(self.where, configs, found)

    def _with_optuna(self, client: Client) -> tuple[tuple[Config, ...], FloatArray]:
        optuna = _import_optuna()
        study = optuna.create_study(sampler=_sampler(self.sampler, self.seed))
        axes = self.where.to_optuna()
        tried: dict[str, tuple[Config, float]] = {}
        for _ in range(self.trials):
            trial = study.ask(axes)
            config = dict(trial.params)
            known = tried.get(repr(config))
            score = known[1] if known else float(scores(client, [config])[0])
            tried[repr(config)] = config, score
            failed = None if np.isfinite(score) else optuna.trial.TrialState.FAIL
            study.tell(trial, None if failed else score, state=failed)
        configs, found = zip(*tried.values(), strict=True)
        return configs, np.array(found, dtype=np.float64)


@dataclass(frozen=True)
class Findings:
    """What a client found: points of the unit cube with their scores, the best first.

    Scores that are not finite are left out, and equal ones stand in random order.
    """

    points: FloatArray
    scores: FloatArray

    @classmethod
    def of(cls, space: Space, configs: tuple[Config, ...], found: FloatArray) -> Findings:
        """From configurations and their scores."""
        order = ranking(found)
        best = [index for index in order if np.isfinite(found[index])]
        return cls(np.array([space.encode(configs[index]) for index in best]), found[best])

    @property
    def accuracies(self) -> FloatArray:
        """One minus the score, from 0 to 1: an accuracy where scores are errors."""
        return np.clip(1 - self.scores, 0, 1)


_remembered: WeakKeyDictionary[Client, tuple[bytes, Findings]] = WeakKeyDictionary()
"""Each client's last search, until the client is gone."""


def ranking(losses: FloatArray) -> list[int]:
    """Candidates from best to worst: finite losses first, ties in random order.

    >>> ranking(np.array([0.3, np.nan, 0.1]))[:2]
    [2, 0]
    """
    if not np.isfinite(losses).any():
        raise NothingToSay
    usable = np.where(np.isfinite(losses), losses, np.inf)
    lots = np.frombuffer(token_bytes(8 * len(losses)), dtype=np.uint64)
    return [int(index) for index in np.lexsort((lots, usable))]


def check_sampler(name: str) -> None:
    """Refuse a sampler that there is not."""
    if name not in SAMPLERS:
        raise ValueError(f"the sampler is {name!r}; allowed are {', '.join(SAMPLERS)}")


def _sampler(name: str, seed: int) -> BaseSampler:
    samplers = _import_optuna().samplers
    makers: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: samplers.TPESampler(seed=seed),
        "gp": lambda: samplers.GPSampler(seed=seed),
        "nsga-ii": lambda: samplers.NSGAIISampler(seed=seed),
    }
    check_sampler(name)
    return makers[name]()


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "searching with a sampler of Optuna needs Optuna: pip install 'tacit[optuna]'; or "
            f"search with {', '.join(SAMPLINGS)}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
