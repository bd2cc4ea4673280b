"""What a run found and what it cost, in a form for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from tacit.abstentions import Abstentions, prevailing
from tacit.display import facts_html, settings
from tacit.privacy.accounting import Guarantee
from tacit.privacy.mechanisms import Participation
from tacit.secure.protocol import SpoiledSum
from tacit.sgd import Weights
from tacit.space import Config
from tacit.wording import rounded_up

COVERS = (
    "The choice of hyperparameters, not the training that follows nor scores measured on clients' "
    "data. Accuracy here is on a public test split that nobody voted with. Who takes part must not "
    "depend on the data."
)
COVERS_TRAINING = (
    "The choice of hyperparameters and the training of the model with it: one epsilon for both. "
    "Not scores measured on clients' data. Accuracy here is on a public test split that nobody "
    "voted or trained with. Who takes part must not depend on the data."
)
COVERS_NOTHING = (
    "Nothing: answers left the clients in clear. Accuracy here is on a public test split that "
    "nobody chose with."
)
COVERS_NO_OUTPUT = (
    "Nothing of what was opened: sums over all clients are exact, without noise. Accuracy here is "
    "on a public test split that nobody chose with."
)
SIGNED_SERVER = (
    "a server that may deviate from the protocol: keys and survivors are signed against a roster "
    "that every client holds"
)
ANY_SERVER = "whoever sees what clients send: each of them adds its noise before it sends"
RESULT_ONLY = (
    "those who see this result alone; whoever trained saw every run, and is trusted to forget them"
)
EVERY_RUN = "whoever sees every run: all of them are charged"
CURIOUS_SERVER = "honest-but-curious server"
ENCRYPTED_SERVER = (
    "honest-but-curious server and clients: nothing is learned beyond the opened outputs, from "
    "which N-1 colluding clients can subtract themselves; a server that gives out a public key of "
    "its own reads every answer, and a roster does not change that"
)
OPEN_SERVER = "none: sums are plain, and the server sees every noisy answer"


@dataclass(frozen=True)
class Turnout:
    """How many clients were asked and how many answers were used."""

    asked: int
    answered: int

    @property
    def dropped(self) -> int:
        """Who was asked and is missing."""
        return self.asked - self.answered


@dataclass(frozen=True)
class Privacy:
    """A guarantee with everything needed to quote it."""

    guarantee: Guarantee
    mechanism: str
    participation: Participation
    server: str
    setting: str
    covers: str
    required_variance: float | None = None
    delivered_variance: float | None = None

    @property
    def epsilon(self) -> float:
        """What the run cost at :attr:`delta`."""
        return self.guarantee.epsilon

    @property
    def delta(self) -> float:
        """The delta that belongs to :attr:`epsilon`."""
        return self.guarantee.delta

    @classmethod
    def from_json(cls, found: dict[str, Any], clients: int) -> Privacy:
        """From plain data."""
        guarantee = Guarantee(
            **{name: found[name] for name in ("delta", "unit", "relation", "accounting")},
            epsilon=float(found["epsilon"]),
        )
        names = ("mechanism", "server", "setting", "covers")
        noise = ("required_variance", "delivered_variance")
        return cls(
            guarantee,
            participation=Participation(clients, found["dropout"], found["colluding"]),
            **{name: found[name] for name in (*names, *noise)},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.guarantee.unit,
            "relation": self.guarantee.relation,
            "mechanism": self.mechanism,
            "required_variance": self.required_variance,
            "delivered_variance": self.delivered_variance,
            "dropout": self.participation.dropout,
            "colluding": self.participation.colluding,
            "server": self.server,
            "setting": self.setting,
            "accounting": self.guarantee.accounting,
            "covers": self.covers,
        }


@dataclass(frozen=True, repr=False)
class Result:
    """What was chosen, from what, by how many, at what price.

    ``tally`` is None for methods that see no tally, ``accuracy`` where nothing was trained, and
    ``note`` says what the method did that its reader would not expect. ``run_off`` has candidates,
    tally and variance of a second vote; the variances in ``privacy`` are the first one's. Bytes
    are those of all clients together. ``evaluation`` says how simulated clients trained; real ones
    do not tell. ``faults`` names who misbehaved, by the client's number. ``exchanges`` counts how
    often clients were asked something. ``rounds`` has what a method that trains told of each;
    ``weights``, its model, are not part of the JSON.
    ``versions`` are those of Tacit, Python and the libraries that it used. ``abstentions`` says how
    many clients abstained from each vote, where that was counted.

    >>> import tacit
    >>> clients = [lambda config, best=best: abs(config["x"] - best / 20) for best in range(20)]
    >>> result = tacit.tune(clients, {"x": tacit.Float(0.0, 1.0)}, tacit.Vote(2, candidates=8))
    >>> result.method, result.clients, len(result.tally), result.privacy.epsilon <= 1
    ('vote', Turnout(asked=20, answered=20), 8, True)
    """

    method: str
    config: Config
    candidates: tuple[Config, ...]
    tally: tuple[int, ...] | None
    clients: Turnout
    privacy: Privacy
    seconds: dict[str, float]
    bytes: dict[str, dict[str, int]]
    accuracy: float | None = None
    note: str = ""
    run_off: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    architecture: str = ""
    rounds: tuple[dict[str, Any], ...] = ()
    exchanges: int = 0
    faults: tuple[str, ...] = ()
    abstentions: tuple[Abstentions, ...] = ()
    weights: Weights | None = field(default=None, repr=False)
    versions: dict[str, str] = field(default_factory=dict, repr=False)
    ledger: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls, found: dict[str, Any], ledger: dict[str, Any]) -> Result:
        """From the content of ``result.json`` and ``ledger.json``."""
        turnout = Turnout(found["clients"]["asked"], found["clients"]["answered"])
        return cls(
            method=found["method"],
            config=found["config"],
            candidates=tuple(found["candidates"]),
            tally=None if found["tally"] is None else tuple(found["tally"]),
            clients=turnout,
            privacy=Privacy.from_json(found["privacy"], found["clients"]["planned"]),
            seconds=found["seconds"],
            bytes=found["bytes"],
            accuracy=found["accuracy"],
            note=found["note"],
            run_off=found.get("run_off"),
            evaluation=found["evaluation"],
            architecture=found.get("architecture", ""),
            rounds=tuple(found.get("rounds", ())),
            exchanges=found.get("exchanges", 0),
            faults=tuple(found.get("faults", ())),
            abstentions=msgspec.convert(found.get("abstentions", []), tuple[Abstentions, ...]),
            versions=found.get("versions", {}),
            ledger=ledger,
        )

    @property
    def warning(self) -> str:
        """Why the choice means nothing, if most clients abstained from a vote; otherwise empty."""
        return prevailing(self.abstentions)

    def __repr__(self) -> str:
        """What matters at a prompt; the rest are attributes."""
        told = "; ".join(f"{name.lower()} {words}" for name, words in self._facts().items())
        return f"<Result of {self.method!r}: {told}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return facts_html(f"Result of {self.method}", self._facts())

    def _facts(self) -> dict[str, str]:
        guarantee = self.privacy.guarantee
        cost = (
            f"ε = {rounded_up(guarantee.epsilon)} at δ = {guarantee.delta:g} (per "
            f"{guarantee.unit}, {guarantee.relation})"
        )
        facts = {
            "Warning": self.warning,
            "Chosen": settings(self.config),
            "Accuracy": "" if self.accuracy is None else f"{self.accuracy:.1%} on public test data",
            "Cost": cost,
            "Clients": f"{self.clients.answered} of {self.clients.asked} answered",
            "Abstained": "; ".join(f"{one.vote}: {one.words}" for one in self.abstentions),
            "Misbehaved": "; ".join(self.faults),
            "Note": self.note,
        }
        return {name: words for name, words in facts.items() if words}

    def to_json(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        return {
            **({"warning": self.warning} if self.warning else {}),
            "method": self.method,
            "config": self.config,
            "candidates": list(self.candidates),
            "tally": None if self.tally is None else list(self.tally),
            "run_off": self.run_off,
            "clients": {
                "planned": self.privacy.participation.clients,
                "asked": self.clients.asked,
                "answered": self.clients.answered,
                "dropped": self.clients.dropped,
            },
            "abstentions": [asdict(vote) for vote in self.abstentions],
            "privacy": self.privacy.to_json(),
            "accuracy": self.accuracy,
            "note": self.note,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "exchanges": self.exchanges,
            "faults": list(self.faults),
            "evaluation": self.evaluation,
            "architecture": self.architecture,
            "rounds": list(self.rounds),
            "versions": self.versions,
        }


class MostAbstained(SpoiledSum):
    """Most clients abstained from a vote, so that its choice must not be used.

    ``result`` says everything else; what it cost is charged.
    """

    def __init__(self, result: Result) -> None:
        Exception.__init__(self, result.warning)
        self.result = result
