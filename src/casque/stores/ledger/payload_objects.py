"""Payload objects: stores large payloads beside the log, and reads them when a caller gets the job.

So they burden neither the log nor the memory of every process. A payload is written before the
commit that adds its job, under a name that only this call knows. It is deleted after the commit
that removes the job. What a killed process leaves behind is deleted when it is old: see `deletion`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from casque.buckets.port import ABSENT
from casque.errors import CASConflictError, CasqueError, StorageError
from casque.job import Failure, Job
from casque.rules.decide import Leased
from casque.rules.operations import Ack, Batch, Enqueue, Insert, Operation, Request, Tick
from casque.rules.state import State
from casque.stores.ledger.apart_payload import LARGE_BYTES, ApartPayload
from casque.stores.ledger.bucket_requests import BucketRequests, reason
from casque.stores.port import Answer
from casque.system.clock import Stopwatch

_AT_ONCE = 16
_CACHED_BYTES = 16 * 1024 * 1024
"""How many bytes of payloads are remembered, so that each heartbeat need not read its payload."""

Content = bytes | CasqueError | None
"""A payload; None if there is no such object; or why it could not be read."""

Change = Callable[[Job | Request], Any]
"""Returns the job or the request with another payload."""


class Prepared(NamedTuple):
    """Batches whose large payloads are stored."""

    batches: Sequence[Batch]
    put: Stopwatch | None
    """The time since the first payload was sent; None if there are no large ones."""
    contents: dict[ApartPayload, bytes]


class PayloadObjects:
    """The large payloads of one ledger."""

    def __init__(self, requests: BucketRequests) -> None:
        self._requests = requests
        self._deleting: set[asyncio.Task[None]] = set()
        self._cache: OrderedDict[ApartPayload, bytes] = OrderedDict()
        """The payloads that were written or read last."""
        self._cached_bytes = 0

    def prepared(self, batches: Sequence[Batch]) -> Prepared | None:
        """Return the batches as they are if no payload is large, else None: call `put`."""
        has_large = any(
            len(one.payload) > LARGE_BYTES
            for batch in batches
            for operation in batch.operations
            for one in _added_by(operation)
        )
        return None if has_large else Prepared(batches, None, {})

    async def put(self, batches: Sequence[Batch]) -> Prepared:
        """Store the large payloads of these batches, under new names."""
        begun, contents = Stopwatch(self._requests.clock), dict[ApartPayload, bytes]()

        def apart(one: Job | Request) -> Any:
            if len(one.payload) <= LARGE_BYTES:
                return one
            payload = ApartPayload.of(self._requests.clock.new_id(), len(one.payload))
            contents[payload] = one.payload
            return replace(one, payload=payload)

        changed = [_with_payloads(batch, apart) for batch in batches]
        asks = (partial(self._put, *one) for one in contents.items())
        try:
            await self._requests.in_order(asks, _AT_ONCE, lambda _: None)
        except StorageError as error:
            raise StorageError(
                f"{reason(error)}. Nothing was enqueued: this was a payload, which is stored "
                "before its job. Try again.",
                cause=error,
                outcome_unknown=False,
            ) from error
        return Prepared(changed, begun, contents)

    async def put_again(self, prepared: Prepared) -> Prepared:
        """Store the payloads under new names: by now the old ones may be taken for left behind."""

        def whole(one: Job | Request) -> Any:
            content = prepared.contents.get(cast("ApartPayload", one.payload))
            return one if content is None else replace(one, payload=content)

        return await self.put([_with_payloads(batch, whole) for batch in prepared.batches])

    def are_old(self, prepared: Prepared) -> bool:
        """True if the payloads must be stored again before a commit that refers to them is sent."""
        age = self._requests.bucket.upkeep.proof_age_us
        return prepared.put is not None and prepared.put.elapsed_us() > age

    def may_be_gone(self, put: Stopwatch | None) -> bool:
        """True if payloads stored that long ago may have been deleted as left behind."""
        return (
            put is not None and put.elapsed_us() > self._requests.bucket.upkeep.orphan_age_us // 2
        )

    async def fill(
        self, answers: Sequence[Answer], contents: dict[ApartPayload, bytes]
    ) -> tuple[list[Answer], list[Job]]:
        """Put the payloads into the jobs of these answers.

        Also returns the claimed jobs whose payload does not exist. They are not in the answers. If
        a payload cannot be read, its operation is answered with the error.
        """
        outcomes = [one for answer in answers if isinstance(answer, list) for one in answer]
        apart = [payload for one in outcomes for payload in _apart_in(_jobs_in(one))]
        if not apart:
            return list(answers), []
        read = await self._read(apart, contents)
        missing: list[Job] = []
        filled = [
            [_filled(one, read, missing) for one in answer] if isinstance(answer, list) else answer
            for answer in answers
        ]
        return filled, missing

    async def fill_jobs(self, jobs: Sequence[Job]) -> tuple[list[Job], list[str]]:
        """Put the payloads into jobs that were read. Also returns the keys of missing objects."""
        apart = _apart_in(jobs)
        if not apart:
            return list(jobs), []
        read = await self._read(apart, {})
        for content in read.values():
            if isinstance(content, CasqueError):
                raise content
        missing = [payload.key for payload, content in read.items() if content is None]
        return [_with_content(job, read) for job in jobs], missing

    def delete(self, payloads: Sequence[ApartPayload]) -> None:
        """Delete objects that no job refers to any more. What fails is deleted when it is old."""
        if not payloads:
            return
        for payload in payloads:
            self._cached_bytes -= len(self._cache.pop(payload, b""))
        work = self._delete(payloads)
        if self._requests.bucket.blocking:
            with suppress(StopIteration):
                work.send(None)
            return
        task = asyncio.ensure_future(work)
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def finish(self, seconds: float) -> None:
        """Wait for deletions that are under way."""
        here = asyncio.get_running_loop() if self._deleting else None
        mine = {task for task in self._deleting if task.get_loop() is here}
        if mine:
            await asyncio.wait(mine, timeout=seconds)

    async def _delete(self, payloads: Sequence[ApartPayload]) -> None:
        watch = Stopwatch(self._requests.clock)
        with suppress(CasqueError):
            asks = (partial(self._requests.delete, one.key, watch) for one in payloads)
            await self._requests.in_order(asks, _AT_ONCE, lambda _: None)

    async def _put(self, payload: ApartPayload, content: bytes) -> None:
        with suppress(CASConflictError):  # our own, whose answer was lost: the name is new
            watch = Stopwatch(self._requests.clock)
            await self._requests.put_until_answered(payload.key, content, ABSENT, watch)

    async def _read(
        self, wanted: Iterable[ApartPayload], contents: dict[ApartPayload, bytes]
    ) -> dict[ApartPayload, Content]:
        read: dict[ApartPayload, Content] = dict.fromkeys(wanted)
        for payload in read:
            read[payload] = contents.get(payload) or self._cache.get(payload)
        unread = [payload for payload, content in read.items() if content is None]
        answered = iter(unread)

        def take(content: Content) -> None:
            payload = next(answered)
            read[payload] = content
            if isinstance(content, bytes):
                self._remember(payload, content)

        asks = (partial(self._get, payload) for payload in unread)
        await self._requests.in_order(asks, _AT_ONCE, take)
        return read

    def _remember(self, payload: ApartPayload, content: bytes) -> None:
        self._cache[payload] = content
        self._cached_bytes += len(content)
        while self._cached_bytes > _CACHED_BYTES:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    async def _get(self, payload: ApartPayload) -> Content:
        try:
            watch = Stopwatch(self._requests.clock)
            found = await self._requests.get(payload.key, watch, len(payload))
        except StorageError as error:
            return error
        return None if found is None else found.body


def apart_in(state: State) -> set[ApartPayload]:
    """Return the payloads that the jobs of a state refer to."""
    return set(_apart_in(list(state.jobs.values())))


def freed_by(state: State) -> list[ApartPayload]:
    """Return the payloads that no job refers to any more after the last batch."""
    freed: list[ApartPayload] = []
    for job_id, old in state.changed_jobs().items():
        if old is None or not _is_apart(old):
            continue
        now = state.jobs.get(job_id)
        if now is None or now.payload is not old.payload:
            freed.append(cast("ApartPayload", old.payload))
    return freed


def payload_missing(job: Job) -> Failure:
    """Why a job is dead whose payload does not exist."""
    key = cast("ApartPayload", job.payload).key
    return Failure(
        "PayloadMissing",
        f"payload missing: the object {key} does not exist. Something deletes objects of this "
        "queue, for example an expiry rule of the bucket.",
    )


def warn_missing(keys: Sequence[str]) -> None:
    """Log that payloads do not exist, though their jobs do."""
    logging.getLogger("casque").warning(
        "%s and %d more objects are missing: the payloads of jobs, which are shown as empty. "
        "Something deletes objects of this queue, for example an expiry rule of the bucket.",
        keys[0],
        len(keys) - 1,
    )


def _added_by(operation: Operation) -> Sequence[Request | Job]:
    """Return the jobs that an operation adds."""
    kind = type(operation)
    if kind is Enqueue or kind is Insert:
        return cast("Enqueue | Insert", operation).jobs
    if kind is Ack:
        return cast("Ack", operation).enqueue
    return (cast("Tick", operation).job,) if kind is Tick else ()


def _with_payloads(batch: Batch, change: Change) -> Batch:
    """Return the batch with other payloads in the jobs that it adds."""

    def changed(operation: Operation) -> Operation:
        if isinstance(operation, Enqueue | Insert):
            return replace(operation, jobs=tuple(map(change, operation.jobs)))
        if isinstance(operation, Ack) and operation.enqueue:
            return replace(operation, enqueue=tuple(map(change, operation.enqueue)))
        if isinstance(operation, Tick):
            return replace(operation, job=change(operation.job))
        return operation

    return replace(batch, operations=list(map(changed, batch.operations)))


def _is_apart(job: Job) -> bool:
    return type(job.payload) is ApartPayload


def _apart_in(jobs: Sequence[Job]) -> list[ApartPayload]:
    return [cast("ApartPayload", job.payload) for job in jobs if _is_apart(job)]


def _jobs_in(outcome: Any) -> Sequence[Job]:
    """Return the jobs in the answer to one operation."""
    kind = type(outcome)
    if kind is Leased:
        return cast("Leased", outcome).jobs
    if kind is Job:
        return (outcome,)
    return [one for one in outcome if type(one) is Job] if kind is list else ()


def _filled(outcome: Any, read: dict[ApartPayload, Content], missing: list[Job]) -> Any:
    jobs = [job for job in _jobs_in(outcome) if _is_apart(job)]
    contents = [read[cast("ApartPayload", job.payload)] for job in jobs]
    errors = [content for content in contents if isinstance(content, CasqueError)]
    if not jobs or errors:
        return errors[0] if errors else outcome
    if isinstance(outcome, Leased):
        gone = [job for job, content in zip(jobs, contents, strict=True) if content is None]
        missing += gone
        there = [_with_content(job, read) for job in outcome.jobs if job not in gone]
        return Leased(there, outcome.next_in_us)
    if isinstance(outcome, list):
        return [_with_content(one, read) if type(one) is Job else one for one in outcome]
    return _with_content(outcome, read)


def _with_content(job: Job, read: dict[ApartPayload, Content]) -> Job:
    """Return the job with its payload, which is empty if the object does not exist."""
    if not _is_apart(job):
        return job
    return replace(job, payload=read[cast("ApartPayload", job.payload)] or b"")
