"""LedgerStore: a queue in a bucket, as a log of committed batches, with its state in memory.

The store decides a commit on its own copy of the state, and creates it as the next
entry. If another process created that entry first, the store reads it and decides
again. docs/design/ledger.md explains why nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from casque.buckets.meter import Requests
from casque.buckets.port import Bucket
from casque.errors import StorageError
from casque.rules.operations import Batch, Enqueue, Fail
from casque.rules.transaction import transact
from casque.stores.conflicts import check_conflicts
from casque.stores.creation import Report
from casque.stores.last_answers import check_writers
from casque.stores.ledger.adoption import adopt
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.entry import Entry, encode
from casque.stores.ledger.housekeeping import CLOSE_SECONDS, Housekeeping
from casque.stores.ledger.ledger_bucket import LedgerBucket, Upkeep
from casque.stores.ledger.log import Log, MissingEntryError
from casque.stores.ledger.log_reader import LogReader
from casque.stores.ledger.pacing import Pacing
from casque.stores.ledger.payload_objects import (
    PayloadObjects,
    Prepared,
    apart_in,
    freed_by,
    payload_missing,
)
from casque.stores.ledger.polling import Polling
from casque.stores.ledger.presence import PRESENCE_US, Presence, is_ephemeral
from casque.stores.ledger.reads import LedgerReads
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.replica_lock import new_lock
from casque.stores.ledger.sent_commits import Sent, SentCommits
from casque.stores.ledger.summary import summary_of, with_added
from casque.stores.ledger.tryout import ask_time
from casque.stores.ledger.verification import verify
from casque.stores.listeners import Listeners, makes_claimable
from casque.stores.maintenance import Adoption, Progress, Verification
from casque.stores.port import Answer, MaySleep
from casque.system.background import TaskBackground, ThreadBackground
from casque.system.clock import Bell, Clock, Stopwatch, SystemClock

T = TypeVar("T")


class LedgerStore(LedgerReads):
    """A store in a bucket. Nothing is read or written before its first use."""

    instant = False

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock | None = None,
        *,
        poll_us: int | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        """`poll_us` is the longest time between two checks for entries of other processes.

        `upkeep` applies if this process creates the ledger; its other processes read it.
        """
        self.clock = clock or SystemClock()
        self.name = bucket.name
        self.blocking = bucket.blocking
        self.presence_us = None if bucket.blocking else PRESENCE_US
        self._bucket = LedgerBucket(bucket, upkeep)
        self._requests = BucketRequests(self._bucket, self.clock)
        self._log = Log(self._requests)
        self._time = BucketTime(self.clock)
        self._lock = new_lock(blocking=bucket.blocking)
        self._listeners = Listeners()
        self._polling = Polling(self._time, poll_us, blocking=bucket.blocking)
        self._pacing = Pacing(self._requests, self._time)
        self._presence = Presence(self._requests)
        self._payloads = PayloadObjects(self._requests)
        self._sent = SentCommits(self._pacing, self._payloads)
        self._reader = LogReader(
            self._requests,
            self._log,
            time=self._time,
            pacing=self._pacing,
            sent=self._sent,
            listeners=self._listeners,
        )
        background = ThreadBackground() if bucket.blocking else TaskBackground()
        self.housekeeping = Housekeeping(
            self._requests,
            background,
            self._lock,
            replica=lambda: self._reader.current,
            payloads=lambda: self._read(lambda state, _: apart_in(state)),
        )

    def try_out(self) -> None:
        self._reader.race_next_time()

    def require_existing(self) -> None:
        self._bucket.must_exist = True

    def announce_to(self, report: Report) -> None:
        self._bucket.report = report

    @property
    def requests(self) -> Requests:
        """The requests that this object has sent so far."""
        return self._bucket.meter.read()

    # -- changing --------------------------------------------------------------

    async def commit(
        self, batches: Sequence[Batch], *, max_conflicts: int | None = None
    ) -> list[Answer]:
        check_writers(batches)
        if not any(is_ephemeral(one) for batch in batches for one in batch.operations):
            return await self._commit_lasting(batches, max_conflicts)
        now = await self._time_to_write()
        lasting = [batch for batch in map(_lasting, batches) if batch.operations]
        stored: dict[str, Answer] = {}
        refusal: StorageError | None = None
        if lasting:
            try:
                answers = await self._commit_lasting(lasting, max_conflicts)
                stored = {one.writer: answer for one, answer in zip(lasting, answers, strict=True)}
            except StorageError as error:
                # A storage that answers may refuse only the log, as when it is dated ahead.
                if error.outcome_unknown or self._requests.is_silent:
                    raise
                refusal = error
        # From here on nothing raises or waits long, because the lasting operations are stored.
        briefly = bool(lasting)
        both = (
            self._with_ephemeral(one, stored.get(one.writer, refusal), now, briefly=briefly)
            for one in batches
        )
        return list(await self._requests.together(*both))

    async def _with_ephemeral(
        self, batch: Batch, stored: Answer | None, now: int, *, briefly: bool
    ) -> Answer:
        """Carry out the ephemeral operations; merge in `stored`, the answers to the others."""
        lasting = iter(stored) if isinstance(stored, list) else repeat(stored)
        return [
            await self._presence.change(one, now, briefly=briefly)
            if is_ephemeral(one)
            else next(lasting)
            for one in batch.operations
        ]

    async def _commit_lasting(
        self, batches: Sequence[Batch], max_conflicts: int | None
    ) -> list[Answer]:
        """Commit batches, with their large payloads as objects of their own."""
        prepared = self._payloads.prepared(batches) or await self._put_payloads(batches)
        answers = await self._commit_prepared(prepared, max_conflicts)
        filled, missing = await self._payloads.fill(answers, prepared.contents)
        if missing:
            # Its commit reads on first: if a job is gone by now, nothing is changed.
            ends = [Fail(job.id, job.token, payload_missing(job)) for job in missing]
            end = Prepared([Batch(self.clock.new_id(), 1, ends)], None, {})
            with suppress(StorageError):  # the lease ends, and the next claim finds out
                await self._commit_prepared(end, None)
        return filled

    async def _put_payloads(self, batches: Sequence[Batch]) -> Prepared:
        if self._sent.of(batches) is not None or self._sent.answered(batches):
            return Prepared(batches, None, {})  # a repeated call: they are stored, or in the log
        called = Stopwatch(self.clock)
        async with self._lock:
            await self._reader.enter(self._requests.begin(called), to_write=True)
        return await self._payloads.put(batches)

    async def _commit_prepared(self, prepared: Prepared, max_conflicts: int | None) -> list[Answer]:
        async def work() -> None:
            nonlocal prepared
            answers.clear()
            if self._payloads.are_old(prepared):
                prepared = await self._payloads.put_again(prepared)
            await self._commit(prepared, answers, max_conflicts, watch)
            await self._pacing.got_in()

        answers: dict[str, Answer] = {}
        batches = prepared.batches
        called = Stopwatch(self.clock)
        async with self._lock:
            try:
                watch = self._requests.begin(called)
                await self._reader.with_a_second_read(work)
                self._tidy()
                return [answers[batch.writer] for batch in batches]
            except StorageError as error:
                answers.update(self._sent.answered(batches))
                sent = self._sent.of(batches)
                if not error.outcome_unknown and sent is not None:
                    # Even after this refusal, the earlier send may be stored, now or later.
                    error = self._log.unknown(sent.number, error)
                if not answers:
                    raise error from error.cause
                return [answers.get(batch.writer, error) for batch in batches]

    def _tidy(self) -> None:
        """Start what is due beside the calls, after a call that may have stored nothing."""
        replica = self._reader.current
        if replica is not None:
            self.housekeeping.after_quiet_call(replica, self._time.idle_us())

    async def _commit(
        self,
        prepared: Prepared,
        answers: dict[str, Answer],
        max_conflicts: int | None,
        watch: Stopwatch,
    ) -> None:
        """Add the answer to each batch to `answers`, by its writer."""
        batches = prepared.batches
        blind = all(map(_can_be_blind, batches))
        replica, is_current = await self._reader.ready(watch, blind=blind, to_write=True)
        if is_current:  # reading a long log takes long, and does not count
            watch = Stopwatch(self.clock)
        conflicts = 0
        while True:
            answers.update(self._recall(replica, batches))
            todo = [batch for batch in batches if batch.writer not in answers]
            if not todo:
                is_local = not any(batch.is_remote for batch in batches)
                if is_current or is_local or not await self._reader.catch_up(replica, watch):
                    return
                is_current = True
                answers.clear()
                continue
            sent = self._sent.of(todo)
            if sent is None:
                check_conflicts(self.name, conflicts, max_conflicts, watch)
                await self._reader.learn_time(watch, to_write=True)
                losing = watch if conflicts else None
                await self._pacing.wait(
                    replica, losing, partial(self._reader.read_on, replica, watch)
                )
                sent = self._decide(replica, todo, prepared.put)
            elif sent.number > replica.number + 1:  # the log was truncated before it
                raise MissingEntryError(replica.number + 1)
            elif sent.number <= replica.number and sent.content:
                if not replica.is_blind:  # only a snapshot includes it
                    raise self._log.unknown(sent.number, _too_late())
                replica, is_current = await self._reader.ready(watch, blind=False, to_write=True)
                continue
            if not sent.content:
                if is_current or not await self._reader.catch_up(replica, watch):
                    answers.update(sent.answers())
                    return
                is_current = True
            elif await self._append(replica, sent, watch):
                is_current = True
                answers.update(sent.answers() | self._sent.answered(sent.batches))
            else:
                conflicts += 1

    def _recall(self, replica: Replica, batches: Sequence[Batch]) -> dict[str, Answer]:
        """Return the answers to the batches that are already stored, by writer."""
        known, state = self._sent.answers, replica.state
        answers = {} if state is None else known.recall_all(batches, state, self._time.now)
        return self._sent.answered(batches) | answers

    def _decide(self, replica: Replica, batches: Sequence[Batch], put: Stopwatch | None) -> Sent:
        """Decide the batches on the replica's state."""
        now, state = self._time.now(), replica.deciding()
        state.step = self._time.step
        done = transact(state, batches, now)
        if not done.events:
            replica.undo()
            return Sent(0, b"", batches, done.outcomes, (), now, None, rings=False)
        assert replica.digest is not None
        guest = self._pacing.next_guest(now)
        if replica.is_blind:
            summary = with_added(replica.summary, done.events, now)
        else:
            summary = summary_of(state, now)
        entry = Entry(
            replica.number + 1, done.stamps, now, replica.digest, done.events, guest, summary
        )
        outcomes = _without_places(done.outcomes) if replica.is_blind else done.outcomes
        rings = any(map(makes_claimable, done.events))
        content, freed = encode(entry), freed_by(state)
        return Sent(
            entry.number,
            content,
            batches,
            outcomes,
            done.stamps,
            now,
            guest,
            rings,
            freed,
            summary,
            put,
        )

    async def _append(self, replica: Replica, sent: Sent, watch: Stopwatch) -> bool:
        """Store a commit as the next entry; False if another's entry came first and was applied."""
        # Noted before it is sent: after any error or interrupt from here on, this commit is not
        # decided again until its outcome is known.
        is_new, begun = self._sent.add(sent), Stopwatch(self.clock)
        try:
            others = await self._write(sent, watch)
        except BaseException as error:
            replica.undo()
            if is_new and isinstance(error, StorageError) and not error.outcome_unknown:
                self._sent.forget(sent)
            raise
        if others:
            replica.undo()
            await self._reader.take_others(replica, others)
        is_decided = replica.is_changing
        if not others and not is_decided:
            self._reader.take(replica, sent.content)
        try:
            await self._reader.prove(replica, begun, watch, shows_end=not others)
        except BaseException as error:
            replica.undo()
            if isinstance(error, StorageError):
                raise self._log.unknown(sent.number, error) from error
            raise
        if is_decided:
            self._stored(replica, sent)
        return not others

    def _stored(self, replica: Replica, sent: Sent) -> None:
        """Note that the batch decided last is stored, as the next entry."""
        replica.decided(sent.stamps, sent.content, sent.summary)
        self._reader.extended(replica)
        self._sent.stored(sent)
        self._time.saw(sent.decided_us)
        self._pacing.saw(sent.decided_us, sent.guest)
        if sent.rings:
            self._listeners.ring()
        self.housekeeping.after_entry(replica, len(sent.content))

    async def _write(self, sent: Sent, watch: Stopwatch) -> list[bytes]:
        # Without an answer about the mark, the entry is still stored, and in its own ledger.
        beside = [self._requests.briefly(one) for one in await self._reader.mark_check(watch)]
        # In a folder all processes are equally fast, so nobody has to be let in.
        words = None if self.blocking else self._pacing.beside(sent.number)
        if words is not None:
            beside.append(words)
        write = self._log.append(sent.number, sent.content, watch, ahead=self._reader.ahead)
        if not beside:
            return await write
        others, *_ = await self._requests.together(write, *beside)
        return cast("list[bytes]", others)

    async def _time_to_write(self) -> int:
        """Check that this is a ledger, and return the bucket's time, for ephemeral records."""
        called = Stopwatch(self.clock)
        async with self._lock:
            watch = self._requests.begin(called)
            await self._reader.enter(watch, to_write=True)
            for look in await self._reader.mark_check(watch):
                await look()
            if self._time.is_due():
                await ask_time(self._requests, self._time, watch)
            return self._time.asked()

    # -- waiting ---------------------------------------------------------------

    @contextmanager
    def listen(self, bell: Bell) -> Iterator[MaySleep]:
        with self._listeners.listening(bell):
            yield self._polling.interval_us

    # -- closing ---------------------------------------------------------------

    async def verify(self, progress: Progress) -> Verification:
        return await verify(self._requests, progress)

    async def adopt(self, *, force: bool) -> Adoption:
        await self.housekeeping.background.stop(CLOSE_SECONDS)  # it writes into the old folder
        async with self._lock:
            self._reader.close()
            adopted = await adopt(self._requests, self._time, force=force)
            self._reader.close()
            return adopted

    async def close(self) -> None:
        await self.housekeeping.background.stop(CLOSE_SECONDS)
        await self._payloads.finish(CLOSE_SECONDS)
        self._reader.close()
        await self._bucket.close()


def _lasting(batch: Batch) -> Batch:
    """Return the batch without its ephemeral operations, which are not written to the log."""
    return replace(batch, operations=[one for one in batch.operations if not is_ephemeral(one)])


def _can_be_blind(batch: Batch) -> bool:
    """True if no answer depends on the state: the batch only adds jobs with generated ids."""
    return not batch.is_remote and all(
        isinstance(one, Enqueue) and all(request.minted for request in one.jobs)
        for one in batch.operations
    )


def _without_places(outcomes: list[list[Any]]) -> list[list[Any]]:
    """Return the outcomes with `seq` set to 0: a blind replica does not know it."""
    return [
        [
            [replace(job, seq=0) for job in outcome] if isinstance(outcome, list) else outcome
            for outcome in one
        ]
        for one in outcomes
    ]


def _too_late() -> StorageError:
    return StorageError(
        "a snapshot replaced the part of the log where it would be, and was taken so much later "
        "that it does not show the outcome",
        outcome_unknown=True,
    )
