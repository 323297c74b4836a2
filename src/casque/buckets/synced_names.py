"""Synced names: remembers which names are on disk, and syncs the others.

A visible name may not be durable yet: the process that made the name may have died before it synced
the folder. So a process syncs every name of another process once, before it uses the name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from casque.buckets.disk import Disk, Stamp, holder

OBJECTS_KEPT = 16_384
"""How many objects it remembers: more than a ledger lists before it reads them."""
_FOLDERS_KEPT = 1_000


class SyncedNames:
    """The names in one bucket's folder that are on disk, up to a limit."""

    def __init__(self, files: Disk, root: str) -> None:
        self._files = files
        self._root = root
        # Oldest first. Each change is atomic in the interpreter, because threads share this.
        self._stamps: OrderedDict[str, Stamp] = OrderedDict()
        self._folders: set[str] = set()
        """The folders whose own names are on disk."""

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
        """Sync the names in these folders, and each folder's own name if not yet synced.

        Once is enough for that, because a bucket removes no folder.
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
        """Make a folder and those above it, and sync each one's name in its parent."""
        above = holder(folder)
        try:
            self._files.make_folder(folder)
        except FileNotFoundError:
            self.make_folder(above)
            self._files.make_folder(folder)
        self._sync_outside(above)
        # The process that made the folder above may not have synced it yet.
        self._sync_outside(holder(above))

    def _sync_outside(self, folder: str) -> None:
        try:
            self._files.sync_folder(folder)
        except PermissionError:
            return  # a folder above ours may allow access through it but not to open it
