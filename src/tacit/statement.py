"""The guarantee of a run in words that a data-protection officer can quote, as plain text.

It says who is protected, against whom, by how much, what others saw, what is assumed, what is not
covered, and what the federation has spent in its lifetime. It is made from ``result.json``, the
ledger's extract and the plan alone; epsilon and delta are rounded up.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.abstentions import FALSE_ALARM, Abstentions
from tacit.privacy.mechanisms import Participation
from tacit.result import (
    ANY_SERVER,
    CURIOUS_SERVER,
    ENCRYPTED_SERVER,
    EVERY_RUN,
    OPEN_SERVER,
    RESULT_ONLY,
    SIGNED_SERVER,
)
from tacit.wording import up

Data = Mapping[str, Any]

STOPS_BY_REWARDS = ("bandit", "feathers")
"""Methods whose number of reward rounds follows from rewards released before."""
NO_GUARANTEE = (
    "Nothing bounds what the server, or anyone it tells, can learn about a client’s data from this "
    "run. It must not be called differentially private."
)
OPEN_TO_THE_SERVER = (
    "It saw every client’s answer with only that client’s share of the noise. The statement above "
    "is for those who see nothing but the released sums."
)
NOT_COVERED = (
    "how long a client takes to answer, unless answers are collected at a public deadline; what "
    "leaves a client’s machine by other ways; and a budget that was raised because of what a run "
    "showed"
)
_OWN_LEDGERS = ("this-run", "this-call")
_ALONE = (RESULT_ONLY, EVERY_RUN)
_BY_CLIENTS = "Gaussian noise on sums of clipped gradients, which every client adds alone"


def infinite(privacy: Data) -> bool:
    """Whether nothing is guaranteed."""
    return math.isinf(float(privacy["epsilon"]))  # in result.json it is a string


def asked_nobody(privacy: Data) -> bool:
    """Whether no client was asked anything, so that nothing was released."""
    return not infinite(privacy) and privacy["mechanism"] == "none"


def proved_epsilon(result: Data, plan: str) -> float:
    """The epsilon to quote: where the number of rounds follows their outcomes, the budget's.

    A run of FEATHERS that stops early is charged for fewer rounds. That it stopped is itself an
    outcome, and the price of what happened to be asked is no bound for it; the run's budget is,
    since the declared most rounds fit into it (a privacy filter).
    """
    spent = float(result["privacy"]["epsilon"])
    if result["method"] not in STOPS_BY_REWARDS or math.isinf(spent):
        return spent
    try:
        budget = float(tomllib.loads(plan)["privacy"]["epsilon"])
    except (tomllib.TOMLDecodeError, KeyError):
        return spent
    return max(budget, spent)


def named(ledger: Data) -> bool:
    """Whether the federation has a lifetime beyond this run."""
    return ledger["federation"] not in _OWN_LEDGERS


def quotable(result: Data, plan: str, ledger: Data) -> list[str]:
    """The statement, in paragraphs; for runs with a guarantee."""
    privacy = result["privacy"]
    if asked_nobody(privacy):
        nothing = "No client was asked anything, so this run reveals nothing about anyone’s data"
        return [f"{nothing}: ε = 0.", _lifetime(ledger)]
    epsilon, delta = proved_epsilon(result, plan), privacy["delta"]
    record = privacy["unit"] == "record"
    changed = "replacing any one record (numbers of records are public)"
    if not record:
        changed = f"replacing all the data of any one {privacy['unit']}"
    whose = f" of the federation {ledger['federation']}" if named(ledger) else ""
    sentences = [
        f"What run {ledger['run']}{whose} released is (ε, δ)-differentially private at "
        f"{privacy['unit']} level ({privacy['relation']}), with "
        f"ε = {up(epsilon)} and δ = {up(delta)}: {changed} changes the probability of any outcome "
        f"by at most a factor of exp(ε) = {up(math.exp(epsilon))}, plus δ.",
        f"Protected is {protected(privacy)}, against {privacy['server']}.",
    ]
    if privacy["server"] == OPEN_SERVER:
        sentences[1] = f"Protected is {protected(privacy)}, but not against the server."
    seen = seen_by_server(privacy, ledger)
    if privacy["server"] in _ALONE:
        sentences[1] += f" Released was {seen}."
    else:
        sentences[1] += f" The server saw {seen}. Other clients saw {seen_by_clients(privacy)}."
    return [
        *sentences,
        _assumed(privacy, result["clients"]),
        f"Covered: {privacy['covers']} Not covered: {NOT_COVERED}.",
        f"Setting: {privacy['setting']}. {_lifetime(ledger)}",
    ]


def facts(result: Data, plan: str, ledger: Data) -> dict[str, str]:
    """What the statement says, one by one, and what it rests on."""
    privacy = result["privacy"]
    found = {"What the server saw": seen_by_server(privacy, ledger)}
    if infinite(privacy):
        if privacy["server"] == ENCRYPTED_SERVER:
            found["Against whom answers were encrypted"] = privacy["server"]
    elif not asked_nobody(privacy):
        found = {
            "Who is protected": protected(privacy),
            "Against whom": privacy["server"],
            **found,
        }
        if result.get("abstentions"):
            found["Abstentions"] = _abstained(result["abstentions"])
        if privacy["server"] not in _ALONE:
            found["What others saw"] = seen_by_clients(privacy)
        found |= _conditions(privacy, result["clients"])
        if result["method"] in STOPS_BY_REWARDS:
            found["Rounds by outcome"] = _filter(result, plan)
    found |= {
        "Setting": privacy["setting"],
        "Accounting": privacy["accounting"],
        "Covers": privacy["covers"],
    }
    if not infinite(privacy):
        found["Does not cover"] = NOT_COVERED
    return found


def protected(privacy: Data) -> str:
    """Who."""
    if privacy["unit"] == "record":
        return "every single record; not what all the records of a client have in common"
    return f"every {privacy['unit']}, with all its data"


def seen_by_server(privacy: Data, ledger: Data) -> str:
    """What reached the server, or whoever trained."""
    kinds = {line["label"]: line["event"]["kind"] for line in ledger["lines"]}
    clear = " and ".join(f"“{label}”" for label, kind in kinds.items() if kind == "unprotected")
    hidden = "encrypted" if privacy["server"] == ENCRYPTED_SERVER else "masked"
    alone = "every client’s weights, trained by DP-SGD"
    cases = (
        (
            clear and privacy["server"] == ENCRYPTED_SERVER,
            f"exact outputs, without noise, of {clear}; answers were encrypted",
        ),
        (clear, f"clients’ answers in clear, to {clear}"),
        (privacy["mechanism"] == "none", "nothing from any client"),
        (privacy["server"] == OPEN_SERVER, "every client’s noisy answer, one by one"),
        (privacy["server"] == RESULT_ONLY, "the model released, and nothing of the other runs"),
        (privacy["server"] == EVERY_RUN, "the model and the noisy score of every run"),
        (privacy["unit"] == "record" and privacy["required_variance"] is None, alone),
        (privacy["unit"] == "record", f"{alone}, and noisy sums"),
    )
    usual = f"the noisy sums only; what single clients sent was {hidden}"
    return next((words for true, words in cases if true), usual)


def seen_by_clients(privacy: Data) -> str:
    """What reached the other clients."""
    if privacy["server"] == ANY_SERVER:
        return "the questions and the models made of all weights"
    return (
        "the questions, public keys, sealed messages and who dropped out; of another client’s "
        "answer nothing but what the released sums tell"
    )


def _assumed(privacy: Data, clients: Data) -> str:
    if privacy["server"] in _ALONE:
        return "It assumes that nothing but what is named here leaves the holder of the data."
    words = "It assumes that who takes part does not depend on the data"
    if privacy["required_variance"] is not None:
        planned = _planned(privacy, clients)
        told = "none tells others its noise"
        if planned.colluding:
            told = f"at most {planned.colluding} of them tell others their noise"
        words += (
            f", that at most {planned.dropout} of {planned.clients} clients drop out "
            f"({clients['dropped']} of {clients['asked']} did) and that {told}"
        )
    return f"{words}. {_roster(privacy)}."


def _roster(privacy: Data) -> str:
    if privacy["server"] == SIGNED_SERVER:
        return "The roster of keys that every client holds must be genuine"
    if privacy["server"] == ANY_SERVER:
        return "Nothing is assumed about the server"
    if privacy["server"] == CURIOUS_SERVER:
        return "The server must follow the protocol, since clients held no roster of keys"
    if privacy["server"] == ENCRYPTED_SERVER:
        return "The server must follow the protocol, with a roster or without"
    return "Clients held no roster of keys"


def _lifetime(ledger: Data) -> str:
    spent, budget = ledger["lifetime"], ledger["budget"]
    whose = f"In its lifetime so far, the federation {ledger['federation']} has"
    if not named(ledger):
        whose = "The federation has no name, so its ledger begins and ends with this run: it has"
    return (
        f"{whose} spent ε = {up(spent['epsilon'])} at δ = {up(spent['delta'])} ({spent['unit']} "
        f"level, {spent['relation']}), this run included, of a budget of "
        f"ε = {up(budget['epsilon'])} at δ = {up(budget['delta'])}."
    )


def _conditions(privacy: Data, clients: Data) -> dict[str, str]:
    required, delivered = privacy["required_variance"], privacy["delivered_variance"]
    if privacy["server"] in _ALONE:
        return {"Mechanism": "Gaussian noise on sums of clipped gradients and on models’ scores"}
    if required is None:
        return {"Mechanism": _BY_CLIENTS}
    planned = _planned(privacy, clients)
    collusion = (
        f"holds while at most {planned.colluding} of {planned.clients} clients tell others their "
        "noise; a curious client counts as one of them"
        if planned.colluding
        else "holds against a curious client too, who knows its own noise, but not against clients "
        "that tell others theirs"
    )
    return {
        "Drop-outs": f"holds while at most {planned.dropout} of {planned.clients} clients drop "
        f"out; {clients['dropped']} of {clients['asked']} did",
        "Collusion": collusion,
        "Mechanism": f"skellam noise, a share from every client; variance "
        f"required {required:.4g} (σ = {math.sqrt(required):.3g}), delivered {delivered:.4g} "
        f"(σ = {math.sqrt(delivered):.3g})"
        + (f"; and {_BY_CLIENTS}" if privacy["unit"] == "record" else ""),
    }


def _planned(privacy: Data, clients: Data) -> Participation:
    return Participation(clients["planned"], privacy["dropout"], privacy["colluding"])


def _abstained(votes: Sequence[Data]) -> str:
    """What the noisy counts say, and what they cost."""
    counts = "; ".join(f"{Abstentions(**vote).words} in the {vote['vote']}" for vote in votes)
    return (
        f"{counts}; counted in the same sum, under the same noise, at no further cost; each end of "
        f"an interval is wrong in at most {FALSE_ALARM:.1%} of runs"
    )


def _filter(result: Data, plan: str) -> str:
    return (
        "how many reward rounds a phase has follows from noisy rewards released before, up to a "
        f"number fixed in the plan. What was asked costs ε = {up(result['privacy']['epsilon'])}, "
        "less for a run that stops early; that smaller number is reported, but not proved. Proved "
        f"is the budget, ε = {up(proved_epsilon(result, plan))}: it pays for the most rounds "
        "there can be (a privacy filter). Quote that"
    )
