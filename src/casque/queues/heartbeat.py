"""HeartbeatManager: renews a job's lease while the work runs."""

from __future__ import annotations

from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, Protocol, Self

from casque import checks
from casque.errors import InvalidError, JobNotFoundError, LeaseLostError
from casque.job import Job
from casque.queues.held_claims import HeldClaim
from casque.queues.lease_keeper import Keeper
from casque.system.clock import Clock, SystemClock

DEFAULT_INTERVAL = timedelta(seconds=60)
BEATS_PER_LEASE = 3


class Beating(Protocol):
    """An object that can renew a lease: one of our queues, or any object with this method."""

    def heartbeat(self, job: Any, /) -> Any: ...


class HeartbeatManager:
    """Renews the lease of one job every `interval`, or three times per lease if that is sooner.

    Use `async with` for the async queues: if the lease is lost, the body is cancelled and
    LeaseLostError is raised. Use `with` for the sync `Queue`: a thread renews the lease, the body
    can check `lost`, and LeaseLostError is raised at the end.
    """

    def __init__(
        self, queue: Beating, job: Job | str, interval: timedelta = DEFAULT_INTERVAL
    ) -> None:
        _check_order(queue, job)
        self._queue = queue
        self._job = job
        self._is_async = iscoroutinefunction(queue.heartbeat)
        every_us = checks.positive_span(interval, "interval")
        holding = _held_claim(queue, job)
        lease_us = holding.lease_us if holding is not None else None
        if lease_us is None and isinstance(job, Job):
            lease_us = job.lease_span_us
        if lease_us is not None:
            every_us = max(min(every_us, lease_us // BEATS_PER_LEASE), 1)
        store = getattr(queue, "store", None)
        clock: Clock = SystemClock() if store is None else store.clock
        taken_us = None if holding is None else holding.taken_us
        self._keeper = Keeper(self._beat, every_us, lease_us, clock, taken_us)
        self._was_handed = holding is not None
        self._is_entered = False

    @property
    def lost(self) -> bool:
        """True if the lease is lost: another worker may have the job."""
        return self._keeper.is_lost

    async def __aenter__(self) -> Self:
        self._enter("async with")
        self._keeper.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if await self._keeper.stop(raised=error):
            self._raise()

    def __enter__(self) -> Self:
        self._enter("with")
        self._keeper.start_thread()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._keeper.stop_thread(raised=error):
            self._raise()

    def _enter(self, used: str) -> None:
        right = "async with" if self._is_async else "with"
        if used != right:
            raise InvalidError(f"this queue needs `{right} HeartbeatManager(…)`, not `{used}`.")
        if self._is_entered:
            raise InvalidError("this HeartbeatManager was already entered; make one per job.")
        self._is_entered = True

    async def _beat(self) -> bool:
        try:
            beaten = self._queue.heartbeat(self._job)
            if self._is_async:
                await beaten
        except (LeaseLostError, JobNotFoundError):
            # The body has acked, nacked or released the job through this queue.
            if self._was_handed and _held_claim(self._queue, self._job) is None:
                return False
            raise
        return True

    def _raise(self) -> None:
        job_id = self._job.id if isinstance(self._job, Job) else self._job
        loss = self._keeper.reason
        raise LeaseLostError(
            f"job {job_id}: the lease was lost during the work; discard its result, because "
            f"another worker may have the job. ({loss})",
            job_id=job_id,
            cause=loss,
        ) from loss


def _check_order(queue: object, job: object) -> None:
    if not isinstance(job, Job | str) or not callable(getattr(queue, "heartbeat", None)):
        raise InvalidError("write HeartbeatManager(queue, job), with one Job or its id.")


def _held_claim(queue: Beating, job: Job | str) -> HeldClaim | None:
    """Return the queue's claim on the job; None if there is none, or `queue` is not ours."""
    find = getattr(queue, "_held_claim", None)
    held: HeldClaim | None = None if find is None else find(job)
    return held
