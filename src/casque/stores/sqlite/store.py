"""SqliteStore: a queue in one database file, shared by any number of processes on one machine.

A commit is one transaction, synced to disk before it is answered. One connection
writes and another reads, each under a lock, so that a long read of a large queue
delays no commit.

This file has over 400 lines: the fast and the slow commit share the cache, the answers
and the error handling, and the port has nine reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from casque.errors import CasqueError, StorageError
from casque.job import Job, Stats
from casque.record import Record
from casque.rules.answers import JobReads
from casque.rules.decide import Leased
from casque.rules.operations import Batch, Dequeue, Enqueue, Operation
from casque.rules.state import QueueState, WriterRow
from casque.rules.views import JobFilter, Served, Unserved
from casque.stores.description import Description
from casque.stores.last_answers import KeptAnswer, LastAnswers, check_writers
from casque.stores.listeners import Listeners
from casque.stores.maintenance import Adoption, Progress, Verification, in_use
from casque.stores.place_errors import replaced
from casque.stores.port import Answer, Joined, MaySleep
from casque.stores.sqlite import fast_path, forks
from casque.stores.sqlite.adoption import adopt
from casque.stores.sqlite.backup import Backup, back_up
from casque.stores.sqlite.batch import carry_out
from casque.stores.sqlite.cache import Cache
from casque.stores.sqlite.changes import Clash
from casque.stores.sqlite.connection import Database, Durability
from casque.stores.sqlite.connection_handle import ConnectionHandle
from casque.stores.sqlite.lock_wait import refuse_waiting
from casque.stores.sqlite.reads import Reads, Snapshot
from casque.stores.sqlite.rows import STATEMENTS as SQL
from casque.stores.sqlite.transaction import SEEN_EVERY_US, Transaction, Upkeep
from casque.stores.sqlite.verification import check
from casque.stores.sqlite.watch import Watch
from casque.system import forks as process
from casque.system import reentry
from casque.system.clock import Bell, Clock, StoreTime, SystemClock

BUSY_AT = 32
"""After this many commits, a handle is likely to make more."""
_SURE_US = 10_000
"""For this long after a commit, the next one does not check its files first."""

T = TypeVar("T")
Within = Callable[[sqlite3.Connection], AbstractContextManager[object]]


class SqliteStore:
    """A store in a database file. Nothing is opened before its first use."""

    blocking = True
    instant = False

    def __init__(
        self, path: Path, *, durability: Durability = "full", clock: Clock | None = None
    ) -> None:
        self.clock = clock or SystemClock()
        self.name = str(path)
        self.touched = 0
        """Rows read by claims: the unit of the cost guarantees."""
        self.commits = 0
        """Commits by this handle that changed something."""
        self._database = Database(path, durability, self.clock)
        self._files = self._database.files
        self._sure_until_us = 0
        self._time = StoreTime(self.clock)
        self._answers = LastAnswers()
        self._listeners = Listeners()
        self._upkeep = Upkeep()
        self._cache: Cache | None = None
        self._identity = ""
        """The identity of the queue at the first commit; empty: there was none yet."""
        self._is_grown = False
        """True if the log was given its full size."""
        self._was_empty = False
        """True if the last dequeue found nothing: then the next one reads before it locks."""
        self._unsure: tuple[str, int, fast_path.UnsureClaim] | None = None
        """A claim on the fast path that failed: it may be stored nevertheless."""
        self._writer = ConnectionHandle(self._database)
        self._reader = ConnectionHandle(self._database)
        watching = ConnectionHandle(self._database)
        self._watch = Watch(self._database, watching, self.clock, self._listeners)
        self._copier = ConnectionHandle(self._database)
        forks.remember(self, (self._writer, self._reader, self._copier, watching))

    def require_existing(self) -> None:
        self._database.must_exist = True

    def announce_to(self, report: Callable[[str], object]) -> None:
        self._database.report = report

    # -- changing --------------------------------------------------------------

    async def commit(
        self,
        batches: Sequence[Batch],
        *,
        max_conflicts: int | None = None,  # noqa: ARG002 - a lock has no conflicts
    ) -> list[Answer]:
        return self.commit_now(batches)

    def commit_now(self, batches: Sequence[Batch]) -> list[Answer]:
        if not process.is_noticed[0]:
            process.generation()  # in a child this replaces the lock
        writing = self._writer
        reentry.refuse(writing.lock)
        with writing.lock:
            try:
                done = self._commit_fast(batches[0]) if len(batches) == 1 else None
                answers, rings = done or self._commit(batches)
                # A write to deleted files is not stored, even if SQLite reports success.
                if not self._files.are_there():
                    raise self._database.lost()  # noqa: TRY301 - the connections are closed below
            except BaseException as error:
                # An error or Ctrl-C may come between any two statements, so the cache may be
                # half updated.
                self._cache = None
                self._writer.abandon()
                self._tell("use", error, writing)
                raise
            if self.commits >= BUSY_AT and not self._is_grown:
                self._is_grown = True
                with suppress(sqlite3.Error):  # the commit itself is stored
                    writing.grow_log()
        if rings and self._listeners.all:
            self._listeners.ring()
        return answers

    def _commit(self, batches: Sequence[Batch]) -> tuple[list[Answer], bool]:
        check_writers(batches)
        connection, is_new = self._writer.connection()
        if is_new:
            self._cache = None
        if self._was_empty and len(batches) == 1 and self._is_new(batches[0]):
            operations = batches[0].operations
            nothing = self._database.patiently(lambda: self._nothing_due(connection, operations))
            if nothing:
                return [nothing], False
        try:
            return self._commit_slow(connection, batches, careful=False)
        except Clash:
            self._cache = None
            self._writer.abandon()
            return self._commit_slow(connection, batches, careful=True)

    def _commit_slow(
        self, connection: sqlite3.Connection, batches: Sequence[Batch], *, careful: bool
    ) -> tuple[list[Answer], bool]:
        self._begin(connection)
        now = self._time.now()
        cache = self._current_cache(connection.execute)
        transaction = Transaction(connection, cache, self.clock, now, self._time.step)
        answers: list[Answer] = []
        done: list[tuple[Batch, list[Any]]] = []
        stored: list[tuple[Batch, list[Any]]] = []
        for batch in batches:
            answer = self._recall(transaction, batch)
            if answer is None:
                transaction.wrote = transaction.stamps = False
                outcomes = answer = carry_out(transaction, batch.operations, careful=careful)
                done.append((batch, outcomes))
                if transaction.wrote:
                    transaction.stamp(batch, outcomes, self._upkeep)
                    stored.append((batch, outcomes))
            answers.append(answer)
        self.touched += transaction.touched
        if transaction.found_nothing is not None:
            self._was_empty = transaction.found_nothing
        if not stored:
            connection.execute("ROLLBACK")
            return answers, False
        if now >= self._upkeep.prune_us:
            transaction.prune(self._upkeep)
        transaction.count()
        try:
            self._end(connection, [batch for batch, _ in done])
        except StorageError as error:
            return self._refuse_the_rest(answers, done, error), False
        transaction.cache.trim()
        self.commits += 1
        for batch, outcomes in stored:
            self._answers.keep(batch.writer, batch.number, outcomes, now)
        return answers, transaction.rings

    def _refuse_the_rest(
        self, answers: list[Answer], done: list[tuple[Batch, list[Any]]], error: StorageError
    ) -> list[Answer]:
        """Return the answers to batches that were stored before, and the error for the others."""
        if len(done) == len(answers):
            raise error
        refused = [outcomes for _, outcomes in done]
        self._cache = None
        self._writer.abandon()
        return [error if any(one is two for two in refused) else one for one in answers]

    def _is_new(self, batch: Batch) -> bool:
        """True if the batch is certainly not a repeat of a stored one."""
        is_known = (
            self._unsure is not None or self._answers.last_number(batch.writer) >= batch.number
        )
        return not (batch.is_remote or is_known)

    def _recall(self, transaction: Transaction, batch: Batch) -> Answer | None:
        """The answer to a batch that is already stored; None if it must be carried out."""
        writer, number = batch.writer, batch.number
        stored = max(self._answers.last_number(writer), transaction.number_of(writer))
        if stored >= number:
            return self._answers.recall(batch, stored, _kept_answer(transaction, writer))
        return None if self._unsure is None else self._landed(transaction, writer, number)

    def _landed(self, transaction: Transaction, writer: str, number: int) -> list[Any] | None:
        """The answer to a claim that raised an error but was stored; None if it was not."""
        assert self._unsure is not None
        *commit, tried = self._unsure
        outcomes = (
            fast_path.landed(transaction.execute, tried) if commit == [writer, number] else None
        )
        if outcomes is not None:
            self._answers.keep(writer, number, outcomes, transaction.now)
        self._unsure = None
        return outcomes

    def _commit_fast(self, batch: Batch) -> tuple[list[Answer], bool] | None:
        """Commit a batch if the fast path can; otherwise change nothing and return None.

        After None, a transaction may be open in which nothing was written.
        """
        writer, number, operations = batch.writer, batch.number, batch.operations
        claims = type(operations[-1]) is Dequeue
        if claims and self._was_empty:
            return None
        cache, upkeep, now = self._cache, self._upkeep, self._time.now()
        connection, told = self._writer.opened, self._answers.newest
        if (
            cache is None
            or connection is None
            or batch.is_remote
            or (now >= self._sure_until_us and not self._files.are_there())
            or now >= upkeep.prune_us
            or now - upkeep.seen.get(writer, 0) > SEEN_EVERY_US
            or (told.number if told.writer == writer else self._answers.last_number(writer))
            >= number
        ):
            return None
        try:
            outcomes = fast_path.commit(connection, cache, operations, now)
        except sqlite3.OperationalError:
            # For example, another process is writing: the slow path waits, or raises the error.
            if claims:
                self._unsure = writer, number, fast_path.unsure_claim_of(cache, operations, now)
            self._cache = None
            self._writer.abandon()
            return None
        if claims:
            self.touched += 2
        if outcomes is None:
            return None
        self._sure_until_us = now + _SURE_US
        self.commits += 1
        if told.writer == writer:
            told.number, told.outcomes, told.decided_us = number, outcomes, now
        else:
            self._answers.keep(writer, number, outcomes, now)
        return [outcomes], type(operations[0]) is Enqueue

    def _begin(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            return  # the fast path began it and could not continue
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._database.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _end(self, connection: sqlite3.Connection, batches: Sequence[Batch]) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # The disk failed, and SQLite rolled back or is about to: find out which.
            raise self._fate(connection, batches, error) from error

    def _fate(
        self, connection: sqlite3.Connection, batches: Sequence[Batch], error: sqlite3.Error
    ) -> CasqueError:
        trouble = self._database.trouble("write to", error)
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            is_stored = any(
                row is not None and row[0] >= batch.number
                for batch in batches
                for row in [connection.execute(SQL["writer"], (batch.writer,)).fetchone()]
            )
        except sqlite3.Error:
            is_stored = True  # unknown, so assume that it is stored
        if is_stored:
            return StorageError(
                f"{self.name}: outcome unknown: {error}. Look the jobs up by id before you try "
                "again.",
                cause=error,
                outcome_unknown=True,
            )
        return trouble

    def _current_cache(self, execute: Callable[..., Any]) -> Cache:
        [data_version] = execute(SQL["data_version"]).fetchone()
        cache = self._cache
        if cache is None:
            cache = self._cache = Cache(execute, data_version)
        elif cache.data_version != data_version:
            cache.reread(execute, data_version)
        if self._identity not in ("", cache.identity):
            raise replaced(f"{self.name} holds another queue")
        self._identity = cache.identity
        return cache

    def _nothing_due(
        self, connection: sqlite3.Connection, operations: Sequence[Operation]
    ) -> list[Any]:
        """The answers to dequeues that find nothing; empty if there is something to do.

        Takes no write lock: an idle worker must not block a busy one.
        """
        if not all(isinstance(one, Dequeue) and one.id is None for one in operations):
            return []
        now = self._time.now()
        answers: list[Any] = []
        with Snapshot(connection):
            for one in operations:
                assert isinstance(one, Dequeue)
                reads = Reads(connection.execute, now, self._time.step, one.lease_us)
                next_in = reads.nothing_due(one.entrypoints, one.queue)
                self.touched += reads.touched
                if next_in is False:
                    self._was_empty = False
                    return []
                answers.append(Leased([], next_in))
        return answers

    def enqueue_within(self, connection: object, operation: Enqueue) -> Joined:
        """Add jobs inside the transaction that the caller has open on `connection`."""
        # Few programs need it, and every `queuectl enqueue` would load it.
        from casque.stores.sqlite.callers_transaction import enqueue_within  # noqa: PLC0415

        try:
            return enqueue_within(
                self._database, self._time.now(), connection, operation, self._last_joined
            )
        finally:
            self._let_go()

    def refuse_waiting(self) -> None:
        refuse_waiting(self.name, self._database.identity())

    def backup(
        self, target: str | Path, *, replace: bool = False, progress: Progress = lambda *_: None
    ) -> Backup:
        """Copy the queue to a file while it is in use, and check the copy.

        `target` must not exist, unless `replace` is True. It appears complete or not at all.
        """
        process.generation()
        reentry.refuse(self._copier.lock)
        with self._copier.lock:  # a fork waits for this lock
            return back_up(
                self._database, self._copier, Path(target), replace=replace, progress=progress
            )

    async def verify(self, progress: Progress) -> Verification:
        """Check the file with a read transaction of a separate connection."""
        process.generation()
        reentry.refuse(self._copier.lock)
        with self._copier.lock, self._database.translating("check"):
            size = self._files.size().size_bytes
            progress(0, size)
            try:
                connection = self._copier.open()
                with Snapshot(connection):
                    check(connection, self.name)
                    now = self._time.now()
                    stats = Reads(connection.execute, now, self._time.step).stats(None)
            finally:
                self._copier.close()
            progress(size, size)
        return Verification(self.name, "sqlite", stats, size)

    async def adopt(self, *, force: bool) -> Adoption:
        await self.close()
        if not force and self._database.is_used():
            raise in_use(self.name, "another process has it open")
        with self._writer.lock, self._database.translating("adopt"):
            try:
                connection = self._writer.open()
                self._begin(connection)
                done = adopt(connection, self.name, self.clock, self._time.now(), force=force)
                connection.execute("COMMIT")
                return done
            finally:
                self._writer.close()

    # -- waiting ---------------------------------------------------------------

    @contextmanager
    def listen(self, bell: Bell) -> Iterator[MaySleep]:
        process.generation()
        with self._listeners.listening(bell), self._watch.kept():
            yield lambda: None

    # -- reading ---------------------------------------------------------------

    async def get(self, job_id: str) -> Job | None:
        # One statement always reads from one moment.
        return self._read(lambda reads: reads.job(job_id), within=nullcontext)

    async def jobs(self, wanted: JobFilter, *, limit: int, after: int = 0) -> list[Job]:
        return self._read(lambda reads: reads.jobs(wanted, limit, after))

    async def peek(
        self, entrypoints: Collection[str] | None, queue: str | None, limit: int
    ) -> list[Job]:
        return self._read(lambda reads: reads.peek(entrypoints, queue, limit))

    async def stats(self, queue: str | None) -> Stats:
        return self._read(lambda reads: reads.stats(queue))

    async def queues(self, *, due: bool) -> list[str]:
        return self._read(lambda reads: reads.queues(due=due))

    async def unserved(self, served: Served, *, limit: int, waited_us: int) -> Unserved:
        return self._read(lambda reads: reads.unserved(served, limit, waited_us))

    async def mismatched(self, queue: str | None) -> int:
        return self._read(lambda reads: reads.mismatched(queue))

    async def next_run(self, queue: str) -> int | None:
        return self._read(lambda reads: reads.next_run(queue))

    async def records(self, kind: str) -> list[Record]:
        return self._read(lambda reads: reads.records(kind))

    async def last_token(self) -> int:
        return self._read(lambda reads: reads.last_token())

    def _last_joined(self) -> int:
        return self._read(lambda reads: reads.last_joined(), within=nullcontext)

    async def picture(self) -> QueueState:
        return self._read(lambda reads: reads.picture())

    async def describe(self) -> Description:
        identity, schema = self._read(lambda reads: (reads.identity(), reads.schema()))
        return Description("sqlite", identity, schema, self._files.size())

    def _read(self, read: Callable[[Reads], T], *, within: Within = Snapshot) -> T:
        process.generation()
        reentry.refuse(self._reader.lock)
        with self._reader.lock:
            try:
                connection, _ = self._reader.connection()
                return self._database.patiently(lambda: self._read_on(connection, read, within))
            except BaseException as error:
                # Not only rolled back: while the traceback of an interrupt lives, so may a cursor,
                # and later reads on the connection would see the state of that moment.
                self._reader.close()
                self._tell("read", error, self._reader)
                raise

    def _read_on(
        self, connection: sqlite3.Connection, read: Callable[[Reads], T], within: Within
    ) -> T:
        with within(connection):
            now = self._time.now()
            return read(Reads(connection.execute, now, self._time.step))

    def _tell(self, verb: str, error: BaseException, here: ConnectionHandle) -> None:
        """Raise an error of SQLite as one of ours. Return if the error is not from SQLite.

        The caller must hold the lock of `here`.
        """
        trouble: BaseException = error
        if isinstance(error, sqlite3.Error):
            trouble = self._database.trouble(verb, error)
        self._let_go(here)
        if trouble is not error:
            raise trouble from error

    def _let_go(self, here: ConnectionHandle | None = None) -> None:
        """Close the connections if their files are gone, so that others can open the new files."""
        if not self._files.is_lost:
            return
        for handle in (self._writer, self._reader):
            if handle is here:
                handle.close()
            # A call that is using the handle now will get the same error.
            elif not reentry.is_mine(handle.lock) and handle.lock.acquire(blocking=False):
                try:
                    handle.close()
                finally:
                    handle.lock.release()

    # -- life ------------------------------------------------------------------

    async def close(self) -> None:
        process.generation()
        self._watch.close()
        for handle in (self._writer, self._reader):
            if reentry.is_mine(handle.lock):
                continue  # closed by a signal handler in the middle of a call: closed at exit
            with handle.lock:
                handle.close()
        self._cache = None
        self._identity = ""
        self._files.forget()

    def before_fork(self) -> None:
        self._watch.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._cache = None
            self._database.let_go()
            self._listeners.all.clear()  # the waiting dequeues are the parent's
        self._watch.after_fork(in_child=in_child)


def _kept_answer(transaction: Transaction, writer: str) -> KeptAnswer | None:
    """The stored answer to a writer's last commit."""
    row = transaction.execute(SQL["writer"], (writer,)).fetchone()
    if row is None:
        return None
    number, seen_us, answers = row
    reads = Reads(transaction.execute, transaction.now, transaction.step)
    row = WriterRow(number, seen_us, answers or b"")
    return KeptAnswer(row, JobReads(reads.job, reads.held, reads.record))
