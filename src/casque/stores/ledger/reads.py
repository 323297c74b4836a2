"""LedgerReads: the reads of a ledger, which put payloads into the jobs that they return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from msgspec.structs import replace

from casque.job import Job, Stats
from casque.record import EPHEMERAL, Record
from casque.rules.state import QueueState, State
from casque.rules.views import JobFilter
from casque.stores.description import Description
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.description import describe
from casque.stores.ledger.log_reader import LogReader
from casque.stores.ledger.payload_objects import PayloadObjects, warn_missing
from casque.stores.ledger.presence import Presence
from casque.stores.ledger.summary import Summary
from casque.stores.state_reads import StateReads
from casque.system.clock import Clock, Stopwatch

T = TypeVar("T")


class LedgerReads(StateReads):
    """Reads the log to its end first. The store sets the attributes."""

    clock: Clock
    _lock: AbstractAsyncContextManager[None]
    _payloads: PayloadObjects
    _presence: Presence
    _reader: LogReader
    _requests: BucketRequests
    _time: BucketTime

    async def _read(self, look: Callable[[State, int], T], called: Stopwatch | None = None) -> T:
        """Read the log to its end, then call `look` with the state and the time.

        `called` was started when the call began; the default is now.
        """
        first = called or Stopwatch(self.clock)

        async def work() -> T:
            begun_call = first
            async with self._lock:
                watch = self._requests.begin(begun_call)
                replica, is_current = await self._reader.ready(watch, blind=False, to_write=False)
                if is_current:
                    begun_call = watch = Stopwatch(self.clock)
                await self._reader.learn_time(watch, to_write=False)
                number = replica.number
            # Without the lock, so that readers delay nobody.
            begun, is_last = Stopwatch(self.clock), False
            if not is_current:
                is_last = await self._reader.read_next(number, watch) is None
            async with self._lock:
                watch = self._requests.begin(begun_call)
                replica, _ = await self._reader.ready(watch, blind=False, to_write=False)
                if is_last:
                    await self._reader.prove(replica, begun, watch, shows_end=True)
                elif not is_current:
                    await self._reader.catch_up(replica, watch)
                assert replica.state is not None
                now, replica.state.step = self._time.now(), self._time.step
                return look(replica.state, now)

        return await self._reader.with_a_second_read(work)

    async def get(self, job_id: str) -> Job | None:
        read = super().get

        async def look() -> list[Job]:
            job = await read(job_id)
            return [] if job is None else [job]

        return next(iter(await self._whole(look)), None)

    async def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        read = super().jobs
        return await self._whole(lambda: read(wanted, limit=limit, after=after))

    async def peek(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[Job]:
        read = super().peek
        return await self._whole(lambda: read(entrypoints, queue, limit))

    async def stats(self, queue: str | None) -> Stats:
        called, replica = Stopwatch(self.clock), self._reader.replica
        if queue is None and (replica is None or replica.is_blind):
            summary = await self._summary(called)
            if summary is not None:
                return summary.stats
        return await self._read(lambda state, now: state.stats(queue, now), called)

    async def _summary(self, called: Stopwatch) -> Summary | None:
        """Return the counts, if this process knows them without having read the jobs."""

        async def work() -> Summary | None:
            async with self._lock:
                replica = self._reader.replica
                if replica is not None and not replica.is_blind:
                    return None
                watch = self._requests.begin(called)
                replica, is_current = await self._reader.ready(watch, blind=True, to_write=False)
                if not is_current:
                    await self._reader.catch_up(replica, watch)
                await self._reader.learn_time(watch, to_write=False)
                summary = replica.summary
                is_valid = summary is not None and self._time.now() < summary.until_us
                return summary if is_valid else None

        return await self._reader.with_a_second_read(work)

    async def picture(self) -> QueueState:
        state = await super().picture()
        jobs, _ = await self._payloads.fill_jobs(state.jobs)
        return replace(state, jobs=tuple(jobs))

    async def _whole(self, read: Callable[[], Awaitable[list[Job]]]) -> list[Job]:
        """Read jobs with their payloads. A payload that is missing is shown as empty."""
        jobs, missing = await self._payloads.fill_jobs(await read())
        if missing:  # unless a job ended, and its payload was deleted, in between
            jobs, missing = await self._payloads.fill_jobs(await read())
        if missing:
            warn_missing(missing)
        return jobs

    async def records(self, kind: str) -> list[Record]:
        if kind not in EPHEMERAL:
            return await super().records(kind)
        return await self._presence.records(kind, await self._read(lambda *_: self._time.asked()))

    async def describe(self) -> Description:
        called = Stopwatch(self.clock)
        async with self._lock:
            return await describe(self._requests, self._requests.begin(called))
