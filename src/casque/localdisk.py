"""Local disks: folders that last, and telling a network drive from one."""

from __future__ import annotations

import os
from pathlib import Path

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
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    kind, longest = None, -1
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        # The fifth field is where it is mounted, with blanks and the like as octal escapes.
        point = fields.split()[4].encode().decode("unicode_escape")
        if len(point) > longest and Path(path).is_relative_to(point):
            kind, longest = rest.split()[0], len(point)
    return kind if kind in _SHARED_BY_HOSTS else None
