"""File locks around a ledger: are there any, whose turn is it, and who holds a run.

SQLite keeps rival processes apart with file locks. On some network file systems those do nothing
while they report success, and rivals then write over each other. So a folder is tried out before
anything is read from it or written to it: of two owners of a lock, the second must be refused. One
machine cannot try out what others see, so file systems that are known to keep locks to one machine
are refused by name.

Locks of this module are flocks on files beside the ledger, and end with their process
(:mod:`tacit.locks`). All of them are exclusive, for readers too: the kernel serves those who wait
for one in the order in which they came, while a lock that readers share is kept from writers as
long as one reader follows another. SQLite's own waiting is by repeated tries, where somebody may
wait for minutes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType

from tacit.locks import OpenFile, is_open_file
from tacit.privacy.ledger_lines import LedgerError

_REFUSED = (errno.EACCES, errno.EAGAIN)
_CANNOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)
_RIVAL = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(3)
"""
_MOUNTS = Path("/proc/self/mountinfo")
_KEPT_LOCAL = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock", "local_lock=posix"),
    "cifs": ("nobrl", "nolock"),
    "smb3": ("nobrl", "nolock"),
    "lustre": ("localflock", "noflock"),
    "gfs2": ("localflocks", "lockproto=lock_nolock"),
    "ocfs2": ("localflocks",),
}
"""Mount options of network file systems under which a lock is not seen by other machines."""
_NEVER_SHARED = {"fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.goofys"}
"""File systems whose servers know no locks."""


def check_locks(path: Path) -> None:
    """Refuse a place for a ledger where file locks keep nobody apart.

    Raises:
        LedgerError: with what to do.
    """
    fcntl = _fcntl()
    folder = _real(path).parent
    option = _local_locks(folder)
    if option:
        raise LedgerError(
            f"{path} is on a network file system that is mounted with {option}, so locks of other "
            "machines are not seen and budgets could be overspent; keep the ledger on a local "
            "disk, or mount the file system with locking"
        )
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".probe", dir=folder)
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return  # nor can SQLite write its journal here, so nothing can be spent
        raise LedgerError(f"{path} cannot be opened: {error.strerror} in {folder}") from None
    rival = -1
    try:
        rival = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        kept_apart = _byte_locks_work(fcntl, handle, rival, name) and _flocks_work(
            fcntl, handle, rival
        )
    except OSError as error:
        raise LedgerError(
            f"{path} is where files cannot be locked ({error.strerror}); keep the ledger on a "
            "local disk, or mount the file system with locking"
        ) from None
    finally:
        for each in (handle, rival):
            if each >= 0:
                os.close(each)
        Path(name).unlink(missing_ok=True)
    if not kept_apart:
        raise LedgerError(
            f"{path} is where file locks do nothing: two owners got the same lock, so rival "
            "processes could overspend the budget; keep the ledger on a local disk, or mount the "
            "file system with locking"
        )


class _MayNotWrite(LedgerError):
    """A lock file that this user may not make or open."""


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until it is this process's turn with the file, then keep everybody else out."""
    with _waited_for(path, "lock"):
        yield


@contextmanager
def look(path: Path) -> Iterator[None]:
    """The same for readers, who may lack the right to write: those take their chance with SQLite.

    Without it, a reader could wait for long, since SQLite lets it in only where no writer is.
    """
    with ExitStack() as stack:
        with suppress(_MayNotWrite):
            stack.enter_context(turn(path))
        yield


@contextmanager
def pricing_turn(path: Path) -> Iterator[None]:
    """Wait until it is this process's turn to price a charge; whoever does not charge goes on."""
    with _waited_for(path, "pricing.lock"):
        yield


@contextmanager
def _waited_for(path: Path, ending: str) -> Iterator[None]:
    fcntl, file = _fcntl(), _opened(path, _beside(path, ending))
    try:
        fcntl.flock(file.handle, fcntl.LOCK_EX)
        yield
    finally:
        file.close()


@contextmanager
def hold(path: Path, run: str) -> Iterator[None]:
    """Keep everybody else from going on with a run, until this process lets go or ends.

    Raises:
        LedgerError: when another process, or another part of this one, holds the run.
    """
    named = hashlib.sha256(run.encode(errors="surrogatepass")).hexdigest()[:16]
    name = _beside(path, f"{named}.run")
    file = _held(path, name, run)
    try:
        os.ftruncate(file.handle, 0)
        os.pwrite(file.handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        if file.ours:  # and not a forked child's copy
            name.unlink(missing_ok=True)
        file.close()


def _held(path: Path, name: Path, run: str) -> OpenFile:
    fcntl = _fcntl()
    while True:
        file = _opened(path, name)
        try:
            fcntl.flock(file.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file.handle, 32, 0).decode(errors="replace").strip()
            file.close()
            if error.errno not in _REFUSED:
                raise LedgerError(f"{name} cannot be locked: {error.strerror}") from None
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise LedgerError(
                f"the run {run!r} is under way in {who}; wait until it ends, or end it, before "
                "going on with the run"
            ) from None
        if is_open_file(file.handle, name):
            return file
        file.close()  # whoever held it removed the file meanwhile: this lock is of no use


def _byte_locks_work(fcntl: ModuleType, handle: int, rival: int, name: str) -> bool:
    """Whether locks of byte ranges, which SQLite takes, keep two owners apart.

    A process does not stand in its own way with the old kind of lock. An open file description,
    which owns the newer kind, does, and the two kinds respect each other. Where there is no newer
    kind, another process has to try.
    """
    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        newer = getattr(fcntl, "F_OFD_SETLK", None)
        if newer is not None and sys.platform == "linux":
            answer = _range_lock(fcntl, rival, newer)
            if answer != errno.EINVAL:
                return answer in _REFUSED
        command = [sys.executable, "-I", "-c", _RIVAL, name]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)  # noqa: S603  # ours
        return done.returncode == 3
    finally:
        fcntl.lockf(handle, fcntl.LOCK_UN)


def _range_lock(fcntl: ModuleType, handle: int, command: int) -> int:
    """Lock a whole file; the number of the error, or 0."""
    import struct

    # struct flock: type, whence, start, length, process (0 for locks of open file descriptions)
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(handle, command, whole)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _flocks_work(fcntl: ModuleType, handle: int, rival: int) -> bool:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        fcntl.flock(rival, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _REFUSED
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def _local_locks(folder: Path) -> str:
    """The option by which a network file system's locks are seen by this machine only, if any."""
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return _local_option(mounts, folder)


def _local_option(mounts: list[str], folder: Path) -> str:
    found, deepest = "", -1
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        place, kind = before.split()[4:5], after.split()
        if not place or len(kind) < 3:
            continue
        escaped = place[0].encode().decode("unicode_escape")  # a space is written as \\040
        root = Path(escaped.encode("latin-1", errors="replace").decode(errors="replace"))
        # Of several mounts on one place, the last is seen.
        if len(root.parts) >= deepest and folder.is_relative_to(root):
            deepest = len(root.parts)
            found = _option(kind[0], kind[2].split(","))
    return found


def _option(kind: str, options: list[str]) -> str:
    """What keeps the locks of a file system to this machine, if it is known to do so."""
    if kind in _NEVER_SHARED:
        return kind
    local = next((known for name, known in _KEPT_LOCAL.items() if kind.startswith(name)), ())
    return next((option for option in options if option in local), "")


def _beside(path: Path, ending: str) -> Path:
    # Of the file itself, so that everybody takes turns who reaches it by another link.
    real = _real(path)
    return real.with_name(f"{real.name}.{ending}")


def _real(path: Path) -> Path:
    """The file itself, behind links."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # older Pythons raise the latter
        raise LedgerError(
            f"{path} cannot be opened: it is a link that leads back to itself; remove the link"
        ) from None


def _opened(path: Path, file: Path) -> OpenFile:
    try:
        return OpenFile(file, 0o600)
    except OSError as error:
        kind = _MayNotWrite if error.errno in _CANNOT_WRITE else LedgerError
        raise kind(
            f"{path} cannot be written, so nothing may be asked: {file} cannot be opened "
            f"({error.strerror})"
        ) from None


def _fcntl() -> ModuleType:
    try:
        import fcntl
    except ImportError:
        raise LedgerError(
            "this system has no POSIX file locks, which a ledger on disk needs; keep it on Linux "
            "or macOS, or use a ledger in memory"
        ) from None
    return fcntl
