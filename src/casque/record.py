"""Records: small named values in the store, changed by the same commits as jobs.

Config, worker registry, schedules, pauses, locks and queue leases are kinds of record. A version
comes from the store's token counter, so it only ever rises, even when a record is deleted and
created again.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from casque.system.clock import to_datetime

ABSENT = 0
"""The version of a record that does not exist."""

PAUSE = "pause"
QUEUE_LEASE = "queue_lease"
LOCK = "lock"
WORKER = "worker"
SUPERVISOR = "supervisor"
CONFIG = "config"
DISMISSAL = "dismissal"
SCHEDULE = "schedule"
TRANSFER = "transfer"
"""The jobs that came from elsewhere: see casque.transfer.taking."""
WATCH = "watch"
"""The contents that jobs left in watched files: see casque.watch.own_jobs."""

EPHEMERAL = frozenset({WORKER, SUPERVISOR})
"""Kinds that only the owner of a record writes, without expecting a version.

Readers may see them up to three minutes late. They may vanish: the owner writes them again.
"""


class Record(msgspec.Struct, frozen=True):
    """One value; its key is `(kind, name)`."""

    kind: str
    name: str
    value: bytes
    version: int
    expires_us: int | None = None

    @property
    def expires_at(self) -> datetime | None:
        return None if self.expires_us is None else to_datetime(self.expires_us)

    def is_gone(self, now: int) -> bool:
        """True once the record has expired, even if it is not pruned yet."""
        return self.expires_us is not None and self.expires_us <= now
