"""Local disks: folders that last, taking turns, and telling a network drive from a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from casque.errors import InvalidError, StorageError
from casque.system.clock import SECOND_US, Clock, drive

LOCK_PATIENCE_US = 30 * SECOND_US
"""How long a process waits for its turn before it gives up."""
_LOCK_PAUSE_US = 2_000
_MOUNTS = Path("/proc/self/mountinfo")
_SHARED_BY_HOSTS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb3",
        "smbfs",
    ]
)


def resolved_path(path: str | os.PathLike[str], what: str) -> Path:
    """The path, links followed. Raises InvalidError if it cannot be that of `what`."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        # A circle of links, a home of nobody, a NUL, a lone surrogate.
        raise InvalidError(
            f"{os.fspath(path)!r} cannot be the path of {what}: {error}", cause=error
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each one lasting in the one that holds it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Bring to disk which names a folder holds."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def network_filesystem(path: Path) -> str | None:
    """The kind of network drive that `path` lies on; None when it is local, or cannot be told."""
    kind, longest = None, -1
    for point, of_kind in _mounts():
        if len(point) > longest and Path(path).is_relative_to(point):
            kind, longest = of_kind, len(point)
    return kind if kind in _SHARED_BY_HOSTS else None


def has_other_names(path: Path) -> bool:
    """Whether a file can be reached by another name, in a folder where its neighbours are not.

    By a hard link; or since it is mounted by itself, as containers do. False if there is none.
    """
    try:
        links = path.stat().st_nlink
    except OSError:
        return False
    return links > 1 or any(point == str(path.resolve()) for point, _ in _mounts())


def _mounts() -> Iterator[tuple[str, str]]:
    """Where something is mounted, and what kind it is of."""
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        fields, _, rest = line.partition(" - ")
        # The fifth field is where it is mounted, with blanks and the like as octal escapes.
        yield fields.split()[4].encode().decode("unicode_escape"), rest.split()[0]


@contextmanager
def locked(path: Path, clock: Clock) -> Iterator[None]:
    """One process and thread at a time, and nobody twice in a row while another waits.

    By locks on two files beside `path`, which the system releases when a
    process dies. A process that wants the lock must hold the gate while it waits, so
    the one that has just let go finds the gate taken and stands behind.
    """
    give_up = clock.monotonic() + LOCK_PATIENCE_US
    gate = _take(path.with_name(f".{path.name}.gate"), clock, give_up)
    try:
        lock = _take(path.with_name(f".{path.name}.lock"), clock, give_up)
    finally:
        _let_go(gate)
    try:
        yield
    finally:
        _let_go(lock)


def _take(path: Path, clock: Clock, give_up: int) -> int:
    import fcntl  # noqa: PLC0415 - POSIX only, so not at the top of the module

    # To read is enough for a lock, and works for every user who may read the folder.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() < give_up:
                drive(clock.sleep(_LOCK_PAUSE_US, blocking=True))
                continue
            os.close(descriptor)
            raise StorageError(
                f"{path} has been locked by other processes for 30 s; is one stopped? Nothing "
                "was written.",
                outcome_unknown=False,
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _let_go(descriptor: int) -> None:
    import fcntl  # noqa: PLC0415 - POSIX only, so not at the top of the module

    # Not by closing alone: a child forked meanwhile has a copy, and would keep the lock.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
