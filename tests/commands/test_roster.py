from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.checkup import Checkup
from tacit.cli import app
from tacit.membership import (
    KEY,
    LEDGER,
    PUBLIC_KEY,
    ROSTER,
    Member,
    Membership,
    new_key,
    read_key,
    write_public,
)
from tacit.privacy.accounting import Budget
from tacit.privacy.bounds import TopVotes
from tacit.privacy.events import Unprotected
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import Participation, SkellamMechanism
from tacit.receipts import Receipt
from tacit.secure.roster import Identity
from tests.command_line import document, refusal, tacit
from tests.forgeries import edit
from tests.test_membership import NAMES, members

VOTE = TopVotes(100, 5).release(139.0)


def answered(folder: Path, session: str = "ab" * 32) -> None:
    """What an answer leaves in a member's folder: a charge and a receipt."""
    member = Member.load(folder)
    assert member.identity
    assert member.membership
    assert member.number is not None
    member.ledger.charge(VOTE, "answer", run=session)
    member.keep(
        Receipt.signed(
            member.identity,
            member.membership.roster,
            client=member.number,
            session=session,
            question="",
            line="",
            event=VOTE,
        )
    )


@pytest.fixture
def anna(tmp_path: Path) -> Path:
    folder = members(tmp_path)[0]
    answered(folder)
    return folder


def problems(folder: Path) -> list[str]:
    return Checkup.of(folder).problems


def run(*arguments: object) -> Any:
    """The command in this process, which is faster; errors are turned to sentences by main."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shown(*arguments: object, code: int = 0) -> str:
    done = run(*arguments)
    assert done.exit_code == code, done.output
    return str(done.stdout)


def refused(*arguments: object) -> str:
    done = run(*arguments)
    assert isinstance(done.exception, ValueError)
    return str(done.exception)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the keys of three members, in which commands are run."""
    for name in NAMES:
        new_key(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


MAKE = ("roster", "make", "roster.toml", *NAMES, "--federation", "clinics")


def test_a_federation_of_three_gets_its_keys_and_its_roster(tmp_path: Path) -> None:
    for name in NAMES:
        made = document(tacit("roster", "key", name, "--json", folder=tmp_path))
        key = (tmp_path / name / PUBLIC_KEY).read_text().strip()
        files = {"file": f"{name}/node.pub", "secret_file": f"{name}/node.key"}
        assert made == {"key": key, **files}
    made = document(tacit(*MAKE, "--json", folder=tmp_path))
    roster = Membership.load(tmp_path / "roster.toml")
    assert made.pop("file") == "roster.toml"
    assert [(one["number"], one["name"]) for one in made["members"]] == list(enumerate(NAMES))
    assert [one["key"] for one in made["members"]] == list(map(write_public, roster.roster.keys))
    assert (made["dropout"], made["colluding"], made["threshold"]) == (0, 0, 3)
    assert made["digest"] == roster.digest
    checked = document(tacit("roster", "check", "roster.toml", "--json", folder=tmp_path))
    assert checked == {"ok": True, "problems": [], "roster": made}


def test_people_are_told_what_to_do_next(three: Path) -> None:
    told = shown("roster", "key", "dora")
    assert told.startswith(write_public(read_key(three / "dora" / KEY).public_key))
    assert "dora/node.pub: send that file to whoever makes the roster" in told
    assert (three / "dora" / KEY).read_text().split()[1] not in told
    made = shown(*MAKE)
    assert "compare by telephone" in made
    assert "every member copies it to its folder, as roster.toml" in made
    again = shown("roster", "check", "roster.toml")
    assert again.splitlines() == made.splitlines()[:-1]
    for number, name in enumerate(NAMES):
        key = (three / name / PUBLIC_KEY).read_text().strip()
        assert f"{number}  {name:4}  {key}" in again
    assert Membership.load(three / "roster.toml").digest in again.replace(" ", "")
    assert "At least 3 of 3 must answer" in again


def test_the_least_noise_is_that_of_a_single_vote_rounded_down(three: Path) -> None:
    shown(*MAKE, "--epsilon", 2, "--delta", 1e-6, "--dropout", 0.0, "--colluding", "1/3")
    least = Membership.load(three / "roster.toml").least_noise
    participation = Participation(3, 0, 1)
    mechanism = SkellamMechanism.calibrated(TopVotes(50, 1), participation, Budget(2.0, 1e-6))
    needed = mechanism.share_variance / 2  # a vote that moves leaves one place and enters another
    assert least <= needed
    assert least == pytest.approx(needed, rel=1e-3)
    assert float(f"{least:.4g}") == least


def test_the_least_noise_can_be_given(three: Path) -> None:
    made = json.loads(shown(*MAKE, "--least-noise", 12.34567, "--json"))
    assert made["least_noise"] == 12.34567
    assert Membership.load(three / "roster.toml").least_noise == 12.34567


def test_a_roster_that_cannot_be_is_not_made(three: Path) -> None:
    shutil.copy("anna/node.pub", "dora.pub")
    Path("junk.pub").write_text("ssh-ed25519 AAAA")

    def made(*arguments: object, federation: str = "clinics") -> str:
        return refused("roster", "make", "r.toml", *arguments, "--federation", federation)

    assert "found 1 key; a roster needs those of 2 members at least" in made("anna")
    assert "anna and dora have the same key; each member makes its own" in made("anna", "dora.pub")
    assert "junk.pub does not read 'tacit-ed25519 ...'" in made("anna", "junk.pub")
    assert "no public key at none; a member makes it with" in made("anna", "none")
    assert "federation is '../x'; allowed are 1 to 100" in made("anna", "ben", federation="../x")
    given = made("anna", "ben", "--least-noise", "nan")
    assert "least_noise is nan; allowed is a finite number" in given
    assert "dropout is '1.0'; allowed is a count" in made("anna", "ben", "--dropout", 1.0)
    assert "of 2 clients 1 may be missing and 1 may" in made("anna", "ben", "--dropout", 1)
    assert not (three / "r.toml").exists()


def test_a_roster_and_a_key_are_never_replaced(three: Path) -> None:
    Path("roster.toml").write_text("ours")
    assert "roster.toml exists already; a roster is never replaced" in refusal(tacit(*MAKE))
    assert Path("roster.toml").read_text() == "ours"
    secret = read_key(three / "anna" / KEY).secret
    assert "a key is never replaced" in refused("roster", "key", "anna")
    assert read_key(three / "anna" / KEY).secret == secret


def test_what_is_no_roster_is_refused_in_one_sentence(three: Path) -> None:
    told = refusal(tacit("roster", "check", three / "anna" / KEY))
    assert "not a TOML file" in told
    assert (three / "anna" / KEY).read_text().split()[1] not in told
    missing = refused("roster", "check", "none")
    assert missing == "no roster at none; make one with: tacit roster make none KEYS"


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "roster.md").read_text()
    block = re.search(r"^\$ tacit (roster make .*)\n((?:.+\n)*?)```", page, re.MULTILINE)
    assert block
    monkeypatch.chdir(tmp_path)
    for name, key in re.findall(r"^ +\d  (\w+) +(tacit-ed25519 \S+)$", block[2], re.MULTILINE):
        Path(f"{name}.pub").write_text(key)
    printed = shown(*block[1].split())
    assert [line.rstrip() for line in printed.splitlines()] == block[2].splitlines()


@pytest.mark.parametrize("command", ["key", "make", "check"])
def test_every_command_shows_an_example(command: str) -> None:
    assert f"Example: tacit roster {command}" in shown("roster", command, "--help")


def test_a_folder_in_order_is_shown_with_what_is_left(anna: Path) -> None:
    found = document(tacit("roster", "check", anna, "--json"))
    assert (found["ok"], found["problems"], found["key_mode"]) == (True, [], "600")
    assert (found["member"]["number"], found["member"]["name"]) == (0, "anna")
    ledger = found["ledger"]
    assert (ledger["federation"], ledger["budget"]["epsilon"]) == ("clinics", 30)
    assert ledger["spent"] == Ledger(anna / LEDGER).total().epsilon
    assert ledger["left"] == 30 - ledger["spent"]
    assert found["receipts"] == 1
    told = shown("roster", "check", anna)
    assert "Member 0, anna; its key has mode 600." in told
    assert re.search(r"^Ledger of clinics: ε = 29.000\d of 30 is left at δ = 1e-05\.$", told, re.M)
    assert told.endswith("1 receipt(s) kept.\nAll is well.\n")


def test_problems_make_the_exit_code_1(anna: Path) -> None:
    (anna / KEY).chmod(0o644)
    (anna / LEDGER).unlink()
    done = tacit("roster", "check", anna, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["ok"], found["ledger"], found["key_mode"]) == (False, None, "644")
    assert found["member"]["name"] == "anna", "by its public key"
    assert len(found["problems"]) == 2
    told = shown("roster", "check", anna, code=1)
    for problem in found["problems"]:
        assert f"Problem: {problem}\n" in told
    assert told.endswith("2 problem(s) found.\n")


def test_an_empty_folder_lacks_everything(tmp_path: Path) -> None:
    roster, key, ledger = problems(tmp_path)
    assert "no roster at" in roster
    assert "no key at" in key
    assert f"make one with: tacit roster key {tmp_path}" in key
    assert "no ledger at" in ledger
    assert "create one with: tacit ledger create" in ledger
    assert Checkup.of(tmp_path).to_json()["roster"] is None
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def edited(statement: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder / LEDGER, statement)


def another_ledger(folder: Path, federation: str, budget: Budget) -> None:
    shutil.rmtree(folder / "receipts")
    (folder / LEDGER).unlink()
    Ledger.create(folder / LEDGER, federation, budget)


def receipt_of(folder: Path) -> Path:
    (file,) = (folder / "receipts").iterdir()
    return file


def another_key(folder: Path) -> None:
    shutil.rmtree(folder / "receipts")
    for name in (KEY, PUBLIC_KEY):
        (folder / name).unlink()
    new_key(folder)


@pytest.mark.parametrize(
    ("spoil", "found", "remedy"),
    [
        (lambda f: (f / ROSTER).unlink(), "no roster at", "ask whoever made the roster"),
        (lambda f: (f / ROSTER).write_text("junk"), "not a TOML", "ask whoever made the roster"),
        (lambda f: (f / KEY).unlink(), "no key at", "make one with: tacit roster key"),
        (lambda f: (f / KEY).chmod(0o640), "can be read by others (mode 640)", "chmod 600"),
        (lambda f: (f / KEY).write_text("junk"), "does not read", "a key of 32 bytes"),
        (lambda f: f.chmod(0o777), "can be written by others (mode 777)", "chmod 700"),
        (lambda f: (f / LEDGER).chmod(0o666), "ledger.sqlite can be reached", "chmod 600"),
        (lambda f: (f / "receipts").chmod(0o777), "receipts can be written by", "chmod 700"),
        (another_key, "is not on the roster of 'clinics'", "send "),
        (
            lambda f: (f / PUBLIC_KEY).write_text(write_public(Identity.new().public_key)),
            "is not the public half of",
            "let it read 'tacit-ed25519 ",
        ),
        (lambda f: (f / PUBLIC_KEY).write_text("junk"), "is not the public half", "let it read"),
        (lambda f: (f / LEDGER).unlink(), "no ledger at", "tacit ledger create"),
        (lambda f: (f / LEDGER).write_text("no SQLite" * 99), "cannot be read as a ledger", ""),
        (
            edited("UPDATE line SET body = '{}' WHERE number = 2"),
            "is damaged: line 2: the line was altered",
            "take no part until",
        ),
        (
            edited("DELETE FROM line"),
            "is damaged: line 1: this line is",
            "take no",
        ),
        (
            edited("DROP TABLE line"),
            "is damaged: line 1: the file's tables or triggers are not those of a ledger",
            "take no part",
        ),
        (
            lambda folder: (folder / LEDGER).write_bytes((folder / LEDGER).read_bytes()[:5000]),
            "is damaged: line 1:",
            "take no part",
        ),
        (
            lambda f: another_ledger(f, "banks", Budget(1.0, 1e-5)),
            "is the ledger of 'banks', the roster is of 'clinics'",
            "--federation clinics",
        ),
        (
            lambda f: another_ledger(f, "clinics", Budget(float("inf"), 1e-5)),
            "is infinite, so this member would answer in clear",
            "tacit ledger amend",
        ),
        (lambda f: receipt_of(f).write_text("{}"), "cannot be read as a receipt", "who altered"),
        (
            lambda f: receipt_of(f).write_text(receipt_of(f).read_text().replace("ab", "ba")),
            "is not signed by this member for this roster",
            "move it elsewhere",
        ),
        (
            edited("DELETE FROM line WHERE number = 2"),
            "was never charged for",
            "take no part until that is explained",
        ),
    ],
)
def test_each_problem_is_named_with_what_to_do(
    anna: Path, spoil: Callable[[Path], object], found: str, remedy: str
) -> None:
    assert problems(anna) == []
    spoil(anna)
    told = problems(anna)
    assert any(found in problem and remedy in problem for problem in told), told
    assert len(told) <= 2, told
    Checkup.of(anna).to_json()


def test_a_receipt_of_another_member_does_not_belong_here(anna: Path) -> None:
    ben = anna.parent / "ben"
    answered(ben)
    shutil.copy(receipt_of(ben), anna / "receipts")
    (told,) = problems(anna)
    assert "is not signed by this member" in told


def test_an_infinite_budget_that_was_spent_leaves_no_nonsense(anna: Path) -> None:
    another_ledger(anna, "clinics", Budget(float("inf"), 1e-5))
    Ledger(anna / LEDGER).charge(Unprotected("winners"), "answer in clear", run="any")
    told = shown("roster", "check", anna, code=1)
    assert "ε = infinite of inf is left" in told
