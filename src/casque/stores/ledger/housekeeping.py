"""Housekeeping: decides when a snapshot is due, and when old objects are looked for.

Nobody schedules it. The process whose entry makes a snapshot due writes it; if that process ends
before, another does when half as much is due again. All work runs beside the commits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from casque.errors import CasqueError
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.deletion import Deletion, Payloads
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.snapshot import Counters, Frozen
from casque.stores.ledger.snapshot_listing import snapshots_after
from casque.stores.ledger.snapshot_writer import write_snapshot
from casque.system.background import Background, StoppedError, Work
from casque.system.clock import Stopwatch

LEAST_BYTES = 16 * 1024 * 1024
"""A log below this size makes no snapshot due by its size."""
OVERDUE = 1.5
"""When any process writes the snapshot, not only the one whose entry made it due."""
QUIET_ENTRIES = 32
"""After how many entries a snapshot is due in a log that has become quiet."""
CLOSE_SECONDS = 10
"""How long a close waits for work that is under way: short-lived processes finish it too."""

_LOOKS_PER_AGE = 4
"""How often old objects are looked for while a snapshot becomes old enough."""


class Housekeeping:
    """The work beside the commits of one process. Call its methods with the store's lock held."""

    def __init__(
        self,
        requests: BucketRequests,
        background: Background,
        lock: AbstractAsyncContextManager[None],
        *,
        replica: Callable[[], Replica | None],
        payloads: Payloads,
    ) -> None:
        self.background = background
        self._requests = requests
        self._lock = lock
        self._replica = replica
        """Returns the store's replica, if it was read to the end of the log."""
        self._writer = requests.clock.new_id()
        self._deletion = Deletion(requests, self._writer, payloads, self.background.pause)
        self._overdue = OVERDUE
        """The share of a snapshot that must be due until this process tries to write it."""
        self._looked = Stopwatch(requests.clock)
        self._jitter = requests.clock.random()

    def after_entry(self, replica: Replica, size: int) -> None:
        """Start what is due, after this process has stored an entry of this size."""
        if replica.state is None or self.background.is_busy:
            return
        is_due, was_due = self._due(replica), self._due(replica, 1, size)
        if is_due < 1:
            self._overdue = OVERDUE
        if is_due >= self._overdue or was_due < 1 <= is_due:
            # If it fails, the next try is not at the next entry: each one copies the whole state.
            self._overdue = is_due + OVERDUE - 1
            self._start(self._take_snapshot)
        elif self._is_time():
            self._start(self._look)

    def after_quiet_call(self, replica: Replica, quiet_us: int) -> None:
        """Start what is due after a call that stored nothing.

        `quiet_us` is the time since the last entry. In a log that has become quiet, few entries are
        enough for a snapshot: the next process opens it quickly, and little remains stored.
        """
        if replica.state is None or self.background.is_busy or not self._is_time():
            return
        tail = replica.number - replica.snapshot
        if tail >= QUIET_ENTRIES and quiet_us > self._quiet_us():
            self._start(partial(self._take_snapshot, is_quiet=True))
        elif tail < QUIET_ENTRIES and self._deletion.is_done(replica.snapshot):
            self._looked = Stopwatch(self._requests.clock)  # nothing is left to delete
        else:
            self._start(self._look)

    def _is_time(self) -> bool:
        """True when the last work is long enough ago, even if it failed."""
        every = self._requests.bucket.upkeep.deletion_age_us // _LOOKS_PER_AGE
        return self._looked.elapsed_us() > int(every * (0.5 + self._jitter))

    def _quiet_us(self) -> int:
        return int(self._requests.bucket.upkeep.deletion_age_us * (0.5 + self._jitter))

    def _due(self, replica: Replica, entries: int = 0, size: int = 0) -> float:
        """Return the share of a snapshot that is due, or was before the last `entries`."""
        after = replica.number - entries - replica.snapshot
        return max(
            after / self._requests.bucket.upkeep.snapshot_entries,
            (replica.log_bytes - size) / max(replica.snapshot_bytes, LEAST_BYTES),
        )

    def _start(self, work: Work) -> None:
        async def run() -> None:
            try:
                await work()
            except (CasqueError, StoppedError):
                return  # nothing depends on it, and it is done again later

        self._looked = Stopwatch(self._requests.clock)
        self.background.start(run)

    async def _look(self) -> None:
        await self._deletion.work(self._counters_of)

    async def _take_snapshot(self, *, is_quiet: bool = False) -> None:
        await self._write_if_due(is_quiet=is_quiet)
        await self._look()

    async def _write_if_due(self, *, is_quiet: bool) -> None:
        """Store a snapshot, unless another process has done so."""
        replica = self._replica()
        if replica is None:
            return
        newer = await snapshots_after(
            self._requests, replica.snapshot, Stopwatch(self._requests.clock)
        )
        async with self._lock:
            replica = self._replica()
            if replica is None or replica.state is None or replica.digest is None:
                return
            if replica.is_changing:  # an interrupt may have left it half changed
                return
            if newer:
                replica.knows_snapshot(newer[-1].number, replica.snapshot_bytes)
            is_due = self._due(replica) >= 1
            if is_quiet:
                is_due = replica.number - replica.snapshot >= QUIET_ENTRIES
            if not is_due:
                return
            frozen = Frozen.of(replica.state, replica.number, replica.digest)
        size = await write_snapshot(self._requests, frozen, self._writer, self.background.pause)
        if size is not None:
            async with self._lock:
                current = self._replica()
                if current is not None and current.snapshot < frozen.number:
                    current.knows_snapshot(frozen.number, size)

    def _counters_of(self, number: int) -> Counters | None:
        replica = self._replica()
        return None if replica is None else replica.counters(number)
