"""The roster file that all members of a federation hold, and one member's own folder.

A roster says who takes part (Ed25519 keys), how many may drop out or collude, and the least noise a
member adds; it reaches the members outside of the protocol, and they compare its digest by
telephone. A member's folder holds its key, the roster, its own ledger, its receipts, and a state
for each sum under way::

    node.key        the secret key (made by `tacit roster key`)
    node.pub        the public key, to be sent to whoever makes the roster
    roster.toml     the roster (made by `tacit roster make`)
    ledger.sqlite   the member's own budget and spending (made by `tacit ledger create`)
    receipts/       what it took part in, signed
    sessions        sums that were begun and not opened
    states/         one for each session; written before the reply leaves, so that no crash makes
                    it answer twice

Whoever can write there can put back an old ledger, which forgets what was spent, or swap the keys
of a roster. So the folder and what is in it belong to the user who runs the node, or to root;
nobody else may write them, and nobody else may read the key, the states and the ledger.

What is damaged never stops a node for longer than it must. Without key, roster and ledger a node is
nobody and has nothing to spend, so each of them refuses by name. A state or the list of sessions
that cannot be read is set aside (:mod:`tacit.keeping`), and other sums go on.
"""

from __future__ import annotations

import base64
import binascii
import os
import sqlite3
import stat
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tacit.files import write_whole
from tacit.keeping import Tell, in_order, private_folder, tell_log
from tacit.locks import real
from tacit.privacy.ledger import Ledger, LedgerError, check_name
from tacit.privacy.mechanisms import Participation
from tacit.receipts import Receipt
from tacit.secure.crypto import digest
from tacit.secure.protocol import ENCRYPTED, HIDING, MASKS
from tacit.secure.roster import Identity, Roster
from tacit.sessions import Sessions
from tacit.states import StatesInFolder

KEY, PUBLIC_KEY, ROSTER, LEDGER = "node.key", "node.pub", "roster.toml", "ledger.sqlite"
STATES, SESSIONS, RECEIPTS = "states", "sessions", "receipts"
_PREFIX = "tacit-ed25519"
_KEYS = {"federation", "dropout", "colluding", "least_noise", "members"}


@dataclass(frozen=True)
class Membership:
    """What a roster file says. Members are numbered in its order.

    >>> anna, ben, cleo = (Identity.new() for _ in range(3))
    >>> keys = {"anna": anna.public_key, "ben": ben.public_key, "cleo": cleo.public_key}
    >>> keyring, planned = Roster(tuple(keys.values())), Participation(3)
    >>> roster = Membership("clinics", tuple(keys), keyring, planned, least_noise=12.5)
    >>> roster.number_of(ben), roster.participation.threshold
    (1, 3)
    >>> Membership.from_toml(roster.to_toml()) == roster
    True
    """

    federation: str
    names: tuple[str, ...]
    roster: Roster
    participation: Participation
    least_noise: float
    secure: str = MASKS
    """The kind of sum that members take; ``encrypted`` trusts the server to be honest but curious,
    and tells in the roster's file that everybody agreed to that; see :attr:`warning`."""

    def __post_init__(self) -> None:
        check_name(self.federation)
        for name in self.names:
            check_name(name, "a member's name")
        if len(self.names) != len(self.roster.keys) or len(set(self.names)) != len(self.names):
            raise ValueError("a roster names each of its members once")
        if self.participation.clients != len(self.names):
            raise ValueError(
                f"the roster counts on {self.participation.clients} clients and names "
                f"{len(self.names)}; both must be the same"
            )
        if not 0 <= self.least_noise < float("inf"):
            raise ValueError(
                f"least_noise is {self.least_noise!r}; allowed is a finite number from 0"
            )
        if self.secure not in HIDING:
            raise ValueError(
                f"secure is {self.secure!r}; allowed is {' or '.join(map(repr, HIDING))}"
            )

    @property
    def warning(self) -> str:
        """What members should know of the sums that they agree to; nothing of masked ones."""
        if self.secure != ENCRYPTED:
            return ""
        return (
            "Sums are encrypted, and members encrypt under the public key that the server sends: "
            "this roster does not protect from a server that gives out a public key of its own and "
            "reads every answer. If the server may deviate, make the roster with --secure masks."
        )

    @property
    def digest(self) -> str:
        """Of all that the roster says; members compare it by telephone."""
        return digest(b"roster", self.to_toml().encode()).hex()

    def number_of(self, identity: Identity) -> int:
        """Which member this key belongs to."""
        key = identity.public_key
        if key not in self.roster.keys:
            raise ValueError(
                f"the key {write_public(key)} is not on the roster of {self.federation!r}; send "
                "the public key to whoever makes the roster"
            )
        return self.roster.keys.index(key)

    def to_toml(self) -> str:
        """The file's text."""
        import tomli_w

        keys = zip(self.names, self.roster.keys, strict=True)
        return tomli_w.dumps(
            {
                "federation": self.federation,
                "dropout": self.participation.dropout,
                "colluding": self.participation.colluding,
                "least_noise": self.least_noise,
                **({} if self.secure == MASKS else {"secure": self.secure}),
                "members": {name: write_public(key) for name, key in keys},
            }
        )

    @classmethod
    def from_toml(cls, text: str) -> Membership:
        """What a file says, or a ValueError that names what is wrong."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"not a TOML file: {error}") from None
        for name in _KEYS ^ (table.keys() - {"secure"}):
            found = "is missing" if name in _KEYS else "is not a key of a roster"
            raise ValueError(f"{name} {found}; a roster has {', '.join(sorted(_KEYS))}")
        members = table["members"]
        if not isinstance(table["federation"], str) or not isinstance(members, dict):
            raise ValueError("federation must be a text and members a table of names and keys")
        return cls(
            table["federation"],
            tuple(members),
            Roster(tuple(read_public(key) for key in members.values())),
            Participation(len(members), table["dropout"], table["colluding"]),
            _number(table, "least_noise"),
            table.get("secure", MASKS),
        )

    @classmethod
    def load(cls, path: Path) -> Membership:
        """The roster in a file."""
        if not path.is_file():
            raise ValueError(f"no roster at {path}; make one with: tacit roster make {path} KEYS")
        try:
            return _parsed(path.read_text())
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None


@lru_cache(maxsize=8)
def _parsed(text: str) -> Membership:
    """Remembered: simulated members all hold the same text."""
    return Membership.from_toml(text)


@dataclass(frozen=True)
class Member:
    """One member's folder. Without a roster in it, only the ledger speaks."""

    folder: Path
    ledger: Ledger
    membership: Membership | None = None
    identity: Identity | None = None
    tell: Tell = field(default=tell_log, repr=False, compare=False)
    """Where it says what it had to set aside: the node's own log."""

    def __post_init__(self) -> None:
        if self.membership and self.ledger.federation != self.membership.federation:
            raise ValueError(other_federation(self.ledger, self.membership.federation))

    @classmethod
    def load(cls, folder: Path, tell: Tell = tell_log) -> Member:
        """A member as its folder describes it; what is missing, or open to others, is named."""
        if not folder.is_dir():
            raise ValueError(f"no folder of a member at {folder}; make it with: tacit roster key")
        for exposure in exposures(folder):
            raise ValueError(exposure)
        membership = identity = None
        if (folder / ROSTER).exists() or (folder / KEY).exists():  # who has a key has a roster
            membership = Membership.load(folder / ROSTER)
            identity = read_key(folder / KEY)
        for name in (STATES, RECEIPTS):
            if (folder / name).exists() and not (folder / name).is_dir():
                raise ValueError(
                    f"{folder / name} is not a folder; move it elsewhere, and a new one is made"
                )
        ledger = Ledger(folder / LEDGER)
        try:
            ledger.budget  # noqa: B018  # before anything is answered
        except (LookupError, TypeError, ValueError, LedgerError, sqlite3.Error):
            raise LedgerError(
                f"{ledger.path} says no budget that can be read; take no part until that is "
                "explained, and look at it with: tacit roster check"
            ) from None
        member = cls(folder, ledger, membership, identity, tell)
        member.number  # noqa: B018  # refuses a key that is not on the roster
        return member

    @cached_property
    def number(self) -> int | None:
        """Which member of the roster this is."""
        if self.membership is None or self.identity is None:
            return None
        return self.membership.number_of(self.identity)

    def keep(self, receipt: Receipt) -> None:
        """Keep a receipt."""
        private_folder(self.folder / RECEIPTS)
        with in_order(self.folder / RECEIPTS):
            receipt.keep(self.folder / RECEIPTS)

    @property
    def sessions(self) -> Sessions:
        """The sums that this member began and that never opened."""
        return Sessions(self.folder / SESSIONS, tell=self.tell)

    @property
    def states(self) -> StatesInFolder:
        """The states of the sums under way, by session."""
        return StatesInFolder(self.folder / STATES, self.sessions, tell=self.tell)


def exposures(folder: Path) -> list[str]:
    """What in a member's folder others could read or write, or own, and what to do about it.

    The roster is copied there by hand, with whatever mode that gives it; it is only looked at where
    others can enter the folder. The mode of the key is looked at where it is read.
    """
    closed = folder.is_dir() and not stat.S_IMODE(folder.stat().st_mode) & 0o077
    forbidden = {
        folder: 0o022,
        folder / KEY: 0,
        folder / ROSTER: 0 if closed else 0o022,
        folder / LEDGER: 0o077,
        folder / STATES: 0o077,
        folder / SESSIONS: 0o022,
        folder / RECEIPTS: 0o022,
    }
    present = {path: bits for path, bits in forbidden.items() if path.exists()}
    return [told for path, bits in present.items() for told in _exposures(path, bits)]


def _exposures(path: Path, forbidden: int) -> Iterator[str]:
    found, user = path.stat(), os.geteuid()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (user, 0):
        yield (
            f"{path} belongs to user {found.st_uid}; allowed is the user who runs this, or root: "
            f"chown {user} {path}"
        )
    if mode & forbidden:
        allowed = "700" if path.is_dir() else "600"
        reach = "reached" if forbidden & 0o044 else "written"
        yield (
            f"{path} can be {reach} by others (mode {mode:03o}); allowed is {allowed}: "
            f"chmod {allowed} {path}"
        )


def other_federation(ledger: Ledger, federation: str) -> str:
    """What to do about a ledger that is not of the roster's federation."""
    return (
        f"{ledger.path} is the ledger of {ledger.federation!r}, the roster is of {federation!r}; "
        f"put it where it belongs and create one here with: tacit ledger create {ledger.path} "
        f"--federation {federation} --epsilon E --delta D"
    )


def new_key(folder: Path) -> Identity:
    """Make a member's key pair; an existing one is never replaced."""
    if (folder / KEY).exists():
        raise ValueError(f"{folder / KEY} exists already; a key is never replaced")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = Identity.new()
    handle = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(f"{_PREFIX}-secret {_base64(identity.secret)}\n")
    write_whole(folder / PUBLIC_KEY, write_public(identity.public_key) + "\n")
    return identity


def read_key(path: Path) -> Identity:
    """A member's secret key, which nobody else may read."""
    if not path.is_file():
        raise ValueError(f"no key at {path}; make one with: tacit roster key {path.parent}")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"{path} can be read by others (mode {mode:03o}); allowed is 600: chmod 600 {path}"
        )
    return Identity(_key(f"{_PREFIX}-secret", path.read_text(errors="replace"), str(path)))


def read_public(text: str) -> bytes:
    """A public key from its line of text."""
    if not isinstance(text, str):
        raise ValueError(f"a key is {text!r}; allowed is '{_PREFIX} ...'")
    return _key(_PREFIX, text, "a public key")


def write_public(key: bytes) -> str:
    """A public key as a line of text."""
    return f"{_PREFIX} {_base64(key)}"


def named_keys(paths: Sequence[Path]) -> dict[str, bytes]:
    """Public keys by the name of their file, or of their folder if the file is a plain node.pub."""
    found: dict[str, bytes] = {}
    for path in paths:
        file = path / PUBLIC_KEY if path.is_dir() else path
        if not file.is_file():
            raise ValueError(f"no public key at {file}; a member makes it with: tacit roster key")
        name = real(file).parent.name if file.name == PUBLIC_KEY else file.stem
        check_name(name, f"rename {file}: the member's name")
        if name in found:
            raise ValueError(f"two keys are called {name!r}; give their files different names")
        found[name] = _key(_PREFIX, file.read_text(errors="replace"), str(file))
    return found


def _key(prefix: str, text: str, what: str) -> bytes:
    kind, _, rest = text.strip().partition(" ")
    try:
        key = base64.b64decode(rest, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if kind != prefix or len(key) != 32:
        raise ValueError(f"{what} does not read '{prefix} ...' with a key of 32 bytes in base64")
    return key


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _number(table: dict[str, Any], name: str) -> float:
    value = table[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}; allowed is a number")
    return float(value)
