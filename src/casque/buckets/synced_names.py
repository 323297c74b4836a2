"""Synced names: the names that a process knows to be on disk, and syncing the others.

Visible is not durable. The process that made a name may have died before it synced the
folder, so a name that this process did not sync itself is synced before it is
believed, once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from casque.buckets.disk import Disk, Stamp, holder

OBJECTS_KEPT = 16_384
"""How many objects are remembered: more than a ledger lists before it reads them."""
_FOLDERS_KEPT = 1_000


class SyncedNames:
    """The names in one bucket's folder that are known to last, within a bound."""

    def __init__(self, files: Disk, root: str) -> None:
        self._files = files
        self._root = root
        # Oldest knowledge first. Each change is one step of the interpreter's: threads share it.
        self._stamps: OrderedDict[str, Stamp] = OrderedDict()
        self._folders: set[str] = set()
        """Those whose own names are known to last."""

    def knows(self, path: str, stamp: Stamp) -> bool:
        return self._stamps.get(path) == stamp

    def learn(self, path: str, stamp: Stamp) -> None:
        self._stamps.pop(path, None)
        self._stamps[path] = stamp
        if len(self._stamps) > OBJECTS_KEPT:
            self._stamps.popitem(last=False)

    def forget(self, path: str) -> None:
        self._stamps.pop(path, None)

    def sync(self, folders: Collection[str]) -> None:
        """Bring to disk which names these folders hold; and their own names, once.

        Once is enough: a bucket removes no folder.
        """
        outside = holder(self._root)
        unknown: dict[str, None] = {}
        for folder in folders:
            name = folder
            while name != outside and name not in self._folders:
                unknown[name] = None
                name = holder(name)
        for folder in dict.fromkeys((*folders, *map(holder, unknown))):
            if folder == outside:
                self._sync_outside(folder)
            else:
                self._files.sync_folder(folder)
        if len(self._folders) > _FOLDERS_KEPT:
            self._folders.clear()
        self._folders.update(unknown)

    def make_folder(self, folder: str) -> None:
        """Make it and those above it, each one lasting in the one that holds it."""
        above = holder(folder)
        try:
            self._files.make_folder(folder)
        except FileNotFoundError:
            self.make_folder(above)
            self._files.make_folder(folder)
        self._sync_outside(above)
        # The maker of the one above may not have come to its sync yet.
        self._sync_outside(holder(above))

    def _sync_outside(self, folder: str) -> None:
        try:
            self._files.sync_folder(folder)
        except PermissionError:
            return  # on the way to ours there may be some that we may pass through but not open
