"""Local disks: durable folders, locks between processes, and detection of network drives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from casque.errors import InvalidError, StorageError
from casque.system.clock import SECOND_US, Clock, drive

LOCK_PATIENCE_US = 30 * SECOND_US
"""How long a process waits for a lock before it gives up."""
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
    """The path with links resolved. Raises InvalidError if it cannot be the path of `what`."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        # A loop of links, the home of an unknown user, a NUL, a lone surrogate.
        raise InvalidError(
            f"{os.fspath(path)!r} cannot be the path of {what}: {error}", cause=error
        ) from error


def resolved_folder(path: str | os.PathLike[str]) -> Path:
    """The path with links resolved. Raises InvalidError if it cannot be the folder of a queue."""
    resolved = resolved_path(path, "a folder")
    if resolved == resolved.parent:
        raise InvalidError(f"{resolved} is the root of the file system: choose a folder in it.")
    return resolved


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and sync each one's entry to disk."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def network_filesystem(path: Path) -> str | None:
    """The kind of network drive that `path` is on; None if it is local or unknown."""
    kind, longest = None, -1
    for point, of_kind in _mounts():
        if len(point) > longest and Path(path).is_relative_to(point):
            kind, longest = of_kind, len(point)
    return kind if kind in _SHARED_BY_HOSTS else None


def has_other_names(path: Path) -> bool:
    """True if a file has another name, beside which its companion files would be missing.

    A hard link is another name, and so is a mount of a single file, which is usual in containers.
    False if the file does not exist.
    """
    try:
        links = path.stat().st_nlink
    except OSError:
        return False
    return links > 1 or any(point == str(path.resolve()) for point, _ in _mounts())


def _mounts() -> Iterator[tuple[str, str]]:
    """Each mount point and its file system."""
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        fields, _, rest = line.partition(" - ")
        # The fifth field is the mount point, with spaces and the like as octal escapes.
        yield fields.split()[4].encode().decode("unicode_escape"), rest.split()[0]


@contextmanager
def locked(path: Path, clock: Clock) -> Iterator[None]:
    """Hold a lock between processes and threads. No one gets it twice in a row if another waits.

    It locks two files beside `path`: the lock itself and a gate. A process takes the gate
    first and holds the gate while it waits for the lock. So a process that has just released
    the lock finds the gate taken and waits its turn. The system releases both locks when a
    process dies.
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

    # A lock needs only read access, so this works for every user who may read the folder.
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
                f"{path} has been locked by other processes for 30 s; nothing was written. Check "
                "whether one of them is suspended.",
                outcome_unknown=False,
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _let_go(descriptor: int) -> None:
    import fcntl  # noqa: PLC0415 - POSIX only, so not at the top of the module

    # Closing alone is not enough: a child forked meanwhile has a copy and would keep the lock.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
