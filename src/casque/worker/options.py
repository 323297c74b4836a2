"""Options: what can be set of a worker: a plain value, to be handed to another process."""

from __future__ import annotations

import msgspec

from casque.system.clock import SECOND_US

DEFAULT_CONCURRENCY = 32
DEFAULT_LEASE_US = 60 * SECOND_US
DEFAULT_GRACE_US = 30 * SECOND_US
SHORTEST_LEASE_US = SECOND_US
"""One that heartbeats can keep on a busy machine."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    concurrency: int = DEFAULT_CONCURRENCY
    """How many jobs it has in hand at once; it claims no more."""
    queues: tuple[str, ...] | None = None
    """Which queues it takes jobs from; None: from all."""
    lease_us: int = DEFAULT_LEASE_US
    grace_us: int = DEFAULT_GRACE_US
    """How long running jobs may go on after it was told to stop."""
    until_idle: bool = False
    """True to end when no job is due and none is running."""
    max_jobs: int | None = None
    """After how many jobs the process is replaced by a new one."""
    poll_us: int | None = None
    """How long it sleeps at most before it asks for jobs; None: as long as the store lets it."""
    max_mib: int | None = None
    """At what size, in MiB of memory, the process is replaced by a new one."""

    @property
    def is_recycled(self) -> bool:
        """True if its process is replaced now and then: that takes a supervisor."""
        return self.max_jobs is not None or self.max_mib is not None
