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
        """Those whose own names are known to last, and which no bucket removes."""

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
        """Bring to disk which names these folders hold, and their own names.

        A folder right in the bucket stays for good, so its name is synced once.
        One below that goes with its last object, and may have been made again
        by others since: its name is synced every time.
        """
        stay: set[str] = set()
        above = dict.fromkeys(folders)
        for folder in folders:
            name = folder
            while name != self._root and name not in self._folders:
                if holder(name) == self._root:
                    stay.add(name)
                name = holder(name)
                above[name] = None
        for folder in above:
            self._files.sync_folder(folder)
        if self._root in above and self._root not in self._folders:
            self._sync_outside(holder(self._root))
            stay.add(self._root)
        if len(self._folders) > _FOLDERS_KEPT:
            self._folders.clear()
        self._folders.update(stay)

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
