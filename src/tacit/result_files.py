"""Results out of the folder of a run; all that pages and commands rely on is checked first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from tacit.files import read_json
from tacit.result import Result

RESULT, LEDGER = "result.json", "ledger.json"
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Tally = list[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Endless = Literal["inf"]
_Settings = dict[str, bool | int | float | str]


class _Clients(TypedDict):
    planned: _Count
    asked: _Count
    answered: _Count


class _Privacy(TypedDict):
    epsilon: _Amount | _Endless
    delta: _Share
    unit: str
    relation: str
    mechanism: str
    accounting: str
    server: str
    setting: str
    covers: str
    required_variance: _Amount | _Endless | None
    delivered_variance: _Amount | _Endless | None
    dropout: _Count
    colluding: _Count


class _Sent(TypedDict):
    up: _Count
    down: _Count


class _RunOff(TypedDict):
    candidates: Annotated[list[_Settings], Meta(min_length=2)]
    tally: _Tally
    variance: _Amount


class _Abstained(TypedDict):
    vote: str
    answered: _Count
    estimate: _Count
    least: _Count
    most: _Count


class _Evaluation(TypedDict):
    ways: list[str]
    local: str
    peak_megabytes: _Amount
    not_stacked_because: list[str]


class _Result(TypedDict):
    """What ``result.json`` has to hold; more does no harm."""

    method: str
    config: _Settings
    candidates: list[_Settings]
    tally: _Tally | None
    clients: _Clients
    privacy: _Privacy
    accuracy: _Share | None
    note: str
    seconds: dict[str, _Amount]
    bytes: dict[str, _Sent]
    evaluation: _Evaluation | None
    run_off: NotRequired[_RunOff | None]
    exchanges: NotRequired[_Count]
    faults: NotRequired[list[str]]
    abstentions: NotRequired[list[_Abstained]]
    architecture: NotRequired[str]
    rounds: NotRequired[list[dict[str, Any]]]
    versions: NotRequired[dict[str, str]]


class _Ledger(TypedDict):
    """What ``ledger.json`` has to hold, for those who read results."""

    run: str
    federation: str
    lines: list[dict[str, Any]]


def read_result(folder: Path) -> Result:
    """The result of a run, or a ValueError that names the file that cannot be read."""
    path = folder / RESULT
    found = read_json(path, "the result of a run", dict[str, Any])
    ledger = read_json(folder / LEDGER, "what a run was charged", dict[str, Any])
    try:
        checked = msgspec.convert(found, _Result)
        for about, votes in ((checked, checked["tally"]), *_second_vote(checked)):
            if votes is not None and len(votes) != len(about["candidates"]):
                raise ValueError(
                    f"there are {len(about['candidates'])} candidates and {len(votes)} counts"
                )
        result = Result.from_json(found, ledger)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as the result of a run: {error}") from None
    try:
        msgspec.convert(ledger, _Ledger)
    except ValueError as error:
        raise ValueError(f"{folder / LEDGER} cannot be read: {error}") from None
    return result


def _second_vote(result: _Result) -> list[tuple[_RunOff, _Tally]]:
    held = result.get("run_off")
    return [(held, held["tally"])] if held else []
