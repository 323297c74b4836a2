"""Bugs, planted to check that the simulation finds them. Each one has been made somewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from casque.buckets.folder import FolderBucket
from casque.buckets.port import ABSENT
from casque.buckets.synced_names import SyncedNames
from casque.errors import CASConflictError, StorageError
from casque.job import Job
from casque.queues import commit_asyncio
from casque.rules import decide, picking
from casque.rules.operations import Batch, Enqueue
from casque.rules.state import State
from casque.stores.ledger import snapshot_loader, snapshot_writer, store, tryout
from casque.stores.ledger.bucket_requests import BucketRequests
from casque.stores.ledger.bucket_time import BucketTime
from casque.stores.ledger.deletion import Deletion
from casque.stores.ledger.entry import decode
from casque.stores.ledger.log import FOLDER, Log, key_of, number_in
from casque.stores.ledger.log_reader import LogReader
from casque.stores.ledger.pacing import WAITING, Pacing
from casque.stores.ledger.proof import Proof, View
from casque.stores.ledger.replica import Replica
from casque.stores.ledger.sent_commits import Sent, SentCommits
from casque.stores.ledger.snapshot import Builder, Frozen
from casque.stores.ledger.snapshot_listing import MANIFESTS
from casque.stores.ledger.store import LedgerStore
from casque.system.clock import SECOND_US, Stopwatch
from casque.testing.simulation import ShortenedSimulation
from casque.testing.simulation.process import Process

Plant = Callable[[pytest.MonkeyPatch], None]


def unknown_outcome_decided_again(patch: pytest.MonkeyPatch) -> None:
    """No answer is taken for a no: the commit is decided again without checking its outcome."""

    async def append(
        self: Log, number: int, content: bytes, watch: Stopwatch, *, ahead: int
    ) -> list[bytes]:
        try:
            await self._requests.put(key_of(number), content, ABSENT, watch)
        except CASConflictError:
            return await self.read_ahead(number, ahead, watch)
        return []

    real = LedgerStore._append

    async def decide_again(
        self: LedgerStore, replica: Replica, sent: Sent, *rest: Any, **options: Any
    ) -> bool:
        try:
            return await real(self, replica, sent, *rest, **options)
        except StorageError as error:
            if not error.outcome_unknown:
                raise
            self._sent.forget(sent)
            return False

    patch.setattr(Log, "append", append)
    patch.setattr(LedgerStore, "_append", decide_again)


def own_writer_believed(patch: pytest.MonkeyPatch) -> None:
    """Any entry of this writer under that number is taken for the current commit."""

    class Believed(bytes):
        __slots__ = ()
        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            return isinstance(other, bytes) and _writer(self) == _writer(other)

    real = Log._look

    async def look(self: Log, *args: Any) -> list[bytes]:
        return [Believed(one) for one in await real(self, *args)]

    patch.setattr(Log, "_look", look)


def _writer(content: bytes) -> str:
    return decode(bytes(content), "an entry").stamps[0].writer


def time_stands_still(patch: pytest.MonkeyPatch) -> None:
    """An entry's time is the last time read: the bucket's, or that of the entry before it."""

    def now(self: BucketTime) -> int:
        assert self._told is not None
        return max(self._told[0], self._seen[0])

    patch.setattr(BucketTime, "now", now)


def stale_memory(patch: pytest.MonkeyPatch) -> None:
    """Answers come from memory, without checking whether the log has grown."""
    real = LogReader.ready

    async def ready(self: LogReader, watch: Stopwatch, **options: Any) -> tuple[Replica, bool]:
        replica, _ = await real(self, watch, **options)
        return replica, True

    patch.setattr(LogReader, "ready", ready)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Any caller that names a job in progress is taken for its holder."""

    def held(state: State, job_id: str, token: int, now: int) -> Job:
        job = decide._known(state, job_id, now)
        return job if job.status == "in_progress" else real(state, job_id, token, now)

    real = decide._held
    patch.setattr(decide, "_held", held)


def doubts_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A call that is cancelled while an entry is under way forgets that it was sent."""
    real = LedgerStore._append

    async def append(self: LedgerStore, replica: Replica, sent: Sent, *rest: Any) -> bool:
        try:
            return await real(self, replica, sent, *rest)
        except asyncio.CancelledError:
            self._sent.forget(sent)
            raise

    patch.setattr(LedgerStore, "_append", append)


def no_rollback(patch: pytest.MonkeyPatch) -> None:
    """A batch that lost its race stays in memory."""

    def undo(self: Replica) -> None:
        self.is_changing = False

    patch.setattr(Replica, "undo", undo)


def blind_with_given_ids(patch: pytest.MonkeyPatch) -> None:
    """Jobs with ids from the caller are added blindly."""

    def can_be_blind(batch: Batch) -> bool:
        return all(isinstance(one, Enqueue) for one in batch.operations)

    patch.setattr(store, "_can_be_blind", can_be_blind)


def leases_cut_short(patch: pytest.MonkeyPatch) -> None:
    """Jobs are claimed a few seconds before they are due."""
    real = picking.pick

    def pick(
        state: State, entrypoints: Any, queue: Any, limit: int, now: int, *, judged_us: int
    ) -> Any:
        early = 3 * SECOND_US
        return real(state, entrypoints, queue, limit, now + early, judged_us=judged_us + early)

    patch.setattr(decide, "pick", pick)


def refused_is_known(patch: pytest.MonkeyPatch) -> None:
    """A refusal is believed, though the same bytes were sent before and not answered."""
    real = LedgerStore._append

    async def append(self: LedgerStore, replica: Replica, sent: Sent, *rest: Any) -> bool:
        try:
            return await real(self, replica, sent, *rest)
        except StorageError as error:
            if not error.outcome_unknown:
                self._sent.forget(sent)
            raise

    patch.setattr(LedgerStore, "_append", append)


def patience_without_end(patch: pytest.MonkeyPatch) -> None:
    """A request without an answer is waited for without a limit."""

    async def bounded(self: BucketRequests, ask: Callable[[], Any], *_: object) -> Any:
        return await ask()

    patch.setattr(BucketRequests, "_bounded", bounded)


def fresh_time_in_line(patch: pytest.MonkeyPatch) -> None:
    """A call gets its full time when its turn comes, though the storage does not answer."""
    patch.setattr(BucketRequests, "begin", lambda self, called: Stopwatch(self.clock))


def gathered_calls_try_too(patch: pytest.MonkeyPatch) -> None:
    """Calls that gathered behind an unanswered commit are sent next, with their own full time."""
    patch.setattr(commit_asyncio, "is_unanswered", lambda error: False)


def visible_is_durable(patch: pytest.MonkeyPatch) -> None:
    """In a folder, files of other processes are returned without syncing them."""

    def believe(self: FolderBucket, found: object) -> None:
        """Sync nothing."""

    patch.setattr(FolderBucket, "_believe", believe)


def unsynced_names(patch: pytest.MonkeyPatch) -> None:
    """A put is answered once its file is visible, before the folder is synced."""

    def sync(self: SyncedNames, folders: object) -> None:
        """Sync nothing."""

    patch.setattr(SyncedNames, "sync", sync)


def no_race(patch: pytest.MonkeyPatch) -> None:
    """A server that refuses the second of two creates is taken for atomic."""

    async def race(*_: object) -> None:
        """Run no race."""

    patch.setattr(tryout, "_race", race)


def lists_believed(patch: pytest.MonkeyPatch) -> None:
    """Objects that a list does not show are taken for missing."""

    async def check_list(self: Log, last: int) -> None:
        """Check nothing."""

    patch.setattr(Log, "check_list", check_list)
    patch.setattr(tryout, "PAGE", 0)


def gaps_unseen(patch: pytest.MonkeyPatch) -> None:
    """The last listed entry is the end of the log, even if entries before it are missing."""

    async def check_gap(self: Log, first: int, end: int, watch: Stopwatch) -> None:
        """Check nothing."""

    patch.setattr(Log, "_check_gap", check_gap)


def half_read_log(patch: pytest.MonkeyPatch) -> None:
    """A log that could not be read to its end is written to where the reading stopped."""
    real = LogReader._read_to_end

    async def read_to_end(self: LogReader, replica: Replica) -> None:
        self._is_read = True
        await real(self, replica)

    patch.setattr(LogReader, "_read_to_end", read_to_end)


def others_words_deleted(patch: pytest.MonkeyPatch) -> None:
    """A process that got in deletes every word, not only its own."""
    real = Pacing._retract

    async def retract(self: Pacing) -> None:
        await real(self)
        for one in await self._requests.bucket.list(WAITING):
            await self._requests.bucket.delete(one.key)

    patch.setattr(Pacing, "_retract", retract)


def guests_ignored(patch: pytest.MonkeyPatch) -> None:
    """Nobody holds back for a guest."""
    patch.setattr(Pacing, "_reserved_us", lambda _: 0)


def tokens_restart_at_one(patch: pytest.MonkeyPatch) -> None:
    """A new ledger counts its tokens from 1, as the one before it did."""
    patch.setattr(decide, "next_token", lambda last, _: last + 1)


def deletion_by_entry_age(patch: pytest.MonkeyPatch) -> None:
    """Entries are deleted once they are old, however new the snapshot is that replaces them."""

    async def newest_whole(
        self: Deletion, old: list[Any], listed: list[Any], now: int, counters_of: Any
    ) -> int | None:
        self._oldest_us = now - self._requests.bucket.upkeep.deletion_age_us  # type: ignore[attr-defined]
        return listed[-1].number if listed else None

    real = Deletion._delete_entries

    async def delete_entries(self: Deletion, snapshot: int) -> None:
        entries = await self._requests.list(FOLDER, "", self._watch())
        young = [one for one in entries if one.modified_us > self._oldest_us]  # type: ignore[attr-defined]
        first = min((number_in(one.key) or 0 for one in young), default=snapshot)
        await real(self, min(first, snapshot))

    patch.setattr(Deletion, "_newest_whole", newest_whole)
    patch.setattr(Deletion, "_delete_entries", delete_entries)


def deletion_without_age(patch: pytest.MonkeyPatch) -> None:
    """Entries are deleted as soon as a snapshot replaces them."""
    real = Deletion._newest_whole

    async def newest_whole(
        self: Deletion, old: list[Any], listed: list[Any], now: int, counters_of: Any
    ) -> int | None:
        late = now + 3 * self._requests.bucket.upkeep.deletion_age_us
        return await real(self, listed, listed, late, counters_of)

    patch.setattr(Deletion, "_newest_whole", newest_whole)


def payload_deleted_before_its_ack(patch: pytest.MonkeyPatch) -> None:
    """A payload is deleted when the commit that removes its job is sent, not once it is stored."""
    real = SentCommits.add

    def add(self: SentCommits, sent: Sent) -> bool:
        self._payloads.delete(sent.freed)
        return real(self, sent)

    patch.setattr(SentCommits, "add", add)


def no_proof(patch: pytest.MonkeyPatch) -> None:
    """A free name is taken for one that was never used, however old the view is."""
    patch.setattr(Proof, "_is_fresh", lambda self: True)


def proof_stamped_at_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A proof counts from the moment of its answer, which may be hours after the request."""
    real = Proof.renew
    patch.setattr(Proof, "renew", lambda self, _: real(self, Stopwatch(self._requests.clock)))


def proof_by_any_entry(patch: pytest.MonkeyPatch) -> None:
    """Reading an entry that exists counts as a proof that the log ends there."""
    real = Proof.check

    async def check(
        self: Proof, view: View, begun: Stopwatch, watch: Stopwatch, *, shows_end: bool
    ) -> None:
        if shows_end:
            await real(self, view, begun, watch, shows_end=True)
        else:
            self.renew(begun)

    patch.setattr(Proof, "check", check)


def manifest_before_parts(patch: pytest.MonkeyPatch) -> None:
    """A snapshot's manifest is written first, so that it may name parts that never come."""
    real, parts = BucketRequests.put_until_answered, snapshot_writer._put_parts

    async def put(self: BucketRequests, key: str, body: bytes, *args: Any) -> Any:
        answer = await real(self, key, body, *args)
        if key.startswith(MANIFESTS):
            await parts(self, unsent)
        return answer

    async def later(_: BucketRequests, more: Any) -> None:
        unsent[:] = [*more]

    unsent: list[tuple[str, bytes]] = []
    patch.setattr(BucketRequests, "put_until_answered", put)
    patch.setattr(snapshot_writer, "_put_parts", later)


def unverified_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Entries are deleted though nobody has checked that the snapshot is complete."""
    manifest_before_parts(patch)
    patch.setattr(ShortenedSimulation, "_check_snapshot", lambda *_: None)

    async def whole(self: Deletion, number: int, _: Any) -> Any:
        return await snapshot_loader.read_manifest(self._requests, number)

    patch.setattr(Deletion, "_whole", whole)


def snapshot_without_writers(patch: pytest.MonkeyPatch) -> None:
    """A snapshot does not say which commits it includes."""
    real = Frozen.of
    patch.setattr(Frozen, "of", lambda *args: real(*args)._replace(writers=[]))
    patch.setattr(ShortenedSimulation, "_check_snapshot", lambda *_: None)
    patch.setattr(Process, "check_replica", lambda _: None)


def snapshot_without_token(patch: pytest.MonkeyPatch) -> None:
    """After a snapshot, tokens are counted from the highest that a stored job has.

    Without their distance to the time, which would hide it.
    """
    tokens_restart_at_one(patch)
    real = Builder.finish

    def finish(self: Builder) -> State:
        state = real(self)
        state.token = max((job.token for job in state.jobs.values()), default=0)
        return state

    patch.setattr(Builder, "finish", finish)
    patch.setattr(ShortenedSimulation, "_check_snapshot", lambda *_: None)
    patch.setattr(Process, "check_replica", lambda _: None)
