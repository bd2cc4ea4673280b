"""Every method that a comparison may hold, by name, and how a plan has to change for it.

A contender is a plan with some keys set. Whether it applies is not decided here: a plan that cannot
be says why, and that sentence is the reason why a method was left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tacit.plan import AUTO, PUBLISHED, Plan, read_plan
from tacit.settings import with_value
from tacit.tuners.combine import STRATEGIES
from tacit.tuners.flora import SURFACES

_VOTE = {"search.method": "vote", "search.mode": "dp", "search.smooth": False}
_ENCRYPTED = {
    "search.mode": "encrypted",
    "federation.secure": "encrypted",
    "privacy.dropout": 0,
}
_TRAINS = {"search.mode": "dp", "training.private": False}
_IN_CLEAR = {"privacy.epsilon": math.inf, "training.private": False}


@dataclass(frozen=True)
class Contender:
    """A method of a comparison.

    ``reference`` marks what protects nobody and is there to be measured against; ``usual`` what is
    compared where nobody names methods.
    """

    name: str
    changes: Mapping[str, Any]
    reference: bool = False
    usual: bool = True

    @property
    def family(self) -> str:
        """The name of its method in plans."""
        return str(self.changes["search.method"])

    @property
    def encrypted(self) -> bool:
        """Whether its sums are encrypted."""
        return self.changes.get("search.mode") == "encrypted"

    def plan(self, base: Plan, seed: int) -> Plan:
        """The plan with this method; a ValueError says why there is none."""
        if self.encrypted and find_spec("seal") is None:
            raise ValueError(
                "multiparty encryption is not installed: pip install 'tacit[encrypted]'"
            )
        if self.family == "selection":
            raise ValueError(
                "it is for one holder of all the data, who trains alone; here are clients"
            )
        table: dict[str, Any] = base.to_json()
        changes = {**self.changes, "search.seed": seed, "federation.name": ""}
        if self.family != "vote":
            changes["federation.count_abstentions"] = False
        for key, value in changes.items():
            table = with_value(table, key.split("."), value)
        return read_plan(table)


def _combining(name: str, key: str, words: Sequence[str], usual: Sequence[str]) -> list[Contender]:
    """All strategies or surfaces of a method: with noise, and encrypted with noise."""
    found = []
    for word in words:
        changes = {"search.method": name, "search.mode": "dp", f"search.{key}": word}
        found.append(Contender(f"{name}-{word}", changes))
        hidden = Contender(
            f"{name}-{word}-encrypted", {**changes, **_ENCRYPTED}, usual=word in usual
        )
        found.append(hidden)
    return found


_ALL = [
    Contender("vote", {**_VOTE, "search.ballot": AUTO, "search.votes": 0, "search.finalists": 0}),
    Contender(
        "vote-published",
        {**_VOTE, "search.ballot": PUBLISHED, "search.finalists": 0, "search.folds": 0},
    ),
    *_combining("combine", "strategy", STRATEGIES, ("mean", "dbscan")),
    *_combining("flora", "surface", SURFACES, ()),
    *(Contender(m, {"search.method": m, **_TRAINS}) for m in ("bandit", "fedex", "adaptive")),
    *(Contender(m, {"search.method": m, **_TRAINS}) for m in ("feathers", "darts")),
    Contender("selection", {"search.method": "selection"}),
    Contender("random-guess", {"search.method": "random-guess", "search.mode": "dp"}),
    Contender("opt", {"search.method": "opt", **_IN_CLEAR}, reference=True),
    Contender(
        "feathers-published",
        {"search.method": "feathers-published", "search.mode": "clear", **_IN_CLEAR},
        reference=True,
        usual=False,
    ),
]
CONTENDERS: Mapping[str, Contender] = {one.name: one for one in _ALL}


def chosen(methods: str) -> list[Contender]:
    """The contenders of some names with commas between, or the usual ones.

    >>> [one.name for one in chosen("vote, opt")]
    ['vote', 'opt']
    >>> chosen("votes")
    Traceback (most recent call last):
        ...
    ValueError: --methods has 'votes'; allowed are vote, vote-published, combine-mean, \
combine-mean-encrypted, combine-median, combine-median-encrypted, combine-trimmed-mean, \
combine-trimmed-mean-encrypted, combine-best-mean, combine-best-mean-encrypted, \
combine-best-median, combine-best-median-encrypted, combine-dbscan, combine-dbscan-encrypted, \
flora-sgm, flora-sgm-encrypted, flora-sgm+u, flora-sgm+u-encrypted, flora-mplm, \
flora-mplm-encrypted, flora-aplm, flora-aplm-encrypted, bandit, fedex, adaptive, feathers, darts, \
selection, random-guess, opt, feathers-published
    """
    if not methods:
        return [one for one in CONTENDERS.values() if one.usual]
    names = dict.fromkeys(name.strip() for name in methods.split(","))
    for name in names:
        if name not in CONTENDERS:
            raise ValueError(f"--methods has {name!r}; allowed are {', '.join(CONTENDERS)}")
    return [CONTENDERS[name] for name in names]
