"""Whatever happened to a file, a command that reads it says so in a sentence.

Kinds of files and the commands that read them are in :data:`KINDS`. Every case is a file, a command
and a seed of what is done to the file.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tacit.job import run as carry_out
from tacit.membership import Membership
from tacit.pareto_job import run as search
from tacit.pareto_plan import load_pareto_plan
from tacit.plan import load_plan
from tacit.privacy.mechanisms import Participation
from tacit.tables import shipped
from tests.command_line import in_process
from tests.commands.test_roster import answered
from tests.commands.test_runs import TINY, without_result
from tests.damage import damage
from tests.test_membership import members
from tests.test_receipts import CLIENTS, held
from tests.test_transcripts import CLIENTS as VOTERS
from tests.test_transcripts import voted

FEW, MANY = 8, 250
"""Seeds of a kind of file, usually and in the slow tier."""


@dataclass(frozen=True)
class Kind:
    """A file, as a pattern in the place that the fixture fills, and a command that reads it."""

    file: str
    command: str
    named: str = ""
    """What a sentence about damage names; by default the file itself."""

    def in_place(self, place: Path) -> Path:
        return sorted(place.glob(self.file))[0]

    @property
    def names(self) -> str:
        return self.named or Path(self.file).name.split("*")[0]


_VERIFY = "ledger verify server/server.sqlite --roster server/roster.toml"
_COMPARE = "runs compare runs/one runs/two"
_SUGGEST = "pareto suggest front --epsilon 5"
KINDS = {
    "table, shown": Kind("table.npz", "tables show table.npz"),
    "table, listed": Kind("table.npz", "tables list --out ."),
    "table, compared": Kind("table.npz", "compare --table table.npz --methods opt --out new"),
    "result, shown": Kind("runs/one/result.json", "runs show runs/one"),
    "result, shown as JSON": Kind("runs/one/result.json", "runs show runs/one --json"),
    "result, listed": Kind("runs/one/result.json", "runs list runs"),
    "result, compared": Kind(
        "runs/one/result.json", "runs compare runs/one runs/two --page p.html"
    ),
    "result, exported": Kind(
        "runs/one/result.json", "runs export runs/one --storage sqlite:///study.db"
    ),
    "result, resumed": Kind("runs/one/result.json", "runs resume runs/one"),
    "charges, shown": Kind("runs/one/ledger.json", "runs show runs/one"),
    "charges, compared": Kind("runs/one/ledger.json", f"{_COMPARE} --page p.html"),
    "plan of a run": Kind("runs/one/plan.toml", "runs show runs/one"),
    "plan of a run, compared": Kind("runs/one/plan.toml", _COMPARE),
    "plan of a run, listed": Kind("runs/one/plan.toml", "runs list runs"),
    "journal of a run": Kind("runs/half/journal-*.jsonl", "runs show runs/half"),
    "journal of a run, resumed": Kind("runs/half/journal-*.jsonl", "runs resume runs/half", "."),
    "plan": Kind("plan.toml", "tune plan.toml --out runs/one", "."),
    "plan, compared": Kind("plan.toml", "compare plan.toml --out runs/one/plan.toml", "."),
    "plan of a front": Kind("front.toml", "pareto front.toml --out runs/one/plan.toml", "."),
    "front, suggested from": Kind("front/journal-*.jsonl", _SUGGEST),
    "front's plan, suggested from": Kind("front/plan.toml", _SUGGEST, "."),
    "comparison, gone on with": Kind(
        "compared/journal-*.jsonl",
        "compare --table digits-iid-n20 --methods opt --seeds 1 --out compared",
    ),
    "comparison's plan": Kind(
        "compared/compare.toml",
        "compare --table digits-iid-n20 --methods opt --seeds 1 --out compared",
    ),
    "benchmark, gone on with": Kind(
        "bench/journal-*.jsonl", "bench votes --repetitions 2 --out bench"
    ),
    "benchmarks of a folder": Kind(
        "dp-hype/old.json",
        "bench dp-hype --clients 50 --repeats 2 --out dp-hype",
    ),
    "roster, checked": Kind("anna/roster.toml", "roster check anna/roster.toml"),
    "member's roster": Kind("anna/roster.toml", "roster check anna"),
    "member's key": Kind("anna/node.key", "roster check anna"),
    "member's public key": Kind("anna/node.pub", "roster check anna"),
    "member's ledger": Kind("anna/ledger.sqlite", "roster check anna"),
    "member's receipt": Kind("anna/receipts/*.json", "roster check anna"),
    "ledger, shown": Kind("server/server.sqlite", "ledger show server/server.sqlite"),
    "ledger, verified": Kind("server/server.sqlite", "ledger verify server/server.sqlite"),
    "ledger, amended": Kind(
        "server/server.sqlite",
        "ledger amend server/server.sqlite --epsilon 29 --delta 1e-5 --reason board",
    ),
    "ledger of a run, resumed": Kind("runs/half/ledger.sqlite", "runs resume runs/half"),
    "key for a roster": Kind(
        "anna/node.pub",
        "roster make new/r.toml anna ben --federation c --epsilon 1 --delta 1e-5 --dropout 0",
    ),
    "receipt, verified": Kind(
        "server/receipts/**/*.json", f"{_VERIFY} --receipts server/receipts", "client-"
    ),
    "roster, verified": Kind(
        "server/roster.toml", f"{_VERIFY} --receipts server/receipts", "roster"
    ),
    "transcript, verified": Kind(
        "voted/transcripts/*.transcript",
        "ledger verify voted/server.sqlite --roster voted/roster.toml "
        "--transcript voted/transcripts",
        "",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with one file of every kind; nothing is wrong with them."""
    place = tmp_path_factory.mktemp("whole")
    carry_out(load_plan(None, TINY), place / "runs" / "one", lambda *_: None, lambda _: None)
    shutil.copytree(place / "runs" / "one", place / "runs" / "two")
    shutil.copytree(place / "runs" / "one", place / "runs" / "half")
    without_result(place / "runs" / "half")
    shutil.copy(place / "runs" / "one" / "plan.toml", place / "plan.toml")
    shutil.copy(shipped()["digits-iid-n20"], place / "table.npz")
    quick = ("oracle.kind=sparse-vector", "oracle.replications=4", "front.first=4")
    front = load_pareto_plan(None, [*quick, "front.points=2", "front.batch=1"])
    search(front, place / "front", lambda *_: None)
    shutil.copy(place / "front" / "plan.toml", place / "front.toml")
    members(place)
    answered(place / "anna")
    honest = held(place / "server")
    names = tuple(f"client-{number}" for number in range(CLIENTS))
    roster = Membership("clinics", names, honest.roster, Participation(len(names)), 0.0)
    (place / "server" / "roster.toml").write_text(roster.to_toml())
    sums = voted(place / "voted")
    names = tuple(f"client-{number}" for number in range(VOTERS))
    roster = Membership("clinics", names, sums.roster, Participation(VOTERS, dropout=2), 0.0)
    (place / "voted" / "roster.toml").write_text(roster.to_toml())
    (place / "dp-hype").mkdir()
    for command in (
        KINDS["comparison, gone on with"].command,
        KINDS["benchmark, gone on with"].command,
        KINDS["benchmarks of a folder"].command,
    ):
        done = in_process(*command.split(), folder=place)
        assert done.returncode == 0, done.stderr
    (recorded,) = (place / "dp-hype").glob("*.json")
    recorded.rename(place / "dp-hype" / "old.json")
    return place


@pytest.fixture(scope="module")
def place(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it, in which files are damaged and mended."""
    copy = tmp_path_factory.mktemp("damaged") / "place"
    shutil.copytree(whole, copy)
    return copy


def files(place: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(place): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize("name", KINDS)
def test_the_command_reads_the_file(name: str, whole: Path, tmp_path: Path) -> None:
    """Without the file it does something else, or the case tests nothing."""
    kind = KINDS[name]
    shutil.copytree(whole, tmp_path / "place")
    before = in_process(*kind.command.split(), folder=tmp_path / "place")
    assert "Traceback" not in before.stderr
    shutil.rmtree(tmp_path / "place")
    shutil.copytree(whole, tmp_path / "place")
    kind.in_place(tmp_path / "place").write_bytes(b"\xff\xfe neither\n")
    after = in_process(*kind.command.split(), folder=tmp_path / "place")
    assert (after.returncode, after.stdout, after.stderr) != (
        before.returncode,
        before.stdout,
        before.stderr,
    )


def survives(name: str, seed: int, whole: Path, place: Path) -> None:
    kind = KINDS[name]
    path = kind.in_place(place)
    what = damage(path, seed)
    try:
        done = in_process(*kind.command.split(), folder=place)
        about = f"{name}, seed {seed}: {what}\n{done.stdout[-500:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr, about
        assert done.returncode in (0, 1, 2, 3), about
        said = " ".join(done.stderr.split())
        if done.returncode == 2:
            assert said.startswith("tacit: ") or "Error" in said or "tacit: " in said, about
            assert kind.names in said or path.parent.name in said, about
        if done.returncode:
            assert not list(place.rglob("*.draft")), about
            assert not (place / "new").exists() or not list((place / "new").iterdir()), about
            assert not (place / "p.html").exists(), about
            assert not (place / "study.db").exists(), about
    finally:
        shutil.rmtree(place)
        shutil.copytree(whole, place)


def cases(many: int) -> Iterator[tuple[str, int]]:
    return ((name, seed) for name in KINDS for seed in range(many))


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_a_sentence_and_never_a_traceback(
    name: str, whole: Path, place: Path
) -> None:
    for seed in range(FEW):
        survives(name, seed, whole, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_file_damaged_in_many_ways_is_a_sentence_too(name: str, whole: Path, place: Path) -> None:
    for seed in range(FEW, MANY):
        survives(name, seed, whole, place)


# Files that may not be opened, and folders that may not be written -------------------------------

OPENED_BY_PYTHON = {name: kind for name, kind in KINDS.items() if ".sqlite" not in kind.file}
"""Tests may run as root, who is refused nothing: so Python's ways to open a file refuse. SQLite has
its own; what it says of a ledger is in ``tests/privacy/test_ledger_faults.py``."""


def refuse(
    monkeypatch: pytest.MonkeyPatch, code: int, refused: Callable[[Path, object], bool]
) -> None:
    """Opening some paths fails, by whatever function of Python; so does making a folder there."""

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(file: Any, how: Any = "r", *others: Any, **named: Any) -> Any:
            if not isinstance(file, int) and refused(Path(os.fsdecode(file)).absolute(), how):
                raise OSError(code, os.strerror(code), str(file))
            return call(file, how, *others, **named)

        return called

    for holder, name in ((builtins, "open"), (io, "open"), (os, "open")):
        monkeypatch.setattr(holder, name, refusing(getattr(holder, name)))
    make = os.mkdir

    def made(path: Any, mode: int = 0o777, **named: Any) -> None:
        if refused(Path(path).absolute(), os.O_CREAT):
            raise OSError(code, os.strerror(code), str(path))
        make(path, mode, **named)

    monkeypatch.setattr(os, "mkdir", made)


@pytest.mark.parametrize("name", OPENED_BY_PYTHON)
def test_a_file_that_may_not_be_read_is_a_sentence(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, before = KINDS[name], files(place)
    path = kind.in_place(place)
    with monkeypatch.context() as patch:
        refuse(patch, errno.EACCES, lambda file, _: file == path)
        done = in_process(*kind.command.split(), folder=place)
    about = f"{done.stdout[-500:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr, about
    assert done.returncode in (1, 2) or "list" in kind.command, about
    said = " ".join((done.stdout + done.stderr).split())
    assert "Permission denied" in said, about
    assert kind.names in said or path.parent.name in said, about
    assert files(place)[path.relative_to(place)] == before[path.relative_to(place)]


WRITES = {
    "tune plan.toml --out new": "new",
    "new proj": "proj",
    "pareto run front.toml --out new": "new",
    "compare --table table.npz --methods opt --out new": "new",
    "bench votes --repetitions 2 --out new": "new",
    "runs compare runs/one runs/two --page p.html": "p.html",
    "roster key carl": "carl",
    "roster make new/r.toml anna ben --federation c --epsilon 1 --delta 1e-5 --dropout 0": "new",
    "ledger create new.sqlite --federation x --epsilon 1 --delta 1e-5": "new.sqlite",
    "tune --resume runs/half": "runs/half",
}


@pytest.mark.parametrize("command", WRITES)
def test_a_folder_that_may_not_be_written_is_a_sentence(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes(file: Path, how: object) -> bool:
        changing = how & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) if isinstance(how, int) else None
        if changing is None:
            changing = any(letter in str(how) for letter in "wax+")
        return bool(changing) and file.is_relative_to(place)

    before = files(place)
    with monkeypatch.context() as patch:
        refuse(patch, errno.EROFS, writes)
        done = in_process(*command.split(), folder=place)
    about = f"{done.stdout[-500:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr, about
    assert done.returncode == 2, about
    said = " ".join(done.stderr.split())
    assert "Read-only file system" in said, about
    assert WRITES[command] in said, about
    assert files(place) == before
