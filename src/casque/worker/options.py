"""Options of a worker: a plain value that can be sent to another process."""

from __future__ import annotations

import msgspec

from casque.system.clock import SECOND_US

DEFAULT_CONCURRENCY = 32
DEFAULT_LEASE_US = 60 * SECOND_US
DEFAULT_GRACE_US = 30 * SECOND_US
SHORTEST_LEASE_US = SECOND_US
"""The shortest lease that heartbeats can keep on a busy machine."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one worker."""

    concurrency: int = DEFAULT_CONCURRENCY
    """The most jobs that it holds at once."""
    queues: tuple[str, ...] | None = None
    """The queues that it takes jobs from; None: all."""
    lease_us: int = DEFAULT_LEASE_US
    grace_us: int = DEFAULT_GRACE_US
    """How long running jobs may continue after it was asked to stop."""
    until_idle: bool = False
    """True to end when no job is due and none is running."""
    max_jobs: int | None = None
    """The process is replaced after this many jobs."""
    poll_us: int | None = None
    """The longest sleep before it asks for jobs; None: the store decides."""
    max_mib: int | None = None
    """The process is replaced when it uses more than this much memory."""

    @property
    def is_recycled(self) -> bool:
        """True if the worker's process is replaced now and then, which needs a supervisor."""
        return self.max_jobs is not None or self.max_mib is not None
