"""Side by side: make one call on a store and on the oracle, then compare everything.

The oracle's call happens at the time at which the store's call has returned: a
store that pauses between two tries lets time pass. Each side has its own tokens.
The store's tokens must correspond to the oracle's and only rise.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from casque.errors import CasqueError, JobNotFoundError, LeaseLostError
from casque.job import Job, Stats
from casque.queues.async_queue import AsyncQueue, BrokerQueue, DirectQueue
from casque.queues.sync_queue import Queue
from casque.rules.operations import Batch, Dequeue, Operation
from casque.rules.state import WRITER_MEMORY_US
from casque.system.clock import span_us
from casque.testing.alphabet import ENTRYPOINTS, IDS, MAX_DEPTH, NOTE, QUEUES
from casque.testing.modeljob import Lost, ModelJob, ModelRecord
from casque.testing.oracle import PAUSE, QUEUE_LEASE, SCHEDULE, Oracle
from casque.testing.rig import Flavour, Harness

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

COMPARED = (
    *("id", "queue", "entrypoint", "payload", "priority", "max_attempts", "retain", "timeout"),
    *("headers", "depth", "chain", "status", "attempts", "token", "worker", "created_at"),
    *(
        "run_at",
        "claimed_at",
        "lease_until",
        "finished_at",
        "result",
        "progress",
        "note",
        "duplicate",
    ),
)


class Stored(NamedTuple):
    """A record, or a lease stored as one, as the store returned it."""

    value: bytes
    version: int
    gone_at: datetime | None


class QueueUser:
    """A queue object on its own store handle, and the claims it has made."""

    def __init__(
        self, harness: Harness, flavour: Flavour, name: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.handed: dict[str, int] = {}
        """By job id, the oracle's token of the last claim."""
        self._loop = loop
        self._store = harness.open()
        kinds: dict[Flavour, type[AsyncQueue | Queue]] = {
            "direct": DirectQueue,
            "broker": BrokerQueue,
            "queue": Queue,
        }
        self._queue = kinds[flavour](self._store, worker=name, max_depth=MAX_DEPTH)
        self.enter(self._queue)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method and wait for its answer, in any flavour."""
        return self._run(getattr(self._queue, method)(*args, **options))

    def dequeue_together(self, callers: int, batch_size: int, lease: timedelta) -> list[Job]:
        """Dequeue for several callers in one commit, as group commit does for their threads.

        (A DirectQueue makes a commit for each.) The queue object does not note these claims.
        """
        operation = Dequeue(self.name, lease // MICROSECOND, batch_size)
        if isinstance(self._queue, Queue):
            session = self._queue._queue._session
            outcomes = self._queue._run(session.submit_all([operation] * callers))
        else:
            outcomes = self._run(self._queue._session.submit_all([operation] * callers))
        return [job for leased in outcomes for job in leased.jobs]

    def enter(self, context: Any) -> Any:
        is_async = isinstance(context, AbstractAsyncContextManager)
        return self._run(context.__aenter__() if is_async else context.__enter__())

    def leave(self, context: Any) -> None:
        is_async = isinstance(context, AbstractAsyncContextManager)
        self._run((context.__aexit__ if is_async else context.__exit__)(None, None, None))

    def close(self) -> None:
        self.leave(self._queue)
        # A sync Queue ran an async store in its own event loop, which has ended by now.
        if isinstance(self._queue, AsyncQueue) or self._store.blocking:
            self._run(self._store.close())

    def _run(self, answer: Any) -> Any:
        return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer


class SideBySide:
    """A store and the oracle after the same calls."""

    def __init__(self, harness: Harness, flavour: Flavour) -> None:
        self.harness = harness
        self.flavour = flavour
        self.oracle = Oracle(MAX_DEPTH)
        self.raw = harness.raw()
        """What was stored after the last step."""
        self.tokens = {0: 0}
        """The store's token for each of the oracle's, for claims and record versions."""
        self._loop = asyncio.new_event_loop()
        self._open: list[QueueUser] = []
        self._reader = self.open("reader")
        self._store = harness.open()
        self._commits = 0
        self._repeats: list[tuple[Batch, list[Any], int]] = []
        """The last of these commits, its answer and its time."""
        self._written_us = 0

    def open(self, name: str) -> QueueUser:
        """Open another queue object. `close` closes it unless `shut` did so before."""
        worker = QueueUser(self.harness, self.flavour, name, self._loop)
        self._open.append(worker)
        return worker

    def shut(self, worker: QueueUser) -> None:
        self._open.remove(worker)
        worker.close()

    def close(self) -> None:
        for worker in list(self._open):
            self.shut(worker)
        self._loop.run_until_complete(self._store.close())
        self._loop.close()

    def now(self) -> datetime:
        return EPOCH + self.harness.clock.now() * MICROSECOND

    def commit(self, operation: Operation) -> Any:
        """Commit an operation that has no method, directly on the store, by one of two writers.

        In the same commit the other writer repeats its last batch, while the store remembers it.
        """
        self._commits += 1
        mine = self._commits % 2
        batch = Batch(f"machine {mine}", self._commits, [operation], is_remote=bool(mine))
        before, self._repeats = self._repeats, []
        now, writes = self.harness.clock.now(), self.harness.writes()
        repeated = [(one, answer) for one, answer, at in before if now - at < WRITER_MEMORY_US]
        batches = [batch, *(one for one, _ in repeated)]
        answer, *again = self._loop.run_until_complete(self._store.commit(batches))
        for (_, first), second in zip(repeated, again, strict=True):
            assert isinstance(second, list), second
            same = list(map(_kind, second)) == list(map(_kind, first))
            assert same, f"a repeated batch: expected {first}, got {second}"
        assert isinstance(answer, list), answer
        if self.harness.writes() != writes:  # otherwise a repeat may have another outcome
            self._repeats = [(batch, answer, now)]
        [outcome] = answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def both(self, call: Callable[[], Any], model: Callable[[datetime, Any], Any]) -> Any:
        """Make a call on the store, then on the oracle at that time. Both must answer the same.

        `model` gets the store's answer too, for values that only the store chooses:
        new ids and tokens.
        """
        changes, writes = self.oracle.changes, self.harness.writes()
        answer = _outcome(call)
        now = self.now()
        expected = _outcome(lambda: model(now, answer))
        if self.harness.writes() != writes:
            assert self.oracle.changes != changes, f"the store wrote without a change: {answer!r}"
            self._written_us = self.harness.clock.now()
        self._agree(answer, expected)
        return answer, expected

    def match(self, tokens: Sequence[tuple[int, int]]) -> None:
        """Remember the store's tokens for new ones of the oracle. They must be the highest yet."""
        newest = max(self.tokens.values())
        for own, theirs in tokens:
            assert theirs > newest, f"token {theirs} was issued after {newest}"
            self.tokens[own] = theirs
        assert len(set(self.tokens.values())) == len(self.tokens), "a token was issued twice"

    # -- everything that is visible --------------------------------------------

    def compare(self) -> None:
        """Raise AssertionError unless the store equals the oracle and its stored data is sound."""
        self._stored_soundly()
        self._jobs_agree()
        self._order_agrees()
        self._counts_agree()
        self._unserved_agrees()
        self._mismatches_agree()
        self._records_agree()

    def _jobs_agree(self) -> None:
        expected = self.oracle.seen(self.now())
        self._agree(list(self._reader.call("read_state").jobs), list(expected.values()))
        for job_id in (*IDS, "nobody"):
            self._agree(self._reader.call("get", job_id), expected.get(job_id))

    def _order_agrees(self) -> None:
        asked: list[tuple[list[str] | None, str | None]] = [(None, None)]
        asked += [([entrypoint], None) for entrypoint in ENTRYPOINTS]
        asked += [(None, queue) for queue in QUEUES]
        for entrypoint, queue in asked:
            seen = ids_of(self._reader.call("peek", entrypoint, queue=queue, limit=100))
            expected = self.oracle.peek(self.now(), entrypoint, queue, 100)
            assert seen == expected, f"peek({entrypoint}, {queue}): expected {expected}, got {seen}"

    def _counts_agree(self) -> None:
        now, reader = self.now(), self._reader
        for queue in (None, *QUEUES):
            stats, expected = reader.call("stats", queue), self.oracle.stats(now, queue)
            wanted = Stats(**expected)
            assert stats == wanted, f"stats({queue}): expected {wanted}, got {stats}"
        for queue in QUEUES:
            first = reader.call("next_run_at", queue)
            assert first == self.oracle.next_run_at(queue), f"next_run_at({queue}): {first}"
        there = {job.queue for job in self.oracle.seen(now).values()}
        assert set(reader.call("queues")) == there
        assert set(reader.call("queues", due=True)) == self.oracle.due_queues(now)

    def _unserved_agrees(self) -> None:
        first = ENTRYPOINTS[0]
        asked: list[tuple[dict[str, Sequence[str] | None], timedelta]] = [
            ({}, timedelta()),
            ({first: None}, timedelta()),
            ({first: QUEUES[:1]}, timedelta(seconds=10)),
        ]
        for served, waited in asked:
            found = self._loop.run_until_complete(
                self._store.unserved(served, limit=1_000, waited_us=span_us(waited))
            )
            expected = self.oracle.unserved(self.now(), served, waited)
            assert found == expected, f"unserved({served}): expected {expected}, got {found}"

    def _mismatches_agree(self) -> None:
        for queue in (None, *QUEUES):
            found = self._loop.run_until_complete(self._store.mismatched(queue))
            expected = self.oracle.mismatched(self.now(), queue)
            assert found == expected, f"mismatched({queue}): expected {expected}, got {found}"

    def _records_agree(self) -> None:
        for kind in (NOTE, PAUSE, QUEUE_LEASE, SCHEDULE):
            records = self._loop.run_until_complete(self._store.records(kind))
            expected = self.oracle.records_of(self.now(), kind)
            assert [record.name for record in records] == sorted(expected)
            for record in records:
                model = expected[record.name]
                if model.version not in self.tokens:  # of a pause, whose call does not return it
                    self.match([(model.version, record.version)])
                self._agree(Stored(record.value, record.version, record.expires_at), model)

    def _stored_soundly(self) -> None:
        """Check the raw data: tokens only rise, each line is stored once, with the right time."""
        raw, before = self.harness.raw(), self.raw
        assert raw.token >= before.token, (
            f"the token counter fell from {before.token} to {raw.token}"
        )
        earliest: dict[tuple[str, str], int] = {}
        for job_id, job in raw.jobs.items():
            assert job["token"] <= raw.token, f"{job_id}: {job['token']} is above the token counter"
            old = before.jobs.get(job_id, job)["token"]  # 0 again when the id was used again
            assert not job["token"] or job["token"] >= old, f"{job_id}: token fell from {old}"
            if job["due_us"] is not None:
                line = (job["queue"], job["entrypoint"])
                earliest[line] = min(job["due_us"], earliest.get(line, job["due_us"]))
        lines = sorted((line.queue, line.entrypoint) for line in raw.lines)
        wanted = sorted(earliest)
        assert lines == wanted, f"expected the lines {wanted}, got {lines}"
        for stored in raw.lines:
            first = earliest[stored.queue, stored.entrypoint]
            assert stored.visit_us in (None, first), f"{stored}: its first job is due at {first}"
        self.raw = raw

    # -- one answer ------------------------------------------------------------

    def _agree(self, answer: Any, expected: Any) -> None:
        if isinstance(expected, CasqueError) or isinstance(answer, CasqueError):
            same = _what(answer) == _what(expected)
            assert same, f"expected {expected!r}, got {answer!r}"
        elif isinstance(expected, ModelJob):
            assert isinstance(answer, Job), f"expected {expected!r}, got {answer!r}"
            self._same(answer, expected)
        elif isinstance(expected, ModelRecord):
            record = Stored(expected.value, self.tokens[expected.version], expected.gone_at)
            assert answer == record, f"expected {record!r}, got {answer!r}"
        elif isinstance(expected, list):
            ids, wanted = ids_of(answer), ids_of(expected)
            assert ids == wanted, f"expected {wanted}, got {ids}"
            for job, model in zip(answer, expected, strict=True):
                self._same(job, model)
        else:
            assert answer == expected, f"expected {expected!r}, got {answer!r}"

    def _same(self, job: Job, model: ModelJob) -> None:
        seen, expected = _fields(job), _fields(model)
        expected["token"] = self.tokens[model.token]
        if isinstance(model.error, Lost):
            error = job.error or ""
            named = (
                model.error.worker in error and f"{model.error.last_heartbeat_at:%H:%M:%S}" in error
            )
            expected["error"] = error if named else model.error
        seen["history"] = [
            (past.number, past.worker, past.started_at, past.failure and past.failure.kind)
            for past in job.history
        ]
        expected["history"] = [tuple(past) for past in model.history]
        wrong = {
            name: (value, expected[name]) for name, value in seen.items() if value != expected[name]
        }
        assert not wrong, f"job {job.id} differs; by field, the store's and the oracle's: {wrong}"
        for past in job.history:
            assert past.ended_at <= self.now(), f"{job.id}: an attempt ended in the future: {past}"


def ids_of(jobs: Sequence[Job | ModelJob]) -> list[str]:
    return [job.id for job in jobs]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CasqueError as refusal:
        return refusal


def _what(answer: Any) -> tuple[object, ...]:
    """The class of an error and the jobs it names: what a program may rely on."""
    if isinstance(answer, LeaseLostError):
        return LeaseLostError, answer.job_ids
    return type(answer), answer.job_id if isinstance(answer, JobNotFoundError) else None


def _fields(job: Job | ModelJob) -> dict[str, Any]:
    fields = {name: getattr(job, name) for name in COMPARED}
    fields["error"] = job.error or None
    # Its value after the claim is not part of the contract.
    fields["heartbeat_at"] = job.heartbeat_at if job.status == "in_progress" else None
    return fields


def _kind(outcome: Any) -> Any:
    """An outcome, or the class of an error."""
    return type(outcome) if isinstance(outcome, Exception) else outcome
